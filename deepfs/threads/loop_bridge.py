"""Reaching an event loop from other threads: the one place that tells asyncio from trio.

anyio has no public call that hands work to a loop without waiting for it, so the native ones are wrapped here.
Nothing in this module blocks: queues and flags are only touched by operations that are atomic. Neither loop's package
is loaded here: where one of them runs it is there already, and elsewhere loading asyncio takes its time.
"""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from anyio import CancelScope, current_effective_deadline, get_cancelled_exc_class

if TYPE_CHECKING:
    import asyncio

    from trio.lowlevel import Abort, Task, TrioToken

__all__ = ["Countdown", "Mailbox", "Signal", "is_stray", "mailbox", "name_asyncio", "on_asyncio", "waiting_threads"]

waiting_threads: Final[ContextVar[frozenset[int]]] = ContextVar("deepfs_waiting_threads", default=frozenset())
"""The threads that wait for what runs here, by `threading.get_ident`: to wait for one of them would never end."""


class Signal(ABC):
    """A one-shot event that any thread sets and one task awaits, on the loop of the mailbox that made it."""

    __slots__ = ("_mailbox", "is_set")

    def __init__(self, home: "Mailbox") -> None:
        self._mailbox = home
        self.is_set: bool = False
        """Changes on the loop's own thread only."""

    def set(self) -> None:
        """Wake the waiting task; safe from any thread, also after the loop has ended."""
        if self._mailbox.is_here():
            self.fire()
        else:
            self._mailbox.post(self.fire)

    @abstractmethod
    def fire(self) -> None:
        """Set on the loop's own thread."""

    @abstractmethod
    def wait(self) -> Awaitable[None]:
        """Wait until the signal is set. A cancelled wait may be repeated."""

    async def wait_shielded(self) -> None:
        """Wait until the signal is set, whatever is cancelled meanwhile."""
        with CancelScope(shield=True):
            while not self.is_set:
                # `asyncio.Task.cancel()` knows no scopes and reaches through the shield.
                with suppress(get_cancelled_exc_class()):
                    await self.wait()


class Countdown:
    """Fires `signal` after `steps` counts, all on the signal's loop."""

    __slots__ = ("_left", "signal")

    def __init__(self, signal: Signal, steps: int) -> None:
        self.signal: Signal = signal
        self._left = steps

    def count(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left == 0:
            self.signal.fire()


class Mailbox(ABC):
    """Callbacks on their way to one event loop; those put before a flush share one wake-up of the loop."""

    def __init__(self) -> None:
        self._letters: deque[Callable[[], object]] = deque()
        self._called = False
        self._turn: object | None = None

    def put(self, callback: Callable[[], object]) -> None:
        """Leave `callback`, which must not raise, for the next flush; safe from any thread."""
        self._letters.append(callback)

    def flush(self) -> None:
        """Have the loop run what was put, in order; where the loop has ended, it is dropped."""
        if self._called or not self._letters:
            return
        self._called = True
        try:
            self._call(self._deliver)
        except RuntimeError:
            self._letters.clear()
            self._called = False

    def post(self, callback: Callable[[], object]) -> None:
        """Put and flush."""
        self.put(callback)
        self.flush()

    def call(self, callback: Callable[[], object]) -> None:
        """Have the loop run `callback` by a wake-up of its own, which no thread that was interrupted amid a flush owes.

        RuntimeError where the loop has ended and was not collected yet.
        """
        self._call(callback)

    def turn(self) -> object:
        """A token of the loop's present turn: what runs before the loop next looks for events gets the same one."""
        if self._turn is None:
            self._turn = object()
            self._call_soon(self._end_turn)
        return self._turn

    def _end_turn(self) -> None:
        self._turn = None

    def _deliver(self) -> None:
        # Cleared before the count is taken: what is put later than this line calls again.
        self._called = False
        for _ in range(len(self._letters)):
            self._letters.popleft()()

    @abstractmethod
    def signal(self) -> Signal:
        """A signal for a task of this loop."""

    @abstractmethod
    def is_here(self) -> bool:
        """Whether the caller is a task of this loop."""

    @abstractmethod
    def _call(self, callback: Callable[[], object]) -> None:
        """Schedule from any thread; RuntimeError where the loop has ended and was not collected yet."""

    @abstractmethod
    def _call_soon(self, callback: Callable[[], object]) -> None:
        """Schedule from the loop's own thread."""


class _AsyncioSignal(Signal):
    __slots__ = ("_future", "_loop")
    _future: "asyncio.Future[None] | None"

    def __init__(self, home: Mailbox, loop: "asyncio.AbstractEventLoop") -> None:
        super().__init__(home)
        self._loop = loop
        self._future = None

    def fire(self) -> None:
        self.is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def wait(self) -> Awaitable[None]:
        self._future = future = self._loop.create_future()
        if self.is_set:
            future.set_result(None)
        return future


class _AsyncioMailbox(Mailbox):
    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        super().__init__()
        self._loop = ref(loop)

    def signal(self) -> Signal:
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop of this mailbox has ended")
        return _AsyncioSignal(self, loop)

    def is_here(self) -> bool:
        import asyncio

        # Without a task this may be a trio loop that runs as a guest of this one.
        try:
            return asyncio.current_task() is not None and asyncio.get_running_loop() is self._loop()
        except RuntimeError:
            return False

    def _call(self, callback: Callable[[], object]) -> None:
        if loop := self._loop():
            loop.call_soon_threadsafe(callback)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        import asyncio

        asyncio.get_running_loop().call_soon(callback)


class _TrioSignal(Signal):
    __slots__ = ("_task",)
    _task: "Task | None"

    def __init__(self, home: Mailbox) -> None:
        super().__init__(home)
        self._task = None

    def fire(self) -> None:
        from trio.lowlevel import reschedule

        self.is_set = True
        if self._task is not None:
            reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        from trio.lowlevel import current_task, wait_task_rescheduled

        if not self.is_set:
            self._task = current_task()
            await wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: Callable[[], Any]) -> "Abort":
        from trio.lowlevel import Abort

        self._task = None
        return Abort.SUCCEEDED


