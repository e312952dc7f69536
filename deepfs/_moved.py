"""Import paths kept for compatibility: former modules of deepfs, and the modules and names that deepagents has.

A former module has no file. It is created when it is imported, and its attributes are loaded when they are first used.
So are the names of deepagents in modules that have a file and call `names_of_deepagents`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

from deepfs._lazy import lazy_exports

__all__ = ["MOVED", "NAMES", "install", "names_of_deepagents"]

MOVED: Final[Mapping[str, Sequence[str]]] = {
    "deepfs.backends.adapted": ["deepfs.compat.adapters", "deepfs.compat.class_bodies"],
    "deepfs.backends.bubblewrap": ["deepfs.sandboxes.bubblewrap"],
    "deepfs.backends.context": ["deepfs.compat.factories"],
    "deepfs.backends.daytona": ["deepfs.sandboxes.daytona"],
    "deepfs.backends.deno": ["deepfs.sandboxes.deno"],
    "deepfs.backends.factories": ["deepfs.compat.factories"],
    "deepfs.backends.modal": ["deepfs.sandboxes.modal"],
    "deepfs.backends.sandbox": ["deepfs.sandboxes.base"],
    "deepfs.backends.utils": ["deepfs.compat.utils"],
    "deepfs.compat.v1": ["deepfs.backends.older_protocols", "deepfs.compat.adapters"],
    "deepfs.core": [],
    "deepfs.core.filedata": ["deepfs.text.records"],
    "deepfs.core.filemap": ["deepfs.text.flat_tree"],
    "deepfs.core.identity": ["deepfs.text.entries"],
    "deepfs.core.locks": ["deepfs.threads.locks"],
    "deepfs.core.paths": ["deepfs.text.paths"],
    "deepfs.core.patterns": ["deepfs.search.globs"],
    "deepfs.core.reading": ["deepfs.text.records"],
    "deepfs.core.replace": ["deepfs.text.edits"],
    "deepfs.core.scan": ["deepfs.search.query"],
    "deepfs.core.trees": ["deepfs.text.entries"],
    "deepfs.middleware.patch_tool_calls": [],
    "deepfs.middleware.permissions": ["deepfs.policy.rules"],
    "deepfs.policy.calls": ["deepfs.policy.hooks"],
    "deepfs.policy.quota": ["deepfs.policy.limits"],
    "deepfs.policy.wrapper": ["deepfs.backends.wrapper"],
    "deepfs.profiles.harness": ["deepfs.profiles"],
    "deepfs.profiles.harness.harness_profiles": ["deepfs.profiles"],
    "deepfs.profiles.provider": ["deepfs.profiles"],
    "deepfs.profiles.provider.provider_profiles": ["deepfs.profiles"],
}
"""The former modules, each with the modules that define its names."""

_CONSTANTS: Final = "deepfs.compat.constants"
_OF_TOOLS: Final = "deepfs.middleware._deepagents_names"

NAMES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    module: {home: names.split() for home, names in homes.items()}
    for module, homes in {
        "deepfs.backends.composite": {_CONSTANTS: "GlobBackendResult"},
        "deepfs.backends.filesystem": {
            _CONSTANTS: """ASYNC_GREP_TIMEOUT DEFAULT_GREP_TIMEOUT FILE_NOT_FOUND INVALID_PATH IS_DIRECTORY
                PERMISSION_DENIED""",
            _OF_TOOLS: "MAX_VIDEO_INPUT_BYTES",
        },
        "deepfs.backends.local_shell": {_CONSTANTS: "DEFAULT_EXECUTE_TIMEOUT"},
        "deepfs.backends.protocol": {
            _CONSTANTS: """ASYNC_GLOB_TIMEOUT ASYNC_GREP_TIMEOUT DEFAULT_GREP_TIMEOUT ExecuteArtifact
                ExecuteOffloadResult FILE_NOT_FOUND GlobTruncationReason INVALID_PATH IS_DIRECTORY PERMISSION_DENIED
                execute_accepts_timeout""",
        },
        "deepfs.backends.sandbox": {
            _CONSTANTS: """ASYNC_GLOB_TIMEOUT ASYNC_GREP_TIMEOUT ExecuteOffloadResult MAX_BINARY_BYTES MAX_OUTPUT_BYTES
                TRUNCATION_MSG""",
            "deepfs.compat.utils": "EMPTY_OLD_STRING_ERROR TRUNCATION_MARKER_TEMPLATE",
        },
        "deepfs.backends.utils": {_OF_TOOLS: "MAX_VIDEO_INPUT_BYTES"},
        "deepfs.middleware.filesystem": {
            _OF_TOOLS: """DEFAULT_READ_LIMIT DEFAULT_READ_OFFSET DELETE_TOOL_DESCRIPTION DeleteSchema
                EDIT_FILE_TOOL_DESCRIPTION EMPTY_CONTENT_WARNING EXECUTE_TOOL_DESCRIPTION EditFileSchema ExecuteSchema
                GLOB_PATHLESS_DENIED_HINT GLOB_TIMEOUT GLOB_TOOL_DESCRIPTION GLOB_TRUNCATION_NOTE GLOB_UNREADABLE_NOTE
                GREP_GLOB_DESCRIPTION GREP_OUTPUT_MODE_DESCRIPTION GREP_TOOL_DESCRIPTION GREP_TRUNCATION_NOTE GlobSchema
                GrepSchema LIST_FILES_TOOL_DESCRIPTION LsSchema MAX_VIDEO_INPUT_BYTES NO_LINES_REQUESTED_WARNING
                NUM_CHARS_PER_TOKEN READ_FILE_TOOL_DESCRIPTION READ_FILE_TRUNCATION_MSG REMOVE_ALL_MESSAGES
                READ_FILE_VIDEO_TOOL_DESCRIPTION ReadFileSchema ReadVideoFileSchema TOOLS_EXCLUDED_FROM_EVICTION
                WRITE_FILE_TOOL_DESCRIPTION WriteFileSchema""",
            _CONSTANTS: "supports_execution",
            "deepfs.policy.rules": "FilesystemOperation",
        },
        "deepfs.middleware.patch_tool_calls": {_OF_TOOLS: "PatchToolCallsMiddleware REMOVE_ALL_MESSAGES"},
    }.items()
}
"""Names that deepagents has in its module of the same path, by module of deepfs and the module that defines them."""


def names_of_deepagents(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module that is listed in `NAMES`; `__all__` gets the names as well."""
    exported: list[str] = vars(sys.modules[module])["__all__"]
    exported += [name for names in NAMES[module].values() for name in names]
    return lazy_exports(module, NAMES[module])


class _FormerModule(ModuleType):
    """A module whose attributes come from other modules, which are imported when an attribute is first used."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            named = [home for home, names in NAMES.get(self.__name__, {}).items() if name in names]
            for home in named or MOVED[self.__name__]:
                if hasattr(module := import_module(home), name):
                    return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    @property
    def __all__(self) -> list[str]:
        own = {name for home in MOVED[self.__name__] for name in import_module(home).__all__}
        return sorted(own.union(*NAMES.get(self.__name__, {}).values()))

    def __dir__(self) -> list[str]:
        return self.__all__


class _Finder:
    """Finds and loads former modules. It has no base class, since importing `importlib.abc` takes 12 ms."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in MOVED:
            return None
        return ModuleSpec(name, cast("Any", self), is_package=any(other.startswith(f"{name}.") for other in MOVED))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _FormerModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a former module has no code."""


def install() -> None:
    """Make former modules importable. The finder comes last, so modules that have a file are found first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
