"""Searches over the files of a flat storage, as work for a thread: they check their token and wait for nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from deepfs.disk import Patience
from deepfs.errors import DeadlineError, InvalidContentError
from deepfs.search.query import Query
from deepfs.search.results import MAX_GLOB_MATCHES, Grep, Wanted, glob_result
from deepfs.sync import is_inline, yield_to_loop
from deepfs.text import records as filedata
from deepfs.text.flat_tree import FileTree
from deepfs.threads import pool
from deepfs.threads.deadline import Cancellation
from deepfs.types import FileDataV2, GlobResult, GrepResult

__all__ = ["BatchedGrep", "glob_tree", "grep_tree", "is_short", "scan_stored", "searched"]

T = TypeVar("T")

_FEW = 500
"""Files that are looked through sooner than a thread is reached."""
_SECONDS = 60.0
"""After which a search ends with what it found, `truncated`."""
_MOST_BYTES_OF_A_CHARACTER = 4
"""A text counts against the size limit by its characters, of which nothing is known before it is fetched."""


async def searched(work: Callable[[Cancellation], T], *, is_short: bool = False) -> T:
    """Carry out a search, off the event loop unless it is short or there is none."""
    await yield_to_loop()
    return work(Cancellation()) if is_short or is_inline() else await pool.run_long(work)


def is_short(tree: FileTree) -> bool:
    """Whether a look at all names of `tree` takes less than to reach a thread."""
    return len(tree.files) <= _FEW


def glob_tree(tree: FileTree, wanted: Wanted, cancellation: Cancellation) -> GlobResult:
    """The `wanted` files of `tree`; the tree must not change meanwhile."""
    chosen = tree.beneath(wanted.root)
    hits = [path for path in _interruptibly(chosen, cancellation) if path in wanted][: MAX_GLOB_MATCHES + 1]
    return glob_result([tree.info(path) for path in _interruptibly(hits, cancellation)])


def _interruptibly(paths: list[str], cancellation: Cancellation) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count % _FEW == 0:
            cancellation.check()
        yield path


def grep_tree(
    tree: FileTree,
    query: Query,
    wanted: Wanted,
    cancellation: Cancellation,
    *,
    max_count: int | None,
    max_bytes: int,
) -> GrepResult:
    """The lines that `query` finds in the `wanted` files of `tree`, which has their contents and must not change."""
    search = BatchedGrep(tree, query, wanted, max_count=max_count, max_bytes=max_bytes)
    search.scan_all(cancellation)
    return search.result()


class BatchedGrep:
    """A search that is given the contents of the files a batch at a time. Its deadline is that of all batches."""

    def __init__(self, tree: FileTree, query: Query, wanted: Wanted, *, max_count: int | None, max_bytes: int) -> None:
        self._cancellation = Cancellation()
        self._patience = Patience(_SECONDS, lambda: self._cancellation.cancelled)
        self._grep = Grep(query, wanted, max_count, max_bytes, lambda: self._patience.check(wanted.root))
        self._tree = tree

    def choose(self, cancellation: Cancellation) -> list[tuple[str, int]]:
        """The paths of the files to search, in order, with what is known of their sizes."""
        wanted, chosen = self._grep.wanted, []
        for path in _interruptibly(self._tree.beneath(wanted.root), cancellation):
            if path in wanted:
                size = self._tree.info(path).size or 0
                if size > _MOST_BYTES_OF_A_CHARACTER * self._grep.max_bytes:
                    self._grep.skip()
                else:
                    chosen.append((path, size))
        return chosen

    def scan_all(self, cancellation: Cancellation) -> bool:
        """Search a tree that has its contents."""
        wanted = self._grep.wanted
        chosen = (path for path in self._tree.beneath(wanted.root) if path in wanted)
        return self.scan(chosen, self._tree.contents or {}, cancellation)

    def scan(self, paths: Iterable[str], files: Mapping[str, FileDataV2], cancellation: Cancellation) -> bool:
        """Search `files` at `paths`, but those that are gone; whether more is wanted."""
        self._cancellation = cancellation
        try:
            for path in paths:
                self._patience.check(path)
                if path in files:
                    scan_stored(self._grep, path, files)
                if self._grep.truncated:
                    return False
        except DeadlineError:
            self._grep.truncated = True
        return not self._grep.truncated

    def result(self) -> GrepResult:
        """What was found. What lies in the storage at no path counts as skipped where all of it was to be searched."""
        if self._grep.wanted.is_everything and not self._grep.truncated:
            for _ in range(self._tree.foreign()):
                self._grep.skip()
        return self._grep.result()


def scan_stored(grep: Grep, path: str, files: Mapping[str, FileDataV2]) -> None:
    """Search one file; one whose record cannot be read counts as skipped."""
    try:
        content = filedata.searchable(files[path], path)
    except InvalidContentError:
        grep.skip()
    else:
        grep.scan(path, content)
