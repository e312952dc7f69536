"""Engines that search a tree on disk: by reading every file, or only the files that ripgrep does not exclude."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from threading import BoundedSemaphore
from time import monotonic
from typing import Any, Protocol

from deepfs.disk import Disk, is_shortage
from deepfs.errors import DeadlineError, DeepFSError
from deepfs.search.batching import BatchedCall
from deepfs.search.gitignore import IgnoreOption, Ignoring, compile_rules
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.search.results import MAX_SEARCHED_BYTES, Grep
from deepfs.search.ripgrep import MAX_NEEDLE, NO_IGNORE_FILES, RipgrepError, find_ripgrep
from deepfs.search.tasks import AnyTask, BatchDeadline, GlobTask, GrepTask, SearchBatch, Walk
from deepfs.search.with_ripgrep import WithRipgrep
from deepfs.text import paths
from deepfs.text.judging import Judge
from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import after_fork

__all__ = ["Automatic", "Engine", "InProcess", "LocalSearch", "WithRipgrep", "served_by_ripgrep"]

FEW = 300
"""Files of a tree that are searched in this process first: that takes as long as ripgrep takes to start and exit."""

_MOST_PROCESSES = 4
"""Processes of ripgrep at a time; each has threads for all processors."""
_process_places = BoundedSemaphore(_MOST_PROCESSES)
_PLACE_WAIT_S = 0.25
"""Seconds that a search waits for one of them to end."""
_PLACE_CHECK_S = 0.01
"""Seconds between two checks of the deadline meanwhile."""

_LARGE_FOR_S = 300.0
"""Seconds for which a root counts as large after a search that had many files."""
_MOST_ROOTS = 256


class Engine(Protocol):
    """A way to carry out a batch of searches. All engines find the same matches."""

    def run(self, batch: SearchBatch) -> None:
        """Search until nothing is left, or every task is over."""


class InProcess:
    """Reads and searches every file in this process."""

    def run(self, batch: SearchBatch) -> None:
        _exhaust(Walk(batch, batch.tasks).steps())


class Automatic:
    """Starts in this process; if there are many files and ripgrep is installed, the greps that it can help with use it.

    If a recent search of the same root had many files, a grep without `max_count` starts with ripgrep.
    """

    def __init__(self) -> None:
        self._large: dict[str, float] = {}
        """Roots of searches that had many files, with the time at which each entry expires."""

    def run(self, batch: SearchBatch) -> None:
        unlimited = [task for task in served_by_ripgrep(batch.tasks) if not task.grep.is_limited]
        greps = unlimited if monotonic() < self._large.get(batch.root, 0) and find_ripgrep() else []
        walk = Walk(batch, [task for task in batch.tasks if task not in greps])
        with closing(walk.steps()) as steps:
            if served_by_ripgrep(walk.tasks) and sum(1 for _ in islice(steps, FEW)) == FEW:
                self._remember(batch.root)
                if find_ripgrep():
                    greps += (late := served_by_ripgrep(walk.tasks))
                    walk.leave_out(late)
            _finish(batch, greps, steps)

    def _remember(self, root: str) -> None:
        if len(self._large) >= _MOST_ROOTS:
            self._large.clear()
        self._large[root] = monotonic() + _LARGE_FOR_S


def served_by_ripgrep(tasks: Iterable[AnyTask]) -> list[GrepTask]:
    """The greps that ripgrep can help with: it excludes no file that matches, and searches few unwanted files."""
    greps = [task for task in tasks if isinstance(task, GrepTask) and task.files.glob is None]
    return [task for task in greps if 0 < len(task.grep.required) <= MAX_NEEDLE]


def _finish(batch: SearchBatch, greps: list[GrepTask], steps: Iterator[None]) -> None:
    """Exhaust `steps`, and carry out `greps` with ripgrep, or in this process if it fails."""
    for group in _alike(greps):
        try:
            with _process_place(BatchDeadline(batch, group), steps), _with_ripgrep().start(batch, group) as search:
                _exhaust(steps)
                search.finish()
        except (RipgrepError, DeadlineError):
            _exhaust(Walk(batch, [task for task in group if not task.is_over]).steps())
    _exhaust(steps)


@contextmanager
def _process_place(deadline: Deadline, steps: Iterator[None]) -> Iterator[None]:
    """Hold one of the places for processes of ripgrep during the block; exhaust `steps` before waiting for one.

    Raises RipgrepError if none gets free soon: then it is sooner done in this process, where searches take turns.
    """
    places = _process_places
    if not places.acquire(blocking=False):
        _exhaust(steps)
        until = monotonic() + _PLACE_WAIT_S
        while not places.acquire(timeout=_PLACE_CHECK_S):
            deadline.check()
            if monotonic() >= until:
                raise RipgrepError("others use it")
    try:
        yield
    finally:
        places.release()


@after_fork
def _after_fork() -> None:
    global _process_places
    _process_places = BoundedSemaphore(_MOST_PROCESSES)


def _with_ripgrep() -> WithRipgrep:
    found = find_ripgrep()
    if found is None:
        raise RipgrepError("it is gone")
    return WithRipgrep(found)


def _alike(greps: Iterable[GrepTask]) -> Iterable[list[GrepTask]]:
    """Group the greps by their file filters."""
    groups: dict[object, list[GrepTask]] = {}
    for task in greps:
        groups.setdefault(task.files, []).append(task)
    return groups.values()


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


_MAX_GITIGNORE = 128 * 1024


class LocalSearch:
    """Searches of the files of a disk. A search that ends at its deadline has a `truncated` result.

    `ignore` says which files to leave out. Its patterns are relative to the directory `base` of a search, from which on
    `.gitignore` files are read too; if a search does not start at or beneath `base`, to the directory where it starts.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        max_bytes: int = MAX_SEARCHED_BYTES,
        ignore: IgnoreOption = None,
        engine: Engine | None = None,
    ) -> None:
        if isinstance(ignore, str) and ignore != "git":
            raise ValueError(f"ignore= takes 'git', a list of patterns or None, not {ignore!r}")
        self._disk = disk
        self._max_bytes = max_bytes
        self._honours_files = ignore == "git"
        self._rules = compile_rules(() if ignore is None or isinstance(ignore, str) else ignore)
        self._engine = Automatic() if engine is None else engine

    def run_batch(
        self,
        calls: Sequence[BatchedCall[SearchRequest, Any]],
        root: str,
        base: str = "/",
        judge: Judge | None = None,
    ) -> None:
        """Carry out the searches of `calls` together, all of which start at `root`, and settle each when it ends.

        Files that the judge refuses are not found. Ignore files are read without asking it.
        """
        compiling = _CompilingDeadline(calls)
        ignoring: Ignoring | None = None
        with suppress(DeadlineError):
            ignoring = self._ignoring(root, base, compiling)
        tasks = self._tasks(calls, root, ignoring)
        if not compiling.has_ended:
            batch = SearchBatch(
                self._disk.judged(judge), root, tasks, max_bytes=self._max_bytes, hints=_hints(ignoring)
            )
            self._engine.run(batch)
        for task in tasks:
            task.has_expired |= compiling.has_ended and not task.is_over
            task.is_over = True
            task.call.settle(task.result)

    def _tasks(
        self, calls: Iterable[BatchedCall[SearchRequest, Any]], root: str, ignoring: Ignoring | None
    ) -> list[AnyTask]:
        """Make a task for each call; a call with an invalid pattern fails alone."""
        filters: dict[object, FileFilter] = {}
        tasks: list[AnyTask] = []
        for call in calls:
            request = call.request
            chosen = request.file_glob, id(request.hidden)  # Not all callables can be hashed.
            try:
                if chosen not in filters:
                    filters[chosen] = FileFilter(request, root, ignoring)
                tasks.append(_task(call, filters[chosen], self._max_bytes, ignoring))
            except DeepFSError as error:
                call.fail(error)
        return tasks

    def _ignoring(self, root: str, base: str, deadline: Deadline) -> Ignoring | None:
        if not self._honours_files and not self._rules:
            return None
        start = base if root == base or paths.is_beneath(root, base) else root
        return Ignoring(
            start, root, self._rules, self._gitignore if self._honours_files else None, partial(deadline.check, root)
        )

    def _gitignore(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path, _MAX_GITIGNORE)[0]
        except DeepFSError as error:
            if is_shortage(error):
                raise  # Without the rules of this file the search would find ignored files.
            return None


