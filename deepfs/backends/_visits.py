"""A search that visits several mounts: what each is asked, when the answers suffice, and how they become one."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from deepfs.backends._mounts import Mount
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.types import GlobResult, GrepResult, Result, failure

__all__ = ["Visit", "guarded", "merged_globs", "merged_greps", "suffices"]

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT", bound=Result)


@dataclass(frozen=True)
class Visit:
    """One mount to search: where, and for what files."""

    mount: Mount
    inner: str
    pattern: str | None


async def guarded(look: Callable[[Visit], Awaitable[ResultT]], visit: Visit, result: type[ResultT]) -> ResultT:
    """The answer of a mount; an exception of its backend is an error of its part, not of the whole search."""
    try:
        return await look(visit)
    except DeepFSError as error:
        return failure(result, error)
    except Exception as error:
        logger.exception("the backend mounted at %s/ failed", visit.mount.prefix)
        return result(f"Error: {type(error).__name__}", code=ErrorCode.BACKEND_ERROR)


def suffices(visits: Sequence[Visit], done: Sequence[GrepResult | None], max_count: int | None) -> bool:
    """Whether the matches that sort before everything still pending fill `max_count`."""
    if max_count is None or done[0] is None:
        return False
    pending = min(
        (visit.mount.prefix for visit, result in zip(visits, done, strict=True) if result is None), default=""
    )
    matches = (match for result in done if result is not None for match in result.matches or ())
    return sum(match.path < pending for match in matches) > max_count


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
    truncated = any(result.truncated for result in came)
    return GlobResult(
        matches=[found[path] for path in sorted(found)], truncated=truncated, **_failures(visits, results)
    )


def _failures(visits: Sequence[Visit], results: Sequence[Result | None]) -> dict[str, Any]:
    """The error and code that tell which mounts failed; nothing where none did."""
    failed = [(visit, result) for visit, result in zip(visits, results, strict=True) if result and result.error]
    if not failed:
        return {}
    told = "; ".join(f"{result.error} (in '{visit.mount.prefix}/')" for visit, result in failed)
    return {"error": told, "code": failed[0][1].code}
