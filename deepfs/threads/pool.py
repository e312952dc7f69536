"""Worker threads for all blocking calls, which keep them off the event loops.

`run` and `run_each` are for short operations: each call makes a whole operation (open, read and close), not a single
system call. One worker makes these calls one by one, since with tiny calls a second thread costs more in contention for
the interpreter than it gains. `run_long` and `start_long` are for searches, which may take long or get stuck, and
`run_resident` and `run_isolated` for calls that need a thread that never ends.

Callers are served fairly. Storages take turns, one call each, and have begun a limited number of calls at a time; so do
callers that name no storage, by the turns of their loops. Long calls are also limited in seconds: when they check their
deadlines, they may have to wait for others. Functions do not see the caller's context variables. Results for a loop
that has ended are dropped.
"""

import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from queue import Empty
from time import monotonic, process_time
from typing import Any, Final, Generic, Protocol, TypeVar, TypeVarTuple

from anyio import current_effective_deadline
from anyio.lowlevel import checkpoint_if_cancelled

from deepfs.threads.deadline import Deadline, current
from deepfs.threads.forks import RLock, SimpleQueue, after_fork, get_ident, start_thread
from deepfs.threads.loop_bridge import Countdown, LoopCallbacks, ThreadEvent, loop_callbacks

__all__ = [
    "FairQueue",
    "Job",
    "WorkerPool",
    "is_worker",
    "run",
    "run_each",
    "run_isolated",
    "run_long",
    "run_resident",
    "start_long",
    "start_single",
    "stop_if_cancelled",
    "wait_for_end",
]

T = TypeVar("T")
ValueT = TypeVar("ValueT")
ArgsT = TypeVarTuple("ArgsT")

_SLICE: Final = 256
"""The most calls of one `run_each` in flight: enough to batch, too few to hold up the loop."""
_HOLD_BACK_S = 0.003
"""Seconds for which results may wait to share one wake-up of the loop; each makes it compete with the workers."""
_LONG_S = 0.0005
"""Seconds after which a call is so long, and its result perhaps so large, that a wake-up of its own costs little."""
_TICK_S = 0.005
"""Seconds between two looks at jobs that wait for a place."""
_TURN_S = 0.02
"""Seconds for which a long job has its place while others wait. To change the job takes some 50 µs."""
_PATIENCE_S = 0.1
"""Seconds after which a job that has not ended, nor checked its deadline, does not count as having a place."""


class Grouped(Protocol):
    """An item of a fair queue."""

    group: Hashable
    """What it is for, such as a storage: groups are served in rotation, and limited."""
    turn: Hashable
    """When it came: within a group, turns are served in rotation as well."""


ItemT = TypeVar("ItemT", bound=Grouped)


class _Group(Generic[ItemT]):
    """The items of a group: those that wait, and how many are served."""

    __slots__ = ("begun", "has_served_oldest", "served", "turns")

    def __init__(self) -> None:
        self.begun: deque[ItemT] = deque()
        """Items that were put back; they come first."""
        self.turns: OrderedDict[Hashable, deque[ItemT]] = OrderedDict()
        """New items. The oldest turn comes first, and the others follow in the order of service."""
        self.has_served_oldest: bool = False
        """Whether the next new item is one of the other turns."""
        self.served: int = 0

    def pop_new(self) -> ItemT:
        turns = iter(self.turns)
        turn = next(turns)
        if self.has_served_oldest and len(self.turns) > 1:
            turn = next(turns)
            self.turns.move_to_end(turn)
            self.has_served_oldest = False
        else:
            self.has_served_oldest = len(self.turns[turn]) > 1
        item = self.turns[turn].popleft()
        if not self.turns[turn]:
            del self.turns[turn]
        self.served += 1
        return item


