"""Locks on paths, shared by the tasks and threads of a process whatever event loop they run on.

A lock on a path excludes locks on the same path, above it and beneath it; locks beside it go in parallel. For that it
claims the path exclusively and every directory above it, `/` included, shared.
"""

import os
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from weakref import WeakValueDictionary

from deepfs.core.lock_table import LockTable, Request
from deepfs.core.wake import mailbox, waiting_threads

__all__ = ["PathLocks", "StepLock", "path_locks"]

_FOR_ITSELF = (
    "this call could only wait for itself: what it needs is held by an operation of a thread that waits for it, such "
    "as one that a signal handler or a finaliser interrupted, or an event loop on which a sync method was called"
)


class _Hold:
    __slots__ = ("_locks", "_request", "_table")

    def __init__(self, locks: "PathLocks", paths: Iterable[str], shared: Iterable[str] = ()) -> None:
        self._locks = locks  # The registry must know them while somebody holds or waits.
        self._table = locks.table
        self._request = Request(paths, shared)

    def _enter(self) -> bool:
        self._table.enter(self._request)
        return self._request.is_granted

    def _leave(self) -> None:
        self._table.leave(self._request)

    def _check_wait(self, *threads: int) -> None:
        """Raise RuntimeError where the holder, or one that comes first, is on a thread that waits for this call."""
        waiting = waiting_threads.get().union(threads)
        if waiting and not waiting.isdisjoint(self._table.threads_before(self._request)):
            raise RuntimeError(_FOR_ITSELF)

    def _wait_blocking(self) -> None:
        self._check_wait(threading.get_ident())
        gate = threading.Lock()
        gate.acquire()
        self._request.notify = gate.release
        if not self._request.is_granted:
            gate.acquire()


class _BlockingHold(_Hold, AbstractContextManager[None]):
    def __enter__(self) -> None:
        try:
            if not self._enter():
                self._wait_blocking()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._leave()


class _AsyncHold(_Hold, AbstractAsyncContextManager[None]):
    async def __aenter__(self) -> None:
        if self._enter():
            return
        try:
            await self._wait()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    async def _wait(self) -> None:
        try:
            signal = mailbox().signal()
        except RuntimeError:
            # This coroutine is driven without an event loop, where only the thread can wait.
            self._wait_blocking()
            return
        self._check_wait()
        self._request.notify = signal.set
        if not self._request.is_granted:
            await signal.wait()


class StepLock:
    """A lock of threads, for steps that wait for nothing else."""

    __slots__ = ("_inside", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[int, None] = {}
        """The threads that hold it, or are about to."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. RuntimeError where its holder is on a thread that waits for this call, this one included."""
        me = threading.get_ident()
        if me in self._inside:
            raise RuntimeError(_FOR_ITSELF)
        self._inside[me] = None
        try:
            if not waiting_threads.get().isdisjoint(self._inside):
                raise RuntimeError(_FOR_ITSELF)
            with self._lock:
                yield
        finally:
            self._inside.pop(me, None)


class PathLocks:
    """The locks of one storage.

    Several paths are granted at once or not at all, so holders cannot deadlock each other. Requests that exclude each
    other are granted in the order of their arrival. Not reentrant: a holder never asks for what its own paths exclude.
    """

    __slots__ = ("__weakref__", "table")

    def __init__(self) -> None:
        self.table: LockTable = LockTable()

    def hold(self, *paths: str) -> AbstractAsyncContextManager[None]:
        """Hold normalised `paths` for an `async with`; does not suspend where nobody is in the way."""
        return _AsyncHold(self, paths)

    def hold_places(self, places: Iterable[Hashable], above: Iterable[Hashable]) -> AbstractAsyncContextManager[None]:
        """Hold `places`, told by any names, with all beneath them; `above` are the names of what lies above them."""
        return _AsyncHold(self, map(_name, places), map(_name, above))

    def hold_blocking(self, *paths: str) -> AbstractContextManager[None]:
        """The same for a worker thread, which it blocks."""
        return _BlockingHold(self, paths)


def _name(place: Hashable) -> str:
    # Two places of one hash exclude each other in vain, which harms nobody.
    return f"/{hash(place)}"


_known: WeakValueDictionary[Hashable, PathLocks] = WeakValueDictionary()
_known_lock = threading.RLock()


def path_locks(scope: Hashable) -> PathLocks:
    """The locks of the storage that `scope` names: the same for equal scopes, as long as somebody refers to them."""
    with _known_lock:
        found = _known.get(scope)
        if found is None:
            found = _known[scope] = PathLocks()
        return found


def _after_fork() -> None:
    """What other threads held or changed when the process forked, nobody would ever release."""
    global _known_lock
    _known_lock = threading.RLock()
    for locks in list(_known.values()):
        locks.table = LockTable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
