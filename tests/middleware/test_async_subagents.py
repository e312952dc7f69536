"""Subagents in the background: in this process, and on a server that speaks LangGraph's API over HTTP."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Annotated, Any, NotRequired

import anyio
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemMiddleware, StateBackend, StoreBackend, create_deep_agent
from deepfs.middleware import AsyncSubAgent, AsyncSubAgentMiddleware, BackgroundTasks, SubAgent
from deepfs.middleware.async_subagents import NOTIFICATION
from deepfs.middleware.background_tasks import default_tasks
from deepfs.sync import run_sync
from support.agents import Invoke, in_async, results
from support.chat import ScriptedModel, call, calls
from support.langgraph_server import LangGraphServer, asgi, running_langgraph_server
from support.waiting import until

THREAD = {"configurable": {"thread_id": "1"}}
GO = {"messages": [("user", "go")]}


def start(task: str = "work", to: str = "worker") -> AIMessage:
    return calls(call("start_async_task", description=task, subagent_type=to))


def with_id(name: str, **arguments: Any) -> Callable[[list[Any]], AIMessage]:
    """A turn that calls a tool with the id of the task that was started last."""

    def turn(messages: list[Any]) -> AIMessage:
        told = [message.text for message in messages if message.type == "tool" and "task_id: " in message.text]
        return calls(call(name, task_id=told[-1].rpartition("task_id: ")[2], **arguments))

    return turn


def spec(runnable: Any, **more: Any) -> AsyncSubAgent:
    return AsyncSubAgent(name="worker", description="Works.", runnable=runnable, **more)


class Supervisor:
    """An agent over several turns, all in one event loop or none; with the tasks of its own."""

    def __init__(self, subagent: Any, *script: Any, limit: int = 50, **options: Any) -> None:
        self.model = ScriptedModel(script=list(script))
        self.tasks = BackgroundTasks(limit=limit, **options)
        self.saver = InMemorySaver()
        middleware = AsyncSubAgentMiddleware(async_subagents=[subagent], tasks=self.tasks)
        files = FilesystemMiddleware()
        self.agent = create_agent(self.model, middleware=[files, middleware], checkpointer=self.saver)

    async def turn(self, text: str = "go", **more: Any) -> dict[str, Any]:
        return await self.agent.ainvoke({"messages": [("user", text)], **more}, THREAD)

    async def ended(self) -> None:
        released.set()
        with anyio.fail_after(10):
            await self.tasks.await_all()

    async def turn_after_end(self, **first: Any) -> dict[str, Any]:
        """The state after a turn, the end of the tasks that it starts, and another turn."""
        await self.turn(**first)
        await self.ended()
        return await self.turn()


released = threading.Event()
"""Set when the tasks of a test may begin to work, so that they do not end within the turn that starts them."""


@pytest.fixture(autouse=True)
def _held() -> Iterator[None]:
    released.clear()
    yield
    released.set()


def held(turn: Any) -> Callable[[list[Any]], AIMessage]:
    """A turn of a model, which waits until tasks are released."""

    def answer(messages: list[Any]) -> AIMessage:
        released.wait(10)
        return turn(messages) if callable(turn) else turn

    return answer


def writer(path: str = "/report.md", text: str = "found\n") -> Any:
    """A subagent that writes a file and reports."""
    script = [held(calls(call("write_file", file_path=path, content=text))), AIMessage("written")]
    return create_agent(ScriptedModel(script=script), middleware=[FilesystemMiddleware()])


class Gate:
    """A subagent that waits until it is opened; `began` and `ended` count its runs."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.began = self.cancelled = 0
        self.seen: list[Any] = []

    async def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        self.began += 1
        self.seen.append(state)
        try:
            await self.opened.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return {"messages": [*state["messages"], AIMessage("through")]}


def told(state: dict[str, Any]) -> list[Any]:
    return [message for message in state["messages"] if NOTIFICATION in message.additional_kwargs]


def task_of(state: dict[str, Any]) -> dict[str, Any]:
    (task,) = state["async_tasks"].values()
    return task


pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """LangGraph runs on asyncio."""
    return "asyncio"


# --- in this process -------------------------------------------------------------------------------------------------


async def test_a_task_lives_on_between_turns_and_is_told_and_merged_once() -> None:
    check = with_id("check_async_task")
    lead = Supervisor(spec(writer()), start(), check, AIMessage("a"), check, *map(AIMessage, "bcd"))
    before = len(asyncio.all_tasks())
    state = await lead.turn()
    running = json.loads(results(state)[-1].text)
    assert (running["status"], running["thread_id"]) == ("running", task_of(state)["task_id"])
    await lead.ended()
    await anyio.wait_all_tasks_blocked()
    assert len(asyncio.all_tasks()) == before
    state = await lead.turn("and?")
    checked = json.loads(results(state)[-1].text)
    assert (checked["status"], checked["result"], task_of(state)["status"]) == ("success", "written", "success")
    state = await lead.turn()
    assert len(told(state)) == 1
    assert {path: data["content"] for path, data in state["files"].items()} == {"/report.md": "found\n"}


@pytest.mark.parametrize(
    ("turn", "options"),
    [
        (lambda lead: lead.agent.invoke(GO, THREAD), {}),
        (lambda lead: asyncio.run(lead.turn()), {"own_loop": True}),
    ],
    ids=["no loop", "a loop that ends"],
)
def test_a_task_outlives_the_turn_that_had_no_event_loop_or_ended_it(turn: Any, options: Any) -> None:
    script = [start(), AIMessage("later"), with_id("check_async_task"), AIMessage("done")]
    lead = Supervisor(spec(writer()), *script, **options)
    turn(lead)
    run_sync(lead.ended)
    state = turn(lead)
    assert state["files"]["/report.md"]["content"] == "found\n"
    assert json.loads(results(state)[-1].text)["result"] == "written"


