"""Backends are made and first used on the event loop without blocking it: the guard of every async test watches."""

from pathlib import Path

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, StateBackend, StoreBackend

pytestmark = pytest.mark.anyio


async def test_every_backend_is_made_and_used_on_the_loop(tmp_path: Path) -> None:
    tree = CompositeBackend(
        MemoryBackend(),
        {
            "/disk/": FilesystemBackend(tmp_path / "disk"),
            "/new/": FilesystemBackend(tmp_path / "not" / "yet"),
            "/store/": StoreBackend(InMemoryStore(), namespace=("fs",)),
        },
    )
    for mount in ("", "/disk", "/new", "/store"):
        assert (await tree.awrite(f"{mount}/a.txt", "needle")).ok
    assert len((await tree.agrep("needle")).matches or ()) == 4


@pytest.fixture
def _in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_in_directory")
async def test_the_working_directory_is_asked_for_off_the_loop() -> None:
    for backend in (FilesystemBackend(), FilesystemBackend("."), FilesystemBackend(virtual_mode=False)):
        assert (await backend.awrite("a.txt", "text", overwrite=True)).ok
        assert [info.path.rpartition("/")[2] for info in (await backend.aglob("*.txt")).matches or ()] == ["a.txt"]


async def test_outside_a_graph_state_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"graph\.invoke"):
        await StateBackend().aread("/a.txt")
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        StateBackend().write("/a.txt", "text")
