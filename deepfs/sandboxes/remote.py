"""The base class of sandboxes of services, whose SDKs run commands and transfer files on one event loop."""

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.util import find_spec
from math import ceil
from secrets import token_hex
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio

from deepfs.errors import BackendError, DeepFSError
from deepfs.process import Captured, Chunk, stop_note, time_up
from deepfs.sandboxes.answers import printable
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sync import in_thread, run_sync
from deepfs.text.arguments import check_integer, check_number, seconds_of
from deepfs.text.lines import check_text
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop
from deepfs.types import ExecuteResponse

if TYPE_CHECKING:
    from deepfs.threads.loop_bridge import AsyncioLoop

__all__ = ["Done", "Output", "RemoteSandbox", "check_installed", "exit_code_of", "read_all"]


T = TypeVar("T")


class HomeLoop:
    """The event loop that runs when this is created; if none runs, the background loop of `run_sync`."""

    def __init__(self) -> None:
        self._loop = running_asyncio_loop()

    def is_here(self) -> bool:
        """Whether the calling thread runs this loop."""
        here = running_asyncio_loop()
        return here is not None and here is self._loop

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call on this loop, from any event loop; a cancellation is passed on to it.

        Raises BackendError if the loop has ended.
        """
        if self._loop is None:
            self._loop = await in_thread(partial(run_sync, _this_loop))
        if self._loop is None or not self._loop.is_running():
            raise BackendError(None, "The event loop that the sandbox belongs to no longer runs: connect to it anew")
        return await call_on(self._loop, call)


async def _this_loop() -> "AsyncioLoop | None":
    return running_asyncio_loop()


_HELD: Final = "/tmp/.~deepfs-"
"""The prefix of temporary files of the scripts in a sandbox if its `TMPDIR` is `/tmp`; they also remove leftovers."""


class Done(NamedTuple):
    """The output of a command and its exit code, which is None if it reached its timeout.

    `left_out` counts bytes of output that were received and not kept.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    left_out: int = 0


class Output:
    """The output of a stream as it comes, of which the first bytes and the last ones are kept.

    Args:
        limit: The number of bytes kept of each end; of the last ones up to twice as many.
    """

    def __init__(self, limit: int) -> None:
        self.left_out: int = 0
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: object) -> None:
        """Add what the SDK gave.

        Args:
            data: The next bytes.

        Raises:
            BackendError: If it is no bytes.
        """
        if not isinstance(data, (bytes, bytearray)):
            raise BackendError(None, "the service gave output that is no bytes")
        fits = self._limit - len(self._head)
        self._head += data[:fits]
        self._tail += data[max(fits, 0) :]
        excess = len(self._tail) - self._limit
        if excess > self._limit:
            self.left_out += excess
            del self._tail[:excess]

    @property
    def data(self) -> bytes:
        """The bytes that were kept: the head, then the tail."""
        return bytes(self._head + self._tail)


def exit_code_of(told: object) -> int:
    """The exit code that a service told. Raises BackendError if it is no number."""
    if isinstance(told, float) and told.is_integer():
        told = int(told)
    if not isinstance(told, int) or abs(told) > _MAX_CODE:
        raise BackendError(None, "the service did not tell how the command ended")
    return told


