"""The base class of sandboxes of services, whose SDKs run commands and transfer files on one event loop."""

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.util import find_spec
from math import ceil
from secrets import token_hex
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from deepfs.errors import BackendError
from deepfs.process.output import Captured, Chunk
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sync import in_thread, run_sync
from deepfs.text.arguments import check_integer, check_number, seconds_of
from deepfs.text.lines import check_text
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop
from deepfs.types import ExecuteResponse

if TYPE_CHECKING:
    from deepfs.threads.loop_bridge import AsyncioLoop

__all__ = ["Done", "RemoteSandbox", "check_installed"]


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
    """The output of a command and its exit code, which is None if it reached its timeout."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None


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

    def __init__(
        self, root: str = "/", *, timeout: float = 120, max_output_bytes: int = 100_000, max_file_size_mb: int = 10
    ) -> None:
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        super().__init__(root, max_file_size_mb=max_file_size_mb)
        self._timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._home = HomeLoop() if self.loop_bound else None

    def bound_to_this_thread(self) -> bool:
        return self._home is not None and self._home.is_here()

    async def _at_home(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (call() if self._home is None else self._home.run(call))

    @abstractmethod
    async def _run(self, command: str, seconds: int) -> Done:
        """Run `command` with `sh` for at most `seconds`."""

    @abstractmethod
    async def _send(self, path: str, content: bytes) -> None:
        """Write a file of the sandbox."""

    @abstractmethod
    async def _receive(self, path: str) -> bytes:
        """Read a file of the sandbox."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the SDK raises."""

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command with `sh`; timeouts are rounded up to seconds. Raises BackendError if the service fails."""
        check_text(command, "command")
        seconds = ceil(seconds_of(timeout, self._timeout))
        done = await self._ran(command, seconds)
        captured = Captured(self._max_output_bytes)
        await captured.add(Chunk("stdout", done.stdout))
        await captured.add(Chunk("stderr", done.stderr))
        output = captured.text()
        if done.exit_code is None:
            output += f"\n[The command was stopped: its time of {seconds} s was up]\n"
        return ExecuteResponse(output, done.exit_code, captured.truncated)

    async def _run_script(self, command: str) -> ExecuteResponse:
        done = await self._ran(command, ceil(self._timeout))
        return ExecuteResponse((done.stdout or done.stderr).decode(errors="replace"), done.exit_code)

    async def _ran(self, command: str, seconds: int) -> Done:
        root = quote(self.sandbox_path("/"))
        entered = (
            f"cd {root} 2>/dev/null || {{ mkdir -p {root} && cd {root}; }} || exit 125\nexec </dev/null\n{command}"
        )
        try:
            return await self._at_home(partial(self._run, entered, seconds))
        except self._errors() as error:
            raise BackendError(None, f"{self.service} did not run the command: {error}") from error

    async def _bring(self, content: bytes) -> bytes:
        path = f"{_HELD}{token_hex(8)}"
        try:
            await self._at_home(partial(self._send, path, content))
        except self._errors() as error:
            raise BackendError(None, f"{self.service} did not take the file: {error}") from error
        return path.encode()

    async def _take(self, name: str) -> str | None:
        try:
            return (await self._at_home(partial(self._receive, f"{_HELD}{name}"))).decode()
        except self._errors():
            return None  # Another TMPDIR, or a file that the SDK may not read: commands fetch it then.


def check_installed(package: str, extra: str) -> None:
    """Raise ImportError, which names the extra to install, if `package` is not installed."""
    if find_spec(package) is None:
        raise ImportError(f"{extra.capitalize()}Sandbox needs {package}: pip install 'deepfs[{extra}]'")
