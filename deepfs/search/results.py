"""Results of one grep or glob over many files, collected up to a limit."""

from itertools import islice

from deepfs.search.query import Query, is_plain, search, search_plain
from deepfs.search.request import FileFilter, GrepRequest, query_of
from deepfs.text.paths import MAX_PATH_BYTES
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult

__all__ = ["MAX_GLOB_CHARS", "MAX_GLOB_MATCHES", "MAX_SEARCHED_BYTES", "SEARCH_SECONDS", "GrepScan", "glob_result"]

MAX_SEARCHED_BYTES = 10 * 1024 * 1024
MAX_GLOB_MATCHES = 100_000
MAX_GREP_LINES = 100_000
"""The most lines in the result of a grep, context lines included; a result with more is cut, and `truncated`."""
MAX_GLOB_CHARS = 32 * 1024 * 1024
"""The most characters of all paths in the result of a glob."""
MAX_GREP_CHARS = 32 * 1024 * 1024
"""The most characters of all lines in the result of a grep, context lines included."""
SEARCH_SECONDS = 60.0
"""Seconds after which a search ends with a `truncated` result, if its backend sets no other limit."""


class GrepScan:
    """The matches of a grep so far. Files must come sorted by path if `max_count` is to keep the first matches.

    `deadline` is checked every few milliseconds within a file.
    """

    deadline: Deadline

    def __init__(self, request: GrepRequest, files: FileFilter, max_bytes: int = MAX_SEARCHED_BYTES) -> None:
        self.query: Query = query_of(request)
        self.files: FileFilter = files
        self.is_limited: bool = request.max_count is not None
        most = MAX_GREP_LINES // (1 + 2 * request.context_lines)
        self.max_count: int = most if request.max_count is None else max(0, min(request.max_count, most))
        self.max_bytes = max_bytes
        self.matches: list[GrepMatch] = []
        self.skipped: int = 0
        self.truncated: bool = False
        self.deadline = Deadline()
        self._search = search_plain if is_plain(self.query) else search
        self.required: bytes = self.query.required or _find_required(request)
        """Bytes that every matching file contains; empty if none are known."""
        # Most results are known to be short enough by the sizes of their files, and are not measured.
        self._times_shown = 1 + 2 * request.context_lines
        self._most_chars = 0
        self._measured, self._chars = 0, 0

    def scan(self, path: str, content: bytes | str) -> None:
        """Search one file; the size limit counts the characters of a str. Raises DeadlineError."""
        if len(content) > self.max_bytes:
            self.skipped += 1
            return
        if self.required and type(content) is bytes and self.required not in content:
            return  # Most files end here.
        room = self.max_count - len(self.matches)
        hits = self._search(self.query, path, content, room + 1, self.deadline)
        if hits is not None:
            self.skipped += hits.skipped
            self.add(hits.matches, len(content))

    def add(self, matches: list[GrepMatch], most_chars: int) -> None:
        """Add matches; without lines beside them, their texts together have at most `most_chars` characters."""
        room = self.max_count - len(self.matches)
        self.matches += matches
        if len(matches) > room:
            del self.matches[self.max_count :]
            self.truncated = True
        self._most_chars += min(most_chars, len(matches) * self.query.max_line) * self._times_shown
        if self._most_chars > MAX_GREP_CHARS:
            self._drop_long()

    def _drop_long(self) -> None:
        """Drop the matches with which the lines of the result have too many characters."""
        for match in islice(self.matches, self._measured, None):
            self._chars += _chars_of(match)
            if self._chars > MAX_GREP_CHARS:
                del self.matches[self._measured :]
                self.truncated = True
                return
            self._measured += 1
        self._most_chars = self._chars

    def skip(self) -> None:
        """Count a file or directory that cannot be searched."""
        self.skipped += 1

    def result(self) -> GrepResult:
        """The matches so far, as a result."""
        return GrepResult(matches=self.matches, truncated=self.truncated, skipped=self.skipped)


def _find_required(request: GrepRequest) -> bytes:
    """The longest text that every match of a regular expression contains, if case counts; empty if none is known."""
    if not request.regex or request.ignore_case:
        return b""
    from deepfs.search.literals import folds_case, required_text  # Late: its expressions take long to compile.

    if folds_case(request):
        return b""
    return max((texts[0] for texts in required_text(request) if len(texts) == 1), key=len, default="").encode()


def _chars_of(match: GrepMatch) -> int:
    beside = (*(match.context_before or ()), *(match.context_after or ()))
    return len(match.text) + sum(len(line.text) for line in beside)


def glob_result(matches: list[FileInfo], limit: int = MAX_GLOB_MATCHES, *, is_late: bool = False) -> GlobResult:
    """The result of a glob, cut at `limit` and at `MAX_GLOB_CHARS`; `is_late` if the search ended at its deadline."""
    limit = min(limit, _count_fitting(matches))
    is_cut = is_late or len(matches) > limit
    return GlobResult(matches=matches[:limit], truncated=is_cut, truncation_reason="budget" if is_cut else None)


def _count_fitting(matches: list[FileInfo]) -> int:
    """How many of the matches have paths of `MAX_GLOB_CHARS` at most."""
    if len(matches) * MAX_PATH_BYTES <= MAX_GLOB_CHARS:
        return len(matches)
    room = MAX_GLOB_CHARS
    for count, info in enumerate(matches):
        room -= len(info.path)
        if room < 0:
            return count
    return len(matches)
