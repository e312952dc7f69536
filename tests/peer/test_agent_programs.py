"""Programs with agents give the same results with both libraries; each is written once, for the name of the library."""

import operator
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware
from langchain.agents.middleware.types import PrivateStateAttr
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from support.chat import ScriptedModel, call, calls

GO: dict[str, Any] = {"messages": [("user", "go")]}
THREAD: Any = {"configurable": {"thread_id": "1"}}
PROGRAMS: dict[str, Callable[[str], Any]] = {}


def program(function: Callable[[str], Any]) -> Callable[[str], Any]:
    PROGRAMS[function.__name__] = function
    return function


def agent_of(library: str, *turns: Any, **options: Any) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(script=[*turns, AIMessage("done")])
    return model, import_module(library).create_deep_agent(model, **options)


def tools(state: Any) -> list[tuple[str, str]]:
    return sorted((message.name, message.status) for message in state["messages"] if message.type == "tool")


def texts(state: Any) -> list[str]:
    return [message.text for message in state["messages"] if message.type == "tool"]


def write(path: str) -> AIMessage:
    return calls(call("write_file", file_path=path, content="x"))


def task(to: str = "general-purpose", description: str = "do it") -> AIMessage:
    return calls(call("task", description=description, subagent_type=to))


@program
def approvals_of_the_user(library: str) -> Any:
    own = HumanInTheLoopMiddleware(interrupt_on={"write_file": True})
    _, agent = agent_of(
        library, write("/a"), middleware=[own], interrupt_on={"write_file": True}, checkpointer=InMemorySaver()
    )
    agent.invoke(GO, THREAD)
    state = agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "no"}]}), THREAD)
    return "__interrupt__" in state, tools(state)


@program
def a_call_of_a_subagent_that_is_approved(library: str) -> Any:
    _, agent = agent_of(
        library, task(), write("/a"), AIMessage("sub"), interrupt_on={"write_file": True}, checkpointer=InMemorySaver()
    )
    asked = agent.invoke(GO, THREAD)["__interrupt__"][0].value["action_requests"]
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    return [each["name"] for each in asked], sorted(state["files"]), texts(state)


@program
def rules_that_ask_and_rules_that_deny(library: str) -> Any:
    rule = import_module(library).FilesystemPermission
    rules = [
        rule(operations=["write"], paths=["/ask/**"], mode="interrupt"),
        rule(operations=["write"], paths=["/deny/**"], mode="deny"),
    ]
    _, agent = agent_of(library, write("/ask/a"), write("/deny/a"), permissions=rules, checkpointer=InMemorySaver())
    agent.invoke(GO, THREAD)
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    return sorted(state["files"]), tools(state)


class Context(BaseModel):
    user: str


@tool
def where(runtime: ToolRuntime[Context, Any]) -> str:
    """Say where we are."""
    return f"{runtime.context.user} at {runtime.state['url']}"


@tool
def log(runtime: ToolRuntime[Context, Any]) -> Command[Any]:
    """Write to the log."""
    return Command(update={"log": ["noted"], "messages": [ToolMessage("ok", tool_call_id=runtime.tool_call_id or "")]})


@program
def a_state_and_a_context_of_the_user(library: str) -> Any:
    base = import_module(f"{library}.graph").DeepAgentState
    schema = type("Schema", (base,), {"__annotations__": {"url": str, "log": Annotated[list[str], operator.add]}})
    model, agent = agent_of(
        library,
        calls(call("where")),
        task(),
        calls(call("where"), call("log")),
        AIMessage("sub"),
        tools=[where, log],
        state_schema=schema,
        context_schema=Context,
    )
    state = agent.invoke({**GO, "url": "/u", "log": ["begun"]}, context=Context(user="ada"))
    return texts(state), state["url"], state["log"], [each.text for each in model.asked[3] if each.type == "tool"]


class Number(BaseModel):
    value: int


@program
def structured_answers(library: str) -> Any:
    reader = {"name": "reader", "description": "Reads.", "system_prompt": "You read.", "response_format": Number}
    _, agent = agent_of(
        library,
        task("reader"),
        calls(call("Number", value=1)),
        calls(call("Number", value="none")),
        calls(call("Number", value=2)),
        subagents=[reader],
        response_format=ToolStrategy(Number),
    )
    state = agent.invoke(GO)
    return state["structured_response"], texts(state)[0], len(state["messages"])


@program
def a_filesystem_middleware_of_the_user(library: str) -> Any:
    base = import_module(f"{library}.middleware.filesystem").FilesystemMiddleware

    class Marking(base):  # type: ignore[misc, valid-type]
        name = "FilesystemMiddleware"

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            answer = super().wrap_tool_call(request, handler)
            return answer.model_copy(update={"content": "marked"})

    own = Marking(backend=import_module(f"{library}.backends").StateBackend())
    _, agent = agent_of(library, calls(call("ls", path="/")), middleware=[own])
    return texts(agent.invoke(GO))


@program
def hooks_of_the_user(library: str) -> Any:
    seen: list[Any] = []

    class Seeing(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:
            seen.append("before_agent")

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append((len(request.messages), request.system_message.text.startswith("Be kind.")))
            return handler(request)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append(request.tool_call["name"])
            return handler(request)

        def after_model(self, state: Any, runtime: Any) -> None:
            seen.append("after_model")

    _, agent = agent_of(library, write("/a"), system_prompt="Be kind.", middleware=[Seeing()])
    agent.invoke(GO)
    return seen


class Secretive(AgentState[Any]):
    secret: NotRequired[Annotated[str, PrivateStateAttr]]
    shared: NotRequired[str]


@program
def private_state(library: str) -> Any:
    got: list[Any] = []

    class Giving(AgentMiddleware[Any, Any, Any]):
        state_schema = Secretive

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"secret": "s", "shared": "t"}

    class Getting(AgentMiddleware[Any, Any, Any]):
        state_schema = Secretive

        def before_model(self, state: Any, runtime: Any) -> None:
            got.append((state.get("secret"), state.get("shared")))

    reader = {"name": "reader", "description": "R.", "system_prompt": "You read.", "middleware": [Getting()]}
    _, agent = agent_of(library, task("reader"), AIMessage("sub"), middleware=[Giving()], subagents=[reader])
    state = agent.invoke(GO)
    return got, state["shared"], "secret" in state


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_libraries_give_the_same_result(name: str) -> None:
    assert PROGRAMS[name]("deepfs") == PROGRAMS[name]("deepagents")
