"""A sandbox of Deno."""

from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from shlex import quote
from typing import TYPE_CHECKING

import anyio

from deepfs.sandboxes.remote import Done, Output, RemoteSandbox, check_installed, exit_code_of, read_all

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
        return await self._executed(command, seconds, self._most_output)

    async def _executed(self, command: str, seconds: int, most: int) -> Done:
        process = await self.sandbox.spawn("sh", args=["-c", command], stdin="null", stdout="piped", stderr="piped")
        run = _Run(process, most)
        try:
            with anyio.move_on_after(seconds):
                await run.finish()
        finally:
            if run.exit_code is None:
                with anyio.CancelScope(shield=True):
                    await process.kill()
        return Done(run.out.data, run.err.data, run.exit_code, run.out.left_out + run.err.left_out)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.fs.write_file(path, content)

    async def _receive(self, path: str, most: int) -> bytes:
        # The SDK accepts messages of up to one mebibyte, and would read a file in a single message.
        return (await self._executed(f"head -c {most + 1} {quote(path)}", ceil(self.command_timeout), most + 1)).stdout


class _Run:
    """A running command, its output so far, and its exit code at the end."""

    def __init__(self, process: "AsyncChildProcess", most: int) -> None:
        self.exit_code: int | None = None
        self.out = Output(most)
        self.err = Output(most)
        self._process = process

    async def finish(self) -> None:
        await read_all(
            partial(self._read, self._process.stdout.read, self.out),
            partial(self._read, self._process.stderr.read, self.err),
        )
        code = exit_code_of((await self._process.wait())["code"])
        self.exit_code = 128 - code if code < 0 else code

    async def _read(self, read: Callable[[int], Awaitable[bytes]], into: Output) -> None:
        while data := await read(_CHUNK_BYTES):
            into.add(data)


_CHUNK_BYTES = 65_536
