"""Files in the state of a LangGraph graph: they live as long as the thread, and are checkpointed with it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from deepfs._deprecated import warn_deprecated
from deepfs.backends._files_channel import FileConflicts, Files, FilesystemState
from deepfs.backends._langgraph import task_files
from deepfs.backends._records import RecordBackend
from deepfs.core.filemap import Change, DecodedFiles, FileTree
from deepfs.types import FileDataV2, FileFormat

__all__ = ["FileConflicts", "Files", "FilesystemState", "StateBackend"]


class StateBackend(RecordBackend):
    """Files in the `files` channel of the running graph, whose state mixes `FilesystemState` in.

    A task sees its own writes at once; other tasks see them after the superstep. Edits that parallel tasks make in
    disjoint places of one file are merged. Where two collide, one takes effect: the other caller gets `conflict` (or
    `already_exists`), or, where the tasks did not run in one process, the channel `file_conflicts` tells.

    Used outside a graph, every operation raises RuntimeError that says what to do. `file_format="v1"` writes the older
    form that holds text only. `runtime` is what older code passes; it is deprecated and not used.
    """

    never_waits = True

    def __init__(self, runtime: object = None, *, file_format: FileFormat = "v2", max_file_size_mb: int = 10) -> None:
        super().__init__(file_format=file_format, max_file_size_mb=max_file_size_mb)
        if runtime is not None:
            warn_deprecated("StateBackend(runtime) is deprecated: StateBackend() finds the runtime by itself")

    @asynccontextmanager
    async def _hold(self, *held: str) -> AsyncIterator[None]:
        # The tasks of a run share one lock; nothing waits while it is held.
        with task_files():
            yield

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        with task_files() as task:
            files = task.files
            return DecodedFiles({path: files[path] for path in wanted if path in files})

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        with task_files() as task:
            return DecodedFiles(task.files)

    async def _tree(self) -> FileTree:
        with task_files() as task:
            return FileTree(DecodedFiles(task.files), task.directories)

    async def _commit(self, changes: Sequence[Change]) -> None:
        with task_files() as task:
            task.commit(changes, self._file_format)

    def _files_update(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        return dict(self._records(changes))
