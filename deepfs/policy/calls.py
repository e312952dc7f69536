"""An operation on its way to a backend, as data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from deepfs.core import paths
from deepfs.sync import OPERATIONS

__all__ = ["CHANGES", "Call", "call_of"]

CHANGES: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files"})
"""The operations that change files; what `execute` does is not known."""

_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("path",),
    "read": ("path", "offset", "limit"),
    "read_raw": ("path",),
    "write": ("path", "content"),
    "edit": ("path", "old", "new", "replace_all"),
    "glob": ("pattern", "path"),
    "grep": ("pattern", "path", "glob"),
    "delete": ("path",),
    "move": ("src", "dst"),
    "copy": ("src", "dst"),
    "upload_files": ("files",),
    "download_files": ("paths",),
    "execute": ("command",),
}
assert set(_PARAMETERS) == set(OPERATIONS)


class Call(Struct, frozen=True):
    """One operation, by its sync name, and what it was called with; of a batch, one item with `path` and `content`."""

    operation: str
    arguments: Mapping[str, Any]

    @property
    def changes(self) -> bool:
        """Whether it changes files."""
        return self.operation in CHANGES

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it names, normalised, in their order; InvalidPathError where one cannot be."""
        if self.operation in ("glob", "grep"):
            return (paths.normalize(self.arguments.get("path") or "/"),)
        named = (self.arguments[name] for name in ("path", "src", "dst") if name in self.arguments)
        return tuple(map(paths.normalize, named))


def call_of(operation: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """The call of `operation` with these arguments, as `WrapperBackend.through` gets them."""
    given = dict(zip(_PARAMETERS[operation], args, strict=False))
    return Call(operation, MappingProxyType(given | dict(options)))
