"""Tools over a backend, and middleware that gives them to LangChain agents."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.middleware.async_subagents import AsyncSubAgentMiddleware
    from deepfs.middleware.background_tasks import BackgroundTasks
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.prompt_caching import prompt_caching
    from deepfs.middleware.remote_tasks import AsyncSubAgent
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.summarization import SummarizationMiddleware
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "AsyncSubAgent",
    "AsyncSubAgentMiddleware",
    "BackgroundTasks",
    "CompiledSubAgent",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "MemoryMiddleware",
    "SubAgent",
    "SubAgentMiddleware",
    "SummarizationMiddleware",
    "filesystem_tools",
    "prompt_caching",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "async_subagents": ["AsyncSubAgentMiddleware"],
            "background_tasks": ["BackgroundTasks"],
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "memory": ["MemoryMiddleware"],
            "prompt_caching": ["prompt_caching"],
            "remote_tasks": ["AsyncSubAgent"],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "summarization": ["SummarizationMiddleware"],
            "tools": ["filesystem_tools"],
        },
    )
