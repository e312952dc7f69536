r"""Patches in the V4A format, which OpenAI's models write: read, and applied to a text.

    *** Begin Patch
    *** Update File: /src/app.py
    @@ def greet():
    -    print("Hi")
    +    print("Hello")
    *** End Patch

A patch names no line numbers. A hunk is found by its context: first as it is, then without regard to white space at the
ends of lines, then to white space at their starts too. Lines of the file that a hunk keeps stay as they are, and so do
line ends.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

__all__ = [
    "FilePatch",
    "Hunk",
    "PatchError",
    "Patched",
    "added_text",
    "apply_hunks",
    "parse_hunks",
    "parse_patch",
    "parse_unified",
]

Action = Literal["add", "update", "delete"]

_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_END_OF_FILE: Final = "*** End of File"
_MOVE: Final = "*** Move to:"
_NO_LINE_END: Final = "\\ No newline at end of file"
"""A line of unified diffs, which changes nothing: the last line of a file keeps its end, or goes on without one."""
_ACTIONS: Final[dict[str, Action]] = {
    "*** Add File:": "add",
    "*** Update File:": "update",
    "*** Delete File:": "delete",
}
_WRAPPED: Final = re.compile(
    r"\A(?:apply_patch\s+)?(?:<<-?\s*(['\"]?)(\w+)\1\n(?P<here>.*)\n\2|```\w*\n(?P<code>.*)\n```)\Z", re.DOTALL
)
"""A patch as a here-document of a shell, or as a block of code."""
_SHOWN: Final = 200


class PatchError(ValueError):
    """A patch that cannot be read or applied. The text says what to correct."""


class Hunk(NamedTuple):
    """A change of adjacent lines, and where it is."""

    anchors: tuple[str, ...]
    """Lines above it, from the outermost inwards."""
    lines: tuple[tuple[str, str], ...]
    """Signs (` `, `-`, `+`) and texts of its lines."""
    at_end: bool
    """Whether it is at the end of the file."""

    @property
    def old(self) -> list[str]:
        """The lines that it finds in the file."""
        return [text for sign, text in self.lines if sign != "+"]


class FilePatch(NamedTuple):
    """The part of a patch that adds, updates or deletes one file."""

    action: Action
    path: str
    """The file, by its path before the patch."""
    content: str = ""
    """The content of an added file."""
    hunks: tuple[Hunk, ...] = ()
    """The changes of an updated file."""
    move_to: str | None = None
    """The new path of an updated file; None if it stays where it is."""


class Patched(NamedTuple):
    """A text to which hunks were applied."""

    text: str
    fuzzy: int
    """The number of hunks that matched only without regard to white space."""


# --- reading ---


def parse_patch(patch: str) -> list[FilePatch]:
    """Return what a patch does with each file, in its order. Raises PatchError if the patch is malformed."""
    lines = _unwrapped(patch).split("\n")
    if lines[0].strip() != _BEGIN or lines[-1].strip() != _END:
        raise PatchError(f"A patch begins with the line '{_BEGIN}' and ends with the line '{_END}'.")
    sections = list(_sections(lines[1:-1]))
    if not sections:
        raise PatchError(f"The patch changes no file. Name one with {', '.join(f'{each} path' for each in _ACTIONS)}.")
    return [_file_patch(*each) for each in sections]


_COUNTS: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NO_FILE: Final = "/dev/null"


def parse_unified(diff: str) -> list[FilePatch]:
    """Return what a unified diff does with each file, as `diff -u` and git write it; `a/` and `b/` are left off.

    Its hunks are found by their context, like those of other patches. Raises PatchError if the diff is malformed.
    """
    lines = _lines(diff)
    found: list[FilePatch] = []
    for number, (line, following) in enumerate(pairwise(lines)):
        if line.startswith("--- ") and following.startswith("+++ "):
            found.append(_side_patch(_file_name(line), _file_name(following), _hunk_lines(lines[number + 2 :])))
    if not found:
        raise PatchError("There is no line '--- file' with a line '+++ file' beneath it.")
    return found


def _hunk_lines(lines: Sequence[str]) -> list[str]:
    """The lines of the hunks that come first, by the numbers of lines that their heads tell."""
    number = 0
    while number < len(lines) and (counts := _COUNTS.match(lines[number])):
        old, new = (int(count or "1") for count in counts.groups())
        number += 1
        while number < len(lines) and (old > 0 or new > 0 or lines[number] == _NO_LINE_END):
            sign = lines[number][:1]
            old -= sign in (" ", "-", "")
            new -= sign in (" ", "+", "")
            number += 1
    return list(lines[:number])


def _side_patch(old: str, new: str, lines: Sequence[str]) -> FilePatch:
    if old == _NO_FILE:
        end = "" if _NO_LINE_END in lines else "\n"
        return FilePatch("add", new, "\n".join(line[1:] for line in lines if line.startswith("+")) + end * bool(lines))
    if new == _NO_FILE:
        return FilePatch("delete", old)
    return FilePatch("update", old, "", parse_hunks("\n".join(lines), old), None if new == old else new)


def _file_name(line: str) -> str:
    quoted = _QUOTED_NAME.match(line, 4)
    name = _unquoted(quoted[1]) if quoted else line[4:].partition("\t")[0].rstrip()
    return name[2:] if name.startswith(("a/", "b/")) else name


_QUOTED_NAME: Final = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:\t|$)')
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPED: Final = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))


def _unquoted(name: str) -> str:
    """A name as git quotes it: with the escapes of C, and bytes as octal numbers."""

    def byte(found: re.Match[bytes]) -> bytes:
        given = found[1]
        return bytes([int(given, 8) if len(given) == 3 else _ESCAPED.get(given[0], given[0])])

    return _ESCAPE.sub(byte, name.encode()).decode("utf-8", "replace")


def _unwrapped(patch: str) -> str:
    text = patch.replace("\r\n", "\n").strip()
    wrapped = _WRAPPED.match(text)
    return (wrapped["here"] or wrapped["code"] or "").strip() if wrapped else text


def _sections(lines: Sequence[str]) -> Iterator[tuple[Action, str, list[str]]]:
    """The action, the path and the lines of each file."""
    section: tuple[Action, str, list[str]] | None = None
    for line in lines:
        found = _header(line)
        if found:
            if section:
                yield section
            section = (*found, [])
        elif section:
            section[2].append(line)
        elif line.strip():
            raise PatchError(f"{_quoted(line)} belongs to no file. Begin with {' or '.join(_ACTIONS)} and a path.")
    if section:
        yield section


def _header(line: str) -> tuple[Action, str] | None:
    for prefix, action in _ACTIONS.items():
        if line.startswith(prefix):
            return action, _path(line, prefix)
    return None


def _path(line: str, prefix: str) -> str:
    path = line.removeprefix(prefix).strip()
    if not path:
        raise PatchError(f"'{prefix}' names no path.")
    return path


def _file_patch(action: Action, path: str, lines: list[str]) -> FilePatch:
    if action == "add":
        return FilePatch(action, path, content=added_text("\n".join(lines), path))
    if action == "delete":
        if any(line.strip() for line in lines):
            raise PatchError(f"'*** Delete File: {path}' has lines. Leave them out, or use '*** Update File:'.")
        return FilePatch(action, path)
    move_to = _path(lines.pop(0), _MOVE) if lines and lines[0].startswith(_MOVE) else None
    hunks = tuple(_hunks(path, lines))
    if not hunks and move_to is None:
        raise PatchError(f"'*** Update File: {path}' has no changes. Add lines that begin with - or +.")
    return FilePatch(action, path, hunks=hunks, move_to=move_to)


def added_text(diff: str, path: str) -> str:
    """The content of a new file, of which each line begins with `+`. Raises PatchError for another line."""
    lines = _lines(diff)
    for line in lines:
        if not line.startswith("+"):
            raise PatchError(f"Each line of the new file {path} begins with +, and {_quoted(line)} does not.")
    return "".join(f"{line[1:]}\n" for line in lines)


def parse_hunks(diff: str, path: str) -> tuple[Hunk, ...]:
    """Return the hunks of a file. Raises PatchError if they are malformed or change nothing."""
    hunks = tuple(_hunks(path, _lines(diff)))
    if not hunks:
        raise PatchError(f"The diff of {path} has no changes. Add lines that begin with - or +.")
    return hunks


def _lines(diff: str) -> list[str]:
    lines = diff.replace("\r\n", "\n").split("\n")
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _hunks(path: str, lines: Sequence[str]) -> Iterator[Hunk]:
    anchors: list[str] = []
    body: list[str] = []
    for line in [*lines, _END]:
        is_end = line.rstrip() == _END_OF_FILE
        if (is_end or line == _END or line.startswith("@@")) and any(body):
            yield _hunk(path, anchors, body, is_end)
            anchors, body = [], []
        if line.startswith("@@"):
            body.clear()
            anchors += _anchor(line)
        elif not is_end and line not in (_END, _NO_LINE_END):
            body.append(line)


def _hunk(path: str, anchors: Sequence[str], body: Sequence[str], at_end: bool) -> Hunk:
    while body and not body[-1]:  # Blank lines between hunks and files. A blank line of the file begins with a space.
        body = body[:-1]
    lines = tuple(_signed(path, line) for line in body)
    if all(sign == " " for sign, _ in lines):
        raise PatchError(f"A hunk of {path} changes nothing. Add lines that begin with - or +.")
    return Hunk(tuple(anchors), lines, at_end)


def _anchor(line: str) -> list[str]:
    # Models write the line numbers of a unified diff too, which they guess.
    text = re.sub(r"^-\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?", "", line[2:].removeprefix(" ")).removesuffix("@@")
    return [text.rstrip()] if text.strip() else []


def _signed(path: str, line: str) -> tuple[str, str]:
    if not line:
        return " ", ""
    if line[0] not in " -+" or line.startswith("*** "):
        raise PatchError(f"Each line of a change of {path} begins with a space, - or +, and {_quoted(line)} does not.")
    return line[0], line[1:]


def _quoted(line: str) -> str:
    return f"'{line if len(line) <= _SHOWN else line[:_SHOWN] + '…'}'"


# --- applying ---

Level = Callable[[str], str]

_LEVELS: Final[tuple[Level, ...]] = (str, str.rstrip, str.strip)


class _Line(NamedTuple):
    text: str
    end: str


class _Place(NamedTuple):
    start: int
    length: int
    is_fuzzy: bool


def apply_hunks(path: str, text: str, hunks: Sequence[Hunk]) -> Patched:
    """Apply hunks, which are in the order of their places in `text`.

    Raises PatchError if the place of a hunk is not found, or if it may be one of several.
    """
    lines = _split(text)
    texts = _Texts([line.text for line in lines])
    ends = [line.end for line in lines if line.end]
    usual = "\r\n" if 2 * ends.count("\r\n") > len(ends) else "\n"
    result: list[_Line] = []
    done = fuzzy = 0
    for hunk in hunks:
        place = _place(path, texts, hunk, done)
        result += lines[done : place.start]
        done = place.start + place.length
        result += _replaced(hunk, lines[place.start : done], usual)
        fuzzy += place.is_fuzzy
    return Patched(_joined([*result, *lines[done:]], usual, not text or text.endswith("\n")), fuzzy)


def _split(text: str) -> list[_Line]:
    *whole, last = text.split("\n")
    lines = [_Line(line[:-1], "\r\n") if line.endswith("\r") else _Line(line, "\n") for line in whole]
    return [*lines, _Line(last, "")] if last else lines


def _joined(lines: Sequence[_Line], usual: str, ends_line: bool) -> str:
    *whole, last = lines or [_Line("", "")]
    if not lines:
        return ""
    end = (last.end or usual) if ends_line else ""
    return "".join([*(f"{line.text}{line.end or usual}" for line in whole), last.text, end])


def _replaced(hunk: Hunk, found: Sequence[_Line], usual: str) -> Iterator[_Line]:
    """The lines that take the place of those that were found. Kept lines are those of the file."""
    index = 0
    for sign, text in hunk.lines:
        if sign == "+":
            beside = found[min(index, len(found) - 1)].end if found else ""
            yield _Line(text, beside or usual)
        else:
            if sign == " " and index < len(found):
                yield found[index]
            index += 1


class _Texts:
    """The lines of a file, without their ends, as the levels compare them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._at: dict[Level, list[str]] = {str: [*texts]}
        self._places: dict[Level, defaultdict[str, list[int]]] = {}

    def at(self, level: Level) -> list[str]:
        if level not in self._at:
            self._at[level] = [level(text) for text in self._at[str]]
        return self._at[level]

    def places(self, level: Level, text: str, start: int) -> list[int]:
        """The places, from `start` on, of the lines that equal `text`."""
        if level not in self._places:
            self._places[level] = defaultdict(list)
            for place, line in enumerate(self.at(level)):
                self._places[level][line].append(place)
        found = self._places[level].get(level(text), [])
        return found[bisect_left(found, start) :]


