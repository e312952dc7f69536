"""Differences between texts: composes the edits of one writer, merges those of two or finds a conflict, and shows them.

A `Place` is `(start, end, length)`: `before[start:end]` became `length` characters, which are found in the text after
the change. The places of a change are in order, disjoint, and not empty in the text before.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from io import StringIO
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple, TypeAlias

from deepfs.text.edits import Replacement, Span
from deepfs.text.lines import decode
from deepfs.text.visible import visible

__all__ = [
    "LineChange",
    "Place",
    "TextDiff",
    "changed_places",
    "compose",
    "difference",
    "disjoint",
    "joined",
    "line_changes",
    "quoted_label",
    "rebase",
    "unified",
]

Place: TypeAlias = tuple[int, int, int]


def compose(first: Sequence[Place], second: Sequence[Place]) -> list[Place]:
    """The change made by `first` and then `second`; adjacent places are joined."""
    composed: list[Place] = []
    shift = 0
    for start, end, first_growth, second_growth in _groups(_between(first, second)):
        composed.append((start - shift, end - shift - first_growth, end - start + second_growth))
        shift += first_growth
    return composed


def _between(first: Sequence[Place], second: Sequence[Place]) -> list[tuple[int, int, int, int]]:
    """All places in the text between the two changes: start, end, growth by the first, growth by the second."""
    places = [(start, end, 0, length - (end - start)) for start, end, length in second]
    shift = 0
    for start, end, length in first:
        places.append((start + shift, start + shift + length, length - (end - start), 0))
        shift += length - (end - start)
    return sorted(places)


def _groups(places: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """`places`, with those that overlap or touch joined."""
    groups: list[tuple[int, int, int, int]] = []
    for place in places:
        if groups and place[0] <= groups[-1][1]:
            start, end, first_growth, second_growth = groups[-1]
            groups[-1] = start, max(end, place[1]), first_growth + place[2], second_growth + place[3]
        else:
            groups.append(place)
    return groups


def disjoint(one: Sequence[Place], other: Sequence[Place]) -> bool:
    """Whether two changes of the same text have no character in common. They may touch."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] <= other[j][0]:
            i += 1
        elif other[j][1] <= one[i][0]:
            j += 1
        else:
            return False
    return True


def rebase(places: Sequence[Place], result: str, current: str, present: Sequence[Place]) -> str:
    """Apply the change that made `result` to `current`.

    Both come from one text: `places` turned it into `result`, `present` into `current`. A place of `present` is covered
    by one of `places`, whose text then replaces it, or disjoint from them all.
    """
    pieces: list[str] = []
    copied = 0
    grown = shift = done = 0
    for start, end, length in places:
        shift, done = _shifted(present, done, start, shift)
        pieces += current[copied : start + shift], result[start + grown : start + grown + length]
        shift, done = _shifted(present, done, end, shift)
        copied = end + shift
        grown += length - (end - start)
    return "".join([*pieces, current[copied:]])


def _shifted(present: Sequence[Place], done: int, position: int, shift: int) -> tuple[int, int]:
    """Return the shift of `position` by the places that end before it, and the number of these places."""
    while done < len(present) and present[done][1] <= position:
        start, end, length = present[done]
        shift += length - (end - start)
        done += 1
    return shift, done


_COMPARED: Final = 2_000
"""The most differing lines that are compared line by line; more are one difference."""


def difference(before: str, after: str) -> Replacement | None:
    """The change from `before` to `after`, as spans of whole lines that are not empty; None if `before` is empty."""
    if not before:
        return None
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    spans: list[Span] = []
    for span in _spans(old, new):
        if spans and spans[-1].end >= span.start:
            last = spans.pop()
            spans.append(Span(last.start, span.end, last.text + span.text))
        else:
            spans.append(_anchored(before, span))
    return Replacement(after, len(spans), spans)


def changed_places(before: str, after: str) -> list[Place] | None:
    """The places of whole lines in which `before` and `after` differ; None if `before` is empty."""
    change = difference(before, after)
    return None if change is None else _places(change)


