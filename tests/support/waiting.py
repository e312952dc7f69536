"""Waiting for what another task, thread or process does."""

from collections.abc import Callable

import anyio
import anyio.lowlevel

__all__ = ["until", "until_tasks_wait"]


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition`, which must not block, returns something true; at most 20 s."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def until_tasks_wait() -> None:
    """Wait until all other tasks wait for something.

    `anyio.wait_all_tasks_blocked` alone sleeps 0.1 s on asyncio where a task is not blocked at once.
    """
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
