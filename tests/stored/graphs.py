"""The application whose threads are stored: graphs and agents that an earlier version and this one both run."""

import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from deepfs import FilesystemMiddleware, FilesystemPermission, FilesystemState, StateBackend, create_deep_agent
from stored.contents import REPORT, Command
from support.chat import ScriptedModel

__all__ = ["State", "approving_agent", "command", "model_calls", "nested", "parallel", "reading_agent", "run", "steps"]


class State(FilesystemState, total=False):
    """The operations of each task, by the name of its node, and the tasks that interrupt first."""

    todo: Mapping[str, list[Command]]
    asks: list[str]
    log: Annotated[list[str], operator.add]


def command(backend: Any, name: str, *arguments: Any) -> str:
    """Run one operation; returns the text of its error, or an empty string."""
    if name == "upload":
        [uploaded] = backend.upload_files([arguments])
        return uploaded.error or ""
    return getattr(backend, name)(*arguments).error or ""


def run(backend: Any, commands: Sequence[Command]) -> list[str]:
    """Run operations in order; returns the texts of their errors."""
    return [error for name, *arguments in commands if (error := command(backend, str(name), *arguments))]


def _node(name: str, backend: Any, fails: Sequence[str]) -> Any:
    def work(state: State) -> dict[str, Any]:
        if name in state.get("asks", ()):
            interrupt(f"may {name} begin?")
        errors = run(backend, state["todo"].get(name, []))
        if name in fails:
            raise RuntimeError(f"{name} fails")
        return {"log": [f"{name}: {error}" for error in errors]}

    return work


def steps(file_format: Any = "v2", backend: Any = None) -> "StateGraph[Any]":
    """A graph with the single node `work`."""
    files = StateBackend(file_format=file_format) if backend is None else backend
    graph = StateGraph(State).add_node("work", _node("work", files, ()))
    return graph.add_edge(START, "work")


def parallel(fails: Sequence[str] = ()) -> "StateGraph[Any]":
    """The nodes `left` and `right` in one step, then `join`. The nodes named in `fails` raise after their work."""
    graph = StateGraph(State)
    for name in ("left", "right", "join"):
        graph.add_node(name, _node(name, StateBackend(), fails))
    return graph.add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "join")


def nested() -> "StateGraph[Any]":
    """The graph `parallel` as the node `inside`, then `work`."""
    graph = StateGraph(State).add_node("inside", parallel().compile())
    graph.add_node("work", _node("work", StateBackend(), ()))
    return graph.add_edge(START, "inside").add_edge("inside", "work")


# --- agents ----------------------------------------------------------------------------------------------------------


def model_calls(name: str, identity: str, **arguments: Any) -> AIMessage:
    """A turn of the model that calls a tool."""
    return AIMessage("", tool_calls=[{"type": "tool_call", "id": identity, "name": name, "args": arguments}])


@tool
def report() -> str:
    """Returns a large text."""
    return REPORT


def reading_agent(turns: Sequence[AIMessage], backend: Any = None, saver: Any = None, **options: Any) -> Any:
    """An agent that moves results and messages over 500 tokens to files."""
    files = FilesystemMiddleware(backend, tool_token_limit_before_evict=500, human_message_token_limit_before_evict=500)
    model = options.pop("model", None) or ScriptedModel(script=list(turns))
    return create_deep_agent(model, tools=[report], backend=backend, middleware=[files], checkpointer=saver, **options)


def approving_agent(turns: Sequence[AIMessage], saver: Any, *, by: str) -> Any:
    """An agent whose changes a person must approve: by a rule or by the tool's name. That includes its subagents."""
    rule = FilesystemPermission(operations=["write"], paths=["/kept/**"], mode="interrupt")
    asks: dict[str, Any] = {"permissions": [rule]} if by == "rule" else {"interrupt_on": {"write_file": True}}
    return create_deep_agent(ScriptedModel(script=list(turns)), checkpointer=saver, **asks)
