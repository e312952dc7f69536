"""The operations on a tree of flat files as plans, which do no I/O and never wait; searches are in `searches.py`.

The requests that a plan yields, and what a plan is, are in `requests.py`; the runners are in `runners.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from deepfs.errors import (
    BinaryFileError,
    DeepFSError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.storage.requests import Apply, Children, Get, GetEach, List, Plan, Stat, Terms, Together
from deepfs.text import flat_tree as trees
from deepfs.text import paths, records
from deepfs.text.edits import replace
from deepfs.text.entries import TreeListing, implied_listing
from deepfs.text.flat_tree import (
    Change,
    ChangedError,
    FileStat,
    FileTree,
    Found,
    PartlyDoneError,
    StatTree,
    Uploads,
)
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

# --- looking ---------------------------------------------------------------------------------------------------------

_FEW: Final = 2
"""How many files to list to find out whether there are any. The key of the first may be no path."""
_MANY: Final = 16
"""How many files an upload has that looks for empty directories first."""


def inside(directory: str) -> str:
    """The prefix of all paths in a directory."""
    return "/" if directory == "/" else f"{directory}/"


def _tree_of(answer: FileTree | Mapping[str, FileStat]) -> FileTree:
    """The tree of what a storage listed."""
    return answer if isinstance(answer, FileTree) else StatTree(answer)


def holds_files(path: str) -> Plan[bool]:
    """Whether there are files under `path`."""
    return (yield from _shows_directory(path, (yield List(inside(path), _FEW))))


def _shows_directory(path: str, answer: FileTree | Mapping[str, FileStat]) -> Plan[bool]:
    """Whether there are files under `path`, by a listing of a few keys there."""
    if not answer:
        return path == "/"
    if _tree_of(answer).holds(path):
        return True
    if isinstance(answer, FileTree) or len(answer) < _FEW:
        return False
    return _tree_of((yield List(inside(path)))).holds(path)


def missing(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no file at `path`."""
    return IsDirectoryError(path) if (yield from holds_files(path)) else NotFoundError(path)


