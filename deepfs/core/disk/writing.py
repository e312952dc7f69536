"""Writing and editing: a reader sees the old file or the new one, and a failure leaves the old one."""

import os
import stat
from collections.abc import Callable

from deepfs.core.disk.conditions import StorageErrors
from deepfs.core.disk.files import check_regular, is_version, read_descriptor
from deepfs.core.disk.flocks import held
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Place, Root
from deepfs.core.disk.temporaries import Sweeper, create, fill, replace
from deepfs.errors import BackendError, ConflictError, ExistsError, FileMissingError

__all__ = ["Writer"]

_MAX_RACES = 100


class Writer:
    """The changes of single files below a root."""

    def __init__(self, root: Root, sweeper: Sweeper, *, durable: bool) -> None:
        self._root = root
        self._sweeper = sweeper
        self._durable = durable

    def write(self, path: str, data: bytes, patience: Patience, *, overwrite: bool, if_match: str | None) -> None:
        """Put `data` at `path`, making the directories above it."""
        for _ in range(_MAX_RACES):
            patience.check_wanted(path)
            try:
                if self._written(path, data, patience, overwrite=overwrite, if_match=if_match):
                    return
            except FileMissingError as error:
                # Somebody deleted the file, or a directory above it, that was there a moment ago.
                if if_match is not None:
                    raise ConflictError(path) from error
        raise BackendError.about(path, "Error: Others create and delete ", " all the time")

    def _written(self, path: str, data: bytes, patience: Patience, *, overwrite: bool, if_match: str | None) -> bool:
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
            self._replace(path, place, data, patience, if_match)
            return True

    def _replace(self, path: str, place: Place, data: bytes, patience: Patience, if_match: str | None) -> None:
        with held(path, place, patience) as descriptor:
            _check_version(path, descriptor, if_match, patience)
            replace(place, fill(data), os.fstat(descriptor), durable=self._durable)

    def edit(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        patience: Patience,
        *,
        if_match: str | None,
        limit: int | None,
    ) -> None:
        """Replace the content of the file at `path` by what `change` makes of it; nobody else changes it meanwhile."""
        with (
            StorageErrors(path),
            self._root.locate(path) as place,
            held(path, place, patience) as descriptor,
        ):
            self._sweeper.visit(place.directory)
            _check_version(path, descriptor, if_match, patience)
            status = os.fstat(descriptor)
            data = change(read_descriptor(path, descriptor, status.st_size, limit))
            replace(place, fill(data), status, durable=self._durable)


def _check_version(path: str, descriptor: int, if_match: str | None, patience: Patience) -> None:
    if if_match is not None and not is_version(path, descriptor, if_match, patience):
        raise ConflictError(path)
