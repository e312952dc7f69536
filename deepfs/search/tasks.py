"""Searches of a tree on disk that are carried out together: what each wants, what it found, when it ends."""

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from operator import attrgetter
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from deepfs.disk import Disk, FoundFile, is_shortage, leaf, modified_at
from deepfs.errors import (
    DeadlineError,
    DeepFSError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
    error_about,
)
from deepfs.search.batching import BatchedCall
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.search.results import MAX_GLOB_MATCHES, Grep, glob_result
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo, GlobResult, GrepResult, carrying

__all__ = ["AnyTask", "BatchDeadline", "GlobTask", "GrepTask", "NamedFile", "SearchBatch", "VisitedFile", "Walk"]

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


class VisitedFile:
    """A file that searches of a batch visit: it is read once for all of them."""

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
    """One search of a batch, for the task of an event loop that waits for `call`."""

    def __init__(self, files: FileFilter, call: BatchedCall[SearchRequest, Any]) -> None:
        self.files: FileFilter = files
        self.call: BatchedCall[SearchRequest, Any] = call
        self.done: str = ""
        """A path up to which nothing is left, in the order of a walk."""
        self.is_over: bool = False
        self.has_expired: bool = False
        """Whether it ended at its deadline."""
        self.shortage: DeepFSError | None = None
        """What kept some of the tree from being looked at, though it could be."""

    def visit(self, file: VisitedFile) -> bool:
        """Search a file, unless that was done; whether the search needs no more files."""
        if not self.is_over and file.path > self.done:
            try:
                self._search(file)
            except DeadlineError:
                self.has_expired = True
        return self.is_over or self.has_expired or self.has_enough

    @property
    @abstractmethod
    def has_enough(self) -> bool:
        """Whether more files would change nothing."""

    @abstractmethod
    def _search(self, file: VisitedFile) -> None: ...

    def start_in_file(self) -> bool:
        """Learn that the search starts in a file; whether that ends it."""
        return False

    def lack(self, path: str, error: OSError | DeepFSError) -> bool:
        """Whether the system had too few resources to look at `path`, which the result then tells."""
        if not is_shortage(error):
            return False
        self.shortage = self.shortage or (error if isinstance(error, DeepFSError) else leaf(error, path))
        return True

    @abstractmethod
    def miss(self, path: str, error: OSError) -> None:
        """Count a directory, with `/` at the end, that cannot be read."""

    def _complete(self, result: ResultT) -> ResultT:
        """`result`, which says whether it is incomplete."""
        result.truncated = result.truncated or self.has_expired or self.shortage is not None
        if self.shortage is not None:
            code = self.shortage.code
            error = error_about(code, None, "{cause}: the search is not complete", cause=self.shortage)
            result.error, result.code = str(error), code
            return carrying(result, error)
        return result

    @abstractmethod
    def result(self) -> ResultT:
        """The result, complete or as far as the search came; raises what kept it from having one."""


class GlobTask(_Task[GlobResult]):
    """A search for files by their paths."""

    def __init__(self, files: FileFilter, call: BatchedCall[SearchRequest, Any]) -> None:
        super().__init__(files, call)
        self._matches: list[FileInfo] = []
        self._starts_in_file = False

    @property
    def has_enough(self) -> bool:
        return len(self._matches) > MAX_GLOB_MATCHES

    def _search(self, file: VisitedFile) -> None:
        self._matches.append(file.info())

    def start_in_file(self) -> bool:
        self._starts_in_file = True
        return True

    def miss(self, path: str, error: OSError) -> None:
        self.lack(path, error)

    def result(self) -> GlobResult:
        """Sorted by path; NotDirectoryError where the search starts in a file."""
        if self._starts_in_file:
            raise NotDirectoryError(self.files.root)
        result = self._complete(glob_result(self._matches, is_late=self.has_expired))
        if self.shortage is not None:
            result.truncation_reason = "unreadable"
        return result


class GrepTask(_Task[GrepResult]):
    """A search for lines. Files must come sorted by path where `grep` has a limit, otherwise each once."""

    def __init__(self, grep: Grep, call: BatchedCall[SearchRequest, Any]) -> None:
        super().__init__(grep.files, call)
        self.grep: Grep = grep

    @property
    def has_enough(self) -> bool:
        return self.grep.truncated

    def _search(self, file: VisitedFile) -> None:
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
        return self._complete(self.grep.result())


AnyTask: TypeAlias = GlobTask | GrepTask


