"""The operations on a tree of flat files as plans, which do no I/O and never wait.

What a plan is, the requests that it yields, and what runs it, are in `runners.py`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Final, Protocol

from deepfs._drivers import log_failure
from deepfs.errors import (
    BinaryFileError,
    DeepFSError,
    ErrorCode,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.operations import Copy, Delete, Edit, FileBatch, ListTree, Ls, Move, Operation, Read, ReadRaw, Write
from deepfs.search.flat import BatchedGlob, BatchedGrep, is_short, search_deadline
from deepfs.search.literals import path_needs
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, GrepScan
from deepfs.storage.gathering import in_batches
from deepfs.storage.runners import Apply, Children, Find, Get, GetEach, List, Page, Plan, Stat, Together, Work
from deepfs.text import flat_tree, paths, records
from deepfs.text.edits import replace
from deepfs.text.entries import Kind, TreeListing, check_target, list_implied
from deepfs.text.flat_tree import (
    Change,
    ChangedError,
    Directories,
    FileStat,
    FileTree,
    Found,
    PartlyDoneError,
    PlannedFiles,
    StatTree,
    is_about_one_file,
)
from deepfs.threads.deadline import Deadline
from deepfs.types import (
    ContentChange,
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
    failed_item,
)


class PlannedBackend(Protocol):
    """The parts of a backend that its plans use."""

    _max_bytes: int
    _reads_before_change: bool
    _asks_together: bool
    _finds: bool

    def _check_storable(self, path: str, data: FileDataV2) -> None: ...

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]: ...


# --- looking ---------------------------------------------------------------------------------------------------------

_FEW: Final = 2
"""How many files to list to find out whether there are any. The key of the first may be no path."""
_MANY: Final = 16
"""How many files an upload has that looks for empty directories first."""


def prefix_of(directory: str) -> str:
    """The prefix of all paths in a directory."""
    return "/" if directory == "/" else f"{directory}/"


def _tree_of(answer: FileTree | Mapping[str, FileStat]) -> FileTree:
    """The tree of what a storage listed."""
    return answer if isinstance(answer, FileTree) else StatTree(answer)


def holds_files(path: str) -> Plan[bool]:
    """Whether there are files under `path`."""
    return (yield from _shows_directory(path, (yield List(prefix_of(path), _FEW))))


def _shows_directory(path: str, answer: FileTree | Mapping[str, FileStat]) -> Plan[bool]:
    """Whether there are files under `path`, by a listing of a few keys there."""
    if not answer:
        return path == "/"
    if _tree_of(answer).holds(path):
        return True
    if isinstance(answer, FileTree) or len(answer) < _FEW:
        return False
    return _tree_of((yield List(prefix_of(path)))).holds(path)


def missing_error(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no file at `path`."""
    return IsDirectoryError(path) if (yield from holds_files(path)) else NotFoundError(path)


