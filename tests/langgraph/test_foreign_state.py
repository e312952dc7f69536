"""Foreign items in the state, beside the files, do not break operations, stay in place, and are counted."""

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from deepfs import FilesystemState, StateBackend

pytestmark = pytest.mark.anyio

fs = StateBackend()
THREAD: Any = {"configurable": {"thread_id": "t"}}
KEYS: list[Any] = [
    *("notes.md", "dir/notes.md", "/dir/../x", "/./x", "/dir/x/", "/dir//x", "", "/", "/dir/a\0b", "~/x", "C:/x"),
    *(f"/dir/{'x' * 256}", 7, None),
]
VALUES: list[Any] = [
    *({}, "a text", 7, ["a"], {"content": 7}, {"content": ["a", 7]}, {"content": "x", "encoding": 1}),
    {"content": "=", "encoding": "base64"},
    {"content": "x", "modified_at": 7},
    {"memory": "tea"},
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def stored(text: str) -> dict[str, Any]:
    return {"content": text, "encoding": "utf-8", "created_at": "0", "modified_at": "0"}


async def files_after(node: Any, files: Any) -> dict[str, Any]:
    """Run `node` in parallel with a node that returns all files; return the files, compared with a reload."""

    def beside(state: FilesystemState) -> Any:
        return {"files": {**state["files"], "/beside": stored("x")}}

    builder = StateGraph(FilesystemState).add_node("node", node).add_node("beside", beside)
    builder.add_edge(START, "node").add_edge(START, "beside")
    app = builder.compile(checkpointer=InMemorySaver())
    live = await app.ainvoke({"files": files}, THREAD)
    assert (await app.aget_state(THREAD)).values["files"] == live["files"]
    assert live["file_conflicts"] == []
    return dict(live["files"])


async def test_a_key_that_is_not_a_path_is_skipped_and_kept() -> None:
    for key in KEYS:

        async def node(state: FilesystemState, key: Any = key) -> None:
            assert [info.path for info in (await fs.als("/")).entries or ()] == ["/b.txt", "/dir/"]
            assert [info.path for info in (await fs.als("/dir")).entries or ()] == ["/dir/a.txt"]
            assert [info.path for info in (await fs.aglob("**")).matches or ()] == ["/b.txt", "/dir/a.txt"]
            found = await fs.agrep("needle")
            assert ([match.path for match in found.matches or ()], found.skipped) == (["/dir/a.txt"], 1)
            assert (await fs.aread("/dir/a.txt")).ok
            assert (await fs.acopy("/dir", "/copy")).ok
            assert (await fs.amove("/dir", "/moved")).ok
            assert (await fs.awrite("/new/x.txt", "x")).ok
            assert (await fs.aupload_files([("/new/y.txt", b"y")]))[0].error is None
            assert (await fs.aedit("/new/x.txt", "x", "z")).ok
            assert (await fs.adelete("/copy")).ok
            assert (await fs.aread(str(key))).ok is False

        files = await files_after(node, {key: stored("needle"), "/dir/a.txt": stored("needle"), "/b.txt": stored("b")})
        assert files.keys() == {key, "/b.txt", "/moved/a.txt", "/new/x.txt", "/new/y.txt", "/beside"}
        assert files[key] == stored("needle")


async def test_operations_on_a_value_that_is_not_a_file_give_results() -> None:
    async def node(state: FilesystemState) -> None:
        assert [info.path for info in (await fs.als("/dir")).entries or ()] == ["/dir/bad", "/dir/good"]
        assert len((await fs.aglob("**")).matches or ()) == 4
        assert [match.path for match in (await fs.agrep("needle")).matches or ()] == ["/dir/good"]
        for result in (
            await fs.aread("/dir/bad"),
            await fs.aread_raw("/dir/bad"),
            await fs.aedit("/dir/bad", "a", "b"),
            await fs.acopy("/dir/bad", "/dir/bad"),
            await fs.adownload_files(["/dir/bad", "/dir/good"]),
        ):
            assert result is not None
        assert (await fs.awrite("/dir/bad", "x")).code == "already_exists"
        assert (await fs.awrite("/write", "new", overwrite=True)).ok
        assert (await fs.adelete("/delete")).ok

    for value in VALUES:
        before = {"/dir/bad": value, "/write": value, "/delete": value, "/dir/good": stored("needle")}
        files = await files_after(node, before)
        assert files.keys() == {"/beside", "/dir/bad", "/dir/good", "/write"}
        assert (files["/dir/bad"], files["/write"]["content"]) == (value, "new")
