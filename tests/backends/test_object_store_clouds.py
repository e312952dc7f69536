"""ObjectStoreBackend passes what depends on the dialect, of Google Cloud Storage and of Azure."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest

from deepfs.backends.object_store import ObjectStoreBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.object_server import ObjectServer, running_object_server
from support.object_stores import RawObjects

_PREFIXES: Final = count()
_PARTS: Final = ("Writing", "Concurrency", "Transfer", "StateMachine")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The dialect matters, not the loop."""
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with running_object_server() as running:
        yield running


def _google(server: ObjectServer, prefix: str) -> ObjectStoreBackend:
    account = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    options: Any = {"service_account_key": json.dumps({**account, "private_key_id": ""})}
    return ObjectStoreBackend("gs://bucket", prefix, allow_http=True, **options)


def _azure(server: ObjectServer, prefix: str) -> ObjectStoreBackend:
    options: Any = {"account_name": "account", "access_key": "aGVsbG8=", "endpoint": server.url}
    return ObjectStoreBackend("az://bucket", prefix, allow_http=True, **options)


class _Cloud(RawObjects, BackendConformance, BackendStateMachine):
    steps = 300

    @pytest.fixture
    def backend(self, server: ObjectServer) -> ObjectStoreBackend:
        self.server, self.prefix = server, f"test-{next(_PREFIXES)}"
        backend = self.opened(server, self.prefix)
        self.store = backend._client._store
        return backend

    @pytest.fixture
    def second_backend(self, backend: ObjectStoreBackend) -> ObjectStoreBackend:
        return self.opened(self.server, self.prefix)

    def opened(self, server: ObjectServer, prefix: str) -> ObjectStoreBackend:
        raise NotImplementedError


@pytest.mark.suite_parts(*_PARTS)
class TestGoogle(_Cloud):
    def opened(self, server: ObjectServer, prefix: str) -> ObjectStoreBackend:
        return _google(server, prefix)


@pytest.mark.suite_parts(*_PARTS)
class TestAzure(_Cloud):
    def opened(self, server: ObjectServer, prefix: str) -> ObjectStoreBackend:
        return _azure(server, prefix)
