"""Creating a backend and its first use do not block the event loop, which a guard checks in every async test."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FsspecBackend,
    MemoryBackend,
    ObjectStoreBackend,
    PostgresBackend,
    S3Backend,
    StateBackend,
    StoreBackend,
)
from deepfs.policy import HistoryBackend

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
    calls: list[Callable[[FilesystemBackend], Any]] = [
        lambda on: on.als("/"),
        lambda on: on.aread("/"),
        lambda on: on.aread_raw("/"),
        lambda on: on.awrite("/", "x"),
        lambda on: on.aedit("/", "a", "b"),
        lambda on: on.aglob("*"),
        lambda on: on.agrep("x"),
        lambda on: on.adelete("/"),
        lambda on: on.adelete("/x"),
        lambda on: on.amove("/", "/"),
        lambda on: on.amove("/", "/x"),
        lambda on: on.amove("/x", "/", overwrite=True),
        lambda on: on.acopy("/", "/"),
        lambda on: on.acopy("/", "/", overwrite=True),
        lambda on: on.acopy("/", "/x"),
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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda size: MemoryBackend(max_file_size_mb=size), "max_file_size_mb"),
        (lambda size: FilesystemBackend(max_file_size_mb=size), "max_file_size_mb"),
        (lambda seconds: FilesystemBackend(search_timeout=seconds), "search_timeout"),
        (lambda seconds: CompositeBackend(MemoryBackend(), route_timeout=seconds), "route_timeout"),
    ],
    ids=["memory", "disk", "search", "route"],
)
async def test_a_negative_or_nan_limit_is_refused(make: Callable[[Any], object], name: str) -> None:
    for number in (-1, math.nan):
        with pytest.raises(ValueError, match=name):
            make(number)
    for other in ("10", b"10", [1]):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            make(other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StoreBackend(5, namespace=("fs",)), "store must be a BaseStore"),
        (lambda: StoreBackend(InMemoryStore, namespace=("fs",)), "store must be a BaseStore"),
        (
            lambda: CompositeBackend(MemoryBackend(), cast("Any", {Path("/a"): MemoryBackend()})),
            "a route must be a string",
        ),
        (
            lambda: CompositeBackend(MemoryBackend(), cast("Any", [("/a/", MemoryBackend())])),
            "routes must be a mapping",
        ),
        (lambda: HistoryBackend(MemoryBackend(), cast("Any", "/versions")), "str is no backend"),
    ],
    ids=["store", "class", "route", "routes", "versions"],
)
async def test_a_constructor_argument_of_the_wrong_type_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "bucket": (S3Backend, "bucket must be a string"),
    "prefix": (lambda given: S3Backend("bucket", given), "prefix must be a string"),
    "endpoint": (lambda given: S3Backend("bucket", endpoint_url=given or 0), "endpoint_url must be a string"),
    "prefix of a URL": (lambda given: ObjectStoreBackend("memory://", given), "prefix must be a string"),
    "index": (lambda given: ObjectStoreBackend("memory://", index=given or 0), "index must be a"),
    "retries": (lambda given: ObjectStoreBackend("memory://", retries=given or 0), "retries must be a RetryPolicy"),
    "of Postgres": (lambda given: PostgresBackend("postgresql:///x", "n", retries=given or 0), "retries must be a R"),
    "of fsspec": (lambda given: FsspecBackend("memory://", retries=given or 0), "retries must be a RetryPolicy"),
    "root": (lambda given: FsspecBackend("memory://", given), "root must be a string"),
    "root_dir": (lambda given: FilesystemBackend(given or 0), "root_dir must be a path"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", [lambda runtime: "x", str, None, 42, True, b"x", ["x"], {"x": 1}, object()])
async def test_nothing_else_is_taken_for_the_text_of_a_place(place: str, given: Any) -> None:
    make, message = PLACES[place]
    with pytest.raises(TypeError, match=message):
        make(given)


@pytest.mark.parametrize("on_disk", [True, False])
async def test_a_chunk_size_must_be_positive(tmp_path: Path, on_disk: bool) -> None:
    files = FilesystemBackend(tmp_path) if on_disk else MemoryBackend()
    await files.awrite("/a", "text")
    for size in (0, -1):
        with pytest.raises(ValueError, match="chunk_size must be positive"):
            assert [chunk async for chunk in files.adownload_stream("/a", chunk_size=size)]


async def test_state_backend_outside_a_graph_raises_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"graph\.invoke"):
        await StateBackend().aread("/a.txt")
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        StateBackend().write("/a.txt", "text")
