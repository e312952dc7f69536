"""The texts of Anthropic's tool `memory`: lines that are inserted, found and shown, and sizes."""

from collections.abc import Iterator, Sequence

from langchain_core.tools import ToolException

from deepfs.middleware.rendering import MAX_RESULT_CHARS
from deepfs.text.visible import escaped

__all__ = ["cut_list", "inserted", "line_range", "lines_of", "lines_with", "page", "size_text"]


def inserted(text: str, line: int, new: str) -> str:
    """`text` with the lines `new` after the line number `line`. Raises ToolException if there is no such line."""
    *whole, last = text.split("\n")
    lines = [*(f"{each}\n" for each in whole), *([last] if last else [])]
    if not 0 <= line <= len(lines):
        bounds = f"It should be within the range of lines of the file: [0, {len(lines)}]"
        raise ToolException(f"Error: Invalid `insert_line` parameter: {line}. {bounds}")
    end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    block = "".join(f"{each}{end}" for each in new.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    before = "".join(lines[:line])
    joint = end if before and not before.endswith("\n") else ""
    return f"{before}{joint}{block}{''.join(lines[line:])}"


def lines_of(text: str) -> list[str]:
    """The lines of a text without their ends."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def lines_with(text: str, wanted: str) -> Iterator[int]:
    """The numbers of the lines in which `wanted` starts, at most twenty."""
    text, wanted = text.replace("\r\n", "\n"), wanted.replace("\r\n", "\n")
    place = text.find(wanted)
    for _ in range(20):
        if place < 0:
            return
        yield text.count("\n", 0, place) + 1
        place = text.find(wanted, place + 1)


def line_range(given: Sequence[int] | None, total: int) -> tuple[int, int]:
    """The first and the last line of a `view_range`, of `total` lines. Raises ToolException if it is no such range."""
    if not given:
        return 1, total
    first, last = given[0], given[1] if len(given) > 1 else -1
    last = total if last == -1 else min(last, total)
    if first < 1 or (first > last and total):
        bounds = f"It should be two line numbers from 1 to {total}, the second -1 for the end"
        raise ToolException(f"Error: Invalid `view_range` parameter: {list(given)}. {bounds}")
    return first, last


def page(lines: Sequence[str], first: int, last: int) -> str:
    """The numbered lines from `first` to `last`; a note tells how to go on if they are too long for one result."""
    rows: list[str] = []
    room = MAX_RESULT_CHARS - 200
    for number, line in enumerate(lines[first - 1 : last], first):
        row = f"{number:6}\t{escaped(line[:room])}"
        if len(row) > room and rows:
            return "\n".join([*rows, f"[Lines {first} to {number - 1} of {len(lines)}. {_view_on(number)}]"])
        if len(row) > room:
            more = f" {_view_on(number + 1)}" if number < last else ""
            return f"{row[:room]}\n[Line {number} is cut: it has {len(line):,} characters.{more}]"
        rows.append(row)
        room -= len(row) + 1
    return "\n".join(rows)


def _view_on(line: int) -> str:
    return f"View on with view_range [{line}, -1]"


def cut_list(text: str) -> str:
    """A listing without the last rows, if it is too long for one result, and the number of these."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    kept = text[: text.rfind("\n", 0, MAX_RESULT_CHARS - 100)]
    return f"{kept}\n[{text.count(chr(10)) - kept.count(chr(10)):,} more entries: view a directory in it]"


def size_text(size: int) -> str:
    """A number of bytes in the manner of `du -h`, such as `4.0K`."""
    value, unit = float(size), "B"
    for unit in "BKMG":
        if value < 1024 or unit == "G":
            break
        value /= 1024
    return f"{value:.{0 if unit == 'B' else 1}f}{unit}"
