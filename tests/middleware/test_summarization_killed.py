"""A process killed between the write of the history file and the checkpoint loses no message and writes none twice."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from deepfs import FilesystemBackend, SqliteBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware.summarization import SummarizationMiddleware
from support.chat import ScriptedModel
from support.processes import Process, started

THREAD = {"configurable": {"thread_id": "1"}}
HISTORY = "/conversation_history/1.md"
IDS = [f"m{number}" for number in range(12)]

AGENTS = """
import os, sys, time
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from deepfs import FilesystemBackend, SqliteBackend
from deepfs.middleware.summarization import SummarizationMiddleware
from support.chat import ScriptedModel

def wait_for_death(*_):
    print(os.getpid(), flush=True)
    time.sleep(60)

def run(place, kind, root):
    class Backend(FilesystemBackend if kind == "disk" else SqliteBackend):
        async def awrite(self, *args, **options):
            written = await super().awrite(*args, **options)
            assert written.ok, written
            if place == "after the file":
                wait_for_death()
            return written

    turns = [AIMessage("summary"), AIMessage("answer") if place == "after the file" else wait_for_death]
    model = ScriptedModel(script=turns)
    with SqliteSaver.from_conn_string(root + "/threads.db") as saver:
        backend = Backend(root + "/files")
        summaries = SummarizationMiddleware(model, backend=backend, trigger=("messages", 12), keep=("messages", 2))
        agent = create_agent(model, middleware=[summaries], checkpointer=saver)
        messages = [HumanMessage(f"word {n}", id=f"m{n}") for n in range(12)]
        agent.invoke({"messages": messages}, {"configurable": {"thread_id": "1"}}, durability="sync")

# Importing once and forking saves a second for each test.
for line in sys.stdin:
    child = os.fork()
    if not child:
        run(*line.rstrip("\\n").split("\\t"))
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def agents() -> Iterator[Process]:
    with started(AGENTS) as process:
        yield process


def kill(agents: Process, *case: object) -> None:
    """Kill -9 an agent at the place of the case."""
    assert agents.stdin is not None
    assert agents.stdout is not None
    print(*case, sep="\t", file=agents.stdin, flush=True)
    os.kill(int(agents.stdout.readline()), signal.SIGKILL)
    assert agents.stdout.readline() == "-9\n"


def storage(kind: str, root: Path) -> BackendProtocol:
    return FilesystemBackend(root / "files") if kind == "disk" else SqliteBackend(root / "files")


def in_file(files: BackendProtocol) -> list[str]:
    found = files.download_files([HISTORY])[0].content
    return re.findall(r'id="(m\d+)"', (found or b"").decode())


@pytest.mark.parametrize(
    ("place", "kind", "goes_on"),
    [
        ("after the file", "disk", "with a message"),
        ("after the file", "sqlite", "resumed"),
        ("in the model's call", "sqlite", "with a message"),
    ],
)
def test_twelve_messages_before_are_twelve_after(
    agents: Process, tmp_path: Path, place: str, kind: str, goes_on: str
) -> None:
    if kind == "disk":
        (tmp_path / "files").mkdir()
    kill(agents, place, kind, tmp_path)
    files = storage(kind, tmp_path)
    assert in_file(files) == IDS[:10], "killed after the file was written"
    model = ScriptedModel(script=[AIMessage("summary"), AIMessage("answer")])
    summaries = SummarizationMiddleware(model, backend=files, trigger=("messages", 12), keep=("messages", 2))
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        agent = create_agent(model, middleware=[summaries], checkpointer=saver)
        before = agent.get_state(THREAD).values  # type: ignore[arg-type]
        assert [message.id for message in before["messages"]] == IDS
        assert "_summarization_event" not in before
        given: Any = None if goes_on == "resumed" else {"messages": [("user", "and now?")]}
        state = agent.invoke(given, THREAD)  # type: ignore[arg-type]
        event = agent.get_state(THREAD).values["_summarization_event"]  # type: ignore[arg-type]
    count = 10 if goes_on == "resumed" else 11
    assert in_file(files) == IDS[:count], "each once"
    assert [message.id for message in state["messages"]][:12] == IDS
    assert event["cutoff_index"] == count
    seen = [message.id for message in model.asked[-1]]
    assert set(in_file(files)) | set(seen) >= set(IDS)
    assert not set(in_file(files)) & set(seen)
    files.close()
