"""A file that is written bit by bit, out of sight until it is complete."""

import os
import stat
from contextlib import ExitStack, suppress

from deepfs.core import paths
from deepfs.core.disk.conditions import StorageErrors
from deepfs.core.disk.files import check_regular
from deepfs.core.disk.flocks import held
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Place, Root
from deepfs.core.disk.temporaries import NEW_MODE, Sweeper, fill, put, settle, sync_directory, take_over, temporary
from deepfs.errors import BackendError, FileMissingError

__all__ = ["Upload"]

_MAX_RACES = 100


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

    def put(self, patience: Patience) -> None:
        """Have the file stand at its path, in place of the one that is there."""
        with StorageErrors(self._path):
            settle(self._descriptor, self._durable)
        for _ in range(_MAX_RACES):
            patience.check_wanted(self._path)
            try:
                with StorageErrors(self._path), self._root.locate_target(self._path) as place:
                    if self._is_put(place, patience):
                        sync_directory(place.directory, self._durable)
                        return
            except FileMissingError:
                continue  # Somebody deleted the file that was there a moment ago.
        raise BackendError.about(self._path, "Error: Others create and delete ", " all the time")

    def _is_put(self, place: Place, patience: Patience) -> bool:
        """One attempt; False where others put something else there between two steps."""
        status = place.lstat()
        if status is None:
            return put(self._stage.directory, self._name, place)
        if stat.S_ISLNK(status.st_mode):
            return False
        check_regular(self._path, status)
        with held(self._path, place, patience) as old:
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
