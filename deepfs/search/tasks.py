"""Searches of a tree on disk that are carried out together: the filters, results and deadlines of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from deepfs.disk import Disk, FileRun, FoundFile, is_shortage, leaf
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
from deepfs.search.gitignore import Ignoring
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.search.results import MAX_GLOB_CHARS, MAX_GLOB_MATCHES, Grep, glob_result
from deepfs.text import paths
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult, carrying

__all__ = ["AnyTask", "BatchDeadline", "GlobTask", "GrepTask", "NamedFile", "SearchBatch", "VisitedFile", "Walk"]

ResultT = TypeVar("ResultT", GlobResult, GrepResult)


class NamedFile:
    """A file known by its path."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path: str = path

    def read(self, limit: int) -> bytes:
        """Return the content. Raises TooLargeError over `limit` bytes, NotFoundError if no walk would find the file."""
        try:
            return self._disk.read_file(self.path, limit)[0]
        except (PermissionDeniedError, IsDirectoryError, NotDirectoryError) as error:
            # A PermissionError of the system is about a file inside. The other errors mean that the path leads outside,
            # or to something that is not a file.
            if isinstance(error.__cause__, PermissionError):
                raise
            raise NotFoundError(self.path) from error


class VisitedFile:
    """A file that several greps of a batch visit; it is read once for all of them."""

    __slots__ = ("_content", "_file", "path")

    def __init__(self, file: FoundFile | NamedFile) -> None:
        self._file = file
        self._content: bytes | DeepFSError | None = None
        self.path: str = file.path

    def read(self, limit: int) -> bytes:
        """Return the content. Raises DeepFSError if it cannot be read, or has more than `limit` bytes."""
        if self._content is None:
            try:
                self._content = self._file.read(limit)
            except DeepFSError as error:
                self._content = error
        if isinstance(self._content, DeepFSError):
            raise self._content
        return self._content


AnyFile: TypeAlias = FoundFile | NamedFile | VisitedFile


class _Task(ABC, Generic[ResultT]):
    """One search of a batch; a task of an event loop waits for its `call`."""

    def __init__(self, files: FileFilter, call: BatchedCall[SearchRequest, Any]) -> None:
        self.files: FileFilter = files
        self.call: BatchedCall[SearchRequest, Any] = call
        self.done: str = ""
        """The path up to which all files have been searched, in the order of a walk."""
        self.is_over: bool = False
        self.has_expired: bool = False
        """Whether the search ended at its deadline."""
        self.shortage: DeepFSError | None = None
        """The first error from a lack of system resources, for which a part of the tree was not searched."""

    @property
    @abstractmethod
    def has_enough(self) -> bool:
        """Whether more files would not change the result."""

    def start_in_file(self) -> bool:
        """Note that the path where the search starts is a file. Returns whether that ends the search."""
        return False

    def lack(self, path: str, error: OSError | DeepFSError) -> bool:
        """Return whether the system had too few resources to read `path`; if so, the result will report `error`."""
        if not is_shortage(error):
            return False
        self.shortage = self.shortage or (error if isinstance(error, DeepFSError) else leaf(error, path))
        return True

    @abstractmethod
    def miss(self, path: str, error: OSError) -> None:
        """Record that the directory `path`, with `/` at the end, cannot be read."""

    def _complete(self, result: ResultT) -> ResultT:
        """Mark `result` as truncated if the search is incomplete, and add the error for a lack of resources."""
        result.truncated = result.truncated or self.has_expired or self.shortage is not None
        if self.shortage is not None:
            code = self.shortage.code
            error = error_about(code, None, "{cause}: the search is not complete", cause=self.shortage)
            result.error, result.code = str(error), code
            return carrying(result, error)
        return result

    @abstractmethod
    def result(self) -> ResultT:
        """Return the result, complete or not. Raises the error that prevents a result."""


class GlobTask(_Task[GlobResult]):
    """A search for files by their paths."""

    def __init__(self, files: FileFilter, call: BatchedCall[SearchRequest, Any]) -> None:
        super().__init__(files, call)
        self._matches: list[FileInfo] = []
        self._chars = 0
        self._starts_in_file = False

    @property
    def has_enough(self) -> bool:
        return len(self._matches) > MAX_GLOB_MATCHES or self._chars > MAX_GLOB_CHARS

    def add(self, found: list[FileInfo]) -> bool:
        """Add files, which come sorted by path. Returns whether the search needs no more files."""
        if not self.is_over:
            self._matches += found
            self._chars += sum([len(info.path) for info in found])
        return self.is_over or self.has_enough

    def start_in_file(self) -> bool:
        self._starts_in_file = True
        return True

    def miss(self, path: str, error: OSError) -> None:
        self.lack(path, error)

    def result(self) -> GlobResult:
        """Return the matches sorted by path. Raises NotDirectoryError if the search starts at a file."""
        if self._starts_in_file:
            raise NotDirectoryError(self.files.root)
        result = self._complete(glob_result(self._matches, is_late=self.has_expired))
        if self.shortage is not None:
            result.truncation_reason = "unreadable"
        return result


