"""Opening and reading regular files, which of them may be opened, and the version that identifies their content."""

import codecs
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from deepfs.disk.os_calls import LATER_CLOSED, NOT_REGULAR, READ, FileId, file_id, release
from deepfs.disk.resolve import Place, Root
from deepfs.errors import InvalidContentError, IsDirectoryError, PermissionDeniedError, TooLargeError
from deepfs.text import lines as text
from deepfs.threads.deadline import Deadline

if sys.platform != "win32":
    import fcntl

BLOCK = 256 * 1024

fstat: Callable[[int], os.stat_result] = os.fstat
"""The status of an open file. Bound here, since a file that is read on the event loop has its status in memory."""


# Two changes within one tick of a file system's clock leave the same times; the coarsest clock in use ticks every two
# seconds. So a version is cached only if the last change is older than that, and is valid while the status is the same.
_SETTLED_NS = 2_000_000_000
_WORTH_REMEMBERING = 16 * 1024
"""The smallest file, in bytes, whose version is cached; a smaller one is hashed each time."""
_MAX_REMEMBERED = 4096


def check_regular(path: str, status: os.stat_result) -> None:
    """Raise IsDirectoryError or PermissionDeniedError unless `status` is that of a file that may be opened."""
    if not stat.S_ISREG(status.st_mode):
        raise IsDirectoryError(path) if stat.S_ISDIR(status.st_mode) else PermissionDeniedError(path, NOT_REGULAR)
    refuse_used_database(path, status)


def check_opened(path: str, descriptor: int, status: os.stat_result) -> None:
    """As `check_regular`, for a file that was opened for reading and is to be closed by `release`."""
    if not stat.S_ISREG(status.st_mode):
        check_regular(path, status)
    check_database(path, descriptor, status)


def regular_descriptor(path: str, descriptor: int) -> os.stat_result:
    """The status of a descriptor just opened; if it is no regular file, close it and raise the error."""
    try:
        status = os.fstat(descriptor)
        check_opened(path, descriptor, status)
    except BaseException:
        release(descriptor)
        raise
    return status


def open_regular(root: Root, path: str) -> tuple[int, os.stat_result]:
    """Open the regular file at `path` for reading. Anything else is refused without being opened.

    Should a special file take the place of a regular one just then, opening it does not block.
    """
    if path == "/":
        raise IsDirectoryError(path)  # The root may not exist yet; opening it would raise NotFoundError.
    seen = root.peek(path)
    if seen is not None and stat.S_ISREG(seen.st_mode):
        refuse_used_database(path, seen)
    elif seen is not None and not stat.S_ISDIR(seen.st_mode):
        # Opening a FIFO would wake its writers, although nothing reads; opening a device may do anything.
        check_regular(path, root.stat(path))
    descriptor = root.open(path, READ)
    return descriptor, regular_descriptor(path, descriptor)


def open_regular_at(path: str, place: Place) -> tuple[int, os.stat_result]:
    """Like `open_regular`, for the entry at `place`; fails if it is a symlink."""
    status = place.lstat()
    if status is not None and not stat.S_ISLNK(status.st_mode):
        check_regular(path, status)
    descriptor = place.open(READ)
    return descriptor, regular_descriptor(path, descriptor)


def read_descriptor(path: str, descriptor: int, size: int, limit: int | None = None) -> bytes:
    """Read the rest of an open file, expected to be `size` bytes; TooLargeError if it is over `limit`."""
    if limit is not None and size > limit:
        raise TooLargeError(path, size, limit)
    # Asking for one byte more than expected shows in the same call that the file ends there.
    data = os.read(descriptor, size + 1)
    if len(data) == size > 0:
        return data
    return _read_on(path, descriptor, data, limit)


def _read_on(path: str, descriptor: int, data: bytes, limit: int | None) -> bytes:
    """`data` and the rest of the file, whose size in the status differs from the size of its content."""
    parts, size = [data], len(data)
    while parts[-1]:
        if limit is not None and size > limit:
            raise TooLargeError(path, size, limit)
        parts.append(os.read(descriptor, BLOCK))
        size += len(parts[-1])
    return b"".join(parts)


def blocks(descriptor: int, first: bytes = b"") -> Iterator[bytes]:
    """Yield `first`, if not empty, and then the rest of an open file, block by block."""
    if first:
        yield first
    while block := os.read(descriptor, BLOCK):
        yield block


