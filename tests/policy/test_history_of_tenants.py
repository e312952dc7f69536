"""A history over files that callers or threads have for themselves: none sees the versions of another one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemState,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import NotFoundError
from deepfs.policy import HistoryBackend, WrapperBackend

pytestmark = pytest.mark.anyio


@dataclass
class Context:
    user: str


def namespace(runtime: Runtime[Context]) -> tuple[str, ...]:
    return (runtime.context.user,)


async def run_as(user: str, call: Callable[[], Awaitable[None]]) -> None:
    """Await `call` in a node of a graph that runs for `user`, in a thread of the user."""

    async def node(state: FilesystemState) -> None:
        await call()

    graph = StateGraph(FilesystemState, context_schema=Context)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    await graph.compile().ainvoke(
        {}, {"configurable": {"thread_id": f"of {user}", "run_id": f"run of {user}"}}, context=Context(user)
    )


class Unplaced(WrapperBackend):
    """A layer that does not say in which storage a path is."""

    async def astorage_place(self, path: str) -> Any:
        return await BackendProtocol.astorage_place(self, path)


Histories = list[tuple[str, HistoryBackend]]


@pytest.fixture
def anyio_backend() -> str:
    """LangGraph runs on asyncio."""
    return "asyncio"


@pytest.fixture(params=["store", "sqlite", "postgres", "state"])
async def histories(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_files_dsn: str
) -> AsyncIterator[Histories]:
    """Histories over files that are by caller, or of which those under /mine are."""
    async with AsyncExitStack() as stack:
        tenants: BackendProtocol
        match request.param:
            case "store":
                tenants = StoreBackend(InMemoryStore(), namespace=namespace)
            case "sqlite":
                tenants = await stack.enter_async_context(SqliteBackend(tmp_path / "a.db", namespace))
            case "postgres":
                tenants = await stack.enter_async_context(PostgresBackend(postgres_files_dsn, namespace))
            case _:
                tenants = StateBackend()
        shared = CompositeBackend(MemoryBackend(), {"/mine/": tenants})
        yield [
            ("the versions beside the files", HistoryBackend(tenants)),
            ("the versions elsewhere", HistoryBackend(tenants, MemoryBackend())),
            ("one mount", HistoryBackend(shared)),
            ("one mount, the versions on disk", HistoryBackend(shared, FilesystemBackend(tmp_path / "kept"))),
            ("a layer between", HistoryBackend(WrapperBackend(shared), MemoryBackend(), "/")),
            ("a layer that does not say where files lie", HistoryBackend(Unplaced(shared), MemoryBackend())),
        ]


async def test_no_tenant_sees_the_versions_of_another_one(histories: Histories) -> None:
    for how, history in histories:
        path = f"/mine/{how}"

        async def change(history: HistoryBackend = history, path: str = path) -> None:
            await history.awrite(path, "secret of ada")
            await history.aedit(path, "secret", "new secret")
            [version] = await history.ahistory(path)
            assert await history.aread_version(path, version.number) == b"secret of ada"
            assert (await history.arestore(path, version.number)).ok
            assert len(await history.achanges(path)) == 3

        async def look(history: HistoryBackend = history, path: str = path) -> None:
            assert await history.ahistory(path) == []
            assert await history.achanges(path) == []
            with pytest.raises(NotFoundError):
                await history.aundo("run of ada")
            for number in (1, 2):
                assert (await history.arestore(path, number)).code == "file_not_found"
                with pytest.raises(NotFoundError):
                    await history.aread_version(path, number)
            await history.awrite(path, "of bob")
            await history.awrite(path, "new", overwrite=True)
            [version] = await history.ahistory(path)
            assert await history.aread_version(path, version.number) == b"of bob"
            assert {change.thread for change in await history.achanges(limit=100)} == {"of bob"}
            assert (await history.aundo("run of bob")).conflicts == {}

        await run_as("ada", change)
        await run_as("bob", look)


async def test_the_versions_of_what_all_share_are_those_of_all(tmp_path: Path) -> None:
    tenants = StoreBackend(InMemoryStore(), namespace=namespace)
    history = HistoryBackend(CompositeBackend(MemoryBackend(), {"/mine/": tenants}))
    await history.awrite("/shared", "1")  # Outside of a graph, where the factory fails.

    async def change() -> None:
        await history.aedit("/shared", "1", "2")

    await run_as("ada", change)
    await run_as("bob", lambda: history.arestore("/shared", 1))
    assert [version.number for version in await history.ahistory("/shared")] == [1, 2]


async def test_versions_are_found_again_after_the_database_has_moved(tmp_path: Path) -> None:
    async def change(name: str, kept: list[int]) -> None:
        async with SqliteBackend(tmp_path / name, namespace) as tenants:
            history = HistoryBackend(tenants, FilesystemBackend(tmp_path / "kept"))
            await history.awrite("/a", name)
            await history.adelete("/a")
            assert [version.number for version in await history.ahistory("/a")] == kept

    await run_as("ada", lambda: change("a.db", [1]))
    await run_as("bob", lambda: change("a.db", [1]))
    await run_as("ada", lambda: change("b.db", [1, 2]))


async def test_views_of_tenants_share_no_versions(tmp_path: Path) -> None:
    archive = MemoryBackend()
    async with SqliteBackend(tmp_path / "a.db", namespace) as tenants:
        whole = HistoryBackend(tenants, archive)
        mounted = CompositeBackend(MemoryBackend(), {"/mine/": tenants.at("ada")})
        by_ada = [HistoryBackend(tenants.at("ada"), archive), HistoryBackend(mounted, archive), whole.at("ada")]
        for history, path in zip(by_ada, ["/a", "/mine/b", "/c"], strict=True):
            await history.awrite(path, "secret of ada")
            await history.aedit(path, "secret", "new secret")
            [version] = await history.ahistory(path)
            assert await history.aread_version(path, version.number) == b"secret of ada"
            other = HistoryBackend(tenants.at("bob"), archive)
            for bob in (other, HistoryBackend(CompositeBackend(MemoryBackend(), {"/mine/": other.inner}), archive)):
                assert (await bob.ahistory(path), await bob.achanges()) == ([], [])
        assert {path for each in await whole.at("ada").achanges() for path in each.paths} >= {"/a", "/c"}


async def test_a_state_without_a_thread_is_known_by_its_run() -> None:
    history = HistoryBackend(StateBackend(), MemoryBackend())
    seen: list[object] = []

    async def node(state: FilesystemState, config: RunnableConfig) -> None:
        written = await history.awrite("/a", "secret")
        await history.aedit("/a", "secret", "changed")
        seen.append(written.error or [version.number for version in await history.ahistory("/a")])
        if written.ok:
            seen.append(len(await history.achanges()))

    graph = StateGraph(FilesystemState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    for run in ("1", "2", None):
        await graph.compile().ainvoke({}, {"configurable": {"run_id": run} if run else {}})
    assert seen == [[1], 2, [1], 2, seen[-1]]
    assert "thread_id or run_id" in str(seen[-1])


def test_backends_that_a_factory_makes_have_no_history() -> None:
    with pytest.warns(DeprecationWarning, match="factories"):
        factory = WrapperBackend(lambda _: MemoryBackend())
    view = factory.at(Runtime(context=Context("ada")))
    for inner in (factory, view, CompositeBackend(MemoryBackend(), {"/t/": factory})):
        for versions in (None, MemoryBackend()):
            with pytest.raises(ValueError, match="let the factory make the history"):
                HistoryBackend(inner, versions)