def test_a_task_whose_event_loop_ended_says_so() -> None:
    lead = Supervisor(spec(RunnableLambda(Gate())), start(), AIMessage("a"), AIMessage("b"))
    asyncio.run(lead.turn())
    assert lead.tasks.running == 0
    state = asyncio.run(lead.turn())
    assert task_of(state)["status"] == "error"
    assert "event loop that ran the task ended" in told(state)[0].text


def test_a_task_whose_event_loop_was_closed_has_ended() -> None:
    async def turn() -> Any:
        state = await lead.turn()
        await anyio.wait_all_tasks_blocked()
        return task_of(state)

    lead = Supervisor(spec(RunnableLambda(Gate())), start(), AIMessage("a"))
    loop = asyncio.new_event_loop()
    try:
        task = loop.run_until_complete(turn())
    finally:
        running, tasks = asyncio.all_tasks(loop), lead.tasks
        loop.close()
    assert tasks.observe(task).status == "error"
    assert "event loop that ran the task ended" in str(run_sync(tasks.cancel, task).error)
    assert tasks.running == 0
    for pending in running:
        pending._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_task_that_ends_while_the_agent_answers_gets_a_further_turn() -> None:
    gate = Gate()

    def answer(messages: list[Any]) -> AIMessage:
        gate.opened.set()
        threading.Event().wait(0.1)  # This turn is in a thread; meanwhile the task ends.
        return AIMessage("first answer")

    lead = Supervisor(spec(RunnableLambda(gate)), start(), answer, AIMessage("second answer"))
    state = await lead.turn()
    assert [message.text for message in state["messages"] if message.type == "ai"][-2:] == [
        "first answer",
        "second answer",
    ]
    (note,) = told(state)
    assert note.additional_kwargs[NOTIFICATION]["status"] == "success"
    assert "through" in note.text
    assert task_of(state)["status"] == "success"


async def test_an_end_that_a_fork_saw_is_told_to_the_supervisor_too() -> None:
    gate, tasks = Gate(), BackgroundTasks()

    @tool
    async def finish() -> str:
        """Let the task end."""
        gate.opened.set()
        await tasks.await_all()
        return "finished"

    fork = ScriptedModel(script=[calls(call("finish")), AIMessage("seen"), AIMessage("seen")])
    ask = calls(call("task", description="Finish.", subagent_type="fork"))
    agent = create_deep_agent(
        ScriptedModel(script=[start(), ask, AIMessage("a"), AIMessage("b")]),
        tools=[finish],
        middleware=[AsyncSubAgentMiddleware(async_subagents=[spec(RunnableLambda(gate))], tasks=tasks)],
        subagents=[SubAgent(name="fork", description="Knows all.", mode="fork", model=fork)],
    )
    state = await agent.ainvoke(GO)
    assert any("through" in message.text for message in fork.asked[-1])
    (note,) = told(state)
    assert "through" in note.text
    assert task_of(state)["status"] == "success"


async def test_a_notification_has_no_block_that_providers_refuse() -> None:
    content = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": " "},
        {"type": "text", "text": "x" * 100_000},
        {"type": "image", "base64": "aGk=", "mime_type": "image/png"},
        {"type": "image", "base64": "aGk="},
        {"type": "image", "base64": 5, "mime_type": "image/png"},
        {"type": "image", "url": ["https://example.org"]},
    ]
    answering = RunnableLambda(lambda state: {"messages": [AIMessage(content)]})  # type: ignore[arg-type]
    (note,) = told(await Supervisor(spec(answering), start(), *map(AIMessage, "abc")).turn_after_end())
    assert [block["type"] for block in note.content] == ["text", "text", "text", "image", "text", "text"]
    assert all(block["text"].strip() for block in note.content if block["type"] == "text")
    assert "Cut off" in note.text
    assert len(note.text) < 81_000


async def test_files_are_merged_once_with_changes_made_meanwhile() -> None:
    lines = "one\ntwo\nthree\n"
    script = [held(calls(call("edit_file", file_path="/a", old_string="one", new_string="ONE"))), AIMessage("x")]
    subagent = create_agent(ScriptedModel(script=script), middleware=[FilesystemMiddleware()])
    own = calls(call("edit_file", file_path="/a", old_string="three", new_string="THREE"))
    again = calls(call("edit_file", file_path="/a", old_string="ONE", new_string="1"))
    check = with_id("check_async_task")
    lead = Supervisor(spec(subagent), start(), own, AIMessage("a"), again, check, AIMessage("b"), AIMessage("c"))
    state = await lead.turn_after_end(files={"/a": {"content": lines, "encoding": "utf-8"}})
    assert {path: data["content"] for path, data in state["files"].items()} == {"/a": "1\ntwo\nTHREE\n"}


async def test_a_conflict_keeps_both_versions() -> None:
    own = calls(call("write_file", file_path="/report.md", content="mine\n"))
    check = with_id("check_async_task")
    lead = Supervisor(spec(writer()), start(), own, check, AIMessage("a"), AIMessage("b"), check, AIMessage("c"))
    state = await lead.turn_after_end()
    contents = {path: data["content"] for path, data in state["files"].items()}
    assert sorted(contents.values()) == ["found\n", "mine\n"]
    assert contents["/report.md"] == "mine\n"
    (copy,) = contents.keys() - {"/report.md"}
    assert any(copy in message.text for message in state["messages"])


async def test_a_failed_task_tells_why_and_keeps_its_files() -> None:
    def fail(messages: list[Any]) -> AIMessage:
        raise RuntimeError("out of luck")

    script = [calls(call("write_file", file_path="/half.md", content="half\n")), held(fail)]
    subagent = create_agent(ScriptedModel(script=script), middleware=[FilesystemMiddleware()])
    lead = Supervisor(spec(subagent), start(), AIMessage("a"), with_id("check_async_task"), AIMessage("b"))
    state = await lead.turn_after_end()
    assert task_of(state)["status"] == "error"
    assert "out of luck" in told(state)[0].text
    assert state["files"]["/half.md"]["content"] == "half\n"
    assert json.loads(results(state)[-1].text)["error"] == "RuntimeError: out of luck"


