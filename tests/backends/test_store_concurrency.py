"""Stores used by many tasks: no edit is lost, no listing is incomplete, no key is altered, no namespace leaks."""

import string
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.store import StoreBackend
from deepfs.testing.suite import gather
from support.counts import few_or_many, telling

pytestmark = pytest.mark.anyio

SPACE = ("tenant", "files")

Record = Callable[[str, object], None]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite_store", "postgres_store"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    return InMemoryStore() if request.param == "memory" else request.getfixturevalue(request.param)


def over(store: BaseStore, *namespace: str) -> StoreBackend:
    return StoreBackend(store, namespace=namespace or SPACE)


# --- locks ---


async def test_backends_over_the_same_storage_share_locks(store: BaseStore, tmp_path: Any) -> None:
    """Backend objects over the same namespace or directory wait for each other; other backends do not."""
    here, also_here = over(store), StoreBackend(store, namespace=lambda _: SPACE)
    child, other_store = over(store, *SPACE, "child"), over(InMemoryStore())
    await check_shared(here, also_here, [child, other_store])
    disk, same_disk = FilesystemBackend(tmp_path), FilesystemBackend(str(tmp_path))
    await check_shared(disk, same_disk, [FilesystemBackend(tmp_path / "below"), here])


async def check_shared(backend: Any, same: Any, others: list[Any]) -> None:
    async with (
        backend._locks.hold("/dir/a.txt") if isinstance(backend, FilesystemBackend) else backend._hold("/dir/a.txt")
    ):
        for other in others:
            with anyio.fail_after(5):
                assert (await other.awrite("/dir/a.txt", "text", overwrite=True)).ok
        with anyio.move_on_after(0.1) as scope:
            await same.awrite("/dir/a.txt", "text", overwrite=True)
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            assert (await same.awrite("/dir/b.txt", "text", overwrite=True)).ok
    with anyio.fail_after(5):
        assert (await same.awrite("/dir/a.txt", "text", overwrite=True)).ok


# --- listings ---


@pytest.mark.parametrize("changes", few_or_many(24, 400))
async def test_listings_are_complete_while_others_write(
    store: BaseStore, changes: int, record_property: Record
) -> None:
    """10,001 keys are more than one page of any store."""
    backend = over(store)
    names = [f"/dir/{number:05}.txt" for number in range(10_001)]
    uploads = await backend.aupload_files([(name, b"needle") for name in names])
    assert {upload.error for upload in uploads} == {None}
    listings, done = 0, anyio.Event()

    async def change(number: int) -> None:
        for turn in range(changes // 4):
            path = f"/new/{number}-{turn}"
            assert (await backend.awrite(path, "text")).ok
            if turn % 2:
                assert (await backend.adelete(path)).ok

    async def look() -> None:
        nonlocal listings
        while not done.is_set():
            listed = await over(store).als("/dir")
            assert listed.ok, listed.error
            assert [entry.path for entry in listed.entries or ()] == names
            found = await over(store).aglob("*.txt")
            assert found.ok, found.error
            assert [entry.path for entry in found.matches or ()] == names
            listings += 2

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await gather([lambda number=number: change(number) for number in range(4)])
        done.set()
    found = await backend.agrep("needle")
    assert [match.path for match in found.matches or ()] == names
    left = await backend.als("/new")
    assert len(left.entries or ()) == sum(changes // 4 - changes // 8 for _ in range(4))
    telling(record_property)(
        f"{listings} listings of {len(names):,} keys under {changes} changes, each of them complete"
    )


# --- namespaces ---


async def test_namespaces_with_similar_names_share_nothing(store: BaseStore) -> None:
    """Children, siblings with a common prefix, and names that SQL patterns or separators could mix up."""
    names = [("a",), ("a", "b"), ("a", "b", "c"), ("a-b",), ("a_b",), ("ab",), ("a.b",), ("a:b",), ("A",), ("a", "a")]
    backends = {name: over(store, *name) for name in names}
    for name, backend in backends.items():
        assert (await backend.awrite("/dir/file.txt", ".".join(name))).ok
    for name, backend in backends.items():
        listed = await backend.als("/")
        assert [entry.path for entry in listed.entries or ()] == ["/dir/"]
        found = await backend.agrep("", regex=True)
        assert [match.text for match in found.matches or ()] == [".".join(name)]
        assert len((await backend.aglob("**")).matches or ()) == 1
    assert (await backends["a",].adelete("/dir")).ok
    for name, backend in backends.items():
        assert (await backend.aread("/dir/file.txt")).ok == (name != ("a",))


# --- keys ---

NAMES = [
    *string.punctuation.replace("/", "").replace(".", "").replace("~", ""),
    *["%25", "a%b_c", "\\x", "a\\", "''", '"; DROP TABLE store; --', "a\nb", "\r", "\t", "\x01", "\x7f", " ", "a b "],
    *["\u00e9", "e\u0301", "\u00df", "\u0130", "\u4f60\u597d", "\U0001f600", "\u202e", "\ufeff"],
    *["\uffff", "\U0010ffff", "a..b", "...", "null", "0", "A", "a", "x" * 255, "\U0001f600" * 63],
]  # fmt: skip


async def test_every_name_round_trips(store: BaseStore) -> None:
    backend = over(store)
    paths = sorted({f"/d/{name}" for name in NAMES})
    for path in paths:
        assert (await backend.awrite(path, path)).ok, path
    for path in paths:
        item = await store.aget(SPACE, path)
        assert item is not None, path
        assert item.value["content"] == path
        assert (await backend.aread(path)).unwrap().content == path
    listed = await backend.als("/d")
    assert [entry.path for entry in listed.entries or ()] == paths
    downloads = await backend.adownload_files(paths)
    assert [download.content for download in downloads] == [path.encode() for path in paths]
    for path in paths:
        assert (await backend.aedit(path, path, "new", replace_all=True)).ok, path
        assert (await backend.amove(path, f"{path}/moved")).code == "invalid_path"
        assert (await backend.adelete(path)).ok, path
    assert (await backend.als("/")).entries == []


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
async def test_names_and_content_that_a_store_cannot_hold_are_refused(store: BaseStore, bad: str) -> None:
    """In contents and in paths; a bad item in a batch is refused and the others are stored."""
    backend = over(store)
    assert (await backend.awrite("/text.txt", "old")).ok
    before = await snapshot(store)
    for path in (f"/{bad}", f"/dir/{bad}/file", f"/dir/file{bad}"):
        assert (await backend.awrite(path, "text")).code == "invalid_path"
        assert (await backend.amove("/text.txt", path)).code == "invalid_path"
        assert (await backend.acopy("/text.txt", path)).code == "invalid_path"
    assert (await backend.awrite("/new.txt", bad)).code == "invalid_content"
    assert (await backend.awrite("/text.txt", bad, overwrite=True)).code == "invalid_content"
    assert (await backend.aedit("/text.txt", "old", bad)).code == "invalid_content"
    assert await snapshot(store) == before
    uploads = await backend.aupload_files([("/a.txt", b"a"), (f"/b{bad}", b"b"), ("/c.txt", b"c")])
    assert [upload.error for upload in uploads] == [None, "invalid_path", None]
    assert sorted(await snapshot(store)) == ["/a.txt", "/c.txt", "/text.txt"]


async def snapshot(store: BaseStore) -> dict[str, Any]:
    return {item.key: item.value for item in await store.asearch(SPACE, limit=2**31 - 1)}
