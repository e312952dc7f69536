"""Reading files that the system has in its memory, by calls that never wait for a device.

An event loop may make these calls itself: each ends at once, or raises BlockingIOError where a worker thread has to do
the work. `openat2` with RESOLVE_CACHED fails if a name on the path is not in memory, and `preadv2` with RWF_NOWAIT if
part of the file is not. Neither covers the opening of a file, for which some file systems ask a server; so files are
read here only on file systems that were tested.

Sources: the manual pages openat2(2), statfs(2) and readv(2) of Linux.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EOPNOTSUPP
from functools import cache
from typing import Final

from msgspec import Struct

from deepfs.disk.os_calls import (
    BENEATH,
    HOW_BYTES,
    NO_SYMLINKS,
    NOWHERE,
    OPENAT2,
    PREFIX,
    READ,
    SEARCH,
    file_system_type,
    open_how,
    release,
    syscall_of,
)
from deepfs.disk.reading import (
    DEFAULT_LIMITS,
    Reading,
    ReadLimits,
    Versioning,
    fstat,
    is_database,
    is_used_database,
    of_whole,
)
from deepfs.disk.resolve import Root
from deepfs.errors import DeepFSError
from deepfs.threads.deadline import Deadline

MAX_BYTES: Final = 256 * 1024
"""The largest file that is read here, which bounds the time of a call."""

_MOST_MISSES: Final = 6
"""How many failures in a row are counted; up to 63 reads are then passed over."""
_TESTED: Final = frozenset({0xEF53})
"""The file systems that open a file without waiting, by the number that `statfs` gives them: ext4, and ext2 and ext3,
which share its number."""


class FilesInMemory:
    """Reads the files below a root that are in the system's memory, without waiting.

    Every method raises BlockingIOError where that is not possible, and for links, files over `MAX_BYTES`, what lies on
    other file systems, all that is no regular file, and every error. The same call of `Disk` then gives the answer.
    What is read is confined and checked as there.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._start: _Start | None = None
        self._is_refused = False
        self._passed_over = 0
        self.misses: int = 0
        """The reads in a row that failed here, up to `_MOST_MISSES`."""

    def begin_read(self) -> bool:
        """Count a read, and return whether to try it here: after `prepare`, but not the next ones after failures."""
        if self._passed_over:
            self._passed_over -= 1
            return False
        return self._start is not None

    def note_miss(self) -> None:
        """Note that a read could not be done here. So a tree that is not in memory is read nearly as fast without."""
        self.misses = min(self.misses + 1, _MOST_MISSES)
        self._passed_over = 2**self.misses - 1

    def note_hit(self) -> None:
        """Note that a read was done here."""
        self.misses = 0

    def prepare(self) -> None:
        """Find out how these files can be read; blocks."""
        if self._start is None and not self._is_refused and not sys.is_finalizing():
            with suppress(OSError):  # The root may not exist yet.
                self._start = _start_of(self._root)
                self._is_refused = self._start is None

    def read_file(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, os.stat_result]:
        """Like `Disk.read_file`."""
        descriptor, status = self._open(path, limit)
        try:
            return bytes(self._read(descriptor, status.st_size)), status
        finally:
            release(descriptor)

    def read_whole(self, path: str, limit: int) -> Reading:
        """Like `Disk.read_whole`."""
        descriptor, status = self._open(path, limit)
        try:
            data = bytes(self._read(descriptor, status.st_size))
            return Reading(status, Versioning(status).of(descriptor, data), data)
        finally:
            release(descriptor)

    def read_window(
        self, path: str, offset: int, limit: int, limits: ReadLimits = DEFAULT_LIMITS, deadline: Deadline | None = None
    ) -> Reading:
        """Like `Disk.read_window`."""
        descriptor, status = self._open(path, limits.window)
        try:
            return of_whole(status, self._read(descriptor, status.st_size), offset, limit, descriptor)
        finally:
            release(descriptor)

    def real_paths(self, paths: Iterable[str | None]) -> list[str | None]:
        """Like `Disk.real_paths`. What does not exist is looked up there."""
        found = list(paths)
        for path in found:
            if path is not None:
                release(self._find(path))
        return found

    def _open(self, path: str, limit: int) -> tuple[int, os.stat_result]:
        """Open the file at `path`, if it has at most `limit` bytes. Anything but a regular file is not opened."""
        found = self._find(path)
        try:
            status = fstat(found)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES or status.st_size > limit:
                raise BlockingIOError
            if is_used_database(status):
                raise BlockingIOError
            # This opens what was found, whatever is at the path by now.
            return _open(f"/proc/self/fd/{found}", READ), status
        except OSError as error:
            raise BlockingIOError from error
        finally:
            release(found)

    def _find(self, path: str) -> int:
        """A descriptor of what is at `path`, which is found but not opened."""
        start = self._start
        if start is None or PREFIX in path or "/.." in path:
            raise BlockingIOError
        if self._root.access is not None:
            # No link is followed, so what is checked is what is read. Where links lead to is checked by `Disk`.
            try:
                self._root.access.check(path, "source", path)
            except DeepFSError as error:
                raise BlockingIOError from error
        if start.device is None:
            return start.openat2(NOWHERE, start.root + path.encode(), _FIND)
        directory = start.openat2(NOWHERE, start.root, _ENTER)
        try:
            if fstat(directory).st_dev != start.device:
                self._start = None  # Something else is mounted there now.
                raise BlockingIOError
            return start.openat2(directory, path[1:].encode(), _FIND_BENEATH)
        finally:
            release(directory)

    def _read(self, descriptor: int, size: int) -> bytes | bytearray:
        """The content of an open file of `size` bytes."""
        data = bytearray(size)
        try:
            count = os.preadv(descriptor, [data], 0, _NO_WAIT)
        except OSError as error:
            if error.errno == EOPNOTSUPP:
                self._start, self._is_refused = None, True
            raise BlockingIOError from error
        if count != size or is_database(descriptor, data):
            raise BlockingIOError
        return data


