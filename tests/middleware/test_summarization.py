"""Summaries of long conversations: the removed messages are stored in a file, whatever happens."""

import asyncio
import base64
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    create_deep_agent,
)
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, PermissionDeniedError
from deepfs.middleware.summarization import SummarizationMiddleware
from deepfs.policy import PermissionedBackend, ReadOnlyBackend
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls
from support.conversations import HISTORY, SUMMARY, Talker, agent_of, event_of, said, shown, talk, text_of, thread


def reading(*paths: str) -> AIMessage:
    return calls(*(call("read_file", file_path=path) for path in paths))


# --- content of the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["state", "filesystem", "composite"], indirect=True)
def test_summarized_messages_are_in_a_file_that_the_model_can_read(backend: BackendProtocol, invoke: Invoke) -> None:
    turns = [AIMessage(f"reply {number}", id=f"a{number}") for number in range(6)]
    model, agent = agent_of(backend, *turns, reading(HISTORY))
    state = talk(invoke, agent, thread())
    summary, *rest = shown(model)
    assert SUMMARY in summary.text
    assert HISTORY in summary.text
    assert model.summaries == 1
    (page,) = results(state)
    assert page.status == "success"
    for number in range(5):
        assert f'<message type="human" id="q{number}">question {number} &lt;&amp;&gt;</message>' in page.text
        assert f'<message type="ai" id="a{number}">reply {number}</message>' in page.text
    assert "q0" not in [message.id for message in rest]
    assert "q6" in [message.id for message in rest]
    assert [message.id for message in state["messages"] if message.type == "human"] == [f"q{n}" for n in range(7)]


def test_later_summaries_append(invoke: Invoke) -> None:
    files = MemoryBackend()
    model, agent = agent_of(files)
    state = talk(invoke, agent, thread(), 0, 20)
    text = text_of(files)
    assert event_of(agent)["cutoff_index"] + len(shown(model)) == len(state["messages"])
    assert model.summaries == text.count("## Summarized at ")
    assert text.count("## Summarized at ") >= 2
    written = re.findall(r'id="(q\d+)"', text)
    left = [message.id for message in shown(model) if str(message.id).startswith("q")]
    assert [*written, *left] == [f"q{number}" for number in range(21)]
    assert SUMMARY not in text, "summaries are not messages of the conversation"


def test_tool_calls_are_stored_with_their_results(invoke: Invoke) -> None:
    files = MemoryBackend()
    wrong = {"type": "invalid_tool_call", "id": "bad", "name": "ls", "args": "{<", "error": None}
    made = AIMessage("I look.", tool_calls=[call("ls")], invalid_tool_calls=[wrong])
    _, agent = agent_of(files, calls(call("write_file", file_path="/a", content="x < y")), AIMessage("ok"), made)
    talk(invoke, agent, thread())
    text = text_of(files)
    assert 'name="write_file">{"file_path": "/a", "content": "x &lt; y"}</tool_call>' in text
    assert re.search(r'<message type="tool" id="[^"]+" name="write_file" tool_call_id="[^"]+">Wrote /a</message>', text)
    assert "<content>I look.</content>" in text
    assert '<invalid_tool_call id="bad" name="ls">{&lt;</invalid_tool_call>' in text


