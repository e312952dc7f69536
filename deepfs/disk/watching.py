"""Watching a path on disk by inotify, confined as all other use of the disk.

The system tells in which directory which name has changed. A `DiskWatch` keeps the names of the files beneath its path,
so that it can tell a new file from a replaced one, and the files of a directory that is moved as a whole. Where the
system dropped events, or the watched directory was replaced, it says `resync`.

The events themselves are only hints: each is checked by a look at the name, since others may have changed it again.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from deepfs.disk.os_calls import MAX_RACES, READ_DIRECTORY, SEARCH, StorageErrors, is_shortage, release
from deepfs.disk.resolve import Root
from deepfs.disk.walking import is_shown
from deepfs.errors import (
    BackendError,
    DeepFSError,
    NotDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)
from deepfs.text import paths
from deepfs.threads.deadline import Deadline
from deepfs.types import ChangeEvent, ChangeKind

__all__ = ["CAN_WATCH", "DiskWatch"]

CAN_WATCH: Final = sys.platform == "linux"
"""Whether this system has inotify."""

# --- inotify ---------------------------------------------------------------------------------------------------------

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORY, _ADD_TO_MASK, _IS_DIRECTORY = 0x0100_0000, 0x2000_0000, 0x4000_0000

_SELF = _DELETE_SELF | _MOVE_SELF
_NAMES = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO
_GONE_SELF = _SELF | _UNMOUNT
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class _Raw(NamedTuple):
    watch: int
    mask: int
    name: str


@cache
def _library() -> Any:
    # Imported late: the import takes ten milliseconds.
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    import ctypes

    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class _Inotify:
    """An inotify instance. Its descriptor becomes readable when there are events."""

    def __init__(self) -> None:
        self.descriptor: int = _checked(_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, directory: int, mask: int) -> int:
        """Watch an open directory; returns the number of the watch, which is the same for the same directory."""
        name = os.fsencode(f"/proc/self/fd/{directory}")
        mask |= _SELF | _ONLY_DIRECTORY | _ADD_TO_MASK
        try:
            return _checked(_library().inotify_add_watch(self.descriptor, name, mask))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise BackendError(None, _TOO_MANY_DIRECTORIES) from error
            raise

    def remove(self, watch: int) -> None:
        _library().inotify_rm_watch(self.descriptor, watch)

    def read(self) -> Iterator[_Raw]:
        """Some of the events that have come, without waiting."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size + length
            yield _Raw(watch, mask, os.fsdecode(data[place - length : place].rstrip(b"\0")))

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            release(descriptor)


_TOO_MANY_DIRECTORIES = "the system allows no more watched directories (fs.inotify.max_user_watches)"
_TOO_MANY_WATCHES = "the system allows no more watches (fs.inotify.max_user_instances) or open files"


# --- a watch ---------------------------------------------------------------------------------------------------------


_What: TypeAlias = Literal["file", "directory"] | None
"""What is at a name; None for nothing, and for what is not told."""


class _Directory:
    """A watched directory and the names in it that are files; with `only`, other names do not count."""

    __slots__ = ("directories", "files", "only", "path", "watch")

    def __init__(self, path: str, only: str | None = None) -> None:
        self.path = path
        self.only = only
        self.watch = -1
        self.files: set[str] = set()
        self.directories: dict[str, _Directory] = {}

    def each(self) -> Iterator["_Directory"]:
        """This directory and all beneath it."""
        pending = [self]
        while pending:
            yield (directory := pending.pop())
            pending += directory.directories.values()

    def paths(self) -> Iterator[str]:
        """The paths of the files in it and beneath it."""
        return (paths.join(each.path, name) for each in self.each() for name in each.files)


