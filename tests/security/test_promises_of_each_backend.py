"""What SECURITY.md promises of some backends only, where no other test says it."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from deepfs import FilesystemState, StateBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import Operation
from deepfs.policy import FilesystemPermission, PermissionedBackend
from support.promises import keeps

pytestmark = pytest.mark.anyio

# --- state ---

_FILES = StateBackend()
_THREAD: Any = {"configurable": {"thread_id": "t"}}
_TEN = "".join(f"<{number}>" for number in range(10))


def _graph(*nodes: Any) -> Any:
    """A graph whose nodes all run in its first superstep."""
    builder = StateGraph(FilesystemState)
    for node in nodes:
        builder.add_node(node.__name__, node, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01))
        builder.add_edge(START, node.__name__)
    return builder.compile(checkpointer=InMemorySaver())


def _given(content: str) -> dict[str, Any]:
    return {"files": {"/a": {"content": content, "encoding": "utf-8", "created_at": "0", "modified_at": "0"}}}


def _content(files: Any, path: str = "/a") -> str:
    return files["files"][path]["content"]


@keeps("Parallel calls of one superstep add up, live, after a retry and after a resume.")
def test_parallel_calls_of_one_superstep_add_up() -> None:
    failures = iter([True])

    def edit(state: Any) -> None:
        assert _FILES.edit("/a", f"<{state['n']}>", f"[{state['n']}]").ok
        if state["n"] == 3 and next(failures, False):
            raise ConnectionError("lost; the node is tried again")
        if state["n"] == 5:
            interrupt("go on?")

    class Numbered(FilesystemState):
        n: int

    builder = StateGraph(Numbered).add_node(
        "edit", edit, retry_policy=RetryPolicy(initial_interval=0.01, retry_on=ConnectionError)
    )
    builder.add_conditional_edges(START, lambda _: [Send("edit", {"n": n}) for n in range(10)], ["edit"])
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke(_given(_TEN), _THREAD)
    live = graph.invoke(Command(resume=True), _THREAD)
    assert _content(live) == _TEN.replace("<", "[").replace(">", "]")
    assert _content(graph.get_state(_THREAD).values) == _content(live)


@keeps("Where two collide, one takes effect")
def test_of_colliding_changes_one_takes_effect_and_the_other_is_told() -> None:
    told = []

    def one(state: FilesystemState) -> None:
        told.append(_FILES.edit("/a", "shared", "one").error)

    def two(state: FilesystemState) -> None:
        told.append(_FILES.edit("/a", "shared", "two").error)

    live = _graph(one, two).invoke(_given("shared"), _THREAD)
    assert _content(live) in {"one", "two"}
    assert len([error for error in told if error]) + len(live["file_conflicts"]) == 1


@keeps("Whole dicts of files that nodes and subgraphs return undo nothing")
def test_whole_dicts_undo_nothing_that_a_parallel_task_did() -> None:
    def returns(state: FilesystemState) -> Any:
        return {"files": state["files"]}

    def edits(state: FilesystemState) -> None:
        assert _FILES.edit("/a", "old", "new").ok
        assert _FILES.write("/b", "made").ok

    live = _graph(returns, edits).invoke(_given("old"), _THREAD)
    assert (_content(live), _content(live, "/b")) == ("new", "made")


# --- commands ---


@keeps("The environment of this process is not handed on unless asked.")
async def test_the_environment_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "secret")
    assert "secret" not in (await LocalShellBackend(tmp_path).aexecute("/usr/bin/env")).output
    assert "secret" in (await LocalShellBackend(tmp_path, inherit_env=True).aexecute("/usr/bin/env")).output


# --- searches ---


@keeps("100,000 lines or 100,000 files with `truncated`")
async def test_a_search_stops_and_says_so() -> None:
    memory = MemoryBackend()
    assert (await memory.awrite("/lines", "needle\n" * 100_001)).ok
    found = await memory.agrep("needle")
    assert (len(found.matches or ()), found.truncated) == (100_000, True)


# --- rules ---

_SECRET = FilesystemPermission(["read", "write"], ["/secret/**"], "deny")


@keeps("Every operation is judged by one function, by the path as normalised and as links lead")
async def test_rules_judge_paths_as_normalised_and_as_links_lead(tmp_path: Path) -> None:
    disk = FilesystemBackend(tmp_path)
    assert (await disk.awrite("/secret/key", "needle")).ok
    await anyio.to_thread.run_sync((tmp_path / "link").symlink_to, "secret/key")
    ruled = PermissionedBackend(disk, [_SECRET])
    for path in ("/secret/key", "//secret/./key/", "/link"):
        for result in (
            *(await ruled.aread(path), await ruled.aread_raw(path), await ruled.aedit(path, "needle", "x")),
            *(await ruled.acopy(path, "/copy"), await ruled.awrite(path, "x", overwrite=True)),
        ):
            assert result.code == "permission_denied", path
    assert (await disk.aread("/secret/key")).ok


@keeps("What is denied is absent from listings and searches, and answers the same whether it is there or not.")
async def test_what_is_denied_is_absent_and_answers_the_same() -> None:
    memory = MemoryBackend()
    for path in ("/secret/key", "/open"):
        assert (await memory.awrite(path, "needle")).ok
    ruled = PermissionedBackend(memory, [_SECRET])
    assert [match.path for match in (await ruled.agrep("needle")).matches or ()] == ["/open"]
    assert [match.path for match in (await ruled.aglob("**/*")).matches or ()] == ["/open"]
    for operation in (ruled.aread, ruled.adelete, ruled.als):
        there, missing = await operation("/secret/key"), await operation("/secret/kex")
        assert (there.code, str(there.error).replace("key", "kex")) == (missing.code, missing.error)


@keeps("Every operation passes it, each exactly once.")
async def test_every_operation_passes_a_wrapper_once() -> None:
    passed = []

    class Recording(WrapperBackend):
        async def run(self, operation: Operation) -> Any:
            passed.append(operation.name)
            return await super().run(operation)

    backend = Recording(MemoryBackend())
    await backend.awrite("/a", "x")
    await backend.aedit("/a", "x", "y")
    await backend.acopy("/a", "/b")
    await backend.amove("/b", "/c")
    await backend.aupload_files([("/d", b"x")])
    await backend.adownload_files(["/d"])
    await backend.adelete("/d")
    await backend.agrep("x")
    assert passed == [*("write", "edit", "copy", "move", "upload_files", "download_files", "delete", "grep")]
