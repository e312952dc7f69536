"""Files in the memory of this process: the reference backend, also for programs without a graph."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from deepfs.backends.flat import StorageBackend
from deepfs.backends.protocol import Capabilities
from deepfs.storage.runners import InlineStorage, Storage
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, Directories, FileStat, FileTree, stat_of
from deepfs.text.records import FileContent, decode_files, encode_file
from deepfs.threads.locks import StepLock
from deepfs.types import FileDataV2

__all__ = ["MemoryBackend"]


class _MemoryFiles(InlineStorage):
    def __init__(self, files: dict[str, FileDataV2]) -> None:
        self.files = files
        self.parents = Directories(files)

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
        files: The files to begin with, by path, such as `result["files"]` of a LangGraph run: records or their dicts,
            in either format, which keep their timestamps, or plain texts and bytes. They are copied.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        TypeError: `files` is no mapping of paths to files. The error names the path.
        ValueError: A path is invalid, given twice or also that of a directory, or a file is malformed, which the error
            names; or the size is not positive.
    """

    capabilities: Capabilities = Capabilities(watches=True)
    is_synchronous = True
    _reads_before_change = True
    _is_transactional = True

    def __init__(self, *, files: Mapping[str, FileContent] | None = None, max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._memory = _MemoryFiles({} if files is None else decode_files(files))
        self._files: dict[str, FileDataV2] = self._memory.files
        self._parents: Directories = self._memory.parents
        self._lock = StepLock()

    def to_files(self) -> dict[str, dict[str, Any]]:
        """Return all files as the state of a graph has them: `graph.invoke({"files": backend.to_files()})`.

        Returns:
            A dict of the content, its encoding and the timestamps for each path, as plain data that JSON can hold.
        """
        return {path: encode_file(file) for path, file in sorted(self._files.copy().items())}

    def __repr__(self) -> str:
        files = "1 file" if len(self._files) == 1 else f"{len(self._files):,} files"
        return f"<{type(self).__name__} with {files} at {id(self):#x}>"

    def _storage(self) -> Storage:
        return self._memory

    async def astorage_place(self, path: str) -> StoragePlace:
        scope = ("memory", id(self._files))
        return flat_place(scope, paths.normalize(path), storage=scope, is_sole=True)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        # Nothing waits while the lock is held, so one lock serves every path, and callers without an event loop.
        return self._lock.hold()
