"""A limit for the rate of operations."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from deepfs._brief import arguments
from deepfs.errors import PermissionDeniedError
from deepfs.policy.hooks import Call
from deepfs.sync import OPERATIONS
from deepfs.text.arguments import check_callable

__all__ = ["RateLimit", "RateLimitError"]


class RateLimitError(PermissionDeniedError):
    """There were too many operations.

    Args:
        limit: The most operations in a period.
        seconds: The length of the period.
        retry_after: Seconds until the next operation is allowed.
    """

    def __init__(self, limit: int, seconds: float, retry_after: float) -> None:
        self.retry_after: float = retry_after
        reached = f"Rate limit reached: {limit} operations in {seconds:g} seconds."
        self._set(None, f"{reached} Try again in {retry_after:.1f} seconds.")


class RateLimit:
    """A hook for `HookedBackend(before=[…])` that limits the rate of operations.

    One object may serve several backends and threads, which then share its limit. An operation that is denied does not
    count.

    Args:
        limit: The most operations in any period.
        seconds: The length of the period.
        operations: The operations that count and are limited, by sync name; None is all.
        clock: Returns the time in seconds.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a `limit` below 1, `seconds` that are not positive, and unknown operations.
    """

    reads_contents: bool = False

    def __init__(
        self,
        limit: int,
        seconds: float,
        operations: Collection[str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, given in (("limit", limit), ("seconds", seconds)):
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise TypeError(f"{name} must be a number, not {given!r:.100}")
        check_callable("clock", clock)
        if not (limit >= 1 and seconds > 0):
            raise ValueError("a rate limit needs at least one operation in more than no time")
        if operations is not None:
            _check_operations(operations)
        self._limit = limit
        self._seconds = seconds
        self._operations = operations
        self._clock = clock
        self._times: deque[float] = deque()
        self._lock = threading.RLock()  # Reentrant, because a signal handler may call this again.

    def __repr__(self) -> str:
        return f"RateLimit({arguments(self._limit, self._seconds, operations=self._operations)})"

    def __call__(self, call: Call) -> None:
        if self._operations is not None and call.operation not in self._operations:
            return
        with self._lock:
            now = self._clock()
            while self._times and self._times[0] <= now - self._seconds:
                self._times.popleft()
            if len(self._times) >= self._limit:
                raise RateLimitError(self._limit, self._seconds, self._times[0] + self._seconds - now)
            self._times.append(now)


def _check_operations(given: Collection[str]) -> None:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise TypeError(f"operations is a collection of names, not {given!r}")
    unknown = [name for name in given if name not in OPERATIONS]
    if unknown or not given:
        wrong = f"unknown operation {unknown[0]!r}" if unknown else "operations is empty"
        raise ValueError(f"{wrong}; known are {', '.join(OPERATIONS)}")
