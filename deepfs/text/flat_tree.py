"""A tree over flat storage: which directories a set of file paths implies, and what each operation changes in it.

Flat storage maps path → file. The functions here are pure: they take the files that an operation looked up and return
its result, or the `Change`s to store; `storage/` does the fetching and storing.

A storage may also hold other data. A key that is not a normalised path has no place in the tree, so it is ignored. A
malformed record at a valid path is listed by its path, and can be replaced or deleted.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    DeadlineError,
    DeepFSError,
    InvalidContentError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.text import paths, records
from deepfs.text.edits import Replacement
from deepfs.text.lines import version
from deepfs.types import FileDataV2, FileInfo


class FileStat(Struct, frozen=True):
    """The size, times, version and type of a file, without its content; None is what the storage does not know."""

    size: int | None = None
    """Bytes."""
    modified_at: str | None = None
    created_at: str | None = None
    tag: Any = None
    """Identifies this version of the file, such as a revision number or an ETag."""
    mime_type: str | None = None


Found: TypeAlias = Mapping[str, FileDataV2] | Mapping[str, FileStat]
"""The files of a storage at some paths, or what it knows about them without their content."""

Condition: TypeAlias = Literal["create", "replace", "version"]


class Change(Struct, frozen=True):
    """One file before and after an operation; None is no file. `replacement` is what an edit replaced.

    `origin` identifies the version of the file that the operation saw: its record or its tag, as the storage gave it.
    It is None if there was no file, or if the storage has neither. `seen` is the stat of a file whose content was not
    fetched. `source` is the `origin` of the file that is copied or moved here.
    """

    path: str
    before: FileDataV2 | None
    after: FileDataV2 | None
    replacement: Replacement | None = None
    origin: Any = None
    seen: FileStat | None = None
    source: Any = None

    @property
    def condition(self) -> Condition:
        """The condition for the change; if it is not met, the storage refuses the change with ChangedError.

        "create": there is no file at the path. "version": the file there is the version that `origin` identifies.
        "replace": any file or none may be there. If `after` is None, the change deletes the file.
        """
        if self.origin is not None:
            return "version"
        return "create" if self.before is None and self.seen is None else "replace"

    @property
    def size_after(self) -> int:
        """The size of the file after, in bytes; 0 if it is deleted."""
        return 0 if self.after is None else records.size_of(self.after)


class ChangedError(ConflictError):
    """Nothing was stored, since the files at some of the paths changed after they were read."""


class PartlyDoneError(BackendError):
    """The storage failed after a part of the changes of an operation took effect: those of the paths in `done`."""

    def __init__(self, reason: str, done: Container[str], cause: DeepFSError | None = None) -> None:
        self.done = done
        self._set(None, reason, cause=cause)


def file_paths(keys: Collection[Any]) -> list[str]:
    """The keys of a storage that are paths of files."""
    return list(keys) if paths.are_plainly_normal(keys) else [key for key in keys if _is_file_path(key)]


def _is_file_path(key: Any) -> bool:
    return isinstance(key, str) and key != "/" and paths.is_normal(key)


class Directories:
    """The directories that a set of file paths implies, with their children.

    The cost of adding and discarding a file grows with its depth only. Keys that are not paths of files are ignored.
    """

    def __init__(self, files: Collection[Any] = ()) -> None:
        self._children: dict[str, dict[str, None]] = {"/": {}}
        for path in file_paths(files):
            self._add(path)

    def __contains__(self, path: object) -> bool:
        return path in self._children

    def children(self, directory: str) -> list[str]:
        """The paths directly in `directory`, in no particular order."""
        return list(self._children.get(directory, ()))

    def add(self, path: str) -> None:
        """Add the file `path`."""
        if _is_file_path(path):
            self._add(path)

    def _add(self, path: str) -> None:
        while path != "/":
            directory = paths.parent(path)
            known = directory in self._children
            self._children.setdefault(directory, {})[path] = None
            if known:
                return
            path = directory

    def discard(self, path: str) -> None:
        """Remove the file `path`, and the directories that become empty."""
        if _is_file_path(path):
            self._discard(path)

    def _discard(self, path: str) -> None:
        while path != "/" and path not in self._children:
            directory = paths.parent(path)
            siblings = self._children.get(directory)
            if siblings is None:
                return
            siblings.pop(path, None)
            if siblings or directory == "/":
                return
            del self._children[directory]
            path = directory

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply the changes of an operation, whose paths are those of files."""
        for change in changes:
            if change.after is None:
                self._discard(change.path)
            else:
                self._add(change.path)


