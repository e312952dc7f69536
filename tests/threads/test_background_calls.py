"""Calls on the background loop, awaited by tasks of another loop."""

import anyio
import anyio.lowlevel
import pytest

from deepfs.sync import run_shielded
from deepfs.threads.background import on_background_loop
from deepfs.threads.loop_bridge import on_asyncio

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


async def test_a_call_runs_on_asyncio_and_its_outcome_comes_back() -> None:
    async def call() -> bool:
        await anyio.lowlevel.checkpoint()
        return on_asyncio()

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    assert await on_background_loop(call)
    with pytest.raises(ValueError, match="no"):
        await on_background_loop(fail)


async def test_a_cancelled_call_is_cancelled_there_and_its_end_awaited() -> None:
    steps: list[str] = []

    async def change() -> None:
        await anyio.sleep(0.1)
        steps.append("changed")

    async def call() -> None:
        steps.append("began")
        try:
            await run_shielded(change)
            await anyio.sleep(60)
        finally:
            steps.append("ended")

    with anyio.move_on_after(0.05) as scope:
        await on_background_loop(call)
    assert scope.cancelled_caught
    assert steps == ["began", "changed", "ended"]
