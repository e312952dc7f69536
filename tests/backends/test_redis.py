"""What only RedisBackend has: its keys, scripts and stream, files that expire, and data of strangers."""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis
import redis.asyncio

from deepfs import run_sync
from deepfs.backends.redis import RedisBackend
from deepfs.backends.redis import files as redis_files
from deepfs.backends.redis.scripts import Keys
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from support.processes import printed_at_once, started
from support.redis_server import RedisKeys, RedisServer, fresh_redis_namespace, running_redis

pytestmark = pytest.mark.anyio

PROCESSES = 4
EDITS = 50


@pytest.fixture
def keys(redis_server: RedisServer) -> RedisKeys:
    return RedisKeys(redis_server, fresh_redis_namespace())


@pytest.fixture
async def backend(keys: RedisKeys) -> AsyncIterator[RedisBackend]:
    async with RedisBackend(keys.server.url, keys.namespace) as backend:
        yield backend


async def in_thread(function: Callable[..., Any], *given: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(function, *given))


async def raw(keys: RedisKeys, *command: Any) -> Any:
    """The answer to a command that is sent without deepfs."""

    def send() -> Any:
        with keys.server.client() as client:
            return client.execute_command(*command)

    return await in_thread(send)


def paths_of(entries: Any) -> list[str]:
    return [entry.path for entry in entries]


# --- keys ---


