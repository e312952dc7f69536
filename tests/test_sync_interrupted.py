"""Sync calls in signal handlers, in finalisers, at interpreter exit and on dead loops: they work, or raise at once."""

import threading
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from deepfs import CompositeBackend, MemoryBackend
from deepfs.threads import pool
from deepfs.threads.locks import path_locks
from support.scripts import run_script

pytestmark = pytest.mark.both_loops

if TYPE_CHECKING:
    from collections.abc import Callable

_HANDLER = dedent("""
    import signal, sys, time
    from deepfs import (CompositeBackend, FilesystemBackend, MemoryBackend, run_sync)

    worked, refused, ended = [], [], []

    def attempt(call):
        try:
            worked.append(call())
        except RuntimeError as error:
            refused.append(str(error))

    def every(seconds, call):
        def handle(*_):
            if not ended:
                attempt(call)
                signal.setitimer(signal.ITIMER_REAL, seconds)

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def no_more():
        # The handler stays: Python complains where a signal comes while it is taken away.
        ended.append(True)
        signal.setitimer(signal.ITIMER_REAL, 0)
""")


def with_handler(code: str, *options: str) -> str:
    """Output of `code`, run after the helpers above."""
    return run_script(_HANDLER + dedent(code), *options)


class TestSignalHandlers:
    @pytest.mark.parametrize("call", ["memory.write('/a', 'x', overwrite=True)", "hold(number)"])
    def test_a_handler_that_raises_blocks_no_later_calls(self, call: str) -> None:
        """Raise as Ctrl-C does, at each place in the locks where Python runs a handler: before and after calls."""
        printed = with_handler(
            f"""
            from deepfs.threads import forks, locks

            files = (forks.__file__, locks.__file__)
            memory, paths, raised = MemoryBackend(), locks.path_locks("a scope"), []

            def hold(name):
                with paths.hold_blocking(f"/a/{{name}}", f"/{{name}}"):
                    pass

            def interrupted_at(number):
                left = [number]

                def profile(frame, event, argument):
                    if frame.f_code.co_filename in files and frame.f_code.co_name != "__del__":
                        left[0] -= event in ("call", "c_return")
                        if not left[0]:
                            sys.setprofile(None)
                            raise KeyboardInterrupt

                sys.setprofile(profile)
                try:
                    {call}
                except KeyboardInterrupt:
                    raised.append(number)
                sys.setprofile(None)
                return not left[0]

            signal.alarm(10)  # A lock that is left is waited for.
            number = 1
            while interrupted_at(number):
                number += 1
                {call}
            print(len(raised) == number - 1 > 10)
        """
        )
        assert printed.split() == ["True"]

    def test_a_handler_does_not_take_part_in_the_interrupted_operation(self) -> None:
        """All writes of the handler and all writes of the program are kept."""
        printed = with_handler(
            """
            memory = MemoryBackend()
            memory.write("/count", "end")
            every(0.0005, lambda: memory.edit("/count", "end", "h end").ok)
            end, edits = time.monotonic() + 2, 0
            while time.monotonic() < end or len(worked) < 20:
                try:
                    assert memory.edit("/count", "end", "m end").ok
                    edits += 1
                    if not edits % 1000:
                        assert memory.edit("/count", "m ", "", replace_all=True).ok
                except RuntimeError as error:
                    refused.append(str(error))
            no_more()
            left = memory.read("/count").file_data.content.split()
            print(left.count("h") == len(worked), left.count("m") == edits % 1000)
            print(all("itself" in why for why in refused))
        """
        )
        assert printed.split() == ["True", "True", "True"]


_STEPS = dedent("""
    import weakref
    from deepfs.threads import locks as _locks
    from deepfs.threads.locks import path_locks

    def at_each_step(interrupted, calls):
        # Make each of `calls`, as a handler would, at each step that `interrupted` makes in the code of the locks.
        for call in calls:
            number = 0
            while at_step(number, interrupted, call):
                number += 1
            print(number > 50)

    def at_step(number, interrupted, call):
        left = [number, None]  # The second is dropped at the step.

        def trace(frame, event, argument):
            if frame.f_code.co_filename not in (_locks.__file__, weakref.__file__) or len(left) == 1:
                return None
            frame.f_trace_opcodes = True
            if left[0] == 0:
                left.pop()
                attempt(call)
            left[0] -= 1
            return trace

        sys.settrace(trace)
        try:
            interrupted()
        finally:
            sys.settrace(None)
        return len(left) == 1
""")


