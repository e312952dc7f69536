"""Greps with the help of ripgrep, which only reports which files contain some text, and which paths it left out.

All engines read and search files with the same code, so they cannot differ in what they find: ripgrep only excludes
the files that it searched without finding any of the texts. It opens files by name, so a process that swaps a directory
for a symlink during the search may lead it elsewhere. Nothing from there is reported or counted, since every file that
ripgrep finds is opened again from the root.

ripgrep searches the raw bytes of every file: it guesses no encoding, and treats no file as binary. The paths that it
leaves out (dot-names, links, large files, ignored files) appear only in its log, so a program whose log cannot be
parsed is not used.
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
"""The longest text to search for, in bytes; it is passed through a pipe, where no other process sees it."""

NO_IGNORE_FILES = ("--no-ignore",)
"""Read no ignore files; their patterns are passed with `--glob`."""

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
"""Bytes of log after which ripgrep is not worth it: leaving out a file costs it three times searching one."""
_LOOK_UP_S = 0.02
_TRIAL_S = 5.0
"""Seconds within which ripgrep must search a few tiny files; a program that hangs must not block the first search."""

_is_log = re.compile(rb"(?:rg: )?DEBUG\|").match
_REASON = re.compile(rb": (?:Ignore\(IgnoreMatch\(|\d+ bytes\Z|failed to pass \w+ filter: )")
_failure = re.compile(rb"(?:rg: )?\./(.+): [^:/]+ \(os error \d+\)", re.DOTALL).fullmatch


class RipgrepError(Exception):
    """ripgrep did not run to its end, or its output cannot be parsed; the files that it found so far do not count."""


class Run:
    """One run of ripgrep; leaving the context ends it.

    Iteration yields lists of the files found, in no order, while the search goes on. After it, `left_out` holds the
    files and directories that ripgrep did not search. All are byte strings relative to the directory.
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
        with suppress(BrokenPipeError):  # It exited at once; its log says why.
            for needle in self._needles:
                self._process.stdin.write(needle + b"\n")
        self._process.stdin.close()

    def _end(self) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LOOK_UP_S)
            self._deadline.check()

    def _output(self) -> Iterator[bytes]:
        """Yield the output of ripgrep as it arrives, and collect its log."""
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

        A file is found if it contains any of them. `options` are options of ripgrep that say which files to leave out.
        """
        command = (self._program, *_OPTIONS, f"--max-filesize={max_bytes}", *options, "--", "./")
        return Run(command, needles, directory, deadline)

    def is_understood(self) -> bool:
        """Whether the program leaves out the right files and logs them as expected, tried on a small directory."""
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
    """An engine that reads only the files that ripgrep does not exclude."""

    def __init__(self, ripgrep: Ripgrep) -> None:
        self._ripgrep = ripgrep

    @staticmethod
    def serves(task: GrepTask) -> bool:
        """Whether ripgrep can help with `task`: it excludes no file that matches, and searches few unwanted files."""
        return 0 < len(task.grep.query.required) <= MAX_NEEDLE and task.files.glob is None

    def run(self, batch: SearchBatch) -> None:
        """Carry out all greps of the batch."""
        with self.start(batch, [task for task in batch.tasks if isinstance(task, GrepTask)]) as search:
            search.finish()

    def start(self, batch: SearchBatch, tasks: Sequence[GrepTask]) -> "RipgrepSearch":
        """Return a context that runs ripgrep for `tasks`, all of which it serves and which have the same filter."""
        return RipgrepSearch(self._ripgrep, batch, tasks)


class RipgrepSearch:
    """Greps with the help of one run of ripgrep; leaving the context ends it.

    Raises RipgrepError if ripgrep fails. The tasks that are not over are then reset to their state before the search.
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
        """Reset each task that is not over to its state before this search."""
        for task, matches, skipped, shortage in self._before:
            if not task.is_over:
                task.grep.forget(matches, skipped)
                task.shortage = shortage

    def finish(self) -> None:
        """Search the files that ripgrep finds or leaves out, until none is left or the tasks are over."""
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
        """Yield the paths to search, in no order, as ripgrep finds them; then those that it left out."""
        seen: set[str] = set()
        for names in self._run:
            found = [path for path in _paths(self._batch.root, names) if path in self._files]
            seen.update(found)
            yield found
        yield [place for place in self._left_out() if place not in seen]

    def _left_out(self) -> list[str]:
        """The wanted files at or beneath the paths that ripgrep left out, and the unreadable directories there."""
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
    """Return the host path where the search starts, without symlinks: ripgrep would follow one to the outside."""
    path = batch.disk.real_path(batch.root)
    if path is None:
        raise RipgrepError("what it is to search is not inside")
    return os.path.join(batch.disk.host_path, path[1:])


def _paths(root: str, names: Iterable[bytes]) -> Iterable[str]:
    """Yield the paths of `names` beneath the root; names that are not UTF-8 are left out."""
    for name in names:
        try:
            yield paths.join(root, name.decode())
        except UnicodeDecodeError:
            continue
