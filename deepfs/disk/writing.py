"""Writing and editing: a reader sees the old file or the new one, and after a failure the old file is still there."""

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress

from deepfs.disk.atomic import (
    NEW_MODE,
    PRIVATE,
    Sweeper,
    TemporaryFile,
    check_written,
    copy_access,
    create,
    fill,
    link_into_place,
    replace,
)
from deepfs.disk.file_locks import LockedFile, locked_file
from deepfs.disk.flushing import Steps, sync, sync_directory
from deepfs.disk.os_calls import LINK_ERRORS, READ, StorageErrors, attempts, release
from deepfs.disk.reading import check_opened, check_regular, is_version, read_descriptor
from deepfs.disk.resolve import Place, Root
from deepfs.errors import AlreadyExistsError, ConflictError, NotFoundError, PermissionDeniedError
from deepfs.text import paths
from deepfs.text.entries import EntryChange
from deepfs.threads.deadline import Deadline

__all__ = ["Upload", "Writer", "change_entry"]


class Writer:
    """Writes and edits single files below a root; `new_mode` is the mode of new ones, before the umask is applied."""

    def __init__(self, root: Root, sweeper: Sweeper, *, durable: bool, new_mode: int = NEW_MODE) -> None:
        self._root = root
        self._sweeper = sweeper
        self._durable = durable
        self._new_mode = new_mode

    def write(
        self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None
    ) -> Steps[None]:
        """Put `data` at `path`, making the directories above it."""
        for _ in attempts(path):
            deadline.check_cancelled(path)
            try:
                if (yield from self._written(path, data, deadline, overwrite=overwrite, if_match=if_match)):
                    return
            except NotFoundError as error:
                # The file, or a parent directory, was deleted between two steps.
                if if_match is not None:
                    raise ConflictError(path) from error

    def _written(
        self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None
    ) -> Steps[bool]:
        """Try once to write; return False if the entry at `path` changed between two steps."""
        with StorageErrors(path), self._root.locate_target(path, make=if_match is None) as place:
            self._sweeper.visit(place)
            if place.found is None:
                if if_match is not None:
                    raise ConflictError(path)
                return (yield from create(place, fill(data), mode=self._new_mode, durable=self._durable))
            check_regular(path, place.found)
            if not overwrite and if_match is None:
                raise AlreadyExistsError(path)
            return (yield from self._replaced(path, place, data, deadline, if_match))

    def _replaced(self, path: str, place: Place, data: bytes, deadline: Deadline, if_match: str | None) -> Steps[bool]:
        old = _lock(path, place, deadline)
        if old is None:
            return False
        with old:
            _check_version(path, old.descriptor, if_match, deadline)
            yield from replace(place, fill(data), old.descriptor, durable=self._durable)
        return True

    def edit(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        deadline: Deadline,
        *,
        if_match: str | None,
        limit: int | None,
    ) -> Steps[None]:
        """Replace the content of the file at `path` by `change(content)`, with the file locked."""
        with (
            StorageErrors(path),
            self._root.locate(path) as place,
            locked_file(path, place, deadline) as old,
        ):
            self._sweeper.visit(place)
            _check_version(path, old.descriptor, if_match, deadline)
            data = change(read_descriptor(path, old.descriptor, old.status.st_size, limit))
            yield from replace(place, fill(data), old.descriptor, durable=self._durable)


def _lock(path: str, place: Place, deadline: Deadline) -> LockedFile | None:
    """Lock the regular file at `place`; None if it has become a symlink since the path was resolved."""
    try:
        return locked_file(path, place, deadline)
    except OSError as error:
        if error.errno not in LINK_ERRORS:
            raise
        return None


def _check_version(path: str, descriptor: int, if_match: str | None, deadline: Deadline) -> None:
    if if_match is not None and not is_version(path, descriptor, if_match, deadline):
        raise ConflictError(path)


class Upload:
    """A new file for `path`, written in parts by one thread at a time; `close` removes it unless `put` succeeded."""

    def __init__(self, root: Root, path: str, sweeper: Sweeper, *, durable: bool, new_mode: int = NEW_MODE) -> None:
        self._root = root
        self._path = path
        self._durable = durable
        self._stack = ExitStack()
        try:
            with StorageErrors(path):
                self._stage = self._stack.enter_context(_stage(root, path))
                sweeper.visit(self._stage)
                self._replaces = self._stage.found
                mode = new_mode if self._replaces is None else PRIVATE
                self._new = self._stack.enter_context(TemporaryFile(self._stage.directory, mode))
        except BaseException:
            self._stack.close()
            raise

    def write(self, data: bytes) -> None:
        """Append `data`."""
        with StorageErrors(self._path):
            fill(data)(self._new.descriptor)

    def put(self, deadline: Deadline) -> None:
        """Put the file at its path, replacing a file that is there."""
        with StorageErrors(self._path):
            if self._durable:
                sync(self._new.descriptor)
            check_written(self._new.descriptor)
        for _ in attempts(self._path):
            deadline.check_cancelled(self._path)
            try:
                with StorageErrors(self._path), self._root.locate_target(self._path) as place:
                    if self._is_put(place, deadline):
                        sync_directory(place.directory, self._durable)
                        return
            except NotFoundError:
                continue  # The existing file was deleted between two steps.

    def _is_put(self, place: Place, deadline: Deadline) -> bool:
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
            # The judge is asked about the whole path, and not about the directories above it.
            place = root.plain.locate_target(target, make=False)
            undo.callback(release, place.directory)
            root.check(paths.join(place.path, paths.relative(path, target)), "target", path)
            undo.pop_all()
            return place
    return root.locate_target(path)


# --- directories and modes -------------------------------------------------------------------------------------------

_PERMISSIONS = 0o777


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