def slot(key: bytes) -> int:
    """The slot of a key in a cluster, by the specification of Redis: CRC16 (XMODEM) of the hash tag."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc % 16384


def test_the_slots_of_the_specification() -> None:
    assert slot(b"123456789") == 0x31C3 % 16384
    assert slot(b"{user1000}.following") == slot(b"{user1000}.followers") == slot(b"user1000")


@pytest.mark.parametrize("namespace", ["plain", ("acme", "a}{b", "{x}"), "é:/x"])
async def test_all_keys_of_a_tree_lie_in_one_slot(redis_server: RedisServer, namespace: Any) -> None:
    async with RedisBackend(redis_server.url, namespace, prefix="in-one-slot") as backend:
        events = backend.awatch()
        await anext(events)
        assert (await backend.awrite("/a/{b}/}c", "x")).ok
        assert (await backend.awrite("/d", "x")).ok
        tag = f"{{in-one-slot:{backend._namespace().replace(':', '%3A')}}}:"
        found = await raw(RedisKeys(redis_server, ""), "KEYS", f"{tag}*")
        assert {key.decode().removeprefix(tag).partition(":")[0] for key in found} == {"f", "names", "changes", "made"}
        assert {slot(key) for key in found} == {slot(Keys("in-one-slot", backend._namespace()).names)}
        await events.aclose()


async def test_namespaces_and_prefixes_are_apart(backend: RedisBackend, keys: RedisKeys) -> None:
    assert (await backend.awrite("/a", "x")).ok
    for other in (
        RedisBackend(keys.server.url, f"{keys.namespace}x"),
        RedisBackend(keys.server.url, (keys.namespace, "x")),
        RedisBackend(keys.server.url, keys.namespace, prefix="other"),
    ):
        async with other:
            assert (await other.als("/")).entries == []
            assert (await other.aread("/a")).code == "file_not_found"


async def test_a_prefix_and_a_namespace_with_colons_are_no_other_tree(keys: RedisKeys) -> None:
    async with (
        RedisBackend(keys.server.url, "alice", prefix=f"{keys.namespace}:x") as theirs,
        RedisBackend(keys.server.url, "x:alice", prefix=keys.namespace) as other,
    ):
        assert (await theirs.awrite("/secret", "s")).ok
        assert (await other.aread("/secret")).code == "file_not_found"


async def test_outcomes_of_changes_are_removed(backend: RedisBackend, keys: RedisKeys) -> None:
    for number in range(100):
        assert (await backend.awrite(f"/{number}", "x")).ok
    left = await raw(keys, "KEYS", f"{keys.tag}made:*")
    assert len(left) <= 2
    assert all([await raw(keys, "PTTL", key) > 0 for key in left])


async def test_a_write_takes_one_request_and_a_large_subtree_none_of_its_own(
    backend: RedisBackend, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = [(f"/d/large/{n:04}/{m}", b"x") for n in range(200) for m in range(10)]
    uploads += [(f"/d/{name}", b"x") for name in ("a", "large-file", "large0", "z/a", "z/b")]
    assert {each.error for each in await backend.aupload_files(uploads)} == {None}
    sent = []
    run = backend._client._run

    async def count(*given: Any) -> Any:
        sent.append(given)
        return await run(*given)

    monkeypatch.setattr(backend._client, "_run", count)
    assert (await backend.awrite("/d/b", "x")).ok
    assert (await backend.awrite("/d/b", "y", overwrite=True)).ok
    assert len(sent) == 2

    await raw(keys, "CONFIG", "RESETSTAT")
    listed = (await backend.als("/d")).entries
    assert paths_of(listed) == ["/d/a", "/d/b", "/d/large-file", "/d/large/", "/d/large0", "/d/z/"]
    statistics = await raw(keys, "INFO", "commandstats")
    assert int(statistics["cmdstat_hmget"]["calls"]) == 6  # Not 2,000.
    assert (await backend.als("/d/large")).entries is not None
    assert len((await backend.als("/d/large")).entries or ()) == 200


async def test_listings_are_read_in_pages(backend: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_files, "_NAMES_AT_ONCE", 7)
    uploads = [(f"/{n:03}/{m}.txt", f"{n}".encode()) for n in range(30) for m in range(3)]
    assert {each.error for each in await backend.aupload_files(uploads)} == {None}
    assert len((await backend.als("/")).entries or ()) == 30
    assert paths_of((await backend.aglob("**/*.txt")).matches) == [path for path, _ in uploads]
    assert paths_of((await backend.aglob("/007/*")).matches) == ["/007/0.txt", "/007/1.txt", "/007/2.txt"]
    assert len((await backend.agrep("9", glob="**/*.txt")).matches or ()) == 9
    assert (await backend.adelete("/011")).ok
    assert (await backend.amove("/012", "/new")).ok
    assert len((await backend.aglob("**")).matches or ()) == 87


async def test_contents_are_fetched_in_parts(backend: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_files, "_BYTES_AT_ONCE", 1000)
    uploads = [(f"/{n}", b"%d" % n * 300) for n in range(20)]
    assert {each.error for each in await backend.aupload_files(uploads)} == {None}
    found = await backend.adownload_files([path for path, _ in uploads])
    assert [each.content for each in found] == [content for _, content in uploads]
    monkeypatch.setattr(redis_files, "_MOST_BYTES", 1000)
    assert (await backend.awrite("/large", "x" * 1001)).code == "too_large"
    assert (await backend.aread("/large")).code == "file_not_found"


# --- files that expire ---


async def expire(keys: RedisKeys, path: str) -> None:
    """Let the time of a file run out."""
    key = f"{keys.tag}f:{path}"
    assert await raw(keys, "PTTL", key) > 0
    await raw(keys, "PEXPIREAT", key, 1)  # Long ago, by the clock of the server.
    assert not await raw(keys, "EXISTS", key)


async def test_files_expire_and_leave_nothing(keys: RedisKeys) -> None:
    async with RedisBackend(keys.server.url, keys.namespace, expires_after=100) as backend:
        for path in ("/d/a", "/d/b", "/e/f/g"):
            assert (await backend.awrite(path, "text")).ok
        assert 99_000 < await raw(keys, "PTTL", f"{keys.tag}f:/d/a") <= 100_000
        await raw(keys, "PEXPIRE", f"{keys.tag}f:/d/a", 50_000)
        assert (await backend.aedit("/d/a", "text", "texts")).ok  # It begins anew.
        assert await raw(keys, "PTTL", f"{keys.tag}f:/d/a") > 99_000

        await expire(keys, "/d/a")
        assert (await backend.aread("/d/a")).code == "file_not_found"
        assert (await backend.aedit("/d/a", "text", "x")).code == "file_not_found"
        assert await raw(keys, "ZSCORE", f"{keys.tag}names", "/d/a") is not None
        assert paths_of((await backend.als("/d")).entries) == ["/d/b"]
        assert await raw(keys, "ZSCORE", f"{keys.tag}names", "/d/a") is None
        assert (await backend.awrite("/d/a", "new")).ok

        await expire(keys, "/e/f/g")
        assert (await backend.awrite("/e", "a file in place of the directory")).ok
        await expire(keys, "/d/b")
        assert paths_of((await backend.aglob("**")).matches) == ["/d/a", "/e"]
        assert (await backend.agrep("text")).matches == []
        await expire(keys, "/d/a")
        assert (await backend.als("/d")).code == "file_not_found"
        assert await raw(keys, "ZRANGE", f"{keys.tag}names", 0, -1) == [b"/e"]


async def test_a_directory_of_many_files_that_expired_can_become_a_file(keys: RedisKeys) -> None:
    async with RedisBackend(keys.server.url, keys.namespace) as backend:
        names = [each for n in range(12_000) for each in (0, f"/d/{n}")]
        await raw(keys, "ZADD", f"{keys.tag}names", *names)
        assert (await backend.awrite("/d", "x")).ok
        assert await raw(keys, "ZRANGE", f"{keys.tag}names", 0, -1) == [b"/d"]


async def test_a_file_that_others_wrote_keeps_its_time(backend: RedisBackend, keys: RedisKeys) -> None:
    async with RedisBackend(keys.server.url, keys.namespace, expires_after=100) as other:
        assert (await other.awrite("/a", "x")).ok
        assert (await other.awrite("/b", "x")).ok
    assert (await backend.aread("/a")).ok
    assert await raw(keys, "PTTL", f"{keys.tag}f:/a") > 0
    assert (await backend.aedit("/b", "x", "y")).ok
    assert await raw(keys, "PTTL", f"{keys.tag}f:/b") == -1


# --- watches ---


async def test_a_watch_that_falls_behind_gets_a_resync(
    backend: RedisBackend, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_files, "_KEPT_ENTRIES", 10)
    events = backend.awatch("/d")
    assert (await anext(events)).kind == "resync"
    assert (await backend.awrite("/d/first", "x")).ok
    first = await anext(events)
    assert (first.path, first.kind) == ("/d/first", "created")
    await gather([partial(backend.awrite, f"/d/{n}", "x") for n in range(1000)])
    assert await raw(keys, "XLEN", f"{keys.tag}changes") < 300
    event = await anext(events)
    assert (event.path, event.kind) == ("/d", "resync")
    assert (await backend.awrite("/d/last", "x")).ok
    assert (await anext(events)).path == "/d/last"
    await events.aclose()


@pytest.mark.parametrize("command", [("DEL",), ("XTRIM", "MAXLEN", 0)], ids=["deleted", "cut"])
async def test_a_watch_whose_stream_is_gone_gets_a_resync(backend: RedisBackend, keys: RedisKeys, command: Any) -> None:
    events = backend.awatch()
    await anext(events)
    name, *rest = command
    await raw(keys, name, f"{keys.tag}changes", *rest)
    assert (await backend.awrite("/missed", "x")).ok
    with anyio.fail_after(20):
        assert (await anext(events)).kind == "resync"
        assert (await backend.awrite("/seen", "x")).ok
        assert (await anext(events)).path == "/seen"
    await events.aclose()


async def test_the_stream_is_there_only_while_somebody_watches(backend: RedisBackend, keys: RedisKeys) -> None:
    assert (await backend.awrite("/a", "x")).ok
    stream = f"{keys.tag}changes"
    assert not await raw(keys, "EXISTS", stream)
    events = backend.awatch()
    await anext(events)
    assert 0 < await raw(keys, "PTTL", stream) <= 120_000
    await raw(keys, "PEXPIRE", stream, 60_000)
    assert (await backend.awrite("/b", "x")).ok
    await anext(events)
    assert await raw(keys, "PTTL", stream) > 60_000
    await events.aclose()


async def test_entries_of_strangers_are_passed_over(backend: RedisBackend, keys: RedisKeys) -> None:
    events = backend.awatch()
    await anext(events)
    stream = f"{keys.tag}changes"
    for fields in (("x", "y"), ("created", "no path"), ("created", "/../x"), ("created", b"/\xff"), ("", "")):
        await raw(keys, "XADD", stream, "*", *fields)
    assert (await backend.awrite("/a", "x")).ok
    event = await anext(events)
    while event.path != "/a":
        assert event.path == "/\ufffd"
        event = await anext(events)
    await events.aclose()


# --- data of strangers ---


async def test_keys_of_other_types_and_garbage_are_files_that_cannot_be_read(
    backend: RedisBackend, keys: RedisKeys
) -> None:
    file, names = f"{keys.tag}f:", f"{keys.tag}names"
    await raw(keys, "SET", f"{file}/d/string", "x")
    await raw(keys, "RPUSH", f"{file}/d/list", "x")
    await raw(keys, "HSET", f"{file}/d/empty", "other", "x")
    await raw(keys, "HSET", f"{file}/d/odd", "content", b"\xff\0", "created_at", "x" * 10_000, "modified_at", b"\xff",
              "version", b"\xff" * 100, "mime_type", b"\xff")  # fmt: skip
    await raw(keys, "HSET", f"{file}/d/text", "content", "needle", "modified_at", "yesterday")
    for name in ("string", "list", "empty", "odd", "text", "/x", "../x", ".", "gone", "a\0b", "x" * 300):
        await raw(keys, "ZADD", names, 0, f"/d/{name}")
    for name in (b"\xff", b"", b"/d/\xff", b"d", b"/"):
        await raw(keys, "ZADD", names, 0, name)
        await raw(keys, "HSET", file.encode() + name, "content", "needle")

    shown = ["/d/empty", "/d/list", "/d/odd", "/d/string", "/d/text"]
    assert paths_of((await backend.als("/d")).entries) == shown
    assert paths_of((await backend.aglob("*", "/d")).matches) == shown
    found = await backend.agrep("needle")
    assert [match.path for match in found.matches or ()] == ["/d/text"]
    assert found.skipped
    codes = {path: (await backend.aread(path)).code for path in shown}
    malformed = "invalid_content"
    assert codes == dict.fromkeys(["/d/empty", "/d/list", "/d/string"], malformed) | {"/d/odd": None, "/d/text": None}
    assert (await backend.aread_raw("/d/text")).unwrap().modified_at is None
    assert (await backend.aedit("/d/text", "needle", "thread")).ok
    assert (await backend.awrite("/d/string", "x")).code == "already_exists"
    assert (await backend.awrite("/d/string", "x", overwrite=True)).ok
    assert (await backend.aread("/d/string")).ok
    assert (await backend.adelete("/d/list")).ok
    assert (await backend.adelete("/d")).ok
    assert (await backend.awrite("/d", "x")).ok
    assert paths_of((await backend.als("/")).entries) == ["/d"]


async def test_a_change_of_a_stranger_is_not_overwritten(backend: RedisBackend, keys: RedisKeys) -> None:
    await in_thread(keys.put, "/a", b"one")
    change = backend._storage()
    found = await backend._client.on_loop(partial(change.get, ["/a"]))
    await in_thread(keys.put, "/a", b"two")
    again = await backend._client.on_loop(partial(change.get, ["/a"]))
    assert found.origin("/a") != again.origin("/a")


@pytest.mark.parametrize("name", ["names", "changes"])
async def test_a_key_of_the_tree_of_another_type_is_a_clear_error(
    backend: RedisBackend, keys: RedisKeys, name: str
) -> None:
    assert (await backend.awrite("/a", "x")).ok
    await raw(keys, "DEL", f"{keys.tag}{name}")
    await raw(keys, "SET", f"{keys.tag}{name}", "x")
    for result in (await backend.awrite("/b", "x"), await backend.aedit("/a", "x", "y")):
        assert result.code == "backend_error"
        assert "another program has replaced a key of this tree" in (result.error or "")
    assert await in_thread(keys.peek, "/b") is None
    assert await in_thread(keys.peek, "/a") == b"x"
    with anyio.fail_after(20):
        if name == "names":
            assert (await backend.als("/")).code == "backend_error"
            assert (await backend.agrep("x")).code == "backend_error"


async def test_a_listing_ends_though_scores_differ(
    backend: RedisBackend, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_files, "_NAMES_AT_ONCE", 2)
    for number, name in enumerate("caz"):
        assert (await backend.awrite(f"/{name}", "x")).ok
        await raw(keys, "ZADD", f"{keys.tag}names", number, f"/{name}")
    with anyio.fail_after(20):
        for result in (await backend.agrep("x"), await backend.aglob("**")):
            assert (result.code, "out of order" in (result.error or "")) == ("backend_error", True)


# --- processes, loops and clients ---

CHILD = """
import sys
import anyio
from deepfs import RedisBackend

