"""Random graphs: every change that succeeded for a task is in the final files or is named as a conflict."""

from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from deepfs._langgraph.reducers import is_header
from support.counts import few_or_many
from support.random_graphs import RandomGraph


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def check(seed: int, graph: RandomGraph, values: Any, loaded: Any) -> None:
    assert graph.report.missing(values) == [], f"seed {seed}"
    assert loaded["files"] == values["files"], f"seed {seed}"
    assert loaded["file_conflicts"] == values["file_conflicts"], f"seed {seed}"
    assert values["files"]["/untouched"] == graph.files["/untouched"]
    assert not any(is_header(path) or type(data) is not dict for path, data in values["files"].items())


@pytest.mark.parametrize("count", few_or_many(10, 84))
def test_every_success_of_a_sync_run_is_in_the_files_or_a_conflict(count: int, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        for seed in range(count):
            graph = RandomGraph(seed, sync=True)
            values = graph.run(saver, str(seed))
            app = graph.builder.compile(checkpointer=saver)
            check(seed, graph, values, app.get_state(graph.config(str(seed))).values)


@pytest.mark.anyio
@pytest.mark.parametrize("count", few_or_many(10, 84))
async def test_every_success_of_an_async_run_is_in_the_files_or_a_conflict(count: int, postgres_dsn: str) -> None:
    # When a run fails, cancelling its pending write breaks the connection of that write.
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=3, kwargs=options) as pool:
        saver = AsyncPostgresSaver(cast("Any", pool))
        await saver.setup()
        for seed in range(1000, 1000 + count):
            graph = RandomGraph(seed, sync=False)
            values = await graph.arun(saver, str(seed))
            app = graph.builder.compile(checkpointer=saver)
            check(seed, graph, values, (await app.aget_state(graph.config(str(seed)))).values)
