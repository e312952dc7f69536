"""Threads that graphs and agents of earlier versions stored are read, changed, resumed and forked.

`write.py` makes the archives, `contents.py` lists their content. Each test works on a copy.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from deepfs import BackendProtocol, StateBackend
from stored.checks import CHANGED, check_and_change, check_and_change_v1
from stored.contents import CLASH, LONG_STEPS, MESSAGE, REPORT, SHARED, STORE
from stored.graphs import State, approving_agent, model_calls, nested, parallel, reading_agent, steps
from support.chat import ScriptedModel

BOTH_EDITS: Final = SHARED.replace("line 2\n", "LEFT\n").replace("line 7\n", "RIGHT\n")


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saver(stored: Path) -> Iterator[SqliteSaver]:
    """A saver with the stored threads."""
    with SqliteSaver.from_conn_string(str(stored / "checkpoints.sqlite")) as saver:
        yield saver


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def contents(files: Mapping[str, Any]) -> dict[str, bytes]:
    """The content of files in a state, decoded without deepfs."""
    return {path: _bytes_of(data["content"], data.get("encoding")) for path, data in files.items()}


def _bytes_of(content: Any, encoding: str | None) -> bytes:
    if encoding == "base64":
        return b64decode(content)
    return ("\n".join(content) if isinstance(content, list) else content).encode()


def visiting(visit: Callable[[BackendProtocol], Any], file_format: Any = "v2") -> "StateGraph[Any]":
    """The graph `steps`, whose node calls `visit` instead."""

    async def work(state: State) -> None:
        await visit(StateBackend(file_format=file_format))

    return StateGraph(State).add_node("work", work).add_edge(START, "work")


class TestThreads:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.anyio
    @pytest.mark.parametrize("name", ["steps", "async"])
    async def test_files_are_read_and_changed(self, stored: Path, name: str) -> None:
        async with AsyncSqliteSaver.from_conn_string(str(stored / "checkpoints.sqlite")) as saver:
            before = (await steps().compile(checkpointer=saver).aget_state(thread(name))).values["files"]
            assert contents(before) == STORE
            await visiting(check_and_change).compile(checkpointer=saver).ainvoke({}, thread(name))
            after = (await steps().compile(checkpointer=saver).aget_state(thread(name))).values["files"]
            assert contents(after) == CHANGED
            assert after["/crlf.txt"]["created_at"] == before["/crlf.txt"]["created_at"]

    @pytest.mark.anyio
    @pytest.mark.parametrize("file_format", ["v1", "v2"])
    async def test_files_of_the_older_format_are_read_and_changed(self, stored: Path, file_format: str) -> None:
        async with AsyncSqliteSaver.from_conn_string(str(stored / "checkpoints.sqlite")) as saver:
            before = (await steps().compile(checkpointer=saver).aget_state(thread("v1"))).values["files"]
            assert before["/a.txt"]["content"] == ["one", "TWO", "three", ""]
            await visiting(check_and_change_v1, file_format).compile(checkpointer=saver).ainvoke({}, thread("v1"))
            after = (await steps().compile(checkpointer=saver).aget_state(thread("v1"))).values["files"]
            assert after["/a.txt"]["content"] == {"v1": ["one", "2", "3", ""], "v2": "one\n2\n3\n"}[file_format]
            assert after["/a.txt"]["created_at"] == before["/a.txt"]["created_at"]

    def test_each_former_state_is_there_and_can_be_forked(self, saver: SqliteSaver) -> None:
        graph = steps().compile(checkpointer=saver)
        done = [state for state in graph.get_state_history(thread("steps")) if not state.next][::-1]
        files = [contents(state.values["files"]) for state in done]
        assert [each["/docs/a.md"] for each in files] == [
            b"# A\n\nfirst\n", b"# A\n\nsecond\n", b"# A\n\nsecond\n", b"# A\n\nedited\n"
        ]  # fmt: skip
        assert [each["/crlf.txt"] for each in files] == [b"one\r\nTWO\r\n", *[b"one\r\ntwo\r\n"] * 3]
        assert ["/docs/c.md" in each for each in files] == [True, True, False, False]
        assert ["/docs/moved.md" in each for each in files] == [False, False, True, True]
        forked = graph.invoke({"todo": {"work": [["edit", "/docs/a.md", "second", "forked"]]}}, done[1].config)
        assert forked["log"] == []
        assert contents(forked["files"]) == {**files[1], "/docs/a.md": b"# A\n\nforked\n"}
        assert contents(graph.get_state(thread("steps")).values["files"]) == contents(forked["files"])
        assert contents(graph.get_state(done[-1].config).values["files"]) == STORE

    def test_a_long_thread_is_complete_and_can_be_continued(self, saver: SqliteSaver) -> None:
        graph = steps().compile(checkpointer=saver)
        numbered = {f"/{number}": f"{number}\n".encode() for number in range(LONG_STEPS)}
        expected = {"/log": b"", "/kept": b"kept\n", **numbered}
        assert contents(graph.get_state(thread("long")).values["files"]) == expected
        for number in range(LONG_STEPS):
            change = ["edit", f"/{number}", f"{number}", f"{-number - 1}"]
            assert graph.invoke({"todo": {"work": [change]}}, thread("long"), durability="exit")["log"] == []
        changed = {f"/{number}": f"{-number - 1}\n".encode() for number in range(LONG_STEPS)}
        assert contents(graph.get_state(thread("long")).values["files"]) == {**expected, **changed}

    @pytest.mark.anyio
    @pytest.mark.parametrize("form", ["msgpack", "plain"])
    async def test_files_of_a_thread_can_start_another_thread(self, stored: Path, form: str) -> None:
        state = json.loads(await anyio.Path(stored / "state.json").read_text())
        loaded = JsonPlusSerializer().loads_typed((state["type"], b64decode(state["data"])))
        files = loaded if form == "msgpack" else state["files"]
        graph = visiting(check_and_change).compile(checkpointer=InMemorySaver())
        assert contents((await graph.ainvoke({"files": files}, thread("new")))["files"]) == CHANGED


class TestParallelSteps:
    def test_merged_files_are_read_and_edited(self, saver: SqliteSaver) -> None:
        graph = parallel().compile(checkpointer=saver)
        files = contents(graph.get_state(thread("parallel")).values["files"])
        assert files == {"/shared": BOTH_EDITS.encode(), "/clash": CLASH.encode(), "/right": b"right\n"}
        todo = {"left": [["edit", "/shared", "LEFT", "L"]], "right": [["edit", "/shared", "RIGHT", "R"]]}
        final = graph.invoke({"todo": todo}, thread("parallel"))
        assert contents(final["files"])["/shared"] == BOTH_EDITS.replace("LEFT", "L").replace("RIGHT", "R").encode()

    def test_an_interrupted_step_is_resumed(self, saver: SqliteSaver) -> None:
        """The writes of its finished task are merged with the new writes of the other task."""
        final = parallel().compile(checkpointer=saver).invoke(Command(resume=True), thread("interrupted"))
        assert contents(final["files"]) == {
            "/shared": BOTH_EDITS.encode(), "/clash": CLASH.encode(), "/right": b"right\n"
        }  # fmt: skip
        assert (final["log"], final["file_conflicts"]) == ([], [])
        rebuilt = parallel().compile(checkpointer=saver).get_state(thread("interrupted")).values
        assert rebuilt["files"] == final["files"]

    def test_a_failed_step_is_resumed(self, saver: SqliteSaver) -> None:
        final = parallel().compile(checkpointer=saver).invoke(None, thread("failed"))
        assert contents(final["files"]) == {
            "/shared": BOTH_EDITS.encode(), "/clash": CLASH.encode(), "/right": b"right\n"
        }  # fmt: skip

    def test_a_conflict_with_earlier_writes_is_reported(self, saver: SqliteSaver) -> None:
        final = parallel().compile(checkpointer=saver).invoke(Command(resume=True), thread("conflict"))
        assert contents(final["files"])["/clash"] == b"left\n"
        assert [(each["path"], each["operation"], each["node"]) for each in final["file_conflicts"]] == [
            ("/clash", "edit", "right")
        ]

    def test_stored_conflicts_are_read_and_can_be_cleared(self, saver: SqliteSaver) -> None:
        def forget(state: State) -> dict[str, Any]:
            return {"file_conflicts": None}

        graph = StateGraph(State).add_node("left", forget).add_edge(START, "left").compile(checkpointer=saver)
        [conflict] = graph.get_state(thread("conflicts")).values["file_conflicts"]
        assert (conflict["path"], conflict["operation"], conflict["node"]) == ("/clash", "edit", "right")
        final = graph.invoke({}, thread("conflicts"))
        assert final["file_conflicts"] == []
        assert contents(final["files"])["/clash"] == b"left\n"

    def test_an_interrupted_nested_graph_is_resumed(self, saver: SqliteSaver) -> None:
        graph = nested().compile(checkpointer=saver)
        final = graph.invoke(Command(resume=True), thread("nested"))
        expected = {"/shared": BOTH_EDITS.encode(), "/clash": CLASH.encode(), "/right": b"right\n"}
        assert contents(final["files"]) == expected
        again = graph.invoke({"todo": {"work": [["delete", "/clash"]]}, "asks": []}, thread("nested"))
        del expected["/clash"]
        assert contents(again["files"]) == expected


# --- agents ----------------------------------------------------------------------------------------------------------


class TestAgents:
    @pytest.mark.parametrize("decision", ["approve", "reject"])
    @pytest.mark.parametrize("by", ["rule", "tool"])
    def test_a_pending_interrupt_is_answered(self, saver: SqliteSaver, by: str, decision: str) -> None:
        agent = approving_agent([AIMessage("done")], saver, by=by)
        [question] = agent.get_state(thread(f"by {by}")).interrupts
        assert question.value["action_requests"][0]["args"]["file_path"] == "/kept/a.txt"
        final = agent.invoke(Command(resume={"decisions": [{"type": decision}]}), thread(f"by {by}"))
        assert final["messages"][-1].content == "done"
        expected = {"/kept/a.txt": b"approved\n"} if decision == "approve" else {}
        assert contents(final.get("files") or {}) == expected

    def test_an_interrupt_of_a_subagent_is_answered(self, saver: SqliteSaver) -> None:
        agent = approving_agent([AIMessage("written"), AIMessage("done")], saver, by="tool")
        final = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread("by subagent"))
        assert final["messages"][-1].content == "done"
        assert contents(final["files"]) == {"/kept/a.txt": b"approved\n"}

    def test_evicted_files_in_a_state_are_read(self, saver: SqliteSaver) -> None:
        files = reading_agent([], saver=saver).get_state(thread("evicted")).values["files"]
        assert sorted(contents(files).values()) == sorted([MESSAGE.encode(), REPORT.encode()])
        turns = [model_calls("read_file", path, file_path=path, offset=50, limit=1) for path in sorted(files)]
        agent = reading_agent([*turns, AIMessage("read")], saver=saver)
        final = agent.invoke({"messages": [HumanMessage("go on")]}, thread("evicted"))
        read = [message.text for message in final["messages"] if message.type == "tool"][-2:]
        assert ["0050: a line of a large message" in read[0], "0050: a line of a large result" in read[1]] == [True] * 2
        assert contents(final["files"]) == contents(files)

    def test_a_summarised_conversation_continues_and_is_summarised_again(self, saver: SqliteSaver) -> None:
        model = ScriptedModel(
            script=[AIMessage("c" * 8_000), AIMessage("newer summary"), AIMessage("fifth")],
            profile={"max_input_tokens": 2_300},
        )
        agent = reading_agent((), model=model, saver=saver)
        agent.invoke({"messages": [HumanMessage("four")]}, thread("summarised"))
        assert "the summary" in model.asked[0][1].text
        final = agent.invoke({"messages": [HumanMessage("five")]}, thread("summarised"))
        assert "newer summary" in "".join(message.text for message in model.asked[-1])
        assert final["messages"][-1].content == "fifth"
        [kept] = contents(final["files"]).values()
        assert b"the summary" in kept
