"""The channels of graph state that hold files; imported when first used, because it imports LangGraph.

The reducers decide by the operations in the writes. A write without an operation, such as the files that a node or a
subgraph returns, does not say which files it is based on. The channel knows these files, since it sees the beginning
and the end of a superstep, and compares such a write with them. LangGraph rebuilds a state with the reducer alone: if
that would lead to other files, the channel makes LangGraph save all files.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from typing import Annotated, Any, Final, Self, TypeAlias, cast
from weakref import ref

from langgraph.channels.delta import DeltaChannel
from langgraph.types import Overwrite

# As in the states of LangGraph and LangChain: a TypedDict of `typing` cannot be combined with one of this module.
from typing_extensions import TypedDict

from deepfs._langgraph.private import FILES, outer_task
from deepfs._langgraph.reducers import (
    Superstep,
    conflicts_of,
    fold,
    fold_conflicts,
    is_header,
    operation_in,
    removals_in,
    removals_of,
)
from deepfs._langgraph.task_files import ProvisionalWrite, writers
from deepfs.types import FileDataV1, FileDataV2

_SNAPSHOT: Final = 50
_OVERWRITE: Final = "__overwrite__"
_REPLACED: Final = "All files were replaced in the same step."


class _SavedChannel(DeltaChannel[Any]):
    """A channel that can make LangGraph save its whole value, also before the regular number of updates is reached."""

    def __init__(self, reducer: Any, typ: Any = None, *, snapshot_frequency: int = _SNAPSHOT) -> None:
        self._must_save = self._is_saved = self._is_copy = False
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    @property
    def snapshot_frequency(self) -> int:
        """The number of updates after which LangGraph saves the value; read just before it saves a checkpoint."""
        self._is_saved = self._must_save
        return 0 if self._must_save else self._frequency

    @snapshot_frequency.setter
    def snapshot_frequency(self, frequency: int) -> None:
        self._frequency = frequency

    def _save(self) -> None:
        """Have the whole value saved with the next checkpoint."""
        self._must_save, self._is_saved = True, False

    def _begin(self) -> None:
        """Prepare for an update: a value that has been saved meanwhile need not be saved again."""
        if self._is_saved:
            self._must_save = self._is_saved = False

    def copy(self) -> Self:
        """A copy for a task to read from. Nothing of it is saved or reported."""
        copied = type(self)(self.reducer, self.typ, snapshot_frequency=self._frequency)
        copied.key, copied._is_copy = self.key, True
        if self.is_available():
            copied.value = copy(self.value)
        return copied


# --- files -----------------------------------------------------------------------------------------------------------


class FilesChannel(_SavedChannel):
    """Files by path. Writes of parallel tasks are merged; conflicts between them go to the channel of conflicts."""

    def __init__(self, reducer: Any = fold, typ: Any = dict, *, snapshot_frequency: int = _SNAPSHOT) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)
        self._run = id(self)
        self._removed: dict[str, None] = {}
        self._reported_header = ""
        """The header with the removals that were last reported to the task that runs this graph."""
        self._is_nested = self._next_get_has_note = False

    @property
    def snapshot_frequency(self) -> int:
        """As in the base class, but a nested graph that removed files saves all files with a note of the removals."""
        frequency = super().snapshot_frequency
        self._next_get_has_note = self._is_nested and bool(self._removed)
        return 0 if self._next_get_has_note else frequency

    @snapshot_frequency.setter
    def snapshot_frequency(self, frequency: int) -> None:
        self._frequency = frequency

    def get(self) -> Any:
        """The files. After `snapshot_frequency`, LangGraph calls this to save them: then the note may be included."""
        files = super().get()
        if not self._next_get_has_note:
            if self._removed:
                self._report_removed()
            return files
        self._next_get_has_note = False
        return {**files, removals_of(files, sorted(self._removed)): None}

    def from_checkpoint(self, checkpoint: Any) -> Self:
        channel = super().from_checkpoint(checkpoint)
        for paths in removals_in(channel.value).values():
            channel._removed.update(dict.fromkeys(paths))
        if channel._removed:
            channel.value = {path: data for path, data in channel.value.items() if not is_header(path)}
        return channel

    def copy(self) -> Self:
        copied = super().copy()
        copied._run = self._run
        return copied

    def replay_writes(self, writes: Sequence[Any]) -> None:
        super().replay_writes(writes)
        paths = (path for *_, write in writes if isinstance(write, Mapping) for path in write if write[path] is None)
        self._note_removed(path for path in paths if isinstance(path, str) and path.startswith("/"))

    def update(self, values: Sequence[Any]) -> bool:
        if not values:
            self._report_removed()
            return False
        self._begin()
        before = self.value if self.is_available() else {}
        if any(_replaces(value) for value in values):
            self._replace(values)
        elif len(values) > 1 and not all(not value or operation_in(value) for value in values):
            self._merge(before, values)
        else:
            self.value = fold(before, values)
            self._keep_plain(values)
        self._report_removed(before)
        return True

    def _merge(self, before: Mapping[str, Any], values: Sequence[Any]) -> None:
        """Apply the writes of one superstep."""
        tasks = writers(self._run)
        operations = (operation_in(value) for value in values if value)
        step = Superstep(before, next((operation.step for operation in operations if operation), None))
        for value in values:
            step.apply(value or {}, tasks.get(id(value)))
        self.value = fold(before, values)
        if self.value != step.files:
            self.value = dict(step.files)
            self._save()
        self._keep_plain(values)
        self._report(step.lost)

    def _keep_plain(self, values: Sequence[Any]) -> None:
        """Save the value if records of deepfs were written, so that other readers find plain dicts."""
        if any(isinstance(data, FileDataV1 | FileDataV2) for value in values if value for data in value.values()):
            self._save()

    def _replace(self, values: Sequence[Any]) -> None:
        """Apply writes of which one replaces all files: the operations of other tasks take no effect."""
        super().update(values)
        self.value: dict[str, Any] = fold({}, [self.value])
        self._save()
        [index] = [index for index, value in enumerate(values) if _replaces(value)]
        owner = writers(self._run).get(id(values[index]))
        earlier, later = (
            [operation_in(value or ()) for value in part] for part in (values[:index], values[index + 1 :])
        )
        lost = [operation for operation in earlier if operation is not None and operation.task != owner]
        lost += [operation for operation in later if operation is not None]
        self._report([each for operation in lost for each in conflicts_of(operation, _REPLACED)])

    def _report(self, lost: list[dict[str, Any]]) -> None:
        if lost and not self._is_copy:
            _unreported.set((ref(self), [*_take_unreported(), *lost]))

    # --- reports to the outer graph, a task of which runs this graph ---

    def _note_removed(self, paths: Iterable[str]) -> None:
        self._removed = {path: None for path in (*self._removed, *paths) if path not in self.value}

    def _report_removed(self, before: Mapping[str, Any] | None = None) -> None:
        """Report the removed files to the task that runs this graph, if any: the remaining files do not show them."""
        outer = None if self._is_copy else outer_task()
        if outer is None or outer[0] is self:
            return
        self._is_nested = True
        if before is not None:
            self._note_removed(before.keys() - self.value.keys())
        channel, writes = outer
        if self._removed and isinstance(channel, FilesChannel):
            header = removals_of(self.value, sorted(self._removed))
            if header != self._reported_header:
                self._reported_header = header
                writes.append(cast("Any", ProvisionalWrite(FILES, {header: None}, writes)))


def _replaces(value: Any) -> bool:
    """Whether a write replaces the value of the channel, in any of LangGraph's forms of such a write."""
    if isinstance(value, Mapping):
        return value.keys() == {_OVERWRITE} or (value.get("type") == _OVERWRITE and "value" in value)
    return isinstance(value, Overwrite)


