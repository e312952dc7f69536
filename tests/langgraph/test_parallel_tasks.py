"""Parallel tasks of a superstep in real graphs: collisions, failures, and files loaded from checkpoints."""

import asyncio
import gc
import operator
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph._internal._constants import CONFIG_KEY_READ
from langgraph.cache.memory import InMemoryCache
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy, Command, Overwrite, RetryPolicy, Send, TimeoutPolicy, interrupt

from deepfs import ErrorCode, FilesystemState, StateBackend
from deepfs._langgraph import task_files as tasks
from deepfs._langgraph.task_files import task_files
from deepfs.text.flat_tree import Directories

fs = StateBackend()
THREAD: Any = {"configurable": {"thread_id": "t"}}
Saver = BaseCheckpointSaver[Any]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class State(FilesystemState):
    n: int
    log: Annotated[list[str], operator.add]


def graph(*parallel: Callable[..., Any], state: Any = State, **nodes: Any) -> StateGraph[Any]:
    """A graph whose nodes all run in the first superstep."""
    builder = StateGraph(state)
    for node in parallel:
        builder.add_node(node.__name__, node, **nodes)
        builder.add_edge(START, node.__name__)
    return builder


def text(value: Mapping[str, Any], path: str = "/a") -> str:
    return value["files"][path]["content"]


def reloaded(builder: StateGraph[Any], saver: Saver) -> dict[str, Any]:
    return builder.compile(checkpointer=saver).get_state(THREAD).values


def file(content: str) -> dict[str, Any]:
    return {"files": {"/a": {"content": content, "encoding": "utf-8", "created_at": "0", "modified_at": "0"}}}


# --- twenty parallel tasks -------------------------------------------------------------------------------------------

TWENTY = "".join(f"<{number}>\n" for number in range(20))
EDITED = "".join(f"[edited {number}]\n" for number in range(20))


def edit_one(state: State) -> dict[str, Any]:
    done = fs.edit("/a", f"<{state['n']}>", f"[edited {state['n']}]")
    assert f"[edited {state['n']}]" in fs.read("/a").file_data["content"]
    return {"log": [done.error or "done"]}


async def aedit_one(state: State) -> dict[str, Any]:
    done = await fs.aedit("/a", f"<{state['n']}>", f"[edited {state['n']}]")
    await asyncio.sleep(0)
    assert f"[edited {state['n']}]" in (await fs.aread("/a")).file_data["content"]
    return {"log": [done.error or "done"]}


def twenty(node: Callable[..., Any]) -> StateGraph[Any]:
    builder = StateGraph(State).add_node("node", node)
    return builder.add_conditional_edges(START, lambda _: [Send("node", {"n": n}) for n in range(20)], ["node"])


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The kind and address of the checkpoint storage. A server is started here: that blocks."""
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else str(tmp_path / "threads.db")
    return request.param, dsn


@pytest.mark.anyio
async def test_twenty_parallel_edits_survive(place: tuple[str, str]) -> None:
    kind, address = place
    async with AsyncExitStack() as stack:
        saver: Any = InMemorySaver()
        if kind == "sqlite":
            saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(address))
        if kind == "postgres":
            saver = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(address))
            await saver.setup()
        builder = twenty(edit_one if kind == "memory" else aedit_one)
        live = await builder.compile(checkpointer=saver).ainvoke(file(TWENTY), THREAD)
        assert live["log"] == ["done"] * 20
        assert text(live) == EDITED
        assert (await builder.compile(checkpointer=saver).aget_state(THREAD)).values == live
    if kind == "sqlite":
        command = [sys.executable, "-c", FRESH_PROCESS, address]
        output = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        assert output.stdout.strip() == str({"files": dict(live["files"]), "file_conflicts": []})


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[Saver]:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as opened:
        yield opened


FRESH_PROCESS = """
import sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from deepfs import FilesystemState
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    builder = StateGraph(FilesystemState).add_node("node", lambda state: None).add_edge(START, "node")
    print(builder.compile(checkpointer=saver).get_state({"configurable": {"thread_id": "t"}}).values)
