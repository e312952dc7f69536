"""Sync calls of async code: the generated sync methods, `run_sync`, and the one background event loop.

The logic is in the async methods. A sync method `read` is generated from the `aread` of the same class, so that
`super().read()` in an override calls the base class, and an override runs once, whichever method is called. If a class
defines only `read`, its `aread` is generated, and runs `read` in a worker thread. Sync methods that `read` calls there
run their async calls on the event loop that waits for this thread.
"""

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import anyio
from anyio.lowlevel import RunVar, checkpoint

from deepfs.threads.background import BackgroundCall, background_loop
from deepfs.threads.loop_bridge import LoopCallbacks, finish, loop_callbacks, runs_loop, this_thread
from deepfs.threads.pool import is_worker

__all__ = [
    "BLOCKS_INLINE",
    "OPERATIONS",
    "RUNS_INLINE",
    "call_sync",
    "in_thread",
    "is_inline",
    "name_like",
    "run_shielded",
    "run_sync",
    "shim",
    "sync_shims",
    "yield_to_loop",
]

P = ParamSpec("P")
T = TypeVar("T")
ClassT = TypeVar("ClassT", bound=type)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

OPERATIONS: Final = (
    "ls",
    "read",
    "read_raw",
    "write",
    "edit",
    "glob",
    "grep",
    "delete",
    "move",
    "copy",
    "upload_files",
    "download_files",
    "execute",
)
"""The names of the sync methods; those of the async methods have the prefix `a`."""


# --- calls on the background loop ---


async def _await(function: Callable[..., Awaitable[T]] | Awaitable[T], args: Any, kwargs: Any) -> T:
    return await (function(*args, **kwargs) if callable(function) else function)


def _discard(function: object) -> None:
    """Close a coroutine that will not run, to avoid the warning that it was never awaited."""
    if inspect.iscoroutine(function) and inspect.getcoroutinestate(function) == inspect.CORO_CREATED:
        function.close()


@overload
def run_sync(function: Awaitable[T], /) -> T: ...


