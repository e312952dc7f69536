"""Blocking calls in worker threads: results, cancellation, fairness, several loops, forks and interpreter exit."""

import itertools
import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.threads.pool import Job, WorkerPool
from support.scripts import run_script
from support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


class Gate:
    """A blocking call that sets `begun` when it starts, and ends when `opened` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.opened.wait(20)
        self.ended = True
        return "through"

    async def wait_begun(self) -> None:
        await until(self.begun.is_set)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the pool for short calls by one with a single worker, so that queued calls stay queued."""
    monkeypatch.setattr(pool._pools, "short", WorkerPool("test", core=1, limit=1))


def fail(error: BaseException) -> None:
    raise error


# --- results ---------------------------------------------------------------------------------------------------------


class Strange(BaseException):
    pass


async def test_base_exceptions_reach_the_caller_and_leave_the_worker_alive() -> None:
    with pytest.raises(Strange):
        await pool.run(fail, Strange())
    with pytest.raises(SystemExit):
        await pool.run(fail, SystemExit(3))
    assert await pool.run(len, "ab") == 2


async def test_stop_iteration_is_an_error_and_not_a_result() -> None:
    with pytest.raises(RuntimeError) as caught:
        await pool.run(fail, StopIteration("5"))
    assert isinstance(caught.value.__cause__, StopIteration)


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("abandon", [True, False])
async def test_a_cancelled_scope_makes_no_call(abandon: bool) -> None:
    calls: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await pool.run(calls.append, 1, abandon_on_cancel=abandon)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await pool.run_each(calls.append, [2, 3], abandon_on_cancel=abandon)
    assert scope.cancelled_caught
    assert await pool.run(len, calls) == 0


@pytest.mark.usefixtures("one_worker")
async def test_a_call_cancelled_in_the_queue_never_runs(gate: Gate) -> None:
    calls: list[int] = []
    async with anyio.create_task_group() as outer:
        outer.start_soon(pool.run, gate)
        await gate.wait_begun()
        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(pool.run, calls.append, number)
            group.start_soon(pool.run_each, calls.append, range(100))
            await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        # The group has ended although the worker is still busy, so no caller waited for the queue.
        assert not gate.ended
        gate.opened.set()
    assert await pool.run(len, calls) == 0


async def test_run_each_raises_the_first_error_after_the_calls_in_flight() -> None:
    seen: list[int] = []

    def odd(number: int) -> None:
        seen.append(number)
        if number % 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        await pool.run_each(odd, range(10))
    assert sorted(seen) == list(range(10))


async def test_an_abandoned_call_releases_its_caller_at_once(gate: Gate) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: pool.run(gate, abandon_on_cancel=True))
            await gate.wait_begun()
            group.cancel_scope.cancel()
    assert not gate.ended
    gate.opened.set()
    await until(lambda: gate.ended)


async def test_a_call_that_is_not_abandoned_is_waited_for(gate: Gate) -> None:
    ended_first: list[bool] = []

    async def write() -> None:
        try:
            await pool.run(gate)
        finally:
            ended_first.append(gate.ended)

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await gate.wait_begun()
        group.cancel_scope.cancel()
        threading.Timer(0.05, gate.opened.set).start()
    assert ended_first == [True]
    assert group.cancel_scope.cancelled_caught


@pytest.mark.usefixtures("one_worker")
async def test_run_each_waits_for_the_call_under_way_and_drops_the_rest(gate: Gate) -> None:
    calls: list[int] = []

    def work(number: int) -> None:
        calls.append(number)
        gate()

    async with anyio.create_task_group() as group:
        group.start_soon(pool.run_each, work, range(5))
        await gate.wait_begun()
        group.cancel_scope.cancel()
        threading.Timer(0.05, gate.opened.set).start()
    assert gate.ended
    assert await pool.run(list, calls) == [0]


