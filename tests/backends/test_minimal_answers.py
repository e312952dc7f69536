"""Classes that answer with what the protocol of deepagents has, and no more: what is absent is not known."""

from typing import Any

import pytest
from langchain_core.tools import ToolException

from deepfs import (
    BackendProtocol,
    SandboxBackendProtocol,
)
from deepfs.errors import NotSupportedError
from deepfs.middleware.tools import ToolLimits, file_tools
from deepfs.types import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

pytestmark = pytest.mark.anyio

TEXT = "one\ntwo\nthree\nfour\n"


class Minimal(BackendProtocol):
    """A backend after the outlines in the documentation of deepagents."""

    def __init__(self) -> None:
        self.texts = {"/a.md": TEXT, "/empty.md": "", "/docs/b.md": "two\n"}

    def ls(self, path: str) -> Any:
        return LsResult(entries=[{"path": each} for each in self.texts if each.startswith(path)])  # type: ignore[misc]

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        if file_path not in self.texts:
            return ReadResult(error=f"Error: File {file_path!r} not found")
        lines = self.texts[file_path].splitlines(keepends=True)[offset : offset + limit]
        return ReadResult(file_data={"content": "".join(lines), "encoding": "utf-8"})  # type: ignore[arg-type]

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        found = [
            {"path": each, "line": number, "text": line}
            for each, text in self.texts.items()
            for number, line in enumerate(text.splitlines(keepends=True), 1)
            if pattern in line
        ]
        return GrepResult(matches=found)  # type: ignore[arg-type]

    def glob(self, pattern: str, path: str = "/") -> Any:
        return GlobResult(matches=[{"path": each.lstrip("/")} for each in self.texts])  # type: ignore[misc]

    def write(self, file_path: str, content: str) -> Any:
        self.texts[file_path] = content
        return WriteResult()

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        if old_string not in self.texts.get(file_path, ""):
            return EditResult(error="String not found in file")
        self.texts[file_path] = self.texts[file_path].replace(old_string, new_string)
        return EditResult()

    def delete(self, file_path: str) -> Any:
        del self.texts[file_path]
        return DeleteResult()


class Native(BackendProtocol):
    """The same with async methods."""

    def __init__(self) -> None:
        self.same = Minimal()

    async def als(self, path: str) -> Any:
        return Minimal.ls.__wrapped__(self.same, path)  # type: ignore[attr-defined]

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return Minimal.read.__wrapped__(self.same, file_path, offset, limit)  # type: ignore[attr-defined]

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        return Minimal.grep.__wrapped__(self.same, pattern, path, glob)  # type: ignore[attr-defined]

    async def aglob(self, pattern: str, path: str = "/") -> Any:
        return Minimal.glob.__wrapped__(self.same, pattern, path)  # type: ignore[attr-defined]


async def shown(backend: BackendProtocol, name: str, **given: Any) -> Any:
    """What a model is shown for a call of a tool."""
    [tool] = [each for each in file_tools(backend, ToolLimits()) if each.name == name]
    try:
        return (await tool.call(**dict(tool.arguments(**given)))).content
    except ToolException as error:
        return str(error)


async def test_neither_content_nor_error_is_an_error() -> None:
    class Nothing(BackendProtocol):
        def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
            return ReadResult()

        def ls(self, path: str) -> Any:
            return LsResult()

        def download_files(self, paths: list[str]) -> Any:
            return [FileDownloadResponse(paths[0]), FileDownloadResponse(paths[1], error="It was not found")]

        def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
            return [FileUploadResponse(files[0][0])]

    backend = Nothing()
    assert (await backend.aread("/x")).code == "backend_error"
    assert (await backend.als("/")).entries == []
    codes = [each.error for each in await backend.adownload_files(["/x", "/y", "/z"])]
    assert codes == ["backend_error", "file_not_found", "backend_error"]
    assert [each.error for each in await backend.aupload_files([("/x", b""), ("/y", b"")])] == [None, "backend_error"]


@pytest.mark.parametrize("make", [Minimal, Native])
async def test_listings_by_prefix_are_folded_to_children(make: type[BackendProtocol]) -> None:
    backend = make()
    assert (await backend.als("/")).entries == [
        {"path": "/a.md"},
        {"path": "/docs/", "is_dir": True},
        {"path": "/empty.md"},
    ]
    assert (await backend.als("/docs")).entries == [{"path": "/docs/b.md"}]
    assert (await backend.als("/doc")).entries == []
    assert (await backend.als("/a.md")).code == "not_a_directory"
    with pytest.raises(NotSupportedError):
        await Native().alist_tree("/", deleting=True)


async def test_a_listing_without_end_is_an_error() -> None:
    class Endless(Minimal):
        def ls(self, path: str) -> Any:
            return LsResult(entries=[{"path": name, "is_dir": True} for name in ("a", "b")])  # type: ignore[misc]

    copied = await Endless().acopy("/a", "/c")
    assert (copied.code, "no end" in (copied.error or "")) == ("backend_error", True)


async def test_a_sandbox_may_only_execute_and_take_no_timeout() -> None:
    class Box(SandboxBackendProtocol):
        def execute(self, command: str) -> Any:
            return ExecuteResponse(f"ran {command}")

    box = Box()
    assert box.id == box.id
    assert (await box.aexecute("x")).output == "ran x"
    assert (await box.aread("/x")).code == "unsupported"
    assert "command did not end" not in await shown(box, "execute", command="x")
    assert "has no parameter 'timeout'" in await shown(box, "execute", command="x", timeout=5)


async def test_a_write_replaces_nothing_where_no_read_can_tell_what_is_there() -> None:
    class WriteOnly(BackendProtocol):
        def __init__(self) -> None:
            self.written: list[str] = []

        def write(self, file_path: str, content: str) -> Any:
            self.written.append(file_path)
            return WriteResult(path=file_path)

    backend = WriteOnly()
    assert (await backend.awrite("/a", "x")).code == "unsupported"
    assert (await backend.awrite("/a", "x", overwrite=True)).ok
    assert backend.written == ["/a"]
