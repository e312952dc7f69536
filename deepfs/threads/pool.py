"""Worker threads for all blocking calls, which keep them off the event loops.

`run` and `run_each` are for short operations: each call makes a whole operation (open, read and close), not a single
system call. One worker makes these calls one by one, since with tiny calls a second thread costs more in contention for
the interpreter than it gains; if calls turn out slow, workers are added. Four functions use separate threads:
`run_long` is for scans of data in memory, `start_long` for searches that wait for a storage and could get stuck there,
`call_together` for flushes, and `run_resident` for calls that need a thread that never ends.

Callers are served fairly: the calls that a loop submits in one turn form a group, and the groups are served in
rotation, one call each. Functions do not see the caller's context variables. Results for a loop that has ended are
dropped.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic, process_time, sleep
from typing import Any, Generic, TypeVar, TypeVarTuple

from anyio import current_effective_deadline
from anyio.lowlevel import checkpoint_if_cancelled

from deepfs.threads.deadline import Deadline
from deepfs.threads.loop_bridge import Claim, Countdown, LoopCallbacks, ThreadEvent, loop_callbacks

__all__ = [
    "Job",
    "WorkerPool",
    "call_together",
    "is_worker",
    "run",
    "run_each",
    "run_isolated",
    "run_long",
    "run_resident",
    "start_long",
    "stop_if_cancelled",
    "wait_for_end",
]


T = TypeVar("T")
ItemT = TypeVar("ItemT")
ArgsT = TypeVarTuple("ArgsT")

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

    __slots__ = ("_claim", "_error", "_function", "_value", "ended", "turn")
    _value: T

    def __init__(
        self, turn: object, ended: Callable[[], LoopCallbacks | None], function: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        self.turn: object = turn
        """The key of the group that the job belongs to."""
        self.ended: Callable[[], LoopCallbacks | None] = ended
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


class _Turns:
    """A fair queue: jobs with the same `turn` form a group, and groups are served in rotation, one job each.

    At most `most` jobs of a group run at a time; its other jobs wait without holding up the other groups.
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
        """Remove and return the next job, which counts as running until `ended`; None if no job may run."""
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
        """Stop counting `job` as running."""
        if self._most != inf:
            left = self._running.pop(job.turn) - 1
            if left:
                self._running[job.turn] = left


