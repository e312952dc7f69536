"""Access to LangGraph beyond its public API; the one module that uses private names of LangGraph.

It is imported when it is first needed: importing LangGraph takes over a second.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_CALL, CONFIG_KEY_READ, CONFIG_KEY_SEND, CONFIG_KEY_TASK_ID
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.config import get_config
from langgraph.graph.message import _messages_delta_reducer
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore
from msgspec import Struct

from deepfs._deprecated import warn_deprecated
from deepfs._drivers import condition_of, failure_by
from deepfs.errors import BackendError, DeepFSError, OutsideGraphError
from deepfs.threads import pool
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop

T = TypeVar("T")
Channel: TypeAlias = BaseChannel[Any, Any, Any]
Writes: TypeAlias = "deque[tuple[str, Any]]"

FILES: Final = "files"
"""The channel with the files."""
STRICT_RESUME: Final = "__pregel_strict_resume"
"""The key of `configurable` with which an answer to an unknown interrupt is an error. LangGraph has it since 1.2.20."""

_TESTED: Final = "1.2.16 to 1.2.24"
"""The releases of LangGraph with which the tests have passed."""

_OUTSIDE = (
    "StateBackend keeps files in the state of a running LangGraph graph, and none is running here. Call it inside a "
    "node or a tool; to start with files, pass them to the graph: graph.invoke({'files': {...}}). In a script, use "
    "MemoryBackend or FilesystemBackend."
)


# --- the running task ------------------------------------------------------------------------------------------------


def current_config() -> RunnableConfig:
    """The configuration of the running task; empty outside a graph."""
    try:
        return get_config()
    except RuntimeError:
        return {}


RUN: Final = "__deepfs_run"
"""The key of `configurable` with the id of the run of an agent, which its subagents have as well."""


class RunningIds(NamedTuple):
    """The ids of the running graph; None outside a graph, and where it has none."""

    thread: str | None
    run: str | None


def current_ids() -> RunningIds:
    """The ids of the graph whose task runs here."""
    config = current_config()
    thread = config.get("configurable", {}).get("thread_id")
    run = run_in(config) or getattr(getattr(current_runtime(), "execution_info", None), "run_id", None)
    return RunningIds(_id_text(thread), _id_text(run))


def _id_text(given: object) -> str | None:
    """An id, which may be of any type, with escapes for lone surrogates."""
    return None if given is None else str(given).encode("utf-8", "backslashreplace").decode()


def run_in(config: Mapping[str, Any]) -> Any:
    """The id of the run that a configuration hands on to subgraphs; None if there is none."""
    configurable, metadata = config.get("configurable") or {}, config.get("metadata") or {}
    return configurable.get(RUN) or configurable.get("run_id") or metadata.get("run_id")


class RunningTask(Struct, frozen=True):
    """The running task, and how it reads and writes the state of its graph."""

    channels: Mapping[str, Channel]
    """The channels of the graph."""
    writes: Writes
    """What the task has written."""
    send: Any
    task: str
    """The id that LangGraph gave it."""
    step: int | None
    """The number of the superstep."""
    node: str
    loop: Any
    """The loop of LangGraph that runs the graph; None in a node with a timeout, from which it cannot be reached."""

    @property
    def is_over(self) -> bool:
        """Whether LangGraph has taken the writes of the task, or never will; False if that is not known."""
        if self.loop is None:
            return False
        running = self.loop.tasks.get(self.task)
        return running is None or running.writes is not self.writes or self._is_saved()

    def _is_saved(self) -> bool:
        saved = getattr(self.loop, "_written_task_ids", None)
        if saved is not None:
            return self.task in saved
        pending = self.loop.checkpoint_pending_writes
        return any(task == self.task and channel not in WRITES_IDX_MAP for task, channel, _ in pending)

    def has_taken(self, value: object) -> bool:
        """Whether `value` is among the writes that LangGraph has taken."""
        return self.loop is not None and any(write is value for *_, write in self.loop.checkpoint_pending_writes)


def running_task() -> RunningTask:
    """The task that runs here. Outside a graph, raises OutsideGraphError, which says what to do."""
    config = current_config()
    configurable, metadata = config.get("configurable", {}), config.get("metadata", {})
    inside, send = _inside(configurable), configurable.get(CONFIG_KEY_SEND)
    if inside is None or send is None:
        raise OutsideGraphError(_OUTSIDE)
    # By `call`, a task starts others, in the loop that runs the graph.
    starts = getattr(configurable.get(CONFIG_KEY_CALL), "keywords", {}).get("schedule_task")
    loop = getattr(starts, "__self__", None)
    return RunningTask(
        *inside,
        send,
        configurable.get(CONFIG_KEY_TASK_ID, ""),
        metadata.get("langgraph_step"),
        metadata.get("langgraph_node", ""),
        loop if isinstance(getattr(loop, "tasks", None), Mapping) else None,
    )


def outer_task() -> tuple[Channel | None, Writes] | None:
    """The files channel, if any, of the graph whose task runs here, and the task's writes; None outside a graph."""
    inside = _inside(current_config().get("configurable", {}))
    return None if inside is None else (inside[0].get(FILES), inside[1])


