"""The one background event loop, and the calls that threads make on it.

A caller may be a signal handler or a finaliser, which can interrupt its thread anywhere, even inside this module. So no
thread waits here for a lock that an interrupted thread may hold, and delivering an outcome never blocks.
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from deepfs.threads.forks import ForkSafeLock, Lock, after_fork, get_ident, start_thread
from deepfs.threads.loop_bridge import Claim, LoopCallbacks, loop_callbacks, name_asyncio, waiting_threads

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")


class _CallLocal(threading.local):
    is_starting = False
    """Whether the calling thread is starting a loop."""


_here = _CallLocal()


class BackgroundLoop:
    """An event loop on a daemon thread; it is started on first use, and again if it has ended."""

    def __init__(self, name: str = "deepfs-sync") -> None:
        self._name = name
        self._lock = Lock()
        self._running: _Running | None = None

    def is_here(self) -> bool:
        """Whether the calling thread runs this loop."""
        return self._running is not None and self._running.thread == get_ident()

    def take(self, call: "BackgroundCall[Any]") -> "_Running | None":
        """Start `call`; return the loop that runs it, or None if no thread can be started, as at interpreter shutdown.

        Raises RuntimeError if the caller has interrupted the start of the loop in its own thread.
        """
        while (running := self._current()) is not None:
            if running.take(call):
                return running
        return None

    def _current(self) -> "_Running | None":
        running = self._running
        return self._start() if running is None or running.has_ended else running

    def _start(self) -> "_Running | None":
        if _here.is_starting:
            raise RuntimeError("a signal handler or finaliser interrupted the start of deepfs's event loop")
        _here.is_starting = True
        try:
            with self._lock:
                if self._running is None or self._running.has_ended:
                    running = _Running()
                    try:
                        start_thread(running.serve, self._name)
                    except RuntimeError:
                        return None
                    self._running = running
                return self._running
        finally:
            _here.is_starting = False


class _Running:
    """One run of the loop, from start to end."""

    _tasks: "TaskGroup"

    def __init__(self) -> None:
        self.thread: int | None = None
        self.has_ended: bool = False
        """Whether the loop takes no more calls; calls that it has taken and not finished fail."""
        self._callbacks: LoopCallbacks | None = None
        self._calls: dict[BackgroundCall[Any], None] = {}
        self._start = ExitStack()

    def take(self, call: "BackgroundCall[Any]") -> bool:
        """Schedule `call`; return False if the loop has ended."""
        self._calls[call] = None
        if self.has_ended and self._calls.pop(call, call) is None:
            return False
        # Does nothing before the loop has started; it then begins all of `_calls` itself.
        self.send(partial(self._begin, call))
        return True

    def send(self, callback: Callable[[], object]) -> None:
        """Have the loop run `callback`, if it still runs."""
        if self._callbacks is not None:
            with suppress(RuntimeError):
                self._callbacks.call(callback)

    def serve(self) -> None:
        """Run the loop until it ends; calls that are unfinished then fail with the reason."""
        self.thread = get_ident()
        reason: BaseException | None = None
        self._start.enter_context(_starting)
        try:
            anyio.run(self._serve)
        except BaseException as error:
            reason = error
        finally:
            self._start.close()
            self.has_ended = True
            with suppress(KeyError):
                while self._calls:
                    self._calls.popitem()[0].fail(_loop_ended_error(reason))

    async def _serve(self) -> None:
        self._start.close()
        async with anyio.create_task_group() as self._tasks:
            self._callbacks = loop_callbacks()
            for call in list(self._calls):
                self._begin(call)
            try:
                await anyio.Event().wait()
            finally:
                self.has_ended = True

    def _begin(self, call: "BackgroundCall[Any]") -> None:
        call.context.run(self._spawn, call)

    def _spawn(self, call: "BackgroundCall[Any]") -> None:
        if self.has_ended:
            return
        name_asyncio()
        self._tasks.start_soon(self._run, call)

    async def _run(self, call: "BackgroundCall[Any]") -> None:
        error = await call.run()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await checkpoint()  # If the loop is ending, this lets `_serve` set `has_ended` first.
        if error is not None:
            call.fail(_loop_ended_error(error) if self.has_ended else error)
        if call.is_done:  # Else it was begun twice, and this was the second time.
            self._calls.pop(call, None)


_starting = ForkSafeLock()
"""Held until a loop runs: a child that is forked before that could never import what its own loop needs."""


def _loop_ended_error(reason: BaseException | None) -> RuntimeError:
    """A new error for each caller, since raising an error adds to its traceback."""
    ended = RuntimeError("deepfs's event loop ended before the call did; the next call starts it anew")
    ended.__cause__ = reason
    return ended


class BackgroundCall(Generic[T]):
    """A call that another thread makes on the loop, and its outcome."""

    _value: T
    _scope: anyio.CancelScope

    def __init__(self, function: Callable[[], Awaitable[T]], *, is_awaited: bool = True) -> None:
        """`function` makes the call; `is_awaited` says whether this thread is to wait for it."""
        # The first taker of `_claim` makes or cancels the call; the first taker of `_outcome` sets its outcome.
        self._claim = Claim(function)
        self._outcome = Claim(True)
        self._error: BaseException | None = None
        self.is_done: bool = False
        """Whether it has an outcome, or is not to be made."""
        # A plain lock, since releasing it never blocks; notifying a condition must first acquire its lock.
        self._gate = Lock()
        self._gate.acquire()
        self.context: Context = copy_context()
        if is_awaited:
            self.context.run(waiting_threads.set, waiting_threads.get() | {get_ident()})

    def wait(self, running: _Running) -> T:
        """Wait for the call; return its value, or raise its error.

        If an exception such as KeyboardInterrupt interrupts the wait, it is raised once the call is cancelled and over.
        """
        try:
            self._gate.acquire()
        except BaseException:
            if self._claim.take() is not None:
                self.is_done = True
            elif not self.is_done:
                running.send(self._cancel)
                self._gate.acquire()
            raise
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            del self  # The traceback refers to this frame; without this, the call and its error would be a cycle.

    async def run(self) -> BaseException | None:
        """Make the call, and return the exception that it raised, if any.

        Even SystemExit is returned: it belongs to the caller, and must not end the loop.
        """
        function = self._claim.take()
        if function is None:
            return None
        try:
            with anyio.CancelScope() as self._scope:
                value = await function()
                if self._outcome.take():
                    self._value = value
                    self._open()
        except BaseException as error:
            return error
        return anyio.get_cancelled_exc_class()() if self._scope.cancelled_caught else None

    def fail(self, error: BaseException) -> None:
        """End the call with `error`, unless it has ended."""
        if self._outcome.take():
            self._error = error
            self._open()

    def _open(self) -> None:
        self.is_done = True
        self._gate.release()

    def _cancel(self) -> None:
        self._scope.cancel()


class _AwaitedCall(BackgroundCall[T]):
    """A call that a task of another loop awaits, so that no thread waits for it."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._ended = loop_callbacks().end_of_work()
        super().__init__(function, is_awaited=False)

    async def result(self, running: _Running) -> T:
        """Await the call. If the awaiting task is cancelled, the call is cancelled, and its end is awaited."""
        try:
            await self._ended.wait()
        except BaseException as reason:
            if self._claim.take() is not None:
                self.is_done = True
                self._ended.drop()
            elif not self.is_done:
                running.send(self._cancel)
                if not isinstance(reason, GeneratorExit):
                    await self._ended.wait_shielded()
            raise
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            del self  # As in `wait`.

    def _open(self) -> None:
        self.is_done = True
        self._ended.set()


