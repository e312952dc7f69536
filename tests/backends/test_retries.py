"""The policy by which requests to a server are sent again."""

import anyio
import pytest

from deepfs.storage.runners import Requests, RetryPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

QUICK = RetryPolicy(attempts=3, first_delay=1e-6, longest_delay=1e-6, timeout=60)


class LostError(Exception):
    """A connection was lost."""


class RefusedError(Exception):
    """The server refused the request."""


class Server:
    """Answers with each of `outcomes` in turn: an error is raised."""

    def __init__(self, *outcomes: Exception | str) -> None:
        self.outcomes = list(outcomes)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def requests(policy: RetryPolicy = QUICK) -> Requests:
    return Requests(policy, lambda error: isinstance(error, LostError))


async def test_what_may_pass_is_tried_again_and_an_answer_is_not() -> None:
    server = Server(LostError(), LostError(), "here")
    assert await requests().send(server) == "here"
    server = Server(RefusedError(), "here")
    with pytest.raises(RefusedError):
        await requests().send(server)
    assert server.asked == 1


async def test_an_attempt_ends_at_its_timeout() -> None:
    started: list[int] = []

    async def hangs() -> str:
        started.append(len(started))
        if len(started) < 2:
            await anyio.sleep_forever()
        return "here"

    policy = RetryPolicy(attempts=2, timeout=0.01, first_delay=1e-6)
    assert await requests(policy).send(hangs) == "here"
    started.clear()
    with pytest.raises(TimeoutError):
        await requests(policy).send(hangs, attempts=1)


def test_pauses_grow_to_a_limit_and_are_random() -> None:
    policy = RetryPolicy(first_delay=1, longest_delay=4)
    longest = [max(policy.delay(failed) for _ in range(2000)) for failed in (1, 2, 3, 4, 9)]
    assert [round(most, 1) for most in longest] == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert min(policy.delay(3) for _ in range(2000)) < 0.1
    assert policy.delay(100_000) <= 4, "a watch may have tried so often"


def test_numbers_must_be_positive() -> None:
    for name, value in {"attempts": 0, "timeout": 0, "first_delay": -1, "contention": float("nan")}.items():
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            RetryPolicy(**{name: value})
