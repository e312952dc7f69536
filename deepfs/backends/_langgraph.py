"""What deepfs needs of LangGraph that LangGraph does not offer; the one module that touches its private names.

It is imported when it is first needed: importing LangGraph takes over a second.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast
from weakref import ref

import anyio.to_thread
from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_READ, CONFIG_KEY_SEND, CONFIG_KEY_TASK_ID, ERROR
from langgraph.channels.base import BaseChannel
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore, Op, Result

from deepfs.core.filedata import decode_file, encode_file
from deepfs.core.fold import fold, version_of
from deepfs.core.operations import Ledger, Operation, Places, Transition, header_of, operation_in, transition
from deepfs.errors import BackendError, ConflictError, ExistsError
from deepfs.types import FileFormat

if TYPE_CHECKING:
    from deepfs.core.filemap import Change

__all__ = [
    "TaskFiles",
    "batch",
    "current_runtime",
    "current_store",
    "legacy_namespace",
    "runs_loop_of",
    "store_loop",
    "task_files",
]

FILES: Final = "files"
CONFLICTS: Final = "file_conflicts"

_OUTSIDE = (
    "StateBackend keeps files in the state of a running LangGraph graph, and none is running here. Call it inside a "
    "node or a tool; to start with files, pass them to the graph: graph.invoke({'files': {...}}). In a script, use "
    "MemoryBackend or FilesystemBackend."
)
_NO_CHANNEL = (
    "StateBackend needs the channel 'files' in the state of the graph that calls it. Mix it in: "
    "class State(FilesystemState): ..., with `from deepfs import FilesystemState`."
)

Channel: TypeAlias = BaseChannel[Any, Any, Any]
Writes: TypeAlias = "deque[tuple[str, Any]]"


# --- the running task ------------------------------------------------------------------------------------------------


def _config() -> RunnableConfig:
    """The configuration of the running task; empty where none runs."""
    try:
        return get_config()
    except RuntimeError:
        return {}


class _Wiring(NamedTuple):
    """How the running task is connected to the state of its graph."""

    read: Any
    send: Any
    task: str
    step: int | None
    node: str


def _wiring() -> _Wiring:
    config = _config()
    configurable, metadata = config.get("configurable", {}), config.get("metadata", {})
    read, send = configurable.get(CONFIG_KEY_READ), configurable.get(CONFIG_KEY_SEND)
    if read is None or send is None:
        raise RuntimeError(_OUTSIDE)
    task = configurable.get(CONFIG_KEY_TASK_ID, "")
    return _Wiring(read, send, task, metadata.get("langgraph_step"), metadata.get("langgraph_node", ""))


def _inside(read: Any) -> tuple[Mapping[str, Channel], Writes] | None:
    """The channels of the graph and the writes of the task, to which `read` is bound; None where it is not."""
    if isinstance(read, partial) and len(read.args) == 4:
        _, channels, _, task = read.args
        writes = getattr(task, "writes", None)
        if isinstance(channels, Mapping) and isinstance(writes, deque):
            return channels, writes
    return None


class _Provisional(list[Any]):
    """A write of a task, channel and value, which is none any more once the task has failed.

    LangGraph saves what a failed or cancelled task had sent by then, and, when the graph is resumed, takes a task with
    saved writes for finished: the rest of its work would never be done. So such a write then reads as the failure,
    which is saved anyway, and the task runs again.
    """

    __slots__ = ("_writes",)

    def __init__(self, channel: str, value: object, writes: Writes) -> None:
        super().__init__((channel, value))
        self._writes = ref(writes)

    def _as_it_is(self) -> Sequence[Any]:
        writes = self._writes()
        return (_failure(writes) if writes else None) or tuple(super().__iter__())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._as_it_is())

    def __getitem__(self, index: Any) -> Any:
        return self._as_it_is()[index]


def _from(writes: Writes, start: int) -> list[tuple[str, Any]]:
    """The writes from index `start`; where another thread clears them meanwhile, those that were there."""
    found = []
    with suppress(IndexError):
        for index in range(start, len(writes)):
            found.append(writes[index])
    return found


def _failure(writes: Writes) -> tuple[str, Any] | None:
    """The failure of the task with these writes, which LangGraph puts at their end, if it failed."""
    last = _from(writes, max(0, len(writes) - 2))
    return next((write for write in last if type(write) is tuple and write[0] == ERROR), None)


# --- the tasks of a superstep ----------------------------------------------------------------------------------------


class _Task:
    """The files as one task sees them: as they were when the superstep began, with the writes of the task.

    All of it follows from the task's writes, so a retry, which clears them, forgets what the failed attempt did. It
    lives as long as these writes.
    """

    def __init__(self, run: "_Run", channel: Channel, writes: Writes, step: int | None) -> None:
        self.run = run
        self.key = id(writes)
        self.step = step
        self._channel: Channel | None = channel
        self._writes = ref(writes, self._end)
        self._forget()

    def _forget(self) -> None:
        self._own: Channel | None = None
        self._taken = 0
        self._last: object = None
        self.changes: dict[str, Transition] = {}
        self.ledger = Ledger()

    def _end(self, _: object) -> None:
        self._channel = None
        self._forget()
        _ended.append(self)

    def belongs_to(self, writes: Writes) -> bool:
        """Whether these are the writes of this task."""
        return self._writes() is writes

    @property
    def files(self) -> Mapping[str, Any]:
        """The files by path, as they lie in the state; the mapping does not change."""
        channel = self._own or self._channel
        return channel.get() or {} if channel is not None and channel.is_available() else {}

    def catch_up(self) -> None:
        """Take in what the task wrote since."""
        writes = self._writes()
        if writes is None or self._channel is None:
            return
        if self._started_anew(writes):
            self._forget()
        new = _from(writes, self._taken)
        if new:
            self._taken, self._last = self._taken + len(new), new[-1]
            self._take([value for channel, value in new if channel == FILES], self._channel)

    def _started_anew(self, writes: Writes) -> bool:
        """Whether the writes taken in count no more: a retry cleared them, or the task failed."""
        if not self._taken:
            return False
        last = next(iter(_from(writes, self._taken - 1)), None)
        return last is not self._last or _failure(writes) is not None

    def _take(self, values: list[Any], channel: Channel) -> None:
        if values:
            self._own = self._own or channel.copy()
            self._own.update(values)
        for value in values:
            operation = operation_in(value) if isinstance(value, Mapping) else None
            if operation is not None:
                self.changes.update(operation.paths)
                self.ledger.enter(operation)


class _Run:
    """The tasks of one run of a graph, with the lock under which they read and write its files."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.lock = threading.RLock()
        self.tasks: dict[int, _Task] = {}

    def siblings(self, task: _Task) -> list[_Task]:
        """The other tasks of the same superstep that used the files, up to date."""
        siblings = [other for other in self.tasks.copy().values() if other is not task and other.step == task.step]
        for sibling in siblings:
            sibling.catch_up()
        return siblings


