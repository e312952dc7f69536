"""`apply_patch`: made whole or not at all, on every kind of backend, and without losing what others write."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from langchain_core.tools import ToolException

from deepfs import (
    BackendProtocol,
    FilesystemBackend,
    FilesystemMiddleware,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    SqliteBackend,
    WriteResult,
    run_sync,
)
from deepfs.errors import BackendError, ConflictError
from deepfs.middleware import PatchEditor, apply_patch_tool
from deepfs.types import failure

pytestmark = pytest.mark.anyio

KINDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda root: MemoryBackend(),
    "disk": FilesystemBackend,
    "sqlite": lambda root: SqliteBackend(root / "files"),
}


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendProtocol]:
    files = KINDS[request.param](tmp_path)
    yield files
    run_sync(files.aclose)


async def put(files: BackendProtocol, **contents: bytes) -> None:
    outcomes = await files.aupload_files([(f"/{name}", content) for name, content in contents.items()])
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)


async def tree(files: BackendProtocol) -> dict[str, bytes | None]:
    found = await files.aglob("**/*")
    paths = [info.path for info in found.matches or ()]
    return {each.path: each.content for each in await files.adownload_files(paths)}


async def patched(files: BackendProtocol, *lines: str) -> Any:
    """The result of the tool. Its coroutine is called, since tools of LangChain themselves run on asyncio only."""
    tool: Any = apply_patch_tool(files)
    try:
        return SimpleNamespace(status="success", text=await tool.coroutine(input="\n".join(lines)))
    except ToolException as error:
        return SimpleNamespace(status="error", text=str(error))


BEGIN, END = "*** Begin Patch", "*** End Patch"


async def test_each_file_becomes_what_the_patch_says(files: BackendProtocol) -> None:
    await put(files, a=b"\xef\xbb\xbfone\r\ntwo\r\n", b=b"x", c=b"old\n", d=b"\x89PNG\0")
    message = await patched(
        files, BEGIN, "*** Update File: a", " one", "-two", "+2", "+3", "*** Add File: /n/e", "+new",
        "*** Delete File: /b", "*** Update File: c", "*** Move to: /n/c", "-old", "+moved",
        "*** Update File: /d", "*** Move to: /n/d", END,
    )  # fmt: skip
    said = ["Updated /a", "Added /n/e", "Deleted /b", "Updated /c, now /n/c", "Updated /d, now /n/d"]
    assert (message.status, message.text.split("\n")) == ("success", said)
    assert await tree(files) == {
        "/a": b"\xef\xbb\xbfone\r\n2\r\n3\r\n", "/n/c": b"moved\n", "/n/d": b"\x89PNG\0", "/n/e": b"new\n",
    }  # fmt: skip


async def test_nothing_changes_unless_the_whole_patch_fits(files: BackendProtocol) -> None:
    await put(files, a=b"one\n", b=b"\0binary", c=b"c\n")
    before = await tree(files)
    message = await patched(
        files, BEGIN, "*** Update File: /a", "-one", "+1", "*** Update File: /b", "-x", "+y", "*** Add File: /c", "+x",
        "*** Update File: /c", "-nine", "+9", "*** Delete File: /none", "*** Delete File: /../x", END,
    )  # fmt: skip
    assert message.status == "error"
    assert [row for row in ("/b is binary", "/c is there already", "'nine' is not in /c",
                            "'/none' not found. Check the path.", "'..'")
            if row not in message.text] == []  # fmt: skip
    assert await tree(files) == before
    mistyped = await patched(files, BEGIN, "*** Update File: /aa/x", "-one", "+1", END)
    assert mistyped.text.endswith("File '/aa/x' not found. Did you mean /a?")
    twice = await patched(files, BEGIN, "*** Update File: /a", "-one", "+1", "*** Delete File: a", END)
    assert "named 2 times" in twice.text
    replaced = await patched(files, BEGIN, "*** Delete File: /a", "*** Add File: /a", "+2", END)
    assert "/a is named 2 times: give all its changes under one header, or in several patches." in replaced.text
    assert await tree(files) == before


def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to("file")
    message = run_sync(
        patched, FilesystemBackend(tmp_path), BEGIN, "*** Update File: /file", "-one", "+1",
        "*** Update File: /link", "-two", "+2", END,
    )  # fmt: skip
    assert "/file is named 2 times, also as /link: give all its changes under one header" in message.text
    assert (tmp_path / "file").read_text() == "one\ntwo\n"


async def test_what_was_changed_is_restored_where_rules_deny_the_rest(files: BackendProtocol) -> None:
    await put(files, a=b"\xef\xbb\xbfone\n", b=b"\0binary", locked=b"x\n", m=b"m\n")
    before = await tree(files)
    ruled = PermissionedBackend(files, [FilesystemPermission(["write"], ["/locked"], "deny")])
    message = await patched(
        ruled, BEGIN, "*** Update File: /a", "-one", "+1", "*** Add File: /n", "+n", "*** Update File: /m",
        "*** Move to: /m2", "-m", "+M", "*** Delete File: /b", "*** Delete File: /locked", END,
    )  # fmt: skip
    assert message.status == "error"
    assert "permission denied for write on /locked. No file is changed. Do not try again;" in message.text
    assert await tree(files) == before


async def test_a_file_that_rules_hide_is_not_replaced_and_told_in_words_of_patches(files: BackendProtocol) -> None:
    await put(files, h=b"hidden\n")
    ruled = PermissionedBackend(files, [FilesystemPermission(["read"], ["/h"], "deny")])
    message = await patched(ruled, BEGIN, "*** Add File: /n", "+n", "*** Add File: /h", "+x", END)
    assert message.text == (
        "Error: The patch failed at /h: /h is there already. No file is changed. "
        "Choose another path, or update that file."
    )
    assert await tree(files) == {"/h": b"hidden\n"}


class Meddled(MemoryBackend):
    """A backend in which another writer changes a file during a patch, before the first deletion."""

    fails: bool = True

    def __init__(self, path: str, content: str) -> None:
        super().__init__()
        self._other = path, content

    async def adelete(self, path: str, *, if_match: str | None = None) -> Any:
        if self.fails:
            self.fails = False
            await super().awrite(*self._other, overwrite=True)
            return failure(WriteResult, BackendError(path, "broken"))
        return await super().adelete(path, if_match=if_match)


async def test_what_others_changed_meanwhile_is_not_restored_but_named() -> None:
    files = Meddled("/a", "theirs\n")
    await put(files, a=b"one\n", b=b"b\n", c=b"c\n")
    files.fails = True
    message = await patched(
        files, BEGIN, "*** Update File: /a", "-one", "+1", "*** Update File: /c", "-c", "+C", "*** Delete File: /b", END
    )
    assert message.status == "error"
    assert "The patch failed at /b: " in message.text
    assert "Could not be restored: /a (" in message.text
    assert await tree(files) == {"/a": b"theirs\n", "/b": b"b\n", "/c": b"c\n"}


class Racing(MemoryBackend):
    """A backend in which another writer adds a line before each of the first writes."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self._races = races

    async def awrite(self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None) -> Any:
        if if_match is not None and self._races:
            self._races -= 1
            await super().aedit(path, "end", "new\nend")
            return failure(WriteResult, ConflictError(path))
        return await super().awrite(path, content, overwrite=overwrite, if_match=if_match)


