"""Worker threads and the jobs that they run: short jobs in batches, and long ones that take turns."""

import logging
import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty
from time import monotonic, process_time, sleep
from typing import Any, Generic, TypeVar

from deepfs.threads.deadline import Deadline, current
from deepfs.threads.fair_queue import FairQueue
from deepfs.threads.loop_bridge import Claim, LoopCallbacks
from deepfs.threads.native import RLock, SimpleQueue, start_thread

__all__ = ["Job", "WorkerPool", "is_worker"]

T = TypeVar("T")

_log = logging.getLogger("deepfs")

_HOLD_BACK = 0.003
"""Seconds after which a worker that has more jobs wakes the loops; until then results wait to share one wake-up.

If a job takes long, the watcher wakes the loops at its next check, usually within 5 ms.
"""
_TICK = 0.005
"""Seconds between two checks of the watcher."""
_QUICK = 5
"""Jobs that one worker finishes between two checks if they are tiny."""
_STALLED = 20
"""Checks in a row without a finished job, after which a worker is added even if the interpreter is busy."""
_QUIET = 20
"""Idle checks in a row after which the watcher sleeps."""
_TURN_S = 0.02
"""Seconds for which a job runs while others wait. To change the job takes some 50 µs."""


class _Here(threading.local):
    is_worker = False
    """Whether the calling thread belongs to a pool."""


_here = _Here()


def is_worker() -> bool:
    """Whether the calling thread belongs to a pool; if it waited for a pool, it might wait for itself."""
    return _here.is_worker


class Job(Generic[T]):
    """A submitted call and its outcome.

    After the call, `ended` is called on the worker thread. It returns the callbacks of a loop that the worker must wake
    soon, or None.
    """

    __slots__ = ("_claim", "_error", "_function", "_value", "ended", "group", "has_thread")
    _value: T

    def __init__(
        self,
        group: Hashable,
        ended: Callable[[], LoopCallbacks | None],
        function: Callable[..., T],
        args: tuple[Any, ...],
    ) -> None:
        self.group: Hashable = group
        """The key of the group that the job belongs to."""
        self.ended: Callable[[], LoopCallbacks | None] = ended
        self.has_thread: bool = False
        """Whether a thread keeps the job, which was interrupted at least once."""
        self._function = function
        self._claim = Claim(args)
        self._error: BaseException | None = None

    def withdraw(self) -> bool:
        """Prevent the call; return False if it has begun already."""
        return self._claim.take() is not None

    def run(self) -> bool:
        """Make the call and return True; return False if it was withdrawn."""
        args = self._claim.take()
        if args is None:
            return False
        try:
            self._value = self._function(*args)
        except BaseException as error:
            self._error = error
        return True

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # The traceback refers to this frame; without this, the job and its error would be a cycle.


class _JobTurn:
    """The turn of a job: when it is over, the place among the workers goes to the next job that waits."""

    def __init__(self, workers: "WorkerPool", job: Job[Any]) -> None:
        self.job: Job[Any] = job
        self.ends_at: float = monotonic() + _TURN_S
        self.has_place: bool = True
        """Whether the thread counts as a worker. A job that is over finishes without, so that it ends soon."""
        self.resumed: SimpleQueue[bool] = SimpleQueue()
        """Where the thread waits while the job is interrupted; True means that it is a worker again."""
        self._workers = workers

    def end(self, deadline: Deadline) -> None:
        if self._workers.interrupt(self):
            self._wait(deadline)
        self.ends_at = monotonic() + _TURN_S

    def _wait(self, deadline: Deadline) -> None:
        parts = deadline.parts
        for part in parts:
            part.waiting = self.resumed
            part.pause()
        try:
            self.has_place = self._is_resumed(deadline)
        finally:
            for part in parts:
                part.waiting = None
                part.resume()

    def _is_resumed(self, deadline: Deadline) -> bool:
        """Wait for the next turn of the job; return False if it finishes without one."""
        while True:
            if deadline.is_over() and self._workers.finish_without_place(self):
                return False
            if self.resumed.get():
                return True