_runs: dict[int, _Run] = {}
_runs_lock = threading.Lock()
_ended: "deque[_Task]" = deque()
"""Tasks to drop; they end when their writes are collected, which can happen anywhere, so nothing is locked then."""


def _task(channel: Channel, writes: Writes, step: int | None) -> _Task:
    """What is known of the task with these writes. Runs are told apart by their channel."""
    with _runs_lock:
        while _ended:
            _drop(_ended.popleft())
        run = _runs.setdefault(id(channel), _Run(id(channel)))
        task = run.tasks.get(id(writes))
        if task is None or not task.belongs_to(writes):
            task = run.tasks[id(writes)] = _Task(run, channel, writes, step)
        return task


def _drop(task: _Task) -> None:
    if task.run.tasks.get(task.key) is task:
        del task.run.tasks[task.key]
    if not task.run.tasks and _runs.get(task.run.key) is task.run:
        del _runs[task.run.key]


# --- the files of the running task -----------------------------------------------------------------------------------


class TaskFiles:
    """The files that the running task reads and changes; valid within `task_files()`."""

    def __init__(self, wiring: _Wiring, *, tells_conflicts: bool) -> None:
        self._wiring = wiring
        self._tells_conflicts = tells_conflicts

    @property
    def files(self) -> Mapping[str, Any]:
        """The files by path, as they lie in the state, with the task's own writes; the mapping does not change."""
        return cast("Mapping[str, Any]", self._wiring.read(FILES, True) or {})

    def commit(self, changes: "Sequence[Change]", file_format: FileFormat = "v2") -> None:
        """Write the changes as one operation, which takes effect as a whole or, told in `file_conflicts`, not at all.

        Raises ConflictError where a task of the same superstep changed the same place of a file, ExistsError where it
        created the file. Nothing is written then.
        """
        paths = {change.path: self._transition(change) for change in changes}
        operation = Operation(paths, self._wiring.task, self._wiring.step, self._wiring.node)
        self._check(operation)
        header = header_of(operation)
        write: dict[str, Any] = {header: None}
        for change in changes:
            write[change.path] = change.after and encode_file(change.after, file_format, change.path)
        self._send([(FILES, write), (CONFLICTS, header)] if self._tells_conflicts else [(FILES, write)])

    def _transition(self, change: "Change") -> Transition:
        before = _files_of(self._wiring.read(FILES, False)).get(change.path)
        origin = None if before is None else version_of(decode_file(before, change.path))
        return Transition(origin, _version(change.before), _version(change.after))

    def _check(self, operation: Operation) -> None:
        """Raise where `operation` collides with what other tasks wrote; here, it is not known."""

    def _send(self, writes: list[tuple[str, Any]]) -> None:
        self._wiring.send(writes)