@pytest.mark.parametrize(("races", "is_made"), [(2, True), (99, False)])
async def test_a_patch_is_planned_anew_on_a_conflict(races: int, is_made: bool) -> None:
    files = Racing(races)
    await put(files, a=b"one\nend\n")
    message = await patched(files, BEGIN, "*** Add File: /n", "+n", "*** Update File: /a", "-one", "+1", END)
    content = (await tree(files))["/a"]
    assert message.status == ("success" if is_made else "error")
    told = "The patch failed at /a: /a changed meanwhile. No file is changed. Read the file again,"
    assert is_made or message.text.startswith(f"Error: {told}")
    assert (await files.aread("/n")).ok is is_made
    assert content == (b"1\nnew\nnew\nend\n" if is_made else b"one\n" + b"new\n" * 5 + b"end\n")


async def test_parallel_patches_lose_no_line(files: BackendProtocol) -> None:
    await put(files, a=b"".join(b"%d\n" % number for number in range(4)))
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            lines = [BEGIN, "*** Update File: /a", f"-{number}", f"+changed {number}", END]
            tasks.start_soon(partial(patched, files, *lines))
    assert await tree(files) == {"/a": b"".join(b"changed %d\n" % number for number in range(4))}


async def test_a_cancelled_patch_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    files = FilesystemBackend(tmp_path)
    await put(files, a=b"one\n", b=b"two\n")
    with anyio.move_on_after(0.002):
        await patched(files, BEGIN, "*** Update File: /a", "-one", "+1", "*** Update File: /b", "-two", "+2", END)
    assert await tree(files) in ({"/a": b"one\n", "/b": b"two\n"}, {"/a": b"1\n", "/b": b"2\n"})


