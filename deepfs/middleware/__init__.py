"""Tools over a backend, and middleware that gives them to LangChain agents."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.middleware.filesystem import FilesystemMiddleware
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.skill_files import SkillMetadata
    from deepfs.middleware.skill_tools import SkillToolResolver
    from deepfs.middleware.skills import SkillsMiddleware, SkillsState
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "CompiledSubAgent",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "MemoryMiddleware",
    "SkillMetadata",
    "SkillToolResolver",
    "SkillsMiddleware",
    "SkillsState",
    "SubAgent",
    "SubAgentMiddleware",
    "filesystem_tools",
]

if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "filesystem": ["FilesystemMiddleware", "FilesystemPermission"],
            "memory": ["MemoryMiddleware"],
            "skill_files": ["SkillMetadata"],
            "skill_tools": ["SkillToolResolver"],
            "skills": ["SkillsMiddleware", "SkillsState"],
            "subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "tools": ["filesystem_tools"],
        },
    )
