"""Results and messages too large for a model are stored, shown in part, and can be read back whole."""

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from deepfs import CompositeBackend, MemoryBackend, WriteResult, run_sync
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.offloading import Evictor
from deepfs.policy.rules import FilesystemPermission
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

LINES = "".join(f"{number}: {'y' * (number % 200)}\n" for number in range(45_000))
LINE = (string.ascii_lowercase * 192_308)[:5_000_000]


@tool
def produce(kind: str) -> str:
    """Produce much."""
    return {"lines": LINES, "line": LINE}.get(kind, f"{kind}\n" * 30_000)


@tool
def command(kind: str) -> Any:
    """Produce much beside a change of the state."""
    return Command(update={"messages": [ToolMessage(LINES, tool_call_id=kind)]})


@tool
def several(kind: str) -> Any:
    """Produce much, and change the state besides."""
    return [Command(update={"messages": [ToolMessage(LINES, tool_call_id=kind)]}), Command(update={"files": {}})]


def ran(middleware: FilesystemMiddleware, invoke: Invoke, *turns: Any, said: str = "go") -> dict[str, Any]:
    model = ScriptedModel(script=[*turns, AIMessage("done")])
    agent = create_agent(model, tools=[produce, command, several], middleware=[middleware])
    return invoke(agent, {"messages": [HumanMessage(said)]})


def stored_at(message: Any) -> str:
    return re.search(r"(?:All of it|All that the tool returned) is in (\S+):", str(message.content))[1]


def following(message: Any) -> dict[str, int] | None:
    note = re.search(r"offset=(\d+)(?:, column=(\d+))?\]$", message.content)
    return note and {"offset": int(note[1]), "column": int(note[2] or 0)}


def reader(pages: list[str]) -> Any:
    """A turn of the model that reads the file named in the last message, page after page."""

    def turn(messages: list[Any]) -> AIMessage:
        last = messages[-1]
        if last.name != "read_file":
            turn.path = stored_at(last)
            return calls(call("read_file", file_path=turn.path))
        pages.append(last.content)
        more = following(last)
        return calls(call("read_file", file_path=turn.path, **more)) if more else AIMessage("done")

    return turn


def joined(pages: list[str]) -> str:
    text = ""
    for page in pages:
        *rows, last = page.split("\n")
        note = re.search(r"^\[.*Read on with offset=\d+(, column=\d+)?\]$", last)
        shown = [row.partition("\t")[2] for row in (rows if note else [*rows, last])]
        text += "\n".join(shown) + ("" if note and note[1] else "\n")
    return text


# --- evicted content -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "text"), [("line", LINE + "\n"), ("lines", LINES)], ids=["line", "lines"])
@pytest.mark.parametrize("backend", ["state", "filesystem", "box"], indirect=True)
def test_five_megabytes_are_stored_and_read_back_whole_by_paging(
    backend: BackendProtocol, invoke: Invoke, kind: str, text: str
) -> None:
    pages: list[str] = []
    middleware = FilesystemMiddleware(backend=backend)
    state = ran(middleware, invoke, calls(call("produce", kind=kind)), *[reader(pages)] * 120)
    preview, *read = results(state)
    assert len(preview.content) < 4_000
    assert text[:500] in preview.content
    assert text[-500:].strip() in preview.content
    assert joined(pages) == text
    assert all(len(message.content) <= 60_000 and message.status == "success" for message in read)


def test_messages_in_a_command_are_stored(invoke: Invoke) -> None:
    for name in ("command", "several"):
        made = call(name, kind="x")
        made["args"]["kind"] = made["id"]
        (message,) = results(ran(FilesystemMiddleware(backend=MemoryBackend()), invoke, calls(made)))
        assert stored_at(message)


@pytest.mark.parametrize("backend", ["state", "filesystem"], indirect=True)
def test_a_long_user_message_is_stored(backend: BackendProtocol, invoke: Invoke) -> None:
    pages: list[str] = []
    said = "tell me\n" * 40_000
    state = ran(FilesystemMiddleware(backend=backend), invoke, *[reader(pages)] * 120, said=said)
    first, *others = state["messages"]
    assert len(first.content) < 4_000
    assert [message.type for message in others].count("human") == 0
    assert joined(pages) == said