class GrepTask(_Task[GrepResult]):
    """A search for lines. If `grep` has a limit, files must come sorted by path; otherwise in any order, each once."""

    def __init__(self, grep: Grep, call: BatchedCall[SearchRequest, Any], ignoring: Ignoring | None = None) -> None:
        super().__init__(grep.files, call)
        self.grep: Grep = grep
        self._ignoring = ignoring

    @property
    def has_enough(self) -> bool:
        return self.grep.truncated

    def visit(self, file: AnyFile) -> bool:
        """Search a file unless it was searched before. Returns whether the search needs no more files."""
        if not self.is_over and file.path > self.done:
            try:
                self._search(file)
            except DeadlineError:
                self.has_expired = True
        return self.is_over or self.has_expired or self.has_enough

    def _search(self, file: AnyFile) -> None:
        try:
            content = file.read(self.grep.max_bytes)
        except NotFoundError:
            return
        except DeepFSError as error:
            if not self.lack(file.path, error):
                self.grep.skip()
        else:
            self.grep.scan(file.path, content)

    def take(self, found: Mapping[str, Iterable[GrepMatch]], most_chars: int) -> None:
        """Add the matches of files that were searched elsewhere, except those that were searched before.

        Their texts together have at most `most_chars` characters.
        """
        if not self.is_over:
            new = (matches for path, matches in found.items() if path > self.done)
            self.grep.add([*chain.from_iterable(new)], most_chars)

    def miss(self, path: str, error: OSError) -> None:
        if path > self.done and not self.lack(path, error):
            self.grep.skip()

    def result(self) -> GrepResult:
        """Return the matches sorted by path, then line."""
        # Matches of one file are together and in order already.
        self.grep.matches.sort(key=attrgetter("path"))
        found = self.grep.result()
        found.skipped += 0 if self._ignoring is None else self._ignoring.failed
        return self._complete(found)


AnyTask: TypeAlias = GlobTask | GrepTask


