"""Custom backends pass the suite: one of a few lines over a dict, and one with sync methods only."""

from collections.abc import Hashable, Mapping, Sequence

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.flat import FlatBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from deepfs.testing.conformance.changing import MovingConformance
from deepfs.text.flat_tree import Change
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)
from support.raw import RawMemory, file_of, raw_bytes
from support.selection import few_on_trio


class DictBackend(FlatBackend):
    """Files in a dict."""

    def __init__(self, files: dict[str, FileDataV2]) -> None:
        super().__init__()
        self.files = files

    def _scope(self) -> Hashable:
        return id(self.files)

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self.files[path] for path in wanted if path in self.files}

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        return dict(self.files)

    async def _commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                self.files.pop(change.path, None)
            else:
                self.files[change.path] = change.after


class TestDictBackend(BackendConformance, BackendStateMachine):
    """Implementing a few primitives makes a backend."""

    @pytest.fixture
    def backend(self) -> DictBackend:
        self.files: dict[str, FileDataV2] = {}
        return DictBackend(self.files)

    @pytest.fixture
    def second_backend(self, backend: DictBackend) -> DictBackend:
        return DictBackend(self.files)

    async def raw_put(self, path: str, data: bytes) -> None:
        self.files[path] = file_of(data)

    async def raw_peek(self, path: str) -> bytes | None:
        return raw_bytes(self.files.get(path))


class SyncBackend(BackendProtocol):
    """Sync methods only, with the argument names of deepagents."""

    def __init__(self, memory: MemoryBackend) -> None:
        self.memory = memory

    def ls(self, path: str) -> LsResult:
        return self.memory.ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self.memory.read(file_path, offset, limit)

    def read_raw(self, path: str) -> ReadRawResult:
        return self.memory.read_raw(path)

    def write(
        self, file_path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        return self.memory.write(file_path, content, overwrite=overwrite, if_match=if_match)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_match: str | None = None,
    ) -> EditResult:
        return self.memory.edit(file_path, old_string, new_string, replace_all, if_match=if_match)

    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        return self.memory.glob(pattern, path)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: int = 0,
        max_count: int | None = None,
    ) -> GrepResult:
        return self.memory.grep(
            pattern,
            path,
            glob,
            regex=regex,
            ignore_case=ignore_case,
            context_lines=context_lines,
            max_count=max_count,
        )

    def delete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        return self.memory.delete(path, if_match=if_match)

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return self.memory.move(src, dst, overwrite=overwrite)

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return self.memory.copy(src, dst, overwrite=overwrite)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self.memory.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self.memory.download_files(paths)


@few_on_trio
class TestSyncBackend(RawMemory, BackendConformance):
    """The async methods are generated from the sync ones."""

    @pytest.fixture
    def backend(self) -> SyncBackend:
        self.memory = MemoryBackend()
        return SyncBackend(self.memory)


class DerivedTransfers(WrapperBackend):
    """A wrapper that uses the copy and move of the protocol."""

    acopy = BackendProtocol.acopy
    amove = BackendProtocol.amove


class TestDerivedTransfers(RawMemory, MovingConformance):
    """Copy and move as the protocol derives them from other operations."""

    @pytest.fixture
    def backend(self) -> DerivedTransfers:
        self.memory = MemoryBackend()
        return DerivedTransfers(self.memory)


@pytest.mark.anyio
async def test_a_custom_backend_is_mounted_beside_others() -> None:
    backend = CompositeBackend(MemoryBackend(), {"/dict": DictBackend({}), "/sync": SyncBackend(MemoryBackend())})
    for place in ("/", "/dict/", "/sync/"):
        assert (await backend.awrite(f"{place}a.txt", "one")).ok
    assert (await backend.amove("/dict/a.txt", "/sync/b.txt")).ok
    found = await backend.agrep("one")
    assert [match.path for match in found.matches or ()] == ["/a.txt", "/sync/a.txt", "/sync/b.txt"]
