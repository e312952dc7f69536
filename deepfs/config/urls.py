"""The backends that URLs name."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from anyio import Path
from msgspec import Struct, ValidationError, convert

from deepfs.backends.protocol import BackendProtocol
from deepfs.config.addresses import with_options

__all__ = ["open_url"]

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

    def database(self) -> str:
        """The URL of a PostgreSQL server, with the options that are its own."""
        return f"postgresql://{self.location}"


_Opener = Callable[[_Url, AsyncExitStack], Awaitable[BackendProtocol]]


@asynccontextmanager
async def open_url(url: str, *, directory: str = "", creates: bool = True) -> AsyncIterator[BackendProtocol]:
    """Open the backend that a URL names, and close it at the end.

    Args:
        url: The URL, without a path in the backend; `deepfs.config.addresses` lists the kinds.
        directory: The directory that relative paths in the URL start at; by default the current one.
        creates: Whether a database may be made where there is none.

    Yields:
        The backend.

    Raises:
        ValueError: The URL or an option cannot be used. No password is in its text.
        FileNotFoundError: There is no such file, and `creates` is False.
        ModuleNotFoundError: The backend needs an extra, which the text names.
    """
    parts = _parsed(url, directory, creates)
    is_read_only = convert(parts.options.pop("read_only", "false"), bool, strict=False)
    async with AsyncExitStack() as stack:
        backend = await _OPENERS.get(parts.scheme, _fsspec)(parts, stack)
        stack.push_async_callback(backend.aclose)
        yield _read_only(backend) if is_read_only else backend


def _read_only(backend: BackendProtocol) -> BackendProtocol:
    from deepfs.policy.read_only import ReadOnlyBackend

    return ReadOnlyBackend(backend)


def _parsed(url: str, directory: str, creates: bool) -> _Url:
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ValueError(f"{url!r} is no URL: it has no '://'")
    location, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    return _Url(scheme.lower(), location, options, directory, creates)


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


class _StoreOptions(_Options):
    namespace: str = "files"


class _ThreadOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    thread: str
    checkpoint: str | None = None


def _given(options: Mapping[str, str], kind: type[Struct]) -> dict[str, Any]:
    """The options as keyword arguments, each of its type. Raises ValueError that names the wrong one."""
    try:
        made = convert(dict(options), kind, strict=False)
    except ValidationError as error:
        known = ", ".join([*kind.__struct_fields__, "read_only"])
        raise ValueError(f"an option of the URL cannot be used: {error}. The options are {known}.") from None
    values = {name: getattr(made, name) for name in kind.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def _namespace(options: dict[str, Any]) -> tuple[str, ...]:
    """The namespace as a tuple: in a URL, slashes separate its names."""
    return tuple(options.pop("namespace").split("/"))


async def _check_file(url: _Url) -> str:
    """The file of a database. Raises FileNotFoundError if it is missing and may not be made."""
    file = url.file()
    if not url.creates and not await Path(file).exists():
        absolute = "" if os.path.isabs(file) else "; the URL of an absolute path has four slashes"
        raise FileNotFoundError(f"there is no database {file!r}{absolute}")
    return file


async def _disk(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.filesystem import FilesystemBackend

    host, slash, path = url.location.partition("/")
    root = slash + path if host in ("", "localhost") else url.location
    return FilesystemBackend(os.path.join(url.directory, unquote(root)), **_given(url.options, _DiskOptions))


async def _memory(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.memory import MemoryBackend

    return MemoryBackend(**_given(url.options, _Options))


async def _sqlite(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.sqlite import SqliteBackend

    options = _given(url.options, _SqliteOptions)
    return SqliteBackend(await _check_file(url), _namespace(options), **options)


async def _postgres(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.postgres import PostgresBackend

    own = {name: value for name, value in url.options.items() if name in _PostgresOptions.__struct_fields__}
    rest = {name: value for name, value in url.options.items() if name not in own}
    options = _given(own, _PostgresOptions)
    return PostgresBackend(with_options(url.database(), rest), _namespace(options), **options)


async def _object_store(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.object_store import ObjectStoreBackend

    options: dict[str, Any] = dict(url.options)
    client = {name: options.pop(name) for name in _CLIENT_OPTIONS if name in options}
    if client:
        options["client_options"] = client
    return ObjectStoreBackend(f"{url.scheme}://{url.location}", **options)


_CLIENT_OPTIONS: Final = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout")
"""What the driver calls options of the client, not of the store."""


async def _fsspec(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.fsspec import FsspecBackend

    options: dict[str, Any] = url.options
    return FsspecBackend(f"{url.scheme}://{url.location}", **options)


# --- what LangGraph stores -------------------------------------------------------------------------------------------


def _missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"this URL needs {package}: pip install {package}", name=error.name)


async def _store_in_sqlite(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.store import StoreBackend

    try:
        from langgraph.store.sqlite.aio import AsyncSqliteStore
    except ModuleNotFoundError as error:
        raise _missing("langgraph-checkpoint-sqlite", error) from None
    options = _given(url.options, _StoreOptions)
    store = await stack.enter_async_context(AsyncSqliteStore.from_conn_string(await _check_file(url)))
    await store.setup()
    return StoreBackend(store, namespace=_namespace(options), **options)


async def _store_in_postgres(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    from deepfs.backends.store import StoreBackend

    try:
        from langgraph.store.postgres.aio import AsyncPostgresStore
    except ModuleNotFoundError as error:
        raise _missing("langgraph-checkpoint-postgres", error) from None
    own = {name: value for name, value in url.options.items() if name in _StoreOptions.__struct_fields__}
    rest = {name: value for name, value in url.options.items() if name not in own}
    options = _given(own, _StoreOptions)
    store = await stack.enter_async_context(AsyncPostgresStore.from_conn_string(with_options(url.database(), rest)))
    return StoreBackend(store, namespace=_namespace(options), **options)


async def _thread_in_sqlite(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ModuleNotFoundError as error:
        raise _missing("langgraph-checkpoint-sqlite", error) from None
    file = await _check_file(url._replace(creates=False))
    saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(file))
    return await _files_of_thread(saver, _given(url.options, _ThreadOptions))


async def _thread_in_postgres(url: _Url, stack: AsyncExitStack) -> BackendProtocol:
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    except ModuleNotFoundError as error:
        raise _missing("langgraph-checkpoint-postgres", error) from None
    own = {name: value for name, value in url.options.items() if name in _ThreadOptions.__struct_fields__}
    rest = {name: value for name, value in url.options.items() if name not in own}
    options = _given(own, _ThreadOptions)
    saver = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(with_options(url.database(), rest)))
    return await _files_of_thread(saver, options)


async def _files_of_thread(saver: Any, options: Mapping[str, str]) -> BackendProtocol:
    """The files in the state of a thread. They are read-only: a change would be one of the graph, which is not here."""
    from langgraph.graph import START, StateGraph

    from deepfs.backends.memory import MemoryBackend
    from deepfs.backends.state import FilesystemState

    graph = StateGraph(FilesystemState)
    graph.add_node("files", lambda state: {})
    graph.add_edge(START, "files")
    configurable = {"thread_id": options["thread"]}
    if "checkpoint" in options:
        configurable["checkpoint_id"] = options["checkpoint"]
    state = await graph.compile(checkpointer=saver).aget_state({"configurable": configurable})
    if not state.values:
        raise FileNotFoundError(f"there is no thread {options['thread']!r} in this database")
    return _read_only(MemoryBackend(files=state.values.get("files") or {}))


_OPENERS: Final[Mapping[str, _Opener]] = {
    "file": _disk,
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgresql": _postgres,
    **dict.fromkeys(_OBJECT_STORES, _object_store),
    "store+sqlite": _store_in_sqlite,
    "store+postgres": _store_in_postgres,
    "store+postgresql": _store_in_postgres,
    "checkpoint+sqlite": _thread_in_sqlite,
    "checkpoint+postgres": _thread_in_postgres,
    "checkpoint+postgresql": _thread_in_postgres,
}
