"""System calls as the disk room makes them: flags, names of unfinished files, and what each errno means."""

import errno
import os
import secrets
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import TracebackType

from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)

__all__ = [
    "LINK_ERRORS",
    "MAX_RACES",
    "NEW",
    "NOT_REGULAR",
    "NO_FOLLOW",
    "OUTSIDE",
    "PREFIX",
    "READ",
    "READ_DIRECTORY",
    "SEARCH",
    "TOO_MANY_LINKS",
    "UPDATE",
    "FileId",
    "StorageErrors",
    "attempts",
    "errno_of",
    "file_id",
    "is_shortage",
    "is_temporary",
    "leaf",
    "link_target",
    "may_change",
    "open_directory_in",
    "open_unlinked",
    "release",
    "temporary_name",
]

# --- flags -----------------------------------------------------------------------------------------------------------

# Windows has none of these; the modules must still import there, though `Root` refuses to work.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
# Opening a FIFO or a device waits without O_NONBLOCK; on a regular file the flag does nothing.
_NEVER_WAIT: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

READ: int = os.O_RDONLY | _NEVER_WAIT
"""Read a file."""
UPDATE: int = os.O_RDWR | _NEVER_WAIT
"""Read a file that is about to be replaced, which must be one that may be written."""
NEW: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
"""Write a file that must not be there yet."""
READ_DIRECTORY: int = os.O_RDONLY | _DIRECTORY | _NEVER_WAIT
"""Look through a directory."""
SEARCH: int = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
"""Open what is in a directory; O_PATH asks for the permission that walking a path needs, and no other."""


# --- names of unfinished files ---------------------------------------------------------------------------------------

PREFIX = ".~deepfs-"
_LENGTH = len(PREFIX) + 16


def temporary_name() -> str:
    """A name that nothing else has."""
    return PREFIX + secrets.token_hex(8)


def is_temporary(name: str) -> bool:
    """Whether `name` is that of an unfinished file, perhaps left by a process that was killed."""
    return name.startswith(PREFIX) and len(name) == _LENGTH


# --- calls -----------------------------------------------------------------------------------------------------------

_OPENAT2 = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_HOW_BYTES = 24
_NOWHERE = -1  # Paths are then absolute.

_Call = Callable[[int, str, bytes], int | None]


def open_unlinked(path: str, flags: int, beneath: int | None = None) -> int | None:
    """Open the absolute `path` of the host where no name in it is a link.

    With `beneath` it is relative to that open directory and must not lead out. None where it cannot be opened like
    that, or this system cannot do it; opening name by name then tells why.
    """
    call = _system_call()
    if call is None:
        return None
    if beneath is None:
        return call(_NOWHERE, path, _how(flags, _NO_SYMLINKS))
    return call(beneath, path, _how(flags, _NO_SYMLINKS | _BENEATH))


@cache
def _how(flags: int, resolve: int) -> bytes:
    return struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)


@cache
def _system_call() -> _Call | None:
    """The system call by directory, path and how; None where there is none."""
    if sys.platform != "linux":
        return None
    # Imported late: it takes ten milliseconds.
    import ctypes

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    syscall.restype = ctypes.c_long

    def call(directory: int, path: str, how: bytes) -> int | None:
        descriptor: int = syscall(_OPENAT2, directory, os.fsencode(path), how, _HOW_BYTES)
        return None if descriptor < 0 else descriptor

    is_known = call(_NOWHERE, ".", _how(os.O_RDONLY, 0)) is None and ctypes.get_errno() == errno.EBADF
    return call if is_known else None


_EFFECTIVE_IDS = os.access in os.supports_effective_ids

LINK_ERRORS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
"""What systems answer when a link is opened with O_NOFOLLOW; ENOTDIR where OSEARCH was asked for as well."""

FileId = tuple[int, int]


def file_id(status: os.stat_result) -> FileId:
    """The device and inode, which tell a file from every other on this host."""
    return status.st_dev, status.st_ino


def release(descriptor: int) -> None:
    """Close a descriptor through which nothing was written, so that no error of closing it matters."""
    # Every operation comes here, and `suppress` would double what it costs.
    try:  # noqa: SIM105
        os.close(descriptor)
    except OSError:
        pass


