"""The tools in a plain ToolNode: their answers over every kind of backend."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.tools import InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from deepfs import CompositeBackend, FilesystemState, MemoryBackend, PermissionedBackend, WriteResult, run_sync
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.middleware.arguments import LsArguments
from deepfs.middleware.tools import filesystem_tools
from deepfs.policy import HistoryBackend
from deepfs.testing import FaultyBackend
from support.agents import Invoke, Sandbox, results
from support.chat import call, calls

SNAPSHOT = Path(__file__).parent / "tools.json"


class State(MessagesState, FilesystemState):
    """Messages and files of the graph."""


def tool_graph(backend: BackendProtocol, **options: Any) -> Any:
    node = ToolNode(filesystem_tools(backend, **options))
    return StateGraph(State).add_node("tools", node).add_edge(START, "tools").compile()


class Session:
    """Makes tool calls, turn after turn, on one state."""

    def __init__(self, backend: BackendProtocol, invoke: Invoke, **options: Any) -> None:
        self._graph, self._invoke = tool_graph(backend, **options), invoke
        self._files: dict[str, Any] = {}

    def turn(self, *made: dict[str, Any]) -> list[Any]:
        state = self._invoke(self._graph, {"messages": [calls(*made)], "files": self._files})
        self._files = state["files"]
        return results(state)

    def do(self, name: str, **arguments: Any) -> Any:
        (message,) = self.turn(call(name, **arguments))
        assert message.name == name
        return message

    def says(self, name: str, **arguments: Any) -> str:
        message = self.do(name, **arguments)
        assert message.status == "success", message.content
        return message.content

    def fails(self, name: str, **arguments: Any) -> str:
        message = self.do(name, **arguments)
        assert message.status == "error", message.content
        return message.content


@pytest.fixture
def session(backend: BackendProtocol, invoke: Invoke) -> Session:
    return Session(backend, invoke)


@pytest.fixture
def memory(invoke: Invoke) -> Session:
    return Session(MemoryBackend(), invoke)


# --- every tool over every backend -----------------------------------------------------------------------------------


def test_every_tool_works_in_one_session(session: Session) -> None:
    assert session.says("write_file", file_path="/src/a.py", content="one\r\ntwo\n") == "Wrote /src/a.py"
    assert session.says("write_file", file_path="/src/deep/b.py", content="two\n") == "Wrote /src/deep/b.py"
    assert session.says("read_file", file_path="/src/a.py") == "1\tone\n2\ttwo"
    edited = session.says("edit_file", file_path="/src/a.py", old_string="one\ntwo", new_string="ONE\ntwo")
    assert edited == "Replaced 1 occurrence in /src/a.py"
    several = [{"old_string": "ONE\n", "new_string": "one\n1\n"}, {"old_string": "1\n", "new_string": ""}]
    assert session.says("edit_file", file_path="/src/a.py", edits=several) == "Replaced 2 occurrences in /src/a.py"
    wrong = session.fails("edit_file", file_path="/src/a.py", edits=[*several, {"old_string": "9", "new_string": ""}])
    assert wrong.endswith("This was edit 1 of 3; nothing was changed.")
    undone = [{"old_string": "one", "new_string": "1"}, {"old_string": "1", "new_string": "one"}]
    assert "change nothing" in session.fails("edit_file", file_path="/src/a.py", edits=undone)
    [match] = session.do("read_file", file_path="/src/a.py").content.splitlines()[:1]
    assert match == "1\tone"
    assert session.says("grep", pattern="two") == "/src/a.py\n/src/deep/b.py"
    assert session.says("grep", pattern="t.o", regex=True, glob="a.*", output_mode="content") == "/src/a.py:\n  2: two"
    assert session.says("grep", pattern="(?i)TWO", regex=True, output_mode="count") == "/src/a.py: 1\n/src/deep/b.py: 1"
    assert session.says("glob", pattern="*.py", path="/src/deep") == "/src/deep/b.py"
    assert re.fullmatch(r"/src:\na\.py\t\d+\ndeep/", session.says("ls", path="/src"))
    assert session.says("move", source="/src/deep/b.py", destination="/b.py") == "Moved /src/deep/b.py to /b.py"
    assert session.says("delete", file_path="/src") == "Deleted /src"
    assert session.says("glob", pattern="*.py") == "/b.py"


@pytest.mark.parametrize("backend", ["state", "filesystem", "composite"], indirect=True)
def test_all_calls_of_one_turn_take_effect(session: Session) -> None:
    lines = [f"line {number};\n" for number in range(40)]
    session.says("write_file", file_path="/shared", content="".join(lines))
    made = [call("write_file", file_path=f"/out/{number}", content=str(number)) for number in range(40)]
    edits = [
        call("edit_file", file_path="/shared", old_string=f"line {number};", new_string=f"LINE {number};")
        for number in range(0, 40, 4)
    ]
    edits += [
        call(
            "edit_file",
            file_path="/shared",
            edits=[
                {"old_string": f"line {each};", "new_string": f"LINE {each};"} for each in range(number, number + 3)
            ],
        )
        for number in range(1, 40, 4)
    ]
    assert {message.status for message in session.turn(*made, *edits)} == {"success"}
    assert len(session.says("glob", pattern="/out/*").splitlines()) == 40
    assert session.says("grep", pattern="LINE", output_mode="count") == "/shared: 40"


class OneNote:
    """A V1 backend."""

    def ls_info(self, path: str) -> list[dict[str, Any]]:
        return [{"path": "/note"}]

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        return "     1\tRemember." if file_path == "/note" else f"Error: File '{file_path}' not found"


def test_an_older_backend_is_adapted(invoke: Invoke) -> None:
    for backend in (OneNote(), WrapperBackend(OneNote())):  # type: ignore[arg-type]
        session = Session(backend, invoke)  # type: ignore[arg-type]
        assert session.says("ls") == "/note"
        assert session.says("read_file", file_path="/note") == "1\tRemember."


class Guarded(MemoryBackend):
    """Overrides `write` to refuse some paths."""

    def write(self, file_path: str, content: str) -> WriteResult:
        return WriteResult("Error: No") if file_path.startswith("/policies/") else super().write(file_path, content)


class GuardedMoves(Guarded):
    """Overrides `move` too."""

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return super().move(src, dst, overwrite=overwrite)


class GuardedBefore(WrapperBackend):
    """A wrapper that overrides `awrite`."""

    async def awrite(self, *args: Any, **options: Any) -> WriteResult:
        return await super().awrite(*args, **options)


def test_move_is_not_offered_if_it_would_bypass_an_override_of_write() -> None:
    kept = CompositeBackend(MemoryBackend(), {"/m/": HistoryBackend(MemoryBackend())})
    backends: list[tuple[Any, bool]] = [
        (Guarded(), False),
        (GuardedBefore(MemoryBackend()), False),
        (WrapperBackend(CompositeBackend(MemoryBackend(), {"/m/": Guarded()})), False),
        (GuardedMoves(), True),
        (OneNote(), True),
        (PermissionedBackend(kept), True),
    ]
    for backend, moves in backends:
        assert ("move" in {tool.name for tool in filesystem_tools(backend)}) is moves


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_null_stands_for_the_default(memory: Session) -> None:
    memory.says("write_file", file_path="/a", content="x", overwrite=None)
    assert memory.says("read_file", file_path="/a", offset=None, limit=None) == "1\tx"
    assert memory.says("grep", pattern="x", path=None, glob=None, max_count=None) == "/a"


def test_partial_results_are_shown_with_the_error(invoke: Invoke) -> None:
    broken = FaultyBackend(MemoryBackend(), {"grep": BackendError("Error: The storage is gone")})
    session = Session(CompositeBackend(MemoryBackend(), {"/broken/": broken}), invoke)
    session.says("write_file", file_path="/a", content="x")
    found = session.says("grep", pattern="x")
    assert found.startswith("/a\n[")
    assert "storage is gone" in found


# --- reading ---------------------------------------------------------------------------------------------------------


def read_whole(session: Session, path: str) -> tuple[str, int]:
    """The joined text of all pages of a file, and the number of pages."""
    text, pages, following = "", 0, {"offset": 0, "column": 0}
    while following:
        page = session.says("read_file", file_path=path, **following)
        assert len(page) <= 60_000
        *rows, last = page.split("\n")
        note = re.search(r"offset=(\d+)(?:, column=(\d+))?\]$", last)
        rows = rows if note else [*rows, last]
        shown = [row.partition("\t")[2] for row in rows]
        is_cut = bool(note and note[2])
        text += "\n".join(shown) + ("" if is_cut else "\n")
        following = {"offset": int(note[1]), "column": int(note[2] or 0)} if note else {}
        pages += 1
    return text, pages


def test_one_enormous_line_is_read_in_pieces(invoke: Invoke) -> None:
    session = Session(MemoryBackend(), invoke)
    line = "".join(chr(97 + number % 26) for number in range(5_000_000))
    session.says("write_file", file_path="/line", content=f"short\n{line}\nlast\n")
    text, pages = read_whole(session, "/line")
    assert text == f"short\n{line}\nlast\n"
    assert pages < 90


def test_the_note_gives_the_position_of_the_page(memory: Session) -> None:
    memory.says("write_file", file_path="/a", content="a\nb\nc\n")
    assert memory.says("read_file", file_path="/a", offset=1, limit=1) == (
        "2\tb\n[Lines 2 to 2 of 3. Read on with offset=2]"
    )
    assert memory.says("read_file", file_path="/a", offset=2, limit=9) == "3\tc"
    memory.says("write_file", file_path="/empty", content="")
    assert memory.says("read_file", file_path="/empty") == "[/empty is empty]"


def test_lists_stay_within_the_budget(invoke: Invoke) -> None:
    inner = MemoryBackend()
    session = Session(inner, invoke, max_result_chars=1_000)
    for number in range(200):
        inner.write(f"/directory/file-{number:03}.txt", "needle\n" * 3)
    for name, arguments in {
        "ls": {"path": "/directory"},
        "glob": {"pattern": "*.txt"},
        "grep": {"pattern": "needle", "output_mode": "content"},
    }.items():
        text = session.says(name, **arguments)
        assert len(text) <= 1_000
        told = "more lines are not shown" if name == "grep" else " of 200. Go on with offset="
        assert told in text.splitlines()[-1]


def test_matches_are_shown_once_with_context_and_a_search_that_was_cut_short_says_so(memory: Session) -> None:
    memory.says("write_file", file_path="/a", content="1\nx\n3\nx\n5\n6\n")
    found = memory.says("grep", pattern="x", output_mode="content", context_lines=1)
    assert found == "/a:\n  1- 1\n  2: x\n  3- 3\n  4: x\n  5- 5"
    assert "narrow path, glob or pattern, or raise max_count" in memory.says("grep", pattern="x", max_count=1)


# --- media -----------------------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
MEDIA = {
    "/picture.png": (PNG, "image", "image/png"),
    "/picture.gif": (PNG, "image", "image/png"),
    "/photo.jpg": (b"\xff\xd8\xff\xe0" + bytes(40), "image", "image/jpeg"),
    "/song.mp3": (b"ID3" + bytes(40), "file", "audio/mpeg"),
    "/raw.mp3": (b"\x00\xff" * 20, "file", "audio/mpeg"),
    "/film.mp4": (b"\0\0\0\x18ftypmp42" + bytes(40), "file", "video/mp4"),
    "/paper.pdf": (b"%PDF-1.7\n\xff\xfe" + bytes(40), "file", "application/pdf"),
}


def test_media_are_blocks_of_their_type(invoke: Invoke) -> None:
    inner = MemoryBackend()
    inner.upload_files([(path, content) for path, (content, *_) in MEDIA.items()])
    for path, (content, kind, mime) in MEDIA.items():
        (block,) = Session(inner, invoke).says("read_file", file_path=path)
        assert (block["type"], block["mime_type"], block["base64"]) == (kind, mime, b64encode(content).decode())


# --- commands --------------------------------------------------------------------------------------------------------


def test_commands_run_where_the_backend_runs_them(invoke: Invoke) -> None:
    sandbox = Sandbox()
    session = Session(sandbox, invoke)
    assert session.says("execute", command="ls") == "ls\n[Exit code 0]"
    assert session.says("execute", command="fail", timeout=5) == "fail\n[Exit code 3]"
    assert session.do("execute", command="fail").artifact == {"truncated": False, "exit_code": 3}
    assert session.says("execute", command="") == "[No output]\n[Exit code 0]"
    assert sandbox.timeouts == [None, 5, None, None]
    for command in ("echo \0", "echo \ud800"):
        assert "command holds" in session.fails("execute", command=command)
    assert "execute" not in {tool.name for tool in filesystem_tools(MemoryBackend())}
    assert "file tools" in Session(MemoryBackend(), invoke, execute=True).fails("execute", command="ls")


# --- descriptions for models -----------------------------------------------------------------------------------------


def schemas() -> list[dict[str, Any]]:
    return [convert_to_openai_tool(tool)["function"] for tool in filesystem_tools(Sandbox())]


def test_the_schemas_match_the_snapshot() -> None:
    rows = []
    for schema in schemas():
        parameters = schema["parameters"].pop("properties")
        rows += [schema, *({name: parameter} for name, parameter in parameters.items())]
    shown = "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"
    assert shown == SNAPSHOT.read_text(), f"they changed; if that is meant, replace {SNAPSHOT.name}"


def test_a_sync_call_that_would_deadlock_names_the_async_form() -> None:
    class Bound(WrapperBackend):
        is_synchronous = False

        def bound_to_this_thread(self) -> bool:
            return True

    ls, *_ = filesystem_tools(Bound(MemoryBackend()))
    with pytest.raises(RuntimeError, match="ainvoke"):
        ls.invoke({"path": "/"})
    assert run_sync(ls.ainvoke, {"path": "/"}) == "[/ is empty]"


class WithCallId(LsArguments):
    call_id: Annotated[str, InjectedToolCallId]


def list_with_id(tool_call_id: Annotated[str, InjectedToolCallId], path: str, **_: Any) -> str:
    return f"{tool_call_id} {path}"


def list_with_call_id(call_id: str, path: str, **_: Any) -> str:
    return f"{call_id} {path}"


@pytest.mark.parametrize(
    "changes", [{"func": list_with_id}, {"func": list_with_call_id, "args_schema": WithCallId}], ids=["func", "schema"]
)
def test_a_copy_gets_the_arguments_that_langchain_fills_in(changes: dict[str, Any]) -> None:
    (tool,) = filesystem_tools(MemoryBackend(), tools=["ls"])
    assert tool.model_copy(update=changes).invoke(call("ls", path="/a") | {"id": "7"}).content == "7 /a"
