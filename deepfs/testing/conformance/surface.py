"""The form of all operations: results, names of arguments, batches and streams, and the sync half."""

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import pytest
from msgspec import to_builtins

from deepfs.backends.protocol import BackendProtocol, Capabilities, supports_execute
from deepfs.errors import DeepFSError, ErrorCode, NotSupportedError
from deepfs.sync import OPERATIONS
from deepfs.testing.suite import BackendSuite, assert_failed, assert_ok, content_of, list_paths, only
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
    """Call each operation by the names of its arguments; its declared result type, and the result that it returned."""
    search: dict[str, Any] = {"regex": False, "ignore_case": False, "context_lines": 0, "max_count": None}
    edit: dict[str, Any] = {"old": "one", "new": "two", "replace_all": False, "if_match": None}
    return {
        "write": (WriteResult, await backend.awrite(path="/new/a.txt", content="one", overwrite=False, if_match=None)),
        "ls": (LsResult, await backend.als(path="/new")),
        "read": (ReadResult, await backend.aread(path="/new/a.txt", offset=0, limit=10)),
        "read_raw": (ReadRawResult, await backend.aread_raw(path="/new/a.txt")),
        "edit": (EditResult, await backend.aedit(path="/new/a.txt", **edit)),
        "glob": (GlobResult, await backend.aglob(pattern="*.txt", path="/")),
        "grep": (GrepResult, await backend.agrep(pattern="two", path="/", glob="*", **search)),
        "copy": (WriteResult, await backend.acopy(src="/new/a.txt", dst="/new/b.txt", overwrite=False)),
        "move": (WriteResult, await backend.amove(src="/new/b.txt", dst="/new/c.txt", overwrite=False)),
        "delete": (DeleteResult, await backend.adelete(path="/new/c.txt")),
    }


