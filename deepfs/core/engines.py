"""How a grep goes over a tree on disk: file after file in this process, or only where ripgrep finds something.

Both read and judge files by the same code, so they cannot differ in what they tell: ripgrep only excuses files, those
that it searched without finding the text. It walks through names, so somebody who swaps a directory for a link
meanwhile may have it look elsewhere; nothing of that is told, since what it finds is opened anew from the root.
"""

import os
from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import islice
from operator import attrgetter
from time import monotonic
from typing import Protocol

from deepfs.core import paths
from deepfs.core.cancellation import Cancellation
from deepfs.core.disk import Disk, FoundFile, Patience
from deepfs.core.ripgrep import MAX_NEEDLE, NO_IGNORE_FILES, Ripgrep, RipgrepError, find_ripgrep
from deepfs.core.search import Grep, Wanted
from deepfs.errors import DeepFSError, FileMissingError

__all__ = ["Automatic", "Engine", "GrepTask", "InProcess", "WithRipgrep"]

FEW = 300
"""Files of a tree that are searched here first: in the time for which ripgrep only begins and ends."""


_BELIEVED_S = 300.0
_MOST_ROOTS = 256


class GrepTask:
    """A grep over a tree: where to look, and what was found so far.

    `hints` are options by which ripgrep leaves out what is not wanted; what it leaves out wrongly is looked at anyway.
    """

    def __init__(
        self,
        disk: Disk,
        grep: Grep,
        patience: Patience,
        cancellation: Cancellation,
        hints: Iterable[str] = NO_IGNORE_FILES,
    ) -> None:
        self.disk = disk
        self.grep = grep
        self.wanted: Wanted = grep.wanted
        self.patience = patience
        self.cancellation = cancellation
        self.hints: tuple[str, ...] = tuple(hints)
        self.done: str = ""
        """The path of the last file searched; nothing before it is left."""

    def files(self) -> Generator[FoundFile, None, None]:
        """The files to search, sorted by path; what cannot be entered counts as skipped."""
        walk = self.disk.walk(
            self.wanted.root,
            enter=self.wanted.may_enter,
            unreadable=lambda _: self.grep.skip(),
            patience=self.patience,
        )
        with closing(walk):
            yield from (file for file in walk if file.path in self.wanted)

    def search_found(self, files: Iterable[FoundFile]) -> int:
        """Search files that a walk comes by, until there is enough; how many they were."""
        count = 0
        for file in files:
            self._search(file)
            self.done = file.path
            count += 1
            if self.grep.truncated:
                break
        return count

    def search_places(self, places: Iterable[str]) -> None:
        """Search the files of these paths, until there is enough; a path that ends in `/` is only counted."""
        for place in places:
            if place.endswith("/"):
                self.grep.skip()
            else:
                self._search(_Named(self.disk, place))
            if self.grep.truncated:
                break

    def _search(self, file: "FoundFile | _Named") -> None:
        self.patience.check(file.path)
        try:
            content = file.read(self.grep.max_bytes)
        except FileMissingError:
            return
        except DeepFSError:
            self.grep.skip()
        else:
            self.grep.scan(file.path, content)


