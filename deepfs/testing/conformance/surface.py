"""Common properties of all operations: the form of results, declared capabilities, the names of arguments."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from deepfs.backends.protocol import BackendProtocol, Capabilities, supports_execute
from deepfs.errors import ErrorCode, NotSupportedError
from deepfs.testing.expect import failed, only, succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Record,
    Result,
    WriteResult,
)

__all__ = ["ReadOnlySurface", "SurfaceConformance"]

_PAYLOADS: Final[Mapping[type[Result], str]] = {
    LsResult: "entries",
    ReadResult: "file_data",
    ReadRawResult: "data",
    WriteResult: "path",
    EditResult: "occurrences",
    GlobResult: "matches",
    GrepResult: "matches",
    DeleteResult: "path",
}


async def _of_every_kind(backend: BackendProtocol) -> Mapping[str, tuple[type[Result], Any]]:
    """Each operation's declared result type, and the result that it returned."""
    return {
        "write": (WriteResult, await backend.awrite("/new/a.txt", "one")),
        "ls": (LsResult, await backend.als("/new")),
        "read": (ReadResult, await backend.aread("/new/a.txt")),
        "read_raw": (ReadRawResult, await backend.aread_raw("/new/a.txt")),
        "edit": (EditResult, await backend.aedit("/new/a.txt", "one", "two")),
        "glob": (GlobResult, await backend.aglob("*.txt")),
        "grep": (GrepResult, await backend.agrep("two")),
        "copy": (WriteResult, await backend.acopy("/new/a.txt", "/new/b.txt")),
        "move": (WriteResult, await backend.amove("/new/b.txt", "/new/c.txt")),
        "delete": (DeleteResult, await backend.adelete("/new/c.txt")),
    }


class ReadOnlySurface(BackendSuite):
    """The form of the results of reading operations."""

    async def test_records_can_be_read_as_objects_and_as_mappings(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "one\n"})
        listed = succeeded(await backend.als("/dir")).entries or []
        globbed = succeeded(await backend.aglob("*.txt")).matches or []
        grepped = succeeded(await backend.agrep("one")).matches or []
        read = succeeded(await backend.aread("/dir/a.txt")).file_data
        raw = succeeded(await backend.aread_raw("/dir/a.txt")).data
        records: list[Any] = [*listed, *globbed, *grepped, read, raw]
        assert len(records) == 5
        for record in records:
            assert isinstance(record, Record)
            assert isinstance(record, Mapping)
            fields = dict(record)
            assert record == fields
            assert {key: getattr(record, key) for key in fields} == fields
            assert None not in fields.values(), "what is not set is not there"
            assert record.get("no such key", 1) == 1

    async def test_capabilities_are_declared_data(self, backend: BackendProtocol) -> None:
        assert isinstance(backend.capabilities, Capabilities)
        assert all(isinstance(getattr(backend.capabilities, name), bool) for name in Capabilities.__struct_fields__)
        assert supports_execute(backend) is backend.capabilities.executes

    async def test_commands_run_only_if_the_capability_is_declared(self, backend: BackendProtocol) -> None:
        execute: Any = getattr(backend, "aexecute", None)
        if supports_execute(backend):
            response = await execute("echo out; exit 3")
            assert (response.output.strip(), response.exit_code) == ("out", 3)
        elif execute is not None:
            with pytest.raises(NotSupportedError):
                await execute("echo out")


class SurfaceConformance(ReadOnlySurface):
    """Results and records have the declared types, and records can be read as objects and as mappings."""

    async def test_every_operation_returns_its_result(self, backend: BackendProtocol) -> None:
        for operation, (kind, result) in (await _of_every_kind(backend)).items():
            assert type(result) is kind, operation
            succeeded(result)
            assert getattr(result, _PAYLOADS[kind]) is not None, f"{operation} has a payload"

    async def test_failures_are_results_too(self, backend: BackendProtocol) -> None:
        for result in (
            await backend.als("/none"),
            await backend.aread("/none"),
            await backend.aread_raw("/none"),
            await backend.aedit("/none", "a", "b"),
            await backend.aglob("*", "/none"),
            await backend.agrep("a", "/none"),
            await backend.adelete("/none"),
            await backend.amove("/none", "/new"),
            await backend.acopy("/none", "/new"),
        ):
            failed(result, ErrorCode.FILE_NOT_FOUND)
            assert isinstance(result.code, ErrorCode)
            assert result.code == "file_not_found"

    async def test_the_error_names_the_path_that_was_given(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/none.txt", "/dir/none.txt", "/far/away/none.txt"):
            for result in (await backend.aread(path), await backend.aedit(path, "a", "b"), await backend.adelete(path)):
                assert result.error == f"Error: File '{path}' not found"

    async def test_batches_return_their_responses(self, backend: BackendProtocol) -> None:
        upload = only(await backend.aupload_files([("/a.txt", b"a")]))
        download = only(await backend.adownload_files(["/a.txt"]))
        assert isinstance(upload, FileUploadResponse)
        assert isinstance(download, FileDownloadResponse)

    async def test_arguments_have_the_names_of_the_protocol(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite(path="/a.txt", content="one", overwrite=False, if_match=None))
        succeeded(await backend.aedit(path="/a.txt", old="one", new="two", replace_all=False, if_match=None))
        succeeded(await backend.aread(path="/a.txt", offset=0, limit=10))
        succeeded(await backend.aread_raw(path="/a.txt"))
        succeeded(await backend.als(path="/"))
        succeeded(await backend.aglob(pattern="*", path="/"))
        succeeded(
            await backend.agrep(
                pattern="two",
                path="/",
                glob="*",
                regex=False,
                ignore_case=False,
                context_lines=0,
                max_count=None,
            )
        )
        succeeded(await backend.acopy(src="/a.txt", dst="/b.txt", overwrite=False))
        succeeded(await backend.amove(src="/b.txt", dst="/c.txt", overwrite=False))
        succeeded(await backend.adelete(path="/c.txt"))
        assert len(await backend.aupload_files(files=[("/a.txt", b"a")])) == 1
        assert len(await backend.adownload_files(paths=["/a.txt"])) == 1

    async def test_arguments_may_have_the_names_of_deepagents(self, backend: BackendProtocol) -> None:
        call: Any = backend
        succeeded(await call.awrite(file_path="/a.txt", content="one"))
        succeeded(await call.aedit(file_path="/a.txt", old_string="one", new_string="two", replace_all=False))
        succeeded(await call.aread(file_path="/a.txt", offset=0, limit=10))
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_durable_files_outlive_the_backend_object(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        succeeded(await backend.awrite("/a.txt", "one"))
        succeeded(await second_backend.aread("/a.txt"))
        assert second_backend.capabilities == backend.capabilities
