"""A search index that several clients share: the slow, the dying, and those that it is not for."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import pytest

from deepfs.backends.flat import StorageBackend
from deepfs.backends.object_store.index import MARK
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.errors import BackendError
from deepfs.search.request import GrepRequest
from deepfs.testing.suite import assert_failed, assert_ok, lines_of
from deepfs.types import ErrorCode
from support.indexed_bucket import MAX_BYTES, BucketBackend
from support.object_stores import S3Server

pytestmark = pytest.mark.anyio


class _DiedError(BaseException):
    """The process of a client ends here."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteBackend]:
    with SqliteBackend(tmp_path / "index.db", "index", durability="normal") as database:
        yield database


@pytest.fixture
def backend(database: SqliteBackend) -> BucketBackend:
    made = BucketBackend(database)
    made.bucket.put("/a.txt", b"the needle is here\n")
    made.bucket.put("/b.txt", b"no such thing\n")
    return made


async def paths_with(backend: StorageBackend, pattern: str) -> list[str]:
    return [path for path, _ in lines_of(assert_ok(await backend.agrep(pattern)))]


def dies_at(step: str) -> object:
    async def pause(name: str) -> None:
        if name == step:
            raise _DiedError

    return pause


async def test_notes_of_the_dead_are_removed_after_an_hour(
    backend: BucketBackend, database: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await paths_with(backend, "needle") == ["/a.txt"]
    dying = BucketBackend(database, backend.bucket.objects)
    dying.bucket.pause = dies_at("put")  # type: ignore[assignment]
    for path in ("/b.txt", "/new.txt"):
        with suppress(_DiedError):
            await dying.awrite(path, "never stored", overwrite=True)
    monkeypatch.setattr("deepfs.backends.object_store.index._SECONDS_OF_A_CHANGE", 0.0)
    assert await paths_with(backend, "needle") == ["/a.txt"]
    assert backend.bucket.listed == 2
    rows = [info.path for info in (await database.aglob("/**")).matches or ()]
    assert rows == ["/a.txt", "/b.txt"]


async def test_the_slower_of_two_clients_does_not_store_the_older_copy(
    backend: BucketBackend, database: SqliteBackend
) -> None:
    assert await paths_with(backend, "needle") == ["/a.txt"]
    slow = BucketBackend(database, backend.bucket.objects)
    stored, goes_on = anyio.Event(), anyio.Event()

    async def pause(step: str) -> None:
        if step == "follow":
            stored.set()
            await goes_on.wait()

    slow.bucket.pause = pause
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.aedit, "/b.txt", "no such thing", "the older text")
        await stored.wait()
        assert_ok(await backend.aedit("/b.txt", "older", "newer"))
        goes_on.set()
    assert await paths_with(backend, "newer") == ["/b.txt"]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_clients_do_at_once_each_file_is_found(database: SqliteBackend, seed: int) -> None:
    chance, objects = Random(seed), BucketBackend(database).bucket.objects
    names = ["/f", "/g", "/d/x", "/d/y"]

    async def pause(step: str) -> None:
        if step in ("put", "follow") and chance.random() < 0.03:
            raise _DiedError
        if chance.random() < 0.5:
            await anyio.sleep(chance.random() * chance.choice([0.002, 0.002, 0.02]))

    async def work() -> None:
        client = BucketBackend(database, objects)
        client.bucket.pause = pause
        with suppress(_DiedError):
            for _ in range(8):
                name, kind = chance.choice(names), chance.random()
                if kind < 0.6:
                    filling = "z" * MAX_BYTES * chance.choice([0, 0, 0, 1])
                    await client.awrite(name, f"common word{chance.randrange(3)} {filling}", overwrite=True)
                elif kind < 0.75:
                    await client.adelete(name)
                elif kind < 0.95:
                    await client.amove(name, chance.choice(names), overwrite=True)
                else:
                    await client.bucket.index.refresh()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work)
    client = BucketBackend(database, objects)
    contents = {path: data.content for path, (data, _) in objects.items()}
    small = {path: text for path, text in contents.items() if len(text) <= MAX_BYTES}
    for text in ("common", "word0", "word1", "word2"):
        assert await paths_with(client, text) == sorted(path for path in small if text in small[path])
    assert assert_ok(await client.agrep("common")).skipped == len(contents) - len(small)
    assert [info.path for info in assert_ok(await client.aglob("**")).matches or ()] == sorted(contents)