def _place(path: str, texts: _Texts, hunk: Hunk, start: int) -> _Place:
    """The place of a hunk at or after the line `start`."""
    old = hunk.old
    for wanted in (old, old[:-1]) if old and not old[-1] else (old,):
        for level in _LEVELS:
            places = _places(texts, hunk, wanted, start, level)
            if len(places) > 1:
                raise PatchError(_ambiguous(path, hunk, places))
            if places:
                return _Place(places[0], len(wanted), level is not str)
    raise PatchError(_missing(path, texts, hunk, start))


def _places(texts: _Texts, hunk: Hunk, wanted: Sequence[str], start: int, level: Level) -> list[int]:
    """The lines at which the hunk may be. After an anchor only the nearest place counts."""
    lines, sought = texts.at(level), [level(text) for text in wanted]
    if hunk.at_end and lines[max(start, len(lines) - len(sought)) :] == sought:
        return [len(lines) - len(sought)]
    starts = _beneath(texts, hunk.anchors, start)
    if not sought:
        return starts if hunk.anchors else [len(lines)] if hunk.at_end or not lines else []
    first = texts.places(level, wanted[0], start)
    found = [place for place in first if lines[place : place + len(sought)] == sought]
    return _nearest(found, starts) if hunk.anchors else found


def _beneath(texts: _Texts, anchors: Sequence[str], start: int) -> list[int]:
    """The lines after the last anchor: for each place of the first, the nearest of the others; indented in any way."""
    starts = [start]
    for i, anchor in enumerate(anchors):
        at = texts.places(str, anchor, start) or texts.places(str.strip, anchor, start)
        starts = [place + 1 for place in (_nearest(at, starts) if i else at)]
    return starts


