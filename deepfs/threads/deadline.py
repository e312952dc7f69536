"""Deadlines of blocking work, which ends when its time is up or its caller is cancelled, and which takes turns."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from deepfs.errors import DeadlineError

if TYPE_CHECKING:
    from deepfs.threads.native import SimpleQueue

__all__ = ["Deadline", "Turn", "current"]


class Turn(Protocol):
    """The time for which the work of a thread may run while other work waits."""

    ends_at: float
    """When other work may run instead, on the clock of `time.monotonic`."""

    def end(self, deadline: "Deadline") -> None:
        """Let other work run, if some waits, and return when it is the turn of this work again.

        Return earlier, soon after a part of `deadline` is cancelled, if the deadline is then over.
        """


class _Current(threading.local):
    turn: Turn | None = None


current: _Current = _Current()
"""The turn of the work that runs on the calling thread; None if it need not share its thread."""


class Deadline:
    """A time limit and a cancellation in one token, which blocking work checks between its steps.

    The caller who waits for the work may `cancel` it, from any thread. Work that can take long calls `check` every
    millisecond or so. On the threads for long work, `check` also waits while it is the turn of other work; that time
    does not count.
    """

    __slots__ = ("_due", "_left", "_timeout", "is_cancelled", "waiting")

    def __init__(self, timeout: float | None = None) -> None:
        """Args:
        timeout: Seconds from now until the time is up; None for no limit.
        """
        self.is_cancelled: bool = False
        self.waiting: SimpleQueue[bool] | None = None
        """Where the work waits for its turn; `cancel` puts False there."""
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
            waiting.put(False)

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
        turn = current.turn
        if turn is not None and time.monotonic() >= turn.ends_at:
            turn.end(self)

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
