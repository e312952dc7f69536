"""Commands on this machine: each runs in its own session, its output is limited, and it is killed with its group."""

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
    """Some bytes that a command wrote."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text. Invalid UTF-8, such as a character cut in two at the end of a chunk, is replaced."""
        return self.data.decode(errors="replace")


class Kept:
    """Keeps the first and the last bytes of a stream, `limit` in all; bytes between them are counted and dropped."""

    def __init__(self, limit: int) -> None:
        self.size: int = 0
        self._room = limit // 2
        self._most = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.size += len(data)
        fits = self._room - len(self._head)
        self._head += data[:fits]
        self._tail += data[max(fits, 0) :]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    def text(self, share: int) -> str:
        """The kept bytes as text, cut to `share` bytes (at most the limit), with a note of how many are left out."""
        whole = self._head + self._tail
        if self.size <= share:
            return whole.decode(errors="replace")
        head, tail = _without_cut_end(whole[: share // 2]), whole[len(whole) - (share - share // 2) :]
        left_out = self.size - len(head) - len(tail)
        return (
            f"{head.decode(errors='replace')}\n[… {left_out:,} bytes left out …]\n"
            f"{_without_cut_start(tail).decode(errors='replace')}"
        )


class Captured:
    """The output of one command, within `limit` bytes for both streams together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit)}

    async def add(self, chunk: Chunk) -> None:
        """Add the next chunk of output."""
        self._streams[chunk.stream].add(chunk.data)

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves out some of the output."""
        return sum(kept.size for kept in self._streams.values()) > self._limit

    def text(self) -> str:
        """Stdout, then stderr with each line marked. Each gets half of the limit, and what the other does not use."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        half = self._limit // 2
        for_errors = min(err.size, max(half, self._limit - out.size))
        shown = out.text(self._limit - for_errors)
        errors = _marked(err.text(for_errors))
        return f"{shown}\n{errors}" if errors and shown and not shown.endswith("\n") else shown + errors


def _marked(text: str) -> str:
    return "".join(f"{STDERR_MARK}{line}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


def _without_cut_end(data: bytearray) -> bytearray:
    """`data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        if data[-back] >= 0xC0:
            return data[:-back]
        if data[-back] < 0x80:
            break
    return data


def _without_cut_start(data: bytearray) -> bytearray:
    """`data` without the rest of an incomplete UTF-8 character at its start."""
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
        """Pass the data to `sink` as it comes, until all writers have closed the pipe or `end` is called."""
        while not await self._has_ended():
            chunk = self._read(_CHUNK)
            if chunk == b"":
                return
            if chunk:
                await sink(Chunk(self._stream, chunk))
        await self._drain(sink)

    async def _has_ended(self) -> bool:
        """Wait until there is data or `end` is called; return whether `end` was called."""
        if not self._is_ending:
            with anyio.CancelScope() as self._waiting:
                await wait_readable(self._fd)
        return self._is_ending

    def end(self) -> None:
        """Let `pump` pass on what is in the pipe now, and stop: background processes may hold the pipe open."""
        self._is_ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _drain(self, sink: Sink) -> None:
        (left,) = unpack("i", ioctl(self._fd, FIONREAD, b"\0\0\0\0"))
        while left > 0 and (chunk := self._read(min(left, _CHUNK))):
            left -= len(chunk)
            await sink(Chunk(self._stream, chunk))

    def _read(self, size: int) -> bytes | None:
        """Up to `size` bytes; empty at the end of the stream, None if there is no data yet."""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Close the reading end."""
        os.close(self._fd)


class Process:
    """A process in its own session, so that the processes that it starts are in its process group.

    `stop` is as in `Command`.
    """

    def __init__(self, popen: "subprocess.Popen[bytes]", pipes: Sequence[Pipe], stop: signal.Signals | None) -> None:
        self.pipes = pipes
        self._popen = popen
        self._stop_signal = stop
        self._watch = _watch(popen.pid)

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`: negative if a signal ended the process, None while it runs."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Wait until the process has ended; processes that it started may still run."""
        nap = 0.001
        while self.returncode is None:
            if self._watch is not None:
                await wait_readable(self._watch)
            else:
                await anyio.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)

    async def kill(self) -> None:
        """Kill the process and its group, or stop it, unless it has ended, and wait for its end."""
        if self.returncode is None:
            self._stop()
            with anyio.CancelScope(shield=True):
                await self.wait()

    def kill_at_once(self) -> None:
        """Like `kill`, but blocking, for callers that cannot await."""
        self._stop()
        self._popen.wait()

    def _stop(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._stop_signal is None:
                os.killpg(self._popen.pid, signal.SIGKILL)
            else:
                os.kill(self._popen.pid, self._stop_signal)

    def close(self) -> None:
        """Close the file descriptors of this side."""
        for pipe in self.pipes:
            pipe.close()
        if self._watch is not None:
            os.close(self._watch)


def _watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None on systems without pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


async def start(
    arguments: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    pass_fds: Sequence[int] = (),
    prepare: Callable[[], object] | None = None,
    stop: signal.Signals | None = None,
) -> Process:
    """Start a process off the event loop, with empty stdin, in the directory `cwd`, which is created if missing.

    Raises OSError if it cannot be started.
    """
    started: list[Process] = []

    def spawn() -> None:
        if prepare is not None:
            prepare()
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
        started.append(Process(popen, pipes, stop))

    try:
        await (pool.run_resident(spawn) if prepare is None else pool.run_isolated(spawn))
    except BaseException:
        # Cancelled during the start.
        for process in started:
            process.kill_at_once()
            process.close()
        raise
    return started[0]


MAX_COMMANDS: Final = 32
"""The most commands that one event loop runs at once; further ones wait, and are started in order of arrival."""

_NOT_STARTED: Final = 126
"""The exit status of shells for a command that was found and cannot be run."""
_BY_SIGNAL: Final = 128

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("deepfs_commands")


class Command(Struct, frozen=True):
    """A command, and how to run it."""

    arguments: Sequence[str]
    """The program and its arguments; no shell is involved."""
    cwd: str | None = None
    """The directory to run in, created if missing; None for that of this process."""
    env: Mapping[str, str] | None = None
    """The whole environment; None for that of this process."""
    timeout: float | None = None
    """Seconds after which the command is killed with its process group; None for no limit."""
    pass_fds: Sequence[int] = ()
    """File descriptors that the command inherits."""
    watch: Callable[[], Awaitable[str]] | None = None
    """Runs while the command runs; when it returns, the command is stopped, with the returned text as the reason."""
    prepare: Callable[[], object] | None = None
    """Called just before the start, in a thread that starts only such commands: it may change what they inherit."""
    stop: signal.Signals | None = None
    """The signal that makes the program end at once with all that it started; None to kill its process group."""
    not_enforced: tuple[str, ...] = ()
    """The names of limits that do not hold for this command, which its result repeats."""


class Running:
    """A running command. Iterating yields its output as it comes; the command has to wait for a slow reader."""

    exit_code: int | None
    """None while the command runs, and if it was stopped."""
    stopped: str | None
    """Why the command was stopped; None if it ended by itself or still runs."""
    not_enforced: tuple[str, ...]
    """As in `ExecuteResponse`; known when the iteration has ended."""

    def __init__(self) -> None:
        self.exit_code = None
        self.stopped = None
        self.not_enforced = ()
        self._sender, self._chunks = anyio.create_memory_object_stream[Chunk](0)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def _run(self, command: Command) -> None:
        with self._sender:
            await self._record(command, self._sender.send)

    async def _record(self, command: Command, sink: Callable[[Chunk], Awaitable[None]]) -> None:
        self.not_enforced = command.not_enforced
        returncode, self.stopped = await _run(command, sink)
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
        output += f"{gap}[The command was stopped: {run.stopped}]\n"
    return ExecuteResponse(output, run.exit_code, captured.truncated, run.not_enforced)


async def _run(command: Command, sink: Callable[[Chunk], Awaitable[None]]) -> tuple[int | None, str | None]:
    """Run a command; return its return code, and why it was stopped, if it was. Time in the queue does not count."""
    async with _turn():
        process = await start(
            command.arguments,
            cwd=command.cwd,
            env=command.env,
            pass_fds=command.pass_fds,
            prepare=command.prepare,
            stop=command.stop,
        )
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
    """Wait for the process, or kill it at its timeout or when `watch` returns; return why it was stopped, if it was."""
    reason = f"its time of {command.timeout:g} s was up" if command.timeout is not None else ""
    with anyio.move_on_after(command.timeout):
        reason = await _watched(process, command.watch) or reason
    stopped = process.returncode is None
    await process.kill()
    return reason if stopped else None


async def _watched(process: Process, watch: Callable[[], Awaitable[str]] | None) -> str:
    """Wait until the process ends or `watch` returns; return the reason that `watch` gave, or an empty text."""
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
