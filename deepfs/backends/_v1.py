"""The first protocol: its names, what a backend of it defines, and how one is told."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from deepfs._deprecated import warn_deprecated
from deepfs.sync import OPERATIONS

__all__ = [
    "V1_NAMES",
    "BackendProtocolV1",
    "SandboxBackendProtocolV1",
    "add_v1_names",
    "is_v1",
    "own_name",
    "v1_operations",
]

V1_NAMES: Final[Mapping[str, str]] = {"ls": "ls_info", "grep": "grep_raw", "glob": "glob_info"}
"""What the operations that have another name in V1 are called there."""


_MARK: Final = "_defined_in_v1"


class BackendProtocolV1(Protocol):
    """What a backend of the first protocol defines, synchronous; `adapt_backend_protocol` makes it a backend."""

    def ls_info(self, path: str) -> list[Any]:
        """List the direct children of a directory."""

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        r"""Read lines, each as `f"{number:6d}\t{line}"`, or an error text."""

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[Any] | str:
        """Find lines; an error is a text."""

    def glob_info(self, pattern: str, path: str = "/") -> list[Any]:
        """List the files that match."""

    def write(self, file_path: str, content: str) -> Any:
        """Create a file."""

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        """Replace a literal text."""


class SandboxBackendProtocolV1(BackendProtocolV1, Protocol):
    """A backend of the first protocol that also runs commands."""

    @property
    def id(self) -> str:
        """What tells this sandbox from others."""

    def execute(self, command: str) -> Any:
        """Run a shell command."""


def is_v1(cls: type) -> bool:
    """Whether `cls` speaks V1: of its classes, the most derived that lists directories does it by `ls_info` alone."""
    for base in cls.__mro__:
        if "ls" in vars(base) or "als" in vars(base):
            return False
        if "ls_info" in vars(base):
            return True
    return False


def own_name(cls: type, operation: str) -> str:
    """How the body of `cls` spells an operation."""
    v1_name = V1_NAMES.get(operation, operation)
    return v1_name if v1_name in vars(cls) else operation


def v1_operations(cls: type) -> Iterator[str]:
    """The operations that the body of a backend class defines in V1, and in no other way.

    A class whose bases are V1 defines its sync methods in V1 as well.
    """
    whole = is_v1(cls) or any(getattr(base, _MARK, False) for base in cls.__bases__)
    for operation in OPERATIONS:
        name = V1_NAMES.get(operation, operation)
        newer = {f"a{operation}", operation} - {name}
        if inspect.isfunction(vars(cls).get(name)) and not newer & vars(cls).keys() and (whole or name != operation):
            yield operation
    if whole:
        setattr(cls, _MARK, True)


# --- the old names, on every backend ---------------------------------------------------------------------------------


def _ls_info(ls: Callable[..., Any]) -> Callable[..., Any]:
    def ls_info(self: Any, path: str) -> Any:
        warn_deprecated("ls_info is deprecated: use ls, which returns an LsResult")
        return ls(self, path).entries or []

    return ls_info


def _grep_raw(grep: Callable[..., Any]) -> Callable[..., Any]:
    def grep_raw(self: Any, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        warn_deprecated("grep_raw is deprecated: use grep, which returns a GrepResult")
        found = grep(self, pattern, path, glob)
        return found.error if found.matches is None else found.matches

    return grep_raw


def _glob_info(glob: Callable[..., Any]) -> Callable[..., Any]:
    def glob_info(self: Any, pattern: str, path: str = "/") -> Any:
        warn_deprecated("glob_info is deprecated: use glob, which returns a GlobResult")
        return glob(self, pattern, path).matches or []

    return glob_info


_SHIMS: Final = {"ls": _ls_info, "grep": _grep_raw, "glob": _glob_info}


def add_v1_names(cls: type) -> None:
    """Give `cls` the old name of each operation that it defines, over that very definition."""
    for operation, shim in _SHIMS.items():
        method = vars(cls).get(operation)
        if method is not None and V1_NAMES[operation] not in vars(cls):
            old = shim(method)
            old.__qualname__ = f"{cls.__qualname__}.{old.__name__}"
            old.__doc__ = f"Deprecated: `{operation}` as a bare answer, as V1 had it."
            setattr(cls, old.__name__, old)
