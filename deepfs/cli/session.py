"""What a command works with: the places that its addresses name, its options, its output, and its exit status."""

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from functools import wraps
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from urllib.parse import quote as quote_url
from urllib.parse import unquote

import anyio
import click
from anyio import to_thread
from click.shell_completion import CompletionItem
from msgspec import json

from deepfs._brief import address as shown_url
from deepfs._drivers import BACKENDS
from deepfs.backends.protocol import BackendProtocol
from deepfs.cli.screen import Screen, discard_output, safe
from deepfs.config.trees import load_tree, open_backend
from deepfs.config.urls import MACHINE, TREE, WORKSPACE, Address, parse_address, split_database
from deepfs.config.workspaces import make_absolute, url_of_tree
from deepfs.errors import DeepFSError, ErrorCode, quote
from deepfs.storage.gathering import gather
from deepfs.text import paths
from deepfs.types import Result, error_from

if TYPE_CHECKING:
    from deepfs.workspaces import OverlayBackend, Snapshots

BACKEND_VARIABLE: Final = "DEEPFS_ON"
"""The variable of the environment that stands for the option `--on`."""
VARIABLES_VARIABLE: Final = "DEEPFS_ENV"
"""The variable of the environment that stands for the options `--env`: names with spaces between them."""

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
_SIGNALS: Final = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

_NO_LOG: Final = logging.NullHandler()

_TEXTS: Final[dict[str | None, str]] = {
    ErrorCode.FILE_NOT_FOUND: "No such file or directory",
    ErrorCode.IS_DIRECTORY: "Is a directory",
    ErrorCode.NOT_A_DIRECTORY: "Not a directory",
    ErrorCode.PERMISSION_DENIED: "Permission denied",
    ErrorCode.ALREADY_EXISTS: "File exists",
    ErrorCode.TOO_LARGE: "File too large",
    ErrorCode.QUOTA_EXCEEDED: "Quota exceeded",
    ErrorCode.CONFLICT: "It was changed meanwhile",
    ErrorCode.TIMEOUT: "Timed out",
    ErrorCode.UNSUPPORTED: "Not supported there",
}
"""What the system's tools say for an error code."""


class Given(NamedTuple):
    """The options that stand before the name of the command."""

    on: str | None = None
    """The URL of the backend that addresses without a scheme are paths of; None for this machine."""
    variables: tuple[str, ...] = ()
    """The names of the variables of the environment that a TOML file may use."""