async def test_cancel_stops_the_task_and_keeps_its_files() -> None:
    reached, cancelled = anyio.Event(), []

    @tool
    async def wait() -> str:
        """Wait."""
        reached.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise
        return ""

    script = [calls(call("write_file", file_path="/half.md", content="half\n")), calls(call("wait"))]
    subagent = create_agent(ScriptedModel(script=script), tools=[wait], middleware=[FilesystemMiddleware()])
    lead = Supervisor(spec(subagent), start(), AIMessage("a"), with_id("cancel_async_task"), AIMessage("b"))
    await lead.turn()
    await reached.wait()
    state = await lead.turn()
    assert cancelled == [True]
    assert lead.tasks.running == 0
    assert task_of(state)["status"] == "cancelled"
    assert results(state)[-1].text.startswith("Cancelled.")
    assert state["files"]["/half.md"]["content"] == "half\n"


def with_check(name: str, **arguments: Any) -> Callable[[list[Any]], AIMessage]:
    """A turn that calls a tool and `check_async_task` at once."""
    made, check = with_id(name, **arguments), with_id("check_async_task")
    return lambda messages: calls(*made(messages).tool_calls, *check(messages).tool_calls)


async def test_a_task_that_is_cancelled_and_checked_in_one_turn_stays_cancelled() -> None:
    gate = Gate()
    script = [start(), AIMessage("a"), with_check("cancel_async_task"), AIMessage("b")]
    lead = Supervisor(spec(RunnableLambda(gate)), *script)
    await lead.turn()
    await until(lambda: gate.began == 1)
    state = await lead.turn()
    assert task_of(state)["status"] == "cancelled"
    assert not told(state)


async def test_an_update_stops_the_run_and_goes_on_with_its_conversation() -> None:
    reached = anyio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        reached.set()
        await anyio.sleep_forever()
        return ""

    write, read = (call(name, file_path="/half.md") for name in ("write_file", "read_file"))
    write["args"]["content"] = "half\n"
    model = ScriptedModel(script=[calls(write), calls(call("wait")), calls(read), AIMessage("as you wish")])
    update = with_id("update_async_task", message="do it otherwise")
    lead = Supervisor(
        spec(create_deep_agent(model, tools=[wait])), start("first"), AIMessage("a"), update, *map(AIMessage, "bcd")
    )
    await lead.turn()
    await reached.wait()
    state = await lead.turn()
    await lead.ended()
    state = await lead.turn()
    asked = model.asked[2]
    assert [message.type for message in asked] == ["system", "human", "ai", "tool", "ai", "tool", "human"]
    assert (asked[1].text, asked[-1].text) == ("first", "do it otherwise")
    assert "half" in model.asked[3][-1].text
    assert task_of(state)["status"] == "success"
    assert "as you wish" in told(state)[-1].text


