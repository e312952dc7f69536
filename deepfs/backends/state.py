"""Files in the state of a LangGraph graph: they live as long as the thread, and are checkpointed with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from deepfs._deprecated import warn_deprecated
from deepfs._langgraph.channel import FileConflicts, Files, FilesystemState
from deepfs._langgraph.task_files import TaskFiles, task_files
from deepfs.backends.flat import RecordStorageBackend, records_of
from deepfs.backends.watching import run_and_report
from deepfs.storage.runners import InlineStorage, Plan
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, DecodedFiles, FileStat, FileTree, stats_of
from deepfs.types import FileFormat

__all__ = ["FileConflicts", "Files", "FilesystemState", "StateBackend"]

T = TypeVar("T")


class _StateFiles(InlineStorage):
    """The files of the running task, for one operation: it calls no primitive after it has suspended."""

    def __init__(self, file_format: FileFormat) -> None:
        self._format = file_format
        self.found: TaskFiles = task_files()

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return stats_of(self.get(paths))

    def get(self, paths: Sequence[str]) -> DecodedFiles:
        with self.found as task:
            files = task.files
            return DecodedFiles({path: files[path] for path in paths if path in files})

    def list(self, prefix: str, limit: int | None = None) -> FileTree:
        with self.found as task:
            files = {} if limit is not None else {**task.files}
            return FileTree(DecodedFiles(files), task.directories)

    def apply(self, changes: Sequence[Change]) -> dict[str, Any]:
        with self.found as task:
            task.commit(changes, self._format)
        return dict(records_of(changes, self._format))


class StateBackend(RecordStorageBackend):
    """Files in the `files` channel of the running graph, whose state mixes `FilesystemState` in.

    A task sees its own writes at once; other tasks see them after the superstep. Edits that parallel tasks make in
    different places of one file are merged. If two edits conflict, one takes effect: the other caller gets `conflict`
    (or `already_exists`), or, if the tasks did not run in one process, the channel `file_conflicts` reports it.

    Used outside a graph, every operation raises OutsideGraphError, a RuntimeError that says what to do.

    Args:
        runtime: Passed by older code; deprecated and not used.
        file_format: `"v2"`, or `"v1"` for the older form that holds text only. Both are read.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ValueError: For another format, and a size that is not positive.
    """

    is_synchronous = True
    _reads_before_change = True
    _is_transactional = True
    _is_by_thread = True
    _shown = ("file_format=_file_format",)

    def __init__(self, runtime: object = None, *, file_format: FileFormat = "v2", max_file_size_mb: int = 10) -> None:
        super().__init__(file_format=file_format, max_file_size_mb=max_file_size_mb)
        if runtime is not None:
            warn_deprecated("StateBackend(runtime) is deprecated: StateBackend() finds the runtime by itself")

    async def _attempt(self, plan: Callable[[], Plan[T]], *held: str) -> T:
        storage = self._storage()
        with storage.found:  # Locked against the other tasks of the run. Nothing waits meanwhile.
            return await run_and_report(storage, plan(), self._scope)

    async def astorage_place(self, path: str) -> StoragePlace:
        # Two places are compared within one task, so both are in the state of this task.
        return flat_place("state", paths.normalize(path), storage="state", is_sole=True)

    def _storage(self) -> _StateFiles:
        return _StateFiles(self._file_format)
