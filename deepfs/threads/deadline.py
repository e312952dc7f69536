"""Deadlines of blocking work, which ends when its time is up or its caller is cancelled."""

import time

from deepfs.errors import DeadlineError

__all__ = ["Deadline"]


class Deadline:
    """A time limit and a cancellation in one token, which blocking work checks between its steps.

    The caller who waits for the work may `cancel` it, from any thread. Work that can take long calls `check` every
    millisecond or so.
    """

    __slots__ = ("_due", "_paused", "_timeout", "is_cancelled")

    def __init__(self, timeout: float | None = None) -> None:
        """Args:
        timeout: Seconds from now until the time is up; None for no limit.
        """
        self.is_cancelled: bool = False
        self._timeout = timeout
        self.restart()

    def restart(self) -> None:
        """Start the time limit again from now, so that earlier waiting in a queue does not count."""
        self._due = None if self._timeout is None else time.monotonic() + self._timeout

    def pause(self) -> None:
        """Stop the clock until `resume`, while the work waits in a queue."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Let the clock run again after `pause`."""
        if self._due is not None:
            self._due += time.monotonic() - self._paused

    def cancel(self) -> None:
        """Make the next check raise."""
        self.is_cancelled = True

    @property
    def has_passed(self) -> bool:
        """Whether the work was cancelled or its time is up."""
        return self.is_cancelled or (self._due is not None and time.monotonic() >= self._due)

    def check(self, path: str = "/") -> None:
        """Raise DeadlineError, about `path`, if the work was cancelled or its time is up."""
        self.check_cancelled(path)
        if self.has_passed:
            raise DeadlineError(path, "others use it, or there is too much of it")

    def check_cancelled(self, path: str = "/") -> None:
        """Raise DeadlineError if the work was cancelled, for steps without a time limit."""
        if self.is_cancelled:
            raise DeadlineError(path, "the operation was cancelled")
