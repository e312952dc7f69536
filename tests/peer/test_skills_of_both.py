"""Skills are the same in both libraries, and threads of deepagents with skills go on."""

from pathlib import Path
from typing import Any, Final

import pytest
from deepagents import create_deep_agent as create_peer_agent
from deepagents.backends import FilesystemBackend as PeerBackend
from deepagents.middleware import skills as peer
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from deepfs import FilesystemBackend, MemoryBackend, create_deep_agent
from deepfs.middleware import skills as own
from support.agents import Invoke, invoke
from support.chat import ScriptedModel, call, calls

__all__ = ["invoke"]

FRONT_MATTER: Final = {
    "plain": "name: plain\ndescription: d\n",
    "full": "name: full\ndescription: |\n  a\n  b\nlicense: MIT\ncompatibility: Python 3\nallowed-tools: A, B  C\n"
    "metadata:\n  a: 1\n  include_tools: x y\n",
    "list": "name: list\ndescription: d\nallowed-tools:\n - A\n - 3\n - ' b '\nmetadata: [1]\n",
    "Bad_Name": "name: Bad_Name\ndescription: d\n",
    "other": "name: another\ndescription: d\n",
    "café": "name: café\ndescription: 4.5\nlicense: 3\n",
    "long": f"name: long\ndescription: {'x' * 3000}\ncompatibility: {'y' * 900}\n",
    "nested": "name: nested\ndescription: 2020-01-01\nmetadata:\n  a: {b: c}\n",
    "no-description": "name: no-description\n",
    "no-yaml": "name: no-yaml\ndescription: a: b\n",
    "no-mapping": "- a\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FRONT_MATTER.items():
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "SKILL.md").write_text(f"---\n{text}---\n\nDo it.\n", encoding="utf-8")
    (tmp_path / "a/no-file").mkdir()
    (tmp_path / "b/plain").mkdir(parents=True)
    (tmp_path / "b/plain/SKILL.md").write_bytes(b"---\r\nname: plain\r\ndescription: later\r\n---\r\nDo it.")
    return tmp_path


def test_the_same_files_are_the_same_skills(root: Path) -> None:
    sources: list[Any] = ["/a/", ("/b", "Team")]
    theirs: Any = peer.SkillsMiddleware(backend=PeerBackend(root, virtual_mode=True), sources=sources)
    ours = own.SkillsMiddleware(backend=FilesystemBackend(root), sources=sources)
    assert (ours.sources, ours.source_labels) == (theirs.sources, theirs.source_labels)
    update = ours.before_agent({}, None) or {}
    assert update["skills_metadata"] == theirs.before_agent({}, None, {})["skills_metadata"]
    assert len(update["skills_metadata"]) == 8


@tool
def merge_pdf() -> str:
    """Merge."""
    return "merged"


def read(path: str) -> list[AnyMessage]:
    turn = calls(call("read_file", file_path=path))
    return [turn, ToolMessage("text", tool_call_id=turn.tool_calls[0]["id"])]


def test_models_that_take_tools_in_messages_get_them_behind_the_turn() -> None:
    files = MemoryBackend()
    files.write("/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: d\nmetadata:\n  include_tools: merge_pdf\n---\n")
    skills = own.SkillsMiddleware(backend=files, sources=["/skills"], tools=[merge_pdf])
    seen: list[ModelRequest[Any]] = []
    request = ModelRequest[Any](
        model=ChatOpenAI(model="gpt-5", api_key="x", profile={"mid_conversation_tools": True}),
        messages=[*read("/skills/pdf/SKILL.md"), AIMessage("Read."), *read("/skills/x/SKILL.md")],
        state=skills.before_agent({}, None),
    )
    skills.wrap_model_call(request, lambda sent: seen.append(sent))
    assert [message.type for message in seen[0].messages] == ["ai", "tool", "system", "ai", "ai", "tool"]
    [block] = seen[0].messages[2].content
    assert (block["type"], block["tools"][0]["name"]) == ("additional_tools", "merge_pdf")
    assert seen[0].tools == []


def test_a_thread_of_deepagents_goes_on(root: Path, invoke: Invoke) -> None:
    saver, go = InMemorySaver(), {"messages": [("user", "go")]}
    thread = {"configurable": {"thread_id": "1"}}

    def asked(create: Any, backend: Any) -> str:
        model = ScriptedModel(script=[AIMessage("done")])
        invoke(create(model, backend=backend, skills=["/b"], checkpointer=saver), go, thread)
        return model.asked[0][0].text

    def stored(create: Any, backend: Any) -> list[str]:
        agent = create(ScriptedModel(script=[]), backend=backend, skills=["/b"], checkpointer=saver)
        return [each["description"] for each in agent.get_state(thread).values["skills_metadata"]]

    theirs, ours = PeerBackend(root, virtual_mode=True), FilesystemBackend(root)
    asked(create_peer_agent, theirs)
    assert stored(create_deep_agent, ours) == ["later"]
    (root / "b/plain/SKILL.md").write_text("---\nname: plain\ndescription: even later\n---\n")
    assert "(/b/plain/SKILL.md): even later" in asked(create_deep_agent, ours)
    assert stored(create_peer_agent, theirs) == ["even later"]
    assert "even later" in asked(create_peer_agent, theirs)