class _TrioMailbox(Mailbox):
    def __init__(self, token: "TrioToken") -> None:
        super().__init__()
        self._token = ref(token)

    def signal(self) -> Signal:
        return _TrioSignal(self)

    def is_here(self) -> bool:
        from trio.lowlevel import current_trio_token, in_trio_task

        return in_trio_task() and current_trio_token() is self._token()

    def _call(self, callback: Callable[[], object]) -> None:
        if token := self._token():
            token.run_sync_soon(callback)

    _call_soon = _call


class _Thread(threading.local):
    mailbox: Mailbox | None = None
    """The one used last in this thread; a loop may have several over time, which does no harm."""


_thread = _Thread()


def mailbox() -> Mailbox:
    """The mailbox of the event loop that runs the calling task.

    RuntimeError outside of one, and as the interpreter ends.
    """
    found = _thread.mailbox
    if found is None or not found.is_here():
        found = _thread.mailbox = _open()
    return found


def name_asyncio() -> None:
    """Have the calling context, which may come from a thread with another loop, say that it runs on asyncio."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        sniffio.current_async_library_cvar.set("asyncio")


def is_stray(error: BaseException) -> bool:
    """Whether `error` is a cancellation, though nobody cancels the calling task: one that got out of other work."""
    kinds = [(sys.modules.get("asyncio"), "CancelledError"), (sys.modules.get("trio"), "Cancelled")]
    known = tuple(kind for module, name in kinds if (kind := getattr(module, name, None)) is not None)
    return isinstance(error, known) and not _is_cancelled()


def _is_cancelled() -> bool:
    """Whether the calling task is cancelled, in anyio's way or by `asyncio.Task.cancel()`."""
    if on_asyncio():
        import asyncio

        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return True
    try:
        return current_effective_deadline() == -inf
    except RuntimeError:
        return False


def on_asyncio() -> bool:
    """Whether the calling task runs on asyncio; False on trio and outside of any loop."""
    if _on_trio():
        return False
    import asyncio

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _on_trio() -> bool:
    # Not imported: where another thread is about to load trio, that could fail both.
    in_trio_task: Callable[[], bool] | None = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return in_trio_task is not None and in_trio_task()


def _open() -> Mailbox:
    if sys.is_finalizing():
        raise RuntimeError("the interpreter ends, and the threads that would do this run no more")
    if _on_trio():
        from trio.lowlevel import current_trio_token

        return _TrioMailbox(current_trio_token())
    import asyncio

    return _AsyncioMailbox(asyncio.get_running_loop())


def _after_fork() -> None:
    _thread.mailbox = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
