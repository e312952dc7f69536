"""The flags with which files and directories are opened; those that a system lacks are left out."""

import errno
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from types import TracebackType

from deepfs.disk.os_errors import OUTSIDE, TOO_MANY_LINKS, is_shortage
from deepfs.errors import (
    DeepFSError,
    InvalidPathError,
    NotDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)

__all__ = [
    "NEW",
    "NO_FOLLOW",
    "PREFIX",
    "READ",
    "READ_DIRECTORY",
    "SEARCH",
    "UPDATE",
    "Place",
    "Root",
    "is_temporary",
    "link_target",
    "may_change",
    "open_unlinked",
    "release",
    "temporary_name",
]

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


PREFIX = ".~deepfs-"
_LENGTH = len(PREFIX) + 16


def temporary_name() -> str:
    """A name that nothing else has."""
    return PREFIX + secrets.token_hex(8)


def is_temporary(name: str) -> bool:
    """Whether `name` is one that an unfinished write, or one that was killed, has left."""
    return name.startswith(PREFIX) and len(name) == _LENGTH


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


_SUPPORTED = os.name == "posix"

_EFFECTIVE_IDS = os.access in os.supports_effective_ids

_MAX_LINKS = 40
_MAX_RACES = 100
# What systems answer when a link is opened with O_NOFOLLOW; ENOTDIR where OSEARCH was asked for as well.
_PERHAPS_A_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


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


def _directory_in(directory: int, name: str) -> int | None:
    """Open a directory in an open one; None where there is none of this name."""
    try:
        return os.open(name, SEARCH | NO_FOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno in _PERHAPS_A_LINK or error.errno == errno.ENOENT:
            return None
        raise


def may_change(directory: int) -> bool:
    """Whether entries of an open directory may be made and removed, as far as its mode and file system tell."""
    return os.access(".", os.W_OK, dir_fd=directory, effective_ids=_EFFECTIVE_IDS)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name and name != "."]


