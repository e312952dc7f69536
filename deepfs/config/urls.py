"""Addresses: a URL that names a backend, and a path in it; and the backends that URLs name.

    notes/plan.md                                  a path of this machine
    file:///srv/docs#/guide/start.md               a path in a directory, which nothing leaves
    sqlite:///files.db?namespace=ada#/notes        a path in a namespace of a SQLite database
    postgresql://user@host/db?namespace=ada#/a.md  the same in PostgreSQL
    redis://host:6379/0?namespace=ada#/a.md        the same in Redis; rediss:// and unix:///socket?db=0 as well
    s3://bucket/dir/a.md                           an object; gs:// and az:// as well, and every URL of fsspec
    store+sqlite:///store.db?namespace=ada         the files in a LangGraph store
    checkpoint+sqlite:///runs.db?thread=1#/a.md    the files in the state of a LangGraph thread, to be read only
    tree://deepfs.toml#/memories                   a path in the tree that a TOML file describes
    workspace+sqlite:///work.db#/notes             a path in a workspace, whose changes are in the backend of the URL

Only what has `://` is a URL: a file may have any name. What stands before `#` names the backend, what stands behind it
the path. Without `#`, the path of a URL that names a place in a hierarchy (file, object stores, fsspec) is the path,
and all other addresses mean the root. Options follow `?`; `read_only=true` goes with every URL. The URL of a database
file has four slashes if its path is absolute.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from msgspec import Struct, ValidationError, convert

from deepfs._drivers import condition_of, failure_by, log_failure
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError
from deepfs.sync import in_thread

__all__ = ["TREE", "Address", "inert_serializer", "open_url", "parse_address", "split_database", "with_options"]

# --- addresses -------------------------------------------------------------------------------------------------------

TREE: Final = "tree://"
"""The beginning of the URL of a tree that a TOML file describes; the path of the file follows."""
WORKSPACE: Final = "workspace+"
"""The beginning of the URL of a workspace; the URL of the backend that holds its changes follows."""
MACHINE: Final = "file:///"
"""The URL of the backend of this machine's paths."""
_FLAT: Final = frozenset({"memory", "sqlite", "postgres", "postgresql", "redis", "rediss", "unix"})
"""Schemes whose URL has no path in the storage."""


class Address(NamedTuple):
    """A backend and a path in it.

    Attributes:
        url: The URL of the backend.
        path: The path in the backend.
        shown: What a user calls this path: the text that `path` replaces where paths are shown.
    """

    url: str
    path: str
    shown: str


def parse_address(text: str, *, within: str | None = None, directory: str = "/") -> Address:
    """Split an address into the URL of its backend and a path.

    Args:
        text: The address.
        within: The URL of the backend that addresses without a scheme are paths of; None if they are paths of this
            machine.
        directory: The absolute directory that relative paths of this machine start at.

    Returns:
        The address. Nothing is opened or looked up.
    """
    if "://" not in text:
        if within is not None:
            return Address(within, text, text)
        return Address(MACHINE, _absolute(text, directory), text)
    url, fragment, path = text.partition("#")
    if fragment:
        return Address(url, path or "/", path or "/")
    scheme, _, rest = text.partition("://")
    if text.startswith(TREE) or "::" in text or "+" in scheme or scheme in _FLAT:
        return Address(text, "/", "/")
    if scheme == "file":
        location, _, options = rest.partition("?")
        location = unquote(location.removeprefix("localhost") if location.startswith("localhost/") else location)
        return Address(MACHINE + (f"?{options}" if options else ""), _absolute(location, directory), location)
    location, mark, options = rest.partition("?")
    host, _, path = location.partition("/")
    return Address(f"{scheme}://{host}{mark}{options}", f"/{path}", f"{scheme}://{location}")


