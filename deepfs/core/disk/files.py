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
from deepfs.core.disk.places import Root, release
from deepfs.errors import AccessError, DirectoryError, TooLargeError

__all__ = [
    "BLOCK",
    "blocks",
    "check_regular",
    "is_version",
    "modified_at",
    "open_regular",
    "read_descriptor",
    "regular_descriptor",
    "version_of",
]

BLOCK = 256 * 1024

# Two changes within one tick of a file system's clock leave the same times; the coarsest clock in use ticks every two
# seconds. Content that is younger than that is told apart by what it is.
_SETTLED_NS = 2_000_000_000
_MAX_HASHED = 10 * 1024 * 1024


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


def version_of(status: os.stat_result, content: bytes | None) -> str:
    """The version of a file of `status`, taken before `content` was read; None is content too large to look at.

    A file that has settled is known by its identity, size and times. Content of the last two seconds is known by its
    hash, as long as it is held and not over 10 MiB.
    """
    settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS
    if settled or content is None or len(content) > _MAX_HASHED:
        return _status_version(status)
    return text.version(content)


def is_version(path: str, descriptor: int, version: str) -> bool:
    """Whether an open file, read from its start, is of `version`; judged in the way that version was made."""
    status = os.fstat(descriptor)
    if version.startswith("s-"):
        return version == _status_version(status)
    if status.st_size > _MAX_HASHED:
        return False
    os.lseek(descriptor, 0, os.SEEK_SET)
    content = read_descriptor(path, descriptor, status.st_size)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return version == text.version(content)


def _status_version(status: os.stat_result) -> str:
    return f"s-{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def modified_at(status: os.stat_result) -> str:
    """When a file was last modified: ISO 8601, UTC, microseconds."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06}+00:00"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    # Files that came together share it.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
