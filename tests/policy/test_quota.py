"""A quota is never exceeded, even by concurrent changes; failed changes and deletions release their space."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, FilesystemPermission, MemoryBackend, SqliteBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol
from deepfs.backends.store import StoreBackend
from deepfs.errors import BackendError, PermissionDeniedError, QuotaExceededError
from deepfs.operations import Operation
from deepfs.policy import (
    ChangePolicy,
    HistoryBackend,
    PermissionedBackend,
    PlannedChange,
    QuotaBackend,
    ReadOnlyBackend,
    WrapperBackend,
)
from deepfs.testing import FaultyBackend, LatencyBackend
from deepfs.text.entries import TreeListing
from deepfs.types import EditResult, ExecuteResponse, FileUploadResponse, error_behind
from support.waiting import until_tasks_wait

EXCEEDED = "quota_exceeded"


async def chunks(*content: bytes) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk


async def stored(backend: BackendProtocol) -> tuple[int, int]:
    """Bytes and number of files in the storage, counted without the quota."""
    listing = await backend.alist_tree("/")
    sizes = [entry.size or 0 for entry in listing.entries if entry.kind == "file"]
    return sum(sizes), len(sizes)


STORAGE: dict[str, Callable[[Path], BackendProtocol]] = {
    "disk": FilesystemBackend,
    "history": lambda path: HistoryBackend(MemoryBackend(), MemoryBackend()),
}


@pytest.fixture(params=STORAGE.values(), ids=STORAGE)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    return request.param(tmp_path)


@pytest.mark.anyio
class TestRefusedChanges:
    async def test_changes_that_would_exceed_the_quota_are_refused(self, storage: BackendProtocol) -> None:
        await storage.aupload_files([("/a", b"12345"), ("/d/b", b"123")])
        quota = QuotaBackend(storage, max_bytes=10)
        before = await quota.adownload_files(["/a", "/d/b"])
        results = [
            await quota.awrite("/new", "123"),
            await quota.awrite("/a", "12345678", overwrite=True),
            await quota.aedit("/a", "1", "1234"),
            await quota.acopy("/d", "/e"),
            await quota.acopy("/a", "/c"),
            await quota.acopy("/a", "/d/b", overwrite=True),
        ]
        codes = [result.code for result in results]
        assert codes == [EXCEEDED] * 5 + [None], results
        assert (await quota.aupload_files([("/a", b"12345"), ("/new", b"1")]))[1].error == EXCEEDED
        assert (await quota.aupload_stream("/new", chunks(b"1", b"23"))).error == EXCEEDED
        assert (await quota.adownload_files(["/a"])) == before[:1]
        assert await stored(storage) == (10, 2) == tuple(await quota.ausage())

    async def test_the_error_has_the_size_limit_and_unit(self) -> None:
        quota = QuotaBackend(MemoryBackend(), max_bytes=3, max_files=1)
        result = await quota.awrite("/dir/a", "1234")
        error = error_behind(result)
        assert isinstance(error, QuotaExceededError)
        assert not isinstance(error, OSError)
        assert (error.path, error.size, error.limit, error.unit) == ("/dir/a", 4, 3, "bytes")
        assert "exceeds the quota" in str(result.error)
        mounted = await CompositeBackend(MemoryBackend(), {"/m": quota}).awrite("/m/dir/a", "1234")
        assert "'/m/dir/a'" in str(mounted.error)
        assert (await quota.awrite("/a", "1")).ok
        error = error_behind(await quota.awrite("/b", ""))
        assert isinstance(error, QuotaExceededError)
        assert (error.size, error.limit, error.unit) == (2, 1, "files")
        assert (await quota.aupload_stream("/b", chunks())).error == EXCEEDED

    async def test_changes_that_fail_anyway_keep_their_own_error(self, storage: BackendProtocol) -> None:
        await storage.aupload_files([("/a", b"123"), ("/d/b", b"")])
        quota = QuotaBackend(storage, max_bytes=3, max_files=2)
        assert (await quota.awrite("/a", "12345")).code == "already_exists"
        assert (await quota.acopy("/a", "/d/b")).code == "already_exists"
        assert (await quota.acopy("/none", "/c")).code == "file_not_found"
        assert (await quota.aedit("/a", "x", "12345")).code == "no_match"
        assert (await quota.aedit("/none", "x", "12345")).code == "file_not_found"
        assert (await quota.awrite("/a", "123", if_match="another")).code == "conflict"
        assert (await quota.awrite("/../x", "12345")).code == "invalid_path"
        assert (await quota.adelete("/none")).code == "file_not_found"
        [outcome] = await quota.aupload_files([("/..", b"12345")])
        assert outcome.error == "invalid_path"
        assert tuple(await quota.ausage()) == (3, 2)

    async def test_changes_that_add_nothing_are_allowed_beyond_the_quota(self) -> None:
        memory = MemoryBackend()
        await memory.awrite("/a", "12345")
        quota = QuotaBackend(memory, max_bytes=2, max_files=0)
        assert (await quota.awrite("/a", "1234", overwrite=True)).ok
        assert (await quota.aedit("/a", "4", "3")).ok
        assert (await quota.amove("/a", "/b")).ok
        assert (await quota.awrite("/b", "12345", overwrite=True)).code == EXCEEDED
        assert (await quota.adelete("/b")).ok

    async def test_invalid_limits_are_refused(self) -> None:
        invalid: list[dict[str, int]] = [{}, {"max_bytes": -1}, {"max_files": -1}]
        for limits in invalid:
            with pytest.raises(ValueError, match="max_"):
                QuotaBackend(MemoryBackend(), **limits)
        with pytest.raises(TypeError, match="max_bytes"):
            QuotaBackend(MemoryBackend(), max_bytes="1")  # type: ignore[arg-type]


async def fill(directory: Path, contents: dict[str, bytes], links: dict[str, str]) -> None:
    def fill_in_thread() -> None:
        for name, content in contents.items():
            (directory / name).write_bytes(content)
        for name, target in links.items():
            (directory / name).symlink_to(target)

    await anyio.to_thread.run_sync(fill_in_thread)


@pytest.mark.anyio
class TestReleasedSpace:
    @pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
    async def test_after_a_failure_the_count_matches_the_storage(self, tmp_path: Path, late: bool) -> None:
        disk = FilesystemBackend(tmp_path)
        failing = ("write", "edit", "copy", "move", "delete", "upload_files", "upload_stream")
        error = BackendError("Error: lost")
        quota = QuotaBackend(FaultyBackend(disk, dict.fromkeys(failing, error), late=late), max_bytes=100)
        await disk.awrite("/a", "12345")
        await quota.awrite("/b", "123")
        await quota.aedit("/a", "1", "123")
        await quota.acopy("/a", "/c")
        await quota.amove("/a", "/d")
        await quota.aupload_files([("/e", b"1"), ("/e", b"12")])
        await quota.aupload_stream("/f", chunks(b"1", b"2"))
        await quota.adelete("/c")
        assert tuple(await quota.ausage()) == await stored(disk)

    async def test_a_cancelled_change_releases_its_space(self) -> None:
        memory = MemoryBackend()
        quota = QuotaBackend(LatencyBackend(memory, {"write": 60, "upload_files": 60}), max_bytes=10)

        async def endless() -> AsyncIterator[bytes]:
            yield b"12345"
            await anyio.sleep_forever()

        for change in (
            lambda: quota.awrite("/a", "12345"),
            lambda: quota.aupload_files([("/a", b"12345")]),
            lambda: quota.aupload_stream("/a", endless()),
        ):
            with anyio.move_on_after(0.02) as scope:
                await change()
            assert scope.cancelled_caught
        assert tuple(await quota.ausage()) == (0, 0)

    async def test_a_batch_is_checked_item_by_item(self, storage: BackendProtocol) -> None:
        quota = QuotaBackend(storage, max_bytes=5)
        files = [("/a", b"123"), ("/b", b"123"), ("/a", b"1"), ("/..", b""), ("/c", b"1")]
        outcomes = await quota.aupload_files(files)
        assert [(item.path, item.error) for item in outcomes] == [
            ("/a", None), ("/b", EXCEEDED), ("/a", None), ("/..", "invalid_path"), ("/c", None),
        ]  # fmt: skip
        assert tuple(await quota.ausage()) == (2, 2) == await stored(storage)
        again = await quota.aupload_files([("/a", b"12"), ("/a", b"1234"), ("/a", b"123456")])
        assert [outcome.error for outcome in again] == [None, None, EXCEEDED]
        assert tuple(await quota.ausage()) == (5, 2) == await stored(storage)

    @pytest.mark.parametrize("change", ["copy", "move"])
    async def test_what_arrives_at_the_target_of_a_link_is_counted(self, tmp_path: Path, change: str) -> None:
        storage = FilesystemBackend(tmp_path)
        contents = {"a": b"12345", "b": b"123456", "c": b"1234567"}
        await fill(tmp_path, contents, {"nowhere": "new", "to_a": "a", "to_c": "c", "too_much": "more"})
        quota = QuotaBackend(storage, max_bytes=24)
        transfer = getattr(quota, f"a{change}")
        for source, target in (("/b", "/nowhere"), ("/a", "/to_c"), ("/to_c", "/new")):
            assert (await transfer(source, target, overwrite=True)).ok
            assert tuple(await quota.ausage()) == await stored(storage)
        smaller = QuotaBackend(storage, max_bytes=(await stored(storage))[0] + 4)
        assert (await smaller.acopy("/c", "/too_much")).code == EXCEEDED
        await quota.aupload_files([("/a", b"1234"), ("/to_a", b"123")])
        assert tuple(await quota.ausage()) == await stored(storage)


@pytest.mark.anyio
class TestChangesByOthers:
    async def test_an_edit_applies_only_to_the_version_that_was_measured(self) -> None:
        memory = MemoryBackend()

        class Overtaken(WrapperBackend):
            """Another client makes the file longer just before the first edit."""

            edits = 0

            async def aedit(
                self, path: str, old: str, new: str, replace_all: bool = False, **options: Any
            ) -> EditResult:
                self.edits += 1
                if self.edits == 1:
                    await memory.awrite(path, "x" * 8, overwrite=True)
                return await super().aedit(path, old, new, replace_all, **options)

        await memory.awrite("/a", "x")
        overtaken = Overtaken(memory)
        quota = QuotaBackend(overtaken, max_bytes=10)
        assert (await quota.aedit("/a", "x", "yy", replace_all=True)).code == EXCEEDED
        assert overtaken.edits == 1
        assert (await memory.aread("/a")).file_data.content == "x" * 8  # type: ignore[union-attr]

    async def test_a_recount_includes_files_stored_by_others(self) -> None:
        memory = MemoryBackend()
        quota = QuotaBackend(memory, max_bytes=10)
        assert (await quota.awrite("/a", "1")).ok
        await memory.awrite("/b", "12345678")
        assert tuple(await quota.ausage()) == (1, 1)
        assert tuple(await quota.arecount()) == (9, 2)
        assert (await quota.awrite("/c", "12")).code == EXCEEDED

    @pytest.mark.parametrize("change", ["edit", "delete", "move", "copy"])
    async def test_a_count_includes_files_that_rules_above_hide(self, tmp_path: Path, change: str) -> None:
        files = FilesystemBackend(tmp_path, virtual_mode=True)
        await files.aupload_files([("/hidden/a", b"x" * 90), ("/b", b"x")])
        quota = QuotaBackend(files, max_bytes=100)
        ruled = PermissionedBackend(quota, [FilesystemPermission(["read", "write"], ["/hidden/**"], "deny")])
        first = {"edit": ("/b", "x", "y"), "delete": ("/none",), "move": ("/none", "/c"), "copy": ("/none", "/c")}
        await getattr(ruled, f"a{change}")(*first[change])
        assert (await ruled.awrite("/c", "x" * 50)).code == EXCEEDED
        assert tuple(await quota.ausage()) == (91, 2)

    async def test_files_are_counted_again_after_a_command(self) -> None:
        class Commands(MemoryBackend, SandboxBackendProtocol):
            capabilities = SandboxBackendProtocol.capabilities
            id = "commands"

            async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
                await self.awrite(command, "12345678")
                return ExecuteResponse("", 0)

        quota = QuotaBackend(Commands(), max_bytes=10)
        assert (await quota.awrite("/a", "1")).ok
        await quota.aexecute("/b")
        assert (await quota.awrite("/c", "12")).code == EXCEEDED
        assert tuple(await quota.ausage()) == (9, 2)

    async def test_a_change_fails_if_the_files_cannot_be_listed(self) -> None:
        rules = [FilesystemPermission(["read"], ["/"], "deny")]
        quota = QuotaBackend(PermissionedBackend(MemoryBackend(), rules), max_bytes=10)
        for _ in range(2):
            assert (await quota.awrite("/a", "x")).code == "permission_denied"


# --- never exceeded ---

MAX_BYTES, MAX_FILES = 40, 5
_paths = st.sampled_from(["/a", "/b", "/d/a", "/d/b", "/e/f/g", "/d", "/e"])
_sizes = st.integers(0, 25)
_acts = st.one_of(
    st.tuples(st.just("write"), _paths, _sizes, st.booleans()),
    st.tuples(st.just("edit"), _paths, _sizes),
    st.tuples(st.just("upload"), _paths, _sizes, _paths, _sizes),
    st.tuples(st.just("stream"), _paths, _sizes),
    st.tuples(st.just("copy"), _paths, _paths, st.booleans()),
    st.tuples(st.just("move"), _paths, _paths, st.booleans()),
    st.tuples(st.just("delete"), _paths),
)


class Measured(WrapperBackend):
    """Records the largest usage seen after any change, before its result is returned."""

    is_synchronous = False

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.most = (0, 0)

    async def run(self, operation: Operation) -> Any:
        await anyio.lowlevel.checkpoint()
        result = await super().run(operation)
        now = await stored(self.inner)
        self.most = max(self.most[0], now[0]), max(self.most[1], now[1])
        await anyio.lowlevel.checkpoint()
        return result


async def act(backend: BackendProtocol, kind: str, path: str, *rest: Any) -> None:
    if kind == "write":
        await backend.awrite(path, "x" * rest[0], overwrite=rest[1])
    elif kind == "edit":
        await backend.aedit(path, "x", "y" * rest[0], True)
    elif kind == "upload":
        await backend.aupload_files([(path, b"x" * rest[0]), (rest[1], b"x" * rest[2])])
    elif kind == "stream":
        await backend.aupload_stream(path, chunks(*[b"x" * 3] * (rest[0] // 3)))
    elif kind == "delete":
        await backend.adelete(path)
    else:
        await (backend.acopy if kind == "copy" else backend.amove)(path, rest[0], overwrite=rest[1])


async def run_at_once(programs: Sequence[Sequence[Any]]) -> None:
    storage = MemoryBackend()
    measured = Measured(storage)
    quota = QuotaBackend(measured, max_bytes=MAX_BYTES, max_files=MAX_FILES)

    async def run(program: Sequence[Any]) -> None:
        for each in program:
            await act(quota, *each)

    async with anyio.create_task_group() as tasks:
        for program in programs:
            tasks.start_soon(run, program)
    assert measured.most[0] <= MAX_BYTES
    assert measured.most[1] <= MAX_FILES
    assert tuple(await quota.ausage()) == await stored(storage)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@given(programs=st.lists(st.lists(_acts, max_size=6), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_concurrent_changes_never_exceed_the_quota(loop: str, programs: list[list[Any]]) -> None:
    anyio.run(run_at_once, programs, backend=loop)


# --- the hook ---


@pytest.mark.anyio
async def test_a_policy_sees_each_change_before_and_after_it() -> None:
    class Recording(ChangePolicy):
        async def achanging(self, changes: Sequence[PlannedChange]) -> None:
            told.append([(change.path, change.before, change.after) for change in changes])
            if any(change.path == "/denied" for change in changes):
                raise PermissionDeniedError("/denied")

        async def achanged(self, planned: Sequence[PlannedChange], made: Sequence[PlannedChange]) -> None:
            ended.append([(change.path, change.before, change.after) for change in made])

    told: list[Any] = []
    ended: list[Any] = []
    backend = Recording(MemoryBackend())
    await backend.awrite("/a", "é")
    await backend.aedit("/a", "é", "abc")
    await backend.acopy("/a", "/d/b")
    await backend.amove("/d", "/e")
    await backend.adelete("/e")
    await backend.aupload_stream("/a", chunks(b"1", b"2345", b"6"))
    await backend.aupload_stream("/a", chunks(b"1", b"2"))
    await backend.aupload_stream("/new", chunks())
    assert told == [
        [("/a", None, 2)],
        [("/a", 2, 3)],
        [("/d/b", None, 3)],
        [("/d/b", 3, None), ("/e/b", None, 3)],
        [("/e/b", 3, None)],
        [("/a", 3, 3)],
        [("/a", 3, 5)],
        [("/a", 5, 6)],
        [("/a", 6, 6)],
        [("/a", 6, 2)],
        [("/new", None, 0)],
    ]
    assert ended == [*told[:5], [("/a", 3, 6)], [("/a", 6, 2)], [("/new", None, 0)]]
    assert (await backend.awrite("/denied", "x")).code == "permission_denied"
    assert (await backend.aupload_stream("/denied", chunks(b"x"))).error == "permission_denied"
    assert len(ended) == 8


class Unsteady(WrapperBackend):
    """Raises `error` if `fails` returns true; changes are made before it raises, so their responses are lost."""

    def __init__(
        self, inner: BackendProtocol, fails: Callable[[str, str], bool], error: type[Exception] = BackendError
    ) -> None:
        super().__init__(inner)
        self.fails = fails
        self.error = error
        self.changed = False

    async def run(self, operation: Operation) -> Any:
        [name] = operation.known_as or [operation.name]
        path = (operation.paths or [""])[0]
        if name == "ls":
            self.check(name, path)
        result = await super().run(operation)
        self.changed |= name in ("write", "upload_files")
        self.check(name, path)
        return result

    def check(self, operation: str, path: str) -> None:
        if self.changed and self.fails(operation, path):
            raise self.error("it is not there for a moment")


@pytest.mark.anyio
class TestFailuresDuringChanges:
    async def test_a_cancelled_count_lets_no_change_pass_uncounted(self) -> None:
        class Slow(WrapperBackend):
            async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
                if path == "/" and not counting.is_set():
                    counting.set()
                    await anyio.sleep_forever()
                return await super().alist_tree(path, deleting=deleting)

        counting = anyio.Event()
        files = MemoryBackend()
        await files.awrite("/a", "x" * 90)
        quota = QuotaBackend(Slow(files), max_bytes=100)
        first = anyio.CancelScope()
        codes: list[object] = []

        async def begin() -> None:
            with first:
                await quota.awrite("/first", "x")

        async def follow() -> None:
            codes.append((await quota.awrite("/second", "x" * 90)).code)

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            await counting.wait()
            group.start_soon(follow)
            await until_tasks_wait()
            first.cancel()
        assert codes == [EXCEEDED]
        assert await stored(files) == (90, 1)

    async def test_an_edit_is_refused_if_the_size_cannot_be_read(self) -> None:
        files = MemoryBackend()
        await files.awrite("/a", "12345678")
        inner = Unsteady(files, lambda operation, _: operation == "download_files")
        inner.changed = True
        quota = QuotaBackend(inner, max_bytes=10)
        assert (await quota.aedit("/a", "1", "1" * 50)).code == "backend_error"
        assert await stored(files) == (8, 1)

    async def test_an_empty_file_counts_if_its_response_and_the_listing_are_lost(self) -> None:
        inner = Unsteady(MemoryBackend(), lambda operation, _: operation in ("write", "ls"))
        quota = QuotaBackend(inner, max_files=1)
        assert (await quota.awrite("/a", "")).code == "backend_error"
        assert await quota.ausage() == await stored(inner.inner) == (0, 1)

    async def test_an_exception_in_a_listing_releases_the_space_of_other_items(self) -> None:
        class Full(Unsteady):
            async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
                self.changed = True
                return [FileUploadResponse(path, "backend_error") for path, _ in files]

        inner = Full(MemoryBackend(), lambda operation, path: operation == "ls" and path == "/a", RuntimeError)
        quota = QuotaBackend(inner, max_bytes=100)
        outcomes = await quota.aupload_files([("/a", b"x" * 30), ("/b", b"x" * 70)])
        assert [outcome.error for outcome in outcomes] == ["backend_error"] * 2
        assert (await quota.ausage()).bytes == 30


def test_over_backends_of_many_callers_there_is_no_quota() -> None:
    tenants = StoreBackend(InMemoryStore(), namespace=lambda _: ("tenant",))
    with pytest.warns(DeprecationWarning, match="factories"):
        factory = ReadOnlyBackend(lambda _: MemoryBackend())
    for inner in (tenants, ReadOnlyBackend(tenants), factory, factory.inner):
        for mounted in (inner, CompositeBackend(MemoryBackend(), {"/t/": inner})):
            if isinstance(mounted, CompositeBackend) or inner in (factory, factory.inner):
                with pytest.raises(ValueError, match="count the files of all callers together"):
                    QuotaBackend(mounted, 10)
    assert QuotaBackend(tenants, 10).write("/a.txt", "a").ok


@pytest.mark.anyio
async def test_each_namespace_of_a_factory_has_the_whole_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="ada")
    store = StoreBackend(InMemoryStore(), namespace=lambda _: (tenant.get(), "files"))
    async with SqliteBackend(tmp_path / "files.db", lambda _: (tenant.get(), "files")) as database:
        for inner in (store, WrapperBackend(database), CompositeBackend(store, {"/db": database})):
            quota = QuotaBackend(inner, max_bytes=100)

            async def fill(name: str, quota: QuotaBackend = quota) -> None:
                tenant.set(name)
                outcomes = [(await quota.awrite(f"/{number}", "x" * 30)).code for number in range(5)]
                assert sorted(map(str, outcomes)) == ["None", "None", "None", "quota_exceeded", "quota_exceeded"]
                assert (await quota.aupload_stream("/s", chunks(b"x" * 5, b"x" * 5))).error is None
                assert tuple(await quota.ausage()) == (100, 4)
                assert (await quota.adelete("/0")).ok
                assert tuple(await quota.arecount()) == (70, 3)

            monkeypatch.setattr("deepfs.policy.limits._MOST_CALLERS", 2)
            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(fill, f"user {number} of {id(inner)}")
            assert len(quota._recent) == 2
