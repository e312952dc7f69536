"""Sandboxes of services, whose SDKs run commands and transfer files: Modal, Daytona and Deno."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from functools import partial
from math import ceil
from secrets import token_hex
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import anyio
import anyio.to_thread

from deepfs._drivers import redact
from deepfs.errors import BackendError, DeepFSError
from deepfs.process import Captured, Chunk, Kept
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sandboxes.wire import printable
from deepfs.storage.gathering import gather
from deepfs.sync import in_thread, run_sync
from deepfs.text.arguments import check_installed, check_integer, check_number, seconds_of
from deepfs.text.lines import check_text
from deepfs.text.visible import stop_note, time_up
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop
from deepfs.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    # Ruff does not see their uses, which are in texts.
    from daytona import AsyncSandbox as SandboxOfDaytona  # noqa: F401
    from deno_sandbox.sandbox import AsyncSandbox as SandboxOfDeno  # noqa: F401
    from modal import Sandbox as SandboxOfModal  # noqa: F401

    from deepfs.threads.loop_bridge import AsyncioLoop

T = TypeVar("T")
SandboxT = TypeVar("SandboxT")

_HELD: Final = "/tmp/.~deepfs-"
"""The prefix of temporary files of the scripts in a sandbox if its `TMPDIR` is `/tmp`; they also remove leftovers."""
_MAX_CODE: Final = 1 << 32
_CHUNK_BYTES: Final = 65_536
_BESIDES: Final = 64 * 1024
"""The most bytes that a command of a file operation may print besides a part of an answer."""

# --- what a service gives ---------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """The output of a command and its exit code, which is None if it reached its timeout.

    `left_out` counts bytes of output that were received and not kept.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    left_out: int = 0


class StreamEnds(Kept):
    """The output of a stream as it comes, of which the first `limit` bytes and at least as many last ones are kept."""

    def __init__(self, limit: int) -> None:
        super().__init__(2 * limit)

    def add(self, data: object) -> None:
        """Add what the SDK gave. Raises BackendError if it is no bytes."""
        if not isinstance(data, (bytes, bytearray)):
            raise BackendError(None, "the service gave output that is no bytes")
        super().add(bytes(data))

    @property
    def data(self) -> bytes:
        """The bytes that were kept: the head, then the tail."""
        return bytes(self._head + self._tail)

    @property
    def left_out(self) -> int:
        """The number of bytes between them."""
        return self.size - len(self._head) - len(self._tail)


def exit_code_of(reported: object) -> int:
    """The exit code that a service reported. Raises BackendError if it is no number."""
    if isinstance(reported, float) and reported.is_integer():
        reported = int(reported)
    if not isinstance(reported, int) or abs(reported) > _MAX_CODE:
        raise BackendError(None, "the service did not tell how the command ended")
    return reported


# --- what they have in common -----------------------------------------------------------------------------------------