"""


# --- collisions in one process ---------------------------------------------------------------------------------------


COLLIDING: list[tuple[Callable[[], Any], Callable[[], Any], ErrorCode]] = [
    (lambda: fs.aedit("/a", "two", "2"), lambda: fs.aedit("/a", "two", "II"), ErrorCode.CONFLICT),
    (lambda: fs.aedit("/a", "one two", "12"), lambda: fs.aedit("/a", "two three", "23"), ErrorCode.CONFLICT),
    (lambda: fs.awrite("/new", "1"), lambda: fs.awrite("/new", "2"), ErrorCode.ALREADY_EXISTS),
    (lambda: fs.awrite("/new/file", "1"), lambda: fs.awrite("/new", "2"), ErrorCode.CONFLICT),
    (lambda: fs.awrite("/a", "1", overwrite=True), lambda: fs.aedit("/a", "two", "2"), ErrorCode.CONFLICT),
    (lambda: fs.adelete("/a"), lambda: fs.aedit("/a", "two", "2"), ErrorCode.CONFLICT),
    (lambda: fs.aedit("/a", "two", "2"), lambda: fs.amove("/a", "/b"), ErrorCode.CONFLICT),
]


@pytest.mark.anyio
async def test_the_second_of_two_colliding_calls_fails() -> None:
    for one, other, code in COLLIDING:
        results = []

        async def first(state: State, one: Callable[[], Any] = one, results: list[Any] = results) -> None:
            results.append(await one())

        async def second(state: State, other: Callable[[], Any] = other, results: list[Any] = results) -> None:
            results.append(await other())

        builder, saver = graph(first, second), InMemorySaver()
        live = await builder.compile(checkpointer=saver).ainvoke(file("one two three"), THREAD)
        assert [result.code for result in results] == [None, code]
        assert live["file_conflicts"] == []
        alone = await graph(first).compile().ainvoke(file("one two three"))
        assert {path: data["content"] for path, data in live["files"].items()} == {
            path: data["content"] for path, data in alone["files"].items()
        }
        assert reloaded(builder, saver) == live


def test_a_change_waits_for_the_change_of_another_thread() -> None:
    entered, edited = threading.Event(), threading.Event()
    waited = []

    def changes(state: State) -> None:
        with task_files():
            entered.set()
            waited.append(not edited.wait(0.2))

    def edits(state: State) -> None:
        entered.wait()
        assert fs.edit("/a", "a", "b").ok
        edited.set()

    assert text(graph(changes, edits).compile().invoke(file("a"))) == "b"
    assert waited == [True]


def test_exactly_one_of_twenty_colliding_threads_succeeds() -> None:
    together = threading.Barrier(20)

    def node(state: State) -> dict[str, Any]:
        together.wait()
        done = fs.edit("/a", "x", f"<{state['n']}>")
        return {"log": [done.code or f"<{state['n']}>"]}

    live = twenty(node).compile().invoke(file("x"), {"max_concurrency": 20})
    assert sorted(live["log"]) == sorted([text(live), *[ErrorCode.CONFLICT] * 19])


@pytest.mark.anyio
async def test_changes_do_not_collide_with_tasks_of_earlier_steps() -> None:
    kept = []

    async def node(state: State) -> dict[str, Any]:
        kept.append(get_config())  # Keeps a reference, so that the writes outlive the step.
        old, new = [("x", "y"), ("y", "x"), ("x", "z")][state["n"]]
        assert (await fs.aedit("/a", old, new)).ok
        return {"n": state["n"] + 1}

    builder = graph(node).add_conditional_edges("node", lambda state: "node" if state["n"] < 3 else "__end__")
    assert text(await builder.compile().ainvoke({**file("x"), "n": 0})) == "z"


# --- failure, retry, resumption --------------------------------------------------------------------------------------


class BrokenError(Exception):
    """An error that a node raises once."""


@pytest.mark.anyio
async def test_a_retried_task_takes_effect_once() -> None:
    attempts = []

    async def again(state: State) -> dict[str, Any]:
        attempts.append(1)
        done = await fs.aedit("/a", "a", "ab")
        if len(attempts) == 1:
            raise BrokenError
        return {"log": [done.error or "done"]}

    builder = graph(again, retry_policy=RetryPolicy(initial_interval=0, jitter=False, retry_on=BrokenError))
    saver = InMemorySaver()
    live = await builder.compile(checkpointer=saver).ainvoke(file("a."), THREAD)
    assert (text(live), live["log"], len(attempts)) == ("ab.", ["done"], 2)
    assert reloaded(builder, saver) == live


@pytest.mark.anyio
async def test_changes_do_not_collide_with_a_failed_attempt() -> None:
    attempts, retrying = [], asyncio.Event()

    async def retried(state: State) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            assert (await fs.aedit("/a", "a", "x")).ok
            raise BrokenError
        retrying.set()
        await asyncio.sleep(0.05)

    async def sibling(state: State) -> None:
        await retrying.wait()
        assert (await fs.aedit("/a", "a", "y")).ok

    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=BrokenError)
    live = await graph(retried, sibling, retry_policy=policy).compile().ainvoke(file("a"))
    assert text(live) == "y"


def test_changes_do_not_collide_with_a_failed_task() -> None:
    results, edited, may_fail = [], threading.Event(), threading.Event()

    def fails(state: State) -> None:
        assert fs.edit("/a", "x", "y").ok
        edited.set()
        may_fail.wait()
        raise BrokenError

    def later(state: State) -> None:
        edited.wait()
        results.append(fs.edit("/a", "x", "z").code)
        may_fail.set()
        time.sleep(0.2)
        results.append(fs.edit("/a", "x", "z").code)

    with pytest.raises(BrokenError):
        graph(fails, later).compile().invoke(file("x"))
    assert results == [ErrorCode.CONFLICT, None]


@pytest.mark.anyio
async def test_a_timed_out_attempt_leaves_no_changes() -> None:
    attempts = []

    async def slow(state: State) -> None:
        attempts.append(1)
        assert (await fs.aedit("/a", "a", "ab")).ok
        assert (await fs.aread("/a")).file_data["content"] == "ab"
        if len(attempts) == 1:
            await asyncio.sleep(10)

    builder = graph(slow, timeout=TimeoutPolicy(run_timeout=0.2), retry_policy=RetryPolicy(initial_interval=0))
    assert text(await builder.compile().ainvoke(file("a"))) == "ab"


@pytest.mark.anyio
async def test_a_task_cancelled_after_it_returned_keeps_its_files(saver: Saver) -> None:
    """LangGraph saves the result of such a task and does not run it again, so its file changes are saved too."""
    runs, returned = [], asyncio.Event()

    async def returns(state: State) -> dict[str, Any]:
        runs.append("returns")
        assert (await fs.aedit("/a", "one", "1")).ok
        return {"log": ["returned"]}

    async def edge(state: State) -> str:
        returned.set()
        await asyncio.sleep(10)
        return "__end__"

    async def fails(state: State) -> None:
        await returned.wait()
        runs.append("fails")
        if runs.count("fails") == 1:
            raise BrokenError

    builder = graph(returns, fails).add_conditional_edges("returns", edge, ["__end__"])
    with pytest.raises(BrokenError):
        await builder.compile(checkpointer=saver).ainvoke(file("one two"), THREAD)
    live = await builder.compile(checkpointer=saver).ainvoke(None, THREAD)
    assert (text(live), live["log"]) == ("1 two", ["returned"])
    assert sorted(runs) == ["fails", "fails", "returns"]


@pytest.mark.anyio
async def test_a_collision_with_a_task_finished_before_a_failure_is_reported_in_the_channel(saver: Saver) -> None:
    """The resumed task cannot see the changes of the finished one; of both, the task with the first name wins."""
    attempts = []

    async def done(state: State) -> None:
        assert (await fs.aedit("/a", "x", "done")).ok
        assert (await fs.awrite("/new", "done")).ok

    async def resumed(state: State) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.sleep(0.05)
            raise BrokenError
        assert (await fs.aedit("/a", "x", "resumed")).ok
        assert (await fs.awrite("/new", "resumed")).ok

    builder = StateGraph(State).add_node("b", done).add_node("a", resumed).add_edge(START, "b").add_edge(START, "a")
    with pytest.raises(BrokenError):
        await builder.compile(checkpointer=saver).ainvoke(file("x"), THREAD)
    live = await builder.compile(checkpointer=saver).ainvoke(None, THREAD)
    assert (text(live), text(live, "/new")) == ("resumed", "resumed")
    conflicts = [(conflict["path"], conflict["operation"], conflict["node"]) for conflict in live["file_conflicts"]]
    assert conflicts == [("/a", "edit", "b"), ("/new", "create", "b")]
    assert (await builder.compile(checkpointer=saver).aget_state(THREAD)).values == live


@pytest.mark.anyio
async def test_an_interrupted_node_takes_effect_once() -> None:
    async def asks(state: State) -> dict[str, Any]:
        assert (await fs.aedit("/a", "a", "ab")).ok
        answer = interrupt("?")
        assert (await fs.aread("/a")).file_data["content"] == "ab."
        assert (await fs.aedit("/a", ".", answer)).ok
        return {}

    async def beside(state: State) -> None:
        assert (await fs.awrite("/b", "b")).ok

    saver = InMemorySaver()
    builder = graph(asks, beside)
    app = builder.compile(checkpointer=saver)
    await app.ainvoke(file("a."), THREAD)
    assert text(reloaded(builder, saver)) == "a."
    live = await app.ainvoke(Command(resume="!"), THREAD)
    assert (text(live), text(live, "/b")) == ("ab!", "b")
    assert reloaded(builder, saver) == live


@pytest.mark.anyio
async def test_the_writes_of_a_cached_task_are_applied_again() -> None:
    runs = []

    async def node(state: State) -> None:
        runs.append(1)
        assert (await fs.aedit("/a", "a", "b")).ok

    app = graph(node, cache_policy=CachePolicy(key_func=lambda _: "key")).compile(cache=InMemoryCache())
    assert [text(await app.ainvoke(file("a"))) for _ in range(2)] == ["b", "b"]
    assert len(runs) == 1


@pytest.mark.anyio
async def test_time_travel_finds_the_files_of_each_step() -> None:
    async def edits(state: State) -> dict[str, Any]:
        assert (await fs.aedit("/a", f"{state['n']}", f"{state['n'] + 1}")).ok
        return {"n": state["n"] + 1}

    builder = StateGraph(State).add_node("edits", edits).add_edge(START, "edits")
    builder.add_conditional_edges("edits", lambda state: "edits" if state["n"] < 4 else "__end__")
    durabilities: list[Any] = ["sync", "async", "exit"]
    for durability in durabilities:
        app = builder.compile(checkpointer=InMemorySaver())
        await app.ainvoke({**file("0"), "n": 0}, THREAD, durability=durability)
        history = [snapshot for snapshot in app.get_state_history(THREAD) if "n" in snapshot.values]
        assert [text(snapshot.values) for snapshot in history] == [str(snapshot.values["n"]) for snapshot in history]
        if durability != "exit":
            assert text(await app.ainvoke(None, history[2].config)) == "4"
            assert text(app.get_state(THREAD).values) == "4"


# --- edges and results -----------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_conditional_edge_shares_the_files_of_its_node() -> None:
    async def node(state: State) -> dict[str, Any]:
        assert (await fs.aedit("/a", "one", "two")).ok
        return {"files": {"/b": file("node's own")["files"]["/a"]}}

    async def route(state: State) -> str:
        assert (await fs.aread("/a")).file_data["content"] == "two"
        assert (await fs.aread("/b")).file_data["content"] == "node's own"
        assert (await fs.aedit("/b", "node's", "edge's")).ok
        return "__end__"

    live = await graph(node).add_conditional_edges("node", route, ["__end__"]).compile().ainvoke(file("one"))
    assert (text(live), text(live, "/b")) == ("two", "edge's own")


@pytest.mark.anyio
async def test_a_node_may_also_return_the_files_update_of_a_result() -> None:
    async def one(state: State) -> dict[str, Any]:
        return {"files": (await fs.aedit("/a", "one", "1")).files_update}

    async def two(state: State) -> dict[str, Any]:
        return {"files": (await fs.aedit("/a", "two", "2")).files_update}

    builder, saver = graph(one, two), InMemorySaver()
    live = await builder.compile(checkpointer=saver).ainvoke(file("one two"), THREAD)
    assert text(live) == "1 2"
    assert reloaded(builder, saver) == live


# --- other reducers --------------------------------------------------------------------------------------------------


def merge(files: dict[str, Any], writes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reducer of deepagents."""
    merged = dict(files)
    for write in writes:
        for path, data in write.items():
            if data is None:
                merged.pop(path, None)
            else:
                merged[path] = data
    return merged