class Slow(Runnable[Any, Any]):
    """A subagent for every kind of event loop. Its first run takes a while to stop."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def invoke(self, state: Any, config: Any = None, **options: Any) -> Any:
        raise NotImplementedError

    async def ainvoke(self, state: Any, config: Any = None, **options: Any) -> Any:
        self.seen.append([message.text for message in state["messages"]])
        if len(self.seen) == 1:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            await anyio.sleep_forever()
        return state


async def _slow_task() -> tuple[Slow, BackgroundTasks, Any]:
    slow, tasks = Slow(), BackgroundTasks()
    task_id, run_id = tasks.start("worker", slow, {"messages": [HumanMessage("task")]})
    task = {"task_id": task_id, "run_id": run_id, "status": "running"}
    await anyio.wait_all_tasks_blocked()
    return slow, tasks, task


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_update_that_is_cancelled_has_stopped_the_run_and_can_be_sent_again(anyio_backend: str) -> None:
    slow, tasks, task = await _slow_task()
    with anyio.move_on_after(0.02) as scope:
        await tasks.update(task, "lost")
    assert (scope.cancelled_caught, tasks.observe(task).status) == (True, "running")
    await tasks.await_all()
    assert tasks.observe(task).status == "cancelled"
    await tasks.update(task, "more")
    await tasks.await_all()
    assert slow.seen == [["task"], ["task", "more"]]
    assert tasks.observe(task).status == "success"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_updates_at_the_same_time_are_done_one_after_the_other(anyio_backend: str) -> None:
    slow, tasks, task = await _slow_task()
    async with anyio.create_task_group() as group:
        for message in ("one", "two"):
            group.start_soon(tasks.update, task, message)
    await tasks.await_all()
    assert sorted(slow.seen[-1]) == ["one", "task", "two"]
    assert tasks.running == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_task_that_does_not_stop_in_time_still_runs(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepfs.middleware.background_tasks._STOP_SECONDS", 0.02)
    tasks = BackgroundTasks()
    task_id, run_id = tasks.start("worker", Slow(), {"messages": [HumanMessage("task")]})
    task: Any = {"task_id": task_id, "run_id": run_id, "status": "running"}
    await anyio.wait_all_tasks_blocked()
    await tasks.update(task, "later", "enqueue")
    assert (await tasks.cancel(task)).status == "running"
    await tasks.await_all()
    assert tasks.observe(task).status == "cancelled"


async def test_what_was_said_before_the_first_step_is_not_lost() -> None:
    model, tasks = ScriptedModel(script=[AIMessage("a")] * 3), BackgroundTasks()
    task_id, run_id = tasks.start("worker", create_agent(model), {"messages": [HumanMessage("task")]})
    task: Any = {"task_id": task_id, "run_id": run_id, "status": "running"}
    await tasks.update(task, "one")
    await tasks.update(task, "two")
    await tasks.await_all()
    assert [message.text for message in model.asked[-1]] == ["task", "one", "two"]


async def test_an_odd_result_does_not_stop_the_agent() -> None:
    odd: list[Any] = [
        {"messages": {"no": "list"}},
        {"messages": [AIMessage([{"type": "text"}, {"type": "image"}])]},
        {"messages": [{"role": "assistant", "content": [{"type": "text"}]}]},
        {"messages": [AIMessage("x")], "files": None},
        {"messages": [AIMessage("x")], "files": ["/a"]},
    ]
    for result in odd:
        runnable = RunnableLambda(lambda state, result=result: result)
        lead = Supervisor(spec(runnable), start(), with_id("check_async_task"), *map(AIMessage, "abc"))
        state = await lead.turn_after_end()
        assert task_of(state)["status"] == "success", result
        blocks = [block for message in told(state) for block in message.content]
        assert all(block["type"] == "text" and block["text"] for block in blocks), result


async def test_an_enqueued_update_waits_for_the_run() -> None:
    gate = Gate()
    subagent = spec(RunnableLambda(gate), update_strategy="enqueue")
    send = with_id("update_async_task", message="more")
    check = with_id("check_async_task")
    lead = Supervisor(subagent, start(), send, check, AIMessage("a"), AIMessage("b"), AIMessage("c"))
    state = await lead.turn()
    assert [task_of(state)["status"], gate.began] == ["pending", 1]
    assert len(task_of(state)["superseded_run_ids"]) == 1
    assert json.loads(results(state)[-1].text)["status"] == "pending"
    gate.opened.set()
    await lead.ended()
    assert gate.began == 2
    assert [message.text for message in gate.seen[1]["messages"]] == ["work", "through", "more"]
    assert task_of(await lead.turn())["status"] == "success"


async def test_two_enqueued_updates_of_one_turn_are_not_confused() -> None:
    def send_two(messages: list[Any]) -> AIMessage:
        (one,) = with_id("update_async_task", message="x")(messages).tool_calls
        (two,) = with_id("update_async_task", message="y")(messages).tool_calls
        return calls({**one, "type": "tool_call"}, {**two, "type": "tool_call"})

    subagent = spec(RunnableLambda(Gate()), update_strategy="enqueue")
    lead = Supervisor(subagent, start(), send_two, AIMessage("a"))
    _, sent, refused = results(await lead.turn())
    assert (sent.status, refused.status) == ("success", "error")
    await lead.tasks.aclose()


async def test_a_task_that_asks_a_person_waits_for_the_answer() -> None:
    subagent = create_deep_agent(
        ScriptedModel(script=[held(calls(call("write_file", file_path="/a", content="x"))), AIMessage("written")]),
        interrupt_on={"write_file": True},
    )
    check = with_id("check_async_task")
    lead = Supervisor(spec(subagent), start(), AIMessage("a"), check, *map(AIMessage, "bcd"))
    with pytest.raises(ValueError, match="waits for an answer"):
        await lead.tasks.resume("1", {})
    state = await lead.turn_after_end()
    checked = json.loads(results(state)[-1].text)
    assert checked["status"] == task_of(state)["status"] == "waiting"
    assert checked["interrupts"][0]["value"]["action_requests"][0]["name"] == "write_file"
    assert "files" not in state or not state["files"]
    answer = {checked["interrupts"][0]["id"]: {"decisions": [{"type": "approve"}]}}
    await lead.tasks.resume(checked["thread_id"], answer)
    await lead.ended()
    state = await lead.turn()
    assert task_of(state)["status"] == "success"
    assert state["files"]["/a"]["content"] == "x"


async def test_a_cancelled_task_asks_nothing() -> None:
    ask = ScriptedModel(script=[held(calls(call("write_file", file_path="/a", content="x")))])
    subagent = create_deep_agent(ask, interrupt_on={"write_file": True})
    check, cancel = with_id("check_async_task"), with_id("cancel_async_task")
    lead = Supervisor(spec(subagent), start(), AIMessage("a"), cancel, check, AIMessage("b"))
    state = await lead.turn_after_end()
    checked = json.loads(results(state)[-1].text)
    assert checked == {"status": "cancelled", "thread_id": task_of(state)["task_id"]}


async def test_many_tasks_lose_no_file() -> None:
    def work(messages: list[Any]) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage("ok")
        name = messages[-1].text
        edit = call("edit_file", file_path="/list", old_string=f"item {name}\n", new_string=f"DONE {name}\n")
        return calls(call("write_file", file_path=f"/{name}.md", content=name), edit)

    names = [str(number) for number in range(10, 30)]
    subagent = create_agent(ScriptedModel(script=[work] * 100), middleware=[FilesystemMiddleware()])
    starts = calls(*(call("start_async_task", description=name, subagent_type="worker") for name in names))
    lead = Supervisor(spec(subagent), starts, *(AIMessage(str(number)) for number in range(50)))
    items = "".join(f"item {name}\n" for name in names)
    state = await lead.turn_after_end(files={"/list": {"content": items, "encoding": "utf-8"}})
    files = {path: data["content"] for path, data in state["files"].items()}
    assert files.pop("/list") == items.replace("item", "DONE")
    assert files == {f"/{name}.md": name for name in names}
    assert {task["status"] for task in state["async_tasks"].values()} == {"success"}


async def test_after_a_restart_the_task_is_told_to_be_lost() -> None:
    lead = Supervisor(spec(RunnableLambda(Gate())), start(), AIMessage("a"))
    await lead.turn()
    await lead.tasks.aclose()
    later = Supervisor(spec(RunnableLambda(Gate())), with_id("check_async_task"), AIMessage("b"))
    later.agent.checkpointer = lead.saver
    state = await later.turn()
    assert task_of(state)["status"] == "error"
    assert "process that ran it has ended" in told(state)[0].text
    assert "error" in json.loads(results(state)[-1].text) or "no longer" in results(state)[-1].text


async def test_the_number_of_tasks_is_bounded() -> None:
    three = calls(*(call("start_async_task", description="x", subagent_type="worker") for _ in range(3)))
    gate = Gate()
    lead = Supervisor(spec(RunnableLambda(gate)), three, AIMessage("a"), start(), AIMessage("b"), limit=2)
    state = await lead.turn()
    # The three calls run at once, in any order.
    assert sorted(message.status for message in results(state)) == ["error", "success", "success"]
    [refused] = [message for message in results(state) if message.status == "error"]
    assert "2 background tasks run already" in refused.text
    assert lead.tasks.running == 2
    await lead.tasks.aclose()
    assert (lead.tasks.running, gate.cancelled) == (0, gate.began)
    assert results(await lead.turn())[-1].status == "success"
    await lead.tasks.aclose()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_no_tasks() -> None:
    lead = Supervisor(spec(RunnableLambda(Gate())), start(), AIMessage("a"))
    task: Any = task_of(lead.agent.invoke(GO, THREAD))
    child = os.fork()
    if child == 0:
        os._exit(7 if lead.tasks.observe(task).status == "error" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert lead.tasks.observe(task).status == "running"
    run_sync(lead.tasks.aclose)


async def test_tasks_that_wait_for_a_person_are_forgotten_last() -> None:
    tasks = BackgroundTasks(kept=2)
    asks = create_deep_agent(
        ScriptedModel(script=[calls(call("write_file", file_path="/a", content="x")), AIMessage("written")]),
        interrupt_on={"write_file": True},
    )
    waiting, _ = tasks.start("worker", asks, {"messages": [HumanMessage("write")]})
    await tasks.await_all()
    for _ in range(4):
        tasks.start("worker", RunnableLambda(lambda state: {"messages": [AIMessage("x")]}), {"messages": []})
        await tasks.await_all()
    await tasks.resume(waiting, {"decisions": [{"type": "approve"}]})
    await tasks.await_all()
    assert tasks._tasks[waiting].latest.status == "success"
    assert len(tasks._tasks) == 2


async def test_list_shows_the_statuses_now() -> None:
    gate = Gate()
    first, second = (calls(call("list_async_tasks")) for _ in range(2))
    some = calls(call("list_async_tasks", status_filter="error"))
    lead = Supervisor(spec(RunnableLambda(gate)), first, start(), second, some, AIMessage("a"))
    none, _, one, filtered = results(await lead.turn())
    assert none.text == "There are no background tasks."
    assert one.text.splitlines()[0] == "1 background tasks:"
    assert one.text.endswith("(worker), running")
    assert filtered.text == "There are no background tasks with the status error."
    await lead.tasks.aclose()


async def test_wrong_calls_are_reported() -> None:
    wrong = calls(
        call("start_async_task", description="x", subagent_type="nobody"),
        call("start_async_task", description=" ", subagent_type="worker"),
        call("check_async_task", task_id="1"),
        call("update_async_task", task_id="1", message="x"),
        call("cancel_async_task", task_id="1"),
        call("list_async_tasks", status_filter="odd"),
    )
    state = await Supervisor(spec(writer()), wrong, AIMessage("a")).turn()
    assert [message.status for message in results(state)] == ["error"] * 6
    assert "Choose one of: worker" in results(state)[0].text


async def test_a_task_has_the_store_and_the_context_of_its_agent_and_not_its_run() -> None:
    seen: list[Any] = []

    class Looking(AgentMiddleware[Any, Any, Any]):
        async def abefore_agent(self, state: Any, runtime: Any) -> None:
            config = get_config()
            seen.append((runtime.context, config["configurable"], config["metadata"]))

    def last(messages: list[Any]) -> AIMessage:
        threading.Event().wait(0.1)  # Meanwhile the task speaks.
        return AIMessage("done")

    files = CompositeBackend(StateBackend(), {"/memories/": StoreBackend(namespace=("m",))})
    write = call("write_file", file_path="/memories/a", content="x")
    model = ScriptedModel(script=[calls(write), AIMessage("whispered")])
    subagent = create_deep_agent(model, middleware=[Looking()], backend=files, context_schema=dict)
    store, tasks = InMemoryStore(), BackgroundTasks()
    lead = create_agent(
        ScriptedModel(script=[start(), last, AIMessage("again")]),
        middleware=[AsyncSubAgentMiddleware(async_subagents=[spec(subagent)], tasks=tasks)],
        store=store,
        context_schema=dict,
        checkpointer=InMemorySaver(),
    )
    modes: Any = ["values", "messages"]
    stream = lead.astream(GO, THREAD, context={"user": "ada"}, subgraphs=True, stream_mode=modes)
    events = [part async for part in stream]
    await tasks.await_all()
    assert {namespace for namespace, *_ in events} == {()}
    assert "whispered" not in [message.text for _, mode, (message, *_) in events if mode == "messages"]
    ((context, configurable, metadata),) = seen
    assert context == {"user": "ada"}
    assert configurable["thread_id"] != "1"
    assert "|" not in configurable["checkpoint_ns"]
    assert (metadata["lc_agent_name"], metadata["parent_thread_id"]) == ("worker", "1")
    assert len(store.search(("m",))) == 1


async def test_private_keys_are_not_given_to_a_task() -> None:
    class Own(AgentState[Any]):
        secret: NotRequired[Annotated[str, PrivateStateAttr]]
        shared: NotRequired[str]

    class Keeping(AgentMiddleware[Any, Any, Any]):
        state_schema = Own

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"secret": "mine", "shared": "ours"}

    gate = Gate()
    worker = {"name": "worker", "description": "Works.", "runnable": RunnableLambda(gate), "mode": "async"}
    model = ScriptedModel(script=[start(), AIMessage("a")])
    await create_deep_agent(model, subagents=[worker], middleware=[Keeping()]).ainvoke(GO)
    await until(lambda: gate.seen)
    assert {"secret", "shared"} & gate.seen[0].keys() == {"shared"}
    gate.opened.set()
    await default_tasks().await_all()


# --- on a server -----------------------------------------------------------------------------------------------------


def served(*script: Any, **options: Any) -> Any:
    return create_deep_agent(ScriptedModel(script=list(script)), checkpointer=InMemorySaver(), **options)


def remote(server: LangGraphServer, **more: Any) -> AsyncSubAgent:
    return AsyncSubAgent(name="worker", description="Works.", graph_id="agent", url=server.url, **more)


@pytest.fixture
def work() -> Iterator[Callable[..., LangGraphServer]]:
    """Starts servers with one graph, `agent`, which plays a script."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda *script, **options: stack.enter_context(
            running_langgraph_server({"agent": served(*script, **options)})
        )


