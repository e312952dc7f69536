"""Features that meet: renamed arguments and approvals, forks and their own storage, model tools and refusals."""

import base64
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepfs import FilesystemMiddleware, FilesystemPermission, MemoryBackend, create_deep_agent
from deepfs.middleware._delegation import fork_messages
from support.agents import Invoke, invoke, results
from support.chat import ScriptedModel, call, calls

__all__ = ["invoke"]
GO = {"messages": [("user", "go")]}
T = {"configurable": {"thread_id": "1"}}


def _agent(files: Any, script: list[Any], **o: Any) -> Any:
    m = ScriptedModel(script=script)
    return m, create_deep_agent(m, backend=files, checkpointer=InMemorySaver(), **o)


@pytest.mark.parametrize(
    "made",
    [
        call("write_file", path="/a", content="X", overwrite=True),
        call("edit_file", path="/a", old_str="one", new_str="1"),
        call("delete", path="/a"),
    ],
    ids=lambda c: c["name"],
)
def test_renamed_arguments_have_previews_and_preconditions(invoke: Invoke, made: Any) -> None:
    files = MemoryBackend()
    files.write("/a", "one\n")
    _, agent = _agent(files, [calls(made), AIMessage("d")], interrupt_on={made["name"]: True})
    state = invoke(agent, GO, T)
    assert "-one" in state["__interrupt__"][0].value["action_requests"][0]["description"]
    files.write("/a", "one, and more\n", overwrite=True)
    state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}]}), T)
    assert "changed after a person was asked" in results(state)[0].content
    assert files.read("/a").file_data.content == "one, and more\n"


@pytest.mark.parametrize(
    "given",
    [
        {"command": "delete", "path": "/memories/a"},
        {"command": "create", "path": "/memories/b", "file_text": "x"},
        {"command": "str_replace", "path": "/memories/a", "old_str": "one", "new_str": "1"},
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/c"},
        {"command": "view", "path": "/memories/a"},
    ],
    ids=lambda g: g["command"],
)
def test_memory_is_asked_about(invoke: Invoke, given: Any) -> None:
    files = MemoryBackend()
    files.write("/memories/a", "one\n")
    _, agent = _agent(
        files,
        [calls(call("memory", **given)), AIMessage("d")],
        interrupt_on={"write_file": True, "edit_file": True, "delete": True},
        middleware=[FilesystemMiddleware(files, model_tools=["memory"])],
    )
    assert ("__interrupt__" in invoke(agent, GO, T)) == (given["command"] != "view")


def test_model_tools_are_hidden_where_changes_are_refused() -> None:
    files = MemoryBackend()
    rules = [FilesystemPermission(operations=["write"], paths=["/**"], mode="deny")]
    for given, offered in ((rules, False), ([], True)):
        m, agent = _agent(
            files,
            [AIMessage("d")],
            permissions=given,
            middleware=[FilesystemMiddleware(files, model_tools=["memory", "apply_patch"])],
        )
        agent.invoke(GO, T)
        assert ("apply_patch" in m.offered, "memory" in m.offered) == (offered, offered)


def test_a_fork_with_its_own_files_sees_the_media_of_the_conversation(invoke: Invoke) -> None:
    image = {
        "type": "image",
        "base64": base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 300).decode(),
        "mime_type": "image/png",
    }
    m, agent = _agent(
        MemoryBackend(),
        [calls(call("task", description="look", subagent_type="s")), AIMessage("sub"), AIMessage("d")],
        subagents=[{"name": "s", "description": "s", "system_prompt": "p", "backend": MemoryBackend(), "mode": "fork"}],
    )
    invoke(agent, {"messages": [HumanMessage([image])]}, T)
    (shown,) = [each.content for each in m.asked[1] if isinstance(each.content, list) and each.type == "human"]
    assert shown == [image]


def test_a_fork_sees_all_that_the_summary_leaves_after_messages_were_removed() -> None:
    messages = [AIMessage(str(n), id=str(n)) for n in range(6)]
    event = {"cutoff_index": 4, "summary_message": HumanMessage("S"), "file_path": None, "last_id": "3", "kept_id": "4"}
    seen = fork_messages({"messages": messages[2:], "_summarization_event": event}, "T")
    assert [each.content for each in seen[:3]] == ["S", "4", "5"]
