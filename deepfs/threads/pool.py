"""Worker threads for all blocking calls, which keep them off the event loops.

`run` and `run_each` are for short operations: each call makes a whole operation (open, read and close), not a single
system call. One worker makes these calls one by one, since with tiny calls a second thread costs more in contention for
the interpreter than it gains; if calls turn out slow, workers are added. `run_long` and `start_long` are for searches,
which may take long or get stuck, `call_together` is for flushes, and `run_resident` and `run_isolated` for calls that
need a thread that never ends.

Callers are served fairly. Of short calls, those that a loop submits in one turn form a group; of long ones, those for
one storage. The groups are served in rotation, one call each, and long calls take turns: whenever they check their
deadlines, they may be interrupted for others. Functions do not see the caller's context variables. Results for a loop
that has ended are dropped.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from itertools import islice
from math import inf
from typing import TypeVar, TypeVarTuple

from anyio import current_effective_deadline
from anyio.lowlevel import checkpoint_if_cancelled

from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import after_fork
from deepfs.threads.loop_bridge import Countdown, ThreadEvent, loop_callbacks
from deepfs.threads.native import SimpleQueue
from deepfs.threads.worker_pool import Job, WorkerPool, is_worker

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

_SLICE = 256
"""The most calls of one `run_each` in flight: enough to batch, too few to hold up the loop."""


class _Pools:
    def __init__(self) -> None:
        self.short = WorkerPool("short", core=1, limit=40)
        # Searches keep the interpreter busy: each further worker makes an event loop wait longer for its turn. They may
        # wait for a device, or forever; workers are added then, but at most two calls for a storage have begun.
        self.long = WorkerPool("long", core=2, limit=16, most=2, threads=64)
        # The system combines flushes that wait at the same time.
        self.flushing = WorkerPool("flushing", core=12, limit=12)
        self.resident = WorkerPool("resident", core=1, limit=1)
        self.isolated = WorkerPool("isolated", core=1, limit=1)


_pools = _Pools()


@after_fork
def _forget_after_fork() -> None:
    global _pools
    _pools = _Pools()


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
    return _run(_pools.resident, function, args, group=object())


def run_isolated(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """Like `run_resident`, on another such thread. The function may change what only child processes notice.

    Credentials of a thread are an example, such as its session keyring, which it cannot get back.
    """
    return _run(_pools.isolated, function, args, group=object())


async def _run(
    pool: WorkerPool,
    function: Callable[[*ArgsT], T],
    args: tuple[*ArgsT],
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
    group: Hashable = None,
) -> T:
    await stop_if_cancelled()
    loop = loop_callbacks()
    event = loop.end_of_work()
    job: Job[T] = Job(loop.turn() if group is None else group, event.set_at_next_wake, function, args)
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
    left = Countdown(loop.end_of_work(), len(part))
    turn = loop.turn()
    jobs: list[Job[T]] = [Job(turn, left.count, function, (item,)) for item in part]
    try:
        for job in jobs:
            _pools.short.submit(job)
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
    return await _run(_pools.long, _resumed, (deadline, function, args), deadline=deadline, group=storage)


def _resumed(deadline: Deadline, function: Callable[[Deadline, *ArgsT], T], args: tuple[*ArgsT]) -> T:
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
    _pools.long.submit(Job(storage, _nothing, function, args))


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
