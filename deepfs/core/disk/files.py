"""Opening and reading regular files, and the version that tells one content of a file from the next."""

import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

from deepfs.core import text
from deepfs.core.disk.conditions import NOT_REGULAR
from deepfs.core.disk.flags import READ
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Root, release
from deepfs.errors import AccessError, DirectoryError, TooLargeError

__all__ = [
    "BLOCK",
    "Versioning",
    "blocks",
    "check_regular",
    "is_version",
    "modified_at",
    "open_regular",
    "read_descriptor",
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
        raise DirectoryError(path)
    if not stat.S_ISREG(status.st_mode):
        raise AccessError(path, NOT_REGULAR)


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
        raise DirectoryError(path)  # The root may not exist yet, and opening it would say so.
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


def is_version(path: str, descriptor: int, version: str, patience: Patience) -> bool:
    """Whether an open file is of `version`; its content is read where `version` is of content."""
    status = os.fstat(descriptor)
    if version.startswith(_STATUS):
        return version == _status_version(status)
    found = Versioning(status).remember(descriptor, _read_version(path, descriptor, patience))
    return version == found


def _read_version(path: str, descriptor: int, patience: Patience) -> str:
    """The version of the content of an open file, in bounded memory; the file is at its start afterwards."""
    digest = text.digest()
    os.lseek(descriptor, 0, os.SEEK_SET)
    for block in blocks(descriptor):
        patience.check_wanted(path)
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
