"""Glob and grep over a tree on disk, in a worker thread."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from deepfs.core import paths
from deepfs.core.cancellation import Cancellation
from deepfs.core.disk import Disk, Patience, is_shortage
from deepfs.core.engines import Automatic, Engine
from deepfs.core.ignore import IgnoreOption, Ignoring, compile_rules
from deepfs.core.passes import Pass
from deepfs.core.ripgrep import NO_IGNORE_FILES
from deepfs.core.scan import Query
from deepfs.core.search import MAX_SEARCHED_BYTES, Grep, Hidden, Wanted
from deepfs.core.tasks import AnyTask, GlobTask, GrepTask
from deepfs.core.together import Ask
from deepfs.errors import DeepFSError
from deepfs.types import GlobResult, GrepResult

__all__ = ["GlobSearch", "GrepSearch", "LocalSearch", "Search"]

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
