"""Arithmetic of replaced places: joining the edits of one writer, telling whether two writers collide, merging them.

A `Place` is `(start, end, length)`: `before[start:end]` became `length` characters; what they are, the text after
tells. The places of a change are in order, disjoint, and not empty in the text before.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = ["Place", "compose", "disjoint", "transplant"]

Place: TypeAlias = tuple[int, int, int]


def compose(first: Sequence[Place], second: Sequence[Place]) -> list[Place]:
    """The change that `first` and then `second` make; neighbouring places become one."""
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
    """`places` with those that overlap or touch made one."""
    groups: list[tuple[int, int, int, int]] = []
    for place in places:
        if groups and place[0] <= groups[-1][1]:
            start, end, first_growth, second_growth = groups[-1]
            groups[-1] = start, max(end, place[1]), first_growth + place[2], second_growth + place[3]
        else:
            groups.append(place)
    return groups


def disjoint(one: Sequence[Place], other: Sequence[Place]) -> bool:
    """Whether two changes of the same text have no character in common; they may touch."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] <= other[j][0]:
            i += 1
        elif other[j][1] <= one[i][0]:
            j += 1
        else:
            return False
    return True


def transplant(places: Sequence[Place], result: str, current: str, present: Sequence[Place]) -> str:
    """`current` with the change that made `result`.

    Both come from one text: `places` made it `result`, `present` made it `current`. A place of `present` is covered by
    one of `places`, whose text then replaces it, or disjoint from them all.
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
    """How far `position` moved by the places that end before it, and how many these are."""
    while done < len(present) and present[done][1] <= position:
        start, end, length = present[done]
        shift += length - (end - start)
        done += 1
    return shift, done
