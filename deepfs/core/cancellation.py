"""How work on a thread learns that nobody waits for it any more."""

__all__ = ["Cancellation", "Cancelled"]


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
