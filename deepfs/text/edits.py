r"""Literal replacement in a text that keeps the line ends of the file.

In a file with `\r\n`, a `\n` in the text to replace matches either line end. The first line end of the new text becomes
the first one of the text that it replaces, the second the second, and so on; further ones become the last of these. If
the replaced text has no line end, they become the one that most lines of the file have. A `\r\n` in the new text stays.
If the text to replace contains `\r`, it specifies its line ends itself, and both texts are used unchanged.
"""

import html
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from heapq import nlargest
from io import StringIO
from itertools import chain, repeat

from msgspec import Struct

from deepfs.errors import AmbiguousMatchError, InvalidContentError, NoMatchError, TooLargeError, quote
from deepfs.text.arguments import check_string
from deepfs.text.lines import check_text, utf8_size

MAX_EDITED_BYTES = 256 * 1024 * 1024
MAX_SPANS = 1000

_SPELLINGS = 64
"""The most spellings of a new text that are kept."""
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


def replace(
    path: str, content: str, old: str, new: str, replace_all: bool = False, *, limit: int = MAX_EDITED_BYTES
) -> Replacement:
    """`content` with `old` replaced by `new`: once, or with `replace_all` wherever it stands, from left to right.

    Raises InvalidContentError if `old` is empty or equal to `new`, or if `new` is not text, and NoMatchError with a
    hint to the most similar text. Without `replace_all`, it raises AmbiguousMatchError if `old` occurs in several
    places, which may overlap. The error has their number; beyond 10,000 places, or fewer of a very long `old`, those
    that overlap are not counted. If the content would become longer and exceed `limit` bytes, it raises TooLargeError,
    before it makes that content.
    """
    check_string("the text to replace", old)
    if not old:
        raise InvalidContentError(None, "The text to replace is empty.")
    if old == new:
        raise InvalidContentError(None, "The text to replace and the new text are the same.")
    check_text(new, "new text")
    crlf = lf = 0
    if "\r" not in old and ("\n" in old or "\n" in new):  # Only then the line ends of the content matter.
        crlf = content.count("\r\n")
        lf = content.count("\n") - crlf
    if crlf and lf:
        searched = content.replace("\r\n", "\n") if "\n" in old else content
        _check_place(path, content, old, searched, old, replace_all)
        return _Mixed(path, content, searched, old, limit).replace(new, "\r\n" if crlf > lf else "\n")
    wanted, wanted_new = (_with_crlf(old), _with_crlf(new)) if crlf else (old, new)
    place = _check_place(path, content, old, content, wanted, replace_all)
    if replace_all:
        return _replace_literal(path, content, wanted, wanted_new, limit)
    _check_growth(path, content, utf8_size(wanted_new) - utf8_size(wanted), limit)
    span = Span(place, place + len(wanted), wanted_new)
    return Replacement(f"{content[: span.start]}{span.text}{content[span.end :]}", 1, [span])


def replace_each(path: str, content: str, edits: Iterable[tuple[str, str, bool]]) -> Iterator[Replacement]:
    """The replacements of several edits, each `old`, `new` and `replace_all`, made one after the other.

    Each raises as `replace` does.
    """
    for old, new, replace_all in edits:
        made = replace(path, content, old, new, replace_all)
        content = made.content
        yield made


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _check_place(path: str, content: str, old: str, searched: str, wanted: str, replace_all: bool) -> int:
    """The first place of `wanted`, which is `old` as spelt in `searched`.

    Raises unless it occurs once, or at all with `replace_all`.
    """
    first = searched.find(wanted)
    if first < 0:
        found = hint(content, old)
        raise NoMatchError(path, found.text, is_decorated=found.is_decorated)
    if not replace_all and searched.find(wanted, first + 1) >= 0:
        raise AmbiguousMatchError(path, _count(searched, wanted))
    return first


