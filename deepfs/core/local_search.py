"""Glob and grep over a tree on disk, in a worker thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from deepfs.core.cancellation import Cancellation
from deepfs.core.disk import Disk, FoundFile, Patience, modified_at
from deepfs.core.scan import Query
from deepfs.core.search import MAX_GLOB_MATCHES, Grep, Wanted, glob_result
from deepfs.errors import DeadlineError, DeepFSError, NotDirectoryError
from deepfs.types import FileInfo, GlobResult, GrepResult

__all__ = ["glob_tree", "grep_tree"]


def glob_tree(disk: Disk, wanted: Wanted, cancellation: Cancellation, timeout: float) -> GlobResult:
    """The files below the root of `wanted` that it chooses, as far as `timeout` seconds reach."""
    matches: list[FileInfo] = []
    with _until(timeout, cancellation) as search:
        for file in disk.walk(wanted.root, enter=wanted.may_enter, patience=search.patience):
            if file.path == wanted.root:
                raise NotDirectoryError(wanted.root)
            if file.path in wanted:
                matches.append(_info(file))
            if len(matches) > MAX_GLOB_MATCHES:
                break
    result = glob_result(matches)
    result.truncated = result.truncated or search.expired
    return result


def grep_tree(
    disk: Disk,
    query: Query,
    wanted: Wanted,
    cancellation: Cancellation,
    *,
    timeout: float,
    max_count: int | None,
    max_bytes: int,
) -> GrepResult:
    """The lines that `query` finds in the files that `wanted` chooses, as far as `timeout` seconds reach."""
    grep = Grep(query, wanted, max_count, max_bytes)
    with _until(timeout, cancellation) as search:
        for file in disk.walk(
            wanted.root, enter=wanted.may_enter, unreadable=lambda _: grep.skip(), patience=search.patience
        ):
            if file.path in wanted:
                search.patience.check(file.path)
                _scan(grep, file)
            if grep.truncated:
                break
    result = grep.result()
    result.truncated = result.truncated or search.expired
    return result


def _scan(grep: Grep, file: FoundFile) -> None:
    try:
        content = file.read(grep.max_bytes)
    except DeepFSError:
        grep.skip()
    else:
        grep.scan(file.path, content)


def _info(file: FoundFile) -> FileInfo:
    try:
        status = file.stat()
    except DeepFSError:
        return FileInfo(file.path, is_dir=False)
    return FileInfo(file.path, is_dir=False, size=status.st_size, modified_at=modified_at(status))


class _Search:
    """The time a search has; `expired` once it ended for want of it."""

    def __init__(self, timeout: float, cancellation: Cancellation) -> None:
        self.patience = Patience(timeout, lambda: cancellation.cancelled)
        self.expired = False


@contextmanager
def _until(timeout: float, cancellation: Cancellation) -> Iterator[_Search]:
    """Leave the body when the time is up or the search is cancelled."""
    search = _Search(timeout, cancellation)
    try:
        yield search
    except DeadlineError:
        search.expired = True
