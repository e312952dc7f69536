"""Subagents run concurrently and share the backend; what they write reaches the supervisor."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from deepfs import MemoryBackend, StateBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
from deepfs.policy.rules import FilesystemPermission
from support.agents import Invoke, backend, invoke, results
from support.chat import ScriptedModel, call, calls

__all__ = ["backend", "invoke"]

GO = {"messages": [("user", "go")]}


def worker(*made: Any) -> ScriptedModel:
    """A model for subagents: makes the calls that `made` returns for its task, then reports the result."""

    def turn(messages: list[Any]) -> AIMessage:
        last = messages[-1]
        if last.type == "tool":
            return AIMessage(f"did {messages[-len(made) - 2].content}: {last.content}")
        return calls(*(make(last.content) for make in made))

    return ScriptedModel(script=[turn] * 1_000)


def spec(model: Any, **more: Any) -> SubAgent:
    return SubAgent(name="worker", description="Works.", system_prompt="Work.", model=model, **more)


def supervisor(subagents: Any, *turns: Any, files: BackendProtocol | None = None, **options: Any) -> Any:
    files = files or StateBackend()
    middleware = [FilesystemMiddleware(backend=files), SubAgentMiddleware(backend=files, subagents=subagents)]
    return create_agent(ScriptedModel(script=[*turns, AIMessage("done")]), middleware=middleware, **options)


def tasks(*descriptions: str, to: str = "worker") -> AIMessage:
    return calls(*(call("task", description=each, subagent_type=to) for each in descriptions))


def write(task: str) -> dict[str, Any]:
    return call("write_file", file_path=f"/out/{task}.md", content=task)


def contents(state: dict[str, Any]) -> dict[str, str]:
    return {path: data["content"] for path, data in state["files"].items()}


def stored(text: str) -> dict[str, str]:
    return {"content": text, "encoding": "utf-8"}


# --- files -----------------------------------------------------------------------------------------------------------


def test_parallel_subagents_write_one_tree(backend: BackendProtocol, invoke: Invoke) -> None:
    names = [f"part-{number}" for number in range(20)]
    agent = supervisor(
        [spec(worker(write))],
        tasks(*names),
        calls(call("glob", pattern="*.md"), call("grep", pattern="part-7")),
        files=backend,
    )
    *answers, found, searched = results(invoke(agent, GO))
    assert [answer.content for answer in answers] == [f"did {name}: Wrote /out/{name}.md" for name in names]
    assert found.content.split() == sorted(f"/out/{name}.md" for name in names)
    assert searched.content == "/out/part-7.md"


def test_parallel_subagents_edit_one_file(invoke: Invoke) -> None:
    def edit(task: str) -> dict[str, Any]:
        return call("edit_file", file_path="/list", old_string=f"item {task}\n", new_string=f"DONE {task}\n")

    agent = supervisor([spec(worker(edit))], tasks(*map(str, range(10, 30))))
    text = "".join(f"item {number}\n" for number in range(40))
    state = invoke(agent, {**GO, "files": {"/list": stored(text)}})
    done = "".join(f"{'DONE' if 10 <= number < 30 else 'item'} {number}\n" for number in range(40))
    assert contents(state) == {"/list": done}
    assert not state.get("file_conflicts")


def test_a_conflict_is_reported_and_loses_nothing(invoke: Invoke) -> None:
    def write_same(task: str) -> dict[str, Any]:
        return call("write_file", file_path="/same", content=task)

    state = invoke(supervisor([spec(worker(write_same))], tasks("one", "two")), GO)
    files = contents(state)
    assert sorted(files.values()) == ["one", "two"]
    (kept,) = (path for path in files if path != "/same")
    assert kept.startswith("/conflicts/")
    (told,) = (message.content for message in results(state) if kept in message.content)
    assert f"did {files[kept]}" in told


def test_deletions_reach_the_supervisor(invoke: Invoke) -> None:
    agent = supervisor([spec(worker(lambda task: call("delete", file_path=f"/{task}")))], tasks("a", "b"))
    state = invoke(agent, {**GO, "files": {f"/{name}": stored(name) for name in "abc"}})
    assert contents(state) == {"/c": "c"}


def test_a_subagent_sees_what_its_supervisor_wrote(invoke: Invoke) -> None:
    read = worker(lambda task: call("read_file", file_path=f"/{task}"))
    agent = supervisor([spec(read)], calls(call("write_file", file_path="/a", content="x")), tasks("a"))
    assert results(invoke(agent, GO))[-1].content == "did a: 1\tx"


def test_rules_of_a_subagent_apply_to_it_alone(invoke: Invoke) -> None:
    rules = [FilesystemPermission(operations=["write"], paths=["/**"], mode="deny")]
    agent = supervisor([spec(worker(write), permissions=rules)], tasks("a"), calls(write("b")))
    state = invoke(agent, GO)
    assert "permission denied" in results(state)[0].content
    assert contents(state) == {"/out/b.md": "b"}


# --- contexts and answers --------------------------------------------------------------------------------------------


def test_a_subagent_sees_only_its_task(invoke: Invoke) -> None:
    model = ScriptedModel(script=[AIMessage("yes")])
    state = invoke(supervisor([spec(model)], tasks("the task")), GO)
    assert [message.text for message in model.asked[0]] == [f"Work.\n\n{PROMPTS['filesystem']}", "the task"]
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]


def test_an_empty_answer_of_a_subagent_is_reported(invoke: Invoke) -> None:
    silent = ScriptedModel(script=[AIMessage("")])
    assert "without a word" in results(invoke(supervisor([spec(silent)], tasks("x")), GO))[0].content


def test_any_runnable_can_be_a_subagent(invoke: Invoke) -> None:
    def answer(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [AIMessage(f"heard {state['messages'][0].content}")]}

    echo = CompiledSubAgent(name="worker", description="Echoes.", runnable=RunnableLambda(answer))
    mute = CompiledSubAgent(name="mute", description="Says nothing.", runnable=RunnableLambda(lambda state: {}))
    bare = CompiledSubAgent(name="bare", description="Has no state.", runnable=RunnableLambda(lambda state: "x"))
    agent = supervisor(
        [echo, mute, bare], tasks("this"), tasks("x", to="mute"), tasks("x", to="bare"), tasks("x", to="nobody")
    )
    heard, nothing, stateless, nobody = results(invoke(agent, GO))
    assert heard.content == "heard this"
    assert (nothing.status, stateless.status, nobody.status) == ("error", "error", "error")
    assert "worker, mute" in nobody.content


def test_a_subagent_may_have_a_response_format(invoke: Invoke) -> None:
    class Count(BaseModel):
        number: int

    counting = ScriptedModel(script=[calls(call("Count", number=3))])
    worker = SubAgent(name="worker", description="Counts.", model=counting, response_format=Count)
    assert results(invoke(supervisor([worker], tasks("count")), GO))[0].content == '{"number":3}'


def test_wrong_arguments_are_reported(invoke: Invoke) -> None:
    agent = supervisor([spec(worker(write))], calls(call("task", subagent_type="worker")))
    (wrong,) = results(invoke(agent, GO))
    assert wrong.status == "error"
    assert "description: Field required" in wrong.content


def test_a_subagent_that_asks_a_person_pauses_its_supervisor(invoke: Invoke) -> None:
    asking = spec(worker(write), interrupt_on={"write_file": True})
    agent = supervisor([asking], tasks("a"), checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    assert invoke(agent, GO, thread)["__interrupt__"]
    state = invoke(agent, Command(resume={"decisions": [{"type": "approve"}]}), thread)
    assert contents(state) == {"/out/a.md": "a"}


# --- configuration ---------------------------------------------------------------------------------------------------


def test_the_defaults_make_a_general_purpose_agent(invoke: Invoke) -> None:
    @tool
    def ping() -> str:
        """Ping."""
        return "pong"

    inner = worker(lambda task: call("ping"))
    middleware = SubAgentMiddleware(default_model=inner, default_tools=[ping])
    outer = ScriptedModel(script=[tasks("x", to="general-purpose"), AIMessage("done")])
    state = invoke(create_agent(outer, middleware=[middleware]), GO)
    assert results(state)[0].content == "did x: pong"
    assert "general-purpose: " in middleware.tools[0].description
    assert [message.type for message in outer.asked[0]] == ["human"]


def test_incomplete_or_wrong_configurations_are_refused() -> None:
    model = ScriptedModel(script=[])
    with pytest.raises(TypeError, match="needs default_model"):
        SubAgentMiddleware(subagents=[])
    with pytest.raises(ValueError, match="at least one"):
        SubAgentMiddleware(default_model=model, general_purpose_agent=False)
    with pytest.raises(ValueError, match="'x' lacks description"):
        SubAgentMiddleware(default_model=model, subagents=[{"name": "x", "system_prompt": ""}])
    with pytest.raises(ValueError, match="'x' has keys that are not known: prompt"):
        SubAgentMiddleware(default_model=model, subagents=[{"name": "x", "description": "", "prompt": ""}])
    with pytest.raises(ValueError, match="two subagents have the name 'worker'"):
        SubAgentMiddleware(default_model=model, subagents=[spec(model), spec(model)])
    with pytest.raises(ValueError, match="'a' needs a model"):
        SubAgentMiddleware(backend=MemoryBackend(), subagents=[SubAgent(name="a", description="", system_prompt="")])


def test_the_description_of_the_tool_can_be_replaced() -> None:
    middleware = SubAgentMiddleware(
        default_model=ScriptedModel(script=[]), task_description="Ask:\n{available_agents}", system_prompt="Delegate."
    )
    assert middleware.tools[0].description == f"Ask:\n- general-purpose: {PROMPTS['general_purpose_description']}"
    assert middleware.wrap_model_call(_request(), lambda request: request).system_message.text == "Delegate."


def _request() -> Any:
    from langchain.agents.middleware.types import ModelRequest

    return ModelRequest(model=ScriptedModel(script=[]), messages=[HumanMessage("x")])
