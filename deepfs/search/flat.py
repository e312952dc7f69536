"""Searches over the files of a flat storage, as work for a worker thread: they check a deadline and never wait."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from deepfs.errors import DeadlineError, DeepFSError, NotFoundError
from deepfs.search.request import MAX_GLOB_MATCHES, SEARCH_SECONDS, FileFilter, GrepScan, glob_result
from deepfs.sync import is_inline, yield_to_loop
from deepfs.text import records
from deepfs.text.flat_tree import FileTree
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2, FileInfo, GlobResult, GrepResult

T = TypeVar("T")

_FEW = 500
"""Files that are searched in less time than it takes to hand work to a worker thread."""
_CHECK_EVERY = 64
"""Files between two deadline checks: well under a millisecond for a glob."""
_MOST_BYTES_OF_A_CHARACTER = 4
"""The size limit counts the characters of a text, but before it is fetched only its size in bytes is known."""


def search_deadline() -> Deadline:
    """The deadline of a search over flat storage that begins now."""
    return Deadline(SEARCH_SECONDS)


async def run_search(
    work: Callable[[Deadline], T],
    *,
    deadline: Deadline | None = None,
    is_short: bool = False,
    storage: Hashable = None,
) -> T:
    """Carry out a search: in a worker thread, or directly if it is short or no event loop is running.

    Without a deadline it has 60 seconds from when it begins. Storages take turns in searching.
    """
    await yield_to_loop()
    if is_short or is_inline():
        return work(deadline or search_deadline())
    return await pool.run_long(work, timeout=SEARCH_SECONDS, deadline=deadline, storage=storage)


def is_short(tree: FileTree) -> bool:
    """Whether checking all names of `tree` takes less time than handing the work to a worker thread."""
    return len(tree.files) <= _FEW


class BatchedGlob:
    """A glob that gets the names of the files in batches, in the order of their paths."""

    def __init__(self, files: FileFilter) -> None:
        self._files = files
        self.matches: list[FileInfo] = []
        self.is_late: bool = False
        """Whether the search ended before all files were considered."""

    @property
    def has_enough(self) -> bool:
        """Whether more files would not change the result."""
        return self.is_late or len(self.matches) > MAX_GLOB_MATCHES

    def add(self, tree: FileTree, deadline: Deadline) -> None:
        """Add the files of `tree` that match; the tree must not change during the call."""
        files, matches = self._files, self.matches
        try:
            for path in _in_time(_beneath(tree, files.root), deadline):
                if path in files and path != files.root:  # Foreign data may have a file there as well.
                    matches.append(tree.info(path))
                    if len(matches) > MAX_GLOB_MATCHES:
                        break
        except DeadlineError:
            self.is_late = True

    def result(self) -> GlobResult:
        """The matches so far."""
        return glob_result(self.matches, is_late=self.is_late)


def _beneath(tree: FileTree, root: str) -> list[str]:
    """The sorted paths of the files at or under `root`; none if a batch of files has none there."""
    try:
        return tree.beneath(root)
    except NotFoundError:
        return []


def _in_time(paths: list[str], deadline: Deadline) -> Iterator[str]:
    deadline.check()  # A search by pages may have many without a file.
    for count, path in enumerate(paths, 1):
        if count % _CHECK_EVERY == 0:
            deadline.check(path)
        yield path


class BatchedGrep:
    """A grep that gets the contents of the files in batches."""

    def __init__(self, tree: FileTree, grep: GrepScan) -> None:
        self._tree = tree
        self._grep = grep

    def choose(self, deadline: Deadline) -> list[tuple[str, int]]:
        """The paths of the files to search, in order, with their sizes in bytes (0 if unknown)."""
        chosen: list[tuple[str, int]] = []
        try:
            for path in _in_time(_beneath(self._tree, self._grep.files.root), deadline):
                if path not in self._grep.files:
                    continue
                size = self._tree.info(path).size or 0
                if size > _MOST_BYTES_OF_A_CHARACTER * self._grep.max_bytes:
                    self._grep.skip()
                else:
                    chosen.append((path, size))
        except DeadlineError:
            self._grep.truncated = True
        return chosen

    def scan_all(self, deadline: Deadline) -> bool:
        """Search all chosen files of a tree that holds their contents and does not change meanwhile."""
        files = self._grep.files
        chosen = (path for path in self._tree.beneath(files.root) if path in files)
        return self.scan(chosen, self._tree.contents or {}, deadline)

    def scan(self, paths: Iterable[str], contents: Mapping[str, FileDataV2], deadline: Deadline) -> bool:
        """Search those of the files at `paths` that have `contents`; return whether the search needs more files."""
        self._grep.deadline = deadline
        try:
            for path in paths:
                deadline.check(path)
                if path in contents:
                    scan_stored(self._grep, path, contents)
                if self._grep.truncated:
                    return False
        except DeadlineError:
            self._grep.truncated = True
        return not self._grep.truncated

    def result(self) -> GrepResult:
        """The matches so far. If the whole storage was to be searched, keys that are not paths count as skipped."""
        if self._grep.files.is_everything and not self._grep.truncated:
            self._grep.skipped += self._tree.foreign()
        return self._grep.result()


def scan_stored(grep: GrepScan, path: str, files: Mapping[str, FileDataV2]) -> None:
    """Search one file; one that cannot be read, or is no valid record, counts as skipped."""
    try:
        content = records.searchable_content(files[path], path)
    except DeepFSError:
        grep.skip()
    else:
        grep.scan(path, content)
