"""SqliteBackend passes the conformance suite and the state machine."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs import SqliteBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.raw_sqlite import RawSqlite


class TestSqlite(BackendConformance, BackendStateMachine, FileAndDirectory):
    """The suite; raw access uses the driver directly."""

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[SqliteBackend]:
        self.raw = RawSqlite(tmp_path / "files.db")
        async with SqliteBackend(self.raw.file) as backend:
            yield backend

    @pytest.fixture
    async def second_backend(self, backend: SqliteBackend) -> AsyncIterator[SqliteBackend]:
        async with SqliteBackend(self.raw.file) as second:
            yield second

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(self.raw.put, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self.raw.peek, path)