class FairQueue(Generic[ItemT]):
    """Waiting items in groups, which are served in rotation, one item each; not safe for threads by itself.

    At most `most` items of a group are served at a time; its other items wait without holding up the other groups.
    Within a group, every other item is one of the oldest turn, and the rest come from the other turns in rotation. So a
    turn with a thousand items holds up a later one with a single item little, and many later ones do not hold it up.
    """

    def __init__(self, most: float = inf) -> None:
        self._most = most
        self._groups: OrderedDict[Hashable, _Group[ItemT]] = OrderedDict()
        """The groups that have items, the one that was served last at the end."""
        self.served: int = 0
        """The number of items that are served."""

    def __bool__(self) -> bool:
        """Whether there is an item that may be served now."""
        for group in self._groups.values():  # noqa: SIM110 -- faster
            if group.begun or (group.turns and group.served < self._most):
                return True
        return False

    def put(self, item: ItemT) -> None:
        """Add a new item, behind those of its turn."""
        group = self._groups.get(item.group)
        if group is None:
            group = self._groups[item.group] = _Group()
        group.turns.setdefault(item.turn, deque()).append(item)

    def put_back(self, item: ItemT) -> None:
        """Add an item that is served, and that `pop` is to return again before new ones of its group."""
        self._groups[item.group].begun.append(item)

    def pop(self, most: float = inf) -> ItemT | None:
        """Remove and return the next item, which is served until `end`; None if none may be served.

        Args:
            most: Return no new item of a group of which as many are served already.
        """
        most = min(most, self._most)
        for key, group in self._groups.items():
            if group.begun:
                item = group.begun.popleft()
            elif group.turns and group.served < most:
                item = group.pop_new()
                self.served += 1
            else:
                continue
            self._groups.move_to_end(key)
            return item
        return None

    def remove(self, item: ItemT) -> None:
        """Remove a waiting item; one that is served is so still. KeyError or ValueError if it is not there."""
        group = self._groups[item.group]
        if item in group.begun:
            group.begun.remove(item)
            return
        group.turns[item.turn].remove(item)
        if not group.turns[item.turn]:
            del group.turns[item.turn]
        self._drop_unused(item.group, group)

    def end(self, item: ItemT) -> None:
        """Stop counting `item` as served."""
        self.served -= 1
        group = self._groups[item.group]
        group.served -= 1
        self._drop_unused(item.group, group)

    def _drop_unused(self, key: Hashable, group: _Group[ItemT]) -> None:
        if not group.turns and not group.served:
            del self._groups[key]


class Job(Generic[T]):
    """A submitted call and its outcome.

    After the call, `ended` is called on the worker thread. It returns the callbacks of a loop that the worker must wake
    soon, or None.
    """

    __slots__ = ("_call", "_error", "_value", "ended", "gate", "group", "turn")
    _value: T

    def __init__(
        self,
        group: Hashable,
        turn: Hashable,
        ended: Callable[[], LoopCallbacks | None],
        function: Callable[..., T],
        args: tuple[Any, ...],
    ) -> None:
        self.group: Hashable = group
        self.turn: Hashable = turn
        self.ended: Callable[[], LoopCallbacks | None] = ended
        self.gate: SimpleQueue[None] | None = None
        """Where the job waits for its next turn; None while it has one."""
        self._call = [(function, args)]  # Who pops it makes the call, or withdraws it; that is atomic.
        self._error: BaseException | None = None

    def withdraw(self) -> bool:
        """Prevent the call; return False if it has begun already."""
        try:
            self._call.pop()
        except IndexError:
            return False
        return True

    def run(self) -> bool:
        """Make the call and return True; return False if it was withdrawn."""
        try:
            function, args = self._call.pop()
        except IndexError:
            return False
        try:
            self._value = function(*args)
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


class _PoolLocal(threading.local):
    is_worker = False


_here = _PoolLocal()


def is_worker() -> bool:
    """Whether the calling thread belongs to a pool; if it waited for a pool, it might wait for itself."""
    return _here.is_worker


