"""Searches of a tree of mounts: chooses the mounts to search, and merges their results."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, get_args

import anyio
from msgspec.structs import replace

from deepfs.backends.mounts import Mount, MountTable, uncancelled
from deepfs.errors import DeadlineError, DeepFSError, ErrorCode, error_about
from deepfs.search.globs import compile_glob
from deepfs.search.request import GlobRequest, GrepRequest, SearchRequest
from deepfs.storage.gathering import gather
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.types import GlobResult, GrepResult, Result, TruncationReason, carrying, error_told, failure, replaced

logger = logging.getLogger(__name__)

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=SearchRequest)
ResultT = TypeVar("ResultT", bound=Result)
SearchT = TypeVar("SearchT", GlobResult, GrepResult)


@dataclass(frozen=True)
class MountQuery(Generic[RequestT]):
    """A search of one mount; the request has paths of its backend."""

    mount: Mount
    request: RequestT


class MountSearch:
    """The searches of a composite.

    Args:
        table: The mounts.
        timeout: The most seconds that a search waits for one mount; None sets no limit.
    """

    def __init__(self, table: MountTable, timeout: float | None) -> None:
        self._table = table
        self._timeout = timeout

    async def glob(self, request: GlobRequest) -> GlobResult:
        """Find files in the mount of the start path, and in all mounts beneath it."""
        queries = self._queries(request)
        results = await gather([self._guarded(self._glob, query, GlobResult) for query in queries])
        return _merged_globs(queries, results)

    async def _glob(self, query: MountQuery[GlobRequest]) -> GlobResult:
        found: GlobResult = await query.mount.ask(query.mount.backend.arun, query.request)
        return self._outward(query, found, query.mount.outer_info)

    async def grep(self, request: GrepRequest) -> GrepResult:
        """Find lines in the mount of the start path, and in all mounts beneath it."""
        queries = self._queries(request)
        calls = [self._guarded(self._grep, query, GrepResult) for query in queries]
        results = await gather(calls, lambda done: _suffices(queries, done, request.max_count))
        return _merged_greps(queries, results, request.max_count)

    async def _grep(self, query: MountQuery[GrepRequest]) -> GrepResult:
        found: GrepResult = await query.mount.ask(query.mount.backend.arun, query.request)
        shown = self._outward(query, found, query.mount.match)
        is_limited = found.truncated and query.request.max_count is not None
        if is_limited and len(shown.matches or ()) < len(found.matches or ()):
            # Matches that other mounts hide have used up the limit.
            return await self._grep(MountQuery(query.mount, replace(query.request, max_count=None)))
        return shown

    def _guarded(
        self,
        look: Callable[[MountQuery[RequestT]], Awaitable[SearchT]],
        query: MountQuery[RequestT],
        result: type[SearchT],
    ) -> Callable[[], Awaitable[SearchT]]:
        return partial(_guarded, look, query, result, self._timeout)

    def _queries(self, request: RequestT) -> list[MountQuery[RequestT]]:
        """The queries of the mounts that `request` has to search; the mount of its start path comes first."""
        path = paths.normalize(request.path or "/")
        mount = self._table.find(path)
        glob, hidden = request.file_glob, request.hidden
        # A search without a path has none in a mount either: rules of the mount may deny its root.
        start, top = (mount.inner(path), "/") if request.path else (None, None)
        queries = [MountQuery(mount, request.elsewhere(start, glob, mount.hidden(hidden)))]
        for below in self._table.beneath(path):
            if hidden is None or not hidden(below.prefix, is_dir=True):
                rests = _beneath(glob, paths.relative(below.prefix, path))
                queries += [MountQuery(below, request.elsewhere(top, rest, below.hidden(hidden))) for rest in rests]
        return queries

    def _outward(self, query: MountQuery[Any], result: SearchT, shown: Callable[[Any], Any]) -> SearchT:
        """A search result with paths in the tree, without matches that other mounts hide."""
        mount, inner = query.mount, query.request.path or "/"
        leads_to_mounts = self._table.children(mount.outer(inner))
        if leads_to_mounts and result.code in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
            return type(result)(matches=[])
        if result.matches is None:
            return mount.outer_result(result, inner)
        matches = [shown(match) for match in result.matches]
        if leads_to_mounts:
            matches = [match for match in matches if self._table.owns(mount, match.path)]
        return replaced(mount.outer_result(result, inner), matches=matches)


def _beneath(pattern: str | None, directory: str) -> Iterable[str | None]:
    """The remainders of `pattern` for the files in a mount at `directory`; none if the pattern cannot match there.

    Without a pattern, a mount in a dot-directory is left out.
    """
    if pattern is not None:
        return compile_glob(pattern).beneath(directory)
    return () if directory.startswith(".") or "/." in directory else (None,)


async def _guarded(
    look: Callable[[MountQuery[RequestT]], Awaitable[ResultT]],
    query: MountQuery[RequestT],
    result: type[ResultT],
    seconds: float | None,
) -> ResultT:
    """The result of one mount. If it raises or takes too long, only this result fails, not the whole search."""
    try:
        if seconds is None or is_inline():
            return await uncancelled(look(query))
        with anyio.move_on_after(seconds):
            return await uncancelled(look(query))
        return failure(result, DeadlineError(None, f"No answer within {seconds:g} s"))
    except DeepFSError as error:
        return failure(result, query.mount.outer_error(error, query.request.path or "/"))
    except Exception as error:
        logger.exception("the backend mounted at %s/ failed", query.mount.prefix)
        code = ErrorCode.TIMEOUT if isinstance(error, TimeoutError) else ErrorCode.BACKEND_ERROR
        return failure(result, error_about(code, None, type(error).__name__))


def _suffices(queries: Sequence[MountQuery[Any]], done: Sequence[GrepResult | None], max_count: int | None) -> bool:
    """Whether the matches that sort before all pending mounts fill `max_count`, and it is known that there are more."""
    if max_count is None or done[0] is None:
        return False
    pending = min(
        (query.mount.prefix for query, result in zip(queries, done, strict=True) if result is None), default=""
    )
    came = [result for result in done if result is not None]
    count = sum(match.path < pending for result in came for match in result.matches or ())
    return count > max_count or (count == max_count and any(result.truncated for result in came))


def _merged_greps(
    queries: Sequence[MountQuery[Any]], results: Sequence[GrepResult | None], max_count: int | None
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
    merged = GrepResult(matches=matches[:limit], truncated=truncated, skipped=skipped, as_of=_oldest(came))
    return _with_failures(merged, queries, results)


def _merged_globs(queries: Sequence[MountQuery[Any]], results: Sequence[GlobResult | None]) -> GlobResult:
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
        as_of=_oldest(came),
    )
    return _with_failures(merged, queries, results)


def _oldest(results: Sequence[GrepResult] | Sequence[GlobResult]) -> str | None:
    """The time of the oldest listing that one of `results` rests on."""
    return min((result.as_of for result in results if result.as_of is not None), default=None)


def _with_failures(merged: ResultT, queries: Sequence[MountQuery[Any]], results: Sequence[Result | None]) -> ResultT:
    """`merged`, with an error that names the mounts that failed."""
    failed = [(query, result) for query, result in zip(queries, results, strict=True) if result and result.error]
    if not failed:
        return merged
    error = _failures(failed)
    return carrying(replace(merged, error=str(error), code=failed[0][1].code), error)


def _failures(failed: Sequence[tuple[MountQuery[Any], Result]]) -> DeepFSError:
    """One error for all mounts that failed, with the code of the first."""
    named: dict[str, str | DeepFSError] = {}
    texts: dict[tuple[str, str], str] = {}
    for index, (query, result) in enumerate(failed):
        prefix, hidden = query.mount.prefix, query.request.hidden
        if hidden is not None and hidden("/", is_dir=False):
            texts["", ""] = "Not everything could be searched"
        elif (key := (prefix, result.error or "")) not in texts:
            named |= {f"error{index}": error_told(result), f"mount{index}": f"{prefix}/"}
            texts[key] = f"{{error{index}}} (in '{{mount{index}}}')"
    return error_about(failed[0][1].code or ErrorCode.BACKEND_ERROR, None, "; ".join(texts.values()), **named)
