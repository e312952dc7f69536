"""Whole `files` maps returned by nodes and subgraphs beside parallel writes; late writes; channels."""

import asyncio
import operator
import threading
from base64 import b64encode
from collections.abc import Callable
from itertools import product
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from deepfs import FilesystemState, StateBackend
from deepfs._langgraph.reducers import fold
from deepfs.types import FileDataV1, FileDataV2

pytestmark = pytest.mark.anyio

fs = StateBackend()
THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class State(FilesystemState):
    n: int
    log: Annotated[list[str], operator.add]


def file(content: str, modified_at: str = "0") -> dict[str, Any]:
    return {"content": content, "encoding": "utf-8", "created_at": "0", "modified_at": modified_at}


def given(**texts: str) -> dict[str, Any]:
    return {"files": {f"/{name}": file(text) for name, text in texts.items()}}


def texts(values: Any) -> dict[str, str]:
    return {path: data["content"] for path, data in values["files"].items()}


def conflicts_in(values: Any) -> list[tuple[str, str]]:
    return [(conflict["path"], conflict["operation"]) for conflict in values["file_conflicts"]]


def graph(state: Any = State, **nodes: Any) -> StateGraph[Any]:
    """A graph whose nodes all run in the first superstep."""
    builder = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(START, name)
    return builder


def alone(node: Callable[..., Any], state: Any = State) -> Any:
    return graph(state, inner=node).compile()


async def values_after(builder: StateGraph[Any], start: Any, **options: Any) -> Any:
    """Run the graph, check that a reload gives the same values, and return them."""
    saver = InMemorySaver()
    live = await builder.compile(checkpointer=saver).ainvoke(start, THREAD, **options)
    assert (await builder.compile(checkpointer=saver).aget_state(THREAD)).values == live
    return live


# --- subgraphs -------------------------------------------------------------------------------------------------------


async def test_a_subgraph_does_not_undo_changes_of_a_parallel_node() -> None:
    async def edits(state: State) -> None:
        assert (await fs.aedit("/base", "old", "new")).ok
        assert (await fs.adelete("/gone")).ok
        assert (await fs.awrite("/beside", "x")).ok

    async def inner(state: State) -> None:
        assert (await fs.awrite("/inner", "x")).ok

    subgraph = alone(inner)

    async def calls(state: State) -> Any:
        return {"files": (await subgraph.ainvoke({"files": state["files"]}))["files"]}

    for name, node in product(("a", "z"), (subgraph, calls)):  # Before and after the edits, in the order of names.
        live = await values_after(graph(**{"m": edits, name: node}), given(base="old", gone="x", same="same"))
        assert texts(live) == {"/base": "new", "/beside": "x", "/inner": "x", "/same": "same"}
        assert live["file_conflicts"] == []


@pytest.mark.parametrize("checkpointer", [True, False])
async def test_a_deletion_by_a_subgraph_survives_interrupts_beside_it_and_in_it(checkpointer: Any) -> None:
    async def deletes(state: State) -> None:
        assert (await fs.adelete("/gone")).ok

    async def asks_inside(state: State) -> None:
        if checkpointer is not False:
            interrupt("inside?")
        assert (await fs.awrite("/inside", "x")).ok

    async def asks(state: State) -> None:
        assert (await fs.aedit("/base", "old", str(interrupt("?")))).ok

    sequence = StateGraph(State).add_sequence([deletes, asks_inside]).add_edge(START, "deletes")
    builder, saver = graph(asks=asks, sub=sequence.compile(checkpointer=checkpointer)), InMemorySaver()
    app = builder.compile(checkpointer=saver)
    await app.ainvoke(given(base="old", gone="x"), THREAD)
    while interrupts := (await app.aget_state(THREAD)).interrupts:
        live = await app.ainvoke(Command(resume={interrupts[0].id: "new"}), THREAD)
    assert texts(live) == {"/base": "new", "/inside": "x"}
    assert live["file_conflicts"] == []
    assert (await builder.compile(checkpointer=saver).aget_state(THREAD)).values == live