class AddressedPlace(NamedTuple):
    """A normalised path in an open backend, and the address that a user gave for it."""

    backend: BackendProtocol
    path: str
    address: Address

    def display(self, path: str) -> str:
        """What a user calls a path at or beneath this place."""
        given = self.address.shown
        is_beneath = paths.is_beneath(path.rstrip("/"), self.path)
        beneath = path[len(self.path) :].lstrip("/") if is_beneath else ""
        if not beneath:
            return given or "." if path.rstrip("/") == self.path.rstrip("/") else path
        return beneath if given in ("", ".") else f"{given.rstrip('/')}/{beneath}"

    @property
    def quoted(self) -> str:
        """What a user calls this place, for an error."""
        return quote(self.display(self.path))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the file. Raises DeepFSError if it cannot be read, and names it as the user did."""
        try:
            async with aclosing(self.backend.adownload_stream(self.path)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except DeepFSError as error:
            raise error.with_paths(self.display) from None


class Session:
    """One run of the command `name`, with its screen and exit status; with `as_json`, results are written as JSON."""

    def __init__(self, given: Given | None = None, *, as_json: bool = False, name: str = "") -> None:
        self.on: str | None
        self.variables: tuple[str, ...]
        self.on, self.variables = given or Given()
        self.as_json: bool = as_json
        self.name: str = name
        self.screen: Screen = Screen(sys.stdout)
        self.status: int = 0
        self._stack = AsyncExitStack()
        self._open: dict[str, BackendProtocol] = {}
        self._directory = ""
        """The current directory; empty if it was deleted."""
        with suppress(FileNotFoundError):
            self._directory = os.getcwd()

    async def place(self, text: str, *, creates: bool = False) -> AddressedPlace:
        """Open the backend of an address; an empty one means the current directory, or the root of the backend of `on`.

        Raises DeepFSError for an invalid path, ValueError for another address that cannot be used, OSError for a file.
        """
        given = text or ("." if self.on is None else "/")
        if "://" in given:
            given = await to_thread.run_sync(split_database, given, self._directory)
        address = parse_address(given, within=self.on, directory=self._directory)
        if address.url == MACHINE and not os.path.isabs(address.path):
            raise FileNotFoundError("the current directory is not there any more")
        backend = self._open.get(address.url)
        if backend is None:
            backend = await self._stack.enter_async_context(
                open_backend(address.url, creates=creates, variables=self.variables)
            )
            self._open[address.url] = backend
        return AddressedPlace(backend, paths.normalize(address.path), address)

    def locate_tree(self, place: AddressedPlace) -> str:
        """The URL of the whole tree at a place, with absolute paths. Raises ValueError for a part of a backend."""
        return url_of_tree(place.address, self._directory)

    async def tree(self, text: str) -> AddressedPlace:
        """Open a whole tree: a directory of this machine is one, too. Raises ValueError for a part of a backend."""
        place = await self.place(text)
        url = self.locate_tree(place)
        if paths.normalize(place.address.path) == "/":
            return place
        listing = await place.backend.als(place.path)
        if not listing.ok:
            raise error_from(listing).with_paths(place.display)
        return (await self.place(f"{url}#/"))._replace(address=Address(url, "/", "/"))

    async def workspace(self, text: str) -> "tuple[AddressedPlace, OverlayBackend]":
        """Open a workspace, of which a path without a scheme is the database, and a place in it."""
        from deepfs.workspaces import OverlayBackend

        is_file = text and "://" not in text and self.on is None
        place = await self.place(self.absolute_workspace(text) if is_file else text)
        if not isinstance(place.backend, OverlayBackend):
            raise ValueError(f"{place.address.shown} is in no workspace; `deepfs fork` makes one")
        return place, place.backend

    async def snapshots(self, tree: str, storage: str, *, keep: int | None = None) -> "Snapshots":
        """The snapshots of a tree that lie in a storage, which may be a directory of the tree."""
        from deepfs.workspaces import Snapshots

        source, kept = await self.tree(tree), await self.place(storage, creates=True)
        if kept.address.url == MACHINE:
            top = parse_address(tree, within=self.on, directory=self._directory)
            if top.url == MACHINE and paths.is_beneath(kept.path, top.path):
                inside = kept.path[len(top.path.rstrip("/")) :]
                return Snapshots(source.backend, source.backend, directory=inside, keep=keep)
        return Snapshots(source.backend, kept.backend, directory=kept.path, keep=keep)

    def absolute_workspace(self, text: str) -> str:
        """The address of a workspace, with absolute paths, that a user may have given as the path of its database."""
        address = text if "://" in text else f"{WORKSPACE}sqlite:///{quote_url(text)}"
        return make_absolute(address, self._directory)

    def titles(self, places: list[AddressedPlace]) -> list[str]:
        """What each place is called beside the others: with the URL, if they are of several backends."""
        several = len({place.address.url for place in places}) > 1
        return [
            f"{shown_url(place.address.url)}#{place.path}"
            if several and place.address.url != MACHINE and "://" not in place.address.shown
            else place.address.shown or "."
            for place in places
        ]

    def json(self, value: Any) -> None:
        """Write a value as one line of JSON."""
        self.screen.raw(json.encode(value).decode() + "\n")

    def report(self, error: object, *, status: int = 1) -> None:
        """Report an error, and go on. The command then ends with a status that is not 0."""
        self.status = max(self.status, status)
        text = describe_error(error)
        self.screen.note(f"deepfs {self.name}: {text}" if self.name else f"deepfs: {text}")

    def check(self, result: Result, place: AddressedPlace, *, status: int = 1) -> bool:
        """Whether a result is no error; an error is reported."""
        if not result.ok:
            self.report(error_from(result).with_paths(place.display), status=status)
        return result.ok

    async def close(self) -> None:
        """Close all backends."""
        await self._stack.aclose()


async def interruptible(work: Callable[[], Awaitable[None]]) -> int | None:
    """Run something that SIGINT, SIGTERM and SIGHUP cancel; returns the number of the one that did.

    What is being stored is stored as a whole, or not at all.
    """
    is_watching = anyio.Event()

    async def watch() -> int:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            is_watching.set()
            number = await anext(aiter(signals))
        return int(number)  # From here on, another SIGINT ends the process at once.

    async def run() -> int:
        await is_watching.wait()
        await work()
        return 0

    number, _ = await gather([watch, run], enough=lambda results: results != [None, None])
    return number


def describe_error(error: object) -> str:
    """The text of an error, as the system's tools write it: without the number of an error of the system."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error).removeprefix("Error: ")