async def main(url, space, first, count):
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    async with RedisBackend(url, space) as backend, anyio.create_task_group() as tasks:
        for number in range(first, first + count):
            tasks.start_soon(edit, backend, number)

async def edit(backend, number):
    result = await backend.aedit("/log.txt", f"<{number}>", f"({number})")
    print("ok" if result.ok else result.error, flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""


async def test_processes_lose_no_edit(backend: RedisBackend, keys: RedisKeys) -> None:
    total = PROCESSES * EDITS
    assert (await backend.awrite("/log.txt", "".join(f"<{n}>\n" for n in range(total)))).ok
    parts = [(keys.server.url, keys.namespace, first, EDITS) for first in range(0, total, EDITS)]
    assert await in_thread(printed_at_once, CHILD, parts) == ["ok"] * total
    stored = await in_thread(keys.peek, "/log.txt")
    assert stored == "".join(f"({n})\n" for n in range(total)).encode()


CREATOR = """
import sys
import anyio
from deepfs import RedisBackend

async def main(url, space, number):
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    async with RedisBackend(url, space) as backend:
        for each in range(100):
            path = f"/{each}" if (each + number) % 2 else f"/{each}/beneath"
            print(f"{each} {(await backend.awrite(path, 'x')).ok}", flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


async def test_of_a_file_and_one_beneath_it_processes_create_one(backend: RedisBackend, keys: RedisKeys) -> None:
    lines = await in_thread(printed_at_once, CREATOR, [(keys.server.url, keys.namespace, n) for n in range(2)])
    assert sorted(lines) == sorted(f"{each} {ok}" for each in range(100) for ok in (True, False))


FORKS = """
import asyncio, os, sys
import anyio
from deepfs import RedisBackend

backend = RedisBackend(sys.argv[1], "forks")
assert backend.write("/first", "x").ok
loop = asyncio.new_event_loop()

async def connection():
    client = await backend._client._client()
    return await client.execute_command("CLIENT", "ID")

before = loop.run_until_complete(connection())
anyio.run(backend.aread, "/first", backend="trio")
child = os.fork()
name = "parent" if child else "child"
ok = [backend.write(f"/{name}-{number}", "x").ok for number in range(3)]
ok.append(anyio.run(backend.aread, "/first", backend="trio").ok)
if child:
    os.waitpid(child, 0)  # So that what both print is not mixed.
print(name, ok, loop.run_until_complete(connection()) == before, flush=True)
if not child:
    os._exit(0)
loop.run_until_complete(backend.aclose())
"""


def test_a_forked_child_has_connections_of_its_own(redis_server: RedisServer) -> None:
    with started(FORKS, redis_server.url) as process:
        lines = process.communicate(timeout=60)[0].splitlines()
    works = "[True, True, True, True]"
    assert sorted(lines) == [f"child {works} False", f"parent {works} True"]


@pytest.mark.needs("redis-server")
def test_loops_that_end_leave_no_connection() -> None:
    with running_redis() as server, server.client() as client:
        backend = RedisBackend(server.url, "loops")

        def until_there_are(count: int) -> None:  # The server may learn a little later that one was closed.
            deadline = time.monotonic() + 20
            while (found := len(client.client_list())) != count:
                assert time.monotonic() < deadline, f"{found} connections, not {count}"

        before = len(client.client_list())
        for _ in range(3):
            anyio.run(backend.awrite, "/a", "x")
            until_there_are(before)
        assert backend.write("/b", "x").ok  # On the background loop.
        until_there_are(before + 1)
        run_sync(backend.aclose)
        until_there_are(before)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_client_that_is_given_is_never_closed(keys: RedisKeys) -> None:
    given = redis.asyncio.Redis.from_url(keys.server.url, socket_timeout=1, driver_info=None)
    async with RedisBackend(given, keys.namespace) as backend:
        assert (await backend.awrite("/a", "x")).ok
        events = backend.awatch()
        await anext(events)
        async with anyio.create_task_group() as tasks:
            seen: list[Any] = []

            async def watch() -> None:
                seen.append(await anext(events))

            tasks.start_soon(watch)
            assert (await backend.awrite("/b", "x")).ok
        assert seen[0].path == "/b"
        await events.aclose()
        assert (await in_thread(backend.read, "/a")).ok  # On the loop of the client.
        with pytest.raises(RuntimeError, match="aread"):
            backend.read("/a")
    assert await given.ping()
    await given.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_cannot_be_used_is_refused(keys: RedisKeys) -> None:
    secret = "s3cr3t"
    for url in (f"http://u:{secret}@h", f"redis://u:{secret}@h:x/0", f"redis://:{secret}@h/0?socket_timeout={secret}"):
        with pytest.raises(ValueError, match="URL of Redis") as caught:
            RedisBackend(url, "a")
        assert secret not in str(caught.value)
    decoding = redis.asyncio.Redis.from_url(keys.server.url, decode_responses=True)
    with pytest.raises(ValueError, match="decode_responses"):
        RedisBackend(decoding, "a")
    await decoding.aclose()
    for prefix in ("", "a{b", "}", "a\nb"):
        with pytest.raises(ValueError, match="prefix"):
            RedisBackend(keys.server.url, "a", prefix=prefix)
    for given in ({"expires_after": 0}, {"expires_after": -1}, {"max_connections": 0}):
        with pytest.raises(ValueError, match=next(iter(given))):
            RedisBackend(keys.server.url, "a", **given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client of redis\.asyncio"):
        RedisBackend(7, "a")  # type: ignore[arg-type]


# --- failures by the server ---


@pytest.fixture
async def full(backend: RedisBackend, keys: RedisKeys) -> AsyncIterator[None]:
    assert (await backend.awrite("/a", "before")).ok
    await raw(keys, "CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        await raw(keys, "CONFIG", "SET", "maxmemory", "0")


@pytest.mark.usefixtures("full")
async def test_a_full_memory_changes_nothing(backend: RedisBackend, keys: RedisKeys) -> None:
    for result in (
        await backend.awrite("/b", "x"),
        await backend.awrite("/a", "x", overwrite=True),
        await backend.aedit("/a", "before", "x"),
        await backend.amove("/a", "/c"),
    ):
        assert (result.code, result.error) == ("backend_error", "Error: The server failed: its memory is full")
    assert (await backend.aread("/a")).unwrap().content == "before"
    assert await raw(keys, "ZRANGE", f"{keys.tag}names", 0, -1) == [b"/a"]


ACCOUNTS = {
    "wrong credentials": ("nobody:x@", "backend_error", "The server failed: wrong credentials"),
    "no permission": ("reader:x@", "permission_denied", "The server refused access"),
    "no such database": ("", "backend_error", "The server failed: no such database"),
}


@pytest.mark.parametrize("name", ACCOUNTS)
async def test_what_the_server_refuses_is_told_by_its_reason(keys: RedisKeys, name: str) -> None:
    account, code, error = ACCOUNTS[name]
    await raw(keys, "ACL", "SETUSER", "reader", "on", ">x", "+ping")
    database = 999 if name == "no such database" else 0
    url = f"unix://{account}{keys.server.socket}?db={database}"
    async with RedisBackend(url, keys.namespace, retries=RetryPolicy(attempts=1)) as backend:
        for result in (await backend.awrite("/a", "x"), await backend.aread("/a"), await backend.agrep("x")):
            assert (result.code, result.error) == (code, f"Error: {error}")


@pytest.mark.parametrize("command", ["hset", "zadd", "xadd", "zrem", "unlink", "pexpire"])
async def test_an_account_that_lacks_a_command_changes_nothing(
    backend: RedisBackend, keys: RedisKeys, command: str
) -> None:
    """Scripts are not rolled back where a command is refused."""
    assert (await backend.awrite("/a", "before")).ok
    events = backend.awatch()
    await anext(events)
    await raw(keys, "ACL", "SETUSER", "lacking", "reset", "on", ">x", "~*", "+@all", f"-{command}")
    url = f"unix://lacking:x@{keys.server.socket}?db=0"
    async with RedisBackend(url, keys.namespace, expires_after=60) as lacking:
        for result in (
            await lacking.awrite("/b", "x"),
            await lacking.awrite("/a", "x", overwrite=True),
            await lacking.amove("/a", "/c"),
            await lacking.adelete("/a"),
        ):
            assert (result.code, result.error) == ("permission_denied", "Error: The server refused access")
    await events.aclose()
    assert (await backend.aread("/a")).unwrap().content == "before"
    assert await raw(keys, "ZRANGE", f"{keys.tag}names", 0, -1) == [b"/a"]
    assert set(await raw(keys, "KEYS", f"{keys.tag}f:*")) == {f"{keys.tag}f:/a".encode()}


def test_the_address_shows_no_secret() -> None:
    backend = RedisBackend("redis://ada:s3cr3t@host:6379/0?password=s3cr3t", "ada")
    assert repr(backend) == "RedisBackend('redis://host:6379/0', 'ada')"
