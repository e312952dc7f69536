"""Features that meet: renamed arguments and approvals, rules and approvals, calls whose ids are not unique."""

import base64
import inspect
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import anyio
import pytest
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import deepfs.middleware
from deepfs import FilesystemPermission, MemoryBackend, create_deep_agent, run_sync
from deepfs.middleware import Blobs
from deepfs.middleware._base import CallStep, arun_steps
from deepfs.middleware.approved import Approval, hold_to, shown_version
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
T = {"configurable": {"thread_id": "1"}}
PNGS = [b"\x89PNG\r\n\x1a\n" + each * 300 for each in (b"x", b"y")]


def _agent(files: Any, script: list[Any], **o: Any) -> Any:
    m = ScriptedModel(script=script)
    return m, create_deep_agent(m, backend=files, checkpointer=InMemorySaver(), **o)


def test_renamed_arguments_have_previews_and_preconditions(invoke: Invoke) -> None:
    for made in (
        call("write_file", path="/a", content="X", overwrite=True),
        call("edit_file", path="/a", old_str="one", new_str="1"),
        call("delete", path="/a"),
    ):
        files = MemoryBackend()
        files.write("/a", "one\n")
        _, agent = _agent(files, [calls(made), AIMessage("d")], interrupt_on={made["name"]: True})
        state = invoke(agent, GO, T)
        assert "-one" in state["__interrupt__"][0].value["action_requests"][0]["description"]
        files.write("/a", "one, and more\n", overwrite=True)
        state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}]}), T)
        assert "changed after a person was asked" in results(state)[0].content
        assert files.read("/a").file_data.content == "one, and more\n"


def test_a_call_that_rules_and_the_middleware_of_langchain_ask_about_is_asked_about_once(invoke: Invoke) -> None:
    files = MemoryBackend()
    rules = [FilesystemPermission(operations=["write"], paths=["/ask/**"], mode="interrupt")]
    asking = HumanInTheLoopMiddleware({"write_file": True, "delete": True}, description_prefix="Well?")
    written = [call("write_file", file_path=path, content="X\n") for path in ("/ask/a", "/b")]
    edited = call("edit_file", file_path="/ask/a", old_string="X", new_string="Y")
    worker = {"name": "s", "description": "s", "model": ScriptedModel(script=[calls(*written), AIMessage("d")])}
    task = call("task", description="t", subagent_type="s")
    _, agent = _agent(
        files,
        [calls(*written), calls(edited), calls(task), AIMessage("d")],
        permissions=rules,
        middleware=[asking],
        subagents=[{**worker, "middleware": [asking]}],
    )
    asked = []
    state = invoke(agent, GO, T)
    while "__interrupt__" in state:
        (interrupt,) = state["__interrupt__"]
        requests = interrupt.value["action_requests"]
        asked.append([each["args"]["file_path"] for each in requests])
        assert all(each["description"].startswith("Well?") for each in requests if each["name"] == "write_file")
        assert any("+" in each["description"] for each in requests)
        state = invoke(agent, Command(resume={"decisions": [{"type": "approve"} for _ in requests]}), T)
    assert asked == [["/ask/a", "/b"], ["/ask/a"], ["/ask/a", "/b"]]
    assert [files.read(path).file_data.content for path in ("/ask/a", "/b")] == ["Y\n", "X\n"]


def test_an_id_that_a_model_uses_again_does_not_leave_a_call_without_an_answer(invoke: Invoke) -> None:
    listing, writing = call("ls"), call("write_file", file_path="/a", content="x")
    writing["id"] = listing["id"]
    script = [calls(listing), AIMessage("d"), calls(writing), AIMessage("d")]
    m, agent = _agent(MemoryBackend(), script, interrupt_on={"write_file": True})
    invoke(agent, GO, T)
    assert "__interrupt__" in invoke(agent, GO, T)
    invoke(agent, GO, T)
    assert [each.type for each in m.asked[-1]][-3:] == ["ai", "tool", "human"]
    assert sum(each.type == "tool" for each in m.asked[-1]) == 2


