"""Glob and grep over a tree on disk, in a worker thread."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deepfs.core import paths
from deepfs.core.cancellation import Cancellation
from deepfs.core.disk import Disk, FoundFile, Patience, modified_at
from deepfs.core.engines import Automatic, Engine, GrepTask
from deepfs.core.ignore import IgnoreOption, Ignoring, compile_rules
from deepfs.core.ripgrep import GITIGNORE_FILES, NO_IGNORE_FILES
from deepfs.core.scan import Query
from deepfs.core.search import MAX_GLOB_MATCHES, MAX_SEARCHED_BYTES, Grep, Wanted, glob_result
from deepfs.errors import DeadlineError, DeepFSError, NotDirectoryError
from deepfs.types import FileInfo, GlobResult, GrepResult

__all__ = ["LocalSearch"]

_MAX_GITIGNORE = 1024 * 1024
_is_plain_pattern = re.compile(r"[\w.*?/-]+", re.ASCII).fullmatch


class LocalSearch:
    """Searches of the files of a disk, each for at most `timeout` seconds; then its result is `truncated`.

    `ignore` says what they pass over; its patterns, and the `.gitignore` files that count, are those of the directory
    `base` of a search, if it starts beneath, otherwise of where it starts.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        max_bytes: int = MAX_SEARCHED_BYTES,
        timeout: float = 60,
        ignore: IgnoreOption = None,
        engine: Engine | None = None,
    ) -> None:
        if isinstance(ignore, str) and ignore != "git":
            raise ValueError(f"ignore= takes 'git', a list of patterns or None, not {ignore!r}")
        self._disk = disk
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._honours_files = ignore == "git"
        self._rules = compile_rules(() if ignore is None or isinstance(ignore, str) else ignore)
        self._hints = _hints(ignore)
        self._engine = Automatic() if engine is None else engine

    def glob(self, cancellation: Cancellation, pattern: str, root: str, base: str = "/") -> GlobResult:
        """The files below the directory `root` that match, sorted by path; NotDirectoryError where it is a file."""
        wanted = self._wanted(pattern, root, base)
        matches: list[FileInfo] = []
        with _until(self._timeout, cancellation) as search:
            for file in self._disk.walk(root, enter=wanted.may_enter, patience=search.patience):
                if file.path == root:
                    raise NotDirectoryError(root)
                if file.path in wanted:
                    matches.append(_info(file))
                    if len(matches) > MAX_GLOB_MATCHES:
                        break
        result = glob_result(matches)
        result.truncated = result.truncated or search.expired
        return result

    def grep(
        self,
        cancellation: Cancellation,
        query: Query,
        root: str,
        glob: str | None = None,
        max_count: int | None = None,
        base: str = "/",
    ) -> GrepResult:
        """The lines that `query` finds in the files at or below `root`, in those that `glob` chooses."""
        wanted = self._wanted(glob, root, base)
        with _until(self._timeout, cancellation) as search:
            patience = search.patience
            grep = Grep(query, wanted, max_count, self._max_bytes, lambda: patience.check(root))
            self._engine.run(GrepTask(self._disk, grep, patience, cancellation, self._hints))
        result = grep.result()
        result.truncated = result.truncated or search.expired
        return result

    def _wanted(self, pattern: str | None, root: str, base: str) -> Wanted:
        if not self._honours_files and not self._rules:
            return Wanted(pattern, root)
        start = base if root == base or paths.is_beneath(root, base) else root
        read = self._gitignore if self._honours_files else None
        return Wanted(pattern, root, Ignoring(start, root, self._rules, read))

    def _gitignore(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path, _MAX_GITIGNORE)[0]
        except DeepFSError:
            return None


def _hints(ignore: IgnoreOption) -> list[str]:
    """Options for ripgrep to leave out about what `ignore` says."""
    if ignore == "git":
        return [*GITIGNORE_FILES]
    return [*NO_IGNORE_FILES, *(f"--glob=!{pattern}" for pattern in ignore or () if _is_plain_pattern(pattern))]


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
