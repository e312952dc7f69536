"""A factory has a place for each caller, on every backend that has a place: in graphs, and by `at` outside of them."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import fsspec.implementations.memory  # noqa: F401  # Its import blocks, so it must not come in a test that is async.
import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemState,
    FsspecBackend,
    MemoryBackend,
    ObjectStoreBackend,
    PostgresBackend,
    RedisBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
    run_sync,
)
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode, OutsideGraphError
from deepfs.policy import AuditedBackend, AuditRecord, HistoryBackend, HookedBackend, QuotaBackend, RateLimit
from support.postgres_files import fresh_namespace

pytestmark = pytest.mark.anyio

KINDS = ["store", "sqlite", "postgres", "redis", "s3", "s3 with an index", "objects", "fsspec", "disk"]
HOSTILE = ["..", ".", "a/b", "a", "~a", "C:", "/etc", "auth0|5f", "a%2Fb", "a b", "Ádám", "A", "...", "a.b", "a!b"]
REFUSED = ["", "a\0", "a\n", "\ud800", None, 7]


@dataclass
class Caller:
    user: Any


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # LangGraph needs it.


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, Callable[[Any], Any]], BackendProtocol]:
    """Makes the backend of a kind whose factory returns the names that are given for the runtime."""
    above = fresh_namespace()

    def s3(names: Callable[[Any], Any], **options: Any) -> BackendProtocol:
        server: Any = request.getfixturevalue("s3_server")
        opened: BackendProtocol = server.backend(lambda runtime: (*above, *names(runtime)), **options)
        return opened

    def make(kind: str, names: Callable[[Any], Any]) -> BackendProtocol:
        opened: dict[str, Callable[[], BackendProtocol]] = {
            "store": lambda: StoreBackend(InMemoryStore(), namespace=names),
            "sqlite": lambda: SqliteBackend(tmp_path / "files.db", names),
            "postgres": lambda: PostgresBackend(
                request.getfixturevalue("postgres_files_dsn"), lambda runtime: (*above, *names(runtime))
            ),
            "redis": lambda: RedisBackend(
                request.getfixturevalue("redis_server").url, lambda runtime: (*above, *names(runtime))
            ),
            "s3": lambda: s3(names),
            "s3 with an index": lambda: s3(names, index=SqliteBackend(tmp_path / "index.db", "index")),
            "objects": lambda: ObjectStoreBackend("memory://", names),
            "fsspec": lambda: FsspecBackend(f"memory://{above[-1]}", names),
            "disk": lambda: FilesystemBackend(lambda runtime: (tmp_path / "tenants", *names(runtime))),
        }
        return opened[kind]()

    return make


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, make: Any) -> BackendProtocol:
    made: BackendProtocol = make(request.param, lambda runtime: (runtime.context.user, "files"))
    return made


@pytest.fixture
def by_user(request: pytest.FixtureRequest, make: Any) -> BackendProtocol:
    """The backend of a kind, with the user as the only name."""
    made: BackendProtocol = make(request.param, lambda runtime: (runtime.context.user,))
    return made


def of(backend: BackendProtocol, user: Any) -> BackendProtocol:
    return backend.at(Runtime(context=Caller(user)))


async def in_graph(user: str, act: Callable[[], Any]) -> Any:
    """What `act` returns in a node of a graph that runs for a user."""
    found: list[Any] = []

    async def node(state: FilesystemState) -> None:
        found.append(await act())

    graph = StateGraph(FilesystemState, context_schema=Caller).add_node("node", node).add_edge(START, "node").compile()
    await graph.ainvoke({"files": {}}, {"configurable": {"thread_id": f"of {user}"}}, context=Caller(user))
    return found[0]


async def joined(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def look(backend: BackendProtocol) -> Sequence[Any]:
    """What a tenant finds in all ways of looking."""
    names = ("/secret.md", "/d/other.md")
    reads = [await backend.aread(path) for path in names]
    downloads = await backend.adownload_files([*names])
    return (
        [info.path for info in (await backend.als("/")).unwrap()],
        [info.path for info in (await backend.aglob("**")).unwrap()],
        [(match.path, match.text) for match in (await backend.agrep("belongs")).unwrap()],
        [(read.code, read.file_data and read.file_data.content) for read in reads],
        [(response.error, response.content) for response in downloads],
        [entry.path for entry in (await backend.alist_tree("/")).entries],
    )


async def fill(backend: BackendProtocol, user: str) -> None:
    assert (await backend.awrite("/secret.md", f"belongs to {user}\n")).ok
    assert (await backend.acopy("/secret.md", "/d/copy.md")).ok
    assert (await backend.amove("/d/copy.md", "/d/other.md")).ok
    assert (await backend.aedit("/d/other.md", "to", "still to")).ok


async def test_two_tenants_find_their_own_files_in_a_graph_and_by_a_view(backend: BackendProtocol) -> None:
    await fill(of(backend, "ada"), "ada")
    assert await in_graph("bob", partial(look, backend)) == await look(of(backend, "bob"))
    assert [info.path for info in (await of(backend, "bob").aglob("**")).unwrap()] == []
    await in_graph("bob", partial(fill, backend, "bob"))
    for user, other in (("ada", "bob"), ("bob", "ada")):
        seen = await look(of(backend, user))
        assert seen == await in_graph(user, partial(look, backend))
        assert seen[0] == ["/d/", "/secret.md"]
        assert seen[2] == [("/d/other.md", f"belongs still to {user}"), ("/secret.md", f"belongs to {user}")]
        assert other not in repr(seen)
    assert (await of(backend, "ada").adelete("/secret.md")).ok
    assert (await of(backend, "bob").aread("/secret.md")).ok
    places = [await of(backend, user).astorage_place("/d") for user in ("ada", "bob")]
    assert places[0].keys.isdisjoint(places[1].keys)
    assert (await backend.aread("/secret.md")).code == ErrorCode.BACKEND_ERROR  # Nobody calls.


def test_views_serve_code_without_an_event_loop(backend: BackendProtocol) -> None:
    ada, bob = of(backend, "ada"), of(backend, "bob")
    for view, text in ((ada, "of ada"), (bob, "of bob")):
        assert view.write("/a.txt", text).ok
        assert view.edit("/a.txt", "of", "still of").ok
    assert [view.read("/a.txt").unwrap().content for view in (ada, bob)] == ["still of ada", "still of bob"]
    assert [match.text for match in ada.grep("still").unwrap()] == ["still of ada"]


async def test_a_stream_of_one_tenant_reaches_another_only_by_its_caller(backend: BackendProtocol) -> None:
    ada, bob = of(backend, "ada"), of(backend, "bob")
    assert (await ada.awrite("/a.txt", "ada")).ok
    assert (await bob.awrite("/a.txt", "bob")).ok

    async def of_the_node() -> None:
        assert (await bob.aupload_stream("/from.txt", backend.adownload_stream("/a.txt"))).error is None

    await in_graph("ada", of_the_node)
    assert await joined(bob.adownload_stream("/from.txt")) == b"ada"
    async with aclosing(ada.adownload_stream("/a.txt", chunk_size=1)) as chunks:
        read = [await anext(chunks)]
        assert (await in_graph("bob", partial(backend.aread, "/a.txt"))).unwrap().content == "bob"
        assert b"".join([*read, *[chunk async for chunk in chunks]]) == b"ada"


@pytest.mark.parametrize("by_user", ["postgres", "disk"], indirect=True)
async def test_a_watch_sees_the_changes_of_its_tenant(by_user: BackendProtocol) -> None:
    backend = by_user
    for user in ("ada", "bob"):
        assert (await of(backend, user).awrite("/before.txt", "x")).ok
    with anyio.fail_after(60):
        async with aclosing(of(backend, "ada").awatch("/")) as events:
            assert (await anext(events)).kind == "resync"
            assert (await of(backend, "bob").awrite("/of-bob.txt", "x")).ok
            assert (await in_graph("ada", partial(backend.awrite, "/of-ada.txt", "x"))).ok
            seen = await anext(events)
            while seen.path in ("/", "/before.txt"):
                seen = await anext(events)
            assert seen.path == "/of-ada.txt"


@pytest.mark.parametrize("by_user", [kind for kind in KINDS if "s3" not in kind], indirect=True)
async def test_whatever_a_tenant_is_called_its_files_stay_its_own(by_user: BackendProtocol, tmp_path: Path) -> None:
    backend = by_user
    for user in HOSTILE:
        assert (await of(backend, user).awrite("/b/who.txt", f"it is {user}")).ok, user
    for user in HOSTILE:
        found = (await of(backend, user).agrep("it is")).unwrap()
        assert [(match.path, match.text) for match in found] == [("/b/who.txt", f"it is {user}")]
    for name in REFUSED:
        answer = await of(backend, name).awrite("/who.txt", "x")
        assert answer.code == ErrorCode.BACKEND_ERROR, name
        assert str(tmp_path) not in (answer.error or "")
    long = await of(backend, "a" * 300).awrite("/who.txt", "x")
    assert long.ok or long.code == ErrorCode.BACKEND_ERROR
    assert {*await anyio.to_thread.run_sync(os.listdir, tmp_path)} <= {
        "tenants",
        "files.db",
        "files.db-wal",
        "files.db-shm",
    }


@pytest.mark.parametrize("answer", [None, "", (), 7, ("",), ("a", None), "users/", "users//a", ".", "users/..", "a\0"])
async def test_an_answer_that_names_no_place_is_an_error_and_never_the_root(tmp_path: Path, answer: Any) -> None:
    inside = SqliteBackend(tmp_path / "files.db", lambda _: answer)
    for backend in (ObjectStoreBackend("memory://", lambda _: answer), FsspecBackend("memory://x", lambda _: answer)):
        assert (await backend.awrite("/a.txt", "x")).code == ErrorCode.BACKEND_ERROR
        assert (await backend.als("/")).code == ErrorCode.BACKEND_ERROR
        with pytest.raises((TypeError, ValueError)):
            backend.at(answer)
    if not isinstance(answer, str) or answer in ("", "a\0"):
        assert (await inside.awrite("/a.txt", "x")).code == ErrorCode.BACKEND_ERROR


@pytest.mark.parametrize("answer", [None, "/srv", Path("/srv"), ("/srv",), ("srv", "ada"), ("/srv", ""), ("/srv", 7)])
async def test_a_factory_of_directories_names_one_below_a_fixed_one(answer: Any) -> None:
    backend = FilesystemBackend(lambda _: answer)
    assert (await backend.als("/")).code == ErrorCode.BACKEND_ERROR
    assert "/srv" not in ((await backend.als("/")).error or "").replace("('/srv/files', user)", "")


async def test_a_link_leads_out_of_no_tenant(tmp_path: Path) -> None:
    backend = FilesystemBackend(lambda runtime: (tmp_path, runtime.context.user))
    for user in ("ada", "bob"):
        assert (await of(backend, user).awrite("/secret.md", user)).ok
    for target, link in ((tmp_path / "bob", "link"), ("../bob/secret.md", "file.md")):
        await anyio.to_thread.run_sync(os.symlink, target, tmp_path / "ada" / link)
    ada = of(backend, "ada")
    assert (await ada.aread("/link/secret.md")).code == (await ada.aread("/file.md")).code == "permission_denied"
    assert [match.path for match in (await ada.agrep("bob")).unwrap()] == []


async def test_what_a_view_tells_of_its_place_is_that_of_its_tenant(tmp_path: Path) -> None:
    files = FilesystemBackend(lambda runtime: (tmp_path, runtime.context.user))

    async def ask() -> Any:
        return await anyio.to_thread.run_sync(lambda: of(files, "bob").cwd)  # type: ignore[attr-defined]

    assert await in_graph("ada", ask) == tmp_path / "bob"


def test_what_is_neither_a_place_nor_a_factory_is_refused(tmp_path: Path) -> None:
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: StoreBackend(InMemoryStore(), namespace=7), "namespace"),  # type: ignore[arg-type]
        (lambda: SqliteBackend(tmp_path / "files.db", 7), "namespace"),  # type: ignore[arg-type]
        (lambda: PostgresBackend("postgresql://localhost/x", 7), "namespace"),  # type: ignore[arg-type]
        (lambda: ObjectStoreBackend("memory://", 7), "prefix"),  # type: ignore[arg-type]
        (lambda: FsspecBackend("memory://", 7), "root"),  # type: ignore[arg-type]
        (lambda: FilesystemBackend(7), "root_dir"),  # type: ignore[arg-type]
        (lambda: LocalShellBackend(lambda _: ("/srv", "ada")), "root_dir"),  # type: ignore[arg-type]
        (lambda: MemoryBackend().at(7), "no factory"),  # type: ignore[arg-type]
        (lambda: SqliteBackend(tmp_path / "files.db", lambda _: "a").at(7), "Runtime"),  # type: ignore[arg-type]
    ]
    for act, named in refused:
        with pytest.raises((TypeError, ValueError), match=named):
            act()


# --- views through mounts and layers ---------------------------------------------------------------------------------


def of_user(runtime: Any) -> tuple[str, str]:
    return runtime.context.user, "files"


async def test_a_view_of_a_tree_counts_and_records_what_the_graph_does(tmp_path: Path) -> None:
    records: list[AuditRecord] = []
    quota = QuotaBackend(HistoryBackend(SqliteBackend(tmp_path / "files.db", of_user)), max_bytes=100)
    files = AuditedBackend(CompositeBackend(StateBackend(), {"/notes": quota}), records.append)
    await in_graph("ada", partial(files.awrite, "/notes/a.md", "x" * 60))
    views = (of(files, "ada"), files.at(("ada", "files")))
    for view in views:
        assert (await view.awrite("/notes/b.md", "x" * 60)).code == ErrorCode.QUOTA_EXCEEDED
    assert (await of(files, "bob").awrite("/notes/b.md", "x" * 60)).ok
    assert [(record.tenant, record.thread) for record in records] == [
        ("ada/files", "of ada"),
        ("ada/files", None),
        ("ada/files", None),
        ("bob/files", None),
    ]
    assert {record.backend for record in records} == {"CompositeBackend"}
    ada = quota.at(("ada", "files"))
    assert (await ada.ausage()).bytes == 60
    async with ada as closed_at_the_end:
        assert (await closed_at_the_end.aedit("/a.md", "x" * 60, "y")).ok
    history = quota.inner.at(("ada", "files"))
    assert isinstance(quota.inner, HistoryBackend)
    assert len(await history.ahistory("/a.md")) == 1  # type: ignore[attr-defined]
    assert (await of(files, "ada").aread("/notes/a.md")).unwrap().content == "y"
    outside = of(files, "ada")
    for look in (outside.aread("/a.md"), outside.als("/"), outside.aglob("**"), outside.agrep("x")):
        with pytest.raises(OutsideGraphError, match="StateBackend"):
            await look
    await AuditedBackend(history, records.append).als("/")
    assert records[-1].tenant == "ada/files"


async def test_one_tenant_has_one_name_in_records_whatever_its_storages(tmp_path: Path) -> None:
    records: list[AuditRecord] = []
    disk = FsspecBackend("memory://", root=lambda runtime: (runtime.context.user, "files"))
    files = AuditedBackend(CompositeBackend(SqliteBackend(tmp_path / "a.db", of_user), {"/d": disk}), records.append)
    for user in ("a:b", "~ada", "..", "a/b", "a%3Ab"):
        await of(files, user).als("/")
    names = [str(record.tenant) for record in records]
    assert names == ["a:b/files", "~ada/files", "../files", "a%2Fb/files", "a%253Ab/files"]


async def test_factories_that_differ_are_told_the_caller_not_the_place(tmp_path: Path) -> None:
    notes = SqliteBackend(tmp_path / "files.db", lambda runtime: (runtime.context.user, "notes"))
    disk = FilesystemBackend(lambda runtime: (tmp_path / "tenants", runtime.context.user))
    files = CompositeBackend(notes, {"/disk": disk})
    with pytest.raises(ValueError, match="pass the Runtime"):
        files.at("ada")
    assert (await of(files, "ada").awrite("/disk/a.md", "x")).ok
    assert (await of(files, "ada").amove("/disk/a.md", "/a.md")).ok
    assert (await notes.at(("ada", "notes")).aread("/a.md")).ok
    assert (await of(files, "bob").aread("/a.md")).code == ErrorCode.FILE_NOT_FOUND


async def test_what_a_layer_does_elsewhere_is_not_done_for_the_tenant_of_a_view() -> None:
    log = StoreBackend(InMemoryStore(), namespace=lambda _: "log")

    async def note(record: AuditRecord) -> None:
        await log.awrite(f"/{record.operation}", record.tenant or "")

    files = AuditedBackend(StoreBackend(InMemoryStore(), namespace=of_user), note)
    assert (await files.at(("ada", "files")).awrite("/a.md", "x")).ok
    assert (await log.aread("/write")).unwrap().content == "ada/files"
    assert [info.path for info in (await files.at(("ada", "files")).als("/")).unwrap()] == ["/a.md"]


@pytest.mark.parametrize("key", [None, lambda runtime: runtime.context.user])
async def test_each_tenant_has_the_whole_rate(tmp_path: Path, key: Any) -> None:
    now = 0.0
    limit = RateLimit(2, 10, key=key, clock=lambda: now)
    files = HookedBackend(SqliteBackend(tmp_path / "files.db", of_user), [limit])
    for user in ("ada", "bob"):
        codes = [(await of(files, user).als("/")).code for _ in range(2)]
        codes.append((await in_graph(user, partial(files.als, "/"))).code)
        assert codes == [None, None, "permission_denied"]
    now = 11
    assert (await of(files, "zoe").als("/")).ok
    assert len(limit._times) == 1
    assert (await HookedBackend(MemoryBackend(), [RateLimit(1, 1, key=lambda _: 1 / 0)]).als("/")).code == (
        ErrorCode.BACKEND_ERROR
    )


async def test_many_tenants_leave_nothing_behind_but_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("filesystem", "object_store"):
        monkeypatch.setattr(f"deepfs.backends.{module}.MOST_PLACES", 3)
    disk = FilesystemBackend(lambda runtime: (tmp_path, runtime.context.user))
    objects = ObjectStoreBackend("memory://", lambda runtime: runtime.context.user)
    for number in range(10):
        for backend in (disk, objects):
            assert (await of(backend, f"user {number}").awrite("/a.txt", str(number))).ok
    assert disk._open_directory.cache_info().currsize == objects._bucket_at.cache_info().currsize == 3
    for backend in (disk, objects):
        assert (await of(backend, "user 0").aread("/a.txt")).unwrap().content == "0"


def test_the_legacy_namespace_of_a_store_is_by_caller() -> None:
    with pytest.warns(DeprecationWarning, match="namespace"):
        store = StoreBackend(InMemoryStore())
    history = HistoryBackend(store, MemoryBackend())
    for assistant in ("first", "second"):
        assert history.at((assistant, "filesystem")).write("/a.txt", assistant).ok
    assert history.at(("first", "filesystem")).write("/a.txt", "2", overwrite=True).ok
    versions = [run_sync(history.at((each, "filesystem")).ahistory, "/a.txt") for each in ("first", "second")]
    assert [len(found) for found in versions] == [1, 0]
    assert store.at(("assistant", "filesystem")).write("/a.txt", "x").ok
    assert store.read("/a.txt").code == ErrorCode.FILE_NOT_FOUND
