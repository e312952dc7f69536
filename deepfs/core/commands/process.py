"""A process in a session of its own, with its two pipes, and the ways to wait for it and to end it."""

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from struct import unpack
from termios import FIONREAD

import anyio
from anyio import wait_readable

from deepfs.core import lanes
from deepfs.core.commands.output import Chunk, Stream

__all__ = ["Pipe", "Process", "start"]

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
        await lanes.run_resident(spawn)
    except BaseException:
        # Cancelled amid the start.
        for process in started:
            process.kill_at_once()
            process.close()
        raise
    return started[0]
