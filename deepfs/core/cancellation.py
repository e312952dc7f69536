"""How work on a thread learns that nobody waits for it any more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Cancellation", "Cancelled"]


class Cancelled(BaseException):
    """Unwinds a function that was cancelled; a BaseException, so that no handler of expected failures holds it up."""


class Cancellation:
    """Set by the one who waits, looked at by the one who works; safe between threads."""

    __slots__ = ("_stops", "cancelled")

    def __init__(self) -> None:
        self.cancelled: bool = False
        self._stops: dict[object, Callable[[], object]] = {}

    def check(self) -> None:
        """Go on, or raise Cancelled. To be called every millisecond or so."""
        if self.cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """Set the token."""
        self.cancelled = True
        for stop in list(self._stops.values()):
            stop()

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within, cancelling calls `stop`, which ends what cannot look at the token, such as a subprocess.

        `stop` must not block. It runs in the thread that cancels, or at once where the token is set already; it may run
        twice, and just after the block.
        """
        key = object()
        self._stops[key] = stop
        try:
            if self.cancelled:
                stop()
            yield
        finally:
            del self._stops[key]
