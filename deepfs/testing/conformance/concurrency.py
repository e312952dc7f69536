"""Concurrent tasks: edits and creations of one path happen one after another, and no reader sees a partial write."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.testing.tasks import gather
from deepfs.types import Result

__all__ = ["ConcurrencyConformance"]

T = TypeVar("T")

_TASKS: Final = 8
"""The number of tasks for each of the two backend objects."""


def _codes(results: Iterable[Result]) -> Counter[str]:
    return Counter("ok" if result.ok else str(result.code) for result in results)


class ConcurrencyConformance(BackendSuite):
    """Operations on one path are linearisable, also through two backend objects over the same storage."""

    @property
    def _tasks(self) -> int:
        return len(self.some(range(_TASKS)))

    async def test_edits_that_do_not_overlap_all_succeed(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number:02}\n" for number in range(2 * self._tasks))})
        results = await gather(
            partial(over.aedit, "/a.txt", f"slot-{number:02}", f"done-{number:02}")
            for number, over in enumerate([backend, second_backend] * self._tasks)
        )
        assert _codes(results) == {"ok": 2 * self._tasks}
        expected = "".join(f"done-{number:02}\n" for number in range(2 * self._tasks))
        assert await self.raw_peek("/a.txt") == expected.encode(), "every edit that succeeded is in the file"

    async def test_concurrent_edits_of_one_place_succeed_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/a.txt": "free"})
        results = await gather(
            partial(over.aedit, "/a.txt", "free", f"taken by {number}")
            for number, over in enumerate([backend, second_backend] * self._tasks)
        )
        assert _codes(results) == {"ok": 1, "no_match": 2 * self._tasks - 1}
        winner = next(number for number, result in enumerate(results) if result.ok)
        assert await self.raw_peek("/a.txt") == f"taken by {winner}".encode()

    async def test_every_successful_edit_is_applied_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/a.txt": "#"})

        rounds = self.some(range(5))

        async def count_up(over: BackendProtocol) -> int:
            results = [await over.aedit("/a.txt", "#", "#+") for _ in rounds]
            return sum(result.ok for result in results)

        calls = [partial(count_up, over) for over in [backend, second_backend] * (self._tasks // 2)]
        successes = sum(await gather(calls))
        assert await self.raw_peek("/a.txt") == b"#" + b"+" * successes
        assert successes == len(rounds) * len(calls), "edits that wait for one another all succeed"

    async def test_concurrent_writes_with_one_if_match_succeed_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/a.txt": "old"})
        version = succeeded(await backend.aread("/a.txt")).version
        results = await gather(
            partial(over.awrite, "/a.txt", f"new {number}", if_match=version)
            for number, over in enumerate([backend, second_backend] * self._tasks)
        )
        assert _codes(results) == {"ok": 1, "conflict": 2 * self._tasks - 1}
        winner = next(number for number, result in enumerate(results) if result.ok)
        assert await self.raw_peek("/a.txt") == f"new {winner}".encode()

    async def test_concurrent_creations_succeed_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        results = await gather(
            partial(over.awrite, "/new/a.txt", f"by {number}")
            for number, over in enumerate([backend, second_backend] * self._tasks)
        )
        assert _codes(results) == {"ok": 1, "already_exists": 2 * self._tasks - 1}
        winner = next(number for number, result in enumerate(results) if result.ok)
        assert await self.raw_peek("/new/a.txt") == f"by {winner}".encode()

    async def test_of_a_file_and_a_file_beneath_it_only_one_is_created(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        for number in self.some(range(4)):
            above, beneath = f"/race-{number}", f"/race-{number}/file"
            results = await gather(
                [partial(backend.awrite, above, "file"), partial(second_backend.awrite, beneath, "beneath")]
            )
            stored = [await self.raw_peek(above), await self.raw_peek(beneath)]
            assert sorted(result.ok for result in results) == [False, True], "one of the two comes first"
            assert stored == ([b"file", None] if results[0].ok else [None, b"beneath"])

    async def test_deletions_of_one_file_succeed_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/dir/a.txt": "a"})
        results = await gather(partial(over.adelete, "/dir/a.txt") for over in [backend, second_backend] * self._tasks)
        assert _codes(results) == {"ok": 1, "file_not_found": 2 * self._tasks - 1}

    async def test_moves_of_one_file_succeed_once(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/a.txt": "a"})
        results = await gather(
            partial(over.amove, "/a.txt", f"/to/{number}.txt")
            for number, over in enumerate([backend, second_backend] * self._tasks)
        )
        assert _codes(results) == {"ok": 1, "file_not_found": 2 * self._tasks - 1}
        stored = [await self.raw_peek(f"/to/{number}.txt") for number in range(2 * self._tasks)]
        assert [content is not None for content in stored] == [result.ok for result in results]

    async def test_a_reader_never_sees_a_partial_write(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        versions = [f"{letter * 60_000}\n" for letter in "abcdefgh"]
        await self.put({"/a.txt": versions[0]})

        async def write() -> None:
            for text in versions[1:]:
                succeeded(await backend.awrite("/a.txt", text, overwrite=True))

        seen = await _while_running(write, lambda: second_backend.adownload_files(["/a.txt"]))
        contents = {download.content for [download] in seen}
        assert contents <= {text.encode() for text in versions}, "a reader sees the file before or after a write"

    async def test_a_file_being_moved_is_always_at_its_source_or_destination(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        await self.put({"/here/a.txt": "a"})

        async def move() -> None:
            succeeded(await backend.amove("/here/a.txt", "/there/a.txt"))

        async def is_gone() -> bool:
            # The source is read first: once it is gone, the file has already been at its destination.
            return (
                not (await second_backend.aread("/here/a.txt")).ok
                and not (await second_backend.aread("/there/a.txt")).ok
            )

        for _ in self.some(range(5)):
            assert not any(await _while_running(move, is_gone))
            succeeded(await backend.amove("/there/a.txt", "/here/a.txt"))

    async def test_changes_are_visible_through_another_backend_object(
        self, backend: BackendProtocol, second_backend: BackendProtocol
    ) -> None:
        succeeded(await backend.awrite("/dir/a.txt", "one"))
        assert succeeded(await second_backend.als("/dir")).ok
        succeeded(await second_backend.aedit("/dir/a.txt", "one", "two"))
        version = succeeded(await second_backend.aread("/dir/a.txt")).version
        succeeded(await backend.awrite("/dir/a.txt", "three", if_match=version))
        succeeded(await second_backend.adelete("/dir"))
        assert (await backend.aread("/dir/a.txt")).code == ErrorCode.FILE_NOT_FOUND

    async def test_concurrent_changes_of_different_files_all_succeed(self, backend: BackendProtocol) -> None:
        count = 5 * self._tasks
        paths = [f"/dir-{number % 4}/{number}.txt" for number in range(count)]
        assert _codes(await gather(partial(backend.awrite, path, path) for path in paths)) == {"ok": count}
        assert _codes(await gather(partial(backend.aedit, path, "dir", "d") for path in paths)) == {"ok": count}
        assert [await self.raw_peek(path) for path in paths] == [path.replace("dir", "d").encode() for path in paths]


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