class Place:
    """A name in an open directory: where an entry is, or could be put. The root is the name `.` in itself.

    A context manager that closes the directory and, where the body raises, takes away the directories that were made
    on the way.
    """

    __slots__ = ("_made", "_root", "directory", "name", "names")

    def __init__(self, root: "Root", directory: int, names: Sequence[str], made: list[list[str]]) -> None:
        self._root = root
        self._made = made
        self.directory: int = directory
        self.names: list[str] = list(names)
        self.name: str = names[-1] if names else "."

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        release(self.directory)
        if error is not None:
            self._root.unmake(self._made)

    @property
    def path(self) -> str:
        """The virtual path that leads here without any link."""
        return "/" + "/".join(self.names)

    def lstat(self) -> os.stat_result | None:
        """What stands here, itself where it is a link; None where nothing does."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int) -> int:
        """Open what stands here; never through a link."""
        return os.open(self.name, flags | NO_FOLLOW, dir_fd=self.directory)


class Root:
    """A directory of the host, below which paths are resolved; unconfined it is `/`, and links lead anywhere.

    Creating one touches no disk. The directory is opened anew for every operation: it may be a link, be replaced, or
    not exist yet.
    """

    def __init__(self, path: str, *, confined: bool = True, follow_links: bool = True) -> None:
        self._base = path
        self._given = path if confined else "/"
        self._confined = confined
        self._follow_links = follow_links

    @cached_property
    def host_path(self) -> str:
        """The absolute path of the directory on the host; a relative one is taken from the directory of the process."""
        return os.path.abspath(self._given)

    def must_stay(self, names: list[str]) -> bool:
        """Whether the directory that was given would go with what these names lead to."""
        if self._confined:
            return not names
        ways = map(_names, (os.path.abspath(self._base), os.path.realpath(self._base)))
        return any(way[: len(names)] == names for way in ways)

    @cached_property
    def _is_linked(self) -> bool:
        """Whether links lead to the directory when it is first used, which decides how it is best opened."""
        return os.path.realpath(self.host_path) != self.host_path

    def open(self, path: str, flags: int) -> int:
        """Open what `path` leads to, through links that are allowed."""
        try:
            return self._open_plain(path, flags)
        except OSError as error:
            if error.errno not in _PERHAPS_A_LINK:
                raise
        with self.locate(path) as place:
            return place.open(flags)

    def _open_plain(self, path: str, flags: int) -> int:
        """Open `path` where no name in it is a link; the common case, without the machinery of the others."""
        if not self._confined and self._follow_links:
            return os.open(path, flags)
        if "/.." in path or PREFIX in path:
            raise OSError(errno.ELOOP, "not plain")
        if not self._is_linked and (descriptor := open_unlinked(self.host_path + path, flags)) is not None:
            return descriptor
        directory = self.enter(make=False)
        try:
            if self._is_linked and (descriptor := open_unlinked(path[1:] or ".", flags, directory)) is not None:
                return descriptor
            *above, name = path[1:].split("/")
            for each in above:
                child = os.open(each, SEARCH | NO_FOLLOW, dir_fd=directory)
                directory, left = child, directory
                os.close(left)
            return os.open(name or ".", flags | NO_FOLLOW, dir_fd=directory)
        finally:
            os.close(directory)

    def locate(self, path: str, *, follow: bool = True) -> Place:
        """The place of `path`, whose directory must exist; with `follow`, of what a link there leads to.

        Raises PermissionDeniedError where a link leads outside, NotFoundError where a file stands in the way.
        """
        try:
            return _Resolution(self, path, make=False).run(follow=follow)
        except NotDirectoryError as error:
            raise NotFoundError(path) from error

    def locate_target(self, path: str, *, make: bool = True) -> Place:
        """The place where something is to be put; directories above it that are missing are made, if so wanted.

        Raises NotDirectoryError about the file that stands in the way, PermissionDeniedError where a link leads
        outside.
        """
        resolution = _Resolution(self, path, make=make)
        try:
            return resolution.run(follow=True)
        except BaseException:
            self.unmake(resolution.made)
            raise

    def real_path(self, path: str) -> str | None:
        """The virtual path, without links, of what `path` leads to, or would lead to once it is made.

        None where it leads outside, into a circle of links, or by `..` out of a directory that does not exist. Raises
        OSError where the system has too few descriptors to tell.
        """
        try:
            names = _Resolution(self, path, make=False).names()
        except (OSError, DeepFSError) as error:
            if is_shortage(error):
                raise
            return None
        return None if ".." in names else "/" + "/".join(names)

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to, through links that are allowed."""
        for _ in range(_MAX_RACES):
            with self.locate(path) as place:
                status = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
            # What was no link a moment ago may be one now; its own status would tell how long its target is.
            if not stat.S_ISLNK(status.st_mode):
                return status
        raise PermissionDeniedError(path, TOO_MANY_LINKS)

    def enter(self, *, make: bool) -> int:
        """Open the directory itself."""
        if not _SUPPORTED:
            raise NotSupportedError(None, "Files on disk need a system with POSIX directory descriptors")
        try:
            return os.open(self.host_path, SEARCH)
        except FileNotFoundError:
            if not make:
                raise
        os.makedirs(self.host_path, exist_ok=True)
        return os.open(self.host_path, SEARCH)

    def directories(self, names: Sequence[str]) -> list[os.stat_result]:
        """The status of the root and of each directory that `names` lead through, as far as they are directories."""
        directory, found = self.enter(make=False), []
        try:
            found.append(os.fstat(directory))
            for name in names:
                child = _directory_in(directory, name)
                if child is None:
                    break
                directory, left = child, directory
                release(left)
                found.append(os.fstat(directory))
        finally:
            release(directory)
        return found

    def directories_above(self) -> tuple[list[os.stat_result], list[str]]:
        """The status of this directory and of those of the host above it, outwards; the names of missing ones."""
        path, missing = self.host_path, list[str]()
        while not os.path.isdir(path):
            path, name = os.path.split(path)
            missing.insert(0, name)
        directory, found = os.open(path, SEARCH), list[os.stat_result]()
        try:
            while not found or not os.path.samestat(found[-1], os.fstat(directory)):
                found.append(os.fstat(directory))
                directory, left = os.open("..", SEARCH, dir_fd=directory), directory
                release(left)
        except PermissionError:
            return found, missing
        finally:
            release(directory)
        return found, missing

    def unmake(self, made: list[list[str]]) -> None:
        """Remove directories that an operation made and that are still empty."""
        for names in reversed(made):
            with suppress(OSError, DeepFSError), self.locate("/" + "/".join(names), follow=False) as place:
                os.rmdir(place.name, dir_fd=place.directory)
        made.clear()

    def through_link(self, path: str, above: list[str], target: str) -> list[str]:
        """The names that `target`, read from a link in the directory `above`, stands for."""
        if not self._follow_links:
            raise PermissionDeniedError(path, "links are not followed")
        if not target.startswith("/"):
            return [*above, *_names(target)]
        names = _names(target)
        for base in (self.host_path, os.path.realpath(self.host_path)):
            prefix = _names(base)
            if names[: len(prefix)] == prefix:
                return names[len(prefix) :]
        raise PermissionDeniedError(path, OUTSIDE)

    def above(self, path: str, names: list[str], index: int) -> list[str]:
        """`names` without the run of `..` at `index` and the names that it undoes."""
        end = index
        while end < len(names) and names[end] == "..":
            end += 1
        keep = index - (end - index)
        if keep < 0 and self._confined:
            raise PermissionDeniedError(path, OUTSIDE)
        return names[: max(keep, 0)] + names[end:]


