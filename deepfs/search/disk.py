"""Searches of a tree on disk: one walk filters, reads and matches, and ripgrep names the files of a large tree.

Searches that start at the same directory and at about the same time share a walk, so each file is read once for all.

ripgrep opens files by name, so a process that swaps a directory for a symlink during the search may lead it elsewhere.
Nothing from there is reported or counted, since every file that ripgrep finds is opened again from the root. The lines
that it found are used for a file that cannot have changed meanwhile (`UnchangedFiles`), and whose lines are the same
for ripgrep and for the contract (`has_plain_lines`). All other files that it finds, or leaves out, are searched here.
So a search finds the same with ripgrep and without.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from operator import attrgetter
from threading import BoundedSemaphore
from time import monotonic
from typing import Any

from deepfs.disk import Disk, FileRun, UnchangedFiles, is_shortage, storage_error
from deepfs.errors import (
    DeadlineError,
    DeepFSError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
    error_about,
)
from deepfs.search.gitignore import IgnoreOption, Ignoring, compile_rules
from deepfs.search.query import parse_numbered_matches
from deepfs.search.request import (
    MAX_GLOB_CHARS,
    MAX_GLOB_MATCHES,
    MAX_SEARCHED_BYTES,
    FileFilter,
    GrepRequest,
    GrepScan,
    SearchRequest,
    glob_result,
)
from deepfs.search.ripgrep import MAX_NEEDLE, NO_IGNORE_FILES, Ripgrep, RipgrepError, RipgrepRun, find_ripgrep
from deepfs.text import paths
from deepfs.text.access import AccessCheck
from deepfs.text.lines import BOM, has_plain_lines
from deepfs.text.media import is_binary_name
from deepfs.threads.batching import BatchedCall
from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import after_fork
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult, attach_error

FEW = 300
"""Trees of fewer files are searched without ripgrep: that takes as long as ripgrep takes to start and exit."""
_MOST_PROCESSES = 4
"""Processes of ripgrep at a time; each has threads for all processors."""
_processes = BoundedSemaphore(_MOST_PROCESSES)
_MOST_LINES = 10_000
"""The most lines of a file that are taken from ripgrep: a few milliseconds of work, during which no deadline is
checked."""
_MAX_GITIGNORE = 128 * 1024
_CHECK_S = 0.001
"""Seconds between two checks of the deadlines of a batch."""


@after_fork
def _after_fork() -> None:
    global _processes
    _processes = BoundedSemaphore(_MOST_PROCESSES)


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
        ripgrep: bool = True,
    ) -> None:
        if isinstance(ignore, str) and ignore != "git":
            raise ValueError(f"ignore= takes 'git', a list of patterns or None, not {ignore!r}")
        self._disk = disk
        self._max_bytes = max_bytes
        self._honours_files = ignore == "git"
        self._rules = compile_rules(() if ignore is None or isinstance(ignore, str) else ignore)
        self._ignores = self._honours_files or bool(self._rules)
        self._uses_ripgrep = ripgrep

    def run_batch(
        self,
        calls: Sequence[BatchedCall[SearchRequest, Any]],
        root: str,
        base: str = "/",
        access: AccessCheck | None = None,
    ) -> None:
        """Carry out the searches of `calls` together, all of which start at `root`, and settle each when it ends.

        Files that the access check refuses are not found. Ignore files are read without asking it. A call with an
        invalid pattern fails alone.
        """
        batch = _Batch(self._disk.with_access(access), root, self._max_bytes)
        if self._ignores:
            start = base if root == base or paths.is_beneath(root, base) else root
            read = self._gitignore if self._honours_files else None
            # Lines are compiled one by one, so this asks more often than a walk.
            check = _Deadline(batch.tasks, batch.tasks, every=0).check
            batch.ignoring = Ignoring(start, root, self._rules, read, check)
        filters: dict[object, FileFilter] = {}
        for call in calls:
            chosen = call.request.file_glob, id(call.request.hidden)  # Not all callables can be hashed.
            try:
                if chosen not in filters:
                    filters[chosen] = FileFilter(call.request, root, batch.ignoring)
                batch.tasks.append(_SearchTask(call, filters[chosen], batch))
            except DeepFSError as error:
                call.fail(error)
        with suppress(DeadlineError):
            batch.run(uses_ripgrep=self._uses_ripgrep)
        for task in batch.tasks:
            task.is_over = True
            task.call.settle(task.result)

    def _gitignore(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path, _MAX_GITIGNORE)[0]
        except DeepFSError as error:
            if is_shortage(error):
                raise  # Without the rules of this file the search would find ignored files.
            return None


class _SearchTask:
    """One search of a batch: the files that it wants, and what it has found. `grep` is None for a glob.

    A grep with a limit gets its files sorted by path; other greps in any order, each once. Globs get theirs sorted.
    """

    def __init__(self, call: BatchedCall[SearchRequest, Any], files: FileFilter, batch: "_Batch") -> None:
        self.call = call
        self.files = files
        self._batch = batch
        self.is_over: bool = False
        self.has_expired: bool = False
        """Whether the search ended at its deadline."""
        self._infos: list[FileInfo] = []
        self._chars = 0
        self.grep: GrepScan | None = None
        self.restart()

    def restart(self) -> None:
        """Forget what a grep has found."""
        self._shortage: DeepFSError | None = None
        """The first error from a lack of system resources, for which a part of the tree was not searched."""
        if isinstance(self.call.request, GrepRequest):
            self.grep = GrepScan(self.call.request, self.files, self._batch.max_bytes)
            # The search of one file may take long; meanwhile, other tasks of the batch must end at their deadlines.
            self.grep.deadline = _Deadline(self._batch.tasks, [self])

    @property
    def suits_ripgrep(self) -> bool:
        """Whether ripgrep excludes no file that matches, and searches few unwanted files."""
        return self.grep is not None and self.files.glob is None and 0 < len(self.grep.required) <= MAX_NEEDLE

    @property
    def has_enough(self) -> bool:
        """Whether more files would not change the result."""
        if self.grep is not None:
            return self.grep.truncated
        return len(self._infos) > MAX_GLOB_MATCHES or self._chars > MAX_GLOB_CHARS

    def add(self, infos: list[FileInfo]) -> None:
        """Add files to a glob."""
        self._infos += infos
        self._chars += sum([len(info.path) for info in infos])

    def scan(self, path: str, content: bytes | DeepFSError) -> None:
        """Search a file, or record that it could not be read; one that is gone is no error."""
        assert self.grep is not None
        if isinstance(content, bytes):
            try:
                self.grep.scan(path, content)
            except DeadlineError:
                self.has_expired = True
        elif not isinstance(content, NotFoundError):
            self.miss(path, content)

    def miss(self, path: str, error: OSError | DeepFSError) -> None:
        """Record that a file or directory cannot be read."""
        if is_shortage(error):
            self._shortage = self._shortage or storage_error(error, path)
        elif self.grep is not None:
            self.grep.skip()

    def result(self) -> GlobResult | GrepResult:
        """The result, complete or not. Raises NotDirectoryError for a glob that starts at a file."""
        found: GlobResult | GrepResult
        if self.grep is None:
            if self._batch.starts_in_file:
                raise NotDirectoryError(self.files.root)
            found = glob_result(self._infos, is_late=self.has_expired)
            if self._shortage is not None:
                found.truncation_reason = "unreadable"
        else:
            # Matches of one file are together and in order already.
            self.grep.matches.sort(key=attrgetter("path"))
            found = self.grep.result()
            found.skipped += 0 if self._batch.ignoring is None else self._batch.ignoring.failed
        found.truncated = found.truncated or self.has_expired or self._shortage is not None
        if self._shortage is None:
            return found
        error = error_about(self._shortage.code, None, "{cause}: the search is not complete", cause=self._shortage)
        found.error, found.code = str(error), self._shortage.code
        return attach_error(found, error)


class _Deadline(Deadline):
    """Passes when `tasks` are over; a check ends every task of the batch whose own deadline has passed."""

    __slots__ = ("_batch", "_every", "_next", "_tasks")

    def __init__(self, batch: Sequence[_SearchTask], tasks: Sequence[_SearchTask], every: float = _CHECK_S) -> None:
        super().__init__()
        self._batch = batch
        self._tasks = tasks
        self._every = every
        self._next = 0.0

    @property
    def parts(self) -> list[Deadline]:
        return [task.call.deadline for task in self._batch if not task.is_over]

    def is_over(self) -> bool:
        for task in self._batch:
            if not task.is_over and task.call.deadline.has_passed:
                task.has_expired = True
                _end(self._batch, [task])
        return all(task.is_over for task in self._batch)

    def check(self, path: str = "/") -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self.take_turns()
        if self.is_over() or all(task.is_over for task in self._tasks):
            raise DeadlineError(path, "")


def _end(batch: Sequence[_SearchTask], tasks: Iterable[_SearchTask]) -> None:
    """End some tasks of a batch. Each gets its result at once, but the last one only when all work has ended."""
    for task in tasks:
        if not task.is_over:
            task.is_over = True
            if not all(other.is_over for other in batch):
                task.call.settle(task.result)


class _Batch:
    """Searches that are carried out together; all start at `root`."""

    def __init__(self, disk: Disk, root: str, max_bytes: int) -> None:
        self.disk = disk
        self.root = root
        self.max_bytes = max_bytes
        self._start = len(root.rstrip("/")) + 1
        self.tasks: list[_SearchTask] = []
        self.ignoring: Ignoring | None = None
        self.starts_in_file: bool = False

    def run(self, *, uses_ripgrep: bool) -> None:
        """Search until nothing is left. Raises DeadlineError if all tasks are over before."""
        if self.ignoring is not None:
            self.ignoring.prepare()
        greps = [task for task in self.tasks if task.suits_ripgrep] if uses_ripgrep else []
        greps = [task for task in greps if task.files is greps[0].files]
        ripgrep = find_ripgrep() if greps and self._is_large(greps) else None
        if ripgrep is None or not _processes.acquire(blocking=False):
            self._walk(self.tasks)  # While many others use ripgrep, it is sooner done here, where searches take turns.
            return
        try:
            self._search_with(ripgrep, [task for task in greps if not task.is_over])
        finally:
            _processes.release()

    def _is_large(self, greps: Sequence[_SearchTask]) -> bool:
        """Whether there are many files. Greps with a limit are tried on the first ones, where they may find enough."""
        limited = [task for task in greps if task.grep is not None and task.grep.is_limited]
        count, deadline = 0, _Deadline(self.tasks, limited)
        with suppress(DeadlineError), closing(self._runs(greps, _Deadline(self.tasks, greps))) as runs:
            for run in runs:
                if len(run.prefix) < self._start:  # It starts at a file, and nothing else is there.
                    self._search(run, self.tasks, _Deadline(self.tasks, self.tasks))
                    _end(self.tasks, self.tasks)
                    return False
                if unfinished := [task for task in limited if not task.is_over]:
                    with suppress(DeadlineError):  # They are over.
                        self._search(run, unfinished, deadline)
                count += len(run.names)
                if count >= FEW:
                    break
        for task in greps:  # Also the others: they have been told what cannot be read, and will be told again.
            if not task.is_over:
                task.restart()
        return count >= FEW and not all(task.is_over for task in greps)

    # --- in this process ---

    def _walk(self, tasks: Sequence[_SearchTask]) -> None:
        """Search file after file, until none is left or the tasks are over."""
        tasks = [task for task in tasks if not task.is_over]
        if tasks:
            deadline = _Deadline(self.tasks, tasks)
            with suppress(DeadlineError), closing(self._runs(tasks, deadline)) as runs:
                for run in runs:
                    self._search(run, tasks, deadline)
                    if all(task.is_over for task in tasks):
                        return
                _end(self.tasks, tasks)

    def _runs(
        self,
        tasks: Sequence[_SearchTask],
        deadline: _Deadline,
        only: Iterable[str] | None = None,
        miss: Callable[[str, OSError], None] | None = None,
    ) -> Generator[FileRun, None, None]:
        """The files that some of the tasks want; with `only`, those at or beneath these paths."""

        def miss_all(directory: str, error: OSError) -> None:
            for task in tasks:
                if not task.is_over and task.files.may_enter(directory):
                    task.miss(directory, error)

        filters = list(dict.fromkeys(task.files for task in tasks))
        choice = filters[0] if len(filters) == 1 and only is None else _AnyOf(filters, only)
        return self.disk.walk_runs(self.root, choice, unreadable=miss or miss_all, deadline=deadline)

    def _search(self, run: FileRun, tasks: Sequence[_SearchTask], deadline: _Deadline) -> None:
        """Search the files of a run for the tasks that want them. Raises DeadlineError."""
        filters = dict.fromkeys([task.files for task in tasks])
        if len(run.prefix) < self._start:
            self.starts_in_file = True
            _end(self.tasks, [task for task in tasks if task.grep is None])
            chosen = {files: run.names if self.root in files else [] for files in filters}
        elif len(filters) == 1:
            chosen = dict.fromkeys(filters, run.names)
        else:
            chosen = {files: files.files(run.prefix, run.names, deadline) for files in filters}
        tasks = [task for task in tasks if not task.is_over and chosen[task.files]]
        if globs := [task for task in tasks if task.grep is None]:
            wanted = chosen[globs[0].files]
            if len(globs) > 1:
                wanted = sorted(set(chain.from_iterable(chosen[task.files] for task in globs)))
            infos = run.infos(wanted, deadline)
            by_name = dict(zip(wanted, infos, strict=True)) if len(globs) > 1 else {}
            for task in globs:
                task.add([by_name[name] for name in chosen[task.files]] if by_name else infos)
            _end(self.tasks, [task for task in globs if task.has_enough])
        greps = [(task, task.grep) for task in tasks if task.grep is not None]
        if not greps:
            return
        if len(filters) == 1:
            wanting = dict.fromkeys(chosen[greps[0][0].files], greps)
        else:
            wanting = {name: [] for name in run.names}
            for each in greps:
                for name in chosen[each[0].files]:
                    wanting[name].append(each)
        for name, greps in wanting.items():
            deadline.check(run.prefix)
            if greps:
                file = run.file(name)
                content: bytes | DeepFSError
                try:
                    content = file.read(self.max_bytes)
                except DeepFSError as error:
                    content = error.with_traceback(None)
                for task, grep in greps:
                    if not task.is_over:
                        task.scan(file.path, content)
                        if grep.truncated:
                            _end(self.tasks, [task])

    # --- with ripgrep ---

    def _search_with(self, ripgrep: Ripgrep, greps: Sequence[_SearchTask]) -> None:
        """Search for `greps` with ripgrep, and meanwhile for all other tasks here."""
        queries = [task.grep.query for task in greps if task.grep is not None and not task.grep.is_limited]
        # ripgrep drops a carriage return or a BOM at an end of the text that it is to search for, and then finds more.
        has_lines = len(queries) == len(greps) and all(
            query.is_plain and "\r" not in query.pattern and BOM not in query.pattern for query in queries
        )
        unchanged = self.disk.select_unchanged(self.root) if has_lines else None
        try:
            directory = self.disk.real_path(self.root)
            if directory is None:
                raise RipgrepError("what it is to search is not inside")
            hints = [] if self.ignoring is None else self.ignoring.plain()
            run = ripgrep.search(
                {task.grep.required for task in greps if task.grep is not None},
                os.path.join(self.disk.host_path, directory[1:]),
                max_bytes=self.max_bytes,
                # It must not read `.gitignore` files itself: it would wait for a FIFO of that name, and follow links.
                options=[*NO_IGNORE_FILES, *(f"--glob=!{pattern}" for pattern in hints)],
                deadline=_Deadline(self.tasks, greps),
                with_lines=unchanged is not None,
            )
            with run:
                self._walk([task for task in self.tasks if task not in greps])
                self._take(run, greps, unchanged)
        except RipgrepError:
            for task in greps:
                if not task.is_over:
                    task.restart()
            self._walk(greps)
        _end(self.tasks, greps)

    def _take(self, run: RipgrepRun, greps: Sequence[_SearchTask], unchanged: UnchangedFiles | None) -> None:
        """Search the files that ripgrep finds or leaves out. Raises RipgrepError and DeadlineError."""
        files, deadline = greps[0].files, _Deadline(self.tasks, greps)
        # Only with a limit does it matter which matches come first.
        unlimited = [task for task in greps if task.grep is not None and not task.grep.is_limited]
        limited = [task for task in greps if task not in unlimited]
        seen: set[str] = set()
        missed: dict[str, OSError] = {}
        """The directories that could not be read, with `/` at the end."""

        def visit(place: str, tasks: Sequence[_SearchTask]) -> None:
            deadline.check(place)
            tasks = [task for task in tasks if not task.is_over]
            content = self._read(place) if tasks and place not in missed else b""
            for task in tasks:
                if place in missed:
                    task.miss(place, missed[place])
                else:
                    task.scan(place, content)

        for some in run:
            found = {path: lines for path, lines in self._decode_names(some) if path in files}
            seen.update(found)
            used = () if unchanged is None else self._take_lines(found, greps, unchanged, deadline)
            for path in found:
                if path not in used:
                    visit(path, unlimited)
            if any(task.has_enough for task in unlimited):
                raise RipgrepError("it finds more than a result has; which lines come first, a walk tells")
        left_out = {path for path, _ in self._decode_names((name, None) for name in run.left_out)} - seen
        left_out = {path for path in left_out if path in files or files.may_enter(path)}
        rest: list[str] = []
        if left_out:

            def miss(path: str, error: OSError) -> None:
                missed[f"{path}/"] = error

            with closing(self._runs(greps, deadline, left_out, miss)) as runs:
                # ripgrep may have found some files of a directory before it failed to read on.
                rest = [path for each in runs for name in each.names if (path := each.prefix + name) not in seen]
            rest += missed
        for place in rest:
            visit(place, unlimited)
        for place in sorted(seen.union(rest)) if limited else ():
            visit(place, [task for task in limited if not task.has_enough])

    def _decode_names(self, found: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[str, bytes | None]]:
        """The paths of files that ripgrep names, with their lines; names that are not UTF-8 are left out."""
        above = self.root.rstrip("/")
        for name, lines in found:
            try:
                yield f"{above}/{name.decode()}", lines
            except UnicodeDecodeError:
                continue

    def _take_lines(
        self,
        found: dict[str, bytes | None],
        greps: Sequence[_SearchTask],
        unchanged: UnchangedFiles,
        deadline: Deadline,
    ) -> Collection[str]:
        """Give the lines that ripgrep found to the greps; returns the files that need not be searched any more."""
        known = {path: lines for path, lines in found.items() if lines is not None}
        if not known:
            return ()
        needles = {task.grep.query.pattern for task in greps if task.grep is not None}
        matches: dict[str, dict[str, list[GrepMatch]]] = {}
        for path in sorted(unchanged.select_plain(known, self.max_bytes, deadline)):
            deadline.check(path)
            lines = known[path]
            if is_binary_name(path) or lines.count(b"\n") > 2 * _MOST_LINES:
                continue
            # A program may have changed the file through its memory just now.
            if BOM.encode() not in lines and has_plain_lines(lines):
                matches[path] = parse_numbered_matches(path, lines, needles) or {}
        for task in greps:
            if task.grep is not None and not task.is_over:
                own = (by_needle.get(task.grep.query.pattern, ()) for by_needle in matches.values())
                task.grep.add([*chain.from_iterable(own)])
        return {path for path, by_needle in matches.items() if by_needle}

    def _read(self, path: str) -> bytes | DeepFSError:
        """The content of a file by its path, or the error; NotFoundError if no walk would find the file."""
        try:
            return self.disk.read_file(path, self.max_bytes)[0]
        except DeepFSError as error:
            # A PermissionError of the system is about a file inside. Other such errors mean that the path leads
            # outside, or to something that is not a file.
            is_elsewhere = isinstance(error, PermissionDeniedError | IsDirectoryError | NotDirectoryError)
            if is_elsewhere and not isinstance(error.__cause__, PermissionError):
                return NotFoundError(path)
            return error.with_traceback(None)


class _AnyOf:
    """Chooses what any of several filters does; with `only`, at or beneath these paths."""

    def __init__(self, filters: Sequence[FileFilter], only: Iterable[str] | None) -> None:
        self._filters = filters
        self._inside = None if only is None else set(only)
        self._above = {directory for path in self._inside or () for directory in paths.ancestors(path)}

    def files(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        if self._inside is not None and directory[:-1] not in self._inside:
            names = [name for name in names if directory + name in self._inside]
        return self._choose(names, (files.files(directory, names, deadline) for files in self._filters))

    def directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        if self._inside is not None:
            if directory[:-1] in self._inside:
                self._inside.update(directory + name for name in names)
            names = [name for name in names if directory + name in self._inside or directory + name in self._above]
        return self._choose(names, (files.directories(directory, names, deadline) for files in self._filters))

    @staticmethod
    def _choose(names: list[str], choices: Iterable[list[str]]) -> list[str]:
        wanted: set[str] = set()
        for chosen in choices:
            if len(chosen) == len(names):
                return names
            wanted.update(chosen)
        return [name for name in names if name in wanted]
