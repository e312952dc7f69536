"""Tools over a backend, and middleware that gives them to LangChain agents."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.middleware.anthropic_memory import (
        async_memory_tool_of_sdk,
        memory_function,
        memory_tool,
        memory_tool_of_sdk,
    )
    from deepfs.middleware.apply_patch import PatchEditor, apply_patch_tool
    from deepfs.middleware.approvals import ApprovalMiddleware
    from deepfs.middleware.async_subagents import AsyncSubAgentMiddleware
    from deepfs.middleware.background_tasks import BackgroundTasks
    from deepfs.middleware.blobs import Blobs
    from deepfs.middleware.compaction import SummarizationEvent, SummarizationState
    from deepfs.middleware.context_size import TruncateArgsSettings, compute_summarization_defaults
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.grading import (
        CriterionEval,
        CriterionFail,
        CriterionPass,
        GraderResponse,
        GraderVerdict,
        RubricEvaluation,
        RubricResult,
        RubricState,
    )
    from deepfs.middleware.history_files import HistoryFiles
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.previews import preview_call
    from deepfs.middleware.provider_caching import prompt_caching
    from deepfs.middleware.rubric import GRADER_SYSTEM_PROMPT, RUBRIC_GRADER_MESSAGE_SOURCE, RubricMiddleware
    from deepfs.middleware.skill_texts import SkillMetadata
    from deepfs.middleware.skill_tools import SkillToolResolver
    from deepfs.middleware.skills import SkillsMiddleware, SkillsState
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.summarization import (
        DEEPAGENTS_DEFAULT_SUMMARY_PROMPT,
        SummarizationToolMiddleware,
        create_summarization_middleware,
        create_summarization_tool_middleware,
    )
    from deepfs.middleware.summarizer import SummarizationMiddleware
    from deepfs.middleware.task_events import TaskEvent
    from deepfs.middleware.task_records import AsyncSubAgent
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.middleware.transcript import Transcript
    from deepfs.middleware.unsupported_content import UnsupportedContentMiddleware
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "DEEPAGENTS_DEFAULT_SUMMARY_PROMPT",
    "GRADER_SYSTEM_PROMPT",
    "RUBRIC_GRADER_MESSAGE_SOURCE",
    "ApprovalMiddleware",
    "AsyncSubAgent",
    "AsyncSubAgentMiddleware",
    "BackgroundTasks",
    "Blobs",
    "CompiledSubAgent",
    "CriterionEval",
    "CriterionFail",
    "CriterionPass",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "GraderResponse",
    "GraderVerdict",
    "HistoryFiles",
    "MemoryMiddleware",
    "PatchEditor",
    "RubricEvaluation",
    "RubricMiddleware",
    "RubricResult",
    "RubricState",
    "SkillMetadata",
    "SkillToolResolver",
    "SkillsMiddleware",
    "SkillsState",
    "SubAgent",
    "SubAgentMiddleware",
    "SummarizationEvent",
    "SummarizationMiddleware",
    "SummarizationState",
    "SummarizationToolMiddleware",
    "TaskEvent",
    "Transcript",
    "TruncateArgsSettings",
    "UnsupportedContentMiddleware",
    "apply_patch_tool",
    "async_memory_tool_of_sdk",
    "compute_summarization_defaults",
    "create_summarization_middleware",
    "create_summarization_tool_middleware",
    "filesystem_tools",
    "memory_function",
    "memory_tool",
    "memory_tool_of_sdk",
    "preview_call",
    "prompt_caching",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "anthropic_memory": ["async_memory_tool_of_sdk", "memory_function", "memory_tool", "memory_tool_of_sdk"],
            "apply_patch": ["PatchEditor", "apply_patch_tool"],
            "approvals": ["ApprovalMiddleware"],
            "async_subagents": ["AsyncSubAgentMiddleware"],
            "background_tasks": ["BackgroundTasks"],
            "blobs": ["Blobs"],
            "compaction": ["SummarizationEvent", "SummarizationState"],
            "context_size": ["TruncateArgsSettings", "compute_summarization_defaults"],
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "grading": [
                "CriterionEval",
                "CriterionFail",
                "CriterionPass",
                "GraderResponse",
                "GraderVerdict",
                "RubricEvaluation",
                "RubricResult",
                "RubricState",
            ],
            "history_files": ["HistoryFiles"],
            "memory": ["MemoryMiddleware"],
            "previews": ["preview_call"],
            "provider_caching": ["prompt_caching"],
            "rubric": ["GRADER_SYSTEM_PROMPT", "RUBRIC_GRADER_MESSAGE_SOURCE", "RubricMiddleware"],
            "skill_texts": ["SkillMetadata"],
            "skill_tools": ["SkillToolResolver"],
            "skills": ["SkillsMiddleware", "SkillsState"],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "summarization": [
                "DEEPAGENTS_DEFAULT_SUMMARY_PROMPT",
                "SummarizationToolMiddleware",
                "create_summarization_middleware",
                "create_summarization_tool_middleware",
            ],
            "summarizer": ["SummarizationMiddleware"],
            "task_events": ["TaskEvent"],
            "task_records": ["AsyncSubAgent"],
            "tools": ["filesystem_tools"],
            "transcript": ["Transcript"],
            "unsupported_content": ["UnsupportedContentMiddleware"],
        },
    )