class _MergingFiles(TaskFiles):
    """Files of a task whose inside is known: reading costs what was written since, and siblings are seen."""

    def __init__(self, wiring: _Wiring, task: _Task, writes: Writes, *, tells_conflicts: bool, merges: bool) -> None:
        super().__init__(wiring, tells_conflicts=tells_conflicts)
        self._task = task
        self._writes = writes
        self._merges = merges

    @property
    def files(self) -> Mapping[str, Any]:
        self._task.catch_up()
        return self._task.files

    def _transition(self, change: "Change") -> Transition:
        self._task.catch_up()
        earlier = self._task.changes.get(change.path)
        return transition(earlier, _version(change.before), _version(change.after), _places(change))

    def _check(self, operation: Operation) -> None:
        foreign = operation.foreign(mergeable=self._merges)
        for sibling in self._task.run.siblings(self._task):
            for path in sibling.ledger.collisions(foreign):
                created = foreign.paths[path].kind == "create" and path in sibling.changes
                raise ExistsError(path) if created else ConflictError(path)

    def _send(self, writes: list[tuple[str, Any]]) -> None:
        self._wiring.send([_Provisional(channel, value, self._writes) for channel, value in writes])


@contextmanager
def task_files() -> Iterator[TaskFiles]:
    """The files of the running task, locked against the other threads and tasks of its graph: do not wait inside.

    Raises RuntimeError, which says what to do, outside a graph and in one that has no channel `files`.
    """
    wiring = _wiring()
    inside = _inside(wiring.read)
    if inside is None:
        with _foreign_lock:
            yield _fresh_files(wiring)
        return
    channels, writes = inside
    channel = channels.get(FILES)
    if channel is None:
        raise RuntimeError(_NO_CHANNEL)
    task = _task(channel, writes, wiring.step)
    merges = getattr(channel, "reducer", None) is fold
    with task.run.lock:
        yield _MergingFiles(wiring, task, writes, tells_conflicts=CONFLICTS in channels, merges=merges)


_foreign_lock = threading.RLock()


def _fresh_files(wiring: _Wiring) -> TaskFiles:
    """The files by LangGraph's own calls alone: every read applies all writes, and nothing is merged."""
    try:
        wiring.read(FILES, False)
    except KeyError:
        raise RuntimeError(_NO_CHANNEL) from None
    try:
        wiring.read(CONFLICTS, False)
    except KeyError:
        return TaskFiles(wiring, tells_conflicts=False)
    return TaskFiles(wiring, tells_conflicts=True)


def _files_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _version(data: Any) -> str | None:
    return None if data is None else version_of(data)


def _places(change: "Change") -> Places:
    """What an edit replaced."""
    if change.replacement is None:
        return None
    return [(span.start, span.end, len(span.text)) for span in change.replacement.spans]


# --- stores and the runtime ------------------------------------------------------------------------------------------


def current_runtime() -> Runtime[Any] | None:
    """The runtime of the running node; None outside a graph."""
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


def current_store() -> BaseStore:
    """The store that the running graph was compiled with. Raises BackendError where there is none."""
    runtime = current_runtime()
    if runtime is None or runtime.store is None:
        raise BackendError(
            "Error: StoreBackend found no store: pass it one, StoreBackend(store=...), or compile the graph with one, "
            "builder.compile(store=...)."
        )
    return runtime.store


def legacy_namespace() -> tuple[str, ...]:
    """The namespace of the running assistant, which backends without one use."""
    assistant = _config().get("metadata", {}).get("assistant_id")
    return (assistant, "filesystem") if assistant else ("filesystem",)


def store_loop(store: BaseStore) -> asyncio.AbstractEventLoop | None:
    """The event loop that `store` is bound to, if it is to one."""
    loops = (getattr(store, name, None) for name in ("_loop", "loop"))
    return next((loop for loop in loops if isinstance(loop, asyncio.AbstractEventLoop)), None)


def runs_loop_of(store: BaseStore) -> bool:
    """Whether the calling thread runs the event loop of `store`, which must not wait for itself."""
    loop = store_loop(store)
    return loop is not None and loop is _running_loop()


async def batch(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    """Run operations on the event loop of `store`, or here where it has none."""
    loop = store_loop(store)
    here = _running_loop()
    if loop is None or loop is here:
        return await store.abatch(operations)
    if not loop.is_running():
        raise BackendError("Error: The event loop that the store is bound to no longer runs: open the store anew.")
    future = asyncio.run_coroutine_threadsafe(_abatch(store, operations), loop)
    if here is not None:
        return await asyncio.wrap_future(future)
    return await anyio.to_thread.run_sync(future.result)


async def _abatch(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    return await store.abatch(operations)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
