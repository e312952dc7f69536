"""StoreBackend passes the shipped suite, using only the async methods of the store."""

from collections.abc import Iterable

import pytest
from langgraph.store.base import Op, Result
from langgraph.store.memory import InMemoryStore

from deepfs.backends.store import StoreBackend
from support.flat_trees import FileAndDirectory
from support.store_suite import NAMESPACE, StoreConformance


class AsyncOnlyStore(InMemoryStore):
    """A store whose sync methods must not be called."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        raise AssertionError("a sync method of the store was called")


@pytest.mark.both_loops
class TestInMemoryStore(StoreConformance, FileAndDirectory):
    @pytest.fixture
    def backend(self) -> StoreBackend:
        self.store = AsyncOnlyStore()
        return StoreBackend(self.store, namespace=NAMESPACE)
