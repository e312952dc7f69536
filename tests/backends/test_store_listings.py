"""Listings of stores in databases equal those of a store in memory, and show every change."""

from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs.backends.store import StoreBackend
from support.files import stored

pytestmark = pytest.mark.anyio

SPACE = ("tenant", "files")

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