async def test_parallel_subgraphs_merge_their_edits_and_report_collisions() -> None:
    def edits(old: str, new: str) -> Any:
        async def edit(state: State) -> None:
            assert (await fs.aedit("/a", old, new)).ok
            assert (await fs.aedit("/b", "old", new)).ok

        return alone(edit)

    builder = graph(one=edits("one", "1"), two=edits("two", "2"))
    live = await values_after(builder, given(a="one\nmiddle\ntwo\n", b="old"))
    assert texts(live) == {"/a": "1\nmiddle\n2\n", "/b": "1"}
    assert conflicts_in(live) == [("/b", "edit")]


async def test_a_graph_called_with_other_files_deletes_none_of_its_caller() -> None:
    async def deletes(state: State) -> None:
        assert (await fs.adelete("/scratch")).ok
        assert (await fs.awrite("/made", "x")).ok

    subgraph = alone(deletes)

    async def calls(state: State) -> Any:
        return {"files": (await subgraph.ainvoke(given(scratch="x")))["files"]}

    async def drops(state: State) -> None:
        await subgraph.ainvoke({"files": {**state["files"], **given(scratch="x")["files"]}})

    live = await values_after(graph(calls=calls, drops=drops), given(base="old"))
    assert texts(live) == {"/base": "old", "/made": "x"}


async def test_a_subgraph_that_ends_with_a_parent_command_passes_its_files() -> None:
    async def deletes(state: State) -> None:
        assert (await fs.adelete("/gone")).ok
        assert (await fs.aedit("/base", "old", "new")).ok

    async def hands_over(state: State) -> Any:
        return Command(graph=Command.PARENT, update={"files": state["files"]}, goto="after")

    async def after(state: State) -> Any:
        return {"log": [str(sorted(state["files"]))]}

    async def beside(state: State) -> None:
        assert (await fs.aedit("/other", "old", "new")).ok

    subgraph = StateGraph(State).add_sequence([deletes, hands_over]).add_edge(START, "deletes").compile()
    builder = graph(sub=subgraph, zz=beside).add_node("after", after)
    live = await values_after(builder, given(base="old", gone="x", other="old"))
    assert texts(live) == {"/base": "new", "/other": "new"}
    assert live["log"] == ["['/base', '/other']"]


# --- whole maps returned by nodes ------------------------------------------------------------------------------------


def sent(node: Callable[..., Any], count: int) -> StateGraph[Any]:
    builder = StateGraph(State).add_node("node", node)
    return builder.add_conditional_edges(
        START, lambda state: [Send("node", {"n": n, "files": state["files"]}) for n in range(count)], ["node"]
    )


async def test_whole_maps_of_parallel_tasks_are_merged() -> None:
    def by_hand(state: State) -> Any:
        n = state["n"]
        shared = state["files"]["/shared"]["content"].replace(f"<{n}>", f"[{n}]")
        return {
            "files": {**state["files"], f"/{n}": file(f"edited {n}"), "/shared": file(shared), f"/new{n}": file("")}
        }

    start = given(shared="<0>\n\n<1>\n\n<2>\n\n<3>\n", **{str(n): "old" for n in range(4)})
    live = await values_after(sent(by_hand, 4), start)
    assert texts(live) == {
        "/shared": "[0]\n\n[1]\n\n[2]\n\n[3]\n",
        **{f"/{n}": f"edited {n}" for n in range(4)},
        **{f"/new{n}": "" for n in range(4)},
    }
    assert live["file_conflicts"] == []


async def test_a_whole_map_is_merged_with_a_parallel_edit() -> None:
    async def edits(state: State) -> None:
        assert (await fs.aedit("/a", "one", "1")).ok
        assert (await fs.aedit("/b", "old", "edited")).ok

    def by_hand(state: State) -> Any:
        files = state["files"]
        changed = file(files["/a"]["content"].replace("two", "2"))
        return {"files": {**files, "/a": changed, "/b": file("by hand"), "/c": None}}

    for name, kept in (("a", "by hand"), ("z", "edited")):
        builder = graph(m=edits, **{name: by_hand})
        live = await values_after(builder, given(a="one\n\ntwo\n", b="old", c="x"))
        assert texts(live) == {"/a": "1\n\n2\n", "/b": kept}
        assert conflicts_in(live) == [("/b", "edit")]