def error_text(code: str) -> str:
    """What the system's tools say for a code of `ErrorCode`."""
    return _TEXTS.get(code, code)


def reason_text(result: Result) -> str:
    """Why an operation failed, as the system's tools say it where they have words for it."""
    return _TEXTS.get(result.code) or str(error_from(result))


def silence_backends() -> None:
    """Keep what drivers say off the standard error, where Python writes it if no log is set up."""
    for backend in BACKENDS:
        logging.getLogger(f"deepfs.{backend}").addHandler(_NO_LOG)


# --- options and arguments that several commands have ---


def run_command(
    command: Callable[[Session], Awaitable[None]],
    *,
    trouble: int = 1,
    json: bool = False,
    pages: bool = False,
    serves: bool = False,
) -> NoReturn:
    """Run a command in a session, report an error that ends it, and exit.

    `trouble` is the exit status for such an error: 1, or 2 for commands that use 1 for another answer, as grep does.
    `pages` is whether a person sees the output through a pager. With `serves`, what drivers say is logged; a command
    that ends tells its errors, and nothing else.
    """
    if not serves:
        silence_backends()
    context = click.get_current_context()
    session = Session(context.obj, as_json=json, name=context.info_name or "")
    if pages and not json:
        session.screen.page()

    async def whole() -> None:
        try:
            await command(session)
        finally:
            with anyio.CancelScope(shield=True):
                await session.close()

    try:
        try:
            anyio.run(whole)
        except KeyboardInterrupt:
            session.status = INTERRUPTED
        except BrokenPipeError:
            raise
        except (DeepFSError, ValueError, OSError, ModuleNotFoundError) as error:
            session.report(error, status=trouble)
        session.screen.close()
    except BrokenPipeError:  # The reader has left.
        discard_output()
        session.status = PIPE_CLOSED
    except KeyboardInterrupt:
        discard_output()
        session.status = INTERRUPTED
    except OSError as error:  # The output cannot be written.
        discard_output()
        session.report(error, status=trouble)
    sys.exit(session.status)


