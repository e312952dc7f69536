"""Threads and stores written by deepagents are read, edited and continued by deepfs, and then again by deepagents."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from deepagents import backends as peer_backends
from deepagents.middleware.filesystem import FilesystemState as PeerState
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore

from deepfs import FilesystemState, StateBackend, StoreBackend

PNG: Final = b"\x89PNG\r\n\x1a\n\x00\xff"
THEN: Final = "2024-05-06T07:08:09.000010+00:00"
OLD: Final = {"content": ["erste", "zweite", ""], "created_at": THEN, "modified_at": THEN}
FROM_JS: Final = {
    "content": {str(index): byte for index, byte in enumerate(PNG)},
    "mimeType": "image/png",
    "created_at": THEN,
    "modified_at": THEN,
}
BINARY: Final = {"content": b64encode(PNG).decode(), "encoding": "base64", "created_at": THEN, "modified_at": THEN}

Format = Literal["v1", "v2"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The stores need asyncio."""
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseCheckpointSaver[str]]:
    if request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            yield saver
    else:
        with PostgresSaver.from_conn_string(request.getfixturevalue("postgres_dsn")) as saver:
            saver.setup()
            yield saver


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    return request.getfixturevalue(request.param)


# --- threads ---------------------------------------------------------------------------------------------------------


def run(saver: Any, state: type, work: Callable[[], None], files: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the thread once in a graph with this state; returns the files afterwards."""
    graph = StateGraph(state).add_node("work", lambda _: work()).add_edge(START, "work").compile(checkpointer=saver)
    given: dict[str, Any] = (
        {"files": files or {}} if state is FilesystemState else {"files": files or {}, "messages": []}
    )
    return graph.invoke(given, {"configurable": {"thread_id": "t"}})["files"]


@pytest.mark.parametrize("file_format", ["v1", "v2"])
def test_a_thread_can_be_continued_by_either_library(saver: Any, file_format: Format) -> None:
    theirs, ours = peer_backends.StateBackend(), StateBackend(file_format=file_format)

    def begin() -> None:
        assert theirs.write("/text.txt", "one\ntwo\n").error is None
        assert theirs.write("/gone.txt", "x").error is None
        assert theirs.upload_files([("/image.png", PNG)])[0].error is None

    created = run(saver, PeerState, begin, {"/old.txt": OLD})["/text.txt"]["created_at"]

    def go_on() -> None:
        assert ours.read("/text.txt").file_data == {**ours.read_raw("/text.txt").data, "mime_type": "text/plain"}
        assert ours.download_files(["/image.png"])[0].content == PNG
        assert ours.read("/old.txt").file_data["content"] == "erste\nzweite\n"
        assert ours.edit("/text.txt", "one", "1").ok
        assert ours.edit("/old.txt", "erste", "first").ok
        assert ours.write("/new.txt", "from deepfs\n").ok
        assert ours.delete("/gone.txt").ok
        assert [match.path for match in ours.grep("two").matches or ()] == ["/text.txt"]

    files = run(saver, FilesystemState, go_on)
    assert sorted(files) == ["/image.png", "/new.txt", "/old.txt", "/text.txt"]
    assert files["/text.txt"]["created_at"] == created
    assert files["/old.txt"]["created_at"] == THEN
    for path in ("/new.txt", "/old.txt", "/text.txt"):
        assert type(files[path]) is dict
        assert isinstance(files[path]["content"], list if file_format == "v1" else str)

    def finish() -> None:
        assert sorted(entry["path"] for entry in theirs.ls("/").entries or ()) == sorted(files)
        assert theirs.read("/text.txt").file_data["content"] == "1\ntwo\n"
        assert theirs.read("/old.txt").file_data["content"] == "first\nzweite\n"
        assert theirs.read("/new.txt").file_data["content"] == "from deepfs\n"
        assert theirs.download_files(["/image.png"])[0].content == PNG
        assert theirs.edit("/new.txt", "deepfs", "both").error is None
        assert theirs.edit("/old.txt", "first", "1st").error is None
        assert [match["path"] for match in theirs.grep("two").matches or ()] == ["/text.txt"]

    files = run(saver, PeerState, finish)
    assert files["/text.txt"]["created_at"] == created

    def look() -> None:
        assert ours.read("/new.txt").file_data["content"] == "from both\n"
        assert ours.read("/old.txt").file_data["content"] == "1st\nzweite\n"

    run(saver, FilesystemState, look)


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("file_format", ["v1", "v2"])
async def test_a_store_can_be_used_by_either_library(store: Any, file_format: Format) -> None:
    theirs = peer_backends.StoreBackend(store=store, namespace=lambda _: ("user@example", "files"))
    ours = StoreBackend(store, namespace=("user@example", "files"), file_format=file_format)
    assert (await theirs.awrite("/text.txt", "one\ntwo\n")).error is None
    assert (await theirs.aupload_files([("/image.png", PNG)]))[0].error is None
    for path, value in [("/old.txt", OLD), ("/js.png", FROM_JS)]:
        await store.aput(("user@example", "files"), path, value)
    created = (await store.aget(("user@example", "files"), "/text.txt")).value["created_at"]

    assert [info.path for info in (await ours.als("/")).entries or ()] == [
        "/image.png",
        "/js.png",
        "/old.txt",
        "/text.txt",
    ]
    downloads = await ours.adownload_files(["/image.png", "/js.png"])
    assert [download.content for download in downloads] == [PNG, PNG]
    assert (await ours.aedit("/text.txt", "one", "1")).ok
    assert (await ours.aedit("/old.txt", "erste", "first")).ok
    assert (await ours.awrite("/new.txt", "from deepfs\n")).ok
    assert (await ours.adelete("/js.png")).ok
    text = (await store.aget(("user@example", "files"), "/text.txt")).value
    assert text["created_at"] == created
    assert isinstance(text["content"], list if file_format == "v1" else str)

    contents = {path: (await theirs.aread(path)).file_data["content"] for path in ("/text.txt", "/old.txt", "/new.txt")}
    assert contents == {"/text.txt": "1\ntwo\n", "/old.txt": "first\nzweite\n", "/new.txt": "from deepfs\n"}
    assert (await theirs.adownload_files(["/image.png"]))[0].content == PNG
    assert (await theirs.aedit("/new.txt", "deepfs", "both")).error is None
    assert (await theirs.aedit("/old.txt", "first", "1st")).error is None
    assert (await ours.aread("/new.txt")).file_data["content"] == "from both\n"
    assert (await ours.aread("/old.txt")).file_data["content"] == "1st\nzweite\n"


@pytest.mark.anyio
async def test_v1_refuses_binary_content(store: Any) -> None:
    ours = StoreBackend(store, namespace=("files",), file_format="v1")
    [outcome] = await ours.aupload_files([("/image.png", PNG)])
    assert outcome.error == "invalid_content"
    assert await store.aget(("files",), "/image.png") is None
    await store.aput(("files",), "/image.png", BINARY)
    assert (await ours.adownload_files(["/image.png"]))[0].content == PNG