def joined(base: str, mine: str, theirs: str) -> str | None:
    """`theirs` with the changes from `base` to `mine`; None if both changed the same place differently."""
    my_change, their_change = difference(base, mine), difference(base, theirs)
    if my_change is None or their_change is None:
        return None
    agreed = {(span.start, span.end, span.text) for span in my_change.spans}
    other = [span for span in their_change.spans if (span.start, span.end, span.text) not in agreed]
    if not disjoint(_places(my_change), _places(Replacement(theirs, len(other), other))):
        return None
    return rebase(_places(my_change), mine, theirs, _places(their_change))


def _places(change: Replacement) -> list[Place]:
    return [(span.start, span.end, len(span.text)) for span in change.spans]


def _spans(old: Sequence[str], new: Sequence[str]) -> list[Span]:
    starts = [0, *accumulate(map(len, old))]
    return [
        Span(starts[first], starts[last], "".join(new[new_first:new_last]))
        for first, last, new_first, new_last in _changed_lines(old, new)
    ]


def _changed_lines(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The ranges of lines that differ: their start and end in the old text, and the new lines."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if not middle and not new_middle:
        return []
    if len(middle) + len(new_middle) > _COMPARED:
        return [(head, head + len(middle), head, head + len(new_middle))]
    found = SequenceMatcher(None, middle, new_middle, autojunk=False).get_opcodes()
    return [(head + i, head + j, head + k, head + m) for tag, i, j, k, m in found if tag != "equal"]


_BLOCK: Final = 1_000
"""Items that are compared at once, which is much faster than one by one."""


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the common prefix."""
    most = min(len(one), len(other))
    blocks = (at for at in range(0, most, _BLOCK) if one[at : at + _BLOCK] != other[at : at + _BLOCK])
    start = next(blocks, most)
    pairs = enumerate(zip(one[start : start + _BLOCK], other[start : start + _BLOCK], strict=False), start)
    return next((index for index, (a, b) in pairs if a != b), most)


def _anchored(before: str, span: Span) -> Span:
    """`span`, extended by one character if it is empty, so that it has a place in the text."""
    if span.end > span.start:
        return span
    if span.start:
        return Span(span.start - 1, span.end, before[span.start - 1] + span.text)
    return Span(0, 1, span.text + before[0])


# --- shown to a person ---

_CONTEXT: Final = 3
_PAIRED: Final = 50_000
"""The most pairs of equal lines in a comparison; more, as in a text of blank lines, would take it too long."""
_SHOWN: Final = 400
_BEFORE: Final = 80
"""How much of a longer line is shown: characters in all, and characters before the first that differs."""


class LineChange(NamedTuple):
    """Lines of a text that became other lines; the indices count from 0 in the texts before and after."""

    start: int
    end: int
    new_start: int
    new_end: int


def line_changes(old: Sequence[str], new: Sequence[str]) -> list[LineChange]:
    """The changes between two lists of lines, in time that is bounded whatever the lines are.

    Where a comparison line by line would take too long, all from the first to the last difference is one change.
    """
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(middle) == len(new_middle):
        differing = [i for i, (a, b) in enumerate(zip(middle, new_middle, strict=True)) if a != b]
        if 2 * len(differing) <= len(middle):
            return _runs(head, differing)
    if (middle or new_middle) and not _is_quickly_compared(middle, new_middle):
        return [LineChange(head, head + len(middle), head, head + len(new_middle))]
    return [LineChange(*each) for each in _changed_lines(old, new)]


def _is_quickly_compared(old: Sequence[str], new: Sequence[str]) -> bool:
    if len(old) + len(new) > _COMPARED:
        return False
    counts = Counter(new)
    return sum(times * counts[line] for line, times in Counter(old).items()) <= _PAIRED


def _runs(head: int, differing: Iterable[int]) -> list[LineChange]:
    """The changes of single lines as changes of adjacent ones."""
    runs: list[LineChange] = []
    for place in (head + i for i in differing):
        start = runs.pop().start if runs and runs[-1].end == place else place
        runs.append(LineChange(start, place + 1, start, place + 1))
    return runs


class TextDiff:
    """A unified diff of two texts.

    A character that does not show, or that could forge a row, is an escape. Of a long line a part is shown, around the
    first character that differs.
    """

    def __init__(self, before: str, after: str, context: int = _CONTEXT) -> None:
        if _has_only_crlf(before) and _has_only_crlf(after):
            before, after = before.replace("\r\n", "\n"), after.replace("\r\n", "\n")
        old, new = _shown_lines(before), _shown_lines(after)
        self._old, self._new, self._context = old, new, context
        self._changes = line_changes(old, new)
        self.added: int = sum(change.new_end - change.new_start for change in self._changes)
        self.removed: int = sum(change.end - change.start for change in self._changes)

    def rows(self) -> Iterator[str]:
        """The rows, without the two that name the files."""
        for group in _hunks(self._changes, self._context):
            yield from _hunk(self._old, self._new, group, self._context)


def _shown_lines(text: str) -> list[str]:
    return StringIO(text, newline="\n").readlines()


def _has_only_crlf(text: str) -> bool:
    return 0 < text.count("\n") == text.count("\r\n")


def _hunks(changes: Sequence[LineChange], context: int) -> list[list[LineChange]]:
    """The changes, grouped so that the lines of context around the groups do not overlap."""
    groups: list[list[LineChange]] = []
    for change in changes:
        if groups and change.start - groups[-1][-1].end <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _hunk(old: Sequence[str], new: Sequence[str], group: Sequence[LineChange], context: int) -> Iterator[str]:
    first, last = group[0], group[-1]
    start, end = max(0, first.start - context), min(len(old), last.end + context)
    new_start, new_end = first.new_start - (first.start - start), last.new_end + (end - last.end)
    yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@"
    done = start
    for change in group:
        yield from _rows(" ", old, range(done, change.start))
        yield from _rows("-", old, range(change.start, change.end), new, change.new_start, change.new_end)
        yield from _rows("+", new, range(change.new_start, change.new_end), old, change.start, change.end)
        done = change.end
    yield from _rows(" ", old, range(done, end))


def _rows(
    sign: str, lines: Sequence[str], shown: range, others: Sequence[str] = (), first: int = 0, end: int = 0
) -> Iterator[str]:
    """The rows of some lines; `others[first:end]` are the lines on the other side of the change."""
    for place, other in zip_longest(shown, range(first, min(end, first + len(shown)))):
        yield from _row(sign, lines[place], "" if other is None else others[other])


def _range(start: int, end: int) -> str:
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _row(sign: str, line: str, other: str) -> Iterator[str]:
    text = line.removesuffix("\n")
    if len(text) <= _SHOWN:
        yield f"{sign}{visible(text)}"
    else:
        start = max(0, min(_common(line, other) - _BEFORE, len(text) - _SHOWN))
        left_out = len(text) - start - _SHOWN
        before, after = f"[{start:,} characters] " if start else "", f" [{left_out:,} characters]" if left_out else ""
        yield f"{sign}{before}{visible(text[start : start + _SHOWN])}{after}"
    if line == text:
        yield "\\ No newline at end of file"


def unified(before: bytes, after: bytes, from_label: str, to_label: str) -> str:
    """The unified diff of two contents as programs read it, with nothing escaped; of binary ones that they differ.

    Args:
        before: The old content.
        after: The new content.
        from_label: What the old one is called.
        to_label: What the new one is called.
    """
    if before == after:
        return ""
    from_label, to_label = quoted_label(from_label), quoted_label(to_label)
    if decode(before) is None or decode(after) is None:
        return f"Binary files {from_label} and {to_label} differ\n"
    lines = unified_diff(_byte_lines(before), _byte_lines(after), from_label, to_label)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


_UNQUOTED: Final = re.compile(r"[^\x00-\x1f\x7f\s\"](?:[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s])?")


def quoted_label(name: str) -> str:
    """The name of a file for the head of a diff: quoted as git does if it could be taken for more than a name.

    Args:
        name: The name.
    """
    if _UNQUOTED.fullmatch(name):
        return name
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\{ord(found[0]):03o}", name) + '"'


def _byte_lines(content: bytes) -> list[str]:
    return _shown_lines(content.decode())
