"""A backend written for deepagents with the import renamed: `write` creates files here, it does not replace them."""

import asyncio
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    EditResult,
    ErrorCode,
    GlobResult,
    GrepResult,
    LsResult,
    MemoryBackend,
    ReadResult,
    WriteResult,
    adapt_backend_protocol,
)
from deepfs.compat.utils import create_file_data, grep_matches_from_files, slice_read_response
from deepfs.policy import WrapperBackend


class Table:
    """The operations of deepagents 0.7 over a dict of rows; `write` replaces."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.writes: list[str] = []

    def ls(self, path: str) -> Any:
        return LsResult(entries=[{"path": each, "is_dir": False} for each in sorted(self.rows)])  # type: ignore[list-item]

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        if file_path not in self.rows:
            return ReadResult(error=f"File '{file_path}' not found")
        return slice_read_response(self.rows[file_path], offset, limit)

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> GrepResult:
        return grep_matches_from_files(self.rows, pattern, path, glob)

    def glob(self, pattern: str, path: str = "/") -> Any:
        return GlobResult(matches=[{"path": each} for each in sorted(self.rows)])  # type: ignore[list-item]

    def write(self, file_path: str, content: str) -> WriteResult:
        self.writes.append(file_path)
        self.rows[file_path] = create_file_data(content)
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return EditResult(error="read only")


class Renamed(Table, BackendProtocol):
    """The same backend after `s/deepagents/deepfs/`."""


class InBody(BackendProtocol):
    __init__ = Table.__init__
    ls, read, grep, glob, write, edit = (
        Table.ls, Table.read, Table.grep, Table.glob, Table.write, Table.edit,
    )  # fmt: skip


class Native(BackendProtocol):
    """Has an async method that runs the sync one in a thread, as programs for deepagents do."""

    __init__ = Table.__init__
    ls, read, grep, glob, write, edit = (
        Table.ls, Table.read, Table.grep, Table.glob, Table.write, Table.edit,
    )  # fmt: skip

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await asyncio.get_running_loop().run_in_executor(None, self.write, file_path, content)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Renamed, InBody, Native])
async def test_a_write_only_creates(kind: type[Any], anyio_backend_name: str) -> None:
    table = kind()
    in_sync = await anyio.to_thread.run_sync(
        lambda: [
            table.write(file_path="/a.txt", content="first\n").code,
            table.write("/a.txt", "second\n").code,
            table.write(path="/a.txt", content="second\n").code,
            table.write("/a.txt", "third\n", overwrite=True).code,
        ]
    )
    assert in_sync == [None, ErrorCode.ALREADY_EXISTS, ErrorCode.ALREADY_EXISTS, None]
    assert (table.rows["/a.txt"]["content"], table.writes) == ("third\n", ["/a.txt", "/a.txt"])
    if kind is Native and anyio_backend_name == "trio":
        return  # Its `awrite` needs asyncio.
    for backend in (table, CompositeBackend(MemoryBackend(), {"/t/": table}), WrapperBackend(table)):
        path = "/t/a.txt" if isinstance(backend, CompositeBackend) else "/a.txt"
        table.rows.clear()
        assert (await backend.awrite(path, "first\n")).path == path
        again = await backend.awrite(path, "second\n")
        assert (again.code, "already exists" in str(again.error)) == (ErrorCode.ALREADY_EXISTS, True)
        assert table.rows["/a.txt"]["content"] == "first\n"
        assert (await backend.awrite(path, "third\n", overwrite=True)).ok
        assert table.rows["/a.txt"]["content"] == "third\n"


@pytest.mark.anyio
async def test_a_sync_write_only_creates_while_an_async_write_runs() -> None:
    started, goes_on = anyio.Event(), anyio.Event()

    class Slow(BackendProtocol):
        __init__ = Table.__init__
        ls, read, grep, glob, write, edit = (
            Table.ls, Table.read, Table.grep, Table.glob, Table.write, Table.edit,
        )  # fmt: skip

        async def awrite(self, file_path: str, content: str) -> WriteResult:
            started.set()
            await goes_on.wait()
            return self.write(file_path, f"{content}!")

    backend = Slow()
    backend.rows["/a.txt"] = create_file_data("there\n")
    outcomes: list[str | None] = []

    async def replace() -> None:
        outcomes.append((await backend.awrite("/a.txt", "new\n", overwrite=True)).code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replace)
        await started.wait()
        refused = await anyio.to_thread.run_sync(backend.write, "/a.txt", "unasked\n")
        assert refused.code is ErrorCode.ALREADY_EXISTS
        assert backend.rows["/a.txt"]["content"] == "there\n"
        goes_on.set()
    assert (outcomes, backend.rows["/a.txt"]["content"]) == ([None], "new\n!")


class Unreadable(Table):
    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return ReadResult(error=f"Error: File '{file_path}' {self.error}")


class UnreadableRenamed(Unreadable, BackendProtocol):
    pass


def test_unreadable_files_are_not_replaced() -> None:
    errors: dict[str, ErrorCode | None] = {
        "is too large": ErrorCode.ALREADY_EXISTS,
        "timed out": ErrorCode.TIMEOUT,
        "permission denied": ErrorCode.PERMISSION_DENIED,
        "not found": None,
    }
    for error, code in errors.items():
        for backend in (UnreadableRenamed(error), adapt_backend_protocol(Unreadable(error))):  # type: ignore[arg-type]
            table = getattr(backend, "adapted", backend)
            assert backend.write("/a.txt", "x").code is code
            assert table.writes == ([] if code else ["/a.txt"])
            assert backend.write("/a.txt", "x", overwrite=True).ok
