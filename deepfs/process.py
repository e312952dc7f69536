"""Commands on this machine: started off the event loop, limited in time, output and number, killed with their group."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from struct import unpack
from typing import Final, Literal, TypeAlias

import anyio
from anyio import wait_readable
from anyio.lowlevel import RunVar
from msgspec import Struct

from deepfs.text.visible import stop_note, time_up
from deepfs.threads import pool
from deepfs.threads.pool import FairQueue
from deepfs.types import ExecuteResponse

# Windows has no such modules. Agents import this one there too; what runs commands refuses to be constructed.
if sys.platform != "win32":
    from fcntl import ioctl
    from termios import FIONREAD

__all__ = [
    "MAX_COMMANDS",
    "Captured",
    "Chunk",
    "Command",
    "Kept",
    "Pipe",
    "Running",
    "Stream",
    "capture",
    "start_command",
]

# --- output ----------------------------------------------------------------------------------------------------------

Stream: TypeAlias = Literal["stdout", "stderr"]

STDERR_MARK = "[stderr] "
_NOTE_BYTES = 80
"""The room for a note of how many bytes are left out, with marks."""
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
    """Keeps the first and the last bytes of a stream, `limit` in all; bytes between them are counted and dropped.

    As text, each line starts with `mark`.
    """

    def __init__(self, limit: int, mark: str = "") -> None:
        self.size: int = 0
        self._limit = limit
        self._mark = mark
        self._room = limit // 2
        self._most = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.size += len(data)
        fits = self._room - len(self._head)
        self._head += data[:fits]
        self._tail += data[fits:]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    @property
    def text_size(self) -> int:
        """The bytes of the whole stream as text, which are more than it has: marks, and signs for invalid UTF-8.

        A number over the limit if the stream is over the limit.
        """
        return self.size if self.size > self._limit else len(self.text(self.size).encode())

    def cut_text(self, room: int) -> str:
        """The stream as text, cut to `room` bytes of text; a note of how many bytes are left out comes on top."""
        if self.text_size <= room:
            return self.text(self.size)
        least, most = 0, min(room, self.size - 1)
        while least < most:
            # Most often all of it fits: try that first.
            share = most if most == room else (least + most + 1) // 2
            if len(self.text(share).encode()) <= room + _NOTE_BYTES:
                least = share
            else:
                most = share - 1
        return self.text(least)

    def text(self, share: int) -> str:
        """The kept bytes as text, cut to `share` bytes (at most the limit), with a note of how many are left out."""
        whole = self._head + self._tail
        if self.size <= share:
            return self._mark_lines(whole.decode(errors="replace"))
        head = _without_cut_end(whole[: share // 2])
        tail = _without_cut_start(whole[len(whole) - (share - share // 2) :])
        left_out = self.size - len(head) - len(tail)
        return self._mark_lines(
            f"{head.decode(errors='replace')}\n[… {left_out:,} bytes left out …]\n{tail.decode(errors='replace')}"
        )

    def _mark_lines(self, text: str) -> str:
        if not text or not self._mark:
            return text
        return "".join(f"{self._mark}{line}\n" for line in text.removesuffix("\n").split("\n"))


class Captured:
    """The output of one command, within `limit` bytes of text for both streams together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit, STDERR_MARK)}

    async def add(self, chunk: Chunk) -> None:
        """Add the next chunk of output."""
        self._streams[chunk.stream].add(chunk.data)

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves out some of the output."""
        return sum(kept.text_size for kept in self._streams.values()) > self._limit

    def text(self) -> str:
        """Stdout, then stderr with each line marked. Each gets half of the limit, and what the other does not use."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        half = self._limit // 2
        for_errors = min(err.text_size, max(half, self._limit - out.text_size))
        shown, errors = out.cut_text(self._limit - for_errors), err.cut_text(for_errors)
        return f"{shown}\n{errors}" if errors and shown and not shown.endswith("\n") else shown + errors


