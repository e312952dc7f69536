"""Differences between texts: composes the edits of one writer, merges those of two or finds a conflict, and shows them.

A `Place` is `(start, end, length)`: `before[start:end]` became `length` characters, which are found in the text after
the change. The places of a change are in order, disjoint, and not empty in the text before.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple, TypeAlias

from deepfs.text.edits import Replacement, Span
from deepfs.text.lines import decode
from deepfs.text.visible import visible

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
        shift, done = _shift_until(present, done, start, shift)
        pieces += current[copied : start + shift], result[start + grown : start + grown + length]
        shift, done = _shift_until(present, done, end, shift)
        copied = end + shift
        grown += length - (end - start)
    return "".join([*pieces, current[copied:]])


def _shift_until(present: Sequence[Place], done: int, position: int, shift: int) -> tuple[int, int]:
    """Return the shift of `position` by the places that end before it, and the number of these places."""
    while done < len(present) and present[done][1] <= position:
        start, end, length = present[done]
        shift += length - (end - start)
        done += 1
    return shift, done


_COMPARED: Final = 2_000
"""The most differing lines that are compared one by one on the event loop; more are one difference."""


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
            spans.append(_anchor(before, span))
    return Replacement(after, len(spans), spans)


def join_edits(before: str, after: str) -> tuple[str, str]:
    """An `old`, which stands in one place of `before`, and the `new` for it that makes `after`; the texts differ."""
    change = difference(before, after)
    if change is None:
        raise ValueError("an empty text has no place to edit")
    start, end, more = change.spans[0].start, change.spans[-1].end, 1
    # Without a carriage return, the line ends of an edit would become those of the file.
    while (
        ("\r" in before and "\r" not in before[start:end])
        or before.find(before[start:end]) < start
        or before.find(before[start:end], start + 1) >= 0
    ):
        start, end, more = max(0, start - more), min(len(before), end + more), more * 2
    return before[start:end], after[start : len(after) - (len(before) - end)]


def changed_places(before: str, after: str) -> list[Place] | None:
    """The places of whole lines in which `before` and `after` differ; None if `before` is empty."""
    change = difference(before, after)
    return None if change is None else _places(change)


def merge_texts(base: str, mine: str, theirs: str) -> str | None:
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
        for first, last, new_first, new_last in line_changes(old, new, _COMPARED)
    ]


_BLOCK: Final = 1_000
"""Items that are compared at once, which is much faster than one by one."""


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the common prefix."""
    most = min(len(one), len(other))
    blocks = (at for at in range(0, most, _BLOCK) if one[at : at + _BLOCK] != other[at : at + _BLOCK])
    start = next(blocks, most)
    pairs = enumerate(zip(one[start : start + _BLOCK], other[start : start + _BLOCK], strict=False), start)
    return next((index for index, (a, b) in pairs if a != b), most)


def _anchor(before: str, span: Span) -> Span:
    """`span`, extended by one character if it is empty, so that it has a place in the text."""
    if span.end > span.start:
        return span
    if span.start:
        return Span(span.start - 1, span.end, before[span.start - 1] + span.text)
    return Span(0, 1, span.text + before[0])


# --- lines that differ ---


class LineChange(NamedTuple):
    """Lines of a text that became other lines; the indices count from 0 in the texts before and after."""

    start: int
    end: int
    new_start: int
    new_end: int


_DEPTH: Final = 8
"""How often a part is divided further at lines that occur once in it. Each time takes a time linear in the text."""
_STEPS: Final = 2_000
_STEPS_A_LINE: Final = 1
"""How many steps the shortest change of a part may take to find."""


def line_changes(old: Sequence[str], new: Sequence[str], most: int | None = None) -> list[LineChange]:
    """The changes between two lists of lines, in linear time whatever the lines are.

    The texts are divided at lines that occur once in both; between these the shortest change is sought. Where that
    takes too long, or where more than `most` lines differ, all from the first to the last difference is one change.
    """
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    whole = LineChange(head, len(old) - tail, head, len(new) - tail)
    if most is not None and whole.end + whole.new_end - 2 * head > most:
        return [whole]
    changes: list[LineChange] = []
    parts = [(whole, 0)]
    while parts:
        part, depth = parts.pop()
        part = _trim(old, new, part)
        if part.start == part.end or part.new_start == part.new_end:
            changes.append(part)
        elif depth < _DEPTH and (lines := _common_lines(old, new, part)):
            parts += [(each, depth + 1) for each in reversed(_between_lines(part, lines))]
        else:
            changes += _shortest(old, new, part) or _line_by_line(old, new, part)
    return _join_touching(changes)