PIXELS = bytes(range(256))
ENCODED = base64.b64encode(PIXELS).decode()
IMAGES: list[dict[str, Any]] = [
    {"type": "image", "base64": ENCODED, "mime_type": "image/png"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
    {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": ENCODED},
]


def test_media_are_stored_in_separate_files(invoke: Invoke) -> None:
    for block in IMAGES:
        files = MemoryBackend()
        _, agent = agent_of(files)
        for number in range(2):
            invoke(agent, {"messages": [HumanMessage([{"type": "text", "text": f"see {number}"}, block])]}, thread())
        talk(invoke, agent, thread())
        text = text_of(files)
        (path,) = set(re.findall(r'<image url="([^"]+)" />', text))
        assert path.startswith("/blobs/")
        assert not files.ls("/conversation_history/media").ok, "each medium is stored once"
        assert files.download_files([path])[0].content == PIXELS
        assert "see 0" in text
        assert ENCODED[:40] not in text


def test_other_content_blocks_are_stored_as_they_are(invoke: Invoke) -> None:
    files = MemoryBackend()
    thought = {"type": "reasoning", "reasoning": "Why <not>?"}
    link = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    _, agent = agent_of(files, AIMessage([thought, {"type": "text", "text": "So."}]))
    invoke(agent, {"messages": [HumanMessage(["Look: ", link])]}, thread())
    talk(invoke, agent, thread())
    text = text_of(files)
    assert "Why &lt;not&gt;?" in text
    assert "https://example.com/a.png" in text


@pytest.mark.parametrize("backend", ["state", "filesystem"], indirect=True)
def test_unstorable_characters_are_escaped(backend: BackendProtocol, invoke: Invoke) -> None:
    _, agent = agent_of(backend, AIMessage("a\0b\r\nc\rd"), AIMessage("2"), reading(HISTORY), after=4)
    talk(invoke, agent, thread(), 0, 1)
    state = invoke(agent, said(2), thread())
    assert "a&#0;b&#13;" in results(state)[-1].text


# --- path of the file ------------------------------------------------------------------------------------------------


def test_the_file_is_beneath_the_artifacts_root(invoke: Invoke) -> None:
    files = MemoryBackend()
    root = CompositeBackend(MemoryBackend(), {"/work/": files}, artifacts_root="/work/")
    model, agent = agent_of(root)
    talk(invoke, agent, thread())
    assert files.read(HISTORY).ok
    assert f"/work{HISTORY}" in shown(model)[0].text


HOSTILE: list[Any] = [
    *("../x", "/etc/passwd", "..", "", ".", "a\0b", "x.2", "x y", "ünï", "\ud800", "a\nb", "~", 7, "a/b", "a_b", "a b"),
    *("a.b", "a", "a.2", *("a" * length for length in (100, 101, 102, 5_000))),
]


def test_every_thread_id_gets_its_own_file(invoke: Invoke, tmp_path: Path) -> None:
    files = FilesystemBackend(tmp_path)
    for name in HOSTILE:
        _, agent = agent_of(files, after=3)
        invoke(agent, {"messages": [*said(1)["messages"], AIMessage("a"), *said(2)["messages"]]}, thread(name))
    found = [info.path for info in files.ls("/conversation_history").entries or ()]
    assert len(found) == len(HOSTILE)
    assert all(re.fullmatch(r"/conversation_history/[A-Za-z0-9_-]+(\.id-[0-9a-f]{32})?\.md", path) for path in found)
    assert [text_of(files, path).count("## Summarized") for path in found] == [1] * len(HOSTILE)
    assert [path.name for path in tmp_path.iterdir()] == ["conversation_history"]


def test_each_run_without_a_thread_gets_its_own_file(invoke: Invoke) -> None:
    files = MemoryBackend()
    for _ in range(2):
        steps = [calls(call("ls")) for _ in range(12)]
        _, agent = agent_of(files, *steps, after=8, checkpointer=None)
        invoke(agent, said(1))
    entries = files.ls("/conversation_history").entries or ()
    assert len(entries) == 2
    assert all(text_of(files, info.path).count("## Summarized") > 1 for info in entries)


def test_subagents_get_their_own_files(invoke: Invoke) -> None:
    files = MemoryBackend()
    tasks = [call("task", description=f"task {number}", subagent_type="general-purpose") for number in range(2)]

    def turn(messages: Any) -> AIMessage:
        mine = [message.text for message in messages if message.type == "human"]
        if any("go" in text for text in mine):
            return AIMessage("all done") if messages[-1].type == "tool" else calls(*tasks)
        return AIMessage("done") if len(files.glob("*.md").matches or ()) > 1 else calls(call("ls"))

    model = Talker(script=[turn] * 500)
    model.profile = {"max_input_tokens": 300}
    agent = create_deep_agent(model, backend=files, checkpointer=InMemorySaver())
    invoke(agent, {"messages": [HumanMessage("go")]}, thread())
    names = [info.path for info in files.ls("/conversation_history").entries or ()]
    assert len([name for name in names if re.search(r"/1\.sub-[0-9a-f]{32}\.md$", name)]) == 2
    told = [text_of(files, name) for name in names if ".sub-" in name]
    assert sorted(sum(f"task {number}" in text for text in told) for number in range(2)) == [1, 1]


# --- concurrent runs and large files ---------------------------------------------------------------------------------


def stored(files: BackendProtocol, name: str = "1") -> str:
    found = sorted(files.glob(f"{name}*.md", "/conversation_history").matches or (), key=lambda info: len(info.path))
    return "".join(text_of(files, info.path) for info in found)


def one_summary(files: BackendProtocol, mark: str) -> tuple[Any, Any]:
    agent = agent_of(files, after=3, checkpointer=None)[1]
    return agent, {"messages": [HumanMessage(f"{mark} {number}", id=f"{mark}-{number}") for number in range(4)]}


def test_simultaneous_runs_of_one_thread_lose_nothing(tmp_path: Path) -> None:
    files = FilesystemBackend(tmp_path)
    made = [one_summary(files, f"run{number}") for number in range(8)]

    async def together() -> None:
        await asyncio.gather(*(agent.ainvoke(given, thread()) for agent, given in made))

    asyncio.run(together())
    threads = [threading.Thread(target=agent.invoke, args=(given, thread())) for agent, given in made]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    text = stored(files)
    assert [text.count(f'id="run{run}-{number}"') for run in range(8) for number in range(2)] == [1] * 16
    assert text.count("## Summarized") == 8


def test_a_full_file_is_continued_in_the_next(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.history_files._MAX_BYTES", 3_000)
    files = MemoryBackend()
    words = "ä" * 600
    turns = [AIMessage(f"{words} {number}", id=f"a{number}") for number in range(30)]
    model, agent = agent_of(files, *turns, after=5)
    talk(invoke, agent, thread(), 0, 20)
    sizes = {info.path: info.size for info in files.ls("/conversation_history").entries or ()}
    assert {HISTORY, "/conversation_history/1.2.md", "/conversation_history/1.10.md"} <= set(sizes)
    assert all((size or 0) <= 3_000 for size in sizes.values())
    assert all(path in shown(model)[0].text for path in sizes), "the summary names all files"
    left = [message.id for message in shown(model)]
    for number in range(20):
        held = sum(f'id="a{number}"' in text_of(files, path) for path in sizes)
        assert held + (f"a{number}" in left) == 1


def test_a_message_larger_than_a_file_is_split(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.history_files._MAX_BYTES", 3_000)
    files = MemoryBackend()
    words = "".join(f"<{number}ä>" for number in range(1_000))
    model, agent = agent_of(files, AIMessage(words), after=5)
    talk(invoke, agent, thread(), 0, 2)
    named = re.findall(r"/conversation_history/\S+?\.md", shown(model)[0].text)
    assert len(named) > 2
    text = "".join(re.sub(r"^## .*\n\n", "", text_of(files, path)).removesuffix("\n") for path in named)
    assert "".join(f"&lt;{number}ä&gt;" for number in range(1_000)) in text


def test_what_cannot_be_appended_to_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    for number, there in enumerate((b"", b"\xff\xfe", b"text\0", b"x" * 10_000_001, None, 2**30)):
        (tmp_path / f"{number}").mkdir()
        files = FilesystemBackend(tmp_path / f"{number}")
        path = HISTORY if there is not None else f"{HISTORY}/a"
        files.upload_files([(path, there if isinstance(there, bytes) else b"x")])
        if isinstance(there, int):  # Too large to be downloaded.
            os.truncate(tmp_path / f"{number}{HISTORY}", there)
        model, agent = agent_of(files)
        talk(invoke, agent, thread())
        assert "/conversation_history/1.2.md" in shown(model)[0].text
        assert "question 0" in text_of(files, "/conversation_history/1.2.md")
        if isinstance(there, int):
            assert (tmp_path / f"{number}{HISTORY}").stat().st_size == there
        else:
            assert files.download_files([path])[0].content == (b"x" if there is None else there)


# --- failures --------------------------------------------------------------------------------------------------------

HIDDEN = FilesystemPermission(operations=["read"], paths=["/conversation_history/**"], mode="deny")
FAILURES = {
    "refused": lambda files: ReadOnlyBackend(files),
    "broken": lambda files: FaultyBackend(files, {"write": BackendError("Error: disk on fire")}),
    "raises": lambda files: FaultyBackend(files, {"write": RuntimeError("a bug")}),
    "download": lambda files: FaultyBackend(files, {"download_files": PermissionDeniedError("/x")}),
    "unreachable": lambda files: FaultyBackend(files, {"read": BackendError("Error: connection refused")}),
    "unreadable": lambda files: PermissionedBackend(files, [HIDDEN]),
}


@pytest.mark.parametrize("fail", FAILURES)
def test_if_the_file_cannot_be_written_no_message_is_removed(
    invoke: Invoke, caplog: pytest.LogCaptureFixture, fail: str
) -> None:
    files = MemoryBackend()
    model, agent = agent_of(FAILURES[fail](files))
    with caplog.at_level(logging.WARNING, "deepfs"):
        state = talk(invoke, agent, thread(), 0, 9)
    asked = [f"question {number} <&>" for number in range(10)]
    assert [message.text for message in state["messages"][::2]] == asked
    assert [message.text for message in shown(model)[::2]] == asked
    assert "cannot be stored" in caplog.text
    assert not files.read(HISTORY).ok
    assert model.summaries == 0, "no summary is made that could not be used"


def test_an_empty_summary_stands_for_no_messages(invoke: Invoke, caplog: pytest.LogCaptureFixture) -> None:
    model = Talker(script=[AIMessage(f"answer {number}") for number in range(9)])
    empty = ScriptedModel(script=[AIMessage(" \n")] * 9)
    summaries = SummarizationMiddleware(
        model, backend=MemoryBackend(), trigger=("messages", 8), keep=("messages", 2), summarizer=empty
    )
    agent = create_agent(model, middleware=[summaries], checkpointer=InMemorySaver())
    with caplog.at_level(logging.WARNING, "deepfs"):
        talk(invoke, agent, thread(), 0, 5)
    assert [message.id for message in shown(model)][::2] == [f"q{number}" for number in range(6)]
    assert event_of(agent) is None
    assert "empty summary" in caplog.text


def test_media_that_cannot_be_written_are_not_removed(invoke: Invoke) -> None:
    block = IMAGES[0]
    files = FaultyBackend(MemoryBackend(), {"upload_files": BackendError("Error: no")})
    model, agent = agent_of(files)
    invoke(agent, {"messages": [HumanMessage([block])]}, thread())
    state = talk(invoke, agent, thread())
    assert state["messages"][0].content == shown(model)[0].content == [block]
    assert len(state["messages"]) == 16


def test_the_summary_is_used_once_the_file_can_be_written(invoke: Invoke) -> None:
    files = MemoryBackend()
    failing = {"write": BackendError("Error: disk on fire")}
    model, agent = agent_of(FaultyBackend(files, failing))
    talk(invoke, agent, thread(), 0, 8)
    failing.clear()
    talk(invoke, agent, thread(), 9, 9)
    assert HISTORY in shown(model)[0].text
    assert model.summaries == 1
    kept = [message.id for message in shown(model)]
    assert all((f'id="q{number}"' in text_of(files)) != (f"q{number}" in kept) for number in range(10))


def test_a_pending_summary_is_dropped_if_its_messages_were_edited(invoke: Invoke) -> None:
    files = MemoryBackend()
    failing = {"write": BackendError("Error: disk on fire")}
    model, agent = agent_of(FaultyBackend(files, failing))
    talk(invoke, agent, thread())
    agent.update_state(thread(), {"messages": [HumanMessage("question 0, corrected", id="q0")]})
    failing.clear()
    talk(invoke, agent, thread(), 7, 7)
    assert "question 0, corrected" in text_of(files)
    assert model.summaries == 1


# --- rules -----------------------------------------------------------------------------------------------------------


def test_write_permissions_of_the_model_do_not_prevent_summaries(invoke: Invoke) -> None:
    files = MemoryBackend()
    rules = [FilesystemPermission(["write"], ["/**"], "deny")]
    _, agent = agent_of(files, *(AIMessage(f"reply {number}") for number in range(6)), reading(HISTORY),
                        permissions=rules)  # fmt: skip
    state = talk(invoke, agent, thread())
    assert [message.status for message in results(state)] == ["success"]
    assert "question 0" in results(state)[0].text
