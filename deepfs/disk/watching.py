"""Watching a path on disk by inotify, confined as all other use of the disk.

The system tells in which directory which name has changed. A `DiskWatch` keeps the names of the files beneath its path,
so that it can tell a new file from a replaced one, and the files of a directory that is moved as a whole. Where the
system dropped events, or the watched directory was replaced, it begins anew and says `resync`.

The events themselves are only hints: each is checked by a look at the name, since others may have changed it again.

watchfiles 1.3 does not serve: it says nothing where events were dropped, follows links out of the root, stops at a name
that is not UTF-8, and keeps all that nobody has read.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from deepfs.disk.os_calls import READ_DIRECTORY, SEARCH, StorageErrors, is_shortage, release
from deepfs.disk.resolve import Root
from deepfs.disk.walking import is_shown, walk
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
from deepfs.types import ChangeEvent

CAN_WATCH: Final = sys.platform == "linux"
"""Whether this system has inotify."""

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORY, _ADD_TO_MASK, _IS_DIRECTORY = 0x0100_0000, 0x2000_0000, 0x4000_0000

_WENT = _DELETE | _MOVED_FROM
_NAMES = _CREATE | _MOVED_TO | _WENT
_SELF = _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
_MISSING: Final = (FileNotFoundError, NotADirectoryError, NotFoundError, NotDirectoryError)


@cache
def _library() -> Any:
    # Imported late: the import takes ten milliseconds.
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> int:
    import ctypes

    result: int = getattr(_library(), name)(*args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class _Directory:
    """A watched directory, with the names in it that are files and directories."""

    __slots__ = ("directories", "files", "path", "watch")

    def __init__(self, path: str) -> None:
        self.path = path
        self.watch = -1
        self.files: set[str] = set()
        self.directories: dict[str, _Directory] = {}

    def each(self) -> Iterator["_Directory"]:
        """This directory and all beneath it."""
        pending = [self]
        while pending:
            yield (directory := pending.pop())
            pending += directory.directories.values()


class DiskWatch:
    """A watch of what is at and under a path, which need not exist. Making it does no I/O.

    The methods block, so call them in a worker thread, one at a time. They raise leaf errors about the path.

    Temporary files of this package, names that are not UTF-8, special files, and what lies behind symlinks to
    directories are left out. A symlink to a file is told when it is made or removed; changes of the file are told at
    its own path. Memory holds the name of each file.

    `root` confines the watch of the normalised `path`. Raises NotSupportedError if the system has no inotify.
    """

    def __init__(self, root: Root, path: str) -> None:
        if not CAN_WATCH:
            raise NotSupportedError(path, "files on disk are watched on Linux only")
        self._root = root
        self._path = path
        self.descriptor: int = -1
        """The descriptor that becomes readable when there are changes. It can be another one after each call."""
        self._top: _Directory | None = None
        """The directory at the path, or the one above it; None while not even that exists."""
        self._only: str | None = None
        """The only name in `_top` that counts, if that is the directory above the path."""
        self._directories: dict[int, _Directory] = {}
        self._above: dict[int, set[str]] = {}
        """For the directories on the way to the path, the names that lead on."""

    def start(self, deadline: Deadline) -> None:
        """Begin to watch; what changes from here on is told."""
        with StorageErrors(self._path):
            self._begin(deadline)

    def changes(self, deadline: Deadline) -> list[ChangeEvent]:
        """Take some of the changes that have come, without waiting."""
        found: list[ChangeEvent] = []
        with StorageErrors(self._path):
            for watch, mask, name in self._read():
                directory = self._directories.get(watch)
                is_beside = directory is self._top and self._only not in (None, name)
                if self._is_stale(watch, mask, name):
                    return [*found, *self._begin_anew(deadline)]
                if mask & _IGNORED:
                    self._directories.pop(watch, None)
                elif directory is not None and not is_beside and name and is_shown(name):
                    found += self._follow(directory, name, mask, deadline)
        return found

    def close(self) -> None:
        """End the watch. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            release(descriptor)

    def _read(self) -> Iterator[tuple[int, int, str]]:
        """Some of the events that have come: the number of a watch, a mask, and a name."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size + length
            yield watch, mask, os.fsdecode(data[place - length : place].rstrip(b"\0"))

    def _is_stale(self, watch: int, mask: int, name: str) -> bool:
        """Whether an event says that events were dropped, or that something on the way to the path has changed."""
        is_top = self._top is not None and watch == self._top.watch
        if mask & _SELF:
            return is_top or watch in self._above
        if is_top and name == self._only:
            return bool(mask & _IS_DIRECTORY)
        return bool(mask & (_OVERFLOW | _UNMOUNT)) or name in self._above.get(watch, ())

    # --- beginning ---

    def _begin(self, deadline: Deadline) -> list[str]:
        """Begin anew, with nothing known. Returns the paths of all files."""
        self.close()
        self._top, self._only, self._directories, self._above = None, None, {}, {}
        try:
            self.descriptor = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if is_shortage(error):
                limit = "the system allows no more watches (fs.inotify.max_user_instances) or open files"
                raise BackendError(self._path, limit) from error
            raise
        host = self._root.host_path
        # A directory that a link on the way leads to may come and go while the link stays.
        real = os.path.realpath(host), self._root.real_path(self._path) or self._path
        is_reported = self._watch_way(host, self._path) & self._watch_way(*real)
        self._top = _Directory(self._path)
        try:
            return self._scan(self._top, deadline)
        except _MISSING as error:
            if not is_reported:
                raise PermissionDeniedError(self._path, "a directory above it may not be read") from error
        above, _, name = self._path.rpartition("/")
        self._top, self._only = _Directory(above or "/"), name
        try:
            self._watch(self._top)
        except _MISSING:
            self._top = None
        if self._top is None or self._kind(self._path) != "file":
            return []
        self._top.files.add(name)
        return [self._path]

    def _begin_anew(self, deadline: Deadline) -> list[ChangeEvent]:
        """Begin anew, since events were dropped or something on the way changed. Returns what this changed."""
        before, was_directory = self._top, self._only is None
        new = self._begin(deadline)
        # A reader may have seen files that came and went in between.
        again = ChangeEvent(self._path, "resync")
        if before is not None and self._top is not None and was_directory and self._only is None:
            return [again]
        old = {paths.join(each.path, name) for each in (before.each() if before else ()) for name in each.files}
        gone = [ChangeEvent(path, "deleted") for path in sorted(old.difference(new))]
        # A file that was there before may be another one, in a directory that took the place of its own.
        return [*gone, *(ChangeEvent(path, "modified" if path in old else "created") for path in new), again]

    def _watch_way(self, host: str, path: str) -> bool:
        """Watch the directories above `path`, and those above the root at `host`, as far as they exist.

        Each is watched before the next is looked for, so none that is made, removed or replaced later is missed. False
        if what is missing, or could go, is in a directory that may not be read.
        """
        is_reported = True
        for place, open_directory in ((PurePosixPath(host), os.open), (PurePosixPath(path), self._root.open)):
            for above, name in zip(reversed(place.parents), place.parts[1:], strict=True):
                try:
                    watch = self._add(open_directory(str(above), SEARCH), _NAMES)
                except _MISSING:
                    return is_reported
                except PermissionError:
                    is_reported = False
                else:
                    is_reported = True
                    self._above.setdefault(watch, set()).add(name)
        return is_reported

    def _add(self, descriptor: int, mask: int) -> int:
        """Watch an open directory, and close it. Returns the number of the watch, one for each directory."""
        name = os.fsencode(f"/proc/self/fd/{descriptor}")
        try:
            mask |= _SELF | _ONLY_DIRECTORY | _ADD_TO_MASK
            return _call("inotify_add_watch", self.descriptor, name, mask)
        except PermissionError:
            raise
        except OSError as error:
            limit = "the system allows no more watched directories (fs.inotify.max_user_watches)"
            raise BackendError(self._path, limit if error.errno == errno.ENOSPC else str(error.strerror)) from error
        finally:
            release(descriptor)

    # --- directories ---

    def _scan(self, start: _Directory, deadline: Deadline) -> list[str]:
        """Watch a directory and all beneath it. Returns the paths of the files in them that were not known."""
        known, new = {start.path: start}, list[str]()

        def enter(path: str) -> bool:
            above, _, name = path.rpartition("/")
            directory = known[path] = known[above or "/"].directories.setdefault(name, _Directory(path))
            try:
                self._watch(directory)
            except (OSError, DeepFSError) as error:
                skip(path, error)
                return False
            return True

        def skip(path: str, error: OSError | DeepFSError) -> None:
            # What is gone is told by another event. What may not be read has no files that could be shown.
            if is_shortage(error) or isinstance(error, BackendError):
                raise error

        self._watch(start)
        for found in walk(self._root, start.path, deadline, enter=enter, unreadable=skip):
            above, _, name = found.path.rpartition("/")
            directory = known.get(above or "/")
            if directory is not None and name not in directory.files:
                directory.files.add(name)
                new.append(found.path)
        return new

    def _watch(self, directory: _Directory) -> None:
        with self._root.locate(directory.path, follow=directory is self._top) as place:
            watch = self._add(place.open(READ_DIRECTORY), _NAMES | _MODIFY)
        if directory.watch != watch:
            self._forget(directory)
        directory.watch = watch
        self._directories[watch] = directory

    def _forget(self, directory: _Directory) -> None:
        """End the watch of one directory, unless it is that of another one by now."""
        if self._directories.get(directory.watch) is directory:
            del self._directories[directory.watch]
            with suppress(OSError):
                _call("inotify_rm_watch", self.descriptor, directory.watch)

    def _kind(self, path: str) -> Literal["file", "directory"] | None:
        """What is at a path now; a symlink to a file is a file, and None stands for what is not told."""
        try:
            with self._root.locate(path, follow=False) as place:
                status = place.lstat()
            mode = 0 if status is None else status.st_mode
            if stat.S_ISLNK(mode):
                return "file" if stat.S_ISREG(self._root.stat(path).st_mode) else None
        except (OSError, DeepFSError) as error:
            if is_shortage(error):
                raise
            return None
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else None

    def _follow(self, directory: _Directory, name: str, mask: int, deadline: Deadline) -> list[ChangeEvent]:
        """What an event about a name in a watched directory changed."""
        path, files = paths.join(directory.path, name), directory.files
        if not mask & _NAMES:
            return [ChangeEvent(path, "modified")] if name in files else []
        found: list[ChangeEvent] = []
        is_directory, kind = bool(mask & _IS_DIRECTORY), self._kind(path)
        if kind != "directory" or (is_directory and mask & _WENT):
            gone = directory.directories.pop(name, None)
            for each in gone.each() if gone is not None else ():
                self._forget(each)
                found += [ChangeEvent(paths.join(each.path, file), "deleted") for file in each.files]
        if (mask & _WENT and not is_directory) or (name in files and kind != "file"):
            files.discard(name)
            found.append(ChangeEvent(path, "deleted"))
        if kind == "file":
            found.append(ChangeEvent(path, "modified" if name in files else "created"))
            files.add(name)
        elif kind == "directory":
            # Also after one went: in an exchange of two names, one comes before the other goes.
            child = directory.directories.setdefault(name, _Directory(path))
            with suppress(*_MISSING, PermissionError, PermissionDeniedError):
                found += [ChangeEvent(each, "created") for each in self._scan(child, deadline)]
        if is_directory and mask & (_CREATE | _MOVED_TO):
            # A reader may have seen files in it that went before it was watched.
            found.append(ChangeEvent(path, "resync"))
        return found
