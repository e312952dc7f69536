"""Opening and reading regular files, and the version that tells one content of a file from the next."""

import codecs
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from deepfs.disk.os_calls import NOT_REGULAR, READ, release
from deepfs.disk.resolve import Root
from deepfs.errors import InvalidContentError, IsDirectoryError, PermissionDeniedError, TooLargeError
from deepfs.text import lines as text
from deepfs.threads.deadline import Deadline

__all__ = [
    "BLOCK",
    "DEFAULT_LIMITS",
    "MAX_WHOLE",
    "Limits",
    "Reading",
    "Versioning",
    "blocks",
    "check_regular",
    "is_version",
    "modified_at",
    "open_regular",
    "read_descriptor",
    "read_whole",
    "read_window",
    "regular_descriptor",
]

BLOCK = 256 * 1024

# Two changes within one tick of a file system's clock leave the same times; the coarsest clock in use ticks every two
# seconds. The hash of a file that is older than that is remembered for as long as its status stays.
_SETTLED_NS = 2_000_000_000
_WORTH_REMEMBERING = 16 * 1024
_MAX_REMEMBERED = 4096


def check_regular(path: str, status: os.stat_result) -> None:
    """Raise where `status` is not that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsDirectoryError(path)
    if not stat.S_ISREG(status.st_mode):
        raise PermissionDeniedError(path, NOT_REGULAR)


def regular_descriptor(path: str, descriptor: int) -> os.stat_result:
    """The status of a descriptor just opened; where it is of no regular file, it is closed and the error raised."""
    try:
        status = os.fstat(descriptor)
        check_regular(path, status)
    except BaseException:
        release(descriptor)
        raise
    return status


def open_regular(root: Root, path: str) -> tuple[int, os.stat_result]:
    """Open the regular file at `path` for reading; never waits for the other end of a FIFO or a device."""
    if path == "/":
        raise IsDirectoryError(path)  # The root may not exist yet, and opening it would say so.
    descriptor = root.open(path, READ)
    return descriptor, regular_descriptor(path, descriptor)


def read_descriptor(path: str, descriptor: int, size: int, limit: int | None = None) -> bytes:
    """The rest of an open file, expected to be `size` bytes; TooLargeError where it is over `limit`."""
    if limit is not None and size > limit:
        raise TooLargeError(path, size, limit)
    # Asking for one byte more than there should be proves the end of the file with the same call.
    data = os.read(descriptor, size + 1)
    if len(data) == size > 0:
        return data
    return _read_on(path, descriptor, data, limit)


def _read_on(path: str, descriptor: int, data: bytes, limit: int | None) -> bytes:
    """`data` and what follows it, of a file whose size said nothing about its content."""
    parts, size = [data], len(data)
    while parts[-1]:
        if limit is not None and size > limit:
            raise TooLargeError(path, size, limit)
        parts.append(os.read(descriptor, BLOCK))
        size += len(parts[-1])
    return b"".join(parts)


def blocks(descriptor: int, first: bytes = b"") -> Iterator[bytes]:
    """The content of an open file from here on, block by block, after `first`."""
    if first:
        yield first
    while block := os.read(descriptor, BLOCK):
        yield block


class Versioning:
    """The version of the content of an open file of `status`, which is taken before anything is read.

    It is the hash that every backend gives. That of a large file that has settled is made once, as long as its
    identity, size and times stay.
    """

    __slots__ = ("_key", "_status", "known")

    def __init__(self, status: os.stat_result) -> None:
        self._status = status
        self._key = _settled_key(status)
        self.known: str | None = None if self._key is None else _versions.get(self._key)
        """The version, where it need not be made."""

    def of(self, descriptor: int, content: bytes) -> str:
        """The version of `content`, which is the whole file."""
        return self.known or self.remember(descriptor, text.version(content))

    def remember(self, descriptor: int, version: str) -> str:
        """`version`, made of all that was read from `descriptor`; kept where the file stayed the same meanwhile."""
        if self._key is not None and _settled_key(os.fstat(descriptor)) == self._key:
            if len(_versions) >= _MAX_REMEMBERED:
                _versions.clear()
            _versions[self._key] = version
        return version

    def of_unread(self) -> str:
        """What stands for the content of a file that is too large to be read whole: its identity, size and times."""
        return _status_version(self._status)


_Key = tuple[int, int, int, int, int]
_versions: dict[_Key, str] = {}


def _settled_key(status: os.stat_result) -> _Key | None:
    """A key that changes with the content of the file of `status`; None for a small file, or one that just changed."""
    if status.st_size < _WORTH_REMEMBERING:
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) <= _SETTLED_NS:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_version(path: str, descriptor: int, version: str, deadline: Deadline) -> bool:
    """Whether an open file is of `version`; its content is read where `version` is of content."""
    status = os.fstat(descriptor)
    if version.startswith(_STATUS):
        return version == _status_version(status)
    found = Versioning(status).remember(descriptor, _read_version(path, descriptor, deadline))
    return version == found


def _read_version(path: str, descriptor: int, deadline: Deadline) -> str:
    """The version of the content of an open file, in bounded memory; the file is at its start afterwards."""
    digest = text.digest()
    os.lseek(descriptor, 0, os.SEEK_SET)
    for block in blocks(descriptor):
        deadline.check_cancelled(path)
        digest.update(block)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return digest.hexdigest()


_STATUS = "s-"
"""How a version begins that is made of the status of a file."""


def _status_version(status: os.stat_result) -> str:
    return f"{_STATUS}{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def modified_at(status: os.stat_result) -> str:
    """When a file was last modified: ISO 8601, UTC, microseconds; the nearest date there is, where none is so far."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06}+00:00"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    # Files that came together share it.
    first, last = -62_135_596_800, 253_402_300_799  # Anybody may give a file any time; dates have years of four digits.
    return datetime.fromtimestamp(min(max(seconds, first), last), UTC).replace(tzinfo=None).isoformat()


