"""How searches go over a tree on disk: file after file in this process, or only where ripgrep finds something."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeAlias

from deepfs.disk import Disk, Patience, is_shortage
from deepfs.errors import DeepFSError
from deepfs.search.batching import Ask
from deepfs.search.excusing import WithRipgrep
from deepfs.search.gitignore import IgnoreOption, Ignoring, compile_rules
from deepfs.search.query import Query
from deepfs.search.results import MAX_SEARCHED_BYTES, Grep, Hidden, Wanted
from deepfs.search.ripgrep import NO_IGNORE_FILES, RipgrepError, find_ripgrep
from deepfs.search.tasks import AnyTask, GlobTask, GrepTask, Pass, Walk
from deepfs.text import paths
from deepfs.threads.deadline import Cancellation
from deepfs.types import GlobResult, GrepResult

__all__ = ["Automatic", "Engine", "GlobSearch", "GrepSearch", "InProcess", "LocalSearch", "Search", "WithRipgrep"]

FEW = 300
"""Files of a tree that are searched here first: in the time for which ripgrep only begins and ends."""

_BELIEVED_S = 300.0
_MOST_ROOTS = 256


class Engine(Protocol):
    """A way to carry out a pass. All engines find the same."""

    def run(self, searches: Pass) -> None:
        """Search until nothing is left, or every task is over."""


class InProcess:
    """Searches every file here."""

    def run(self, searches: Pass) -> None:
        _exhaust(Walk(searches, searches.tasks).steps())


class Automatic:
    """Begins here, and goes on with ripgrep for what it serves, where it is installed and there is much to search.

    Where there was much lately, a grep begins with ripgrep, unless it wants the first matches only.
    """

    def __init__(self) -> None:
        self._large: dict[str, float] = {}
        """Roots of searches that had more than a few files, with the time until when that is believed."""

    def run(self, searches: Pass) -> None:
        unlimited = [task for task in _served(searches.tasks) if not task.grep.is_limited]
        greps = unlimited if monotonic() < self._large.get(searches.root, 0) and find_ripgrep() else []
        walk = Walk(searches, [task for task in searches.tasks if task not in greps])
        with closing(walk.steps()) as steps:
            if _served(walk.tasks) and sum(1 for _ in islice(steps, FEW)) == FEW:
                self._remember(searches.root)
                if find_ripgrep():
                    greps += (late := _served(walk.tasks))
                    walk.leave_out(late)
            _finish(searches, greps, steps)

    def _remember(self, root: str) -> None:
        if len(self._large) >= _MOST_ROOTS:
            self._large.clear()
        self._large[root] = monotonic() + _BELIEVED_S


def _served(tasks: Iterable[AnyTask]) -> list[GrepTask]:
    return [task for task in tasks if isinstance(task, GrepTask) and WithRipgrep.serves(task)]


def _finish(searches: Pass, greps: list[GrepTask], steps: Iterator[None]) -> None:
    """Take the rest of `steps`, and carry out `greps` with ripgrep, or here where it fails."""
    for group in _alike(greps):
        try:
            _with_ripgrep().search(searches, group, meanwhile=lambda: _exhaust(steps))
        except RipgrepError:
            _exhaust(Walk(searches, [task for task in group if not task.is_over]).steps())
    _exhaust(steps)


def _with_ripgrep() -> WithRipgrep:
    found = find_ripgrep()
    if found is None:
        raise RipgrepError("it is gone")
    return WithRipgrep(found)


def _alike(greps: Iterable[GrepTask]) -> Iterable[list[GrepTask]]:
    """The greps that want the same files, together."""
    groups: dict[object, list[GrepTask]] = {}
    for task in greps:
        groups.setdefault(task.wanted, []).append(task)
    return groups.values()


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


_MAX_GITIGNORE = 128 * 1024


class GlobSearch(NamedTuple):
    """What to find: files that match, sorted by path; those that are `hidden` are not looked at."""

    glob: str
    hidden: Hidden | None = None


class GrepSearch(NamedTuple):
    """What to find: lines, in the files that `glob` chooses."""

    query: Query
    glob: str | None = None
    max_count: int | None = None
    hidden: Hidden | None = None


Search: TypeAlias = GlobSearch | GrepSearch


class LocalSearch:
    """Searches of the files of a disk, each for at most `timeout` seconds; then its result is `truncated`.

    `ignore` says what they pass over; its patterns, and the `.gitignore` files that count, are those of the directory
    `base` of a search, if it starts beneath, otherwise of where it starts.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        max_bytes: int = MAX_SEARCHED_BYTES,
        timeout: float = 60,
        ignore: IgnoreOption = None,
        engine: Engine | None = None,
    ) -> None:
        if isinstance(ignore, str) and ignore != "git":
            raise ValueError(f"ignore= takes 'git', a list of patterns or None, not {ignore!r}")
        self._disk = disk
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._honours_files = ignore == "git"
        self._rules = compile_rules(() if ignore is None or isinstance(ignore, str) else ignore)
        self._engine = Automatic() if engine is None else engine

    def answer(self, asks: Sequence[Ask[Search, Any]], root: str, base: str = "/") -> None:
        """Carry out together the searches of `asks`, which all start at `root`, and settle each when it ends."""
        ignoring = self._ignoring(root, base)
        tasks = self._tasks([(ask.question, ask.cancellation) for ask in asks], root, ignoring)
        for ask, task in zip(asks, tasks, strict=True):
            task.on_end = partial(_settle_early, ask, task, tasks)
        self._run(tasks, root, ignoring)
        for ask, task in zip(asks, tasks, strict=True):
            ask.settle(task.result)

    def glob(self, cancellation: Cancellation, pattern: str, root: str, base: str = "/") -> GlobResult:
        """One search by itself; NotDirectoryError where `root` is a file."""
        result: GlobResult = self._only(GlobSearch(pattern), cancellation, root, base)
        return result

    def grep(
        self,
        cancellation: Cancellation,
        query: Query,
        root: str,
        glob: str | None = None,
        max_count: int | None = None,
        base: str = "/",
    ) -> GrepResult:
        """One search by itself."""
        result: GrepResult = self._only(GrepSearch(query, glob, max_count), cancellation, root, base)
        return result

    def _only(self, search: Search, cancellation: Cancellation, root: str, base: str) -> Any:
        ignoring = self._ignoring(root, base)
        [task] = tasks = self._tasks([(search, cancellation)], root, ignoring)
        self._run(tasks, root, ignoring)
        return task.result()

    def _run(self, tasks: Sequence[AnyTask], root: str, ignoring: Ignoring | None) -> None:
        self._engine.run(Pass(self._disk, root, tasks, max_bytes=self._max_bytes, hints=_hints(ignoring)))
        for task in tasks:
            task.end()

    def _tasks(
        self, searches: Iterable[tuple[Search, Cancellation]], root: str, ignoring: Ignoring | None
    ) -> list[AnyTask]:
        wanted: dict[object, Wanted] = {}
        tasks: list[AnyTask] = []

        def check_all() -> None:
            for task in tasks:
                task.check(root)

        for search, cancellation in searches:
            choice = search.glob, id(search.hidden)  # Not all callables can be hashed.
            if choice not in wanted:
                wanted[choice] = Wanted(search.glob, root, ignoring, search.hidden)
            patience = Patience(self._timeout, partial(getattr, cancellation, "cancelled"))
            tasks.append(_task(search, wanted[choice], patience, self._max_bytes, check_all))
        return tasks

    def _ignoring(self, root: str, base: str) -> Ignoring | None:
        if not self._honours_files and not self._rules:
            return None
        start = base if root == base or paths.is_beneath(root, base) else root
        return Ignoring(start, root, self._rules, self._gitignore if self._honours_files else None)

    def _gitignore(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path, _MAX_GITIGNORE)[0]
        except DeepFSError as error:
            if is_shortage(error):
                raise  # Without its rules the search would find what it must not.
            return None


def _settle_early(ask: Ask[Search, Any], task: AnyTask, tasks: Sequence[AnyTask]) -> None:
    """Settle a search that ends before the others; for the last, what works for it ends first."""
    if not all(each.is_over for each in tasks):
        ask.settle(task.result)


def _task(
    search: Search, wanted: Wanted, patience: Patience, max_bytes: int, check_all: Callable[[], object]
) -> AnyTask:
    if isinstance(search, GlobSearch):
        return GlobTask(wanted, patience)

    def check() -> None:
        # One file may take long, and nobody else of the pass is to wait for its end.
        check_all()
        patience.check(wanted.root)

    return GrepTask(Grep(search.query, wanted, search.max_count, max_bytes, check), patience)


def _hints(ignoring: Ignoring | None) -> list[str]:
    """Options for ripgrep to leave out about what is ignored.

    It must not read `.gitignore` files by itself: it would wait for a FIFO of that name, and follow links.
    """
    return [*NO_IGNORE_FILES, *(f"--glob=!{pattern}" for pattern in (ignoring.plain() if ignoring else ()))]
