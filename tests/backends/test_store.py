"""StoreBackend beyond the shipped suite: namespaces, formats, and the source of the store."""

import threading
import time
import warnings
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from deepfs.backends.store import StoreBackend
from deepfs.errors import ErrorCode
from deepfs.sync import run_sync
from deepfs.testing.suite import assert_ok
from deepfs.threads.locks import path_locks
from support.files import stored

pytestmark = pytest.mark.anyio


class Nothing(TypedDict, total=False):
    done: bool


async def written_namespaces(store: InMemoryStore) -> set[tuple[str, ...]]:
    return {tuple(namespace) for namespace in await store.alist_namespaces()}


# --- namespaces ---


async def test_only_items_of_exactly_this_namespace_are_visible() -> None:
    store = InMemoryStore()
    for namespace in [("acme",), ("acme", "child"), ("acme-corp",), ("other", "acme")]:
        await store.aput(namespace, "/secret.txt", stored("/".join(namespace).encode()))
    backend = StoreBackend(store, namespace=("acme",))
    assert [info.path for info in (await backend.als("/")).entries or ()] == ["/secret.txt"]
    assert [match.text for match in (await backend.agrep("acme")).matches or ()] == ["acme"]
    assert len((await backend.aglob("**")).matches or ()) == 1
    await backend.adelete("/secret.txt")
    assert await store.aget(("acme", "child"), "/secret.txt") is not None


def test_a_bad_namespace_or_format_is_refused_at_construction() -> None:
    wrong: list[Any] = [(), "", ("",), ("a", ""), ("a\n",), ("a\0",), ("\ud800",), (1,), 5]
    for namespace in wrong:
        with pytest.raises((TypeError, ValueError), match="namespace"):
            StoreBackend(InMemoryStore(), namespace=namespace)
    with pytest.raises(ValueError, match="file_format"):
        StoreBackend(InMemoryStore(), namespace=("fs",), file_format="v3")  # type: ignore[arg-type]


async def test_a_failing_namespace_factory_is_an_error_and_changes_nothing() -> None:
    store = InMemoryStore()
    factories: list[Any] = [
        lambda _: ("a\0",),
        lambda _: (),
        lambda _: None,
        lambda rt: (rt.context.user,),
        lambda _: 1 / 0,
    ]
    for factory in factories:
        backend = StoreBackend(store, namespace=factory)
        written = await backend.awrite("/x", "text")
        assert written.code is ErrorCode.BACKEND_ERROR
        assert "namespace factory" in (written.error or "")
        assert (await backend.als("/")).code is ErrorCode.BACKEND_ERROR
    assert await written_namespaces(store) == set()


async def test_without_a_namespace_the_legacy_namespace_is_used_with_a_warning() -> None:
    store = InMemoryStore()
    with pytest.warns(DeprecationWarning, match="namespace") as caught:
        backend = StoreBackend(store)
    assert caught[0].filename == __file__
    assert (await backend.awrite("/x", "text")).ok
    assert await written_namespaces(store) == {("filesystem",)}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_store_runtime_and_assistant_come_from_the_running_graph() -> None:
    store = InMemoryStore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        legacy = StoreBackend()

    def of_user(runtime: Runtime[Any]) -> tuple[str, ...]:
        return (runtime.context["user"], "files")

    async def node(state: Nothing) -> Nothing:
        assert (await legacy.awrite("/x", "text")).ok
        assert (await StoreBackend(namespace=of_user).awrite("/x", "text")).ok
        return {"done": True}

    graph = StateGraph(Nothing, context_schema=dict).add_node(node).add_edge(START, "node").compile(store=store)
    await graph.ainvoke({}, {"metadata": {"assistant_id": "helper"}}, context={"user": "ann@example.org"})
    assert await written_namespaces(store) == {("helper", "filesystem"), ("ann@example!org", "files")}


# --- formats ---


async def test_every_stored_format_is_read_and_rewritten_as_v2() -> None:
    store = InMemoryStore()
    await store.aput(("fs",), "/v1.txt", {"content": ["one", "two", ""], "created_at": "c", "modified_at": "m"})
    await store.aput(("fs",), "/js.bin", {"content": {"0": 0, "1": 255}, "mimeType": "application/x-thing"})
    await store.aput(("fs",), "/bare.txt", {"content": "no stamps"})
    backend = StoreBackend(store, namespace=("fs",))
    assert (await backend.aread("/v1.txt")).unwrap().content == "one\ntwo\n"
    downloads = await backend.adownload_files(["/js.bin", "/bare.txt"])
    assert [download.content for download in downloads] == [b"\x00\xff", b"no stamps"]
    assert (await backend.aedit("/v1.txt", "two", "2")).ok
    item = await store.aget(("fs",), "/v1.txt")
    assert item is not None
    assert item.value == {
        "content": "one\n2\n",
        "encoding": "utf-8",
        "created_at": "c",
        "modified_at": item.value["modified_at"],
    }