def _inside(configurable: Mapping[str, Any]) -> tuple[Mapping[str, Channel], Writes] | None:
    """The channels of the graph and the writes of the task, to which its read function is bound; None outside a graph.

    Raises RuntimeError if the function has another form.
    """
    read = configurable.get(CONFIG_KEY_READ)
    if read is None:
        return None
    if isinstance(read, partial) and len(read.args) == 4:
        _, channels, _, task = read.args
        writes = getattr(task, "writes", None)
        if isinstance(channels, Mapping) and isinstance(writes, deque):
            return channels, writes
    raise RuntimeError(
        f"LangGraph {version('langgraph')} keeps the state of a running task in another way than the releases that "
        f"deepfs was tested with, {_TESTED}: install one of these."
    )


def empty_channel(channel: Channel) -> Channel:
    """A new, empty channel of the same kind as `channel`."""
    return channel.from_checkpoint(MISSING)


messages_reducer: Final = _messages_delta_reducer
"""The reducer of messages that LangGraph knows: it gives an id to each message of a channel with this reducer."""


# --- stores and the runtime ------------------------------------------------------------------------------------------


class Caller(Struct, frozen=True):
    """For whom an operation runs, where that is another one than the caller of the running node."""

    runtime: Runtime[Any] | None = None
    """The runtime that factories get; None is that of the running node."""
    places: Mapping[Any, Any] = MappingProxyType({})
    """What is settled already, by the `Choice` that a factory would make."""


_CALLER_OF_THE_NODE: Final = Caller()
acting_caller: Final[ContextVar[Caller]] = ContextVar("acting_caller", default=_CALLER_OF_THE_NODE)


@contextmanager
def acting_for(caller: Caller) -> Iterator[None]:
    """A context in which operations run for `caller`."""
    token = acting_caller.set(caller)
    try:
        yield
    finally:
        acting_caller.reset(token)


