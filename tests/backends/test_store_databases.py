"""Stores over one database: several objects in a process, and several processes, lose no edit."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import aiosqlite
import anyio
import pytest
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from deepfs._langgraph.private import writes_plainly
from deepfs.backends.store import StoreBackend, change_items
from deepfs.backends.store.tables import Put, identify, put_if_unchanged, storage_of
from deepfs.errors import BackendError
from deepfs.testing.suite import gather
from deepfs.text.flat_tree import ChangedError
from support.files import stored
from support.processes import printed_at_once

pytestmark = pytest.mark.anyio

SPACE = ("tenant", "files")
EDITS = 50
PROCESSES = 4


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class Opener:
    """Opens stores over one database."""

    def __init__(self, stores: ModuleType, kind: str, where: str, stack: AsyncExitStack) -> None:
        self.stores, self.kind, self.where, self.stack = stores, kind, where, stack

    async def open(self) -> Any:
        if self.kind == "sqlite":
            return await self.stack.enter_async_context(self.stores.open_sqlite_store(Path(self.where)))
        if self.kind == "postgres pool":
            return await self.stack.enter_async_context(self.stores.open_postgres_store(self.where))
        return await self.stack.enter_async_context(AsyncPostgresStore.from_conn_string(self.where))


@pytest.fixture(params=["sqlite", "postgres pool", "postgres connection"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def where(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """The address of an empty database."""
    return str(tmp_path / "store.db") if kind == "sqlite" else request.getfixturevalue("_postgres_store_dsn")


@pytest.fixture
async def opener(_stores: ModuleType, kind: str, where: str) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:
        yield Opener(_stores, kind, where, stack)


def over(store: BaseStore) -> StoreBackend:
    return StoreBackend(store, namespace=SPACE)


async def text_in(store: BaseStore, path: str) -> str:
    item = await store.aget(SPACE, path)
    assert item is not None
    return str(item.value["content"])


def numbers(count: int) -> bytes:
    return "".join(f"<{number}>\n" for number in range(count)).encode()


async def test_two_store_objects_over_one_database_share_locks_and_caches(opener: Opener) -> None:
    stores = [await opener.open(), await opener.open()]
    for store in stores:
        await identify(store)
    assert storage_of(stores[0]) is storage_of(stores[1])
    first, second = over(stores[0]), over(stores[1])
    assert (await first.awrite("/new", "x")).ok  # Lists the namespace, and both backends share this cache.
    assert (await second.awrite("/dir/a.txt", "x")).ok
    assert (await first.awrite("/dir", "no file")).code == "is_directory"
    async with first._hold("/dir"):
        with anyio.move_on_after(0.1) as scope:
            await second.awrite("/dir/a.txt", "y", overwrite=True)
        assert scope.cancelled_caught


async def test_another_database_is_another_storage(tmp_path: Path) -> None:
    names = [str(tmp_path / "a.db"), str(tmp_path / "b.db"), ":memory:", ":memory:"]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(AsyncSqliteStore.from_conn_string(name)) for name in names]
        for store in stores:
            await identify(store)
        assert len({id(storage_of(store)) for store in [*stores, InMemoryStore()]}) == 5
        same = AsyncSqliteStore(stores[2].conn)
        await identify(same)
        assert storage_of(same) is storage_of(stores[2])


async def test_rows_are_written_as_the_store_writes_them(opener: Opener) -> None:
    """Compare the rows column by column; of times only whether they are equal and which ones a change updates."""
    store = await opener.open()
    assert writes_plainly(store)
    record = {"content": "é\n\u2028😀 \\ \" % %s ' ", "encoding": "utf-8", "created_at": "c", "modified_at": "m"}
    await store.aput(SPACE, "/by-store", record)
    backend = over(store)
    assert (await backend.awrite("/by-backend", record["content"])).ok
    before = await rows_of(store)
    assert shape(before["/by-store"], record) == shape(before["/by-backend"], record)
    await anyio.sleep(1.1)  # SQLite stores times in whole seconds.
    await store.aput(SPACE, "/by-store", {**record, "content": "2"})
    assert (await backend.aedit("/by-backend", record["content"], "2")).ok
    after = await rows_of(store)
    changed = {**record, "content": "2"}
    assert shape(after["/by-store"], changed) == shape(after["/by-backend"], changed)
    kept = {path: before[path]["created_at"] == after[path]["created_at"] for path in after}
    assert kept["/by-store"] == kept["/by-backend"]


COLUMNS = ("key", "prefix", "value", "created_at", "updated_at", "expires_at", "ttl_minutes")


async def rows_of(store: Any) -> dict[str, dict[str, Any]]:
    """The rows of the table by key. A new column of LangGraph fails here, because deepfs would not write it."""
    async with store._cursor() as cursor:
        await cursor.execute("SELECT * FROM store")
        assert {column[0] for column in cursor.description} == set(COLUMNS)
        await cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM store")
        rows = [tuple(row.values()) if isinstance(row, dict) else row for row in await cursor.fetchall()]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows}


def shape(row: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Check the record of a row; return how the row is stored, with its times replaced by types or placeholders."""
    found = row["value"] if isinstance(row["value"], dict) else json.loads(row["value"])
    stamps = {name: found[name] for name in ("created_at", "modified_at")}
    assert {**found, **{name: record[name] for name in stamps}} == record
    text = "" if isinstance(row["value"], dict) else row["value"]
    for stamp in stamps.values():
        text = text.replace(f'"{stamp}"'.encode(), b"TIME") if isinstance(text, bytes) else text.replace(stamp, "TIME")
    times = {name: type(row[name]) for name in ("created_at", "updated_at")}
    return {**times, "text": text, **{name: row[name] for name in ("prefix", "expires_at", "ttl_minutes")}}


