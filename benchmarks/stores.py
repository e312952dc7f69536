"""LangGraph stores to measure with; a PostgreSQL server is started for the one that needs it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Literal, NamedTuple

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from benchmarks import inputs, servers

__all__ = ["STORES", "Kind", "Opened", "postgres_store"]

Kind = Literal["InMemoryStore", "AsyncSqliteStore", "AsyncPostgresStore"]


class Opened(NamedTuple):
    """An empty store, and its address for another process: a file, or the directory of a socket."""

    store: BaseStore
    address: str


@asynccontextmanager
async def _memory_store() -> AsyncIterator[Opened]:
    yield Opened(InMemoryStore(), "")


@asynccontextmanager
async def _sqlite_store() -> AsyncIterator[Opened]:
    with inputs.scratch() as directory:
        file = str(directory / "store.db")
        async with AsyncSqliteStore.from_conn_string(file) as store:
            await store.setup()
            # As with the PostgreSQL server, the data need not survive a crash: the disk is not measured.
            await store.conn.execute("PRAGMA synchronous = OFF")
            yield Opened(store, file)


@asynccontextmanager
async def postgres_store() -> AsyncIterator[Opened]:
    """A store in a PostgreSQL server of its own."""
    with servers.of_the_tests("postgres").running_server() as server:
        async with AsyncPostgresStore.from_conn_string(server.dsn()) as store:
            await store.setup()
            yield Opened(store, str(server.directory))


STORES: Final[dict[Kind, Callable[[], AbstractAsyncContextManager[Opened]]]] = {
    "InMemoryStore": _memory_store,
    "AsyncSqliteStore": _sqlite_store,
    "AsyncPostgresStore": postgres_store,
}
"""Functions that open a store, by kind."""
