"""Listings of stores fetch keys, sizes and times only, and equal listings that fetch the values."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from aiosqlite import Connection, Cursor
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs.backends._store_listing import Known, Moment, can_list
from deepfs.backends.store import StoreBackend
from support.files import stored

pytestmark = pytest.mark.anyio

SPACE = ("tenant", "files")
FILES = 300
CONTENT = "a line that is no needle\n" * 4000
"""100 kB."""

VALUES: dict[str, Any] = {
    "/text": {"content": "é\n😀 \\u0000 \\", "encoding": "utf-8", "created_at": "c", "modified_at": "m"},
    "/base64": {"content": "AAEC /w==\n\t", "encoding": "base64", "modified_at": "m"},
    "/whole": {"content": "QUJD", "encoding": "base64"},
    "/no base64": {"content": "====", "encoding": "base64"},
    "/lines": {"content": ["one", "é", ""], "created_at": "c", "modified_at": "m"},
    "/coded lines": {"content": ["AA", "=="], "encoding": "base64"},
    "/bytes": {"content": {"0": 0, "1": 255}, "mimeType": "x"},
    "/bare": {"content": "x"},
    "/empty": {},
    "/number": {"content": 7},
    "/encoding": {"content": "x", "encoding": ["utf-8"]},
    "/no encoding": {"content": "x", "encoding": None},
    "/time": {"content": "x", "encoding": "utf-8", "modified_at": 7},
    "/type": {"content": "x", "encoding": "utf-8", "mime_type": 3},
    "/dir/in": {"content": "", "encoding": "utf-8", "modified_at": "z"},
    "/dir//no path": {"content": "x"},
    "no path": {"content": "x"},
}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    found: BaseStore = request.getfixturevalue(request.param)
    return found


def over(store: BaseStore) -> StoreBackend:
    return StoreBackend(store, namespace=SPACE)


async def put_many(store: BaseStore, count: int = FILES) -> None:
    uploads = [(f"/d/{number:05}.txt", CONTENT.encode()) for number in range(count)]
    assert {upload.error for upload in await over(store).aupload_files(uploads)} == {None}


async def times(store: BaseStore) -> list[str | None]:
    return [info.modified_at for info in (await over(store).als("/d")).entries or ()]


# --- contents of listings ---


async def test_listings_with_and_without_values_are_equal(store: BaseStore) -> None:
    assert can_list(store)
    memory = InMemoryStore()
    for key, value in VALUES.items():
        await store.aput(SPACE, key, value)
        await memory.aput(SPACE, key, value)
    for _ in range(2):
        for path in ("/", "/dir"):
            assert await over(store).als(path) == await over(memory).als(path)
        assert await over(store).aglob("**") == await over(memory).aglob("**")
        assert await over(store).alist_tree("/") == await over(memory).alist_tree("/")
        assert await over(store).agrep("x") == await over(memory).agrep("x")
        for path in ("/text", "/nothing"):
            assert await over(store).als(path) == await over(memory).als(path)


async def test_changes_through_the_store_are_visible_at_once(store: BaseStore) -> None:
    """Even if the size is the same and the change is within the same second."""
    await store.aput(SPACE, "/d/a.txt", {**stored(b"old"), "modified_at": "0"})
    await store.aput(SPACE, "/d/b.txt", {**stored(b"old"), "modified_at": "0"})
    assert await times(store) == ["0", "0"]
    for number in "123456789":
        await store.aput(SPACE, "/d/b.txt", {**stored(b"new"), "modified_at": number})
        assert await times(store) == ["0", number]
    for path in ("/d/a.txt", "/d/b.txt"):
        await store.adelete(SPACE, path)
    for path in ("/d/a.txt", "/d/b.txt"):
        await store.aput(SPACE, path, {**stored(b"old"), "modified_at": "X"})
    assert await times(store) == ["X", "X"]
    await store.adelete(SPACE, "/d/a.txt")
    assert await times(store) == ["X"]


async def test_changes_by_another_connection_are_visible_at_once(sqlite_store: BaseStore, tmp_path: Path) -> None:
    await sqlite_store.aput(SPACE, "/d/a.txt", {**stored(b"old"), "modified_at": "0"})
    for number in "123456789":
        await anyio.to_thread.run_sync(_change_time, tmp_path / "store.db", number)
        assert await times(sqlite_store) == [number]


def _change_time(file: Path, time: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        query = "UPDATE store SET value = CAST(json_set(CAST(value AS TEXT), '$.modified_at', ?) AS BLOB)"
        connection.execute(query, (time,))


# --- cost of listings ---


class Rows(list[Any]):
    """Rows fetched from a database."""

    def size(self) -> int:
        """The approximate size of all rows in bytes."""
        return sum(len(str(row)) for row in self)

    def keys(self) -> int:
        """The number of rows that contain the key of a file."""
        return sum("/d/" in str(row) for row in self)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Record every row that the drivers fetch during the test."""
    found = Rows()
    for cursor in (Cursor, psycopg.AsyncCursor):
        whole, single = cursor.fetchall, cursor.fetchone

        async def fetchall(self: Any, whole: Any = whole) -> Any:
            given = [*await whole(self)]
            found.extend(tuple(row.values()) if isinstance(row, dict) else row for row in given)
            return given

        async def fetchone(self: Any, single: Any = single) -> Any:
            row = await single(self)
            found.append(row)
            return row

        monkeypatch.setattr(cursor, "fetchall", fetchall)
        monkeypatch.setattr(cursor, "fetchone", fetchone)
    whole_statement = Connection.execute_fetchall

    async def execute_fetchall(self: Any, *statement: Any) -> Any:
        found.extend(given := [*await whole_statement(self, *statement)])
        return given

    monkeypatch.setattr(Connection, "execute_fetchall", execute_fetchall)
    return found


