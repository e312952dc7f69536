"""Approvals: which calls a person is asked about, and which answers are valid."""

from itertools import product
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepfs import (
    BackendProtocol,
    FilesystemPermission,
    MemoryBackend,
    SubAgent,
    create_deep_agent,
)
from deepfs.middleware.approvals import ApprovalMiddleware
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}
APPROVE = Command(resume={"decisions": [{"type": "approve"}]})


def files_of() -> MemoryBackend:
    files = MemoryBackend()
    files.write("/a", "new")
    files.write("/b", "old")
    return files


def text(files: BackendProtocol, path: str) -> str:
    return files.read(path).unwrap().content


def agent_of(files: BackendProtocol, *made: Any, **options: Any) -> Any:
    model = ScriptedModel(script=[*(calls(each) for each in made), AIMessage("done")])
    return create_deep_agent(model, backend=files, checkpointer=InMemorySaver(), **options)


def asked(state: dict[str, Any]) -> list[str]:
    found = [each.value["action_requests"] for each in state.get("__interrupt__", ())]
    return [request["name"] for requests in found for request in requests]


def decisions(state: dict[str, Any]) -> list[str]:
    return list(state["__interrupt__"][0].value["review_configs"][0]["allowed_decisions"])


MOVE = call("move", source="/a", destination="/b", overwrite=True)
REPLACE = call("write_file", file_path="/b", content="new", overwrite=True)
CREATE = call("write_file", file_path="/c", content="new")

# --- tools with the effect of another tool ---------------------------------------------------------------------------


def test_tools_that_replace_files_ask_like_the_named_tool(invoke: Invoke) -> None:
    for named, made in product(["write_file", "edit_file", "delete"], [MOVE, REPLACE]):
        files = files_of()
        agent = agent_of(files, made, interrupt_on={named: True})
        assert asked(invoke(agent, GO, THREAD)) == [made["name"]]
        assert [files.read(path).ok for path in ("/a", "/b")] == [True, True]
        state = invoke(agent, Command(resume={"decisions": [{"type": "reject"}]}), THREAD)
        assert results(state)[0].status == "error"
        assert text(files, "/b") == "old"


def test_calls_that_no_setting_means_do_not_ask(invoke: Invoke) -> None:
    explicit = {"edit_file": True, "delete": True, "move": False, "write_file": False}
    for made, on in [
        (MOVE, explicit),
        (REPLACE, explicit),
        (CREATE, {"edit_file": True}),
        (CREATE, {"delete": True}),
        (MOVE, {}),
        (MOVE, {"write_file": False}),
        (MOVE, {"execute": True}),
    ]:
        files = files_of()
        assert not asked(invoke(agent_of(files, made, interrupt_on=on), GO, THREAD))
        assert text(files, "/c" if made is CREATE else "/b") == "new"


def test_a_condition_gets_an_equivalent_call_for_each_file(invoke: Invoke) -> None:
    for named, path, asks in [
        ("write_file", "/b", True),
        ("write_file", "/a", False),
        ("delete", "/a", True),
        ("delete", "/b", True),
        ("edit_file", "/b", True),
        ("delete", "/c", False),
    ]:

        def when(request: Any, named: str = named, path: str = path) -> bool:
            assert request.tool_call["name"] == named
            return bool(request.tool_call["args"]["file_path"] == path)

        on = {named: {"allowed_decisions": ["approve", "reject"], "when": when}}
        state = invoke(agent_of(files_of(), MOVE, interrupt_on=on), GO, THREAD)
        assert bool(asked(state)) is asks, (named, path)
        if asks:
            assert decisions(state) == ["approve", "reject"]


def test_a_condition_that_raises_on_an_equivalent_call_asks(invoke: Invoke) -> None:
    on = {"edit_file": {"allowed_decisions": ["approve"], "when": lambda request: request.tool_call["args"]["none"]}}
    assert asked(invoke(agent_of(files_of(), MOVE, interrupt_on=on), GO, THREAD)) == ["move"]


def test_the_decisions_offered_are_those_that_every_setting_allows(invoke: Invoke) -> None:
    on = {
        "write_file": {"allowed_decisions": ["approve", "edit", "reject"], "description": lambda *given: given[9]},
        "delete": {"allowed_decisions": ["reject", "approve", "respond"]},
    }
    assert decisions(invoke(agent_of(files_of(), MOVE, interrupt_on=on), GO, THREAD)) == ["approve", "reject"]
    on = {"write_file": {"allowed_decisions": ["edit"]}, "delete": {"allowed_decisions": ["respond"]}}
    assert decisions(invoke(agent_of(files_of(), MOVE, interrupt_on=on), GO, THREAD)) == ["approve", "reject"]


def test_an_entry_without_decisions_is_an_error_that_says_so() -> None:
    for wrong in ({"allowed_decision": ["approve"]}, {"allowed_decisions": []}, {}):
        with pytest.raises(ValueError, match="`allowed_decisions` must be a non-empty list"):
            agent_of(MemoryBackend(), interrupt_on={"delete": wrong})


def test_an_entry_of_a_tool_does_not_switch_off_a_rule(invoke: Invoke) -> None:
    rule = FilesystemPermission(["write"], ["/c"], "interrupt")
    for config in (False, {"allowed_decisions": ["approve"], "when": lambda request: False}):
        agent = agent_of(MemoryBackend(), CREATE, interrupt_on={"write_file": config}, permissions=[rule])
        assert asked(invoke(agent, GO, THREAD)) == ["write_file"]


