"""Tools over a backend, and middleware that gives them to LangChain agents."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.middleware.blobs import Blobs
    from deepfs.middleware.compaction import SummarizationEvent, SummarizationState
    from deepfs.middleware.context_size import TruncateArgsSettings, compute_summarization_defaults
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.history_files import HistoryFiles
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.summarization import (
        SummarizationToolMiddleware,
        create_summarization_middleware,
        create_summarization_tool_middleware,
    )
    from deepfs.middleware.summarizer import SummarizationMiddleware
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.middleware.transcript import Transcript
    from deepfs.middleware.unsupported_content import UnsupportedContentMiddleware
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "Blobs",
    "CompiledSubAgent",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "HistoryFiles",
    "MemoryMiddleware",
    "SubAgent",
    "SubAgentMiddleware",
    "SummarizationEvent",
    "SummarizationMiddleware",
    "SummarizationState",
    "SummarizationToolMiddleware",
    "Transcript",
    "TruncateArgsSettings",
    "UnsupportedContentMiddleware",
    "compute_summarization_defaults",
    "create_summarization_middleware",
    "create_summarization_tool_middleware",
    "filesystem_tools",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "compaction": ["SummarizationEvent", "SummarizationState"],
            "context_size": ["TruncateArgsSettings", "compute_summarization_defaults"],
            "blobs": ["Blobs"],
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "history_files": ["HistoryFiles"],
            "memory": ["MemoryMiddleware"],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "summarization": [
                "SummarizationToolMiddleware",
                "create_summarization_middleware",
                "create_summarization_tool_middleware",
            ],
            "summarizer": ["SummarizationMiddleware"],
            "tools": ["filesystem_tools"],
            "transcript": ["Transcript"],
            "unsupported_content": ["UnsupportedContentMiddleware"],
        },
    )
