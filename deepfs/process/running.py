"""Commands of this machine: each in a session of its own, its output held within bounds, ended with all it started."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from fcntl import ioctl
from struct import unpack
from termios import FIONREAD
from typing import Final, Literal, TypeAlias

import anyio
from anyio import wait_readable
from anyio.lowlevel import RunVar
from msgspec import Struct

from deepfs.threads import pool
from deepfs.types import ExecuteResponse

__all__ = [
    "MAX_COMMANDS",
    "Captured",
    "Chunk",
    "Command",
    "Kept",
    "Pipe",
    "Process",
    "Running",
    "Stream",
    "capture",
    "running",
    "start",
]


Stream: TypeAlias = Literal["stdout", "stderr"]

STDERR_MARK = "[stderr] "
_LONGEST_CHARACTER = 4


class Chunk(Struct, frozen=True):
    """Some bytes that a command wrote, as they came."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text; what is no UTF-8, as a character cut in two at the border of a chunk, is replaced."""
        return self.data.decode(errors="replace")


class Kept:
    """The first and the last bytes of a stream, `limit` in all; what comes between is counted and dropped."""

    def __init__(self, limit: int) -> None:
        self.size: int = 0
        self._room = limit // 2
        self._most = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take in what comes next."""
        self.size += len(data)
        fits = self._room - len(self._head)
        self._head += data[:fits]
        self._tail += data[max(fits, 0) :]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    def text(self, share: int) -> str:
        """What was kept, cut to `share` bytes, which are at most the limit; what is left out is told."""
        whole = self._head + self._tail
        if self.size <= share:
            return whole.decode(errors="replace")
        head, tail = _without_half(whole[: share // 2]), whole[len(whole) - (share - share // 2) :]
        left_out = self.size - len(head) - len(tail)
        return (
            f"{head.decode(errors='replace')}\n[… {left_out:,} bytes left out …]\n"
            f"{_from_start(tail).decode(errors='replace')}"
        )


class Captured:
    """The output of one command, within `limit` bytes for both streams together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit)}

    async def add(self, chunk: Chunk) -> None:
        """Take in what comes next."""
        self._streams[chunk.stream].add(chunk.data)

    @property
    def truncated(self) -> bool:
        """Whether something is left out."""
        return sum(kept.size for kept in self._streams.values()) > self._limit

    def text(self) -> str:
        """Stdout, then stderr with each line marked. Each has half of the limit, or what the other leaves of it."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        half = self._limit // 2
        for_errors = min(err.size, max(half, self._limit - out.size))
        shown = out.text(self._limit - for_errors)
        errors = _marked(err.text(for_errors))
        return f"{shown}\n{errors}" if errors and shown and not shown.endswith("\n") else shown + errors


def _marked(text: str) -> str:
    return "".join(f"{STDERR_MARK}{line}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


def _without_half(data: bytearray) -> bytearray:
    """`data` without a character that its end cuts in two."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        if data[-back] >= 0xC0:
            return data[:-back]
        if data[-back] < 0x80:
            break
    return data


