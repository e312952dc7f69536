"""Tools over a backend, and middleware that gives them to LangChain agents."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.middleware.blobs import Blobs
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.rubric import (
        GRADER_SYSTEM_PROMPT,
        RUBRIC_GRADER_MESSAGE_SOURCE,
        CriterionEval,
        CriterionFail,
        CriterionPass,
        GraderResponse,
        GraderVerdict,
        RubricEvaluation,
        RubricMiddleware,
        RubricResult,
        RubricState,
    )
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.middleware.unsupported_content import UnsupportedContentMiddleware
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "GRADER_SYSTEM_PROMPT",
    "RUBRIC_GRADER_MESSAGE_SOURCE",
    "Blobs",
    "CompiledSubAgent",
    "CriterionEval",
    "CriterionFail",
    "CriterionPass",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "GraderResponse",
    "GraderVerdict",
    "MemoryMiddleware",
    "RubricEvaluation",
    "RubricMiddleware",
    "RubricResult",
    "RubricState",
    "SubAgent",
    "SubAgentMiddleware",
    "UnsupportedContentMiddleware",
    "filesystem_tools",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "blobs": ["Blobs"],
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "memory": ["MemoryMiddleware"],
            "rubric": [
                "CriterionEval",
                "CriterionFail",
                "CriterionPass",
                "GRADER_SYSTEM_PROMPT",
                "GraderResponse",
                "GraderVerdict",
                "RUBRIC_GRADER_MESSAGE_SOURCE",
                "RubricEvaluation",
                "RubricMiddleware",
                "RubricResult",
                "RubricState",
            ],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "tools": ["filesystem_tools"],
            "unsupported_content": ["UnsupportedContentMiddleware"],
        },
    )
