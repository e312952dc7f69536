"""Calls of drivers that run on asyncio only, from tasks of any event loop."""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread

from deepfs.errors import BackendError
from deepfs.sync import run_sync
from deepfs.threads.loop_bridge import call_on, name_asyncio, on_asyncio, running_asyncio_loop

if TYPE_CHECKING:
    from deepfs.threads.loop_bridge import AsyncioLoop

T = TypeVar("T")


class AsyncioClient:
    """Makes the calls of a driver on the event loop where its connections are.

    Calls from trio run on deepfs's background loop. What the caller of the backend made (a pool, a client) belongs to
    its loop; calls from other loops run there.

    Args:
        backend: The class of the backend, for errors.
        given: What the caller made; None if connections are opened here.
        kind: What that is called.
    """

    def __init__(self, backend: str, given: Any, kind: str) -> None:
        self._backend = backend
        self._given = given
        self._kind = kind
        self._background: AsyncioLoop | None = None
        self._process = os.getpid()
        self._of_parent: list[object] = []

    @property
    def given_loop(self) -> "AsyncioLoop | None":
        """The loop of what the caller gave; None without that."""
        raise NotImplementedError

    async def on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make an async call on the event loop where the connections are. Raises BackendError if that has ended."""
        if self._process != os.getpid():
            self._after_fork()
        loop = self.given_loop
        here = running_asyncio_loop()
        if loop is None:
            if here is not None and on_asyncio():
                return await call()
            loop = await self._background_loop()
        elif not loop.is_running():
            reason = f"The event loop that the {self._kind} is bound to no longer runs: open a {self._kind} anew."
            raise BackendError(None, reason)
        elif self._of_parent and self._given in self._of_parent:
            reason = f"The {self._kind} is that of the process this one was forked from: open a {self._kind} anew."
            raise BackendError(None, reason)
        elif loop is here:
            return await call()
        return await call_on(loop, partial(run_named, call))

    def _after_fork(self) -> None:
        """Leave all connections to the parent: loops look as if they ran here, and connections must not be closed."""
        self._of_parent += [self._background, self._given]
        self._background = None
        self._process = os.getpid()

    async def _background_loop(self) -> "AsyncioLoop":
        if self._background is None or not self._background.is_running():
            self._background = await anyio.to_thread.run_sync(run_sync, _this_loop)
        if self._background is None:
            raise BackendError(None, f"{self._backend} needs asyncio")
        return self._background


async def _this_loop() -> "AsyncioLoop | None":
    return running_asyncio_loop()


async def run_named(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make an async call on asyncio, in a context that may be that of a task of trio."""
    name_asyncio()
    return await call()