class DeepagentsState(MessagesState):
    files: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=50)]


def deepagents_graph() -> StateGraph[Any]:
    return StateGraph(DeepagentsState).add_node("node", lambda _: None).add_edge(START, "node")


@pytest.mark.anyio
async def test_deepagents_loads_only_the_last_of_parallel_edits_until_the_next_snapshot() -> None:
    """This is the only documented difference."""
    builder, saver = twenty(aedit_one), InMemorySaver()
    await builder.compile(checkpointer=saver).ainvoke(file(TWENTY), THREAD)
    assert text(reloaded(deepagents_graph(), saver)).count("edited") == 1

    async def again(state: State) -> dict[str, Any]:
        await fs.awrite("/count", f"{state['n']}", overwrite=True)
        return {"n": state["n"] + 1}

    on = StateGraph(State).add_node("again", again).add_edge(START, "again")
    on.add_conditional_edges("again", lambda state: "again" if state["n"] < 50 else "__end__")
    await on.compile(checkpointer=saver).ainvoke({"n": 0}, {**THREAD, "recursion_limit": 99})
    assert text(reloaded(deepagents_graph(), saver)) == EDITED


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_checkpoint_grows_only_by_the_changed_files() -> None:
    saver = InMemorySaver()
    big = {"files": {f"/{n}": {"content": "x" * 10_000} for n in range(100)}}

    async def edits(state: State) -> None:
        assert (await fs.awrite("/small", "y", overwrite=True)).ok

    app = graph(edits).compile(checkpointer=saver)
    await app.ainvoke(big, THREAD)

    def stored() -> int:
        blobs = sum(len(blob) for _, blob in saver.blobs.values())
        return blobs + sum(len(value[2][1]) for writes in saver.writes.values() for value in writes.values())

    before = stored()
    for _ in range(10):
        await app.ainvoke({}, THREAD)
    assert stored() - before < 20_000


