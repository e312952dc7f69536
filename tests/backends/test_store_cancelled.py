"""Changes of an SQLite store that are cancelled at each of their statements: they are whole, and block nobody."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from deepfs.backends.store.tables import Put, put_if_unchanged
from deepfs.errors import BackendError
from support.files import stored
from support.stores import open_sqlite_store

SPACE = ("tenant", "files")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class Interruption:
    """Calls `function` when the connection is given its statement of a number, which lasts until `ended` is set."""

    function: Callable[[], object]

    def __init__(self, store: AsyncSqliteStore, number: int) -> None:
        self.ended = asyncio.Event()
        self._left, self._execute = number, store.conn.execute_fetchall

    async def execute(self, statement: str, parameters: Any) -> Any:
        self._left -= 1
        if self._left:
            return await self._execute(statement, parameters)
        self.function()
        rows = await self._execute(statement, parameters)
        await self.ended.wait()
        return rows

    @property
    def has_come(self) -> bool:
        return self._left <= 0


@contextmanager
def interruption(store: Any, number: int) -> Iterator[Interruption]:
    found = Interruption(store, number)
    store.conn.execute_fetchall = found.execute
    try:
        yield found
    finally:
        del store.conn.execute_fetchall


async def put_two(store: BaseStore, name: str) -> None:
    """Make a change that needs a transaction."""
    await put_if_unchanged(store, SPACE, [Put(f"/{name}/{part}", None, stored(b"x")) for part in "ab"])


async def is_made(store: BaseStore, file: Path, name: str) -> bool:
    """Whether the change `name` was made. Checks that it is whole, and that this connection and others can write."""
    await put_two(store, f"after-{name}")
    await anyio.to_thread.run_sync(write_with_another_connection, file)
    items = [await store.aget(SPACE, f"/{name}/{part}") for part in "ab"]
    assert items.count(None) in (0, 2)
    return None not in items


def write_with_another_connection(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=5)) as connection, connection:
        connection.execute("UPDATE store SET updated_at = updated_at")


@pytest.mark.anyio
@pytest.mark.parametrize("cancelled", ["task", "scope", "every task"])
async def test_a_cancelled_change_leaves_no_open_transaction(cancelled: str, tmp_path: Path) -> None:
    """An event loop that ends cancels every task, also the one that the change runs in."""

    async def put(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await put_two(store, name)

    async with open_sqlite_store(tmp_path / "store.db") as store:
        others = asyncio.all_tasks()
        for number in count(1):
            scope = anyio.CancelScope()
            task = asyncio.create_task(put(str(number), scope))
            with interruption(store, number) as found:
                found.function = {
                    "task": task.cancel,
                    "scope": scope.cancel,
                    "every task": lambda: [each.cancel() for each in asyncio.all_tasks() - others],
                }[cancelled]
                await asyncio.wait([task])
                found.ended.set()
            made = await is_made(store, tmp_path / "store.db", str(number))
            if not found.has_come:
                break
            assert task.cancelled() or scope.cancelled_caught
            # A change that has begun runs to its end, if its loop does. A cancelled statement is executed.
            assert made is (cancelled != "every task" or number == 4)
    assert number == 5  # After BEGIN, SELECT, INSERT and COMMIT.


@pytest.mark.anyio
async def test_a_transaction_that_the_caller_begins_at_the_same_time_is_not_rolled_back(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "store.db") as store:
        # Queued for the thread of the connection before the change, but perhaps not carried out yet.
        begun = asyncio.create_task(run_all(store, "CREATE TABLE own(x)", "BEGIN", "INSERT INTO own VALUES(1)"))
        execute = store.conn.execute_fetchall

        async def execute_after_begin(statement: str, parameters: Any) -> Any:
            await begun
            return await execute(statement, parameters)

        store.conn.execute_fetchall = execute_after_begin  # type: ignore[method-assign, assignment]
        with pytest.raises(BackendError):
            await put_two(store, "refused")
        del store.conn.execute_fetchall
        assert store.conn.in_transaction
        await store.conn.commit()
        assert [tuple(row) for row in await execute("SELECT x FROM own", ())] == [(1,)]


async def run_all(store: AsyncSqliteStore, *statements: str) -> None:
    for statement in statements:
        await store.conn.execute(statement)
