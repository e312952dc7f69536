"""Files in the memory of this process: the reference backend, also for programs without a graph."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from deepfs.backends.flat import StorageBackend
from deepfs.backends.flat_storage import InlineStorage, Storage
from deepfs.backends.protocol import Capabilities
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, Directories, FileStat, FileTree, stat_of
from deepfs.threads.locks import StepLock
from deepfs.types import FileDataV2

__all__ = ["MemoryBackend"]


class _MemoryFiles(InlineStorage):
    def __init__(self) -> None:
        self.files: dict[str, FileDataV2] = {}
        self.parents = Directories()

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: stat_of(self.files[path]) for path in paths if path in self.files}

    def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self.files[path] for path in paths if path in self.files}

    def list(self, prefix: str, limit: int | None = None) -> FileTree:
        return FileTree(self.files, self.parents)

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                self.files.pop(change.path, None)
            else:
                self.files[change.path] = change.after
        self.parents.apply(changes)


class MemoryBackend(StorageBackend):
    """Files in memory, gone with the object. Safe to share between tasks, event loops and threads.

    Args:
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
    """

    capabilities: Capabilities = Capabilities(watches=True)
    is_synchronous = True
    _reads_before_change = True

    def __init__(self, *, max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._memory = _MemoryFiles()
        self._files: dict[str, FileDataV2] = self._memory.files
        self._parents: Directories = self._memory.parents
        self._lock = StepLock()

    def _storage(self) -> Storage:
        return self._memory

    async def astorage_place(self, path: str) -> StoragePlace:
        scope = ("memory", id(self._files))
        return flat_place(scope, paths.normalize(path), storage=scope, is_sole=True)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        # Nothing waits while the lock is held, so one lock serves every path, and callers without an event loop.
        return self._lock.hold()
