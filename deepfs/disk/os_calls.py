"""System calls of the disk package: flags, names of temporary files, and the error for each errno."""

import errno
import os
import re
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)

if sys.platform == "darwin":
    import fcntl

if TYPE_CHECKING:
    import ctypes

# --- platforms -------------------------------------------------------------------------------------------------------


def check_platform() -> None:
    """Raise NotSupportedError where files cannot be opened relative to a directory that is held open: on Windows."""
    if os.name != "posix":
        raise NotSupportedError(
            None,
            "files and commands on this machine need Linux or macOS. On Windows use MemoryBackend, SqliteBackend, "
            "StateBackend, StoreBackend, PostgresBackend or ObjectStoreBackend",
        )


# --- flags -----------------------------------------------------------------------------------------------------------

# Windows lacks these flags. The modules must still import there.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
# Without O_NONBLOCK, opening a FIFO or a device may block; on a regular file the flag has no effect.
_NEVER_WAIT: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

READ: int = os.O_RDONLY | _NEVER_WAIT
"""Read a file."""
UPDATE: int = os.O_RDWR | _NEVER_WAIT
"""Read a file that is about to be replaced; fails unless the file may be written."""
NEW: int = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW
"""Write a file that must not exist yet, and perhaps read what was written."""
READ_DIRECTORY: int = os.O_RDONLY | _DIRECTORY | _NEVER_WAIT
"""List a directory."""
SEARCH: int = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
"""Open a directory to reach its entries; O_PATH, where it exists, needs no permission to read the directory."""


# --- names of temporary files ----------------------------------------------------------------------------------------

PREFIX = ".~deepfs-"


def temporary_name() -> str:
    """A random, unused name."""
    return PREFIX + secrets.token_hex(8)


def is_temporary(name: str) -> bool:
    """Whether `name` belongs to a temporary file, perhaps left by a process that was killed."""
    return name.startswith(PREFIX) and re.fullmatch("[0-9a-f]{16}", name[len(PREFIX) :]) is not None


# --- calls -----------------------------------------------------------------------------------------------------------

OPENAT2, HOW_BYTES = 437, 24
NO_SYMLINKS, BENEATH = 0x04, 0x08  # RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH
NOWHERE = -1
"""In place of a directory descriptor, for absolute paths."""

_Call = Callable[[int, int, bytes, bytes, int], int]


def syscall_of(library: "ctypes.CDLL") -> _Call:
    """The function `syscall` of the C library, for `openat2`.

    It takes `OPENAT2`, a directory, a path, what `open_how` returns, and `HOW_BYTES`. The result is negative if the
    call fails.
    """
    from ctypes import c_char_p, c_int, c_long, c_size_t

    syscall: Any = library.syscall
    syscall.argtypes = (c_long, c_int, c_char_p, c_char_p, c_size_t)
    syscall.restype = c_long
    return cast("_Call", syscall)


def open_unlinked(path: str, flags: int, beneath: int | None = None) -> int | None:
    """Open the absolute host path `path` in one system call (`openat2`), if no name in it is a symlink.

    With `beneath`, `path` is relative to that open directory and must not leave it. Returns None if the call fails, or
    if the system does not have it; opening the path name by name then shows the reason. While something on the
    machine is renamed, the call may also fail (EAGAIN) for a path with ".." that stays inside.
    """
    syscall = _openat2()
    if syscall is None:
        return None
    start, resolve = (NOWHERE, NO_SYMLINKS) if beneath is None else (beneath, NO_SYMLINKS | BENEATH)
    descriptor = syscall(OPENAT2, start, os.fsencode(path), open_how(flags, resolve), HOW_BYTES)
    return None if descriptor < 0 else descriptor


@cache
def open_how(flags: int, resolve: int) -> bytes:
    """The argument of `openat2` (`struct open_how`) with these flags of `open` and of the resolution of the path."""
    return struct.pack("QQQ", flags | getattr(os, "O_CLOEXEC", 0), 0, resolve)


@cache
def _openat2() -> _Call | None:
    """What makes system calls; None if the system does not have `openat2`, or nothing can be imported."""
    if sys.platform != "linux" or sys.is_finalizing():
        return None
    # Imported late: the import takes ten milliseconds.
    import ctypes

    syscall = syscall_of(ctypes.CDLL(None, use_errno=True))
    failed = syscall(OPENAT2, NOWHERE, b".", open_how(os.O_RDONLY, 0), HOW_BYTES) < 0
    return syscall if failed and ctypes.get_errno() == errno.EBADF else None


def write_all(data: bytes, descriptor: int) -> None:
    """Write `data` to an open file."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int, durable: bool) -> None:
    """Flush a file to the disk, if `durable`; on macOS `fsync` alone leaves the data in the drive's cache."""
    if durable and sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif durable:
        os.fsync(descriptor)


def sync_directory(directory: int, durable: bool) -> None:
    """Flush the entries of `directory` to the disk, if `durable`."""
    if durable:
        descriptor = os.open(".", READ_DIRECTORY, dir_fd=directory)
        try:
            os.fsync(descriptor)
        finally:
            release(descriptor)


def file_system_type(descriptor: int) -> int | None:
    """The number of the type of file system that an open file is on (`fstatfs`); None if the system does not tell."""
    if sys.platform != "linux":
        return None
    import ctypes

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    failed = ctypes.CDLL(None).fstatfs(descriptor, found)
    return None if failed else int(struct.unpack_from("@l", found)[0])


_STATFS_BYTES = 512
"""More than any machine's `struct statfs` takes; the type comes first."""

_EFFECTIVE_IDS = os.access in os.supports_effective_ids