def link_target(directory: int, name: str) -> str | None:
    """What the link `name` says; None where it is no link."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def open_directory_in(directory: int, name: str) -> int | None:
    """Open a directory in an open one; None where there is none of this name."""
    try:
        return os.open(name, SEARCH | NO_FOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno in LINK_ERRORS or error.errno == errno.ENOENT:
            return None
        raise


def may_change(directory: int) -> bool:
    """Whether entries of an open directory may be made and removed, as far as its mode and file system tell."""
    return os.access(".", os.W_OK, dir_fd=directory, effective_ids=_EFFECTIVE_IDS)


# --- errors ----------------------------------------------------------------------------------------------------------

NOT_REGULAR = "it is not a regular file"
OUTSIDE = "a link leads outside"
TOO_MANY_LINKS = "too many links"


def _invalid(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: InvalidPathError(path, reason)


def _refused(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: PermissionDeniedError(path, reason)


def _failed(reason: str) -> Callable[[str], DeepFSError]:
    return lambda path: BackendError(path, reason)


_LEAVES: dict[str, Callable[[str], DeepFSError]] = {
    "ENOENT": NotFoundError,
    "EISDIR": IsDirectoryError,
    "ENOTDIR": NotDirectoryError,
    "EEXIST": AlreadyExistsError,
    "ENOTEMPTY": AlreadyExistsError,
    "EACCES": PermissionDeniedError,
    "EPERM": PermissionDeniedError,
    "EROFS": _refused("the file system is read-only"),
    "ETXTBSY": _refused("it is a program that runs"),
    "EBUSY": _refused("the system uses it"),
    "ELOOP": _refused(TOO_MANY_LINKS),
    "EMLINK": _refused(TOO_MANY_LINKS),
    # What opening a socket, or a device without a driver, says.
    "ENXIO": _refused(NOT_REGULAR),
    "ENODEV": _refused(NOT_REGULAR),
    "EOPNOTSUPP": _refused(NOT_REGULAR),
    "ENAMETOOLONG": _invalid("a name in it, or the whole of it, is too long for the file system"),
    "EILSEQ": _invalid("the file system cannot hold this name"),
    "ENOSPC": _failed("No space is left on the disk"),
    "EDQUOT": _failed("The disk quota is used up"),
    "EFBIG": _failed("The file is too large for the file system"),
    "EMFILE": _failed("Too many files are open"),
    "ENFILE": _failed("Too many files are open"),
    "EIO": _failed("The disk failed to read or write"),
}
_BY_ERRNO = {getattr(errno, name): make for name, make in _LEAVES.items() if hasattr(errno, name)}


def leaf(error: OSError | DeepFSError, path: str) -> DeepFSError:
    """The leaf that tells `error`, about the virtual `path`; nothing of a host path is in it. A leaf tells itself."""
    if isinstance(error, DeepFSError):
        return error
    make = _BY_ERRNO.get(error.errno or 0) or _failed(os.strerror(error.errno) if error.errno else "The disk failed")
    return make(path)


def errno_of(error: OSError | DeepFSError) -> int:
    """The number of a system error; 0 if there is none."""
    return (error.errno or 0) if isinstance(error, OSError) else 0


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_shortage(error: BaseException | None) -> bool:
    """Whether `error` says that the system had too little of something, which tells nothing of the file."""
    if isinstance(error, DeepFSError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in _SHORTAGES


class StorageErrors:
    """A context in which an OSError becomes the leaf about `path`; leaves pass as they are."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, DeepFSError):
            return
        if isinstance(error, OSError):
            raise leaf(error, self._path) from error
        if isinstance(error, UnicodeEncodeError):
            raise InvalidPathError(self._path, "the file system cannot hold this name") from error


MAX_RACES = 100
"""Attempts at what others may foil again and again."""


def attempts(path: str) -> Iterator[None]:
    """Each round is one attempt at a change of `path`; BackendError where others foiled all of them."""
    for _ in range(MAX_RACES):
        yield
    raise BackendError(path, "others create and delete it all the time")
