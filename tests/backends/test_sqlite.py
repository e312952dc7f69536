"""What only `SqliteBackend` has: the database itself, its errors, copies, checks, namespaces and connections."""

import logging
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from deepfs import SqliteBackend, run_sync
from deepfs.backends.sqlite import database as databases
from deepfs.backends.sqlite import schema as schema
from deepfs.backends.sqlite import search as planner
from deepfs.errors import BackendError, ConflictError
from deepfs.storage import runners
from deepfs.storage.runners import RetryPolicy
from deepfs.text.flat_tree import Change, ChangedError
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from support.promises import keeps
from support.raw_sqlite import RawSqlite, rows
from support.waiting import until, until_tasks_wait

CHANGES: list[Callable[[SqliteBackend], Any]] = [
    lambda backend: backend.write("/new.txt", "x"),
    lambda backend: backend.edit("/a.txt", "one", "two"),
    lambda backend: backend.delete("/a.txt"),
    lambda backend: backend.move("/a.txt", "/b.txt"),
    lambda backend: backend.copy("/a.txt", "/b.txt"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "files.db"


@pytest.fixture
def backend(file: Path) -> Iterator[SqliteBackend]:
    with SqliteBackend(file) as backend:
        assert backend.write("/a.txt", "one\n").ok
        yield backend


@pytest.fixture
def always_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files are enough for a search to use the index."""
    monkeypatch.setattr(planner, "_SAMPLE", 1)
    monkeypatch.setattr(planner, "_SHORT_WALK", 0)
    monkeypatch.setattr(planner, "_MANY", 10**9)


def _found(backend: SqliteBackend, pattern: str, **options: Any) -> list[str]:
    result = backend.grep(pattern, **options)
    assert result.matches is not None, result.error
    return [match.path for match in result.matches]


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_the_same_version_is_never_given_twice(backend: SqliteBackend, file: Path) -> None:
    seen = []
    for _ in range(3):
        assert backend.write("/v.txt", "same", overwrite=True).ok
        seen += rows(file, "SELECT version FROM files WHERE path = '/v.txt'")
        assert backend.delete("/v.txt").ok
    assert seen == sorted(set(seen))


@keeps("Each operation that changes files is made in one transaction")
def test_a_failed_change_leaves_nothing(backend: SqliteBackend, file: Path) -> None:
    refuse = "BEFORE INSERT ON files WHEN new.path = '/n/9' BEGIN SELECT raise(FAIL, 'no'); END"
    rows(file, f"CREATE TRIGGER refuse {refuse}")
    outcomes = backend.upload_files([("/n/8", b"x"), ("/n/9", b"x")])
    assert [outcome.error for outcome in outcomes] == ["backend_error"] * 2
    assert backend.read("/n/8").code == "file_not_found"
    assert backend.write("/n/8", "x").ok


# --- changes at the same time -----------------------------------------------------------------------------------------


@asynccontextmanager
async def _at_once(
    backend: SqliteBackend, changes: int
) -> AsyncIterator[tuple[anyio.abc.TaskGroup, Callable[[], Any]]]:
    """Tasks that make changes, of which none begins before as many wait, or before the function is called."""
    database, gate = backend._database(), threading.Event()
    pool.start_single(database.file, gate.wait, 20)
    async with anyio.create_task_group() as tasks:
        yield tasks, gate.set
        await until(lambda: gate.is_set() or sum(map(len, database.changes._waiting.values())) == changes)
        gate.set()


@pytest.mark.anyio
@pytest.mark.both_loops
@keeps("Each operation that changes files is made in one transaction")
async def test_changes_at_the_same_time_share_a_transaction_and_fail_alone(
    backend: SqliteBackend, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_SHARED_S", 20)
    calls: list[tuple[Callable[[], Awaitable[Any]], str | None]] = [
        (lambda: backend.awrite("/b.txt", "x"), None),
        (lambda: backend.awrite("/a.txt", "x"), "already_exists"),
        (lambda: backend.awrite("/c.txt", "x", if_match="none"), "conflict"),
        (lambda: backend.aupload_files([("/d.txt", b"x"), ("/refused.txt", b"x")]), "backend_error"),
        (lambda: backend.aedit("/e.txt", "x", "y"), "file_not_found"),
        (lambda: backend.awrite("/f.txt", "x"), None),
    ]
    codes: list[str | None] = [""] * len(calls)
    statements: list[str] = []

    def prepare() -> None:
        refuse = "BEFORE INSERT ON files WHEN new.path = '/refused.txt' BEGIN SELECT raise(FAIL, 'no'); END"
        rows(file, f"CREATE TRIGGER refuse {refuse}")
        with backend._database().session() as session:
            session.connection.set_trace_callback(statements.append)

    async def call(number: int) -> None:
        result = await calls[number][0]()
        codes[number] = result[0].error if isinstance(result, list) else result.code

    await anyio.to_thread.run_sync(prepare)
    async with _at_once(backend, len(calls)) as (tasks, _):
        for number in range(len(calls)):
            tasks.start_soon(call, number)
    assert codes == [code for _, code in calls]
    assert [entry.path for entry in (await backend.als("/")).entries] == ["/a.txt", "/b.txt", "/f.txt"]
    assert statements.count("COMMIT") == 1


@pytest.mark.anyio
async def test_a_transaction_that_fails_as_a_whole_spoils_no_other_change(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_SHARED_S", 20)
    results: dict[str, Any] = {}

    async def write(path: str, content: str) -> None:
        results[path] = await backend.awrite(path, content)

    await anyio.to_thread.run_sync(_with_pragma, backend, "max_page_count = 40")
    async with _at_once(backend, 9) as (tasks, _):
        for number in range(9):
            tasks.start_soon(write, f"/{number}", "x" * 400_000 if number == 4 else "x")
    assert "full" in results.pop("/4").error
    assert [result.error for result in results.values()] == [None] * 8
    assert [entry.path for entry in (await backend.als("/")).entries] == [*sorted(results), "/a.txt"]


@pytest.mark.anyio
async def test_nothing_of_a_change_remains_if_its_part_of_a_transaction_cannot_be_ended(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_SHARED_S", 20)
    results: dict[str, Any] = {}
    denials = [sqlite3.SQLITE_DENY]

    def authorize(action: int, kind: str | None, *_: object) -> int:
        is_end = action == sqlite3.SQLITE_SAVEPOINT and kind == "RELEASE"
        return denials.pop() if is_end and denials else sqlite3.SQLITE_OK

    def prepare() -> None:
        with backend._database().session() as session:
            session.connection.set_authorizer(authorize)

    async def write(path: str) -> None:
        results[path] = await backend.awrite(path, "x")

    await anyio.to_thread.run_sync(prepare)
    async with _at_once(backend, 3) as (tasks, _):
        for path in ("/1", "/2", "/3"):
            tasks.start_soon(write, path)
    stored = [path for path, result in sorted(results.items()) if result.ok]
    assert len(stored) == 2
    assert [entry.path for entry in (await backend.als("/")).entries] == [*stored, "/a.txt"]


class _Slow(SqliteBackend):
    """A change of `/slow.txt` waits in its transaction."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.began, self.may_go_on = threading.Event(), threading.Event()

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        if changes[0].path == "/slow.txt":
            self.began.set()
            self.may_go_on.wait(20)
        return changes


@pytest.mark.anyio
@pytest.mark.both_loops
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_cancelled_change_undoes_no_other(file: Path, has_begun: bool) -> None:
    scope = anyio.CancelScope()

    async def write(path: str) -> None:
        assert (await backend.awrite(path, "x")).ok

    async def write_slowly() -> None:
        with scope:
            await write("/slow.txt")

    async with _Slow(file) as backend:
        await write("/a.txt")
        async with _at_once(backend, -1) as (tasks, begin):
            tasks.start_soon(write, "/b.txt")
            tasks.start_soon(write_slowly)
            tasks.start_soon(write, "/c.txt")
            await until_tasks_wait()
            if has_begun:
                begin()
                await until(backend.began.is_set)
            scope.cancel()
            await until_tasks_wait()
            begin()
            backend.may_go_on.set()
        assert scope.cancelled_caught
        assert [entry.path for entry in (await backend.als("/")).entries] == ["/a.txt", "/b.txt", "/c.txt"]


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_change_that_waits_behind_a_slow_one_is_cancelled_at_once(file: Path) -> None:
    scope = anyio.CancelScope()
    ended: list[str] = []

    async def write(path: str) -> None:
        try:
            await backend.awrite(path, "x")
        finally:
            ended.append(path)

    async def write_later() -> None:
        with scope:
            await write("/later.txt")

    async with _Slow(file) as backend:
        await write("/a.txt")
        async with _at_once(backend, -1) as (tasks, begin):
            tasks.start_soon(write, "/slow.txt")
            await until_tasks_wait()
            tasks.start_soon(write_later)
            await until_tasks_wait()
            begin()
            await until(backend.began.is_set)
            scope.cancel()
            await until(lambda: len(ended) > 1)
            backend.may_go_on.set()
        assert ended == ["/a.txt", "/later.txt", "/slow.txt"]
        assert [entry.path for entry in (await backend.als("/")).entries] == ["/a.txt", "/slow.txt"]


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_arguments_that_are_refused(file: Path) -> None:
    for name in ("", "a\n", (), ("a", ""), 5):
        with pytest.raises((TypeError, ValueError), match="namespace"):
            SqliteBackend(file, name)  # type: ignore[arg-type]
    for wrong in (":memory:", ""):
        with pytest.raises(ValueError, match="MemoryBackend"):
            SqliteBackend(wrong)
    with pytest.raises(ValueError, match="durability"):
        SqliteBackend(file, durability="off")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_scanned"):
        SqliteBackend(file, max_scanned=0)
    assert not file.exists()


# --- files that are no database of deepfs -----------------------------------------------------------------------------


def _other_database(file: Path) -> None:
    rows(file, "CREATE TABLE files (path TEXT)")


def _later_version(file: Path) -> None:
    RawSqlite(file).put("/a.txt", b"one")
    rows(file, "PRAGMA user_version = 99")


@keeps("A file that is no database of deepfs is left as it is.")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: file.write_bytes(b"no database" * 100), "not a SQLite database"),
        (lambda file: file.write_bytes(b"x"), "not a SQLite database"),
        (_other_database, "another program"),
        (_later_version, "later version"),
        (lambda file: file.mkdir(), "cannot be opened"),
    ],
    ids=["bytes", "one byte", "another program", "later version", "directory"],
)
def test_other_files_are_left_alone(file: Path, make: Callable[[Path], Any], reason: str) -> None:
    make(file)
    before = None if file.is_dir() else file.read_bytes()
    with SqliteBackend(file) as backend:
        results = [change(backend) for change in CHANGES] + [backend.ls("/"), backend.read("/a.txt"), backend.grep("x")]
        for result in results:
            assert result.code == "backend_error"
            assert reason in result.error
            assert str(file.parent) not in result.error
    if before is not None:
        assert file.read_bytes() == before


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    result = SqliteBackend(tmp_path / "no" / "files.db").write("/a.txt", "x")
    assert (result.code, "directory is missing" in str(result.error)) == ("backend_error", True)


