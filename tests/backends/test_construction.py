"""Creating a backend and its first use do not block the event loop, which a guard checks in every async test."""

from pathlib import Path
from typing import Any

import anyio
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


async def test_a_missing_root_directory_behaves_like_an_empty_one(tmp_path: Path) -> None:
    calls: list[Any] = [
        lambda on: on.als("/"),
        lambda on: on.aread("/"),
        lambda on: on.awrite("/", "x"),
        lambda on: on.aedit("/", "a", "b"),
        lambda on: on.aglob("*"),
        lambda on: on.agrep("x"),
        lambda on: on.adelete("/"),
        lambda on: on.amove("/", "/x"),
        lambda on: on.amove("/x", "/", overwrite=True),
        lambda on: on.acopy("/x", "/"),
        lambda on: on.adownload_files(["/"]),
        lambda on: on.aupload_files([("/", b"x")]),
    ]
    await anyio.Path(tmp_path / "there").mkdir()
    for number, call in enumerate(calls):
        missing = await call(FilesystemBackend(tmp_path / str(number)))
        assert missing == await call(FilesystemBackend(tmp_path / "there")), number


@pytest.fixture
def _in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_in_directory")
async def test_the_working_directory_is_resolved_without_blocking_the_loop() -> None:
    for backend in (FilesystemBackend(), FilesystemBackend("."), FilesystemBackend(virtual_mode=False)):
        assert (await backend.awrite("a.txt", "text", overwrite=True)).ok
        assert [info.path.rpartition("/")[2] for info in (await backend.aglob("*.txt")).matches or ()] == ["a.txt"]


async def test_a_chunk_size_must_be_positive(tmp_path: Path) -> None:
    for files, size in ((FilesystemBackend(tmp_path), 0), (MemoryBackend(), -1)):
        await files.awrite("/a", "text")
        with pytest.raises(ValueError, match="chunk_size must be positive"):
            assert [chunk async for chunk in files.adownload_stream("/a", chunk_size=size)]


async def test_state_backend_outside_a_graph_raises_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"graph\.invoke"):
        await StateBackend().aread("/a.txt")
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        StateBackend().write("/a.txt", "text")
