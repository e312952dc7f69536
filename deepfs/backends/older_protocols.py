"""Older protocols: their method names, which every backend has, their classes, and the adapters for their backends.

`deepfs.compat` registers the adapters. It is imported by name when a backend of another protocol is first used.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from msgspec import Struct

from deepfs._deprecated import warn_deprecated

__all__ = [
    "V1_NAMES",
    "Adapters",
    "BackendProtocolV1",
    "SandboxBackendProtocolV1",
    "adapters",
    "add_v1_names",
    "is_v1",
    "register",
    "takes_option",
]


V1_NAMES: Final[Mapping[str, str]] = {"ls": "ls_info", "grep": "grep_raw", "glob": "glob_info"}
"""The operations that have another name in V1, with this name."""


class BackendProtocolV1(Protocol):
    """The methods of a backend of the first protocol, all sync; `adapt_backend_protocol` adapts such a backend."""

    def ls_info(self, path: str) -> list[Any]:
        """List the direct children of a directory.

        Args:
            path: The directory.
        """

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        r"""Read lines, each as `f"{number:6d}\t{line}"`, or an error text.

        Args:
            file_path: The file.
            offset: The first line; the first of the file is 0.
            limit: The most lines.
        """

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[Any] | str:
        """Find the lines that contain a text; an error is a text.

        Args:
            pattern: The text.
            path: The directory to search; None is `/`.
            glob: Which files to search; None is all.
        """

    def glob_info(self, pattern: str, path: str = "/") -> list[Any]:
        """List the files that match.

        Args:
            pattern: The glob.
            path: The directory to search.
        """

    def write(self, file_path: str, content: str) -> Any:
        """Create a file.

        Args:
            file_path: The file.
            content: Its text.
        """

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        """Replace a literal text.

        Args:
            file_path: The file.
            old_string: The text to replace.
            new_string: The text to put in its place.
            replace_all: Whether to replace every occurrence.
        """


class SandboxBackendProtocolV1(BackendProtocolV1, Protocol):
    """A backend of the first protocol that also runs commands."""

    @property
    def id(self) -> str:
        """The identifier of this sandbox."""

    def execute(self, command: str) -> Any:
        """Run a shell command.

        Args:
            command: The command.
        """


class Adapters(Struct, frozen=True):
    """The functions of `deepfs.compat` that adapt backends and classes written for another protocol."""

    backend: Callable[[Any], Any]
    """Returns a `BackendProtocol` over a backend of any protocol, or over a factory; else raises TypeError."""
    older: Callable[[Any], Any]
    """Returns a `BackendProtocol` over an object of a subclass of it whose methods are those of V1."""


_registered: list[Adapters] = []


def register(adapters: Adapters) -> None:
    """Set the adapters of this process."""
    _registered[:] = [adapters]


def adapters() -> Adapters:
    """The registered adapters; imports those of `deepfs.compat` if there are none yet."""
    if not _registered:
        import_module("deepfs.compat.adapters")
    return _registered[0]


def is_v1(cls: type) -> bool:
    """Whether the sync methods of `cls` are those of V1.

    They are if those of a base are, or if the first class in its MRO that defines a listing method has only `ls_info`.
    """
    for base in cls.__mro__:
        if "_is_v1" in vars(base):
            return bool(vars(base)["_is_v1"])
        if "ls" in vars(base) or "als" in vars(base):
            return False
        if "ls_info" in vars(base):
            return True
    return False


def takes_option(method: Callable[..., Any], option: str) -> bool:
    """Whether a method takes an option by name.

    A `write` that does not take `overwrite` is one of deepagents, which replaces; some `execute` take no `timeout`.
    """
    own = inspect.signature(method).parameters
    return option in own or any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())


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
    """Give `cls` the V1 name of each operation that its body defines, as a wrapper of this definition."""
    for operation, shim in _SHIMS.items():
        method = vars(cls).get(operation)
        if method is not None and V1_NAMES[operation] not in vars(cls):
            old = shim(method)
            old.__qualname__ = f"{cls.__qualname__}.{old.__name__}"
            old.__doc__ = f"Deprecated: `{operation}` as a bare answer, as V1 had it."
            setattr(cls, old.__name__, old)
