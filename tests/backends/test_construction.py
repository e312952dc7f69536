"""Creating a backend and its first use do not block the event loop, which a guard checks in every async test."""

import pytest

from deepfs import StateBackend

pytestmark = pytest.mark.anyio


async def test_state_backend_outside_a_graph_raises_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"graph\.invoke"):
        await StateBackend().aread("/a.txt")
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        StateBackend().write("/a.txt", "text")