class DiskWatch:
    """A watch of what is at and under a path, which need not exist. Making it does no I/O.

    The methods block, so call them in a worker thread, one at a time. They raise leaf errors about the path.

    Temporary files of this package, names that are not UTF-8, special files, and what lies behind symlinks to
    directories are left out. A symlink to a file is told when it is made or removed; changes of the file are told at
    its own path. Memory holds the name of each file.

    Args:
        root: The directory that confines the watch.
        path: The normalised path to watch.

    Raises:
        NotSupportedError: The system has no inotify.
    """

    def __init__(self, root: Root, path: str) -> None:
        if not CAN_WATCH:
            raise NotSupportedError(path, "files on disk are watched on Linux only")
        self._root = root
        self._path = path
        self._inotify: _Inotify | None = None
        self._clear()

    def _clear(self) -> None:
        self.close()
        self._top: _Directory | None = None
        """The directory at the path, or the one above it with `only`; None while not even that exists."""
        self._directories: dict[int, _Directory] = {}
        self._above: dict[int, set[str]] = {}
        """For the directories on the way to the path, the names that lead on."""
        self._is_stale = False

    @property
    def descriptor(self) -> int:
        """The descriptor that becomes readable when there are changes. It can be another one after each call."""
        assert self._inotify is not None
        return self._inotify.descriptor

    def start(self, deadline: Deadline) -> None:
        """Begin to watch; what changes from here on is told.

        Args:
            deadline: When to stop.
        """
        with StorageErrors(self._path):
            self._begin(deadline)

    def changes(self, deadline: Deadline) -> list[ChangeEvent]:
        """Take some of the changes that have come, without waiting.

        Args:
            deadline: When to stop.
        """
        with StorageErrors(self._path):
            assert self._inotify is not None
            found: list[ChangeEvent] = []
            for raw in self._inotify.read():
                if raw.mask & _OVERFLOW:
                    self._begin(deadline)
                    return [ChangeEvent(self._path, "resync")]
                self._follow(raw, found, deadline)
                if self._is_stale:
                    return [*found, *self._begun_anew(deadline)]
            return found

    def close(self) -> None:
        """End the watch. A second call does nothing."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    # --- beginning ---

    def _begin(self, deadline: Deadline) -> list[ChangeEvent]:
        """Begin anew. Returns all files as created."""
        for _ in range(MAX_RACES):
            self._clear()
            try:
                self._inotify = _Inotify()
            except OSError as error:
                if is_shortage(error):
                    raise BackendError(self._path, _TOO_MANY_WATCHES) from error
                raise
            if self._go_down():
                found: list[ChangeEvent] = []
                if self._top is not None and self._top.only is None:
                    self._scan(self._top, found, deadline)
                elif self._top is not None and self._look(self._path) == "file":
                    self._top.files.add(self._top.only or "")
                    found.append(ChangeEvent(self._path, "created"))
                return found
        raise BackendError(self._path, "it changes all the time")

    def _begun_anew(self, deadline: Deadline) -> list[ChangeEvent]:
        """Begin anew, since a directory on the way was made, removed or replaced. Returns what this changed.

        That ends in a `resync`: a reader may have seen files that came and went in between.
        """
        before = self._top
        found = self._begin(deadline)
        was, is_now = (top is not None and top.only is None for top in (before, self._top))
        if was and is_now:
            return [ChangeEvent(self._path, "resync")]
        old = set(before.paths()) if before is not None else set()
        new = {event.path for event in found}
        gone = [ChangeEvent(path, "deleted") for path in sorted(old - new)]
        # A file that was there before may be another one, in a directory that took the place of its own.
        kept = (ChangeEvent(event.path, "modified") if event.path in old else event for event in found)
        return [*gone, *kept, ChangeEvent(self._path, "resync")]

    def _go_down(self) -> bool:
        """Watch the directories on the way to the path, as far as they exist. False if one was made meanwhile.

        Each is watched before the next is looked for, so none that is made, removed or replaced later is missed.
        """
        directory, above = self._enter_root(), "/"
        if directory is None:
            return False
        for name in self._path.split("/")[1:] if self._path != "/" else ():
            if directory < 0:
                return True
            path = paths.join(above, name)
            try:
                watch = self._watch_above(directory, name)
                below = self._open_directory(path, watch)
                if below < 0 and path == self._path:
                    self._watch_one(directory, above, name)
            finally:
                release(directory)
            directory, above = below, path
        if directory >= 0:
            release(directory)
            self._top = _Directory(self._path)
        return True

    def _enter_root(self) -> int | None:
        """Open the root, whose parent is watched; -1 if it does not exist. None if a parent was made meanwhile."""
        above, name = os.path.split(self._root.host_path)
        is_parent = True
        while True:
            try:
                directory = os.open(above, SEARCH)
                break
            except (FileNotFoundError, NotADirectoryError):
                above, name = os.path.split(above)
                is_parent = False
        try:
            watch = self._watch_above(directory, name) if name else None
            self._watch_moves(above)
            if not is_parent:
                return None if os.path.lexists(os.path.join(above, name)) else -1
        finally:
            release(directory)
        try:
            return self._root.enter(make=False)
        except FileNotFoundError:
            return -1 if watch is not None else self._refuse()

    def _watch_moves(self, path: str) -> None:
        """Watch a directory of the host and all above it for being moved away, where they may be read."""
        while path != "/":
            with suppress(OSError):
                directory = os.open(path, SEARCH)
                try:
                    self._watch_above(directory, "", 0)
                finally:
                    release(directory)
            path = os.path.dirname(path)

    def _watch_above(self, directory: int, name: str, mask: int = _NAMES) -> int | None:
        """Watch for changes of `name` in an open directory, and of itself; None if the directory may not be read."""
        assert self._inotify is not None
        try:
            watch = self._inotify.add(directory, mask)
        except PermissionError:
            return None
        self._above.setdefault(watch, set()).update([name] if name else [])
        return watch

    def _open_directory(self, path: str, watch: int | None) -> int:
        """Open a directory on the way; -1 if there is none, and `watch` will tell when there is."""
        try:
            return self._root.open(path, SEARCH)
        except (FileNotFoundError, NotADirectoryError, NotFoundError, NotDirectoryError):
            return -1 if watch is not None else self._refuse()

    def _refuse(self) -> NoReturn:
        raise PermissionDeniedError(self._path, "a directory above it may not be read")

    def _watch_one(self, descriptor: int, above: str, name: str) -> None:
        """Watch `name` in the open directory `above`, where it is a file or does not exist."""
        assert self._inotify is not None
        self._top = _Directory(above, name)
        self._top.watch = self._inotify.add(descriptor, _NAMES | _MODIFY)
        self._directories[self._top.watch] = self._top
        self._above[self._top.watch].discard(name)

    # --- directories ---

    def _scan(self, start: _Directory, found: list[ChangeEvent], deadline: Deadline) -> None:
        """Watch a directory and all beneath it, and tell the files in them that were not known as created."""
        pending = [start]
        while pending:
            deadline.check(self._path)
            directory = pending.pop()
            try:
                entries = self._watch_and_list(directory)
            except (OSError, DeepFSError) as error:
                # What is gone is told by another event. What may not be read has no files that could be shown.
                if directory is self._top or is_shortage(error) or isinstance(error, BackendError):
                    raise
                continue
            for name, what in entries:
                if what == "directory":
                    child = directory.directories.setdefault(name, _Directory(paths.join(directory.path, name)))
                    pending.append(child)
                elif what == "file" and name not in directory.files:
                    directory.files.add(name)
                    found.append(ChangeEvent(paths.join(directory.path, name), "created"))

    def _watch_and_list(self, directory: _Directory) -> list[tuple[str, _What]]:
        with self._root.locate(directory.path, follow=directory is self._top) as place:
            descriptor = place.open(READ_DIRECTORY)
        try:
            self._watch_directory(directory, descriptor)
            with os.scandir(descriptor) as entries:
                shown = [entry for entry in entries if is_shown(entry.name)]
                return [(entry.name, self._what(directory, entry)) for entry in shown]
        finally:
            release(descriptor)

    def _watch_directory(self, directory: _Directory, descriptor: int) -> None:
        assert self._inotify is not None
        watch = self._inotify.add(descriptor, _NAMES | _MODIFY)
        if directory.watch != watch:
            self._forget(directory)
        directory.watch = watch
        self._directories[watch] = directory

    def _forget(self, directory: _Directory) -> None:
        """End the watch of one directory, unless it is that of another one by now."""
        watch = directory.watch
        if self._directories.get(watch) is directory:
            del self._directories[watch]
            if self._inotify is not None and watch not in self._above:
                self._inotify.remove(watch)

    def _drop(self, directory: _Directory, name: str, found: list[ChangeEvent]) -> None:
        """Tell the files beneath a directory that was removed or moved away as deleted."""
        gone = directory.directories.pop(name, None)
        if gone is not None:
            found += [ChangeEvent(path, "deleted") for path in gone.paths()]
            for each in gone.each():
                self._forget(each)

    def _what(self, directory: _Directory, entry: os.DirEntry[str]) -> _What:
        if entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "directory"
        return self._look(paths.join(directory.path, entry.name)) if entry.is_symlink() else None

    def _look(self, path: str) -> _What:
        """What is at a path now; a symlink to a file counts as a file."""
        try:
            with self._root.locate(path, follow=False) as place:
                status = place.lstat()
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            mode = self._root.stat(path).st_mode if is_link else 0 if status is None else status.st_mode
        except (OSError, DeepFSError) as error:
            if is_shortage(error):
                raise
            return None
        if stat.S_ISDIR(mode) and not is_link:
            return "directory"
        return "file" if stat.S_ISREG(mode) else None

    # --- following events ---

    def _follow(self, raw: _Raw, found: list[ChangeEvent], deadline: Deadline) -> None:
        top = self._top
        is_top = top is not None and raw.watch == top.watch
        if raw.name in self._above.get(raw.watch, ()) or (
            raw.mask & _GONE_SELF and (is_top or raw.watch in self._above)
        ):
            self._is_stale = True
            return
        directory = self._directories.get(raw.watch)
        if raw.mask & _IGNORED:
            self._directories.pop(raw.watch, None)
        elif directory is not None and raw.name and is_shown(raw.name) and directory.only in (None, raw.name):
            if not raw.mask & _IS_DIRECTORY:
                self._follow_file(directory, raw, found)
            elif directory.only is None:
                self._follow_directory(directory, raw, found, deadline)
            else:
                self._is_stale = True

    def _follow_directory(self, directory: _Directory, raw: _Raw, found: list[ChangeEvent], deadline: Deadline) -> None:
        if raw.mask & (_DELETE | _MOVED_FROM):
            self._drop(directory, raw.name, found)
        path = paths.join(directory.path, raw.name)
        # Also after it went: in an exchange of two names, one comes before the other goes.
        if self._look(path) == "directory":
            self._scan(directory.directories.setdefault(raw.name, _Directory(path)), found, deadline)
        if raw.mask & (_CREATE | _MOVED_TO):
            # A reader may have seen files in it that went before it was watched.
            found.append(ChangeEvent(path, "resync"))

    def _follow_file(self, directory: _Directory, raw: _Raw, found: list[ChangeEvent]) -> None:
        path, name, files = paths.join(directory.path, raw.name), raw.name, directory.files
        if raw.mask & _NAMES == 0:
            if name in files:
                found.append(ChangeEvent(path, "modified"))
            return
        is_file = self._look(path) == "file"
        if raw.mask & (_DELETE | _MOVED_FROM) or (name in files and not is_file):
            files.discard(name)
            found.append(ChangeEvent(path, "deleted"))
        if is_file:
            kind: ChangeKind = "modified" if name in files else "created"
            files.add(name)
            found.append(ChangeEvent(path, kind))