async def on_background_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Await an async call on the background loop, which is an asyncio loop, from a task of any loop.

    So drivers that need asyncio serve callers on trio. If the caller is cancelled, so is the call, and its end is
    awaited: what it has shielded is then done. Raises RuntimeError if the loop cannot be started, as at interpreter
    shutdown, or if it ended before the call did.
    """
    call = _AwaitedCall(function)
    running = background_loop().take(call)
    if running is None:
        call.fail(RuntimeError("deepfs's event loop cannot be started any more"))
        return await call.result(_Running())
    return await call.result(running)


def start_in_background(function: Callable[[], Awaitable[None]]) -> None:
    """Start an async call on an event loop of its own, which all such calls share, and do not wait for it.

    So calls that take long, or block, do not hold up the sync methods of backends. The call must not raise, and is
    cancelled if the loop ends. Raises RuntimeError if that cannot be started, as at interpreter shutdown.
    """
    if _detached_loop.take(BackgroundCall(function, is_awaited=False)) is None:
        raise RuntimeError("deepfs's event loop for background tasks cannot be started any more")


_loop = BackgroundLoop()
_detached_loop = BackgroundLoop("deepfs-tasks")


def background_loop() -> BackgroundLoop:
    """The background loop of this process."""
    return _loop


@after_fork
def _forget_after_fork() -> None:
    global _loop, _detached_loop
    _loop, _detached_loop = BackgroundLoop(), BackgroundLoop("deepfs-tasks")
    _here.is_starting = False
