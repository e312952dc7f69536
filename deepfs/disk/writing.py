"""Writing and editing: a reader sees the old file or the new one, and after a failure the old file is still there.

Content goes into a temporary file beside its destination, which is then put in place in one step. A file that is
mounted by itself, as containers do with single files, cannot be replaced by another one. It is written in place.

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
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice

from deepfs.disk.file_locks import LockedFile, lock_file, lock_if_unused
from deepfs.disk.os_calls import (
    LINK_ERRORS,
    NEW,
    NO_FOLLOW,
    READ,
    READ_DIRECTORY,
    StorageErrors,
    attempts,
    is_temporary,
    release,
    sync,
    sync_directory,
    temporary_name,
    write_all,
)
from deepfs.disk.reading import blocks, check_opened, check_regular, is_version, read_descriptor
from deepfs.disk.resolve import Place, Root
from deepfs.disk.trees import remove_tree
from deepfs.errors import AlreadyExistsError, ConflictError, NotFoundError, PermissionDeniedError
from deepfs.text import paths
from deepfs.text.entries import EntryChange
from deepfs.threads.deadline import Deadline

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

_SET_IDS = stat.S_ISUID | stat.S_ISGID
_PERMISSIONS = 0o777

Fill = Callable[[int], None]
"""Writes the content of a file to its descriptor."""


# --- leftovers -------------------------------------------------------------------------------------------------------


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
        if time.time() - status.st_ctime > _STALE_AFTER_S and lock_if_unused(descriptor):
            remove_tree(directory, name)
    finally:
        release(descriptor)


# --- files and uploads -----------------------------------------------------------------------------------------------


class Writer:
    """Writes and edits single files below a root; `new_mode` is the mode of new ones, before the umask is applied."""

    def __init__(self, root: Root, sweeper: Sweeper, *, durable: bool, new_mode: int = NEW_MODE) -> None:
        self.root: Root = root
        self.sweeper: Sweeper = sweeper
        self.durable: bool = durable
        self.new_mode: int = new_mode

    def write(self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None) -> None:
        """Put `data` at `path`, making the directories above it."""
        for _ in attempts(path):
            deadline.check_cancelled(path)
            try:
                if self._try_write(path, data, deadline, overwrite=overwrite, if_match=if_match):
                    return
            except NotFoundError as error:
                # The file, or a parent directory, was deleted between two steps.
                if if_match is not None:
                    raise ConflictError(path) from error

    def _try_write(self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None) -> bool:
        """Try once to write; return False if the entry at `path` changed between two steps."""
        with StorageErrors(path), self.root.locate_target(path, make=if_match is None) as place:
            self.sweeper.visit(place)
            if place.found is None:
                if if_match is not None:
                    raise ConflictError(path)
                return create(place, partial(write_all, data), mode=self.new_mode, durable=self.durable)
            check_regular(path, place.found)
            if not overwrite and if_match is None:
                raise AlreadyExistsError(path)
            old = _lock(path, place, deadline)
            if old is None:
                return False
            with old:
                _check_version(path, old.descriptor, if_match, deadline)
                replace(place, partial(write_all, data), old.descriptor, durable=self.durable)
            return True

    def edit(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        deadline: Deadline,
        *,
        if_match: str | None,
        limit: int | None,
    ) -> None:
        """Replace the content of the file at `path` by `change(content)`, with the file locked."""
        with (
            StorageErrors(path),
            self.root.locate(path) as place,
            lock_file(path, place, deadline) as old,
        ):
            self.sweeper.visit(place)
            _check_version(path, old.descriptor, if_match, deadline)
            data = change(read_descriptor(path, old.descriptor, old.status.st_size, limit))
            replace(place, partial(write_all, data), old.descriptor, durable=self.durable)


def _lock(path: str, place: Place, deadline: Deadline) -> LockedFile | None:
    """Lock the regular file at `place`; None if it has become a symlink since the path was resolved."""
    try:
        return lock_file(path, place, deadline)
    except OSError as error:
        if error.errno not in LINK_ERRORS:
            raise
        return None


def _check_version(path: str, descriptor: int, if_match: str | None, deadline: Deadline) -> None:
    if if_match is not None and not is_version(path, descriptor, if_match, deadline):
        raise ConflictError(path)


class Upload:
    """A new file for `path`, written in parts by one thread at a time; `close` removes it unless `put` succeeded."""

    def __init__(self, writer: Writer, path: str) -> None:
        self._root = writer.root
        self._path = path
        self._durable = writer.durable
        self._stack = ExitStack()
        try:
            with StorageErrors(path):
                self._stage = self._stack.enter_context(_stage(writer.root, path))
                writer.sweeper.visit(self._stage)
                self._replaces = self._stage.found
                mode = writer.new_mode if self._replaces is None else PRIVATE
                self._new = self._stack.enter_context(TemporaryFile(self._stage.directory, mode))
        except BaseException:
            self._stack.close()
            raise

    def write(self, data: bytes) -> None:
        """Append `data`."""
        with StorageErrors(self._path):
            write_all(data, self._new.descriptor)

    def put(self, deadline: Deadline) -> None:
        """Put the file at its path, replacing a file that is there."""
        with StorageErrors(self._path):
            sync(self._new.descriptor, self._durable)
            check_written(self._new.descriptor)
        for _ in attempts(self._path):
            deadline.check_cancelled(self._path)
            try:
                with StorageErrors(self._path), self._root.locate_target(self._path) as place:
                    if self._try_put(place, deadline):
                        sync_directory(place.directory, self._durable)
                        return
            except NotFoundError:
                continue  # The existing file was deleted between two steps.

    def _try_put(self, place: Place, deadline: Deadline) -> bool:
        """Try once to put the file in place; return False if the entry at `place` changed between two steps."""
        if place.found is None:
            if self._replaces is not None:  # It was deleted meanwhile.
                os.fchmod(self._new.descriptor, stat.S_IMODE(self._replaces.st_mode) & _PERMISSIONS)
            return link_into_place(self._stage.directory, self._new.name, place)
        check_regular(self._path, place.found)
        old = _lock(self._path, place, deadline)
        if old is None:
            return False
        with old:
            copy_access(self._path, old.descriptor, self._new.descriptor)
            self._new.put_over(place, old.descriptor)
        return True

    def close(self) -> None:
        """Remove the file unless it was put in place."""
        with StorageErrors(self._path):
            self._stack.close()


def _stage(root: Root, path: str) -> Place:
    """A place in the nearest existing directory above `path`, so that an abandoned upload leaves no directories."""
    for target in (path, *reversed(paths.ancestors(path))):
        with suppress(FileNotFoundError), ExitStack() as undo:
            # The access check is asked about the whole path, and not about the directories above it.
            place = root.plain.locate_target(target, make=False)
            undo.callback(release, place.directory)
            root.check(paths.join(place.path, paths.relative(path, target)), "target", path)
            undo.pop_all()
            return place
    return root.locate_target(path)


# --- temporary files -------------------------------------------------------------------------------------------------


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
        lock_if_unused(self.descriptor)

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
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
        if not isinstance(error, OSError):
            raise


def create(place: Place, write: Fill, *, mode: int = NEW_MODE, durable: bool) -> bool:
    """Create a file at `place`. If something exists there already, change nothing and return False."""
    with TemporaryFile(place.directory, mode) as new:
        write(new.descriptor)
        sync(new.descriptor, durable)
        check_written(new.descriptor)
        if not link_into_place(place.directory, new.name, place):
            return False
    sync_directory(place.directory, durable)
    return True


def replace(place: Place, write: Fill, old: int, *, durable: bool) -> None:
    """Replace the file at `place`, open for writing as `old`; those who may use it stay the same."""
    try:
        with TemporaryFile(place.directory, PRIVATE) as new:
            copy_access(place.path, old, new.descriptor)
            write(new.descriptor)
            sync(new.descriptor, durable)
            check_written(new.descriptor)
            new.rename(place)
    except (OSError, PermissionDeniedError):
        if not is_mounted(old, place):
            raise
    else:
        sync_directory(place.directory, durable)
        return
    # The content is made in memory first: if that fails, the file is as it was.
    content = os.memfd_create("deepfs")
    try:
        write(content)
        _overwrite(old, content)
    finally:
        release(content)
    sync(old, durable)


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
        write_all(block, file)
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


# --- directories and modes -------------------------------------------------------------------------------------------


def change_entry(root: Root, change: EntryChange, *, durable: bool) -> None:
    """Make the change. Raises AlreadyExistsError if a directory to make exists, or one to remove is not empty."""
    if change.change == "make_directory":
        _make_directory(root, change.path, change.mode, durable)
    elif change.change == "remove_directory":
        _remove_directory(root, change.path, durable)
    else:
        _set_mode(root, change.path, change.mode)


def _make_directory(root: Root, path: str, mode: int | None, durable: bool) -> None:
    with StorageErrors(path), root.locate_target(path) as place:
        # The owner must be able to add entries to it.
        wanted = _PERMISSIONS if mode is None else mode & _PERMISSIONS | stat.S_IRWXU
        os.mkdir(place.name, wanted, dir_fd=place.directory)
        if mode is not None:
            _change_mode(place, wanted)
        sync_directory(place.directory, durable)


def _remove_directory(root: Root, path: str, durable: bool) -> None:
    with StorageErrors(path), root.locate(path, follow=False, role="target") as place:
        if root.is_root_or_above(place.names):
            raise PermissionDeniedError(path, "the root cannot be deleted")
        os.rmdir(place.name, dir_fd=place.directory)
        sync_directory(place.directory, durable)


def _set_mode(root: Root, path: str, mode: int | None) -> None:
    if mode is not None:
        with StorageErrors(path), root.locate(path, follow=False, role="target") as place:
            _change_mode(place, mode)


def _change_mode(place: Place, mode: int) -> None:
    status = place.lstat()
    if status is not None and not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        check_regular(place.path, status)
    descriptor = place.open(READ)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            check_opened(place.path, descriptor, status)
        os.fchmod(descriptor, mode & _PERMISSIONS)
    finally:
        release(descriptor)