# --- where a lookup starts -------------------------------------------------------------------------------------------


_OpenAt2 = Callable[[int, bytes, bytes], int]


class _Start(Struct, frozen=True):
    openat2: _OpenAt2
    root: bytes
    """The host path of the root; empty if that is `/`."""
    device: int | None
    """The device of the root; None if the host's `/` is on the same mount, and no link is on the way to the root.

    A path is then looked up in one step, in which leaving that mount is refused. Otherwise the root is looked up first.
    """


def _start_of(root: Root) -> _Start | None:
    """Where the lookup of the files of `root` starts; None if they cannot be read without waiting. Blocks."""
    if sys.platform != "linux" or not _NO_WAIT or sys.getfilesystemencoding() != "utf-8":
        return None
    if root.starts_in_working_directory:  # Making a path absolute takes a system call then.
        return None
    path, openat2 = os.fsencode(root.host_path), _openat2()
    directory = os.open(path, SEARCH)
    try:
        if file_system_type(directory) not in _TESTED:
            return None
        device = os.fstat(directory).st_dev
    finally:
        release(directory)
    return _Start(openat2, b"" if path == b"/" else path, None if _is_direct(openat2, path) else device)


def _is_direct(openat2: _OpenAt2, path: bytes) -> bool:
    try:
        release(openat2(NOWHERE, path, open_how(_O_PATH, _NO_OTHER_MOUNT | NO_SYMLINKS)))
    except BlockingIOError:
        return False
    return True


# --- calls of the system ---------------------------------------------------------------------------------------------

_open = os.open  # Bound here, as `fstat` is: what is opened is in memory.

_NO_OTHER_MOUNT, _CACHED = 0x01, 0x20  # RESOLVE_NO_XDEV, RESOLVE_CACHED
_O_PATH: Final[int] = getattr(os, "O_PATH", 0)
_NO_WAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


_ENTER = open_how(SEARCH, _CACHED)
_FIND = open_how(_O_PATH, _CACHED | _NO_OTHER_MOUNT | NO_SYMLINKS)
_FIND_BENEATH = open_how(_O_PATH, _CACHED | _NO_OTHER_MOUNT | NO_SYMLINKS | BENEATH)


@cache
def _openat2() -> _OpenAt2:
    """`openat2`, which raises BlockingIOError if it fails."""
    import ctypes  # Imported late: the import takes ten milliseconds.

    # The call keeps the interpreter's lock: it never waits, but might wait long to get the lock back.
    syscall = syscall_of(ctypes.PyDLL(None))

    def call(start: int, path: bytes, how: bytes) -> int:
        descriptor = syscall(OPENAT2, start, path, how, HOW_BYTES)
        if descriptor < 0:
            raise BlockingIOError
        return descriptor

    return call