async def iterate_for(caller: Caller, items: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """The same items, made for `caller` whoever asks for them."""
    source = aiter(items)
    try:
        while True:
            with acting_for(caller):
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            with acting_for(caller):
                await source.aclose()


def check_runtime(given: object) -> Runtime[Any]:
    """Return `given` if it is a runtime. Raises TypeError if not."""
    if not isinstance(given, Runtime):
        raise TypeError(f"a tenant is given as a name, a tuple of names or a Runtime, not as {given!r:.100}")
    return given


def current_runtime() -> Runtime[Any] | None:
    """The runtime of the caller for whom operations run here, or of the running node; None outside a graph."""
    acting = acting_caller.get().runtime
    if acting is not None:
        return acting
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


def current_thread() -> str | None:
    """The thread of the caller for whom operations run here; None outside a graph, and if it is not known."""
    info = getattr(current_runtime(), "execution_info", None)
    thread = info.thread_id if info else current_config().get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def current_state() -> dict[str, Any]:
    """The state that the running task reads; empty outside a graph."""
    configurable = current_config().get("configurable", {})
    inside = _inside(configurable)
    names = [] if inside is None else [name for name in inside[0] if not name.startswith(("__", "branch:"))]
    return dict(configurable[CONFIG_KEY_READ](names, False)) if names else {}


class BackendContext(Runtime[Any]):
    """A `Runtime` with the attributes that older factories use: `runtime`, `config` and `state`, all deprecated.

    Factories of namespaces and of backends get it, so they may use the `Runtime` or these attributes.

    Args:
        state: The state of the running graph.
        runtime: The runtime of the running node; None is an empty one.
    """

    def __init__(self, state: Any = None, runtime: Runtime[Any] | None = None) -> None:
        wrapped = runtime or Runtime()
        for field in fields(Runtime):
            object.__setattr__(self, field.name, getattr(wrapped, field.name))
        object.__setattr__(self, "_state", state)

    @property
    def runtime(self) -> Runtime[Any]:
        """The runtime itself."""
        warn_deprecated("BackendContext.runtime is deprecated: the factory gets the Runtime itself, without .runtime")
        return self

    @property
    def config(self) -> Any:
        """The config of the running task."""
        warn_deprecated("BackendContext.config is deprecated: use langgraph.config.get_config, or the Runtime")
        return current_config()

    @property
    def state(self) -> Any:
        """The state of the graph, as the running task sees it."""
        warn_deprecated(
            "BackendContext.state is deprecated: state changes from step to step, so what depends on it moves about. "
            "Use the context, the thread or the user of the Runtime."
        )
        state = vars(self)["_state"]
        return current_state() if state is None else state


def current_context() -> BackendContext | None:
    """The argument for a factory in the running node; None outside a graph."""
    runtime = current_runtime()
    return None if runtime is None else BackendContext(runtime=runtime)


def current_store() -> BaseStore:
    """The store that the running graph was compiled with. Raises BackendError if there is none."""
    runtime = current_runtime()
    if runtime is None or runtime.store is None:
        raise BackendError(
            None,
            "StoreBackend found no store: pass it one, StoreBackend(store=...), or compile the graph with one, "
            "builder.compile(store=...).",
        )
    return runtime.store


def legacy_namespace() -> tuple[str, ...]:
    """The namespace of the running assistant, which backends without a namespace use."""
    if (acting := acting_caller.get().runtime) is not None:
        assistant = acting.server_info and acting.server_info.assistant_id
    else:
        assistant = current_config().get("metadata", {}).get("assistant_id")
    return (assistant, "filesystem") if assistant else ("filesystem",)


def store_loop(store: BaseStore) -> asyncio.AbstractEventLoop | None:
    """The event loop that `store` is bound to; None if it is bound to none."""
    for name in ("_loop", "loop"):
        loop = getattr(store, name, None)
        if isinstance(loop, asyncio.AbstractEventLoop):
            return loop
    return None


def runs_loop_of(store: BaseStore) -> bool:
    """Whether the calling thread runs the event loop of `store`, so that it must not wait for the store."""
    loop = store_loop(store)
    return loop is not None and loop is running_asyncio_loop()


async def batch(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    """Run operations on the event loop of `store`, or here if it has none. Returns one answer for each.

    Raises BackendError if the store fails. On its own loop the store is never interrupted: the SQLite store would then
    keep its transaction open.
    """
    given: object = await _ask(store, partial(_send_batch, store, operations))  # A store may return anything.
    if (type(given) is not list and not isinstance(given, Sequence)) or len(given) != len(operations):
        raise BackendError(None, "The store gave an answer that does not fit what it was asked.")
    return given if type(given) is list else list(given)


async def _send_batch(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    """`abatch`, or in a thread `batch` of a store that has only that, such as LangGraph's `SqliteStore`."""
    try:
        return await store.abatch(operations)
    except NotImplementedError:
        return await pool.run(store.batch, operations)


async def get_in_batch(store: BaseStore, namespace: tuple[str, ...], key: str) -> object:
    """Get an item by the queue of an async store, which makes one batch of what its callers want at the same time."""
    return await _ask(store, lambda: store.aget(namespace, key), finishes=False)


class StoreSession(Struct, frozen=True):
    """The connection of a store over SQL, which nothing else uses meanwhile."""

    connection: Any
    rows: Callable[[str, Any], Awaitable[Sequence[Any]]]
    """Executes one statement with its parameters, and returns the rows of its result."""


async def with_session(
    store: BaseStore, work: Callable[[StoreSession], Coroutine[Any, Any, T]], *, changes: bool = False
) -> T:
    """Run `work` with the connection of `store`, on the same event loop and with the same errors as `batch`.

    `database_kind` must not return None for the store. `work` must end its transactions also if it is cancelled, as at
    the end of the event loop. If it `changes` something, it runs to its end, even if the caller is cancelled.
    """
    is_sqlite = database_kind(store) == "sqlite"
    opened = _sqlite_session if is_sqlite else _postgres_session

    async def run() -> T:
        async with opened(store) as session:
            return await work(session)

    # SQLite ends a statement, whoever waits for it. The setup of the store must not be interrupted.
    is_harmless = is_sqlite and not changes and cast("Any", store).is_setup
    return await _ask(store, run, finishes=not is_harmless)


@asynccontextmanager
async def _sqlite_session(store: Any) -> AsyncIterator[StoreSession]:
    """Like a cursor of the store, but each statement is one call in the thread of the connection, not four."""
    if not store.is_setup:
        await store.setup()
    async with store.lock:
        yield StoreSession(store.conn, store.conn.execute_fetchall)


@asynccontextmanager
async def _postgres_session(store: Any) -> AsyncIterator[StoreSession]:
    async with store._cursor() as cursor:

        async def rows(query: str, parameters: Any) -> Sequence[Any]:
            await cursor.execute(query, parameters)
            return [] if cursor.description is None else [tuple(row.values()) for row in await cursor.fetchall()]

        yield StoreSession(cursor.connection, rows)


async def _ask(store: BaseStore, call: Callable[[], Coroutine[Any, Any, T]], *, finishes: bool = True) -> T:
    """Make a call on the event loop of `store`, or here if it has none. Raises BackendError for errors of the store.

    With `finishes`, the call runs to its end if the store has a loop, even if the caller is cancelled.
    """
    try:
        loop = store_loop(store)
        if loop is None:
            return await call()
        if loop.is_running():
            return await call_on(loop, call, finishes=finishes)
    except DeepFSError:
        raise
    except Exception as error:
        failure = failure_by(error, condition_of(error), "store", "The store")
        raise failure from failure.__cause__
    raise BackendError(None, "The event loop that the store is bound to no longer runs: open the store anew.")


# --- the inside of stores --------------------------------------------------------------------------------------------

_KINDS: Mapping[str, Literal["postgres", "sqlite"]] = {
    "langgraph.store.postgres.aio": "postgres",
    "langgraph.store.sqlite.aio": "sqlite",
}
"""The modules of LangGraph's async stores that keep their items in a table, with the kind of database."""
_WRITING: Final = ("abatch", "_cursor", "_batch_put_ops", "_prepare_batch_PUT_queries")
"""The methods that determine how these stores write."""
_READING: Final = ("abatch", "_cursor", "_batch_get_ops", "_batch_search_ops")
"""The methods that determine how these stores read."""


def database_kind(store: BaseStore) -> Literal["postgres", "sqlite"] | None:
    """The kind of database of `store`, if its cursor may be used; None in pipeline mode, which allows only one."""
    if getattr(store, "pipe", None) is not None:
        return None
    return _KINDS.get(getattr(getattr(type(store), "_cursor", None), "__module__", ""))


def writes_plainly(store: BaseStore) -> bool:
    """Whether `store` writes one row for each item, as LangGraph's own stores do, and reads values unchanged."""
    return _is_plain(store, _WRITING) and cast("Any", store).index_config is None


def reads_plainly(store: BaseStore) -> bool:
    """Whether SQL may read the table of `store` directly: it has one row for each item, with the value as JSON."""
    return _is_plain(store, _READING)


def _is_plain(store: BaseStore, methods: Sequence[str]) -> bool:
    """Whether these methods of a store over SQL are LangGraph's own, and values are stored as they are."""
    is_own = database_kind(store) is not None and all(_is_langgraphs(store, name) for name in methods)
    return is_own and cast("Any", store)._deserializer is None


def never_suspends(store: BaseStore) -> bool:
    """Whether a batch of `store` never suspends: an InMemoryStore without an index, which may wait for a model."""
    given: Any = store
    return (
        getattr(type(store), "abatch", None) is InMemoryStore.abatch
        and "abatch" not in getattr(store, "__dict__", {})
        and store_loop(store) is None
        and given.index_config is None
    )


def lists_all(store: BaseStore) -> bool:
    """Whether `store` is known to return as many items as it is asked for."""
    return _is_langgraphs(store, "abatch")


def _is_langgraphs(store: BaseStore, name: str) -> bool:
    module = str(getattr(getattr(type(store), name, None), "__module__", ""))
    return name not in getattr(store, "__dict__", {}) and module.startswith("langgraph.")


def omits_expired(store: BaseStore) -> bool:
    """Whether a store over Postgres treats expired items that are not yet removed as absent."""
    return bool(getattr(store, "_omit_expired", False))


def connection_of(store: BaseStore) -> object:
    """The connection of a store over SQLite."""
    return cast("Any", store).conn


def put_statements(store: BaseStore, operations: Sequence[PutOp]) -> list[tuple[str, Sequence[Any]]]:
    """The statements, each with its parameters, by which a store over SQLite carries out these operations."""
    statements: list[tuple[str, Sequence[Any]]] = cast("Any", store)._prepare_batch_PUT_queries(
        list(enumerate(operations))
    )[0]
    return statements
