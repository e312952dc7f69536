"""LangGraph stores over real databases. Each is bound to the asyncio loop that it was opened on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from support.postgres import PostgresServer

__all__ = ["open_postgres_store", "open_sqlite_store", "postgres_store_template"]


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator[AsyncSqliteStore]:
    """A store in the SQLite file at `path`."""
    async with AsyncSqliteStore.from_conn_string(str(path)) as store:
        await store.setup()
        yield store


@contextmanager
def postgres_store_template(server: PostgresServer) -> Iterator[str]:
    """The name of a database with the store's tables, to copy instead of running the store's migrations again."""
    with server.database() as name:
        with PostgresStore.from_conn_string(server.dsn(name)) as store:
            store.setup()
        yield name


@asynccontextmanager
async def open_postgres_store(dsn: str) -> AsyncIterator[AsyncPostgresStore]:
    """A store in a database that has its tables already, with a pool, so that tasks do not queue for one connection."""
    async with AsyncPostgresStore.from_conn_string(dsn, pool_config={"min_size": 1, "max_size": 4}) as store:
        yield store