def split_database(address: str, directory: str) -> str:
    """The address with `#` before the path, where it goes on behind the file of a database: `sqlite:///a.db/x`.

    Args:
        address: The address. Any that this is not clear of is returned as it is.
        directory: The directory that relative paths start at.
    """
    scheme, _, rest = address.partition("://")
    location, mark, options = rest.partition("?")
    if "#" in address or scheme.rpartition("+")[2] != "sqlite":
        return address
    file = location
    while file and not os.path.isfile(os.path.join(directory, unquote(file).removeprefix("/"))):
        file = file.rpartition("/")[0]
    path = location[len(file) :]
    return f"{scheme}://{file}{mark}{options}#{path}" if file and path else address


def _absolute(path: str, directory: str) -> str:
    return os.path.normpath(os.path.join(directory, path))


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """The URL with more options.

    Args:
        url: The URL of a backend.
        options: The options; a truth value is written as `true` or `false`.
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(texts)}" if texts else url


# --- backends --------------------------------------------------------------------------------------------------------

_OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure")


class _Url(NamedTuple):
    """The URL of a backend, taken apart."""

    scheme: str
    location: str
    """What stands between `://` and `?`."""
    options: dict[str, str]
    directory: str
    """The directory that relative paths start at."""
    creates: bool
    """Whether a database may be made where there is none."""

    def file(self) -> str:
        """The path of the file that the URL of a database names: behind the third slash, as in SQLAlchemy."""
        return os.path.join(self.directory, unquote(self.location).removeprefix("/"))

    def dsn(self, ours: type[Struct], scheme: str = "postgresql") -> str:
        """The URL of a server, as its driver takes it: without the options of deepfs, which `ours` has."""
        theirs = {name: value for name, value in self.options.items() if name not in ours.__struct_fields__}
        return with_options(f"{scheme}://{self.location}", theirs)

    def own_options(self, ours: type[Struct]) -> dict[str, Any]:
        """The options of deepfs in a URL that has those of a server as well. Raises ValueError."""
        return _convert_options(
            {name: value for name, value in self.options.items() if name in ours.__struct_fields__}, ours
        )


_Maker = Callable[[_Url], BackendProtocol]
"""Makes a backend. It runs in a worker thread, since it imports what the backend needs."""
_Opener = Callable[[_Url, AsyncExitStack], Awaitable[BackendProtocol]]
"""Opens what a backend rests on, to be closed with the stack."""


@asynccontextmanager
async def open_url(url: str, *, directory: str = "", creates: bool = True) -> AsyncIterator[BackendProtocol]:
    """Open the backend that a URL names, and close it at the end.

    Args:
        url: The URL, without a path in the backend; `deepfs.config.urls` lists the kinds.
        directory: The directory that relative paths in the URL start at; by default the current one.
        creates: Whether a database may be made where there is none.

    Yields:
        The backend.

    Raises:
        ValueError: The URL or an option cannot be used. No password is in its text.
        FileNotFoundError: There is no such file, and `creates` is False.
        ModuleNotFoundError: The backend needs an extra, which the text names.
    """
    parts = _parse(url, directory, creates)
    is_read_only = _convert_options({"read_only": parts.options.pop("read_only", "false")}, _CommonOptions)["read_only"]
    async with AsyncExitStack() as stack:
        if parts.scheme in _OPENERS:
            with _without_driver_texts():
                backend = await _OPENERS[parts.scheme](parts, stack)
        else:
            backend = await in_thread(partial(_MAKERS.get(parts.scheme, _fsspec), parts))
        stack.push_async_callback(backend.aclose)
        yield await in_thread(partial(_read_only, backend)) if is_read_only else backend


@contextmanager
def _without_driver_texts() -> Iterator[None]:
    """Replace unknown errors by one that tells the condition: a driver's text may quote the URL, with its password."""
    try:
        yield
    except (DeepFSError, ImportError, OSError, ValueError):
        raise
    except Exception as error:
        failure = failure_by(error, condition_of(error), "store", "The storage")
        log_failure(failure)
        raise failure from failure.__cause__


def _read_only(backend: BackendProtocol) -> BackendProtocol:
    from deepfs.policy.limits import ReadOnlyBackend

    return ReadOnlyBackend(backend)


