"""How backends behave towards a server that is slow, fails or is contended: one policy for all of them."""

import random
from collections.abc import Awaitable, Callable
from time import monotonic, sleep
from typing import Final, TypeVar

import anyio
from msgspec import Struct

from deepfs.errors import BackendError
from deepfs.sync import is_inline
from deepfs.text.arguments import check_integer
from deepfs.text.flat_tree import ChangedError

__all__ = ["Requests", "RetryPolicy", "until_accepted"]

T = TypeVar("T")

_CONTENTION: Final = 30.0
"""How long an operation is planned anew while others change the same files, in seconds."""
_PAUSE: Final = 0.02
"""The longest pause before that, in seconds."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When a request is tried again, and when requests are refused without being sent.

    Args:
        attempts: How often a request is sent at most, if it fails for a reason that may pass.
        timeout: Seconds that one attempt may take.
        first_delay: Seconds to wait before the second attempt, at most. The wait is random, and its limit doubles with
            each further attempt.
        longest_delay: The limit at which that doubling ends, in seconds.
        contention: Seconds for which an operation is planned anew while others change the same files.
        failures_to_open: After so many failures in a row, of all operations together, requests are refused at once.
        open_seconds: For how many seconds they are refused. The next request is then sent; if it fails, requests are
            refused again.

    Raises:
        TypeError: For something else than a number, and for a fraction of an attempt.
        ValueError: For a number that is not positive.
    """

    attempts: int = 5
    timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 2.0
    contention: float = _CONTENTION
    failures_to_open: int = 20
    open_seconds: float = 2.0

    def __post_init__(self) -> None:
        check_integer("attempts", self.attempts)
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")

    def delay(self, failed: int) -> float:
        """Return for how long to wait after a failed attempt.

        Args:
            failed: How many attempts have failed.

        Returns:
            A random number of seconds, so that clients that failed together do not come back together.
        """
        # A watch tries for ever, so the number may be too large for a power.
        return random.uniform(0, min(self.longest_delay, self.first_delay * 2.0 ** min(failed - 1, 64)))


class Requests:
    """Sends the requests of one backend to its server, by a policy.

    Args:
        policy: The policy.
        is_transient: Whether an error of the driver is one that may pass, such as a lost connection.
    """

    def __init__(self, policy: RetryPolicy, is_transient: Callable[[Exception], bool]) -> None:
        self.policy: RetryPolicy = policy
        self._is_transient = is_transient
        self._failures = 0
        self._open_until = 0.0

    async def send(self, attempt: Callable[[], Awaitable[T]], *, attempts: int | None = None) -> T:
        """Send a request; send it again if it fails for a reason that may pass.

        Args:
            attempt: Sends the request. It is called once for each attempt.
            attempts: How often it is sent at most; None is the number of the policy. A request that must not be
                carried out twice is sent once.

        Returns:
            What `attempt` returns.

        Raises:
            BackendError: The server has failed so often that nothing was sent.
            Exception: The error of the last attempt; TimeoutError if it took too long.
        """
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            self._check_circuit()
            try:
                with anyio.fail_after(self.policy.timeout):
                    answer = await attempt()
            except Exception as error:
                if not self._count_failure(error) or failed == most:
                    raise
            else:
                self._failures = 0
                return answer
            await anyio.sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def send_blocking(self, attempt: Callable[[], T], *, attempts: int | None = None) -> T:
        """As `send`, for a function that blocks, in a worker thread. Nothing limits the time of an attempt.

        Args:
            attempt: Sends the request. It is called once for each attempt.
            attempts: How often it is sent at most; None is the number of the policy.

        Returns:
            What `attempt` returns.

        Raises:
            BackendError: The server has failed so often that nothing was sent.
            Exception: The error of the last attempt.
        """
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            self._check_circuit()
            try:
                answer = attempt()
            except Exception as error:
                if not self._count_failure(error) or failed == most:
                    raise
            else:
                self._failures = 0
                return answer
            sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def _count_failure(self, error: Exception) -> bool:
        """Count an error of an attempt if the server failed. Returns whether it did; else the error is its answer."""
        if not isinstance(error, TimeoutError) and not self._is_transient(error):
            self._failures = 0
            return False
        self._failures += 1
        if self._failures >= self.policy.failures_to_open:
            self._open_until = monotonic() + self.policy.open_seconds
        return True

    def _check_circuit(self) -> None:
        if self._failures < self.policy.failures_to_open:
            return
        remaining = self._open_until - monotonic()
        if remaining > 0:
            raise BackendError(
                None, f"The storage failed {self._failures} times in a row; it is asked again in {remaining:.1f} s"
            )
        # One caller tries whether the server is back; the others are refused until its request has ended.
        self._open_until = monotonic() + self.policy.open_seconds


async def until_accepted(attempt: Callable[[], Awaitable[T]], seconds: float = _CONTENTION) -> T:
    """Run an operation; run it again while it raises ChangedError, for up to `seconds`."""
    deadline = monotonic() + seconds
    while True:
        try:
            return await attempt()
        except ChangedError:
            if monotonic() > deadline:
                raise
        # The pause is random, so that two attempts that collided do not collide again.
        pause = random.uniform(0, _PAUSE)
        if is_inline():
            sleep(pause)  # noqa: ASYNC251  # There is no event loop to wait on.
        else:
            await anyio.sleep(pause)
