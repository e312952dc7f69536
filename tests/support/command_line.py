"""Runs commands of `deepfs` in this process, as a shell would, and in processes of their own."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from deepfs.cli.app import app

COMMAND = [sys.executable, "-m", "deepfs"]


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def deepfs(*arguments: str | Path, on: str | None = None) -> Outcome:
    """Run a command in this process."""
    given = [*(("--on", on) if on else ()), *map(str, arguments)]
    result = CliRunner(catch_exceptions=False).invoke(app, given, prog_name="deepfs")
    return Outcome(result.exit_code, result.stdout, result.stderr)


def deepfs_process(*arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> Outcome:
    """Run a command in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, timeout=60, check=False)
    return Outcome(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode())


def on_terminal(arguments: Sequence[str | Path], *, columns: int, cwd: Path, **variables: str) -> str:
    """What a command writes to a terminal with so many columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PAGER": "", **variables}
    command = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env) as process:
        os.close(theirs)
        written = b"".join(iter(lambda: _read(ours), b""))
        process.wait(60)
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


def interruptible() -> None:
    """In a new process: let SIGINT interrupt it, which a job in the background of a shell ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # On Linux, the end of a terminal whose other side is closed.
        return b""
