"""Runs ripgrep, which reports which files contain some text, in which lines, and what it left out.

ripgrep searches the raw bytes of every file: it guesses no encoding, and treats no file as binary. The paths that it
leaves out (dot-names, links, large files, ignored files) appear only in its log, so a program whose log cannot be
parsed is not used.
"""

import os
import re
import select
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import NamedTuple

from deepfs.disk.programs import ProgramPlace, programs_on
from deepfs.errors import DeadlineError
from deepfs.search.query import MAX_LINE
from deepfs.threads.deadline import Deadline

MAX_NEEDLE = 4096
"""The longest text to search for, in bytes; it is passed through a pipe, where no other process sees it."""

NO_IGNORE_FILES = ("--no-ignore",)
"""Read no ignore files; their patterns are passed with `--glob`."""

_OPTIONS = (
    "--no-config",
    "--debug",
    "--color=never",
    "--null",
    "--fixed-strings",
    "--case-sensitive",
    "--text",
    "--encoding=none",
    "--no-mmap",
    "--file=-",
)
_NAMES = ("--files-with-matches",)
_LINES = (
    "--heading",
    "--line-number",
    "--field-match-separator=\\n",
    f"--max-columns={MAX_LINE * 4}",
    "--max-columns-preview",
)
"""Of a longer line ripgrep shows a prefix of at least `MAX_LINE` characters."""

_CHUNK = 1024 * 1024
"""Bytes in the pipe, and read from it at once. Where a pipe is smaller, ripgrep waits more often."""
_MAX_LOG = 1024 * 1024
"""Bytes of log after which ripgrep is not worth it: leaving out a file costs it three times searching one."""
_CHECK_S = 0.02
"""Seconds between two checks of the deadline while there is no output."""
_EXIT_S = 0.0001
"""Seconds between two looks whether ripgrep, which has closed its output, has ended. It does so at once."""
_TRIAL_S = 5.0
"""Seconds within which ripgrep must search a few tiny files; a program that hangs must not block the first search."""


class RipgrepError(Exception):
    """ripgrep did not run to its end, or its output cannot be parsed; the files that it found so far do not count."""


class RipgrepFound(NamedTuple):
    """A file that ripgrep found, and its lines with matches, a number, then a text, and so on; None if unknown."""

    name: bytes
    lines: bytes | None


class RipgrepRun:
    """One run of ripgrep; leaving the context ends it.

    Iteration yields lists of the files found, in no order, while the search goes on. After it, `left_out` holds the
    files and directories that ripgrep did not search. All names are byte strings relative to the directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        needles: Iterable[bytes],
        directory: str,
        deadline: Deadline,
        *,
        with_lines: bool,
    ) -> None:
        self.left_out: set[bytes] = set()
        self._parser = _OutputLines() if with_lines else _FileNames()
        self._command = command
        self._needles = needles
        self._directory = directory
        self._deadline = deadline
        self._log = bytearray()

    def __enter__(self) -> "RipgrepRun":
        with ExitStack() as undo:
            try:
                pipe = subprocess.PIPE
                self._process = undo.enter_context(
                    subprocess.Popen(
                        self._command, cwd=self._directory, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
                    )
                )
            except OSError as error:
                raise RipgrepError(f"it cannot be run: {error.strerror}") from error
            undo.callback(self._process.kill)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            # ripgrep may then write much without waiting. Only Linux can; and users have a limit for all their pipes.
            with suppress(ImportError, AttributeError, OSError):
                import fcntl

                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _CHUNK)
            with suppress(BrokenPipeError):  # It exited at once; its log says why.
                for needle in self._needles:
                    self._process.stdin.write(needle + b"\n")
            self._process.stdin.close()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def __iter__(self) -> Iterator[list[RipgrepFound]]:
        for chunk in self._output():
            yield self._parser.feed(chunk)
        if self._end() not in (0, 1, 2):
            raise RipgrepError("it was stopped")
        yield self._parser.end()
        self.left_out = set(_parse_log(bytes(self._log)))
        if self._process.returncode == 2 and not self.left_out:
            raise RipgrepError("it failed and does not say why")

    def _end(self) -> int:
        while (status := self._process.poll()) is None:
            sleep(_EXIT_S)
            self._deadline.check()
        return status

    def _output(self) -> Iterator[bytes]:
        """Yield the output of ripgrep, and collect its log."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        output, log = self._process.stdout.fileno(), self._process.stderr.fileno()
        waiting = select.poll()
        opened = {output, log}
        for each in opened:
            waiting.register(each, select.POLLIN)
        while opened:
            for ready, _ in waiting.poll(_CHECK_S * 1000):
                chunk = os.read(ready, _CHUNK)
                if not chunk:
                    opened.remove(ready)
                    waiting.unregister(ready)
                elif ready == log:
                    self._log += chunk
                    if len(self._log) > _MAX_LOG:
                        raise RipgrepError("it leaves out too much")
                else:
                    yield chunk
            self._deadline.check()


