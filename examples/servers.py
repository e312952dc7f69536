"""The demo on servers: the state of a graph, Postgres and S3 in one tree, with two agents on two machines.

    /            the state of the graph, which lives as long as its thread
    /memories/   a table in Postgres, which other processes may use at the same time
    /artifacts/  objects in a bucket of S3

`nox -s demo -- --full` starts both servers, on this machine and for this run only, and runs it after the other demo.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from langgraph.graph import START, StateGraph
from steps import Steps

from deepfs import CompositeBackend, FilesystemState, PostgresBackend, S3Backend, StateBackend

# The servers are started as for the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.object_stores import BUCKET, S3Server, running_s3
from support.postgres import running_server

NAMESPACE = ("demo", "memories")
EDITS = 50
REPORT = "".join(f"measure {number:05}: {number * number % 997}\n" for number in range(20_000))


@asynccontextmanager
async def opened(dsn: str, s3: S3Server) -> AsyncIterator[CompositeBackend]:
    """The tree of one agent; another agent opens its own, over the same servers."""
    memories = PostgresBackend(dsn, namespace=NAMESPACE)
    artifacts = S3Backend(BUCKET, "demo", endpoint_url=s3.url, **s3.options())
    routes = {"/memories/": memories, "/artifacts/": artifacts}
    async with CompositeBackend(default=StateBackend(), routes=routes) as tree:
        yield tree


def nodes(tree: CompositeBackend, other: PostgresBackend) -> list[Any]:
    """The nodes of the graph: async functions that await the tree."""

    async def store(state: FilesystemState) -> None:
        with Steps("1. One tree over state, Postgres and S3") as steps:
            await steps.call(tree.awrite, "/plan.md", "- measure\n- remember\n")
            await steps.call(tree.awrite, "/artifacts/report.txt", REPORT)
            await steps.call(tree.aread, "/artifacts/report.txt", offset=9_999, limit=2)
            await steps.call(tree.awrite, "/memories/lessons/ada.md", "Ada prefers short answers.\n")
            await steps.call(tree.als, "/")

    async def search(state: FilesystemState) -> None:
        with Steps("2. Search all of it at once") as steps:
            await steps.call(tree.agrep, r"Ada|remember|measure 00042\b", regex=True)
            await steps.call(tree.acopy, "/artifacts/report.txt", "/memories/report.txt")
            await steps.call(tree.agrep, "measure 19999", "/memories")

    async def edit_from_two_sides(state: FilesystemState) -> None:
        names = [f"task {number:02}" for number in range(EDITS)]
        edited: list[Any] = []

        async def finish(number: int, name: str) -> None:
            backend, path = (tree, "/memories/board.md") if number % 2 else (other, "/board.md")
            edited.append(await backend.aedit(path, f"{name}: open", f"{name}: done"))

        with Steps(f"3. Two clients edit one file of Postgres {EDITS} times at once") as steps:
            await steps.call(tree.awrite, "/memories/board.md", "".join(f"{name}: open\n" for name in names))
            with steps.timed(f"{EDITS} × aedit('board.md', 'task …: open', 'task …: done')") as answer:
                async with anyio.create_task_group() as tasks:
                    for number, name in enumerate(names):
                        tasks.start_soon(finish, number, name)
                answer.append(f"{sum(result.ok for result in edited)} succeeded")
            await steps.call(tree.agrep, ": done", "/memories/board.md")

    async def watch(state: FilesystemState) -> None:
        title, call = "4. See what the other client changes", "async for event in tree.awatch('/memories'): …"
        with Steps(title) as steps, steps.timed(call) as answer:
            async with aclosing(tree.awatch("/memories")) as events:
                answer.append(f"{(await anext(events)).kind}: the watch has begun")
                await other.awrite("/from-elsewhere.md", "hello\n")
                event = await anext(events)
                answer.append(f"{event.kind}: {event.path}")

    return [store, search, edit_from_two_sides, watch]


async def main() -> None:
    with running_server() as postgres, running_s3() as s3:
        async with (
            opened(postgres.dsn(), s3) as tree,
            PostgresBackend(postgres.dsn(), namespace=NAMESPACE) as other,
        ):
            graph = StateGraph(FilesystemState)
            graph.add_sequence([(node.__name__, node) for node in nodes(tree, other)])
            graph.add_edge(START, "store")
            final = await graph.compile().ainvoke({"files": {}})
            print(f"The graph has ended. Its state holds {', '.join(sorted(final['files']))}; the rest is on servers.")


if __name__ == "__main__":
    anyio.run(main)