async def test_a_node_may_return_changes_of_its_own_writes() -> None:
    async def cleans_up(state: State) -> Any:
        assert (await fs.awrite("/tmp", "x")).ok
        assert (await fs.aedit("/a", "old", "newer")).ok
        data = (await fs.aread_raw("/a")).data
        assert data is not None
        return {"files": {"/tmp": None, "/a": {**data, "content": data["content"] + "!"}}}

    async def other(state: State) -> Any:
        return {"files": {"/z": file("z")}}

    live = await values_after(graph(cleans=cleans_up, other=other), given(a="old"))
    assert (texts(live), conflicts_in(live)) == ({"/a": "newer!", "/z": "z"}, [])


async def test_updates_forks_and_commands_accept_whole_maps() -> None:
    async def edits(state: State) -> Any:
        assert (await fs.aedit("/a", "old", "new")).ok
        return Command(update={"files": {**state["files"], "/command": file("x")}}, goto="beside")

    def beside(state: State) -> Any:
        return {"files": {**state["files"], "/beside": file("x")}}

    app = graph(edits=edits).add_node("beside", beside).compile(checkpointer=InMemorySaver())
    live = await app.ainvoke(given(a="old"), THREAD)
    assert texts(live) == {"/a": "new", "/command": "x", "/beside": "x"}
    await app.aupdate_state(THREAD, {"files": {**live["files"], "/update": file("x"), "/a": None}}, as_node="beside")
    assert texts((await app.aget_state(THREAD)).values) == {"/command": "x", "/beside": "x", "/update": "x"}
    history = [snapshot async for snapshot in app.aget_state_history(THREAD)]
    [before] = [snapshot for snapshot in history if snapshot.next == ("beside",)]
    forked = await app.ainvoke(None, before.config)
    assert texts(forked) == texts(live)


async def test_an_edit_beside_a_replacement_of_all_files_is_reported() -> None:
    async def edits(state: State) -> None:
        assert (await fs.aedit("/a", "old", "new")).ok

    async def replaces(state: State) -> Any:
        assert (await fs.awrite("/own", "x")).ok
        return {"files": Overwrite({"/only": FileDataV2("x", modified_at="0")})}

    live = await values_after(graph(edits=edits, replaces=replaces), given(a="old"))
    assert (texts(live), conflicts_in(live)) == ({"/only": "x"}, [("/a", "edit")])
    assert type(live["files"]["/only"]) is dict


# --- records as values -----------------------------------------------------------------------------------------------

RECORDS: dict[str, Any] = {
    "/v2": FileDataV2("text", created_at="0", modified_at="0"),
    "/v1": FileDataV1(["one", "two"], "0", "0"),
    "/b64": FileDataV2(b64encode(b"\xff").decode(), "base64"),
    "/js": {"content": {"0": 255, "1": 0}, "mimeType": "image/png", "created_at": "0", "modified_at": "0"},
}


async def test_file_records_are_accepted_as_files() -> None:
    async def reads(state: State) -> Any:
        downloads = await fs.adownload_files(["/v2", "/v1", "/b64", "/js"])
        assert [download.content for download in downloads] == [b"text", b"one\ntwo", b"\xff", b"\xff\0"]
        return {"files": {"/made": FileDataV2("made")}}

    builder = graph(reads=reads)
    for durability in ("sync", "async", "exit"):
        saver = InMemorySaver()
        for _ in range(2):  # A continued thread saves its input in another way.
            live = await builder.compile(checkpointer=saver).ainvoke({"files": RECORDS}, THREAD, durability=durability)  # type: ignore[arg-type]
            loaded = (await builder.compile(checkpointer=saver).aget_state(THREAD)).values
            assert loaded == live
            for path, data in loaded["files"].items():
                assert type(data) is dict
                assert data == {**RECORDS, "/made": FileDataV2("made")}[path]