class WorkerPool:
    """A queue of jobs and the daemon threads that run them.

    Jobs need places. There are `core` of them, and up to `limit` while the processor rests although jobs wait: these
    then wait for devices. A job that gets stuck loses its place after a while. At most `most` jobs of one group, and
    `threads` in all, have begun. With `takes_turns`, a job that checks its deadline when its turn is over, while others
    wait, gives up its place and waits for another one.

    All threads are alike. Where jobs wait for a place, one thread looks on, and takes the next job when there is a
    place; before a thread takes a job it makes sure that another one looks after those that still wait. Whoever submits
    a job starts a thread if none is free to look. So an error that ends a thread stops no others.
    """

    def __init__(
        self,
        name: str,
        *,
        core: int,
        limit: int,
        most: float = inf,
        threads: int | None = None,
        takes_turns: bool = False,
    ) -> None:
        self._name = name
        self._core = core
        self._limit = limit
        self._threads = limit if threads is None else threads
        self._takes_turns = takes_turns
        # Event loops only put into the inbox, since a signal handler may interrupt the holder of a lock.
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._lock = RLock()
        self._queue: FairQueue[Job[Any]] = FairQueue(most)
        self._running: dict[Job[Any], float] = {}
        """The jobs that have places, and when they got them."""
        self._places = core
        self._most_threads = self._threads + (self._threads > core)  # One more than may have jobs: it looks on.
        self._unstarted = [None] * self._most_threads
        self._entered = 0
        self._idle: set[int] = set()
        """The threads that wait for jobs to come."""
        self._watcher: int | None = None
        """The thread that looks on: now and then it looks at the jobs that wait for places."""
        self._rests = False
        """Whether it waits for the first of them."""
        self._bell: SimpleQueue[bool] = SimpleQueue()
        """Wakes it; True if there is a place."""
        self._unwoken: dict[LoopCallbacks, None] = {}
        self._woken = 0.0

    def submit(self, job: Job[Any]) -> None:
        """Queue `job`; never blocks.

        RuntimeError if no thread can be started or the interpreter shuts down; withdraw the job then.
        """
        if sys.is_finalizing():
            raise RuntimeError("the interpreter ends, and the threads that would do this run no more")
        self._inbox.put(job)
        started = self._most_threads - len(self._unstarted)
        if self._idle or self._entered < started:
            return
        if self._watcher is not None:
            if self._rests:
                self._rests = False
                self._bell.put(False)
        else:
            self._start_thread(is_needed=not started)

    def _start_thread(self, *, is_needed: bool = False) -> bool:
        if not self._unstarted:
            return False
        try:
            self._unstarted.pop()  # Atomic.
        except IndexError:
            return False
        try:
            start_thread(self._work, f"deepfs-{self._name}")
        except RuntimeError:
            self._unstarted.append(None)
            if is_needed:
                raise
            return False
        return True

    def _work(self) -> None:
        """Run jobs until enough other threads are free. After an error of our own, others go on."""
        _here.is_worker = True
        me, job = get_ident(), None
        with self._lock:
            self._entered += 1
        try:
            while (job := self._next(me, job)) is not None:
                if self._takes_turns:
                    current.ends_at, current.take_turn = monotonic() + _TURN_S, partial(self._take_turn, job)
                began = monotonic()
                if job.run() and (loop := job.ended()) is not None:
                    self._unwoken[loop] = None
                # In this order: a thread says that it does not look on, or that it rests, and then wakes the loops.
                if self._unwoken and (
                    self._watcher is None
                    or self._rests
                    or (now := monotonic()) - self._woken >= _HOLD_BACK_S
                    or now - began >= _LONG_S
                ):
                    self._wake_loops()
        finally:
            with self._lock:
                self._stop(me, job)
                self._unstarted.append(None)
                self._entered -= 1
                self._take_submitted()  # Whoever submitted them may have relied on this thread.
                self._call_another()
            self._wake_loops()

    def _next(self, me: int, ended: Job[Any] | None) -> Job[Any] | None:
        """Wait for a job that has a place; return None if this thread is to end."""
        job: Job[Any] | None = None
        more_places = 0
        while True:
            with self._lock:
                if job is not None:
                    self._queue.put(job)
                self._stop(me, ended)
                if more_places and self._queue:
                    self._places = max(self._core, min(self._places + more_places, self._limit))
                job = self._give_places()
                if job is not None:
                    break
                is_idle = not self._queue and len(self._idle) < self._core
                if is_idle:
                    self._idle.add(me)
                    self._places = self._core
                elif self._watcher is None:
                    self._watcher, self._rests = me, not self._queue
                else:
                    break
            self._wake_loops()
            ended, more_places = None, 0
            if is_idle:
                job = self._inbox.get()
            elif not (self._rests and self._bell.get()):
                due, used = monotonic() + _TICK_S, process_time()
                try:
                    self._bell.get(timeout=_TICK_S)
                except Empty:
                    # The jobs that waited all the time wait for devices, unless the processor was busy.
                    if process_time() - used > _TICK_S / 2:
                        more_places = -1
                    elif monotonic() - due < _TICK_S / 5:
                        more_places = 1
            if not is_idle:
                self._watcher = None  # Whoever finds it so wakes the loops itself; who put that off may be stuck now.
                self._wake_loops()
        return job

    def _stop(self, me: int, job: Job[Any] | None) -> None:
        """Note that this thread does not wait any more, and that its job has ended."""
        self._idle.discard(me)
        if self._watcher == me:
            self._watcher, self._rests = None, False
        if job is not None and self._running.pop(job, None) is not None:
            self._queue.end(job)

    def _take_submitted(self) -> None:
        while not self._inbox.empty():
            try:
                if (job := self._inbox.get_nowait()) is not None:
                    self._queue.put(job)
            except Empty:  # An idle thread took it.
                break

    def _give_places(self) -> Job[Any] | None:
        """Give free places to the next jobs that were interrupted, up to a new one, which is returned."""
        self._take_submitted()
        while len(self._running) < self._places or self._has_stuck():
            job = self._queue.pop(inf if self._queue.served < self._threads else 0)
            if job is None:
                return None
            self._running[job] = monotonic()
            if job.gate is None:
                self._call_another()
                return job
            gate, job.gate = job.gate, None
            gate.put(None)
        return None

    def _has_stuck(self) -> bool:
        """Whether so many of the running jobs are stuck that there is a place."""
        late = monotonic() - _PATIENCE_S
        return sum(since > late for since in self._running.values()) < self._places

    def _call_another(self) -> bool:
        """Have another thread look after the jobs that wait, if there are any; return False if there is no thread."""
        has_place = len(self._running) < self._places
        if (self._watcher is not None and not self._rests and not has_place) or not self._queue:
            return True
        if self._idle and (has_place or self._watcher is None):
            self._inbox.put(None)
        elif self._watcher is not None:
            self._rests = False
            self._bell.put(has_place)
        elif self._entered == self._most_threads - len(self._unstarted):
            return self._start_thread()
        return True

    def _wake_loops(self) -> None:
        while self._unwoken:
            with suppress(KeyError):  # Another thread took the last one.
                self._unwoken.popitem()[0].wake()
                self._woken = monotonic()

    def _take_turn(self, job: Job[Any], deadline: Deadline) -> None:
        """Let others have the place of `job`, whose turn is over and whose thread calls this, and wait for the next.

        If nobody waits for the result any more, the job goes on without, so that it ends soon.
        """
        gate: SimpleQueue[None] = SimpleQueue()
        with self._lock:
            del self._running[job]
            is_alone = not self._queue and self._inbox.empty() and len(self._running) < self._places
            job.gate = gate
            self._queue.put_back(job)
            if is_alone or not self._call_another():
                self._go_on(job)
        parts = deadline.parts
        for part in parts:
            part.waiting = gate
            part.pause()
        try:
            while gate is job.gate and not deadline.is_over():
                gate.get()
        finally:
            for part in parts:
                part.waiting = None
                part.resume()
            with self._lock:
                self._go_on(job)
        current.ends_at = monotonic() + _TURN_S

    def _go_on(self, job: Job[Any]) -> None:
        if job.gate is not None:
            job.gate = None
            self._queue.remove(job)
            self._running[job] = monotonic()