def _count(text: str, old: str) -> int:
    """The number of places in which `old` occurs in `text`."""
    # The cost of each search grows with the length of `old`, so a long text is searched for only a few times.
    singly = max(2, min(_COUNTED_SINGLY, _COUNTING_WORK // len(old)))
    found, place = 0, text.find(old)
    while place >= 0 and found < singly:
        found, place = found + 1, text.find(old, place + 1)
    return found + (text.count(old, place) if place >= 0 else 0)


def _places(text: str, old: str) -> Iterator[int]:
    """The places where `old` occurs in `text`, from left to right and without overlaps."""
    place = text.find(old)
    while place >= 0:
        yield place
        place = text.find(old, place + len(old))


def _check_growth(path: str, content: str, growth: int, limit: int) -> None:
    if growth > 0 and (size := utf8_size(content) + growth) > limit:
        raise TooLargeError(path, size, limit)


def _replace_literal(path: str, content: str, old: str, new: str, limit: int) -> Replacement:
    occurrences = content.count(old)
    _check_growth(path, content, occurrences * (utf8_size(new) - utf8_size(old)), limit)
    result = content.replace(old, new)
    if occurrences > MAX_SPANS:
        last_end = content.rfind(old) + len(old)
        return Replacement(result, occurrences, [_one_span(content, result, content.find(old), last_end)])
    return Replacement(result, occurrences, [Span(place, place + len(old), new) for place in _places(content, old)])


class _Mixed:
    r"""A replacement in a file with both line ends; `searched` is `content`, with only `\n` if `old` has a line end."""

    def __init__(self, path: str, content: str, searched: str, old: str, limit: int) -> None:
        self._path, self._limit = path, limit
        self._content, self._searched, self._old = content, searched, old
        is_folded = searched is not content
        ends = re.finditer("\r\n", content) if is_folded else ()
        self._folded = array("q", (end.start() - i for i, end in enumerate(ends)))

    def replace(self, new: str, usual: str) -> Replacement:
        """The content with `new` in each place, spelt with the line ends of the text that it replaces."""
        spelt = lru_cache(_SPELLINGS)(lambda replaced: _respell(new, replaced, usual))
        self._check_size(new, spelt)
        result, spans, done = StringIO(), list[Span](), 0
        for occurrences, (start, end) in enumerate(self._places(), 1):  # noqa: B007
            text = spelt(self._content[start:end])
            result.write(self._content[done:start])
            result.write(text)
            done = end
            if len(spans) < MAX_SPANS:
                spans.append(Span(start, end, text))
        result.write(self._content[done:])
        whole = result.getvalue()
        if occurrences > MAX_SPANS:
            spans = [_one_span(self._content, whole, spans[0].start, done)]
        return Replacement(whole, occurrences, spans)

    def _check_size(self, new: str, spelt: Callable[[str], str]) -> None:
        """Raise TooLargeError if the content would grow over the limit."""
        size = utf8_size(self._content)
        longest = utf8_size(new) + new.count("\n")
        if size + self._searched.count(self._old) * longest <= self._limit:
            return
        replaced = (self._content[start:end] for start, end in self._places())
        after = size + sum(utf8_size(spelt(text)) - utf8_size(text) for text in replaced)
        if after > max(self._limit, size):
            raise TooLargeError(self._path, after, self._limit)

    def _places(self) -> Iterator[tuple[int, int]]:
        """The start and the end of each occurrence in the content."""
        for place in _places(self._searched, self._old):
            end = place + len(self._old)
            yield place + bisect_left(self._folded, place), end + bisect_left(self._folded, end)


def _respell(new: str, replaced: str, usual: str) -> str:
    r"""`new` with each of its `\n` spelt as the line end in the same place of `replaced`, or else as `usual`."""
    ends = re.findall("\r?\n", replaced) or [usual]
    spellings = chain(ends, repeat(ends[-1]))
    return re.sub("\r?\n", lambda end: max(end[0], next(spellings), key=len), new)


def _one_span(content: str, result: str, start: int, end: int) -> Span:
    """The span that turns `content` into `result`; both must be equal outside of `content[start:end]`."""
    return Span(start, end, result[start : len(result) - (len(content) - end)])


_REGION = 1_000_000
_LINES = 50_000
_ANCHORS = 5
_BEFORE = 20_000
_LINE = 400
_WANTED_LINES = 50
_SHOWN = 120
_STARTS = 200
_COMPARED = 12
_SIMILAR = 0.6


class Hint(Struct, frozen=True):
    """A sentence for an edit that found nothing: where a similar text is, and how it differs; empty if there is none.

    `is_decorated` says that the text would be found without what a tool added to it, such as line numbers.
    """

    text: str = ""
    is_decorated: bool = False


def hint(content: str, old: str) -> Hint:
    """The hint for an edit that did not find `old` in `content`."""
    names_line_ends = "\r\n" in old
    content, old = content.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    if names_line_ends and (place := content.find(old)) >= 0:
        return Hint(rf"It stands on {_line_at(content, place)}, but the line ends (\r\n or \n) differ.")
    if len(old) > 1 and old.endswith("\n") and content.endswith(old[:-1]):
        return Hint(f"It ends with a line break, but {_line_at(content, len(content))} is the last and has none.")
    if not old.strip():
        return Hint()
    if (found := find_misreading(content, old)).text:
        return found
    region = _Region(content, _wanted_lines(old))
    return Hint(region.hint_of_same_lines() or _inner(content, old) or region.hint_of_similar_line())


# --- the file contains the text without additions such as line numbers ---


def find_misreading(content: str, old: str) -> Hint:
    """The hint that says where `old` stands in another spelling, or without what a tool added; empty if nowhere."""
    for text, change, is_decorated in _plainer(old):
        if text.strip() and (place := content.find(text)) >= 0:
            return Hint(f"{change}, it stands on {_line_at(content, place)}.", is_decorated)
    return Hint()


def _plainer(old: str) -> Iterator[tuple[str, str, bool]]:
    """`old` without what a tool may have added, how it differs from `old`, and whether only by what was added."""
    yield re.sub(r"(?m)^ *\d+(?:\t|→|[:-] )", "", old), "Without its line numbers", True
    escapes = re.search(r"\\[nt]", old) is not None
    change = r"With line breaks and tabs in place of \n and \t" if escapes else "Without its backslashes"
    yield re.sub(r"\\(?:[ntr\"'\\]|x[0-9a-f]{2}|u[0-9a-f]{4})", _unescape, old), change, not escapes
    for form in ("NFC", "NFD"):  # Letters with marks look the same in both.
        if not unicodedata.is_normalized(form, old):
            spelt = unicodedata.normalize(form, old)
            yield spelt, f"With {' for '.join(_first_signs(spelt, old) or ())}", False
    yield html.unescape(old), "Without HTML escapes such as &lt;", False
    yield re.sub(r"\A\s*```\w*\n|\n```\s*\Z", "", old), "Without its code fences", True


def _first_signs(one: str, other: str) -> tuple[str, str] | None:
    """The characters in which two texts differ first, with escapes; None if both are ASCII, so do not look alike."""
    place = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if place is None or f"{one[place]}{other[place]}".isascii():
        return None
    first, second = (re.match(r".[\u0300-\u036f]*", text[place:], re.DOTALL) for text in (one, other))
    return (ascii(first[0]), ascii(second[0])) if first and second else None


def _unescape(escape: re.Match[str]) -> str:
    character = escape[0][1]
    plain = {"n": "\n", "t": "\t", "r": "\r"}.get(character, character)
    return chr(int(escape[0][2:], 16)) if character in "xu" else plain


def _inner(content: str, old: str) -> str:
    place = content.find(old.strip())
    return f"Without the white space around it, it stands on {_line_at(content, place)}." if place >= 0 else ""


def _line_at(content: str, place: int) -> str:
    """The number and the text of the line around `place`."""
    number = content.count("\n", 0, place) + 1
    start = content.rfind("\n", 0, place) + 1
    if place - start > _SHOWN:
        start = place
    line, _, _ = content[start : start + _LINE].partition("\n")
    return f"line {number} {_clip_line(line)}"


def _clip_line(line: str) -> str:
    return quote((line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…").replace("\t", "\\t"))


# --- line by line ---


def _wanted_lines(old: str) -> list[str]:
    """The first lines of `old`, from the first that is not blank."""
    text = re.sub(r"^\s*\n", "", old).rstrip("\n")
    return [line[:_LINE] for line in text[: _WANTED_LINES * _LINE].split("\n", _WANTED_LINES)[:_WANTED_LINES]]


def _squeeze(line: str) -> str:
    return " ".join(line.split())


def _key(line: str) -> str:
    return _squeeze(line).casefold()


_DIFFERENCES: tuple[tuple[Callable[[str], str], str], ...] = (
    (str.rstrip, "white space at the end"),
    (str.strip, "indentation"),
    (_squeeze, "white space"),
    (str.casefold, "upper and lower case"),
    (_key, "white space and in upper and lower case"),
)


class _Region:
    """Lines of a file to compare with the `wanted` lines, of which the first and the last may be parts of a line."""

    def __init__(self, content: str, wanted: Sequence[str]) -> None:
        start = _region_start(content, wanted)
        self._first = content.count("\n", 0, start) + 1
        self._lines = [line[:_LINE] for line in content[start : start + _REGION].split("\n", _LINES)[:_LINES]]
        self._keys = [_key(line) for line in self._lines]
        self._wanted = wanted
        self._wanted_keys = [_key(line) for line in wanted]

    def hint_of_same_lines(self) -> str:
        """The hint that the wanted lines, or the first of them, are here with other white space or case; else empty."""
        starts = [i for i, key in enumerate(self._keys) if self._fits(key, self._wanted_keys[0], 0)]
        if not starts:
            return ""
        start = max(starts[:_STARTS], key=self._run)
        run = self._run(start)
        for i in range(run):
            if not self._fits(self._lines[start + i], self._wanted[i], i):
                return self._difference(start + i, i)
        return "" if run == len(self._wanted) else self._break(start + run, run)

    def hint_of_similar_line(self) -> str:
        """The hint with the line that is most similar to the first wanted one; empty if none is similar."""
        wanted = self._wanted_keys[0][:_SHOWN]
        words = set(re.findall(r"\w+", wanted))
        candidates = nlargest(
            _COMPARED, range(len(self._keys)), key=lambda i: len(words.intersection(re.findall(r"\w+", self._keys[i])))
        )
        ratios = {i: SequenceMatcher(None, self._keys[i][:_SHOWN], wanted, autojunk=False).ratio() for i in candidates}
        nearest = max(candidates, key=ratios.__getitem__)
        return f"The nearest is {self._pair(nearest, 0)}." if ratios[nearest] >= _SIMILAR else ""

    def _fits(self, line: str, wanted: str, i: int) -> bool:
        """Whether `line` matches the wanted line `i`, which may be a part of a line."""
        if len(self._wanted) == 1:
            return wanted in line
        if i == 0:
            return line.endswith(wanted)
        return line.startswith(wanted) if i == len(self._wanted) - 1 else line == wanted

    def _run(self, start: int) -> int:
        """The number of wanted lines found from line `start` on, ignoring white space and case."""
        run = 0
        for key in self._keys[start : start + len(self._wanted)]:
            if not self._fits(key, self._wanted_keys[run], run):
                break
            run += 1
        return run

    def _pair(self, line: int, i: int) -> str:
        there, wanted = self._lines[line], self._wanted[i]
        signs = _first_signs(there.strip(), wanted.strip())
        given = _clip_line(wanted) + (f", with {signs[0]} for {signs[1]}" if signs else "")
        return f"line {self._first + line}, which is {_clip_line(there)} where the text to replace has {given}"

    def _difference(self, line: int, i: int) -> str:
        there, wanted = self._lines[line], self._wanted[i]
        name = next(name for relaxed, name in _DIFFERENCES if self._fits(relaxed(there), relaxed(wanted), i))
        return f"It differs in {name} from {self._pair(line, i)}."

    def _break(self, line: int, i: int) -> str:
        begin = f"It matches from line {self._first + line - i} on, but "
        return begin + (f"not {self._pair(line, i)}." if line < len(self._lines) else "the file ends before it does.")


def _region_start(content: str, wanted: Sequence[str]) -> int:
    """The index in `content` where the region begins: 0 in a small file, else a little before a line that is wanted."""
    if len(content) <= _REGION:
        return 0
    longest = sorted((line.strip() for line in wanted), key=len, reverse=True)[:_ANCHORS]
    place = next((place for line in longest if (place := content.find(line)) >= 0), 0)
    start = max(0, place - _BEFORE)
    return (content.find("\n", start, place) + 1 or start) if start else 0
