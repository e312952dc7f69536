"""How late an event loop comes back to a task that asked to be woken."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint

__all__ = ["percentile", "ticking"]

_EVERY = 0.001


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """The seconds by which each tick of a task, one a millisecond, came late while the block ran."""
    lags: list[float] = []

    async def tick() -> None:
        while True:
            asked = time.perf_counter() + _EVERY
            await anyio.sleep(_EVERY)
            lags.append(time.perf_counter() - asked)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await checkpoint()
        yield lags
        tasks.cancel_scope.cancel()


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of a hundred do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