class _Pools:
    def __init__(self) -> None:
        # A storage that does not answer gets stuck in 16 threads at most.
        self.short = WorkerPool("short", core=1, limit=64, most=16)
        # Searches keep the interpreter busy: each further one makes an event loop wait longer for its turn.
        self.long = WorkerPool("long", core=2, limit=16, most=2, threads=64, takes_turns=True)
        self.single = WorkerPool("single", core=1, limit=64, most=1)
        self.resident = WorkerPool("resident", core=1, limit=1)
        self.isolated = WorkerPool("isolated", core=1, limit=1)


_pools = _Pools()


@after_fork
def _forget_after_fork() -> None:
    global _pools
    _pools = _Pools()
    _here.is_worker = False
    current.ends_at = inf


def run(
    function: Callable[[*ArgsT], T],
    *args: *ArgsT,
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
    storage: Hashable = None,
) -> Awaitable[T]:
    """Call a short blocking function; return what it returns, or raise what it raises.

    Args:
        function: Makes one whole operation, such as open, read and close.
        args: The arguments of the function.
        abandon_on_cancel: Whether a cancelled caller continues at once and drops the result; meant for reads. By
            default it continues when the function has ended. A call that has not begun is not made at all.
        deadline: Cancelled when the caller is, so that the function can end early.
        storage: Identifies what the function may wait for. At most 16 calls for one storage have begun at a time.

    Raises:
        RuntimeError: No thread can be started, or the interpreter shuts down.
    """
    return _run(_pools.short, function, args, abandon_on_cancel, deadline, storage)