class TestInterruptedLocks:
    """A signal handler or finaliser runs while its thread changes the table of locks."""

    def test_at_each_step_of_a_hold_a_call_works_or_is_refused(self) -> None:
        printed = with_handler(
            _STEPS
            + dedent("""
            import anyio

            locks = path_locks("storage")

            def interrupted():
                with locks.hold_blocking("/a"):
                    pass
                assert (len(locks.table), len(locks.table._changes)) == (0, 0)

            async def hold():
                async with locks.hold("/b"):
                    return "held"

            def hold_blocking():
                with locks.hold_blocking("/b"):
                    return "held"

            at_each_step(interrupted, [hold_blocking, lambda: run_sync(hold), lambda: anyio.run(hold)])
            print(len(worked) > 200, len(refused) > 200, all("itself" in why for why in refused))
        """)
        )
        assert printed.split() == ["True"] * 6


class TestFinalisers:
    def test_a_finaliser_that_would_wait_for_itself_is_refused(self, tmp_path: Path) -> None:
        printed = run_script(f"""
            import gc
            from deepfs import (FilesystemBackend, run_sync)
            from deepfs.threads import pool

            gc.disable()
            backend = FilesystemBackend({str(tmp_path)!r})
            backend.write("/a.txt", "one")
            told = []

            class Careless:
                def __init__(self):
                    self.me = self
                def __del__(self):
                    try:
                        told.append(backend.write("/a.txt", "two", overwrite=True).ok)
                    except RuntimeError as error:
                        told.append(str(error))

            def collect(*_):
                Careless()
                gc.collect()

            async def on_the_loop():
                collect()

            run_sync(on_the_loop)
            run_sync(pool.run, collect)
            run_sync(pool.run_long, collect)
            run_sync(pool.run_resident, collect)
            collect()
            print(["await" in each for each in told[:1]], ["own work" in each for each in told[1:4]], told[4])
        """)
        assert printed.strip() == "[True] [True, True, True] True"


class TestEndedLoop:
    def test_all_callers_are_told_and_a_new_loop_is_started(self) -> None:
        printed = run_script("""
            import asyncio, threading, time
            import anyio
            from deepfs import MemoryBackend, run_sync
            from deepfs.testing import LatencyBackend

            threading.excepthook = lambda args: print("unhandled", args.exc_value)
            backend = LatencyBackend(MemoryBackend(), 0.001)
            assert backend.write("/a.txt", "one").ok
            told = []

            async def stop():
                asyncio.get_running_loop().stop()
                await anyio.sleep_forever()

            async def cancel_all():
                for task in asyncio.all_tasks():
                    task.cancel()
                await anyio.sleep_forever()

            async def raise_in_a_callback():
                def fail():
                    raise SystemExit(3)
                asyncio.get_running_loop().call_soon(fail)
                await anyio.sleep_forever()

            def call(function):
                try:
                    run_sync(function)
                except RuntimeError as error:
                    told.append(str(error))

            for end in (stop, cancel_all, raise_in_a_callback):
                waiting = threading.Thread(target=call, args=(anyio.sleep_forever,))
                waiting.start()
                time.sleep(0.2)
                call(end)
                waiting.join()
                assert backend.read("/a.txt").ok
            print(len(told), *set(told))
        """)
        ended = "deepfs's event loop ended before the call did; the next call starts it anew"
        assert printed.strip() == f"6 {ended}"


@pytest.mark.anyio
class TestOnTheLoopOfALockHolder:
    @pytest.fixture(autouse=True)
    def _no_blocking(self) -> None:
        """Disable the guard: these tests block the loop on purpose."""

    @pytest.mark.parametrize("also_first", [False, True], ids=["holder", "behind_another"])
    async def test_a_sync_call_that_needs_a_lock_held_on_the_same_loop_is_refused(
        self, tmp_path: Path, also_first: bool
    ) -> None:
        from deepfs import FilesystemBackend

        backend = FilesystemBackend(tmp_path)
        locks = path_locks(("disk", str(tmp_path)))
        refused = []

        def late() -> None:
            with locks.hold_blocking("/a.txt"):
                pass

        async with locks.hold("/a.txt"):
            thread = threading.Thread(target=late)
            if also_first:
                thread.start()
                await anyio.sleep(0.1)
            try:
                backend.write("/a.txt", "x")
            except RuntimeError as error:
                refused.append(str(error))
            assert backend.write("/b.txt", "x").ok
        if also_first:
            thread.join()
        assert "wait for itself" in refused[0]
        assert backend.write("/a.txt", "x").ok


def test_a_nested_change_of_memory_is_refused() -> None:
    """A finaliser that runs during a change can cause such a nested change."""
    tree: Any = None

    class Nested(MemoryBackend):
        is_synchronous = True

        def _before_apply(self, changes: Any) -> Any:
            for call in calls:
                with pytest.raises(RuntimeError, match="wait for itself"):
                    call()
            return super()._before_apply(changes)

    memory = Nested()
    tree = CompositeBackend(memory)
    tree.is_synchronous = False
    calls: list[Callable[[], object]] = [lambda: memory.write("/b", "x"), lambda: tree.write("/b", "x")]
    assert memory.write("/a", "x").ok
    calls = []
    assert memory.write("/b", "x").ok
    assert not pool.is_worker()
