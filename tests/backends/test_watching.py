"""Change events in this process: none is lost between threads, loops, mounts and failures of a storage."""

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, FilesystemPermission, MemoryBackend, StoreBackend
from deepfs.backends import watching as watches
from deepfs.backends.flat import AsyncStorage, Listing, StorageBackend
from deepfs.backends.protocol import Capabilities
from deepfs.backends.watching import ChangeBuffer
from deepfs.errors import BackendError, ConflictError, NotFoundError, QuotaExceededError
from deepfs.policy import HistoryBackend, PermissionedBackend
from deepfs.storage.runners import Storage
from deepfs.testing.conformance.at_once import WatchReader, watch_changes
from deepfs.text.flat_tree import Change, ChangedError, FileStat, stat_of
from deepfs.types import ChangeEvent, ChangeKind, FileDataV2
from support.waiting import until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture(autouse=True)
def _all_watches_end() -> Iterator[None]:
    yield
    assert not watches._watches


# --- the buffer ---


def _drained(buffer: ChangeBuffer) -> list[ChangeEvent]:
    return list(iter(buffer.pop, None))


def test_later_changes_do_not_replace_a_resync() -> None:
    buffer = ChangeBuffer("/")
    for kind in ("created", "resync", "deleted"):
        buffer.add(ChangeEvent("/a", kind))  # type: ignore[arg-type]
    assert [event.kind for event in _drained(buffer)] == ["resync"]


@example([("a", True), ("b", True)], 1)
@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abcd"), st.booleans()))), st.integers(1, 4))
def test_what_is_read_and_what_is_pending_give_the_real_files(steps: list[Any], most: int) -> None:
    real: set[str] = set()
    known: set[str] = set()
    buffer = ChangeBuffer("/")

    def follow(event: ChangeEvent | None) -> None:
        if event is None:
            return
        if event.kind == "resync":
            known.clear()
            known.update(real)
        elif event.kind == "deleted":
            known.discard(event.path)
        else:
            known.add(event.path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watches, "_MAX_PENDING", most)
        for step in steps:
            if step is None:
                follow(buffer.pop())
                continue
            path, exists = f"/{step[0]}", step[1]
            kind: ChangeKind = "deleted" if not exists else "modified" if path in real else "created"
            (real.add if exists else real.discard)(path)
            buffer.add(ChangeEvent(path, kind))
            assert len(buffer._pending) <= most
    for event in _drained(buffer):
        follow(event)
    assert known == real


# --- threads and event loops ---


async def test_changes_from_other_threads_and_loops_are_told() -> None:
    backend = MemoryBackend()

    async def on_a_loop() -> None:
        for number in range(50):
            await backend.awrite(f"/loop/{number}", "x")

    def without_one() -> None:
        for number in range(50):
            backend.write(f"/thread/{number}", "x")

    async with watch_changes(backend) as reader, anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, without_one)
        for library in ("asyncio", "trio"):
            await anyio.to_thread.run_sync(lambda name: anyio.run(on_a_loop, backend=name), library)
            await reader.until(lambda: len([path for path in reader.files if path.startswith("/loop/")]) == 50)
            assert (await backend.adelete("/loop")).ok
        await reader.until(lambda: reader.files == {f"/thread/{number}" for number in range(50)})


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_what_changes_while_a_watch_begins_is_not_lost(kind: str, tmp_path: Any) -> None:
    backend = MemoryBackend() if kind == "memory" else FilesystemBackend(tmp_path)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.wait(0.0005):
            number += 1
            backend.write(f"/{number}", "x")
            backend.delete(f"/{number - 1}")
        backend.write("/last", "x")

    async with anyio.create_task_group() as group:
        readers: list[WatchReader] = []

        async def follow() -> None:
            async with watch_changes(backend) as reader:
                readers.append(reader)
                await reader.until(lambda: "/last" in reader.files)

        group.start_soon(anyio.to_thread.run_sync, change)
        for _ in range(20):
            group.start_soon(follow)
            await anyio.sleep(0.002)
        stop.set()
    found = {info.path for info in (await backend.aglob("*")).matches or ()}
    assert [reader.files for reader in readers] == [found] * 20


