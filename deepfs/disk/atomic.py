"""Atomic writes: content goes into a temporary file beside its destination, which is then put in place in one step.

A file that is mounted by itself, as containers do with single files, cannot be replaced by another one. It is written
in place.

A temporary file that was not put in place is removed. A process that is killed leaves its temporary files behind. Each
is locked while a process works on it, so abandoned ones can be recognised. They are removed at the first write of a
process in a directory, and then at most every ten minutes.
"""

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from deepfs.disk.file_locks import mark_in_use
from deepfs.disk.flushing import Steps, ToFlush
from deepfs.disk.os_calls import (
    NEW,
    NO_FOLLOW,
    READ,
    READ_DIRECTORY,
    is_temporary,
    release,
    temporary_name,
)
from deepfs.disk.reading import blocks
from deepfs.disk.removal import remove_tree
from deepfs.disk.resolve import Place
from deepfs.errors import PermissionDeniedError

__all__ = [
    "NEW_MODE",
    "PRIVATE",
    "Fill",
    "Sweeper",
    "TemporaryFile",
    "check_written",
    "copy_access",
    "create",
    "discard",
    "fill",
    "is_mounted",
    "link_into_place",
    "replace",
]

NEW_MODE = 0o666
"""The mode of a new file, before the umask is applied."""
PRIVATE = 0o600
"""The mode of a file until it gets that of the file which it replaces."""

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

# EINVAL: the group does not exist in the user namespace of this process.
_NO_SUCH_GROUP = frozenset({errno.EPERM, errno.EINVAL})

_ACL = "system.posix_acl_access"
_LABELS = frozenset({"security.selinux", "security.SMACK64"})
"""The labels of security modules, by which they decide who may use a file. A process may not always set them."""

_SWEEP_EVERY_S = 600.0
_STALE_AFTER_S = 60.0
_MAX_SWEPT_ENTRIES = 20_000
_MAX_REMEMBERED = 4096

Fill = Callable[[int], None]
"""Writes the content of a file to its descriptor."""


def fill(data: bytes) -> Fill:
    """Return a Fill that writes `data`."""

    def write(descriptor: int) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return write


class TemporaryFile:
    """A new, locked file in an open directory, for a `with` block; at its end it is removed unless it was renamed."""

    __slots__ = ("_is_renamed", "descriptor", "directory", "name")

    def __init__(self, directory: int, mode: int) -> None:
        self.directory: int = directory
        self.name: str = temporary_name()
        self._is_renamed = False
        try:
            self.descriptor: int = os.open(self.name, NEW, mode, dir_fd=directory)
        except BaseException:
            discard(directory, self.name)
            raise
        mark_in_use(self.descriptor)

    def __enter__(self) -> "TemporaryFile":
        return self

    def rename(self, place: Place) -> None:
        """Put the file at `place`, replacing what is there."""
        os.rename(self.name, place.name, src_dir_fd=self.directory, dst_dir_fd=place.directory)
        self._is_renamed = True

    def put_over(self, place: Place, old: int) -> None:
        """Put the file at `place`, where the file `old` is, open for writing; one that is mounted gets the content."""
        try:
            self.rename(place)
        except OSError:
            if not is_mounted(old, place):
                raise
            _overwrite(old, self.descriptor)

    def __exit__(self, *_: object) -> None:
        try:
            release(self.descriptor)
        finally:
            if not self._is_renamed:
                discard(self.directory, self.name)


def discard(directory: int, name: str) -> None:
    """Remove a temporary file if it still exists; retry once after an interrupt or an error, which may be transient."""
    done = False
    try:
        done = _unlinked(directory, name)
    finally:
        if not done:
            _unlinked(directory, name)