class _Named:
    """A file known by its path."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def read(self, limit: int) -> bytes:
        return self._disk.read_file(self.path, limit)[0]


class Engine(Protocol):
    """A way to carry out a grep. All engines find the same."""

    def run(self, task: GrepTask) -> None:
        """Search until nothing is left or there is enough; DeadlineError where the patience ends before."""


class InProcess:
    """Searches every file here."""

    def run(self, task: GrepTask) -> None:
        with closing(task.files()) as files:
            task.search_found(files)


class WithRipgrep:
    """Searches those files here that ripgrep does not excuse; for what `serves` allows.

    Raises RipgrepError where ripgrep fails; the task is then as it was.
    """

    def __init__(self, ripgrep: Ripgrep) -> None:
        self._ripgrep = ripgrep

    @staticmethod
    def serves(task: GrepTask) -> bool:
        """Whether ripgrep would surely not excuse a file that matches, nor search many that are not wanted."""
        query = task.grep.query
        return query.regexp is None and 0 < len(query.needle) <= MAX_NEEDLE and task.wanted.glob is None

    def run(self, task: GrepTask) -> None:
        grep = task.grep
        found, skipped = len(grep.matches), grep.skipped
        try:
            self._run(task)
        except RipgrepError:
            del grep.matches[found:]
            grep.skipped = skipped
            grep.truncated = False
            raise
        finally:
            # Matches of one file are together and in order already.
            grep.matches.sort(key=attrgetter("path"))

    def _run(self, task: GrepTask) -> None:
        later: list[str] = []
        with closing(self._places(task)) as found:
            for places in found:
                # Only with a limit does it matter which matches come first.
                if task.grep.is_limited:
                    later += places
                    continue
                task.search_places(places)
                if task.grep.truncated:
                    raise RipgrepError("it finds more than a result has; which lines come first, the walk tells")
        task.search_places(sorted(later))

    def _places(self, task: GrepTask) -> Generator[list[str], None, None]:
        """What there is to search, in no order, while ripgrep finds it."""
        directory = os.path.join(task.disk.host_path, task.wanted.root[1:])
        run = self._ripgrep.search(
            task.grep.query.needle,
            directory,
            max_bytes=task.grep.max_bytes,
            options=task.hints,
            cancellation=task.cancellation,
            check=lambda: task.patience.check(task.wanted.root),
        )
        told: set[str] = set()
        with run:
            for names in run:
                found = [path for path in _paths(task, names) if path > task.done and path in task.wanted]
                told.update(found)
                yield found
        left_out = _left_out(task, set(_paths(task, run.left_out)))
        yield [place for place in left_out if place > task.done and place not in told]


def _paths(task: GrepTask, names: Iterable[bytes]) -> Iterable[str]:
    """The paths of these names beneath the root; those that are not text have none."""
    for name in names:
        try:
            yield paths.join(task.wanted.root, name.decode())
        except UnicodeDecodeError:
            continue


def _left_out(task: GrepTask, left_out: set[str]) -> list[str]:
    """The wanted files at or beneath these paths, and, with `/` at the end, the directories that cannot be read."""
    inside = {path for path in left_out if path in task.wanted or task.wanted.may_enter(path)}
    if not inside:
        return []
    above = {directory for path in inside for directory in paths.ancestors(path)}

    def enter(directory: str) -> bool:
        if directory not in inside and paths.parent(directory) in inside:
            inside.add(directory)
        return (directory in inside or directory in above) and task.wanted.may_enter(directory)

    unreadable: list[str] = []
    walk = task.disk.walk(task.wanted.root, enter=enter, unreadable=unreadable.append, patience=task.patience)
    with closing(walk):
        files = [file.path for file in walk if file.path in inside or paths.parent(file.path) in inside]
    return [*(path for path in files if path in task.wanted), *(f"{directory}/" for directory in unreadable)]


class Automatic:
    """Begins here, and goes on with ripgrep where it is installed, serves, and there is much to search.

    Where there was much lately, a search begins with ripgrep, unless it wants the first matches only.
    """

    def __init__(self) -> None:
        self._large: dict[str, float] = {}
        """Roots of searches that had more than a few files, with the time until when that is believed."""

    def run(self, task: GrepTask) -> None:
        root = task.wanted.root
        if not task.grep.is_limited and monotonic() < self._large.get(root, 0) and self._run_ripgrep(task):
            return
        with closing(task.files()) as files:
            if task.search_found(islice(files, FEW)) < FEW or task.grep.truncated:
                return
            self._remember(root)
            if not self._run_ripgrep(task):
                task.search_found(files)

    def _remember(self, root: str) -> None:
        if len(self._large) >= _MOST_ROOTS:
            self._large.clear()
        self._large[root] = monotonic() + _BELIEVED_S

    def _run_ripgrep(self, task: GrepTask) -> bool:
        ripgrep = find_ripgrep() if WithRipgrep.serves(task) else None
        if ripgrep is None:
            return False
        try:
            WithRipgrep(ripgrep).run(task)
        except RipgrepError:
            return False
        return True
