"""A sandbox of Daytona."""

from contextlib import aclosing
from shlex import quote
from typing import TYPE_CHECKING, cast

from deepfs.sandboxes.remote import Done, Output, RemoteSandbox, check_installed, exit_code_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from daytona import AsyncSandbox

__all__ = ["DaytonaSandbox"]


class DaytonaSandbox(RemoteSandbox):
    """Files and commands of a sandbox that Daytona's SDK has made: `await AsyncDaytona().create()`.

    stdout and stderr are merged. The output of a command that the service ended at its timeout is lost. Needs the extra
    `daytona`, and asyncio.

    Args:
        sandbox: The sandbox. The caller stops and deletes it.
        root: The absolute path of the directory in the sandbox in which commands run and files are.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ModuleNotFoundError: Without the extra `daytona`.
        TypeError: For an argument of another type.
        ValueError: For a number or a `root` that cannot be used.
    """

    service: str = "Daytona"
    # Less than the default, since the command is quoted once more for the shell of the service.
    command_bytes: int = 90_000

    def __init__(
        self,
        sandbox: "AsyncSandbox",
        root: str = "/",
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        max_file_size_mb: int = 10,
    ) -> None:
        check_installed("daytona", "daytona")
        super().__init__(root, timeout=timeout, max_output_bytes=max_output_bytes, max_file_size_mb=max_file_size_mb)
        self.sandbox: AsyncSandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.id

    def _errors(self) -> tuple[type[Exception], ...]:
        from daytona import DaytonaError

        return (DaytonaError, OSError)

    async def _run(self, command: str, seconds: int) -> Done:
        from daytona import DaytonaTimeoutError

        try:
            done = await self.sandbox.process.exec(f"sh -c {quote(command)}", timeout=seconds)
        except DaytonaTimeoutError:
            return Done(b"", b"", None)
        output = Output(self._most_output)
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
