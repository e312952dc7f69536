"""Calls awaited elsewhere than in the calling task: on another asyncio loop, to their end, or with nobody waiting.

asyncio is imported late, as in `loop_bridge.py`.
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CancelScope, current_effective_deadline

from deepfs.threads.loop_bridge import LOOK_S, loop_callbacks, on_asyncio, on_trio, running_asyncio_loop

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from deepfs.threads.loop_bridge import AsyncioLoop

T = TypeVar("T")


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
