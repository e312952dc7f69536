"""Why a storage failed: the code and the phrase of each condition, what the driver said as the cause, and one log line.

The secret of every storage is a marker that must be nowhere.
"""

import gc
import logging
import pickle
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from weakref import ref

import anyio
import anyio.to_thread
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FsspecBackend,
    MemoryBackend,
    PostgresBackend,
    S3Backend,
    SqliteBackend,
    StoreBackend,
)
from deepfs._drivers import redact
from deepfs.backends.flat import StorageBackend
from deepfs.backends.object_store import ObjectStoreBackend
from deepfs.errors import BackendError, DeepFSError, clip
from deepfs.policy import ReadOnlyBackend
from deepfs.storage.runners import RetryPolicy
from deepfs.types import DeleteResult, error_from, failure
from support.cutting_proxy import proxied
from support.http_proxy import Fault, HttpProxy, one_proxy, proxy
from support.object_stores import S3Server
from support.postgres import PostgresServer
from support.postgres_files import sql
from support.promises import keeps

__all__ = ["one_proxy", "proxy"]

pytestmark = pytest.mark.anyio

MARKER = "M4rk3r/of+a=s3cr3t"
QUOTED = quote(MARKER, safe="")
KEYS: dict[str, Any] = {
    "region": "us-east-1", "access_key_id": "id", "secret_access_key": MARKER, "session_token": MARKER,
}  # fmt: skip
QUICK = RetryPolicy(attempts=2, first_delay=0.001, timeout=20)
IMPATIENT = RetryPolicy(attempts=2, first_delay=0.001, timeout=0.2)
ECHO = (
    f"<Error><Code>InvalidAccessKeyId</Code><Token-0>{MARKER}</Token-0><CanonicalRequest>GET\n/b?x={MARKER}\n"
    f"x-amz-security-token:{MARKER}</CanonicalRequest></Error>"
).encode()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class Servers(NamedTuple):
    """What a test can reach; `closed` is a port where nobody listens, `silent` one where nobody answers."""

    closed: int
    silent: int
    s3: S3Server
    proxy: HttpProxy
    postgres: PostgresServer
    postgres_port: int
    directory: Path

    def s3_at(self, url: str, bucket: str = "bucket", **options: Any) -> S3Backend:
        return S3Backend(bucket, endpoint_url=url, **{"retries": QUICK, **KEYS, **options})

    def s3_answers(self, status: int, body: bytes) -> S3Backend:
        self.proxy.fault = lambda request: Fault(reaches=False, status=status, body=body)
        return self.s3_at(self.proxy.url)

    def postgres_at(self, address: str, query: str = "sslmode=disable", retries: RetryPolicy = QUICK) -> Any:
        # asyncpg leaves the error of a connection that is cancelled in its TLS handshake to the event loop, so that
        # requests at once would fail the test: the first error cancels the others.
        return PostgresBackend(f"postgresql://{address}?{query}", "t", retries=retries, max_connections=1)

    def local(self, database: str, user: str = "postgres") -> Any:
        return self.postgres_at(f"{user}:{QUOTED}@/{database}", f"host={self.postgres.directory}")


@pytest.fixture
async def servers(
    s3_server: S3Server, proxy: HttpProxy, postgres_server: PostgresServer, tmp_path: Path
) -> AsyncIterator[Servers]:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with proxied(postgres_server.directory / ".s.PGSQL.5432") as postgres:
            ports = closed.getsockname()[1], silent.getsockname()[1]
            yield Servers(*ports, s3_server, proxy, postgres_server, postgres.port, tmp_path)


class Expected(NamedTuple):
    make: Callable[[Servers], StorageBackend]
    code: str
    text: str
    cause: str
    log: str = "object_store"


class _LostStore(InMemoryStore):
    """A store of somebody else, whose errors quote its address."""

    async def abatch(self, ops: Any) -> Any:
        raise ConnectionRefusedError(f"no answer from postgresql://user:{MARKER}@host/x?sslpassword={MARKER}")