def _join_touching(changes: Iterable[LineChange]) -> list[LineChange]:
    """Changes without empty ones, and those that touch as one."""
    joined: list[LineChange] = []
    for change in changes:
        if change.start == change.end and change.new_start == change.new_end:
            continue
        if joined and (joined[-1].end, joined[-1].new_end) == (change.start, change.new_start):
            before = joined.pop()
            joined.append(LineChange(before.start, change.end, before.new_start, change.new_end))
        else:
            joined.append(change)
    return joined


def _trim(old: Sequence[str], new: Sequence[str], part: LineChange) -> LineChange:
    """`part` without the equal lines at its start and end."""
    start, end, new_start, new_end = part
    while start < end and new_start < new_end and old[start] == new[new_start]:
        start, new_start = start + 1, new_start + 1
    while start < end and new_start < new_end and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    return LineChange(start, end, new_start, new_end)


def _common_lines(old: Sequence[str], new: Sequence[str], part: LineChange) -> list[tuple[int, int]]:
    """The places of lines that occur once on both sides of `part`: the most of them that are in the same order."""
    places, new_places = _single(old, part.start, part.end), _single(new, part.new_start, part.new_end)
    ends: list[int] = []
    last: list[tuple[int, int]] = []
    before: dict[tuple[int, int], tuple[int, int] | None] = {}
    for line, place in places.items():
        new_place = new_places.get(line, -1)
        if place < 0 or new_place < 0:
            continue
        length = bisect_left(ends, new_place)
        pair = place, new_place
        before[pair] = last[length - 1] if length else None
        ends[length : length + 1] = [new_place]
        last[length : length + 1] = [pair]
    found: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        found.append(at)
        at = before[at]
    return found[::-1]


def _single(lines: Sequence[str], start: int, end: int) -> dict[str, int]:
    """The place of each line; -1 of those that occur more than once."""
    places: dict[str, int] = {}
    for place in range(start, end):
        line = lines[place]
        places[line] = -1 if line in places else place
    return places


def _between_lines(part: LineChange, lines: Sequence[tuple[int, int]]) -> list[LineChange]:
    """What is left of `part` between lines that are the same."""
    starts = [(part.start, part.new_start), *((place + 1, new_place + 1) for place, new_place in lines)]
    ends = [*lines, (part.end, part.new_end)]
    return [
        LineChange(start, end, new_start, new_end)
        for (start, new_start), (end, new_end) in zip(starts, ends, strict=True)
    ]


def _shortest(old: Sequence[str], new: Sequence[str], part: LineChange) -> list[LineChange] | None:
    """The shortest change of `part`, by the algorithm of Myers; None if no line stays or it takes too many steps."""
    length, new_length = part.end - part.start, part.new_end - part.new_start
    if set(old[part.start : part.end]).isdisjoint(new[part.new_start : part.new_end]):
        return None
    left = _STEPS + _STEPS_A_LINE * (length + new_length)
    reached = {1: 0}
    rounds: list[dict[int, int]] = []
    for distance in range(length + new_length + 1):
        rounds.append(reached.copy())
        for diagonal in range(-distance, distance + 1, 2):
            place, _ = _step(reached, diagonal, distance)
            left -= 1 - place
            while (
                place < length
                and place - diagonal < new_length
                and old[part.start + place] == new[part.new_start + place - diagonal]
            ):
                place += 1
            reached[diagonal] = place
            left -= place
            if place >= length and place - diagonal >= new_length:
                return _walk_back(part, rounds)
        if left < 0:
            return None
    raise AssertionError("removing all lines and adding all others is a change")


def _step(reached: dict[int, int], diagonal: int, distance: int) -> tuple[int, bool]:
    """How far a diagonal is reached with one line more added or removed, and whether that is an added one."""
    if diagonal == -distance or (diagonal != distance and reached[diagonal - 1] < reached[diagonal + 1]):
        return reached[diagonal + 1], True
    return reached[diagonal - 1] + 1, False


def _walk_back(part: LineChange, rounds: Sequence[dict[int, int]]) -> list[LineChange]:
    """The changes of single lines that lead to the end of `part`."""
    diagonal = (part.end - part.start) - (part.new_end - part.new_start)
    changes: list[LineChange] = []
    for distance in range(len(rounds) - 1, 0, -1):
        place, adds = _step(rounds[distance], diagonal, distance)
        end, new_end = part.start + place, part.new_start + place - diagonal
        changes.append(LineChange(end - (not adds), end, new_end - adds, new_end))
        diagonal += 1 if adds else -1
    return changes[::-1]


def _line_by_line(old: Sequence[str], new: Sequence[str], part: LineChange) -> list[LineChange]:
    """The changes if no line moved; all of `part` if the number of lines or most of them differ."""
    start, end, new_start, new_end = part
    if end - start == new_end - new_start:
        differing = [i for i in range(end - start) if old[start + i] != new[new_start + i]]
        if 2 * len(differing) <= end - start:
            return [LineChange(start + i, start + i + 1, new_start + i, new_start + i + 1) for i in differing]
    return [part]


