"""Walking trees: each directory is opened relative to its parent, and few are open at a time, however deep the tree.

Walks, listings, copies and deletions of trees all use `Descent`. Keeping every parent directory open would cost a
descriptor per level. So only the last few levels stay open; a closed one is reopened from its child, as `..`, and must
still be the same directory.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import islice
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from deepfs.disk.os_calls import (
    NO_FOLLOW,
    READ,
    READ_DIRECTORY,
    FileId,
    StorageErrors,
    file_id,
    is_shortage,
    is_temporary,
    leaf,
    release,
)
from deepfs.disk.reading import check_regular, modified_at, open_regular, read_descriptor, regular_descriptor
from deepfs.disk.resolve import Root
from deepfs.errors import DeepFSError, NotDirectoryError, NotFoundError
from deepfs.text import paths
from deepfs.text.judging import Judge, permits
from deepfs.threads.deadline import Deadline

__all__ = [
    "Descent",
    "Entry",
    "FoundFile",
    "Listing",
    "OpenDirectory",
    "is_shown",
    "list_directory",
    "open_directory",
    "walk",
]


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
        if self.descriptor < 0:
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
            if self.levels:
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
# Errors of opening a directory that was removed or replaced since it was listed.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EMLINK})


class _Level(OpenDirectory):
    """A directory being walked; `prefix` is its path and ends in `/`."""

    __slots__ = ("children", "prefix")

    def __init__(self, descriptor: int, prefix: str) -> None:
        super().__init__(prefix[prefix.rfind("/", 0, -1) + 1 : -1], descriptor)
        self.prefix: str = prefix
        self.children: Iterator[tuple[str, os.DirEntry[str]]] = iter(())


_READ_ENTRY = READ | NO_FOLLOW


class FoundFile:
    """A file found by a walk, for use in the thread of the walk; access is fastest before the walk continues."""

    __slots__ = ("_entry", "_level", "_root", "path")

    def __init__(
        self, root: Root, path: str, entry: os.DirEntry[str] | None = None, level: _Level | None = None
    ) -> None:
        self._root = root
        self._entry = entry
        self._level = level
        self.path: str = path

    @property
    def _open_entry(self) -> os.DirEntry[str] | None:
        """The directory entry while its directory is open; None otherwise, and for files found through a symlink."""
        return self._entry if self._level is not None and self._level.descriptor >= 0 else None

    def stat(self) -> os.stat_result:
        """The status of the file."""
        with StorageErrors(self.path):
            if (entry := self._open_entry) and self._level is not None:
                # Not `entry.stat()`: its descriptor number may since have been closed and reused for another directory.
                status = os.stat(entry.name, dir_fd=self._level.descriptor, follow_symlinks=False)
                if not stat.S_ISLNK(status.st_mode):
                    return status
            return self._root.stat(self.path)

    def open(self) -> tuple[int, os.stat_result]:
        """Open the file for reading; returns a descriptor, to be closed by the caller, and the status.

        Raises IsDirectoryError or PermissionDeniedError if the file was replaced by something else.
        """
        with StorageErrors(self.path):
            return self._open()

    def _open(self) -> tuple[int, os.stat_result]:
        entry = self._open_entry
        if entry is None or self._level is None:
            return open_regular(self._root, self.path)
        descriptor = os.open(entry.name, READ | NO_FOLLOW, dir_fd=self._level.descriptor)
        return descriptor, regular_descriptor(self.path, descriptor)

    def read(self, limit: int | None = None) -> bytes:
        """The content; TooLargeError if it is over `limit` bytes."""
        # Searches read every file here, so this calls little else.
        level, entry = self._level, self._entry
        if entry is None or level is None or level.descriptor < 0:
            return self._read_by_path(limit)
        try:
            descriptor = os.open(entry.name, _READ_ENTRY, dir_fd=level.descriptor)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    check_regular(self.path, status)
                return read_descriptor(self.path, descriptor, status.st_size, limit)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise leaf(error, self.path) from error

    def _read_by_path(self, limit: int | None) -> bytes:
        with StorageErrors(self.path):
            descriptor, status = open_regular(self._root, self.path)
            try:
                return read_descriptor(self.path, descriptor, status.st_size, limit)
            finally:
                release(descriptor)


def walk(
    root: Root,
    path: str,
    deadline: Deadline,
    *,
    enter: Callable[[str], bool] | None = None,
    unreadable: Callable[[str, OSError], None] | None = None,
) -> Generator[FoundFile, None, None]:
    """Yield the files at or beneath `path`, sorted by path; a root that does not exist yet has none."""
    try:
        descriptor, real = open_directory(root, path)
    except NotDirectoryError:
        yield from _single(root, path)
    except NotFoundError:
        if path != "/":
            raise
    else:
        yield from _Walk(root, deadline, enter, unreadable).run(descriptor, path, real)


def _single(root: Root, path: str) -> Iterator[FoundFile]:
    with StorageErrors(path):
        check_regular(path, root.stat(path))
    yield FoundFile(root, path)


class _Walk:
    def __init__(
        self,
        root: Root,
        deadline: Deadline,
        enter: Callable[[str], bool] | None,
        unreadable: Callable[[str, OSError], None] | None,
    ) -> None:
        self._root = root
        self._deadline = deadline
        self._enter = enter
        self._unreadable = unreadable

    def run(self, descriptor: int, path: str, real: str) -> Iterator[FoundFile]:
        self._start = len(path.rstrip("/"))
        self._real = real.rstrip("/")
        descent: Descent[_Level] = Descent()
        descent.enter(_Level(descriptor, path.rstrip("/") + "/"))
        with descent:
            self._scan(descent.levels[-1])
            while descent.levels:
                directory = yield from self._files(descent.levels[-1])
                if directory is None:
                    # If the parent was lost, its files are opened by path, and its child directories are reported.
                    descent.leave()
                elif level := self._opened(descent.levels[-1], directory):
                    descent.enter(level)
                    self._scan(level)

    def _files(self, level: _Level) -> Generator[FoundFile, None, os.DirEntry[str] | None]:
        """Yield the files of a directory up to its next child directory, and return that, or None at the end."""
        judge = self._root.judge
        for key, entry in level.children:
            if key[-1] == "/":
                if self._enter is None or self._enter(level.prefix + entry.name):
                    return entry
            elif entry.is_symlink():
                if self._leads_to_file(level.prefix + key):
                    yield FoundFile(self._root, level.prefix + key)
            elif entry.is_file(follow_symlinks=False) and (judge is None or self._permits(judge, level.prefix + key)):
                yield FoundFile(self._root, level.prefix + key, entry, level)
        return None

    def _permits(self, judge: Judge, path: str) -> bool:
        return permits(judge, self._real + path[self._start :])

    def _opened(self, level: _Level, entry: os.DirEntry[str]) -> _Level | None:
        path = level.prefix + entry.name
        try:
            return _Level(os.open(entry.name, READ_DIRECTORY | NO_FOLLOW, dir_fd=level.descriptor), f"{path}/")
        except OSError as error:
            if error.errno not in _GONE:
                self._report(path, error)
            return None

    def _scan(self, level: _Level) -> None:
        """Read the children of a directory; after an error, only those that were read before it."""
        self._deadline.check(level.prefix)
        found: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(level.descriptor) as entries:
                for count, entry in enumerate(entries, 1):
                    if count % _CHECK_EVERY == 0:
                        self._deadline.check(level.prefix)
                    name = entry.name
                    if (name[0] != "." and name.isascii()) or is_shown(name):
                        found.append((f"{name}/" if entry.is_dir(follow_symlinks=False) else name, entry))
        except OSError as error:
            self._report(level.prefix[:-1] or "/", error)
        found.sort(key=itemgetter(0))
        level.children = iter(found)

    def _report(self, path: str, error: OSError) -> None:
        if self._unreadable is not None:
            self._unreadable(path, error)

    def _leads_to_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self._root.stat(path).st_mode)
        except OSError as error:
            if is_shortage(error):
                self._report(path, error)
        except DeepFSError:
            pass
        return False


class Entry(NamedTuple):
    """A child of a directory; `size` and `modified_at` are None if they are not known."""

    name: str
    is_dir: bool
    size: int | None
    modified_at: str | None
    """ISO 8601, UTC."""


class Listing(NamedTuple):
    """Entries sorted by path, the path of a directory ending in `/`; `truncated` says that there are more."""

    entries: list[Entry]
    truncated: bool
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


def list_directory(root: Root, path: str, limit: int | None, deadline: Deadline) -> Listing:
    """The children of the directory at `path`; a root that does not exist yet has none."""
    try:
        descriptor, real = open_directory(root, path)
    except NotFoundError:
        if path == "/":
            return Listing([], False)
        raise
    try:
        with StorageErrors(path), os.scandir(descriptor) as children:
            found = _until_due(children, path, deadline)
            if root.judge is not None:
                found = (child for child in found if permits(root.judge, paths.join(real, child.name)))
            skipped: list[str] = []
            shown = (child for child in found if _is_shown(child.name, skipped))
            entries = [_entry(root, path, child) for child in islice(shown, limit)]
            truncated = limit is not None and next(shown, None) is not None
    finally:
        release(descriptor)
    entries.sort(key=_sort_key)
    return Listing(entries, truncated, len(skipped))


def _is_shown(name: str, skipped: list[str]) -> bool:
    """`is_shown`; adds a name that is not UTF-8 to `skipped`."""
    if is_shown(name):
        return True
    if not is_temporary(name):
        skipped.append(name)
    return False


def _until_due(children: Iterator[os.DirEntry[str]], path: str, deadline: Deadline) -> Iterator[os.DirEntry[str]]:
    for count, child in enumerate(children):
        if count % _CHECK_EVERY == 0:
            deadline.check(path)
        yield child


def _sort_key(entry: Entry) -> str:
    return f"{entry.name}/" if entry.is_dir else entry.name


def _entry(root: Root, directory: str, child: os.DirEntry[str]) -> Entry:
    try:
        own = child.stat(follow_symlinks=False)
    except OSError:
        return Entry(child.name, child.is_dir(follow_symlinks=False), None, None)
    if not stat.S_ISLNK(own.st_mode):
        return _entry_of(child.name, own)
    try:
        return _entry_of(child.name, root.stat(paths.join(directory, child.name)))
    except (OSError, DeepFSError) as error:
        if is_shortage(error):
            raise  # The symlink may lead to a directory; listing it as a file would be a guess.
        return Entry(child.name, False, None, modified_at(own))


def _entry_of(name: str, status: os.stat_result) -> Entry:
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return Entry(name, stat.S_ISDIR(status.st_mode), size, modified_at(status))