def in_session(
    *, trouble: int = 1, pages: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Decorate the async function of a command, which gets the session before its arguments; as `run_command` runs it.

    The option `--json` is one of the session.
    """

    def decorate(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(function)
        def command(*, json: bool = False, **given: Any) -> None:
            run_command(lambda session: function(session, **given), trouble=trouble, json=json, pages=pages)

        return command

    return decorate


def not_empty(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Refuse an empty address: most likely, it is a variable of the shell that is not set."""
    if "" in ([given] if isinstance(given, str) else given or ()):
        raise click.BadParameter("an empty address names nothing")
    return given


class _Address(click.ParamType[str]):
    """An address in the arguments."""

    name = "address"

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        on = None if context.obj is None else context.obj.on
        return _complete_address(incomplete, on, context.find_root().params.get("variables") or ())


ADDRESS: Final = _Address()

json_option: Final = click.option("--json", is_flag=True, help="Write JSON, one value a line.")
hidden_option: Final = click.option(
    "-a", "--all", "hidden", is_flag=True, help="Show names that start with a dot, too."
)
snapshots_option: Final = click.option(
    "--in", "storage", metavar="STORAGE", help="The address of the directory that holds the snapshots."
)
if_match_option: Final = click.option("--if-match", metavar="VERSION", help="Only if the file has this version.")
address_argument: Final = click.argument("address", type=ADDRESS, metavar="ADDRESS", callback=not_empty)
addresses_argument: Final = click.argument(
    "addresses", type=ADDRESS, metavar="[ADDRESS]...", nargs=-1, callback=not_empty
)
files_argument: Final = click.argument(
    "files", type=ADDRESS, metavar="ADDRESS...", nargs=-1, required=True, callback=not_empty
)
directory_argument: Final = click.argument("address", type=ADDRESS, metavar="[ADDRESS]", default="")


# --- what shells offer for an address --------------------------------------------------------------------------------
# Nothing is made or changed, no network is used, and a shell does not wait long.

_COMPLETION_SECONDS: Final = 2.0


def _complete_address(incomplete: str, on: str | None, variables: Sequence[str]) -> list[CompletionItem[str]]:
    """The addresses that may follow from the beginning of one; for a path of this machine, the shell knows them."""
    if "://" not in incomplete and on is None:
        return [CompletionItem(incomplete, type="file")]
    found: list[str] = []
    with _time_limit(), suppress(DeepFSError, ValueError, OSError, ImportError):
        found = anyio.run(_find_addresses, incomplete, on, variables)
    return [CompletionItem(each) for each in found if safe(each) == each]


@contextmanager
def _time_limit() -> Iterator[None]:
    """End the process, which answers a shell, after some seconds: a disk may hang, a database may be locked."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _COMPLETION_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _find_addresses(incomplete: str, on: str | None, variables: Sequence[str]) -> list[str]:
    """The addresses in the directory that the beginning of one ends in."""
    url, mark, path = incomplete.partition("#") if "://" in incomplete else ("", "", incomplete)
    directory, slash, name = path.rpartition("/")
    start = f"{url}{mark}{directory}{slash or '/' * bool(mark)}"
    if "://" in incomplete and not mark:
        start, name = incomplete[: incomplete.rindex("/") + 1], paths.name(incomplete)
        inside = await to_thread.run_sync(split_database, start, "")
        if not start.startswith("file:") and "#" not in inside:
            return await to_thread.run_sync(_list_databases, start, name)
    else:
        inside = start
    address = parse_address(inside or "/", within=on, directory=await to_thread.run_sync(os.getcwd))
    if not await _is_near(address.url, variables):
        return []
    async with open_backend(address.url, creates=False, variables=variables) as backend:
        entries = (await backend.als(paths.normalize(address.path))).entries or ()
    return _select_names(start, name, [paths.name(each.path.rstrip("/")) + "/" * bool(each.is_dir) for each in entries])


def _select_names(start: str, name: str, found: list[str]) -> list[str]:
    """The names that go on from the beginning of one, behind what stands before it."""
    chosen = [each for each in found if each.startswith(name) and (name or not each.startswith("."))]
    if "://" in start and "#" not in start:  # There, these would be something else.
        chosen = [each for each in chosen if not {*"%?#"} & {*each.removesuffix("#/")}]
    return [start + each for each in chosen]


def _list_databases(start: str, name: str) -> list[str]:
    """The addresses of databases or descriptions of trees in a directory, and of directories in it."""
    scheme, _, directory = start.partition("://")
    if scheme != "tree" and scheme.rpartition("+")[2] != "sqlite":
        return []
    if scheme != "tree":
        directory = directory.removeprefix("/")
    with os.scandir(unquote(directory) or ".") as entries:
        found = sorted(each.name + ("/" if each.is_dir() else "#/" if each.is_file() else "") for each in entries)
    return _select_names(start, name, found)


async def _is_near(url: str, variables: Sequence[str], directory: str = "") -> bool:
    """Whether a backend lies on this machine, and opening it makes nothing. For a tree, all of it must."""
    scheme, mark, location = url.partition("://")
    location = unquote(location.partition("?")[0])
    if not mark or scheme in ("file", "memory"):
        return True
    if scheme == "sqlite":
        status = await anyio.Path(directory, location.removeprefix("/")).stat()
        return S_ISREG(status.st_mode) and status.st_size > 0  # An empty file would become a database.
    if not url.startswith(TREE):
        return False
    tree = await load_tree(os.path.join(directory, url.removeprefix(TREE)), variables=variables)
    parts: list[Any] = [tree.url, *tree.mounts.values()]
    if tree.history is not None and tree.history.url is not None:
        parts.append(tree.history.url)
    urls = [part if isinstance(part, str) else part.get("url", "") for part in parts]
    return all([not each.startswith(TREE) and await _is_near(each, (), tree.directory) for each in urls])
