"""RedisBackend passes the shipped suite and the state machine."""

from collections.abc import AsyncIterator

import anyio.to_thread
import pytest

from deepfs.backends.redis import RedisBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.redis_server import RedisKeys, RedisServer, fresh_redis_namespace


class TestRedis(BackendConformance, BackendStateMachine, FileAndDirectory):
    """The suite; raw access uses another client. On trio, the connections are on the background loop."""

    steps = 300

    @pytest.fixture
    async def backend(self, redis_server: RedisServer) -> AsyncIterator[RedisBackend]:
        self.keys = RedisKeys(redis_server, fresh_redis_namespace())
        async with RedisBackend(redis_server.url, self.keys.namespace) as backend:
            yield backend

    @pytest.fixture
    async def second_backend(self, backend: RedisBackend) -> AsyncIterator[RedisBackend]:
        async with RedisBackend(self.keys.server.url, self.keys.namespace) as second:
            yield second

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(self.keys.put, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self.keys.peek, path)