def _parse(url: str, directory: str, creates: bool) -> _Url:
    scheme, mark, rest = url.partition("://")
    if not mark or not scheme:
        # The text is not shown: it may hold a password.
        raise ValueError("this is no URL: it has no '://'")
    location, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    return _Url(scheme.lower(), location, options, directory, creates)


class _CommonOptions(Struct, forbid_unknown_fields=True):
    read_only: bool = False


class _Options(Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a URL; those that are not given are left to the backend."""

    max_file_size_mb: int | None = None


class _DiskOptions(_Options):
    ignore: Literal["git"] | None = None
    durable: bool | None = None
    ripgrep: bool | None = None
    search_timeout: float | None = None


class _SqliteOptions(_Options):
    namespace: str = "files"
    durability: Literal["full", "normal"] | None = None
    max_scanned: int | None = None


class _PostgresOptions(_Options):
    namespace: str = "files"
    schema: str | None = None
    table: str | None = None
    row_level_security: bool | None = None
    max_scanned: int | None = None
    max_connections: int | None = None
    statement_cache_size: int | None = None


class _RedisOptions(_Options):
    namespace: str = "files"
    prefix: str | None = None
    expires_after: float | None = None
    max_connections: int | None = None


class _StoreOptions(_Options):
    namespace: str = "files"


class _ThreadOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    thread: str
    checkpoint: str | None = None


def _convert_options(options: Mapping[str, str], kind: type[Struct]) -> dict[str, Any]:
    """The options as keyword arguments, each of its type. Raises ValueError that names the wrong one."""
    known = ", ".join({**dict.fromkeys(kind.__struct_fields__), "read_only": None})
    for name, value in options.items():
        if name not in kind.__struct_fields__ and not value:  # As in `sqlite:///files.db/what?.md`.
            raise ValueError(f"what follows '?' in a URL are options ({known}); a path that has a '?' goes behind '#'")
    try:
        made = convert(dict(options), kind, strict=False)
    except ValidationError as error:
        raise ValueError(f"an option of the URL cannot be used: {error}. The options are {known}.") from None
    values = {name: getattr(made, name) for name in kind.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def _namespace(options: dict[str, Any]) -> tuple[str, ...]:
    """The namespace as a tuple: in a URL, slashes separate its names."""
    return tuple(options.pop("namespace").split("/"))


def _database_file(url: _Url) -> str:
    """The file of a database. Raises FileNotFoundError if it is missing and may not be made."""
    file = url.file()
    if not url.creates and not os.path.exists(file):
        absolute = "" if os.path.isabs(file) else "; the URL of an absolute path has four slashes"
        raise FileNotFoundError(f"there is no database {file!r}{absolute}")
    return file


def _disk(url: _Url) -> BackendProtocol:
    from deepfs.backends.filesystem import FilesystemBackend

    host, slash, path = url.location.partition("/")
    root = slash + path if host in ("", "localhost") else url.location
    return FilesystemBackend(os.path.join(url.directory, unquote(root)), **_convert_options(url.options, _DiskOptions))


def _memory(url: _Url) -> BackendProtocol:
    from deepfs.backends.memory import MemoryBackend

    return MemoryBackend(**_convert_options(url.options, _Options))


def _sqlite(url: _Url) -> BackendProtocol:
    from deepfs.backends.sqlite import SqliteBackend

    options = _convert_options(url.options, _SqliteOptions)
    return SqliteBackend(_database_file(url), _namespace(options), **options)


def _postgres(url: _Url) -> BackendProtocol:
    from deepfs.backends.postgres import PostgresBackend

    options = url.own_options(_PostgresOptions)
    return PostgresBackend(url.dsn(_PostgresOptions), _namespace(options), **options)


def _redis(url: _Url) -> BackendProtocol:
    from deepfs.backends.redis import RedisBackend

    options = url.own_options(_RedisOptions)
    return RedisBackend(url.dsn(_RedisOptions, url.scheme), _namespace(options), **options)


def _object_store(url: _Url) -> BackendProtocol:
    from deepfs.backends.object_store import ObjectStoreBackend

    options: dict[str, Any] = url.options
    return ObjectStoreBackend(f"{url.scheme}://{url.location}", **options)


def _fsspec(url: _Url) -> BackendProtocol:
    from deepfs.backends.fsspec import FsspecBackend

    options: dict[str, Any] = url.options
    try:
        return FsspecBackend(f"{url.scheme}://{url.location}", **options)
    except ModuleNotFoundError:
        raise
    except ImportError as error:  # fsspec says so that a filesystem needs a package.
        raise ModuleNotFoundError(f"URLs with {url.scheme}:// need a package more: {error}") from None


# --- what LangGraph stores -------------------------------------------------------------------------------------------


def _langgraph(module: str, name: str, package: str) -> Any:
    """A class of a package of LangGraph. Raises ModuleNotFoundError that says what to install."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this URL needs {package}: pip install {package}", name=error.name) from None