def test_calls_without_an_id_are_carried_out_and_answered(invoke: Invoke) -> None:
    nameless = {"type": "invalid_tool_call", "id": None, "name": "ls", "args": "{", "error": "no JSON"}
    turn = AIMessage("", tool_calls=[{**call("ls"), "id": None}], invalid_tool_calls=[nameless])
    m, agent = _agent(MemoryBackend(), [turn, AIMessage("d"), AIMessage("d")])
    invoke(agent, GO, T)
    invoke(agent, GO, T)
    made = next(each for each in m.asked[-1] if isinstance(each, AIMessage))
    answered = [each.tool_call_id for each in m.asked[-1] if each.type == "tool"]
    assert sorted(answered) == sorted(each["id"] for each in (*made.tool_calls, *made.invalid_tool_calls))
    assert all(answered)


@pytest.mark.parametrize("given", ["same", None])
def test_calls_of_one_turn_without_ids_of_their_own_have_previews_and_preconditions(invoke: Invoke, given: Any) -> None:
    files = MemoryBackend()
    made = []
    for path in ("/a", "/b"):
        files.write(path, f"one {path}\n")
        made.append({**call("edit_file", file_path=path, old_string="one", new_string="1"), "id": given})
    _, agent = _agent(files, [calls(*made), AIMessage("d")], interrupt_on={"edit_file": True})
    requests = invoke(agent, GO, T)["__interrupt__"][0].value["action_requests"]
    assert [f"-one {path}" in each["description"] for path, each in zip(("/a", "/b"), requests, strict=True)] == [
        True
    ] * 2
    files.write("/a", "one, and more\n", overwrite=True)
    state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}] * 2}), T)
    assert [each.status for each in results(state)] == ["error", "success"]
    assert files.read("/a").file_data.content == "one, and more\n"


def test_media_that_no_message_refers_to_are_found(invoke: Invoke) -> None:
    files = MemoryBackend()
    blobs = Blobs(files)
    assert run_sync(blobs.find_unreferenced, []) == []
    kinds = [{"type": "image", "base64": base64.b64encode(each).decode(), "mime_type": "image/png"} for each in PNGS]
    _, agent = _agent(files, [AIMessage("d"), AIMessage("d")])
    for place, each in enumerate(kinds):
        state = invoke(agent, {"messages": [HumanMessage([each], id=str(place))]}, T)
    files.write("/blobs/notes.md", "mine")
    unused = run_sync(blobs.find_unreferenced, [each for each in state["messages"] if each.id != "0"])
    assert [each.path for each in unused] == [f"/blobs/{sha256(PNGS[0]).hexdigest()}"]
    assert run_sync(blobs.find_unreferenced, state["messages"]) == []


def subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield from (each, *subclasses(each))


def test_no_hook_around_a_call_goes_through_threads() -> None:
    # LangChain's agents trace coroutine functions, by two jobs in threads for each call, even where nothing is traced.
    assert [getattr(deepfs.middleware, name) for name in dir(deepfs.middleware)]  # All are imported.
    own = {cls for cls in subclasses(AgentMiddleware) if cls.__module__.startswith("deepfs.")}
    hooks = {getattr(cls, name) for cls in own for name in ("awrap_model_call", "awrap_tool_call")}
    traced = {hook for hook in hooks if inspect.iscoroutinefunction(hook)}
    assert len(own) > 10
    assert traced <= {AgentMiddleware.awrap_model_call, AgentMiddleware.awrap_tool_call}, traced


@pytest.mark.anyio
async def test_cancelled_steps_leave_their_blocks_in_their_own_context() -> None:
    kept: list[BaseException] = []

    def approved() -> Iterator[CallStep]:
        with hold_to(Approval({"/a": "1"}, {})):
            yield CallStep(lambda: None, anyio.sleep_forever)

    with anyio.move_on_after(0.01):
        try:
            await arun_steps(approved())
        except BaseException as error:
            kept.append(error)  # Its traceback holds the steps.
            raise
    assert kept
    assert shown_version("/a") is None
