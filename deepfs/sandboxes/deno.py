"""A sandbox of Deno."""

from collections.abc import Awaitable, Callable
from math import ceil
from shlex import quote
from typing import TYPE_CHECKING

import anyio

from deepfs.sandboxes.remote import Done, RemoteSandbox, check_installed

if TYPE_CHECKING:
    from deno_sandbox.process import AsyncChildProcess
    from deno_sandbox.sandbox import AsyncSandbox

__all__ = ["DenoSandbox"]


class DenoSandbox(RemoteSandbox):
    """Files and commands of a sandbox that Deno's SDK has made: `async with AsyncDenoDeploy().sandbox.create() as s`.

    Commands are killed at their timeout and on cancellation. Needs the extra `deno`, and asyncio.

    Args:
        sandbox: The sandbox. The caller ends it.
        root: The absolute path of the directory in the sandbox in which commands run and files are.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ModuleNotFoundError: Without the extra `deno`.
        TypeError: For an argument of another type.
        ValueError: For a number or a `root` that cannot be used.
    """

    service: str = "Deno"

    def __init__(
        self,
        sandbox: "AsyncSandbox",
        root: str = "/",
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        max_file_size_mb: int = 10,
    ) -> None:
        check_installed("deno_sandbox", "deno")
        super().__init__(root, timeout=timeout, max_output_bytes=max_output_bytes, max_file_size_mb=max_file_size_mb)
        self.sandbox: AsyncSandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.id

    def _errors(self) -> tuple[type[Exception], ...]:
        return (Exception,)  # If the service answers with an error, the SDK raises a bare Exception.

    async def _run(self, command: str, seconds: int) -> Done:
        process = await self.sandbox.spawn("sh", args=["-c", command], stdin="null", stdout="piped", stderr="piped")
        run = _Run(process)
        try:
            with anyio.move_on_after(seconds):
                await run.finish()
        finally:
            if run.exit_code is None:
                with anyio.CancelScope(shield=True):
                    await process.kill()
        return Done(bytes(run.stdout), bytes(run.stderr), run.exit_code)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.fs.write_file(path, content)

    async def _receive(self, path: str) -> bytes:
        # The SDK accepts messages of up to one mebibyte, and would read a file in a single message.
        return (await self._run(f"cat {quote(path)}", ceil(self._timeout))).stdout


class _Run:
    """A running command, its output so far, and its exit code at the end."""

    def __init__(self, process: "AsyncChildProcess") -> None:
        self.exit_code: int | None = None
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._process = process

    async def finish(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, self._process.stdout.read, self.stdout)
            tasks.start_soon(self._read, self._process.stderr.read, self.stderr)
        code = (await self._process.wait())["code"]
        self.exit_code = 128 - code if code < 0 else code

    async def _read(self, read: Callable[[int], Awaitable[bytes]], into: bytearray) -> None:
        while data := await read(_CHUNK_BYTES):
            into += data


_CHUNK_BYTES = 65_536