async def _open_langgraph(
    kind: Literal["store", "checkpoint"], url: _Url, stack: AsyncExitStack, ours: type[Struct]
) -> tuple[Any, dict[str, Any]]:
    """A store or saver of LangGraph over the database that the URL names, and the options of deepfs."""
    database = "sqlite" if url.scheme.endswith("sqlite") else "postgres"
    options = _convert_options(url.options, ours) if database == "sqlite" else url.own_options(ours)
    name = f"Async{database.capitalize()}{'Store' if kind == 'store' else 'Saver'}"
    module = f"langgraph.{kind}.{database}.aio"
    found = await in_thread(partial(_langgraph, module, name, f"langgraph-checkpoint-{database}"))
    place = await in_thread(partial(_database_file, url)) if database == "sqlite" else url.dsn(ours)
    opened = await stack.enter_async_context(found.from_conn_string(place))
    if kind == "checkpoint":
        opened.serde = await in_thread(inert_serializer)
    return opened, options


def inert_serializer() -> Any:
    """A serializer of checkpoints that makes messages and plain values only.

    LangGraph's default calls whatever function a checkpoint names, so that who may write the database could run code.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer(allowed_msgpack_modules=None)


async def _store(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    store, options = await _open_langgraph("store", url, stack, _StoreOptions)
    await store.setup()
    return await in_thread(partial(_store_backend, store, options))


def _store_backend(store: Any, options: dict[str, Any]) -> BackendProtocol:
    from deepfs.backends.store import StoreBackend

    return StoreBackend(store, namespace=_namespace(options), **options)


async def _thread(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    """The files in the state of a thread. They are read-only: a change would be one of the graph, which is not here."""
    saver, options = await _open_langgraph("checkpoint", url._replace(creates=False), stack, _ThreadOptions)
    graph = await in_thread(partial(_graph_of_files, saver))
    configurable = {"thread_id": options["thread"]}
    if "checkpoint" in options:
        configurable["checkpoint_id"] = options["checkpoint"]
    state = await graph.aget_state({"configurable": configurable})
    if not state.values:
        raise FileNotFoundError(f"there is no thread {options['thread']!r} in this database")
    return await in_thread(partial(_files_of, state.values))


def _graph_of_files(saver: Any) -> Any:
    """A graph whose state has files, by which the state of another graph can be read from its checkpoints."""
    from langgraph.graph import START, StateGraph

    from deepfs.backends.state import FilesystemState

    graph = StateGraph(FilesystemState)
    graph.add_node("files", lambda state: {})
    graph.add_edge(START, "files")
    return graph.compile(checkpointer=saver)


def _files_of(state: Mapping[str, Any]) -> BackendProtocol:
    from deepfs.backends.memory import MemoryBackend

    return _read_only(MemoryBackend(files=state.get("files") or {}))


_MAKERS: Final[Mapping[str, _Maker]] = {
    "file": _disk,
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgresql": _postgres,
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
    **dict.fromkeys(_OBJECT_STORES, _object_store),
}
_OPENERS: Final[Mapping[str, _Opener]] = {
    **dict.fromkeys(("store+sqlite", "store+postgres", "store+postgresql"), _store),
    **dict.fromkeys(("checkpoint+sqlite", "checkpoint+postgres", "checkpoint+postgresql"), _thread),
}
