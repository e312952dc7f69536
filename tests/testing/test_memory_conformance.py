"""The reference backend passes the suite that is shipped."""

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.raw import peek_memory, put_memory


class TestMemory(BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self) -> MemoryBackend:
        self.memory = MemoryBackend()
        return self.memory

    async def raw_put(self, path: str, data: bytes) -> None:
        put_memory(self.memory, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return peek_memory(self.memory, path)