def deep(server: LangGraphServer, *script: Any, **more: Any) -> Any:
    subagents = [remote(server, **more)]
    return create_deep_agent(ScriptedModel(script=list(script)), subagents=subagents, checkpointer=InMemorySaver())


async def ended(server: LangGraphServer) -> None:
    released.set()
    await until(lambda: all(run["status"] not in {"running", "pending"} for run in server.runs.values()))


@pytest.mark.both_forms
def test_a_graph_on_a_server_is_started_checked_and_told_of(work: Any, invoke: Invoke) -> None:
    server = work(held(AIMessage("from <b>afar</b>")))
    script = [start("look around"), AIMessage("a"), with_id("check_async_task"), AIMessage("b"), AIMessage("c")]
    agent = deep(server, *script, headers={"x-key": "k"}, webhook="http://localhost/h")
    state = invoke(agent, GO, THREAD)
    assert task_of(state)["status"] in {"running", "success"}
    run_sync(ended, server)
    state = invoke(agent, GO, THREAD)
    checked = json.loads(results(state)[-1].text)
    assert (checked["status"], checked["result"]) == ("success", "from <b>afar</b>")
    if invoke is in_async:  # Without an event loop, no server is asked but by a call of a tool.
        (note,) = told(state)
        assert "from <b>afar</b>" in note.text
        assert note.additional_kwargs[NOTIFICATION]["task_id"] == task_of(state)["task_id"]
    (created,) = server.bodies("/runs")
    assert (created["assistant_id"], created["webhook"]) == ("agent", "http://localhost/h")
    assert created["input"]["messages"] == [{"role": "user", "content": "look around"}]
    assert created["config"]["configurable"]["deepagents_parent"] == {"thread_id": "1"}
    assert server.bodies("/threads")[0]["metadata"] == {"subagent_name": "worker", "parent_thread_id": "1"}
    assert {(sent["x-key"], sent["x-auth-scheme"]) for *_, sent in server.requests} == {("k", "langsmith")}