async def test_cancelling_a_call_cancels_the_deadline_given_to_run() -> None:
    deadline = Deadline()
    begun = threading.Event()

    def patient() -> None:
        begun.set()
        while not deadline.is_cancelled:
            time.sleep(0.001)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: pool.run(patient, deadline=deadline))
            await until(begun.is_set)
            group.cancel_scope.cancel()


# --- fairness --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_worker")
async def test_one_call_does_not_wait_behind_thousands_of_earlier_calls(gate: Gate) -> None:
    served: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(pool.run, gate)
        await gate.wait_begun()
        for _ in range(5000):
            group.start_soon(pool.run, served.append, "crowd")
        await anyio.sleep(0.1)
        group.start_soon(pool.run, served.append, "alone")
        await anyio.sleep(0.1)
        gate.opened.set()
    assert served.index("alone") < 3
    assert len(served) == 5001


async def test_long_work_does_not_delay_short_work() -> None:
    def busy(deadline: Deadline) -> None:
        while True:
            deadline.check()
            time.sleep(0.001)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(pool.run_long, busy)
        with anyio.fail_after(10):
            assert await pool.run_each(abs, range(300)) == list(range(300))
        group.cancel_scope.cancel()


async def test_a_storage_that_does_not_answer_blocks_only_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool._pools, "long", WorkerPool("test", core=2, limit=5, most=2, threads=20, takes_turns=True))
    stuck = [Gate() for _ in range(6)]
    try:
        for number, gate in enumerate(stuck):
            pool.start_long("a" if number < 4 else "b", gate)
        await until(lambda: [gate.begun.is_set() for gate in stuck] == [True, True, False, False, True, True])
        done = threading.Event()
        pool.start_long("c", done.set)
        await until(done.is_set)
        assert await pool.run_long(lambda _: 1) == 1
        assert not stuck[2].begun.is_set()
        stuck[0].opened.set()
        await stuck[2].wait_begun()
        assert not stuck[3].begun.is_set()
    finally:
        for gate in stuck:
            gate.opened.set()
    await until(lambda: all(gate.ended for gate in stuck))


# --- loops, forks, exit ----------------------------------------------------------------------------------------------


async def test_existing_workers_continue_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = WorkerPool("test", core=2, limit=2)
    monkeypatch.setattr(pool._pools, "long", workers)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await pool.run_long(lambda _: 1)
    assert await pool.run_long(lambda _: 2) == 2
    left = len(workers._unstarted)
    with monkeypatch.context() as patch, anyio.fail_after(10):
        patch.setattr(threading.Thread, "start", refuse)
        assert await pool.run_long(lambda _: 3) == 3
    assert len(workers._unstarted) == left


def test_a_stuck_call_does_not_keep_the_interpreter_from_ending() -> None:
    script = """
        import time, anyio
        from deepfs.threads import pool

        async def main():
            with anyio.move_on_after(0.05):
                await pool.run(time.sleep, 1000, abandon_on_cancel=True)
            await pool.run(len, "")
            await pool.run_long(lambda deadline: None)

        anyio.run(main)
    """
    run_script(script)


# --- no thread on which the others depend -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failing", ["_give_places", "_wake_loops", "_stop"])
@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_no_job_is_lost_with_a_thread_that_fails(failing: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = WorkerPool("test", core=1, limit=3)
    calls = itertools.count()
    step = getattr(workers, failing)

    def fail_once(*args: object) -> object:
        if next(calls) == number:
            raise ZeroDivisionError("an error of ours")
        return step(*args)

    monkeypatch.setattr(workers, failing, fail_once)
    stuck, ended = threading.Event(), threading.Semaphore(0)
    workers.submit(Job(0, None, lambda: None, stuck.wait, (20,)))
    for turn in range(5):
        workers.submit(Job(1, turn, ended.release, time.sleep, (0.001,)))
    time.sleep(0.02)
    workers.submit(Job(2, None, ended.release, len, ("",)))
    for _ in range(6):
        assert ended.acquire(timeout=10)
    stuck.set()
