"""Concurrent requests with the same key are answered in one batch; each gets its own result."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import anyio
import pytest

from deepfs.threads import pool
from deepfs.threads.batching import BatchedCall, Batcher
from support.waiting import until, until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

Group = list[BatchedCall[int, int]]


class Answering:
    """Doubles numbers and records the batches; before each answer, waits for `gate` or the cancellation of the call."""

    def __init__(self) -> None:
        self.put: list[tuple[str, list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.batcher: Batcher[str, int, int] = Batcher()
        self.respond: Callable[[str, Group], None] = self.double

    def double(self, key: str, calls: Group) -> None:
        self.put.append((key, sorted(call.request for call in calls)))
        for call in calls:
            while not self.gate.is_set() and not call.deadline.is_cancelled:
                time.sleep(0.001)
            call.settle(partial(double, call.request))


def double(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return 2 * number


@pytest.fixture
def answering() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.gate.set()


@pytest.fixture
async def held_lane() -> AsyncIterator[Callable[[], None]]:
    """Occupy all worker threads for long calls; calling the fixture's value releases them."""
    gate, held = threading.Event(), list[None]()

    def hold() -> None:
        held.append(None)
        gate.wait(20)

    limit = pool._pools.long._core
    for _ in range(limit):
        pool.start_long(None, hold)
    await until(lambda: len(held) == limit)
    yield gate.set
    gate.set()


async def answers(answering: Answering, *questions: tuple[str, int]) -> list[object]:
    """The answers, or errors, of requests made concurrently."""
    found: list[object] = [None] * len(questions)

    async def ask(place: int, key: str, number: int) -> None:
        try:
            found[place] = await answering.batcher.ask(answering.respond, key, number)
        except ValueError as error:
            found[place] = repr(error)

    async with anyio.create_task_group() as tasks:
        for place, (key, number) in enumerate(questions):
            tasks.start_soon(ask, place, key, number)
    return found


async def test_requests_with_one_key_are_batched(answering: Answering, held_lane: Callable[[], None]) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(answering.batcher.ask, answering.respond, "a", number)
        tasks.start_soon(answering.batcher.ask, answering.respond, "b", 7)
        await until_tasks_wait()
        assert answering.put == []
        held_lane()
    assert sorted(answering.put) == [("a", [0, 1, 2, 3, 4]), ("b", [7])]
    assert await answers(answering, ("a", 8)) == [16]
    assert answering.put[-1] == ("a", [8])


async def test_an_error_fails_only_its_own_request(answering: Answering, held_lane: Callable[[], None]) -> None:
    held_lane()
    assert await answers(answering, ("a", 1), ("a", -1), ("a", 2)) == [2, "ValueError(-1)", 4]


async def test_requests_of_a_failed_batch_are_retried_one_by_one(
    answering: Answering, held_lane: Callable[[], None]
) -> None:
    def respond(_: str, calls: Group) -> None:
        answering.put.append(("a", [call.request for call in calls]))
        calls[0].settle(lambda: -len(calls))
        calls[0].settle(lambda: 0)
        if len(calls) > 1:
            raise ValueError

    answering.respond = respond
    async with anyio.create_task_group() as tasks:
        found: list[object] = []

        async def ask() -> None:
            found.extend(await answers(answering, ("a", 1), ("a", 2), ("a", 3)))

        tasks.start_soon(ask)
        await until_tasks_wait()
        held_lane()
    (_, first), *rest = answering.put
    assert sorted(first) == [1, 2, 3]
    assert rest == [("a", [number]) for number in first[1:]]
    assert sorted(found) == [-3, -1, -1]


async def test_a_request_that_also_fails_alone_gets_the_error(held_lane: Callable[[], None]) -> None:
    def respond(_: str, calls: Group) -> None:
        raise ValueError([call.request for call in calls])

    held_lane()
    answering = Answering()
    answering.respond = respond
    assert await answers(answering, ("a", 1), ("a", 2)) == ["ValueError([1])", "ValueError([2])"]


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_a_request_cancelled_before_its_batch_starts_is_left_out(
    answering: Answering, held_lane: Callable[[], None]
) -> None:
    with anyio.move_on_after(0) as scope:
        await answering.batcher.ask(answering.respond, "a", 1)
    assert scope.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answering.batcher.ask, answering.respond, "a", 2)
        with anyio.move_on_after(0.01) as scope:
            await answering.batcher.ask(answering.respond, "a", 3)
        assert scope.cancelled_caught
        held_lane()
    assert answering.put == [("a", [2])]


async def test_cancelling_one_request_of_a_running_batch_keeps_the_others(
    answering: Answering, held_lane: Callable[[], None]
) -> None:
    answering.gate.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers, answering, ("a", 2))
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(answering.batcher.ask, answering.respond, "a", 1)
            await until_tasks_wait()
            held_lane()
            await until(lambda: answering.put)
            answering.gate.set()
            cancelled.cancel_scope.cancel()
    assert answering.put == [("a", [1, 2])]


# --- loops, threads and processes ------------------------------------------------------------------------------------


async def test_after_a_failed_thread_start_the_next_request_tries_again(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "start_long", refuse)
        with pytest.raises(RuntimeError):
            await answering.batcher.ask(answering.respond, "a", 1)
    with anyio.fail_after(10):
        assert await answering.batcher.ask(answering.respond, "a", 1) == 2
