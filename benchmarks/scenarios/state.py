"""A thousand writes and a thousand reads through StateBackend, in one node of a graph."""

from collections.abc import Callable
from typing import Any, Final

from deepagents.backends import StateBackend as PeerBackend
from deepagents.middleware.filesystem import FilesystemState as PeerState
from langgraph.graph import START, StateGraph

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs import FilesystemState
from deepfs.backends import StateBackend

TITLE: Final = "StateBackend: reads and writes in one graph node"

_TEXT: Final = "a line of a note\n" * 20
_STAMP: Final = "2026-01-01T00:00:00+00:00"
_CALL: Final = (
    'await graph.ainvoke({{"files": …}}), whose node does {count:,}× await fs.awrite(new, text); await fs.aread(old)'
)


async def measure(bench: Bench) -> None:
    """Race a graph with deepfs's backend and state against one with those of deepagents."""
    count = 1_000
    contenders = [
        _contender("deepfs", StateBackend(), FilesystemState, count),
        _contender("deepagents", PeerBackend(), PeerState, count),
    ]
    work = f"{count:,} writes and reads in one node, with 1,000 files in state"
    race = await bench.race(work, contenders, noun="texts read and files", rounds=7, seconds=60)
    bench.at_least(
        "1,000 reads and writes through StateBackend: at least 5× deepagents",
        5,
        race.ratios("deepagents", "deepfs"),
    )
    bench.complete("1,000 reads and writes through StateBackend: complete", race, "deepfs")


def _contender(name: str, backend: Any, state: Any, count: int) -> Contender:
    shown: list[str] = []
    graph = StateGraph(state).add_node("node", _node(backend, count, shown)).add_edge(START, "node").compile()

    async def run() -> Any:
        shown.clear()
        return await graph.ainvoke({"files": _files()})

    return Contender(
        name=name,
        call=_CALL.format(count=count),
        run=run,
        rows=lambda result: [
            *enumerate(shown),
            *((path, data["content"]) for path, data in result["files"].items()),
        ],
        own=name == "deepfs",
    )


def _files() -> dict[str, Any]:
    data = {"encoding": "utf-8", "created_at": _STAMP, "modified_at": _STAMP}
    return {f"/old/{number}.md": {"content": f"# {number}\n{_TEXT}", **data} for number in range(1_000)}


def _node(backend: Any, count: int, shown: list[str]) -> Callable[..., Any]:
    async def node(state: dict[str, Any]) -> dict[str, Any]:
        for number in range(count):
            written = await backend.awrite(f"/new/{number}.md", _TEXT)
            assert written.error is None, written.error
            read = await backend.aread(f"/old/{number}.md")
            assert read.error is None, read.error
            shown.append(read.file_data["content"])
        return {}

    return node
