"""What only PostgresBackend has: its statements, tables, pools and tenants."""

import gc
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepfs import run_sync
from deepfs.backends.postgres import PostgresBackend, client
from deepfs.backends.postgres.client import Client
from deepfs.backends.postgres.files import ReplacedText
from deepfs.errors import DeepFSError
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from deepfs.text.edits import replace
from support.postgres import PostgresServer
from support.postgres_files import fresh_namespace, peek, sql
from support.processes import printed_at_once

pytestmark = pytest.mark.anyio

PROCESSES = 4
EDITS = 50


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def backend(postgres_files_dsn: str) -> AsyncIterator[PostgresBackend]:
    async with PostgresBackend(postgres_files_dsn, fresh_namespace()) as backend:
        assert (await backend.als("/")).ok
        yield backend


async def in_thread(function: Any, *given: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(function, *given))


# --- statements ---


TEXTS = st.text(st.sampled_from("ab\r\né.%_\\"), max_size=12)


@settings(max_examples=25)
@given(cases=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=10, max_size=10))
def test_an_edit_by_the_database_is_exactly_one_by_the_core(postgres_files_dsn: str, cases: Any) -> None:
    run_sync(compare_edits, postgres_files_dsn, cases)


async def compare_edits(dsn: str, cases: list[tuple[str, str, str]]) -> None:
    async with PostgresBackend(dsn, fresh_namespace()) as backend:
        for content, old, new in cases:
            assert (await backend.awrite("/f", content, overwrite=True)).ok
            by_database = False
            if backend._is_simple_edit("/f", old, new):
                by_database = await backend._change_at_once("/f", ReplacedText, old, new)
            try:
                expected = replace("/f", content, old, new)
            except DeepFSError:
                assert not by_database
                expected = None
            read = await backend.aread_raw("/f")
            assert read.data is not None
            assert read.data.content == (expected.content if by_database and expected else content)
            if by_database:
                assert expected is not None
                assert expected.occurrences == 1
            elif expected is not None and "\r\n" not in content and backend._is_simple_edit("/f", old, new):
                raise AssertionError("the database can make this edit")