async def test_two_places_cannot_share_an_index(backend: BucketBackend, database: SqliteBackend) -> None:
    assert await paths_with(backend, "needle") == ["/a.txt"]
    other = BucketBackend(database, place="another bucket")
    assert_failed(await other.agrep("needle"), ErrorCode.BACKEND_ERROR)
    assert_failed(await other.aglob("*"), ErrorCode.BACKEND_ERROR)
    assert_failed(await other.awrite("/x.txt", "text"), ErrorCode.BACKEND_ERROR)
    with pytest.raises(BackendError, match="in use for another place"):
        await other.bucket.index.refresh()
    assert other.bucket.objects == {}
    assert await paths_with(backend, "needle") == ["/a.txt"]


async def test_files_that_are_no_index_are_not_removed(backend: BucketBackend, database: SqliteBackend) -> None:
    assert_ok(await database.awrite("/precious.txt", "not an index"))
    assert "holds other files" in ((await backend.agrep("needle")).error or "")
    assert "holds other files" in ((await backend.awrite("/c.txt", "text")).error or "")
    assert assert_ok(await database.aread("/precious.txt")).file_data is not None


async def test_texts_that_the_index_uses_itself_may_be_in_objects(backend: BucketBackend) -> None:
    backend.bucket.put("/.deepfs-index", b"a needle with the name of an index")
    backend.bucket.put("/marked.txt", MARK.encode() + b"and a needle")
    backend.bucket.put("//no/path", b"a needle in a key that is no path")
    assert await paths_with(backend, "needle") == ["/a.txt", "/marked.txt"]
    named = assert_ok(await backend.agrep("needle", glob=".deepfs-index"))
    assert lines_of(named) == [("/.deepfs-index", 1)]
    found = assert_ok(await backend.agrep("absent"))
    assert (found.matches, found.skipped) == ([], 0)
    assert_ok(await backend.awrite("/.deepfs-index", "replaced", overwrite=True))
    assert (await backend.agrep("needle")).as_of == found.as_of


# --- beside S3 ---


@pytest.fixture(params=["sqlite", "postgres"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageBackend]:
    if request.param == "sqlite":
        with SqliteBackend(tmp_path / "index.db", "index") as database:
            yield database
    else:
        yield PostgresBackend(request.getfixturevalue("postgres_dsn"), "index")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_stream_is_found_by_all_clients_of_the_index(s3_server: S3Server, index: StorageBackend) -> None:
    prefix = s3_server.prefix()
    one, other = (s3_server.backend(prefix, index=index, max_file_size_mb=20) for _ in range(2))
    assert await paths_with(other, "needle") == []

    async def chunks(*, fails: bool = False) -> AsyncIterator[bytes]:
        yield b"a needle\n"
        for _ in range(9):
            yield b"-" * 1_048_575 + b"\n"
        if fails:
            raise ConnectionError

    assert (await one.aupload_stream("/large.txt", chunks())).error is None
    with pytest.raises(ConnectionError):
        await one.aupload_stream("/none.txt", chunks(fails=True))
    found = assert_ok(await other.arun(GrepRequest("needle")))
    assert lines_of(found) == [("/large.txt", 1)]
    assert [info.path for info in assert_ok(await other.aglob("**")).matches or ()] == ["/large.txt"]

    s3_server.store().put(f"{prefix}/\uf000a", b"a key that is not in the form of a path")
    await other.arefresh_index()
    assert await paths_with(other, "needle") == ["/large.txt"]
    elsewhere = s3_server.backend(f"{prefix}/d", index=index)
    assert "in use for another place" in ((await elsewhere.agrep("needle")).error or "")
    await index.aclose()


async def test_changes_of_a_bucket_are_found_by_its_index(s3_server: S3Server, database: SqliteBackend) -> None:
    backend = s3_server.backend(s3_server.prefix(), index=database)
    assert await paths_with(backend, "needle") == []
    assert_ok(await backend.awrite("/a.txt", "a needle\n"))
    assert_ok(await backend.awrite("/b.txt", "no such thing\n"))
    assert_ok(await backend.aedit("/b.txt", "no such thing", "another needle"))
    assert_ok(await backend.amove("/a.txt", "/d/a.txt"))
    assert await paths_with(backend, "needle") == ["/b.txt", "/d/a.txt"]


async def test_an_object_that_shrinks_after_it_was_listed_is_found(backend: BucketBackend) -> None:
    bucket = backend.bucket
    bucket.put("/log.txt", b"x" * (MAX_BYTES + 1))

    async def truncate(step: str) -> None:
        if step == "look":
            bucket.put("/log.txt", b"a needle\n")

    bucket.pause = truncate
    for _ in range(2):
        found = assert_ok(await backend.arun(GrepRequest("needle", fresh=True)))
        assert ([path for path, _ in lines_of(found)], found.skipped) == (["/a.txt", "/log.txt"], 0)