# --- writes after the end of a node ----------------------------------------------------------------------------------


async def test_a_write_by_a_task_that_outlives_its_node_is_an_error() -> None:
    results: list[Any] = []
    tasks: list[asyncio.Task[None]] = []
    may_write, written = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        await may_write.wait()
        results.append(await fs.awrite("/late", "x"))
        written.set()

    async def node(state: State) -> None:
        tasks.append(asyncio.create_task(late()))
        assert (await fs.awrite("/early", "x")).ok

    async def after(state: State) -> None:
        may_write.set()
        await written.wait()

    builder = graph(node=node).add_node("after", after).add_edge("node", "after")
    live = await values_after(builder, given(a="old"))
    await asyncio.gather(*tasks)
    [result] = results
    assert sorted(texts(live)) == ["/a", "/early"]
    assert not result.ok
    assert "has ended" in result.error
    assert "await the task" in result.error


async def test_a_write_by_a_task_after_the_run_or_an_interrupt_is_an_error() -> None:
    results: list[Any] = []
    tasks: list[asyncio.Task[None]] = []

    async def late(ended: asyncio.Event) -> None:
        await ended.wait()
        results.append(await fs.aedit("/a", "old", "late"))

    for asks in (False, True):
        ended = asyncio.Event()

        async def node(state: State, ended: asyncio.Event = ended, asks: bool = asks) -> None:
            tasks.append(asyncio.create_task(late(ended)))
            if asks:
                interrupt("?")

        app = graph(node=node).compile(checkpointer=InMemorySaver())
        await app.ainvoke(given(a="old"), THREAD)
        ended.set()
        await asyncio.gather(*tasks)
        assert texts((await app.aget_state(THREAD)).values) == {"/a": "old"}
    assert [result.ok for result in results] == [False, False]
    assert all("has ended" in result.error for result in results)


def test_a_write_by_a_thread_that_outlives_its_node_is_an_error() -> None:
    results: list[Any] = []
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def late(context: Any) -> None:
        ended.wait()
        results.append(context.run(fs.write, "/late", "x"))

    def node(state: State) -> None:
        from contextvars import copy_context

        threads.append(threading.Thread(target=late, args=(copy_context(),)))
        threads[0].start()

    app = graph(node=node).compile(checkpointer=InMemorySaver())
    app.invoke(given(a="old"), THREAD)
    ended.set()
    threads[0].join()
    assert not results[0].ok
    assert "join the thread" in results[0].error
    assert "/late" not in app.get_state(THREAD).values["files"]


# --- channels --------------------------------------------------------------------------------------------------------


class Plain(TypedDict):
    files: dict[str, Any]


class Union(TypedDict):
    files: Annotated[dict[str, Any], operator.or_]


class Latest(BaseModel):
    files: Annotated[dict[str, Any], lambda old, new: new] = {}


class Merging(TypedDict):
    files: Annotated[dict[str, Any], lambda old, new: fold(old, [new])]


async def test_a_channel_that_would_lose_files_is_an_error_at_the_first_use() -> None:
    calls: list[Callable[[], Any]] = [lambda: fs.als("/"), lambda: fs.aread("/a"), lambda: fs.awrite("/b", "x")]
    for state, call in product((Plain, Union, Latest), calls):

        async def node(state: Any, call: Callable[[], Any] = call) -> None:
            await call()

        with pytest.raises(RuntimeError, match=r"'files'.*class State\(FilesystemState\)"):
            await graph(state, node=node).compile().ainvoke(given(a="x", c="y"))


async def test_a_reducer_that_merges_and_deletes_is_accepted() -> None:
    async def node(state: Any) -> None:
        assert (await fs.awrite("/b", "x")).ok
        assert (await fs.adelete("/a")).ok

    live = await graph(Merging, node=node).compile().ainvoke(given(a="x", c="y"))
    assert sorted(live["files"]) == ["/b", "/c"]
