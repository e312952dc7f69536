"""Results of operations as texts for a model: the same each time, and never longer than a budget of characters."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from deepfs.errors import InvalidContentError
from deepfs.types import ExecuteResponse, FileInfo, GrepMatch, GrepResult, ReadResult

__all__ = ["MIN_CHARS", "command_output", "entries", "listing", "matches", "numbered"]

MIN_CHARS = 400
"""The smallest budget: a note, and something beside it."""

_NOTE = 200
"""What a note may take."""


# --- lists -----------------------------------------------------------------------------------------------------------


def listing(rows: Sequence[str], budget: int, *notes: str) -> str:
    """The rows that fit, how many do not, and the notes that are not empty."""
    room = budget - _NOTE - sum(len(note) + 3 for note in notes)
    shown = list(_fitting(rows, room))
    left_out = len(rows) - len(shown)
    more = f"{left_out:,} more lines are not shown: narrow the search" if left_out else ""
    return "\n".join([*shown, *(f"[{note}]" for note in (more, *notes) if note)])


def _fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            return
        yield row


def entries(found: Iterable[FileInfo]) -> list[str]:
    """A row for each file with its size, and for each directory."""
    return [info.path if info.size is None or info.is_dir else f"{info.path}\t{info.size}" for info in found]


# --- matches ---------------------------------------------------------------------------------------------------------


def matches(result: GrepResult, output_mode: str) -> list[str]:
    """The rows of a search in the form asked for."""
    by_path: defaultdict[str, list[GrepMatch]] = defaultdict(list)
    for match in result.matches or ():
        by_path[match.path].append(match)
    if output_mode == "count":
        return [f"{path}: {len(found)}" for path, found in by_path.items()]
    if output_mode == "content":
        return [row for path, found in by_path.items() for row in (f"{path}:", *_lines(found))]
    return list(by_path)


def _lines(found: Sequence[GrepMatch]) -> list[str]:
    """The matching lines (`12: text`) with those around them (`13- text`), each once."""
    rows: dict[int, str] = {}
    for match in found:
        for beside in (*(match.context_before or ()), *(match.context_after or ())):
            rows.setdefault(beside.line, f"  {beside.line}- {beside.text}")
    rows.update({match.line: f"  {match.line}: {match.text}" for match in found})
    return [rows[line] for line in sorted(rows)]


# --- text ------------------------------------------------------------------------------------------------------------


class _Shown(NamedTuple):
    rows: list[str]
    cut: int | None
    """How many characters of its only line it shows, where that does not fit."""


def numbered(path: str, read: ReadResult, column: int, budget: int) -> str:
    """The window of a text file as numbered lines, and in brackets what reads on where there is more.

    Raises InvalidContentError where the first line has no such column.
    """
    content = read.file_data.content if read.file_data else ""
    first = read.start_line
    if not content or first is None:
        return f"[{path} is empty]"
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    if column > len(lines[0]):
        length = f"{len(lines[0]):,} characters"
        raise InvalidContentError(f"Error: Column {column:,} exceeds line {first} of '{path}', which has {length}")
    shown = _rows(lines, first, column, budget - _NOTE)
    return "\n".join([*shown.rows, *_reading_on(read, lines, shown, first, column)])


def _rows(lines: Sequence[str], first: int, column: int, room: int) -> _Shown:
    texts = [lines[0][column:], *lines[1:]]
    rows = list(_fitting((f"{number}\t{text}" for number, text in enumerate(texts, first)), room))
    if rows:
        return _Shown(rows, None)
    prefix = f"{first}\t"
    cut = room - len(prefix)
    return _Shown([prefix + texts[0][:cut]], cut)


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


def command_output(response: ExecuteResponse) -> str:
    """The output of a command, and how it ended where that is not plain success."""
    code = response.exit_code
    notes = [
        "" if response.output.strip() else "Only white space" if response.output else "No output",
        "Output was cut off" if response.truncated else "",
        "The command was stopped before it ended" if code is None else f"Exit code {code}" if code else "",
    ]
    return "\n".join([*filter(None, [response.output]), *(f"[{note}]" for note in notes if note)])
