"""V1 backends work off the event loop, mounted and subclassed."""

import threading
import time
from typing import Any

import anyio
import pytest

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    ErrorCode,
    MemoryBackend,
    adapt_backend_protocol,
)
from deepfs.types import EditResult, FileDownloadResponse, FileUploadResponse, WriteResult
from support.v1_backend import DuckS3, S3Operations

pytestmark = pytest.mark.anyio


class S3Backend(S3Operations, BackendProtocol):
    pass


class Guarded(S3Backend):
    """A policy over a V1 backend, written in V1."""

    def __init__(self, bucket: dict[str, str]) -> None:
        super().__init__(bucket)
        self.reads: list[str] = []

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        self.reads.append(file_path)
        return super().read(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> Any:
        if file_path.startswith("/frozen/"):
            return WriteResult(error=f"Writes are not allowed under {file_path}")
        return super().write(file_path, content)


class Uploading(DuckS3):
    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        for path, content in files:
            self.bucket[path] = content.decode()
        return [FileUploadResponse(path) for path, _ in files]

    def download_files(self, paths: list[str]) -> Any:
        return [FileDownloadResponse(path, self.bucket[path].encode()) for path in paths]


async def test_v1_methods_run_off_the_event_loop() -> None:
    class Slow(DuckS3):
        def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
            assert threading.current_thread() is not loop
            time.sleep(0.01)
            return super().read(file_path, offset, limit)

    loop = threading.current_thread()
    backend = adapt_backend_protocol(Slow({"/a.txt": "x"}))
    assert (await backend.aread("/a.txt")).ok


async def test_searches_are_literal_even_if_the_v1_grep_uses_regexes() -> None:
    backend = adapt_backend_protocol(DuckS3({"/a.txt": "f(x)\nfx\n", "/dir/b.txt": "f(x)\n"}))
    found = await backend.agrep("f(x)")
    assert [(match.path, match.line) for match in found.matches or ()] == [("/a.txt", 1), ("/dir/b.txt", 1)]
    by_regex = await backend.agrep("^fx$", regex=True)
    assert [(match.path, match.line) for match in by_regex.matches or ()] == [("/a.txt", 2)]
    assert (await backend.agrep("(", regex=True)).code is ErrorCode.INVALID_PATTERN


async def test_overrides_apply_to_direct_and_mounted_calls() -> None:
    bucket: dict[str, str] = {}
    backend = Guarded(bucket)
    tree = CompositeBackend(MemoryBackend(), {"/s3/": backend})
    assert (await tree.awrite("/s3/frozen/a.txt", "x")).code is ErrorCode.PERMISSION_DENIED
    assert (await tree.awrite("/s3/open.txt", "x")).ok
    assert list(bucket) == ["/open.txt"]
    backend.reads.clear()
    assert (await tree.aread("/s3/open.txt")).ok
    assert backend.reads == ["/open.txt"]
    assert backend.read("/open.txt") == "     1\tx"


async def test_with_uploads_files_can_be_replaced_and_copied_out() -> None:
    bucket = {"/a.txt": "old\n"}
    tree = CompositeBackend(MemoryBackend(), {"/s3/": Uploading(bucket)})
    version = (await tree.aread("/s3/a.txt")).version
    assert (await tree.awrite("/s3/a.txt", "new\n", if_match=version)).ok
    assert (await tree.awrite("/s3/a.txt", "x", if_match=version)).code is ErrorCode.CONFLICT
    assert (await tree.awrite("/s3/a.txt", "newer\n", overwrite=True)).ok
    assert (await tree.acopy("/s3/a.txt", "/copy.txt")).ok
    assert (await tree.adownload_files(["/copy.txt"]))[0].content == b"newer\n"


async def test_parallel_edits_of_one_file_all_succeed() -> None:
    class Racy(DuckS3):
        def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
            text = self.bucket[file_path]
            time.sleep(0.001)
            self.bucket[file_path] = text.replace(old_string, new_string)
            return EditResult(path=file_path, occurrences=1)

    bucket = {"/a.txt": "".join(f"<{number}>" for number in range(20))}
    racy = Racy(bucket)
    backend, other = adapt_backend_protocol(racy), adapt_backend_protocol(racy)

    async def edit(number: int) -> None:
        assert (await (backend, other)[number % 2].aedit("/a.txt", f"<{number}>", f"[{number}]")).ok

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(edit, number)
    assert bucket["/a.txt"] == "".join(f"[{number}]" for number in range(20))
