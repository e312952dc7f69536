"""A thread of an agent goes on with an agent of the other library."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent as create_peer_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from deepfs import create_deep_agent
from support.chat import ScriptedModel, call, calls

THREAD = {"configurable": {"thread_id": "1"}}
LIBRARIES = {"deepfs": create_deep_agent, "deepagents": create_peer_agent}


def turn(create: Any, saver: Any, number: int) -> list[tuple[str, str]]:
    """Talk to an agent once, which writes a file; return the conversation that its model saw last."""
    path = f"/{number}.txt"
    model = ScriptedModel(script=[calls(call("write_file", file_path=path, content="x")), AIMessage(f"wrote {number}")])
    agent = create(model, checkpointer=saver)
    state = agent.invoke({"messages": [("user", f"write {number}")]}, THREAD)
    assert set(state["files"]) == {f"/{each}.txt" for each in range(number + 1)}
    assert [message.text for message in agent.get_state(THREAD).values["messages"]] == [
        message.text for message in state["messages"]
    ]
    return [(message.type, message.text) for message in model.asked[-1] if message.type in ("human", "ai")]


@pytest.mark.parametrize("order", [["deepfs", "deepagents"], ["deepagents", "deepfs"]], ids=lambda order: order[0])
def test_a_thread_goes_on_with_the_other_library(tmp_path: Path, order: list[str]) -> None:
    expected: list[tuple[str, str]] = []
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        for number, library in enumerate(order * 2):
            seen = turn(LIBRARIES[library], saver, number)
            expected += [("human", f"write {number}"), ("ai", "")]
            assert seen == expected
            expected.append(("ai", f"wrote {number}"))
