"""A composite of all backends passes the shipped suite, on its default and under each of its mounts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.state import StateBackend
from deepfs.backends.store import StoreBackend
from deepfs.testing import BackendConformance
from support.files import content_of, stored
from support.graphs import InNode, OpenNode, open_node


class TestCompositeOfAll(BackendConformance):
    """State by default; the files of the suite live in it, while the mounts stand beside."""

    node: OpenNode

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[BackendProtocol]:
        with open_node() as self.node:
            yield CompositeBackend(
                InNode(StateBackend(), self.node),
                {
                    "/.mounts/disk/": FilesystemBackend(tmp_path),
                    "/.mounts/store/": StoreBackend(InMemoryStore(), namespace=("suite",)),
                    "/.mounts/store/memory/": MemoryBackend(),
                },
            )

    async def raw_put(self, path: str, data: bytes) -> None:
        self.node.put(path, stored(data))

    async def raw_peek(self, path: str) -> bytes | None:
        return content_of(self.node.files.get(path))