def _without_cut_end(data: bytearray) -> bytearray:
    """`data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        if data[-back] >= 0xC0:
            size = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return data[:-back] if back < size else data
        if data[-back] < 0x80:
            break
    return data


def _without_cut_start(data: bytearray) -> bytearray:
    """`data` without the rest of an incomplete UTF-8 character at its start."""
    start = 0
    while start < min(_LONGEST_CHARACTER - 1, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


# --- processes -------------------------------------------------------------------------------------------------------


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
    watch: Callable[[int], Awaitable[str]] | None = None
    """Runs with the PID while the command runs; when it returns, the command is stopped: the text is the reason."""
    prepare: Callable[[], object] | None = None
    """Called just before the start, in a thread that starts only such commands: it may change what they inherit."""
    null: str = os.devnull
    """The null device that the command has as its stdin."""
    not_enforced: tuple[str, ...] = ()
    """The names of limits that do not hold for this command, which its result repeats."""
    backend: Hashable = None
    """Identifies the backend that runs it: backends take turns in starting commands."""
    stop: signal.Signals | None = None
    """The signal that makes the program end at once with all that it started; None to kill its process group."""


_CHUNK = 64 * 1024
_LONGEST_NAP = 0.02
_AGAIN_S = 1.0
"""Seconds after which a program that was stopped is stopped again: at its start it may have missed the signal."""

Sink: TypeAlias = Callable[[Chunk], Awaitable[None]]


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
        while True:
            if not self._is_ending:
                with anyio.CancelScope() as self._waiting:
                    await wait_readable(self._fd)
            if self._is_ending:
                break
            chunk = self._read(_CHUNK)
            if chunk == b"":
                return
            if chunk:
                await sink(Chunk(self._stream, chunk))
        (left,) = unpack("i", ioctl(self._fd, FIONREAD, b"\0\0\0\0"))
        while left > 0 and (chunk := self._read(min(left, _CHUNK))):
            left -= len(chunk)
            await sink(Chunk(self._stream, chunk))

    def end(self) -> None:
        """Let `pump` pass on what is in the pipe now, and stop: background processes may hold the pipe open."""
        self._is_ending = True
        if self._waiting is not None:
            self._waiting.cancel()

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
        self.pid: int = popen.pid
        self._popen = popen
        self._stop_signal = stop
        self._end: int | None = None
        """A descriptor that becomes readable when the process ends; None on systems without pidfd."""
        with suppress(AttributeError, OSError):
            self._end = os.pidfd_open(popen.pid)

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`: negative if a signal ended the process, None while it runs."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Wait until the process has ended; processes that it started may still run."""
        nap = 0.001
        while self.returncode is None:
            if self._end is not None:
                await wait_readable(self._end)
            else:
                await anyio.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)

    async def kill(self) -> None:
        """Kill the process and its group, or stop it, unless it has ended, and wait for its end."""
        while self.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                if self._stop_signal is None:
                    os.killpg(self.pid, signal.SIGKILL)
                else:
                    os.kill(self.pid, self._stop_signal)
            with anyio.move_on_after(_AGAIN_S, shield=True):
                await self.wait()

    def close(self) -> None:
        """Close the file descriptors of this side."""
        for pipe in self.pipes:
            pipe.close()
        if self._end is not None:
            os.close(self._end)


async def start(command: Command) -> Process:
    """Start a process off the event loop.

    Raises OSError if it cannot be started.
    """
    started: list[Process] = []

    def spawn() -> None:
        if command.prepare is not None:
            command.prepare()
        started.append(_spawn(command))

    try:
        await (pool.run_resident(spawn) if command.prepare is None else pool.run_isolated(spawn))
    except BaseException:
        # Cancelled during the start.
        for process in started:
            await process.kill()
            process.close()
        raise
    return started[0]


