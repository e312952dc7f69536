"""Approvals where LangChain asks about each call separately, which older versions of LangChain cannot do."""

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepfs import MemoryBackend, create_deep_agent
from support.chat import ScriptedModel, call, calls

THREAD = {"configurable": {"thread_id": "1"}}


@pytest.mark.parametrize("named", ["write_file", "delete"])
def test_moving_a_file_asks_like_the_named_tool(named: str) -> None:
    files = MemoryBackend()
    files.write("/a", "new")
    files.write("/b", "old")
    asking = HumanInTheLoopMiddleware({named: True}, interrupt_mode="per_call")
    move = calls(call("move", source="/a", destination="/b", overwrite=True))
    model = ScriptedModel(script=[move, AIMessage("done")])
    agent = create_deep_agent(model, backend=files, middleware=[asking], checkpointer=InMemorySaver())
    (asked,) = agent.invoke({"messages": [("user", "go")]}, THREAD)["__interrupt__"]
    assert asked.value["name"] == "move"
    assert files.read("/a").ok
    agent.invoke(Command(resume={asked.id: {"type": "reject"}}), THREAD)
    assert files.read("/a").ok
