"""A search that visits several mounts: what each is asked, when the answers suffice, and how they become one."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import anyio

from deepfs.backends._mounts import Mount
from deepfs.core.search import Hidden
from deepfs.core.wake import is_stray
from deepfs.errors import BackendError, DeadlineError, DeepFSError, ErrorCode
from deepfs.sync import is_inline
from deepfs.types import GlobResult, GrepResult, Result, TruncationReason, failure

__all__ = ["Visit", "answered", "guarded", "merged_globs", "merged_greps", "suffices"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
ResultT = TypeVar("ResultT", bound=Result)
BatchT = TypeVar("BatchT")
OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True)
class Visit:
    """One mount to search: where, and for what files."""

    mount: Mount
    inner: str
    pattern: str | None
    hidden: Hidden | None
    """What the caller hides, by the paths of the mount."""


async def guarded(
    look: Callable[[Visit], Awaitable[ResultT]], visit: Visit, result: type[ResultT], seconds: float | None
) -> ResultT:
    """The answer of a mount; that it raised, or took too long, is an error of its part, not of the whole search."""
    try:
        if seconds is None or is_inline():
            return await _uncancelled(look(visit))
        with anyio.move_on_after(seconds):
            return await _uncancelled(look(visit))
        return failure(result, DeadlineError(f"Error: No answer within {seconds:g} s"))
    except DeepFSError as error:
        return failure(result, visit.mount.error(error, visit.inner))
    except Exception as error:
        logger.exception("the backend mounted at %s/ failed", visit.mount.prefix)
        code = ErrorCode.TIMEOUT if isinstance(error, TimeoutError) else ErrorCode.BACKEND_ERROR
        return result(f"Error: {type(error).__name__}", code=code)


async def answered(
    call: Callable[[Mount, BatchT], Awaitable[list[OutcomeT]]], mount: Mount, batch: BatchT
) -> list[OutcomeT] | None:
    """The outcomes of a batch; None where the mount raised, so that those of other mounts are told all the same."""
    try:
        return await _uncancelled(call(mount, batch))
    except Exception:
        logger.exception("the backend mounted at %s/ failed", mount.prefix)
        return None


async def _uncancelled(answer: Awaitable[T]) -> T:
    """`answer`; BackendError where it ends as if it were cancelled though nobody cancels this task."""
    try:
        return await answer
    except BaseException as error:
        if is_stray(error):
            raise BackendError(f"Error: {type(error).__name__}") from error
        raise


def suffices(visits: Sequence[Visit], done: Sequence[GrepResult | None], max_count: int | None) -> bool:
    """Whether the matches that sort before everything still pending fill `max_count`, and more were there."""
    if max_count is None or done[0] is None:
        return False
    pending = min(
        (visit.mount.prefix for visit, result in zip(visits, done, strict=True) if result is None), default=""
    )
    came = [result for result in done if result is not None]
    count = sum(match.path < pending for result in came for match in result.matches or ())
    return count > max_count or (count == max_count and any(result.truncated for result in came))


def merged_greps(visits: Sequence[Visit], results: Sequence[GrepResult | None], max_count: int | None) -> GrepResult:
    """One result of all that came."""
    came = [result for result in results if result is not None]
    if all(result.error and not result.matches for result in came):
        return came[0]
    # Two visits of one mount, for two remainders of a glob, may both find a line.
    found = {(match.path, match.line): match for result in came for match in result.matches or ()}
    matches = [found[place] for place in sorted(found)]
    limit = len(matches) if max_count is None else max_count
    truncated = len(matches) > limit or any(result.truncated for result in came) or len(came) < len(results)
    skipped = sum(result.skipped for result in came)
    return GrepResult(matches=matches[:limit], truncated=truncated, skipped=skipped, **_failures(visits, results))


def merged_globs(visits: Sequence[Visit], results: Sequence[GlobResult | None]) -> GlobResult:
    """One result of all that came."""
    came = [result for result in results if result is not None]
    if all(result.error and not result.matches for result in came):
        return came[0]
    found = {info.path: info for result in came for info in result.matches or ()}
    reasons = {result.truncation_reason for result in came if result.truncated}
    return GlobResult(
        matches=[found[path] for path in sorted(found)],
        truncated=bool(reasons),
        # What cannot be read stays hidden however the search is narrowed: it is not to be masked by a limit.
        truncation_reason=next((reason for reason in get_args(TruncationReason) if reason in reasons), None),
        **_failures(visits, results),
    )


def _failures(visits: Sequence[Visit], results: Sequence[Result | None]) -> dict[str, Any]:
    """The error and code that tell which mounts failed; nothing where none did."""
    failed = [(visit, result) for visit, result in zip(visits, results, strict=True) if result and result.error]
    if not failed:
        return {}
    told = dict.fromkeys(_told(visit, result) for visit, result in failed)
    return {"error": "; ".join(told), "code": failed[0][1].code}


def _told(visit: Visit, result: Result) -> str:
    if visit.hidden is not None and visit.hidden("/", is_dir=False):
        return "Error: Not everything could be searched"
    return f"{result.error} (in '{visit.mount.prefix}/')"
