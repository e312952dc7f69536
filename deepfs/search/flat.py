"""Searches over files that are held in memory, off the event loop, which they would hold up."""

from collections.abc import Iterator, Mapping

from deepfs.errors import DeadlineError, InvalidContentError
from deepfs.search.request import FileFilter
from deepfs.search.results import MAX_GLOB_MATCHES, SEARCH_SECONDS, Grep, glob_result
from deepfs.sync import is_inline
from deepfs.text import records as filedata
from deepfs.text.flat_tree import FileTree, file_info
from deepfs.threads import lanes
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2, FileInfo, GlobResult, GrepResult

__all__ = ["glob_tree", "grep_tree", "scan_stored"]

_FEW = 500
"""Files that are looked through sooner than a thread is reached."""


async def glob_tree(tree: FileTree, files: FileFilter) -> GlobResult:
    """The files of `tree` that the filter chooses; the tree must not change meanwhile."""

    def search(deadline: Deadline) -> GlobResult:
        matches: list[FileInfo] = []
        try:
            for path in _in_time(tree.beneath(files.root), deadline):
                if path in files:
                    matches.append(file_info(path, tree.files))
                    if len(matches) > MAX_GLOB_MATCHES:
                        break
        except DeadlineError:
            return glob_result(matches, is_late=True)
        return glob_result(matches)

    if is_inline() or len(tree.files) <= _FEW:
        return search(Deadline(SEARCH_SECONDS))
    return await lanes.run_long(search, timeout=SEARCH_SECONDS)


def _in_time(paths: list[str], deadline: Deadline) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count % _CHECK_EVERY == 0:
            deadline.check(path)
        yield path


_CHECK_EVERY = 64
"""Files between two checks of a glob: well under a millisecond."""


async def grep_tree(tree: FileTree, grep: Grep) -> GrepResult:
    """The lines that `grep` finds in the files of `tree`; the tree must not change meanwhile."""

    def search(deadline: Deadline) -> GrepResult:
        grep.deadline = deadline
        try:
            _search(grep, tree, deadline)
            _skip_foreign(grep, tree)
        except DeadlineError:
            grep.truncated = True
        return grep.result()

    return search(Deadline(SEARCH_SECONDS)) if is_inline() else await lanes.run_long(search, timeout=SEARCH_SECONDS)


def _search(grep: Grep, tree: FileTree, deadline: Deadline) -> None:
    for path in tree.beneath(grep.files.root):
        if path in grep.files:
            deadline.check(path)
            scan_stored(grep, path, tree.files)
            if grep.truncated:
                return


def _skip_foreign(grep: Grep, tree: FileTree) -> None:
    """Count what lies in the storage at no path, where all of the storage was to be searched."""
    if grep.files.is_everything and not grep.truncated:
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
