"""Deadlines of blocking work, which ends when its time is up or its caller is cancelled, and which takes turns."""

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from deepfs.errors import DeadlineError

if TYPE_CHECKING:
    from deepfs.threads.forks import SimpleQueue


class _Current(threading.local):
    ends_at = inf
    """When other work may have the turn of the work that runs on this thread, on the clock of `time.monotonic`."""
    take_turn: Callable[["Deadline"], None]
    """Lets other work run, and returns at the next turn of this work, or soon after the given deadline is over."""


current: _Current = _Current()


class Deadline:
    """A time limit and a cancellation in one token, which blocking work checks between its steps.

    The caller who waits for the work may `cancel` it, from any thread. Work that can take long calls `check` every
    millisecond or so. On the threads for long work, `check` also waits while it is the turn of other work; that time
    does not count.
    """

    __slots__ = ("_due", "_left", "_timeout", "is_cancelled", "waiting")

    def __init__(self, timeout: float | None = None) -> None:
        """`timeout` is in seconds from now; None for no limit."""
        self.is_cancelled: bool = False
        self.waiting: SimpleQueue[None] | None = None
        """Where the work waits for its turn; `cancel` wakes it."""
        self._timeout = timeout
        self.restart()

    def restart(self) -> None:
        """Start the time limit again from now, so that earlier waiting in a queue does not count."""
        self._left: float | None = None
        self._due = None if self._timeout is None else time.monotonic() + self._timeout

    def pause(self) -> None:
        """Stop the clock until `resume`, while the work waits in a queue."""
        if self._due is not None:
            self._left, self._due = self._due - time.monotonic(), None

    def resume(self) -> None:
        """Let the clock run again after `pause`."""
        if self._left is not None:
            self._due, self._left = time.monotonic() + self._left, None

    def cancel(self) -> None:
        """Make the next check raise."""
        self.is_cancelled = True
        waiting = self.waiting
        if waiting is not None:
            waiting.put(None)

    @property
    def has_passed(self) -> bool:
        """Whether the work was cancelled or its time is up."""
        return self.is_cancelled or (self._due is not None and time.monotonic() >= self._due)

    @property
    def parts(self) -> Sequence["Deadline"]:
        """The deadlines that this one stands for, each with a clock of its own."""
        return (self,)

    def is_over(self) -> bool:
        """Whether the work need not wait for its turn any more, since nobody waits for its result."""
        return self.has_passed

    def take_turns(self) -> None:
        """Wait while it is the turn of other work; part of `check`."""
        if time.monotonic() >= current.ends_at:
            current.take_turn(self)

    def check(self, path: str = "/") -> None:
        """Raise DeadlineError, about `path`, if the work was cancelled or its time is up."""
        self.take_turns()
        self.check_cancelled(path)
        if self.has_passed:
            raise DeadlineError(path, "others use it, or there is too much of it")

    def check_cancelled(self, path: str = "/") -> None:
        """Raise DeadlineError if the work was cancelled, for steps without a time limit."""
        if self.is_cancelled:
            raise DeadlineError(path, "the operation was cancelled")