async def test_operations_on_names_fetch_no_values(store: BaseStore, rows: Rows) -> None:
    await put_many(store)
    rows.clear()
    backend = over(store)
    for _ in range(2):
        listed = (await backend.als("/d")).entries or []
        assert [info.size for info in listed] == [len(CONTENT)] * FILES
        assert [info.path for info in (await backend.als("/")).entries or ()] == ["/d/"]
        assert len((await backend.aglob("*.txt")).matches or ()) == FILES
        assert (await backend.awrite("/d", "x")).code == "is_directory"
        assert (await backend.awrite("/d/00000.txt", "x")).code == "already_exists"
        assert (await backend.als("/d/00000.txt")).code == "not_a_directory"
        assert len((await backend.alist_tree("/d")).entries) == FILES + 1
    assert rows.size() < len(CONTENT) * 10  # All contents together are thirty times that.


async def test_an_unchanged_database_is_not_listed_again(sqlite_store: BaseStore, rows: Rows) -> None:
    await put_many(sqlite_store)
    backend = over(sqlite_store)
    first = await backend.als("/d")
    rows.clear()
    assert await backend.als("/d") == first
    assert (len(rows), rows.keys()) == (1, 0)


async def test_own_changes_update_the_cached_listing(sqlite_store: BaseStore, rows: Rows) -> None:
    await put_many(sqlite_store)
    backend = over(sqlite_store)
    await backend.als("/d")
    assert (await backend.adelete("/d/00000.txt")).ok
    assert (await backend.awrite("/d/00001.txt", "short", overwrite=True)).ok
    assert (await backend.awrite("/d/new.txt", "new")).ok
    assert (await backend.awrite("/other", "new")).ok
    assert (await backend.amove("/d/00002.txt", "/d/moved.txt")).ok
    rows.clear()
    sizes = {info.path: info.size for info in (await backend.als("/d")).entries or ()}
    assert rows.keys() == 3  # Of the five changed keys, three still exist.
    assert sizes == {
        **{f"/d/{number:05}.txt": len(CONTENT) for number in range(3, FILES)},
        "/d/00001.txt": 5,
        "/d/new.txt": 3,
        "/d/moved.txt": len(CONTENT),
    }
    # A change through the store itself, on the same connection, is not one that the backend tracks.
    assert (await backend.awrite("/d/mine.txt", "1")).ok
    await sqlite_store.aput(SPACE, "/d/00001.txt", stored(b"of others"))
    sizes = {info.path: info.size for info in (await backend.als("/d")).entries or ()}
    assert (sizes["/d/mine.txt"], sizes["/d/00001.txt"]) == (1, 9)


