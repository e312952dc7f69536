"""How backends behave towards a server that is slow, fails or is contended: one policy for all of them."""

import random
from collections.abc import Awaitable, Callable
from time import sleep
from typing import Final, TypeVar

import anyio
from msgspec import Struct

from deepfs.text.arguments import check_integer

T = TypeVar("T")

CONTENTION: Final = 30.0
"""How long an operation is planned anew while others change the same files, in seconds."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When a request is tried again, and for how long.

    Args:
        attempts: How often a request is sent at most, if it fails for a reason that may pass.
        timeout: Seconds that one attempt may take.
        first_delay: Seconds to wait before the second attempt, at most. The wait is random, and its limit doubles with
            each further attempt.
        longest_delay: The limit at which that doubling ends, in seconds.
        contention: Seconds for which an operation is planned anew while others change the same files.

    Raises:
        TypeError: For something else than a number, and for a fraction of an attempt.
        ValueError: For a number that is not positive.
    """

    attempts: int = 5
    timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 2.0
    contention: float = CONTENTION

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


def check_policy(given: RetryPolicy | None) -> RetryPolicy:
    """The policy, or the default for None. Raises TypeError for anything else."""
    if not isinstance(given, RetryPolicy | None):
        raise TypeError(f"retries must be a RetryPolicy, not {type(given).__name__}")
    return given or RetryPolicy()


class Requests:
    """Sends the requests of one backend to its server, by a policy.

    Args:
        policy: The policy.
        is_transient: Whether an error of the driver is one that may pass, such as a lost connection.
    """

    def __init__(self, policy: RetryPolicy, is_transient: Callable[[Exception], bool]) -> None:
        self.policy: RetryPolicy = policy
        self._is_transient = is_transient

    async def send(self, attempt: Callable[[], Awaitable[T]], *, attempts: int | None = None) -> T:
        """Send a request, again if it fails for a reason that may pass. Raises the error of the last attempt.

        `attempts` is how often it is sent at most, by default the number of the policy. A request that must not be
        carried out twice is sent once.
        """
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            try:
                with anyio.fail_after(self.policy.timeout):
                    return await attempt()
            except Exception as error:
                if failed == most or not self._may_pass(error):
                    raise
            await anyio.sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def send_blocking(self, attempt: Callable[[], T], *, attempts: int | None = None) -> T:
        """As `send`, for a function that blocks, in a worker thread. Nothing limits the time of an attempt."""
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            try:
                return attempt()
            except Exception as error:
                if failed == most or not self._may_pass(error):
                    raise
            sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, TimeoutError) or self._is_transient(error)