async def test_a_failure_on_a_server_is_told(work: Any) -> None:
    def fail(messages: list[Any]) -> AIMessage:
        raise RuntimeError("broken there")

    server = work(held(fail))
    agent = deep(server, start(), AIMessage("a"), with_id("check_async_task"), AIMessage("b"))
    await agent.ainvoke(GO, THREAD)
    await ended(server)
    state = await agent.ainvoke(GO, THREAD)
    assert task_of(state)["status"] == "error"
    assert json.loads(results(state)[-1].text)["error"] == "RuntimeError: broken there"


@pytest.mark.parametrize("strategy", ["interrupt", "enqueue"])
async def test_a_follow_up_on_a_server(work: Any, strategy: str) -> None:
    server = work(held(AIMessage("first")), held(AIMessage("second")), AIMessage("third"))
    send = with_id("update_async_task", message="more")
    agent = deep(server, start(), send, AIMessage("a"), AIMessage("b"), AIMessage("c"), update_strategy=strategy)
    state = await agent.ainvoke(GO, THREAD)
    assert server.bodies("/runs")[1]["multitask_strategy"] == strategy
    assert task_of(state)["status"] == ("pending" if strategy == "enqueue" else "running")
    assert ("superseded_run_ids" in task_of(state)) == (strategy == "enqueue")
    released.set()
    await ended(server)
    state = await agent.ainvoke(GO, THREAD)
    assert task_of(state)["status"] == "success"
    assert task_of(state)["run_id"] == list(server.runs)[1]


async def test_a_follow_up_that_is_checked_in_one_turn_is_not_lost(work: Any) -> None:
    server = work(held(AIMessage("first")), held(AIMessage("second")))
    send = with_check("update_async_task", message="more")
    agent = deep(server, start(), send, AIMessage("a"), update_strategy="enqueue")
    task = task_of(await agent.ainvoke(GO, THREAD))
    first, second = server.runs
    assert (task["run_id"], task["superseded_run_ids"]) == (second, [first])


async def test_cancelling_a_task_on_a_server_stops_its_enqueued_runs_as_well(work: Any) -> None:
    server = work(held(AIMessage("first")), held(AIMessage("second")))
    script = [start(), with_id("update_async_task", message="more"), with_id("cancel_async_task")]
    agent = deep(server, *script, with_id("check_async_task"), AIMessage("a"), update_strategy="enqueue")
    state = await agent.ainvoke(GO, THREAD)
    assert [run["status"] for run in server.runs.values()] == ["interrupted", "interrupted"]
    assert task_of(state)["status"] == json.loads(results(state)[-1].text)["status"] == "cancelled"
    assert told(state) == []
    released.set()