async def test_of_several_concurrent_puts_of_one_file_one_succeeds(opener: Opener) -> None:
    """The database alone decides, without locks of deepfs."""
    stores = [await opener.open() for _ in range(3)]
    for turn in range(10):
        path, before = f"/{turn // 2}", stored(b"x") if turn % 2 else None

        async def put(number: int, path: str = path, before: Any = before) -> bool:
            try:
                await put_if_unchanged(stores[number % 3], SPACE, [Put(path, before, stored(b"%d" % number))])
            except ChangedError:
                return False
            return True

        results = await gather((lambda number=number: put(number)) for number in range(9))
        assert sum(results) == 1
        assert await text_in(stores[0], path) == str(results.index(True))
        await stores[0].aput(SPACE, path, stored(b"x"))


@pytest.mark.parametrize("kind", ["postgres connection"], indirect=True)
async def test_failed_changes_do_not_break_a_connection_in_a_transaction(where: str) -> None:
    async with await AsyncConnection.connect(where, row_factory=dict_row) as connection:
        store = AsyncPostgresStore(connection)
        backend = over(store)
        assert (await backend.awrite("/a", "1")).ok
        with pytest.raises(ChangedError):
            await put_if_unchanged(store, SPACE, [Put("/a", stored(b"other"), stored(b"2"))])
        with pytest.raises(BackendError):
            await put_if_unchanged(store, SPACE, [Put("/b", None, {"content": "\0"})])
        assert (await backend.aedit("/a", "1", "3")).ok
        assert await text_in(store, "/a") == "3"


@pytest.mark.parametrize("kind", ["postgres pool"])
@pytest.mark.parametrize("state", ["23505", "40001", "40P01"])
async def test_a_database_conflict_raises_changed_error(opener: Opener, where: str, state: str) -> None:
    store = await opener.open()
    await store.aput(SPACE, "/a.txt", stored(b"one"))
    async with await AsyncConnection.connect(where, autocommit=True) as connection:
        await connection.execute(FAILING.format(state=state).encode())
    item = await store.aget(SPACE, "/a.txt")
    with pytest.raises(ChangedError):
        await change_items(store, SPACE, [Put("/a.txt", item.value, stored(b"two"))], compares=writes_plainly(store))
    assert await text_in(store, "/a.txt") == "one"


FAILING = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        -- The first change in the row fails; a second one, which compares nothing, would go through.
        IF nextval('failures') = 1 THEN RAISE EXCEPTION 'overtaken' USING ERRCODE = '{state}'; END IF;
        RETURN NEW;
    END $$;
    CREATE SEQUENCE failures;
    CREATE TRIGGER fail BEFORE UPDATE ON store FOR EACH ROW EXECUTE FUNCTION fail();
"""


async def test_a_failed_commit_leaves_no_open_transaction(tmp_path: Path) -> None:
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        await store.setup()
        backend = over(store)
        assert (await backend.awrite("/a.txt", "one")).ok
        for setting in ("journal_mode=delete", "busy_timeout=50"):
            await (await store.conn.execute(f"PRAGMA {setting}")).fetchall()
        reader = await anyio.to_thread.run_sync(open_reader, tmp_path / "store.db")
        refused = await backend.awrite("/a.txt", "two", overwrite=True)
        await anyio.to_thread.run_sync(reader.close)
        assert (refused.error, await text_in(store, "/a.txt")) == ("Error: The store failed (OperationalError)", "one")
        assert (await backend.awrite("/a.txt", "three", overwrite=True)).ok
        assert await text_in(store, "/a.txt") == "three"


def open_reader(file: Path) -> sqlite3.Connection:
    """Open a connection with a read transaction that lasts until the connection is closed."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM store").fetchall()
    return connection