def _text_file(directory: Path) -> str:
    (directory / "text").write_text("no database " * 100)
    return str(directory / "text")


CONDITIONS = {
    "S3 refused": Expected(
        lambda at: at.s3_at(f"http://user:{QUOTED}@127.0.0.1:{at.closed}"),
        "backend_error", "The object store failed: connection refused", "GenericError",
    ),
    "S3 unresolved": Expected(
        lambda at: at.s3_at("https://no-such-host.invalid"),
        "backend_error", "The object store failed: host name not resolved", "GenericError",
    ),
    "S3 plain http": Expected(
        lambda at: ObjectStoreBackend("s3://bucket", endpoint=at.s3.url, retries=QUICK, **KEYS),
        "backend_error", "The object store failed: plain http:// needs allow_http=True", "GenericError",
    ),
    "S3 TLS": Expected(
        lambda at: at.s3_at(at.s3.url.replace("http:", "https:")),
        "backend_error", "The object store failed: TLS failed", "GenericError",
    ),
    "S3 timeout": Expected(
        lambda at: at.s3_at(f"http://127.0.0.1:{at.silent}", retries=IMPATIENT),
        "timeout", "The object store failed: timed out", "TimeoutError",
    ),
    "S3 bucket": Expected(
        lambda at: at.s3_at(at.s3.url, "no-such-bucket"),
        "backend_error", "The object store failed: no such bucket", "GenericError",
    ),
    "S3 keys": Expected(
        lambda at: at.s3_answers(403, ECHO),
        "backend_error", "The object store failed: wrong credentials", "GenericError",
    ),
    "S3 forbidden": Expected(
        lambda at: at.s3_answers(403, f"<Code>AccessDenied</Code> Authorization: {MARKER}".encode()),
        "permission_denied", "Permission denied for '/': the object store refused access", "GenericError",
    ),
    "S3 gateway": Expected(
        lambda at: at.s3_answers(404, b"404 Not Found: gateway"),
        "backend_error", "The object store failed (404)", "GenericError",
    ),
    "Postgres refused": Expected(
        lambda at: at.postgres_at(f"u:{QUOTED}@127.0.0.1:{at.closed}/x"),
        "backend_error", "The database failed: connection refused", "ConnectionRefusedError", "postgres",
    ),
    "Postgres socket": Expected(
        lambda at: at.postgres_at("u@/x", f"host={at.directory}"),
        "backend_error", "The database failed: connection refused", "FileNotFoundError", "postgres",
    ),
    "Postgres TLS": Expected(
        lambda at: at.postgres_at(f"postgres@127.0.0.1:{at.postgres_port}/postgres", "sslmode=require"),
        "backend_error", "The database failed: TLS failed", "ConnectionError", "postgres",
    ),
    "Postgres timeout": Expected(
        lambda at: at.postgres_at(f"postgres@127.0.0.1:{at.silent}/postgres", retries=IMPATIENT),
        "timeout", "The database failed: timed out", "TimeoutError", "postgres",
    ),
    "Postgres database": Expected(
        lambda at: at.local("no_such_database"),
        "backend_error", "The database failed: no such database", "InvalidCatalogNameError", "postgres",
    ),
    "Postgres password": Expected(
        lambda at: at.local("postgres", "with_password"),
        "backend_error", "The database failed: wrong credentials", "InvalidPasswordError", "postgres",
    ),
    "fsspec refused": Expected(
        lambda at: FsspecBackend(f"ftp://user:{QUOTED}@127.0.0.1:{at.closed}/x", retries=QUICK),
        "backend_error", "The filesystem failed: connection refused", "ConnectionRefusedError", "fsspec",
    ),
    "store": Expected(
        lambda at: StoreBackend(_LostStore(), namespace=("t",)),
        "backend_error", "The store failed: connection refused", "ConnectionRefusedError", "store",
    ),
    "SQLite": Expected(
        lambda at: SqliteBackend(_text_file(at.directory), "t"),
        "backend_error", "The file is not a SQLite database", "DatabaseError", "sqlite",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def _password_needed(postgres_server: PostgresServer) -> None:
    """Let the server ask the role `with_password` for a password."""
    rules = postgres_server.directory / "data" / "pg_hba.conf"
    rules.write_text(f"local all with_password scram-sha-256\n{rules.read_text()}")
    sql(postgres_server.dsn(), "CREATE ROLE with_password LOGIN PASSWORD 'another'")
    sql(postgres_server.dsn(), "SELECT pg_reload_conf()")


@pytest.fixture(autouse=True)
def _finalized() -> Iterator[None]:
    """Run the finalizers of filesystems here: they block."""
    yield
    gc.collect()


def _lines(log: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    lines = [(record.name, record.levelno) for record in log.records if record.name.startswith("deepfs")]
    log.clear()
    return lines


def _parts_of_marker(text: str) -> list[str]:
    return [part for part in ("M4rk3r", "of+a", "of%2B", "s3cr3t") if part in text]


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.usefixtures("_password_needed")
async def test_each_condition_is_told(servers: Servers, name: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = CONDITIONS[name]
    backend = await anyio.to_thread.run_sync(expected.make, servers)
    tree = CompositeBackend(MemoryBackend(), {"/in": ReadOnlyBackend(ReadOnlyBackend(backend))})
    once = [(f"deepfs.{expected.log}", logging.WARNING)]

    listed = await backend.als("/")
    assert (listed.code, listed.error) == (expected.code, f"Error: {expected.text}")
    said = caplog.text
    assert _lines(caplog) == once
    with pytest.raises(DeepFSError) as raised:
        listed.unwrap()
    cause = raised.value.__cause__
    assert cause is not None
    assert type(cause).__name__ == expected.cause
    assert str(cause) in said
    assert (cause.__traceback__, cause.__cause__, cause.__context__) == (None, None, None)

    shown = [said, repr(listed), *traceback.format_exception(raised.value), repr(backend)]
    for failing in (backend.aread("/a"), tree.aread("/in/a"), backend.awrite("/a", "x"), tree.als("/in")):
        result = await failing
        assert not result.ok
        assert error_from(result).__cause__ is not None
        shown += [caplog.text, repr(result), repr(error_from(result).__cause__)]
        assert _lines(caplog) == once
    for batch in ("upload", "download"):
        if batch == "upload":
            outcomes: Any = await backend.aupload_files([("/a", b"x"), ("/b", b"\xff")])
        else:
            outcomes = await tree.adownload_files(["/in/a", "/in/b", "/in/c"])
        for outcome in outcomes:
            with pytest.raises(DeepFSError) as raised:
                outcome.unwrap()
            assert raised.value.__cause__ is not None
            shown += [repr(outcome), *traceback.format_exception(raised.value)]
        shown.append(caplog.text)
        assert _lines(caplog) == once
    with pytest.raises(DeepFSError) as raised:
        await anext(tree.adownload_stream("/in/a"))
    assert raised.value.__cause__ is not None
    shown += [caplog.text, *traceback.format_exception(raised.value)]
    assert _lines(caplog) == once

    assert _parts_of_marker("".join(shown)) == []
    assert pickle.loads(pickle.dumps(listed)) == listed
    await tree.aclose()


async def test_a_statement_that_takes_too_long_is_a_timeout(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    async with PostgresBackend(postgres_dsn, "t") as backend:
        assert (await backend.awrite("/a", "x")).ok

    def hold() -> Any:
        connection = psycopg.connect(postgres_dsn)
        connection.execute("LOCK deepfs.files")
        return connection

    connection = await anyio.to_thread.run_sync(hold)
    async with PostgresBackend(f"{postgres_dsn}&statement_timeout=300", "t") as backend:
        read = await backend.aread("/a")
        assert (read.code, read.error) == ("timeout", "Error: The database failed: timed out")
        assert type(error_from(read).__cause__).__name__ == "QueryCanceledError"
    assert _lines(caplog) == [("deepfs.postgres", logging.WARNING)]
    await anyio.to_thread.run_sync(connection.close)


async def test_ordinary_answers_are_not_logged(s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    backend = s3_server.backend(s3_server.prefix())
    assert (await backend.aread("/none")).code == "file_not_found"
    assert (await backend.awrite("/a", "x")).ok
    assert (await backend.awrite("/a", "x")).code == "already_exists"
    assert (await backend.awrite("/a", "x", if_match="other")).code == "conflict"
    assert (await ReadOnlyBackend(backend).awrite("/a", "x")).code == "permission_denied"
    assert _lines(caplog) == []


async def test_one_object_that_is_refused_is_logged_once_for_a_batch(
    s3_server: S3Server, proxy: HttpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    backend = s3_server.backend(s3_server.prefix(), endpoint_url=proxy.url, retries=QUICK)
    names = [f"/{number}" for number in range(3)]
    assert {each.error for each in await backend.aupload_files([(name, b"x\n") for name in names])} == {None}
    proxy.fault = lambda request: Fault(status=403) if request.target.endswith(("/1", "/2")) else None
    assert [each.error for each in await backend.adownload_files(names)] == [None, *["permission_denied"] * 2]
    assert _lines(caplog) == [("deepfs.object_store", logging.WARNING)]


def test_a_kept_result_keeps_nothing_alive() -> None:
    class Connection:
        pass

    class DriverError(Exception):
        def __init__(self, text: str, connection: Connection) -> None:
            super().__init__(text)
            self.connection = connection

    class Lost(MemoryBackend):
        def delete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
            from deepfs._drivers import failure_by

            connection = Connection()
            used.append(ref(connection))
            error = failure_by(DriverError("lost", connection), None, "storage", "The storage", path)
            return failure(DeleteResult, error)

    used: list[ref[Connection]] = []
    result = Lost().delete("/a")
    gc.collect()
    assert used[0]() is None
    with pytest.raises(BackendError) as raised:
        result.unwrap()
    assert repr(raised.value.__cause__) == "DriverError('DriverError: lost')"


SECRETS = [
    "postgresql://user:{}@host/db failed",
    "GET https://host/bucket/key?X-Amz-Signature={}&x=1 failed",
    "GET /bucket/key?sig={} failed",
    "Authorization: AWS4-HMAC-SHA256 Credential=AK/x, Signature={}",
    "headers: {{'authorization': 'Bearer {}', 'host': 'x'}}",
    "Proxy-Authorization: Basic {}",
    "password={} host=h",
    "host=h password='a {} b' port=1",
    "-----BEGIN PRIVATE KEY----- {}",
    '{{\\"token\\": \\"{}\\"}}',
    '{{"secret_access_key": "{}", "region": "r"}}',
    "session_token='{}'",
    "x-amz-security-token: {}",
    "<Token-0>{}</Token-0><Message>expired</Message>",
    "<StringToSign>a\nb{}</StringToSign>",
    "<CanonicalRequest>cut {}",
    "AccountKey={};EndpointSuffix=core",
    "api-key: {}",
    "user=u pass={} db=d",
    "duplicate key value\nDETAIL:  Key (path)=({}) already exists.",
]


@keeps("What the driver of a storage said is in no text", "keys and tokens by their names are removed")
@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_removed_from_what_drivers_say(text: str) -> None:
    assert _parts_of_marker(redact(text.format(MARKER))) == []


def test_what_drivers_say_stays_readable() -> None:
    for text in (
        'database "x" does not exist',
        'password authentication failed for user "u"',
        "Connect call failed ('127.0.0.1', 1)",
        "Error detail: the bucket is being moved",
        "<Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message>",
    ):
        assert redact(text) == text
    assert redact("one\n  two\x1b\ud800") == "one two\x1b\\ud800"
    assert len(redact("https://a@" * 100_000)) <= 2001
    assert redact("no such key AKIAIOSFODNN7EXAMPLE here") == "no such key AKIA… here"
    assert redact("word " * 799 + "password=secret") == clip("word " * 799, 2000)  # No part of a word that is cut.
