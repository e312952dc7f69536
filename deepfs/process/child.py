"""Child processes of this process: each is started off the event loop, in a session of its own."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from struct import unpack
from typing import TypeAlias

import anyio
from anyio import wait_readable
from msgspec import Struct

from deepfs.process.output import Chunk, Stream
from deepfs.threads import pool

# Windows has no such modules. Agents import this one there too; what runs commands refuses to be constructed.
if sys.platform != "win32":
    from fcntl import ioctl
    from termios import FIONREAD

__all__ = ["Command", "Pipe", "Process", "Sink", "start"]


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
        self.pid: int = popen.pid
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
        while self.returncode is None:
            self._stop()
            with anyio.move_on_after(_AGAIN_S, shield=True):
                await self.wait()

    def _stop(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._stop_signal is None:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, self._stop_signal)

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


async def start(command: Command) -> Process:
    """Start a process off the event loop.

    Raises OSError if it cannot be started.
    """
    started: list[Process] = []

    def spawn() -> None:
        if command.prepare is not None:
            command.prepare()
        started.append(_spawned(command))

    try:
        await (pool.run_resident(spawn) if command.prepare is None else pool.run_isolated(spawn))
    except BaseException:
        # Cancelled during the start.
        for process in started:
            await process.kill()
            process.close()
        raise
    return started[0]


def _spawned(command: Command) -> Process:
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