class _CompilingDeadline(Deadline):
    """Passes when the deadlines of all calls have passed: they wait for the same ignore files."""

    __slots__ = ("_calls", "has_ended")

    def __init__(self, calls: Sequence[BatchedCall[SearchRequest, Any]]) -> None:
        super().__init__()
        self._calls = calls
        self.has_ended: bool = False

    @property
    def parts(self) -> list[Deadline]:
        return [call.deadline for call in self._calls]

    def is_over(self) -> bool:
        return all(call.deadline.has_passed for call in self._calls)

    def check(self, path: str = "/") -> None:
        self.take_turns()
        if self.is_over():
            self.has_ended = True
            raise DeadlineError(path, "")


def _task(
    call: BatchedCall[SearchRequest, Any], files: FileFilter, max_bytes: int, ignoring: Ignoring | None
) -> AnyTask:
    if isinstance(call.request, GrepRequest):
        return GrepTask(Grep(call.request, files, max_bytes), call, ignoring)
    return GlobTask(files, call)


def _hints(ignoring: Ignoring | None) -> list[str]:
    """Options with which ripgrep leaves out roughly the ignored files.

    ripgrep must not read `.gitignore` files itself: it would wait for a FIFO of that name, and follow links.
    """
    return [*NO_IGNORE_FILES, *(f"--glob=!{pattern}" for pattern in (ignoring.plain() if ignoring else ()))]
