"""Random graphs: every change that succeeded for a task is in the final files or is named as a conflict."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from deepfs._langgraph.reducers import is_header
from support.counts import few_or_many
from support.random_graphs import RandomGraph


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The kind and address of the checkpoint storage."""
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else str(tmp_path / "threads.db")
    return request.param, dsn


@pytest.fixture
def saver(place: tuple[str, str]) -> Iterator[Any]:
    kind, address = place
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(address) as sqlite:
            yield sqlite
    else:
        with PostgresSaver.from_conn_string(address) as postgres:
            postgres.setup()
            yield postgres


@pytest.fixture
async def async_saver(place: tuple[str, str]) -> AsyncIterator[Any]:
    kind, address = place
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(address) as sqlite:
            yield sqlite
    else:
        # When a run fails, cancelling its pending write breaks the connection of that write.
        options: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(address, min_size=1, max_size=3, kwargs=options) as pool:
            postgres = AsyncPostgresSaver(cast("Any", pool))
            await postgres.setup()
            yield postgres


def check(seed: int, graph: RandomGraph, values: Any, loaded: Any) -> None:
    assert graph.report.missing(values) == [], f"seed {seed}"
    assert loaded["files"] == values["files"], f"seed {seed}"
    assert loaded["file_conflicts"] == values["file_conflicts"], f"seed {seed}"
    assert values["files"]["/untouched"] == graph.files["/untouched"]
    assert not any(is_header(path) or type(data) is not dict for path, data in values["files"].items())


@pytest.mark.parametrize("count", few_or_many(10, 84))
def test_every_success_of_a_sync_run_is_in_the_files_or_a_conflict(count: int, saver: Any) -> None:
    for seed in range(count):
        graph = RandomGraph(seed, sync=True)
        values = graph.run(saver, str(seed))
        check(seed, graph, values, graph.builder.compile(checkpointer=saver).get_state(graph.config(str(seed))).values)


@pytest.mark.anyio
@pytest.mark.parametrize("count", few_or_many(10, 84))
async def test_every_success_of_an_async_run_is_in_the_files_or_a_conflict(count: int, async_saver: Any) -> None:
    for seed in range(1000, 1000 + count):
        graph = RandomGraph(seed, sync=False)
        values = await graph.arun(async_saver, str(seed))
        app = graph.builder.compile(checkpointer=async_saver)
        check(seed, graph, values, (await app.aget_state(graph.config(str(seed)))).values)


def test_random_graphs_contain_every_kind_of_part() -> None:
    parts = [part for seed in range(10) for part in RandomGraph(seed, sync=True).parts]
    assert set(parts) == {"node", "hand", "both", "tools", "subgraph", "called"}
