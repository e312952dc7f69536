"""Greps with the help of ripgrep, which tells one thing only: which files hold some text, and what it did not look at.

All engines read and judge files by the same code, so they cannot differ in what they find: ripgrep only excludes files,
those that it searched without finding any of the texts. It walks through names, so a process that swaps a directory for
a link meanwhile may have it look elsewhere. Nothing of that is told or counted, since what it finds is opened anew from
the root.

ripgrep searches the bytes of every file as they are: no encoding is guessed, nothing is taken for binary. What it
leaves out by itself (dot-names, links, large files, ignored files) it tells in its log alone, so a program whose log is
not understood is not used.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import lru_cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType

from deepfs.errors import DeadlineError
from deepfs.search.tasks import BatchDeadline, GrepTask, NamedFile, SearchBatch
from deepfs.text import paths
from deepfs.threads.deadline import Deadline

__all__ = ["MAX_NEEDLE", "NO_IGNORE_FILES", "Ripgrep", "RipgrepError", "Run", "WithRipgrep", "find_ripgrep"]

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
        deadline: Deadline,
    ) -> None:
        self.left_out: set[bytes] = set()
        self._command = command
        self._needles = needles
        self._directory = directory
        self._deadline = deadline
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
            self._deadline.check()

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
                self._deadline.check()

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
        deadline: Deadline,
    ) -> Run:
        """Look for `needles`, which must have no line breaks, in the files of up to `max_bytes` beneath `directory`.

        Found is what holds any of them. `options` say more about what is to be left out.
        """
        command = (self._program, *_OPTIONS, f"--max-filesize={max_bytes}", *options, "--", "./")
        return Run(command, needles, directory, deadline)

    def is_understood(self) -> bool:
        """Whether it leaves out what it should and says so, tried on a small directory."""
        from tempfile import TemporaryDirectory  # Late: few programs search, and it takes long to load.

        with suppress(RipgrepError, DeadlineError, OSError), TemporaryDirectory(prefix="deepfs-") as name:
            directory = Path(name)
            for file, content in _TRIAL.items():
                (directory / file).write_bytes(content)
            (directory / "link").symlink_to("found")
            run = self.search(
                [b"needle"],
                name,
                max_bytes=20,
                options=(*NO_IGNORE_FILES, "--glob=!ignored"),
                deadline=Deadline(_TRIAL_S),
            )
            with run:
                found = [file for files in run for file in files]
            return found == [b"found"] and run.left_out == {b".hidden", b"ignored", b"large", b"link"}
        return False


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


# --- greps -----------------------------------------------------------------------------------------------------------


class WithRipgrep:
    """An engine that reads those files that ripgrep does not exclude."""

    def __init__(self, ripgrep: Ripgrep) -> None:
        self._ripgrep = ripgrep

    @staticmethod
    def serves(task: GrepTask) -> bool:
        """Whether ripgrep would surely not exclude a file that matches, nor search many that are not wanted."""
        return 0 < len(task.grep.query.required) <= MAX_NEEDLE and task.files.glob is None

    def run(self, batch: SearchBatch) -> None:
        """Carry out all greps of the batch."""
        with self.start(batch, [task for task in batch.tasks if isinstance(task, GrepTask)]) as search:
            search.finish()

    def start(self, batch: SearchBatch, tasks: Sequence[GrepTask]) -> "RipgrepSearch":
        """Let ripgrep begin, in a `with` block, to look for what `tasks` find: tasks that it serves, of one filter."""
        return RipgrepSearch(self._ripgrep, batch, tasks)


class RipgrepSearch:
    """Greps that ripgrep helps with, within a context that ends it.

    Raises RipgrepError where ripgrep fails. Tasks that are not over are then as they were.
    """

    def __init__(self, ripgrep: Ripgrep, batch: SearchBatch, tasks: Sequence[GrepTask]) -> None:
        self._batch = batch
        self._tasks = tasks
        [self._files] = {task.files for task in tasks}
        self._deadline = BatchDeadline(batch, tasks)
        self._before = [(task, len(task.grep.matches), task.grep.skipped, task.shortage) for task in tasks]
        self._missed: dict[str, OSError] = {}
        """The directories that could not be read, with `/` at the end."""
        needles = {task.grep.query.required for task in tasks}
        directory = _directory(batch)
        self._run = ripgrep.search(
            needles, directory, max_bytes=batch.max_bytes, options=batch.hints, deadline=self._deadline
        )

    def __enter__(self) -> "RipgrepSearch":
        self._run.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.__exit__(kind, error, trace)
        if isinstance(error, RipgrepError):
            self._discard_results()

    def _discard_results(self) -> None:
        """Have each task that is not over hold what it held before this search."""
        for task, matches, skipped, shortage in self._before:
            if not task.is_over:
                task.grep.forget(matches, skipped)
                task.shortage = shortage

    def finish(self) -> None:
        """Search what ripgrep finds and leaves out, until nothing is left or the tasks are over."""
        with suppress(DeadlineError):
            self._finish()

    def _finish(self) -> None:
        # Only with a limit does it matter which matches come first.
        unlimited = [task for task in self._tasks if not task.grep.is_limited]
        limited = [task for task in self._tasks if task.grep.is_limited]
        later: list[str] = []
        for places in self._places():
            self._search(places, unlimited)
            later += places if limited else ()
            if any(task.has_enough for task in unlimited):
                raise RipgrepError("it finds more than a result has; which lines come first, a walk tells")
        for place in sorted(later):
            self._search([place], [task for task in limited if not task.has_enough])

    def _places(self) -> Iterator[list[str]]:
        """What there is to search, in no order, while ripgrep finds it."""
        told: set[str] = set()
        for names in self._run:
            found = [path for path in _paths(self._batch.root, names) if path in self._files]
            told.update(found)
            yield found
        yield [place for place in self._left_out() if place not in told]

    def _left_out(self) -> list[str]:
        """The wanted files at or beneath what ripgrep left out, and the directories there that cannot be read."""
        left_out = set(_paths(self._batch.root, self._run.left_out))
        wanted = self._files
        inside = {path for path in self._in_time(left_out) if path in wanted or wanted.may_enter(path)}
        if not inside:
            return []
        above = {directory for path in inside for directory in paths.ancestors(path)}

        def enter(directory: str) -> bool:
            self._deadline.check(directory)
            if directory not in inside and paths.parent(directory) in inside:
                inside.add(directory)
            return (directory in inside or directory in above) and wanted.may_enter(directory)

        walk = self._batch.disk.walk(self._batch.root, enter=enter, unreadable=self._miss, deadline=self._deadline)
        with closing(walk):
            files = [file.path for file in walk if file.path in inside or paths.parent(file.path) in inside]
        return [*(path for path in self._in_time(files) if path in wanted), *self._missed]

    def _miss(self, directory: str, error: OSError) -> None:
        self._missed[f"{directory}/"] = error

    def _in_time(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            self._deadline.check(name)
            yield name

    def _search(self, places: Iterable[str], tasks: Sequence[GrepTask]) -> None:
        if not tasks:
            return
        for place in self._in_time(places):
            if place in self._missed:
                for task in tasks:
                    task.miss(place, self._missed[place])
            else:
                self._batch.search(NamedFile(self._batch.disk, place), tasks)


def _directory(batch: SearchBatch) -> str:
    """Where on the host the search starts, without links: ripgrep would follow one to the outside."""
    path = batch.disk.real_path(batch.root)
    if path is None:
        raise RipgrepError("what it is to search is not inside")
    return os.path.join(batch.disk.host_path, path[1:])


def _paths(root: str, names: Iterable[bytes]) -> Iterable[str]:
    """The paths of these names beneath the root; those that are not text have none."""
    for name in names:
        try:
            yield paths.join(root, name.decode())
        except UnicodeDecodeError:
            continue