LINK_ERRORS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
"""Errors of opening a symlink with O_NOFOLLOW; ENOTDIR if O_DIRECTORY is set as well."""

FileId = tuple[int, int]


def file_id(status: os.stat_result) -> FileId:
    """The device and inode, which together identify a file on this host."""
    return status.st_dev, status.st_ino


def open_as_owner(name: str, parent: int | None = None) -> int:
    """Open a directory to list it, although its mode keeps its owner out. The owner gets all rights, for good.

    Does not follow a symlink. Raises OSError if this process does not own the directory.
    """
    found = os.open(name, SEARCH | NO_FOLLOW, dir_fd=parent)
    try:
        # This descriptor cannot change the mode itself, and the name may lead elsewhere by now.
        os.chmod(f"/proc/self/fd/{found}", stat.S_IMODE(os.fstat(found).st_mode) | stat.S_IRWXU)
        return os.open(".", READ_DIRECTORY, dir_fd=found)
    finally:
        release(found)


def release(descriptor: int) -> None:
    """Close a descriptor and ignore errors, which matter only for a descriptor that was written to."""
    # Every operation calls this, and `suppress` would double its cost.
    try:
        if descriptor in LATER_CLOSED:
            LATER_CLOSED.pop(descriptor)(descriptor)
        else:
            os.close(descriptor)
    except OSError:
        pass


LATER_CLOSED: dict[int, Callable[[int], None]] = {}
"""Descriptors that may have to stay open, with the functions that take them over from `release`."""


def link_target(directory: int, name: str) -> str | None:
    """The target of the symlink `name`; None if it is no symlink or does not exist."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def open_directory_in(directory: int, name: str) -> int | None:
    """Open the directory `name` in an open directory; None if there is no directory of this name."""
    try:
        return os.open(name, SEARCH | NO_FOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno in LINK_ERRORS or error.errno == errno.ENOENT:
            return None
        raise


def may_change(directory: int) -> bool:
    """Whether entries of an open directory may be created and removed, as its permissions and file system show."""
    return os.access(".", os.W_OK, dir_fd=directory, effective_ids=_EFFECTIVE_IDS)


# --- errors ----------------------------------------------------------------------------------------------------------

NOT_REGULAR = "it is not a regular file"
OUTSIDE = "a link leads outside"
TOO_MANY_LINKS = "too many links"


def _invalid(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: InvalidPathError(path, reason)


def _as_refusal(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: PermissionDeniedError(path, reason)


def _as_failure(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: BackendError(path, reason)


_STORAGE_ERRORS: dict[str, Callable[[str], DeepFSError]] = {
    "ENOENT": NotFoundError,
    "EISDIR": IsDirectoryError,
    "ENOTDIR": NotDirectoryError,
    "EEXIST": AlreadyExistsError,
    "ENOTEMPTY": AlreadyExistsError,
    "EACCES": PermissionDeniedError,
    "EPERM": PermissionDeniedError,
    "EROFS": _as_refusal("the file system is read-only"),
    "ETXTBSY": _as_refusal("it is a program that runs"),
    "EBUSY": _as_refusal("the system uses it"),
    "ELOOP": _as_refusal(TOO_MANY_LINKS),
    "EMLINK": _as_refusal(TOO_MANY_LINKS),
    # Errors of opening a socket, or a device without a driver.
    "ENXIO": _as_refusal(NOT_REGULAR),
    "ENODEV": _as_refusal(NOT_REGULAR),
    "EOPNOTSUPP": _as_refusal(NOT_REGULAR),
    "ENAMETOOLONG": _invalid("a name in it, or the whole of it, is too long for the file system"),
    "EILSEQ": _invalid("the file system cannot hold this name"),
    "ENOSPC": _as_failure("No space is left on the disk"),
    "EDQUOT": _as_failure("The disk quota is used up"),
    "EFBIG": _as_failure("The file is too large for the file system"),
    "EMFILE": _as_failure("Too many files are open"),
    "ENFILE": _as_failure("Too many files are open"),
    "EIO": _as_failure("The disk failed to read or write"),
}
_BY_ERRNO = {getattr(errno, name): make for name, make in _STORAGE_ERRORS.items() if hasattr(errno, name)}


def storage_error(error: OSError | DeepFSError, path: str) -> DeepFSError:
    """The leaf error for `error`, about the virtual `path` and with no host path; a leaf error is returned as it is."""
    if isinstance(error, DeepFSError):
        return error
    make = _BY_ERRNO.get(error.errno or 0) or _as_failure(
        os.strerror(error.errno) if error.errno else "The disk failed"
    )
    return make(path)


def errno_of(error: OSError | DeepFSError) -> int:
    """The errno of a system error; 0 if it has none."""
    return (error.errno or 0) if isinstance(error, OSError) else 0


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_shortage(error: BaseException | None) -> bool:
    """Whether `error` reports a lack of descriptors or memory, which says nothing about the file."""
    if isinstance(error, DeepFSError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in _SHORTAGES


class StorageErrors:
    """A context manager that turns an OSError into the leaf error about `path`; leaf errors pass unchanged."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, DeepFSError):
            return
        if isinstance(error, OSError):
            raise storage_error(error, self._path) from error
        if isinstance(error, UnicodeEncodeError):
            raise InvalidPathError(self._path, "the file system cannot hold this name") from error


MAX_RACES = 100
"""The most attempts at an operation that concurrent changes can make fail."""


def attempts(path: str) -> Iterator[None]:
    """Yield once per attempt to change `path`; raise BackendError if concurrent changes made all attempts fail."""
    for _ in range(MAX_RACES):
        yield
    raise BackendError(path, "others create and delete it all the time")
