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
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.previews import preview_call
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "ApprovalMiddleware",
    "CompiledSubAgent",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "MemoryMiddleware",
    "PatchEditor",
    "SubAgent",
    "SubAgentMiddleware",
    "apply_patch_tool",
    "async_memory_tool_of_sdk",
    "filesystem_tools",
    "memory_function",
    "memory_tool",
    "memory_tool_of_sdk",
    "preview_call",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "approvals": ["ApprovalMiddleware"],
            "apply_patch": ["PatchEditor", "apply_patch_tool"],
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "memory": ["MemoryMiddleware"],
            "anthropic_memory": ["async_memory_tool_of_sdk", "memory_function", "memory_tool", "memory_tool_of_sdk"],
            "previews": ["preview_call"],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "tools": ["filesystem_tools"],
        },
    )