def test_a_database_that_a_later_version_took_over_is_left_alone(backend: SqliteBackend, file: Path) -> None:
    rows(file, "PRAGMA user_version = 99")
    for result in [change(backend) for change in CHANGES] + [
        backend.ls("/"),
        backend.read("/a.txt"),
        backend.grep("x"),
    ]:
        assert result.code == "backend_error"
        assert "later version" in result.error
    assert rows(file, "SELECT path FROM files") == [("/a.txt",)]


# --- a database in trouble --------------------------------------------------------------------------------------------


def _with_pragma(backend: SqliteBackend, pragma: str) -> None:
    """Execute a pragma on the connection that the next operation uses."""
    with backend._database().session() as session:
        session.execute(f"PRAGMA {pragma}")


def test_a_full_database_changes_nothing(backend: SqliteBackend) -> None:
    _with_pragma(backend, "max_page_count = 40")
    for change in (backend.write("/big.txt", "x" * 400_000), backend.edit("/a.txt", "one", "y" * 400_000)):
        assert change.code == "backend_error"
        assert "full" in str(change.error)
    assert [upload.error for upload in backend.upload_files([("/1", b"x"), ("/2", b"x" * 400_000)])] == [
        "backend_error"
    ] * 2
    assert [entry.path for entry in backend.ls("/").entries] == ["/a.txt"]
    assert backend.read_raw("/a.txt").data["content"] == "one\n"
    _with_pragma(backend, "max_page_count = 100000")
    assert backend.write("/big.txt", "x" * 400_000).ok
    assert run_sync(backend.acheck) == []


