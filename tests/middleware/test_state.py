"""The state of agents: what checkpoints hold, and which messages a thread has."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any

from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from deepfs import DeepAgentState, MemoryBackend, SubAgent, create_deep_agent
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}


class Older(TypedDict):
    """The state as LangGraph's own agents have it."""

    messages: Annotated[list[AnyMessage], add_messages]


def graph(saver: Any, write: Any, state: type[Any] = DeepAgentState) -> Any:
    """A graph that makes one write to the messages."""
    builder: Any = StateGraph(state).add_node("work", lambda _: {"messages": write}).add_edge(START, "work")
    return builder.compile(checkpointer=saver)


def texts(given: Any) -> list[str]:
    return [message.text for message in given["messages"]]


def test_a_checkpoint_holds_new_messages_only(tmp_path: Path) -> None:
    path, turns = tmp_path / "threads.db", 60
    with SqliteSaver.from_conn_string(str(path)) as saver:
        model = ScriptedModel(script=[AIMessage("x" * 2_000) for _ in range(turns)])
        agent = create_deep_agent(model, checkpointer=saver, backend=MemoryBackend())
        for _ in range(turns):
            state = agent.invoke(GO, THREAD)
        assert len(state["messages"]) == 2 * turns
        saver.conn.commit()
    # With all messages in each of four checkpoints a turn, it would be 15 MB.
    assert path.stat().st_size < 2_000_000


def test_messages_are_the_same_when_a_thread_is_read_again() -> None:
    all_gone = RemoveMessage(REMOVE_ALL_MESSAGES)
    writes: list[tuple[Any, list[str]]] = [
        ([all_gone, HumanMessage("new")], ["new"]),
        (all_gone, []),
        ([{"role": "remove", "id": REMOVE_ALL_MESSAGES, "content": ""}, ("user", "new")], ["new"]),
        ([RemoveMessage("first")], ["go"]),
        ([RemoveMessage("unknown")], ["go", "one"]),
        ([HumanMessage("changed", id="first")], ["go", "changed"]),
        (HumanMessage("single"), ["go", "one", "single"]),
        (Overwrite([HumanMessage("only")]), ["only"]),
    ]
    for before, (write, expected) in product((DeepAgentState, Older), writes):
        saver = InMemorySaver()
        graph(saver, [HumanMessage("one", id="first")], before).invoke(GO, THREAD)
        done = graph(saver, write).invoke({"messages": []}, THREAD)
        again = graph(saver, write).get_state(THREAD).values
        assert texts(done) == texts(again) == expected
        assert [message.id for message in done["messages"]] == [message.id for message in again["messages"]]
        assert all(message.id for message in again["messages"])


def test_a_thread_that_holds_all_messages_goes_on() -> None:
    saver = InMemorySaver()
    graph(saver, [HumanMessage("one", id="first")], Older).invoke(GO, THREAD)
    for text in ("two", "three"):
        state = graph(saver, [HumanMessage(text)]).invoke({"messages": []}, THREAD)
    assert texts(state) == texts(graph(saver, []).get_state(THREAD).values) == ["go", "one", "two", "three"]


# --- state_schema ----------------------------------------------------------------------------------------------------


class Page(DeepAgentState):
    url: str
    seen: Annotated[list[str], lambda before, after: [*before, *after]]


class Looking(AgentMiddleware[Any, Any, Any]):
    """Notes the page that an agent is on."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(system_prompt=f"The page is {request.state.get('url')}."))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(system_prompt=f"The page is {request.state.get('url')}."))

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"seen": [state["url"]]}


def test_subagents_share_the_fields_of_the_state_schema(invoke: Invoke) -> None:
    task = calls(call("task", description="x", subagent_type="reader"))
    model = ScriptedModel(script=[task, AIMessage("read"), AIMessage("done")])
    reader = SubAgent(name="reader", description="Reads.", middleware=[Looking()])
    agent = create_deep_agent(model, state_schema=Page, subagents=[reader], middleware=[Looking()])
    state = invoke(agent, {**GO, "url": "/a", "seen": []})
    assert results(state)[0].content == "read"
    assert [asked[0].text for asked in model.asked] == ["The page is /a."] * 3
    assert (state["url"], set(state["seen"])) == ("/a", {"/a"})