# --- shown to a person ---

_CONTEXT: Final = 3
_SHOWN: Final = 400
_BEFORE: Final = 80
"""How much of a longer line is shown: characters in all, and characters before the first that differs."""


class TextDiff:
    """A unified diff of two texts.

    A character that does not show, or that could forge a row, is an escape. Of a long line a part is shown, around the
    first character that differs.
    """

    def __init__(self, before: str, after: str, context: int = _CONTEXT) -> None:
        if _has_only_crlf(before) and _has_only_crlf(after):
            before, after = before.replace("\r\n", "\n"), after.replace("\r\n", "\n")
        old, new = _lines_of(before), _lines_of(after)
        self._old, self._new, self._context = old, new, context
        self._changes = line_changes(old, new)
        self.added: int = sum(change.new_end - change.new_start for change in self._changes)
        self.removed: int = sum(change.end - change.start for change in self._changes)

    def rows(self) -> Iterator[str]:
        """The rows, without the two that name the files."""
        for group in _hunks(self._changes, self._context):
            span = _span(group, len(self._old), self._context)
            yield f"@@ -{_range(span.start, span.end)} +{_range(span.new_start, span.new_end)} @@"
            for sign, line, other in _signed_lines(self._old, self._new, group, span):
                yield from _row(sign, line, other)


def _lines_of(text: str) -> list[str]:
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


def _span(group: Sequence[LineChange], length: int, context: int) -> LineChange:
    """The lines of a hunk, with those of context."""
    first, last = group[0], group[-1]
    start, end = max(0, first.start - context), min(length, last.end + context)
    return LineChange(start, end, first.new_start - (first.start - start), last.new_end + (end - last.end))


def _signed_lines(
    old: Sequence[str], new: Sequence[str], group: Sequence[LineChange], span: LineChange
) -> Iterator[tuple[str, str, str]]:
    """The lines of a hunk, each with its sign before it, and the line in its place on the other side behind it."""
    done = span.start
    for change in group:
        removed, added = old[change.start : change.end], new[change.new_start : change.new_end]
        yield from ((" ", line, "") for line in old[done : change.start])
        yield from (("-", *pair) for pair in zip_longest(removed, added[: len(removed)], fillvalue=""))
        yield from (("+", *pair) for pair in zip_longest(added, removed[: len(added)], fillvalue=""))
        done = change.end
    yield from ((" ", line, "") for line in old[done : span.end])


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


def unified_diff(before: bytes, after: bytes, from_label: str, to_label: str, *, spaces: bool = False) -> str:
    """The unified diff of two contents as programs read it, with nothing escaped; of binary ones that they differ.

    With `spaces`, labels with spaces are quoted.
    """
    if before == after:
        return ""
    from_label, to_label = quote_label(from_label, spaces=spaces), quote_label(to_label, spaces=spaces)
    if decode(before) is None or decode(after) is None:
        return f"Binary files {from_label} and {to_label} differ\n"
    old, new = _lines_of(before.decode()), _lines_of(after.decode())
    rows = [f"--- {from_label}\n", f"+++ {to_label}\n"]
    for group in _hunks(line_changes(old, new), _CONTEXT):
        span = _span(group, len(old), _CONTEXT)
        rows.append(f"@@ -{_brief_range(span.start, span.end)} +{_brief_range(span.new_start, span.new_end)} @@\n")
        rows += [f"{sign}{line}" for sign, line, _ in _signed_lines(old, new, group, span)]
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def git_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """The unified diff of a file with the headings of git; None is no file."""
    old, new = "/dev/null" if before is None else f"a{path}", "/dev/null" if after is None else f"b{path}"
    note = "new file mode 100644\n" if before is None else "deleted file mode 100644\n" if after is None else ""
    a, b = quote_label(f"a{path}", spaces=True), quote_label(f"b{path}", spaces=True)
    return f"diff --git {a} {b}\n{note}{unified_diff(before or b'', after or b'', old, new, spaces=True)}"


def _brief_range(start: int, end: int) -> str:
    return str(end) if end - start == 1 else _range(start, end)


_UNQUOTED: Final = r"[^\x00-\x1f\x7f\s\"](?:[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s])?"


def quote_label(name: str, *, spaces: bool = False) -> str:
    """The name of a file for the head of a diff: quoted as git does if it could be taken for more than a name.

    With `spaces` it is also quoted if there is a space or a quote in it, as git and GNU patch need it.
    """
    if re.fullmatch(_UNQUOTED, name) and not (spaces and (" " in name or '"' in name)):
        return name
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\{ord(found[0]):03o}", name) + '"'