def test_results_stay_whole_without_a_limit(invoke: Invoke) -> None:
    middleware = FilesystemMiddleware(backend=MemoryBackend(), tool_token_limit_before_evict=None)
    (message,) = results(ran(middleware, invoke, calls(call("produce", kind="lines"))))
    assert message.content == LINES


def test_a_result_that_cannot_be_stored_keeps_its_start_and_end(invoke: Invoke) -> None:
    broken = FaultyBackend(MemoryBackend(), {"write": BackendError("Error: The disk is full")})
    (message,) = results(ran(FilesystemMiddleware(backend=broken), invoke, calls(call("produce", kind="lines"))))
    assert "The disk is full" in message.content
    assert message.content.endswith(LINES[-20_000:])
    assert LINES[:40_000] in message.content
    assert len(message.content) < 80_000


def test_rules_for_writing_and_approvals_do_not_prevent_storing(invoke: Invoke) -> None:
    stored = "/large_tool_results/**"
    for rule in (
        FilesystemPermission(["write"], ["/**"], "deny"),
        FilesystemPermission(["read"], [stored], "interrupt"),
    ):
        middleware = FilesystemMiddleware(backend=MemoryBackend(), permissions=[rule])
        (message,) = results(ran(middleware, invoke, calls(call("produce", kind="lines"))))
        assert middleware.backend.inner.read(stored_at(message), 0, 1).file_data.content == "0: \n"


def test_a_result_that_the_model_may_not_read_is_not_stored(invoke: Invoke) -> None:
    files = MemoryBackend()
    denied = FilesystemPermission(operations=["read"], paths=["/large_tool_results/**"], mode="deny")
    middleware = FilesystemMiddleware(backend=files, permissions=[denied])
    (message,) = results(ran(middleware, invoke, calls(call("produce", kind="lines"))))
    assert " is in /" not in message.content
    assert LINES[:40_000] in message.content
    assert message.content.endswith(LINES[-20_000:])
    assert not files.ls("/large_tool_results").ok


def test_results_are_stored_beneath_the_artifacts_root(invoke: Invoke) -> None:
    for root in ("/work/", "work"):
        work = MemoryBackend()
        tree = WrapperBackend(CompositeBackend(MemoryBackend(), {"/work/": work}, artifacts_root=root))
        (message,) = results(ran(FilesystemMiddleware(backend=tree), invoke, calls(call("produce", kind="lines"))))
        assert stored_at(message).startswith("/work/large_tool_results/")
        assert work.ls("/large_tool_results").entries


class CreatesOnly(MemoryBackend):
    """Overrides `write` with the signature that it has in deepagents."""

    def write(self, file_path: str, content: str) -> WriteResult:
        return super().write(file_path, content)


def test_results_are_stored_if_write_can_only_create(invoke: Invoke) -> None:
    files = CreatesOnly()
    turns = [calls({**call("produce", kind="lines"), "id": "same"}) for _ in range(2)]
    first, again = results(ran(FilesystemMiddleware(backend=files), invoke, *turns))
    assert stored_at(first) == stored_at(again)
    assert files.read(stored_at(first), limit=10).ok


# --- names and contents ----------------------------------------------------------------------------------------------


def evicted(backend: BackendProtocol, message: Any, key: str) -> Any:
    return run_sync(Evictor(backend, 10, "/large").evict, message, key)


@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), min_size=2, max_size=6, unique=True))
def test_names_are_safe_and_unique(items: list[tuple[str, str]]) -> None:
    inner = MemoryBackend()
    for key, text in items:
        evicted(inner, ToolMessage(text * 50, tool_call_id=key), key)
    stored = [info.path for info in inner.ls("/large").entries or ()] if inner.ls("/large").ok else []
    assert len(stored) == len({item for item in items if len(item[1] * 50) > 40})
    assert all(re.fullmatch(r"/large/[\w-]{16,70}", path, re.ASCII) for path in stored)