@pytest.mark.anyio
async def test_reading_processes_only_new_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = tasks.TaskView._take

    def counted(self: Any, values: list[Any], *args: Any) -> None:
        taken.append(len(values))
        take(self, values, *args)

    async def node(state: State) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(tasks.TaskView, "_take", counted)
            for number in range(50):
                assert (await fs.awrite(f"/{number}", "x")).ok
                assert (await fs.aread(f"/{number}")).ok
        with task_files() as task:
            assert task.files == get_config()["configurable"][CONFIG_KEY_READ]("files", True)

    await graph(node).compile().ainvoke({})
    assert sum(taken) == 50


@pytest.mark.anyio
async def test_cached_directories_follow_the_writes_of_a_task() -> None:
    def directories() -> list[str]:
        with task_files() as task:
            fresh = get_config()["configurable"][CONFIG_KEY_READ]("files", True)
            assert task.files == fresh
            children = sorted(task.directories.children("/"))
            assert children == sorted(Directories(fresh).children("/"))
            return children

    async def node(state: State) -> dict[str, Any]:
        assert directories() == ["/a"]
        assert (await fs.awrite("/d/e/f", "x")).ok
        assert directories() == ["/a", "/d"]
        assert (await fs.amove("/d", "/m")).ok
        assert (await fs.adelete("/a")).ok
        assert directories() == ["/m"]
        return {"files": Overwrite({"/o": {"content": "x"}})}

    async def edge(state: State) -> str:
        assert "/o" in directories()
        await fs.awrite("/p", "x")
        assert "/o" in directories()
        return "__end__"

    await graph(node).add_conditional_edges("node", edge, ["__end__"]).compile().ainvoke(file("a"))


@pytest.mark.anyio
async def test_a_finished_run_is_forgotten() -> None:
    async def node(state: State) -> None:
        await fs.aedit("/a", "a", "b")

    others = known_tasks()
    await graph(node).compile().ainvoke(file("a"))
    gc.collect()
    [ended] = known_tasks() - others
    assert (ended.files, ended.changes) == ({}, {})
    await graph(node).compile().ainvoke(file("a"))
    assert len(known_tasks() - others - {ended}) == 1
    assert ended not in known_tasks()


def known_tasks() -> set[Any]:
    return {task for run in tasks._runs.values() for task in run.tasks.values()}
