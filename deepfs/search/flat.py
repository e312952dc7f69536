"""Searches over files that are held in memory, off the event loop, which they would hold up."""

from collections.abc import Iterator, Mapping

from deepfs.disk import Patience
from deepfs.errors import DeadlineError, InvalidContentError
from deepfs.search.query import Query
from deepfs.search.results import MAX_GLOB_MATCHES, Grep, Wanted, glob_result
from deepfs.sync import is_inline
from deepfs.text import records as filedata
from deepfs.text.flat_tree import FileTree, file_info
from deepfs.threads import pool
from deepfs.threads.deadline import Cancellation
from deepfs.types import FileDataV2, GlobResult, GrepResult

__all__ = ["glob_tree", "grep_tree", "scan_stored"]

_FEW = 500
"""Files that are looked through sooner than a thread is reached."""
_SECONDS = 60.0
"""After which a search ends with what it found, `truncated`."""


async def glob_tree(tree: FileTree, wanted: Wanted) -> GlobResult:
    """The `wanted` files of `tree`; the tree must not change meanwhile."""

    def search(cancellation: Cancellation) -> GlobResult:
        chosen = tree.beneath(wanted.root)
        hits = [path for path in _interruptibly(chosen, cancellation) if path in wanted][: MAX_GLOB_MATCHES + 1]
        return glob_result([file_info(path, tree.files) for path in _interruptibly(hits, cancellation)])

    few = is_inline() or len(tree.files) <= _FEW
    return search(Cancellation()) if few else await pool.run_long(search)


def _interruptibly(paths: list[str], cancellation: Cancellation) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count % _FEW == 0:
            cancellation.check()
        yield path


async def grep_tree(
    tree: FileTree, query: Query, wanted: Wanted, *, max_count: int | None, max_bytes: int
) -> GrepResult:
    """The lines that `query` finds in the `wanted` files of `tree`; the tree must not change meanwhile."""

    def search(cancellation: Cancellation) -> GrepResult:
        patience = Patience(_SECONDS, lambda: cancellation.cancelled)
        grep = Grep(query, wanted, max_count, max_bytes, lambda: patience.check(wanted.root))
        try:
            _search(grep, tree, patience)
            _skip_foreign(grep, tree)
        except DeadlineError:
            grep.truncated = True
        return grep.result()

    return search(Cancellation()) if is_inline() else await pool.run_long(search)


def _search(grep: Grep, tree: FileTree, patience: Patience) -> None:
    for path in tree.beneath(grep.wanted.root):
        if path in grep.wanted:
            patience.check(path)
            scan_stored(grep, path, tree.files)
            if grep.truncated:
                return


def _skip_foreign(grep: Grep, tree: FileTree) -> None:
    """Count what lies in the storage at no path, where all of the storage was to be searched."""
    if grep.wanted.is_everything and not grep.truncated:
        for _ in range(tree.foreign()):
            grep.skip()


def scan_stored(grep: Grep, path: str, files: Mapping[str, FileDataV2]) -> None:
    """Search one file; one whose record cannot be read counts as skipped."""
    try:
        content = filedata.searchable(files[path], path)
    except InvalidContentError:
        grep.skip()
    else:
        grep.scan(path, content)
