"""Search the lines of one file for literal text or a regular expression, in content of any size.

RE2 takes time linear in the content, but up to about 8 ns for each byte and each instruction of the expression, and a
running call cannot be interrupted. So content is searched in stretches of whole lines, each of which takes about 40 ms
at worst, unless a single line is longer.
"""

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import islice, repeat
from typing import AnyStr, Generic, Protocol

from msgspec import Struct

from deepfs.errors import InvalidPatternError, NotSupportedError, clip
from deepfs.operations import Grep
from deepfs.text import media
from deepfs.text.lines import BOM, decode, is_text
from deepfs.threads.deadline import Deadline
from deepfs.types import ContextLine, GrepMatch

_WORK = 5_000_000
"""The size of a stretch: its bytes times the instructions of the expression."""
_MAX_WORK = 2_000_000_000
"""The same product for the longest line that is searched, which takes about 16 seconds at worst."""
_SHORTEST = 64


class Match(Protocol):
    """A match of a regular expression."""

    def start(self) -> int:
        """Return the position where the match begins."""
        ...


class Regexp(Protocol):
    """A compiled expression that never matches a line break."""

    @property
    def programsize(self) -> int:
        """The number of instructions of the compiled expression."""
        ...

    def search(self, text: bytes, pos: int = 0, endpos: int | None = None) -> Match | None:
        """Return the first match between the two positions; assertions at both ends see the text beyond them."""
        ...


class TooMuchWorkError(Exception):
    """A line is so long that a search of it with the expression might take too long."""