def _nearest(places: Sequence[int], starts: Iterable[int]) -> list[int]:
    """For each start the first of the places at or after it, without repetitions."""
    at = {bisect_left(places, start) for start in starts}
    return [places[i] for i in sorted(at) if i < len(places)]


def _ambiguous(path: str, hunk: Hunk, places: Sequence[int]) -> str:
    numbers = ", ".join(str(place + 1) for place in places[:5])
    what = f"The lines from {_quoted(hunk.old[0])} on" if hunk.old else f"The line {_quoted(hunk.anchors[-1])}"
    more = ", …" if len(places) > 5 else ""
    return (
        f"{what} stand in {path} {len(places)} times (at lines {numbers}{more}). Add lines of context, or a line "
        "'@@ ' with the function or class."
    )


def _missing(path: str, texts: _Texts, hunk: Hunk, start: int) -> str:
    trimmed = frozenset(texts.at(str.strip)[start:])
    for anchor in hunk.anchors:
        if anchor.strip() not in trimmed:
            return f"The line {_quoted(anchor)} of '@@' is not in {path}{_after(start)}. Read the file and copy it."
    old = hunk.old
    if not old:
        return (
            f"A hunk of {path} has neither context nor '{_END_OF_FILE}'. Add lines of context that begin with a space."
        )
    absent = next((text for text in old if text.strip() not in trimmed), None)
    which = (
        f"{_quoted(absent)} is not" if absent is not None else f"The lines from {_quoted(old[0])} on are not together"
    )
    return f"{which} in {path}{_after(start)}. Read the file and copy the context exactly."


def _after(start: int) -> str:
    return f" after line {start}, where the hunk before ends" if start else ""
