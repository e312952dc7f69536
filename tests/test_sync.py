"""run_sync and the generated sync methods: the threads, event loops and processes in which they work."""

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from langgraph.store.base import BaseStore

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, StoreBackend, run_sync, sync_shims
from deepfs.backends.wrapper import WrapperBackend
from deepfs.policy import HistoryBackend
from deepfs.sync import BLOCKS_INLINE, is_inline, run_shielded
from deepfs.testing import LatencyBackend
from support.scripts import run_script

pytestmark = pytest.mark.both_loops

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def in_threads(count: int, function: Callable[[], object]) -> list[object]:
    """Results of `function` in `count` threads that run at the same time."""
    returned: list[object] = []
    threads = [threading.Thread(target=lambda: returned.append(function()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return returned


async def running_loop() -> int:
    return id(asyncio.get_running_loop())


async def new_event() -> anyio.Event:
    return anyio.Event()


async def fail(error: BaseException) -> None:
    raise error


class TestRunSync:
    def test_run_sync_takes_a_callable_with_its_arguments_or_a_coroutine(self) -> None:
        async def join(*parts: str, end: str) -> str:
            await anyio.lowlevel.checkpoint()
            return "".join(parts) + end

        assert run_sync(join, "a", "b", end="c") == run_sync(join("a", "b", end="c")) == "abc"

    def test_calls_of_several_threads_run_concurrently(self) -> None:
        everyone_is_here = run_sync(new_event)
        here: list[None] = []

        async def wait_for_the_others() -> None:
            here.append(None)
            if len(here) == 20:
                everyone_is_here.set()
            with anyio.fail_after(10):
                await everyone_is_here.wait()

        assert in_threads(20, lambda: run_sync(wait_for_the_others)) == [None] * 20

    def test_calls_see_the_context_variables_of_the_caller(self) -> None:
        async def seen() -> str:
            await anyio.lowlevel.checkpoint()
            before = tenant.get()
            tenant.set("changed by the call")
            return before

        token = tenant.set("ann")
        try:
            assert run_sync(seen) == "ann"
            assert tenant.get() == "ann"
        finally:
            tenant.reset(token)
        assert run_sync(seen) == "nobody"

    def test_exceptions_that_would_end_the_loop_end_only_the_call(self) -> None:
        before = run_sync(running_loop)
        for error in (SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()):
            with pytest.raises(type(error)):
                run_sync(fail, error)
        assert run_sync(running_loop) == before

    def test_nested_calls_on_the_background_loop_are_refused(self) -> None:
        async def nested() -> int:
            return run_sync(running_loop)

        async def nested_coroutine() -> int:
            return run_sync(running_loop())

        for call in (nested, nested_coroutine):
            with pytest.raises(RuntimeError, match="await the async method instead"):
                run_sync(call)

    def test_an_interrupt_cancels_the_call_and_waits_for_its_end(self) -> None:
        printed = run_script("""
            import signal, threading
            import anyio
            from deepfs import run_sync

            # A shell starts what it runs in the background with the signal ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)

            def interrupt():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            async def work():
                threading.Timer(0.1, interrupt).start()
                try:
                    await anyio.sleep_forever()
                except BaseException as error:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.2)
                    print("cleaned up after", type(error).__name__)
                    raise

            try:
                run_sync(work)
            except KeyboardInterrupt:
                print("interrupted")

            async def goes_on():
                print("goes on")

            run_sync(goes_on)
        """)
        assert printed.splitlines() == ["cleaned up after CancelledError", "interrupted", "goes on"]

    def test_simultaneous_first_calls_start_one_loop(self) -> None:
        printed = run_script("""
            import asyncio, sys, threading
            from deepfs import run_sync

            sys.setswitchinterval(1e-6)
            barrier, loops = threading.Barrier(40), []

            async def running_loop():
                return id(asyncio.get_running_loop())

            def first_use():
                barrier.wait()
                loops.append(run_sync(running_loop))

            threads = [threading.Thread(target=first_use) for _ in range(40)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            names = [thread.name for thread in threading.enumerate()]
            print(len(loops), len(set(loops)), names.count("deepfs-sync"))
        """)
        assert printed.split() == ["40", "1", "1"]


@pytest.mark.anyio
class TestInAThreadThatRunsALoop:
    @pytest.fixture(autouse=True)
    def _no_blocking(self) -> None:
        """Disable the guard: these tests block the loop on purpose."""

    async def test_sync_methods_of_a_backend_that_waits_work(self) -> None:
        backend = LatencyBackend(MemoryBackend(), 0.01)
        assert backend.write("/a.txt", "one").ok
        assert backend.read("/a.txt").file_data == {**await content_of(backend, "/a.txt")}


async def content_of(backend: Any, path: str) -> Any:
    return (await backend.aread(path)).file_data


class Recorded(WrapperBackend):
    """Records the thread of each call of `als`; adds no waiting of its own."""

    is_synchronous = True

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.threads: list[int] = []

    async def als(self, path: str) -> Any:
        self.threads.append(threading.get_ident())
        return await super().als(path)


class TestGeneratedMethods:
    def test_a_method_that_waits_runs_on_the_background_loop(self) -> None:
        backend = Recorded(LatencyBackend(MemoryBackend(), 0.001))
        assert in_threads(5, lambda: backend.ls("/").ok) == [True] * 5
        assert set(backend.threads) == {run_sync(current_thread)}

    @pytest.mark.anyio
    async def test_a_method_that_never_waits_runs_inline_on_any_loop(self) -> None:
        backend = Recorded(CompositeBackend(MemoryBackend(), {"/m/": MemoryBackend()}))
        assert backend.ls("/").entries == [{"path": "/m/", "is_dir": True}]
        assert backend.threads == [threading.get_ident()]

    @pytest.mark.anyio
    async def test_a_sync_call_on_a_loop_does_not_stop_the_loop_to_wait_for_a_lock(self) -> None:
        begun, may_end = anyio.Event(), anyio.Event()

        class Slow(MemoryBackend):
            is_synchronous = False

            async def awrite(self, *args: Any, **options: Any) -> Any:
                begun.set()
                await may_end.wait()
                return await super().awrite(*args, **options)

        history = HistoryBackend(Slow(), versions=MemoryBackend())
        history.is_synchronous = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(history.awrite, "/a", "x")
            await begun.wait()
            with pytest.raises(RuntimeError, match=r"waited|only wait for itself"):
                history.write("/a", "y")
            may_end.set()

    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    def test_an_event_loop_within_a_call_that_never_waits_has_its_own_tasks(self, loop: str, tmp_path: Path) -> None:
        disk = FilesystemBackend(tmp_path)
        results: list[bool] = []

        async def write_together() -> None:
            async def write(text: str) -> None:
                results.append((await disk.awrite("/log", text, overwrite=True)).ok)

            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(write, str(number))

        class Logged(MemoryBackend):
            def _before_apply(self, changes: Any) -> Any:
                anyio.run(write_together, backend=loop)
                return changes

        assert Logged().write("/a", "x").ok
        assert results == [True] * 4

    def test_the_decorator_generates_methods_for_other_classes(self) -> None:
        @sync_shims
        class Notes:
            async def aread(self, path: str) -> str:
                """Read a note."""
                await anyio.lowlevel.checkpoint()
                return f"note {path}"

            def write(self, path: str) -> str:
                return f"{path} in {threading.current_thread().name}"

        notes: Any = Notes()
        assert notes.read("/a") == "note /a"
        assert notes.read.__doc__ == "Read a note."
        assert run_sync(notes.awrite, "/a") != notes.write("/a")
        assert inspect.iscoroutinefunction(notes.awrite)

    def test_waiting_despite_is_synchronous_raises_with_advice(self) -> None:
        class Wait:
            def __await__(self) -> Iterator[None]:
                yield

        class Sleepy(MemoryBackend):
            is_synchronous = True

            async def als(self, path: str) -> Any:
                await Wait()
                return await super().als(path)

        with pytest.raises(RuntimeError, match="is_synchronous = False"):
            Sleepy().ls("/")


async def current_thread() -> int:
    return threading.get_ident()


@pytest.mark.anyio
class TestStoreBoundToALoop:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def store(self, sqlite_store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> BaseStore:
        """A store that records the event loop of each call."""
        abatch = sqlite_store.abatch
        self.loops: set[int] = set()

        async def recorded(operations: Any) -> Any:
            self.loops.add(await running_loop())
            return await abatch(operations)

        monkeypatch.setattr(sqlite_store, "abatch", recorded)
        return sqlite_store

    async def test_sync_methods_on_the_loop_of_the_store_name_their_async_form(self, store: BaseStore) -> None:
        backend = StoreBackend(store, namespace=("n",))
        calls: dict[str, Callable[[], object]] = {
            "aread": lambda: backend.read("/a.txt"),
            "awrite": lambda: backend.write("/a.txt", "one"),
            "als": lambda: backend.ls("/"),
            "adownload_files": lambda: backend.download_files(["/a.txt"]),
        }
        for name, call in calls.items():
            with pytest.raises(RuntimeError, match=rf"await StoreBackend\.{name}\(\) instead"):
                call()
        with pytest.raises(RuntimeError, match=r"await WrapperBackend\.aread\(\) instead"):
            WrapperBackend(backend).read("/a.txt")
        with pytest.raises(RuntimeError, match=r"await CompositeBackend\.agrep\(\) instead"):
            CompositeBackend(MemoryBackend(), {"/m/": backend}).grep("one")
        assert self.loops == set()

    async def test_calls_from_other_threads_and_loops_run_on_the_loop_of_the_store(self, store: BaseStore) -> None:
        backend = CompositeBackend(MemoryBackend(), {"/m/": StoreBackend(store, namespace=("n",))})
        written = await anyio.to_thread.run_sync(backend.write, "/m/a.txt", "one")
        assert written.ok
        read = await anyio.to_thread.run_sync(backend.read, "/m/a.txt")
        assert read.file_data == await content_of(backend, "/m/a.txt")
        on_trio = await anyio.to_thread.run_sync(lambda: anyio.run(backend.awrite, "/m/b.txt", "one", backend="trio"))
        assert on_trio.ok
        assert self.loops == {await running_loop()}


class TestFork:
    def test_a_forked_child_gets_its_own_loop_and_worker_threads(self, tmp_path: Path) -> None:
        printed = run_script(
            f"""
            import os, signal, threading
            import anyio
            from deepfs import (FilesystemBackend, run_sync)

            async def loop_thread():
                await anyio.sleep(0)
                return threading.get_ident(), os.getpid()

            backend = FilesystemBackend({str(tmp_path)!r})
            backend.write("/a.txt", "of the parent")
            run_sync(loop_thread)

            child = os.fork()
            if child == 0:
                signal.alarm(20)
                assert run_sync(loop_thread)[1] == os.getpid()
                assert backend.edit("/a.txt", "parent", "child").ok
                assert backend.grep("of the child").matches
                assert anyio.run(backend.aread, "/a.txt").ok
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(backend.read("/a.txt").file_data.content, run_sync(loop_thread)[1] == os.getpid())
            """,
            "-Wignore::DeprecationWarning",
        )
        assert printed.splitlines() == ["0", "of the child True"]


class TestInterpreterExit:
    def test_a_script_ends_while_daemon_threads_make_calls_and_atexit_handlers_may_make_some(
        self, tmp_path: Path
    ) -> None:
        printed = run_script(f"""
            import atexit, threading
            from deepfs import (FilesystemBackend, run_sync)

            backend = FilesystemBackend({str(tmp_path)!r})

            @atexit.register
            def at_exit():
                print(run_sync(backend.aread, "/b.txt").ok, backend.edit("/b.txt", "y", "z").ok)

            def keep_busy():
                while True:
                    backend.write("/a.txt", "x", overwrite=True)

            for _ in range(3):
                threading.Thread(target=keep_busy, daemon=True).start()
            print(backend.write("/b.txt", "y").ok)
        """)
        assert printed.split() == ["True"] * 3

    def test_the_first_run_sync_may_happen_in_an_atexit_handler(self) -> None:
        printed = run_script("""
            import atexit
            from contextvars import ContextVar
            import anyio
            from deepfs import (MemoryBackend, run_sync)
            from deepfs.testing import LatencyBackend

            name = ContextVar("name")
            backend = LatencyBackend(MemoryBackend(), 0.001)

            async def told(greeting):
                await anyio.sleep(0.001)
                return f"{greeting}-{name.get()}"

            @atexit.register
            def at_exit():
                name.set("ann")
                print(run_sync(told, "hello"), run_sync(told("bye")))
                print(backend.write("/a.txt", "one").ok, backend.read("/a.txt").file_data.content)
        """)
        assert printed.split() == ["hello-ann", "bye-ann", "True", "one"]

    def test_a_first_disk_call_at_exit_works_or_gives_the_reason(self, tmp_path: Path) -> None:
        """Since Python 3.12 an ending interpreter starts no threads, and blocking work needs a thread."""
        printed = run_script(f"""
            import atexit
            from deepfs import FilesystemBackend

            @atexit.register
            def at_exit():
                try:
                    print(FilesystemBackend({str(tmp_path)!r}).write("/a.txt", "one").ok)
                except RuntimeError as error:
                    print(error)
        """)
        assert printed.strip() == "True" or "new thread at interpreter shutdown" in printed


class TestShielded:
    def test_a_task_of_asyncio_may_be_cancelled_again_and_again(self) -> None:
        steps = []

        async def main() -> None:
            cancelled = asyncio.Event()

            async def change() -> None:
                await cancelled.wait()
                steps.append("changed")
                raise ValueError("an error that nobody waits for")

            failures: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            task = asyncio.create_task(run_shielded(change))
            for _ in range(3):
                await asyncio.sleep(0.01)
                assert task.cancel()
                assert not task.done()
            cancelled.set()
            await asyncio.wait([task])
            steps.append("cancelled" if task.cancelled() else "not cancelled")
            del task
            gc.collect()
            assert failures == []

        asyncio.run(main())
        assert steps == ["changed", "cancelled"]


@pytest.mark.anyio
async def test_what_blocks_inline_runs_inline_only_off_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocking:
        async def aread(self) -> str:
            return "inline" if is_inline() else "on a loop"

    setattr(Blocking.aread, BLOCKS_INLINE, True)
    backend: Any = sync_shims(Blocking)()
    assert await anyio.to_thread.run_sync(backend.read) == "inline"
    # What waits for a loop would block this one, which no test may do.
    monkeypatch.setattr("deepfs.sync.call_sync", lambda backend, call, name, instead: f"{name} elsewhere")
    assert backend.read() == "Blocking.read() elsewhere"
