"""Writing and editing: a reader sees the old file or the new one, and a failure leaves the old one."""

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress

from deepfs.disk.atomic import (
    NEW_MODE,
    Sweeper,
    create,
    fill,
    put,
    replace,
    settle,
    sync_directory,
    take_over,
    temporary,
)
from deepfs.disk.file_locks import held
from deepfs.disk.os_errors import StorageErrors
from deepfs.disk.reading import check_regular, is_version, read_descriptor
from deepfs.disk.resolve import Place, Root
from deepfs.errors import BackendError, ConflictError, ExistsError, FileMissingError
from deepfs.text import paths
from deepfs.threads.deadline import Deadline

__all__ = ["Upload", "Writer"]

_MAX_RACES = 100


class Writer:
    """The changes of single files below a root."""

    def __init__(self, root: Root, sweeper: Sweeper, *, durable: bool) -> None:
        self._root = root
        self._sweeper = sweeper
        self._durable = durable

    def write(self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None) -> None:
        """Put `data` at `path`, making the directories above it."""
        for _ in range(_MAX_RACES):
            deadline.check_cancelled(path)
            try:
                if self._written(path, data, deadline, overwrite=overwrite, if_match=if_match):
                    return
            except FileMissingError as error:
                # Somebody deleted the file, or a directory above it, that was there a moment ago.
                if if_match is not None:
                    raise ConflictError(path) from error
        raise BackendError.about(path, "Error: Others create and delete ", " all the time")

    def _written(self, path: str, data: bytes, deadline: Deadline, *, overwrite: bool, if_match: str | None) -> bool:
        """One attempt to write; False where others put something else there between two steps."""
        with StorageErrors(path), self._root.locate_target(path, make=if_match is None) as place:
            self._sweeper.visit(place.directory)
            status = place.lstat()
            if status is None:
                if if_match is not None:
                    raise ConflictError(path)
                return create(place, fill(data), durable=self._durable)
            if stat.S_ISLNK(status.st_mode):
                return False
            check_regular(path, status)
            if not overwrite and if_match is None:
                raise ExistsError(path)
            self._replace(path, place, data, deadline, if_match)
            return True

    def _replace(self, path: str, place: Place, data: bytes, deadline: Deadline, if_match: str | None) -> None:
        with held(path, place, deadline) as descriptor:
            _check_version(path, descriptor, if_match, deadline)
            replace(place, fill(data), os.fstat(descriptor), durable=self._durable)

    def edit(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        deadline: Deadline,
        *,
        if_match: str | None,
        limit: int | None,
    ) -> None:
        """Replace the content of the file at `path` by what `change` makes of it; nobody else changes it meanwhile."""
        with (
            StorageErrors(path),
            self._root.locate(path) as place,
            held(path, place, deadline) as descriptor,
        ):
            self._sweeper.visit(place.directory)
            _check_version(path, descriptor, if_match, deadline)
            status = os.fstat(descriptor)
            data = change(read_descriptor(path, descriptor, status.st_size, limit))
            replace(place, fill(data), status, durable=self._durable)


def _check_version(path: str, descriptor: int, if_match: str | None, deadline: Deadline) -> None:
    if if_match is not None and not is_version(path, descriptor, if_match, deadline):
        raise ConflictError(path)


class Upload:
    """A file on its way to `path`, for one thread at a time; closing it drops it unless it was put in place."""

    def __init__(self, root: Root, path: str, sweeper: Sweeper, *, durable: bool) -> None:
        self._root = root
        self._path = path
        self._durable = durable
        self._stack = ExitStack()
        try:
            with StorageErrors(path):
                self._stage = self._stack.enter_context(_stage(root, path))
                sweeper.visit(self._stage.directory)
                self._descriptor, self._name = self._stack.enter_context(temporary(self._stage.directory, NEW_MODE))
        except BaseException:
            self._stack.close()
            raise

    def write(self, data: bytes) -> None:
        """Add `data`."""
        with StorageErrors(self._path):
            fill(data)(self._descriptor)

    def put(self, deadline: Deadline) -> None:
        """Have the file stand at its path, in place of the one that is there."""
        with StorageErrors(self._path):
            settle(self._descriptor, self._durable)
        for _ in range(_MAX_RACES):
            deadline.check_cancelled(self._path)
            try:
                with StorageErrors(self._path), self._root.locate_target(self._path) as place:
                    if self._is_put(place, deadline):
                        sync_directory(place.directory, self._durable)
                        return
            except FileMissingError:
                continue  # Somebody deleted the file that was there a moment ago.
        raise BackendError.about(self._path, "Error: Others create and delete ", " all the time")

    def _is_put(self, place: Place, deadline: Deadline) -> bool:
        """One attempt; False where others put something else there between two steps."""
        status = place.lstat()
        if status is None:
            return put(self._stage.directory, self._name, place)
        if stat.S_ISLNK(status.st_mode):
            return False
        check_regular(self._path, status)
        with held(self._path, place, deadline) as old:
            take_over(self._descriptor, os.fstat(old))
            os.rename(self._name, place.name, src_dir_fd=self._stage.directory, dst_dir_fd=place.directory)
        return True

    def close(self) -> None:
        """Remove what was not put in place."""
        with StorageErrors(self._path):
            self._stack.close()


def _stage(root: Root, path: str) -> Place:
    """A place in the nearest directory above `path` that exists, so that one given up leaves no directory behind."""
    for target in (path, *reversed(paths.ancestors(path))):
        with suppress(FileNotFoundError):
            return root.locate_target(target, make=False)
    return root.locate_target(path)
