"""`deepfs agent` on a terminal, in a process of its own that a test types into and may kill.

The processes are forked from a server that has loaded what an agent needs: to load it takes seconds.
"""

import fcntl
import multiprocessing
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

__all__ = ["Terminal"]

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["deepfs.cli.agent.run", "deepfs.graph", "deepfs.testing.scripted", "readline"])
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_PARTS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")
_SECONDS: Final = 60


class Terminal:
    """A terminal with a command of `deepfs` in it.

    Args:
        arguments: The arguments of `deepfs`.
        directory: The current directory.
        columns: The width.
        variables: Variables of the environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        *,
        columns: int = 80,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        env = {"TERM": "xterm-256color", "XDG_STATE_HOME": str(directory / "state"), **(variables or {})}
        given = (os.ttyname(theirs), [*arguments], str(directory), env)
        self._process = _SERVER.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self._theirs = theirs
        self.written: bytes = b""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def text(self) -> str:
        """All that was written, without control sequences."""
        return _CONTROLS.sub("", self.written.decode("utf-8", "replace"))

    @property
    def screen(self) -> str:
        """The lines as a person sees them, those that were scrolled away too."""
        rows, row, column = [""], 0, 0
        for part in _PARTS.findall(self.written.decode("utf-8", "replace")):
            if part == "\n":
                row += 1
                rows += [""] * (row == len(rows))
            elif part == "\r":
                column = 0
            elif part.startswith("\x1b"):
                row -= int(part[2:-1] or 1) if part.endswith("A") else 0
                rows[row] = "" if part.endswith("K") else rows[row]
            else:
                rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
                column += len(part)
        return "\n".join(each.rstrip() for each in rows)

    def wait_for(self, text: str) -> None:
        """Read until a text was written, behind the one that was waited for before."""
        end = time.monotonic() + _SECONDS
        while (found := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.text[self._seen :]!r}"
            assert self._process.is_alive() or self._is_ready(0), f"ended without {text!r}: {self.text!r}"
            self._read()
        self._seen = found + len(text)

    def type(self, keys: str, *, after: str) -> None:
        """Type keys after a text was written."""
        self.wait_for(after)
        os.write(self._ours, keys.encode())

    def interrupt(self, *, until: str) -> None:
        """Type Ctrl-C until a text is written. Python misses a signal that comes just before it waits for a line."""
        end = time.monotonic() + _SECONDS
        while self.text.find(until, self._seen) < 0:
            assert time.monotonic() < end, f"no {until!r} in {self.text[self._seen :]!r}"
            os.write(self._ours, b"\x03")
            for _ in range(5):
                self._read()

    def kill(self) -> None:
        """Kill the process, which cannot prevent it."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def status(self) -> int:
        """Wait for the end of the process. Returns its exit status."""
        end = time.monotonic() + _SECONDS
        while self._process.is_alive() or self._is_ready(0):
            assert time.monotonic() < end, f"does not end: {self.text!r}"
            self._read()
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def _is_ready(self, seconds: float) -> bool:
        return bool(select.select([self._ours], [], [], seconds)[0])

    def _read(self) -> None:
        if self._is_ready(0.1):
            self.written += os.read(self._ours, 65536)


def _run(terminal: str, arguments: Sequence[str], directory: str, env: Mapping[str, str]) -> None:
    """The command in the process that was forked."""
    os.setsid()
    descriptor = os.open(terminal, os.O_RDWR)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    for standard in (0, 1, 2):
        os.dup2(descriptor, standard)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    os.environ.pop("COLUMNS", None)
    os.environ.update(env)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from deepfs.cli.app import app

    app(arguments, prog_name="deepfs")
