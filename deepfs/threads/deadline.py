"""When blocking work must end: its time is up, or nobody waits for it any more."""

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
        """Count the time from now on: work that waited in a queue has its whole time."""
        self._due = None if self._timeout is None else time.monotonic() + self._timeout

    def pause(self) -> None:
        """Do not count the time until `resume`, in which the work waits in a queue."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Count the time again."""
        if self._due is not None:
            self._due += time.monotonic() - self._paused

    def cancel(self) -> None:
        """Let the next check raise."""
        self.is_cancelled = True

    @property
    def has_passed(self) -> bool:
        """Whether the work was cancelled or its time is up."""
        return self.is_cancelled or (self._due is not None and time.monotonic() >= self._due)

    def check(self, path: str = "/") -> None:
        """Raise DeadlineError, about `path`, where the work was cancelled or its time is up."""
        self.check_cancelled(path)
        if self.has_passed:
            raise DeadlineError(path, "others use it, or there is too much of it")

    def check_cancelled(self, path: str = "/") -> None:
        """Raise DeadlineError where the work was cancelled, for steps that the time limit does not concern."""
        if self.is_cancelled:
            raise DeadlineError(path, "the operation was cancelled")
