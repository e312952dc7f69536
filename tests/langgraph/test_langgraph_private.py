"""Every private name of LangGraph that `_langgraph/private.py` uses: a test fails if LangGraph changes one."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.store.base import GetOp, Item, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from deepfs import FilesystemState, MemoryBackend, StateBackend
from deepfs._langgraph import private as _langgraph
from deepfs._langgraph.private import (
    batch,
    legacy_namespace,
    never_suspends,
    runs_loop_of,
    store_loop,
)
from deepfs.errors import BackendError

fs = StateBackend()
A_FILE: Any = {"files": {"/a": {"content": "one two"}}}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def run(node: Callable[..., Any], *, state: Any = FilesystemState, given: Any = A_FILE, **options: Any) -> Any:
    builder = StateGraph(state).add_node("node", node).add_edge(START, "node")
    return builder.compile(checkpointer=options.pop("checkpointer", None), store=options.pop("store", None)).invoke(
        given, {"configurable": {"thread_id": "t"}, **options}
    )


# --- releases of LangGraph that work otherwise -----------------------------------------------------------------------


def test_a_langgraph_that_works_otherwise_is_an_error_that_names_the_tested_releases() -> None:
    def node(state: FilesystemState) -> None:
        configurable = get_config()["configurable"]
        with patch.dict(configurable, {"__pregel_read": lambda *_: {}}):
            for call in (fs.ls, fs.read, fs.delete):
                with pytest.raises(RuntimeError, match=r"LangGraph .* was tested with, 1\.2\.16 to "):
                    call("/a")
        assert fs.edit("/a", "one", "1").ok

    assert run(node)["files"]["/a"]["content"] == "1 two"


# --- kinds of state --------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_calls_outside_a_graph_raise_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        fs.ls("/")
    with pytest.raises(RuntimeError, match="inside a node or a tool"):
        await fs.awrite("/a", "x")
    assert (await MemoryBackend().awrite("/a", "x")).ok


# --- stores and the runtime ------------------------------------------------------------------------------------------


def test_the_legacy_namespace_contains_the_assistant_id() -> None:
    seen = []
    run(lambda _: seen.append(legacy_namespace()), metadata={"assistant_id": "helper"})
    run(lambda _: seen.append(legacy_namespace()))
    assert [*seen, legacy_namespace()] == [("helper", "filesystem"), ("filesystem",), ("filesystem",)]


@pytest.mark.parametrize("kind", [AsyncPostgresStore, AsyncSqliteStore])
def test_the_private_methods_with_which_database_stores_write(kind: Any) -> None:
    """If LangGraph has renamed one of these methods, concurrent edits of several processes may be lost."""
    for name in _langgraph._WRITING:
        assert getattr(kind, name).__module__.startswith("langgraph.store."), name
    assert kind._cursor.__module__ in _langgraph._KINDS
    parameters = inspect.signature(kind._cursor).parameters
    assert parameters.keys() == ({"self", "transaction"} if kind is AsyncSqliteStore else {"self", "pipeline"})
    assert list(inspect.signature(kind._batch_put_ops).parameters) == ["self", "put_ops", "cur"]
    assert list(inspect.signature(kind._prepare_batch_PUT_queries).parameters) == ["self", "put_ops"]


@pytest.mark.anyio
async def test_the_internals_of_a_store_over_sqlite() -> None:
    async with AsyncSqliteStore.from_conn_string(":memory:") as store:
        assert _langgraph.database_kind(store) == "sqlite"
        assert _langgraph.writes_plainly(store)
        assert _langgraph.lists_all(store)
        assert _langgraph.connection_of(store) is store.conn
        [(statement, parameters)] = _langgraph.put_statements(store, [PutOp(("a",), "/b", {"content": "c"})])
        async with _langgraph._sqlite_session(store) as session:
            assert store.is_setup
            assert store.lock.locked()
            assert await session.rows(statement, parameters) == []
        item = await store.aget(("a",), "/b")
        assert item is not None
        assert item.value == {"content": "c"}
    assert _langgraph.database_kind(InMemoryStore()) is None
    assert not _langgraph.writes_plainly(InMemoryStore())
    assert _langgraph.lists_all(InMemoryStore())


@pytest.mark.anyio
async def test_the_internals_of_a_store_over_postgres(postgres_store: AsyncPostgresStore) -> None:
    assert _langgraph.database_kind(postgres_store) == "postgres"
    assert _langgraph.writes_plainly(postgres_store)
    assert _langgraph.lists_all(postgres_store)
    assert not _langgraph.omits_expired(postgres_store)
    postgres_store.ttl_config = {"omit_expired": True}
    assert _langgraph.omits_expired(postgres_store)


@pytest.mark.anyio
async def test_the_loop_of_a_store_is_known() -> None:
    loop = asyncio.get_running_loop()
    async with AsyncSqliteStore.from_conn_string(":memory:") as store:
        assert store_loop(store) is loop
        assert runs_loop_of(store)
        assert not await asyncio.to_thread(runs_loop_of, store)
    assert store_loop(InMemoryStore()) is None
    assert not runs_loop_of(InMemoryStore())


class LoopStore(InMemoryStore):
    """A store bound to an event loop in another thread; it works only on that loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def abatch(self, ops: Any) -> Any:
        assert asyncio.get_running_loop() is self.loop
        return await super().abatch(ops)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def loop_store() -> Iterator[LoopStore]:
    store = LoopStore()
    yield store
    if store.thread.is_alive():
        store.stop()
    store.loop.close()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_operations_run_on_the_loop_of_the_store(loop_store: LoopStore) -> None:
    assert await batch(loop_store, [PutOp(("n",), "k", {"v": 1})]) == [None]
    [item] = await batch(loop_store, [GetOp(("n",), "k")])
    assert isinstance(item, Item)
    assert item.value == {"v": 1}


@pytest.mark.anyio
async def test_a_store_whose_loop_has_ended_is_an_error(loop_store: LoopStore) -> None:
    await asyncio.to_thread(loop_store.stop)
    with pytest.raises(BackendError, match="open the store anew"):
        await batch(loop_store, [GetOp(("n",), "k")])


class SlowStore(InMemoryStore):
    """A store that suspends in each call."""

    async def abatch(self, ops: Any) -> list[Any]:
        await asyncio.sleep(0)
        return await super().abatch(ops)


class SubclassedStore(InMemoryStore):
    """A store whose instances can have further attributes."""


class StoreProxy:
    """A store by attributes alone, which forwards all calls."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_only_a_plain_store_in_memory_never_suspends() -> None:
    indexed = InMemoryStore(index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]})
    patched, bound = SubclassedStore(), SubclassedStore()
    patched.abatch = SlowStore().abatch  # type: ignore[method-assign]
    bound.loop = asyncio.new_event_loop()  # type: ignore[attr-defined]
    bound.loop.close()  # type: ignore[attr-defined]
    proxy: Any = StoreProxy(InMemoryStore())
    assert [never_suspends(store) for store in (InMemoryStore(), SubclassedStore())] == [True, True]
    assert [never_suspends(store) for store in (SlowStore(), indexed, patched, bound, proxy)] == [False] * 5
    call = batch(InMemoryStore(), [PutOp(("a",), "k", {"v": 1}), GetOp(("a",), "k")])
    with pytest.raises(StopIteration):
        call.send(None)
