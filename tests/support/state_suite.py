"""The shipped suite over graph state: it needs a node of a real graph that stays open."""

from collections.abc import Iterator
from contextlib import ExitStack

import anyio.to_thread
import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.state import StateBackend
from deepfs.testing import BackendSuite
from support.files import content_of, stored
from support.graphs import InNode, OpenNode, open_node

__all__ = ["OverState"]


class OverState(BackendSuite):
    """Raw access uses LangGraph's own calls. Each program of the state machine gets its own node."""

    node: OpenNode
    nodes: ExitStack

    def over_state(self, state: InNode) -> BackendProtocol:
        """The backend under test, over the state of the open node."""
        return state

    def open_node(self) -> BackendProtocol:
        """A backend over the state of a new node."""
        self.node = self.nodes.enter_context(open_node())
        return self.over_state(InNode(StateBackend(), self.node))

    @pytest.fixture
    def backend(self) -> Iterator[BackendProtocol]:
        with ExitStack() as self.nodes:
            yield self.open_node()

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return self.over_state(InNode(StateBackend(), self.node))

    async def renew(self, backend: BackendProtocol) -> BackendProtocol:
        return await anyio.to_thread.run_sync(self.open_node)

    async def raw_put(self, path: str, data: bytes) -> None:
        self.node.put(path, stored(data))

    async def raw_peek(self, path: str) -> bytes | None:
        return content_of(self.node.files.get(path))
