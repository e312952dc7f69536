"""Files in the formats of deepagents, in stores and in the state of a thread, are read, searched and changed."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore

from deepfs import BackendProtocol, FilesystemState, StateBackend, StoreBackend
from support.files import stored

pytestmark = pytest.mark.anyio

IMAGE: Final = b"\x89PNG\r\n\x1a\n\x00\xff\xfe"
UNICODE: Final = "/日本/naïve ﬁle – ünïcödé.txt"
THEN: Final = "2024-05-06T07:08:09.000010+00:00"

V2: Final[dict[str, bytes]] = {
    "/bom.txt": b"\xef\xbb\xbfbom\n",
    "/crlf.txt": b"one\r\ntwo\r\n",
    "/docs/a.md": b"# A\n\nedited\n",
    "/docs/moved.md": b"# B\n",
    "/empty.txt": b"",
    "/image.png": IMAGE,
    UNICODE: "größe\n".encode(),
}
V2_CHANGED: Final = {
    "/bom.txt": b"\xef\xbb\xbfmark\n",
    "/crlf.txt": b"1\r\n2\r\n",
    "/empty.txt": b"full",
    "/papers/a.md": b"# A\n\nedited again\n",
    "/papers/image.png": IMAGE,
    "/papers/moved.md": b"# B\n",
    "/papers/new.md": b"new\n",
    UNICODE: V2[UNICODE],
}
V1: Final[dict[str, list[str]]] = {"/a.txt": ["one", "TWO", "three", ""], "/b.txt": ["größe"]}

Change = Callable[[BackendProtocol], Awaitable[None]]


async def check_files(backend: BackendProtocol, files: dict[str, bytes]) -> None:
    """Glob, download and listing find exactly these files."""
    found = await backend.aglob("/**")
    assert [(info.path, info.size) for info in found.matches or ()] == [
        (each, len(files[each])) for each in sorted(files)
    ]
    downloaded = await backend.adownload_files(list(files))
    assert {each.path: each.content for each in downloaded} == files
    names = {path[1:].partition("/") for path in files}
    listed = await backend.als("/")
    assert [info.path for info in listed.entries or ()] == sorted({f"/{name}{below}" for name, below, _ in names})


async def change_v2(backend: BackendProtocol) -> None:
    await check_files(backend, V2)
    image = (await backend.aread("/image.png")).file_data
    assert (image.encoding, image.mime_type) == ("base64", "image/png")
    for text, line in (("größe", (UNICODE, 1, "größe")), ("two", ("/crlf.txt", 2, "two"))):
        assert [(each.path, each.line, each.text) for each in (await backend.agrep(text)).matches or ()] == [line]
    before = (await backend.aread_raw("/docs/a.md")).data
    version = (await backend.aread("/docs/a.md")).version
    assert (await backend.aedit("/docs/a.md", "edited", "edited again", if_match=version)).error is None
    after = (await backend.aread_raw("/docs/a.md")).data
    assert after.created_at == before.created_at
    assert datetime.fromisoformat(after.modified_at) > datetime.fromisoformat(before.modified_at)
    assert (await backend.awrite("/docs/a.md", "x", if_match=version)).code == "conflict"
    assert (await backend.awrite("/crlf.txt", "x")).code == "already_exists"
    assert (await backend.awrite("/docs", "x")).code == "is_directory"
    assert (await backend.aedit("/crlf.txt", "one\ntwo", "1\n2")).error is None
    assert (await backend.aedit("/bom.txt", "bom", "mark")).error is None
    assert (await backend.awrite("/docs/new.md", "new\n")).error is None
    assert (await backend.amove("/docs", "/papers")).error is None
    assert (await backend.acopy("/image.png", "/papers/image.png")).error is None
    assert (await backend.adelete("/image.png")).error is None
    assert (await backend.awrite("/empty.txt", "full", overwrite=True)).error is None
    await check_files(backend, V2_CHANGED)


async def change_v1(backend: BackendProtocol) -> None:
    await check_files(backend, {path: "\n".join(lines).encode() for path, lines in V1.items()})
    assert [(each.line, each.text) for each in (await backend.agrep("T")).matches or ()] == [(2, "TWO")]
    read = await backend.aread("/a.txt", 1, 1)
    assert (read.file_data.content, read.total_lines, read.next_offset) == ("TWO\n", 3, 2)
    assert (await backend.aedit("/a.txt", "TWO\nthree", "2\n3")).error is None
    assert (await backend.adelete("/b.txt")).error is None
    await check_files(backend, {"/a.txt": b"one\n2\n3\n"})


FORMATS: Final[dict[str, tuple[dict[str, Any], Change]]] = {
    "v1": (
        {path: {"content": lines, "created_at": THEN, "modified_at": THEN} for path, lines in V1.items()},
        change_v1,
    ),
    "v2": ({path: {**stored(data), "created_at": THEN, "modified_at": THEN} for path, data in V2.items()}, change_v2),
}
EACH: Final = pytest.mark.parametrize(("there", "file_format"), [("v1", "v1"), ("v1", "v2"), ("v2", "v2")])


@pytest.fixture
def anyio_backend() -> str:
    """LangGraph needs asyncio."""
    return "asyncio"


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    return request.getfixturevalue(request.param)


@EACH
async def test_a_store(store: BaseStore, there: str, file_format: Any) -> None:
    files, change = FORMATS[there]
    for path, value in files.items():
        await store.aput(("user", "files"), path, value)
        await store.aput(("user", "files", "beneath"), path, value)
    await change(StoreBackend(store, namespace=("user", "files"), file_format=file_format))
    beneath = await store.asearch(("user", "files", "beneath"), limit=100)
    assert {item.key: item.value for item in beneath} == files


@EACH
async def test_a_thread(there: str, file_format: Any) -> None:
    files, change = FORMATS[there]

    async def work(state: FilesystemState) -> None:
        await change(StateBackend(file_format=file_format))

    graph = StateGraph(FilesystemState).add_node("work", work).add_edge(START, "work").compile()
    after = (await graph.ainvoke({"files": files}))["files"]
    if there == "v1":
        assert after["/a.txt"]["content"] == {"v1": ["one", "2", "3", ""], "v2": "one\n2\n3\n"}[file_format]
        assert after["/a.txt"]["created_at"] == THEN
