"""Searching a file in stretches finds the same as searching it at once, and can be stopped in between."""

from collections.abc import Callable

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deepfs.search.query import Match, Regexp, Stretches, TooMuchWorkError, compile_query, search
from deepfs.threads.deadline import Deadline
from support.deadlines import ScriptedDeadline

PATTERNS = [
    *("a", "b+", "^", "$", "^$", "^a", "b$", r"\ba", r"b\b", r"\B", "a.b", "(a|b)*b", "a{2}", "[^a]", "", r"\s"),
    "a*$",
]
CONTENTS = st.lists(st.sampled_from(["a", "b", "ab", " ", "\n", "\n\n", "aab\n"]), max_size=40).map("".join)


def compiled(pattern: str) -> Regexp:
    query = compile_query(pattern, regex=True)
    assert query.regexp is not None
    return query.regexp


def lines_found(content: bytes, find: Callable[[int], int]) -> list[int]:
    """The numbers, from 0, of the lines in which `find` finds something."""
    lines, start = [], 0
    while start < len(content) and (place := find(start)) >= 0 and not is_behind(content, place):
        lines.append(content.count(b"\n", 0, place))
        start = content.find(b"\n", place) + 1 or len(content)
    return lines


def is_behind(content: bytes, place: int) -> bool:
    return place == len(content) and content.endswith(b"\n")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@given(pattern=st.sampled_from(PATTERNS), text=CONTENTS)
def test_stretches_of_any_size_find_the_matching_lines(size: int, pattern: str, text: str) -> None:
    content = text.encode()
    regexp = compiled(pattern)
    by_stretches = Stretches(regexp, content, Deadline())
    by_stretches._size = size
    each = re2.compile(f"(?m){pattern}")
    expected = [number for number, line in enumerate(text.removesuffix("\n").split("\n")) if each.search(line)]
    if not text:
        expected = []
    assert lines_found(content, by_stretches.find) == expected
    assert lines_found(content, by_stretches.find_by_line) == expected


LONG = {
    "a large expression": (r"(\pL{1,5}.){20}\d", b"the quick brown fox jumps over it\n" * 2000),
    "line by line": (r"\Az", b"\n" * 5000),
    "matches": ("", b"\n" * 5000),
}


class Counted:
    """An expression that counts its steps: the bytes that it searches, times its instructions."""

    def __init__(self, regexp: Regexp) -> None:
        self._regexp = regexp
        self.programsize = regexp.programsize
        self.steps = 0

    def search(self, text: bytes, pos: int = 0, endpos: int | None = None) -> Match | None:
        end = len(text) if endpos is None else endpos
        self.steps += (end - pos) * self.programsize
        return self._regexp.search(text, pos, end)


@pytest.mark.parametrize(("pattern", "content"), LONG.values(), ids=LONG)
def test_a_search_checks_the_deadline_every_few_million_steps(pattern: str, content: bytes) -> None:
    query = compile_query(pattern, regex=True)
    regexp = Counted(compiled(pattern))
    steps: list[int] = []

    def is_enough() -> bool:
        steps.append(regexp.steps)
        regexp.steps = 0
        return False

    search(replace(query, regexp=regexp), "/f", content, 10**9, ScriptedDeadline(cancelled=is_enough))
    assert len(steps) > 100
    assert max(steps) < 10_000_000


def test_a_too_expensive_line_is_skipped() -> None:
    query = compile_query(r"(\pL{1,5}.){20}\d", regex=True)
    assert search(query, "/f", b"short\n" + b"x" * 1_000_000).skipped
    assert not search(query, "/f", b"short\n" + b"x" * 1_000).skipped
    assert search(compile_query("(x+x+)+y", regex=True), "/f", b"x" * 9_000_000 + b"y").matches


def test_a_too_expensive_line_raises_in_find_by_line() -> None:
    with pytest.raises(TooMuchWorkError):
        Stretches(compiled(r"(\pL{1,5}.){20}\d"), b"x" * 1_000_000, Deadline()).find_by_line(0)