@pytest.mark.parametrize("kind", ["postgres connection"], indirect=True)
async def test_a_store_in_pipeline_mode_writes_itself(where: str) -> None:
    async with AsyncPostgresStore.from_conn_string(where, pipeline=True) as store:
        assert not writes_plainly(store)
        backend = over(store)
        assert (await backend.awrite("/a", "1")).ok
        assert (await backend.aedit("/a", "1", "2")).ok
        assert await text_in(store, "/a") == "2"


class Encrypting(AsyncSqliteStore):
    """Overrides how the store writes, so that deepfs must not write to the table itself."""

    puts = 0

    async def abatch(self, ops: Any) -> Any:
        operations = list(ops)
        self.puts += sum(isinstance(operation, PutOp) for operation in operations)
        return await super().abatch(operations)


async def test_a_store_that_overrides_its_writes_is_not_bypassed(tmp_path: Path) -> None:
    async with Encrypting.from_conn_string(str(tmp_path / "store.db")) as store:
        assert isinstance(store, Encrypting)
        assert not writes_plainly(store)
        assert (await over(store).awrite("/a", "1")).ok
        assert (await over(store).aedit("/a", "1", "2")).ok
        assert store.puts == 2


CHILD = """
import sys
import aiosqlite
import anyio
from deepfs.backends.store import StoreBackend
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

async def main(dsn, file, first, count):
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    for kind, where in ((AsyncPostgresStore, dsn), (AsyncSqliteStore, file)):
        async with kind.from_conn_string(where) as store, anyio.create_task_group() as tasks:
            for number in range(first, first + count):
                tasks.start_soon(edit, StoreBackend(store, namespace=("tenant", "files")), number)

async def edit(backend, number):
    result = await backend.aedit("/log.txt", f"<{number}>", f"({number})")
    print("ok" if result.ok else result.error, flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""


async def test_processes_over_one_database_lose_no_edit(
    postgres_store: Any, sqlite_store: BaseStore, tmp_path: Path
) -> None:
    total = PROCESSES * EDITS
    for store in (postgres_store, sqlite_store):
        await store.aput(SPACE, "/log.txt", stored(numbers(total)))
    dsn, file = postgres_store.conn.conninfo, tmp_path / "store.db"
    parts = [(dsn, file, first, EDITS) for first in range(0, total, EDITS)]
    assert await anyio.to_thread.run_sync(printed_at_once, CHILD, parts) == ["ok"] * (2 * total)
    for store in (postgres_store, sqlite_store):
        text = numbers(total).decode().replace("<", "(").replace(">", ")")
        assert await text_in(store, "/log.txt") == text


# --- lifetimes, transactions and reads at once ---


async def test_reads_at_once_are_not_disturbed_by_one_another(opener: Opener) -> None:
    store = await opener.open()
    backend = over(store)
    names = [f"/d/{number}" for number in range(60)]
    uploads = await backend.aupload_files([(name, name.encode()) for name in names])
    assert {upload.error for upload in uploads} == {None}
    await store.aput(SPACE, "/d/0", {"content": 1})
    reads = await gather([lambda name=name: backend.aread(name) for name in [*names, "/d", "/none"]])
    assert [read.code for read in reads] == ["invalid_content", *[None] * 59, "is_directory", "file_not_found"]
    assert [read.file_data.content for read in reads[1:60]] == names[1:]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(backend.aread, name)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert (await backend.aread("/d/1")).ok
    assert (await backend._identify_files())._reads == []


async def test_changes_are_committed_on_a_connection_that_begins_transactions_by_itself(tmp_path: Path) -> None:
    async with (
        aiosqlite.connect(tmp_path / "store.db") as connection,
        AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as other,
    ):
        await other.setup()
        assert connection.isolation_level == ""
        backend = over(AsyncSqliteStore(connection))
        assert (await backend.awrite("/a", "one")).ok
        assert (await backend.aedit("/a", "one", "two")).ok
        assert not connection.in_transaction
        assert await text_in(other, "/a") == "two"
        assert (await backend.adelete("/a")).ok
        assert await other.aget(SPACE, "/a") is None
