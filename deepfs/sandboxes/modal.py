"""A sandbox of Modal."""

from typing import TYPE_CHECKING

import anyio

from deepfs.sandboxes.remote import Done, RemoteSandbox, check_installed

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
        process = await self.sandbox.exec.aio("sh", "-c", command, timeout=seconds, text=False)
        stdout, stderr = bytearray(), bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process.stdout, stdout)
            tasks.start_soon(_read, process.stderr, stderr)
        code = await process.wait.aio()
        return Done(bytes(stdout), bytes(stderr), None if code < 0 else code)

    async def _send(self, path: str, content: bytes) -> None:
        await self.sandbox.filesystem.write_bytes.aio(content, path)

    async def _receive(self, path: str) -> bytes:
        return await self.sandbox.filesystem.read_bytes.aio(path)


async def _read(stream: "StreamReader[bytes]", into: bytearray) -> None:
    # Not in pieces: the SDK breaks if an iteration over a stream is cancelled.
    into += await stream.read.aio()
