"""Tasks that run at once, that are cancelled, and that watch the changes of others."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial, wraps
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode, NotSupportedError
from deepfs.testing.suite import BackendSuite, Both, assert_ok, gather, list_paths
from deepfs.types import ChangeEvent, ContentChange, Result

# --- at once ---

T = TypeVar("T")

_TASKS: Final = 8
"""The number of tasks for each of the two backend objects."""


class ConcurrencyConformance(BackendSuite):
    """Operations on one path are linearisable, also through two backend objects over the same storage."""

    @property
    def _tasks(self) -> int:
        return len(self.some(range(_TASKS)))

    async def _race(
        self, both: Both, other: str | None, call: Callable[[BackendProtocol, int], Awaitable[Result]]
    ) -> int:
        """Make numbered calls at once, half of them by each backend object; return the number of the one that won.

        The others must end with the code `other`; if that is None, all calls must succeed.
        """
        results = await gather(partial(call, over, number) for number, over in enumerate([*both] * self._tasks))
        codes = Counter("ok" if result.ok else str(result.code) for result in results)
        assert codes == ({other: 2 * self._tasks - 1, "ok": 1} if other else {"ok": 2 * self._tasks})
        return next(number for number, result in enumerate(results) if result.ok)

    async def test_edits_that_do_not_overlap_all_succeed(self, both: Both) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number:02}\n" for number in range(2 * self._tasks))})
        await self._race(both, None, lambda over, n: over.aedit("/a.txt", f"slot-{n:02}", f"done-{n:02}"))
        expected = "".join(f"done-{number:02}\n" for number in range(2 * self._tasks))
        assert await self.raw_peek("/a.txt") == expected.encode(), "every edit that succeeded is in the file"

    async def test_concurrent_edits_of_one_place_succeed_once(self, both: Both) -> None:
        await self.put({"/a.txt": "free"})
        winner = await self._race(both, "no_match", lambda over, number: over.aedit("/a.txt", "free", f"by {number}"))
        assert await self.raw_peek("/a.txt") == f"by {winner}".encode()

    async def test_every_successful_edit_is_applied_once(self, both: Both) -> None:
        await self.put({"/a.txt": "#"})
        rounds = self.some(range(5))

        async def count_up(over: BackendProtocol) -> int:
            results = [await over.aedit("/a.txt", "#", "#+") for _ in rounds]
            return sum(result.ok for result in results)

        calls = [partial(count_up, over) for over in [*both] * (self._tasks // 2)]
        successes = sum(await gather(calls))
        assert await self.raw_peek("/a.txt") == b"#" + b"+" * successes
        assert successes == len(rounds) * len(calls), "edits that wait for one another all succeed"

    async def test_concurrent_writes_with_one_if_match_succeed_once(self, both: Both) -> None:
        await self.put({"/a.txt": "old"})
        version = assert_ok(await both[0].aread("/a.txt")).version
        winner = await self._race(
            both, "conflict", lambda over, number: over.awrite("/a.txt", f"by {number}", if_match=version)
        )
        assert await self.raw_peek("/a.txt") == f"by {winner}".encode()

    async def test_concurrent_creations_succeed_once(self, both: Both) -> None:
        winner = await self._race(
            both, "already_exists", lambda over, number: over.awrite("/new/a.txt", f"by {number}")
        )
        assert await self.raw_peek("/new/a.txt") == f"by {winner}".encode()

    async def test_of_a_file_and_a_file_beneath_it_only_one_is_created(self, both: Both) -> None:
        for number in self.some(range(4)):
            above, beneath = f"/race-{number}", f"/race-{number}/file"
            results = await gather(
                [partial(both[0].awrite, above, "file"), partial(both[1].awrite, beneath, "beneath")]
            )
            stored = await self._peek_each(above, beneath)
            assert sorted(result.ok for result in results) == [False, True], "one of the two comes first"
            assert stored == ([b"file", None] if results[0].ok else [None, b"beneath"])

    async def test_deletions_of_one_file_succeed_once(self, both: Both) -> None:
        await self.put({"/dir/a.txt": "a"})
        await self._race(both, "file_not_found", lambda over, number: over.adelete("/dir/a.txt"))

    async def test_moves_of_one_file_succeed_once(self, both: Both) -> None:
        await self.put({"/a.txt": "a"})
        winner = await self._race(
            both, "file_not_found", lambda over, number: over.amove("/a.txt", f"/to/{number}.txt")
        )
        stored = [await self.raw_peek(f"/to/{number}.txt") for number in range(2 * self._tasks)]
        assert [number for number, content in enumerate(stored) if content is not None] == [winner]

    async def test_a_reader_never_sees_a_partial_write(self, both: Both) -> None:
        versions = [f"{letter * 60_000}\n" for letter in "abcdefgh"]
        await self.put({"/a.txt": versions[0]})

        async def write() -> None:
            for text in versions[1:]:
                assert_ok(await both[0].awrite("/a.txt", text, overwrite=True))

        seen = await _while_running(write, lambda: both[1].adownload_files(["/a.txt"]))
        contents = {download.content for [download] in seen}
        assert contents <= {text.encode() for text in versions}, "a reader sees the file before or after a write"

    async def test_a_file_being_moved_is_always_at_its_source_or_destination(self, both: Both) -> None:
        await self.put({"/here/a.txt": "a"})

        async def move() -> None:
            assert_ok(await both[0].amove("/here/a.txt", "/there/a.txt"))

        async def is_gone() -> bool:
            # The source is read first: once it is gone, the file has already been at its destination.
            return not any([(await both[1].aread(path)).ok for path in ("/here/a.txt", "/there/a.txt")])

        for _ in self.some(range(5)):
            assert not any(await _while_running(move, is_gone))
            assert_ok(await both[0].amove("/there/a.txt", "/here/a.txt"))

    async def test_changes_are_visible_through_another_backend_object(self, both: Both) -> None:
        assert_ok(await both[0].awrite("/dir/a.txt", "one"))
        assert assert_ok(await both[1].als("/dir")).ok
        assert_ok(await both[1].aedit("/dir/a.txt", "one", "two"))
        version = assert_ok(await both[1].aread("/dir/a.txt")).version
        assert_ok(await both[0].awrite("/dir/a.txt", "three", if_match=version))
        assert_ok(await both[1].adelete("/dir"))
        assert (await both[0].aread("/dir/a.txt")).code == ErrorCode.FILE_NOT_FOUND

    async def test_concurrent_changes_of_different_files_all_succeed(self, backend: BackendProtocol) -> None:
        paths = [f"/dir-{number % 4}/{number}.txt" for number in range(5 * self._tasks)]
        assert all(each.ok for each in await gather(partial(backend.awrite, path, path) for path in paths))
        assert all(each.ok for each in await gather(partial(backend.aedit, path, "dir", "d") for path in paths))
        assert await self._peek_each(*paths) == [path.replace("dir", "d").encode() for path in paths]


async def _while_running(work: Callable[[], Awaitable[None]], look: Callable[[], Awaitable[T]]) -> Sequence[T]:
    """Call `look` repeatedly while `work` runs, and once after it; return all its results."""
    seen: list[T] = []
    done = False

    async def watch() -> None:
        while not done:
            seen.append(await look())
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.lowlevel.checkpoint()
        await work()
        done = True
    return [*seen, await look()]


# --- cancelled ---

_OLD: Final = "old " * 20_000
_NEW: Final = "new " * 20_000
_PATIENCE: Final = 20
"""Seconds within which a path must be free again, and an event that has to come be told."""


async def _turns(count: int) -> None:
    """Let the event loop run `count` iterations."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


