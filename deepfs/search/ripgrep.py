"""ripgrep, asked for one thing only: which files of a directory hold some text, and what it did not look at.

The bytes of every file are searched as they are: no encoding is guessed, nothing is taken for binary. What ripgrep
leaves out by itself (dot-names, links, large files, ignored files) it tells in its log alone, so one whose log is not
understood is not used.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from types import TracebackType

__all__ = ["MAX_NEEDLE", "NO_IGNORE_FILES", "Ripgrep", "RipgrepError", "Run", "find_ripgrep"]

MAX_NEEDLE = 4096
"""The longest text to look for, in bytes; it goes through a pipe, where no other process sees it."""

NO_IGNORE_FILES = ("--no-ignore",)
"""Honour no ignore files; what they say comes in by `--glob`."""

_OPTIONS = (
    "--no-config",
    "--debug",
    "--color=never",
    "--files-with-matches",
    "--null",
    "--fixed-strings",
    "--case-sensitive",
    "--text",
    "--encoding=none",
    "--no-mmap",
    "--file=-",
)
_CHUNK = 64 * 1024
_MAX_LOG = 1024 * 1024
"""Bytes of log after which ripgrep is not worth it: what is left out costs it three times what it searches."""
_LOOK_UP_S = 0.02
_TRIAL_S = 5.0
"""Seconds in which ripgrep must have searched a few tiny files; one that hangs must not hang the first search."""

_is_log = re.compile(rb"(?:rg: )?DEBUG\|").match
_REASON = re.compile(rb": (?:Ignore\(IgnoreMatch\(|\d+ bytes\Z|failed to pass \w+ filter: )")
_failure = re.compile(rb"(?:rg: )?\./(.+): [^:/]+ \(os error \d+\)", re.DOTALL).fullmatch


class RipgrepError(Exception):
    """ripgrep did not run to its end, or what it says is not understood; what it found so far does not count."""


class Run:
    """One run of ripgrep, within a context that ends it.

    Iterating gives lists of the files found, in no order, while the search goes on; `left_out` then holds what else is
    to be looked at: files and directories. Both are byte strings relative to the directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        needles: Iterable[bytes],
        directory: str,
        check: Callable[[], object],
    ) -> None:
        self.left_out: set[bytes] = set()
        self._command = command
        self._needles = needles
        self._directory = directory
        self._check = check
        self._log = bytearray()

    def __enter__(self) -> "Run":
        with ExitStack() as undo:
            try:
                self._process = undo.enter_context(
                    subprocess.Popen(
                        self._command,
                        cwd=self._directory,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        bufsize=0,
                    )
                )
            except OSError as error:
                raise RipgrepError(f"it cannot be run: {error.strerror}") from error
            undo.callback(self._process.kill)
            self._ask()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def __iter__(self) -> Iterator[list[bytes]]:
        begun = b""
        for chunk in self._output():
            *names, begun = (begun + chunk).split(b"\0")
            yield [name.removeprefix(b"./") for name in names]
        if self._end() not in (0, 1, 2) or begun:
            raise RipgrepError("it was stopped")
        self.left_out = set(_left_out(bytes(self._log)))
        if self._process.returncode == 2 and not self.left_out:
            raise RipgrepError("it failed and does not say why")

    def _ask(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It ended at once; why, its log tells.
            for needle in self._needles:
                self._process.stdin.write(needle + b"\n")
        self._process.stdin.close()

    def _end(self) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LOOK_UP_S)
            self._check()

    def _output(self) -> Iterator[bytes]:
        """What it finds, as it comes; what it logs is put aside."""
        with DefaultSelector() as selector:
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                selector.register(stream, EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(_LOOK_UP_S):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._process.stdout:
                        yield chunk
                    else:
                        self._put_aside(chunk)
                self._check()

    def _put_aside(self, log: bytes) -> None:
        self._log += log
        if len(self._log) > _MAX_LOG:
            raise RipgrepError("it leaves out too much")


def _left_out(log: bytes) -> Iterator[bytes]:
    *lines, cut_off = log.split(b"\n")
    if cut_off:
        raise RipgrepError("it was cut off")
    for line in lines:
        if _is_log(line):
            _, ignoring, rest = line.partition(b": ignoring ")
            if ignoring:
                yield _without_reason(rest)
        elif failure := _failure(line):
            yield failure[1]
        else:
            raise RipgrepError("it says something unknown")


def _without_reason(rest: bytes) -> bytes:
    reasons = list(_REASON.finditer(rest))
    if len(reasons) != 1 or not rest.startswith(b"./"):
        raise RipgrepError("it leaves something out, and what is not clear")
    return rest[2 : reasons[0].start()]


class Ripgrep:
    """An installed ripgrep."""

    def __init__(self, program: str) -> None:
        self._program = program

    def search(
        self,
        needles: Iterable[bytes],
        directory: str,
        *,
        max_bytes: int,
        options: Sequence[str] = NO_IGNORE_FILES,
        check: Callable[[], object],
    ) -> Run:
        """Look for `needles`, which must have no line breaks, in the files of up to `max_bytes` beneath `directory`.

        Found is what holds any of them. `options` say more about what is to be left out; `check` is called all the
        time, to raise where the search must end.
        """
        command = (self._program, *_OPTIONS, f"--max-filesize={max_bytes}", *options, "--", "./")
        return Run(command, needles, directory, check)

    def is_understood(self) -> bool:
        """Whether it leaves out what it should and says so, tried on a small directory."""
        from tempfile import TemporaryDirectory  # Late: few programs search, and it takes long to load.

        with suppress(RipgrepError, OSError), TemporaryDirectory(prefix="deepfs-") as name:
            directory = Path(name)
            for file, content in _TRIAL.items():
                (directory / file).write_bytes(content)
            (directory / "link").symlink_to("found")
            run = self.search(
                [b"needle"],
                name,
                max_bytes=20,
                options=(*NO_IGNORE_FILES, "--glob=!ignored"),
                check=_until(monotonic() + _TRIAL_S),
            )
            with run:
                found = [file for files in run for file in files]
            return found == [b"found"] and run.left_out == {b".hidden", b"ignored", b"large", b"link"}
        return False


def _until(due: float) -> Callable[[], None]:
    def check() -> None:
        if monotonic() >= due:
            raise RipgrepError("it takes too long")

    return check


_TRIAL = {
    ".hidden": b"needle",
    "found": b"\xff\xfe\0\rneedle",
    "ignored": b"needle",
    "large": b"needle, and more text",
    "without": b"nothing",
}


def find_ripgrep() -> Ripgrep | None:
    """The ripgrep on the PATH, or among the scripts of this Python environment, if it can be used."""
    return _find(os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=8)
def _find(path: str) -> Ripgrep | None:
    # A program in a relative directory of the PATH could be one that an agent wrote.
    absolute = os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))
    found = (shutil.which("rg", path=place) for place in (absolute, sysconfig.get_path("scripts")))
    usable = (Ripgrep(program) for program in found if program is not None)
    return next((ripgrep for ripgrep in usable if ripgrep.is_understood()), None)
