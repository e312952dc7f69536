"""Callbacks from other threads to an event loop, and calls awaited elsewhere than in the calling task.

This module alone distinguishes asyncio and trio.

anyio has no public function that hands work to a loop without waiting for it, so the native ones are wrapped here.
Callbacks never block: queues and flags are changed by atomic operations only. asyncio and trio are imported
late: a loop that runs has loaded its package already, and without a loop the import of asyncio would cost time.
"""

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from anyio import CancelScope, current_effective_deadline, get_cancelled_exc_class

from deepfs.threads.forks import after_fork

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from trio.lowlevel import Abort, Task, TrioToken

    AsyncioLoop: TypeAlias = asyncio.AbstractEventLoop

T = TypeVar("T")

LOOK_S: Final = 0.5
"""Seconds between two looks at whether the loop of which something is expected was closed."""
_WORK_S = 0.001
"""Seconds of its own work that a loop does before it runs other tasks."""

waiting_threads: Final[ContextVar[frozenset[int]]] = ContextVar("deepfs_waiting_threads", default=frozenset())
"""The threads, by `threading.get_ident`, that wait for the current code; waiting for one of them would never end."""


class Claim(Generic[T]):
    """A value that only the first taker gets, in any thread; never blocks, so it is safe in signal handlers."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = [value]

    def take(self) -> T | None:
        """Take the value; None if it was taken before."""
        try:
            return self._value.pop()  # Atomic.
        except IndexError:
            return None


class ThreadEvent(ABC):
    """A one-shot event that any thread sets and one task awaits, on the loop that it was made for."""

    __slots__ = ("_callbacks", "is_set")

    def __init__(self, callbacks: "LoopCallbacks") -> None:
        self._callbacks = callbacks
        self.is_set: bool = False
        """Changed on the loop's own thread only."""

    def set(self) -> None:
        """Wake the waiting task; safe from any thread, also after the loop has ended."""
        if self._callbacks.is_here():
            self.drop()
            self.fire()
        else:
            self.set_from_thread()

    def drop(self) -> None:
        """Note that the work whose end this event tells is over, or does not begin."""
        self._callbacks.outside.discard(self)

    def set_from_thread(self) -> None:
        """Like `set`, for a thread that does not run the loop."""
        self.drop()
        self._callbacks.send(self.fire)

    def set_at_next_wake(self) -> "LoopCallbacks":
        """Like `set_from_thread`, but do not wake the loop; returns the callbacks whose `wake` the caller must call."""
        self.drop()
        self._callbacks.put(self.fire)
        return self._callbacks

    @abstractmethod
    def fire(self) -> None:
        """Set the event; only called on the loop's own thread."""

    @abstractmethod
    def wait(self) -> Awaitable[None]:
        """Wait until the event is set. A cancelled wait may be repeated."""

    async def wait_shielded(self) -> None:
        """Wait until the event is set, even if the task is cancelled meanwhile."""
        with CancelScope(shield=True):
            while not self.is_set:
                # `asyncio.Task.cancel()` ignores cancel scopes and reaches through the shield.
                with suppress(get_cancelled_exc_class()):
                    await self.wait()


class Countdown:
    """Sets `event` after `steps` counts, each in any thread, so that the loop is woken only once."""

    __slots__ = ("_left", "event")

    def __init__(self, event: ThreadEvent, steps: int) -> None:
        self.event: ThreadEvent = event
        self._left = [None] * (steps - 1)

    def count(self, steps: int = 1) -> None:
        for _ in range(steps):
            try:
                self._left.pop()  # Atomic.
            except IndexError:
                self.event.set()


