"""The route table of a composite: which backend a path belongs to, and how paths and texts change on the way."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.core import paths
from deepfs.core.arguments import check_string
from deepfs.core.search import Hidden
from deepfs.errors import DeepFSError, InvalidPathError, error_of
from deepfs.types import FileInfo, GrepMatch, Result, error_behind, renamed

__all__ = ["Mount", "MountTable"]

ResultT = TypeVar("ResultT", bound=Result)

_NAMES_A_PATH = re.compile(
    r"((?:Error: )?(?:[^'\n]*\b(?:file|path|directory|folder|for|on) )?)'([^'\n]*)'", re.IGNORECASE
)
"""A sentence up to the first thing that it quotes, where that can only be a path."""


@dataclass(frozen=True)
class Mount:
    """A backend and the path where its root appears; the default's is empty."""

    prefix: str
    backend: BackendProtocol

    def inner(self, path: str) -> str:
        """`path` of the tree as the backend knows it."""
        return path[len(self.prefix) :] or "/"

    def outer(self, path: str) -> str:
        """A path of the backend as the tree shows it."""
        return self.prefix + path if path != "/" else self.prefix or "/"

    def hidden(self, hidden: Hidden | None) -> Hidden | None:
        """What is `hidden` in the tree, by the paths of the backend."""
        if hidden is None or not self.prefix:
            return hidden
        return lambda path, *, is_dir: hidden(self.outer(path), is_dir=is_dir)

    def told(self, result: ResultT, *inner: str) -> ResultT:
        """`result` with its error naming the paths of the tree instead of the backend's `inner` ones."""
        if result.error is None or not self.prefix:
            return result
        error = error_behind(result)
        if error is not None:
            return renamed(result, error, self.outer)
        return replace(result, error=self._reworded(result.error, inner))

    def error(self, error: DeepFSError, *inner: str) -> DeepFSError:
        """`error`, raised by the backend about `inner`, naming the paths of the tree."""
        if error.path is not None or not self.prefix:
            return error.renamed(self.outer)
        return error_of(error.code, self._reworded(str(error), inner))

    def _reworded(self, error: str, inner: Sequence[str]) -> str:
        """The text of a backend of others with the path of its file as the tree has it, as far as that is certain.

        What else it quotes may be the content of a file, which is not touched.
        """
        names = _NAMES_A_PATH.match(error)
        known = {path for start in inner for path in (start, *paths.ancestors(start), "/")}
        if names is None or names[2] not in known:
            return error
        return f"{names[1]}'{self.outer(names[2])}'{error[names.end() :]}"

    def info(self, info: FileInfo) -> FileInfo:
        """A listing entry of the backend with its path in the tree."""
        return replace(info, path=self.outer(info.path)) if self.prefix else info

    def match(self, match: GrepMatch) -> GrepMatch:
        """A match of the backend with its path in the tree."""
        return replace(match, path=self.outer(match.path)) if self.prefix else match


class MountTable:
    """Mounts by prefix; the longest prefix of whole segments wins."""

    def __init__(self, default: BackendProtocol, routes: Mapping[str, BackendProtocol]) -> None:
        self.default = Mount("", default)
        self._mounts: dict[str, Mount] = {}
        for route, backend in routes.items():
            prefix = _prefix(route)
            if prefix in self._mounts:
                raise ValueError(f"Route {route!r} is given twice")
            self._mounts[prefix] = Mount(prefix, backend)
        self._prefixes = sorted(self._mounts)

    def find(self, path: str) -> Mount:
        """The mount that `path` belongs to."""
        for prefix in (path, *reversed(paths.ancestors(path))):
            if prefix in self._mounts:
                return self._mounts[prefix]
        return self.default

    def beneath(self, directory: str) -> list[Mount]:
        """The mounts under `directory`, not at it, sorted by prefix."""
        # In sorted order they follow one another, up to the character after `/`.
        above = "" if directory == "/" else directory
        first, end = bisect_left(self._prefixes, f"{above}/"), bisect_left(self._prefixes, f"{above}0")
        return [self._mounts[prefix] for prefix in self._prefixes[first:end]]

    def children(self, directory: str) -> set[str]:
        """The direct children of `directory` that are mounts or lead to one."""
        below = (paths.relative(mount.prefix, directory) for mount in self.beneath(directory))
        return {paths.join(directory, relative.partition("/")[0]) for relative in below}

    def owns(self, mount: Mount, path: str) -> bool:
        """Whether what `mount` stores at `path` is visible there: no other mount lies at it or above it."""
        return self.find(path.rstrip("/") or "/") is mount


def _prefix(route: str) -> str:
    """The normal form of a route; ValueError for one that is relative, malformed or the root."""
    check_string("a route", route)
    if not route.startswith("/"):
        raise ValueError(f"Route {route!r} must start with '/'")
    try:
        prefix = paths.normalize(route)
    except InvalidPathError as error:
        raise ValueError(f"Route {route!r} is not a path: {error}") from error
    if prefix == "/":
        raise ValueError("Route '/' would hide the default backend; make that backend the default")
    return prefix
