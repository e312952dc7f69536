"""Media that one library stored are shown by the other, in the same thread."""

import base64
from pathlib import Path
from typing import Any

import deepagents
import pytest
from deepagents.backends import FilesystemBackend as PeerBackend
from deepagents.middleware.filesystem import FilesystemMiddleware as PeerMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepfs import FilesystemBackend, create_deep_agent
from deepfs.middleware import offloading as blobs
from support.chat import ScriptedModel, call, calls

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
THREAD = {"configurable": {"thread_id": "1"}}
FORMS: list[dict[str, Any]] = [
    {"type": "image", "base64": PNG, "mime_type": "image/png"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
]


def ours(model: ScriptedModel, root: Path, saver: InMemorySaver) -> Any:
    return create_deep_agent(model, backend=FilesystemBackend(root), checkpointer=saver)


def theirs(model: ScriptedModel, root: Path, saver: InMemorySaver) -> Any:
    files = PeerBackend(root, virtual_mode=True)
    storing = PeerMiddleware(backend=files, offload_binary_content=True)
    return deepagents.create_deep_agent(model, backend=files, checkpointer=saver, middleware=[storing])


@pytest.mark.parametrize(("first", "then"), [(ours, theirs), (theirs, ours)], ids=["to deepagents", "to deepfs"])
def test_media_of_a_thread_are_shown_by_the_other_library(first: Any, then: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(base64.b64decode(PNG))
    saver = InMemorySaver()
    said = HumanMessage([{"type": "text", "text": "look"}, *FORMS])
    writing = ScriptedModel(script=[calls(call("read_file", file_path="/a.png")), AIMessage("done")])
    state = first(writing, tmp_path, saver).invoke({"messages": [said]}, THREAD)
    # deepagents stores media of LangChain's form only.
    assert str(state["messages"]).count(PNG) == (1 if first is theirs else 0)
    blobs._CACHE.clear()
    reading = ScriptedModel(script=[AIMessage("done")])
    then(reading, tmp_path, saver).invoke({"messages": [HumanMessage("go on")]}, THREAD)
    assert str(reading.asked[0]).count(PNG) == 3