class LoopCallbacks(ABC):
    """Sends callbacks to one event loop; those that are sent before the loop wakes share one wake-up."""

    def __init__(self) -> None:
        self._sent: deque[Callable[[], object]] = deque()
        self._called = False
        self._turn: object | None = None
        self._worked = 0.0
        self._works = 0
        self._waiting: deque[ThreadEvent] = deque()
        self.outside: set[object] = set()
        """What stands for work that goes on elsewhere for tasks of this loop, even if the loop is closed."""

    def is_lost(self) -> bool:
        """Whether the loop was closed, and all work that its unfinished tasks had begun elsewhere is over."""
        # In this order: a closed loop begins nothing.
        return self.is_closed() and not self.outside

    def enter_thread(self) -> None:
        """Count what this thread does as `outside`, until `leave_thread`. RuntimeError if the loop was closed."""
        self.outside.add(threading.get_ident())  # Of the greenlet, where gevent runs threads as such.
        # In this order: whoever finds the loop closed, and nothing outside, can rely on this error.
        if self.is_closed():
            raise RuntimeError("the event loop that this work was for was closed")

    def leave_thread(self) -> None:
        """Note that this thread does nothing more for the loop, or waits for it."""
        self.outside.discard(threading.get_ident())

    def send(self, callback: Callable[[], object]) -> None:
        """Have the loop run `callback` after those that were sent before; safe from any thread.

        `callback` must not raise. It is dropped if the loop has ended.
        """
        self.put(callback)
        self.wake()

    def put(self, callback: Callable[[], object]) -> None:
        """Like `send`, but leave it to the next `wake` or `send` to wake the loop."""
        self._sent.append(callback)

    def wake(self) -> None:
        """Wake the loop if there are callbacks that it does not know of; safe from any thread."""
        if self._called or not self._sent:
            return
        self._called = True
        try:
            self._call(self._run_sent)
        except RuntimeError:
            self._sent.clear()
            self._called = False
        except BaseException:  # A signal handler raised this, perhaps before the loop was woken.
            self._call(self._run_sent)
            raise

    def call(self, callback: Callable[[], object]) -> None:
        """Have the loop run `callback` with a wake-up of its own.

        `send` may rely on a wake-up that another thread is about to make, and a signal handler could interrupt that
        thread first. Raises RuntimeError if the loop has ended and was not garbage-collected yet.
        """
        self._call(callback)

    def is_closed(self) -> bool:
        """Whether the loop was closed, so that its unfinished tasks never go on."""
        return False  # trio ends its tasks first.

    def turn(self) -> object:
        """A token of the loop's current turn: all that runs before the loop next polls for events gets the same one."""
        if self._turn is None:
            self._call_soon(self._end_turn)  # First: a signal handler may raise before the next line.
            self._turn = object()
        return self._turn

    def has_time(self) -> bool:
        """Whether `work` may be called in the current turn; if not, await `next_turn` before.

        A turn has a millisecond for such work, so that other tasks are not held up. What they do does not count.
        """
        return not self._waiting and self._worked < _WORK_S

    def work(self, function: Callable[..., T], *args: Any) -> T:
        """Make a call that does some work on the loop, and never waits."""
        if self._turn is None:
            self.turn()
        self._works += 1
        began = perf_counter()
        try:
            return function(*args)
        finally:
            self._worked += perf_counter() - began

    def next_turn(self) -> Awaitable[None]:
        """Wait until the loop may do some work. Callers that wait are served in their order."""
        event = self.event()
        self._waiting.append(event)
        self.turn()
        return event.wait()

    def _end_turn(self) -> None:
        self._turn = None
        if self._waiting:
            # As many as fit into the next turn if they take as long on average as those of this one.
            fitting = self._works * _WORK_S // self._worked if self._worked else 1
            for _ in range(min(len(self._waiting), max(int(fitting), 1))):
                self._waiting.popleft().fire()
            self.turn()
        self._worked, self._works = 0.0, 0

    def _run_sent(self) -> None:
        # Cleared before counting: a callback that is sent after this line schedules another run.
        self._called = False
        for _ in range(len(self._sent)):
            self._sent.popleft()()

    @abstractmethod
    def event(self) -> ThreadEvent:
        """An event for a task of this loop."""

    def end_of_work(self) -> ThreadEvent:
        """An event that is set when work elsewhere is over, which counts as `outside` until then."""
        event = self.event()
        self.outside.add(event)
        return event

    @abstractmethod
    def is_here(self) -> bool:
        """Whether the caller is a task of this loop."""

    @abstractmethod
    def _call(self, callback: Callable[[], object]) -> None:
        """Schedule from any thread; RuntimeError if the loop has ended and was not garbage-collected yet."""

    @abstractmethod
    def _call_soon(self, callback: Callable[[], object]) -> None:
        """Schedule from the loop's own thread."""


class _AsyncioEvent(ThreadEvent):
    __slots__ = ("_future", "_loop")
    _future: "asyncio.Future[None] | None"

    def __init__(self, callbacks: LoopCallbacks, loop: "asyncio.AbstractEventLoop") -> None:
        super().__init__(callbacks)
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


