"""Subagents run concurrently and share the backend; what they write reaches the supervisor."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from pydantic import BaseModel

from deepfs import MemoryBackend, StateBackend, create_deep_agent
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.subagents import (
    SUBAGENT_RESPONSE_FORMAT_CONFIG_KEY,
    CompiledSubAgent,
    SubAgent,
    SubAgentMiddleware,
    create_sub_agent,
)
from deepfs.policy.rules import FilesystemPermission
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}


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


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["state", "filesystem", "composite"], indirect=True)
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


def test_a_supervisor_without_files_of_its_own_keeps_those_of_its_subagents(invoke: Invoke) -> None:
    middleware = SubAgentMiddleware(backend=StateBackend(), subagents=[spec(worker(write))])
    agent = create_agent(ScriptedModel(script=[tasks("a"), tasks("b"), AIMessage("done")]), middleware=[middleware])
    state = invoke(agent, GO)
    assert [message.content for message in results(state)] == ["did a: Wrote /out/a.md", "did b: Wrote /out/b.md"]
    assert contents(state) == {"/out/a.md": "a", "/out/b.md": "b"}


def test_rules_of_middleware_hold_for_the_subagents_that_get_it(invoke: Invoke) -> None:
    files, own = MemoryBackend(), MemoryBackend()
    rules = [FilesystemPermission(operations=["write"], paths=["/out/**"], mode="deny")]
    ruled = FilesystemMiddleware(backend=files, permissions=rules)
    free = spec(worker(write), permissions=[]) | {"name": "free"}
    subagents = [spec(worker(write)), spec(worker(write), backend=own) | {"name": "apart"}, free]
    middleware = SubAgentMiddleware(default_model=worker(), default_middleware=[ruled], subagents=subagents)
    asked = [tasks(name, to=name) for name in ("worker", "apart", "free")]
    agent = create_agent(ScriptedModel(script=[*asked, AIMessage("done")]), middleware=[middleware])
    answers = [message.text for message in results(invoke(agent, GO))]
    assert ["permission denied" in answer for answer in answers] == [True, True, False]
    assert [file.path for each in (files, own) for file in each.glob("**").matches or ()] == ["/out/free.md"]


# --- contexts and answers --------------------------------------------------------------------------------------------


def test_a_subagent_sees_only_its_task(invoke: Invoke) -> None:
    model = ScriptedModel(script=[AIMessage("yes")])
    state = invoke(supervisor([spec(model)], tasks("the task")), GO)
    assert [message.text for message in model.asked[0]] == [f"Work.\n\n{PROMPTS['filesystem']}", "the task"]
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]


def test_any_runnable_can_be_a_subagent(invoke: Invoke) -> None:
    answers: dict[str, Any] = {
        "echo": lambda state: {"messages": [AIMessage(f"heard {state['messages'][0].content}")]},
        "tuple": lambda state: {"messages": [{"type": "human", "content": "?"}, ("ai", "7"), {"odd": 1}]},
        "role": lambda state: {"messages": [{"role": "assistant", "content": "7"}]},
        "blocks": lambda state: {"messages": [{"type": "ai", "content": [{"type": "text", "text": "7"}]}]},
        "silent": lambda state: {"messages": [AIMessage("")]},
        "mute": lambda state: {},
        "bare": lambda state: "x",
    }
    workers = [
        CompiledSubAgent(name=name, description="Works.", runnable=RunnableLambda(answer))
        for name, answer in answers.items()
    ]
    made = [tasks("this", to=name) for name in (*answers, "nobody")]
    told = [(message.status, message.text) for message in results(invoke(supervisor(workers, *made), GO))]
    assert [text for _, text in told[:4]] == ["heard this", "7", "7", "7"]
    assert "without a word" in told[4][1]
    assert [status for status, _ in told[5:]] == ["error"] * 3
    assert "echo, tuple" in told[-1][1]


def test_wrong_arguments_are_reported(invoke: Invoke) -> None:
    wrong = [
        ({"subagent_type": "worker", "prompt": "go"}, "there is no argument prompt, did you mean description?"),
        ({"description": "x"}, "subagent_type is missing"),
        ({"description": " ", "subagent_type": "worker"}, "The description is empty."),
    ]
    made = calls(*(call("task", **arguments) for arguments, _ in wrong))
    for message, (_, told) in zip(results(invoke(supervisor([spec(worker(write))], made), GO)), wrong, strict=True):
        assert message.status == "error"
        assert told in message.content


# --- configuration ---------------------------------------------------------------------------------------------------


def test_incomplete_or_wrong_configurations_are_refused() -> None:
    model = ScriptedModel(script=[])
    bare: Any = {"name": "x", "description": ""}
    given: list[tuple[dict[str, Any], str]] = [
        ({"subagents": [], "default_model": None}, "needs default_model"),
        ({"general_purpose_agent": False}, "at least one"),
        ({"subagents": [{"name": "x", "system_prompt": ""}]}, "'x' lacks description"),
        ({"subagents": [{**bare, "prompt": ""}]}, "'x' has keys that are not known: prompt"),
        ({"subagents": [spec(model), spec(model)]}, "two subagents have the name 'worker'"),
        ({"subagents": [bare], "default_model": None, "backend": MemoryBackend()}, "'x' needs a model"),
        ({"subagents": [spec(model, mode="odd")]}, "has the mode 'odd'"),
        ({"subagents": [spec(model, mode="fork", skills=["/skills"])]}, "omit skills"),
        ({"subagents": [spec(model, mode="async")]}, "is async"),
    ]
    for options, told in given:
        with pytest.raises((TypeError, ValueError), match=told):
            SubAgentMiddleware(**{"default_model": model, **options})


# --- forks -----------------------------------------------------------------------------------------------------------


def test_a_fork_continues_the_conversation(invoke: Invoke) -> None:
    model = ScriptedModel(script=[calls(write("x")), AIMessage("seven")])
    fork = SubAgent(name="worker", description="Knows all.", system_prompt="Be brief.", model=model, mode="fork")
    lead = ScriptedModel(
        script=[calls(call("write_file", file_path="/n", content="7")), tasks("add one"), AIMessage("ok")]
    )
    agent = create_deep_agent(lead, system_prompt="You lead.", subagents=[fork])
    state = invoke(agent, {"messages": [("user", "the number is 7")]})
    system, *history = model.asked[0]
    assert system.text.startswith("You lead.\n\nBe brief.")
    assert [message.type for message in history] == ["human", "ai", "tool", "ai", "tool", "human"]
    assert history[0].text == "the number is 7"
    assert history[-2].tool_call_id == history[-3].tool_calls[0]["id"]
    assert history[-1].text.endswith("add one")
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert results(state)[-1].content == "seven"
    assert contents(state) == {"/n": "7", "/out/x.md": "x"}
    assert "knows this conversation" in next(each for each in delegating(agent)).description


def delegating(agent: Any) -> list[Any]:
    """The tool `task` of an agent."""
    return [agent.nodes["tools"].bound.tools_by_name["task"]]


def test_a_fork_has_the_prompt_and_the_tools_of_its_supervisor(invoke: Invoke) -> None:
    model = ScriptedModel(script=[AIMessage("ok")])
    lead = ScriptedModel(script=[tasks("x"), AIMessage("done")])
    fork = SubAgent(name="worker", description="Knows all.", model=model, mode="fork")
    files = MemoryBackend()
    files.write("/AGENTS.md", "remember this\n")
    later = SubAgent(name="later", description="Works.", model=model, mode="async")
    agent = create_deep_agent(
        lead, system_prompt="You lead.", subagents=[fork, later], backend=files, memory=["/AGENTS.md"]
    )
    invoke(agent, GO)
    assert model.asked[0][0].text == lead.asked[0][0].text
    assert "remember this" in model.asked[0][0].text
    assert model.offered == lead.offered


def test_a_fork_cannot_hand_on_its_task(invoke: Invoke) -> None:
    model = ScriptedModel(script=[tasks("again"), lambda messages: AIMessage(messages[-1].text)])
    fork = SubAgent(name="worker", description="Knows all.", model=model, mode="fork")
    agent = create_deep_agent(ScriptedModel(script=[tasks("x"), AIMessage("done")]), subagents=[fork])
    assert "Carry it out yourself" in results(invoke(agent, GO))[0].content


def test_a_fork_of_a_summarised_conversation_has_the_summary(invoke: Invoke) -> None:
    class Summed(AgentState[Any]):
        _summarization_event: NotRequired[Any]

    heard: list[Any] = []
    echo = RunnableLambda(lambda state: heard.extend(state["messages"]) or {"messages": [AIMessage("x")]})
    worker = CompiledSubAgent(name="worker", description="Echoes.", runnable=echo, mode="fork")
    lead = create_agent(
        ScriptedModel(script=[tasks("x"), AIMessage("done")]),
        middleware=[SubAgentMiddleware(backend=StateBackend(), subagents=[worker])],
        state_schema=Summed,
    )
    event = {"cutoff_index": 2, "summary_message": HumanMessage("a summary")}
    given = [HumanMessage("one"), AIMessage("two"), HumanMessage("three")]
    invoke(lead, {"messages": given, "_summarization_event": event})
    assert [message.text for message in heard[:2]] == ["a summary", "three"]


# --- what a subagent has of its own ----------------------------------------------------------------------------------


def test_a_subagent_with_a_backend_keeps_the_rules_of_its_supervisor(invoke: Invoke) -> None:
    own, rules = MemoryBackend(), [FilesystemPermission(operations=["write"], paths=["/out/**"], mode="deny")]
    model = ScriptedModel(script=[calls(write("a")), lambda messages: AIMessage(messages[-1].text)])
    lead = ScriptedModel(script=[tasks("x"), AIMessage("done")])
    agent = create_deep_agent(lead, subagents=[spec(model, backend=own)], permissions=rules)
    assert "permission denied" in results(invoke(agent, GO))[0].content
    assert own.ls("/").entries == []


def test_private_keys_are_not_shared(invoke: Invoke) -> None:
    seen: list[Any] = []

    class Counted(AgentState[Any]):
        secret: NotRequired[Annotated[str, PrivateStateAttr]]
        shared: NotRequired[str]

    class Counting(AgentMiddleware[Any, Any, Any]):
        state_schema = Counted

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"secret": "mine", "shared": "ours"}

    def answer(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(state)
        return {"messages": [AIMessage("x")], "secret": "yours", "shared": "changed"}

    echo = CompiledSubAgent(name="worker", description="Echoes.", runnable=RunnableLambda(answer))
    keep = ScriptedModel(script=[tasks("x"), AIMessage("done")])
    agent = create_deep_agent(keep, subagents=[echo], middleware=[Counting()], checkpointer=InMemorySaver())
    state = invoke(agent, GO, THREAD)
    assert "secret" not in seen[0]
    assert (seen[0]["shared"], state["shared"]) == ("ours", "changed")
    assert agent.get_state(THREAD).values["secret"] == "mine"


def test_a_run_may_ask_subagents_for_a_form_of_answer(invoke: Invoke) -> None:
    class Count(BaseModel):
        number: int

    agent = supervisor([spec(ScriptedModel(script=[calls(call("Count", number=3))]))], tasks("count"))
    config = {"configurable": {SUBAGENT_RESPONSE_FORMAT_CONFIG_KEY: Count}}
    assert results(invoke(agent, GO, config))[0].content == '{"number":3}'


def test_create_sub_agent_builds_what_is_given(invoke: Invoke) -> None:
    model = ScriptedModel(script=[AIMessage("ok")])
    built = create_sub_agent(SubAgent(name="a", description="b", system_prompt="Work.", model=model, tools=[]))
    invoke(built, GO)
    assert [message.text for message in model.asked[0]] == ["Work.", "go"]
    with pytest.raises(ValueError, match="'a' lacks model"):
        create_sub_agent(SubAgent(name="a", description="b", tools=[]))
    with pytest.raises(ValueError, match="'a' lacks tools"):
        create_sub_agent(SubAgent(name="a", description="b", model=model))


# --- several interrupts ----------------------------------------------------------------------------------------------


def asking(runs: list[str]) -> Any:
    """A subagent that asks before it notes its task in `runs`."""

    @tool
    def note(text: str) -> str:
        """Note."""
        runs.append(text)
        return f"noted {text}"

    return spec(worker(lambda task: call("note", text=task)), tools=[note], interrupt_on={"note": True})


APPROVE = {"decisions": [{"type": "approve"}]}
NAMES = ["one", "two", "three"]


def asked(state: dict[str, Any]) -> dict[str, str]:
    """The ids of the open interrupts by the task that asks."""
    return {each.value["action_requests"][0]["args"]["text"]: each.id for each in state["__interrupt__"]}


@pytest.mark.parametrize(
    ("rounds", "nested"),
    [
        ([["three", "one", "two"]], True),
        ([["two"], ["three", "one"]], False),
        ([["three"], ["one"], ["two"]], True),
    ],
)
def test_interrupts_are_answered_by_id(tmp_path: Path, rounds: list[list[str]], nested: bool) -> None:
    """Each answer comes in a process of its own: the checkpointer and the agent are made anew."""
    runs: list[str] = []

    def saver() -> Any:
        return AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite"))

    def agent(checkpointer: Any) -> Any:
        subagent = asking(runs)
        if nested:
            inner = worker(lambda task: call("task", description=task, subagent_type="worker"))
            middle = create_deep_agent(inner, subagents=[subagent])
            subagent = CompiledSubAgent(name="worker", description="Hands on.", runnable=middle)
        lead = ScriptedModel(script=[tasks(*NAMES), AIMessage("done")])
        lead._taken = turns
        return create_deep_agent(lead, subagents=[subagent], checkpointer=checkpointer)

    async def play() -> None:
        async with saver() as checkpointer:
            state = await agent(checkpointer).ainvoke(GO, THREAD)
        for names in rounds:
            ids = asked(state)
            async with saver() as checkpointer:
                answers = Command(resume={ids[name]: APPROVE for name in names})
                state = await agent(checkpointer).ainvoke(answers, THREAD)
        assert "__interrupt__" not in state
        assert sorted(runs) == sorted(NAMES)
        assert all(f"noted {name}" in message.text for name, message in zip(NAMES, results(state), strict=True))

    turns = count()
    asyncio.run(play())


# --- files of subagents that do not end well -------------------------------------------------------------------------


def test_what_siblings_wrote_outlives_a_failure(invoke: Invoke) -> None:
    failures = iter([RuntimeError("once")])

    def work(messages: list[Any]) -> AIMessage:
        task = next(message.text for message in messages if message.type == "human")
        if messages[-1].type == "tool":
            if task == "bad" and (error := next(failures, None)):
                raise error
            return AIMessage("ok")
        return calls(write(task))

    lead = ScriptedModel(script=[tasks("good", "bad"), AIMessage("done")])
    agent = create_deep_agent(lead, subagents=[spec(ScriptedModel(script=[work] * 20))], checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError, match="once"):
        invoke(agent, GO, THREAD)
    state = invoke(agent, None, THREAD)
    assert contents(state) == {"/out/good.md": "good", "/out/bad.md": "bad"}
