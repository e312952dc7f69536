"""A workspace passes the shipped suite and the state machine over each storage, and with each place for its entries."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.testing import BackendConformance, BackendStateMachine, BackendSuite
from deepfs.workspaces.overlay import OverlayBackend
from support.raw import RawMemory, raw_bytes
from support.raw_sqlite import RawSqlite


class OverlaySuite(BackendSuite):
    """What is put is put below; what is looked at is an entry, or else what is below."""

    overlay: OverlayBackend

    async def peek_below(self, path: str) -> bytes | None:
        raise NotImplementedError

    async def raw_peek(self, path: str) -> bytes | None:
        entry = (await self.overlay._entries.get([path])).get(path)
        if entry is None:
            return await self.peek_below(path)
        return raw_bytes(entry.data) if entry.source is None else await self.peek_below(entry.source)


class OverMemory(RawMemory, OverlaySuite):
    memory: MemoryBackend

    async def peek_below(self, path: str) -> bytes | None:
        return self.peek(self.memory, path)

    async def raw_peek(self, path: str) -> bytes | None:
        return await OverlaySuite.raw_peek(self, path)


@pytest.mark.both_loops
class TestOverMemory(OverMemory, BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory = MemoryBackend()
        self.overlay = OverlayBackend(self.memory)
        return self.overlay


class TestTenDeep(OverMemory, BackendConformance, BackendStateMachine):
    steps = 300

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory = MemoryBackend()
        below: BackendProtocol = self.memory
        for _ in range(10):
            below = self.overlay = OverlayBackend(below)
        return self.overlay


class TestEntriesInMemory(OverMemory, BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory, self.upper = MemoryBackend(), MemoryBackend()
        self.overlay = OverlayBackend(self.memory, self.upper, directory="/changes")
        return self.overlay

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return OverlayBackend(self.memory, self.upper, directory="/changes")


class TestEntriesInSqlite(OverMemory, BackendConformance, BackendStateMachine):
    steps = 300

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
        self.memory, self.file = MemoryBackend(), tmp_path / "changes.db"
        async with SqliteBackend(self.file) as upper:
            self.overlay = OverlayBackend(self.memory, upper)
            yield self.overlay

    @pytest.fixture
    async def second_backend(self, backend: BackendProtocol) -> AsyncIterator[BackendProtocol]:
        async with SqliteBackend(self.file) as upper:
            yield OverlayBackend(self.memory, upper)


class TestOverDisk(OverlaySuite, BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendProtocol:
        self.root = tmp_path
        self.overlay = OverlayBackend(FilesystemBackend(tmp_path))
        return self.overlay

    async def raw_put(self, path: str, data: bytes) -> None:
        def put() -> None:
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await anyio.to_thread.run_sync(put)

    async def peek_below(self, path: str) -> bytes | None:
        target = self.root / path.lstrip("/")
        return await anyio.to_thread.run_sync(lambda: target.read_bytes() if target.is_file() else None)


class TestOverSqlite(OverlaySuite, BackendConformance, BackendStateMachine):
    steps = 300

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
        self.raw = RawSqlite(tmp_path / "files.db")
        async with SqliteBackend(self.raw.file) as lower:
            self.overlay = OverlayBackend(lower)
            yield self.overlay

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(self.raw.put, path, data)

    async def peek_below(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self.raw.peek, path)