MAX_WHOLE = 1024 * 1024
"""Files up to this size are read at once."""

_COUNT_STEP = 4096


class Limits(NamedTuple):
    """Where reading stops, in bytes."""

    binary: int = 10 * 1024 * 1024
    """The largest binary file that is read."""
    window: int = 10 * 1024 * 1024
    """The largest window of text."""
    judged: int = 64 * 1024 * 1024
    """The largest file that is read to its end, so that its lines are counted and all of it is known to be text."""


DEFAULT_LIMITS = Limits()


class Reading(NamedTuple):
    """What was read: a window of text, or the whole of a binary file."""

    status: os.stat_result
    version: str
    shown: text.Window | bytes


class _NotTextError(Exception):
    """Raised within this module where a file proves to be binary."""


def read_window(
    root: Root, path: str, offset: int, limit: int, limits: Limits = DEFAULT_LIMITS, deadline: Deadline | None = None
) -> Reading:
    """At most `limit` lines from line `offset` of a text file; the whole of one that proves to be binary."""
    descriptor, status = open_regular(root, path)
    try:
        versioning = Versioning(status)
        if status.st_size <= MAX_WHOLE:
            data = read_descriptor(path, descriptor, status.st_size, limits.window)
            return _from_whole(status, versioning.of(descriptor, data), data, offset, limit)
        is_hashed = versioning.known is None and status.st_size <= limits.judged
        scan = _Scan(path, status, offset, limit, limits, text.digest() if is_hashed else None)
        try:
            scan.run(descriptor, deadline or Deadline())
        except _NotTextError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            data = read_descriptor(path, descriptor, status.st_size, limits.binary)
            return Reading(status, versioning.of(descriptor, data), data)
        return Reading(status, _scanned_version(scan, versioning, descriptor), scan.window())
    finally:
        release(descriptor)


def read_whole(root: Root, path: str, limit: int) -> Reading:
    """All of a file, as bytes; TooLargeError where it is over `limit` bytes."""
    descriptor, status = open_regular(root, path)
    try:
        versioning = Versioning(status)
        data = read_descriptor(path, descriptor, status.st_size, limit)
        return Reading(status, versioning.of(descriptor, data), data)
    finally:
        release(descriptor)


def _from_whole(status: os.stat_result, version: str, data: bytes, offset: int, limit: int) -> Reading:
    content = text.decode(data)
    return Reading(status, version, data if content is None else text.window(content, offset, limit))


def _scanned_version(scan: "_Scan", versioning: Versioning, descriptor: int) -> str:
    if versioning.known is not None:
        return versioning.known
    made = scan.version
    return versioning.of_unread() if made is None else versioning.remember(descriptor, made)


class _Scan:
    """A pass over a large file that keeps the window's bytes, counts lines and judges that all it sees is text."""

    def __init__(
        self,
        path: str,
        status: os.stat_result,
        offset: int,
        limit: int,
        limits: Limits,
        digest: blake2b | None,
    ) -> None:
        self._path = path
        self._size = status.st_size
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
        """The version of what was read to its end; None where it was not, or not asked for."""
        return self._digest.hexdigest() if self._digest is not None and self._ended else None

    def run(self, descriptor: int, deadline: Deadline) -> None:
        to_the_end = self._size <= self._limits.judged
        for block in blocks(descriptor):
            deadline.check(self._path)
            if self._digest is not None:
                self._digest.update(block)
            self._judge(block)
            self._take(block)
            if self._more and not to_the_end:
                return
        self._judge(b"", final=True)
        self._ended = True

    def _judge(self, block: bytes, *, final: bool = False) -> None:
        if b"\0" in block:
            raise _NotTextError
        try:
            self._decode(block, final)
        except UnicodeDecodeError as error:
            raise _NotTextError from error

    def _take(self, block: bytes) -> None:
        """Keep what of `block` is in the window, and count its lines."""
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
        """The window, once the pass is over."""
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
    """The position after `count` of the `newlines` in `block`: its start for none, its end where there are fewer."""
    if count <= 0:
        return 0
    if count > newlines:
        return len(block)
    start = 0
    # Counting a stretch costs far less than finding its lines one by one.
    while (found := block.count(b"\n", start, start + _COUNT_STEP)) < count:
        count -= found
        start += _COUNT_STEP
    for _ in range(count):
        start = block.index(b"\n", start) + 1
    return start
