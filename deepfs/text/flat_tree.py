"""A tree over flat storage: which directories a set of file paths implies, and what each operation changes in it.

Flat storage maps path → file. The functions here are pure: they take the files that an operation looked up and return
its result, or the `Change`s to store; `backends/flat.py` does the fetching and storing.

A storage may hold what is no file of the contract: a key that is no path in normal form has no place in the tree, so it
is passed over. A record at a proper path that is no file is listed by its path, and can be replaced or deleted.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    DeepFSError,
    InvalidContentError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
)
from deepfs.text import paths
from deepfs.text import records as filedata
from deepfs.text.edits import Replacement
from deepfs.text.lines import version
from deepfs.types import FileDataV2, FileInfo

__all__ = [
    "Change",
    "ChangedError",
    "DecodedFiles",
    "Directories",
    "FileTree",
    "PartlyDoneError",
    "Uploads",
    "as_copy",
    "change_of",
    "check_destination",
    "check_parents",
    "check_replaceable",
    "check_version",
    "file_info",
    "file_paths",
    "readable",
    "relocation",
]


class Change(Struct, frozen=True):
    """One file before and after an operation; None is no file. `replacement` tells what an edit replaced.

    `origin` is the record that `before` was read from, as the storage has it; None where there was none, and where the
    storage keeps no records.
    """

    path: str
    before: FileDataV2 | None
    after: FileDataV2 | None
    replacement: Replacement | None = None
    origin: Any = None


class ChangedError(ConflictError):
    """Nothing was stored: the files at some of the paths are others by now than those that were read."""


class PartlyDoneError(BackendError):
    """The storage failed after some of the changes of an operation had taken effect, those of the paths in `done`."""

    def __init__(self, reason: str, done: Container[str], cause: DeepFSError | None = None) -> None:
        self.done = done
        self._set(None, reason, cause=cause)


def file_paths(keys: Collection[Any]) -> list[str]:
    """The keys of a storage that are paths of files."""
    return list(keys) if paths.are_plainly_normal(keys) else [key for key in keys if _is_file_path(key)]


def _is_file_path(key: Any) -> bool:
    return isinstance(key, str) and key != "/" and paths.is_normal(key)


class Directories:
    """The directories that a set of file paths implies, with their children; adding and discarding cost the depth.

    Keys that are no paths of files are passed over.
    """

    def __init__(self, files: Collection[Any] = ()) -> None:
        self._children: dict[str, dict[str, None]] = {"/": {}}
        for path in file_paths(files):
            self._add(path)

    def __contains__(self, path: object) -> bool:
        return path in self._children

    def children(self, directory: str) -> list[str]:
        """The paths directly in `directory`, in no order."""
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
        """Apply the changes of an operation."""
        for change in changes:
            if change.after is None:
                self.discard(change.path)
            else:
                self.add(change.path)


class DecodedFiles(Mapping[str, FileDataV2]):
    """Stored records by path, each decoded when it is asked for; invalid_content for one that is no file."""

    def __init__(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        self._records = records

    def __getitem__(self, path: str) -> FileDataV2:
        return filedata.decode_file(self._records[path], path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def record(self, path: str) -> Any:
        """The stored record of `path`, undecoded; None if there is none."""
        return self._records.get(path)

    def __contains__(self, path: object) -> bool:
        return path in self._records


class FileTree:
    """All files of a storage at one moment, as a tree; the directories are worked out when they are asked for."""

    def __init__(self, files: Mapping[str, FileDataV2], directories: Directories | None = None) -> None:
        self.files = files
        self._directories = directories

    @property
    def directories(self) -> Directories:
        """The directories that the files imply."""
        if self._directories is None:
            self._directories = Directories(self.files)
        return self._directories

    def entries(self, directory: str) -> list[FileInfo]:
        """The direct children of `directory`, sorted by path; file_not_found, not_a_directory."""
        if directory not in self.directories:
            raise NotDirectoryError(directory) if directory in self.files else NotFoundError(directory)
        return sorted(self._children(directory), key=lambda info: info.path)

    def _children(self, directory: str) -> Iterator[FileInfo]:
        for path in self.directories.children(directory):
            if path in self.directories:
                yield FileInfo(f"{path}/", is_dir=True)
            if path in self.files:
                yield file_info(path, self.files)

    def beneath(self, path: str) -> list[str]:
        """The sorted paths of the files at or under `path`; file_not_found where there are none."""
        found = sorted(file_paths(self.files if path == "/" else self._candidates(path)))
        if not found and path != "/":
            raise NotFoundError(path)
        return found

    def _candidates(self, path: str) -> list[str]:
        """The keys that start like a path at or under `path`."""
        inside = f"{path}/"
        keys: Iterable[Any] = self.files
        return [key for key in keys if isinstance(key, str) and (key == path or key.startswith(inside))]

    def foreign(self) -> int:
        """The number of keys of the storage that are not paths of files."""
        return len(self.files) - len(file_paths(self.files))


def readable(files: Mapping[str, FileDataV2], path: str) -> FileDataV2 | None:
    """The file at `path`; None where there is none, or a record that is no file."""
    try:
        return files.get(path)
    except InvalidContentError:
        return None


def change_of(
    path: str, files: Mapping[str, FileDataV2], after: FileDataV2 | None, replacement: Replacement | None = None
) -> Change:
    """The change of what `files` have at `path` to `after`."""
    origin = files.record(path) if isinstance(files, DecodedFiles) else None
    return Change(path, readable(files, path), after, replacement, origin)


def file_info(path: str, files: Mapping[str, FileDataV2]) -> FileInfo:
    """The listing entry of a file; one whose record cannot be read is listed by its path alone."""
    data = readable(files, path)
    if data is None:
        return FileInfo(path, is_dir=False)
    return FileInfo(path, is_dir=False, size=filedata.size_of(data), modified_at=data.modified_at)


def check_replaceable(path: str, files: Mapping[str, FileDataV2], *, overwrite: bool, if_match: str | None) -> None:
    """Raise unless a write may put a file at `path`, in the place of what `files` have there."""
    if if_match is not None:
        if not _is_version(path, files, if_match):
            raise ConflictError(path)
    elif path in files and not overwrite:
        raise AlreadyExistsError(path)


def check_version(path: str, files: Mapping[str, FileDataV2], if_match: str | None) -> None:
    """Raise unless `path` is a file of `files` in the version `if_match`, where one is given."""
    if if_match is None:
        return
    if path not in files:
        raise IsDirectoryError(path)
    if not _is_version(path, files, if_match):
        raise ConflictError(path)


def _is_version(path: str, files: Mapping[str, FileDataV2], if_match: str) -> bool:
    """Whether the file at `path` is the version that the caller named; what is no file is none."""
    data = readable(files, path)
    try:
        return data is not None and version(filedata.content_bytes(data)) == if_match
    except InvalidContentError:
        return False


def check_parents(path: str, files: Container[str]) -> None:
    """Raise where something above `path` is a file."""
    for directory in paths.ancestors(path):
        if directory in files:
            raise NotDirectoryError(directory)


def relocation(src: str, dst: str, sources: Mapping[str, FileDataV2]) -> dict[str, str]:
    """The new path of each of `sources`, which are at or under `src`, when `src` becomes `dst`."""
    if paths.is_beneath(dst, src):
        raise InvalidPathError(dst, "it lies inside {other}", src)
    return {path: dst + path[len(src) :] for path in sources}


def check_destination(dst: str, files: Container[str], *, is_directory: bool, from_file: bool, overwrite: bool) -> None:
    """Raise unless a file (`from_file`) or a directory may be put at `dst`, where a file or a directory may stand."""
    if is_directory:
        raise IsDirectoryError(dst) if overwrite else AlreadyExistsError(dst, is_directory=True)
    if dst in files and not overwrite:
        raise AlreadyExistsError(dst)
    if dst in files and not from_file:
        raise NotDirectoryError(dst)


def as_copy(moved: Change) -> Change:
    """`moved` as a new file: it keeps the creation time of the file that it replaces, and is modified now."""
    if moved.after is None:
        return moved
    content = filedata.content_bytes(moved.after)
    created_at = moved.before.created_at if moved.before else None
    return replace(moved, after=filedata.new_file(content, created_at=created_at))


class Uploads:
    """The changes that a batch makes. `found` are the files that were at its paths and above them before."""

    def __init__(
        self,
        found: Mapping[str, FileDataV2],
        directories: Collection[str],
        check_storable: Callable[[str, FileDataV2], None],
    ) -> None:
        self._found = found
        self._after = {path: readable(found, path) for path in found}
        self._directories = directories
        self._planned = Directories()
        self._check_storable = check_storable
        self._changes: dict[str, Change] = {}

    @property
    def changes(self) -> list[Change]:
        """The changes to store, one for each path."""
        return list(self._changes.values())

    def add(self, path: str, content: bytes) -> DeepFSError | None:
        """Plan one upload; returns why it cannot be."""
        try:
            self._plan(path, content)
        except DeepFSError as error:
            return error
        return None

    def _plan(self, path: str, content: bytes) -> None:
        check_parents(path, self._after)
        if path in self._directories or path in self._planned:
            raise IsDirectoryError(path)
        earlier = self._after.get(path)
        after = filedata.new_file(content, created_at=earlier.created_at if earlier else None)
        self._check_storable(path, after)
        self._after[path] = after
        self._changes[path] = change_of(path, self._found, after)
        self._planned.add(path)
