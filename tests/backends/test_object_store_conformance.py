"""ObjectStoreBackend passes the shipped suite over S3 and over the memory of the driver."""

from typing import Any

import anyio.to_thread
import pytest
from obstore.store import MemoryStore

from deepfs.backends._object_keys import Keys
from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.object_stores import S3Server


class _RawObjects:
    """Raw access by the driver."""

    store: Any
    prefix: str

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(self.store.put, self._key(path), data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self._peek, path)

    def _key(self, path: str) -> str:
        return Keys(f"/{self.prefix}").key(path)  # The driver refuses control characters.

    def _peek(self, path: str) -> bytes | None:
        try:
            return bytes(self.store.get(self._key(path)).bytes())
        except FileNotFoundError:
            return None


class TestS3(_RawObjects, BackendConformance, BackendStateMachine, FileAndDirectory):
    steps = 200

    @pytest.fixture
    def backend(self, s3_server: S3Server) -> S3Backend:
        self.server, self.prefix, self.store = s3_server, s3_server.prefix(), s3_server.store()
        return s3_server.backend(self.prefix)

    @pytest.fixture
    def second_backend(self, backend: S3Backend) -> S3Backend:
        return self.server.backend(self.prefix)


class TestMemory(_RawObjects, BackendConformance, BackendStateMachine, FileAndDirectory):
    @pytest.fixture
    def backend(self) -> ObjectStoreBackend:
        self.store, self.prefix = MemoryStore(), "files"
        return ObjectStoreBackend(self.store, "files")

    @pytest.fixture
    def second_backend(self, backend: ObjectStoreBackend) -> ObjectStoreBackend:
        return ObjectStoreBackend(self.store, "/files/")