_MOMENTS: Final[tuple[Callable[[], Awaitable[None]], ...]] = (
    *(partial(_turns, count) for count in (0, 1, 2, 3, 4, 6, 10, 25)),
    *(partial(anyio.sleep, seconds) for seconds in (0.0003, 0.001, 0.004, 0.02)),
)
"""When to cancel: after some iterations of the event loop, or after a fraction of a second."""


async def _run_and_cancel(moment: Callable[[], Awaitable[None]], call: Callable[[], Awaitable[Any]]) -> None:
    """Run `call`, and cancel it at `moment` unless it has ended by then."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await call()
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await moment()
        tasks.cancel_scope.cancel()


class ReadOnlyCancellation(BackendSuite):
    """Searches that are cancelled."""

    async def test_a_cancelled_search_ends_at_once(self, backend: BackendProtocol) -> None:
        await self.put({f"/many/{number}.txt": "needle\n" * 50 for number in range(60)})
        for moment in self.some(_MOMENTS):
            with anyio.fail_after(_PATIENCE):
                await _run_and_cancel(moment, partial(backend.agrep, "needle", regex=True))
                await _run_and_cancel(moment, partial(backend.aglob, "**/*.txt"))
        assert len(assert_ok(await backend.aglob("*.txt")).matches or ()) == 60


class CancellationConformance(ReadOnlyCancellation):
    """A cancelled operation leaves no partial change, no lock and no temporary file."""

    async def _check_done_or_not(
        self, backend: BackendProtocol, call: Callable[[str], Awaitable[Any]], either: set[str | None]
    ) -> None:
        encoded = {text and text.encode() for text in either}
        for number, moment in enumerate(self.some(_MOMENTS)):
            path, other = f"/cancelled-{number}/a.txt", f"/cancelled-{number}/b.txt"
            await self.put({path: _OLD})
            await _run_and_cancel(moment, partial(call, path))
            with anyio.fail_after(_PATIENCE):
                await backend.aupload_files([(other, b"b")])
                first = await self.raw_peek(path)
                assert first in encoded, f"cancelled at {moment}: neither the old content nor the new"
                await backend.awrite(path, "usable", overwrite=True)
            assert await self.raw_peek(path) == b"usable", "nothing cancelled comes later"
            assert await list_paths(backend, f"/cancelled-{number}") == [path, other], "nothing temporary is left"

    async def test_a_cancelled_write_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, lambda path: backend.awrite(path, _NEW, overwrite=True), {_OLD, _NEW})

    async def test_a_cancelled_edit_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, lambda path: backend.aedit(path, "old", "new", True), {_OLD, _NEW})

    async def test_a_cancelled_upload_is_done_or_not(self, backend: BackendProtocol) -> None:
        new = _NEW.encode()
        await self._check_done_or_not(backend, lambda path: backend.aupload_files([(path, new)]), {_OLD, _NEW})

    async def test_cancelled_changes_of_files_are_done_or_not(self, backend: BackendProtocol) -> None:
        change = partial(ContentChange, content=_NEW.encode(), overwrite=True)
        await self._check_done_or_not(backend, lambda path: backend.achange_files([change(path)]), {_OLD, _NEW})

    async def test_cancelled_changes_of_a_whole_are_all_done_or_none(self, backend: BackendProtocol) -> None:
        for number, moment in enumerate(self.some(_MOMENTS)):
            kept, gone, new = paths = [f"/whole-{number}/{name}" for name in ("kept", "gone", "new")]
            await self.put({kept: "old", gone: "old"})
            contents = {kept: b"new", gone: None, new: b"new"}
            changes = [ContentChange(path, content, overwrite=True) for path, content in contents.items()]
            await _run_and_cancel(moment, partial(backend.achange_files, changes, all_or_none=True))
            assert await self._peek_each(*paths) in ([b"old", b"old", None], [b"new", None, b"new"])

    async def test_a_cancelled_delete_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, backend.adelete, {_OLD, None})

    async def test_a_cancelled_creation_is_done_or_not(self, backend: BackendProtocol) -> None:
        for number, moment in enumerate(self.some(_MOMENTS)):
            path = f"/created-{number}/a.txt"
            await _run_and_cancel(moment, partial(backend.awrite, path, _NEW))
            assert await self.raw_peek(path) in (_NEW.encode(), None)
            with anyio.fail_after(_PATIENCE):
                assert_ok(await backend.awrite(path, "usable", overwrite=True))
            assert await list_paths(backend, f"/created-{number}") == [path]

    async def test_a_cancelled_move_keeps_the_file_at_its_source_or_destination(self, backend: BackendProtocol) -> None:
        for number, moment in enumerate(self.some(_MOMENTS)):
            src, dst = f"/from-{number}/a.txt", f"/to-{number}/a.txt"
            await self.put({src: _OLD})
            await _run_and_cancel(moment, partial(backend.amove, src, dst))
            ends = {await self.raw_peek(src), await self.raw_peek(dst)}
            assert _OLD.encode() in ends
            assert ends <= {_OLD.encode(), None}
            with anyio.fail_after(_PATIENCE):
                for path in (src, dst):
                    assert_ok(await backend.awrite(path, "usable", overwrite=True))

    async def test_cancelled_waiting_tasks_do_not_block_the_path(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "#"})
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(backend.aedit, "/a.txt", "#", "#+")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(_PATIENCE):
            assert_ok(await backend.aedit("/a.txt", "#", "end"))
        stored = await self.raw_peek("/a.txt") or b""
        assert stored.startswith(b"end")
        assert set(stored[3:]) <= set(b"+")

    async def test_a_write_after_its_deadline_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": _OLD})
        with anyio.move_on_after(0):
            await backend.awrite("/a.txt", _NEW, overwrite=True)
        assert await self.raw_peek("/a.txt") in (_OLD.encode(), _NEW.encode())
        with anyio.fail_after(_PATIENCE):
            assert_ok(await backend.awrite("/a.txt", "usable", overwrite=True))


# --- watching ---


class WatchReader:
    """The files that a reader of a watch knows: those of its last look, and what the events since then say."""

    def __init__(self, backend: BackendProtocol, top: str, events: AsyncGenerator[ChangeEvent, None]) -> None:
        self._backend = backend
        self._top = top
        self._events = events
        self.files: set[str] = set()
        self.received: list[ChangeEvent] = []

    async def step(self) -> ChangeEvent:
        """Read one event, and follow it."""
        with anyio.fail_after(_PATIENCE):
            event = await anext(self._events)
        self.received.append(event)
        assert _is_in(event.path, self._top), f"{event} is not about {self._top}"
        if event.kind == "resync":
            self.files = {path for path in self.files if not _is_in(path, event.path)}
            self.files |= {path for path in await _files(self._backend) if _is_in(path, event.path)}
        elif event.kind == "deleted":
            self.files.discard(event.path)
        else:
            self.files.add(event.path)
        return event

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read events until `condition`, which is asked after each event, holds."""
        while not condition():
            await self.step()

    async def expect(self, path: str, *kinds: str) -> ChangeEvent:
        """Read events up to one of these `kinds` about `path`; a `resync` of a directory above counts as well."""
        while True:
            event = await self.step()
            if (event.path == path and event.kind in kinds) or (event.kind == "resync" and _is_in(path, event.path)):
                return event


