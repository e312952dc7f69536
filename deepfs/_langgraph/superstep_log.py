"""The writes of the tasks of a superstep to the files, while the tasks run in this process.

LangGraph keeps the writes of a task in a deque until the superstep ends: a retry clears it, a failure leaves its error
at the end. All state in this module is derived from these deques, and lives as long as they do.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias
from weakref import ref

from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR
from langgraph.types import Overwrite

from deepfs._langgraph.reducers import RecordedChange, StepLog, Superstep, fold, is_header, operation_in
from deepfs.text.flat_tree import Directories
from deepfs.threads.forks import ForkSafeLock

FILES: Final = "files"

Channel: TypeAlias = BaseChannel[Any, Any, Any]
Writes: TypeAlias = "deque[tuple[str, Any]]"


# --- the writes of a task --------------------------------------------------------------------------------------------


class ProvisionalWrite(list[Any]):
    """A write of a task, a channel and a value, which becomes void when the task fails.

    LangGraph saves what a failed or cancelled task has sent. When the graph is resumed, it takes a task with saved
    writes for finished, so the rest of its work would never be done. Therefore this write then has the items of the
    failure, which is saved anyway, and the task runs again. If the task has already returned, its result is saved and
    it does not run again; then this write stays valid.
    """

    __slots__ = ("_writes",)

    def __init__(self, channel: str, value: object, writes: Writes) -> None:
        super().__init__((channel, value))
        self._writes = ref(writes)

    def _find_failure(self) -> tuple[str, Any] | None:
        writes = self._writes()
        failure = _failure(writes) if writes else None
        return None if failure is None or writes is None or _has_returned(writes) else failure

    def __iter__(self) -> Iterator[Any]:
        failure = self._find_failure()
        return super().__iter__() if failure is None else iter(failure)

    def __getitem__(self, index: Any) -> Any:
        failure = self._find_failure()
        return super().__getitem__(index) if failure is None else failure[index]


def _from(writes: Writes, start: int) -> list[tuple[str, Any]]:
    """The writes from index `start`; if another thread clears them meanwhile, those that were read before."""
    found: list[tuple[str, Any]] = []
    with suppress(IndexError):
        found.extend(writes[index] for index in range(start, len(writes)))
    return found


def _failure(writes: Writes) -> tuple[str, Any] | None:
    """The failure of the task with these writes, which LangGraph puts at their end; None if it has not failed."""
    try:
        for index in (-1, -2):
            write = writes[index]
            if type(write) is tuple and write[0] == ERROR:
                return write
    except IndexError:
        pass
    return None


def _has_returned(writes: Writes) -> bool:
    """Whether LangGraph has added writes for the result of the task; errors and interrupts do not count."""
    channels = (write[0] for write in _from(writes, 0) if type(write) is tuple)
    return any(channel not in WRITES_IDX_MAP and not channel.startswith("__error") for channel in channels)


# --- the tasks of a superstep ----------------------------------------------------------------------------------------


class Task:
    """The files as one task sees them: as they were when the superstep began, with the writes of the task.

    All of it is derived from the task's writes, so a retry, which clears them, discards the changes of the failed
    attempt. The object lives as long as these writes.
    """

    def __init__(self, run: "GraphRun", channel: Channel, writes: Writes, step: int | None, name: str) -> None:
        self.run = run
        self.key: int = id(writes)
        self.step = step
        self.name = name
        self._channel: Channel | None = channel
        self._writes = ref(writes, self._end)
        self._forget()

    def _forget(self) -> None:
        self._own: Channel | None = None
        self._reducer: Superstep | None = None
        self._taken = 0
        self._last: object = None
        self._directories: Directories | None = None
        self._overwritten = False
        self.changes: dict[str, RecordedChange] = {}
        self._log = StepLog()

    def _end(self, _: object) -> None:
        self._channel = None
        self._forget()
        _ended.append(self)

    def belongs_to(self, writes: Writes) -> bool:
        """Whether `writes` are the writes of this task."""
        return self._writes() is writes

    def read_writes(self) -> list[Any]:
        """The values that the task has written to the files channel."""
        writes = self._writes()
        return [] if writes is None else [value for channel, value in _from(writes, 0) if channel == FILES]

    @property
    def files(self) -> Mapping[str, Any]:
        """The stored files by path. The next write may change the mapping."""
        if self._reducer is not None:
            return self._reducer.files
        channel = self._own or self._channel
        return channel.get() or {} if channel is not None and channel.is_available() else {}

    @property
    def directories(self) -> Directories:
        """The directories above the files. The writes of the task keep them up to date."""
        if self._directories is None:
            self._directories = Directories(self.files)
        return self._directories

    @property
    def log(self) -> StepLog:
        """The operations of the task."""
        return self._log if self._reducer is None else self._reducer.log

    def catch_up(self) -> None:
        """Apply the writes of the task since the last call."""
        writes = self._writes()
        if writes is None or self._channel is None or self._is_up_to_date(writes):
            return
        if self._are_void(writes):
            self._forget()
        new = _from(writes, self._taken)
        if any(isinstance(value, Overwrite) for _, value in new):
            self._forget()
            self._overwritten, new = True, _from(writes, 0)
        if new:
            self._taken, self._last = self._taken + len(new), new[-1]
            self._take([value for channel, value in new if channel == FILES], self._channel)

    def _is_up_to_date(self, writes: Writes) -> bool:
        with suppress(IndexError):
            return len(writes) == self._taken and (not writes or writes[-1] is self._last)
        return False

    def _are_void(self, writes: Writes) -> bool:
        """Whether the applied writes are void: a retry has cleared them, or the task has failed.

        An `Overwrite` changes the effect of the other writes, so all are then applied together, as LangGraph does.
        """
        if not self._taken:
            return False
        last = next(iter(_from(writes, self._taken - 1)), None)
        return self._overwritten or last is not self._last or _failure(writes) is not None

    def _take(self, values: list[Any], channel: Channel) -> None:
        if values and not self._overwritten and getattr(channel, "reducer", None) is fold:
            self._fold(values, channel)
        elif values:
            own = self._own = self._own or channel.copy()
            own.update(values)
        for value in values:
            if isinstance(value, Mapping):
                self._note(value)

    def _fold(self, values: list[Any], channel: Channel) -> None:
        """Apply values as the channel does, but in place, so that the cost does not grow with the number of files."""
        if self._reducer is None:
            self._reducer = Superstep(self.files, self.step)
        for value in values:
            self._reducer.apply(value or {}, self.name)

    def _note(self, write: Mapping[str, Any]) -> None:
        operation = operation_in(write)
        if operation is not None:
            self.changes.update(operation.paths)
            if self._reducer is None:
                self._log.enter(operation)
        if self._directories is not None:
            for path in write:
                self._follow(self._directories, path)

    def _follow(self, directories: Directories, path: str) -> None:
        if path in self.files:
            directories.add(path)
        elif not is_header(path):
            directories.discard(path)


class GraphRun:
    """The tasks of one run of a graph, with the lock under which they read and write its files."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.lock: Final = ForkSafeLock()
        self.tasks: dict[int, Task] = {}
        self.is_checked = False
        """Whether the channel is known to keep files."""

    def siblings(self, task: Task) -> list[Task]:
        """The other tasks of the same superstep that used the files, up to date."""
        siblings = [other for other in self.tasks.copy().values() if other is not task and other.step == task.step]
        for sibling in siblings:
            sibling.catch_up()
        return siblings