# --- conflicts -------------------------------------------------------------------------------------------------------

_unreported: "ContextVar[tuple[ref[FilesChannel], list[dict[str, Any]]] | None]" = ContextVar("untold", default=None)
"""The conflicts that the files channel found and the conflicts channel will take: LangGraph updates both together."""


def _take_unreported() -> list[dict[str, Any]]:
    """Return the conflicts that were not reported yet, which then count as reported."""
    unreported = _unreported.get()
    if unreported is None:
        return []
    _unreported.set(None)
    channel, lost = unreported
    return lost if channel() is not None else []


class ConflictsChannel(_SavedChannel):
    """The changes that took no effect: those found by the reducer, and those found by the files channel."""

    def __init__(self, reducer: Any = fold_conflicts, typ: Any = list, *, snapshot_frequency: int = _SNAPSHOT) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    def update(self, values: Sequence[Any]) -> bool:
        if values:
            self._begin()
        changed = super().update(values)
        return self._take() or changed

    def finish(self) -> bool:
        return self._take()

    def _take(self) -> bool:
        lost = [] if self._is_copy else _take_unreported()
        if lost:
            self._begin()
            self.value: list[dict[str, Any]] = fold_conflicts(self.value if self.is_available() else [], [lost])
            self._save()
        return bool(lost)


Files: TypeAlias = Annotated[dict[str, Any], FilesChannel(fold, dict, snapshot_frequency=_SNAPSHOT)]
"""Files by path. A checkpoint holds the changes, and after every 50th change all files."""

FileConflicts: TypeAlias = Annotated[
    list[dict[str, Any]], ConflictsChannel(fold_conflicts, list, snapshot_frequency=_SNAPSHOT)
]
"""Changes that took no effect because a parallel task made another one. Write None to forget them."""


class FilesystemState(TypedDict, total=False):
    """The state that StateBackend needs, to inherit from; a dataclass or pydantic state declares `Files` fields."""

    files: Files
    file_conflicts: FileConflicts
