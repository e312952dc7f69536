"""The file of messages removed by summaries has the format of deepagents."""

import re

from deepagents.middleware.summarization import SummarizationMiddleware as PeerSummarization
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage

from deepfs import MemoryBackend
from deepfs.compat.deepagents import to_deepagents
from deepfs.middleware.summarization import SummarizationMiddleware
from support.chat import ScriptedModel, call

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
