"""PostgresBackend over connections that break: no acknowledged change is lost, and none is made twice."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from deepfs.backends.postgres import PostgresBackend
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from deepfs.text.flat_tree import ChangedError
from support.cutting_proxy import CuttingProxy, proxied
from support.postgres import PostgresServer, restartable_server
from support.postgres_files import fresh_namespace, sql
from support.processes import started

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t"
POLICY = RetryPolicy(first_delay=0.001, longest_delay=0.05, attempts=8)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncIterator[CuttingProxy]:
    async with proxied(postgres_server.directory / ".s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
async def backend(proxy: CuttingProxy, postgres_files_dsn: str) -> AsyncIterator[PostgresBackend]:
    database = postgres_files_dsn.partition("@/")[2].partition("?")[0]
    dsn = f"postgresql://postgres:{SECRET}@127.0.0.1:{proxy.port}/{database}?sslmode=disable"
    async with PostgresBackend(dsn, fresh_namespace(), retries=POLICY) as backend:
        assert (await backend.als("/")).ok
        yield backend


STEPS = {"edit": 1, "edit by a plan": 13, "upload": 19, "move": 19}
"""How many bytes lie between two cuts of answers. Those of an edit in one statement are all tried.

The answers of an edit by a plan hold the content, which each edit makes longer, so the steps must be longer still.
"""
STEPS_OF_REQUESTS = {"create": 7, "overwrite": 7, "edit": 7, "edit by a plan": 11}

Call = Callable[[PostgresBackend, int], Awaitable[Any]]

CALLS: dict[str, tuple[Call, Call]] = {
    "create": (lambda backend, n: backend.awrite(f"/new/{n}", f"{n}"), lambda backend, n: backend.aread(f"/new/{n}")),
    "edit": (lambda backend, n: backend.aedit("/log", "|", f"{n},|"), lambda backend, n: backend.aread("/log")),
    "edit by a plan": (
        lambda backend, n: backend.aedit("/log", "|", f"{n},|", replace_all=True),
        lambda backend, n: backend.aread("/log"),
    ),
    "overwrite": (
        lambda backend, n: backend.awrite("/log", f"{n},", overwrite=True),
        lambda backend, n: backend.aread("/log"),
    ),
    "upload": (
        lambda backend, n: backend.aupload_files([(f"/up/{n}/a", b"\0"), (f"/up/{n}/b", b"text")]),
        lambda backend, n: backend.adownload_files([f"/up/{n}/a", f"/up/{n}/b"]),
    ),
    "delete": (lambda backend, n: backend.adelete(f"/gone/{n}"), lambda backend, n: backend.aread("/log")),
    "move": (lambda backend, n: backend.amove(f"/{n - 1}", f"/{n}"), lambda backend, n: backend.aread(f"/{n}/f")),
}


@pytest.mark.parametrize("direction", ["answer", "request"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_connection_that_is_cut_at_any_byte_loses_and_repeats_no_change(
    backend: PostgresBackend, proxy: CuttingProxy, name: str, direction: Any
) -> None:
    """Each operation succeeds, since it is sent again, unless it was made."""
    change, look = CALLS[name]
    await backend.awrite("/log", "|")
    await backend.awrite("/-1/f", "x")
    gone = [(f"/gone/{each}", b"x") for each in range(300 if name == "delete" else 0)]
    assert {each.error for each in await backend.aupload_files(gone)} <= {None}
    number, step = 0, STEPS.get(name, 3) if direction == "answer" else STEPS_OF_REQUESTS.get(name, 83)
    while True:
        proxy.cut(number * step, direction)
        outcome = await change(backend, number)
        assert [each.error for each in (outcome if isinstance(outcome, list) else [outcome])] == [None] * (
            len(outcome) if isinstance(outcome, list) else 1
        )
        if proxy.relent():
            break
        number += 1
    assert number > 3  # Statements that the connection knows already take few bytes.
    assert proxy.cuts >= number
    found = await look(backend, number)
    if name.startswith("edit"):
        assert found.file_data.content == "".join(f"{each}," for each in range(number + 1)) + "|"
    elif name == "create":
        listed = await backend.als("/new")
        assert sorted(int(entry.path[5:]) for entry in listed.entries) == list(range(number + 1))
    elif name == "upload":
        assert [each.content for each in found] == [b"\0", b"text"]
    else:
        assert found.ok


async def test_reads_are_sent_again(backend: PostgresBackend, proxy: CuttingProxy) -> None:
    assert (await backend.awrite("/d/a", "text\n" * 50)).ok
    for offset in range(0, 700, 13):
        proxy.cut(offset)
        results = [
            await backend.aread("/d/a"),
            await backend.als("/d"),
            await backend.agrep("text"),
            await backend.aglob("*"),
        ]
        assert [result.error for result in results] == [None] * 4
        proxy.relent()
    assert proxy.cuts > 40


async def test_a_change_of_another_between_a_lost_answer_and_the_look_is_not_taken_for_ours(
    backend: PostgresBackend, proxy: CuttingProxy, postgres_files_dsn: str
) -> None:
    """The row has another version by then; the journal still knows."""
    other = PostgresBackend(postgres_files_dsn, backend._namespace().split("/"))
    assert (await backend.awrite("/log", "|")).ok
    assert (await backend.aedit("/log", "|", "|")).code == "invalid_content"
    assert (await backend.aedit("/log", "none", "x")).code == "no_match"  # From here on, the statement is prepared.
    made = backend._changes._was_made

    async def meanwhile(*given: Any) -> bool:
        assert (await other.aedit("/log", "|", "other,|")).ok
        return await made(*given)

    backend._changes._was_made = meanwhile  # type: ignore[method-assign]
    proxy.cut(0)
    assert (await backend.aedit("/log", "|", "own,|")).ok
    assert proxy.cuts == 1
    assert (await other.aread("/log")).unwrap().content == "own,other,|"
    await other.aclose()


@pytest.mark.parametrize("entries", [1, 64])
async def test_a_change_that_may_still_be_under_way_is_prevented_or_found(
    backend: PostgresBackend,
    proxy: CuttingProxy,
    postgres_files_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
) -> None:
    """The statement waits for a lock when its connection breaks: the server may make it later."""
    # So many changes until it is tidied up.
    monkeypatch.setattr("deepfs.backends.postgres.files._FORGOTTEN_AT_ONCE", entries)
    assert (await backend.awrite("/log", "|")).ok
    space = backend._namespace()
    import asyncpg

    blocker = await asyncpg.connect(postgres_files_dsn, password="")
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("SELECT 1 FROM deepfs.files WHERE namespace = $1 FOR UPDATE", space)
    async with anyio.create_task_group() as tasks:
        outcomes: list[Any] = []

        async def edit() -> None:
            outcomes.append(await backend.aedit("/log", "|", "once,|"))

        tasks.start_soon(edit)
        await anyio.sleep(0.1)
        proxy.break_all()
        await anyio.sleep(0.1)
        await transaction.rollback()
    await blocker.close()
    assert outcomes[0].ok
    assert (await backend.aread("/log")).unwrap().content == "once,|"


async def test_an_error_after_a_change_was_made_does_not_make_it_again(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the database runs transactions as serializable, even the removal of entries can fail."""
    assert (await backend.awrite("/log", "|")).ok
    monkeypatch.setattr("deepfs.backends.postgres.files._FORGOTTEN_AT_ONCE", 1)
    settle = backend._changes._settle

    async def collides(*_: Any) -> None:
        raise ChangedError("/")

    async def settled(*given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(backend._client, "ask", collides)
            await settle(*given)

    monkeypatch.setattr(backend._changes, "_settle", settled)
    for number in range(3):
        assert (await backend.awrite(f"/new-{number}", "x")).ok
        assert (await backend.aedit("/log", "|", "once,|")).ok
    assert (await backend.aread("/log")).unwrap().content == "once," * 3 + "|"


async def test_requests_that_collide_are_sent_again(backend: PostgresBackend) -> None:
    import asyncpg

    errors: list[Exception] = [asyncpg.SerializationError("x"), asyncpg.DeadlockDetectedError("x")]

    async def look(connection: Any) -> Any:
        if errors:
            raise errors.pop()
        return await connection.fetchval("SELECT 1")

    assert await backend._client.ask("t", look) == 1


async def test_an_edit_that_collides_is_planned_anew(backend: PostgresBackend, postgres_files_dsn: str) -> None:
    assert (await backend.awrite("/log", "|")).ok
    taken = await anyio.to_thread.run_sync(sql, postgres_files_dsn, "SELECT max(change) FROM deepfs.files_journal")
    backend._changes._numbers.append(taken[0][0])
    assert (await backend.aedit("/log", "|", "once,|")).error is None


async def test_entries_that_processes_left_behind_are_removed(
    backend: PostgresBackend, postgres_files_dsn: str
) -> None:
    assert (await backend.awrite("/log", "|")).ok
    run = partial(anyio.to_thread.run_sync, sql, postgres_files_dsn)
    old = "INSERT INTO deepfs.files_journal SELECT -number, 't', false, now() - make_interval(days => number) {}"
    await run(old.format("FROM generate_series(0, 9) AS number"))
    backend._changes._numbers.clear()
    assert (await backend.awrite("/new", "x")).ok
    assert await run("SELECT change FROM deepfs.files_journal WHERE change <= 0") == [(0,)]
    await run("DELETE FROM deepfs.files_journal WHERE change <= 0")


FORKS = """
import asyncio, os, sys
import anyio
from deepfs import PostgresBackend

backend = PostgresBackend(sys.argv[1], "t")
assert backend.write("/first", "x").ok
loop = asyncio.new_event_loop()

def connection():
    return loop.run_until_complete(backend._client.ask("t", lambda c: c.fetchval("SELECT pg_backend_pid()")))

before = connection()
anyio.run(backend.aread, "/first", backend="trio")

async def with_a_pool():
    import asyncpg
    pool = await asyncpg.create_pool(sys.argv[1], min_size=1, max_size=1)
    given = PostgresBackend(pool, "t")
    assert (await given.aread("/first")).ok
    child = os.fork()
    name = "parent" if child else "child"
    code = (await given.aread("/first")).code
    if child == 0:
        print(name, code, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    await pool.close()
    print(name, code, flush=True)

anyio.run(with_a_pool)
child = os.fork()
name = "parent" if child else "child"
ok = [backend.write(f"/{name}-{number}", "x").ok for number in range(3)]
ok.append(anyio.run(backend.aread, "/first", backend="trio").ok)
if child:
    os.waitpid(child, 0)  # So that what both print is not mixed.
print(name, ok, connection() == before, flush=True)
"""


def test_a_forked_child_has_connections_and_numbers_of_its_own(postgres_dsn: str) -> None:
    with started(FORKS, postgres_dsn) as process:
        lines = process.communicate(timeout=60)[0].splitlines()
    works = "[True, True, True, True]"
    expected = ["child backend_error", "parent None", f"child {works} False", f"parent {works} True"]
    assert sorted(lines) == sorted(expected)
    [[files, versions]] = sql(postgres_dsn, "SELECT count(*), count(DISTINCT version) FROM deepfs.files")
    assert files == versions == 7


async def test_a_server_that_does_not_answer_is_a_clear_error_until_it_is_back(
    backend: PostgresBackend, proxy: CuttingProxy
) -> None:
    assert (await backend.awrite("/a", "x")).ok
    proxy.is_open = False
    proxy.break_all()
    for result in (await backend.aread("/a"), await backend.awrite("/b", "x"), await backend.agrep("x")):
        assert result.code == "backend_error"
        assert result.error is not None
        assert SECRET not in result.error
        assert str(proxy.port) not in result.error
    failed = await gather([partial(backend.awrite, f"/lost/{n}", "x") for n in range(30)])
    assert {result.code for result in failed} == {"backend_error"}
    proxy.is_open = True
    assert (await backend.amove("/a", "/c")).error is None
    assert [info.path for info in (await backend.aglob("**")).matches or ()] == ["/c"]


@pytest.fixture
def crashing() -> Iterator[tuple[PostgresServer, Callable[[], None]]]:
    with restartable_server() as server:
        yield server


async def test_a_server_that_crashes_in_the_middle_of_many_operations(
    crashing: tuple[PostgresServer, Callable[[], None]],
) -> None:
    """The server recovers what it acknowledged: `fsync` is off, but the machine keeps running."""
    server, restart = crashing
    count = 150
    policy = RetryPolicy(attempts=60, first_delay=0.05, longest_delay=0.3)
    synchronous = "ALTER DATABASE postgres SET synchronous_commit = on"
    await anyio.to_thread.run_sync(partial(sql, server.dsn(), synchronous))
    async with PostgresBackend(server.dsn(), "t", retries=policy) as backend:
        assert (await backend.awrite("/log", "".join(f"<{n}>\n" for n in range(count)))).ok

        async def call(number: int) -> Any:
            await anyio.sleep(number * 0.004)
            edited = await backend.aedit("/log", f"<{number}>", f"({number})")
            created = await backend.awrite(f"/new/{number}", "x")
            return edited.error or created.error

        async def crash() -> None:
            for _ in range(2):
                await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(restart)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            errors = await gather(partial(call, number) for number in range(count))
        assert [error for error in errors if error] == []
        assert (await backend.aread("/log")).unwrap().content == "".join(f"({n})\n" for n in range(count))
        assert len((await backend.als("/new")).entries or ()) == count


async def test_a_watch_reconnects_with_resync(
    backend: PostgresBackend, proxy: CuttingProxy, postgres_files_dsn: str
) -> None:
    other = PostgresBackend(postgres_files_dsn, backend._namespace().split("/"))
    events = backend.awatch("/")
    assert (await anext(events)).kind == "resync"
    proxy.break_all()
    assert (await other.awrite("/missed", "1")).ok
    with anyio.fail_after(10):
        assert (await anext(events)).kind == "resync"
    assert (await other.awrite("/seen", "1")).ok
    seen = await anext(events)
    assert (seen.path, seen.kind) == ("/seen", "created")
    await events.aclose()
    await other.aclose()


async def test_a_watch_begins_when_changes_that_did_not_see_it_are_there(
    backend: PostgresBackend, postgres_files_dsn: str
) -> None:
    assert (await backend.awrite("/a", "1")).ok
    began = anyio.Event()

    async def watch() -> None:
        events = backend.awatch("/")
        await anext(events)
        began.set()
        await events.aclose()

    async with backend._client.listener() as connection, anyio.create_task_group() as tasks:
        async with connection.transaction():
            await connection.execute("UPDATE deepfs.files SET content = '2' WHERE namespace = $1", backend._namespace())
            tasks.start_soon(watch)
            await anyio.sleep(0.3)
            assert not began.is_set()
        with anyio.fail_after(5):
            await began.wait()