class WorkerPool:
    """A queue of jobs and the daemon threads that run them.

    Up to `core` workers are started as jobs come in, and stay. With a higher `limit`, a watcher adds workers while jobs
    wait behind slow ones, since the workers then wait for a device and not for the interpreter. Added workers end when
    they find no job. At most `most` jobs of one group run at a time.

    A worker that has more jobs puts off waking the loops for some milliseconds. Each wake-up makes the loop compete
    with the worker for the interpreter; one for each of many tiny jobs would take longer than the jobs.
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
        self._unwoken: dict[LoopCallbacks, None] = {}
        self._hold_back = _HOLD_BACK if limit > core else 0.0  # The watcher wakes the loops if a job takes long.
        self._finished = 0  # An estimate, since it is counted without the lock.
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
        threading.Thread(target=_as_worker, args=(target,), name=f"deepfs-{self._name}", daemon=True).start()

    def _work(self) -> None:
        self._call_watcher()
        woken = monotonic()
        job: Job[Any] | None = None
        while True:
            job = self._next(job)
            if job is None:
                self._wake_loops()
                if not self._wait():
                    return
                woken = monotonic()
            elif job.run():
                self._finished += 1
                loop = job.ended()
                if loop is not None:
                    self._unwoken[loop] = None
                if monotonic() - woken >= self._hold_back:
                    self._wake_loops()
                    woken = monotonic()

    def _wake_loops(self) -> None:
        while self._unwoken:
            try:
                loop, _ = self._unwoken.popitem()
            except KeyError:  # Another thread took the last one.
                return
            loop.wake()

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
            except Empty:  # An idle worker took the job.
                break

    def _sort(self, job: Job[Any] | None) -> None:
        if job is not None:
            self._turns.put(job)

    def _wait(self) -> bool:
        """Wait until there may be a job; return False, which ends the worker, if enough workers wait already."""
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
            # If the interpreter is busy, or wakes this thread late, more threads would only make that worse.
            is_contended = monotonic() - due > _TICK / 5 or process_time() - worked > _TICK / 2
            self._wake_loops()  # A worker may have put this off before a job that takes long.
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
            with suppress(RuntimeError):  # No more threads can be started; the next check tries again.
                self._hire()


def _as_worker(target: Callable[[], None]) -> None:
    _here.is_worker = True
    target()


_SLICE = 256
"""The most calls of one `run_each` in flight: enough to batch, too few to hold up the loop."""


class _Pools:
    def __init__(self) -> None:
        self.short = WorkerPool("short", core=1, limit=40)
        # Scans keep the interpreter busy: each further thread makes an event loop wait longer for its turn.
        self.long = WorkerPool("long", core=2, limit=2)
        # These calls may wait for a device, or forever; workers are added then, but at most two calls run per storage.
        self.waiting = WorkerPool("waiting", core=2, limit=16, most=2)
        # The system combines flushes that wait at the same time.
        self.flushing = WorkerPool("flushing", core=12, limit=12)
        self.resident = WorkerPool("resident", core=1, limit=1)
        self.isolated = WorkerPool("isolated", core=1, limit=1)


_pools = _Pools()


def _forget_after_fork() -> None:
    global _pools
    _pools = _Pools()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def run(
    function: Callable[[*ArgsT], T],
    *args: *ArgsT,
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
) -> Awaitable[T]:
    """Call a short blocking function; return what it returns, or raise what it raises.

    Args:
        function: Makes one whole operation, such as open, read and close.
        args: The arguments of the function.
        abandon_on_cancel: Whether a cancelled caller continues at once and drops the result; meant for reads. By
            default it continues when the function has ended. A call that has not begun is not made at all.
        deadline: Cancelled when the caller is, so that the function can end early.

    Raises:
        RuntimeError: No thread can be started, or the interpreter shuts down.
    """
    return _run(_pools.short, function, args, abandon_on_cancel, deadline)


def run_resident(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """Like `run`, on the one thread that lives as long as this process.

    So the function may start child processes that end with their parent thread. Calls are made in the order in which
    they come. If the caller is cancelled after the call has begun, it continues when the function has ended.
    """
    return _run(_pools.resident, function, args, turn=object())


def run_isolated(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """Like `run_resident`, on another such thread. The function may change what only child processes notice.

    Credentials of a thread are an example, such as its session keyring, which it cannot get back.
    """
    return _run(_pools.isolated, function, args, turn=object())


async def _run(
    pool: WorkerPool,
    function: Callable[[*ArgsT], T],
    args: tuple[*ArgsT],
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
    turn: object = None,
) -> T:
    await stop_if_cancelled()
    loop = loop_callbacks()
    event = loop.event()
    job: Job[T] = Job(loop.turn() if turn is None else turn, event.set_at_next_wake, function, args)
    pool.submit(job)
    try:
        await event.wait()
    except BaseException as reason:
        if deadline is not None:
            deadline.cancel()
        if not job.withdraw() and not abandon_on_cancel:
            await wait_for_end(event, reason)
        raise
    return job.result()


async def run_each(
    function: Callable[[ItemT], T], items: Iterable[ItemT], *, abandon_on_cancel: bool = False
) -> list[T]:
    """Call a short blocking function with every item; this costs far less than a task for each.

    Args:
        function: Makes one whole operation with one item.
        items: May be infinite; at most 256 calls are in flight.
        abandon_on_cancel: As of `run`.

    Returns:
        The results, in the order of the items.

    Raises:
        Exception: What the call of the first failed item raised, once the calls in flight have ended.
    """
    results: list[T] = []
    rest = iter(items)
    while part := list(islice(rest, _SLICE)):
        await stop_if_cancelled()
        results += await _run_part(function, part, abandon_on_cancel)
    return results


async def _run_part(function: Callable[[ItemT], T], part: list[ItemT], abandon_on_cancel: bool) -> list[T]:
    loop = loop_callbacks()
    left = Countdown(loop.event(), len(part))
    turn = loop.turn()
    jobs: list[Job[T]] = [Job(turn, left.count, function, (item,)) for item in part]
    for job in jobs:
        _pools.short.submit(job)
    try:
        await left.event.wait()
    except BaseException as reason:
        left.count(sum(job.withdraw() for job in jobs))
        if not abandon_on_cancel:
            await wait_for_end(left.event, reason)
        raise
    return [job.result() for job in jobs]


async def run_long(
    function: Callable[[Deadline, *ArgsT], T],
    *args: *ArgsT,
    timeout: float | None = None,
    deadline: Deadline | None = None,
) -> T:
    """Call a blocking function that may take long, with a deadline that it must check every millisecond or so.

    If the caller is cancelled, so is the deadline, and the caller continues when the function has ended.

    Args:
        function: The function; its first argument is the deadline.
        args: Its other arguments.
        timeout: Seconds from when the call begins, if no `deadline` is given; None for no limit.
        deadline: A deadline that also covers other work. The time that the call waits for a thread does not count.
    """
    deadline = Deadline(timeout) if deadline is None else deadline
    deadline.pause()
    return await _run(_pools.long, _resumed, (deadline, function, args), deadline=deadline)


def _resumed(deadline: Deadline, function: Callable[[Deadline, *ArgsT], T], args: tuple[*ArgsT]) -> T:
    deadline.resume()
    return function(deadline, *args)


def start_long(storage: Hashable, function: Callable[[*ArgsT], object], *args: *ArgsT) -> None:
    """Start a blocking call that may wait for a storage, and return at once.

    Args:
        storage: Identifies the storage. At most two calls for one storage run at a time, so a storage that does not
            answer does not hold up calls for other storages.
        function: Must pass on its outcome itself; what it returns or raises is dropped.
        args: The arguments of the function.
    """
    _pools.waiting.submit(Job(storage, _nothing, function, args))


def call_together(function: Callable[[ItemT], T], items: Iterable[ItemT]) -> list[T]:
    """Call a function with each item, on up to 12 threads, and wait in this thread for all results.

    Args:
        function: Waits for a device. Must not raise.
        items: The items.
    """
    ended: SimpleQueue[None] = SimpleQueue()
    jobs: list[Job[T]] = [Job(None, partial(ended.put, None), function, (item,)) for item in items]
    for job in jobs:
        try:
            _pools.flushing.submit(job)
        except RuntimeError:  # No thread can be started.
            job.run()
            ended.put(None)
    for _ in jobs:
        ended.get()
    return [job.result() for job in jobs]


def _nothing() -> None:
    return None


async def stop_if_cancelled() -> None:
    """A checkpoint for cancellation only; it costs half of anyio's checkpoint if the task is not cancelled."""
    if current_effective_deadline() == -inf:
        await checkpoint_if_cancelled()


async def wait_for_end(event: ThreadEvent, reason: BaseException) -> None:
    """Wait for `event`, shielded from cancellation, unless the coroutine is being closed and cannot wait."""
    if not isinstance(reason, GeneratorExit):
        await event.wait_shielded()
