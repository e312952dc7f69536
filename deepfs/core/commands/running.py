"""One command from its turn in the queue to its end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.lowlevel import RunVar
from msgspec import Struct

from deepfs.core.commands.output import Captured, Chunk
from deepfs.core.commands.process import Process, start
from deepfs.types import ExecuteResponse

__all__ = ["MAX_COMMANDS", "Command", "Running", "capture", "running"]

MAX_COMMANDS: Final = 32
"""Commands that one event loop runs at once; others wait, and get their turns in the order in which they came."""

_NOT_STARTED: Final = 126
"""The exit status by which shells tell that a command was found and cannot be run."""
_BY_SIGNAL: Final = 128

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("deepfs_commands")


class Command(Struct, frozen=True):
    """What to run, in which directory, with which environment and file descriptors, for how many seconds at most."""

    arguments: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    timeout: float | None = None
    pass_fds: Sequence[int] = ()
    watch: Callable[[], Awaitable[str]] | None = None
    """Runs beside the command and returns where it is to be stopped, with the reason."""


class Running:
    """A command at work. Iterating gives its output as it comes; the command waits for whoever reads slowly."""

    exit_code: int | None
    """None while it runs, and where it was stopped."""
    stopped: str | None
    """Why it was stopped, where it did not end by itself."""

    def __init__(self) -> None:
        self.exit_code = None
        self.stopped = None
        self._sender, self._chunks = anyio.create_memory_object_stream[Chunk](0)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def _run(self, command: Command) -> None:
        with self._sender:
            await self._record(command, self._sender.send)

    async def _record(self, command: Command, sink: Callable[[Chunk], Awaitable[None]]) -> None:
        returncode, self.stopped = await _run(command, sink)
        self.exit_code = None if self.stopped else _exit_code(returncode)

    def _close(self) -> None:
        self._sender.close()
        self._chunks.close()


@asynccontextmanager
async def running(command: Command) -> AsyncIterator[Running]:
    """Run a command within the block, and read from it there; leaving the block early ends the command.

    Raises OSError where it cannot be started.
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

    At the timeout, and on cancellation, it is killed with its group. After a timeout the output so far is returned,
    without an exit code. One that a signal ended has the exit code 128 + the signal's number; one that cannot be
    started has 126. What it leaves in the background lives on, but is not waited for.
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
        output += f"{gap}[The command was stopped: {run.stopped}]\n"
    return ExecuteResponse(output, run.exit_code, captured.truncated)


async def _run(command: Command, sink: Callable[[Chunk], Awaitable[None]]) -> tuple[int | None, str | None]:
    """The return code, and why it was stopped. Time counts from the start, not from the queue."""
    async with _turn():
        process = await start(command.arguments, cwd=command.cwd, env=command.env, pass_fds=command.pass_fds)
        try:
            async with anyio.create_task_group() as tasks:
                for pipe in process.pipes:
                    tasks.start_soon(pipe.pump, sink)
                stopped = await _waited(process, command)
                for pipe in process.pipes:
                    pipe.end()
        finally:
            await process.kill()
            process.close()
        return process.returncode, stopped


async def _waited(process: Process, command: Command) -> str | None:
    """Wait for the end of the process, or bring it about; why it was stopped."""
    reason = f"its time of {command.timeout:g} s was up" if command.timeout is not None else ""
    with anyio.move_on_after(command.timeout):
        reason = await _watched(process, command.watch) or reason
    stopped = process.returncode is None
    await process.kill()
    return reason if stopped else None


async def _watched(process: Process, watch: Callable[[], Awaitable[str]] | None) -> str:
    """Wait for the end of the process or that of `watch`; returns what the latter does."""
    if watch is None:
        await process.wait()
        return ""
    reason = ""
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            nonlocal reason
            reason = await watch()
            tasks.cancel_scope.cancel()

        tasks.start_soon(look)
        await process.wait()
        tasks.cancel_scope.cancel()
    return reason


def _turn() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_COMMANDS)
        _limiter.set(limiter)
        return limiter


def _exit_code(returncode: int | None) -> int | None:
    return _BY_SIGNAL - returncode if returncode is not None and returncode < 0 else returncode