class SearchBatch:
    """The `tasks` of searches that are carried out together; all start at `root`.

    `hints` are options with which ripgrep leaves out unwanted files; files that it leaves out wrongly are searched too.
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
                # The search of one file may take long; meanwhile, other tasks of the batch must end at their deadlines.
                task.grep.deadline = BatchDeadline(self, [task])

    def search(self, file: FoundFile | NamedFile, tasks: Sequence[GrepTask]) -> list[GrepTask]:
        """Search one file for `tasks`, which want it. Returns the tasks that need no more files."""
        visited = file if len(tasks) == 1 else VisitedFile(file)
        finished = [task for task in tasks if task.visit(visited)]
        if finished:
            self.end([task for task in finished if task.has_expired])
        return finished

    def end(self, tasks: Iterable[AnyTask]) -> None:
        """End `tasks`. Each gets its result at once, but the last task of the batch only when all work has ended."""
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
"""Seconds between two checks of the deadlines of a batch."""


class BatchDeadline(Deadline):
    """Passes when `tasks` of the batch are over; a check ends every task of the batch whose own deadline has passed."""

    __slots__ = ("_batch", "_next", "_tasks")

    def __init__(self, batch: SearchBatch, tasks: Sequence[AnyTask]) -> None:
        super().__init__()
        self._batch = batch
        self._tasks = tasks
        self._next = 0.0

    @property
    def parts(self) -> list[Deadline]:
        return [task.call.deadline for task in self._batch.tasks if not task.is_over]

    def is_over(self) -> bool:
        self._batch.end_expired()
        return all(task.is_over for task in self._batch.tasks)

    def check(self, path: str = "/") -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _CHECK_S
        self.take_turns()
        self._batch.end_expired()
        if all(task.is_over for task in self._tasks):
            raise DeadlineError(path, "")


_Choose: TypeAlias = Callable[[str, list[str], Deadline], list[str]]


class Walk:
    """Searches file after file for some tasks of a batch, which end when they have enough.

    It is the `Choice` of a walk: what some task wants. Many searches want the same files, so each filter is asked once.
    """

    def __init__(self, batch: SearchBatch, tasks: Iterable[AnyTask]) -> None:
        self.tasks: list[AnyTask] = list(tasks)
        """The tasks that still need files."""
        self._batch = batch
        self._last = ""
        self._start = len(paths.join(batch.root, "_")) - 1
        self._deadline = BatchDeadline(batch, self.tasks)
        self._selected: dict[FileFilter, list[str]] = {}
        """What each filter selected of the files that the walk asked about last."""
        self._left: set[AnyTask] = set()
        """The tasks that were left out since the last files were chosen."""
        self._globs: dict[FileFilter, list[GlobTask]] = {}
        self._greps: dict[FileFilter, list[GrepTask]] = {}
        for task in self.tasks:
            if isinstance(task, GlobTask):
                self._globs.setdefault(task.files, []).append(task)
            else:
                self._greps.setdefault(task.files, []).append(task)
        self._set_filters()

    def _set_filters(self) -> None:
        self._filters = list({**self._globs, **self._greps})
        alone = self._filters[0] if len(self._filters) == 1 else None
        self.files: _Choose = self._wanted_files if alone is None else alone.files
        self.directories: _Choose = self._wanted_directories if alone is None else alone.directories

    def leave_out(self, tasks: Iterable[AnyTask]) -> None:
        """Continue the walk without `tasks`."""
        for task in tasks:
            task.done = max(task.done, self._last)
            self._left.add(task)
            self.tasks.remove(task)
            groups: dict[FileFilter, list[Any]] = self._globs if isinstance(task, GlobTask) else self._greps
            groups[task.files].remove(task)
            if not groups[task.files]:
                del groups[task.files]
        self._set_filters()

    def _wanted_files(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        self._selected = {files: files.files(directory, names, deadline) for files in self._filters}
        longest = max(self._selected.values(), key=len, default=names)
        if len(longest) == len(names):
            return names
        wanted = set(chain.from_iterable(self._selected.values()))
        return [name for name in names if name in wanted]

    def _wanted_directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        wanted: set[str] = set()
        for files in self._filters:
            wanted.update(files.directories(directory, names, deadline))
            if len(wanted) == len(names):
                return names
        return [name for name in names if name in wanted]

    def steps(self) -> Generator[None, None, None]:
        """Search file after file while there are tasks; each step is one file for greps, or some files for globs."""
        if not self.tasks:
            return
        walk = self._batch.disk.walk_runs(self._batch.root, self, unreadable=self._miss, deadline=self._deadline)
        with suppress(DeadlineError), closing(walk):
            for run in walk:
                self._deadline.check(run.prefix)
                chosen = self._chosen(run)
                if self._globs and self._glob(run, chosen):
                    yield
                if self._greps:
                    yield from self._grep(run, chosen)
                if not self.tasks:
                    return
            # Other tasks of the batch may go on with ripgrep.
            self._end([*self.tasks])

    def _chosen(self, run: FileRun) -> dict[FileFilter, list[str]]:
        """The files of `run` that each filter selects."""
        if len(run.prefix) < self._start:
            self._end([task for task in self.tasks if task.start_in_file()])
            return {files: run.names if self._batch.root in files else [] for files in self._filters}
        if len(self._filters) == 1:
            return {self._filters[0]: run.names}
        # A walk yields files just after it had them chosen. It leaves out those that a judge refuses, and some links.
        found = set(run.names)
        return {files: [name for name in names if name in found] for files, names in self._selected.items()}

    def _glob(self, run: FileRun, chosen: dict[FileFilter, list[str]]) -> bool:
        """Add the files of `run` to the globs that want them, after one look at each; returns whether there are any."""
        if len(self._filters) == 1:
            names = run.names
        else:
            wanted = set(chain.from_iterable(chosen[files] for files in self._globs))
            names = [name for name in run.names if name in wanted]
        infos = run.infos(names, self._deadline)
        by_name = dict(zip(names, infos, strict=True)) if len(self._globs) > 1 else {}
        for files, group in [*self._globs.items()]:
            found = [by_name[name] for name in chosen[files]] if by_name else infos
            if ended := [task for task in group if task.add(found)]:
                self._end(ended)
        return bool(names)

    def _grep(self, run: FileRun, chosen: dict[FileFilter, list[str]]) -> Generator[None, None, None]:
        wanting: dict[str, list[GrepTask]] = {}
        for files, group in self._greps.items():
            for name in chosen[files]:
                wanting.setdefault(name, []).extend(group)
        self._left.clear()
        for name in run.names if len(wanting) == len(run.names) else sorted(wanting):
            self._deadline.check(run.prefix)
            tasks = wanting[name]
            if self._left:
                tasks = [task for task in tasks if task not in self._left]
            if tasks:
                file = run.file(name)
                ended = self._batch.search(file, tasks)
                self._last = file.path
                if ended:
                    self._end(ended)
                yield

    def _end(self, tasks: Sequence[AnyTask]) -> None:
        self.leave_out(tasks)
        self._batch.end(tasks)

    def _miss(self, directory: str, error: OSError) -> None:
        for task in self.tasks:
            if task.files.may_enter(directory):
                task.miss(f"{directory.rstrip('/')}/", error)