async def test_v1_writes_lines_and_refuses_binary_content() -> None:
    store = InMemoryStore()
    backend = StoreBackend(store, namespace=("fs",), file_format="v1")
    assert (await backend.awrite("/a.txt", "one\ntwo")).ok
    item = await store.aget(("fs",), "/a.txt")
    assert item is not None
    assert item.value["content"] == ["one", "two"]
    assert "encoding" not in item.value
    uploads = await backend.aupload_files([("/b.txt", b"text"), ("/b.bin", b"\x00"), ("/c.txt", b"text")])
    assert [upload.error for upload in uploads] == [None, "invalid_content", None]
    assert await store.aget(("fs",), "/b.bin") is None


# --- one operation ---


async def test_an_operation_asks_for_its_namespace_once() -> None:
    asked = []

    def namespace(_: Any) -> tuple[str, ...]:
        asked.append(None)
        return ("tenant", str(len(asked)))

    backend = StoreBackend(InMemoryStore(), namespace=namespace)
    assert (await backend.awrite("/a", "x")).ok
    assert (await backend.aread("/a")).code == "file_not_found"
    assert (await backend.als("/")).entries == []
    assert len(asked) == 3


async def test_backends_share_one_index_however_many_namespaces_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.backends.store._MAX_NAMESPACES", 4)
    store = InMemoryStore()
    first = StoreBackend(store, namespace=("n", "0"))
    assert (await first.awrite("/a", "x")).ok
    for number in reversed(range(10)):
        assert (await StoreBackend(store, namespace=("n", str(number))).awrite(f"/d{number}/x", "x")).ok
    assert (await first.awrite("/d0", "x")).code == "is_directory"


# --- sync calls ---


def test_a_store_without_async_methods_works_in_sync_and_async_programs(tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        backend = StoreBackend(store, namespace=("n",))
        assert backend.write("/a", "one").ok
        assert run_sync(backend.aedit, "/a", "one", "two").ok
        assert [match.path for match in assert_ok(backend.grep("two")).matches or []] == ["/a"]
        assert store.get(("n",), "/a").value["content"] == "two"


class TestBlockingOnPurpose:
    @pytest.fixture(autouse=True)
    def _no_blocking(self) -> None:
        """Disable the guard: this test blocks the loop on purpose."""

    async def test_a_sync_call_on_an_event_loop_waits_for_the_lock_of_a_thread(self) -> None:
        backend = StoreBackend(InMemoryStore(), namespace=("n",))
        locks, held = path_locks(backend._scope()), threading.Event()

        def hold() -> None:
            with locks.hold_blocking("/a"):
                held.set()
                while len(locks.table.requests("/a")) < 2:
                    time.sleep(0.001)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(10)
        assert backend.write("/a", "x").ok
        thread.join()


class CountingStore(InMemoryStore):
    """Counts searches; each search fetches a whole namespace."""

    searches = 0

    async def abatch(self, ops: Any) -> list[Any]:
        operations = list(ops)
        self.searches += sum(hasattr(operation, "namespace_prefix") for operation in operations)
        return await super().abatch(operations)


async def test_creating_files_lists_the_namespace_once() -> None:
    store = CountingStore()
    backend = StoreBackend(store, namespace=("fs",))
    for number in range(20):
        assert (await StoreBackend(store, namespace=("fs",)).awrite(f"/d/{number}.txt", "text")).ok
        assert (await backend.aedit(f"/d/{number}.txt", "text", "more")).ok
        assert (await backend.aread(f"/d/{number}.txt")).ok
    assert store.searches == 1
    assert (await backend.awrite("/d", "no file")).code is ErrorCode.IS_DIRECTORY
    await backend.adelete("/d")
    assert (await backend.awrite("/d", "a file now")).ok


async def test_a_store_that_ignores_offsets_is_no_endless_listing() -> None:
    class Ignoring(InMemoryStore):
        async def abatch(self, ops: Any) -> list[Any]:
            return await super().abatch([op._replace(offset=0, limit=2) if hasattr(op, "offset") else op for op in ops])

    backend = StoreBackend(Ignoring(), namespace=("fs",))
    await backend.aupload_files([(f"/{number}", b"x") for number in range(5)])
    listed = await backend.als("/")
    assert (listed.code, "a part of its items" in str(listed.error)) == (ErrorCode.BACKEND_ERROR, True)


def test_outside_of_a_graph_a_store_must_be_given() -> None:
    assert "found no store: pass it one" in str(StoreBackend(namespace=("a",)).read("/a").error)