_runs: dict[int, GraphRun] = {}
_runs_lock = ForkSafeLock()
_ended: "deque[Task]" = deque()
"""Tasks to drop. A task ends when its writes are garbage-collected, which can happen anywhere, so no lock is taken."""


def task_of(channel: Channel, writes: Writes, step: int | None, name: str = "") -> Task:
    """The `Task` with these writes, created if there is none. The channel identifies the run."""
    with _runs_lock:
        while _ended:
            _drop(_ended.popleft())
        run = _runs.get(id(channel))
        if run is None:
            run = _runs[id(channel)] = GraphRun(id(channel))
        task = run.tasks.get(id(writes))
        if task is None or not task.belongs_to(writes):
            task = run.tasks[id(writes)] = Task(run, channel, writes, step, name)
        return task


def writers(run: int) -> dict[int, str]:
    """The names of the tasks that wrote to the files channel with the id `run`, by the ids of the written values."""
    known = _runs.get(run)
    return (
        {id(value): task.name for task in known.tasks.copy().values() for value in task.read_writes()} if known else {}
    )


def _drop(task: Task) -> None:
    if task.run.tasks.get(task.key) is task:
        del task.run.tasks[task.key]
    if not task.run.tasks and _runs.get(task.run.key) is task.run:
        del _runs[task.run.key]
