"""How work on a thread learns that nobody waits for it any more."""

import time
from collections.abc import Callable

from deepfs.errors import DeadlineError

__all__ = ["Cancellation", "Cancelled", "Patience", "never_cancelled"]


class Cancelled(BaseException):
    """Unwinds a function that was cancelled; a BaseException, so that no handler of expected failures holds it up."""


class Cancellation:
    """Set by the one who waits, looked at by the one who works; safe between threads."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled: bool = False

    def check(self) -> None:
        """Go on, or raise Cancelled. To be called every millisecond or so."""
        if self.cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """Set the token."""
        self.cancelled = True


def never_cancelled() -> bool:
    """The answer of an operation that nobody cancels."""
    return False


class Patience:
    """A deadline and a cancellation, asked about between the steps of blocking work.

    The work is cancelled by `cancel`, from any thread, or where `cancelled` says so.
    """

    __slots__ = ("_cancelled", "_deadline", "_is_wanted")

    def __init__(self, timeout: float | None = None, cancelled: Callable[[], bool] = never_cancelled) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._cancelled = cancelled
        self._is_wanted = True

    def cancel(self) -> None:
        """Have the next check raise."""
        self._is_wanted = False

    def check_wanted(self, path: str) -> None:
        """Raise DeadlineError once the operation is cancelled; its deadline is for waiting, which this is not."""
        if not self._is_wanted or self._cancelled():
            raise DeadlineError(path, "the operation was cancelled")

    def check(self, path: str) -> None:
        """Raise DeadlineError once the operation is cancelled or its time is up."""
        self.check_wanted(path)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise DeadlineError(path, "others use it, or there is too much of it")
