"""The search index beside an object store: what it finds, and when it lists the objects."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.backends.object_store import ObjectStoreBackend
from deepfs.backends.object_store.index import Objects
from deepfs.backends.sqlite import SqliteBackend
from deepfs.errors import BackendError, NotSupportedError
from deepfs.search.request import GrepRequest
from deepfs.testing.suite import assert_ok, lines_of
from deepfs.types import FileDataV2
from support.indexed_bucket import MAX_BYTES, BucketBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteBackend]:
    with SqliteBackend(tmp_path / "index.db", "index") as database:
        yield database


@pytest.fixture
def backend(database: SqliteBackend) -> BucketBackend:
    made = BucketBackend(database)
    for path, data in {
        "/a.txt": b"the needle is here\n",
        "/d/b.py": b"no such thing\n",
        "/d/c.py": b"one\nneedle\n",
        "/d/large.txt": b"needle" * MAX_BYTES,
        "/d/x.bin": b"\0needle",
    }.items():
        made.bucket.put(path, data)
    return made


async def test_the_first_search_lists_and_later_ones_fetch_candidates_only(backend: BucketBackend) -> None:
    bucket = backend.bucket
    first = assert_ok(await backend.agrep("needle"))
    assert lines_of(first) == [("/a.txt", 1), ("/d/c.py", 2)]
    assert (first.skipped, first.truncated) == (2, False)
    assert bucket.listed == 1
    bucket.fetched.clear()
    again = assert_ok(await backend.agrep("needle"))
    assert (again.matches, again.skipped, again.as_of) == (first.matches, 2, first.as_of)
    assert first.as_of is not None
    assert (bucket.listed, bucket.fetched) == (1, ["/a.txt", "/d/c.py", "/d/x.bin"])
    bucket.fetched.clear()
    assert lines_of(assert_ok(await backend.agrep("absent"))) == []
    assert bucket.fetched == []


async def test_own_changes_are_found_at_once_and_those_of_others_after_a_listing(backend: BucketBackend) -> None:
    before = assert_ok(await backend.agrep("needle"))
    assert_ok(await backend.awrite("/new.txt", "a needle of ours"))
    assert_ok(await backend.aedit("/a.txt", "needle", "NEEDLE"))
    assert_ok(await backend.amove("/d/c.py", "/d/moved.py"))
    own = assert_ok(await backend.agrep("needle"))
    assert lines_of(own) == [("/d/moved.py", 2), ("/new.txt", 1)]
    assert own.as_of == before.as_of
    backend.bucket.put("/theirs.txt", b"a needle of theirs")
    backend.bucket.put("/new.txt", b"nothing")
    del backend.bucket.objects["/d/moved.py"]
    assert lines_of(assert_ok(await backend.agrep("needle"))) == [], "candidates are checked, others are not known"
    backend.bucket.fetched.clear()
    fresh = assert_ok(await backend.arun(GrepRequest("needle", fresh=True)))
    assert lines_of(fresh) == [("/theirs.txt", 1)]
    assert sorted(backend.bucket.fetched[:2]) == ["/new.txt", "/theirs.txt"], "only what changed is copied"
    assert (fresh.as_of or "") > (own.as_of or "")


async def test_an_index_that_failed_to_follow_a_change_lists_again(
    backend: BucketBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_ok(await backend.agrep("needle"))

    async def fails(*_: Any, **__: Any) -> None:
        raise BackendError(None, "the database of the index is away")

    with monkeypatch.context() as patched:
        patched.setattr(backend.bucket.index._copies, "store", fails)
        assert_ok(await backend.awrite("/new.txt", "a needle of ours"))
    assert "/new.txt" in [path for path, _ in lines_of(assert_ok(await backend.agrep("needle")))]
    assert backend.bucket.listed == 2
    backend.bucket.index.suspect(None)
    assert_ok(await backend.agrep("needle"))
    assert backend.bucket.listed == 3


async def test_a_change_during_a_listing_is_not_undone_by_it(backend: BucketBackend) -> None:
    bucket = backend.bucket
    assert_ok(await backend.agrep("needle"))
    bucket.put("/a.txt", b"theirs, without it")
    times = 0

    async def fetch(paths: Sequence[str]) -> Mapping[str, tuple[FileDataV2, str]]:
        nonlocal times
        times += 1
        found = await bucket._tagged(paths)
        if times > 1:
            return found
        assert_ok(await backend.awrite("/a.txt", "ours, a needle again", overwrite=True))
        assert_ok(await backend.awrite("/z/late.txt", "another needle"))
        return found

    bucket.index._objects = Objects(bucket._pages, bucket.stat, fetch, MAX_BYTES)
    found = assert_ok(await backend.arun(GrepRequest("needle", fresh=True)))
    assert [path for path, _ in lines_of(found)] == ["/a.txt", "/d/c.py", "/z/late.txt"]


async def test_only_a_backend_with_an_index_refreshes_it() -> None:
    with pytest.raises(NotSupportedError):
        await ObjectStoreBackend("memory://").arefresh_index()


def test_an_index_needs_a_backend_that_finds_in_a_fixed_namespace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Postgres or SQLite"):
        ObjectStoreBackend("memory://", index=MemoryBackend())
    with pytest.raises(TypeError, match="index"):
        ObjectStoreBackend("memory://", index="index.db")  # type: ignore[arg-type]
    by_caller = SqliteBackend(tmp_path / "index.db", lambda _: "index")
    with pytest.raises(ValueError, match="fixed namespace"):
        ObjectStoreBackend("memory://", lambda _: "ada", index=by_caller)