async def test_a_class_that_forbids_moves_is_not_bypassed() -> None:
    class Guarded(MemoryBackend):
        async def awrite(self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None) -> Any:
            return await super().awrite(path, content, overwrite=overwrite, if_match=if_match)

    files = Guarded()
    await put(files, a=b"a\n")
    message = await patched(files, BEGIN, "*** Update File: /a", "*** Move to: /b", "-a", "+b", END)
    assert "Files cannot be moved here" in message.text
    assert await tree(files) == {"/a": b"a\n"}


def test_the_tool_is_an_option_of_the_middleware_and_under_its_rules() -> None:
    files = MemoryBackend()
    rules = [FilesystemPermission(["write"], ["/locked/**"], "deny")]
    middleware = FilesystemMiddleware(files, model_tools=["apply_patch"]).with_permissions(rules)
    [tool] = [tool for tool in middleware.tools if tool.name == "apply_patch"]
    refused = tool.invoke({"input": f"{BEGIN}\n*** Add File: /locked/a\n+x\n{END}"})
    assert "permission denied" in refused
    assert tool.invoke({"input": f"{BEGIN}\n*** Add File: /b\n+x\n{END}"}) == "Added /b"
    assert [tool.name for tool in FilesystemMiddleware(files).tools if tool.name == "apply_patch"] == []
    with pytest.raises(ValueError, match="no such tool: patch; model_tools are apply_patch, memory"):
        FilesystemMiddleware(files, model_tools=["patch"])  # type: ignore[list-item]


# --- the editor of the OpenAI Agents SDK -----------------------------------------------------------------------------


@dataclass
class Operation:
    """An operation as the SDK makes it."""

    type: str
    path: str
    diff: str | None = None
    move_to: str | None = None


async def test_the_editor_makes_the_changes_of_operations(files: BackendProtocol) -> None:
    editor = PatchEditor(files)
    assert await editor.create_file(Operation("create_file", "a.py", "+one\n+two\n")) == "Added /a.py"
    update = Operation("update_file", "a.py", "@@\n one\n-two\n+2\n")
    assert await editor.update_file(update) == "Updated /a.py"
    with pytest.raises(ValueError, match=r"'two' is not in /a\.py"):
        await editor.update_file(update)
    assert await editor.update_file(Operation("update_file", "/a.py", move_to="/b.py")) == "Updated /a.py, now /b.py"
    assert await tree(files) == {"/b.py": b"one\n2\n"}
    assert await editor.delete_file(Operation("delete_file", "b.py")) == "Deleted /b.py"
    with pytest.raises(ValueError, match="not found"):
        await editor.delete_file(Operation("delete_file", "b.py"))
    with pytest.raises(ValueError, match="no changes"):
        await editor.update_file(Operation("update_file", "b.py"))
