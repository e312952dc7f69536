"""Files in this process's memory: the reference backend, and the one to embed where there is no graph."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from deepfs.backends.flat import FlatBackend
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, Directories, FileTree
from deepfs.threads.locks import StepLock
from deepfs.types import FileDataV2

__all__ = ["MemoryBackend"]


class MemoryBackend(FlatBackend):
    """Files in memory, gone with the object. Safe to share between tasks, event loops and threads."""

    never_waits = True
    _commits_at_once = True

    def __init__(self, *, max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._files: dict[str, FileDataV2] = {}
        self._parents = Directories()
        self._lock = StepLock()

    async def astorage_place(self, path: str) -> StoragePlace:
        scope = ("memory", id(self._files))
        return flat_place(scope, paths.normalize(path), storage=scope, is_sole=True)

    @asynccontextmanager
    async def _hold(self, *held: str) -> AsyncIterator[None]:
        # Nothing waits while the lock is held, so one lock serves every path, and callers without an event loop.
        with self._lock.hold():
            yield

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self._files[path] for path in wanted if path in self._files}

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        return self._files.copy()

    async def _tree(self) -> FileTree:
        return FileTree(self._files, self._parents)

    async def _commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                self._files.pop(change.path, None)
            else:
                self._files[change.path] = change.after
        self._parents.apply(changes)
