"""Greps with the help of ripgrep.

It opens files by name, so a process that swaps a directory for a symlink during the search may lead it elsewhere.
Nothing from there is reported or counted, since every file that ripgrep finds is opened again from the root. The lines
that it found are used for a file that cannot have changed meanwhile (`UnchangedFiles`), and whose lines are the same
for ripgrep and for the contract (`has_plain_lines`). All other files that it finds are searched again, by the code that
searches everything without ripgrep. So no engine differs from another in what it finds.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from types import TracebackType

from deepfs.errors import DeadlineError
from deepfs.search.query import is_plain, numbered_matches
from deepfs.search.ripgrep import Found, Ripgrep, RipgrepError
from deepfs.search.tasks import BatchDeadline, GrepTask, NamedFile, SearchBatch
from deepfs.text import paths
from deepfs.text.lines import BOM, has_plain_lines
from deepfs.text.media import is_binary_name
from deepfs.types import GrepMatch

__all__ = ["WithRipgrep"]

_BOM = BOM.encode()
_MOST_LINES = 10_000
"""The most lines of a file that are taken from ripgrep: a few milliseconds of work, during which no deadline is
checked."""


class WithRipgrep:
    """An engine that reads only the files that ripgrep does not exclude."""

    def __init__(self, ripgrep: Ripgrep) -> None:
        self._ripgrep = ripgrep

    def run(self, batch: SearchBatch) -> None:
        """Carry out all greps of the batch."""
        with self.start(batch, [task for task in batch.tasks if isinstance(task, GrepTask)]) as search:
            search.finish()

    def start(self, batch: SearchBatch, tasks: Sequence[GrepTask]) -> "RipgrepSearch":
        """Return a context that runs ripgrep for `tasks`, which have the same filter and each a required text."""
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
        needles = {task.grep.required for task in tasks}
        directory = _directory(batch)
        self._unchanged = batch.disk.unchanged(batch.root) if _can_use_lines(tasks) else None
        self._run = ripgrep.search(
            needles,
            directory,
            max_bytes=batch.max_bytes,
            options=batch.hints,
            deadline=self._deadline,
            with_lines=self._unchanged is not None,
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
        for found in self._found():
            self._search(self._without_lines(found), unlimited)
            later += found if limited else ()
            if any(task.has_enough for task in unlimited):
                raise RipgrepError("it finds more than a result has; which lines come first, a walk tells")
        for place in sorted(later):
            self._search([place], [task for task in limited if not task.has_enough])

    def _found(self) -> Iterator[dict[str, bytes | None]]:
        """Yield the files to search, in no order, as ripgrep finds them; then those that it left out.

        The value is the lines that ripgrep found, if they are known.
        """
        seen: set[str] = set()
        for files in self._run:
            found = {path: lines for path, lines in _paths(self._batch.root, files) if path in self._files}
            seen.update(found)
            yield found
        yield dict.fromkeys(place for place in self._left_out() if place not in seen)

    def _without_lines(self, found: dict[str, bytes | None]) -> Sequence[str]:
        """Give the lines that ripgrep found to the tasks, and return the files that must be searched."""
        with_lines = {path: lines for path, lines in found.items() if lines is not None}
        if self._unchanged is None or not with_lines:
            return [*found]
        usable = self._unchanged.select_plain(with_lines, self._batch.max_bytes, self._deadline)
        needles = {task.grep.query.pattern for task in self._tasks}
        matches = {path: _matches(path, with_lines[path], needles) for path in self._in_time(sorted(usable))}
        for task in self._tasks:
            own = {path: by_needle.get(task.grep.query.pattern, ()) for path, by_needle in matches.items()}
            task.take(own, sum(map(len, with_lines.values())))
        return [path for path in found if not matches.get(path)]

    def _left_out(self) -> list[str]:
        """The wanted files at or beneath the paths that ripgrep left out, and the unreadable directories there."""
        left_out = dict(_paths(self._batch.root, ((name, None) for name in self._run.left_out)))
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


def _paths(root: str, found: Iterable[Found | tuple[bytes, None]]) -> Iterable[tuple[str, bytes | None]]:
    """Yield the paths of the files beneath the root, with their lines; names that are not UTF-8 are left out."""
    for name, lines in found:
        try:
            yield paths.join(root, name.decode()), lines
        except UnicodeDecodeError:
            continue


def _matches(path: str, lines: bytes, needles: Collection[str]) -> Mapping[str, list[GrepMatch]]:
    """The matches of each needle in the lines that ripgrep found in a file; none if it must be searched instead."""
    if is_binary_name(path) or lines.count(b"\n") > 2 * _MOST_LINES:
        return {}
    if _BOM in lines or not has_plain_lines(lines):  # A program has changed the file through its memory just now.
        return {}
    return numbered_matches(path, lines, needles) or {}


def _can_use_lines(tasks: Sequence[GrepTask]) -> bool:
    """Whether each of the `tasks` wants all lines with a literal text, and those only.

    ripgrep drops a carriage return or a BOM at an end of the text that it is to search for. It then finds more.
    """
    queries = {task.grep.query for task in tasks}
    return not any(task.grep.is_limited for task in tasks) and all(
        is_plain(query) and "\r" not in query.pattern and BOM not in query.pattern for query in queries
    )
