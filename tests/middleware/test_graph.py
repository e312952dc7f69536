"""create_deep_agent with all its parts together."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepfs import FilesystemBackend, FilesystemPermission, MemoryBackend, SubAgent, create_deep_agent
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}


def agent_of(*turns: Any, **options: Any) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(script=[*turns, AIMessage("done")])
    return model, create_deep_agent(model, **options)


@pytest.mark.parametrize("backend", ["state", "composite", "shell"], indirect=True)
def test_an_agent_plans_works_and_delegates(backend: BackendProtocol, invoke: Invoke) -> None:
    @tool
    def ping() -> str:
        """Ping."""
        return "pong"

    model, agent = agent_of(
        calls(call("write_todos", todos=[{"content": "write", "status": "in_progress"}])),
        calls(call("task", description="write it", subagent_type="general-purpose")),
        calls(call("write_file", file_path="/a", content="x"), call("ping")),  # The subagent's turns.
        AIMessage("written"),
        calls(call("read_file", file_path="/a"), call("ping")),
        tools=[ping],
        backend=backend,
    )
    state = invoke(agent, GO)
    assert [message.content for message in results(state)[1:]] == ["written", "1\tx", "pong"]
    assert state["todos"] == [{"content": "write", "status": "in_progress"}]
    assert {"write_todos", "task", "ls", "ping"} <= set(model.offered)
    assert PROMPTS["general_purpose"] in model.asked[2][0].text


def test_two_todo_lists_in_one_turn_are_refused(invoke: Invoke) -> None:
    lists = [call("write_todos", todos=[{"content": name, "status": "pending"}]) for name in ("a", "b")]
    _, agent = agent_of(calls(*lists), calls(lists[1]))
    state = invoke(agent, GO)
    assert ["once in a turn" in message.content for message in results(state)] == [True, True, False]
    assert state["todos"] == [{"content": "b", "status": "pending"}]


@pytest.mark.anyio
async def test_a_turn_is_two_steps_and_no_job_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    loop = asyncio.get_running_loop()
    run = loop.run_in_executor
    monkeypatch.setattr(loop, "run_in_executor", lambda *given: jobs.append(given) or run(*given))
    model, agent = agent_of(calls(call("write_file", file_path="/a", content="x")), backend=MemoryBackend())
    steps = [name async for update in agent.astream(GO, stream_mode="updates") for name in update]
    assert steps == ["FilesystemMiddleware.before_agent", "model", "tools", "model"]
    assert len(jobs) == len(model.asked)  # Each call of this model, which is not async.


def test_agents_share_the_schemas_of_their_tools() -> None:
    one, other = (agent_of()[1].nodes["tools"].bound.tools_by_name for _ in range(2))
    assert {name for name, tool in one.items() if tool.tool_call_schema is not other[name].tool_call_schema} == set()
    one["ls"].description = "Another."
    assert one["ls"].tool_call_schema.model_json_schema()["description"] == "Another."
    assert other["ls"].tool_call_schema.model_json_schema()["description"] != "Another."


@pytest.mark.parametrize("backend", ["state", "composite"], indirect=True)
def test_memory_is_shown_at_every_turn(backend: BackendProtocol, invoke: Invoke) -> None:
    model, agent = agent_of(
        calls(call("write_file", file_path="/memories/AGENTS.md", content="Be kind.")),
        memory=["/memories/AGENTS.md"],
        backend=backend,
        system_prompt="Help.",
    )
    invoke(agent, GO)
    before, after = (asked[0].text for asked in model.asked)
    assert before.startswith("Help.")
    assert before.endswith("<file path='/memories/AGENTS.md'>(nothing yet)</file>")
    assert after.endswith("<file path='/memories/AGENTS.md'>\nBe kind.\n</file>")


def test_unreadable_memory_is_not_shown_as_empty(invoke: Invoke) -> None:
    files = MemoryBackend()
    files.upload_files([("/image", b"\0"), ("/dir/a", b"x")])
    lost = BackendError("Error: no connection")
    broken = FaultyBackend(files, lambda _, count: lost if count == 1 else None)
    model, agent = agent_of(memory=["/broken", "/image", "/dir", "/new"], backend=broken)
    invoke(agent, GO)
    shown = model.asked[0][0].text.partition("## Memory")[2].splitlines()
    assert [line for line in shown if line.startswith("<file")] == [
        "<file path='/broken'>(Error: no connection)</file>",
        "<file path='/image'>(not a text)</file>",
        "<file path='/dir'>(Error: '/dir' is a directory)</file>",
        "<file path='/new'>(nothing yet)</file>",
    ]


def test_arguments_of_wrong_types_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"memory": given}, "of paths, not|a path of sources") for given in ("/AGENTS.md", 5, [None], [b"/a"])),
        *(({"subagents": given}, "list of SubAgent and Compiled") for given in ([5], ["worker"], [None])),
    ]
    for given in (5, FilesystemPermission(["read"]), [None], ["/a"]):
        worker = SubAgent(name="w", description="d", system_prompt="p", permissions=given)  # type: ignore[typeddict-item]
        wrong += [({"permissions": given}, "rules is a list of"), ({"subagents": [worker]}, "rules is a list of")]
    for options, told in wrong:
        with pytest.raises(TypeError, match=told):
            agent_of(**options)


def test_a_conversation_goes_on_without_an_answer_to_an_interrupt(invoke: Invoke) -> None:
    asked = calls(call("write_file", file_path="/a", content="x"), call("ls"))
    model, agent = agent_of(
        asked, interrupt_on={"write_file": True}, checkpointer=InMemorySaver(), backend=MemoryBackend()
    )
    assert invoke(agent, GO, THREAD)["__interrupt__"]
    state = invoke(agent, GO, THREAD)
    told = [message for message in model.asked[-1] if message.type == "tool"]
    assert [(message.tool_call_id, message.status) for message in told] == [
        (made["id"], "error") for made in asked.tool_calls
    ]
    assert [message.type for message in model.asked[-1][2:5]] == ["ai", "tool", "tool"]
    assert not results(state)


# --- rules -----------------------------------------------------------------------------------------------------------

ASK = FilesystemPermission(operations=["read", "write"], paths=["/secret/**"], mode="interrupt")
DENY = FilesystemPermission(operations=["read", "write"], paths=["/private/**"], mode="deny")


def rules_agent(*turns: Any, files: BackendProtocol | None = None, **options: Any) -> Any:
    files = files or MemoryBackend()
    return agent_of(*turns, backend=files, permissions=[DENY, ASK], checkpointer=InMemorySaver(), **options)[1]


@pytest.mark.parametrize("backend", ["state", "composite"], indirect=True)
def test_a_rule_asks_for_approval_and_then_allows_the_call(backend: BackendProtocol, invoke: Invoke) -> None:
    agent = rules_agent(
        calls(
            call("write_file", file_path="//secret/./a", content="x"), call("write_file", file_path="/b", content="y")
        ),
        calls(call("read_file", file_path="/secret/a")),
        files=backend,
    )
    assert len(invoke(agent, GO, THREAD)["__interrupt__"][0].value["action_requests"]) == 1
    approve = Command(resume={"decisions": [{"type": "approve"}]})
    assert invoke(agent, approve, THREAD)["__interrupt__"]
    state = invoke(agent, approve, THREAD)
    assert [message.status for message in results(state)] == ["success"] * 3
    assert results(state)[-1].content == "1\tx"


def test_a_symlink_does_not_bypass_approval(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a").write_text("x")
    (tmp_path / "link").symlink_to("secret")
    agent = rules_agent(calls(call("read_file", file_path="/link/a")), files=FilesystemBackend(tmp_path))
    (refused,) = results(invoke(agent, GO, THREAD))
    assert "approval is needed" in refused.content


def test_searches_omit_files_that_need_approval(invoke: Invoke) -> None:
    files = MemoryBackend()
    for path in ("/secret/a", "/private/a", "/open/a"):
        files.write(path, "needle")
    agent = rules_agent(calls(call("grep", pattern="needle"), call("glob", pattern="a"), call("ls")), files=files)
    found, globbed, listed = (message.content for message in results(invoke(agent, GO, THREAD)))
    assert (found, globbed) == ("/open/a", "/open/a")
    assert "private" not in listed


def test_a_tree_that_contains_protected_files_needs_approval(invoke: Invoke) -> None:
    for made in (
        call("move", source="/top", destination="/open"),
        call("move", source="/other", destination="/top"),
        call("delete", file_path="/top"),
    ):
        files = MemoryBackend()
        files.write("/top/secret/a", "x")
        files.write("/other/secret/a", "x")
        rule = FilesystemPermission(operations=["write"], paths=["/top/secret/**"], mode="interrupt")
        _, agent = agent_of(calls(made), backend=files, permissions=[rule], checkpointer=InMemorySaver())
        assert invoke(agent, GO, THREAD)["__interrupt__"]


def test_approval_is_asked_for_even_if_a_path_beneath_could_be_denied(invoke: Invoke) -> None:
    files = MemoryBackend()
    files.write("/secret/a", "x")
    rules = [
        FilesystemPermission(operations=["write"], paths=["/secret/never/**"], mode="deny"),
        FilesystemPermission(operations=["write"], paths=["/secret/**"], mode="interrupt"),
    ]
    delete = calls(call("delete", file_path="/secret")), calls(call("delete", file_path="/secret/never"))
    _, agent = agent_of(*delete, backend=files, permissions=rules, checkpointer=InMemorySaver())
    assert invoke(agent, GO, THREAD)["__interrupt__"]
    state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert [message.status for message in results(state)] == ["success", "error"]


def test_rules_apply_to_middleware_that_replaces_the_default(invoke: Invoke) -> None:
    files = MemoryBackend()
    files.write("/private/a", "x")
    own = FilesystemMiddleware(backend=files, system_prompt="Mine.")
    worker = SubAgent(name="worker", description="Works.", middleware=[own])
    read = call("read_file", file_path="/private/a")
    model, agent = agent_of(
        calls(read, call("task", description="x", subagent_type="worker")),
        calls(read),
        lambda messages: AIMessage(messages[-1].content),
        backend=files,
        permissions=iter([DENY, ASK]),
        middleware=[own],
        subagents=[worker],
        checkpointer=InMemorySaver(),
    )
    state = invoke(agent, GO, THREAD)
    assert ["permission denied" in message.content for message in results(state)] == [True, True]
    assert not own.permissions
    assert "Mine." in model.asked[0][0].text
    assert PROMPTS["filesystem"] not in model.asked[0][0].text


def test_rules_of_middleware_hold_for_subagents_and_skills(invoke: Invoke) -> None:
    files = MemoryBackend()
    files.write("/private/x/SKILL.md", "---\nname: x\ndescription: Tells.\n---\n")
    own, other = (FilesystemMiddleware(backend=files, permissions=rules) for rules in ([DENY], [ASK]))
    names = ["plain", "skilled", "freed", "other"]
    more: list[Any] = [{}, {"skills": ["/private"]}, {"permissions": [ASK]}, {"middleware": [other]}]
    plain = {"description": "Works.", "system_prompt": "Work."}

    def turn(messages: list[Any]) -> AIMessage:
        write = call("write_file", file_path="/private/a", content="x", overwrite=True)
        return AIMessage(messages[-1].text) if messages[-1].type == "tool" else calls(write)

    model, agent = agent_of(
        calls(*(call("task", description="x", subagent_type=name) for name in names)),
        *[turn] * 8,
        backend=files,
        middleware=[own],
        skills=["/private"],
        subagents=[{"name": name, **plain, **options} for name, options in zip(names, more, strict=True)],
        checkpointer=InMemorySaver(),
    )
    state = invoke(agent, GO, THREAD)
    assert ["permission denied" in message.text for message in results(state)] == [True, True, False, False]
    assert not any("/private/x" in message.text for asked in model.asked for message in asked)


def test_rules_and_backends_of_forks_replace_those_of_the_middleware_of_the_supervisor(invoke: Invoke) -> None:
    files, apart = MemoryBackend(), MemoryBackend()
    ruled = FilesystemMiddleware(backend=files, permissions=[DENY])
    deny_free = FilesystemPermission(operations=["write"], paths=["/free/**"], mode="deny")
    own = FilesystemMiddleware(backend=files, permissions=[deny_free])
    more: list[Any] = [{}, {"permissions": []}, {"permissions": [deny_free]}, {"middleware": [own]}, {"backend": apart}]
    forks = [SubAgent(name=str(place), description="Works.", mode="fork", **each) for place, each in enumerate(more)]

    def turn(messages: list[Any]) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage(", ".join(each.text.partition(" ")[0] for each in messages[-2:]))
        paths = ("/private/a", "/free/a")
        return calls(*(call("write_file", file_path=path, content="x", overwrite=True) for path in paths))

    tasks = [calls(call("task", description="x", subagent_type=fork["name"])) for fork in forks]
    script = [each for task in tasks for each in (task, turn, turn)]
    _, agent = agent_of(*script, backend=files, middleware=[ruled], subagents=forks)
    answers = [message.text for message in results(invoke(agent, GO))]
    assert answers == ["Error:, Wrote", "Wrote, Wrote", "Wrote, Error:", "Wrote, Error:", "Error:, Wrote"]
    assert [info.path for info in apart.glob("**").matches or ()] == ["/free/a"]


def test_rules_that_differ_from_those_of_middleware_are_refused() -> None:
    own = FilesystemMiddleware(backend=MemoryBackend(), permissions=[DENY])
    worker = SubAgent(name="worker", description="Works.", middleware=[own])
    for options in ({"middleware": [own]}, {"subagents": [worker]}):
        with pytest.raises(ValueError, match="permissions differ"):
            agent_of(permissions=[ASK], **options)
    agent_of(subagents=[SubAgent(**worker, permissions=[DENY])], permissions=[ASK])


def test_two_middleware_of_one_name_are_refused() -> None:
    twice = [ModelCallLimitMiddleware(run_limit=2), ModelCallLimitMiddleware(thread_limit=50)]
    worker = SubAgent(name="worker", description="Works.", middleware=twice)
    for options in ({"middleware": twice}, {"subagents": [worker]}):
        with pytest.raises(ValueError, match="ModelCallLimitMiddleware twice"):
            agent_of(**options)


def test_rules_hold_for_subagents(invoke: Invoke) -> None:
    files = MemoryBackend()
    agent = rules_agent(
        calls(call("task", description="x", subagent_type="general-purpose")),
        calls(call("write_file", file_path="/private/a", content="x")),
        lambda messages: AIMessage(messages[-1].content),
        calls(call("task", description="y", subagent_type="general-purpose")),
        calls(call("write_file", file_path="/secret/a", content="x")),
        AIMessage("written"),
        files=files,
    )
    assert invoke(agent, GO, THREAD)["__interrupt__"]
    state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    denied, written = (message.content for message in results(state))
    assert "permission denied" in denied
    assert written == "written"
    assert files.read("/secret/a").ok


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_anthropic", None)
    with pytest.raises(ModuleNotFoundError, match="pip install langchain-anthropic"):
        create_deep_agent()
