"""Threads and locks of the operating system, also where gevent puts its own in the place of Python's, and forks.

Those of gevent belong to one thread, and raise an error where they would have to wait for another one. A forked child
has the memory of its parent, but none of the threads that used it, so there some things begin anew.
"""

import logging  # noqa: F401 -- its hook takes a lock that steps may need, so ours, which runs before, is added later
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

_gevent: Any = sys.modules.get("gevent.monkey")


def _original(module: str, name: str) -> Any:
    return getattr(import_module(module), name) if _gevent is None else _gevent.get_original(module, name)


if TYPE_CHECKING:
    from queue import SimpleQueue as SimpleQueue
    from threading import Lock as Lock
    from threading import RLock as RLock
    from threading import get_ident as get_ident
else:
    Lock = _original("threading", "Lock")
    RLock = _original("threading", "RLock")
    get_ident = _original("threading", "get_ident")
    SimpleQueue = _original("queue", "SimpleQueue")


def start_thread(target: Callable[[], object], name: str) -> None:
    """Start a daemon thread of this name, which gevent has for greenlets only. RuntimeError if none can be started."""
    if _gevent is None:
        threading.Thread(target=target, name=name, daemon=True).start()
    else:
        _original("_thread", "start_new_thread")(target, ())


# --- forks ---


FunctionT = TypeVar("FunctionT", bound=Callable[[], None])

_PATIENCE_S: Final = 2.0
"""Seconds that a fork waits at most for the steps of other threads."""
_ATTEMPT_S: Final = 0.01
"""Seconds after which it lets go of the locks that it has: others may need them before they give theirs back."""


def after_fork(function: FunctionT) -> FunctionT:
    """Have `function` called in each forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


class ForkSafeLock:
    """A lock between threads, for steps that wait for nothing else.

    A fork waits for the end of such steps, so that the child does not find them half done. If one takes too long, its
    lock is free in the child all the same. The lock is reentrant, since a signal handler may interrupt a step of its
    own thread.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, timeout: float = -1) -> bool:
        """Wait for the lock, at most `timeout` seconds if that is not negative; return whether this thread has it."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock. RuntimeError if this thread does not hold it."""
        self._lock.release()

    def forget_threads(self, *, is_held: bool) -> None:
        """Forget the threads of the parent, in a forked child. With `is_held`, the one thread there has the lock."""
        if not is_held:
            self._lock = RLock()


_locks: "WeakSet[ForkSafeLock]" = WeakSet()


class _ForkLocal(threading.local):
    def __init__(self) -> None:
        self.held: list[list[ForkSafeLock]] = []
        """The locks that the thread took for each fork that it makes: a signal handler may fork within another one."""


_here = _ForkLocal()


def _before_fork() -> None:
    held: list[ForkSafeLock] = []
    _here.held.append(held)
    until = monotonic() + _PATIENCE_S
    while not all(_take(lock, held, _ATTEMPT_S) for lock in list(_locks)):
        _release(held)
        if monotonic() >= until:
            for lock in list(_locks):
                _take(lock, held, 0)
            return


def _take(lock: ForkSafeLock, held: list[ForkSafeLock], timeout: float) -> bool:
    taken = lock.acquire(timeout)
    if taken:
        held.append(lock)
    return taken


def _release(held: list[ForkSafeLock]) -> None:
    while held:
        held[-1].release()
        del held[-1]


def _end_fork() -> None:
    if _here.held:
        _release(_here.held[-1])
        del _here.held[-1]


@after_fork
def _after_fork() -> None:
    held = {id(lock) for locks in _here.held for lock in locks}
    for lock in list(_locks):
        lock.forget_threads(is_held=id(lock) in held)
    _end_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_end_fork)
