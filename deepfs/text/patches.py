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
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, Literal, NamedTuple

from deepfs.text.edits import find_misreading

Action = Literal["add", "update", "delete"]

_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_END_OF_FILE: Final = "*** End of File"
_MOVE: Final = "*** Move to:"
_NO_LINE_END: Final = "\\ No newline at end of file"
"""A line of unified diffs that models write too. It changes nothing: the last line of a file keeps its end."""
_ACTIONS: Final[dict[str, Action]] = {
    "*** Add File:": "add",
    "*** Update File:": "update",
    "*** Delete File:": "delete",
}
_WRAPPED: Final = re.compile(
    r"\A(?:apply_patch\s+)?(?:<<-?\s*(['\"]?)(\w+)\1\n(?P<here>.*)\n\2|```\w*\n(?P<code>.*)\n```)\Z", re.DOTALL
)
"""A patch as a here-document of a shell, or as a block of code."""
_NUMBERS: Final = re.compile(r"^-\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?")
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


class NumberedHunk(NamedTuple):
    """A change of adjacent lines as a unified diff tells it: with the ends of lines, and the number of the first."""

    start: int
    """How many lines of the file are above it."""
    old: tuple[str, ...]
    """The lines that it finds in the file."""
    new: tuple[str, ...]
    """The lines that it makes of them."""
    leading: int
    """The lines of context above its first change."""
    trailing: int
    """The lines of context beneath its last change."""


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
    exact: tuple[NumberedHunk, ...] | None = None
    """The changes by a unified diff, also of what is deleted; None if the patch is none."""
    other_path: str | None = None
    """What a unified diff calls the file on its other side, if that is another name: the file may have either."""
    copy_of: str | None = None
    """The file that an added one is a copy of, before its changes."""
    is_executable: bool | None = None
    """Whether the file can be run afterwards; None if that stays as it is."""


class Patched(NamedTuple):
    """A text to which hunks were applied."""

    text: str
    fuzzy: int
    """The number of hunks that matched only without regard to white space."""


# --- reading ---


class Section(NamedTuple):
    """What a patch says of one file. Its lines are not read yet."""

    action: Action
    path: str
    move_to: str | None
    lines: str


def parse_patch(patch: str) -> list[FilePatch]:
    """Return what a patch does with each file, in its order. Raises PatchError if the patch is malformed."""
    return [_file_patch(section) for section in patch_sections(patch)]


def patch_sections(patch: str) -> list[Section]:
    """Return which files a patch names, quickly also where it is large. Raises PatchError if it names none."""
    begin, _, rest = _unwrap(patch).partition("\n")
    body, _, end = rest.rpartition("\n")
    if begin.strip() != _BEGIN or end.strip() != _END:
        raise PatchError(f"A patch begins with the line '{_BEGIN}' and ends with the line '{_END}'.")
    first, *parts = f"\n{body}".split("\n*** ")
    sections: list[list[str]] = []
    for part in parts:
        if f"*** {part[:20]}".startswith(tuple(_ACTIONS)):
            sections.append([part])
        elif sections:
            sections[-1].append(part)
        else:
            first += f"\n*** {part}"
    if first.strip():
        line = next(line for line in first.split("\n") if line.strip())
        raise PatchError(f"{quote_line(line)} belongs to no file. Begin with {' or '.join(_ACTIONS)} and a path.")
    if not sections:
        raise PatchError(f"The patch changes no file. Name one with {', '.join(f'{each} path' for each in _ACTIONS)}.")
    return [_section("*** " + "\n*** ".join(each)) for each in sections]


def _section(text: str) -> Section:
    prefix, action = next(each for each in _ACTIONS.items() if text.startswith(each[0]))
    head, _, lines = text.partition("\n")
    move_to = None
    if action == "update" and lines.startswith(_MOVE):
        move, _, lines = lines.partition("\n")
        move_to = _path(move, _MOVE)
    return Section(action, _path(head, prefix), move_to, lines)


def _unwrap(patch: str) -> str:
    text = patch.replace("\r\n", "\n").strip()
    wrapped = _WRAPPED.match(text)
    return (wrapped["here"] or wrapped["code"] or "").strip() if wrapped else text


def _path(line: str, prefix: str) -> str:
    path = line.removeprefix(prefix).strip()
    if not path:
        raise PatchError(f"'{prefix}' names no path.")
    return path


