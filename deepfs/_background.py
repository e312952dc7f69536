"""The one background event loop, and the calls that threads make on it."""

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ["BackgroundLoop", "Call", "background_loop"]

T = TypeVar("T")


class BackgroundLoop:
    """A daemon thread with an event loop, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None

    def is_here(self) -> bool:
        """Whether the calling thread runs this loop."""
        return self._thread is threading.current_thread()

    def portal(self) -> "BlockingPortal | None":
        """The way in; None where no thread can be started, as when the interpreter ends."""
        if self._portal is None:
            with self._lock:
                if self._portal is None:
                    self._portal = self._start()
        return self._portal

    def _start(self) -> "BlockingPortal | None":
        started: Future[BlockingPortal] = Future()
        thread = threading.Thread(target=_serve, args=(started,), name="deepfs-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        self._thread = thread
        return started.result()


def _serve(started: "Future[BlockingPortal]") -> None:
    """Run the loop, for ever."""
    from anyio.from_thread import BlockingPortal

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


class Call(Generic[T]):
    """A call of another thread, on its way to the loop and back."""

    _scope: anyio.CancelScope

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        # Whoever pops it decides whether the call is made; popping is atomic.
        self._claim = [function]
        self._outcome: Future[T] = Future()

    def wait(self, portal: "BlockingPortal") -> T:
        """Make the call and return or raise what it does; interrupted, cancel it and wait for its end."""
        try:
            portal.start_task_soon(self._run)
            return self._outcome.result()
        except BaseException:
            if self._take() is None and not self._outcome.done():
                portal.start_task_soon(self._cancel)
                self._outcome.exception()
            raise

    async def _run(self) -> None:
        function = self._take()
        if function is None:
            return
        # Whatever it raises is the caller's: even SystemExit does not end the loop.
        try:
            with anyio.CancelScope() as self._scope:
                self._outcome.set_result(await function())
            if self._scope.cancelled_caught:
                self._outcome.set_exception(CancelledError())
        except BaseException as error:
            self._outcome.set_exception(error)

    async def _cancel(self) -> None:
        self._scope.cancel()

    def _take(self) -> Callable[[], Awaitable[T]] | None:
        try:
            return self._claim.pop()
        except IndexError:
            return None


_loop = BackgroundLoop()


def background_loop() -> BackgroundLoop:
    """The one of this process."""
    return _loop


def _forget_after_fork() -> None:
    global _loop
    _loop = BackgroundLoop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