class Stretches:
    """Finds `regexp` in `content` stretch by stretch, and checks the deadline before each."""

    def __init__(self, regexp: Regexp, content: bytes, deadline: Deadline, path: str = "/") -> None:
        self._regexp = regexp
        self._content = content
        self._deadline = deadline
        self._path = path
        self._size = max(_WORK // regexp.programsize, _SHORTEST)
        self._most = _MAX_WORK // regexp.programsize + self._size

    def find(self, start: int) -> int:
        """Return the position of the first match from `start` on, where a line begins; -1 if there is none."""
        while start < len(self._content):
            self._deadline.check(self._path)
            end = self._line_end(start, start + self._size)
            match = self._regexp.search(self._content, start, end)
            if match is not None:
                return match.start()
            start = end + 1
        return -1

    def find_by_line(self, start: int) -> int:
        """Return the start of the first line, from `start` on, that matches when searched alone; -1 if none does."""
        while start < len(self._content):
            self._deadline.check(self._path)
            end = self._line_end(start, start)
            if self._regexp.search(self._content[start:end]) is not None:
                return start
            start = end + 1
        return -1

    def _line_end(self, start: int, place: int) -> int:
        """Return the end of the line at `place`. Raises TooMuchWorkError if that is too far from `start`."""
        end = self._content.find(b"\n", place)
        if end < 0:
            end = len(self._content)
        if end - start > self._most:
            raise TooMuchWorkError
        return end


MAX_LINE = 5000
MAX_CONTEXT_LINES = 1000

_BYTES_A_CHARACTER = 4


class Query(Struct, frozen=True):
    """A compiled search pattern; `regexp` is None for a literal search that respects case."""

    pattern: str
    needle: bytes
    context_lines: int
    max_line: int
    regexp: Regexp | None
    by_line: bool

    @property
    def required(self) -> bytes:
        """Bytes that every matching file contains; empty if none are known."""
        return self.needle if self.regexp is None else b""

    @property
    def is_plain(self) -> bool:
        """Whether a match is a line with the pattern, shown without other lines."""
        return self.regexp is None and not self.context_lines and self.pattern != ""


class FileHits(Struct, frozen=True):
    """The matches in one file.

    `skipped` is True if the file matches but is binary, or if one of its lines is too long for the regular expression.
    """

    matches: list[GrepMatch] = []
    skipped: bool = False


def compile_query(request: Grep, max_line: int = MAX_LINE) -> Query:
    """Compile the query to search each file with, whose lines are clipped to `max_line` characters.

    An empty pattern matches each line. Raises InvalidPatternError for a pattern that no line can contain, for an
    invalid RE2 expression, and for `context_lines` out of range; NotSupportedError for an expression without RE2.
    """
    pattern, context_lines = request.pattern, request.context_lines
    if "\n" in pattern:
        raise InvalidPatternError(pattern, "it holds a line break, but the search is by line.", kind="search pattern")
    if not is_text(pattern):
        raise InvalidPatternError(pattern, "it holds NUL or half a surrogate pair.", kind="search pattern")
    if not 0 <= context_lines <= MAX_CONTEXT_LINES:
        reason = f"context_lines must be from 0 to {MAX_CONTEXT_LINES}, not {context_lines}."
        raise InvalidPatternError(pattern, reason, kind="search")
    regexp = _compile_re2(request) if request.regex or request.ignore_case else None
    by_line = request.regex and re.search(r"\\[AzC]|\(\?[a-zA-Z]*-[a-zA-Z]*m", pattern) is not None
    return Query(pattern, pattern.encode(), context_lines, max_line, regexp, by_line)


def search(
    query: Query, path: str, data: bytes | str, limit: int | None = None, deadline: Deadline | None = None
) -> FileHits:
    """The first `limit` lines of a file that match; a file that is binary by name or content is skipped.

    The deadline is checked every few milliseconds. Raises DeadlineError.
    """
    deadline = deadline or Deadline()
    if query.regexp is None:
        return _search_literal(query, path, data, limit, deadline)
    try:
        return _search_regexp(query, query.regexp, path, data, limit, deadline)
    except TooMuchWorkError:
        return FileHits(skipped=True)


_CHECK_EVERY = 1000
"""Matches in one file between two checks of the deadline: about a millisecond."""


def _search_literal(query: Query, path: str, data: bytes | str, limit: int | None, deadline: Deadline) -> FileHits:
    # Most files end here, before anything is decoded.
    found = query.pattern in data if isinstance(data, str) else query.needle in data
    if not found:
        return FileHits()
    text = _text(data)
    if text is None:
        return FileHits(skipped=True)
    text = text.removeprefix(BOM)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if query.is_plain and not media.is_binary_name(path):
        return FileHits(_plain_matches(query, path, text, limit, deadline))

    def find(start: int) -> int:
        deadline.check(path)
        return text.find(query.pattern, start)

    return _hits(query, path, _MatchLines(text, "\n", find, str), limit)


def _plain_matches(query: Query, path: str, text: str, limit: int | None, deadline: Deadline) -> list[GrepMatch]:
    """The matches of a plain query, in less time than by `_hits`."""
    needle, most = query.pattern, query.max_line
    find, find_back, count = text.find, text.rfind, text.count
    matches: list[GrepMatch] = []
    number, start = 1, 0
    place = find(needle)
    while place >= 0 and len(matches) != limit:
        number += count("\n", start, place)
        start = find_back("\n", start, place) + 1 or start
        end = find("\n", place)
        if end < 0:
            end = len(text)
        line = text[start:end]
        matches.append(GrepMatch(path, number, line if len(line) <= most else line[:most]))
        if len(matches) % _CHECK_EVERY == 0:
            deadline.check(path)
        number, start = number + 1, end + 1
        place = find(needle, start)
    return matches


def _search_regexp(
    query: Query, regexp: Regexp, path: str, data: bytes | str, limit: int | None, deadline: Deadline
) -> FileHits:
    content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    content = content.removeprefix(BOM.encode())
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    stretches = Stretches(regexp, content, deadline, path)
    find = stretches.find_by_line if query.by_line else stretches.find
    lines = _MatchLines(content, b"\n", find, partial(str, encoding="utf-8", errors="ignore"))
    if _text(data) is None:
        return FileHits(skipped=lines.any_matching())
    return _hits(query, path, lines, limit)


def _text(data: bytes | str) -> str | None:
    if isinstance(data, str):
        return data if is_text(data) else None
    return decode(data)


# --- regular expressions ---


def _compile_re2(request: Grep) -> Regexp:
    pattern, regex = request.pattern, request.regex
    try:
        re2 = import_module("re2")
    except ImportError as error:
        if regex:
            raise NotSupportedError(None, "Regular expressions need RE2: pip install google-re2") from error
        return _AnyCase(pattern)
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.never_capture = True
    options.case_sensitive = not request.ignore_case
    options.literal = not regex
    try:
        compiled: Regexp = re2.compile(f"(?m){pattern}" if regex else pattern, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace").replace(": (?m)", ": ", 1)
        detail = f"{clip(reason)} (RE2 syntax: no look-around, no backreferences)"
        raise InvalidPatternError(pattern, detail, kind="regex pattern" if regex else "search pattern") from error
    return compiled


class _AnyCase:
    """A literal text whose letters may be of either case, where RE2 is missing: no two ways to match begin alike."""

    def __init__(self, text: str) -> None:
        expression = "".join(map(_in_any_case, text)).encode()
        self.programsize: int = len(expression) + 1
        self.search: Callable[..., Match | None] = re.compile(expression).search


@lru_cache(maxsize=4096)
def _in_any_case(character: str) -> str:
    letters = re.findall(re.escape(character), _letters(), re.IGNORECASE)
    return f"(?:{'|'.join(letters)})" if character in letters else re.escape(character)


@cache
def _letters() -> str:
    """All letters that have a case, but the two of Turkish that RE2 takes for no other ones."""
    return "".join(each for each in map(chr, range(0x1E944)) if each.lower() != each.upper() and each not in "İı")


# --- lines ---


class _MatchLine(Struct, frozen=True):
    """The number of a line, and where it starts and ends, without its terminator."""

    number: int
    start: int
    end: int


class _MatchLines(Generic[AnyStr]):
    """Content as lines, each ended by `newline`.

    `find` returns the position of the first match from a position on, or -1. `as_text` decodes a piece that may end
    within a character.
    """

    def __init__(
        self, content: AnyStr, newline: AnyStr, find: Callable[[int], int], as_text: Callable[[AnyStr], str]
    ) -> None:
        self._content: AnyStr = content
        self._newline: AnyStr = newline
        self._find = find
        self._as_text: Callable[[AnyStr], str] = as_text

    def any_matching(self) -> bool:
        """Whether there is a line with a match."""
        return next(self.find_all(), None) is not None

    def find_all(self) -> Iterator[_MatchLine]:
        """Each line with a match."""
        number, start = 1, 0
        while (place := self._find(start)) >= 0 and not self._is_behind(place):
            number += self._content.count(self._newline, start, place)
            line = _MatchLine(number, self._content.rfind(self._newline, start, place) + 1 or start, self._end(place))
            yield line
            if line.end == len(self._content):
                return
            number, start = number + 1, line.end + 1

    def before(self, line: _MatchLine, count: int) -> list[_MatchLine]:
        """The `count` lines before `line`, or fewer at the start of the content."""
        lines: list[_MatchLine] = []
        while line.start > 0 and len(lines) < count:
            end = line.start - 1
            line = _MatchLine(line.number - 1, self._content.rfind(self._newline, 0, end) + 1, end)
            lines.append(line)
        return lines[::-1]

    def after(self, line: _MatchLine, count: int) -> list[_MatchLine]:
        """The `count` lines after `line`, or fewer at the end of the content."""
        lines: list[_MatchLine] = []
        while line.end + 1 < len(self._content) and len(lines) < count:
            line = _MatchLine(line.number + 1, line.end + 1, self._end(line.end + 1))
            lines.append(line)
        return lines

    def text(self, line: _MatchLine, most: int) -> str:
        """The first `most` characters of `line`."""
        end = min(line.end, line.start + most * _BYTES_A_CHARACTER)
        return self._as_text(self._content[line.start : end])[:most]

    def _end(self, place: int) -> int:
        end = self._content.find(self._newline, place)
        return len(self._content) if end < 0 else end

    def _is_behind(self, place: int) -> bool:
        """Whether `place` is the end of the content and no line starts there."""
        return place == len(self._content) and (place == 0 or self._content.endswith(self._newline))


def _hits(query: Query, path: str, lines: _MatchLines[AnyStr], limit: int | None) -> FileHits:
    if media.is_binary_name(path):
        return FileHits(skipped=lines.any_matching())
    found = islice(lines.find_all(), limit)
    if not query.context_lines:
        return FileHits([GrepMatch(path, line.number, lines.text(line, query.max_line)) for line in found])

    @cache
    def beside(line: _MatchLine) -> ContextLine:
        return ContextLine(line.number, lines.text(line, query.max_line))

    def match(line: _MatchLine) -> GrepMatch:
        before = [beside(other) for other in lines.before(line, query.context_lines)]
        after = [beside(other) for other in lines.after(line, query.context_lines)]
        return GrepMatch(path, line.number, lines.text(line, query.max_line), before, after)

    return FileHits([match(line) for line in found])


def parse_numbered_matches(path: str, lines: bytes, needles: Collection[str]) -> dict[str, list[GrepMatch]] | None:
    """The matches of each needle for pairs of lines, a number and a text each; None if there is something else.

    Each of the texts must contain one of the needles, but one of more than `MAX_LINE` characters may be cut after them.
    """
    try:
        content = lines.decode()
        parts = content.split("\n")
        numbers, texts = list(map(int, parts[::2])), parts[1::2]
    except ValueError:
        return None
    if len(numbers) != len(texts):
        return None
    shown = [text[:MAX_LINE] for text in texts] if len(lines) > MAX_LINE else texts
    if len(needles) > 1 and any(len(text) == MAX_LINE for text in shown):
        return None  # What is cut off may contain another needle.
    present = [needle for needle in needles if needle in content]
    if len(present) == 1:  # Then every line contains it.
        return {present[0]: list(map(GrepMatch, repeat(path), numbers, shown))}
    rows = list(zip(numbers, texts, shown, strict=True))
    return {
        needle: [GrepMatch(path, number, line) for number, text, line in rows if needle in text] for needle in present
    }