def no_directory_error(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no directory at `path`."""
    return NotDirectoryError(path) if path in (yield Stat([path])) else NotFoundError(path)


def _files(wanted: Sequence[str], *, contents: bool = True) -> Plan[Found]:
    """The files at `wanted`, or their stats. The root is never a file, even if the storage has that key."""
    asked = [path for path in wanted if path != "/"]
    if not asked:
        return {}
    found: Found = yield (Get if contents else Stat)(asked)
    return found


def _get_existing(path: str) -> Plan[Mapping[str, FileDataV2]]:
    """A mapping of `path` to the file there. Raises if there is no file."""
    found: Mapping[str, FileDataV2] = {} if path == "/" else (yield Get([path]))
    if path not in found:
        raise (yield from missing_error(path))
    return found


def snapshot_tree(path: str) -> Plan[FileTree]:
    """A snapshot of the tree with everything under `path`."""
    return _tree_of((yield List(prefix_of(path)))).snapshot()


def _beneath(path: str, *, contents: bool) -> Plan[tuple[Found, list[str]]]:
    """The files under the directory `path`, or their stats, and their paths.

    Raises NotFoundError if there are none, except for the root.
    """
    tree = yield from snapshot_tree(path)
    chosen = tree.beneath(path)
    if tree.contents is not None or not contents:
        return tree.contents if tree.contents is not None else tree.files, chosen
    files: Found = yield Get(chosen)
    kept = [child for child in chosen if child in files]
    if chosen and not kept:
        raise NotFoundError(path)
    return files, kept


def subtree(path: str, *, contents: bool) -> Plan[tuple[Found, list[str]]]:
    """As `_beneath`, but `path` may also be a file."""
    single = yield from _files([path], contents=contents)
    if path in single:
        return single, [path]
    return (yield from _beneath(path, contents=contents))


def ls(backend: PlannedBackend, operation: Ls) -> Plan[LsResult]:
    path = operation.path
    tree = _tree_of((yield Children(prefix_of(path))))
    if path not in tree.directories:
        raise (yield from no_directory_error(path))
    return LsResult(entries=tree.entries(path))


def list_tree(backend: PlannedBackend, operation: ListTree) -> Plan[TreeListing]:
    path = operation.path
    single: Mapping[str, FileStat] = {} if path == "/" else (yield Stat([path]))
    if path in single:
        return list_implied(path, [(path, single[path].size)])
    tree = yield from snapshot_tree(path)
    return list_implied(path, [(child, tree.info(child).size) for child in tree.beneath(path)])


def read(backend: PlannedBackend, operation: Read) -> Plan[ReadResult]:
    path, offset, limit = operation.path, operation.offset, operation.limit
    data = (yield from _get_existing(path))[path]
    return records.read_data(path, data, offset, limit, max_binary=backend._max_bytes)


def read_raw(backend: PlannedBackend, operation: ReadRaw) -> Plan[ReadRawResult]:
    return ReadRawResult(data=(yield from _get_existing(operation.path))[operation.path])


def download(given: Sequence[str]) -> Plan[list[FileDownloadResponse]]:
    wanted = [valid_path(path) for path in given]
    found: Mapping[str, FileDataV2] = {}
    try:
        if asked := _unique(path for path in wanted if isinstance(path, str) and path != "/"):
            found = yield GetEach(asked)
    except ChangedError:
        raise
    except DeepFSError as error:
        wanted = [error if isinstance(path, str) else path for path in wanted]
    responses = []
    failures: dict[str, DeepFSError] = {}
    lost: DeepFSError | None = None
    for name, path in zip(given, wanted, strict=True):
        if isinstance(path, str) and path not in found:
            path = lost or (yield from _why_missing(path))
            lost = None if is_about_one_file(path) else path
        try:
            if isinstance(path, DeepFSError):
                raise path
            responses.append(FileDownloadResponse(name, records.content_bytes(found[path], path)))
        except DeepFSError as error:
            failures.setdefault(error.code, error)
            responses.append(failed_item(FileDownloadResponse, name, error))
    for failure in failures.values():  # One of many files for the same reason.
        log_failure(failure)
    return responses


def _why_missing(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no file at `path`, or the error of finding this out."""
    try:
        return (yield from missing_error(path))
    except ChangedError:
        raise
    except DeepFSError as error:
        return error


# --- changing --------------------------------------------------------------------------------------------------------
# Every change of a flat backend passes `backend._before_apply`, once an operation.


def look_before_write(backend: PlannedBackend, path: str, *, contents: bool) -> Plan[Found]:
    """The file at `path`, or its stat, if there is one. Raises if no file can be put there."""
    found: Found = {}
    if path == "/":
        raise IsDirectoryError(path)
    above = paths.ancestors(path)
    seen = (Get if contents else Stat)([path, *above])
    if backend._asks_together:
        found, beneath = yield Together((seen, List(prefix_of(path), _FEW)))
    else:
        found, beneath = (yield seen), None
    if found:
        for directory in above:
            if directory in found:
                raise NotDirectoryError(directory)
        if path in found:
            return found
    directory_question = holds_files(path) if beneath is None else _shows_directory(path, beneath)
    if (yield from directory_question):
        raise IsDirectoryError(path)
    return found


def write(backend: PlannedBackend, operation: Write) -> Plan[WriteResult]:
    path, overwrite, if_match = operation.path, operation.overwrite, operation.if_match
    needs_before = if_match is not None or (overwrite and backend._reads_before_change)
    found = yield from look_before_write(backend, path, contents=needs_before)
    flat_tree.check_replaceable(path, found, overwrite=overwrite, if_match=if_match)
    after = records.text_file(operation.content, flat_tree.created_at(found, path))
    update = yield Apply(backend._before_apply([flat_tree.change_of(path, found, after)]))
    return WriteResult(path=path, files_update=update)


def edit(backend: PlannedBackend, operation: Edit) -> Plan[EditResult]:
    path = operation.path
    found = yield from _get_existing(path)
    before = found[path]
    flat_tree.check_version(path, found, operation.if_match)
    content = records.text_of(before, path)
    if content is None:
        raise BinaryFileError(path)
    done = replace(path, content, operation.old, operation.new, operation.replace_all)
    after = records.text_file(done.content, before.created_at)
    update = yield Apply(backend._before_apply([flat_tree.change_of(path, found, after, done)]))
    return EditResult(path=path, files_update=update, occurrences=done.occurrences)


def delete(backend: PlannedBackend, operation: Delete) -> Plan[DeleteResult]:
    path, if_match = operation.path, operation.if_match
    if path == "/":
        raise PermissionDeniedError(path, "the root cannot be deleted")
    needs_before = if_match is not None or backend._reads_before_change
    files, chosen = yield from subtree(path, contents=needs_before)
    flat_tree.check_version(path, files, if_match)
    yield Apply(backend._before_apply([flat_tree.change_of(child, files, None) for child in chosen]))
    return DeleteResult(path=path)


def move(backend: PlannedBackend, operation: Move) -> Plan[WriteResult]:
    src, dst = operation.src, operation.dst
    files, chosen = yield from subtree(src, contents=src != dst)
    if src == dst:
        return WriteResult(path=dst)
    added = yield from _relocate(backend, operation, files, chosen)
    removed = [flat_tree.change_of(path, files, None) for path in chosen]
    return WriteResult(path=dst, files_update=(yield Apply(backend._before_apply([*added, *removed]))))


def copy(backend: PlannedBackend, operation: Copy) -> Plan[WriteResult]:
    src, dst = operation.src, operation.dst
    files, chosen = yield from subtree(src, contents=True)
    moved = yield from _relocate(backend, operation, files, chosen)
    update = yield Apply(backend._before_apply([flat_tree.as_copy(change) for change in moved]))
    return WriteResult(path=dst, files_update=update)


def _relocate(backend: PlannedBackend, operation: Copy, files: Found, chosen: Sequence[str]) -> Plan[list[Change]]:
    """The changes that put the `chosen` files, which lie at or under `src`, to `dst`. Raises if that is impossible."""
    targets, found = yield from check_relocation(backend, operation, chosen)
    return [flat_tree.change_of_move(targets[path], found, path, files) for path in chosen]


def check_relocation(
    backend: PlannedBackend, operation: Copy, chosen: Sequence[str]
) -> Plan[tuple[dict[str, str], Found]]:
    """The new path of each of the `chosen` files, which lie at or under `src`, and what is found at and above `dst`.

    Raises if they cannot be put there.
    """
    src, dst = operation.src, operation.dst
    targets = flat_tree.relocation(src, dst, chosen)
    found = yield from _files([dst, *paths.ancestors(dst)], contents=backend._reads_before_change)
    flat_tree.check_parents(dst, found)
    standing: Kind | None = "file" if dst in found else "directory" if (yield from holds_files(dst)) else None
    check_target(dst, standing, from_file=src in chosen, overwrite=operation.overwrite)
    return targets, found


PLANS: Final[Mapping[type[Operation], Callable[[PlannedBackend, Any], Plan[Any]]]] = {
    Read: read, ReadRaw: read_raw, Ls: ls, ListTree: list_tree,
    Write: write, Edit: edit, Delete: delete, Move: move, Copy: copy,
}  # fmt: skip
"""The plans of operations on one file or tree, whose paths are normalised."""


def change_files(
    backend: PlannedBackend, operation: FileBatch, outcomes: dict[int, DeepFSError | None]
) -> Plan[dict[int, DeepFSError | None]]:
    """Make the changes of a batch that have no outcome yet.

    If others overtook some of them, and the storage has made the rest, `outcomes` gets that of the rest, and the next
    plan makes those that are left.

    Returns the outcomes of all by their number: the error of a change that was not made, else None.
    """
    left = {number: each for number, each in enumerate(operation.content_changes) if number not in outcomes}
    targets = {number: valid_path(change.path) for number, change in left.items()}
    planned = yield from _plan_files(backend, [(targets[number], change) for number, change in left.items()])
    found: dict[int, DeepFSError | None] = {}
    for number, change in left.items():
        target = targets[number]
        found[number] = (
            planned.add(target, change.content, overwrite=change.overwrite, if_match=change.if_match)
            if isinstance(target, str)
            else target
        )
    if not planned.changes or (operation.is_whole and any(found.values())):
        return outcomes | found
    try:
        yield Apply(backend._before_apply(planned.changes))
    except PartlyDoneError as error:
        undone = [number for number in found if found[number] is None and targets[number] not in error.done]
        if undone and error.code is ErrorCode.CONFLICT:
            outcomes.update({number: each for number, each in found.items() if number not in undone})
            raise ChangedError(left[undone[0]].path) from error
        found.update(dict.fromkeys(undone, error))
    except ChangedError:
        raise
    except DeepFSError as error:
        found = {number: each or error for number, each in found.items()}
    return outcomes | found


def _plan_files(
    backend: PlannedBackend, wanted: Sequence[tuple[str | DeepFSError, ContentChange]]
) -> Plan[PlannedFiles]:
    """Look up what changes of whole files need to know."""
    valid = {target: change for target, change in wanted if isinstance(target, str)}
    found, occupied = yield from _find_occupied(backend, list(valid))
    compared = [target for target, change in valid.items() if change.if_match is not None and target in found]
    contents = found if backend._reads_before_change else (yield GetEach(compared)) if compared else {}
    emptied = {up for target, change in valid.items() if change.content is None for up in paths.ancestors(target)}
    directories: dict[str, Collection[str] | None] = dict.fromkeys(occupied)
    for directory in occupied & emptied:
        tree = yield from snapshot_tree(directory)
        directories[directory] = tree.beneath(directory) if tree.holds(directory) else ()
    return PlannedFiles(found, contents, directories, backend._check_storable)


def _find_occupied(backend: PlannedBackend, targets: list[str]) -> Plan[tuple[Found, set[str]]]:
    """The files at and above `targets`, or their stats, and those of `targets` that are directories."""
    empty = yield from _empty_directories(backend, targets)
    above = _unique(up for path in targets for up in paths.ancestors(path))
    targets = [path for path in targets if not _is_in(path, empty)]
    wanted = _unique([*targets, *(path for path in above if not _is_in(path, empty))])
    found = yield from _files(wanted, contents=backend._reads_before_change)
    missing = [path for path in targets if path not in found]
    answers: Sequence[Any] = []
    if backend._asks_together:
        answers = yield Together([List(prefix_of(path), _FEW) for path in missing])
    directories = set()
    for path, answer in zip_longest(missing, answers):
        directory_question = holds_files(path) if answer is None else _shows_directory(path, answer)
        if (yield from directory_question):
            directories.add(path)
    return found, directories


def _empty_directories(backend: PlannedBackend, targets: Sequence[str]) -> Plan[set[str]]:
    """Directories above `targets` that hold no files: of what is in them, nothing need be asked for.

    A tree that is copied goes into new directories mostly, so this asks for one directory in place of each file.
    """
    empty: set[str] = set()
    if len(targets) < _MANY or backend._reads_before_change:  # There one request reads what the targets hold.
        return empty
    depths: dict[int, list[str]] = {}
    for directory in _unique(up for path in targets for up in ("/", *paths.ancestors(path))):
        depths.setdefault(directory.count("/") if directory != "/" else 0, []).append(directory)
    for _, directories in sorted(depths.items()):
        asked = [directory for directory in directories if not _is_in(directory, empty)]
        lists = [List(prefix_of(directory), _FEW) for directory in asked]
        if backend._asks_together:
            answers = yield Together(lists)
        else:
            answers = []
            for each in lists:
                answers.append((yield each))
        empty.update(directory for directory, answer in zip(asked, answers, strict=True) if not answer)
    return empty


def _is_in(path: str, directories: set[str]) -> bool:
    """Whether one of `directories` is above `path`."""
    return bool(directories) and path != "/" and not directories.isdisjoint(("/", *paths.ancestors(path)))


def valid_path(path: str) -> str | DeepFSError:
    """`path` normalised, or the error of an invalid path."""
    try:
        return paths.normalize(path)
    except DeepFSError as error:
        return error


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


# --- searching -------------------------------------------------------------------------------------------------------
# A storage that has an index names candidates, page by page. Of others the tree is listed, and `grep` fetches the files
# that the glob admits, in batches.

_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256


def _list_searched(backend: PlannedBackend, files: FileFilter) -> Plan[FileTree]:
    """The tree with everything that a search selects. Of a remote storage, it has only what the glob may select."""
    if not backend._asks_together:
        return (yield from snapshot_tree(files.root))
    start = path_needs(files).prefix
    directory = start[: start.rindex("/")] or "/"
    if paths.is_beneath(directory, files.root):
        tree = yield from snapshot_tree(directory)
        if tree.holds(directory):
            return tree
        if (yield from holds_files(files.root)):
            return StatTree({}, Directories([f"{prefix_of(files.root)}_"]))
    return (yield from snapshot_tree(files.root))


def glob(backend: PlannedBackend, request: GlobRequest, files: FileFilter) -> Plan[GlobResult]:
    if backend._finds:
        return (yield from _find_names(request, files))
    tree = yield from _list_searched(backend, files)
    if not tree.holds(files.root):
        raise NotDirectoryError(files.root) if files.root in tree.files else (yield from no_directory_error(files.root))
    search = BatchedGlob(files)
    yield Work(partial(search.add, tree), search_deadline(), is_short(tree))
    return search.result()


def _find_names(request: GlobRequest, files: FileFilter) -> Plan[GlobResult]:
    """`glob` where the storage finds candidates by itself."""
    search, deadline, page = BatchedGlob(files), search_deadline(), Page({}, "")
    while page.last is not None and not search.has_enough:
        page = yield Find(request, files, page.last or None)
        yield Work(partial(search.add, StatTree(page.files)), deadline, is_short(StatTree(page.files)))
        search.is_late |= page.truncated
    if not search.matches and not (yield from holds_files(files.root)):
        raise (yield from no_directory_error(files.root))
    result = search.result()
    result.as_of = page.as_of
    return result


def grep(backend: PlannedBackend, request: GrepRequest, files: FileFilter) -> Plan[GrepResult]:
    grep, root, deadline = GrepScan(request, files, backend._max_bytes), files.root, search_deadline()
    if backend._finds:
        return (yield from _find_lines(backend, request, grep))
    tree = yield from _list_searched(backend, files)
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
    yield from _scan(backend, search, deadline)
    return search.result()


def _find_lines(backend: PlannedBackend, request: GrepRequest, grep: GrepScan) -> Plan[GrepResult]:
    """`grep` where the storage finds candidates by itself."""
    files, deadline, page = grep.files, search_deadline(), Page({}, "")
    seen = 0
    while page.last is not None:
        page = yield Find(request, files, page.last or None)
        grep.skipped += page.skipped
        seen += len(page.files)
        wants_more = yield from _scan(backend, BatchedGrep(StatTree(page.files), grep), deadline)
        if page.truncated:
            grep.truncated = True
        if not wants_more or grep.truncated:
            break
    if not seen and files.root != "/" and not (yield Stat([files.root])) and not (yield from holds_files(files.root)):
        raise NotFoundError(files.root)
    result = grep.result()
    result.as_of = page.as_of
    return result


def _scan(backend: PlannedBackend, search: BatchedGrep, deadline: Deadline) -> Plan[bool]:
    """Search the files of a listing without contents. Returns whether the search needs more files."""
    chosen: list[tuple[str, int]] = yield Work(search.choose, deadline)
    ahead = tuple(path for path, _ in chosen) if backend._asks_together else ()
    for batch in batches(chosen):
        ahead = ahead[len(batch) :]
        if not (yield Work(partial(search.scan, batch, (yield GetEach(batch, ahead))), deadline)):
            return False
    return True


def batches(chosen: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """The paths, each given with its size, in batches to fetch."""
    for batch in in_batches(chosen, itemgetter(1), most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
        yield [path for path, _ in batch]
