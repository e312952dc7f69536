"""Event loops that are closed in the middle of an operation: nobody waits for ever for what they cannot do any more."""

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from deepfs import run_sync
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.policy import HistoryBackend, QuotaBackend
from deepfs.threads import pool
from deepfs.threads.locks import PathLocks, path_locks
from deepfs.threads.loop_bridge import LoopCallbacks, call_on, finish, loop_callbacks
from support.counts import few_or_many

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def abandoned(call: Callable[[], Awaitable[Any]], turns: int = 4) -> "asyncio.Task[Any]":
    """Begin a call on an event loop that is closed after some turns; the task, which keeps the call alive."""

    async def main() -> Any:
        return await call()

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    task._log_destroy_pending = False  # type: ignore[attr-defined] # Not a fault here.
    for _ in range(turns):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return task


@contextmanager
def in_thread(function: Callable[[], Any]) -> Iterator[list[Any]]:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(function()), daemon=True)
    thread.start()
    yield got
    thread.join(20)
    assert got, "it waits for ever"


def edit(locks: PathLocks, log: list[str], name: str) -> None:
    with locks.hold_blocking("/a"):
        log.append(name)


async def hold(locks: PathLocks, wait: Callable[[], Awaitable[Any]]) -> None:
    async with locks.hold("/a"):
        await wait()


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_lock_of_a_closed_loop_goes_to_the_next(is_kept: bool) -> None:
    locks, log = path_locks(object()), list[str]()
    task = abandoned(lambda: hold(locks, lambda: asyncio.sleep(100)))
    if not is_kept:
        del task
        gc.collect()
    edit(locks, log, "here")
    run_sync(hold, locks, lambda: asyncio.sleep(0))
    with in_thread(lambda: edit(locks, log, "there")):
        pass
    assert log == ["here", "there"]
    assert not len(locks.table)


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("is_shielded", [True, False])
def test_the_work_of_a_closed_loop_ends_before_the_lock_goes_on(is_kept: bool, is_shielded: bool) -> None:
    locks, log = path_locks(object()), list[str]()
    begun, ended = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        ended.wait()
        log.append("closed loop")

    async def work() -> None:
        await (finish(lambda: pool.run(write)) if is_shielded else pool.run(write))

    task = abandoned(lambda: hold(locks, work), turns=6)
    assert begun.wait(20)
    if not is_kept:
        del task
        gc.collect()
    with in_thread(lambda: edit(locks, log, "next") or True):
        time.sleep(0.1)
        assert not log
        ended.set()
    assert log == ["closed loop", "next"]


def test_a_thread_begins_nothing_for_a_closed_loop() -> None:
    loop = asyncio.new_event_loop()

    async def callbacks() -> LoopCallbacks:
        return loop_callbacks()

    found = loop.run_until_complete(callbacks())
    loop.close()
    with pytest.raises(RuntimeError, match="was closed"):
        found.enter_thread()
    assert not found.is_lost()
    found.leave_thread()
    assert found.is_lost()


def test_a_sync_call_waits_for_work_that_its_own_thread_has_left_behind() -> None:
    locks = path_locks(object())
    task = abandoned(lambda: hold(locks, lambda: pool.run(time.sleep, 0.2)), turns=6)
    run_sync(hold, locks, lambda: asyncio.sleep(0))
    assert not len(locks.table)
    del task


@pytest.mark.parametrize("loop_kind", ["asyncio", "trio"])
def test_a_call_on_another_loop_ends_when_that_is_closed(loop_kind: str) -> None:
    import anyio

    loop, begun = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        loop.run_until_complete(asyncio.sleep(0.2))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # Not a fault here.
        loop.close()
        begun.set()

    thread = threading.Thread(target=run)
    thread.start()

    async def main() -> None:
        with anyio.fail_after(20), pytest.raises(RuntimeError, match="was closed"):
            await call_on(loop, lambda: asyncio.sleep(100))

    anyio.run(main, backend=loop_kind)
    thread.join()


BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "disk": FilesystemBackend,
    "sqlite": lambda root: SqliteBackend(root / "files.db"),
    "history": lambda root: HistoryBackend(FilesystemBackend(root)),
    "quota": lambda root: QuotaBackend(MemoryBackend(), 10**9),
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("operations", few_or_many(60, 25_000, seconds=9_000))
@pytest.mark.parametrize("kind", BACKENDS)
def test_loops_closed_at_random_leave_nothing_behind(tmp_path: Path, kind: str, operations: int) -> None:
    backend = BACKENDS[kind](tmp_path)
    paths = [f"/{number}.txt" for number in range(3)]
    counts = dict.fromkeys(paths, 0)
    for path in paths:
        assert backend.write(path, "|").ok
    before, done = 0, 0
    while done < operations:
        made: list[tuple[str, asyncio.Task[Any]]] = []

        async def main(made: list[tuple[str, asyncio.Task[Any]]] = made) -> None:
            for _ in range(10):
                path = random.choice(paths)
                task = asyncio.ensure_future(backend.aedit(path, "|", "x|"))
                task._log_destroy_pending = False  # type: ignore[attr-defined] # Not a fault here.
                made.append((path, task))
            await asyncio.wait([task for _, task in made])

        loop = asyncio.new_event_loop()
        task = loop.create_task(main())
        task._log_destroy_pending = False  # type: ignore[attr-defined] # Not a fault here.
        until = time.monotonic() + random.uniform(0, 0.02)
        while not task.done() and time.monotonic() < until:
            with suppress(RuntimeError):
                loop.run_until_complete(asyncio.sleep(0))
        for path, each in made:
            if each.done():
                assert each.result().ok, each.result()
                counts[path] += 1
        loop.close()
        done += 10
        if random.random() < 0.2:
            del task, made
            gc.collect()
        path = random.choice(paths)
        with in_thread(lambda path=path: backend.edit(path, "|", "x|")) as got:
            pass
        assert got[0].ok, got[0]
        counts[path] += 1
        if done == 30:
            gc.collect()
            before = descriptors()
    for path in paths:
        assert backend.edit(path, "|", "!").ok
        text = backend.read(path).unwrap().content
        assert len(text) - 1 >= counts[path], "an acknowledged edit is lost"
    gc.collect()
    assert descriptors() <= before + 5
