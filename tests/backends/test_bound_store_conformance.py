"""StoreBackend over the stores that are bound to an asyncio loop passes the parts that depend on the store."""

import pytest
from langgraph.store.base import BaseStore

from deepfs.backends.store import StoreBackend
from support.store_suite import NAMESPACE, StoreConformance

PARTS = ("Concurrency", "Cancellation", "Transfer", "StateMachine")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.suite_parts(*PARTS)
class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def backend(self, sqlite_store: BaseStore) -> StoreBackend:
        self.store = sqlite_store
        return StoreBackend(sqlite_store, namespace=NAMESPACE)


@pytest.mark.suite_parts(*PARTS)
class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def backend(self, postgres_store: BaseStore) -> StoreBackend:
        self.store = postgres_store
        return StoreBackend(postgres_store, namespace=NAMESPACE)
