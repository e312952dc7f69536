"""Looking for a regular expression in content of any size, with a look in between whether anybody still wants it.

RE2 takes time linear in the content, yet up to some 8 ns for each byte and each instruction of the expression, and
nothing stops it amid a call. So content is searched by stretches of whole lines, each of which takes 40 ms at worst.
"""

from collections.abc import Callable
from typing import Protocol

__all__ = ["Match", "Regexp", "Stretches", "TooMuchWorkError"]

_WORK = 5_000_000
"""The bytes of a stretch times the instructions of the expression."""
_MAX_WORK = 2_000_000_000
"""The same for the longest line that is searched, which takes some sixteen seconds at worst."""
_SHORTEST = 64


class Match(Protocol):
    """What was found."""

    def start(self) -> int:
        """Where it begins."""
        ...


class Regexp(Protocol):
    """A compiled expression, nothing in which matches a line break."""

    @property
    def programsize(self) -> int:
        """How many instructions it has."""
        ...

    def search(self, text: bytes, pos: int = 0, endpos: int | None = None) -> Match | None:
        """The first match between the two positions, which see what is around them."""
        ...


class TooMuchWorkError(Exception):
    """A line is so long that the expression might take longer over it than anybody waits."""


class Stretches:
    """Finds `regexp` in `content`; `check` raises where nobody wants it any more."""

    def __init__(self, regexp: Regexp, content: bytes, check: Callable[[], object]) -> None:
        self._regexp = regexp
        self._content = content
        self._check = check
        self._size = max(_WORK // regexp.programsize, _SHORTEST)
        self._most = _MAX_WORK // regexp.programsize + self._size

    def find(self, start: int) -> int:
        """The place of the first match from `start`, where a line begins; -1 where there is none."""
        while start < len(self._content):
            self._check()
            end = self._line_end(start, start + self._size)
            match = self._regexp.search(self._content, start, end)
            if match is not None:
                return match.start()
            start = end + 1
        return -1

    def find_by_line(self, start: int) -> int:
        """The start of the first line from `start` that matches by itself; -1 where there is none."""
        while start < len(self._content):
            self._check()
            end = self._line_end(start, start)
            if self._regexp.search(self._content[start:end]) is not None:
                return start
            start = end + 1
        return -1

    def _line_end(self, start: int, place: int) -> int:
        """Where the line at `place` ends, as long as there is not too much between that and `start`."""
        end = self._content.find(b"\n", place)
        if end < 0:
            end = len(self._content)
        if end - start > self._most:
            raise TooMuchWorkError
        return end