async def test_a_watch_whose_loop_has_ended_hinders_nobody() -> None:
    backend = MemoryBackend()

    async def leave_open() -> Any:
        events = backend.awatch("/")
        await anext(events)
        return events

    def run() -> None:
        kept = anyio.run(leave_open)
        backend.write("/a", "x")
        del kept

    await anyio.to_thread.run_sync(run)
    assert (await backend.awrite("/b", "x")).ok
    watches._watches.clear()


# --- storages that fail ---


class Failing(AsyncStorage):
    """Raises `error` before or after it has stored the changes."""

    def __init__(self) -> None:
        self.files: dict[str, FileDataV2] = {}
        self.before: Exception | None = None
        self.after: BaseException | None = None

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: stat_of(self.files[path]) for path in paths if path in self.files}

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self.files[path] for path in paths if path in self.files}

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        return {path: stat_of(data) for path, data in self.files.items()}

    async def apply(self, changes: Sequence[Change]) -> None:
        await anyio.lowlevel.checkpoint()
        before, self.before = self.before, None
        if before is not None:
            raise before
        for change in changes:
            if change.after is not None:
                self.files[change.path] = change.after
        if self.after is not None:
            raise self.after


class OverFailing(StorageBackend):
    capabilities = Capabilities(watches=True)

    def __init__(self, files: Storage) -> None:
        super().__init__()
        self.files = files

    def _storage(self) -> Storage:
        return self.files


async def test_a_watch_begins_between_two_changes() -> None:
    class Slow(Failing):
        def __init__(self) -> None:
            super().__init__()
            self.may_store = anyio.Event()

        async def apply(self, changes: Sequence[Change]) -> None:
            await self.may_store.wait()
            await super().apply(changes)

    files = Slow()
    backend = OverFailing(files)
    readers: list[WatchReader] = []

    async def watch() -> None:
        async with watch_changes(backend) as reader:
            readers.append(reader)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(backend.awrite, "/begun-before", "x")
            await until_tasks_wait()
            group.start_soon(watch)
            await until_tasks_wait()
            begun = bool(readers)
            files.may_store.set()
    assert not begun, "a change that has begun would not be told"
    assert readers[0].files == {"/begun-before"}


async def test_a_change_while_a_reader_falls_asleep_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    async with watch_changes(backend) as reader:
        prepare = watches.loop_callbacks

        def prepare_to_wait() -> Any:
            backend.write("/a", "told between the look at the buffer and the wait", overwrite=True)
            return prepare()

        monkeypatch.setattr(watches, "loop_callbacks", prepare_to_wait)
        await reader.expect("/a", "created")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, None, "created"),
        (ChangedError("/a"), None, "created"),
        (QuotaExceededError("/a", 2, 1), None, None),
        (ConflictError("/a"), None, None),
        (BackendError("/a", "lost"), None, "resync"),
        (None, BackendError("/a", "lost"), "resync"),
        (None, ValueError("broken"), "resync"),
    ],
    ids=str,
)
async def test_a_change_of_unknown_outcome_is_a_resync(
    before: Exception | None, after: Exception | None, told: str | None
) -> None:
    files = Failing()
    backend = OverFailing(files)
    async with watch_changes(backend) as reader:
        files.before, files.after = before, after
        if isinstance(after, ValueError):
            with pytest.raises(ValueError, match="broken"):
                await backend.awrite("/a", "x")
        else:
            await backend.awrite("/a", "x")
        files.after = None
        assert (await backend.awrite("/end", "x")).ok
        await reader.expect("/end", "created")
        assert [event.kind for event in reader.received if event.path == "/a"] == ([told] if told else [])
        assert reader.files == {*files.files}


# --- stores ---