def _file_patch(section: Section) -> FilePatch:
    action, path, move_to, lines = section
    if action == "add":
        return FilePatch(action, path, content=parse_added_text(lines, path))
    if action == "delete":
        if lines.strip():
            raise PatchError(f"'*** Delete File: {path}' has lines. Leave them out, or use '*** Update File:'.")
        return FilePatch(action, path)
    hunks = tuple(_hunks(path, lines.split("\n")))
    if not hunks and move_to is None:
        raise PatchError(f"'*** Update File: {path}' has no changes. Add lines that begin with - or +.")
    return FilePatch(action, path, hunks=hunks, move_to=move_to)


def parse_added_text(diff: str, path: str) -> str:
    """The content of a new file, of which each line begins with `+`. Raises PatchError for another line."""
    text = "\n" + diff.replace("\r\n", "\n").rstrip("\n")
    if text.count("\n") != text.count("\n+") and text != "\n":
        line = next(line for line in text[1:].split("\n") if not line.startswith("+"))
        raise PatchError(f"Each line of the new file {path} begins with +, and {quote_line(line)} does not.")
    return text.replace("\n+", "\n")[1:] + "\n" if text != "\n" else ""


def parse_hunks(diff: str, path: str) -> tuple[Hunk, ...]:
    """Return the hunks of a file. Raises PatchError if they are malformed or change nothing."""
    hunks = tuple(_hunks(path, diff.replace("\r\n", "\n").split("\n")))
    if not hunks:
        raise PatchError(f"The diff of {path} has no changes. Add lines that begin with - or +.")
    return hunks


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
            # Models write the line numbers of a unified diff too, which they guess.
            text = _NUMBERS.sub("", line[2:].removeprefix(" ")).removesuffix("@@")
            anchors += [text.rstrip()] if text.strip() else []
        elif not is_end and line not in (_END, _NO_LINE_END):
            body.append(line)


def _hunk(path: str, anchors: Sequence[str], body: list[str], at_end: bool) -> Hunk:
    while body and not body[-1]:  # Blank lines between hunks and files. A blank line of the file begins with a space.
        body.pop()
    lines = tuple(_sign_and_text(path, line) for line in body)
    if all(sign == " " for sign, _ in lines):
        raise PatchError(f"A hunk of {path} changes nothing. Add lines that begin with - or +.")
    return Hunk(tuple(anchors), lines, at_end)


def _sign_and_text(path: str, line: str) -> tuple[str, str]:
    if not line:
        return " ", ""
    if line[0] not in " -+" or line.startswith("*** "):
        raise PatchError(
            f"Each line of a change of {path} begins with a space, - or +, and {quote_line(line)} does not."
        )
    return line[0], line[1:]


def quote_line(line: str) -> str:
    """A line of a patch for an error: in quotes, and not all of a long one."""
    return f"'{line if len(line) <= _SHOWN else line[:_SHOWN] + '…'}'"


# --- finding lines ---

_WORK: Final = 200
"""How many comparisons a patch may take for each line of it and of its file."""
_LISTED: Final = 10
_SOUGHT: Final = 100
"""How many comparisons by `str.find` take as long as to list a place, and to seek one in a list."""


