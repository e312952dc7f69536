"""Watching: every change is told to those who watch its path, or a `resync` says that some may have been missed."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import anyio
import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import NotSupportedError
from deepfs.testing.expect import succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.types import ChangeEvent

__all__ = ["WatchReader", "WatchingConformance", "watching"]

_PATIENCE: Final = 20.0
"""Seconds to wait for an event that has to come."""


class WatchReader:
    """The files that a reader of a watch knows: those of its last look, and what the events since then say."""

    def __init__(self, backend: BackendProtocol, top: str, events: AsyncGenerator[ChangeEvent, None]) -> None:
        self._backend = backend
        self._top = top
        self._events = events
        self.files: set[str] = set()
        self.told: list[ChangeEvent] = []

    async def step(self) -> ChangeEvent:
        """Read one event, and follow it."""
        with anyio.fail_after(_PATIENCE):
            event = await anext(self._events)
        self.told.append(event)
        assert _is_in(event.path, self._top), f"{event} is not about {self._top}"
        if event.kind == "resync":
            self.files = {path for path in self.files if not _is_in(path, event.path)}
            self.files |= {path for path in await _files(self._backend) if _is_in(path, event.path)}
        elif event.kind == "deleted":
            self.files.discard(event.path)
        else:
            self.files.add(event.path)
        return event

    async def until(self, condition: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
        """Read events until `condition`, which is asked after each event, holds."""
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await self.step()

    async def is_told(self, path: str, *kinds: str) -> ChangeEvent:
        """Read events up to one of these `kinds` about `path`; a `resync` of a directory above counts as well."""
        while True:
            event = await self.step()
            if (event.path == path and event.kind in kinds) or (event.kind == "resync" and _is_in(path, event.path)):
                return event


def _is_in(path: str, directory: str) -> bool:
    return path == directory or directory == "/" or path.startswith(f"{directory}/")


async def _files(backend: BackendProtocol) -> set[str]:
    found = succeeded(await backend.aglob("**/*")).matches
    assert found is not None
    return {info.path for info in found}


@asynccontextmanager
async def watching(backend: BackendProtocol, path: str = "/") -> AsyncIterator[WatchReader]:
    """Watch `path`; the watch is active within the block."""
    async with aclosing(backend.awatch(path)) as events:
        seen = WatchReader(backend, path, events)
        first = await seen.step()
        assert first == ChangeEvent(path, "resync"), "the first event says that the watch is active"
        yield seen


class WatchingConformance(BackendSuite):
    """`awatch` tells of each change, where `watches` is declared; elsewhere it is `unsupported`."""

    async def test_watching_is_unsupported_where_it_is_not_declared(self, backend: BackendProtocol) -> None:
        if backend.capabilities.watches:
            async with watching(backend) as seen:
                assert seen.files == set()
            return
        with pytest.raises(NotSupportedError):
            await anext(backend.awatch("/"))

    async def test_each_change_is_told(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        async with watching(backend) as seen:
            succeeded(await backend.awrite("/dir/a.txt", "one"))
            await seen.is_told("/dir/a.txt", "created")
            succeeded(await backend.awrite("/dir/a.txt", "two", overwrite=True))
            await seen.is_told("/dir/a.txt", "modified")
            succeeded(await backend.aedit("/dir/a.txt", "two", "three"))
            await seen.is_told("/dir/a.txt", "modified")
            succeeded(await backend.acopy("/dir/a.txt", "/b.txt"))
            await seen.is_told("/b.txt", "created")
            await backend.aupload_files([("/dir/c.bin", b"\0"), ("/b.txt", b"uploaded")])
            await seen.until(lambda: "/dir/c.bin" in seen.files)
            succeeded(await backend.adelete("/b.txt"))
            await seen.is_told("/b.txt", "deleted")
            assert seen.files == {"/dir/a.txt", "/dir/c.bin"}

    async def test_the_move_of_a_directory_is_told_file_by_file(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        await self.put({"/from/a.txt": "a", "/from/deep/b.txt": "b", "/other.txt": "c"})
        async with watching(backend) as seen:
            succeeded(await backend.amove("/from", "/to"))
            await seen.until(lambda: seen.files == {"/to/a.txt", "/to/deep/b.txt", "/other.txt"})
            succeeded(await backend.awrite("/to/deep/new.txt", "later"))
            await seen.is_told("/to/deep/new.txt", "created")
            succeeded(await backend.adelete("/to"))
            await seen.until(lambda: seen.files == {"/other.txt"})

    async def test_a_version_is_that_of_the_content(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        async with watching(backend) as seen:
            succeeded(await backend.awrite("/a.txt", "one"))
            event = await seen.is_told("/a.txt", "created")
            if event.version is not None:
                assert event.version == succeeded(await backend.aread("/a.txt")).version
                succeeded(await backend.aedit("/a.txt", "one", "two", if_match=event.version))

    async def test_only_changes_under_the_watched_path_are_told(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        await self.put({"/dir/a.txt": "a", "/dir-2/b.txt": "b", "/c.txt": "c"})
        for top in ("/dir", "/dir/a.txt"):
            async with watching(backend, top) as seen:
                for path in ("/c.txt", "/dir-2/b.txt", "/dir/a.txt"):
                    succeeded(await backend.awrite(path, f"changed: {top}", overwrite=True))
                await seen.is_told("/dir/a.txt", "modified")

    async def test_a_path_that_does_not_exist_yet_can_be_watched(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        async with watching(backend, "/new/dir") as seen:
            succeeded(await backend.awrite("/new/dir/a.txt", "a"))
            await seen.is_told("/new/dir/a.txt", "created")
            succeeded(await backend.adelete("/new"))
            await seen.until(lambda: not seen.files)
            succeeded(await backend.awrite("/new/dir/b.txt", "b"))
            await seen.until(lambda: seen.files == {"/new/dir/b.txt"})

    async def test_changes_through_another_backend_object_are_told(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        if not backend.capabilities.watches:
            return
        async with watching(backend) as first, watching(second_backend) as second:
            succeeded(await second_backend.awrite("/a.txt", "a"))
            await first.is_told("/a.txt", "created")
            await second.is_told("/a.txt", "created")
            succeeded(await backend.adelete("/a.txt"))
            await first.is_told("/a.txt", "deleted")
            await second.is_told("/a.txt", "deleted")

    async def test_of_many_changes_none_is_lost(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        rounds = self.some(range(40))
        async with watching(backend) as seen:
            for number in rounds:  # Nothing is read meanwhile.
                path = f"/dir-{number % 3}/{number % 7}.txt"
                succeeded(await backend.awrite(path, f"{number}", overwrite=True))
                if number % 5 == 4:
                    succeeded(await backend.adelete(f"/dir-{number % 3}"))
            succeeded(await backend.awrite("/last.txt", "done"))
            left = await _files(backend)
            # Of files in a directory that is new to the watch, it is not known which came first.
            await seen.until(lambda: "/last.txt" in seen.files and seen.files == left)

    async def test_leaving_the_iteration_ends_the_watch(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        events = backend.awatch("/")
        async for _ in events:
            break
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        succeeded(await backend.awrite("/a.txt", "a"))

    async def test_a_waiting_reader_can_be_cancelled(self, backend: BackendProtocol) -> None:
        if not backend.capabilities.watches:
            return
        async with watching(backend) as seen:
            with anyio.fail_after(_PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(seen.is_told, "/never.txt", "created")
                    await anyio.wait_all_tasks_blocked()
                    group.cancel_scope.cancel()
        succeeded(await backend.awrite("/a.txt", "a"))
        async with watching(backend) as again:
            assert again.files == {"/a.txt"}