class Versioning:
    """The version of the content of an open file; `status` must be taken before anything is read.

    The version is a hash of the content, the same in every backend. For a large file that has not changed for two
    seconds, the hash is cached until the identity, size or times of the file change.
    """

    __slots__ = ("_key", "known")

    def __init__(self, status: os.stat_result) -> None:
        self._key = _settled_key(status)
        self.known: str | None = None if self._key is None else _versions.get(self._key)
        """The cached version; None if the content must be hashed."""

    def of(self, descriptor: int, content: bytes) -> str:
        """The version of `content`, the whole content of the file."""
        return self.known or self.remember(descriptor, text.version(content))

    def remember(self, descriptor: int, version: str) -> str:
        """Cache and return `version`, the hash of all that was read; not cached if the file changed meanwhile."""
        if self._key is not None and _settled_key(fstat(descriptor)) == self._key:
            if len(_versions) >= _MAX_REMEMBERED:
                _versions.clear()
            _versions[self._key] = version
        return version


_Key = tuple[int, int, int, int, int]
_versions: dict[_Key, str] = {}


def _settled_key(status: os.stat_result) -> _Key | None:
    """A cache key that changes with the content of the file; None for a small file, or one that changed just now."""
    if status.st_size < _WORTH_REMEMBERING:
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) <= _SETTLED_NS:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_version(path: str, descriptor: int, version: str, deadline: Deadline) -> bool:
    """Whether an open file has `version`; reads the content unless `version` is made of the file's status."""
    status = os.fstat(descriptor)
    if version.startswith(_STATUS):
        return version == _status_version(status)
    found = Versioning(status).remember(descriptor, _read_version(path, descriptor, deadline))
    return version == found


def _read_version(path: str, descriptor: int, deadline: Deadline) -> str:
    """Hash the content of an open file, in bounded memory; the file position is at the start afterwards."""
    digest = text.digest()
    os.lseek(descriptor, 0, os.SEEK_SET)
    for block in blocks(descriptor):
        deadline.check_cancelled(path)
        digest.update(block)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return digest.hexdigest()


_STATUS = "s-"
"""The prefix of versions that are made of the status of a file."""


