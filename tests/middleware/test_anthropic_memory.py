"""Anthropic's memory tool: the texts of its documentation, and nothing outside of `/memories`."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from langchain_core.tools import ToolException
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemMiddleware,
    FilesystemPermission,
    MemoryBackend,
    StoreBackend,
)
from deepfs.middleware import memory_function, memory_tool
from deepfs.middleware.anthropic_memory import insert_lines

pytestmark = pytest.mark.anyio

KINDS: dict[str, Any] = {
    "memory": lambda root: MemoryBackend(),
    "disk": FilesystemBackend,
    "mount": lambda root: CompositeBackend(
        MemoryBackend(), {"/memories/": StoreBackend(InMemoryStore(), namespace=("m",))}
    ),
}


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    made: BackendProtocol = KINDS[request.param](tmp_path)
    return made


async def run(files: BackendProtocol, command: str, **arguments: Any) -> Any:
    """The result of the tool. Its coroutine is called, since tools of LangChain themselves run on asyncio only."""
    tool: Any = memory_tool(files)
    try:
        return SimpleNamespace(status="success", text=await tool.coroutine(command=command, **arguments))
    except ToolException as error:
        return SimpleNamespace(status="error", text=str(error))


async def said(files: BackendProtocol, command: str, **arguments: Any) -> str:
    return str((await run(files, command, **arguments)).text)


LISTED = (
    "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items and node_modules:\n"
)


async def test_commands_answer_as_documented(files: BackendProtocol) -> None:
    path = "/memories/a.md"
    assert await said(files, "view", path="/memories") == f"{LISTED}0B\t/memories"
    assert await said(files, "create", path=path, file_text="one\ntwo\n") == f"File created successfully at: {path}"
    for hidden in ("/memories/p/q/r.md", "/memories/.h", "/memories/node_modules/x"):
        assert (await run(files, "create", path=hidden, file_text="x" * 1536)).status == "success"
    rows = ["4.5K\t/memories", "8B\t/memories/a.md", "1.5K\t/memories/p/", "1.5K\t/memories/p/q/"]
    assert await said(files, "view", path="/memories") == LISTED + "\n".join(rows)
    head = f"Here's the content of {path} with line numbers:\n"
    assert await said(files, "view", path=path) == f"{head}     1\tone\n     2\ttwo"
    assert await said(files, "view", path=path, view_range=[2, -1]) == f"{head}     2\ttwo"
    edited = await said(files, "str_replace", path=path, old_str="two", new_str="2\n3")
    assert edited == "The memory file has been edited.\n     1\tone\n     2\t2\n     3\t3"
    edit = f"The file {path} has been edited."
    assert await said(files, "insert", path=path, insert_line=0, insert_text="top\n") == edit
    assert await said(files, "insert", path=path, insert_line=4, insert_text="end") == edit
    assert (await files.adownload_files([path]))[0].content == b"top\none\n2\n3\nend\n"
    moved = f"Successfully renamed {path} to /memories/b/c.md"
    assert await said(files, "rename", old_path=path, new_path="/memories/b/c.md") == moved
    assert await said(files, "delete", path="/memories/b") == "Successfully deleted /memories/b"


MISSING = "The path /memories/n does not exist"
TWICE = "Multiple occurrences of old_str `x` in lines: 1, 2. Please ensure it is unique"
FAILING: list[tuple[str, dict[str, Any], str]] = [
    ("view", {"path": "/memories/n"}, f"{MISSING}. Please provide a valid path."),
    ("view", {"path": "/memories/bin"}, "Error: /memories/bin is not a text file."),
    ("create", {"path": "/memories/a", "file_text": ""}, "Error: File /memories/a already exists"),
    ("create", {"path": "/memories/n"}, "Error: create needs file_text. Call it again with all arguments."),
    (
        "create", {"path": "/memories/n/", "file_text": ""},
        "Error: /memories/n/ is a directory. Name a path such as /memories/notes.md.",
    ),
    (
        "str_replace", {"path": "/memories/a", "old_str": "z", "new_str": "y"},
        "No replacement was performed, old_str `z` did not appear verbatim in /memories/a.",
    ),
    (
        "str_replace", {"path": "/memories/a", "old_str": "x", "new_str": "y"},
        f"No replacement was performed. {TWICE}",
    ),
    (
        "str_replace", {"path": "/memories/n", "old_str": "x"},
        f"Error: {MISSING}. Please provide a valid path.",
    ),
    (
        "str_replace", {"path": "/memories/a", "old_str": ""},
        "Error: old_str is empty. Give the exact text to replace, or use insert.",
    ),
    (
        "insert", {"path": "/memories/a", "insert_line": 3, "insert_text": "x"},
        "Error: Invalid `insert_line` parameter: 3. It should be within the range of lines of the file: [0, 2]",
    ),
    ("delete", {"path": "/memories/n"}, f"Error: {MISSING}"),
    ("delete", {"path": "/memories/"}, "Error: Cannot delete the /memories directory itself"),
    ("rename", {"old_path": "/memories/n", "new_path": "/memories/o"}, f"Error: {MISSING}"),
    (
        "rename", {"old_path": "/memories/a", "new_path": "/memories/d"},
        "Error: The destination /memories/d already exists",
    ),
]  # fmt: skip


async def test_failures_answer_as_documented() -> None:
    before = [("/memories/a", b"x\nx\n"), ("/memories/d/e", b"e"), ("/memories/bin", b"\0")]
    for command, arguments, text in FAILING:
        files = MemoryBackend()
        await files.aupload_files(before)
        message = await run(files, command, **arguments)
        assert (message.status, message.text) == ("error", text)
        found = await files.adownload_files([path for path, _ in before])
        assert [(each.path, each.content) for each in found] == before


async def test_at_most_twenty_lines_of_many_occurrences_are_named() -> None:
    files = MemoryBackend()
    await files.awrite("/memories/a", "x\n" * 30)
    lines = ", ".join(str(number) for number in range(1, 21))
    told = await said(files, "str_replace", path="/memories/a", old_str="x", new_str="y")
    assert f"in lines: {lines}. Please" in told


OUTSIDE = [
    *("/", "/etc/passwd", "/memories/../secret", "/memoriesX/a", "secret", "~/a", "/memories/./../secret"),
    "/MEMORIES/a",
]


async def test_no_path_leads_outside() -> None:
    kept = {"/secret": b"s", "/memories/a": b"a", "/memoriesX/a": b"s", "/MEMORIES/a": b"s"}
    for path in OUTSIDE:
        files = MemoryBackend()
        await files.aupload_files([*kept.items()])
        for command, arguments in (
            ("view", {"path": path}),
            ("create", {"path": path, "file_text": "x"}),
            ("str_replace", {"path": path, "old_str": "s", "new_str": "x"}),
            ("insert", {"path": path, "insert_line": 0, "insert_text": "x"}),
            ("delete", {"path": path}),
            ("rename", {"old_path": path, "new_path": "/memories/b"}),
            ("rename", {"old_path": "/memories/a", "new_path": path}),
        ):
            assert (await run(files, command, **arguments)).status == "error", (command, path)
        assert {each.path: each.content for each in await files.adownload_files([*kept])} == kept


@pytest.fixture
def linked(tmp_path: Path) -> FilesystemBackend:
    """Files with links that lead out of `/memories`."""
    for name in ("out", "memories"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "secret").write_text("s")
    (tmp_path / "memories" / "directory").symlink_to("../out")
    (tmp_path / "memories" / "file").symlink_to("../out/secret")
    return FilesystemBackend(tmp_path)


async def test_no_link_leads_outside(linked: FilesystemBackend) -> None:
    files = linked
    for path in ("/memories/directory", "/memories/directory/secret", "/memories/file"):
        assert "permission denied" in await said(files, "view", path=path)
        assert (await run(files, "insert", path=path, insert_line=0, insert_text="x")).status == "error"
    assert "secret" not in await said(files, "view", path="/memories")
    assert (await files.adownload_files(["/out/secret"]))[0].content == b"s"


async def test_inserts_at_once_are_all_kept(files: BackendProtocol) -> None:
    await files.aupload_files([("/memories/a", b"\xef\xbb\xbfend\r\n")])
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(partial(run, files, "insert", path="/memories/a", insert_line=0, insert_text=str(number)))
    content = (await files.adownload_files(["/memories/a"]))[0].content or b""
    assert content.startswith(b"\xef\xbb\xbf")
    assert sorted(content.decode("utf-8-sig").split("\r\n")) == ["", "0", "1", "2", "3", "end"]


def test_lines_are_inserted_whole() -> None:
    assert insert_lines("", 0, "x") == "x\n"
    assert insert_lines("a", 1, "b") == "a\nb\n"
    assert insert_lines("a", 0, "b") == "b\na"
    assert insert_lines("a\n\n", 2, "b\n") == "a\n\nb\n"


async def test_long_files_are_shown_in_parts() -> None:
    files = MemoryBackend()
    await files.awrite("/memories/a", "line\x1b\n" * 10_000)
    shown = await said(files, "view", path="/memories/a")
    assert len(shown) < 61_000
    assert "\x1b" not in shown
    assert shown.splitlines()[-1].startswith("[Lines 1 to ")
    following = int(shown.rpartition("view_range [")[2].partition(",")[0])
    assert f"\n{following:6}\tline" in await said(files, "view", path="/memories/a", view_range=[following, -1])


async def test_a_line_that_is_too_long_is_cut_and_told_so() -> None:
    for character in ("x", "\x01"):
        files = MemoryBackend()
        await files.awrite("/memories/a", f"{character * 100_000}\nlast\n")
        shown = await said(files, "view", path="/memories/a")
        assert len(shown) <= 60_000
        assert shown.endswith("[Line 1 is cut: it has 100,000 characters. View on with view_range [2, -1]]")
        assert (await said(files, "view", path="/memories/a", view_range=[2, -1])).endswith("     2\tlast")


def test_the_tool_is_an_option_of_the_middleware_and_under_its_rules() -> None:
    rules = [FilesystemPermission(["write"], ["/memories/locked/**"], "deny")]
    middleware = FilesystemMiddleware(MemoryBackend(), permissions=rules, model_tools=["memory"])
    [tool] = [tool for tool in middleware.tools if tool.name == "memory"]
    create = {"command": "create", "path": "/memories/locked/a", "file_text": "x"}
    assert "permission denied" in tool.invoke(create)
    assert "successfully" in tool.invoke({**create, "path": "/memories/a"})
    assert tool.extras == {"provider_tool_definition": {"type": "memory_20250818", "name": "memory"}}


async def test_the_function_for_other_frameworks_returns_errors_as_text() -> None:
    memory = memory_function(MemoryBackend())
    assert await memory("create", path="/memories/a", file_text="x") == "File created successfully at: /memories/a"
    assert "is not under /memories. Name a path such as" in await memory("view", path="/etc")
    assert "'..' is not allowed; name the path from '/'. Name a path such as" in await memory("view", path="/../a")
    assert "/memories is a directory. Name a path such as" in await memory("create", path="/memories", file_text="")
