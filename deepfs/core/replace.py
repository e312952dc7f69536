r"""Literal replacement in a text, which keeps the line ends of the file.

In a file with `\r\n`, a `\n` of the text to replace stands for either line end, and each line end of the new text is
spelt as the one in the same place of the text it replaces, further ones as the last of these; where that text has none,
as most lines of the file end. A `\r\n` in the new text stays. Where the text to replace holds `\r`, it names its line
ends itself, and both texts are taken as they are.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from itertools import chain, repeat

from msgspec import Struct

from deepfs.core.arguments import check_string
from deepfs.core.nearest import hint
from deepfs.core.text import check_text
from deepfs.errors import AmbiguousMatchError, InvalidContentError, NoMatchError

__all__ = ["MAX_SPANS", "Replacement", "Span", "replace"]

MAX_SPANS = 1000

_COUNTED_SINGLY = 10_000
_COUNTING_WORK = 20_000_000


class Span(Struct, frozen=True, gc=False):
    """`content[start:end]` becomes `text`."""

    start: int
    end: int
    text: str


class Replacement(Struct, frozen=True):
    """The new content, how many places changed, and what was replaced in the old content.

    `spans` are in order and do not overlap. More than `MAX_SPANS` places are one span from the first to the last.
    """

    content: str
    occurrences: int
    spans: list[Span]


def replace(path: str, content: str, old: str, new: str, replace_all: bool = False) -> Replacement:
    """`content` with `old` replaced by `new`: once, or with `replace_all` wherever it stands, from left to right.

    Raises InvalidContentError for an empty or unchanged text and for a new one that is not text, NoMatchError with what
    comes nearest, and, without `replace_all`, AmbiguousMatchError where `old` stands in several places, which may
    overlap. It tells how many; beyond 10,000, or fewer of a very long text, without the overlaps.
    """
    check_string("the text to replace", old)
    if not old:
        raise InvalidContentError("Error: The text to replace is empty.")
    if old == new:
        raise InvalidContentError("Error: The text to replace and the new text are the same.")
    check_text(new, "new text")
    crlf, lf = _line_ends(content, old, new)
    if crlf and lf:
        searched = content.replace("\r\n", "\n") if "\n" in old else content
        _check_place(path, content, old, searched, old, replace_all)
        return _replace_mixed(content, searched, old, new, "\r\n" if crlf > lf else "\n")
    wanted, wanted_new = (_with_crlf(old), _with_crlf(new)) if crlf else (old, new)
    _check_place(path, content, old, content, wanted, replace_all)
    return _replace_literal(content, wanted, wanted_new)


def _line_ends(content: str, old: str, new: str) -> tuple[int, int]:
    """How many lines of `content` end with CRLF and with LF, where that matters to the replacement; else none."""
    if "\r" in old or ("\n" not in old and "\n" not in new):
        return 0, 0
    crlf = content.count("\r\n")
    return crlf, content.count("\n") - crlf


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _check_place(path: str, content: str, old: str, searched: str, wanted: str, replace_all: bool) -> None:
    """Raise unless `wanted`, which is `old` as it is spelt in `searched`, stands there in as many places as it may."""
    first = searched.find(wanted)
    if first < 0:
        raise NoMatchError(path, hint(content, old))
    if not replace_all and searched.find(wanted, first + 1) >= 0:
        raise AmbiguousMatchError(path, _count(searched, wanted))


def _count(text: str, old: str) -> int:
    """In how many places `old` stands in `text`."""
    # Each search for a long text has a cost of its length, so few of those are made.
    singly = max(2, min(_COUNTED_SINGLY, _COUNTING_WORK // len(old)))
    found, place = 0, text.find(old)
    while place >= 0 and found < singly:
        found, place = found + 1, text.find(old, place + 1)
    return found + (text.count(old, place) if place >= 0 else 0)


def _places(text: str, old: str) -> Iterator[int]:
    """Where `old` stands in `text`, from left to right and without overlaps."""
    place = text.find(old)
    while place >= 0:
        yield place
        place = text.find(old, place + len(old))


def _replace_literal(content: str, old: str, new: str) -> Replacement:
    result = content.replace(old, new)
    occurrences = content.count(old)
    if occurrences > MAX_SPANS:
        last_end = content.rfind(old) + len(old)
        return Replacement(result, occurrences, [_one_span(content, result, content.find(old), last_end)])
    return Replacement(result, occurrences, [Span(place, place + len(old), new) for place in _places(content, old)])


def _replace_mixed(content: str, searched: str, old: str, new: str, usual: str) -> Replacement:
    r"""Replace in a file of both line ends; `searched` is `content`, where `old` has a line end with `\n` only."""
    folded = [] if searched is content else [end.start() - i for i, end in enumerate(re.finditer("\r\n", content))]
    spelt = cache(lambda replaced: _spelt(new, replaced, usual))
    spans = []
    for place in _places(searched, old):
        end = place + len(old)
        start, end = place + bisect_left(folded, place), end + bisect_left(folded, end)
        spans.append(Span(start, end, spelt(content[start:end])))
    result = _joined(content, spans)
    if len(spans) > MAX_SPANS:
        return Replacement(result, len(spans), [_one_span(content, result, spans[0].start, spans[-1].end)])
    return Replacement(result, len(spans), spans)


def _spelt(new: str, replaced: str, usual: str) -> str:
    r"""`new` with each of its `\n` spelt as the line end in the same place of `replaced`, or else as `usual`."""
    ends = re.findall("\r?\n", replaced) or [usual]
    spellings = chain(ends, repeat(ends[-1]))
    return re.sub("\r?\n", lambda end: max(end[0], next(spellings), key=len), new)


def _joined(content: str, spans: list[Span]) -> str:
    pieces: list[str] = []
    done = 0
    for span in spans:
        pieces += content[done : span.start], span.text
        done = span.end
    return "".join([*pieces, content[done:]])


def _one_span(content: str, result: str, start: int, end: int) -> Span:
    """The span from `start` to `end` that makes `content` `result`; nothing outside it may differ."""
    return Span(start, end, result[start : len(result) - (len(content) - end)])
