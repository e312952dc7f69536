"""What became of a text whose edits nobody noted: where two versions differ, and joining two changes of one text."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Final

from deepfs.core.replace import Replacement, Span
from deepfs.core.spans import Place, disjoint, transplant

__all__ = ["changed_places", "difference", "joined"]

_COMPARED: Final = 2_000
"""Lines beyond the common ones at both ends; more of them are one difference."""


def difference(before: str, after: str) -> Replacement | None:
    """How `before` became `after`, as spans of whole lines that are not empty; None where `before` is empty."""
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
    """Where `before` and `after` differ, as places of whole lines; None where `before` is empty."""
    change = difference(before, after)
    return None if change is None else _places(change)


def joined(base: str, mine: str, theirs: str) -> str | None:
    """`theirs` with what made `mine` of `base`; None where both changed the same place, but not alike."""
    my_change, their_change = difference(base, mine), difference(base, theirs)
    if my_change is None or their_change is None:
        return None
    agreed = {(span.start, span.end, span.text) for span in my_change.spans}
    other = [span for span in their_change.spans if (span.start, span.end, span.text) not in agreed]
    if not disjoint(_places(my_change), _places(Replacement(theirs, len(other), other))):
        return None
    return transplant(_places(my_change), mine, theirs, _places(their_change))


def _places(change: Replacement) -> list[Place]:
    return [(span.start, span.end, len(span.text)) for span in change.spans]


def _spans(old: Sequence[str], new: Sequence[str]) -> list[Span]:
    starts = [0, *accumulate(map(len, old))]
    return [
        Span(starts[first], starts[last], "".join(new[new_first:new_last]))
        for first, last, new_first, new_last in _changed_lines(old, new)
    ]


def _changed_lines(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The ranges of lines that differ: of the old text, and what stands there in the new one."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if not middle and not new_middle:
        return []
    if len(middle) + len(new_middle) > _COMPARED:
        return [(head, head + len(middle), head, head + len(new_middle))]
    found = SequenceMatcher(None, middle, new_middle, autojunk=False).get_opcodes()
    return [(head + i, head + j, head + k, head + m) for tag, i, j, k, m in found if tag != "equal"]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _anchored(before: str, span: Span) -> Span:
    """`span`, which takes in a character beside it where it replaces none, so that it has a place."""
    if span.end > span.start:
        return span
    if span.start:
        return Span(span.start - 1, span.end, before[span.start - 1] + span.text)
    return Span(0, 1, span.text + before[0])