async def test_a_task_that_ended_on_a_server_before_it_was_cancelled(work: Any) -> None:
    server = work(AIMessage("from afar"))

    def cancel(messages: list[Any]) -> AIMessage:
        run_sync(ended, server)
        return with_id("cancel_async_task")(messages)

    agent = deep(server, start(), cancel, AIMessage("a"), AIMessage("b"))
    state = await agent.ainvoke(GO, THREAD)
    assert task_of(state)["status"] == "success"
    assert results(state)[-1].text.startswith("It had ended before, with the status success")


async def test_a_task_that_its_server_lost_has_failed(work: Any) -> None:
    server = work(held(AIMessage("x")))
    listing = calls(call("list_async_tasks"))
    agent = deep(server, start(), AIMessage("a"), with_id("cancel_async_task"), listing, AIMessage("b"))
    await agent.ainvoke(GO, THREAD)
    await ended(server)
    server.runs.clear()
    state = await agent.ainvoke(GO, THREAD)
    assert task_of(state)["status"] == "error"
    assert "does not know the task any more" in told(state)[0].text
    assert results(state)[-1].text.endswith("(worker), error")


async def test_a_status_that_is_not_known_changes_nothing(work: Any) -> None:
    server = work(held(AIMessage("x")))
    turns = [(with_id("check_async_task"), calls(call("list_async_tasks")), AIMessage(text)) for text in "bcd"]
    agent = deep(server, start(), AIMessage("a"), *chain(*turns))
    await agent.ainvoke(GO, THREAD)
    await ended(server)
    for status in ("odd", None, {"a": 1}):
        for run in server.runs.values():
            run["status"] = status
        state = await agent.ainvoke(GO, THREAD)
        failed, shown = results(state)[-2:]
        assert (failed.status, task_of(state)["status"]) == ("error", "running")
        assert shown.text.endswith("running when last seen: it cannot be reached now")
        assert told(state) == []