class _AsyncioCallbacks(LoopCallbacks):
    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        from asyncio import current_task, get_running_loop

        super().__init__()
        self._loop = ref(loop)
        self._running_loop, self._current_task = get_running_loop, current_task

    def event(self) -> ThreadEvent:
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop of these callbacks has ended")
        return _AsyncioEvent(self, loop)

    def is_here(self) -> bool:
        # Without a current task, the caller may be in a trio loop that runs as a guest of this one.
        try:
            loop = self._running_loop()
        except RuntimeError:
            return False
        return loop is self._loop() and self._current_task(loop) is not None

    def is_closed(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    def _call(self, callback: Callable[[], object]) -> None:
        if loop := self._loop():
            loop.call_soon_threadsafe(callback)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        import asyncio

        asyncio.get_running_loop().call_soon(callback)


class _TrioEvent(ThreadEvent):
    __slots__ = ("_task",)
    _task: "Task | None"

    def __init__(self, callbacks: LoopCallbacks) -> None:
        super().__init__(callbacks)
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


class _TrioCallbacks(LoopCallbacks):
    def __init__(self, token: "TrioToken") -> None:
        super().__init__()
        self._token = ref(token)

    def event(self) -> ThreadEvent:
        return _TrioEvent(self)

    def is_here(self) -> bool:
        from trio.lowlevel import current_trio_token, in_trio_task

        return in_trio_task() and current_trio_token() is self._token()

    def _call(self, callback: Callable[[], object]) -> None:
        if token := self._token():
            token.run_sync_soon(callback)

    _call_soon = _call


class _Thread(threading.local):
    loop_callbacks: LoopCallbacks | None = None
    """The callbacks used last in this thread."""
    is_inline: bool = False
    """Whether the thread runs a coroutine that must not suspend, whether or not an event loop runs there."""
    served: LoopCallbacks | None = None
    """The event loop for which the thread, a worker, runs a sync method."""


this_thread: Final = _Thread()


def loop_callbacks() -> LoopCallbacks:
    """The callbacks of the event loop that runs the calling task.

    Raises RuntimeError outside of an event loop, and at interpreter shutdown.
    """
    found = this_thread.loop_callbacks
    if found is None or not found.is_here():
        found = this_thread.loop_callbacks = _new()
    return found


def present_callbacks() -> LoopCallbacks | None:
    """Like `loop_callbacks`; None outside of an event loop."""
    found = this_thread.loop_callbacks
    if found is not None and found.is_here():
        return found
    return loop_callbacks() if runs_loop() and not sys.is_finalizing() else None


def name_asyncio() -> None:
    """Set sniffio's variable to asyncio in this context, which may be copied from a thread with another loop."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        sniffio.current_async_library_cvar.set("asyncio")


def on_asyncio() -> bool:
    """Whether the calling task runs on asyncio; False on trio and outside of any loop."""
    if on_trio():
        return False
    import asyncio

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def running_asyncio_loop() -> "AsyncioLoop | None":
    """The asyncio loop of the calling thread; None if no asyncio loop runs there, as under trio."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def runs_loop() -> bool:
    """Whether the calling thread runs an event loop."""
    return on_trio() or running_asyncio_loop() is not None


def on_trio() -> bool:
    # Not imported: while another thread is importing trio, a second import could make both fail.
    in_trio_task: Callable[[], bool] | None = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return in_trio_task is not None and in_trio_task()


def _new() -> LoopCallbacks:
    if sys.is_finalizing():
        raise RuntimeError("the interpreter ends, and the threads that would do this run no more")
    if on_trio():
        from trio.lowlevel import current_trio_token

        return _callbacks_of(current_trio_token(), _TrioCallbacks)
    import asyncio

    return _callbacks_of(asyncio.get_running_loop(), _AsyncioCallbacks)


_callbacks: WeakKeyDictionary[Any, LoopCallbacks] = WeakKeyDictionary()
"""The callbacks of each loop: what it has begun elsewhere must be known to all who ask."""


def _callbacks_of(loop: T, make: Callable[[T], LoopCallbacks]) -> LoopCallbacks:
    found = _callbacks.get(loop)
    if found is None:
        found = _callbacks.setdefault(loop, make(loop))
    return found


@after_fork
def _after_fork() -> None:
    this_thread.__dict__.clear()  # The loop that it ran, or worked for, runs in the parent only.
    _callbacks.clear()


# --- calls awaited elsewhere: on another asyncio loop, to their end, or with nobody waiting ---


async def call_on(loop: "AsyncioLoop", call: Callable[[], Coroutine[Any, Any, T]], *, finishes: bool = False) -> T:
    """Make an async call on a running asyncio `loop`, from a task of any loop.

    If the caller is cancelled, so is the call; with `finishes` the call runs to its end all the same.
    """
    import asyncio

    from anyio import to_thread

    here = running_asyncio_loop()
    if loop is here:
        return await (_outcome(_keep_task(loop, call)) if finishes and not _is_kept() else call())
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    outside = loop_callbacks().outside
    outside.add(future)
    future.add_done_callback(outside.discard)
    try:
        if here is not None:
            return await _outcome(asyncio.wrap_future(future), loop)
        return await to_thread.run_sync(_wait_for_result, future, loop, abandon_on_cancel=not finishes)
    finally:
        if not finishes and not loop.is_closed():  # A closed one cannot be told, and would log a traceback.
            future.cancel()


async def finish(call: Callable[[], Awaitable[T]]) -> T:
    """Make an async call and wait for its end, even if the calling task is cancelled meanwhile.

    On asyncio the call gets a task of its own, since `asyncio.Task.cancel()`, which LangGraph uses, ignores shields.
    """
    if on_trio():
        with CancelScope(shield=True):
            return await call()
    import asyncio

    task = _keep_task(asyncio.get_running_loop(), call)
    try:
        return await _outcome(task)
    except asyncio.CancelledError:
        await _wait_for_end(task)
        raise


def start_task(call: Callable[[], Awaitable[None]]) -> None:
    """Make an async call, which must not raise, in a task outside of all task groups and cancel scopes of the caller.

    It has the caller's context variables, and is cancelled when the event loop ends.
    """
    if on_trio():
        from trio.lowlevel import spawn_system_task

        spawn_system_task(_await, call, context=copy_context())
        return
    import asyncio

    _keep_task(asyncio.get_running_loop(), call)


def _wait_for_result(future: "Future[T]", loop: "AsyncioLoop") -> T:
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                raise
            _check_open(loop)


def _check_open(loop: "AsyncioLoop") -> None:
    if loop.is_closed():
        raise RuntimeError("the event loop that makes this call was closed before it ended")


async def _outcome(future: "asyncio.Future[T]", loop: "AsyncioLoop | None" = None) -> T:
    """What `asyncio.shield` returns or raises, without what it logs since Python 3.14: errors that nobody waits for.

    With `loop`, which must then come to the outcome, RuntimeError if it is closed.
    """
    import asyncio

    try:
        while not (await asyncio.wait([future], timeout=None if loop is None else LOOK_S))[0]:
            assert loop is not None
            _check_open(loop)
    except asyncio.CancelledError:
        future.add_done_callback(_retrieve)
        raise
    return future.result()


def _retrieve(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()  # Retrieved, or asyncio would log it.


async def _wait_for_end(task: "asyncio.Task[Any]") -> None:
    """Wait for the end of `task`, whatever its outcome, even if the calling task is cancelled again."""
    import asyncio

    with CancelScope(shield=True):
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
    _retrieve(task)


def _keep_task(loop: "AsyncioLoop", call: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
    if loop not in _kept:
        for other in [other for other in _kept if other.is_closed()]:
            _kept.pop(other, None)
    kept = _kept.setdefault(loop, set())
    task = loop.create_task(_await(call))
    kept.add(task)
    task.add_done_callback(kept.discard)
    return task


async def _await(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _is_kept() -> bool:
    """Whether the calling task is one that is not cancelled with its caller."""
    import asyncio

    task = asyncio.current_task()
    return task is not None and task in _kept.get(task.get_loop(), ())


_kept: "dict[AsyncioLoop, set[asyncio.Task[Any]]]" = {}
"""Strong references to running tasks by their loop, since asyncio holds its tasks only weakly."""


def is_stray(error: BaseException) -> bool:
    """Whether `error` is a cancellation that leaked out of other work: the calling task is not cancelled."""
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