@overload
def run_sync(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


def run_sync(function: Callable[..., Awaitable[T]] | Awaitable[T], /, *args: Any, **kwargs: Any) -> T:
    """Run an async callable with its arguments, or a coroutine, and return its result.

    It runs on deepfs's background event loop with the caller's context variables, so objects bound to a loop stay
    usable from call to call, and callers in several threads run concurrently. An interrupt of the caller (Ctrl-C)
    cancels the call and waits for its end. If no thread can be started any more, as in handlers of `atexit`, the call
    runs on a new loop in the calling thread. It works in signal handlers and finalisers.

    Args:
        function: The async callable, or the coroutine.
        args: The positional arguments of the callable.
        kwargs: The keyword arguments of the callable.

    Returns:
        What the callable or coroutine returned.

    Raises:
        RuntimeError: The call could only wait for itself: it was made on the background loop or on a worker thread of
            deepfs, where a finaliser may run, or in a signal handler that interrupted the start of that loop. Or the
            interpreter shuts down. Or the loop ended during the call, which happens if time is patched; the next call
            starts it again.
    """
    loop = background_loop()
    try:
        if loop.is_here():
            raise RuntimeError("run_sync was called on deepfs's own event loop: await the async method instead")
        if is_worker():
            raise RuntimeError("a finaliser called run_sync on a thread that does deepfs's own work")
        if sys.is_finalizing():
            raise RuntimeError("run_sync was called as the interpreter ends, when event loops and threads run no more")
        call = BackgroundCall(functools.partial(_await, function, args, kwargs))
        running = loop.take(call)
    except RuntimeError:
        _discard(function)
        raise
    if running is None:
        return anyio.run(_await, function, args, kwargs)
    try:
        return call.wait(running)
    finally:
        _discard(function)


# --- inline calls ---


def _run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop, and return its result."""
    outer, this_thread.is_inline = this_thread.is_inline, True
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    finally:
        this_thread.is_inline = outer
        coroutine.close()
    raise RuntimeError("a backend that declares is_synchronous waited; declare is_synchronous = False in its class")


def _step_out(method: Callable[[], T]) -> T:
    """Call a sync override from within an inline call. It may block and start event loops, unlike that call."""
    this_thread.is_inline = False
    try:
        return method()
    finally:
        this_thread.is_inline = True


def is_inline() -> bool:
    """Whether the caller runs without an event loop, so that nothing in it may wait."""
    return this_thread.is_inline


async def yield_to_loop() -> None:
    """Let other tasks run and cancellation arrive; does nothing in a call without an event loop."""
    if not this_thread.is_inline:
        await checkpoint()


async def run_shielded(change: Callable[[], Awaitable[T]]) -> T:
    """Run a change of storage to its end, even if the calling task is cancelled meanwhile.

    So a change that has begun is made as a whole. In a call without an event loop nothing can be cancelled.
    """
    return await (change() if this_thread.is_inline else finish(change))


async def _in_own_task(call: Callable[[], Awaitable[T]]) -> T:
    """Make an async call in a task of its own, which is cancelled with this one, and wait for its end in any case."""
    outcome: Future[T] = Future()

    async def run() -> None:
        try:
            outcome.set_result(await call())
        except anyio.get_cancelled_exc_class() as error:
            outcome.set_exception(error)  # The task group drops it, and it may come from other work.
            raise
        except BaseException as error:
            outcome.set_exception(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    return outcome.result()


# --- sync methods off the loop ---

_THREADS: Final = 40
"""The most sync methods of one depth that a loop runs at once."""

_depth: ContextVar[int] = ContextVar("deepfs_depth", default=0)
"""The number of nested sync methods, each in a thread, that wait for the current call."""

_limiters: "RunVar[defaultdict[int, anyio.CapacityLimiter]]" = RunVar("deepfs_limiters")


def _limiter() -> "anyio.CapacityLimiter":
    """The limiter of the current depth. Each depth has its own, so calls wait only for deeper ones: no deadlock."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = defaultdict(lambda: anyio.CapacityLimiter(_THREADS))
        _limiters.set(limiters)
    return limiters[_depth.get()]


def _work(loop: LoopCallbacks, method: Callable[[], T]) -> T:
    _depth.set(_depth.get() + 1)  # In the thread's own copy of the context.
    this_thread.served = loop
    try:
        loop.enter_thread()
        return method()
    finally:
        loop.leave_thread()
        this_thread.served = None


async def _in_worker(method: Callable[[], T]) -> T:
    """Run a sync method in a worker thread.

    Cancelled by anyio or asyncio, it cancels the async calls that the method makes, and waits until the method ends.
    """
    from anyio.to_thread import run_sync as run_in_thread

    # Only a task group waits for the thread in every case, even after `asyncio.Task.cancel()`.
    return await _in_own_task(lambda: run_in_thread(_work, loop_callbacks(), method, limiter=_limiter()))


async def in_thread(method: Callable[[], T]) -> T:
    """Run a sync method that may block in a worker thread; in a call without an event loop, in this thread."""
    return _step_out(method) if this_thread.is_inline else await _in_worker(method)


_LARGE: Final = 10_000


async def in_thread_if_large(size: int, method: Callable[[], T]) -> T:
    """Run a sync method that works on about `size` characters; on many in a worker thread, so that other tasks run."""
    return await in_thread(method) if size > _LARGE else method()


def _on_served_loop(loop: LoopCallbacks, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async call, made in a worker thread, on the event loop that the worker serves."""
    from anyio.from_thread import run

    loop.leave_thread()  # It waits for the loop, perhaps for ever if that is closed.
    try:
        return run(coroutine)
    finally:
        loop.enter_thread()


# --- the generated methods ---


def name_like(method: Callable[..., Any], like: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`method` with the metadata and signature of `like`, and the name `name`."""
    functools.update_wrapper(method, like)
    method.__dict__.pop("__wrapped__")
    method.__dict__.pop("__isabstractmethod__", None)
    method.__name__ = name
    method.__qualname__ = f"{like.__qualname__.rpartition('.')[0]}.{name}"
    method.__dict__["__signature__"] = inspect.signature(like)
    return method


def call_sync(backend: object, call: Callable[[], Coroutine[Any, Any, T]], name: str, instead: str) -> T:
    """Run an async call that waits only for `backend`, in the way the sync methods of `backend` run theirs.

    Args:
        backend: The backend that the call waits for.
        call: Makes the async call.
        name: The call that the user made, for the error text.
        instead: The call to await instead, for the error text.

    Raises:
        RuntimeError: The call could only wait for itself.
    """
    if getattr(backend, "is_synchronous", False):
        return _run_inline(call())
    is_bound = getattr(backend, "bound_to_this_thread", None)
    if background_loop().is_here() or (is_bound is not None and is_bound()):
        raise RuntimeError(f"{name} would block the event loop that has to do its work: await {instead} instead")
    return run_sync(call) if this_thread.served is None else _on_served_loop(this_thread.served, call)


RUNS_INLINE: Final = "runs_inline"
"""The mark of an async method that waits for nothing where `is_inline()`: its sync method runs in its thread."""
BLOCKS_INLINE: Final = "blocks_inline"
"""The mark of an async method that blocks where `is_inline()`: its sync method runs in its thread, but not where an
event loop runs, which it would block."""


def shim(amethod: Callable[..., Coroutine[Any, Any, Any]], name: str) -> Callable[..., Any]:
    """A sync method that calls `amethod` itself, not an override of it in the class of `self`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "is_synchronous", False):  # As `call_sync` does, but faster.
            return call_inline(self, *args, **kwargs)
        owner = type(self).__name__
        bound = functools.partial(amethod, self, *args, **kwargs)
        return call_sync(self, bound, f"{owner}.{name}()", f"{owner}.a{name}()")

    def call_inline(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run_inline(amethod(self, *args, **kwargs))

    def call_off_loops(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (call if runs_loop() else call_inline)(self, *args, **kwargs)

    if getattr(amethod, BLOCKS_INLINE, False):
        return name_like(call_off_loops, amethod, name)
    return name_like(call_inline if getattr(amethod, RUNS_INLINE, False) else call, amethod, name)


def _ashim(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An async method that calls the sync `method`, which may block."""

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(functools.partial(method, self, *args, **kwargs))

    return name_like(call, method, f"a{name}")


def sync_shims(cls: ClassT) -> ClassT:
    """Add to `cls` the sync method of each async operation that it defines, and the async method of each sync one.

    If a class defines both, they stay as they are. Subclasses of `BackendProtocol` get this without the decorator.
    """
    for name in OPERATIONS:
        method, amethod = cls.__dict__.get(name), cls.__dict__.get(f"a{name}")
        if amethod is not None and method is None:
            setattr(cls, name, shim(amethod, name))
        elif method is not None and amethod is None:
            setattr(cls, f"a{name}", _ashim(method, name))
    return cls
