"""What a command works with: the places that its addresses name, where its output goes, and its exit status."""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, NoReturn

import anyio
from msgspec import json

from deepfs.backends.protocol import BackendProtocol
from deepfs.config.addresses import Address, parse_address
from deepfs.errors import DeepFSError
from deepfs.text import paths
from deepfs.types import Result, error_told

__all__ = ["Place", "Session", "run"]

BACKEND_VARIABLE: Final = "DEEPFS_ON"
"""The variable of the environment that stands for the option `--on`."""


class Place(NamedTuple):
    """A path in an open backend.

    Attributes:
        backend: The backend.
        path: The normalised path in it.
        address: The address that a user gave for it.
    """

    backend: BackendProtocol
    path: str
    address: Address

    def shown(self, path: str) -> str:
        """What a user calls a path at or beneath this place.

        Args:
            path: The path in the backend; that of a directory may end in `/`.
        """
        given = self.address.shown
        beneath = path[len(self.path) :].lstrip("/") if path.startswith(self.path) else path
        if not beneath:
            return given
        return beneath if given in ("", ".") else f"{given.rstrip('/')}/{beneath}"


class Session:
    """One run of a command: its open backends, its output and its exit status.

    Args:
        on: The URL of the backend that addresses without a scheme are paths of; None for this machine.
        as_json: Whether results are written as JSON, one value a line.
        name: The name of the command, for its messages.
    """

    def __init__(self, on: str | None = None, *, as_json: bool = False, name: str = "deepfs") -> None:
        self.on: str | None = on
        self.as_json: bool = as_json
        self.name: str = name
        self.status: int = 0
        self.is_terminal: bool = sys.stdout.isatty()
        self._stack = AsyncExitStack()
        self._open: dict[str, BackendProtocol] = {}

    # --- places ---

    async def place(self, text: str, *, creates: bool = False) -> Place:
        """Open the backend of an address.

        Args:
            text: The address.
            creates: Whether a database may be made where there is none.

        Returns:
            The place. Its backend is closed when the command ends.

        Raises:
            DeepFSError: The path is invalid.
            ValueError: The address cannot be used.
            OSError: A file that it names cannot be read.
        """
        address = parse_address(text or ".", within=self.on)
        if self.on is not None and address.url == self.on and text in ("", "."):
            address = Address(self.on, "/", "/")
        backend = self._open.get(address.url)
        if backend is None:
            from deepfs.config.trees import open_backend

            backend = await self._stack.enter_async_context(open_backend(address.url, creates=creates))
            self._open[address.url] = backend
        return Place(backend, paths.normalize(address.path), address)

    # --- output ---

    def write(self, text: str) -> None:
        """Write text to the output as it is.

        Args:
            text: The text, with its line ends.
        """
        sys.stdout.write(text)

    def line(self, text: str) -> None:
        """Write a line of text.

        Args:
            text: The text, without its line end.
        """
        sys.stdout.write(f"{text}\n")

    def json(self, value: Any) -> None:
        """Write a value as one line of JSON.

        Args:
            value: What msgspec can encode: records, dicts, lists, texts, numbers.
        """
        sys.stdout.write(json.encode(value).decode() + "\n")

    def failed(self, told: object, *, status: int = 1) -> None:
        """Tell an error, and go on; the command will end with a status that is not 0.

        Args:
            told: The error, or a text.
            status: The exit status; the highest one counts.
        """
        sys.stdout.flush()
        print(f"deepfs {self.name}: {told}", file=sys.stderr)
        self.status = max(self.status, status)

    def check(self, result: Result, place: Place | None = None) -> bool:
        """Whether a result is no error; an error is told.

        Args:
            result: The result.
            place: The place that paths in the error are shown beneath.
        """
        if result.ok:
            return True
        error = error_told(result)
        self.failed(error if place is None else error.renamed(place.shown))
        return False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Session"]:
        """Close all backends at the end."""
        async with self._stack:
            yield self


def run(session: Session, command: Callable[[Session], Awaitable[None]], *, trouble: int = 1) -> NoReturn:
    """Run a command, tell an error that ends it, and exit.

    Args:
        session: The session.
        command: The command.
        trouble: The exit status for such an error: 1, or 2 for commands that use 1 for another answer, as grep does.
    """

    async def whole() -> None:
        async with session.opened():
            await command(session)

    try:
        anyio.run(whole)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `head` does. The interpreter must not flush into the pipe again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        session.status = 141
    except KeyboardInterrupt:
        session.status = 130
    except (DeepFSError, ValueError, OSError, ModuleNotFoundError) as error:
        session.failed(error, status=trouble)
    sys.exit(session.status)