def _unlinked(directory: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def create(place: Place, write: Fill, *, mode: int = NEW_MODE, durable: bool) -> Steps[bool]:
    """Create a file at `place`. If something exists there already, change nothing and return False."""
    with TemporaryFile(place.directory, mode) as new:
        write(new.descriptor)
        if durable:
            yield ToFlush(new.descriptor)
        check_written(new.descriptor)
        if not link_into_place(place.directory, new.name, place):
            return False
    if durable:
        yield ToFlush(place.directory, is_directory=True)
    return True


def replace(place: Place, write: Fill, old: int, *, durable: bool) -> Steps[None]:
    """Replace the file at `place`, open for writing as `old`; those who may use it stay the same."""
    try:
        with TemporaryFile(place.directory, PRIVATE) as new:
            copy_access(place.path, old, new.descriptor)
            write(new.descriptor)
            if durable:
                yield ToFlush(new.descriptor)
            check_written(new.descriptor)
            new.rename(place)
    except (OSError, PermissionDeniedError):
        if not is_mounted(old, place):
            raise
    else:
        if durable:
            yield ToFlush(place.directory, is_directory=True)
        return
    # The content is made in memory first: if that fails, the file is as it was.
    content = os.memfd_create("deepfs")
    try:
        write(content)
        _overwrite(old, content)
    finally:
        release(content)
    if durable:
        yield ToFlush(old)


def is_mounted(file: int, place: Place) -> bool:
    """Whether the open file at `place` is mounted by itself, in a directory of another mount."""
    mounts = _mount_of(file), _mount_of(place.directory)
    return None not in mounts and mounts[0] != mounts[1]


def _mount_of(descriptor: int) -> str | None:
    """What identifies the mount that an open file is on; None if the system does not tell."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as facts:
            return next((line for line in facts if line.startswith("mnt_id:")), None)
    except OSError:
        return None


def _overwrite(file: int, content: int) -> None:
    """Give an open file the content of another one, in place: a reader may see a part of it, and a crash leave one.

    The room is taken first, so that a full disk changes nothing.
    """
    before, size = os.fstat(file), os.fstat(content).st_size
    if size > before.st_size:
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.ftruncate(file, before.st_size)
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    os.fchmod(file, stat.S_IMODE(before.st_mode) & ~_SET_IDS)
    os.lseek(content, 0, os.SEEK_SET)
    os.lseek(file, 0, os.SEEK_SET)
    for block in blocks(content):
        fill(block)(file)
    os.ftruncate(file, size)


def link_into_place(directory: int, name: str, place: Place) -> bool:
    """Hard-link the file `name` of `directory` to `place`; return False if something exists there already.

    The file also keeps its old name. On a file system without hard links it is renamed, and for an instant a reader may
    see an empty file at `place`.
    """
    try:
        os.link(name, place.name, src_dir_fd=directory, dst_dir_fd=place.directory, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _claim_and_rename(directory, name, place)
    return True


def _claim_and_rename(directory: int, name: str, place: Place) -> bool:
    try:
        release(os.open(place.name, NEW, 0o600, dir_fd=place.directory))
    except FileExistsError:
        return False
    try:
        os.rename(name, place.name, src_dir_fd=directory, dst_dir_fd=place.directory)
    except BaseException:
        discard(place.directory, place.name)
        raise
    return True


_SET_IDS = stat.S_ISUID | stat.S_ISGID


def copy_access(path: str, old: int, new: int) -> None:
    """Give a new, still private file what says who may use the old one, and the attributes that users gave it.

    That is the group, the mode without set-id bits, the access control list, the labels of security modules and the
    attributes `user.*`. The owner is that of the process. New content with set-id bits, or with capabilities, would be
    a program that runs with the rights of whoever owned the old one. If the group may not be given, its bits were meant
    for other users, so the new group gets no more than everybody.

    Raises PermissionDeniedError about `path` if something cannot be carried over.
    """
    # User attributes come first: the mode may forbid to set them.
    _copy_attributes(path, old, new)
    status, found = os.fstat(old), os.fstat(new)
    mode = stat.S_IMODE(status.st_mode) & ~_SET_IDS
    if found.st_gid != status.st_gid:
        try:
            os.fchown(new, -1, status.st_gid)
        except OSError as error:
            if error.errno not in _NO_SUCH_GROUP:
                raise
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(new, mode)


def _copy_attributes(path: str, old: int, new: int) -> None:
    if sys.platform != "linux":
        return
    wanted, found = _attributes(old), _attributes(new)
    if _ACL in found.keys() - wanted.keys():
        # What the directory gives to new files would let in others.
        os.removexattr(new, _ACL)
    for name, value in sorted(wanted.items(), reverse=True):
        if found.get(name) != value:
            try:
                os.setxattr(new, name, value)
            except OSError as error:
                if name not in _LABELS:
                    raise PermissionDeniedError(path, f"its attribute {name} cannot be kept") from error


def _attributes(descriptor: int) -> dict[str, bytes]:
    """The attributes of an open file that a change of its content keeps."""
    try:
        names = os.listxattr(descriptor)
        kept = [name for name in names if name.startswith(("user.", "system.")) or name in _LABELS]
        return {name: os.getxattr(descriptor, name) for name in kept}
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return {}


def check_written(descriptor: int) -> None:
    """Raise every pending write error now, before the file is put in place."""
    # Network file systems report a full disk when a descriptor of the file is closed; any of its descriptors will do.
    os.close(os.dup(descriptor))


class Sweeper:
    """Removes temporary files of killed processes, at the first write in a directory and every ten minutes at most."""

    def __init__(self) -> None:
        self._swept: dict[str, float] = {}
        """When each directory was swept, by its path."""

    def visit(self, place: Place) -> None:
        """Sweep the directory of `place` unless it was swept recently; failures are ignored."""
        path, now = "/".join(place.names[:-1]), time.monotonic()
        if now - self._swept.get(path, -_SWEEP_EVERY_S) < _SWEEP_EVERY_S:
            return
        if len(self._swept) >= _MAX_REMEMBERED:
            self._swept.clear()
        self._swept[path] = now
        with suppress(OSError):
            _sweep(place.directory)


def _sweep(directory: int) -> None:
    descriptor = os.open(".", READ_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, _MAX_SWEPT_ENTRIES) if is_temporary(entry.name)]
        for name in names:
            with suppress(OSError):
                _remove_if_stale(descriptor, name)
    finally:
        release(descriptor)


def _remove_if_stale(directory: int, name: str) -> None:
    """Remove a temporary file or directory that is over a minute old and that no process has locked."""
    standing = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not (stat.S_ISREG(standing.st_mode) or stat.S_ISDIR(standing.st_mode)):
        return  # No other kind is made here, and opening it may have effects.
    descriptor = os.open(name, READ | NO_FOLLOW, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if time.time() - status.st_ctime > _STALE_AFTER_S and mark_in_use(descriptor):
            remove_tree(directory, name)
    finally:
        release(descriptor)
