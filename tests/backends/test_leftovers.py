"""Use leaves nothing behind: what a backend keeps does not grow with the paths that it has ever seen."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    FilesystemBackend,
    FilesystemState,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from deepfs._langgraph import reducers
from deepfs.disk import writing

pytestmark = pytest.mark.anyio

_PATHS: Final = 300
"""New directories, in each of which there are a dozen operations."""
_MARK: Final = "left-over-"


async def _use(backend: BackendProtocol, numbers: range) -> None:
    """Make every kind of operation on files that are new and deleted again."""
    for number in numbers:
        top = f"/{_MARK}{number}"
        directory = f"{top}/notes"
        path, copy = f"{directory}/a.md", f"{directory}/b.md"
        results: list[Any] = [
            await backend.awrite(path, "one\n"),
            await backend.aedit(path, "one", "two"),
            await backend.aread(path),
            await backend.acopy(path, copy),
            await backend.als(directory),
            await backend.aglob("*.md", directory),
            await backend.agrep("two", directory),
            await backend.amove(copy, f"{directory}/c.md"),
            *await backend.aupload_files([(copy, b"\0")]),
            *await backend.adownload_files([copy]),
            await backend.adelete(top),
        ]
        assert [result.error for result in results] == [None] * len(results)
        assert (await backend.aread(path)).code == "file_not_found"


async def _use_in_graph(numbers: range) -> None:
    """As `_use`, in the runs of a graph, of which each ends what it keeps."""
    backend, left = StateBackend(), numbers

    async def node(state: FilesystemState) -> None:
        await _use(backend, left[:30])

    graph = StateGraph(FilesystemState).add_node(node).add_edge(START, "node").compile()
    while left:
        await graph.ainvoke({"files": {}})
        left = left[30:]


MADE: Final[dict[str, Callable[[Path], BackendProtocol]]] = {
    "memory": lambda directory: MemoryBackend(),
    "store": lambda directory: StoreBackend(InMemoryStore(), namespace=("a", "files")),
    "disk": FilesystemBackend,
    "sqlite": lambda directory: SqliteBackend(directory / "files.db", durability="normal"),
}


def _paths_kept() -> set[str]:
    """The paths of `_use` that any object still holds."""
    gc.collect()
    # The collector is told to leave out what was loaded before the tests: see `conftest`.
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("deepfs")]
    holders: list[Any] = [*gc.get_objects(), *modules]
    seen, found = set(map(id, holders)), set()
    while holders:
        holder = holders.pop()
        keys = holder if type(holder) is dict else ()  # Texts that are keys are no referents.
        for held in (*gc.get_referents(holder), *keys):
            if type(held) is str and _MARK in held:
                found.add(held)
            elif not gc.is_tracked(held) and id(held) not in seen:  # A dict of texts is not tracked, for example.
                seen.add(id(held))
                holders.append(held)
    return found


@pytest.mark.parametrize("name", [*MADE, "state"])
async def test_what_is_kept_does_not_grow_with_the_paths_ever_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MAX_REMEMBERED", 10)
    backend = MADE[name](tmp_path) if name in MADE else None
    await (_use_in_graph(range(_PATHS)) if backend is None else _use(backend, range(_PATHS)))
    reducers._decode.cache_clear()  # It is bounded.
    kept = _paths_kept()
    assert len(kept) < _PATHS / 5, sorted(kept)[:10]
    if backend is not None:
        await backend.aclose()
