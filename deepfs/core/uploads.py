"""A batch of uploads over flat storage, planned as if one came after another."""

from collections.abc import Callable, Collection, Mapping

from deepfs.core import filedata, filemap
from deepfs.core.filemap import Change, Directories
from deepfs.errors import DeepFSError, DirectoryError
from deepfs.types import FileDataV2

__all__ = ["Uploads"]


class Uploads:
    """The changes that a batch makes. `found` are the files that were at its paths and above them before."""

    def __init__(
        self,
        found: Mapping[str, FileDataV2],
        directories: Collection[str],
        check_storable: Callable[[str, FileDataV2], None],
    ) -> None:
        self._found = found
        self._after = {path: filemap.readable(found, path) for path in found}
        self._directories = directories
        self._planned = Directories()
        self._check_storable = check_storable
        self._changes: dict[str, Change] = {}

    @property
    def changes(self) -> list[Change]:
        """What to store: one change for each path."""
        return list(self._changes.values())

    def add(self, path: str, content: bytes) -> DeepFSError | None:
        """Plan one upload; returns why it cannot be."""
        try:
            self._plan(path, content)
        except DeepFSError as error:
            return error
        return None

    def _plan(self, path: str, content: bytes) -> None:
        filemap.check_parents(path, self._after)
        if path in self._directories or path in self._planned:
            raise DirectoryError(path)
        earlier = self._after.get(path)
        after = filedata.new_file(content, created_at=earlier.created_at if earlier else None)
        self._check_storable(path, after)
        self._after[path] = after
        self._changes[path] = filemap.change_of(path, self._found, after)
        self._planned.add(path)
