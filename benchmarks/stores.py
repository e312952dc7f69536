"""LangGraph stores and servers to measure with, started for one scenario and stopped at its end."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from deepagents.backends import StoreBackend as PeerStore
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from benchmarks import inputs
from deepfs.backends import StoreBackend

_TESTS: Final = Path(__file__).parents[1] / "tests"
_STAMPS: Final = {"created_at": "2026-01-01T00:00:00+00:00", "modified_at": "2026-01-01T00:00:00+00:00"}

Places: TypeAlias = Callable[[], AbstractContextManager[str]]
"""Makes an empty place for files, as a text that another process can open."""


def _of_the_tests(module: str) -> Any:
    """A module of the tests that starts a server."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    return import_module(f"support.{module}")


@contextmanager
def postgres() -> Iterator[Places]:
    """A PostgreSQL server; a place is the DSN of a new database."""
    with _of_the_tests("postgres").running_server() as server:

        @contextmanager
        def place() -> Iterator[str]:
            with server.database() as name:
                yield server.dsn(name)

        yield place


@contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis server."""
    with _of_the_tests("redis_server").running_redis() as server:
        yield server.url


@contextmanager
def s3() -> Iterator[Places]:
    """An S3 server (moto) in a process of its own; a place is the arguments of `S3Backend`, as JSON."""
    module = _of_the_tests("object_stores")
    with module.running_s3() as server:

        @contextmanager
        def place() -> Iterator[str]:
            arguments = {"bucket": module.BUCKET, "prefix": server.prefix(), "endpoint_url": server.url}
            yield json.dumps({**arguments, **server.options()})

        yield place


_SLOW_S3: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from support.object_server import running_object_server
with running_object_server() as server:
    server.delay = float(sys.argv[2])
    print(server.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def slow_s3(delay: float) -> Iterator[dict[str, str]]:
    """A small S3 server that answers after `delay` seconds; yields the arguments of `S3Backend`."""
    command = [sys.executable, "-c", _SLOW_S3, str(_TESTS), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        keys = {"region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret"}
        yield {"bucket": "bucket", "endpoint_url": url, **keys}


@asynccontextmanager
async def _memory_store() -> AsyncIterator[BaseStore]:
    yield InMemoryStore()


@asynccontextmanager
async def sqlite_store() -> AsyncIterator[BaseStore]:
    with inputs.scratch() as directory:
        async with AsyncSqliteStore.from_conn_string(str(directory / "store.db")) as store:
            await store.setup()
            # As with the PostgreSQL server, the data need not survive a crash: the disk is not measured.
            await store.conn.execute("PRAGMA synchronous = OFF")
            yield store


@asynccontextmanager
async def postgres_store() -> AsyncIterator[BaseStore]:
    with postgres() as places, places() as dsn:
        async with AsyncPostgresStore.from_conn_string(dsn) as store:
            await store.setup()
            yield store


STORES: Final[dict[str, Callable[[], AbstractAsyncContextManager[BaseStore]]]] = {
    "InMemoryStore": _memory_store,
    "AsyncSqliteStore": sqlite_store,
    "AsyncPostgresStore": postgres_store,
}


def file_data(text: str) -> dict[str, Any]:
    """The value of a file in a store, or in the state of a graph."""
    return {"content": text, "encoding": "utf-8", **_STAMPS}


def put_op(namespace: tuple[str, ...], path: str, text: str) -> PutOp:
    return PutOp(namespace, path, file_data(text))


def backends(store: BaseStore, namespace: tuple[str, ...]) -> tuple[StoreBackend, PeerStore]:
    return StoreBackend(store, namespace=namespace), PeerStore(store=store, namespace=lambda _: namespace)