class _Resolution:
    """One walk from a root to a place, begun anew at the root after every link and every `..`."""

    __slots__ = ("_make", "_path", "_root", "made")

    def __init__(self, root: Root, path: str, *, make: bool) -> None:
        self._root = root
        self._path = path
        self._make = make
        self.made: list[list[str]] = []

    def run(self, *, follow: bool) -> Place:
        names = _names(self._path)
        if any(map(is_temporary, names)):
            raise InvalidPathError(self._path, "the name is reserved")
        for _ in range(2 * _MAX_LINKS):
            found = self._descend(names, follow)
            if isinstance(found, Place):
                return found
            names = found
        raise PermissionDeniedError(self._path, TOO_MANY_LINKS)

    def names(self) -> list[str]:
        """The names that lead to the place without links; those from the first missing one on are as written."""
        names = _names(self._path)
        for _ in range(2 * _MAX_LINKS):
            try:
                found = self._descend(names, follow=True)
            except (FileNotFoundError, NotDirectoryError):
                return names
            if isinstance(found, Place):
                release(found.directory)
                return found.names
            names = found
        raise PermissionDeniedError(self._path, TOO_MANY_LINKS)

    def _descend(self, names: list[str], follow: bool) -> Place | list[str]:
        """The place of the last name, or, as soon as a link or `..` comes, the names that lead on from the root."""
        directory = self._root.enter(make=self._make)
        try:
            for index, name in enumerate(names):
                if name == "..":
                    return self._root.above(self._path, names, index)
                if index == len(names) - 1:
                    break
                child = self._enter(directory, names, index)
                if child is None:
                    return self._through(directory, names, index)
                directory, left = child, directory
                release(left)
            if follow and names and (target := link_target(directory, names[-1])) is not None:
                return self._root.through_link(self._path, names[:-1], target)
            place = Place(self._root, directory, names, self.made)
            directory = -1
            return place
        finally:
            if directory >= 0:
                release(directory)

    def _enter(self, directory: int, names: list[str], index: int) -> int | None:
        """Open a directory on the way, making it where that is wanted; None where something else is there."""
        for _ in range(_MAX_RACES):
            try:
                return os.open(names[index], SEARCH | NO_FOLLOW, dir_fd=directory)
            except OSError as error:
                if error.errno in _PERHAPS_A_LINK:
                    return None
                if error.errno != errno.ENOENT or not self._make:
                    raise
            with suppress(FileExistsError):
                os.mkdir(names[index], dir_fd=directory)
                self.made.append(names[: index + 1])
        raise NotFoundError(self._path)

    def _through(self, directory: int, names: list[str], index: int) -> list[str]:
        target = link_target(directory, names[index])
        if target is None:
            raise NotDirectoryError("/" + "/".join(names[: index + 1]))
        return self._root.through_link(self._path, names[:index], target) + names[index + 1 :]
