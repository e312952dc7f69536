"""Processes that use deepfs, and whether threads and children of this process are still at work."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import deepfs

__all__ = [
    "Process",
    "appeared",
    "children",
    "gone",
    "pause",
    "printed_at_once",
    "started",
    "until_idle",
    "working_threads",
]

Process = subprocess.Popen[str]

_PACKAGE = str(Path(deepfs.__file__).parent)
_RESTING = ("pool.py", "background.py")
"""Modules in which idle threads of the pools and of the background loop wait; in any other module, a thread works."""


@contextmanager
def started(script: str, *arguments: object, prefix: tuple[str, ...] = ()) -> Iterator[Process]:
    """An interpreter that runs `script` with open stdin and stdout; killed at the end of the block."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def children() -> set[str]:
    """The ids of child processes that have not been waited for."""
    found: set[str] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended in the meantime.
            found.update(listed.read_text().split())
    return found


_numbers = count()


@pytest.fixture
def pause() -> Iterator[str]:
    """A duration for `sleep`, in seconds, that no other test uses: the text identifies the processes of this test.

    Processes that are left at the end of the test are killed.
    """
    mark = f"100.{os.getpid():07}{next(_numbers):03}"
    yield mark
    for process in _processes_with(mark):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _processes_with(mark: str) -> list[int]:
    """The process ids of this machine whose command line contains `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


async def appeared(mark: str) -> bool:
    """Whether a process with `mark` appears within a second. During an exec, a process has no command line."""
    return await _within_a_second(lambda: bool(_processes_with(mark)))


async def gone(mark: str) -> bool:
    """Whether no process with `mark` is left within a second. A killed process may need a moment to end."""
    return await _within_a_second(lambda: not _processes_with(mark))


async def _within_a_second(is_so: Callable[[], bool]) -> bool:
    for _ in range(100):
        if await anyio.to_thread.run_sync(is_so):
            return True
        await anyio.sleep(0.01)
    return False


async def until_idle() -> float:
    """Wait until no thread of deepfs's pools works; returns the seconds that this took."""
    begun = time.perf_counter()
    for _ in takewhile(bool, iter(working_threads, None)):
        await anyio.sleep(0.0005)
    return time.perf_counter() - begun


def working_threads() -> list[str]:
    """The threads of deepfs's pools that run a call, each with its current position."""
    names = {thread.ident: thread.name for thread in threading.enumerate() if thread.name.startswith("deepfs-")}
    found = []
    for ident, frame in sys._current_frames().items():
        while ident in names and frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_PACKAGE) and not file.endswith(_RESTING):
                found.append(f"{names[ident]} in {file.removeprefix(_PACKAGE)}:{frame.f_lineno}")
                break
            frame = frame.f_back
    return found


def printed_at_once(program: str, arguments: Iterable[Sequence[object]]) -> list[str]:
    """The lines that processes of `program` print, one for each of `arguments`, which work at the same time.

    The program prints "ready", and begins when it can read a line.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(started(program, *each)) for each in arguments]
        assert [process.stdout and process.stdout.readline() for process in processes] == ["ready\n"] * len(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [line for process in processes for line in process.communicate()[0].splitlines()]