class LineIndex:
    """The lines of a file that a patch names, to find runs of them.

    Each different line is a character and the file a text, so that a run of lines is found as fast as a word. A patch
    that would take much more time than its size allows, since its lines stand in many places, is refused.

    Args:
        path: What errors call the file.
        lines: The lines of the file.
        wanted: All lines that are sought.
    """

    def __init__(self, path: str, lines: Sequence[str], wanted: Iterable[str]) -> None:
        self._path = path
        self._characters: dict[str, str] = {}
        for line in wanted:
            if line not in self._characters:
                self._characters[line] = chr(min(len(self._characters) + 1, sys.maxunicode))
        if len(self._characters) >= sys.maxunicode:
            raise PatchError(f"The patch has too many different lines for {path}. Make several of it.")
        self._text = "".join([self._characters.get(line, "\0") for line in lines])
        self._places: dict[str, list[int]] = {character: [] for character in self._characters.values()}
        for place, character in enumerate(self._text):
            if character != "\0":
                self._places[character].append(place)
        self._left = _WORK * (len(self._text) + len(self._characters) + 1_000)

    def places(self, run: Sequence[str], start: int, most: int) -> list[int]:
        """The first places from `start` on, at most so many, of a run of lines that is not empty."""
        sought = "".join([self._characters[line] for line in run])
        rarest = min(sought, key=lambda character: len(self._places[character]))
        offset, at = sought.index(rarest), self._places[rarest]
        first = bisect_left(at, start + offset)
        found: list[int] = []
        if (len(at) - first) * len(sought) < len(self._text) - start:
            self.spend((len(at) - first) * (_LISTED + len(sought)))
            for index in range(first, len(at)):
                if len(found) < most and self._text.startswith(sought, at[index] - offset):
                    found.append(at[index] - offset)
            return found
        while len(found) < most and (place := self._text.find(sought, start)) >= 0:
            self.spend(place - start + len(sought))
            found.append(place)
            start = place + 1
        self.spend(len(self._text) - start if len(found) < most else 0)
        return found

    def all_places(self, line: str, start: int) -> list[int]:
        """All places of one line from `start` on."""
        at = self._places[self._characters[line]]
        first = bisect_left(at, start)
        self.spend(_LISTED * (len(at) - first))
        return at[first:]

    def ends_with(self, run: Sequence[str], start: int) -> bool:
        """Whether the file ends with a run of lines that begins at `start` or after it."""
        sought = "".join([self._characters[line] for line in run])
        return self._text.endswith(sought) and len(self._text) - len(sought) >= start

    def spend(self, comparisons: int) -> None:
        """Count work. Raises PatchError where it is more than the size of the patch and its file allows."""
        self._left -= comparisons
        if self._left < 0:
            raise PatchError(
                f"The lines of the patch stand in {self._path} too often to find where each hunk belongs. Add lines of "
                "context that occur once, or make several patches of it."
            )


# --- applying ---

Level = Callable[[str], str]

_LEVELS: Final[tuple[Level, ...]] = (str, str.rstrip, str.strip)
_NAMED: Final = 5
"""How many of the places where a hunk may be are named."""


class _FileLine(NamedTuple):
    text: str
    end: str


class _HunkPlace(NamedTuple):
    start: int
    length: int
    is_fuzzy: bool


def apply_hunks(path: str, text: str, hunks: Sequence[Hunk]) -> Patched:
    """Apply hunks, which are in the order of their places in `text`.

    Raises PatchError if the place of a hunk is not found, or if it may be one of several.
    """
    lines = _split(text)
    texts = _LineTexts(path, [line.text for line in lines], hunks)
    ends = [line.end for line in lines if line.end]
    usual = "\r\n" if 2 * ends.count("\r\n") > len(ends) else "\n"
    result: list[_FileLine] = []
    done = fuzzy = 0
    for hunk in hunks:
        place = _place(path, texts, hunk, done)
        result += lines[done : place.start]
        done = place.start + place.length
        result += _replace(hunk, lines[place.start : done], usual)
        fuzzy += place.is_fuzzy
    return Patched(_join([*result, *lines[done:]], usual, not text or text.endswith("\n")), fuzzy)


def _split(text: str) -> list[_FileLine]:
    *whole, last = text.split("\n")
    lines = [_FileLine(line[:-1], "\r\n") if line.endswith("\r") else _FileLine(line, "\n") for line in whole]
    return [*lines, _FileLine(last, "")] if last else lines


def _join(lines: Sequence[_FileLine], usual: str, ends_line: bool) -> str:
    *whole, last = lines or [_FileLine("", "")]
    if not lines:
        return ""
    end = (last.end or usual) if ends_line else ""
    return "".join([*(f"{line.text}{line.end or usual}" for line in whole), last.text, end])


def _replace(hunk: Hunk, found: Sequence[_FileLine], usual: str) -> Iterator[_FileLine]:
    """The lines that take the place of those that were found. Kept lines are those of the file."""
    index = 0
    for sign, text in hunk.lines:
        if sign == "+":
            beside = found[min(index, len(found) - 1)].end if found else ""
            yield _FileLine(text, beside or usual)
        else:
            if sign == " " and index < len(found):
                yield found[index]
            index += 1


