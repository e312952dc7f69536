"""The shipped suite for StoreBackend, with raw access by the store's own methods."""

import pytest
from langgraph.store.base import BaseStore

from deepfs.backends.store import StoreBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.files import content_of, stored

__all__ = ["NAMESPACE", "STORED", "StoreConformance"]

NAMESPACE = ("tenant", "v1.2")
STORED = ("tenant", "v1!2")
"""The namespace in the store, which refuses dots."""


class StoreConformance(BackendConformance, BackendStateMachine):
    """The suite with raw access by the store's own methods."""

    store: BaseStore

    @pytest.fixture
    def second_backend(self, backend: StoreBackend) -> StoreBackend:
        return StoreBackend(self.store, namespace=lambda _: NAMESPACE)

    async def raw_put(self, path: str, data: bytes) -> None:
        await self.store.aput(STORED, path, stored(data))

    async def raw_peek(self, path: str) -> bytes | None:
        item = await self.store.aget(STORED, path)
        return content_of(item and item.value)
