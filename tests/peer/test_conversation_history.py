"""The files and the state of summarised conversations have the form of deepagents."""

import re
from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.summarization import SummarizationMiddleware as PeerSummarization
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from deepfs import MemoryBackend
from deepfs.compat.deepagents import to_deepagents
from deepfs.middleware.summarization import SummarizationMiddleware
from deepfs.policy import ReadOnlyBackend
from support.chat import ScriptedModel, call
from support.conversations import Talker, event_of, said, shown, text_of, thread

TALK = [
    HumanMessage("a <b> & c"),
    AIMessage("Let me look.", tool_calls=[{**call("ls", path="/"), "id": "c1"}]),
    HumanMessage([{"type": "text", "text": "and?"}]),
    AIMessage("yes"),
]


def written(middleware: object, files: MemoryBackend) -> str:
    model = ScriptedModel(script=[AIMessage("done")])
    create_agent(model, middleware=[middleware]).invoke({"messages": TALK})
    (info,) = files.glob("*.md", "/conversation_history").matches or ()
    data = files.read_raw(info.path).data
    return re.sub(r'(?<=message type="(?:ai)") id="[^"]*"|(?<=type="human") id="[^"]*"', "", str(data and data.content))


def test_headings_and_elements_are_the_same() -> None:
    limits = {"trigger": ("messages", 4), "keep": ("messages", 1)}
    ours, theirs = MemoryBackend(), MemoryBackend()
    own = SummarizationMiddleware(ScriptedModel(script=[AIMessage("short")]), backend=ours, **limits)
    peer = PeerSummarization(ScriptedModel(script=[AIMessage("short")]), backend=to_deepagents(theirs), **limits)
    texts = [
        re.sub(r"(?m)^(## Summarized at )\S+$", r"\1", text) for text in (written(own, ours), written(peer, theirs))
    ]
    assert texts[0].startswith("## Summarized at \n\n<message ")
    assert texts[0] == texts[1]


# --- threads ---------------------------------------------------------------------------------------------------------


def answered(kind: Any, files: Any, saver: SqliteSaver, numbers: range) -> tuple[Talker, Any]:
    """Ask questions with the middleware of one of the libraries; return its model, and the agent."""
    model = Talker(script=[AIMessage(f"reply {number}", id=f"a{number}") for number in numbers])
    backend = files if kind is SummarizationMiddleware else to_deepagents(files)
    limits: Any = {"trigger": ("messages", 6), "keep": ("messages", 2)}
    agent = create_agent(model, middleware=[kind(model, backend=backend, **limits)], checkpointer=saver)
    for number in numbers:
        agent.invoke(said(number), thread())  # type: ignore[arg-type]
    return model, agent


def test_a_thread_is_continued_by_either_library(tmp_path: Path) -> None:
    files = MemoryBackend()
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        theirs, _ = answered(PeerSummarization, files, saver, range(4))
        assert theirs.summaries == 1
        ours, agent = answered(SummarizationMiddleware, files, saver, range(4, 5))
        assert shown(ours)[0].text == shown(theirs)[0].text, "their summary is applied"
        ours, agent = answered(SummarizationMiddleware, files, saver, range(5, 12))
        assert ours.summaries > 0
        event = event_of(agent)
        assert len(event["file_paths"]) == 2, "the file of deepagents and the one of the thread"
        again, agent = answered(PeerSummarization, files, saver, range(12, 13))
        assert shown(again)[0].text == event["summary_message"].text, "our summary is applied"
        again, agent = answered(PeerSummarization, files, saver, range(13, 16))
        assert again.summaries > 0
        state = agent.get_state(thread()).values  # type: ignore[arg-type]
    everything = [f"{who}{number}" for number in range(16) for who in "qa"]
    assert [message.id for message in state["messages"]] == everything
    found = files.glob("*.md", "/conversation_history").matches or ()
    written = [each for info in found for each in re.findall(r"(?:question|reply) \d+", text_of(files, info.path))]
    left = [found[0] for message in shown(again)[1:] if (found := re.findall(r"\w+ \d+", message.text))]
    assert sorted([*written, *left, "reply 15"]) == sorted(
        f"{what} {number}" for number in range(16) for what in ("question", "reply")
    )


def test_a_thread_whose_file_deepagents_could_not_write_is_stored_whole(tmp_path: Path) -> None:
    files = MemoryBackend()
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        with pytest.warns(UserWarning, match="ffload"):
            answered(PeerSummarization, ReadOnlyBackend(files), saver, range(5))
        answered(SummarizationMiddleware, files, saver, range(5, 8))
    written = re.findall(r'id="([qa]\d+)"', text_of(files))
    assert written[:4] == ["q0", "a0", "q1", "a1"]
    assert len(written) == len(set(written))
