"""The route table of a composite: finds the backend of a path, and translates paths and error texts."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, DeepFSError, InvalidPathError
from deepfs.operations import located
from deepfs.search.request import PathFilter
from deepfs.text import paths
from deepfs.text.arguments import check_string
from deepfs.text.judging import rebased
from deepfs.threads.loop_bridge import is_stray
from deepfs.types import (
    FileInfo,
    GrepMatch,
    Result,
    error_told,
    renamed,
)

ResultT = TypeVar("ResultT", bound=Result)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Mount:
    """A backend and its prefix, the path where its root appears; the default backend has an empty prefix."""

    prefix: str
    backend: BackendProtocol

    def inner(self, path: str) -> str:
        """The path in the backend for `path` in the tree."""
        return path[len(self.prefix) :] or "/"

    def outer(self, path: str) -> str:
        """The path in the tree for `path` in the backend."""
        return self.prefix + path if path != "/" else self.prefix or "/"

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Call a method of the backend; a judge of paths in the tree, if there is one, gets such paths."""
        with rebased(self.prefix):
            return await call(*args, **options)

    def hidden(self, hidden: PathFilter | None) -> PathFilter | None:
        """The filter `hidden`, which takes paths in the tree, as a filter that takes paths in the backend."""
        if hidden is None or not self.prefix:
            return hidden
        return lambda path, *, is_dir: hidden(self.outer(path), is_dir=is_dir)

    def outer_result(self, result: ResultT, *inner: str) -> ResultT:
        """`result` of an operation on the paths `inner`, with paths in the tree in its error."""
        if result.error is None or not self.prefix:
            return result
        return renamed(result, located(error_told(result), inner), self.outer)

    def outer_error(self, error: DeepFSError, *inner: str) -> DeepFSError:
        """`error` of an operation on the paths `inner`, with paths in the tree."""
        return located(error, inner).renamed(self.outer)

    def outer_info(self, info: FileInfo) -> FileInfo:
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
        # Their prefixes are adjacent in sorted order; `0` is the character after `/`.
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
    """The normal form of a route. Raises ValueError if it is relative, malformed or the root."""
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


logger = logging.getLogger(__name__)

BatchT = TypeVar("BatchT")
OutcomeT = TypeVar("OutcomeT")


async def answered(
    call: Callable[[Mount, BatchT], Awaitable[list[OutcomeT]]], mount: Mount, batch: BatchT
) -> list[OutcomeT] | None:
    """The outcomes of a batch; None if the mount raised, so that the outcomes of other mounts are still returned."""
    try:
        return await uncancelled(call(mount, batch))
    except Exception:
        logger.exception("the backend mounted at %s/ failed", mount.prefix)
        return None


async def uncancelled(answer: Awaitable[T]) -> T:
    """Await `answer`. Raises BackendError if it ends with a cancellation although this task is not cancelled."""
    try:
        return await answer
    except BaseException as error:
        if is_stray(error):
            raise BackendError(None, f"{type(error).__name__}") from error
        raise
