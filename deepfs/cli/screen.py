"""Text on a terminal, or in a pipe: colours, columns, a pager, and names that cannot forge what is around them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from typing import IO, Final, TextIO
from unicodedata import category, east_asian_width

_STYLES: Final = {
    "added": "32",
    "bold": "1",
    "directory": "1;34",
    "dim": "2",
    "hunk": "36",
    "line": "32",
    "match": "1;31",
    "path": "35",
    "removed": "31",
}
_STYLE_OF: Final = {"@": "hunk", "+": "added", "-": "removed"}
"""The styles of the lines of a diff by their first character."""
_PAGER: Final = "less"
_PAGER_OPTIONS: Final = {"LESS": "FRX"}
"""The pager ends if all fits on one screen, shows colours, and leaves the text on the screen."""


def _visible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    from deepfs.text.visible import visible  # Late, since it takes long to load and most texts need it not.

    return visible(text)


def safe(text: str) -> str:
    """A text of others for one line: control characters, line breaks and invisible characters are escapes."""
    return _visible(text).replace("\n", "\\n").replace("\t", "\\t")


def human_size(size: int) -> str:
    """A number of bytes as people read it, in units of 1,024: `512`, `1.5K`, `20M`."""
    value = float(size)
    for unit in ("", "K", "M", "G", "T"):
        if value < 1024 or unit == "T":
            break
        value /= 1024
    return f"{value:.1f}{unit}" if unit and value < 10 else f"{value:.0f}{unit}"


def count_noun(number: int, noun: str) -> str:
    """A number with its noun, such as `1 file` and `1,200 directories`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(each) in "WF" else category(each) not in ("Mn", "Me", "Cf") for each in text)


def escape_output() -> None:
    """Make the output take what it cannot encode as escapes: a lone surrogate, or letters where there is no Unicode."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Make what is still written to the output vanish: its reader has left, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """Where a command writes its text.

    Colours are used on a terminal, unless the variable `NO_COLOR` is set, and elsewhere if `FORCE_COLOR` is. What
    writes raises BrokenPipeError if the reader has left.
    """

    def __init__(self, output: TextIO) -> None:
        escape_output()
        self._output: IO[str] = output
        self._pager: subprocess.Popen[str] | None = None
        self.is_terminal: bool = output.isatty()
        """Whether a person reads along."""
        forced = bool(os.environ.get("FORCE_COLOR"))
        self.is_coloured: bool = (self.is_terminal or forced) and not os.environ.get("NO_COLOR")

    def raw(self, text: str) -> None:
        """Write text as it is."""
        self._output.write(text)

    def line(self, text: str) -> None:
        """Write a line."""
        self.raw(f"{text}\n")

    def bytes(self, content: bytes) -> None:
        """Write bytes: as they are into a pipe or a file, as visible text to a terminal."""
        if self.is_terminal:
            self.raw(_visible(content.decode("utf-8", "backslashreplace")))
        else:
            self._output.flush()
            sys.stdout.buffer.write(content)

    def name(self, text: str) -> str:
        """A name as it is to be written: as it is for programs, without control characters for people."""
        return safe(text) if self.is_terminal else text

    def style(self, text: str, style: str) -> str:
        """The text in a style of `_STYLES`, where styles are shown."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.is_coloured and text else text

    def columns(self, names: Sequence[str], styles: Sequence[str | None]) -> None:
        """Write names in as many columns as the terminal has room for, each as wide as it must be, sorted downwards."""
        cells, room = [_cells(name) for name in names], shutil.get_terminal_size().columns
        rows, widths = len(names), [0]
        most = (room + 2) // (min(cells, default=0) + 2)
        for count in range(min(len(names), most), 1, -1):
            tried = -(-len(names) // count)
            widths = [max(cells[start : start + tried]) + 2 for start in range(0, len(names), tried)]
            if sum(widths) - 2 <= room:
                rows = tried
                break
        for row in range(rows):
            line = ""
            for index, width in zip(range(row, len(names), rows), widths, strict=False):
                style = styles[index]
                padding = (width - cells[index]) * (index + rows < len(names))
                line += (self.style(names[index], style) if style else names[index]) + " " * padding
            self.line(line)

    def diff(self, diff: str) -> None:
        """Write a unified diff."""
        for line in StringIO(diff, newline="\n"):
            text = _visible(line) if self.is_terminal else line
            style = _STYLE_OF.get(text[:1])
            self.raw(self.style(text.removesuffix("\n"), style) + "\n" if style else text)

    def note(self, text: str) -> None:
        """Write a line to standard error."""
        self._output.flush()
        print("\n".join(map(_visible, text.split("\n"))), file=sys.stderr)

    def page(self) -> None:
        """Send the rest of the output through a pager, if a person reads along and there is one.

        The variable `PAGER` names it; an empty one means none.
        """
        command = os.environ.get("PAGER", _PAGER)
        if not self.is_terminal or not command.strip() or shutil.which(command.split()[0]) is None:
            return
        env = {**_PAGER_OPTIONS, **os.environ}
        self._output.flush()
        self._pager = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, errors="backslashreplace", env=env)
        assert self._pager.stdin is not None
        self._output = self._pager.stdin

    def flush(self) -> None:
        """Write out what is buffered."""
        self._output.flush()

    def close(self) -> None:
        """Write out what is buffered, and wait for the pager to be left."""
        try:
            if self._pager is not None and self._pager.stdin is not None:
                self._pager.stdin.close()
            else:
                self._output.flush()
        finally:
            if self._pager is not None:
                _wait(self._pager)


def _wait(pager: "subprocess.Popen[str]") -> None:
    """Wait until the pager is left. Ctrl-C is for the pager: if this process left, both would share the terminal."""
    while pager.returncode is None:
        with suppress(KeyboardInterrupt):
            pager.wait()