async def test_a_server_that_answers_nothing_is_not_waited_for(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.remote_tasks._REQUEST_SECONDS", 0.1)
    server = work()
    monkeypatch.setattr(server, "answer", lambda *request: threading.Event().wait(0.5) or {})
    (failed,) = results(await deep(server, start(), AIMessage("a")).ainvoke(GO, THREAD))
    assert "TimeoutError" in failed.text


async def test_a_question_on_a_server_is_shown(work: Any) -> None:
    write = calls(call("write_file", file_path="/a", content="x"))
    server = work(held(write), interrupt_on={"write_file": True})
    check = with_id("check_async_task")
    agent = deep(server, start(), AIMessage("a"), check, with_id("cancel_async_task"), check, AIMessage("b"))
    await agent.ainvoke(GO, THREAD)
    await ended(server)
    state = await agent.ainvoke(GO, THREAD)
    asked, cancelled, after = results(state)[-3:]
    assert json.loads(asked.text)["interrupts"][0]["value"]["action_requests"][0]["name"] == "write_file"
    assert cancelled.text.startswith("Cancelled.")
    assert json.loads(after.text)["status"] == task_of(state)["status"] == "cancelled"


def test_a_run_that_somebody_else_has_started_is_cancelled_as_well(work: Any) -> None:
    write = calls(call("write_file", file_path="/a", content="x"))
    server = work(write, held(AIMessage("x")), interrupt_on={"write_file": True})
    check, cancel = with_id("check_async_task"), with_id("cancel_async_task")
    agent = deep(server, start(), AIMessage("a"), check, AIMessage("b"), cancel, AIMessage("c"))
    agent.invoke(GO, THREAD)
    run_sync(until, lambda: all(run["status"] != "running" for run in server.runs.values()))
    task = task_of(agent.invoke(GO, THREAD))
    assert task["status"] == "waiting"
    answer = {"assistant_id": "agent", "input": {"messages": [("user", "I do it otherwise")]}}
    other = server.answer("POST", f"/threads/{task['thread_id']}/runs", answer)
    state = agent.invoke(GO, THREAD)
    assert (other["status"], task_of(state)["status"]) == ("interrupted", "cancelled")


async def test_a_fork_sends_the_conversation_to_the_server(work: Any) -> None:
    server = work(held(AIMessage("x")))
    agent = deep(server, start("dig"), AIMessage("a"), AIMessage("b"), mode="fork")
    await agent.ainvoke({"messages": [("user", "the number is 7")]}, THREAD)
    await ended(server)
    sent = server.bodies("/runs")[0]["input"]["messages"]
    assert [message["type"] for message in sent] == ["human", "ai", "tool", "human"]
    assert sent[0]["content"] == "the number is 7"
    assert sent[-1]["content"].endswith("dig")


def test_a_refusal_of_the_server_is_an_error_of_the_tool() -> None:
    with running_langgraph_server({}) as empty:
        empty.refusal = "no such\ngraph " * 100_000
        (failed,) = results(deep(empty, start(), AIMessage("a")).invoke(GO, THREAD))
    assert failed.status == "error"
    assert "Could not start the background task of 'worker'" in failed.text
    assert len(failed.text) < 2_000


def test_without_a_url_the_sync_form_says_what_to_do() -> None:
    subagent = AsyncSubAgent(name="worker", description="Works.", graph_id="agent")
    agent = create_deep_agent(ScriptedModel(script=[start(), AIMessage("a")]), subagents=[subagent])
    (failed,) = results(agent.invoke(GO))
    assert failed.status == "error"
    assert "ainvoke" in failed.text


# --- on the server of the supervisor ---------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LangGraphServer]:
    """The server that this process is, with one graph, `agent`, which plays a script."""

    def make(*script: Any, **options: Any) -> LangGraphServer:
        server = LangGraphServer({"agent": served(*script, **options)})
        module = ModuleType("langgraph_api.server")
        vars(module)["app"] = asgi(server)
        monkeypatch.setitem(sys.modules, "langgraph_api", ModuleType("langgraph_api"))
        monkeypatch.setitem(sys.modules, "langgraph_api.server", module)
        return server

    return make


def started_by(server: LangGraphServer, status: str = "idle") -> dict[str, Any]:
    """The configuration of a run that an agent on the server started as a background task."""
    parent = server.answer("POST", "/threads", {})
    parent["status"] = status
    reference = {"thread_id": parent["thread_id"], "assistant_id": "agent"}
    return {
        "configurable": {"thread_id": "sub", "deepagents_parent": reference},
        "metadata": {"run_id": "run", "subagent_name": "worker"},
    }


async def test_a_graph_on_the_same_server_knows_the_assistant_and_the_context(here: Any) -> None:
    server = here(held(AIMessage("x")), held(AIMessage("y")))
    subagent = AsyncSubAgent(name="worker", description="Works.", graph_id="agent")
    script = [start(), AIMessage("a"), start(), AIMessage("b")]
    agent = create_deep_agent(
        ScriptedModel(script=script), subagents=[subagent], checkpointer=InMemorySaver(), context_schema=dict
    )
    config = {**THREAD, "metadata": {"assistant_id": "boss"}}
    await agent.ainvoke(GO, config)
    await agent.ainvoke(GO, config, context={"user": "ada"})
    plain, with_context = server.bodies("/runs")
    assert plain["config"]["configurable"]["deepagents_parent"] == {"thread_id": "1", "assistant_id": "boss"}
    assert with_context["context"] == {"user": "ada"}
    assert server.bodies("/threads")[0]["metadata"]["parent_assistant_id"] == "boss"
    await ended(server)


async def test_the_end_of_a_task_wakes_an_idle_supervisor(here: Any) -> None:
    server = here(AIMessage("thanks"))
    agent = served(AIMessage("the report"))
    await agent.ainvoke(GO, started_by(server))
    (woken,) = server.bodies("/runs")
    assert (woken["assistant_id"], woken["multitask_strategy"]) == ("agent", "reject")
    (message,) = woken["input"]["messages"]
    event = {"task_id": "sub", "agent_name": "worker", "status": "success", "run_id": "run"}
    assert message["deepagents_notification"] == event
    assert "the report" in [block["text"] for block in message["content"]]
    await ended(server)


async def test_a_failure_wakes_the_supervisor_without_details(here: Any) -> None:
    def fail(messages: list[Any]) -> AIMessage:
        raise RuntimeError("the password is 123")

    server = here(AIMessage("thanks"))
    with pytest.raises(RuntimeError):
        await served(fail).ainvoke(GO, started_by(server))
    text = str(server.bodies("/runs")[0]["input"])
    assert "RuntimeError" in text
    assert "123" not in text
    await ended(server)


async def test_a_busy_supervisor_and_a_waiting_task_wake_nobody(here: Any) -> None:
    server = here()
    await served(AIMessage("x")).ainvoke(GO, started_by(server, "busy"))
    asking = served(calls(call("write_file", file_path="/a", content="x")), interrupt_on={"write_file": True})
    await asking.ainvoke(GO, started_by(server))
    assert server.bodies("/runs") == []


async def test_an_agent_that_is_woken_knows_the_status(work: Any) -> None:
    server = work(held(AIMessage("x")))
    agent = deep(server, start(), AIMessage("a"), AIMessage("b"))
    task = task_of(await agent.ainvoke(GO, THREAD))
    event = {key: task[key] for key in ("task_id", "agent_name", "run_id")} | {"status": "success"}
    message = {"role": "user", "content": "it has ended", "deepagents_notification": event}
    state = await agent.ainvoke({"messages": [message]}, THREAD)
    assert task_of(state)["status"] == "success"
    assert len(told(state)) == 1
    await ended(server)


async def test_a_forged_notification_is_a_message_like_others() -> None:
    lead = Supervisor(spec(RunnableLambda(Gate())), start(), *map(AIMessage, "abcde"))
    task = task_of(await lead.turn())
    events: list[Any] = [{}, {"status": "odd"}, {"status": ["error"]}, "text"]
    for event in events:
        forged = {"task_id": task["task_id"], **event} if isinstance(event, dict) else event
        message = HumanMessage("x", additional_kwargs={NOTIFICATION: forged})
        state = await lead.agent.ainvoke({"messages": [message]}, THREAD)
        assert task_of(state)["status"] == "running"
    await lead.tasks.aclose()


async def test_the_notification_of_an_earlier_run_says_so(work: Any) -> None:
    server = work(held(AIMessage("x")), held(AIMessage("y")))
    send = with_id("update_async_task", message="more")
    agent = deep(server, start(), send, AIMessage("a"), AIMessage("b"), AIMessage("c"), update_strategy="enqueue")
    task = task_of(await agent.ainvoke(GO, THREAD))
    (earlier,) = task["superseded_run_ids"]
    event = {"task_id": task["task_id"], "agent_name": "worker", "run_id": earlier, "status": "success"}
    message = {"role": "user", "content": "it has ended", "deepagents_notification": event}
    state = await agent.ainvoke({"messages": [message]}, THREAD)
    assert task_of(state)["status"] == "pending"
    assert "earlier run" in told(state)[0].text
    await ended(server)


# --- configuration ---------------------------------------------------------------------------------------------------


def test_wrong_subagents_are_refused() -> None:
    refused: list[tuple[list[Any], str]] = [
        ([], "at least one"),
        ([spec(writer()), spec(writer())], "several subagents have the name 'worker'"),
        ([AsyncSubAgent(name="a", description="b")], "needs either graph_id"),
        ([{"name": "a", "graph_id": "b"}], "lacks description"),
        ([spec(writer(), update_strategy="rollback")], "update_strategy 'rollback'"),
        ([spec(writer(), mode="odd")], "mode 'odd'"),
    ]
    for subagents, told in refused:
        with pytest.raises(ValueError, match=told):
            AsyncSubAgentMiddleware(async_subagents=subagents)
