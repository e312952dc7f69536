"""Listings of stores in databases equal those of a store in memory, and show every change."""

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
    for number in range(count):
        await store.aput(SPACE, f"/d/{number:05}.txt", stored(CONTENT.encode()))


async def times(store: BaseStore) -> list[str | None]:
    return [info.modified_at for info in (await over(store).als("/d")).entries or ()]


# --- contents of listings ---


async def test_listings_of_a_database_and_of_memory_are_equal(store: BaseStore) -> None:
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


# --- cost ---


class Rows(list[Any]):
    """Rows fetched from a database."""

    def size(self) -> int:
        """The approximate size of all rows in bytes."""
        return sum(len(str(row)) for row in self)


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


async def test_creating_a_file_fetches_no_contents_of_others(store: BaseStore, rows: Rows) -> None:
    await put_many(store)
    rows.clear()
    backend = over(store)
    assert (await backend.awrite("/d", "x")).code == "is_directory"
    assert (await backend.awrite("/d/00000.txt", "x")).code == "already_exists"
    assert (await backend.awrite("/d/new.txt", "x")).ok
    assert (await backend.awrite("/e", "x")).ok
    assert rows.size() < len(CONTENT) * 10  # All contents together are thirty times that.


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
