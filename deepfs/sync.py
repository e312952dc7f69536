"""Sync calls of async code: the generated sync methods, `run_sync`, and the one background event loop.

Async is where the logic is. A sync method `read` is made from the `aread` of the same class, so `super().read()` in an
override reaches the class above and an override is hit once, whoever calls. A class that defines only `read` gets its
`aread` made the other way, run in a worker thread.
"""

import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

__all__ = ["OPERATIONS", "breathe", "is_inline", "run_sync", "shielded", "sync_shims"]

P = ParamSpec("P")
T = TypeVar("T")
ClassT = TypeVar("ClassT", bound=type)

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
"""The sync names; with the prefix `a` they are the async ones."""

_inline: ContextVar[bool] = ContextVar("deepfs_inline", default=False)


# --- the background loop ---


class _BackgroundLoop:
    """One daemon thread with an event loop, started on first use; a forked child starts its own."""

    def __init__(self) -> None:
        self.start_lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.portal: anyio.from_thread.BlockingPortal | None = None

    def get(self) -> anyio.from_thread.BlockingPortal:
        if self.portal is None:
            with self.start_lock:
                if self.portal is None:
                    self.portal = self.start()
        return self.portal

    def start(self) -> anyio.from_thread.BlockingPortal:
        started: Future[anyio.from_thread.BlockingPortal] = Future()

        async def serve() -> None:
            async with anyio.from_thread.BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        self.thread = threading.Thread(target=anyio.run, args=(serve,), name="deepfs-sync", daemon=True)
        self.thread.start()
        return started.result()


_background = _BackgroundLoop()


def _forget_after_fork() -> None:
    global _background
    _background = _BackgroundLoop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


async def _call(function: Callable[..., Awaitable[T]] | Awaitable[T], args: Any, kwargs: Any) -> T:
    return await (function(*args, **kwargs) if callable(function) else function)


def run_sync(function: Callable[P, Awaitable[T]] | Awaitable[T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an async callable with its arguments, or a coroutine, and return its result.

    It runs on deepfs's background event loop with the caller's context variables, so objects bound to a loop stay
    usable from call to call, and callers in several threads run concurrently. An interrupt of the caller cancels the
    call. Raises RuntimeError on the background loop itself, where it could only wait for itself.
    """
    background = _background
    portal = background.get()
    if background.thread is threading.current_thread():
        if inspect.iscoroutine(function):
            function.close()
        raise RuntimeError("run_sync was called on deepfs's own event loop: await the async method instead")
    future = portal.start_task_soon(_call, function, args, kwargs)
    try:
        return cast("T", future.result())
    except BaseException:
        future.cancel()
        raise


# --- inline calls ---


def _run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, without an event loop."""
    token = _inline.set(True)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    finally:
        _inline.reset(token)
        coroutine.close()
    raise RuntimeError("a backend that declares never_waits waited; declare never_waits = False in its class")


def is_inline() -> bool:
    """Whether this call runs without an event loop, so that nothing in it may wait."""
    return _inline.get()


async def breathe() -> None:
    """Let other tasks run and cancellation arrive; does nothing in a call without an event loop."""
    if not _inline.get():
        await anyio.lowlevel.checkpoint()


def shielded() -> AbstractContextManager[object]:
    """Hold cancellation back, so that a change of storage is wholly done or wholly not."""
    return nullcontext() if _inline.get() else anyio.CancelScope(shield=True)


# --- the generated methods ---


def _named(method: Callable[..., Any], like: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`method` with the metadata and signature of `like`, under another name."""
    functools.update_wrapper(method, like)
    method.__dict__.pop("__wrapped__")
    method.__dict__.pop("__isabstractmethod__", None)
    method.__name__ = name
    method.__qualname__ = f"{like.__qualname__.rpartition('.')[0]}.{name}"
    method.__dict__["__signature__"] = inspect.signature(like)
    return method


def _refuse_on_home_loop(backend: Any, name: str) -> None:
    """Waiting here for a loop that runs in this very thread would never end."""
    if backend.bound_to_this_thread():
        raise RuntimeError(
            f"{type(backend).__name__}.{name}() would block the event loop that its storage is bound to: "
            f"await {type(backend).__name__}.a{name}() instead"
        )


def _shim(amethod: Callable[..., Coroutine[Any, Any, Any]], name: str) -> Callable[..., Any]:
    """The sync method over `amethod`, which is called as it is, not through `self`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.never_waits:
            return _run_inline(amethod(self, *args, **kwargs))
        _refuse_on_home_loop(self, name)
        return run_sync(amethod, self, *args, **kwargs)

    return _named(call, amethod, name)


def _off_loop(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The async method over a sync `method` that may block."""

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await anyio.to_thread.run_sync(functools.partial(method, self, *args, **kwargs))

    return _named(call, method, f"a{name}")


def sync_shims(cls: ClassT) -> ClassT:
    """Give `cls` the sync method of each async operation that it defines, and the async one of each sync one.

    Both, where both are defined, stay as they are. Subclasses of `BackendProtocol` get this without the decorator.
    """
    for name in OPERATIONS:
        method, amethod = cls.__dict__.get(name), cls.__dict__.get(f"a{name}")
        if amethod is not None and method is None:
            setattr(cls, name, _shim(amethod, name))
        elif method is not None and amethod is None:
            setattr(cls, f"a{name}", _off_loop(method, name))
    return cls
