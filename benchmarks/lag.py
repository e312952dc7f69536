"""Measures event-loop lag: how late the event loop wakes a sleeping task."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint

__all__ = ["percentile", "ticking"]

_EVERY = 0.001


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """While the block runs, a task sleeps a millisecond at a time; the list gets the seconds by which it woke late."""
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
    """The value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
