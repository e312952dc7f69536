"""PostgresBackend passes the shipped suite and the state machine."""

from collections.abc import AsyncIterator
from functools import partial

import anyio.to_thread
import pytest

from deepfs.backends.postgres import PostgresBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.postgres_files import fresh_namespace, peek, put


class TestPostgres(BackendConformance, BackendStateMachine, FileAndDirectory):
    """The suite; raw access uses another driver. On trio, the connections are on the background loop."""

    steps = 300

    @pytest.fixture
    async def backend(self, postgres_files_dsn: str) -> AsyncIterator[PostgresBackend]:
        self.dsn, self.space = postgres_files_dsn, fresh_namespace()
        async with PostgresBackend(self.dsn, self.space) as backend:
            await backend.als("/")  # Makes the tables, since a test may store a file directly.
            yield backend

    @pytest.fixture
    async def second_backend(self, backend: PostgresBackend) -> AsyncIterator[PostgresBackend]:
        async with PostgresBackend(self.dsn, lambda _: self.space) as second:
            yield second

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(partial(put, self.dsn, "/".join(self.space), path, data))

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(partial(peek, self.dsn, "/".join(self.space), path))
