"""Long calls take turns: the order of their steps; cancellation, errors and clocks of interrupted calls; threads."""

import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import anyio
import pytest

from deepfs.threads import deadline as module_of_deadline
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.threads.pool import WorkerPool
from support.waiting import until, until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


class Gate:
    """A call that holds its worker, since it checks no deadline."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: Deadline | None = None) -> None:
        self.begun.set()
        assert self.opened.wait(20)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """A pool with one worker, whose turns are over at each check of a deadline."""
    monkeypatch.setattr(pool, "_TURN_S", 0)
    monkeypatch.setattr(pool, "_PATIENCE_S", 60)
    workers = WorkerPool("test", core=1, limit=1, most=2, threads=4, takes_turns=True)
    monkeypatch.setattr(pool._pools, "long", workers)
    return workers


def is_at_rest(workers: WorkerPool) -> bool:
    """Whether all places are given back."""
    return (len(workers._idle), workers._running, workers._queue.served) == (1, {}, 0)


def is_interrupted(workers: WorkerPool) -> bool:
    """Whether a call that has begun waits for its turn."""
    return workers._queue.served > len(workers._running)


def walk(log: list[str], name: str, steps: int, deadline: Deadline) -> str:
    for _ in range(steps):
        log.append(name)
        deadline.check()
    return name


class Calls:
    """Submits calls in order, while the only worker is held by a gate."""

    def __init__(self, gate: Gate) -> None:
        self.log: list[str] = []
        self.results: dict[str, object] = {}
        self._gate = gate

    async def run(self, *calls: tuple[str, str, int]) -> None:
        """Run calls of a storage, each with its name and number of steps."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.run_long, self._gate)
            await until(self._gate.begun.is_set)
            for storage, name, steps in calls:
                tasks.start_soon(self._call, storage, name, steps)
                await until_tasks_wait()
            self._gate.opened.set()

    async def _call(self, storage: str, name: str, steps: int) -> None:
        self.results[name] = await pool.run_long(
            lambda deadline: walk(self.log, name, steps, deadline), storage=storage
        )


async def test_storages_take_turns(workers: WorkerPool, gate: Gate) -> None:
    calls = Calls(gate)
    await calls.run(("a", "a", 3), ("b", "b", 3), ("c", "c", 2))
    assert "".join(calls.log) == "abcabcab"
    assert calls.results == {name: name for name in "abc"}
    await until(lambda: is_at_rest(workers))


async def test_many_calls_of_one_storage_have_one_turn_together(workers: WorkerPool, gate: Gate) -> None:
    calls = Calls(gate)
    await calls.run(*[("many", f"m{number}", 2) for number in range(6)], ("one", "x", 5))
    # A call takes its last turn to end.
    assert calls.log[:9] == ["m0", "x", "m0", "x", "x", "m1", "x", "m1", "x"]
    assert calls.log[9:] == [name for number in range(2, 6) for name in [f"m{number}"] * 2]


class Interrupted:
    """A call that is interrupted by a gate, which then holds the worker."""

    def __init__(self, gate: Gate, deadline: Deadline) -> None:
        self.deadline, self.begun = deadline, threading.Event()
        self._gate = gate

    def _work(self, deadline: Deadline) -> bool:
        self.begun.set()
        while not self._gate.begun.is_set():
            deadline.check()
        deadline.check()
        return deadline.has_passed

    async def run(self) -> bool:
        return await pool.run_long(self._work, deadline=self.deadline, storage="interrupted")

    async def wait(self, workers: WorkerPool) -> None:
        await until(self.begun.is_set)
        pool.start_long("gate", self._gate)
        await until(lambda: self._gate.begun.is_set() and is_interrupted(workers))


async def test_an_interrupted_call_ends_at_once_when_its_caller_is_cancelled(workers: WorkerPool, gate: Gate) -> None:
    call = Interrupted(gate, Deadline())
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run)
            await call.wait(workers)
            tasks.cancel_scope.cancel()
    assert not gate.opened.is_set()
    assert not workers._queue
    gate.opened.set()
    await until(lambda: is_at_rest(workers))
    assert await pool.run_long(lambda _: 1) == 1


async def test_the_time_of_an_interruption_does_not_count(
    workers: WorkerPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e12]
    monkeypatch.setattr(module_of_deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found: list[bool] = []

    async def run() -> None:
        found.append(await call.run())

    call = Interrupted(gate, Deadline(30))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await call.wait(workers)
        await until(lambda: call.deadline._due is None)
        now[0] += 100
        assert not call.deadline.has_passed
        gate.opened.set()
    assert found == [False]
    now[0] += 29
    assert not call.deadline.has_passed
    now[0] += 2
    assert call.deadline.has_passed


async def test_a_call_goes_on_if_no_thread_can_be_started_for_another(
    workers: WorkerPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = Calls(gate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.run_long, lambda _: None)
        await until(lambda: workers._entered)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        tasks.start_soon(calls.run, ("a", "a", 3), ("b", "b", 3))
    assert "".join(calls.log) == "aaabbb"
    await until(lambda: is_at_rest(workers))


async def test_a_call_that_checks_no_deadline_loses_its_place(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    workers = WorkerPool("test", core=1, limit=1, most=2, threads=4, takes_turns=True)
    monkeypatch.setattr(pool._pools, "long", workers)
    pool.start_long("gate", gate)
    await until(gate.begun.is_set)
    calls = Calls(gate)
    with anyio.fail_after(10):
        await pool.run_long(partial(walk, calls.log, "a", 3), storage="a")
    assert not gate.opened.is_set()
    gate.opened.set()
    await until(lambda: is_at_rest(workers))
