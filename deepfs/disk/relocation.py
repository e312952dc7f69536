"""Moving and copying: the destination appears complete, and only then is the source removed."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from msgspec import Struct

from deepfs.disk.file_locks import LockHeldError, lock_places
from deepfs.disk.os_calls import (
    READ,
    UPDATE,
    StorageErrors,
    attempts,
    errno_of,
    file_id,
    is_temporary,
    link_target,
    may_change,
    release,
    storage_error,
    sync_directory,
    temporary_name,
)
from deepfs.disk.reading import check_opened, check_regular
from deepfs.disk.resolve import Place, Root
from deepfs.disk.trees import ContentId, Stayed, Unlink, check_tree, content_id, fill_from, remove_tree, tree_copy
from deepfs.disk.writing import Sweeper, create, discard, is_mounted, link_into_place, replace
from deepfs.errors import (
    ConflictError,
    DeepFSError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    error_about,
)
from deepfs.text import paths
from deepfs.text.entries import Kind, check_target
from deepfs.threads.deadline import Deadline

_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class MoveProgress:
    """How far a move to another file system has come. Repeated after LockHeldError, it goes on from there."""

    def __init__(self) -> None:
        self.copied: set[ContentId] = set()
        """The state of each file and symlink that was copied, from before it was read."""
        self.is_copied: bool = False
        """Whether all was copied, and only the source is left to be removed."""


class _CopyTask(Struct, frozen=True):
    """Both ends of a move or copy, as they were found: an existing source, and a destination that may exist."""

    src: str
    source: Place
    status: os.stat_result
    dst: str
    target: Place
    existing: os.stat_result | None
    leads_to: str
    """The real path of what the source leads to, if it is a symlink that leads somewhere; else that of the source."""

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    def is_in_one_directory(self) -> bool:
        return file_id(os.fstat(self.source.directory)) == file_id(os.fstat(self.target.directory))

    def is_one_entry(self) -> bool:
        """Whether both ends are one entry: through symlinks, a directory mounted twice, or case-insensitive names."""
        if self.leads_to == self.target.path:
            return True
        if self.existing is None or file_id(self.existing) != file_id(self.status):
            return False
        # Two hard links of one file are two entries.
        is_same_name = self.source.name == self.target.name and self.is_in_one_directory()
        return self.is_dir or self.status.st_nlink == 1 or is_same_name

    def rename(self) -> None:
        source, target = self.source, self.target
        os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


class Relocator:
    """Moves and copies below a root."""

    def __init__(self, root: Root, sweeper: Sweeper, *, durable: bool) -> None:
        self._root = root
        self._sweeper = sweeper
        self._durable = durable

    def move(self, src: str, dst: str, deadline: Deadline, *, overwrite: bool, progress: MoveProgress) -> None:
        """Move the entry at `src` to `dst`; a symlink is moved itself, not its target."""
        if progress.is_copied:  # Removing the directory stopped where others held a lock.
            with suppress(NotFoundError), StorageErrors(src), self._root.locate(src, follow=False) as source:
                self._remove_copied(src, dst, source, progress.copied, deadline, is_dir=True)
                sync_directory(source.directory, self._durable)
            return
        for _ in attempts(dst):
            with self._locate(src, dst) as (source, target):
                look = partial(self._look, src, source, dst, target, overwrite=overwrite, moving=True)
                task = look()
                self._sweeper.visit(target)
                if task.is_one_entry():
                    # On a file system that ignores case, the new name may differ only in that.
                    is_new_name = source.name != target.name and source.name.casefold() == target.name.casefold()
                    if is_new_name and task.is_in_one_directory():
                        task.rename()
                    return
                if self._root.is_root_or_above(source.names):
                    raise PermissionDeniedError(src, "the root cannot be moved")
                with lock_places(src, [source, target], deadline):
                    task = look()
                    if task.is_one_entry() or self._try_move(task, progress, deadline):
                        sync_directory(source.directory, self._durable)
                        return

    def copy(self, src: str, dst: str, deadline: Deadline, *, overwrite: bool) -> None:
        """Copy the entry at `src` to `dst`; a symlink is copied itself, not its target."""
        for _ in attempts(dst):
            with self._locate(src, dst) as (source, target):
                task = self._look(src, source, dst, target, overwrite=overwrite, moving=False)
                self._sweeper.visit(target)
                if task.is_one_entry():
                    return
                with lock_places(dst, [target], deadline):
                    if self._try_copy(task, deadline, set()):
                        return

    @contextmanager
    def _locate(self, src: str, dst: str) -> Iterator[tuple[Place, Place]]:
        """Locate both ends; an OSError in the body is reported as one about `dst`."""
        with StorageErrors(src), self._root.locate(src, follow=False) as source:
            if source.lstat() is None:
                raise NotFoundError(src)
            if paths.is_beneath(dst, src):
                raise InvalidPathError(dst, "it lies inside {other}", src)
            with StorageErrors(dst), self._root.locate_target(dst) as target:
                yield source, target

    def _look(self, src: str, source: Place, dst: str, target: Place, *, overwrite: bool, moving: bool) -> _CopyTask:
        """Look at both ends. Raises unless the source is there and may be moved or copied to the destination."""
        status = source.lstat()
        if status is None:
            raise NotFoundError(src)
        leads_to = (self._root.real_path(src) if stat.S_ISLNK(status.st_mode) else None) or source.path
        task = _CopyTask(src, source, status, dst, target, target.lstat(), leads_to)
        standing = task.existing
        if task.is_one_entry():
            if standing is None:
                # A dangling symlink, moved or copied to the path of its own missing target, would point to itself.
                raise NotFoundError(src)
            if moving:
                return task
        elif task.is_dir and file_id(status) in map(file_id, self._root.directories(target.names[:-1])):
            raise InvalidPathError(dst, "it lies inside {other}", src)
        if standing is not None:
            kind: Kind = "directory" if stat.S_ISDIR(standing.st_mode) else "file"
            check_target(dst, kind, from_file=not task.is_dir, overwrite=overwrite)
            check_regular(dst, standing)
        return task

    def _check_beneath(self, task: _CopyTask, deadline: Deadline) -> None:
        if task.is_dir:
            check_tree(self._root, task.source, task.src, deadline, task.target, task.dst)

    def _try_move(self, task: _CopyTask, progress: MoveProgress, deadline: Deadline) -> bool:
        """Move, with the locks held; return False if something appeared at the destination meanwhile."""
        self._check_beneath(task, deadline)
        try:
            moved = _try_rename(task)
        except OSError as error:
            if error.errno in _REFUSALS and not may_change(task.source.directory):
                raise storage_error(error, task.src) from error
            if error.errno != errno.EXDEV:
                raise
            _check_removable(task)
        else:
            sync_directory(task.target.directory, self._durable and moved)
            return moved
        progress.copied.clear()
        progress.is_copied = self._try_copy(task, deadline, progress.copied)
        if not progress.is_copied:
            return False
        self._remove_copied(task.src, task.dst, task.source, progress.copied, deadline, is_dir=task.is_dir)
        return True

    def _remove_copied(
        self, src: str, dst: str, source: Place, copied: set[ContentId], deadline: Deadline, *, is_dir: bool
    ) -> None:
        """Remove the source, except files that were written after they were copied; `copied` has their former state.

        Raises LockHeldError if only locks of others keep some of it.
        """
        held: list[str] = []

        def unlink(directory: int, name: str) -> None:
            if not is_temporary(name) and content_id(os.lstat(name, dir_fd=directory)) not in copied:
                raise OSError(errno.ESTALE, "others wrote it")
            os.unlink(name, dir_fd=directory)

        def unlink_locked(directory: int, name: str) -> None:
            try:
                with lock_places(src, [Place(self._root, directory, [name], [])], deadline):
                    unlink(directory, name)
            except LockHeldError as error:
                held.append(name)
                raise OSError(errno.EAGAIN, "others use it") from error

        # If the source is a single file, its lock is held already.
        unlink_entry: Unlink = unlink_locked if is_dir else unlink
        stayed = remove_tree(source.directory, source.name, src, is_dir=is_dir, deadline=deadline, unlink=unlink_entry)
        if held:
            raise LockHeldError(has_changed=True)
        if stayed:
            raise _partly_moved(dst, stayed)

    def _try_copy(self, task: _CopyTask, deadline: Deadline, copied: set[ContentId]) -> bool:
        """Copy, with the lock held, and add the files to `copied`; return False if an end changed meanwhile."""
        if stat.S_ISLNK(task.status.st_mode):
            copied.add(content_id(task.status))
            return self._try_copy_link(task)
        if not task.is_dir:
            check_regular(task.src, task.status)
        with StorageErrors(task.src):
            source = task.source.open(READ)
        try:
            status = os.fstat(source)
            if stat.S_ISDIR(status.st_mode):
                self._check_beneath(task, deadline)
                directory = task.target.directory
                with tree_copy(task.src, source, directory, deadline, copied, durable=self._durable) as name:
                    os.rename(name, task.target.name, src_dir_fd=directory, dst_dir_fd=directory)
                sync_directory(directory, self._durable)
                return True
            check_opened(task.src, source, status)
            copied.add(content_id(status))
            write = fill_from(task.src, source, deadline)
            if task.existing is None:
                mode = stat.S_IMODE(status.st_mode) & 0o777
                return create(task.target, write, mode=mode, durable=self._durable)
            old = task.target.open(UPDATE)
            try:
                replace(task.target, write, old, durable=self._durable)
            finally:
                release(old)
            return True
        finally:
            release(source)

    def _try_copy_link(self, task: _CopyTask) -> bool:
        link, target = link_target(task.source.directory, task.source.name), task.target
        if link is None:
            return False
        name = temporary_name()
        os.symlink(link, name, dir_fd=target.directory)
        try:
            if task.existing is None and not link_into_place(target.directory, name, target):
                return False
            if task.existing is not None:
                _check_writable(target)
                os.rename(name, target.name, src_dir_fd=target.directory, dst_dir_fd=target.directory)
        finally:
            discard(target.directory, name)
        sync_directory(target.directory, self._durable)
        return True


def _partly_moved(dst: str, stayed: Stayed) -> DeepFSError:
    """The error that names what is still at the source, although the destination is complete."""
    first, reason = stayed[0]
    others = f" and {len(stayed) - 1:,} more" if len(stayed) > 1 else ""
    number = errno_of(reason)
    if number == errno.ESTALE:
        what = f"it{others} {'stay' if others else 'stays'}; what was copied is in '{{other}}'"
        return ConflictError(first, what, dst)
    why = os.strerror(number) if number else "others use it"
    what = f"it{others} could not be deleted ({why}); all of it is in '{{other}}' as well"
    return error_about(storage_error(reason, first).code, first, what, other=dst)


def _check_writable(place: Place) -> None:
    """Raise OSError if the file at `place` may not be written, although its directory may."""
    release(place.open(UPDATE))


def _check_removable(task: _CopyTask) -> None:
    """Raise before a move copies a file that it could not remove afterwards, since it is mounted by itself."""
    if not stat.S_ISREG(task.status.st_mode):
        return
    with StorageErrors(task.src):
        source = task.source.open(READ)
        try:
            if is_mounted(source, task.source):
                raise OSError(errno.EBUSY, "it is mounted")
        finally:
            release(source)


def _try_rename(task: _CopyTask) -> bool:
    """Rename the source to the destination; return False if something appeared there meanwhile."""
    source, target = task.source, task.target
    if not task.is_dir and task.existing is None:
        if not link_into_place(source.directory, source.name, target):
            return False
        try:
            os.unlink(source.name, dir_fd=source.directory)
        except FileNotFoundError:
            pass
        except BaseException:
            discard(target.directory, target.name)
            raise
        return True
    if task.existing is not None:
        _check_writable(target)
        if file_id(task.existing) == file_id(task.status) and task.status.st_nlink > 1:
            # Both are hard links of one file: `rename` would do nothing and leave both.
            os.unlink(source.name, dir_fd=source.directory)
            return True
    task.rename()
    return True
