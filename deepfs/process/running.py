"""Running commands: limited in time, output and number, and killed with their process group."""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.lowlevel import RunVar

from deepfs.process.child import Command, Process, start
from deepfs.process.output import Captured, Chunk, stop_note, time_up
from deepfs.threads.pool import FairQueue
from deepfs.types import ExecuteResponse

__all__ = ["MAX_COMMANDS", "Running", "capture", "running"]

MAX_COMMANDS: Final = 32
"""The most commands that one event loop runs at once; further ones wait. Backends take turns in starting one."""
_ASSURED: Final = 2
"""The commands of a backend that start although those of others have taken all places."""
_MAX_ASSURED: Final = 4 * MAX_COMMANDS
"""The most commands that run then."""

_NOT_STARTED: Final = 126
"""The exit status of shells for a command that was found and cannot be run."""
_BY_SIGNAL: Final = 128

_places: RunVar["_Places"] = RunVar("deepfs_commands")


class Running:
    """A running command. Iterating yields its output as it comes; the command has to wait for a slow reader."""

    exit_code: int | None
    """None while the command runs, and if it was stopped."""
    stopped: str | None
    """Why the command was stopped; None if it ended by itself or still runs."""
    timed_out: float | None
    """After how many seconds the command was stopped, if its time was up."""
    not_enforced: tuple[str, ...]
    """As in `ExecuteResponse`; known when the iteration has ended."""

    def __init__(self) -> None:
        self.exit_code = None
        self.stopped = None
        self.timed_out = None
        self.not_enforced = ()
        self._sender, self._chunks = anyio.create_memory_object_stream[Chunk](0)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def _run(self, command: Command) -> None:
        with self._sender:
            await self._record(command, self._sender.send)

    async def _record(self, command: Command, sink: Callable[[Chunk], Awaitable[None]]) -> None:
        self.not_enforced = command.not_enforced
        returncode, self.stopped, self.timed_out = await _run(command, sink)
        self.exit_code = None if self.stopped else _exit_code(returncode)

    def _close(self) -> None:
        self._sender.close()
        self._chunks.close()


@asynccontextmanager
async def running(command: Command) -> AsyncIterator[Running]:
    """Run a command during the block, which may read its output; leaving the block early ends the command.

    Raises OSError if it cannot be started.
    """
    run = Running()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run._run, command)
            yield run
            tasks.cancel_scope.cancel()
    finally:
        run._close()


async def capture(command: Command, max_output_bytes: int) -> ExecuteResponse:
    """Run a command and return the head and the tail of its output.

    At the timeout, and on cancellation, the command is killed with its process group. If it ends by itself,
    background processes that it started go on, and are not waited for.

    Args:
        command: The command.
        max_output_bytes: The limit for both streams together; bytes between head and tail are counted and dropped.

    Returns:
        The output and the exit code. The code is None if the command was stopped, as at the timeout; 128 plus the
        number of the signal if a signal ended it; 126 if it could not be started.
    """
    captured, run = Captured(max_output_bytes), Running()
    try:
        await run._record(command, captured.add)
    except OSError as error:
        return ExecuteResponse(f"Error: The command cannot be started: {error.strerror}", _NOT_STARTED)
    finally:
        run._close()
    output = captured.text()
    if run.stopped:
        gap = "" if not output or output.endswith("\n") else "\n"
        output += f"{gap}{stop_note(run.stopped)}"
    return ExecuteResponse(output, run.exit_code, captured.truncated, run.not_enforced, run.timed_out)


async def _run(
    command: Command, sink: Callable[[Chunk], Awaitable[None]]
) -> tuple[int | None, str | None, float | None]:
    """Run a command; return its return code, and what `_waited` returns. Time in the queue does not count."""
    async with _places_of_loop().place(command.backend):
        process = await start(command)
        try:
            async with anyio.create_task_group() as tasks:
                for pipe in process.pipes:
                    tasks.start_soon(pipe.pump, sink)
                stopped, timed_out = await _waited(process, command)
                for pipe in process.pipes:
                    pipe.end()
        finally:
            await process.kill()
            process.close()
        return process.returncode, stopped, timed_out


async def _waited(process: Process, command: Command) -> tuple[str | None, float | None]:
    """Wait for the process, or kill it at its timeout or when `watch` returns.

    If it was stopped, returns why, and after how many seconds, if its time was up.
    """
    reason, timeout = "", command.timeout
    with anyio.move_on_after(timeout):
        reason = await _watched(process, command.watch)
    stopped = process.returncode is None
    await process.kill()
    if not stopped:
        return None, None
    return (reason, None) if reason or timeout is None else (time_up(timeout), timeout)


async def _watched(process: Process, watch: Callable[[int], Awaitable[str]] | None) -> str:
    """Wait until the process ends or `watch` returns; return the reason that `watch` gave, or an empty text."""
    if watch is None:
        await process.wait()
        return ""
    reason = ""
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            nonlocal reason
            reason = await watch(process.pid)
            tasks.cancel_scope.cancel()

        tasks.start_soon(look)
        await process.wait()
        tasks.cancel_scope.cancel()
    return reason


class _Waiting:
    """A command that waits for its place."""

    def __init__(self, group: Hashable) -> None:
        self.group: Hashable = group
        self.turn: Hashable = None
        self.may_start = anyio.Event()


class _Places:
    """The places of the commands that one event loop runs, which backends get in rotation."""

    def __init__(self) -> None:
        self._queue: FairQueue[_Waiting] = FairQueue(MAX_COMMANDS)
        self._taken = 0

    @asynccontextmanager
    async def place(self, backend: Hashable) -> AsyncIterator[None]:
        """Wait for a place for a command of `backend`, and hold it during the block."""
        command = _Waiting(backend)
        self._queue.put(command)
        self._fill()
        try:
            await command.may_start.wait()
            yield
        finally:
            self._leave(command)

    def _fill(self) -> None:
        while self._taken < _MAX_ASSURED:
            command = self._queue.pop(MAX_COMMANDS if self._taken < MAX_COMMANDS else _ASSURED)
            if command is None:
                return
            self._taken += 1
            command.may_start.set()

    def _leave(self, command: _Waiting) -> None:
        if not command.may_start.is_set():
            self._queue.remove(command)
            return
        self._queue.end(command)
        self._taken -= 1
        self._fill()


def _places_of_loop() -> _Places:
    try:
        return _places.get()
    except LookupError:
        places = _Places()
        _places.set(places)
        return places


def _exit_code(returncode: int | None) -> int | None:
    return _BY_SIGNAL - returncode if returncode is not None and returncode < 0 else returncode
