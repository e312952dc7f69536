"""What an operating system error means in the contract: the one place where an errno becomes a leaf error."""

import errno
import os
from collections.abc import Callable
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

__all__ = ["NOT_REGULAR", "OUTSIDE", "TOO_MANY_LINKS", "StorageErrors", "errno_of", "is_shortage", "leaf"]

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
