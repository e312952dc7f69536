"""Walking trees: each directory is opened relative to its parent, and few are open at a time, however deep the tree.

Walks, listings, copies and deletions of trees all use `Descent`. Keeping every parent directory open would cost a
descriptor per level. So only the last few levels stay open; a closed one is reopened from its child, as `..`, and must
still be the same directory.
"""

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from contextlib import ExitStack, closing
from itertools import islice
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from deepfs.disk.os_calls import (
    NO_FOLLOW,
    READ,
    READ_DIRECTORY,
    FileId,
    StorageErrors,
    file_id,
    is_shortage,
    is_temporary,
    release,
    storage_error,
)
from deepfs.disk.reading import (
    UNIT,
    check_database,
    check_entry,
    check_regular,
    modified_at,
    open_regular,
    read_descriptor,
)
from deepfs.disk.resolve import Root
from deepfs.errors import DeepFSError, NotDirectoryError, NotFoundError
from deepfs.text import paths
from deepfs.text.access import AccessCheck, permits
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo

_OPEN_LEVELS = 8


class OpenDirectory:
    """A directory called `name` that can be closed and reopened; its descriptor is -1 while it is closed.

    A `borrowed` descriptor belongs to the caller and is not closed here.
    """

    __slots__ = ("_id", "borrowed", "descriptor", "lost", "name")

    def __init__(self, name: str, descriptor: int, *, borrowed: bool = False) -> None:
        self.name: str = name
        self.descriptor: int = descriptor
        self.borrowed: bool = borrowed
        self.lost: OSError | None = None
        """The error if the directory could not be reopened."""
        self._id: FileId | None = None

    def close_for_now(self) -> None:
        """Close the directory until `reopen`; does nothing if it is closed."""
        if self.descriptor < 0:
            return
        self._id = file_id(os.fstat(self.descriptor))
        self.close()

    def reopen(self, child: "OpenDirectory") -> None:
        """Reopen the directory as the parent of the open directory `child`; OSError if `child` was moved elsewhere."""
        # `..` follows no symlink, and `adopt` checks that it is the directory that was opened from the root before.
        self.adopt(os.open("..", READ_DIRECTORY, dir_fd=child.descriptor))

    def adopt(self, descriptor: int) -> None:
        """Use `descriptor` from here on; OSError if it belongs to another directory."""
        if file_id(os.fstat(descriptor)) != self._id:
            release(descriptor)
            raise OSError(errno.ESTALE, "it was moved meanwhile")
        self.descriptor = descriptor

    def close(self) -> None:
        """Close the directory, unless it is borrowed."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0 and not self.borrowed:
            release(descriptor)


LevelT = TypeVar("LevelT", bound=OpenDirectory)


class Descent(Generic[LevelT]):
    """The stack of directories from the start of a walk, which stays open, to its position; a context that closes them.

    With `by_names`, a directory that cannot be reopened from its child is also looked up by its path from the start.
    """

    def __init__(self, *, by_names: bool = True) -> None:
        self.levels: list[LevelT] = []
        self._looks_by_names = by_names

    def __enter__(self) -> "Descent[LevelT]":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:
            for level in self.levels:
                closing.callback(level.close)

    def enter(self, level: LevelT) -> None:
        """Push `level`, a directory inside the last level."""
        self.levels.append(level)
        if len(self.levels) > _OPEN_LEVELS + 1:
            self.levels[-_OPEN_LEVELS - 1].close_for_now()

    def leave(self) -> LevelT:
        """Pop the last level, close and return it; the level above gets `lost` set if it cannot be reopened."""
        level = self.levels.pop()
        try:
            if self.levels and self.levels[-1].descriptor < 0:
                self._reopen(self.levels[-1], level)
        finally:
            level.close()
        return level

    def _reopen(self, level: LevelT, child: LevelT) -> None:
        try:
            try:
                level.reopen(child)
            except OSError:  # The child was removed or moved.
                if not self._looks_by_names:
                    raise
                level.adopt(self._by_names())
        except OSError as error:
            level.lost = error

    def _by_names(self) -> int:
        directory = os.dup(self.levels[0].descriptor)
        for level in self.levels[1:]:
            try:
                child = os.open(level.name, READ_DIRECTORY | NO_FOLLOW, dir_fd=directory)
            finally:
                release(directory)
            directory = child
        return directory


_CHECK_EVERY = 1024
_RUN = 64
"""The most files or directories that are chosen at once."""
# Errors of opening a directory that was removed or replaced since it was listed.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EMLINK})


class _Level(OpenDirectory):
    """A directory being walked; `prefix` is its path and ends in `/`."""

    __slots__ = ("directories", "files", "links", "prefix")

    def __init__(self, name: str, descriptor: int, prefix: str) -> None:
        # Without `super`, since a search makes one for each directory.
        self.name = name
        self.descriptor = descriptor
        self.borrowed: bool = False
        self.lost: OSError | None = None
        self._id: FileId | None = None
        self.prefix: str = prefix
        self.directories: Iterator[str] | None = None
        """The names of the child directories to enter, sorted by path; None if there are none."""
        self.files: list[str] = []
        """The names of the other children that were not visited yet, sorted."""
        self.links: Set[str] = frozenset()
        """Those of them that are symlinks."""


_READ_ENTRY = READ | NO_FOLLOW


class FoundFile:
    """A file found by a walk, for use in the thread of the walk; access is fastest before the walk continues."""

    __slots__ = ("_level", "_name", "_root", "path")

    def __init__(self, root: Root, path: str, name: str = "", level: _Level | None = None) -> None:
        self._root = root
        self._name = name
        self._level = level
        self.path: str = path

    def read(self, limit: int | None = None) -> bytes:
        """The content; TooLargeError if it is over `limit` bytes."""
        # Searches read every file here, so this calls little else.
        level = self._level
        if level is None or level.descriptor < 0:
            return self._read_by_path(limit)
        try:
            check_entry(self.path, self._name, level.descriptor)
            descriptor = os.open(self._name, _READ_ENTRY, dir_fd=level.descriptor)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    check_regular(self.path, status)
                if status.st_size % UNIT == 0:
                    check_database(self.path, descriptor, status)
                return read_descriptor(self.path, descriptor, status.st_size, limit)
            finally:
                release(descriptor)
        except OSError as error:
            raise storage_error(error, self.path) from error

    def _read_by_path(self, limit: int | None) -> bytes:
        """`read` where the directory is closed, and for a file found through a symlink."""
        with StorageErrors(self.path):
            descriptor, status = open_regular(self._root, self.path)
            try:
                return read_descriptor(self.path, descriptor, status.st_size, limit)
            finally:
                release(descriptor)


class FileRun:
    """Files of one directory that a walk finds together: `names`, sorted, in the directory `prefix`.

    `prefix` ends in `/`. For use in the thread of the walk; access is fastest before the walk continues.
    """

    __slots__ = ("_level", "_root", "names", "prefix")

    def __init__(self, root: Root, prefix: str, names: list[str], level: _Level | None = None) -> None:
        self._root = root
        self._level = level
        self.prefix: str = prefix
        self.names: list[str] = names

    def __iter__(self) -> Iterator[FoundFile]:
        return map(self.file, self.names)

    def file(self, name: str) -> FoundFile:
        """The file called `name`, one of `names`."""
        level = self._level
        if level is None or name in level.links:
            return FoundFile(self._root, self.prefix + name)
        return FoundFile(self._root, self.prefix + name, name, level)

    def infos(self, names: Iterable[str], deadline: Deadline) -> list[FileInfo]:
        """The listing entries of the files `names`, each from one look at the file."""
        # Looking a file up in a directory that is closed (-1) fails: `_info` then does it by path.
        directory = -1 if self._level is None else self._level.descriptor
        prefix, check = self.prefix, deadline.check
        found: list[FileInfo] = []
        for name in names:
            check(prefix)
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    status = self._root.stat(prefix + name)
            except (OSError, DeepFSError):
                found.append(self._info(name))
            else:
                found.append(FileInfo(prefix + name, False, status.st_size, modified_at(status)))
        return found

    def _info(self, name: str) -> FileInfo:
        """The listing entry of a file that was removed or moved meanwhile, or whose directory was closed."""
        path = self.prefix + name
        try:
            status = self._root.stat(path)
        except (OSError, DeepFSError):
            return FileInfo(path, False)
        return FileInfo(path, False, status.st_size, modified_at(status))


class Choice(Protocol):
    """Chooses what a walk visits, some of the children of a directory at a time.

    The path `directory` ends in `/`, the names do not. A choice that can take long checks the deadline for each name.
    """

    def files(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        """Those of the files `names` in `directory` to visit, in their order."""

    def directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        """Those of the directories `names` in `directory` to enter, in their order."""


class _Directories(Struct, frozen=True):
    """Chooses all files, and the directories for whose paths `enter` returns True."""

    enter: Callable[[str], bool]

    def files(self, _: str, names: list[str], __: Deadline) -> list[str]:
        return names

    def directories(self, directory: str, names: list[str], _: Deadline) -> list[str]:
        return [name for name in names if self.enter(directory + name)]


def walk(
    root: Root,
    path: str,
    deadline: Deadline,
    *,
    enter: Callable[[str], bool],
    unreadable: Callable[[str, OSError], None],
) -> Generator[FoundFile, None, None]:
    """Yield the files at or beneath `path`, sorted by path; a root that does not exist yet has none."""
    with closing(Walk(root, deadline, _Directories(enter), unreadable).runs(path)) as runs:
        for run in runs:
            yield from run


class Walk:
    """Finds the files that `choice` chooses, many at a time."""

    def __init__(
        self,
        root: Root,
        deadline: Deadline,
        choice: Choice | None,
        unreadable: Callable[[str, OSError], None] | None,
    ) -> None:
        self._root = root
        self._deadline = deadline
        self._choice = choice
        self._unreadable = unreadable

    def runs(self, path: str) -> Generator[FileRun, None, None]:
        """Yield the files at or beneath `path`, sorted by path; a root that does not exist yet has none."""
        root = self._root
        try:
            descriptor, real = open_directory(root, path)
        except NotDirectoryError:
            with StorageErrors(path):
                check_regular(path, root.stat(path))
            above = path.rindex("/") + 1
            yield FileRun(root, path[:above], [path[above:]])
            return
        except NotFoundError:
            if path != "/":
                raise
            root.warn_missing()
            return
        path = path.rstrip("/")
        self._start = len(path)
        self._real = real.rstrip("/")
        descent: Descent[_Level] = Descent()
        with descent:
            descent.enter(level := _Level(path.rpartition("/")[2], descriptor, f"{path}/"))
            self._scan(level)
            while descent.levels:
                level = descent.levels[-1]
                for name in level.directories or ():
                    if level.files:
                        yield from self._files(level, f"{name}/")
                    if (child := self._open_child(level, name)) is None:
                        continue
                    try:
                        self._scan(child)
                        if child.directories is not None:
                            descent.enter(child)
                            break
                        if child.files:
                            yield from self._files(child)
                    finally:
                        if child.directories is None:
                            child.close()
                else:
                    if level.files:
                        yield from self._files(level)
                    # If the parent was lost, its files are opened by path, and its child directories are reported.
                    descent.leave()

    def _files(self, level: _Level, before: str | None = None) -> Iterable[FileRun]:
        """The files of a directory that come `before` one of its children, or all that are left."""
        names, level.files = level.files, []
        if before is not None:
            end = bisect_left(names, before)
            names, level.files = names[:end], names[end:]
        if len(names) > _RUN:
            return self._runs(level, names)
        chosen = self._choose(level, names)
        return (FileRun(self._root, level.prefix, chosen, level),) if chosen else ()

    def _runs(self, level: _Level, names: list[str]) -> Iterator[FileRun]:
        for some in self._parts(level.prefix, names):
            if chosen := self._choose(level, some):
                yield FileRun(self._root, level.prefix, chosen, level)

    def _parts(self, prefix: str, names: list[str]) -> Iterator[list[str]]:
        for start in range(0, len(names), _RUN):
            self._deadline.check(prefix)
            yield names[start : start + _RUN]

    def _choose(self, level: _Level, names: list[str]) -> list[str]:
        if self._choice is not None:
            names = self._choice.files(level.prefix, names, self._deadline)
        if level.links:
            names = [name for name in names if name not in level.links or self._leads_to_file(level.prefix + name)]
        if (access := self._root.access) is not None:
            real = self._real + level.prefix[self._start :]
            # What a symlink leads to was checked when it was followed.
            names = [name for name in names if name in level.links or permits(access, real + name)]
        return names

    def _open_child(self, level: _Level, name: str) -> _Level | None:
        try:
            descriptor = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=level.descriptor)
        except OSError as error:
            if error.errno not in _GONE:
                self._report(level.prefix + name, error)
            return None
        return _Level(name, descriptor, f"{level.prefix}{name}/")

    def _scan(self, level: _Level) -> None:
        """Read the children of a directory; after an error, only those that were read before it."""
        self._deadline.check(level.prefix)
        files = level.files
        directories: list[str] = []
        links: set[str] = set()
        try:
            with os.scandir(level.descriptor) as entries:
                for count, entry in enumerate(entries, 1):
                    if count % _CHECK_EVERY == 0:
                        self._deadline.check(level.prefix)
                    name = entry.name
                    if (name[0] == "." or not name.isascii()) and not is_shown(name):
                        continue
                    if entry.is_file(follow_symlinks=False):
                        files.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        directories.append(name)
                    elif entry.is_symlink():
                        files.append(name)
                        links.add(name)
        except OSError as error:
            self._report(level.prefix[:-1] or "/", error)
        files.sort()
        if links:
            level.links = links
        if directories:
            level.directories = self._directories_to_enter(level.prefix, directories)

    def _directories_to_enter(self, prefix: str, names: list[str]) -> Iterator[str]:
        """The directories to enter, sorted by path."""
        if len(names) > 1:
            names.sort(key=lambda name: f"{name}/")
        if self._choice is None:
            return iter(names)
        if len(names) <= _RUN:
            return iter(self._choice.directories(prefix, names, self._deadline))
        choose = self._choice.directories
        return (name for some in self._parts(prefix, names) for name in choose(prefix, some, self._deadline))

    def _report(self, path: str, error: OSError) -> None:
        if self._unreadable is not None:
            self._unreadable(path, error)

    def _leads_to_file(self, path: str) -> bool:
        self._deadline.check(path)
        try:
            return stat.S_ISREG(self._root.stat(path).st_mode)
        except OSError as error:
            if is_shortage(error):
                self._report(path, error)
        except DeepFSError:
            pass
        return False


class Listing(Struct, frozen=True):
    """Entries sorted by path, the path of a directory ending in `/`.

    `size` and `modified_at` of an entry are None if they are not known.
    """

    entries: list[FileInfo]
    skipped: int = 0
    """The number of entries that were seen and have names that are not UTF-8."""


def is_shown(name: str) -> bool:
    """Whether a file of this name is listed: it is no temporary file, and its name is valid UTF-8."""
    return not is_temporary(name) and (name.isascii() or _is_text(name))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_directory(root: Root, path: str) -> tuple[int, str]:
    """Open the directory at `path` to list it, see `Root.open_real`; NotDirectoryError if it is no directory."""
    with StorageErrors(path):
        return root.open_real(path, READ_DIRECTORY)


def list_directory(root: Root, path: str, deadline: Deadline) -> Listing:
    """The children of the directory at `path`; a root that does not exist yet has none."""
    try:
        descriptor, real = open_directory(root, path)
    except NotFoundError:
        if path != "/":
            raise
        root.warn_missing()
        return Listing([])
    try:
        with StorageErrors(path), os.scandir(descriptor) as children:
            listing = _list(root, f"{path.rstrip('/')}/", real, _checking_deadline(children, path, deadline))
    finally:
        release(descriptor)
    listing.entries.sort(key=attrgetter("path"))
    return listing


def _checking_deadline(
    children: Iterator[os.DirEntry[str]], path: str, deadline: Deadline
) -> Iterator[os.DirEntry[str]]:
    while some := list(islice(children, _CHECK_EVERY)):
        deadline.check(path)
        yield from some


def _list(root: Root, prefix: str, real: str, children: Iterable[os.DirEntry[str]]) -> Listing:
    """The entries of `children` in any order; `prefix` is the path of the directory and ends in `/`."""
    entries: list[FileInfo] = []
    skipped = 0
    for child in children:
        name = child.name
        if root.access is not None and not permits(root.access, paths.join(real, name)):
            continue
        if (name[0] == "." or not name.isascii()) and not is_shown(name):
            skipped += not is_temporary(name)
        elif root.access is None or not child.is_symlink() or _permits_target(root, root.access, prefix + name):
            entries.append(_entry(root, prefix + name, child))
    return Listing(entries, skipped)


def _permits_target(root: Root, access: AccessCheck, link: str) -> bool:
    """Whether the access check permits what a symlink leads to; it is not asked about what lies outside."""
    target = root.real_path(link)
    return target is None or permits(access, target)


def _entry(root: Root, path: str, child: os.DirEntry[str]) -> FileInfo:
    try:
        status = child.stat(follow_symlinks=False)
    except OSError:
        return _directory(path) if child.is_dir(follow_symlinks=False) else FileInfo(path, False)
    if stat.S_ISREG(status.st_mode):
        return FileInfo(path, False, status.st_size, modified_at(status))
    return _link(root, path, status) if stat.S_ISLNK(status.st_mode) else _entry_of_other_kind(path, status)


def _link(root: Root, path: str, own: os.stat_result) -> FileInfo:
    """The entry of a symlink, whose status is `own`: what it leads to."""
    try:
        return _entry_of_other_kind(path, root.stat(path))
    except (OSError, DeepFSError) as error:
        if is_shortage(error):
            raise  # The symlink may lead to a directory; listing it as a file would be a guess.
        return FileInfo(path, False, None, modified_at(own))


def _entry_of_other_kind(path: str, status: os.stat_result) -> FileInfo:
    if stat.S_ISDIR(status.st_mode):
        return _directory(path, modified_at(status))
    return FileInfo(path, False, status.st_size if stat.S_ISREG(status.st_mode) else None, modified_at(status))


def _directory(path: str, modified_at: str | None = None) -> FileInfo:
    return FileInfo(f"{path}/", True, None, modified_at)
