"""Calls in the background, for whose end nobody waits."""

import threading
from contextvars import ContextVar

import anyio
import pytest

from deepfs.threads.background import background_loop, start_in_background
from support.waiting import until

pytestmark = pytest.mark.both_loops

place: ContextVar[str] = ContextVar("place", default="none")


def test_calls_run_on_one_loop_of_their_own_with_the_context_of_the_caller() -> None:
    seen: list[tuple[str, bool, str]] = []
    done = [threading.Event() for _ in range(2)]

    async def call(index: int) -> None:
        seen.append((threading.current_thread().name, background_loop().is_here(), place.get()))
        done[index].set()

    place.set("here")
    for index, event in enumerate(done):
        start_in_background(lambda index=index: call(index))
        assert event.wait(10)
    assert seen == [("deepfs-tasks", False, "here")] * 2


@pytest.mark.anyio
async def test_a_call_goes_on_when_its_caller_is_cancelled() -> None:
    going, done = threading.Event(), threading.Event()

    async def call() -> None:
        await until(going.is_set)
        done.set()

    with anyio.CancelScope() as scope:
        start_in_background(call)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    going.set()
    assert await anyio.to_thread.run_sync(done.wait, 10)
