"""The one place for blocking calls: they run on threads of this module, while the event loops go on.

`run` and `run_each` take short operations, each a whole one (open, read and close), never one system call. One worker
makes these calls one by one, since with tiny ones a second thread costs more in contention for the interpreter than it
gains; where calls turn out slow, workers are added. `run_long` takes scans of what is in memory, on threads of their
own, `start_long` searches that wait for a storage and could be stuck there, and `run_resident` what needs a thread that
never ends.

Callers are served fairly: what a loop submits in one of its turns forms a group, and groups take turns, call by call.
Functions run outside of the caller's context variables. Results for a loop that has ended are dropped.
"""

import os
from collections.abc import Awaitable, Callable, Hashable, Iterable
from itertools import islice
from math import inf
from typing import TypeVar, TypeVarTuple

from anyio import current_effective_deadline
from anyio.lowlevel import checkpoint_if_cancelled

from deepfs.threads.deadline import Deadline
from deepfs.threads.loop_bridge import Countdown, Signal, mailbox
from deepfs.threads.pool import Job, Lane, is_worker

__all__ = [
    "is_worker",
    "run",
    "run_each",
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
"""Calls of one `run_each` that are in flight together: enough to batch, too few to hold up the loop."""


class _Lanes:
    def __init__(self) -> None:
        self.short = Lane("short", core=1, limit=40)
        # Scans hold the interpreter: each further thread adds to the time for which an event loop waits for it.
        self.long = Lane("long", core=2, limit=2)
        # These may wait for a device, or for what never comes; workers are added then, though never over two a storage.
        self.waiting = Lane("waiting", core=2, limit=16, most=2)
        self.resident = Lane("resident", core=1, limit=1)


_lanes = _Lanes()


def _forget_after_fork() -> None:
    global _lanes
    _lanes = _Lanes()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def run(
    function: Callable[[*ArgsT], T],
    *args: *ArgsT,
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
) -> Awaitable[T]:
    """Call a short blocking function and return or raise what it does.

    Cancelled before the call has begun, it is not made. Cancelled later, `deadline` is cancelled, and the caller goes
    on when the function has ended; with `abandon_on_cancel`, which is for reads, it goes on at once and the result is
    dropped.
    """
    return _run(_lanes.short, function, args, abandon_on_cancel, deadline)


def run_resident(function: Callable[[*ArgsT], T], *args: *ArgsT) -> Awaitable[T]:
    """`run` on the one thread that lives as long as the process.

    What it starts there may be bound to the life of its parent thread. Calls are made in the order in which they come.
    Cancelled later than the call has begun, the caller goes on when the function has ended.
    """
    return _run(_lanes.resident, function, args, turn=object())


async def _run(
    lane: Lane,
    function: Callable[[*ArgsT], T],
    args: tuple[*ArgsT],
    abandon_on_cancel: bool = False,
    deadline: Deadline | None = None,
    turn: object = None,
) -> T:
    await stop_if_cancelled()
    home = mailbox()
    signal = home.signal()
    job: Job[T] = Job(home, signal.fire, function, args)
    if turn is not None:
        job.turn = turn
    lane.submit(job)
    try:
        await signal.wait()
    except BaseException as reason:
        if deadline is not None:
            deadline.cancel()
        if not job.withdraw() and not abandon_on_cancel:
            await wait_for_end(signal, reason)
        raise
    return job.result()


async def run_each(
    function: Callable[[ItemT], T], items: Iterable[ItemT], *, abandon_on_cancel: bool = False
) -> list[T]:
    """Call a short blocking function with every item; the results are in the order of the items.

    Costs far less than a task for each. Where calls raise, the first error in that order is raised, after the calls
    that were submitted with it have ended. Cancellation is as in `run`.
    """
    results: list[T] = []
    rest = iter(items)
    while part := list(islice(rest, _SLICE)):
        await stop_if_cancelled()
        results += await _run_part(function, part, abandon_on_cancel)
    return results


async def _run_part(function: Callable[[ItemT], T], part: list[ItemT], abandon_on_cancel: bool) -> list[T]:
    home = mailbox()
    left = Countdown(home.signal(), len(part))
    jobs: list[Job[T]] = [Job(home, left.count, function, (item,)) for item in part]
    for job in jobs:
        _lanes.short.submit(job)
    try:
        await left.signal.wait()
    except BaseException as reason:
        left.count(sum(job.withdraw() for job in jobs))
        if not abandon_on_cancel:
            await wait_for_end(left.signal, reason)
        raise
    return [job.result() for job in jobs]


async def run_long(function: Callable[[Deadline, *ArgsT], T], *args: *ArgsT, timeout: float | None = None) -> T:
    """Call a blocking function that may take long, with a deadline that it must check every millisecond or so.

    The `timeout`, in seconds, counts from when the call begins. On cancellation the deadline is cancelled, and the
    caller goes on when the function has ended.
    """
    deadline = Deadline(timeout)
    return await _run(_lanes.long, _in_time, (deadline, function, args), deadline=deadline)


def _in_time(deadline: Deadline, function: Callable[[Deadline, *ArgsT], T], args: tuple[*ArgsT]) -> T:
    deadline.restart()
    return function(deadline, *args)


def start_long(storage: Hashable, function: Callable[[*ArgsT], object], *args: *ArgsT) -> None:
    """Have a blocking function called that may wait for a `storage`, and that tells by itself whom it may concern.

    Calls for one storage wait for one another; those for others go on where it does not answer.
    """
    job: Job[object] = Job(mailbox(), _nothing, function, args)
    job.turn = storage
    _lanes.waiting.submit(job)


def _nothing() -> None:
    return None


async def stop_if_cancelled() -> None:
    """A checkpoint that only lets cancellation through, and costs half of anyio's where there is none."""
    if current_effective_deadline() == -inf:
        await checkpoint_if_cancelled()


async def wait_for_end(signal: Signal, reason: BaseException) -> None:
    """Wait for what cannot be left alone, unless the coroutine itself is being closed."""
    if not isinstance(reason, GeneratorExit):
        await signal.wait_shielded()