DELETES = {"delete": True}
WHERE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inherited": ({"interrupt_on": DELETES}, {}),
    "of the subagent": ({}, {"interrupt_on": DELETES}),
    "langchain's middleware": ({}, {"middleware": [HumanInTheLoopMiddleware(DELETES)]}),  # type: ignore[arg-type]
    "own middleware": (
        {"interrupt_on": {"edit_file": False, "ls": True}},
        {"middleware": [ApprovalMiddleware(interrupt_on=DELETES)]},
    ),
}


@pytest.mark.parametrize("where", WHERE)
def test_approvals_hold_for_subagents(invoke: Invoke, where: str) -> None:
    of_agent, of_worker = WHERE[where]
    files, worker = files_of(), SubAgent(name="worker", description="Works.", **of_worker)
    task = call("task", description="x", subagent_type="worker")
    model = ScriptedModel(script=[calls(task), calls(MOVE), AIMessage("no"), AIMessage("")])
    agent = create_deep_agent(model, backend=files, checkpointer=InMemorySaver(), subagents=[worker], **of_agent)
    assert asked(invoke(agent, GO, THREAD)) == ["move"]
    if where != "langchain's middleware":
        with pytest.raises(ValueError, match="Answer with Command"):
            invoke(agent, Command(resume="yes"), THREAD)
    assert files.read("/a").ok
    invoke(agent, Command(resume={"decisions": [{"type": "reject"}]}), THREAD)
    assert files.read("/a").ok


def test_middleware_of_the_agent_asks_about_equivalent_calls_too(invoke: Invoke) -> None:
    of_langchain = HumanInTheLoopMiddleware(DELETES)  # type: ignore[arg-type]
    for asking in (of_langchain, ApprovalMiddleware(interrupt_on=DELETES)):
        files = files_of()
        agent = agent_of(files, MOVE, middleware=[asking], interrupt_on={"edit_file": False, "ls": True})
        assert asked(invoke(agent, GO, THREAD)) == ["move"]
        assert files.read("/a").ok
    assert set(of_langchain.interrupt_on) == {"delete"}, "the caller's own is left as it is"


# --- answers ---------------------------------------------------------------------------------------------------------

WRONG: list[Any] = [
    "yes",
    True,
    5,
    ["approve"],
    {"decision": "approve"},
    {"decisions": None},
    {"decisions": []},
    {"decisions": [{"type": "approve"}, {"type": "approve"}]},
    {"decisions": ["approve"]},
    {"decisions": [{}]},
    {"decisions": [{"type": "perhaps"}]},
    {"decisions": [{"type": "edit"}]},
    {"decisions": [{"type": "edit", "edited_action": "x"}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "ls"}}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "ls", "args": ["/"]}}]},
    {"decisions": [{"type": "respond"}]},
]
RULE = FilesystemPermission(["write"], ["/**"], "interrupt")
ASKING: dict[str, Any] = {"interrupt_on": {"interrupt_on": {"write_file": True}}, "rule": {"permissions": [RULE]}}


@pytest.mark.parametrize("by", ["interrupt_on", "rule"])
def test_a_malformed_or_missing_answer_raises_and_the_interrupt_stays(invoke: Invoke, by: str) -> None:
    files = MemoryBackend()
    agent = agent_of(files, CREATE, **ASKING[by])
    assert invoke(agent, Command(update=GO), THREAD)["__interrupt__"], "commands without an answer pass"
    answers = [Command(resume=None), Command(), *(Command(resume=wrong) for wrong in WRONG)]
    for answer in answers:
        with pytest.raises(ValueError, match=r"Answer with Command\(resume=\{'decisions'"):
            invoke(agent, answer, THREAD)
        assert not files.read("/c").ok
        assert agent.get_state(THREAD).interrupts
    state = invoke(agent, APPROVE, THREAD)
    assert [message.status for message in results(state)] == ["success"]
    assert files.read("/c").ok


@pytest.mark.both_forms
def test_a_tool_that_is_not_there_in_an_answer_does_not_end_the_thread(invoke: Invoke) -> None:
    files = files_of()
    agent = agent_of(files, CREATE, call("delete", file_path="/a"), interrupt_on={"write_file": True})
    invoke(agent, GO, THREAD)
    edited = {"type": "edit", "edited_action": {"name": "nothing\n", "args": {}}}
    state = invoke(agent, Command(resume={"decisions": [edited]}), THREAD)
    assert next((each.status, each.text) for each in results(state)) == (
        "error",
        "Error: A person replaced this call by one of nothing\\n, which is no tool here. Nothing was done.",
    )
    assert not files.read("/c").ok
    assert agent.get_state(THREAD).next == ()


def test_an_error_of_the_users_condition_is_raised_unchanged(invoke: Invoke) -> None:
    def when(request: Any) -> bool:
        raise ValueError("of my own")

    on = {"write_file": {"allowed_decisions": ["approve"], "when": when}}
    with pytest.raises(ValueError, match=r"^of my own"):
        invoke(agent_of(MemoryBackend(), CREATE, interrupt_on=on), GO, THREAD)


@pytest.mark.parametrize("by", ["interrupt_on", "rule"])
def test_a_person_may_answer_in_place_of_a_tool(invoke: Invoke, by: str) -> None:
    files = MemoryBackend()
    agent = agent_of(files, CREATE, **ASKING[by])
    invoke(agent, GO, THREAD)
    state = invoke(agent, Command(resume={"decisions": [{"type": "respond", "message": "It is there."}]}), THREAD)
    assert [(message.status, message.text) for message in results(state)] == [("success", "It is there.")]
    assert not files.read("/c").ok