def _spawn(command: Command) -> Process:
    pipes: list[Pipe] = []
    try:
        pipes.append(Pipe("stdout"))
        pipes.append(Pipe("stderr"))
        if command.cwd is not None:
            os.makedirs(command.cwd, exist_ok=True)
        with open(command.null, "r+b", buffering=0) as stdin:
            popen = subprocess.Popen(
                command.arguments,
                stdin=stdin,
                stdout=pipes[0].writer,
                stderr=pipes[1].writer,
                cwd=command.cwd,
                env=command.env,
                start_new_session=True,
                pass_fds=command.pass_fds,
            )
    except BaseException as error:
        for pipe in pipes:
            pipe.close()
        if isinstance(error, ValueError):  # NUL or half a surrogate pair in an argument or a variable.
            raise OSError(errno.EINVAL, str(error)) from error
        raise
    finally:
        for pipe in pipes:
            os.close(pipe.writer)
    return Process(popen, pipes, command.stop)


# --- running commands ------------------------------------------------------------------------------------------------

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

    async def _run(self, command: Command, sink: Sink) -> None:
        """Run the command, and note how it ended. Time in the queue does not count."""
        self.not_enforced = command.not_enforced
        async with _places_of_loop().place(command.backend):
            process = await start(command)
            try:
                async with anyio.create_task_group() as tasks:
                    for pipe in process.pipes:
                        tasks.start_soon(pipe.pump, sink)
                    stopped, timed_out = await _wait(process, command)
                    for pipe in process.pipes:
                        pipe.end()
            finally:
                await process.kill()
                process.close()
        self.stopped, self.timed_out, code = stopped, timed_out, process.returncode
        if stopped is None and code is not None:
            self.exit_code = code if code >= 0 else _BY_SIGNAL - code

    async def _send(self, command: Command) -> None:
        with self._sender:
            await self._run(command, self._sender.send)

    def _close(self) -> None:
        self._sender.close()
        self._chunks.close()


@asynccontextmanager
async def start_command(command: Command) -> AsyncIterator[Running]:
    """Run a command during the block, which may read its output; leaving the block early ends the command.

    Raises OSError if it cannot be started.
    """
    run = Running()
    failure: Exception | None = None
    unstarted: OSError | None = None

    async def send() -> None:
        nonlocal unstarted
        try:
            await run._send(command)
        except OSError as error:
            unstarted = error
            tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            try:
                yield run
            except Exception as error:  # The group would wrap it.
                failure = error
            tasks.cancel_scope.cancel()
    finally:
        run._close()
        if failure is not None:
            raise failure from unstarted
    if unstarted is not None:
        raise unstarted


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
        await run._run(command, captured.add)
    except OSError as error:
        return ExecuteResponse(f"Error: The command cannot be started: {error.strerror}", _NOT_STARTED)
    finally:
        run._close()
    output = captured.text()
    if run.stopped:
        gap = "" if not output or output.endswith("\n") else "\n"
        output += f"{gap}{stop_note(run.stopped)}"
    return ExecuteResponse(output, run.exit_code, captured.truncated, run.not_enforced, run.timed_out)


async def _wait(process: Process, command: Command) -> tuple[str | None, float | None]:
    """Wait for the process, or kill it at its timeout or when `watch` returns.

    If it was stopped, returns why, and after how many seconds, if its time was up.
    """
    reason, timeout = "", command.timeout
    with anyio.move_on_after(timeout):
        reason = await _watch(process, command.watch)
    stopped = process.returncode is None
    await process.kill()
    if not stopped:
        return None, None
    return (reason, None) if reason or timeout is None else (time_up(timeout), timeout)


async def _watch(process: Process, watch: Callable[[int], Awaitable[str]] | None) -> str:
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
        while self._queue.served < _MAX_ASSURED:
            command = self._queue.pop(MAX_COMMANDS if self._queue.served < MAX_COMMANDS else _ASSURED)
            if command is None:
                return
            command.may_start.set()

    def _leave(self, command: _Waiting) -> None:
        if not command.may_start.is_set():
            self._queue.remove(command)
            return
        self._queue.end(command)
        self._fill()


def _places_of_loop() -> _Places:
    try:
        return _places.get()
    except LookupError:
        places = _Places()
        _places.set(places)
        return places
