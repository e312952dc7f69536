"""ObjectStoreBackend passes the shipped suite over S3 and over the memory of the driver."""

import pytest
from obstore.store import MemoryStore

from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.object_stores import RawObjects, S3Server


class TestS3(RawObjects, BackendConformance, BackendStateMachine, FileAndDirectory):
    steps = 200

    @pytest.fixture
    def backend(self, s3_server: S3Server) -> S3Backend:
        self.server, self.prefix, self.store = s3_server, s3_server.prefix(), s3_server.store()
        return s3_server.backend(self.prefix)

    @pytest.fixture
    def second_backend(self, backend: S3Backend) -> S3Backend:
        return self.server.backend(self.prefix)


class TestMemory(RawObjects, BackendConformance, BackendStateMachine, FileAndDirectory):
    steps = 300

    @pytest.fixture
    def backend(self) -> ObjectStoreBackend:
        self.store, self.prefix = MemoryStore(), "files"
        return ObjectStoreBackend(self.store, "files")

    @pytest.fixture
    def second_backend(self, backend: ObjectStoreBackend) -> ObjectStoreBackend:
        return ObjectStoreBackend(self.store, "/files/")