class ReadOnlySurface(BackendSuite):
    """The form of the results of reading operations."""

    async def test_records_can_be_read_as_objects_and_as_mappings(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "one\n"})
        listed = assert_ok(await backend.als("/dir")).entries or []
        globbed = assert_ok(await backend.aglob("*.txt")).matches or []
        grepped = assert_ok(await backend.agrep("one")).matches or []
        read = assert_ok(await backend.aread("/dir/a.txt")).file_data
        raw = assert_ok(await backend.aread_raw("/dir/a.txt")).data
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
            assert_ok(result)
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
            assert_failed(result, ErrorCode.FILE_NOT_FOUND)
            assert isinstance(result.code, ErrorCode)
            assert result.code == "file_not_found"

    async def test_the_error_names_the_path_that_was_given(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/none.txt", "/dir/none.txt", "/far/away/none.txt"):
            for result in (await backend.aread(path), await backend.aedit(path, "a", "b"), await backend.adelete(path)):
                assert result.error == f"Error: File '{path}' not found"

    async def test_batches_return_their_responses(self, backend: BackendProtocol) -> None:
        upload = only(await backend.aupload_files(files=[("/a.txt", b"a")]))
        download = only(await backend.adownload_files(paths=["/a.txt"]))
        assert isinstance(upload, FileUploadResponse)
        assert isinstance(download, FileDownloadResponse)

    async def test_arguments_may_have_the_names_of_deepagents(self, backend: BackendProtocol) -> None:
        call: Any = backend
        assert_ok(await call.awrite(file_path="/a.txt", content="one"))
        assert_ok(await call.aedit(file_path="/a.txt", old_string="one", new_string="two", replace_all=False))
        assert_ok(await call.aread(file_path="/a.txt", offset=0, limit=10))
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_durable_files_outlive_the_backend_object(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        assert_ok(await backend.awrite("/a.txt", "one"))
        assert_ok(await second_backend.aread("/a.txt"))
        assert second_backend.capabilities == backend.capabilities


# --- uploads and downloads ---

_CONTENTS: Final = {
    "/up/empty": b"",
    "/up/text.txt": "héllo\r\nwörld\n".encode(),
    "/up/mark.txt": b"\xef\xbb\xbfwith a mark",
    "/up/nul.txt": b"a\x00b",
    "/up/latin.txt": "é".encode("latin-1"),
    "/up/all.bin": bytes(range(256)) * 40,
    "/up/name.png": b"text by its bytes",
    "/up/deep/er/x.pdf": b"%PDF-1.7\n\x00",
    "/up/surrogate.txt": b"\xed\xa0\x80",
    "/up/large.txt": b"0123456789abcdef\n" * 20_000,
}


class ReadOnlyTransfer(BackendSuite):
    """Downloads."""

    async def test_downloads_fetch_the_bytes(self, backend: BackendProtocol) -> None:
        await self.put(_CONTENTS)
        responses = await backend.adownload_files(list(_CONTENTS))
        assert [(item.path, item.content, item.error) for item in responses] == [
            (path, content, None) for path, content in _CONTENTS.items()
        ]

    async def test_streams_carry_the_bytes(self, backend: BackendProtocol) -> None:
        await self.put(_CONTENTS)
        for path, content in self.some(_CONTENTS.items()):
            assert b"".join([chunk async for chunk in backend.adownload_stream(path, chunk_size=1000)]) == content

    async def test_downloads_succeed_and_fail_one_by_one(self, backend: BackendProtocol) -> None:
        await self.put({"/a": "a", "/dir/b": b"\x00"})
        paths = ["/none", "/a", "/dir", "/../a", "/dir/b", "/a/beneath", "/", "/dir/none", "/a"]
        responses = await backend.adownload_files(paths)
        assert [(item.path, item.content, item.error) for item in responses] == [
            ("/none", None, "file_not_found"),
            ("/a", b"a", None),
            ("/dir", None, "is_directory"),
            ("/../a", None, "invalid_path"),
            ("/dir/b", b"\x00", None),
            ("/a/beneath", None, "file_not_found"),
            ("/", None, "is_directory"),
            ("/dir/none", None, "file_not_found"),
            ("/a", b"a", None),
        ]


class TransferConformance(ReadOnlyTransfer):
    """Any bytes can be uploaded and downloaded unchanged."""

    async def test_uploads_store_the_bytes(self, backend: BackendProtocol) -> None:
        responses = await backend.aupload_files(list(_CONTENTS.items()))
        assert [(item.path, item.error) for item in responses] == [(path, None) for path in _CONTENTS]
        assert {path: await self.raw_peek(path) for path in _CONTENTS} == _CONTENTS

    async def test_an_upload_overwrites(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a longer text", "/b.bin": b"\x00"})
        responses = await backend.aupload_files([("/a.txt", b"\x00"), ("/b.bin", b"text")])
        assert [item.error for item in responses] == [None, None]
        assert await self.raw_peek("/a.txt") == b"\x00"
        assert content_of(await backend.aread("/b.bin")) in ("text", "dGV4dA==")

    async def test_uploads_succeed_and_fail_one_by_one(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/x": "kept"})
        responses = await backend.aupload_files(
            [
                ("/new/a", b"a"),
                ("/../up", b"x"),
                ("/dir", b"x"),
                ("/new/b", b"b"),
                ("/", b"x"),
                ("~/home", b"x"),
                ("/file", b"replaced"),
            ]
        )
        assert [(item.path, item.error) for item in responses] == [
            ("/new/a", None),
            ("/../up", "invalid_path"),
            ("/dir", "is_directory"),
            ("/new/b", None),
            ("/", "is_directory"),
            ("~/home", "invalid_path"),
            ("/file", None),
        ]
        assert await self._peek_each("/new/a", "/new/b", "/file", "/dir/x") == [b"a", b"b", b"replaced", b"kept"]

    async def test_nothing_is_uploaded_beneath_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept"})
        responses = await backend.aupload_files([("/file/beneath", b"x"), ("/other", b"o")])
        assert responses[0].error in ("not_a_directory", "invalid_path")
        assert responses[1].error is None
        assert await self._peek_each("/file", "/file/beneath", "/other") == [b"kept", None, b"o"]

    async def test_uploads_of_a_batch_are_stored_in_order(self, backend: BackendProtocol) -> None:
        responses = await backend.aupload_files([("/a", b"first"), ("/d/x", b"x"), ("/a", b"second"), ("/d", b"d")])
        assert [item.error for item in responses] == [None, None, None, "is_directory"]
        assert await self._peek_each("/a", "/d/x") == [b"second", b"x"]

    async def test_the_last_upload_to_a_path_wins(self, backend: BackendProtocol) -> None:
        files = [(f"/{number % 3}", str(number).encode() * (40 - number)) for number in range(30)]
        assert [item.error for item in await backend.aupload_files(files)] == [None] * 30
        assert [await self.raw_peek(path) for path, _ in files[-3:]] == [content for _, content in files[-3:]]

    async def test_an_empty_batch_has_no_outcomes(self, backend: BackendProtocol) -> None:
        assert await backend.aupload_files([]) == []
        assert await backend.adownload_files([]) == []

    async def test_a_batch_may_have_many_items(self, backend: BackendProtocol) -> None:
        files = [(f"/many/{number % 10}/{number}", str(number).encode()) for number in range(300)]
        assert [item.error for item in await backend.aupload_files(files)] == [None] * len(files)
        downloads = await backend.adownload_files([path for path, _ in reversed(files)])
        assert [item.content for item in downloads] == [content for _, content in reversed(files)]
        assert len(await list_paths(backend, "/many/3")) == 30

    async def test_a_batch_of_many_items_replaces_files_and_no_directories(self, backend: BackendProtocol) -> None:
        await backend.aupload_files([("/file", b"kept"), ("/dir/x", b"kept")])
        names = [f"/{number:02}" for number in range(20)]
        for content in (b"one", b"two"):
            batch = [*((name, content) for name in names), ("/dir", b"x"), ("/file/beneath", b"x")]
            *stored, directory, beneath = await backend.aupload_files(batch)
            assert [item.error for item in stored] == [None] * len(names)
            assert directory.error == "is_directory"
            assert beneath.error in ("not_a_directory", "invalid_path")
            assert await self._peek_each(*names, "/file", "/dir/x") == [content] * len(names) + [b"kept"] * 2

    async def test_a_large_binary_file_goes_in_and_out(self, backend: BackendProtocol) -> None:
        content = bytes(range(256)) * 4096 * 3
        upload = only(await backend.aupload_files([("/large.bin", content)]))
        download = only(await backend.adownload_files(["/large.bin"]))
        assert (upload.error, download.error) == (None, None)
        assert download.content == content, "three megabytes come back as they were"

    async def test_uploaded_files_can_be_read_and_edited(self, backend: BackendProtocol) -> None:
        await backend.aupload_files([("/a.txt", b"one\ntwo\n")])
        assert content_of(await backend.aread("/a.txt", 1, 1)) == "two\n"
        assert_ok(await backend.aedit("/a.txt", "two", "2"))
        download = only(await backend.adownload_files(["/a.txt"]))
        assert download.content == b"one\n2\n"

    async def test_upload_streams_store_the_bytes(self, backend: BackendProtocol) -> None:
        for path, content in self.some(_CONTENTS.items()):
            outcome = await backend.aupload_stream(path, _chunks(content))
            assert (outcome.path, outcome.error) == (path, None)
            assert await self.raw_peek(path) == content

    async def test_a_failed_download_stream_raises_and_an_upload_stream_returns_its_code(
        self, backend: BackendProtocol
    ) -> None:
        await self.put({"/dir/x": "kept"})
        for path, code in {"/none": ErrorCode.FILE_NOT_FOUND, "/../x": ErrorCode.INVALID_PATH}.items():
            with pytest.raises(DeepFSError) as caught:
                [chunk async for chunk in backend.adownload_stream(path)]
            assert caught.value.code is code
        assert (await backend.aupload_stream("/../x", _chunks(b"x"))).error == "invalid_path"
        assert (await backend.aupload_stream("/dir", _chunks(b"x"))).error == "is_directory"
        assert await self.raw_peek("/dir/x") == b"kept"


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 7_000):
        yield content[start : start + 7_000]


# --- sync and async ---

T = TypeVar("T")

_CLOCKED: Final = frozenset({"created_at", "modified_at", "files_update", "version"})
"""Fields that may differ between two equal operations: times, and versions that depend on them."""

_CALLS: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("write", ("/new/a.txt", "one\ntwo\n"), {}),
    ("write", ("/new/a.txt", "again"), {}),
    ("write", ("/new/a.txt", "one\r\ntwo\r\n"), {"overwrite": True}),
    ("write", ("/new/a.txt", "x"), {"if_match": "no version"}),
    ("write", ("/../a.txt", "x"), {}),
    ("upload_files", ([("/new/b.bin", b"\x00\xff"), ("/new", b"x"), ("~", b"x")],), {}),
    ("read", ("/new/a.txt",), {}),
    ("read", ("/new/a.txt", 1, 1), {}),
    ("read", ("/new/b.bin",), {}),
    ("read", ("/none",), {}),
    ("read_raw", ("/new/a.txt",), {}),
    ("read_raw", ("/new",), {}),
    ("ls", ("/new",), {}),
    ("ls", ("/new/a.txt",), {}),
    ("edit", ("/new/a.txt", "one\n", "1\n"), {}),
    ("edit", ("/new/a.txt", "o", "0", True), {}),
    ("edit", ("/new/a.txt", "absent", "x"), {"replace_all": True}),
    ("glob", ("*.txt",), {}),
    ("glob", ("*", "/new"), {}),
    ("glob", ("../*",), {}),
    ("grep", ("tw",), {}),
    ("grep", ("TW.", "/new", "*.txt"), {"regex": True, "ignore_case": True, "context_lines": 1, "max_count": 1}),
    ("grep", ("(",), {"regex": True}),
    ("copy", ("/new/a.txt", "/new/c.txt"), {}),
    ("copy", ("/new", "/new/c.txt"), {"overwrite": True}),
    ("move", ("/new", "/moved"), {}),
    ("move", ("/none", "/moved"), {}),
    ("download_files", (["/moved/b.bin", "/none", "/moved"],), {}),
    ("delete", ("/moved/a.txt",), {"if_match": "no version"}),
    ("delete", ("/moved/a.txt",), {}),
    ("delete", ("/",), {}),
    ("delete", ("/moved",), {}),
)
"""A sequence of operations, each with its arguments."""


def _plain(result: Any) -> Any:
    """A result as plain data, without fields that depend on the clock."""
    return _without_clock({"type": type(result).__name__, "data": to_builtins(result)})


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(inner) for key, inner in value.items() if key not in _CLOCKED}
    return [_without_clock(inner) for inner in value] if isinstance(value, list) else value


async def _in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a sync call in a worker thread of anyio."""
    return await anyio.to_thread.run_sync(partial(call, *args, **kwargs))


async def assert_sync_results_equal(backend: BackendProtocol) -> None:
    """Call operations one after another by their async methods, then by their sync ones, and compare the results."""
    results = [_plain(await getattr(backend, f"a{name}")(*args, **kwargs)) for name, args, kwargs in _CALLS]
    results_sync = [_plain(await _in_thread(getattr(backend, name), *args, **kwargs)) for name, args, kwargs in _CALLS]
    for call, result, result_sync in zip(_CALLS, results, results_sync, strict=True):
        assert result_sync == result, call


async def _in_own_threads(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Make sync calls concurrently, each in a thread without a connection to an event loop; return their results."""
    outcomes: dict[int, T] = {}

    def keep(number: int, call: Callable[[], T]) -> None:
        outcomes[number] = call()

    threads = [threading.Thread(target=keep, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert len(outcomes) == len(threads), "a sync call raised"
    return [outcomes[number] for number in range(len(threads))]


class ReadOnlyParity(BackendSuite):
    """Each operation has a sync method with the same parameters."""

    async def test_each_operation_has_both_methods_with_one_signature(self, backend: BackendProtocol) -> None:
        for name in OPERATIONS:
            if name == "execute" and not supports_execute(backend):
                continue
            method, amethod = getattr(backend, name), getattr(backend, f"a{name}")
            assert list(inspect.signature(method).parameters) == list(inspect.signature(amethod).parameters), name
            assert not inspect.iscoroutinefunction(method)
            assert inspect.iscoroutinefunction(amethod)
            assert method.__name__ == name
            assert amethod.__name__ == f"a{name}"


class SyncParity(ReadOnlyParity):
    """Each operation has a sync method that does the same from any thread."""

    async def test_both_methods_return_the_same_results(self, backend: BackendProtocol) -> None:
        await assert_sync_results_equal(backend)

    async def test_async_reads_what_sync_writes(self, backend: BackendProtocol) -> None:
        assert_ok(await _in_thread(backend.write, "/a.txt", "one"))
        assert content_of(await backend.aread("/a.txt")) == "one"
        assert_ok(await _in_thread(backend.edit, "/a.txt", "one", "two"))
        assert content_of(await backend.aread("/a.txt")) == "two"
        assert_ok(await _in_thread(backend.move, "/a.txt", "/b.txt"))
        assert content_of(await backend.aread("/b.txt")) == "two"
        await _in_thread(backend.upload_files, [("/c.bin", b"\x00")])
        assert [item.content for item in await backend.adownload_files(["/c.bin"])] == [b"\x00"]
        assert await self.raw_peek("/b.txt") == b"two"

    async def test_sync_reads_what_async_writes(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/a.txt", "one"))
        assert content_of(await _in_thread(backend.read, "/a.txt")) == "one"
        assert_ok(await backend.aedit("/a.txt", "one", "two"))
        assert [item.content for item in await _in_thread(backend.download_files, ["/a.txt"])] == [b"two"]
        assert_ok(await backend.acopy("/a.txt", "/b.txt"))
        assert [info.path for info in assert_ok(await _in_thread(backend.glob, "*.txt")).matches or ()] == [
            "/a.txt",
            "/b.txt",
        ]

    async def test_sync_works_in_threads_without_an_event_loop(self, backend: BackendProtocol) -> None:
        written = only(await _in_own_threads([partial(backend.write, "/a.txt", "one")]))
        read = only(await _in_own_threads([partial(backend.read, "/a.txt")]))
        assert assert_ok(written).path == "/a.txt"
        assert content_of(read) == "one"

    async def test_sync_edits_from_many_threads_all_land(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number}\n" for number in range(8))})
        results = await _in_own_threads(
            partial(backend.edit, "/a.txt", f"slot-{number}", f"done-{number}") for number in range(8)
        )
        assert [result.ok for result in results] == [True] * 8, [result.error for result in results]
        assert await self.raw_peek("/a.txt") == "".join(f"done-{number}\n" for number in range(8)).encode()

    async def test_sync_and_async_edits_at_once_all_land(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number}\n" for number in range(8))})
        results: list[bool] = []

        async def edit(number: int) -> None:
            change = "/a.txt", f"slot-{number}", f"done-{number}"
            result = await (_in_thread(backend.edit, *change) if number % 2 else backend.aedit(*change))
            results.append(result.ok)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(edit, number)
        assert results == [True] * 8
        assert await self.raw_peek("/a.txt") == "".join(f"done-{number}\n" for number in range(8)).encode()

    async def test_sync_on_the_event_loop_works_or_names_the_async_method(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/a.txt", "one"))
        if backend.is_synchronous:
            assert content_of(backend.read("/a.txt")) == "one"
        elif backend.bound_to_this_thread():
            with pytest.raises(RuntimeError, match="aread"):
                backend.read("/a.txt")
