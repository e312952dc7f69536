"""One grep or glob over many files: which files it wants, what it found, when it has enough."""

from deepfs.core import paths
from deepfs.core.patterns import Glob, compile_glob
from deepfs.core.scan import Query, search
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult

__all__ = ["MAX_GLOB_MATCHES", "MAX_SEARCHED_BYTES", "Grep", "Wanted", "glob_result"]

MAX_SEARCHED_BYTES = 10 * 1024 * 1024
MAX_GLOB_MATCHES = 100_000


class Wanted:
    """The files that a glob chooses at or under `root`; without one all but those in dot-names below it."""

    def __init__(self, pattern: str | None, root: str) -> None:
        self.root = root
        self.glob: Glob | None = None if pattern is None else compile_glob(pattern)

    def __contains__(self, path: object) -> bool:
        relative = paths.relative(str(path), self.root)
        if self.glob is not None:
            return self.glob.matches(relative or paths.name(self.root))
        return _is_visible(relative)

    def may_enter(self, directory: str) -> bool:
        """Whether files beneath `directory`, a directory under the root, could be chosen; False is certain."""
        relative = paths.relative(directory, self.root)
        return self.glob.may_enter(relative) if self.glob is not None else _is_visible(relative)


def _is_visible(relative: str) -> bool:
    return not relative.startswith(".") and "/." not in relative


class Grep:
    """What a grep has found so far. Files must come sorted by path, so that `max_count` keeps the first matches."""

    def __init__(
        self, query: Query, wanted: Wanted, max_count: int | None, max_bytes: int = MAX_SEARCHED_BYTES
    ) -> None:
        self.query = query
        self.wanted = wanted
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.matches: list[GrepMatch] = []
        self.skipped = 0
        self.truncated = False

    def scan(self, path: str, content: bytes | str) -> None:
        """Search one file; a text counts against the size limit by its characters."""
        if len(content) > self.max_bytes:
            self.skipped += 1
            return
        room = None if self.max_count is None else self.max_count - len(self.matches)
        hits = search(self.query, path, content, None if room is None else room + 1)
        self.skipped += hits.skipped
        self.matches += hits.matches
        if room is not None and len(hits.matches) > room:
            del self.matches[self.max_count :]
            self.truncated = True

    def skip(self) -> None:
        """Count something that cannot be searched."""
        self.skipped += 1

    def result(self) -> GrepResult:
        """The result, complete or as far as the search came."""
        return GrepResult(matches=self.matches, truncated=self.truncated, skipped=self.skipped)


def glob_result(matches: list[FileInfo], limit: int = MAX_GLOB_MATCHES) -> GlobResult:
    """The result of a glob, cut at `limit`."""
    return GlobResult(matches=matches[:limit], truncated=len(matches) > limit)