def _status_version(status: os.stat_result) -> str:
    """A version for a file that is too large to be read whole, made of its inode, size and times."""
    return f"{_STATUS}{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def modified_at(status: os.stat_result) -> str:
    """When a file was last modified: ISO 8601, UTC, microseconds; clamped to the years 1 to 9999."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06}+00:00"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    # Cached, since files that were written together share the second.
    first, last = -62_135_596_800, 253_402_300_799  # A file can have any time; `datetime` has only the years 1 to 9999.
    return datetime.fromtimestamp(min(max(seconds, first), last), UTC).replace(tzinfo=None).isoformat()


MAX_WHOLE = 1024 * 1024
"""Files up to this size are read into memory whole."""

_COUNT_STEP = 4096


class ReadLimits(Struct, frozen=True):
    """Where reading stops, in bytes."""

    binary: int = 10 * 1024 * 1024
    """The largest binary file that is read."""
    window: int = 10 * 1024 * 1024
    """The largest window of text."""
    judged: int = 64 * 1024 * 1024
    """The largest file that is read to its end, to count all its lines and check that all of it is text."""


DEFAULT_LIMITS = ReadLimits()


class Reading(Struct, frozen=True):
    """The result of reading: a window of text, or the whole of a binary file."""

    status: os.stat_result
    version: str
    shown: text.Window | bytes


class NotTextError(Exception):
    """Raised when a file turns out to be binary while it is read block by block."""


def read_window(
    root: Root,
    path: str,
    offset: int,
    limit: int,
    limits: ReadLimits = DEFAULT_LIMITS,
    deadline: Deadline | None = None,
) -> Reading:
    """Read at most `limit` lines from line `offset` of a text file, or the whole file if it is binary."""
    descriptor, status = open_regular(root, path)
    try:
        if status.st_size <= MAX_WHOLE:
            data = read_descriptor(path, descriptor, status.st_size, limits.window)
            return of_whole(status, data, offset, limit, descriptor)
        versioning = Versioning(status)
        is_hashed = versioning.known is None and status.st_size <= limits.judged
        scan = WindowScan(path, status.st_size, offset, limit, limits, text.digest() if is_hashed else None)
        try:
            scan.run(descriptor, deadline or Deadline())
        except NotTextError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            data = read_descriptor(path, descriptor, status.st_size, limits.binary)
            return Reading(status, versioning.of(descriptor, data), data)
        made = versioning.known or scan.version
        if made is None:
            made = _status_version(status)
        elif versioning.known is None:
            versioning.remember(descriptor, made)
        return Reading(status, made, scan.window())
    finally:
        release(descriptor)


def read_whole(root: Root, path: str, limit: int) -> Reading:
    """Read all of a file, as bytes; TooLargeError if it is over `limit` bytes."""
    descriptor, status = open_regular(root, path)
    try:
        versioning = Versioning(status)
        data = read_descriptor(path, descriptor, status.st_size, limit)
        return Reading(status, versioning.of(descriptor, data), data)
    finally:
        release(descriptor)


def of_whole(status: os.stat_result, data: bytes | bytearray, offset: int, limit: int, descriptor: int) -> Reading:
    """The reading of an open file with the content `data`: of the window if it is text, else of all of it."""
    content = text.decode(data)
    if content is None:
        binary = bytes(data)
        return Reading(status, Versioning(status).of(descriptor, binary), binary)
    facts = text.facts(content)
    return Reading(status, facts.version, text.window(content, offset, limit, facts.lines))


class WindowScan:
    """Reads a large file in blocks: keeps the bytes of the window, counts lines, and checks that all is text."""

    def __init__(
        self,
        path: str,
        size: int,
        offset: int,
        limit: int,
        limits: ReadLimits,
        digest: blake2b | None,
    ) -> None:
        self._path = path
        self._size = size
        self._limits = limits
        self._first = max(offset, 0)
        self._last = self._first + max(limit, 0)
        self._kept = bytearray()
        self._lines = 0
        self._open_line = False
        self._more = False
        self._ended = False
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._digest = digest

    @property
    def version(self) -> str | None:
        """The hash of the content; None if the file was not read to its end, or no hash was wanted."""
        return self._digest.hexdigest() if self._digest is not None and self._ended else None

    def run(self, descriptor: int, deadline: Deadline) -> None:
        to_the_end = self._size <= self._limits.judged
        for block in blocks(descriptor):
            deadline.check(self._path)
            if self.add(block) and not to_the_end:
                return
        self.end()

    def add(self, block: bytes) -> bool:
        """Take the next block of the file; return whether the window is complete. Raises NotTextError."""
        if self._digest is not None:
            self._digest.update(block)
        self._check_text(block)
        self._take(block)
        return self._more

    def end(self) -> None:
        """Take the end of the file as reached. Raises NotTextError if it ends within a character."""
        self._check_text(b"", final=True)
        self._ended = True

    def _check_text(self, block: bytes, *, final: bool = False) -> None:
        if b"\0" in block:
            raise NotTextError
        try:
            self._decode(block, final)
        except UnicodeDecodeError as error:
            raise NotTextError from error

    def _take(self, block: bytes) -> None:
        """Keep the part of `block` that is in the window, and count its lines."""
        newlines = block.count(b"\n")
        start = _after_newlines(block, newlines, self._first - self._lines)
        end = _after_newlines(block, newlines, self._last - self._lines)
        self._kept += block[start:end]
        if len(self._kept) > self._limits.window:
            raise TooLargeError(self._path, self._size, self._limits.window)
        self._lines += newlines
        self._open_line = not block.endswith(b"\n")
        self._more = self._more or end < len(block)

    def window(self) -> text.Window:
        """The window, after the blocks that hold it."""
        total = self._lines + self._open_line if self._ended else None
        if total is not None and self._first >= total:
            raise InvalidContentError(None, f"Line offset {self._first} exceeds file length ({total} lines)")
        onward = self._last if self._more else None
        if self._first == self._last:
            return text.Window("", None, None, total, self._first)
        shown = self._kept.decode()
        last = self._last if total is None else min(self._last, total)
        if self._first == 0:
            shown = shown.removeprefix(text.BOM)
        return text.Window(shown, self._first + 1, last, total, onward)


def _after_newlines(block: bytes, newlines: int, count: int) -> int:
    """The position in `block` after its first `count` newlines: 0 if `count` <= 0, the end if there are fewer."""
    if count <= 0:
        return 0
    if count > newlines:
        return len(block)
    start = 0
    # Counting newlines in steps of 4096 bytes is far cheaper than finding them one by one.
    while (found := block.count(b"\n", start, start + _COUNT_STEP)) < count:
        count -= found
        start += _COUNT_STEP
    for _ in range(count):
        start = block.index(b"\n", start) + 1
    return start


# --- SQLite databases that this process uses -------------------------------------------------------------------------
#
# As soon as a process closes any descriptor of a file, POSIX drops all locks that the process holds on that file, and
# SQLite keeps processes apart by such locks. So a database that is only read as a file may lose changes, and nothing
# else in the process may open and close it. To open it does no harm: a database in use is refused, and what was opened
# stays open until the database is used no more.
#
# It does not matter which library uses the database. A file counts as one by its first bytes, and as used if another
# descriptor of this process leads to it.

_REASON: Final = "it belongs to a SQLite database that this process uses; read and change it by SQLite"

_HEADS: Final = (
    b"SQLite format 3\0",
    (3_007_000).to_bytes(4, sys.byteorder),  # the index of a log (-shm)
    bytes.fromhex("377f0682"),  # a log (-wal)
    bytes.fromhex("377f0683"),
    bytes.fromhex("d9d505f920a163d7"),  # a journal
)
"""How a database begins, and the files beside it."""
_LONGEST: Final = max(map(len, _HEADS))
UNIT: Final = 8
"""What the sizes of all these files are multiples of."""

_OPENED_HERE: Final[int] = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_PATH", 0)
"""The flags by which descriptors of this package are told from those of SQLite, which uses none of them."""
_DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

_listdir = os.listdir  # Bound here, as `fstat` is: for descriptors, these calls never wait.

_kept: dict[FileId, list[int]] = {}
"""The descriptors that wait for the end of the use of a database."""


def is_used_database(status: os.stat_result) -> bool:
    """Whether a file was found to belong to a used database."""
    return bool(_kept) and file_id(status) in _kept


def refuse_used_database(path: str, status: os.stat_result) -> None:
    """Refuse a file before it is opened, if it was found to belong to a used database before, and still does."""
    if is_used_database(status):
        file = file_id(status)
        if _is_used(file):
            raise PermissionDeniedError(path, _REASON)
        _close_kept(file)


def check_entry(path: str, name: str, directory: int) -> None:
    """As `refuse_used_database`, for the entry `name` of an open directory."""
    if _kept:
        refuse_used_database(path, os.stat(name, dir_fd=directory, follow_symlinks=False))


def check_database(path: str, descriptor: int, status: os.stat_result) -> None:
    """Refuse an open file if it belongs to a database that this process uses. `release` then does not close it.

    The file is opened for reading, and will be closed by `release`. Raises PermissionDeniedError about `path`.
    """
    may_be = status.st_size % UNIT == 0 and is_database(descriptor, os.pread(descriptor, _LONGEST, 0))
    if may_be and _is_used(file_id(status)):
        raise PermissionDeniedError(path, _REASON)


def is_database(descriptor: int, content: bytes | bytearray) -> bool:
    """Whether an open file belongs to a database, by its content. If so, `release` closes it only when that is safe."""
    if not content.startswith(_HEADS):
        return False
    LATER_CLOSED[descriptor] = _release
    return True


def _release(descriptor: int) -> None:
    file = file_id(fstat(descriptor))
    for other in [other for other in list(_kept) if not _is_used(other)]:
        _close_kept(other)
    if _is_used(file):
        _kept.setdefault(file, []).append(descriptor)
    else:
        os.close(descriptor)


def _close_kept(file: FileId) -> None:
    for descriptor in _kept.pop(file, ()):
        os.close(descriptor)


def _is_used(file: FileId) -> bool:
    """Whether this process has opened a file otherwise than by this package."""
    return any(_leads_to(int(name), file) for name in _listdir(_DESCRIPTORS))


def _leads_to(descriptor: int, file: FileId) -> bool:
    with suppress(OSError):  # It was closed meanwhile.
        found = file_id(fstat(descriptor)) == file
        return found and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _OPENED_HERE
    return False