class WorkerPool:
    """A queue of jobs and the daemon threads that run them.

    Up to `core` workers are started as jobs come in, and stay. With a higher `limit`, a watcher adds workers while jobs
    wait behind slow ones, since the workers then wait for a device and not for the interpreter. Added workers end when
    they find no job. At most `most` jobs of one group run at a time.

    With `threads`, jobs take turns: one that checks its deadline when its turn is over is interrupted if others wait.
    Its thread then waits, and does not count as a worker, until it is the turn of its group again. `threads` is the
    most threads, waiting ones included.

    A worker that has more jobs puts off waking the loops for some milliseconds. Each wake-up makes the loop compete
    with the worker for the interpreter; one for each of many tiny jobs would take longer than the jobs.
    """

    def __init__(self, name: str, *, core: int, limit: int, most: float = inf, threads: int = 0) -> None:
        self._name = name
        self._core = core
        self._limit = limit
        self._most_threads = threads
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        # Event loops only put into the inbox. The lock is for workers, and for a loop that starts one.
        self._lock = RLock()
        self._turns: FairQueue[Job[Any]] = FairQueue(most)
        self._workers = 0
        self._idle = 0
        self._placed: set[_JobTurn] = set()
        self._interrupted: dict[Job[Any], _JobTurn] = {}
        self._spare = 0
        self._for_spare: SimpleQueue[Job[Any]] = SimpleQueue()
        self._unwoken: dict[LoopCallbacks, None] = {}
        # Wake-ups are put off only where a watcher wakes the loops if a job takes long, and jobs are mostly short.
        self._hold_back = _HOLD_BACK if limit > core and not threads else 0.0
        self._finished = 0  # An estimate, since it is counted without the lock.
        self._is_contended = False
        # A pool that adds no workers needs no watcher: it counts as started, and as called.
        self._has_watcher = limit == core
        self._is_watched = limit == core
        self._alarm: SimpleQueue[None] = SimpleQueue()

    def submit(self, job: Job[Any]) -> None:
        """Queue `job`; never blocks. RuntimeError if no thread can be started or the interpreter shuts down."""
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
                with suppress(RuntimeError):  # No more threads can be started; the existing ones do the work.
                    self._hire()

    def _hire(self) -> None:
        with self._lock:
            self._start(self._work)
            self._workers += 1

    def _start(self, target: Callable[[], None]) -> None:
        start_thread(partial(_as_worker, target), f"deepfs-{self._name}")

    def _work(self, job: Job[Any] | None = None) -> None:
        """Run `job` and then others, as long as this thread is a worker or a spare one."""
        self._call_watcher()
        woken = monotonic()
        ended: Job[Any] | None = None
        while True:
            job = job or self._next(ended)
            if job is None:
                self._wake_loops()
                if not self._wait():
                    return
                woken, ended = monotonic(), None
            elif not job.has_thread and self._run(job):
                if monotonic() - woken >= self._hold_back:
                    self._wake_loops()
                    woken = monotonic()
                ended, job = job, None
            else:  # Another thread is the worker now.
                self._wake_loops()
                job = self._spare_job()
                if job is None:
                    return
                woken, ended = monotonic(), None

    def _run(self, job: Job[Any]) -> bool:
        """Run a job; return whether this thread is a worker afterwards."""
        turn = None
        if self._most_threads:
            turn = current.turn = _JobTurn(self, job)
            self._placed.add(turn)
        if job.run():
            self._finished += 1
            loop = job.ended()
            if loop is not None:
                self._unwoken[loop] = None
        if turn is None:
            return True
        current.turn = None
        return self._end_turns(turn, job)

    def _wake_loops(self) -> None:
        while self._unwoken:
            try:
                loop, _ = self._unwoken.popitem()
            except KeyError:  # Another thread took the last one.
                return
            loop.wake()

    def _next(self, ended: Job[Any] | None) -> Job[Any] | None:
        """Return the next job. If it was interrupted, its own thread has become the worker."""
        with self._lock:
            if ended is not None:
                self._turns.ended(ended)
            if not self._inbox.empty():
                self._sort_inbox()
            job = self._turns.pop()
            if job is not None and job.has_thread:
                self._resume(job)
            self._wake_worker()
            return job

    def _wake_worker(self) -> None:
        """Have an idle worker take the next job, if one may run and fewer than `core` workers are busy."""
        if self._idle and self._turns and self._workers - self._idle < self._core:
            self._inbox.put(None)

    def _sort_inbox(self) -> None:
        for _ in range(self._inbox.qsize()):
            try:
                self._sort(self._inbox.get_nowait())
            except Empty:  # An idle worker took the job.
                break

    def _sort(self, job: Job[Any] | None) -> None:
        if job is not None:
            self._turns.put(job)

    def _wait(self) -> bool:
        """Wait until there may be a job; return False, which ends the worker, if enough workers wait already."""
        with self._lock:
            if self._turns:  # Since `_next`, when this worker was not idle yet and could not be woken.
                return True
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

    # --- turns ---

    def interrupt(self, turn: _JobTurn) -> bool:
        """Let another job run instead of one whose turn is over; return False if it goes on, since none may run."""
        with self._lock:
            self._sort_inbox()
            if turn.has_place and self._idle:
                if self._turns:
                    self._inbox.put(None)
                return False
            self._placed.discard(turn)
            self._interrupted[turn.job] = turn
            self._turns.put_back(turn.job)
            if turn.has_place and not self._pass_on(turn):
                self.finish_without_place(turn)
                self._placed.add(turn)
                return False
            self._finished += 1
            turn.job.has_thread = True
            if not turn.has_place:  # Its place went to another, which may be idle now.
                self._wake_worker()
            return True

    def _pass_on(self, turn: _JobTurn) -> bool:
        """Give the place of an interrupted job to the next one, or give it up; return False if the job keeps it."""
        if self._is_crowded(turn):
            self._workers -= 1
            return True
        has_thread = self._spare > 0 or self._workers + len(self._interrupted) <= self._most_threads
        job = self._turns.pop(inf if has_thread else 0)
        if job is turn.job:
            self._turns.put_back(job)
        return job is not None and job is not turn.job and self._place(job)

    def _is_crowded(self, turn: _JobTurn) -> bool:
        """Whether there are more workers than the interpreter can use, apart from those that are stuck."""
        if not self._is_contended or self._workers - self._idle <= self._core:
            return False
        late = monotonic() - _TURN_S
        return sum(other.ends_at > late for other in self._placed if other is not turn) >= self._core

    def _place(self, job: Job[Any]) -> bool:
        """Make the thread of `job`, or another one, the worker; return False if no thread can be started."""
        if job.has_thread:
            self._resume(job)
        elif self._spare:
            self._spare -= 1
            self._for_spare.put(job)
        else:
            try:
                self._start(partial(self._work, job))
            except RuntimeError:
                self._turns.put_back(job)
                return False
        return True

    def _resume(self, job: Job[Any]) -> None:
        turn = self._interrupted.pop(job)
        self._placed.add(turn)
        turn.resumed.put(True)

    def finish_without_place(self, turn: _JobTurn) -> bool:
        """Let an interrupted job go on although it is not its turn; return False if it is its turn already."""
        with self._lock:
            if self._interrupted.pop(turn.job, None) is None:
                return False
            self._turns.remove(turn.job)
            return True

    def _end_turns(self, turn: _JobTurn, job: Job[Any]) -> bool:
        """Note that a job has ended; return whether its thread is a worker."""
        with self._lock:
            self._placed.discard(turn)
            if not turn.has_place:
                self._turns.ended(job)
                self._wake_worker()  # For a job of the same group.
        return turn.has_place

    def _spare_job(self) -> Job[Any] | None:
        """Wait for a job that makes this thread a worker; return None, which ends it, if enough others wait already."""
        with self._lock:
            if self._spare >= self._core:
                return None
            self._spare += 1
        return self._for_spare.get()

    # --- the watcher ---

    def _call_watcher(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._alarm.put(None)

    def _watch(self) -> None:
        while True:
            self._alarm.get()
            try:
                self._watch_rush()
            finally:  # Also after an error, after which this begins anew.
                self._is_watched = False
                if self._workers > self._idle:
                    self._call_watcher()

    def _watch_rush(self) -> None:
        quiet = slow = stuck = 0
        while quiet < _QUIET:
            finished, due, worked = self._finished, monotonic() + _TICK, process_time()
            sleep(_TICK)
            # If the interpreter is busy, or wakes this thread late, more threads would only make that worse.
            self._is_contended = monotonic() - due > _TICK / 5 or process_time() - worked > _TICK / 2
            self._wake_loops()  # A worker may have put this off before a job that takes long.
            busy, done = self._workers - self._idle, self._finished - finished
            quiet = 0 if busy else quiet + 1
            slow = slow + 1 if done < _QUICK * busy else 0
            stuck = stuck + 1 if busy and not done else 0
            if stuck >= _STALLED or (slow > 1 and not self._is_contended):
                self._add_worker()

    def _add_worker(self) -> None:
        with self._lock:
            if not self._turns and self._inbox.empty():
                return
            if self._idle:
                self._inbox.put(None)
            elif self._workers < self._limit:
                with suppress(RuntimeError):  # No more threads can be started; the next check tries again.
                    self._hire()


def _as_worker(target: Callable[[], None]) -> None:
    """Run what a thread of a pool does, and begin it anew after an error: others rely on this thread."""
    _here.is_worker = True
    while True:
        try:
            target()
            return
        except Exception:
            _log.exception("A thread of deepfs's pools failed, and begins anew")
