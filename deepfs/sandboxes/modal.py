"""A sandbox of Modal."""

from functools import partial
from math import ceil
from shlex import quote
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from deepfs.sandboxes.remote import Done, Output, RemoteSandbox, check_installed, exit_code_of, read_all

if TYPE_CHECKING:
    from modal import Sandbox
    from modal.io_streams import StreamReader

__all__ = ["ModalSandbox"]


class ModalSandbox(RemoteSandbox):
    """Files and commands of a sandbox that Modal's SDK has made: `await modal.Sandbox.create.aio(app=app)`.

    The service kills a command at its timeout, even one that was cancelled: it offers no other way to end a command.
    Needs the extra `modal`, and asyncio.

    Args:
        sandbox: The sandbox. The caller terminates it.
        root: The absolute path of the directory in the sandbox in which commands run and files are.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ModuleNotFoundError: Without the extra `modal`.
        TypeError: For an argument of another type.
        ValueError: For a number or a `root` that cannot be used.
    """

    service: str = "Modal"
    # The SDK has an event loop of its own.
    loop_bound: bool = False
    # The SDK accepts arguments of up to 65,536 bytes.
    command_bytes: int = 60_000

    def __init__(
        self,
        sandbox: "Sandbox",
        root: str = "/",
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        max_file_size_mb: int = 10,
    ) -> None:
        check_installed("modal", "modal")
        super().__init__(root, timeout=timeout, max_output_bytes=max_output_bytes, max_file_size_mb=max_file_size_mb)
        self.sandbox: Sandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.object_id

    def _errors(self) -> tuple[type[Exception], ...]:
        from modal.exception import Error

        return (Error, OSError)

    async def _run(self, command: str, seconds: int) -> Done:
        return await self._executed(command, seconds, self._most_output)

    async def _executed(self, command: str, seconds: int, most: int) -> Done:
        process = await self.sandbox.exec.aio("sh", "-c", command, timeout=seconds, text=False)
        out, err = Output(most), Output(most)
        await read_all(partial(_read, process.stdout, out), partial(_read, process.stderr, err))
        code = exit_code_of(await process.wait.aio())
        return Done(out.data, err.data, None if code < 0 else code, out.left_out + err.left_out)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.filesystem.write_bytes.aio(content, path)

    async def _receive(self, path: str, most: int) -> bytes:
        # The SDK would read the whole file into memory, whatever its size.
        return (await self._executed(f"head -c {most + 1} {quote(path)}", ceil(self.command_timeout), most + 1)).stdout


async def _read(stream: "StreamReader[bytes]", into: Output) -> None:
    # An iteration in a task breaks inside the SDK when it is cancelled; one in a thread ends with the command.
    limiter = anyio.CapacityLimiter(1)
    await anyio.to_thread.run_sync(partial(_collect, stream, into), abandon_on_cancel=True, limiter=limiter)


def _collect(stream: "StreamReader[bytes]", into: Output) -> None:
    for piece in stream:
        into.add(piece)
