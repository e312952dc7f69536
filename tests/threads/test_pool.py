"""Blocking calls in worker threads: results, cancellation, fairness, several loops, forks and interpreter exit."""

import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.threads.pool import WorkerPool
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


@pytest.fixture
def fresh_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the pool for short calls by one without threads yet."""
    monkeypatch.setattr(pool._pools, "short", WorkerPool("test", core=1, limit=40))


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


@pytest.mark.usefixtures("fresh_pool")
async def test_slow_calls_get_more_workers_which_end_when_idle() -> None:
    running = most = 0
    counting = threading.Lock()

    def slow(_: int) -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with counting:
            running -= 1

    others = threading.active_count()
    await pool.run_each(slow, range(100))
    assert most > 3
    # One worker remains, and one that looks on.
    await until(lambda: threading.active_count() <= others + 2)


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


async def test_results_are_delivered_before_the_last_of_several_calls_gets_stuck(gate: Gate) -> None:
    """The worker does not wake the loop after each call if others wait, but another thread does so soon."""
    results: list[int] = []

    async def quick() -> None:
        results.append(await pool.run(len, "abc"))

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(quick)
        tasks.start_soon(lambda: pool.run(gate, abandon_on_cancel=True))
        with anyio.fail_after(10):
            await until(lambda: len(results) == 50)
        gate.opened.set()
