"""A V1 backend passes the conformance suite, as far as V1 can express the contract."""

import pytest

from deepfs import BackendProtocol
from deepfs.compat.v1 import adapt_backend_protocol
from deepfs.testing import BackendConformance
from support.v1_backend import DuckS3, S3Operations


class S3Backend(S3Operations, BackendProtocol):
    """One that inherits from the protocol, as the documentation shows it."""


class V1Conformance(BackendConformance):
    async def raw_put(self, path: str, data: bytes) -> None:
        self.bucket[path] = data.decode()

    async def raw_peek(self, path: str) -> bytes | None:
        text = self.bucket.get(path)
        return None if text is None else text.encode()


class TestDuck(V1Conformance):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.bucket: dict[str, str] = {}
        return adapt_backend_protocol(DuckS3(self.bucket))


class TestInherited(V1Conformance):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.bucket: dict[str, str] = {}
        return S3Backend(self.bucket)
