"""Waiting for what another thread or process does."""

from collections.abc import Callable

import anyio

__all__ = ["until"]


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition`, which must not block, returns something true; at most 20 s."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.001)
