"""The event loop that the object of an SDK belongs to, and calls that reach it from elsewhere.

This is about SDKs that know asyncio alone, so asyncio is named here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread

from deepfs.errors import BackendError
from deepfs.sync import off_loop, run_sync

__all__ = ["HomeLoop"]

T = TypeVar("T")


class HomeLoop:
    """The event loop that runs where this is made; where none does, the one of `run_sync`."""

    def __init__(self) -> None:
        self._loop = _running_loop()

    def is_here(self) -> bool:
        """Whether the calling thread runs this loop."""
        here = _running_loop()
        return here is not None and here is self._loop

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call on this loop, from whichever; cancelled, it is cancelled there.

        BackendError where the loop has ended.
        """
        loop, here = await self._running(), _running_loop()
        if loop is here:
            return await call()
        if not loop.is_running():
            raise BackendError(None, "The event loop that the sandbox belongs to no longer runs: connect to it anew")
        future = asyncio.run_coroutine_threadsafe(call(), loop)
        try:
            if here is not None:
                return await asyncio.wrap_future(future)
            return await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        finally:
            future.cancel()

    async def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        background: asyncio.AbstractEventLoop = await off_loop(partial(run_sync, _this_loop))
        self._loop = background
        return background


async def _this_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