def _is_in(path: str, directory: str) -> bool:
    return path == directory or directory == "/" or path.startswith(f"{directory}/")


async def _files(backend: BackendProtocol) -> set[str]:
    found = assert_ok(await backend.aglob("**/*")).matches
    assert found is not None
    return {info.path for info in found}


@asynccontextmanager
async def watch_changes(backend: BackendProtocol, path: str = "/") -> AsyncIterator[WatchReader]:
    """Watch `path`; the watch is active within the block."""
    async with aclosing(backend.awatch(path)) as events:
        seen = WatchReader(backend, path, events)
        first = await seen.step()
        assert first == ChangeEvent(path, "resync"), "the first event says that the watch is active"
        yield seen


def _where_declared(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The test, which does nothing where the backend does not declare that it watches."""

    @wraps(test)
    async def run(self: BackendSuite, backend: BackendProtocol, **fixtures: Any) -> None:
        if backend.capabilities.watches:
            await test(self, backend, **fixtures)

    return run


class WatchingConformance(BackendSuite):
    """`awatch` tells of each change, where `watches` is declared; elsewhere it is `unsupported`."""

    async def test_watching_is_unsupported_where_it_is_not_declared(self, backend: BackendProtocol) -> None:
        if backend.capabilities.watches:
            async with watch_changes(backend) as seen:
                assert seen.files == set()
            return
        with pytest.raises(NotSupportedError):
            await anext(backend.awatch("/"))

    @_where_declared
    async def test_each_change_is_told(self, backend: BackendProtocol) -> None:
        async with watch_changes(backend) as seen:
            assert_ok(await backend.awrite("/dir/a.txt", "one"))
            await seen.expect("/dir/a.txt", "created")
            assert_ok(await backend.awrite("/dir/a.txt", "two", overwrite=True))
            await seen.expect("/dir/a.txt", "modified")
            assert_ok(await backend.aedit("/dir/a.txt", "two", "three"))
            await seen.expect("/dir/a.txt", "modified")
            assert_ok(await backend.acopy("/dir/a.txt", "/b.txt"))
            await seen.expect("/b.txt", "created")
            await backend.aupload_files([("/dir/c.bin", b"\0"), ("/b.txt", b"uploaded")])
            await seen.until(lambda: "/dir/c.bin" in seen.files)
            assert_ok(await backend.adelete("/b.txt"))
            await seen.expect("/b.txt", "deleted")
            assert seen.files == {"/dir/a.txt", "/dir/c.bin"}

    @_where_declared
    async def test_the_move_of_a_directory_is_told_file_by_file(self, backend: BackendProtocol) -> None:
        await self.put({"/from/a.txt": "a", "/from/deep/b.txt": "b", "/other.txt": "c"})
        async with watch_changes(backend) as seen:
            assert_ok(await backend.amove("/from", "/to"))
            await seen.until(lambda: seen.files == {"/to/a.txt", "/to/deep/b.txt", "/other.txt"})
            assert_ok(await backend.awrite("/to/deep/new.txt", "later"))
            await seen.expect("/to/deep/new.txt", "created")
            assert_ok(await backend.adelete("/to"))
            await seen.until(lambda: seen.files == {"/other.txt"})

    @_where_declared
    async def test_a_version_is_that_of_the_content(self, backend: BackendProtocol) -> None:
        async with watch_changes(backend) as seen:
            assert_ok(await backend.awrite("/a.txt", "one"))
            event = await seen.expect("/a.txt", "created")
            if event.version is not None:
                assert event.version == assert_ok(await backend.aread("/a.txt")).version
                assert_ok(await backend.aedit("/a.txt", "one", "two", if_match=event.version))

    @_where_declared
    async def test_only_changes_under_the_watched_path_are_told(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a", "/dir-2/b.txt": "b", "/c.txt": "c"})
        for top in ("/dir", "/dir/a.txt"):
            async with watch_changes(backend, top) as seen:
                for path in ("/c.txt", "/dir-2/b.txt", "/dir/a.txt"):
                    assert_ok(await backend.awrite(path, f"changed: {top}", overwrite=True))
                await seen.expect("/dir/a.txt", "modified")

    @_where_declared
    async def test_a_path_that_does_not_exist_yet_can_be_watched(self, backend: BackendProtocol) -> None:
        async with watch_changes(backend, "/new/dir") as seen:
            assert_ok(await backend.awrite("/new/dir/a.txt", "a"))
            await seen.expect("/new/dir/a.txt", "created")
            assert_ok(await backend.adelete("/new"))
            await seen.until(lambda: not seen.files)
            assert_ok(await backend.awrite("/new/dir/b.txt", "b"))
            await seen.until(lambda: seen.files == {"/new/dir/b.txt"})

    @_where_declared
    async def test_changes_through_another_backend_object_are_told(self, backend: BackendProtocol, both: Both) -> None:
        async with watch_changes(backend) as first, watch_changes(both[1]) as second:
            assert_ok(await both[1].awrite("/a.txt", "a"))
            await first.expect("/a.txt", "created")
            await second.expect("/a.txt", "created")
            assert_ok(await backend.adelete("/a.txt"))
            await first.expect("/a.txt", "deleted")
            await second.expect("/a.txt", "deleted")

    @_where_declared
    async def test_of_many_changes_none_is_lost(self, backend: BackendProtocol) -> None:
        rounds = self.some(range(40))
        async with watch_changes(backend) as seen:
            for number in rounds:  # Nothing is read meanwhile.
                path = f"/dir-{number % 3}/{number % 7}.txt"
                assert_ok(await backend.awrite(path, f"{number}", overwrite=True))
                if number % 5 == 4:
                    assert_ok(await backend.adelete(f"/dir-{number % 3}"))
            assert_ok(await backend.awrite("/last.txt", "done"))
            left = await _files(backend)
            # Of files in a directory that is new to the watch, it is not known which came first.
            await seen.until(lambda: "/last.txt" in seen.files and seen.files == left)

    @_where_declared
    async def test_leaving_the_iteration_ends_the_watch(self, backend: BackendProtocol) -> None:
        events = backend.awatch("/")
        async for _ in events:
            break
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert_ok(await backend.awrite("/a.txt", "a"))

    @_where_declared
    async def test_a_waiting_reader_can_be_cancelled(self, backend: BackendProtocol) -> None:
        async with watch_changes(backend) as seen:
            with anyio.fail_after(_PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(seen.expect, "/never.txt", "created")
                    await anyio.wait_all_tasks_blocked()
                    group.cancel_scope.cancel()
        assert_ok(await backend.awrite("/a.txt", "a"))
        async with watch_changes(backend) as again:
            assert again.files == {"/a.txt"}
