"""The mounts of a composite: a table that finds the backend of a path, and searches of several mounts at once."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import anyio
from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import (
    BackendError,
    DeadlineError,
    DeepFSError,
    ErrorCode,
    InvalidPathError,
    OutsideGraphError,
    error_about,
)
from deepfs.operations import Operation, locate_error
from deepfs.search.globs import compile_glob
from deepfs.search.request import GlobRequest, GrepRequest, PathFilter, SearchRequest
from deepfs.storage.gathering import gather
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.text.access import access_at, current_access
from deepfs.text.arguments import check_string
from deepfs.threads.loop_bridge import is_stray
from deepfs.types import (
    GlobResult,
    GrepResult,
    Result,
    TruncationReason,
    attach_error,
    error_from,
    failure,
    replace_fields,
)

T = TypeVar("T")
P = ParamSpec("P")
ResultT = TypeVar("ResultT", bound=Result)
SearchT = TypeVar("SearchT", GlobResult, GrepResult)

logger: logging.Logger = logging.getLogger(__name__)


class Mount(Struct, frozen=True):
    """A backend and its prefix, the path where its root appears; the default backend has an empty prefix."""

    prefix: str
    backend: BackendProtocol

    def inner(self, path: str) -> str:
        """The path in the backend for `path` in the tree."""
        return path[len(self.prefix) :] or "/"

    def outer(self, path: str) -> str:
        """The path in the tree for `path` in the backend."""
        return self.prefix + path if path != "/" else self.prefix or "/"

    def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> Awaitable[T]:
        """Call a method of the backend; an access check of paths in the tree, if there is one, gets such paths."""
        if self.prefix and current_access() is not None:
            return self._ask_beneath(call, *args, **options)
        return call(*args, **options)

    async def _ask_beneath(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        with access_at(self.prefix):  # Around the call itself, which may begin the work.
            return await call(*args, **options)

    def translate_filter(self, hidden: PathFilter | None) -> PathFilter | None:
        """The filter `hidden`, which takes paths in the tree, as a filter that takes paths in the backend."""
        if hidden is None or not self.prefix:
            return hidden
        return lambda path, *, is_dir: hidden(self.outer(path), is_dir=is_dir)

    def outward(self, operation: Operation, answer: Any) -> Any:
        """The answer of the backend to an operation with paths in it, with paths in the tree."""
        return operation.outward(answer, self.outer) if self.prefix else answer

    def outer_error(self, error: DeepFSError, *inner: str) -> DeepFSError:
        """`error` of an operation on the paths `inner`, with paths in the tree."""
        return locate_error(error, inner).with_paths(self.outer)


class MountTable:
    """Mounts by prefix; the longest prefix of whole segments wins."""

    def __init__(self, default: BackendProtocol, routes: Mapping[str, BackendProtocol]) -> None:
        self.default: Mount = Mount("", default)
        self._mounts: dict[str, Mount] = {}
        for route, backend in routes.items():
            prefix = _prefix(route)
            if prefix in self._mounts:
                raise ValueError(f"Route {route!r} is given twice")
            self._mounts[prefix] = Mount(prefix, backend)
        self._prefixes = sorted(self._mounts)
        self._above: set[str] = {"/"} if self._mounts else set()
        self._above.update(*map(paths.ancestors, self._mounts))

    def find(self, path: str) -> Mount:
        """The mount that `path` belongs to."""
        while path:
            if path in self._mounts:
                return self._mounts[path]
            path = path.rpartition("/")[0]
        return self.default

    def beneath(self, directory: str) -> list[Mount]:
        """The mounts under `directory`, not at it, sorted by prefix."""
        # Their prefixes are adjacent in sorted order; `0` is the character after `/`.
        above = "" if directory == "/" else directory
        first, end = bisect_left(self._prefixes, f"{above}/"), bisect_left(self._prefixes, f"{above}0")
        return [self._mounts[prefix] for prefix in self._prefixes[first:end]]

    def has_beneath(self, path: str) -> bool:
        """Whether a mount lies under `path`, not at it."""
        return path in self._above

    def children(self, directory: str) -> set[str]:
        """The direct children of `directory` that are mounts or lead to one."""
        if not self.has_beneath(directory):
            return set()
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


# --- asking several at once ------------------------------------------------------------------------------------------


async def await_uncancelled(answer: Awaitable[T]) -> T:
    """Await `answer`. Raises BackendError if it ends with a cancellation although this task is not cancelled."""
    try:
        return await answer
    except BaseException as error:
        if is_stray(error):
            raise BackendError(None, f"{type(error).__name__}") from error
        raise


class MountQuery(NamedTuple):
    """A search of one mount; the request has paths of its backend."""

    mount: Mount
    request: SearchRequest


class MountSearch:
    """The searches of a composite, which wait at most `timeout` seconds for one mount."""

    def __init__(self, table: MountTable, timeout: float | None) -> None:
        self._table = table
        self._timeout = timeout

    async def glob(self, request: GlobRequest) -> GlobResult:
        """Find files in the mount of the start path, and in all mounts beneath it."""
        queries = self._queries(request)
        results = await gather([partial(self._ask, query, GlobResult) for query in queries])
        return _merge_globs(queries, results)

    async def grep(self, request: GrepRequest) -> GrepResult:
        """Find lines in the mount of the start path, and in all mounts beneath it."""
        queries, most = self._queries(request), request.max_count
        calls = [partial(self._ask, query, GrepResult) for query in queries]
        results = await gather(calls, lambda done: most is not None and _suffices(queries, done, most))
        return _merge_greps(queries, results, most)

    def _queries(self, request: SearchRequest) -> list[MountQuery]:
        """The queries of the mounts that `request` has to search; the mount of its start path comes first."""
        path = paths.normalize(request.path or "/")
        mount = self._table.find(path)
        glob, hidden = request.file_glob, request.hidden
        # A search without a path has none in a mount either: rules of the mount may deny its root.
        start, top = (mount.inner(path), "/") if request.path else (None, None)
        queries = [MountQuery(mount, request.elsewhere(start, glob, mount.translate_filter(hidden)))]
        for below in self._table.beneath(path):
            if hidden is None or not hidden(below.prefix, is_dir=True):
                rests = _beneath(glob, paths.relative(below.prefix, path))
                queries += [
                    MountQuery(below, request.elsewhere(top, rest, below.translate_filter(hidden))) for rest in rests
                ]
        return queries

    async def _ask(self, query: MountQuery, result: type[SearchT]) -> SearchT:
        """The result of one mount. If it raises or takes too long, only this result fails, not the whole search."""
        seconds, mount = self._timeout, query.mount
        found: SearchT
        try:
            if seconds is None or is_inline():
                found = await self._search(query)
                return found
            with anyio.move_on_after(seconds):
                found = await self._search(query)
                return found
            return failure(result, DeadlineError(None, f"No answer within {seconds:g} s"))
        except DeepFSError as error:
            return failure(result, mount.outer_error(error, query.request.path or "/"))
        except OutsideGraphError:
            raise
        except Exception as error:
            logger.exception("the backend mounted at %s/ failed", mount.prefix)
            code = ErrorCode.TIMEOUT if isinstance(error, TimeoutError) else ErrorCode.BACKEND_ERROR
            return failure(result, error_about(code, None, type(error).__name__))

    async def _search(self, query: MountQuery) -> Any:
        """The result with paths in the tree, without matches that other mounts hide."""
        mount, request = query
        found: Any = await await_uncancelled(mount.ask(mount.backend.arun, request))
        if not isinstance(found, GlobResult | GrepResult):
            raise TypeError(f"{type(found).__name__} is not the result of a search")
        leads_to_mounts = self._table.has_beneath(mount.outer(request.path or "/"))
        if leads_to_mounts and found.code in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
            return type(found)(matches=[])
        shown = mount.outward(request, found)
        if not leads_to_mounts or shown.matches is None:
            return shown
        matches = [each for each in shown.matches if self._table.owns(mount, each.path)]
        if found.truncated and len(matches) < len(shown.matches) and getattr(request, "max_count", None) is not None:
            # Matches that other mounts hide have used up the limit.
            return await self._search(MountQuery(mount, replace(request, max_count=None)))
        return replace_fields(shown, matches=matches)


def _beneath(pattern: str | None, directory: str) -> Iterable[str | None]:
    """The remainders of `pattern` for the files in a mount at `directory`; none if the pattern cannot match there.

    Without a pattern, a mount in a dot-directory is left out.
    """
    if pattern is not None:
        return compile_glob(pattern).beneath(directory)
    return () if directory.startswith(".") or "/." in directory else (None,)


def _suffices(queries: Sequence[MountQuery], done: Sequence[GrepResult | None], max_count: int) -> bool:
    """Whether the matches that sort before all pending mounts fill `max_count`, and it is known that there are more."""
    if done[0] is None:
        return False
    pending = min(
        (query.mount.prefix for query, result in zip(queries, done, strict=True) if result is None), default=""
    )
    came = [result for result in done if result is not None]
    count = sum(match.path < pending for result in came for match in result.matches or ())
    return count > max_count or (count == max_count and any(result.truncated for result in came))


def _merge_greps(
    queries: Sequence[MountQuery], results: Sequence[GrepResult | None], max_count: int | None
) -> GrepResult:
    """Merge the results that have arrived."""
    came = [result for result in results if result is not None]
    if all(result.error and not result.matches for result in came):
        return came[0]
    # Two queries of one mount, for two remainders of a glob, may find the same line.
    found = {(match.path, match.line): match for result in came for match in result.matches or ()}
    matches = [found[place] for place in sorted(found)]
    limit = len(matches) if max_count is None else max_count
    truncated = len(matches) > limit or any(result.truncated for result in came) or len(came) < len(results)
    skipped = sum(result.skipped for result in came)
    merged = GrepResult(matches=matches[:limit], truncated=truncated, skipped=skipped, as_of=_find_oldest(came))
    return _with_failures(merged, queries, results)


def _merge_globs(queries: Sequence[MountQuery], results: Sequence[GlobResult | None]) -> GlobResult:
    """Merge the results that have arrived."""
    came = [result for result in results if result is not None]
    if all(result.error and not result.matches for result in came):
        return came[0]
    found = {info.path: info for result in came for info in result.matches or ()}
    reasons = {result.truncation_reason for result in came if result.truncated}
    merged = GlobResult(
        matches=[found[path] for path in sorted(found)],
        truncated=bool(reasons),
        # The reason "unreadable" comes before limits, since no narrower search would show what cannot be read.
        truncation_reason=next((reason for reason in get_args(TruncationReason) if reason in reasons), None),
        as_of=_find_oldest(came),
    )
    return _with_failures(merged, queries, results)


def _find_oldest(results: Sequence[GrepResult] | Sequence[GlobResult]) -> str | None:
    """The time of the oldest listing that one of `results` rests on."""
    return min((result.as_of for result in results if result.as_of is not None), default=None)


def _with_failures(merged: ResultT, queries: Sequence[MountQuery], results: Sequence[Result | None]) -> ResultT:
    """`merged`, with an error that names the mounts that failed."""
    failed = [(query, result) for query, result in zip(queries, results, strict=True) if result and result.error]
    if not failed:
        return merged
    code = failed[0][1].code
    named: dict[str, str | DeepFSError] = {}
    texts: dict[tuple[str, str], str] = {}
    for index, (query, result) in enumerate(failed):
        prefix, hidden = query.mount.prefix, query.request.hidden
        if hidden is not None and hidden("/", is_dir=False):
            texts["", ""] = "Not everything could be searched"
        elif (key := (prefix, result.error or "")) not in texts:
            named |= {f"error{index}": error_from(result), f"mount{index}": f"{prefix}/"}
            texts[key] = f"{{error{index}}} (in '{{mount{index}}}')"
    error = error_about(code or ErrorCode.BACKEND_ERROR, None, "; ".join(texts.values()), **named)
    return attach_error(replace(merged, error=str(error), code=code), error)
