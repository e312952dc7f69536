"""SQLite databases that this process uses, which nothing else in it may open and close.

As soon as a process closes any descriptor of a file, POSIX drops all locks that the process holds on that file, and
SQLite keeps processes apart by such locks. So a database that is only read as a file may lose changes. To open it does
no harm: a database in use is refused, and what was opened stays open until the database is used no more.

It does not matter which library uses the database. A file counts as one by its first bytes, and as used if another
descriptor of this process leads to it.
"""

import os
import sys
from contextlib import suppress
from typing import Final

from deepfs.disk.os_calls import LATER_CLOSED, FileId, file_id
from deepfs.errors import PermissionDeniedError

if sys.platform != "win32":
    import fcntl

__all__ = ["UNIT", "check_database", "check_entry", "check_kept", "is_database", "is_kept"]

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

_listed, _status = os.listdir, os.fstat  # Bound here: for descriptors, these calls never wait.

_kept: dict[FileId, list[int]] = {}
"""The descriptors that wait for the end of the use of a database."""


def is_kept(status: os.stat_result) -> bool:
    """Whether a file was found to belong to a used database."""
    return bool(_kept) and file_id(status) in _kept


def check_kept(path: str, status: os.stat_result) -> None:
    """Refuse a file before it is opened, if it was found to belong to a used database before, and still does."""
    if is_kept(status):
        file = file_id(status)
        if _is_used(file):
            raise PermissionDeniedError(path, _REASON)
        _close_kept(file)


def check_entry(path: str, name: str, directory: int) -> None:
    """As `check_kept`, for the entry `name` of an open directory."""
    if _kept:
        check_kept(path, os.stat(name, dir_fd=directory, follow_symlinks=False))


def check_database(path: str, descriptor: int, status: os.stat_result) -> None:
    """Refuse an open file if it belongs to a database that this process uses. `release` then does not close it.

    The file is opened for reading, and will be closed by `release`. Raises PermissionDeniedError about `path`.
    """
    may_be = status.st_size % UNIT == 0 and is_database(descriptor, os.pread(descriptor, _LONGEST, 0))
    if may_be and _is_used(file_id(status)):
        raise PermissionDeniedError(path, _REASON)


def is_database(descriptor: int, content: bytes | bytearray) -> bool:
    """Whether an open file belongs to a database, by its content. If so, `release` closes it only when that is safe."""
    if not bytes(content[:_LONGEST]).startswith(_HEADS):
        return False
    LATER_CLOSED[descriptor] = _release
    return True


def _release(descriptor: int) -> None:
    file = file_id(_status(descriptor))
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
    return any(_leads_to(int(name), file) for name in _listed(_DESCRIPTORS))


def _leads_to(descriptor: int, file: FileId) -> bool:
    with suppress(OSError):  # It was closed meanwhile.
        found = file_id(_status(descriptor)) == file
        return found and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _OPENED_HERE
    return False
