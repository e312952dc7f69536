"""Sync overrides that many tasks call concurrently, and whose callers are cancelled."""

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from deepfs import BackendProtocol, FilesystemBackend, MemoryBackend, run_sync
from deepfs.backends.wrapper import WrapperBackend
from deepfs.testing import LatencyBackend
from deepfs.testing.suite import gather
from deepfs.types import GrepResult, WriteResult
from support.waiting import until_tasks_wait

Act = Callable[[], Awaitable[Any]]


def writing_over(base: type[BackendProtocol]) -> type[Any]:
    class Writing(base):
        def write(self, path: str, content: str, **options: Any) -> WriteResult:
            return super().write(path, content, **options)

    return Writing


def searching_over(base: type[BackendProtocol]) -> type[Any]:
    class Searching(base):
        left = False

        def grep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
            try:
                return super().grep(pattern, path, glob, **options)
            finally:
                self.left = True

    return Searching


def on_asyncio(act: Act) -> Any:
    return anyio.run(act)


def on_trio(act: Act) -> Any:
    return anyio.run(act, backend="trio")


def on_background_loop(act: Act) -> Any:
    return run_sync(act)


async def successful_writes(count: int, write: Callable[[str, str], Awaitable[WriteResult]]) -> int:
    """Run `count` concurrent writes, and return how many succeed."""
    written: list[bool] = []

    async def one(number: int) -> None:
        written.append((await write(f"/{number}.txt", "x")).ok)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
    return sum(written)


@pytest.mark.parametrize("loop", [on_asyncio, on_trio, on_background_loop])
class TestManyConcurrentCalls:
    """More concurrent calls than the loop has worker threads."""

    def test_through_nested_overrides(self, loop: Callable[[Act], Any], tmp_path: Path) -> None:
        backend = writing_over(FilesystemBackend)(tmp_path)
        for _ in range(3):
            backend = writing_over(LatencyBackend)(backend, 0.001)
        assert loop(partial(successful_writes, 100, backend.awrite)) == 100

    def test_while_callers_hold_every_thread_of_the_loop(self, loop: Callable[[Act], Any], tmp_path: Path) -> None:
        backend = writing_over(FilesystemBackend)(tmp_path)

        async def from_a_thread(path: str, content: str) -> WriteResult:
            return await anyio.to_thread.run_sync(anyio.from_thread.run, backend.awrite, path, content)

        assert loop(partial(successful_writes, 60, from_a_thread)) == 60


class Endless(MemoryBackend):
    """A search never returns; records when it begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()
        self.ended = False

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **_: Any) -> GrepResult:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended = True
        raise AssertionError


@pytest.mark.anyio
class TestCancellation:
    async def test_cancellation_reaches_through_nested_overrides(self) -> None:
        inner = searching_over(Endless)()
        middle = searching_over(WrapperBackend)(inner)
        outer = searching_over(WrapperBackend)(middle)
        with anyio.move_on_after(0.1) as scope:
            await outer.agrep("one")
        assert scope.cancelled_caught
        assert [backend.left for backend in (inner, middle, outer)] == [True] * 3

    async def test_an_override_cancelled_before_it_starts_never_runs(self) -> None:
        release = threading.Event()
        begun: list[str] = []

        class Slow(MemoryBackend):
            def write(self, path: str, content: str, **options: Any) -> WriteResult:
                begun.append(path)
                release.wait(20)
                return super().write(path, content, **options)

        backend = Slow()
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(backend.awrite, f"/{number}.txt", "x")
            await until_tasks_wait()
            with anyio.move_on_after(0.3) as scope:
                await backend.awrite("/late.txt", "x")
            release.set()
        assert scope.cancelled_caught
        assert len(begun) == 40
        assert "/late.txt" not in begun


class SlowMemory(MemoryBackend):
    """A memory backend that awaits before it writes, like a backend that asks for approval first."""

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        await anyio.lowlevel.checkpoint()
        return await super().awrite(path, content, overwrite=overwrite, if_match=if_match)


async def check_concurrent_changes(backend: BackendProtocol) -> None:
    numbers = range(20)
    assert (await backend.awrite("/log", "".join(f"<{number}>" for number in numbers))).ok
    results = await gather((lambda n=number: backend.aedit("/log", f"<{n}>", f"({n})")) for number in numbers)
    assert [result.error for result in results if not result.ok] == []
    assert (await backend.aread_raw("/log")).unwrap().content == "".join(f"({number})" for number in numbers)
    results = await gather((lambda n=number: backend.awrite(f"/{n}", "x")) for number in numbers)
    assert all(result.ok for result in results)


@pytest.mark.anyio
async def test_concurrent_edits_of_a_memory_backend_with_an_async_override() -> None:
    await check_concurrent_changes(SlowMemory())