def _from_start(data: bytearray) -> bytearray:
    """`data` without the rest of a character that begins before it."""
    start = 0
    while start < min(_LONGEST_CHARACTER - 1, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


_CHUNK = 64 * 1024
_LONGEST_NAP = 0.02

Sink = Callable[[Chunk], Awaitable[None]]


class Pipe:
    """The reading end of a pipe that a process writes to."""

    def __init__(self, stream: Stream) -> None:
        self._stream: Stream = stream
        reader, writer = os.pipe()
        self._fd: int = reader
        self.writer: int = writer
        os.set_blocking(self._fd, False)
        self._waiting: anyio.CancelScope | None = None
        self._is_ending = False

    async def pump(self, sink: Sink) -> None:
        """Hand on what comes, until the writers are gone or `end` was called."""
        while not await self._has_ended():
            chunk = self._read(_CHUNK)
            if chunk == b"":
                return
            if chunk:
                await sink(Chunk(self._stream, chunk))
        await self._drain(sink)

    async def _has_ended(self) -> bool:
        """Wait until there is something to read, or `end` was called; whether it was."""
        if not self._is_ending:
            with anyio.CancelScope() as self._waiting:
                await wait_readable(self._fd)
        return self._is_ending

    def end(self) -> None:
        """Hand on what is in the pipe now, and no more: processes in the background may hold it open for long."""
        self._is_ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _drain(self, sink: Sink) -> None:
        (left,) = unpack("i", ioctl(self._fd, FIONREAD, b"\0\0\0\0"))
        while left > 0 and (chunk := self._read(min(left, _CHUNK))):
            left -= len(chunk)
            await sink(Chunk(self._stream, chunk))

    def _read(self, size: int) -> bytes | None:
        """Up to `size` bytes; none at the end, None where there are none yet."""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Close the reading end."""
        os.close(self._fd)


class Process:
    """A process that was started in its own session, so that its group holds what it starts."""

    def __init__(self, popen: "subprocess.Popen[bytes]", pipes: Sequence[Pipe]) -> None:
        self.pipes = pipes
        self._popen = popen
        self._watch = _watch(popen.pid)

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`: negative where a signal ended it, None while it runs."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Return when the process has ended, whatever it left running."""
        nap = 0.001
        while self.returncode is None:
            if self._watch is not None:
                await wait_readable(self._watch)
            else:
                await anyio.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)

    async def kill(self) -> None:
        """End the process and its group, unless it has ended by itself."""
        if self.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await self.wait()

    def kill_at_once(self) -> None:
        """End the process and its group without waiting for it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def close(self) -> None:
        """Close what this side holds open."""
        for pipe in self.pipes:
            pipe.close()
        if self._watch is not None:
            os.close(self._watch)


def _watch(pid: int) -> int | None:
    """A descriptor that is readable when the process has ended, where the system has that."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


async def start(
    arguments: Sequence[str], *, cwd: str | None, env: Mapping[str, str] | None, pass_fds: Sequence[int] = ()
) -> Process:
    """Start a process off the loop, with nothing to read, in the directory `cwd`, which is made where it is missing.

    Raises OSError where it cannot be started.
    """
    started: list[Process] = []

    def spawn() -> None:
        pipes = (Pipe("stdout"), Pipe("stderr"))
        try:
            if cwd is not None:
                os.makedirs(cwd, exist_ok=True)
            popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=pipes[0].writer,
                stderr=pipes[1].writer,
                cwd=cwd,
                env=env,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        except BaseException:
            for pipe in pipes:
                pipe.close()
            raise
        finally:
            for pipe in pipes:
                os.close(pipe.writer)
        started.append(Process(popen, pipes))

    try:
        await pool.run_resident(spawn)
    except BaseException:
        # Cancelled amid the start.
        for process in started:
            process.kill_at_once()
            process.close()
        raise
    return started[0]


MAX_COMMANDS: Final = 32
"""Commands that one event loop runs at once; others wait, and get their turns in the order in which they came."""

_NOT_STARTED: Final = 126
"""The exit status by which shells tell that a command was found and cannot be run."""
_BY_SIGNAL: Final = 128

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("deepfs_commands")


class Command(Struct, frozen=True):
    """What to run, and how."""

    arguments: Sequence[str]
    """The program and its arguments; no shell splits them."""
    cwd: str | None = None
    """The directory to run in, made where it is missing; None for that of this process."""
    env: Mapping[str, str] | None = None
    """The whole environment; None for that of this process."""
    timeout: float | None = None
    """Seconds after which it is killed with all that it started; None for no limit."""
    pass_fds: Sequence[int] = ()
    """File descriptors that it inherits."""
    watch: Callable[[], Awaitable[str]] | None = None
    """Runs beside the command, and returns the reason where the command is to be stopped."""


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

    At the timeout, and on cancellation, it is killed with its group. What it leaves in the background lives on, but is
    not waited for.

    Args:
        command: What to run.
        max_output_bytes: The most of both streams together; what lies between head and tail is counted and dropped.

    Returns:
        The output and the exit code: None after a timeout, 128 and the number of the signal that ended the command, 126
        where it could not be started.
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