async def read_all(*reads: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Read several streams at once. Raises the first error as it is."""
    try:
        async with anyio.create_task_group() as tasks:
            for read in reads:
                tasks.start_soon(read)
    except ExceptionGroup as group:
        raise _first(group) from group


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


_MAX_CODE: Final = 1 << 32
_BESIDES: Final = 64 * 1024
"""The most bytes that a command of a file operation may print besides a part of an answer."""


class RemoteSandbox(BaseSandbox):
    """A sandbox of a service, reached by its SDK; a subclass defines how the SDK runs commands and moves files.

    Commands run in `root`, which is created if it is missing. Content and output too long for a command are transferred
    as files by the SDK, and one command puts content in place: changes are as atomic as those of small files.

    If the connections of the SDK belong to an event loop (`loop_bound`), it is the loop that runs when the backend is
    created, or that of `run_sync` if none runs then. Calls from other loops are carried out on it.

    Args:
        root: The absolute path of the directory in the sandbox in which commands run and files are.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or a `root` that cannot be used.
    """

    service: str
    loop_bound: bool = True
    working_directory: str | None = "/"

    def __init__(
        self, root: str = "/", *, timeout: float = 120, max_output_bytes: int = 100_000, max_file_size_mb: int = 10
    ) -> None:
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        super().__init__(root, max_file_size_mb=max_file_size_mb)
        self.command_timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._home = HomeLoop() if self.loop_bound else None

    def bound_to_this_thread(self) -> bool:
        return self._home is not None and self._home.is_here()

    async def _at_home(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (call() if self._home is None else self._home.run(call))

    @property
    def _most_output(self) -> int:
        """The most bytes of the head and of the tail of a stream that may matter; a subclass keeps no more."""
        return max(self._max_output_bytes, self.answer_bytes + _BESIDES)

    @abstractmethod
    async def _run(self, command: str, seconds: int) -> Done:
        """Run `command` with `sh` for at most `seconds`; keep `_most_output` of its output."""

    @abstractmethod
    async def _send(self, path: str, content: bytes) -> None:
        """Write a file of the sandbox."""

    @abstractmethod
    async def _receive(self, path: str, most: int) -> bytes:
        """Read a file of the sandbox, and not much more than `most` bytes of it."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the SDK raises."""

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command with `sh`; timeouts are rounded up to seconds. Raises BackendError if the service fails."""
        check_text(command, "command")
        seconds = ceil(seconds_of(timeout, self.command_timeout))
        done = await self._ran(command, seconds)
        captured = Captured(self._max_output_bytes)
        await captured.add(Chunk("stdout", done.stdout))
        await captured.add(Chunk("stderr", done.stderr))
        output = captured.text()
        if done.left_out:
            output += f"\n[… {done.left_out:,} further bytes left out …]\n"
        if done.exit_code is None:
            output += f"\n{stop_note(time_up(seconds))}"
        timed_out = seconds if done.exit_code is None else None
        return ExecuteResponse(output, done.exit_code, captured.truncated or done.left_out > 0, timed_out=timed_out)

    async def _run_script(self, command: str) -> ExecuteResponse:
        done = await self._ran(command, ceil(self.command_timeout))
        return ExecuteResponse((done.stdout or done.stderr).decode(errors="replace"), done.exit_code)

    async def _ran(self, command: str, seconds: int) -> Done:
        root = quote(self.sandbox_path("/"))
        entered = (
            f"cd {root} 2>/dev/null || {{ mkdir -p {root} && cd {root}; }} || exit 125\nexec </dev/null\n{command}"
        )
        try:
            return await self._at_home(partial(self._run, entered, seconds))
        except DeepFSError:
            raise
        except self._errors() as error:
            raise BackendError(None, f"{self.service} did not run the command: {printable(str(error))}") from error

    async def _bring(self, content: bytes) -> bytes:
        path = f"{_HELD}{token_hex(8)}"
        try:
            await self._at_home(partial(self._send, path, content))
        except self._errors() as error:
            raise BackendError(None, f"{self.service} did not take the file: {printable(str(error))}") from error
        return path.encode()

    async def _take(self, name: str, size: int) -> str | None:
        try:
            data = await self._at_home(partial(self._receive, f"{_HELD}{name}", size))
        except self._errors():
            return None  # Another TMPDIR, or a file that the SDK may not read: commands fetch it then.
        return data.decode("ascii", "replace") if len(data) == size else None


def check_installed(package: str, extra: str) -> None:
    """Raise ModuleNotFoundError, which names the extra to install, if `package` is not installed."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"{extra.capitalize()}Sandbox needs {package}: pip install 'deepfs[{extra}]'")