class OnlyWriter(StoreBackend):
    """For a store that nothing else changes."""

    capabilities = Capabilities(durable=True, watches=True)


async def test_namespaces_of_a_store_are_watched_apart() -> None:
    store = InMemoryStore()
    mine, yours = (OnlyWriter(store, namespace=(name, "files")) for name in ("ada", "bob"))
    async with watch_changes(mine) as reader:
        assert (await yours.awrite("/secret.txt", "x")).ok
        assert (await mine.awrite("/mine.txt", "x")).ok
        await reader.expect("/mine.txt", "created")
        assert {event.path for event in reader.received} == {"/", "/mine.txt"}


# --- composites and policies ---


async def test_a_reader_of_a_composite_may_use_cancel_scopes_as_it_likes() -> None:
    parts = [MemoryBackend(), MemoryBackend()]
    tree = CompositeBackend(parts[0], {"/m": parts[1]})
    events = tree.awatch("/")
    with anyio.fail_after(20):
        assert await anext(events) == ChangeEvent("/", "resync")
    assert (await tree.awrite("/m/a", "x")).ok
    async with anyio.create_task_group():
        with anyio.fail_after(20):
            assert (await anext(events)).path == "/m/a"
    with anyio.move_on_after(0.01):
        await anext(events)
    await events.aclose()


async def test_a_composite_tells_nothing_before_all_mounts_are_watched() -> None:
    class Early(MemoryBackend):
        async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
            yield ChangeEvent(path, "resync")
            yield ChangeEvent("/early", "created")
            await anyio.sleep_forever()

    class FailsAtOnce(MemoryBackend):
        async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
            await until_tasks_wait()
            raise NotFoundError("/x")
            yield ChangeEvent(path, "resync")

    tree = CompositeBackend(Early(), {"/m": FailsAtOnce()})
    with pytest.raises(NotFoundError, match="/m/x"), anyio.fail_after(20):
        await anext(tree.awatch("/"))


async def test_files_that_a_mount_hides_are_not_told() -> None:
    default, mount = MemoryBackend(), MemoryBackend()
    tree = CompositeBackend(default, {"/m": mount})
    async with watch_changes(tree) as reader:
        assert (await default.awrite("/m/hidden.txt", "x")).ok
        assert (await mount.awrite("/shown.txt", "x")).ok
        assert (await default.awrite("/end", "x")).ok
        await reader.until(lambda: {"/m/shown.txt", "/end"} <= reader.files)
        assert {event.path for event in reader.received} == {"/", "/m/shown.txt", "/end"}


async def test_permissions_hide_paths_and_pass_on_that_something_was_missed() -> None:
    class Told(MemoryBackend):
        async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
            for each in ("/", "/open/secret/x", "/vault", "/vault/deep", "/open/vault", "/open/a"):
                yield ChangeEvent(each, "resync")
            for each in ("/open/a", "/open/secret/x", "/vault/b"):
                yield ChangeEvent(each, "created")

    rules = [
        FilesystemPermission(["read"], ["/open/vault/shown"], "allow"),
        FilesystemPermission(["read"], ["/**/secret/**", "/**/vault/**", "/open/vault"], "deny"),
    ]
    backend = PermissionedBackend(Told(), rules)
    found = [(event.path, event.kind) async for event in backend.awatch("/")]
    assert found == [("/", "resync"), ("/open", "resync"), ("/open/a", "resync"), ("/open/a", "created")]


async def test_versions_of_a_history_are_not_told() -> None:
    memory = MemoryBackend()
    backend = HistoryBackend(memory)
    async with watch_changes(backend) as reader:
        assert (await backend.awrite("/a", "1")).ok
        assert (await backend.awrite("/a", "2", overwrite=True)).ok
        assert (await backend.awrite("/end", "x")).ok
        await reader.expect("/end", "created")
        assert {event.path for event in reader.received} == {"/", "/a", "/end"}
    assert len((await memory.aglob("**/*", "/.history")).matches or ()) > 0