def no_directory(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no directory at `path`."""
    return NotDirectoryError(path) if path in (yield Stat([path])) else NotFoundError(path)


def _files(wanted: Sequence[str], *, contents: bool = True) -> Plan[Found]:
    """The files at `wanted`, or their stats. The root is never a file, even if the storage has that key."""
    asked = [path for path in wanted if path != "/"]
    if not asked:
        return {}
    found: Found = yield (Get if contents else Stat)(asked)
    return found


def _existing(path: str) -> Plan[Mapping[str, FileDataV2]]:
    """A mapping of `path` to the file there. Raises if there is no file."""
    found: Mapping[str, FileDataV2] = {} if path == "/" else (yield Get([path]))
    if path not in found:
        raise (yield from missing(path))
    return found


def listed_tree(path: str) -> Plan[FileTree]:
    """A snapshot of the tree with everything under `path`."""
    return _tree_of((yield List(inside(path)))).snapshot()


def _beneath(path: str, *, contents: bool) -> Plan[tuple[Found, list[str]]]:
    """The files under the directory `path`, or their stats, and their paths.

    Raises NotFoundError if there are none, except for the root.
    """
    tree = yield from listed_tree(path)
    chosen = tree.beneath(path)
    if tree.contents is not None or not contents:
        return tree.contents if tree.contents is not None else tree.files, chosen
    files: Found = yield Get(chosen)
    kept = [child for child in chosen if child in files]
    if chosen and not kept:
        raise NotFoundError(path)
    return files, kept


def _subtree(path: str, *, contents: bool) -> Plan[tuple[Found, list[str]]]:
    """As `_beneath`, but `path` may also be a file."""
    single = yield from _files([path], contents=contents)
    if path in single:
        return single, [path]
    return (yield from _beneath(path, contents=contents))


def ls(path: str) -> Plan[LsResult]:
    """The plan of `als`."""
    tree = _tree_of((yield Children(inside(path))))
    if path not in tree.directories:
        raise (yield from no_directory(path))
    return LsResult(entries=tree.entries(path))


def list_tree(path: str) -> Plan[TreeListing]:
    """The plan of `alist_tree`."""
    single: Mapping[str, FileStat] = {} if path == "/" else (yield Stat([path]))
    if path in single:
        return implied_listing(path, [(path, single[path].size)])
    tree = yield from listed_tree(path)
    return implied_listing(path, [(child, tree.info(child).size) for child in tree.beneath(path)])


def read(terms: Terms, path: str, offset: int, limit: int) -> Plan[ReadResult]:
    """The plan of `aread`."""
    files = {} if path == "/" else (yield Get([path]))
    if path not in files:
        raise (yield from missing(path))
    return records.read_data(path, files[path], offset, limit, max_binary=terms._max_bytes)


def read_raw(path: str) -> Plan[ReadRawResult]:
    """The plan of `aread_raw`."""
    return ReadRawResult(data=(yield from _existing(path))[path])


def download(given: Sequence[str]) -> Plan[list[FileDownloadResponse]]:
    """The plan of `adownload_files`."""
    wanted = [_valid(path) for path in given]
    found: Mapping[str, FileDataV2] = {}
    try:
        if asked := _unique(path for path in wanted if isinstance(path, str) and path != "/"):
            found = yield GetEach(asked)
    except ChangedError:
        raise
    except DeepFSError as error:
        wanted = [error if isinstance(path, str) else path for path in wanted]
    responses = []
    for name, path in zip(given, wanted, strict=True):
        if isinstance(path, str) and path not in found:
            path = yield from _why_missing(path)
        responses.append(_downloaded(name, path, found))
    return responses


def _why_missing(path: str) -> Plan[DeepFSError]:
    """The error that says why there is no file at `path`, or the error of finding this out."""
    try:
        return (yield from missing(path))
    except ChangedError:
        raise
    except DeepFSError as error:
        return error


def _downloaded(given: str, path: str | DeepFSError, found: Mapping[str, FileDataV2]) -> FileDownloadResponse:
    try:
        if isinstance(path, DeepFSError):
            raise path
        return FileDownloadResponse(given, records.content_bytes(found[path], path))
    except DeepFSError as error:
        return FileDownloadResponse(given, error=error.code.value)


# --- changing --------------------------------------------------------------------------------------------------------


def _apply(terms: Terms, changes: Sequence[Change]) -> Plan[dict[str, Any] | None]:
    """Store all changes of an operation. Every change of a flat backend goes through this function."""
    update: dict[str, Any] | None = yield Apply(terms._before_apply(changes))
    return update


def place(terms: Terms, path: str, *, contents: bool) -> Plan[Found]:
    """The file at `path`, or its stat, if there is one. Raises if no file can be put there."""
    found: Found = {}
    if path == "/":
        raise IsDirectoryError(path)
    seen = (Get if contents else Stat)([path, *paths.ancestors(path)])
    if terms._asks_together:
        found, beneath = yield Together((seen, List(inside(path), _FEW)))
    else:
        found, beneath = (yield seen), None
    if found:
        trees.check_parents(path, found)
    if path in found:
        return found
    is_directory = holds_files(path) if beneath is None else _shows_directory(path, beneath)
    if (yield from is_directory):
        raise IsDirectoryError(path)
    return found


def write(terms: Terms, path: str, content: str, *, overwrite: bool, if_match: str | None) -> Plan[WriteResult]:
    """The plan of `awrite`."""
    needs_before = if_match is not None or (overwrite and terms._reads_before_change)
    found = yield from place(terms, path, contents=needs_before)
    trees.check_replaceable(path, found, overwrite=overwrite, if_match=if_match)
    after = records.new_file(content, created_at=trees.created_at(found, path))
    update = yield from _apply(terms, [trees.change_of(path, found, after)])
    return WriteResult(path=path, files_update=update)


def edit(terms: Terms, path: str, old: str, new: str, *, replace_all: bool, if_match: str | None) -> Plan[EditResult]:
    """The plan of `aedit`."""
    found = yield from _existing(path)
    before = found[path]
    trees.check_version(path, found, if_match)
    content = records.text_of(before, path)
    if content is None:
        raise BinaryFileError(path)
    done = replace(path, content, old, new, replace_all)
    after = records.new_file(done.content, created_at=before.created_at)
    update = yield from _apply(terms, [trees.change_of(path, found, after, done)])
    return EditResult(path=path, files_update=update, occurrences=done.occurrences)


def delete(terms: Terms, path: str, *, if_match: str | None) -> Plan[DeleteResult]:
    """The plan of `adelete`."""
    if path == "/":
        raise PermissionDeniedError(path, "the root cannot be deleted")
    needs_before = if_match is not None or terms._reads_before_change
    files, chosen = yield from _subtree(path, contents=needs_before)
    trees.check_version(path, files, if_match)
    yield from _apply(terms, [trees.change_of(child, files, None) for child in chosen])
    return DeleteResult(path=path)


def move(terms: Terms, src: str, dst: str, *, overwrite: bool) -> Plan[WriteResult]:
    """The plan of `amove`."""
    files, chosen = yield from _subtree(src, contents=src != dst)
    if src == dst:
        return WriteResult(path=dst)
    added = yield from _relocated(terms, src, dst, files, chosen, overwrite=overwrite)
    removed = [trees.change_of(path, files, None) for path in chosen]
    return WriteResult(path=dst, files_update=(yield from _apply(terms, [*added, *removed])))


def copy(terms: Terms, src: str, dst: str, *, overwrite: bool) -> Plan[WriteResult]:
    """The plan of `acopy`."""
    files, chosen = yield from _subtree(src, contents=True)
    moved = yield from _relocated(terms, src, dst, files, chosen, overwrite=overwrite)
    update = yield from _apply(terms, [trees.as_copy(change) for change in moved])
    return WriteResult(path=dst, files_update=update)


def _relocated(
    terms: Terms, src: str, dst: str, files: Found, chosen: Sequence[str], *, overwrite: bool
) -> Plan[list[Change]]:
    """The changes that put the `chosen` files, which lie at or under `src`, to `dst`. Raises if that is impossible."""
    targets = trees.relocation(src, dst, chosen)
    found = yield from _files([dst, *paths.ancestors(dst)], contents=terms._reads_before_change)
    trees.check_parents(dst, found)
    is_directory = dst not in found and (yield from holds_files(dst))
    trees.check_destination(dst, found, is_directory=is_directory, from_file=src in chosen, overwrite=overwrite)
    return [trees.moved_here(targets[path], found, path, files) for path in chosen]


def upload(
    terms: Terms, files: Sequence[tuple[str, bytes]], targets: Sequence[str | DeepFSError]
) -> Plan[list[DeepFSError | None]]:
    """The plan of `aupload_files`. A target is a normalised path, or the error of an invalid path.

    The result has one item for each file: the error if it could not be stored, else None.
    """
    uploads = Uploads(*(yield from _occupied(terms, _paths(targets))), terms._check_storable)
    outcomes = [
        uploads.add(target, content) if isinstance(target, str) else target
        for target, (_, content) in zip(targets, files, strict=True)
    ]
    try:
        if uploads.changes:
            yield from _apply(terms, uploads.changes)
    except PartlyDoneError as error:
        return [
            outcome or (None if target in error.done else error)
            for target, outcome in zip(targets, outcomes, strict=True)
        ]
    except ChangedError:
        raise
    except DeepFSError as error:
        return [outcome or error for outcome in outcomes]
    return outcomes


def _occupied(terms: Terms, targets: list[str]) -> Plan[tuple[Found, set[str]]]:
    """The files at and above `targets`, or their stats, and those of `targets` that are directories."""
    empty = yield from _empty_directories(terms, targets)
    above = _unique(up for path in targets for up in paths.ancestors(path))
    targets = [path for path in targets if not _is_in(path, empty)]
    wanted = _unique([*targets, *(path for path in above if not _is_in(path, empty))])
    found = yield from _files(wanted, contents=terms._reads_before_change)
    missing = [path for path in targets if path not in found]
    answers: Sequence[Any] = []
    if terms._asks_together:
        answers = yield Together([List(inside(path), _FEW) for path in missing])
    directories = set()
    for path, answer in zip_longest(missing, answers):
        is_directory = holds_files(path) if answer is None else _shows_directory(path, answer)
        if (yield from is_directory):
            directories.add(path)
    return found, directories


def _empty_directories(terms: Terms, targets: Sequence[str]) -> Plan[set[str]]:
    """Directories above `targets` that hold no files: of what is in them, nothing need be asked for.

    A tree that is copied goes into new directories mostly, so this asks for one directory in place of each file.
    """
    empty: set[str] = set()
    if len(targets) < _MANY:
        return empty
    depths: dict[int, list[str]] = {}
    for directory in _unique(up for path in targets for up in ("/", *paths.ancestors(path))):
        depths.setdefault(directory.count("/") if directory != "/" else 0, []).append(directory)
    for _, directories in sorted(depths.items()):
        asked = [directory for directory in directories if not _is_in(directory, empty)]
        lists = [List(inside(directory), _FEW) for directory in asked]
        if terms._asks_together:
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


def upload_targets(files: Iterable[tuple[str, bytes]]) -> list[str | DeepFSError]:
    """The normalised path of each file, or the error of an invalid path."""
    return [_valid(path) for path, _ in files]


def upload_responses(
    files: Sequence[tuple[str, bytes]], outcomes: Sequence[DeepFSError | None]
) -> list[FileUploadResponse]:
    """The responses of an upload with these `outcomes`."""
    return [
        FileUploadResponse(given, outcome.code.value if outcome else None)
        for (given, _), outcome in zip(files, outcomes, strict=True)
    ]


def _valid(path: str) -> str | DeepFSError:
    """`path` normalised, or the error of an invalid path."""
    try:
        return paths.normalize(path)
    except DeepFSError as error:
        return error


def _paths(targets: Iterable[str | DeepFSError]) -> list[str]:
    """The targets that are paths, not errors."""
    return [target for target in targets if isinstance(target, str)]


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