ValueT = TypeVar("ValueT")


class Keyed(Mapping[str, ValueT]):
    """A mapping with the keys of another one."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files


class StoredFiles(Mapping[str, FileDataV2]):
    """Files by path, each with an identifier of its version in the storage."""

    def origin(self, path: str) -> Any:
        """The identifier of the version of the file at `path`, such as a tag; None if there is no file."""
        raise NotImplementedError

    def stat(self, path: str) -> FileStat:
        """The stat of the file at `path`, without decoding its content. Raises KeyError if there is no file."""
        return _stat(self, path)

    def is_version(self, path: str, if_match: str) -> bool:
        """Whether `if_match`, which is no hash of the content, is the version of the file at `path`."""
        return False


class TaggedFiles(Keyed[FileDataV2], StoredFiles):
    """Files with a tag each, for storages that number or hash the versions of a file.

    Access to a file that could not be read raises the error that `files` have in its place.
    """

    def __init__(self, files: Mapping[str, FileDataV2 | DeepFSError], tags: Mapping[str, Any]) -> None:
        super().__init__(files)
        self._tags = tags

    def __getitem__(self, path: str) -> FileDataV2:
        found: FileDataV2 | DeepFSError = self._files[path]
        if isinstance(found, DeepFSError):
            raise found
        return found

    def origin(self, path: str) -> Any:
        return self._tags.get(path)


def is_about_one_file(error: DeepFSError) -> bool:
    """Whether an error tells that a file cannot be read, and nothing about the others in the storage."""
    return error.path is not None and not isinstance(error, ChangedError | DeadlineError)


class DecodedFiles(Keyed[FileDataV2], StoredFiles):
    """Stored records by path, decoded when they are accessed. Access to a malformed one raises InvalidContentError."""

    _last: tuple[str, FileDataV2] | None = None

    def __getitem__(self, path: str) -> FileDataV2:
        last = self._last
        if last is None or last[0] != path:
            last = self._last = path, records.decode_file(self._files[path], path)
        return last[1]

    def origin(self, path: str) -> Any:
        return self._files.get(path)

    def stat(self, path: str) -> FileStat:
        return replace(_stat(self, path), tag=self._files[path])


class FileTree:
    """Files of a storage at one moment, as a tree; the directories are computed when they are first needed.

    `contents` are the files, or None if the storage listed them without their contents.
    """

    def __init__(self, files: Mapping[str, FileDataV2], directories: Directories | None = None) -> None:
        self.files: Found = files
        self.contents: Mapping[str, FileDataV2] | None = files
        self._directories = directories

    @property
    def directories(self) -> Directories:
        """The directories that the files imply."""
        if self._directories is None:
            self._directories = Directories(self.files)
        return self._directories

    def snapshot(self) -> "FileTree":
        """A tree that stays the same while the storage changes."""
        return FileTree(self.contents.copy()) if isinstance(self.contents, dict) else self

    def info(self, path: str) -> FileInfo:
        """The listing entry of the file at `path`."""
        return file_info(path, self.files)

    def holds(self, directory: str) -> bool:
        """Whether `directory` is in this tree; cheaper than computing all directories."""
        if self._directories is not None or directory == "/":
            return directory == "/" or directory in self.directories
        return any(_is_file_path(key) for key in self._beneath(directory))

    def entries(self, directory: str) -> list[FileInfo]:
        """The direct children of `directory`, sorted by path. Raises NotFoundError or NotDirectoryError."""
        if directory not in self.directories:
            raise NotDirectoryError(directory) if directory in self.files else NotFoundError(directory)
        return sorted(self._children(directory), key=lambda info: info.path)

    def _children(self, directory: str) -> Iterator[FileInfo]:
        directories = self.directories
        for path in directories.children(directory):
            if path in directories:
                yield FileInfo(f"{path}/", is_dir=True)
            if path in self.files:
                yield self.info(path)

    def beneath(self, path: str) -> list[str]:
        """The sorted paths of the files at or under `path`. Raises NotFoundError for none, except at the root."""
        # At or under any other path: the keys may still be no valid paths.
        found = sorted(
            file_paths(self.files if path == "/" else [path] * (path in self.files) + [*self._beneath(path)])
        )
        if not found and path != "/":
            raise NotFoundError(path)
        return found

    def _beneath(self, path: str) -> Iterator[str]:
        inside = f"{path}/"
        keys: Iterable[Any] = self.files
        return (key for key in keys if isinstance(key, str) and key.startswith(inside))

    def foreign(self) -> int:
        """The number of keys of the storage that are not paths of files."""
        return len(self.files) - len(file_paths(self.files))


class StatTree(FileTree):
    """A tree of files that the storage listed without their contents."""

    def __init__(self, stats: Mapping[str, FileStat], directories: Directories | None = None) -> None:
        self.files: Mapping[str, FileStat] = stats
        self.contents: Mapping[str, FileDataV2] | None = None
        self._stats = stats
        self._directories = directories

    def info(self, path: str) -> FileInfo:
        stat = self._stats[path]
        return FileInfo(path, is_dir=False, size=stat.size, modified_at=stat.modified_at)


def stat_of(data: FileDataV2) -> FileStat:
    """The stat of a file that was fetched."""
    return FileStat(records.size_of(data), data.modified_at, data.created_at)


def stats_of(files: Mapping[str, FileDataV2]) -> Mapping[str, FileStat]:
    """The stats of files that were fetched, each computed at access.

    A malformed record has neither size nor times.
    """
    return _Stats(files)


class _Stats(Keyed[FileStat]):
    def __getitem__(self, path: str) -> FileStat:
        return self._files.stat(path) if isinstance(self._files, StoredFiles) else _stat(self._files, path)


def _stat(files: Mapping[str, FileDataV2], path: str) -> FileStat:
    if path not in files:
        raise KeyError(path)
    data = readable(files, path)
    return FileStat() if data is None else stat_of(data)


def readable(files: Found, path: str) -> FileDataV2 | None:
    """The file at `path`; None if there is no file, if its record is malformed, or if its content was not fetched."""
    data = _at(files, path)
    return data if isinstance(data, FileDataV2) else None


def created_at(files: Found, path: str) -> str | None:
    """The creation time of the file at `path`; None if it is unknown."""
    data = _at(files, path)
    return None if data is None else data.created_at


def _at(files: Found, path: str) -> FileDataV2 | FileStat | None:
    try:
        # `Mapping.get` would raise and catch a KeyError, which costs a microsecond.
        return files[path] if path in files else None  # noqa: SIM401
    except InvalidContentError:
        return None


def change_of(path: str, files: Found, after: FileDataV2 | None, replacement: Replacement | None = None) -> Change:
    """The change from the file that `files` have at `path`, if any, to `after`."""
    found = _at(files, path)
    before = found if isinstance(found, FileDataV2) else None
    if type(files) is not dict and isinstance(files, StoredFiles):
        return Change(path, before, after, replacement, files.origin(path))
    if before is not None or path not in files:
        return Change(path, before, after, replacement)
    seen = found if isinstance(found, FileStat) else FileStat()
    return Change(path, None, after, replacement, seen.tag, seen)


def file_info(path: str, files: Found) -> FileInfo:
    """The listing entry of a file; if its record is malformed, the entry has only the path."""
    data = files.get(path) if type(files) is dict else readable(files, path)
    if type(data) is not FileDataV2:
        return FileInfo(path, is_dir=False)
    return FileInfo(path, is_dir=False, size=records.size_of(data), modified_at=data.modified_at)


def check_replaceable(path: str, files: Found, *, overwrite: bool, if_match: str | None) -> None:
    """Raise unless a write may create the file at `path`, or replace the one that `files` have there."""
    if if_match is not None:
        if not _is_version(path, files, if_match):
            raise ConflictError(path)
    elif path in files and not overwrite:
        raise AlreadyExistsError(path)


def check_version(path: str, files: Found, if_match: str | None) -> None:
    """Raise unless `if_match` is None or the version of the file that `files` have at `path`."""
    if if_match is None:
        return
    if path not in files:
        raise IsDirectoryError(path)
    if not _is_version(path, files, if_match):
        raise ConflictError(path)


def _is_version(path: str, files: Found, if_match: str) -> bool:
    """Whether the file at `path` has the version `if_match`; False if it is missing or malformed."""
    if isinstance(files, StoredFiles) and files.is_version(path, if_match):
        return True
    data = readable(files, path)
    try:
        return data is not None and version(records.content_bytes(data)) == if_match
    except InvalidContentError:
        return False


def check_parents(path: str, files: Container[str]) -> None:
    """Raise NotDirectoryError if a parent directory of `path` is a file."""
    for directory in paths.ancestors(path):
        if directory in files:
            raise NotDirectoryError(directory)


def relocation(src: str, dst: str, sources: Iterable[str]) -> dict[str, str]:
    """The new path of each of `sources`, which lie at or under `src`, when `src` becomes `dst`."""
    if paths.is_beneath(dst, src):
        raise InvalidPathError(dst, "it lies inside {other}", src)
    return {path: dst + path[len(src) :] for path in sources}


def change_of_move(path: str, found: Found, src: str, files: Found) -> Change:
    """The change from the file that `found` has at `path`, if any, to the one that `files` have at `src`."""
    source = files.origin(src) if isinstance(files, StoredFiles) else None
    return replace(change_of(path, found, files[src]), source=source)  # type: ignore[arg-type]


def as_copy(moved: Change) -> Change:
    """`moved` as a new file: it keeps the creation time of the file that it replaces, and is modified now."""
    if moved.after is None:
        return moved
    content = records.content_bytes(moved.after)
    created_at = moved.before.created_at if moved.before else None
    return replace(moved, after=records.new_file(content, created_at=created_at))


class PlannedFiles:
    """The changes of a batch of whole files, planned one after another: each sees what those before it do.

    Args:
        found: The files that were at their paths and above them before.
        contents: The same of the files whose version is compared, with their content.
        directories: Those of their paths that were directories. For one that a deletion of the batch may empty there
            are the paths of all files beneath it, else None.
        check_storable: Raises if the storage cannot hold a file.
    """

    def __init__(
        self,
        found: Found,
        contents: Found,
        directories: Mapping[str, Collection[str] | None],
        check_storable: Callable[[str, FileDataV2], None],
    ) -> None:
        self._found = found
        self._contents = contents
        self._occupied = set(found)
        self._created = {path: created_at(found, path) for path in found}
        self._directories = directories
        self._planned = Directories()
        self._removed: set[str] = set()
        self._check_storable = check_storable
        self._changes: dict[str, Change] = {}

    @property
    def changes(self) -> list[Change]:
        """The changes to store, one for each path."""
        return list(self._changes.values())

    def add(self, path: str, content: bytes | None, *, overwrite: bool, if_match: str | None) -> DeepFSError | None:
        """Plan one change, a deletion if `content` is None; return the error if it is not possible."""
        files = self._found if if_match is None else self._contents
        try:
            if content is None:
                self._check_removable(path)
                check_replaceable(path, files, overwrite=True, if_match=if_match)
                self._occupied.discard(path)
                self._removed.add(path)
                self._changes[path] = change_of(path, files, None)
                return None
            check_parents(path, self._occupied)
            if self._is_directory(path):
                raise IsDirectoryError(path)
            check_replaceable(path, files, overwrite=overwrite, if_match=if_match)
            after = records.new_file(content, created_at=self._created.get(path))
            self._check_storable(path, after)
        except DeepFSError as error:
            return error
        self._occupied.add(path)
        self._created[path] = after.created_at
        self._changes[path] = change_of(path, files, after)
        self._planned.add(path)
        return None

    def _check_removable(self, path: str) -> None:
        if path == "/":
            raise PermissionDeniedError(path, "the root cannot be deleted")
        if path not in self._occupied:
            raise IsDirectoryError(path) if self._is_directory(path) else NotFoundError(path)

    def _is_directory(self, path: str) -> bool:
        if path in self._planned:
            return True
        beneath = self._directories.get(path)
        return path in self._directories and (beneath is None or not self._removed.issuperset(beneath))