class _FileNames:
    """Parses names, each ended by NUL."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, chunk: bytes) -> list[RipgrepFound]:
        """Return the files that are complete with this piece of output."""
        *names, self._begun = (self._begun + chunk).split(b"\0")
        return [RipgrepFound(name.removeprefix(b"./"), None) for name in names]

    def end(self) -> list[RipgrepFound]:
        """Return the last file. Raises RipgrepError if the output was cut off."""
        if self._begun:
            raise RipgrepError("it was stopped")
        return []


class _OutputLines:
    """Parses names, each ended by NUL and followed by lines; an empty line stands between two files.

    Neither numbers nor texts are empty, so the first empty line ends a file. A NUL before it is in a line: the file is
    binary.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The output since the last NUL, in pieces."""
        self._name: bytes | None = None
        self._is_binary = False

    def feed(self, chunk: bytes) -> list[RipgrepFound]:
        """Return the files that are complete with this piece of output."""
        first, *more = chunk.split(b"\0")
        self._begun.append(first)
        if not more:
            return []
        *whole, last = [b"".join(self._begun), *more]
        self._begun = [last]
        found: list[RipgrepFound] = []
        for piece in whole:
            if self._name is None:
                self._name = piece
                continue
            lines, is_end, name = piece.partition(b"\n\n")
            if is_end:
                found.append(self._finish_file(lines))
                self._name, self._is_binary = name, False
            else:
                self._is_binary = True
        return found

    def _finish_file(self, lines: bytes) -> RipgrepFound:
        assert self._name is not None
        return RipgrepFound(self._name.removeprefix(b"./"), None if self._is_binary else lines)

    def end(self) -> list[RipgrepFound]:
        """Return the last file. Raises RipgrepError if the output was cut off."""
        last = b"".join(self._begun)
        if self._name is None and not last:
            return []
        if self._name is None or not last.endswith(b"\n"):
            raise RipgrepError("it was stopped")
        return [self._finish_file(last[:-1])]


def _parse_log(log: bytes) -> Iterator[bytes]:
    *lines, cut_off = log.split(b"\n")
    if cut_off:
        raise RipgrepError("it was cut off")
    reason = re.compile(rb": (?:Ignore\(IgnoreMatch\(|\d+ bytes\Z|failed to pass \w+ filter: )")
    failure = re.compile(rb"(?s)(?:rg: )?\./(.+): [^:/]+ \(os error \d+\)")
    for line in lines:
        if line.startswith((b"DEBUG|", b"rg: DEBUG|")):
            _, ignoring, rest = line.partition(b": ignoring ")
            reasons = list(reason.finditer(rest))
            if ignoring and (len(reasons) != 1 or not rest.startswith(b"./")):
                raise RipgrepError("it leaves something out, and what is not clear")
            if ignoring:
                yield rest[2 : reasons[0].start()]
        elif failed := failure.fullmatch(line):
            yield failed[1]
        else:
            raise RipgrepError("it says something unknown")


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
        deadline: Deadline,
        with_lines: bool = False,
    ) -> RipgrepRun:
        """Look for `needles`, which must have no line breaks, in the files of up to `max_bytes` beneath `directory`.

        A file is found if it contains any of them. `options` are options of ripgrep that say which files to leave out.
        With `with_lines`, the lines that contain one are shown as well; otherwise a file is read up to its first match.
        """
        shown = _LINES if with_lines else _NAMES
        command = (self._program, *_OPTIONS, *shown, f"--max-filesize={max_bytes}", *options, "--", "./")
        return RipgrepRun(command, needles, directory, deadline, with_lines=with_lines)

    def passes_trial(self) -> bool:
        """Whether the program leaves out the right files and logs them as expected, tried on a small directory."""
        from tempfile import TemporaryDirectory  # Late: few programs search, and it takes long to load.

        with suppress(RipgrepError, DeadlineError, OSError), TemporaryDirectory(prefix="deepfs-") as name:
            directory = Path(name)
            for file, content in _TRIAL.items():
                (directory / file).write_bytes(content)
            (directory / "link").symlink_to("found")
            # Both at once, since the first search of a program waits for them.
            with self._trial(name, with_lines=False) as names, self._trial(name, with_lines=True) as lines:
                for run, found in ((names, RipgrepFound(b"found", None)), (lines, _TRIAL_LINES)):
                    if sorted(file for files in run for file in files) != [RipgrepFound(b"binary", None), found]:
                        return False
                    if run.left_out != {b".hidden", b"ignored", b"large", b"link"}:
                        return False
                return True
        return False

    def _trial(self, directory: str, *, with_lines: bool) -> RipgrepRun:
        options = (*NO_IGNORE_FILES, "--glob=!ignored")
        return self.search(
            [b"needle"], directory, max_bytes=40, options=options, deadline=Deadline(_TRIAL_S), with_lines=with_lines
        )


_TRIAL_LINES = RipgrepFound(b"found", b"1\n\xff\xfe\rneedle\n3\nneedle\r")
_TRIAL = {
    ".hidden": b"needle",
    "binary": b"needle\n\0needle",
    "found": b"\xff\xfe\rneedle\n\nneedle\r",
    "ignored": b"needle",
    "large": b"needle" + 40 * b" ",
    "without": b"nothing",
}


def find_ripgrep() -> Ripgrep | None:
    """The ripgrep on the PATH, or among the scripts of this Python environment, if it can be used and is safe."""
    safe = (place.path for place in _find_installed(os.environ.get("PATH", os.defpath)) if place.is_safe_from_agents())
    return next((ripgrep for ripgrep in map(_check_program, safe) if ripgrep is not None), None)


@lru_cache(maxsize=8)
def _find_installed(path: str) -> Sequence[ProgramPlace]:
    return list(programs_on(path, "rg", os.path.join(sysconfig.get_path("scripts"), "rg")))


@lru_cache(maxsize=8)
def _check_program(program: str) -> Ripgrep | None:
    ripgrep = Ripgrep(program)
    return ripgrep if ripgrep.passes_trial() else None
