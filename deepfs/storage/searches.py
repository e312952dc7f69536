"""The searches of a tree of flat files as plans, which do no I/O and never wait: `glob` and `grep`.

A storage that has an index names candidates, page by page. Of others the tree is listed, and `grep` fetches the files
that the glob admits, in batches.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final

from deepfs.errors import NotDirectoryError, NotFoundError
from deepfs.search.flat import BatchedGlob, BatchedGrep, glob_tree, is_short, search_deadline
from deepfs.search.literals import required_path
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest
from deepfs.search.results import Grep
from deepfs.storage.gathering import batched
from deepfs.storage.plans import holds_files, inside, listed_tree, no_directory
from deepfs.storage.requests import Find, GetEach, Page, Plan, Stat, Terms, Work
from deepfs.text import paths
from deepfs.text.flat_tree import Directories, FileStat, FileTree, StatTree
from deepfs.threads.deadline import Deadline
from deepfs.types import GlobResult, GrepResult

_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256


def _searched_tree(terms: Terms, files: FileFilter) -> Plan[FileTree]:
    """The tree with everything that a search selects. Of a remote storage, it has only what the glob may select."""
    if not terms._asks_together:
        return (yield from listed_tree(files.root))
    start = required_path(files).prefix
    directory = start[: start.rindex("/")] or "/"
    if paths.is_beneath(directory, files.root):
        tree = yield from listed_tree(directory)
        if tree.holds(directory):
            return tree
        if (yield from holds_files(files.root)):
            return StatTree({}, Directories([f"{inside(files.root)}_"]))
    return (yield from listed_tree(files.root))


def glob(terms: Terms, request: GlobRequest, files: FileFilter) -> Plan[GlobResult]:
    """The plan of `aglob`, which needs names only."""
    if terms._finds:
        return (yield from _find_names(request, files))
    tree = yield from _searched_tree(terms, files)
    if not tree.holds(files.root):
        raise NotDirectoryError(files.root) if files.root in tree.files else (yield from no_directory(files.root))
    result: GlobResult = yield Work(partial(glob_tree, tree, files), search_deadline(), is_short(tree))
    return result


def _find_names(request: GlobRequest, files: FileFilter) -> Plan[GlobResult]:
    """The plan of `aglob` where the storage finds candidates by itself."""
    search, deadline, page = BatchedGlob(files), search_deadline(), Page({}, "")
    while page.last is not None and not search.has_enough:
        page = yield Find(request, files, page.last or None)
        yield Work(partial(search.add, StatTree(page.files)), deadline, is_short(StatTree(page.files)))
        search.is_late |= page.truncated
    if not search.matches and not (yield from holds_files(files.root)):
        raise (yield from no_directory(files.root))
    result = search.result()
    result.as_of = page.as_of
    return result


def grep(terms: Terms, request: GrepRequest, files: FileFilter) -> Plan[GrepResult]:
    """The plan of `agrep`. If the listing has no contents, it fetches the files that the glob admits, in batches."""
    grep, root, deadline = Grep(request, files, terms._max_bytes), files.root, search_deadline()
    if terms._finds:
        return (yield from _find_lines(terms, request, grep))
    tree = yield from _searched_tree(terms, files)
    if tree.contents is None and root != "/":
        # The listing has the files beneath the root of the search. The root may be a file itself, and even beside them:
        # it is then fetched with them.
        single = {root: FileStat()} if tree.holds(root) else (yield Stat([root]))
        tree = StatTree({**single, **tree.files})  # type: ignore[dict-item]
    if root not in tree.files and not tree.holds(root):
        raise NotFoundError(root)
    search = BatchedGrep(tree, grep)
    if tree.contents is not None:
        yield Work(search.scan_all, deadline)
        return search.result()
    yield from _scan(terms, search, deadline)
    return search.result()


def _find_lines(terms: Terms, request: GrepRequest, grep: Grep) -> Plan[GrepResult]:
    """The plan of `agrep` where the storage finds candidates by itself."""
    files, deadline, page = grep.files, search_deadline(), Page({}, "")
    seen = 0
    while page.last is not None:
        page = yield Find(request, files, page.last or None)
        grep.skipped += page.skipped
        seen += len(page.files)
        wants_more = yield from _scan(terms, BatchedGrep(StatTree(page.files), grep), deadline)
        if page.truncated:
            grep.truncated = True
        if not wants_more or grep.truncated:
            break
    if not seen and files.root != "/" and not (yield Stat([files.root])) and not (yield from holds_files(files.root)):
        raise NotFoundError(files.root)
    result = grep.result()
    result.as_of = page.as_of
    return result


def _scan(terms: Terms, search: BatchedGrep, deadline: Deadline) -> Plan[bool]:
    """Search the files of a listing without contents. Returns whether the search needs more files."""
    chosen: list[tuple[str, int]] = yield Work(search.choose, deadline)
    ahead = tuple(path for path, _ in chosen) if terms._asks_together else ()
    for batch in batches(chosen):
        ahead = ahead[len(batch) :]
        if not (yield Work(partial(search.scan, batch, (yield GetEach(batch, ahead))), deadline)):
            return False
    return True


def batches(chosen: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """The paths, each given with its size, in batches to fetch."""
    for batch in batched(chosen, itemgetter(1), most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
        yield [path for path, _ in batch]
