"""What deepfs needs of LangGraph that LangGraph does not offer; the one module that touches its private names.

It is imported when it is first needed: importing LangGraph takes over a second.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import anyio.to_thread
from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_CALL, CONFIG_KEY_READ, CONFIG_KEY_SEND, CONFIG_KEY_TASK_ID
from langgraph._internal._typing import MISSING
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore, Op, PutOp, Result

from deepfs.errors import BackendError, ConflictError, DeepFSError, ExistsError
from deepfs.langgraph.operations import Operation, Places, Transition, header_of, transition
from deepfs.langgraph.reducers import fold, stored_version, version_of
from deepfs.langgraph.superstep_log import FILES, Channel, ProvisionalWrite, Run, Task, Writes, task_of
from deepfs.text.flat_tree import Change, Directories
from deepfs.text.records import encode_file
from deepfs.types import FileFormat

__all__ = [
    "TaskFiles",
    "batch",
    "connection_of",
    "current_config",
    "current_runtime",
    "current_state",
    "current_store",
    "database_kind",
    "legacy_namespace",
    "lists_all",
    "omits_expired",
    "outer_task",
    "put_with_cursor",
    "reads_plainly",
    "runs_loop_of",
    "store_loop",
    "task_files",
    "with_cursor",
    "writes_plainly",
]

T = TypeVar("T")

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
_LOSING = (
    "The channel 'files' of this graph ({kind}) would lose files: what is written to it replaces what is there, or "
    "what is deleted stays. Mix the channel in: class State(FilesystemState): ..., with `from deepfs import "
    "FilesystemState`; a dataclass or pydantic state declares `files: Files`, from deepfs.backends.state."
)
_ENDED = (
    " was not changed: the node or tool that called has ended, so its writes are taken already. Wait for the operation "
    "before the node returns: await the task, or join the thread, that runs it."
)


# --- the running task ------------------------------------------------------------------------------------------------


def current_config() -> RunnableConfig:
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
    loop: Any
    """What runs the graph; None where that is not known."""

    @property
    def is_over(self) -> bool:
        """Whether the writes of the task have been taken, or never will be; False where that is not known."""
        inside = None if self.loop is None else _inside(self.read)
        if inside is None:
            return False
        running = self.loop.tasks.get(self.task)
        return running is None or running.writes is not inside[1] or self._is_saved()

    def _is_saved(self) -> bool:
        saved = getattr(self.loop, "_written_task_ids", None)
        if saved is not None:
            return self.task in saved
        pending = self.loop.checkpoint_pending_writes
        return any(task == self.task and channel not in WRITES_IDX_MAP for task, channel, _ in pending)

    def took(self, value: object) -> bool:
        """Whether `value` is among the writes that were taken."""
        return any(write is value for *_, write in self.loop.checkpoint_pending_writes)


def _wiring() -> _Wiring:
    config = current_config()
    configurable, metadata = config.get("configurable", {}), config.get("metadata", {})
    read, send = configurable.get(CONFIG_KEY_READ), configurable.get(CONFIG_KEY_SEND)
    if read is None or send is None:
        raise RuntimeError(_OUTSIDE)
    task, loop = configurable.get(CONFIG_KEY_TASK_ID, ""), _loop_of(configurable.get(CONFIG_KEY_CALL))
    return _Wiring(read, send, task, metadata.get("langgraph_step"), metadata.get("langgraph_node", ""), loop)


def _loop_of(call: Any) -> Any:
    """What runs the graph; None where `call`, by which a task starts others, does not tell."""
    loop = getattr(getattr(call, "keywords", {}).get("schedule_task"), "__self__", None)
    return loop if isinstance(getattr(loop, "tasks", None), Mapping) else None


def outer_task() -> tuple[Channel | None, Writes] | None:
    """The channel of files of the graph one of whose tasks runs here, and the writes of that task."""
    inside = _inside(current_config().get("configurable", {}).get(CONFIG_KEY_READ))
    return None if inside is None else (inside[0].get(FILES), inside[1])


def _inside(read: Any) -> tuple[Mapping[str, Channel], Writes] | None:
    """The channels of the graph and the writes of the task, to which `read` is bound; None where it is not."""
    if isinstance(read, partial) and len(read.args) == 4:
        _, channels, _, task = read.args
        writes = getattr(task, "writes", None)
        if isinstance(channels, Mapping) and isinstance(writes, deque):
            return channels, writes
    return None


# --- the files of the running task -----------------------------------------------------------------------------------


class TaskFiles:
    """The files that the running task reads and changes; valid within `task_files()`."""

    def __init__(self, wiring: _Wiring, *, tells_conflicts: bool) -> None:
        self._wiring = wiring
        self._tells_conflicts = tells_conflicts

    @property
    def files(self) -> Mapping[str, Any]:
        """The files by path, as they lie in the state, with the writes of the task; the next may change the mapping."""
        return cast("Mapping[str, Any]", self._wiring.read(FILES, True) or {})

    @property
    def directories(self) -> Directories:
        """The directories that the files imply."""
        return Directories(self.files)

    def commit(self, changes: Sequence[Change], file_format: FileFormat = "v2") -> None:
        """Write the changes as one operation, which takes effect as a whole or, told in `file_conflicts`, not at all.

        Raises ConflictError where a task of the same superstep changed the same place of a file, ExistsError where it
        created the file. Nothing is written then.
        """
        if not changes:
            return
        paths = {change.path: self._transition(change) for change in changes}
        operation = Operation(paths, self._wiring.task, self._wiring.step, self._wiring.node)
        if self._wiring.is_over:
            raise _ended(operation)
        self._check(operation)
        header = header_of(operation)
        write: dict[str, Any] = {header: None}
        for change in changes:
            write[change.path] = change.after and encode_file(change.after, file_format, change.path)
        if not self._send([(FILES, write), (CONFLICTS, header)] if self._tells_conflicts else [(FILES, write)]):
            raise _ended(operation)

    def _transition(self, change: Change) -> Transition:
        before = _files_of(self._wiring.read(FILES, False)).get(change.path)
        origin = stored_version(before, change.path)
        return Transition(origin, _base(change), _version(change.after))

    def _check(self, operation: Operation) -> None:
        """Raise where `operation` collides with what other tasks wrote; here, it is not known."""

    def _send(self, writes: list[tuple[str, Any]]) -> bool:
        """Send the writes; whether they will take effect."""
        self._wiring.send(writes)
        return True


def _ended(operation: Operation) -> BackendError:
    return BackendError.about(next(iter(operation.paths)), "Error: ", _ENDED)


class _MergingFiles(TaskFiles):
    """Files of a task whose inside is known: reading costs what was written since, and siblings are seen."""

    def __init__(self, wiring: _Wiring, task: Task, writes: Writes, *, tells_conflicts: bool, merges: bool) -> None:
        super().__init__(wiring, tells_conflicts=tells_conflicts)
        self._task = task
        self._writes = writes
        self._merges = merges

    @property
    def files(self) -> Mapping[str, Any]:
        self._task.catch_up()
        return self._task.files

    @property
    def directories(self) -> Directories:
        self._task.catch_up()
        return self._task.directories

    def _transition(self, change: Change) -> Transition:
        self._task.catch_up()
        earlier = self._task.changes.get(change.path)
        return transition(earlier, _base(change), _version(change.after), _places(change))

    def _check(self, operation: Operation) -> None:
        foreign = operation.foreign(mergeable=self._merges)
        for sibling in self._task.run.siblings(self._task):
            for path in sibling.ledger.collisions(foreign):
                created = foreign.paths[path].kind == "create" and path in sibling.changes
                raise ExistsError(path) if created else ConflictError(path)

    def _send(self, writes: list[tuple[str, Any]]) -> bool:
        sent = [ProvisionalWrite(channel, value, self._writes) for channel, value in writes]
        self._wiring.send(sent)
        if _is_last(sent[0], self._writes) and not self._wiring.is_over:
            return True
        if self._wiring.loop is not None and self._wiring.took(writes[0][1]):
            return True
        for write in sent:
            with suppress(ValueError):
                self._writes.remove(cast("Any", write))
        return False


def _is_last(write: object, writes: Writes) -> bool:
    """Whether `write` is among the last writes of a task, which has none of it where it runs out of time."""
    with suppress(RuntimeError):  # Somebody else writes.
        return any(each is write for each in islice(reversed(writes), 16))
    return True


class _Locked:
    """A context with a lock held, in which `files` may be used."""

    __slots__ = ("_files", "_lock")

    def __init__(self, lock: threading.RLock, files: TaskFiles) -> None:
        self._lock = lock
        self._files = files

    def __enter__(self) -> TaskFiles:
        self._lock.acquire()
        return self._files

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def task_files() -> AbstractContextManager[TaskFiles]:
    """The files of the running task, locked against the other threads and tasks of its graph: do not wait inside.

    Raises RuntimeError, which says what to do, outside a graph and in one that has no channel `files`.
    """
    wiring = _wiring()
    inside = _inside(wiring.read)
    if inside is None:
        return _Locked(_foreign_lock, _fresh_files(wiring))
    channels, writes = inside
    channel = channels.get(FILES)
    if channel is None:
        raise RuntimeError(_NO_CHANNEL)
    task = task_of(channel, writes, wiring.step, wiring.task)
    _check_channel(channel, task.run)
    merges = getattr(channel, "reducer", None) is fold
    files = _MergingFiles(wiring, task, writes, tells_conflicts=CONFLICTS in channels, merges=merges)
    return _Locked(task.run.lock, files)


_foreign_lock = threading.RLock()


def _check_channel(channel: Channel, run: Run) -> None:
    """Raise RuntimeError where the channel loses files, found out once in a run by writing to one of its kind."""
    if not run.is_checked and not _keeps_files(channel):
        raise RuntimeError(_LOSING.format(kind=type(channel).__name__))
    run.is_checked = True


def _keeps_files(channel: Channel) -> bool:
    if getattr(channel, "reducer", None) is fold:
        return True
    one, two, three = ({f"/{name}": {"content": name}} for name in ("1", "2", "3"))
    try:
        probe = channel.from_checkpoint(MISSING)
        probe.update([one, two])
        probe.update([three, {"/1": None, "deepfs:": None}])
        return bool(probe.get() == {**two, **three})
    except Exception:  # Whatever a reducer raises that was not made for this.
        return False


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


def _base(change: Change) -> str | None:
    """The version of what was there before a change, be it a file or not."""
    return _version(change.before) or stored_version(change.origin, change.path)


def _version(data: Any) -> str | None:
    return None if data is None else version_of(data)


def _places(change: Change) -> Places:
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


def current_state() -> dict[str, Any]:
    """The state that the running task reads; empty outside a graph."""
    read = current_config().get("configurable", {}).get(CONFIG_KEY_READ)
    inside = None if read is None else _inside(read)
    names = [] if inside is None else [name for name in inside[0] if not name.startswith(("__", "branch:"))]
    return dict(read(names, False)) if names and read is not None else {}


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
    assistant = current_config().get("metadata", {}).get("assistant_id")
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
    """Run operations on the event loop of `store`, or here where it has none; one answer for each.

    BackendError where the store fails. On a loop of its own a store always finishes: interrupted, the SQLite store
    would keep its transaction open.
    """

    async def run() -> list[Result]:
        return await store.abatch(operations)

    answers = await _told(store, run)
    given: object = answers  # A store may be of any make.
    if not isinstance(given, Sequence) or len(given) != len(operations):
        raise BackendError("Error: The store gave an answer that does not fit what it was asked.")
    return list(given)


async def with_cursor(store: BaseStore, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Work with a cursor of `store`, one of those that `database_kind` knows, as `batch` does with the store."""

    async def run() -> T:
        is_sqlite = database_kind(store) == "sqlite"
        cursor: Any = cast("Any", store)._cursor
        async with cursor(transaction=False) if is_sqlite else cursor() as opened:
            return await work(opened)

    return await _told(store, run)


