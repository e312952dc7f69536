"""Results of the file tools in the form that models read."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import Any, Final, NamedTuple

from deepfs.errors import InvalidContentError
from deepfs.process import stop_note, time_up
from deepfs.text.visible import ESCAPES_NOTE, escaped, fenced, one_line, output_text, shown_path
from deepfs.types import ExecuteResponse, FileInfo, GrepMatch, GrepResult, ReadResult, Result

__all__ = [
    "MAX_RESULT_CHARS",
    "MIN_CHARS",
    "WHOLE_LINE",
    "WINDOW",
    "Answer",
    "Place",
    "command_output",
    "entries",
    "listing",
    "matches",
    "numbered",
    "output_and_notes",
    "paged",
]

MAX_RESULT_CHARS: Final = 60_000
"""About 15,000 tokens."""
MIN_CHARS: Final = 400
"""The smallest budget of a result: room for the notes and some content."""

_NOTE = 200
"""The characters reserved for notes."""


class Answer(NamedTuple):
    """The answer of a file tool: what a model reads, and the result behind it, for programs."""

    content: str | list[dict[str, Any]]
    result: Result | ExecuteResponse | None = None
    shown: int | None = None
    """How many entries, paths or lines of the result the content shows, from the offset of the call on."""
    cut: int | None = None
    """How many characters of the first line the content shows, if not all of it; otherwise None."""


# --- lists -----------------------------------------------------------------------------------------------------------


def listing(rows: Sequence[str], budget: int, *notes: str, advice: str = "narrow the search") -> str:
    """The rows that fit into `budget` characters, the number of rows left out, and the notes that are not empty."""
    notes = tuple(one_line(note, budget // 4) for note in notes)
    shown = list(_fitting(rows, _room(budget, notes)))
    left_out = len(rows) - len(shown)
    more = f"{left_out:,} more lines are not shown: {advice}" if left_out else ""
    return "\n".join([*shown, *(f"[{note}]" for note in (more, *notes) if note)])


class _Page(NamedTuple):
    text: str
    shown: int
    """The number of rows in it."""


def paged(rows: Sequence[str], offset: int, limit: int, budget: int, *notes: str) -> _Page:
    """The rows from `offset` on, as far as `limit` and `budget` characters allow, and a note that says how to go on."""
    notes = tuple(one_line(note, budget // 4) for note in notes)
    room = _room(budget, notes)
    page = rows[offset : offset + limit]
    shown = list(_fitting(page, room)) or [f"{row[: room - 2]}…" for row in page[:1]]
    last, total = offset + len(shown), f"{len(rows):,}"
    where = ""
    if offset and offset >= len(rows):
        where = f"There are only {total}. Begin with offset=0"
    elif last < len(rows):
        where = f"{offset + 1:,} to {last:,} of {total}. Go on with offset={last}"
    return _Page("\n".join([*shown, *(f"[{note}]" for note in (where, *notes) if note)]), len(shown))


def _room(budget: int, notes: Sequence[str]) -> int:
    return budget - _NOTE - sum(len(note) + 3 for note in notes)


def _fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            return
        yield row


def entries(found: Iterable[FileInfo]) -> list[str]:
    """A row for each entry: its path, and the size of a file if known."""
    named = ((shown_path(info.path), info) for info in found)
    return [name if info.size is None or info.is_dir else f"{name}\t{info.size}" for name, info in named]


# --- matches ---------------------------------------------------------------------------------------------------------


WHOLE_LINE: Final = 1_000
"""The longest line of a search that is shown whole, in characters."""
WINDOW: Final = 600
"""The characters that are shown of a longer line."""
_BEFORE: Final = 200
"""How many of them are before the match."""


class Place(NamedTuple):
    """A line with a match, as far as it is known, and where the match starts in it; None if that is not known."""

    text: str
    start: int | None = 0


def matches(
    result: GrepResult, output_mode: str, place: Callable[[GrepMatch], Place] = lambda match: Place(match.text)
) -> list[str]:
    """The rows of a search result, in the form that `output_mode` names."""
    by_path: defaultdict[str, list[GrepMatch]] = defaultdict(list)
    for match in result.matches or ():
        by_path[shown_path(match.path)].append(match)
    if output_mode == "count":
        return [f"{path}: {len(found)}" for path, found in by_path.items()]
    if output_mode == "content":
        return [row for path, found in by_path.items() for row in (f"{path}:", *_lines(found, place))]
    return list(by_path)


def _lines(found: Sequence[GrepMatch], place: Callable[[GrepMatch], Place]) -> list[str]:
    """The matching lines (`12: text`) and the context lines around them (`13- text`), each line once."""
    rows: dict[int, str] = {}
    for match in found:
        for beside in (*(match.context_before or ()), *(match.context_after or ())):
            rows.setdefault(beside.line, f"  {beside.line}- {_window(beside.line, Place(beside.text))}")
    rows.update({match.line: f"  {match.line}: {_window(match.line, place(match))}" for match in found})
    return [rows[line] for line in sorted(rows)]


def _window(line: int, place: Place) -> str:
    """A line, or of a long one the part around the match, with the arguments with which read_file shows more."""
    text, start = place
    if len(text) <= WHOLE_LINE:
        return escaped(text)
    first = max(0, (start or 0) - _BEFORE)
    last = first + WINDOW
    shown = f"{'…' if first else ''}{escaped(text[first:last])}{'…' if last < len(text) else ''}"
    behind = "; the match may be further on" if start is None else f"; the match is at column={start}"
    return f"{shown} [cut; offset={line - 1}, column={first}{behind}]"


# --- text ------------------------------------------------------------------------------------------------------------


_ESCAPE_CHARS = 6
"""The length of the longest escape of a character."""


class _Shown(NamedTuple):
    rows: list[str]
    cut: int | None
    """The number of characters shown of the first line, if not all of it fits; otherwise None."""


def numbered(path: str, read: ReadResult, offset: int, column: int, budget: int) -> Answer:
    """Number the lines that were read from `offset` on, and note in brackets how to read on if there is more.

    Raises InvalidContentError if the first line is shorter than `column`.
    """
    content = read.file_data.content if read.file_data else ""
    first = read.start_line
    if not content or first is None:
        # Backends of deepfs refuse an offset beyond the end; others may answer with nothing.
        is_end = offset > 0 and read.total_lines != 0
        return Answer(
            f"[{shown_path(path)} {f'has no lines from offset={offset} on' if is_end else 'is empty'}]", read, 0
        )
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    if column > len(lines[0]):
        length = f"{len(lines[0]):,} characters"
        raise InvalidContentError(path, f"column {column:,} exceeds line {first}, which has {length}")
    shown = _rows(lines, first, column, budget - _NOTE)
    notes = [f"[{ESCAPES_NOTE}]"] if _has_escapes(lines, shown, column) else []
    text = "\n".join([*shown.rows, *notes, *_reading_on(read, lines, shown, first, column)])
    return Answer(text, read, len(shown.rows), shown.cut)


def _has_escapes(lines: Sequence[str], shown: _Shown, column: int) -> bool:
    """Whether the rows show characters as escapes."""
    if shown.cut is not None:
        start = lines[0][column : column + shown.cut]
        return escaped(start) != start
    return any(escaped(line) != line for line in islice(lines, len(shown.rows)))


def _rows(lines: Sequence[str], first: int, column: int, room: int) -> _Shown:
    texts = (text[:room] for text in chain([lines[0][column:]], islice(lines, 1, None)))  # More never fits.
    rows = list(_fitting((f"{number}\t{escaped(text)}" for number, text in enumerate(texts, first)), room))
    if rows:
        return _Shown(rows, None)
    prefix = f"{first}\t"
    cut = room - len(prefix)
    start = lines[0][column : column + cut]
    if len(escaped(start)) > cut:
        cut //= _ESCAPE_CHARS
    return _Shown([prefix + escaped(start[:cut])], cut)


def _reading_on(read: ReadResult, lines: Sequence[str], shown: _Shown, first: int, column: int) -> list[str]:
    if shown.cut is not None:
        end = column + shown.cut
        return [
            f"[Characters {column:,} to {end:,} of {len(lines[0]):,} in line {first}. "
            f"Read on with offset={first - 1}, column={end}]"
        ]
    last = first + len(shown.rows) - 1
    if len(shown.rows) == len(lines) and read.next_offset is None:
        return []
    total = "" if read.total_lines is None else f" of {read.total_lines:,}"
    return [f"[Lines {first:,} to {last:,}{total}. Read on with offset={last}]"]


# --- commands --------------------------------------------------------------------------------------------------------


def command_output(response: ExecuteResponse, longest: float = inf) -> str:
    """The output of a command, with notes in brackets: no output, cut output, and its exit code or that it was stopped.

    Output that has lines like notes stands between delimiters that it cannot know.

    Args:
        response: What the command gave.
        longest: The most seconds of a command.
    """
    code, output, seconds = response.exit_code, response.output, response.timed_out
    if seconds is not None:
        output = output.removesuffix(stop_note(time_up(seconds))).removesuffix("\n")
    output = output_text(output)
    outcome = f"Exit code {code}" if code is not None else _stopped(seconds, longest)
    notes = [
        "" if output.strip() else "Only white space" if output else "No output",
        "Output was cut off: write it to a file, and read that" if response.truncated else "",
        outcome,
    ]
    shown = fenced("output", output.removesuffix("\n")) if output else []
    return "\n".join([*shown, *(f"[{note}]" for note in notes if note)])


def _stopped(seconds: float | None, longest: float) -> str:
    """The note for a command that was stopped, after `seconds` if its time was up."""
    if seconds is None:
        return "No exit code: it is not known whether the command ended. If it was stopped, do less at once"
    if seconds >= longest:
        return f"Stopped after {seconds:g} s, the maximum. Do less at once"
    most = "" if longest == inf else f" (at most {longest:g})"
    return f"Stopped after {seconds:g} s. Set a larger timeout{most}, or do less at once"


_RESULT: Final = re.compile(
    r"(?:<output ([0-9a-f]{8})>\n(?P<fenced>.*)\n</output \1>|(?P<plain>.*?))(?P<notes>(?:\n\[(?!stderr\] )[^\n]*\])+)",
    re.DOTALL,
)
"""Matches a result of `execute`: output without delimiters has no lines like notes."""


def output_and_notes(shown: str) -> tuple[str, list[str]]:
    """The output in a result of `execute`, without its delimiters, and the notes."""
    found = _RESULT.fullmatch(shown)
    if found is None:
        return shown, []
    return found["plain"] if found["fenced"] is None else found["fenced"], found["notes"].strip("\n").split("\n")