def run_resident(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """Like `run`, on the one thread that lives as long as this process.

    So the function may start child processes that end with their parent thread. Calls are made in the order in which
    they come. If the caller is cancelled after the call has begun, it continues when the function has ended.
    """
    return _run(_pools.resident, function, args, storage=object())


def run_isolated(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """Like `run_resident`, on another such thread. The function may change what only child processes notice.

    Credentials of a thread are an example, such as its session keyring, which it cannot get back.
    """
    return _run(_pools.isolated, function, args, storage=object())


async def _run(
    pool: WorkerPool,
    function: Callable[[*ArgsT], T],
    args: tuple[*ArgsT],
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
    storage: Hashable = None,
) -> T:
    await stop_if_cancelled()
    loop = loop_callbacks()
    event, turn = loop.end_of_work(), loop.turn()
    job: Job[T] = Job(turn if storage is None else storage, turn, event.set_at_next_wake, function, args)
    try:
        pool.submit(job)
        await event.wait()
    except BaseException as reason:
        if deadline is not None:
            deadline.cancel()
        if job.withdraw():
            event.drop()
        elif not abandon_on_cancel:
            await wait_for_end(event, reason)
        raise
    return job.result()


async def run_each(
    function: Callable[[ValueT], T],
    items: Iterable[ValueT],
    *,
    abandon_on_cancel: bool = False,
    storage: Hashable = None,
) -> list[T]:
    """Call a short blocking function with every item; this costs far less than a task for each.

    Args:
        function: Makes one whole operation with one item.
        items: May be infinite; at most 256 calls are in flight.
        abandon_on_cancel: As of `run`.
        storage: As of `run`.

    Returns:
        The results, in the order of the items.

    Raises:
        Exception: What the call of the first failed item raised, once the calls in flight have ended.
    """
    results: list[T] = []
    rest = iter(items)
    while part := list(islice(rest, _SLICE)):
        await stop_if_cancelled()
        loop = loop_callbacks()
        left, turn = Countdown(loop.end_of_work(), len(part)), loop.turn()
        group = turn if storage is None else storage
        jobs: list[Job[T]] = [Job(group, turn, left.count, function, (item,)) for item in part]
        try:
            for job in jobs:
                _pools.short.submit(job)
            await left.event.wait()
        except BaseException as reason:
            left.count(sum(job.withdraw() for job in jobs))
            if not abandon_on_cancel:
                await wait_for_end(left.event, reason)
            raise
        results += [job.result() for job in jobs]
    return results


async def run_long(
    function: Callable[[Deadline, *ArgsT], T],
    *args: *ArgsT,
    timeout: float | None = None,
    deadline: Deadline | None = None,
    storage: Hashable = None,
) -> T:
    """Call a blocking function that may take long, with a deadline that it must check every millisecond or so.

    While others wait, a check of the deadline may take long as well: calls for other storages then have their turns. So
    the function must hold no lock during a check.

    If the caller is cancelled, so is the deadline, and the caller continues when the function has ended.

    Args:
        function: The function; its first argument is the deadline.
        args: Its other arguments.
        timeout: Seconds from when the call begins, if no `deadline` is given; None for no limit.
        deadline: A deadline that also covers other work. The time that the call waits for its turns does not count.
        storage: As of `start_long`. By default, the calls that a loop makes in one turn share a limit and a turn.
    """
    deadline = Deadline(timeout) if deadline is None else deadline
    deadline.pause()
    return await _run(_pools.long, _resume_and_run, (deadline, function, args), deadline=deadline, storage=storage)


def _resume_and_run(deadline: Deadline, function: Callable[[Deadline, *ArgsT], T], args: tuple[*ArgsT]) -> T:
    deadline.resume()
    return function(deadline, *args)


def start_long(storage: Hashable, function: Callable[[*ArgsT], object], *args: *ArgsT) -> None:
    """Start a blocking call that may wait for a storage, and return at once.

    Args:
        storage: Identifies the storage. At most two calls for one storage have begun at a time, so a storage that does
            not answer does not hold up calls for other storages. Storages take turns.
        function: Must pass on its outcome itself; what it returns or raises is dropped.
        args: The arguments of the function.
    """
    _start(_pools.long, storage, function, args)


def start_single(storage: Hashable, function: Callable[[*ArgsT], object], *args: *ArgsT) -> None:
    """Like `start_long`, for short calls, of which those for one storage are made one at a time."""
    _start(_pools.single, storage, function, args)


def _start(pool: WorkerPool, storage: Hashable, function: Callable[[*ArgsT], object], args: tuple[*ArgsT]) -> None:
    job = Job(storage, None, lambda: None, function, args)
    try:
        pool.submit(job)
    except RuntimeError:
        if job.withdraw():
            raise


async def stop_if_cancelled() -> None:
    """A checkpoint for cancellation only; it costs half of anyio's checkpoint if the task is not cancelled."""
    if current_effective_deadline() == -inf:
        await checkpoint_if_cancelled()


async def wait_for_end(event: ThreadEvent, reason: BaseException) -> None:
    """Wait for `event`, shielded from cancellation, unless the coroutine is being closed and cannot wait."""
    if not isinstance(reason, GeneratorExit):
        await event.wait_shielded()