class RemoteSandbox(BaseSandbox, Generic[SandboxT]):
    """A sandbox of a service, reached by its SDK; a subclass defines how the SDK runs commands and moves files.

    Commands run in `root`, which is created if it is missing. Content and output too long for a command are transferred
    as files by the SDK, and one command puts content in place: changes are as atomic as those of small files.

    If the connections of the SDK belong to an event loop (`loop_bound`), it is the loop that runs when the backend is
    created, or that of `run_sync` if none runs then. Calls from other loops are carried out on it.

    Args:
        sandbox: The sandbox that the SDK has made. The caller ends it.
        root: The absolute path of the directory in the sandbox in which commands run and files are.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ModuleNotFoundError: Without the extra of the service.
        TypeError: For an argument of another type.
        ValueError: For a number or a `root` that cannot be used.
    """

    service: str
    package: str | None = None
    """The SDK, which must be installed."""
    loop_bound: bool = True
    working_directory: str | None = "/"

    def __init__(
        self,
        sandbox: SandboxT,
        root: str = "/",
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        max_file_size_mb: int = 10,
    ) -> None:
        if self.package is not None:
            check_installed(self.package, self.service.lower(), f"{self.service}Sandbox")
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        super().__init__(root, max_file_size_mb=max_file_size_mb)
        self.sandbox: SandboxT = sandbox
        self.command_timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._loop = running_asyncio_loop() if self.loop_bound else None

    @abstractmethod
    async def _run(self, command: str, seconds: int, most: int) -> Done:
        """Run `command` with `sh` for at most `seconds`; keep `most` bytes of each end of each stream."""

    @abstractmethod
    async def _send(self, path: str, content: bytes) -> None:
        """Write a file of the sandbox."""

    async def _receive(self, path: str, most: int) -> bytes:
        """Read a file of the sandbox, and not much more than `most` bytes of it."""
        # SDKs without streams would read the whole file into memory, whatever its size, or in a single message.
        return (await self._run(f"head -c {most + 1} {quote(path)}", ceil(self.command_timeout), most + 1)).stdout

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the SDK raises."""

    # --- the event loop of the SDK ---

    def bound_to_this_thread(self) -> bool:
        return self._loop is not None and running_asyncio_loop() is self._loop

    async def _ask(self, what: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call of the SDK on its event loop, from any other; a cancellation is passed on to it.

        Raises BackendError if the service fails, or if the loop has ended.
        """
        try:
            if not self.loop_bound:
                return await call()
            if self._loop is None:
                self._loop = await in_thread(partial(run_sync, _this_loop))
            if self._loop is None or not self._loop.is_running():
                raise BackendError(
                    None, "The event loop that the sandbox belongs to no longer runs: connect to it anew"
                )
            return await call_on(self._loop, call)
        except DeepFSError:
            raise
        except self._errors() as error:
            raise BackendError(None, f"{self.service} did not {what}: {printable(redact(str(error)))}") from error

    # --- commands ---

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command with `sh`; timeouts are rounded up to seconds. Raises BackendError if the service fails."""
        check_text(command, "command")
        seconds = ceil(seconds_of(timeout, self.command_timeout))
        done = await self._run_in_root(command, seconds)
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

    async def _run_in_root(self, command: str, seconds: int) -> Done:
        root = quote(self.sandbox_path("/"))
        entered = (
            f"cd {root} 2>/dev/null || {{ mkdir -p {root} && cd {root}; }} || exit 125\nexec </dev/null\n{command}"
        )
        most = max(self._max_output_bytes, self.answer_bytes + _BESIDES)
        return await self._ask("run the command", partial(self._run, entered, seconds, most))

    # --- what file operations need ---

    async def _run_script(self, command: str) -> ExecuteResponse:
        done = await self._run_in_root(command, ceil(self.command_timeout))
        return ExecuteResponse((done.stdout or done.stderr).decode(errors="replace"), done.exit_code)

    async def _bring(self, content: bytes) -> bytes:
        path = f"{_HELD}{token_hex(8)}"
        await self._ask("take the file", partial(self._send, path, content))
        return path.encode()

    async def _take(self, name: str, size: int) -> str | None:
        try:
            data = await self._ask("give the file", partial(self._receive, f"{_HELD}{name}", size))
        except BackendError:
            return None  # Another TMPDIR, or a file that the SDK may not read: commands fetch it then.
        return data.decode("ascii", "replace") if len(data) == size else None


async def _this_loop() -> "AsyncioLoop | None":
    return running_asyncio_loop()


# --- the services -----------------------------------------------------------------------------------------------------


class DaytonaSandbox(RemoteSandbox["SandboxOfDaytona"]):
    """Files and commands of a sandbox that Daytona's SDK has made: `await AsyncDaytona().create()`.

    stdout and stderr are merged. The output of a command that the service ended at its timeout is lost. Needs the extra
    `daytona`, and asyncio. The arguments are those of `RemoteSandbox`.
    """

    service: str = "Daytona"
    package: str | None = "daytona"
    # Less than the default, since the command is quoted once more for the shell of the service.
    command_bytes: int = 90_000

    @property
    def id(self) -> str:
        return self.sandbox.id

    def _errors(self) -> tuple[type[Exception], ...]:
        from daytona import DaytonaError

        return (DaytonaError, OSError)

    async def _run(self, command: str, seconds: int, most: int) -> Done:
        from daytona import DaytonaTimeoutError

        try:
            done = await self.sandbox.process.exec(f"sh -c {quote(command)}", timeout=seconds)
        except DaytonaTimeoutError:
            return Done(b"", b"", None)
        output = StreamEnds(most)
        output.add((done.result or "").encode(errors="replace"))
        return Done(output.data, b"", exit_code_of(done.exit_code), output.left_out)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.fs.upload_file(content, path)

    async def _receive(self, path: str, most: int) -> bytes:
        received = bytearray()
        pieces = cast("AsyncGenerator[bytes, None]", await self.sandbox.fs.download_file_stream(path))
        async with aclosing(pieces):
            async for piece in pieces:
                received += piece
                if len(received) > most:
                    break
        return bytes(received)


class DenoSandbox(RemoteSandbox["SandboxOfDeno"]):
    """Files and commands of a sandbox that Deno's SDK has made: `async with AsyncDenoDeploy().sandbox.create() as s`.

    Commands are killed at their timeout and on cancellation. Needs the extra `deno`, and asyncio. The arguments are
    those of `RemoteSandbox`.
    """

    service: str = "Deno"
    package: str | None = "deno_sandbox"

    @property
    def id(self) -> str:
        return self.sandbox.id

    def _errors(self) -> tuple[type[Exception], ...]:
        return (Exception,)  # If the service answers with an error, the SDK raises a bare Exception.

    async def _run(self, command: str, seconds: int, most: int) -> Done:
        process = await self.sandbox.spawn("sh", args=["-c", command], stdin="null", stdout="piped", stderr="piped")
        out, err, code = StreamEnds(most), StreamEnds(most), None
        try:
            with anyio.move_on_after(seconds):
                streams = (process.stdout, out), (process.stderr, err)
                await gather([partial(_read_pieces, stream.read, into) for stream, into in streams])
                code = exit_code_of((await process.wait())["code"])
                code = 128 - code if code < 0 else code
        finally:
            if code is None:
                with anyio.CancelScope(shield=True):
                    await process.kill()
        return Done(out.data, err.data, code, out.left_out + err.left_out)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.fs.write_file(path, content)


async def _read_pieces(read: Callable[[int], Awaitable[bytes]], into: StreamEnds) -> None:
    while data := await read(_CHUNK_BYTES):
        into.add(data)


class ModalSandbox(RemoteSandbox["SandboxOfModal"]):
    """Files and commands of a sandbox that Modal's SDK has made: `await modal.Sandbox.create.aio(app=app)`.

    The service kills a command at its timeout, even one that was cancelled: it offers no other way to end a command.
    Needs the extra `modal`, and asyncio. The arguments are those of `RemoteSandbox`.
    """

    service: str = "Modal"
    package: str | None = "modal"
    # The SDK has an event loop of its own.
    loop_bound: bool = False
    # The SDK accepts arguments of up to 65,536 bytes.
    command_bytes: int = 60_000

    @property
    def id(self) -> str:
        return self.sandbox.object_id

    def _errors(self) -> tuple[type[Exception], ...]:
        from modal.exception import Error

        return (Error, OSError)

    async def _run(self, command: str, seconds: int, most: int) -> Done:
        process = await self.sandbox.exec.aio("sh", "-c", command, timeout=seconds, text=False)
        out, err = StreamEnds(most), StreamEnds(most)
        await gather([partial(_read_in_thread, process.stdout, out), partial(_read_in_thread, process.stderr, err)])
        code = exit_code_of(await process.wait.aio())
        return Done(out.data, err.data, None if code < 0 else code, out.left_out + err.left_out)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.filesystem.write_bytes.aio(content, path)


async def _read_in_thread(stream: Iterable[object], into: StreamEnds) -> None:
    # An iteration in a task breaks inside the SDK when it is cancelled; one in a thread ends with the command.
    def collect() -> None:
        for piece in stream:
            into.add(piece)

    await anyio.to_thread.run_sync(collect, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
