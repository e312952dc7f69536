"""Threads that carry out blocking calls: a fair queue, and as few workers as the calls need."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic, process_time, sleep
from typing import Any, Generic, TypeVar

from deepfs.threads.loop_bridge import Mailbox

__all__ = ["Job", "Lane", "is_worker"]

T = TypeVar("T")

_HOLD_BACK = 0.003
"""Seconds for which a finished job may wait for others to wake the loop with it."""
_TICK = 0.005
"""Seconds between two looks of the watcher."""
_QUICK = 5
"""Jobs that one worker finishes between two looks where they are tiny."""
_STALLED = 20
"""Looks in a row that saw no job finished, after which a busy interpreter is no excuse."""
_QUIET = 20
"""Idle looks in a row after which the watcher sleeps."""


class _Here(threading.local):
    is_worker = False
    """The calling thread is one of this module."""


_here = _Here()


def is_worker() -> bool:
    """Whether the calling thread is one of a lane, so that what waits here for a lane may wait for itself."""
    return _here.is_worker


class Job(Generic[T]):
    """A call, from its submission to its outcome; `finish` is then run on the loop that waits for it."""

    __slots__ = ("_claim", "_error", "_function", "_value", "finish", "home", "turn")
    _value: T

    def __init__(
        self, home: Mailbox, finish: Callable[[], object], function: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        self.home: Mailbox = home
        self.turn: object = home.turn()
        self.finish: Callable[[], object] = finish
        self._function = function
        # Whoever pops its arguments decides the job's fate; popping is atomic.
        self._claim = [args]
        self._error: BaseException | None = None

    def withdraw(self) -> bool:
        """Keep the call from being made; whether it was in time."""
        return self._take() is not None

    def run(self) -> bool:
        """Make the call, unless it was withdrawn."""
        args = self._take()
        if args is None:
            return False
        try:
            self._value = self._function(*args)
        except BaseException as error:
            self._error = error
        return True

    def result(self) -> T:
        """What the call returned or raised."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # The traceback holds this frame: no cycle through the job.

    def _take(self) -> tuple[Any, ...] | None:
        try:
            return self._claim.pop()
        except IndexError:
            return None