def test_a_read_only_database_refuses_changes(backend: SqliteBackend) -> None:
    for change in CHANGES:
        _with_pragma(backend, "query_only = on")
        assert change(backend).code == "permission_denied"
    assert backend.read("/a.txt").ok
    assert _found(backend, "one") == ["/a.txt"]


def _look_without_locks(backend: SqliteBackend, meanwhile: Callable[[], object]) -> None:
    with backend._database().session() as session:
        session.stamp = databases._stamp(session.file)
        meanwhile()


def test_what_is_read_without_locks_did_not_change(backend: SqliteBackend) -> None:
    _look_without_locks(backend, int)
    with pytest.raises(ChangedError):
        _look_without_locks(backend, lambda: backend.write("/b.txt", "x"))


def test_a_database_locked_by_another_program_is_a_conflict(backend: SqliteBackend, file: Path) -> None:
    backend._retries = RetryPolicy(contention=0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for change in CHANGES:
            result = change(backend)
            assert result.code == "conflict"
            assert result.error == "Error: The database is locked by another program; try again later"
        with pytest.raises(ConflictError):
            run_sync(backend.acheck)
        assert backend.read("/a.txt").ok
        assert _found(backend, "one") == ["/a.txt"]
        other.execute("ROLLBACK")
    assert backend.write("/b.txt", "x").ok


@pytest.mark.anyio
async def test_waiting_for_a_lock_holds_up_no_one_and_ends_when_cancelled(file: Path) -> None:
    async with SqliteBackend(file) as backend:
        assert (await backend.awrite("/a.txt", "one")).ok
        with closing(await anyio.to_thread.run_sync(_locked, file)) as other:
            with anyio.move_on_after(0.2) as scope:
                await backend.awrite("/b.txt", "x")
            assert scope.cancelled_caught
            await anyio.to_thread.run_sync(other.execute, "ROLLBACK")
        assert (await backend.aread("/b.txt")).code == "file_not_found"
        assert (await backend.awrite("/b.txt", "x")).ok


def _locked(file: Path) -> sqlite3.Connection:
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_damage_is_told(file: Path) -> None:
    with SqliteBackend(file) as backend:
        for number in range(50):
            assert backend.write(f"/{number}.txt", f"text {number} " * 500).ok
    with file.open("rb+") as damaged:
        damaged.seek(4096 * 3)
        damaged.write(os.urandom(4096 * 40))
    with SqliteBackend(file) as backend:
        result = backend.grep("text 7")
        assert result.ok or result.code == "backend_error"
        try:
            assert run_sync(backend.acheck) != []
        except BackendError as error:
            assert "damaged" in str(error)  # noqa: PT017


def test_an_index_that_is_not_up_to_date_is_told(backend: SqliteBackend, file: Path) -> None:
    assert run_sync(backend.acheck) == []
    rows(file, "INSERT INTO content_index (rowid, content) VALUES (99, 'text that is in no file')")
    assert run_sync(backend.acheck) == ["content_index is not up to date"]


VALUES = ("x'ff00'", "'many'", "1.5", "-1", "'9223372036854775808'")


@pytest.mark.parametrize("column", ["size", "version", "created_at", "modified_at", "mime_type", "content"])
def test_values_of_any_type_raise_nothing(tmp_path: Path, always_indexed: None, column: str) -> None:
    for number, value in enumerate(VALUES):
        _check_value(tmp_path / f"{number}.db", column, value)


def _check_value(file: Path, column: str, value: str) -> None:
    with SqliteBackend(file, "ada") as ada, SqliteBackend(file, "bob") as bob:
        for backend in (ada, bob):
            assert backend.write("/a.txt", "one\n").ok
            assert backend.write("/b.txt", "two\n").ok
        rows(file, f"UPDATE files SET {column} = {value} WHERE namespace = 'ada' AND path = '/a.txt'")
        assert [entry.path for entry in ada.ls("/").entries] == ["/a.txt", "/b.txt"]
        assert ada.read("/a.txt").ok
        assert ada.download_files(["/a.txt"])[0].error is None
        assert _found(ada, "two") == ["/b.txt"]
        assert [entry.path for entry in ada.glob("*").matches] == ["/a.txt", "/b.txt"]
        for number in range(70):
            assert bob.write(f"/{number}.txt", "words").ok
        assert ada.write("/a.txt", "new", overwrite=True).ok
        assert ada.move("/a.txt", "/c.txt").ok
        assert ada.read_raw("/c.txt").data["content"] == "new"
        assert ada.delete("/c.txt").ok


def test_rows_with_other_paths_hinder_nothing(backend: SqliteBackend, file: Path) -> None:
    columns = "namespace, path, size, content"
    for path in ("x'ff00'", "'no path'", "''"):
        rows(file, f"INSERT INTO files ({columns}) VALUES ('files', {path}, 3, 'one')")
    assert [entry.path for entry in backend.ls("/").entries] == ["/a.txt"]
    assert _found(backend, "one") == ["/a.txt"]
    assert backend.move("/a.txt", "/b.txt").ok
    assert backend.delete("/b.txt").ok


def test_a_factory_names_the_namespace_of_each_operation(file: Path) -> None:
    user = ["ada"]
    with SqliteBackend(file, lambda runtime: (user[0], "files")) as backend:
        assert backend.write("/a.txt", "of ada").ok
        user[0] = "bob"
        assert backend.read("/a.txt").code == "file_not_found"
        user[0] = ""
        assert backend.read("/a.txt").code == "backend_error"
        assert backend.write("/a.txt", "x").code == "backend_error"


def test_versions_that_another_program_lost_are_given_on(backend: SqliteBackend, file: Path) -> None:
    for change in (
        "DELETE FROM state",
        "UPDATE state SET last_version = 'many'",
        "UPDATE state SET last_version = 1.5",
        "INSERT INTO state VALUES ('many'), (7)",
    ):
        [(before,)] = rows(file, "SELECT version FROM files")
        rows(file, change)
        assert backend.edit("/a.txt", "one", "one one").ok
        assert backend.edit("/a.txt", "one one", "one").ok
        assert rows(file, "SELECT version FROM files") == [(before + 2,)]


def test_a_damaged_schema_is_told(backend: SqliteBackend, file: Path) -> None:
    backend.close()
    content = file.read_bytes()
    at = content.index(b"CREATE TABLE files")
    file.write_bytes(content[:at] + b"\xff\xfe\xff" + content[at + 3 :])
    for result in (backend.read("/a.txt"), backend.write("/b.txt", "x"), backend.grep("x")):
        assert result.code == "backend_error"
        assert "damaged" in str(result.error)


# --- the index --------------------------------------------------------------------------------------------------------


def test_every_kind_of_change_keeps_the_index(backend: SqliteBackend, always_indexed: None) -> None:
    assert backend.write("/d/1.txt", "first words").ok
    assert backend.write("/d/1.txt", "second words", overwrite=True).ok
    assert backend.edit("/d/1.txt", "second", "third").ok
    backend.upload_files([("/d/2.bin", b"\0third"), ("/d/3.txt", b"third " * 60_000), ("/d/3.txt", b"third")])
    backend.upload_files([("/d/2.bin", b"third, now text"), ("/d/4.txt", b"third"), ("/d/4.txt", b"\0third")])
    assert backend.copy("/d", "/e").ok
    assert backend.move("/d", "/f").ok
    assert backend.delete("/e/3.txt").ok
    assert _found(backend, "third") == [f"/{path}" for path in ("e/1.txt", "e/2.bin", "f/1.txt", "f/2.bin", "f/3.txt")]
    assert _found(backend, "now text") == ["/e/2.bin", "/f/2.bin"]
    assert backend.grep("third").skipped == 2  # The binary files that have the text.
    assert _found(backend, "second") == []
    assert run_sync(backend.acheck) == []


@pytest.mark.parametrize("most", [1, 64])
def test_searches_find_changes_before_and_after_these_are_indexed(
    backend: SqliteBackend, file: Path, always_indexed: None, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(schema, "_MOST_PENDING", most)
    choose = random.Random(f"pending {most}")
    texts = {"/a.txt": "one\n"}
    for number in range(80):
        path, text = f"/{choose.randrange(9)}.txt", f"{choose.choice('abc') * 4} {number}"
        if choose.random() < 0.25:
            backend.delete(path)
            texts.pop(path, None)
        elif choose.random() < 0.5:
            RawSqlite(file).put(path, text.encode())
            texts[path] = text
        else:
            assert backend.write(path, text, overwrite=True).ok
            texts[path] = text
        for letter in "abc":
            assert _found(backend, letter * 4) == sorted(path for path, text in texts.items() if letter * 4 in text)
        assert [match.path for match in backend.glob("**/*.txt").matches or ()] == sorted(texts)
    assert run_sync(backend.acheck) == []


def _pending(file: Path) -> int:
    return len(rows(file, "SELECT id FROM pending"))


def test_many_changes_are_indexed_at_once(backend: SqliteBackend, file: Path) -> None:
    for number in range(62):
        assert backend.write(f"/few/{number}.txt", "a few words").ok
    assert _pending(file) == 63
    assert backend.write("/few/last.txt", "a few words").ok
    assert _pending(file) == 0
    assert backend.write("/large.txt", "words " * 40_000).ok
    assert _pending(file) == 1
    assert backend.upload_files([(f"/large/{number}.txt", b"words " * 40_000) for number in range(5)])[0].error is None
    assert _pending(file) == 0


def _index(file: Path) -> None:
    for statement in schema._INDEX_PENDING:
        rows(file, statement, (schema._LAST_ID,))


_PUT_ROW = "INTO files (id, namespace, path, size, content) VALUES (?, 'files', ?, 9, 'replacing')"


def _replace(file: Path) -> None:
    rows(file, f"INSERT OR REPLACE {_PUT_ROW}", (None, "/m.txt"))


def _shrink(file: Path) -> None:
    rows(file, "UPDATE files SET content = 'replacing', size = 9 WHERE path = '/large.txt'")
    _index(file)


@pytest.mark.parametrize(("step", "change"), [("Candidates._rows", _replace), ("Candidates._take_indexed", _shrink)])
def test_a_search_finds_files_that_match_before_and_after_a_change(
    backend: SqliteBackend,
    file: Path,
    always_indexed: None,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    change: Callable[[Path], None],
) -> None:
    names = ["/a1.txt", "/large.txt", "/m.txt"]
    assert backend.write("/large.txt", "replacing" * 40_000).ok
    for name in ("/a1.txt", "/m.txt"):
        assert backend.write(name, "replacing").ok
    _index(file)
    owner, name = step.split(".")
    original, done = getattr(getattr(planner, owner), name), []

    def changing(*arguments: Any) -> Any:
        if not done and arguments[1]:  # Of the first call that is about files.
            done.append(change(file))
        return original(*arguments)

    monkeypatch.setattr(getattr(planner, owner), name, changing)
    assert _found(backend, "replacing") == names
    assert done


def test_a_damaged_index_hinders_neither_writes_nor_searches(
    backend: SqliteBackend, file: Path, always_indexed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_MOST_PENDING", 2)
    _index(file)
    rows(file, "DELETE FROM content_index_data")
    for number in range(5):
        assert backend.write(f"/{number}.txt", "words").ok
    assert "content_index is not up to date" in run_sync(backend.acheck)
    assert _pending(file) == 5
    run_sync(backend.aclose)
    assert _found(backend, "one") == ["/a.txt"]
    assert backend.read("/4.txt").ok


def test_a_write_that_there_is_room_for_is_stored_though_its_index_has_none(
    backend: SqliteBackend, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random("full")
    for number in range(40):
        assert backend.write(f"/{number}.txt", choose.randbytes(2000).hex()).ok
    [(pages,)] = rows(file, "PRAGMA page_count")
    _with_pragma(backend, f"max_page_count = {pages + 9}")
    monkeypatch.setattr(schema, "_MOST_PENDING", 2)
    assert backend.write("/last.txt", "words").ok
    assert _pending(file) > 0
    _with_pragma(backend, "max_page_count = 100000")
    assert backend.write("/later.txt", "words").ok
    assert _pending(file) == 0
    assert run_sync(backend.acheck) == []


def test_a_process_without_fts5_can_change_and_search_a_database_that_has_an_index(
    backend: SqliteBackend,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    always_indexed: None,
) -> None:
    run_sync(backend.aclose)
    schema._say_slower.cache_clear()
    with caplog.at_level(logging.WARNING, "deepfs"), monkeypatch.context() as patch:
        patch.setattr(schema, "_offers_trigrams", lambda: False)
        for number in range(70):
            assert backend.write(f"/{number}.txt", f"word {number}").ok
        assert _found(backend, "word 66") == ["/66.txt"]
        run_sync(backend.aclose)
        assert _found(backend, "word 67") == ["/67.txt"]
        run_sync(backend.aclose)
        with SqliteBackend(file.with_name("made without.db")) as other:
            assert other.write("/a.txt", "one").ok
    assert len([record for record in caplog.records if "FTS5" in record.message]) == 1
    assert _found(backend, "word 66") == ["/66.txt"]
    assert backend.write("/last.txt", "word 66").ok
    assert rows(file, "SELECT id FROM pending") == []
    assert _found(backend, "word 66") == ["/66.txt", "/last.txt"]
    for each in (backend, other):
        assert run_sync(each.acheck) == []


def test_an_index_of_which_a_part_is_missing_is_made_anew(
    backend: SqliteBackend, file: Path, always_indexed: None
) -> None:
    for part in ("TABLE pending", "VIEW indexed_contents", "TRIGGER file_deleted"):
        run_sync(backend.aclose)
        rows(file, f"DROP {part}")
        assert backend.write("/b.txt", "one more\n", overwrite=True).ok
        assert _found(backend, "one") == ["/a.txt", "/b.txt"], part
        assert run_sync(backend.acheck) == [], part


def test_a_walk_is_bounded_where_no_index_helps(file: Path) -> None:
    with SqliteBackend(file, max_scanned=250) as backend:
        backend.upload_files([(f"/{number:03}.txt", b"text q") for number in range(400)])
        short = backend.grep("q")
        assert short.truncated
        assert short.matches
        assert backend.glob("*t").truncated
        assert not backend.grep("text").truncated
        assert not backend.grep("q", path="/300.txt").truncated


def test_a_search_that_finds_nothing_ends_when_its_time_is_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteBackend(file) as backend:
        backend.upload_files([(f"/{number:03}.txt", b"text") for number in range(400)])
        monkeypatch.setattr(runners, "search_deadline", lambda: Deadline(0.0))
        assert backend.grep("q").truncated
        assert backend.glob("*.q").truncated


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_a_database_of_its_own(backend: SqliteBackend, tmp_path: Path) -> None:
    SqliteBackend(tmp_path / "files.db", "bob").write("/b.txt", "of bob")
    copy = tmp_path / "copy.db"
    run_sync(backend.asnapshot, copy)
    assert backend.edit("/a.txt", "one", "two").ok
    for name, path, text in (("files", "/a.txt", "one\n"), ("bob", "/b.txt", "of bob")):
        with SqliteBackend(copy, name) as copied:
            assert copied.read_raw(path).data["content"] == text
            assert run_sync(copied.acheck) == []
    with pytest.raises(BackendError, match="There is a file"):
        run_sync(backend.asnapshot, copy)
    run_sync(lambda: backend.asnapshot(copy, overwrite=True))
    with SqliteBackend(copy) as copied:
        assert copied.read_raw("/a.txt").data["content"] == "two\n"
    with pytest.raises(BackendError):
        run_sync(backend.asnapshot, tmp_path / "no" / "copy.db")
    assert not list(tmp_path.glob("*.part*"))


def _leave_log(file: Path) -> None:
    """Make a database whose changes are in its log, as a process leaves it that is killed."""
    script = """
import os, sys
from deepfs import SqliteBackend
backend = SqliteBackend(sys.argv[1])
for number in range(40):
    assert backend.write(f"/old-{number}.txt", "old " * 1000).ok
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script, str(file)], check=True)
    assert file.with_name(f"{file.name}-wal").stat().st_size > 0


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_snapshot_takes_nothing_from_a_log_that_lies_beside(
    backend: SqliteBackend, tmp_path: Path, overwrite: bool
) -> None:
    copy = tmp_path / "copy.db"
    _leave_log(copy)
    if not overwrite:
        copy.unlink()
    run_sync(lambda: backend.asnapshot(copy, overwrite=overwrite))
    with SqliteBackend(copy) as copied:
        assert [entry.path for entry in copied.ls("/").entries] == ["/a.txt"]
        assert run_sync(copied.acheck) == []


def test_a_file_that_is_no_database_is_replaced_by_a_copy(backend: SqliteBackend, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(b"no database" * 1000)
    run_sync(lambda: backend.asnapshot(copy, overwrite=True))
    with SqliteBackend(copy) as copied:
        assert copied.read("/a.txt").ok


def test_a_copy_that_is_not_made_leaves_the_former_one_whole(backend: SqliteBackend, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    _leave_log(copy)
    with pytest.raises(BackendError, match="There is a file"):
        run_sync(backend.asnapshot, copy)
    with SqliteBackend(copy) as copied:
        assert len(copied.ls("/").entries) == 40
        with pytest.raises(BackendError, match="in use"):
            run_sync(lambda: backend.asnapshot(copy, overwrite=True))
        assert copied.write("/new.txt", "x").ok
    with SqliteBackend(copy) as copied:
        assert len(copied.ls("/").entries) == 41


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_forgotten_backend_closes_its_connections(file: Path) -> None:
    backend = SqliteBackend(file)
    assert backend.write("/a.txt", "x").ok
    assert file.with_name("files.db-wal").exists()
    del backend
    for _ in range(500):
        if not file.with_name("files.db-wal").exists():
            return
        run_sync(pool.run, int)  # A worker thread refers to its last call until the next one.
        time.sleep(0.01)
    pytest.fail("the database is still open")


def test_a_file_that_was_replaced_is_opened_again(backend: SqliteBackend, file: Path) -> None:
    for each in (file, *file.parent.glob("files.db-*")):
        each.unlink()
    assert backend.read("/a.txt").code == "file_not_found"
    assert backend.write("/b.txt", "new").ok
    with SqliteBackend(file) as other:
        assert [entry.path for entry in other.ls("/").entries] == ["/b.txt"]


def test_the_log_is_emptied(backend: SqliteBackend, file: Path) -> None:
    log = file.with_name("files.db-wal")
    for number in range(40):
        assert backend.write(f"/{number}.txt", "text " * 100_000).ok
        assert log.stat().st_size < 3 * databases._WAL_BYTES
    assert file.stat().st_size > 15_000_000
    backend.close()
    assert not log.exists()


def test_a_database_without_power_failure_safety(file: Path) -> None:
    for durability, level in (("full", 2), ("normal", 1)):
        with SqliteBackend(file, durability=durability) as backend:  # type: ignore[arg-type]
            assert backend.write("/a.txt", "x", overwrite=True).ok
            with backend._database().session() as session:
                assert session.execute("PRAGMA synchronous").fetchone() == (level,)


def test_many_directories_are_listed_by_skipping(file: Path) -> None:
    with SqliteBackend(file) as backend:
        names = [f"/d{number:02}/{sub}/{leaf}.txt" for number in range(40) for sub in "ab" for leaf in range(20)]
        names += ["/d05.txt", "/d05-x/1", "/d05!", "/zz", "/d05/a-b", "/d05/a!"]
        backend.upload_files([(name, b"x") for name in names])
        listed = [entry.path for entry in backend.ls("/").entries]
        assert listed == sorted({*(f"/d{number:02}/" for number in range(40)), "/d05.txt", "/d05-x/", "/d05!", "/zz"})
        assert [entry.path for entry in backend.ls("/d05").entries] == ["/d05/a!", "/d05/a-b", "/d05/a/", "/d05/b/"]


def test_a_backend_that_was_not_used_is_pickled(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "files.db", namespace="one")
    backend.write("/a", "text")
    other = pickle.loads(pickle.dumps(SqliteBackend(tmp_path / "files.db", namespace="one")))
    [found] = other.download_files(["/a"])
    assert found.content == b"text"
