"""Backends of deepfs work in agents and composites of deepagents."""

from pathlib import Path
from typing import Any, Final

import deepagents
import pytest
from anyio import to_thread
from deepagents.backends import protocol as peer
from langchain_core.messages import ToolMessage
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    ExecuteResponse,
    FilesystemBackend,
    MemoryBackend,
    SandboxBackendProtocol,
    StateBackend,
    StoreBackend,
    WriteResult,
    run_sync,
)
from deepfs.compat.deepagents import to_deepagents
from support.scripted import ScriptedModel, calls

to_deepagents(MemoryBackend())  # The first call looks up the installed version on disk.


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """LangGraph needs asyncio."""
    return "asyncio"


class EchoSandbox(MemoryBackend, SandboxBackendProtocol):
    """Returns each command instead of running it."""

    capabilities = SandboxBackendProtocol.capabilities

    @property
    def id(self) -> str:
        return "echo"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        return ExecuteResponse(f"ran {command}", 0)


CONVERSATION: Final = [
    ("write_file", {"file_path": "/plan.md", "content": "one\ntwo\n"}),
    ("write_file", {"file_path": "/disk/a.txt", "content": "alpha\nneedle\n"}),
    ("write_file", {"file_path": "/memories/note.md", "content": "needle\n"}),
    ("write_file", {"file_path": "/memories/note.md", "content": "a needle\n"}),
    ("ls", {"path": "/"}),
    ("read_file", {"file_path": "/plan.md"}),
    ("edit_file", {"file_path": "/disk/a.txt", "old_string": "alpha", "new_string": "omega"}),
    ("glob", {"pattern": "**/*.md"}),
    ("grep", {"pattern": "needle", "output_mode": "content"}),
    ("delete", {"file_path": "/plan.md"}),
    ("read_file", {"file_path": "/plan.md"}),
]


def agent_over(backend: BackendProtocol, *steps: tuple[str, dict[str, Any]]) -> Any:
    model = ScriptedModel(messages=iter(calls(*steps)))
    return deepagents.create_deep_agent(model=model, backend=to_deepagents(backend), store=InMemoryStore())


def tool_answers(result: dict[str, Any]) -> list[str]:
    """Answers of the tools, in order."""
    return [str(message.content) for message in result["messages"] if isinstance(message, ToolMessage)]


def tree(disk: Path) -> CompositeBackend:
    memories = StoreBackend(namespace=("user", "memories"))
    return CompositeBackend(StateBackend(), {"/disk/": FilesystemBackend(disk), "/memories/": memories})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_conversation_uses_every_tool(tmp_path: Path, is_async: bool) -> None:
    agent = agent_over(tree(tmp_path), *CONVERSATION)
    given = {"messages": ["go"]}
    result = run_sync(agent.ainvoke, given) if is_async else agent.invoke(given)
    answers = tool_answers(result)
    assert len(answers) == len(CONVERSATION)
    assert not any(answer.startswith("Error") for answer in answers[:-1])
    assert all(name in answers[4] for name in ("/plan.md", "/disk/", "/memories/"))
    assert all(line in answers[5] for line in ("one", "two"))
    assert all(path in answers[7] for path in ("/plan.md", "/memories/note.md"))
    assert all(path in answers[8] for path in ("/disk/a.txt", "/memories/note.md"))
    assert "not found" in answers[10]
    assert (tmp_path / "a.txt").read_text() == "omega\nneedle\n"
    assert "/plan.md" not in result.get("files", {})


@pytest.mark.anyio
async def test_commands_run_if_the_backend_executes() -> None:
    assert not isinstance(to_deepagents(MemoryBackend()), peer.SandboxBackendProtocol)
    backend = CompositeBackend(EchoSandbox(), {"/other/": MemoryBackend()})
    assert isinstance(to_deepagents(backend), peer.SandboxBackendProtocol)
    agent = await to_thread.run_sync(lambda: agent_over(backend, ("execute", {"command": "make"})))
    [answer] = tool_answers(await agent.ainvoke({"messages": ["go"]}))
    assert "ran make" in answer


@pytest.mark.anyio
async def test_write_replaces_through_an_override_without_overwrite() -> None:
    class Guarded(MemoryBackend):
        def write(self, file_path: str, content: str) -> WriteResult:
            return super().write(file_path, f"{content}guarded\n")

    backend = to_deepagents(Guarded())
    for content in ("one\n", "two\n"):
        assert await backend.awrite("/a.txt", content) == peer.WriteResult(path="/a.txt")
        assert (await backend.aread("/a.txt")).file_data["content"] == f"{content}guarded\n"


@pytest.mark.anyio
async def test_results_have_the_types_of_deepagents() -> None:
    backend = to_deepagents(MemoryBackend())
    assert await backend.awrite("/a.txt", "one\n") == peer.WriteResult(path="/a.txt")
    assert await backend.awrite("/a.txt", "one\ntwo\n") == peer.WriteResult(path="/a.txt")
    # The text to replace may have other line ends than the file.
    for old, new in (("one\r\ntwo", "1\r\ntwo"), ("1", "one")):
        assert await backend.aedit("/a.txt", old, new) == peer.EditResult(path="/a.txt", occurrences=1)
    assert (await backend.aread("/a.txt", 0, 0)).no_lines_requested
    shown = await backend.aread("/a.txt", 0, 1)
    assert (shown.start_line, shown.end_line, shown.total_lines, shown.next_offset) == (1, 1, 2, 1)
    assert type(shown.file_data) is dict
    assert shown.file_data.keys() == {"content", "encoding", "created_at", "modified_at"}
    assert backend.read("/none").error == "File '/none' not found"
    assert backend.glob("*.txt").matches == (await backend.aglob("*.txt", None)).matches
    empty = await backend.awrite("/empty", "")
    assert empty.error is None
    assert (await backend.aread("/empty")).file_data["content"] == ""