class SearchBatch:
    """Searches that are carried out together by `tasks`; all start at `root`.

    `hints` are options by which ripgrep leaves out what is not wanted; what it leaves out wrongly is looked at anyway.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        tasks: Sequence[AnyTask],
        *,
        max_bytes: int,
        hints: Iterable[str],
    ) -> None:
        self.disk = disk
        self.root = root
        self.tasks: Sequence[AnyTask] = tasks
        self.max_bytes = max_bytes
        self.hints: tuple[str, ...] = tuple(hints)
        for task in tasks:
            if isinstance(task, GrepTask):
                # One file may take long, and the others of the batch are not to wait for its end.
                task.grep.deadline = BatchDeadline(self, [task])

    def search(self, file: FoundFile | NamedFile, tasks: Iterable[AnyTask]) -> list[AnyTask]:
        """Search one file for `tasks`, which want it; those that need no more files."""
        visited = VisitedFile(file, self.max_bytes)
        finished = [task for task in tasks if task.visit(visited)]
        if finished:
            self.end([task for task in finished if task.has_expired])
        return finished

    def end(self, tasks: Iterable[AnyTask]) -> None:
        """End `tasks`. Each gets its result now, but the last of the batch only when all work has ended."""
        for task in tasks:
            if not task.is_over:
                task.is_over = True
                if not all(other.is_over for other in self.tasks):
                    task.call.settle(task.result)

    def end_expired(self) -> None:
        """End the tasks whose deadlines have passed."""
        for task in self.tasks:
            if not task.is_over and task.call.deadline.has_passed:
                task.has_expired = True
                self.end([task])


_CHECK_S = 0.001
"""Seconds between two looks at the deadlines of a batch."""


class BatchDeadline(Deadline):
    """Passes when `tasks` of the batch are over; a check ends every task of the batch whose own deadline has passed."""

    __slots__ = ("_batch", "_next", "_tasks")

    def __init__(self, batch: SearchBatch, tasks: Sequence[AnyTask]) -> None:
        super().__init__()
        self._batch = batch
        self._tasks = tasks
        self._next = 0.0

    def check(self, path: str = "/") -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _CHECK_S
        self._batch.end_expired()
        if all(task.is_over for task in self._tasks):
            raise DeadlineError(path, "")


class Walk:
    """Searches file after file for some tasks of a batch, which end when they have enough."""

    _groups: dict[FileFilter, list[AnyTask]]

    def __init__(self, batch: SearchBatch, tasks: Iterable[AnyTask]) -> None:
        self.tasks: list[AnyTask] = list(tasks)
        """Those that still need files."""
        self._batch = batch
        self._last = ""
        self._deadline = BatchDeadline(batch, self.tasks)
        # Many searches want the same files, so each filter is asked once.
        self._groups = {}
        for task in self.tasks:
            self._groups.setdefault(task.files, []).append(task)

    def leave_out(self, tasks: Iterable[AnyTask]) -> None:
        """Go on without `tasks`."""
        for task in tasks:
            task.done = max(task.done, self._last)
            self.tasks.remove(task)
            self._groups[task.files].remove(task)
            if not self._groups[task.files]:
                del self._groups[task.files]

    def steps(self) -> Generator[None, None, None]:
        """Search file after file, each step one that any task wants, as long as there are tasks."""
        if not self.tasks:
            return
        deadline = self._deadline
        walk = self._batch.disk.walk(self._batch.root, enter=self._may_enter, unreadable=self._miss, deadline=deadline)
        with suppress(DeadlineError), closing(walk):
            for file in walk:
                deadline.check(file.path)
                if file.path == self._batch.root:
                    self._start_in_file()
                wanting = [task for files, group in self._groups.items() if file.path in files for task in group]
                if wanting:
                    ended = self._batch.search(file, wanting)
                    self._last = file.path
                    if ended:
                        self._end(ended)
                    yield
                    if not self.tasks:
                        return
            # Others of the batch may go on with ripgrep.
            self._end([*self.tasks])

    def _start_in_file(self) -> None:
        self._end([task for task in self.tasks if task.start_in_file()])

    def _end(self, tasks: list[AnyTask]) -> None:
        self.leave_out(tasks)
        self._batch.end(tasks)

    def _may_enter(self, directory: str) -> bool:
        self._deadline.check(directory)
        return any(files.may_enter(directory) for files in self._groups)

    def _miss(self, directory: str, error: OSError) -> None:
        for files, group in self._groups.items():
            if files.may_enter(directory):
                for task in group:
                    task.miss(f"{directory.rstrip('/')}/", error)