class _Turns:
    """Jobs in order, the groups that were submitted in one turn of a loop served by turns, one job each.

    Of one group `most` jobs run at a time; what its others wait for keeps no other group waiting.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._groups: dict[object, deque[Job[Any]]] = {}
        self._ring: deque[object] = deque()
        self._running: dict[object, int] = {}

    def __bool__(self) -> bool:
        """Whether there is a job that may run now."""
        return any(map(self._may_run, self._ring))

    def _may_run(self, turn: object) -> bool:
        return self._running.get(turn, 0) < self._most

    def put(self, job: Job[Any]) -> None:
        group = self._groups.get(job.turn)
        if group is None:
            group = self._groups[job.turn] = deque()
            self._ring.append(job.turn)
        group.append(job)

    def pop(self) -> Job[Any] | None:
        """The next job, which counts as running until it is `ended`; None where none may run."""
        for _ in range(len(self._ring)):
            turn = self._ring[0]
            if self._may_run(turn):
                return self._taken(turn)
            self._ring.rotate(-1)
        return None

    def _taken(self, turn: object) -> Job[Any]:
        group = self._groups[turn]
        job = group.popleft()
        if group:
            self._ring.rotate(-1)
        else:
            del self._groups[self._ring.popleft()]
        if self._most != inf:
            self._running[turn] = self._running.get(turn, 0) + 1
        return job

    def ended(self, job: Job[Any]) -> None:
        """Count a job as running no longer."""
        if self._most != inf:
            left = self._running.pop(job.turn) - 1
            if left:
                self._running[job.turn] = left


class Lane:
    """A queue of jobs and the daemon threads that work on it.

    Up to `core` workers are started as jobs come in and stay. With a higher `limit`, a watcher adds workers while jobs
    wait for slow ones, since then the workers wait for a device and not for the interpreter; those end with the rush.
    Of the jobs of one turn no more than `most` run at a time.
    """

    def __init__(self, name: str, *, core: int, limit: int, most: float = inf) -> None:
        self._name = name
        self._core = core
        self._limit = limit
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        # Event loops only put into the inbox. The lock is for workers, and for a loop that starts one.
        self._lock = threading.RLock()
        self._turns = _Turns(most)
        self._workers = 0
        self._idle = 0
        self._unsent: dict[Mailbox, None] = {}
        self._finished = 0  # By estimate: counted without the lock.
        self._hold_back = _HOLD_BACK if limit > core else 0.0
        self._has_watcher = limit == core
        self._is_watched = limit == core
        self._alarm: SimpleQueue[None] = SimpleQueue()

    def submit(self, job: Job[Any]) -> None:
        """Have `job` run; never blocks. RuntimeError where no thread can be started, or the interpreter ends."""
        if sys.is_finalizing():
            raise RuntimeError("the interpreter ends, and the threads that would do this run no more")
        if self._workers < self._core:
            self._begin()
        self._inbox.put(job)

    # --- workers ---

    def _begin(self) -> None:
        with self._lock:
            if not self._has_watcher:
                self._start(self._watch)
                self._has_watcher = True
            if not self._workers:
                self._hire()
            elif self._workers < self._core:
                with suppress(RuntimeError):  # No more threads to be had; those that there are do the work.
                    self._hire()

    def _hire(self) -> None:
        with self._lock:
            self._start(self._work)
            self._workers += 1

    def _start(self, target: Callable[[], None]) -> None:
        threading.Thread(target=_as_worker, args=(target,), name=f"deepfs-{self._name}", daemon=True).start()

    def _work(self) -> None:
        self._call_watcher()
        sent = monotonic()
        job: Job[Any] | None = None
        while True:
            job = self._next(job)
            if job is None:
                self._send()
                if not self._wait():
                    return
                sent = monotonic()
                continue
            if job.run():
                self._finished += 1
                job.home.put(job.finish)
                self._unsent[job.home] = None
                if monotonic() - sent >= self._hold_back:
                    self._send()
                    sent = monotonic()

    def _next(self, ended: Job[Any] | None) -> Job[Any] | None:
        with self._lock:
            if ended is not None:
                self._turns.ended(ended)
            if not self._inbox.empty():
                self._sort_inbox()
            job = self._turns.pop()
            if self._idle and self._turns and self._workers - self._idle < self._core:
                self._inbox.put(None)
            return job

    def _sort_inbox(self) -> None:
        for _ in range(self._inbox.qsize()):
            try:
                self._sort(self._inbox.get_nowait())
            except Empty:  # Idle workers take from the inbox, too.
                break

    def _sort(self, job: Job[Any] | None) -> None:
        if job is not None:
            self._turns.put(job)

    def _wait(self) -> bool:
        """Wait until there may be a job; False where enough workers wait already."""
        with self._lock:
            if self._idle >= self._core:
                self._workers -= 1
                return False
            self._idle += 1
        job = self._inbox.get()
        with self._lock:
            self._idle -= 1
            self._sort(job)
        self._call_watcher()
        return True

    def _send(self) -> None:
        with suppress(KeyError):  # Another thread took the last one.
            while self._unsent:
                self._unsent.popitem()[0].flush()

    # --- the watcher ---

    def _call_watcher(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._alarm.put(None)

    def _watch(self) -> None:
        while True:
            self._alarm.get()
            self._watch_rush()
            self._is_watched = False
            if self._workers > self._idle:
                self._call_watcher()

    def _watch_rush(self) -> None:
        quiet = slow = stuck = 0
        while quiet < _QUIET:
            finished, due, worked = self._finished, monotonic() + _TICK, process_time()
            sleep(_TICK)
            # More threads would only make it worse for an interpreter that is busy, or that wakes this one late.
            is_contended = monotonic() - due > _TICK / 5 or process_time() - worked > _TICK / 2
            self._send()  # What a worker finished before the job that now keeps it.
            busy, done = self._workers - self._idle, self._finished - finished
            quiet = 0 if busy else quiet + 1
            slow = slow + 1 if done < _QUICK * busy else 0
            stuck = stuck + 1 if busy and not done else 0
            if stuck >= _STALLED or (slow > 1 and not is_contended):
                self._add_worker()

    def _add_worker(self) -> None:
        if not self._turns and self._inbox.empty():
            return
        if self._idle:
            self._inbox.put(None)
        elif self._workers < self._limit:
            with suppress(RuntimeError):  # No more threads to be had; the next look tries again.
                self._hire()


def _as_worker(target: Callable[[], None]) -> None:
    _here.is_worker = True
    target()