async def test_only_changed_rows_are_measured_again(store: Any, rows: Rows) -> None:
    await put_many(store)
    async with store._cursor() as cursor:  # As if the rows were old.
        await cursor.execute("UPDATE store SET updated_at = '2020-01-01 00:00:00'")
    backend = over(store)
    await backend.als("/d")
    await store.aput(SPACE, "/d/00007.txt", stored(b"short"))
    rows.clear()
    sizes = {info.path: info.size for info in (await backend.als("/d")).entries or ()}
    assert sizes["/d/00007.txt"] == 5
    assert rows.keys() == FILES + 1  # The state of every row, and the size of one.


async def test_a_grep_fetches_only_files_that_match_its_glob(store: BaseStore, rows: Rows) -> None:
    await put_many(store)
    await store.aput(SPACE, "/d/x.md", stored(b"needle"))
    backend = over(store)
    await backend.als("/")
    rows.clear()
    found = await backend.agrep("needle", glob="*.md")
    assert [match.path for match in found.matches or ()] == ["/d/x.md"]
    assert rows.size() < len(CONTENT)
    assert len((await backend.agrep("is no needle", max_count=10_000_000)).matches or ()) > FILES


def test_a_listing_during_changes_is_not_cached() -> None:
    connection = object()
    moment, later = Moment(connection, 1, 10), Moment(connection, 1, 11)
    known = Known()
    assert not known.covers(moment, "")
    known.remember({}, "/d/", moment, known.changes)
    assert known.covers(moment, "/d/e/")
    assert not known.covers(moment, "/")
    assert not known.covers(Moment(object(), 1, 10), "/d/")
    known.under_way += 1
    assert not known.covers(moment, "/d/")
    known.remember({}, "/d/", moment, known.changes)
    known.under_way -= 1
    assert not known.covers(moment, "/d/")
    before = known.changes
    known.follow(["/d/a"])  # This change may be older or newer than the listing.
    known.remember({}, "/d/", moment, before)
    assert not known.covers(moment, "/d/")
    known.remember({}, "/d/", moment, known.changes)
    known.follow(["/d/a"])
    assert known.covers(later, "/d/")
    known.forget()
    assert not known.covers(later, "/d/")


class Content(str):
    """A str whose content must not be read; reading it is counted and raises."""

    looks = 0

    def _looked(self, *_: Any, **__: Any) -> Any:
        Content.looks += 1
        raise AssertionError("somebody looked at the content")

    __iter__ = __getitem__ = __contains__ = __add__ = __hash__ = _looked
    encode = split = splitlines = count = find = replace = translate = join = startswith = endswith = _looked


async def test_operations_on_names_do_not_read_contents_in_memory() -> None:
    store = InMemoryStore()
    for number in range(FILES):
        await store.aput(SPACE, f"/d/{number:05}.txt", {"content": Content(CONTENT), "encoding": "utf-8"})
    backend = over(store)
    for _ in range(2):
        assert [info.size for info in (await backend.als("/d")).entries or ()] == [len(CONTENT)] * FILES
        assert len((await backend.aglob("*.txt")).matches or ()) == FILES
        assert (await backend.awrite("/d", "x")).code == "is_directory"
    assert Content.looks == 0
