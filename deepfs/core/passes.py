"""Searches of one tree that are carried out together: each file is looked at once for all of them."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from time import monotonic

from deepfs.core.disk import Disk, FoundFile, Patience
from deepfs.core.ripgrep import NO_IGNORE_FILES
from deepfs.core.search import Wanted
from deepfs.core.tasks import AnyTask, NamedFile, Seen
from deepfs.errors import DeadlineError

__all__ = ["Pass", "PassPatience", "Walk"]

_CHECK_S = 0.001
"""Seconds between two looks at whether time is up."""


class Pass:
    """The `tasks` to be carried out together; all start at `root`.

    `hints` are options by which ripgrep leaves out what is not wanted; what it leaves out wrongly is looked at anyway.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        tasks: Sequence[AnyTask],
        *,
        max_bytes: int,
        hints: Iterable[str] = NO_IGNORE_FILES,
    ) -> None:
        self.disk = disk
        self.root = root
        self.tasks: Sequence[AnyTask] = tasks
        self.max_bytes = max_bytes
        self.hints: tuple[str, ...] = tuple(hints)

    def search(self, file: FoundFile | NamedFile, tasks: Iterable[AnyTask]) -> list[AnyTask]:
        """Search one file for `tasks`, which want it; those that want no more."""
        seen = Seen(file, self.max_bytes)
        return [task for task in tasks if task.attend(seen)]


class PassPatience(Patience):
    """Lasts as long as that of any of `tasks`; ends every task of the pass whose own is at an end."""

    __slots__ = ("_due", "_pass", "_tasks")

    def __init__(self, searches: Pass, tasks: Sequence[AnyTask]) -> None:
        super().__init__()
        self._pass = searches
        self._tasks = tasks
        self._due = 0.0

    def check(self, path: str) -> None:
        now = monotonic()
        if now < self._due:
            return
        self._due = now + _CHECK_S
        for task in self._pass.tasks:
            if not task.is_over:
                task.check(path)
        if all(task.is_over for task in self._tasks):
            raise DeadlineError.about(path, "Error: Time is up for ")


class Walk:
    """The way through the tree for some tasks of a pass, which end when they have enough."""

    _groups: dict[Wanted, list[AnyTask]]

    def __init__(self, searches: Pass, tasks: Iterable[AnyTask]) -> None:
        self.tasks: list[AnyTask] = list(tasks)
        """Those that the walk is for, as yet."""
        self._pass = searches
        self._last = ""
        self._patience = PassPatience(searches, self.tasks)
        # Many searches want the same files, which is asked once then.
        self._groups = {}
        for task in self.tasks:
            self._groups.setdefault(task.wanted, []).append(task)

    def leave_out(self, tasks: Iterable[AnyTask]) -> None:
        """Go on without `tasks`."""
        for task in tasks:
            task.done = max(task.done, self._last)
            self.tasks.remove(task)
            self._groups[task.wanted].remove(task)
            if not self._groups[task.wanted]:
                del self._groups[task.wanted]

    def steps(self) -> Generator[None, None, None]:
        """Search file after file, each step one that any task wants, as long as there are tasks."""
        if not self.tasks:
            return
        patience = self._patience
        walk = self._pass.disk.walk(self._pass.root, enter=self._may_enter, unreadable=self._miss, patience=patience)
        with suppress(DeadlineError), closing(walk):
            for file in walk:
                patience.check(file.path)
                if file.path == self._pass.root:
                    self._start_in_file()
                wanting = [task for wanted, group in self._groups.items() if file.path in wanted for task in group]
                if wanting:
                    ended = self._pass.search(file, wanting)
                    self._last = file.path
                    if ended:
                        self._end(ended)
                    yield
                    if not self.tasks:
                        return
            # Others of the pass may go on with ripgrep.
            self._end([*self.tasks])

    def _start_in_file(self) -> None:
        for task in self.tasks:
            task.start_in_file()
        self.leave_out([task for task in self.tasks if task.is_over])

    def _end(self, tasks: list[AnyTask]) -> None:
        self.leave_out(tasks)
        for task in tasks:
            task.end()

    def _may_enter(self, directory: str) -> bool:
        self._patience.check(directory)
        return any(wanted.may_enter(directory) for wanted in self._groups)

    def _miss(self, directory: str, error: OSError) -> None:
        for wanted, group in self._groups.items():
            if wanted.may_enter(directory):
                for task in group:
                    task.miss(f"{directory}/", error)