async def _told(store: BaseStore, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return await _at_home(store, run)
    except DeepFSError:
        raise
    except Exception as error:
        raise BackendError(f"Error: The store failed ({type(error).__name__})") from error


async def _at_home(store: BaseStore, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop, here = store_loop(store), _running_loop()
    if loop is None:
        return await run()
    if loop is here:
        task = loop.create_task(run())
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        return await asyncio.shield(task)
    if not loop.is_running():
        raise BackendError("Error: The event loop that the store is bound to no longer runs: open the store anew.")
    future = asyncio.run_coroutine_threadsafe(run(), loop)
    if here is not None:
        return await asyncio.shield(asyncio.wrap_future(future))
    return await anyio.to_thread.run_sync(future.result)


_under_way: set[asyncio.Task[Any]] = set()
"""What stores do now: a loop by itself holds its tasks weakly."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- the inside of stores --------------------------------------------------------------------------------------------

_KINDS: Mapping[str, Literal["postgres", "sqlite"]] = {
    "langgraph.store.postgres.aio": "postgres",
    "langgraph.store.sqlite.aio": "sqlite",
}
"""The modules of the async stores of LangGraph that keep a table."""
_WRITING: Final = ("abatch", "_cursor", "_batch_put_ops", "_prepare_batch_PUT_queries")
"""What decides how these stores write."""
_READING: Final = ("abatch", "_cursor", "_batch_get_ops", "_batch_search_ops")
"""What decides how these stores read."""


def database_kind(store: BaseStore) -> Literal["postgres", "sqlite"] | None:
    """Which kind of table `store` keeps, where its cursor may be used; not in pipeline mode, which allows one alone."""
    if getattr(store, "pipe", None) is not None:
        return None
    return _KINDS.get(getattr(getattr(type(store), "_cursor", None), "__module__", ""))


def writes_plainly(store: BaseStore) -> bool:
    """Whether `store` writes one row for each item, in the way of LangGraph, and reads it as it is."""
    given: Any = store
    return (
        database_kind(store) is not None
        and all(_is_langgraphs(store, name) for name in _WRITING)
        and given.index_config is None
        and given._deserializer is None
    )


def reads_plainly(store: BaseStore) -> bool:
    """Whether the table of `store` may be read past it: one row for each item, with the value as JSON."""
    given: Any = store
    return (
        database_kind(store) is not None
        and all(_is_langgraphs(store, name) for name in _READING)
        and given._deserializer is None
    )


def lists_all(store: BaseStore) -> bool:
    """Whether `store` is known to give as many items as it is asked for."""
    return _is_langgraphs(store, "abatch")


def _is_langgraphs(store: BaseStore, name: str) -> bool:
    module = str(getattr(getattr(type(store), name, None), "__module__", ""))
    return name not in getattr(store, "__dict__", {}) and module.startswith("langgraph.")


def omits_expired(store: BaseStore) -> bool:
    """Whether a store over Postgres reads what has expired, and is not yet removed, as absent."""
    return bool(getattr(store, "_omit_expired", False))


def connection_of(store: BaseStore) -> object:
    """The connection of a store over SQLite."""
    return cast("Any", store).conn


async def put_with_cursor(store: BaseStore, operations: Sequence[PutOp], cursor: Any) -> None:
    """What `store` does for these operations, in the transaction of `cursor`."""
    await cast("Any", store)._batch_put_ops(list(enumerate(operations)), cursor)