class _LineTexts:
    """The lines of a file, without their ends, as the levels compare them."""

    def __init__(self, path: str, texts: Sequence[str], hunks: Sequence[Hunk]) -> None:
        self._path, self.texts, self._hunks = path, texts, hunks
        self._indexes: dict[Level, LineIndex] = {}

    def at(self, level: Level) -> LineIndex:
        if level not in self._indexes:
            wanted = chain.from_iterable((*hunk.anchors, *hunk.old) for hunk in self._hunks)
            self._indexes[level] = LineIndex(self._path, [*map(level, self.texts)], map(level, wanted))
        return self._indexes[level]


def _place(path: str, texts: _LineTexts, hunk: Hunk, start: int) -> _HunkPlace:
    """The place of a hunk at or after the line `start`."""
    old = hunk.old
    for wanted in (old, old[:-1]) if old and not old[-1] else (old,):
        for level in _LEVELS:
            places = _places(texts, hunk, [*map(level, wanted)], start, level)
            if len(places) > 1:
                raise PatchError(_ambiguous(path, hunk, places))
            if places:
                return _HunkPlace(places[0], len(wanted), level is not str)
    raise PatchError(_explain_missing(path, texts, hunk, start))


def _places(texts: _LineTexts, hunk: Hunk, sought: Sequence[str], start: int, level: Level) -> list[int]:
    """The first lines at which the hunk may be. After an anchor only the nearest place counts."""
    index = texts.at(level)
    if hunk.at_end and index.ends_with(sought, start):
        return [len(texts.texts) - len(sought)]
    starts = _beneath(texts, hunk.anchors, start)
    if not sought:
        return starts if hunk.anchors else [len(texts.texts)] if hunk.at_end or not texts.texts else []
    if not hunk.anchors:
        return index.places(sought, start, _NAMED + 1)
    found: list[int] = []
    while starts and len(found) <= _NAMED and (nearest := index.places(sought, starts[0], 1)):
        found += nearest
        starts = starts[bisect_right(starts, nearest[0]) :]
    return found


def _beneath(texts: _LineTexts, anchors: Sequence[str], start: int) -> list[int]:
    """The lines after the last anchor: for each place of the first, the nearest of the others; indented in any way."""
    starts = [start]
    for i, anchor in enumerate(anchors):
        index = texts.at(str)
        at = index.all_places(anchor, start) or texts.at(str.strip).all_places(anchor.strip(), start)
        if i:
            index.spend(_SOUGHT * len(starts))
            nearest = {bisect_left(at, each) for each in starts}
            at = [at[place] for place in sorted(nearest) if place < len(at)]
        starts = [place + 1 for place in at]
    return starts


def _ambiguous(path: str, hunk: Hunk, places: Sequence[int]) -> str:
    numbers = ", ".join(str(place + 1) for place in places[:_NAMED])
    what = f"The lines from {quote_line(hunk.old[0])} on" if hunk.old else f"The line {quote_line(hunk.anchors[-1])}"
    times, more = (f"{len(places)} times", "") if len(places) <= _NAMED else (f"more than {_NAMED} times", ", …")
    return (
        f"{what} stand in {path} {times} (at lines {numbers}{more}). Add lines of context, or a line "
        "'@@ ' with the function or class."
    )


def _explain_missing(path: str, texts: _LineTexts, hunk: Hunk, start: int) -> str:
    trimmed = frozenset(map(str.strip, texts.texts[start:]))
    for anchor in hunk.anchors:
        if anchor.strip() not in trimmed:
            near = _near(texts, anchor, start)
            which = f"The line {quote_line(anchor)} of '@@' is not in {path}{_after(start)}"
            return f"{which}. {near}Read the file and copy it."
    old = hunk.old
    if not old:
        return (
            f"A hunk of {path} has neither context nor '{_END_OF_FILE}'. Add lines of context that begin with a space."
        )
    absent = next((text for text in old if text.strip() not in trimmed), None)
    if absent is None:
        which, near = f"The lines from {quote_line(old[0])} on are not together", ""
    else:
        which, near = f"{quote_line(absent)} is not", _near(texts, absent, start)
    return f"{which} in {path}{_after(start)}. {near}Read the file and copy the context exactly."


def _near(texts: _LineTexts, line: str, start: int) -> str:
    """A sentence that says how a line at or after the line `start` differs that looks the same; empty for none."""
    found = find_misreading("\n".join([*repeat("", start), *texts.texts[start:]]), line).text
    return f"{found} " if found else ""


def _after(start: int) -> str:
    return f" after line {start}, where the hunk before ends" if start else ""
