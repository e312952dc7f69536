"""StateBackend passes the shipped suite inside a node of a compiled graph."""

from collections.abc import Iterator

import pytest

from deepfs.backends.state import StateBackend
from deepfs.testing import BackendConformance
from support.files import content_of, stored
from support.graphs import InNode, OpenNode, open_node


class TestState(BackendConformance):
    node: OpenNode

    @pytest.fixture
    def backend(self) -> Iterator[InNode]:
        with open_node() as self.node:
            yield InNode(StateBackend(), self.node)

    @pytest.fixture
    def second_backend(self, backend: InNode) -> InNode:
        return InNode(StateBackend(), self.node)

    async def raw_put(self, path: str, data: bytes) -> None:
        self.node.put(path, stored(data))

    async def raw_peek(self, path: str) -> bytes | None:
        return content_of(self.node.files.get(path))
