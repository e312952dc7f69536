"""One grep or glob over many files: which files it wants, what it found, when it has enough."""

from collections.abc import Callable
from typing import Protocol

from deepfs.search.globs import Glob, compile_glob
from deepfs.search.query import Query, check_search, is_plain, search, search_plain
from deepfs.text import paths
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult

__all__ = ["MAX_GLOB_MATCHES", "MAX_SEARCHED_BYTES", "Grep", "Hidden", "Ignored", "Wanted", "glob_result"]

MAX_SEARCHED_BYTES = 10 * 1024 * 1024
MAX_GLOB_MATCHES = 100_000
MAX_GREP_LINES = 100_000
"""The most lines in the result of a grep, those of the context included; beyond them it is `truncated`."""


class Ignored(Protocol):
    """Tells what a search passes over beneath its root."""

    def __call__(self, path: str, *, is_dir: bool) -> bool: ...


class Hidden(Protocol):
    """Tells what the caller of a search would not show: a file, or all beneath a directory."""

    def __call__(self, path: str, *, is_dir: bool) -> bool: ...


class Wanted:
    """The files that a glob chooses at or under `root`; without one all but those in dot-names below it.

    What `ignored` or `hidden` tells is not wanted; of the root itself `ignored` is never asked.
    """

    def __init__(
        self, pattern: str | None, root: str, ignored: Ignored | None = None, hidden: Hidden | None = None
    ) -> None:
        self.root = root
        self.glob: Glob | None = None if pattern is None else compile_glob(pattern)
        self._ignored = ignored
        self._hidden = hidden
        self._start = len(paths.join(root, "_")) - 1

    def __contains__(self, path: str) -> bool:
        relative = path[self._start :]
        if self.glob is None and not _is_visible(relative):
            return False
        if self.glob is not None and not self.glob.matches(relative or paths.name(self.root)):
            return False
        if self._hidden is not None and self._hidden(path, is_dir=False):
            return False
        return self._ignored is None or not relative or not self._ignored(path, is_dir=False)

    @property
    def is_everything(self) -> bool:
        """Whether nothing chooses among the files of the storage, but for dot-names."""
        return self.root == "/" and self.glob is None and self._ignored is None and self._hidden is None

    def may_enter(self, directory: str) -> bool:
        """Whether files beneath `directory`, a directory under the root, could be chosen; False is certain."""
        relative = directory[self._start :]
        may = self.glob.may_enter(relative) if self.glob is not None else _is_visible(relative)
        if may and self._hidden is not None and self._hidden(directory, is_dir=True):
            return False
        return may and (self._ignored is None or not self._ignored(directory, is_dir=True))


def _is_visible(relative: str) -> bool:
    return not relative.startswith(".") and "/." not in relative


def _never() -> None:
    return None


class Grep:
    """What a grep has found so far. Files must come sorted by path where `max_count` is to keep the first matches.

    `check` is called every few milliseconds within a file, to raise where nobody wants its matches any more.
    """

    def __init__(
        self,
        query: Query,
        wanted: Wanted,
        max_count: int | None,
        max_bytes: int = MAX_SEARCHED_BYTES,
        check: Callable[[], object] = _never,
    ) -> None:
        check_search(query.pattern, max_count=max_count)
        self.query = query
        self.wanted = wanted
        self.is_limited: bool = max_count is not None
        most = MAX_GREP_LINES // (1 + 2 * query.context_lines)
        self.max_count: int = most if max_count is None else max(0, min(max_count, most))
        self.max_bytes = max_bytes
        self.matches: list[GrepMatch] = []
        self.skipped: int = 0
        self.truncated: bool = False
        self._check = check
        self._is_plain = is_plain(query)

    def scan(self, path: str, content: bytes | str) -> None:
        """Search one file; a text counts against the size limit by its characters."""
        if len(content) > self.max_bytes:
            self.skipped += 1
            return
        room = self.max_count - len(self.matches)
        if self._is_plain:
            hits = search_plain(self.query, path, content, room + 1, self._check)
        else:
            hits = search(self.query, path, content, room + 1, self._check)
        if hits is None:
            return
        self.skipped += hits.skipped
        self.matches += hits.matches
        if len(hits.matches) > room:
            del self.matches[self.max_count :]
            self.truncated = True

    def forget(self, matches: int, skipped: int) -> None:
        """Go back to where there were so many matches and so many skipped."""
        del self.matches[matches:]
        self.skipped = skipped
        self.truncated = False

    def skip(self) -> None:
        """Count something that cannot be searched."""
        self.skipped += 1

    def result(self) -> GrepResult:
        """The result, complete or as far as the search came."""
        return GrepResult(matches=self.matches, truncated=self.truncated, skipped=self.skipped)


def glob_result(matches: list[FileInfo], limit: int = MAX_GLOB_MATCHES) -> GlobResult:
    """The result of a glob, cut at `limit`."""
    is_cut = len(matches) > limit
    return GlobResult(matches=matches[:limit], truncated=is_cut, truncation_reason="budget" if is_cut else None)