async def test_a_write_takes_one_statement_unless_something_is_in_the_way(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/a/b", "/d-/x", "/d0", "/é/%/x"):
        assert (await backend.awrite(path, "there")).ok
    asked = 0

    async def ask(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return await Client.ask(backend._client, *given)

    monkeypatch.setattr(backend._client, "ask", ask)
    expected = {
        "/d": None,
        "/a/b0": None,
        "/é/%x": None,
        "/a/b": "already_exists",
        "/a": "is_directory",
        "/é/%": "is_directory",
        "/": "is_directory",
        "/a/b/c/d": "not_a_directory",
        "/" + "x" * 3000: "invalid_path",
    }
    for path, code in expected.items():
        before = asked
        assert (await backend.awrite(path, "new")).code == code, path
        assert asked == before or code is not None, path
    there = (await backend.aread_raw("/a/b")).unwrap()
    assert there.content == "there"
    before = asked
    assert (await backend.awrite("/a/b", "newer", overwrite=True)).ok
    assert (await backend.awrite("/e", "newer", overwrite=True)).ok
    assert asked == before
    found = (await backend.aread_raw("/a/b")).unwrap()
    assert (found.content, found.created_at) == ("newer", there.created_at)
    assert found.modified_at != there.modified_at
    assert (await backend.awrite("/a", "newer", overwrite=True)).code == "is_directory"


async def test_a_subclass_that_judges_changes_sees_each(postgres_files_dsn: str) -> None:
    class Judging(PostgresBackend):
        seen = 0

        def _before_apply(self, changes: Any) -> Any:
            self.seen += len(changes)
            return changes

    async with Judging(postgres_files_dsn, fresh_namespace()) as backend:
        assert (await backend.awrite("/a", "x")).ok
        assert (await backend.aedit("/a", "x", "y")).ok
        assert backend.seen == 2


# --- several processes ---

CHILD = """
import sys
import anyio
from deepfs.backends.postgres import PostgresBackend

async def main(dsn, space, first, count):
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    async with PostgresBackend(dsn, space.split("/")) as backend, anyio.create_task_group() as tasks:
        for number in range(first, first + count):
            tasks.start_soon(edit, backend, number)

async def edit(backend, number):
    result = await backend.aedit("/log.txt", f"<{number}>", f"({number})", replace_all=number % 2 == 0)
    print("ok" if result.ok else result.error, flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""


async def test_processes_lose_no_edit(backend: PostgresBackend, postgres_files_dsn: str) -> None:
    total = PROCESSES * EDITS
    assert (await backend.awrite("/log.txt", "".join(f"<{n}>\n" for n in range(total)))).ok
    parts = [(postgres_files_dsn, backend._namespace(), first, EDITS) for first in range(0, total, EDITS)]
    outcomes = await in_thread(printed_at_once, CHILD, parts)
    assert outcomes == ["ok"] * total
    stored = await in_thread(peek, postgres_files_dsn, backend._namespace(), "/log.txt")
    assert stored == "".join(f"({n})\n" for n in range(total)).encode()


# --- tables ---

FIRST = """
import sys
import anyio
from deepfs.backends.postgres import PostgresBackend

async def main(dsn, number):
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    async with PostgresBackend(dsn, "t", row_level_security=number % 100 == 0) as backend:
        result = await backend.awrite(f"/{number}", "x")
        print("ok" if result.ok else result.error, flush=True)

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""


async def test_many_processes_that_start_at_once_make_the_tables_once(postgres_dsn: str) -> None:
    children = [(postgres_dsn, number) for number in range(0, 400, 50)]
    assert await in_thread(printed_at_once, FIRST, children) == ["ok"] * 8
    applied = await in_thread(sql, postgres_dsn, "SELECT number FROM deepfs.files_migration ORDER BY number")
    assert applied == [(-2,), (-1,), (1,)]


async def test_a_role_without_rights_to_make_tables_uses_those_that_are_there(postgres_dsn: str) -> None:
    async with PostgresBackend(postgres_dsn, "t") as owner:
        assert (await owner.awrite("/a", "x")).ok
    for statement in (
        "DROP ROLE IF EXISTS plain_user",
        "CREATE ROLE plain_user LOGIN",
        "GRANT USAGE ON SCHEMA deepfs TO plain_user",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA deepfs TO plain_user",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA deepfs TO plain_user",
    ):
        await in_thread(sql, postgres_dsn, statement)
    async with PostgresBackend(postgres_dsn.replace("postgres@", "plain_user@"), "t") as plain:
        assert (await plain.aedit("/a", "x", "y")).ok
        assert (await plain.agrep("y")).matches
    await in_thread(sql, postgres_dsn, "DROP OWNED BY plain_user")


async def test_a_role_without_any_right_gets_a_clear_error(postgres_dsn: str) -> None:
    await in_thread(sql, postgres_dsn, "DROP ROLE IF EXISTS nobody_at_all")
    await in_thread(sql, postgres_dsn, "CREATE ROLE nobody_at_all LOGIN")
    async with PostgresBackend(postgres_dsn.replace("postgres@", "nobody_at_all@"), "t") as backend:
        result = await backend.awrite("/a", "x")
    assert (result.code, result.error) == ("permission_denied", "Error: The database refused access")


async def test_another_schema_and_table(postgres_dsn: str) -> None:
    name = "o\"d.d\\ ' é"
    async with (
        PostgresBackend(postgres_dsn, "t", schema=name, table=name) as odd,
        PostgresBackend(postgres_dsn, "t") as plain,
    ):
        assert (await odd.awrite("/a", "odd")).ok
        assert (await plain.awrite("/a", "plain")).ok
        assert (await odd.agrep("odd")).matches
        assert not (await plain.agrep("odd")).matches
        events = odd.awatch()
        assert (await anext(events)).kind == "resync"
        assert (await odd.aedit("/a", "odd", "new")).ok
        assert (await anext(events)).kind == "modified"
        await events.aclose()


# --- pools and loops ---


async def test_a_database_of_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    make = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
    await in_thread(sql, postgres_server.dsn(), "DROP DATABASE IF EXISTS latin")
    await in_thread(sql, postgres_server.dsn(), make)
    async with PostgresBackend(postgres_server.dsn("latin"), "t") as backend:
        result = await backend.awrite("/a", "x")
    assert (result.code, result.error) == (
        "backend_error",
        "Error: The database is encoded in LATIN1; deepfs needs UTF8",
    )
    await in_thread(sql, postgres_server.dsn(), "DROP DATABASE latin WITH (FORCE)")


async def test_times_that_python_does_not_know_are_left_out(backend: PostgresBackend, postgres_files_dsn: str) -> None:
    times = {"/a": "infinity", "/b": "-infinity", "/c": "0044-03-15 BC", "/d": "294276-01-01", "/e": "2026-01-01Z"}
    for path, time in times.items():
        assert (await backend.awrite(path, "needle")).ok
        values = time, time, backend._namespace(), path
        update = "UPDATE deepfs.files SET created_at = %s, modified_at = %s WHERE namespace = %s AND path = %s"
        await anyio.to_thread.run_sync(sql, postgres_files_dsn, update, *values)
    listed = [entry.modified_at for entry in (await backend.als("/")).entries or ()]
    assert listed == [*[None] * 4, "2026-01-01T00:00:00.000000+00:00"]
    assert len((await backend.agrep("needle")).matches or ()) == len((await backend.aglob("*")).matches or ()) == 5
    for path in times:
        assert (await backend.aread_raw(path)).unwrap().content == "needle"
        assert (await backend.aedit(path, "e", "E", replace_all=True)).ok
        assert (await backend.amove(path, f"/moved{path}")).ok


async def test_a_given_pool_is_used_and_never_closed(postgres_files_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_files_dsn, password="", min_size=0, max_size=2) as pool:
        async with PostgresBackend(pool, fresh_namespace()) as backend:
            assert (await backend.awrite("/a", "x")).ok
            assert backend.bound_to_this_thread()
            with pytest.raises(RuntimeError, match="aread"):
                backend.read("/a")
            assert (await in_thread(backend.read, "/a")).ok
            events = backend.awatch()
            assert (await anext(events)).kind == "resync"
            await events.aclose()
            assert (await gather([partial(backend.aread, "/a")] * 20))[0].ok
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_watch_does_not_take_the_only_connection(postgres_files_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_files_dsn, password="", min_size=1, max_size=1) as pool:
        backend = PostgresBackend(pool, fresh_namespace())
        with pytest.raises(DeepFSError, match="open a larger pool"):
            await anext(backend.awatch("/"))
        assert (await backend.awrite("/a", "x")).ok


async def test_a_pool_whose_loop_ended_is_a_clear_error(postgres_files_dsn: str) -> None:
    def left_behind() -> Any:
        import asyncio

        async def opened() -> Any:
            pool = asyncpg.create_pool(postgres_files_dsn, password="", min_size=0)
            return await pool

        return asyncio.run(opened())

    backend = PostgresBackend(await in_thread(left_behind), "t")
    result = await backend.aread("/a")
    assert result.code == "backend_error"
    assert result.error is not None
    assert "no longer runs" in result.error


def test_it_works_from_scripts_and_from_several_loops(postgres_files_dsn: str) -> None:
    with PostgresBackend(postgres_files_dsn, fresh_namespace()) as backend:
        assert backend.write("/a", "x").ok
        for loop in ("asyncio", "asyncio", "trio"):
            assert anyio.run(backend.aread, "/a", backend=loop).ok
        assert backend.read("/a").ok
        assert len(backend._client._pools) <= 2


async def count_connections(dsn: str) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return int((await in_thread(sql, dsn, query))[0][0])


async def check_connections(dsn: str, expected: int) -> None:
    """Check the number of connections; those that were closed, the one of the last count too, end a little later."""
    found = -1
    for _ in range(500):
        found = await count_connections(dsn)
        if found == expected:
            break
        await anyio.sleep(0.02)
    assert found == expected


async def test_closing_ends_all_connections(postgres_dsn: str) -> None:
    backend = PostgresBackend(postgres_dsn, "t", max_connections=3)
    await gather([partial(backend.als, "/")] * 9)
    await check_connections(postgres_dsn, 3)
    await backend.aclose()
    await check_connections(postgres_dsn, 0)
    assert (await backend.als("/")).ok  # A new pool.
    await backend.aclose()


async def test_backends_share_a_pool_that_the_last_one_closes(postgres_dsn: str) -> None:
    backends = [PostgresBackend(postgres_dsn, f"agent-{number}", max_connections=3) for number in range(100)]
    last = backends[-1]

    async def write_and_read(backend: PostgresBackend) -> str:
        assert (await backend.awrite("/a", backend._namespace())).ok
        return (await backend.aread_raw("/a")).unwrap().content

    read = await gather([partial(write_and_read, backend) for backend in backends])
    assert read == [backend._namespace() for backend in backends]
    await check_connections(postgres_dsn, 3)
    await in_thread(backends.pop(0).close)
    await backends.pop(0).aclose()
    backends[:] = []
    await check_connections(postgres_dsn, 3)
    pools = [*client._shared.values()]  # So that they are no garbage.
    await last.aclose()
    await check_connections(postgres_dsn, 0)
    assert (await last.aread("/a")).ok
    await check_connections(postgres_dsn, 1)
    del last, pools
    gc.collect()
    await check_connections(postgres_dsn, 0)


async def test_a_pool_is_not_closed_under_a_request_of_another(postgres_dsn: str) -> None:
    async with PostgresBackend(postgres_dsn, "t") as first, PostgresBackend(postgres_dsn, "t") as second:
        assert (await first.awrite("/a", "x")).ok
        assert (await second.aread("/a")).ok
        with psycopg.connect(postgres_dsn) as holder:
            holder.execute("SELECT * FROM deepfs.files FOR UPDATE")
            async with anyio.create_task_group() as tasks:

                @tasks.start_soon
                async def edit() -> None:
                    assert (await second.aedit("/a", "x", "y")).ok

                await anyio.sleep(0.1)
                await first.aclose()
                assert (await first.aread("/a")).ok
                await first.aclose()
                holder.rollback()


async def test_no_backend_takes_all_connections_of_a_shared_pool(postgres_dsn: str) -> None:
    greedy, other = (PostgresBackend(postgres_dsn, fresh_namespace(), max_connections=2) for _ in range(2))

    async def hold() -> None:
        async with greedy._client.connection():
            await anyio.sleep_forever()

    async with greedy, other, anyio.create_task_group() as tasks:
        assert (await other.awrite("/a", "x")).ok
        assert (await greedy.als("/")).ok
        tasks.start_soon(hold)
        tasks.start_soon(hold)
        await anyio.sleep(0.2)
        with anyio.fail_after(60):
            assert (await other.aread("/a")).ok
        tasks.cancel_scope.cancel()


async def test_what_differs_in_a_pool_is_not_shared(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [
        (postgres_dsn, {}),
        (postgres_dsn, {"table": "others", "row_level_security": True, "retries": RetryPolicy(attempts=2)}),
        (postgres_dsn, {"max_connections": 9}),
        (postgres_dsn, {"statement_cache_size": 0}),
        (postgres_dsn.replace("postgres@", "postgres:secret@"), {}),
    ]
    backends = [PostgresBackend(dsn, "t", **options) for dsn, options in ways]
    for backend in backends:
        assert (await backend.als("/")).ok
    await check_connections(postgres_dsn, 4)
    monkeypatch.setenv("PGPASSWORD", "of another caller")
    async with PostgresBackend(postgres_dsn, "t") as other:
        assert (await other.als("/")).ok
        await check_connections(postgres_dsn, 5)
    for backend in backends:
        await backend.aclose()
    await check_connections(postgres_dsn, 0)


async def test_no_error_shows_the_password() -> None:
    policy = RetryPolicy(attempts=2, first_delay=0.001)
    for dsn in (
        "postgresql://user:s3cr3t@127.0.0.1:1/none?sslmode=disable",
        "postgresql://user:s3cr3t@[::1/none",
        "postgresql://user:pw#s3cr3t@127.0.0.1/none",
        "postgresql://user:s3cr3t@127.0.0.1:port/none",
        "postgresql://user:s3cr3t@127.0.0.1:1/none?sslmode=odd",
        "postgresql://user:s3cr3t@/none?host=/nowhere",
    ):
        async with PostgresBackend(dsn, "t", retries=policy) as backend:
            shown = [repr(backend), repr(backend._client), repr(backend._scope())]
            results = (await backend.aread("/a"), await backend.awrite("/a", "x"), await backend.aedit("/a", "x", "y"))
        assert [result.code for result in results] == ["backend_error"] * 3, dsn
        assert not [text for text in [*shown, *map(str, results)] if "s3cr3t" in text]


def test_wrong_arguments() -> None:
    told = []
    for wrong in (
        *({"database": "mysql://u:s3cr3t@h/d"}, {"database": 7}, {"schema": ""}, {"schema": "x" * 41}),
        *({"namespace": name} for name in ("", (), ("a\n",), "a\0")),
        *({"table": "a\0"}, {"max_scanned": 0}),
    ):
        arguments: dict[str, Any] = {"database": "postgresql://localhost/x", "namespace": "t", **wrong}
        with pytest.raises((ValueError, TypeError)) as raised:
            PostgresBackend(arguments.pop("database"), arguments.pop("namespace"), **arguments)
        told.append(str(raised.value))
    assert not [text for text in told if "s3cr3t" in text]


# --- hostile names and contents ---


async def test_what_the_database_cannot_hold_is_refused_before_it_is_sent(backend: PostgresBackend) -> None:
    long = "/" + "/".join("ü" * 100 for _ in range(14))
    assert (await backend.awrite(long, "x")).code == "invalid_path"
    assert (await backend.aread(long)).code == "file_not_found"
    assert (await backend.aedit(long, "a", "b")).code == "file_not_found"
    assert (await backend.als(long)).code == "file_not_found"
    responses = await backend.aupload_files([(long, b"x"), ("/short", b"x")])
    assert [response.error for response in responses] == ["invalid_path", None]
    assert (await backend.amove("/short", long)).code == "invalid_path"
    fits = "/" + "/".join("x" * 200 for _ in range(12)) + "/"
    assert (await backend.awrite(fits + "y" * 150, "x")).ok
    incompressible = random.Random(1)
    letters = "".join(chr(incompressible.randrange(0x4E00, 0x9FFF)) for _ in range(80))
    longest = "/" + "/".join(letters[:80] for _ in range(10))
    assert (await backend.awrite(longest, "x")).ok
    assert (await backend.awrite("/nul", "a\0b")).code == "invalid_content"
    assert (await backend.awrite("/half", "a\ud800b")).code == "invalid_content"
    assert (await backend.aedit("/short", "x", "\0")).code == "invalid_content"
    assert (await backend.aedit("/short", "\ud800", "y")).code == "no_match"
    assert (await backend.agrep("\0")).code == "invalid_pattern"


async def test_names_with_signs_of_sql(backend: PostgresBackend) -> None:
    names = [
        "/%", "/_", "/'", '/"', "/a\\b", "/$1", "/é'; DROP TABLE deepfs.files; --", "/100%_\\", "/\U0010ffff",
        "/a\nb",
    ]  # fmt: skip
    for name in names:
        assert (await backend.awrite(name, f"needle%_\\ {name[1:]}")).ok, name
        assert (await backend.aread(name)).ok
    listed = await backend.als("/")
    assert sorted(entry.path for entry in listed.entries or ()) == sorted(names)
    for pattern in ("needle%_\\", "%_", "\\ "):
        assert len((await backend.agrep(pattern)).matches or ()) == len(names)
    assert [match.path for match in (await backend.aglob("100%*")).matches or ()] == ["/100%_\\"]


# --- tenants ---


async def test_row_level_security_hides_the_rows_of_others_from_raw_sql(postgres_dsn: str) -> None:
    for statement in ("DROP ROLE IF EXISTS tenant_role", "CREATE ROLE tenant_role LOGIN"):
        await in_thread(sql, postgres_dsn, statement)
    async with (
        PostgresBackend(postgres_dsn, "one", row_level_security=True) as one,
        PostgresBackend(postgres_dsn, "two", row_level_security=True) as two,
    ):
        assert (await one.awrite("/a", "of one")).ok
        assert (await two.awrite("/a", "of two")).ok
        for statement in (
            "GRANT USAGE ON SCHEMA deepfs TO tenant_role",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA deepfs TO tenant_role",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA deepfs TO tenant_role",
        ):
            await in_thread(sql, postgres_dsn, statement)
        role = postgres_dsn.replace("postgres@", "tenant_role@")
        query = "SELECT namespace, content FROM deepfs.files"
        assert await in_thread(sql, role, query) == []
        assert await in_thread(sql, role, "SELECT * FROM deepfs.files_journal") == []
        async with PostgresBackend(role, "one") as tenant:  # It finds the policies by itself.
            assert (await tenant.aedit("/a", "of", "by")).ok
            assert (await tenant.awrite("/b", "new")).ok
            assert (await tenant.aupload_files([("/c", b"\0"), ("/d", b"x")]))[0].error is None
            assert [match.path for match in (await tenant.agrep("by one")).matches or ()] == ["/a"]
            assert [match.path for match in (await tenant.aglob("**")).matches or ()] == ["/a", "/b", "/c", "/d"]
            connection = await asyncpg.connect(role, password="")
            try:
                await connection.execute("SELECT set_config('deepfs.namespace', 'one', false)")
                assert {row["namespace"] for row in await connection.fetch(query)} == {"one"}
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(
                        "INSERT INTO deepfs.files (namespace, path, content) VALUES ('two', '/x', '')"
                    )
                assert (
                    await connection.execute("UPDATE deepfs.files SET content = '' WHERE namespace = 'two'")
                    == "UPDATE 0"
                )
            finally:
                await connection.close()
            async with tenant._client.connection() as pooled:
                assert await pooled.fetch(query) == []  # The setting ended with its transaction.
        assert (await two.aread("/a")).unwrap().content == "of two"
    await in_thread(sql, postgres_dsn, "DROP OWNED BY tenant_role")
