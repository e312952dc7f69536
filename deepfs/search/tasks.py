"""One search of a tree on disk: what it wants, what it found, when it ends."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from operator import attrgetter
from time import monotonic
from typing import Generic, TypeAlias, TypeVar

from deepfs.disk import Disk, FoundFile, Patience, is_shortage, leaf, modified_at
from deepfs.errors import (
    DeadlineError,
    DeepFSError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.search.results import MAX_GLOB_MATCHES, Grep, Wanted, glob_result
from deepfs.search.ripgrep import NO_IGNORE_FILES
from deepfs.types import FileInfo, GlobResult, GrepResult

__all__ = ["AnyTask", "GlobTask", "GrepTask", "NamedFile", "Pass", "PassPatience", "Seen", "Walk"]

ResultT = TypeVar("ResultT", GlobResult, GrepResult)


class NamedFile:
    """A file known by its path."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path: str = path

    def stat(self) -> os.stat_result:
        """The status of the file."""
        return self._disk.stat(self.path)

    def read(self, limit: int) -> bytes:
        """The content; TooLargeError where it is over `limit` bytes, NotFoundError where no walk would find it."""
        try:
            return self._disk.read_file(self.path, limit)[0]
        except (PermissionDeniedError, IsDirectoryError, NotDirectoryError) as error:
            # The system refuses what is inside alone; the others lead outside, or to what is no file.
            if isinstance(error.__cause__, PermissionError):
                raise
            raise NotFoundError(self.path) from error


class Seen:
    """A file that a pass comes by; what one search has it find out, the others are told."""

    __slots__ = ("_content", "_file", "_info", "_max_bytes", "path")

    def __init__(self, file: FoundFile | NamedFile, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._content: bytes | DeepFSError | None = None
        self._info: FileInfo | None = None
        self.path: str = file.path

    def info(self) -> FileInfo:
        """What a listing says of it."""
        if self._info is None:
            self._info = _info(self._file)
        return self._info

    def content(self) -> bytes:
        """What it holds; raises where it cannot be read, or is too large to be searched."""
        if self._content is None:
            try:
                self._content = self._file.read(self._max_bytes)
            except DeepFSError as error:
                self._content = error
        if isinstance(self._content, DeepFSError):
            raise self._content
        return self._content


def _info(file: FoundFile | NamedFile) -> FileInfo:
    try:
        status = file.stat()
    except DeepFSError:
        return FileInfo(file.path, False)
    return FileInfo(file.path, False, status.st_size, modified_at(status))


class _Task(ABC, Generic[ResultT]):
    """One search. `on_end` is called once, on the thread of the pass, when `result` is known."""

    on_end: Callable[[], object] | None = None

    def __init__(self, wanted: Wanted, patience: Patience) -> None:
        self.wanted: Wanted = wanted
        self.done: str = ""
        """A path up to which nothing is left, in the order of a walk."""
        self.is_over: bool = False
        self.has_expired: bool = False
        """Whether it ended for want of time, or because nobody waits for it any more."""
        self.shortage: DeepFSError | None = None
        """What kept some of the tree from being looked at, though it could be."""
        self._patience = patience

    def check(self, path: str) -> None:
        """End it where its time is up."""
        try:
            self._patience.check(path)
        except DeadlineError:
            self._expire()

    def attend(self, file: Seen) -> bool:
        """Search a file that it wants, unless that was done; whether it wants no more.

        Where its time is up meanwhile, it ends.
        """
        if not self.is_over and file.path > self.done:
            try:
                self._search(file)
            except DeadlineError:
                self._expire()
        return self.is_over or self.has_enough

    def end(self) -> None:
        """Nothing more comes."""
        if not self.is_over:
            self.is_over = True
            if self.on_end is not None:
                self.on_end()

    def _expire(self) -> None:
        self.has_expired = True
        self.end()

    @property
    @abstractmethod
    def has_enough(self) -> bool:
        """Whether more files would change nothing."""

    @abstractmethod
    def _search(self, file: Seen) -> None: ...

    def start_in_file(self) -> None:
        """Learn that what it starts in is a file."""
        return

    def lack(self, path: str, error: OSError | DeepFSError) -> bool:
        """Whether `path` was not looked at for want of something of the system, which the result then tells."""
        if not is_shortage(error):
            return False
        self.shortage = self.shortage or (error if isinstance(error, DeepFSError) else leaf(error, path))
        return True

    @abstractmethod
    def miss(self, path: str, error: OSError) -> None:
        """Count a directory, with `/` at the end, that cannot be read."""

    def _told(self, result: ResultT) -> ResultT:
        """`result`, which says whether it is incomplete."""
        result.truncated = result.truncated or self.has_expired or self.shortage is not None
        if self.shortage is not None:
            result.error, result.code = f"{self.shortage}: the search is not complete", self.shortage.code
        return result

    @abstractmethod
    def result(self) -> ResultT:
        """The result, complete or as far as the search came; raises what kept it from having one."""


class GlobTask(_Task[GlobResult]):
    """A search for files by their paths."""

    def __init__(self, wanted: Wanted, patience: Patience) -> None:
        super().__init__(wanted, patience)
        self._matches: list[FileInfo] = []
        self._starts_in_file = False

    @property
    def has_enough(self) -> bool:
        return len(self._matches) > MAX_GLOB_MATCHES

    def _search(self, file: Seen) -> None:
        self._matches.append(file.info())

    def start_in_file(self) -> None:
        self._starts_in_file = True
        self.end()

    def miss(self, path: str, error: OSError) -> None:
        self.lack(path, error)

    def result(self) -> GlobResult:
        """Sorted by path; NotDirectoryError where the search starts in a file."""
        if self._starts_in_file:
            raise NotDirectoryError(self.wanted.root)
        result = self._told(glob_result(self._matches))
        if self.shortage is not None:
            result.truncation_reason = "unreadable"
        elif self.has_expired:
            result.truncation_reason = "budget"
        return result


class GrepTask(_Task[GrepResult]):
    """A search for lines. Files must come sorted by path where `grep` has a limit, otherwise each once."""

    def __init__(self, grep: Grep, patience: Patience) -> None:
        super().__init__(grep.wanted, patience)
        self.grep: Grep = grep

    @property
    def has_enough(self) -> bool:
        return self.grep.truncated

    def _search(self, file: Seen) -> None:
        try:
            content = file.content()
        except NotFoundError:
            return
        except DeepFSError as error:
            if not self.lack(file.path, error):
                self.grep.skip()
        else:
            self.grep.scan(file.path, content)

    def miss(self, path: str, error: OSError) -> None:
        if path > self.done and not self.lack(path, error):
            self.grep.skip()

    def result(self) -> GrepResult:
        """Sorted by path, then line."""
        # Matches of one file are together and in order already.
        self.grep.matches.sort(key=attrgetter("path"))
        return self._told(self.grep.result())


AnyTask: TypeAlias = GlobTask | GrepTask


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
            raise DeadlineError(path, "")


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
