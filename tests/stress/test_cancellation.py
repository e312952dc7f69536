"""Every operation cancelled at many moments in every way: all of it happens or nothing, and nothing keeps running.

Afterwards the next operation works at once, no unfinished file is left, and no thread or process is still working.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.store import StoreBackend
from support.counts import few_or_many
from support.processes import children, until_idle

pytestmark = pytest.mark.both_loops

Contents = Sequence[bytes | None]

OLD, NEW = b"old\n" * 100_000, b"new\n" * 100_000
TREE = [f"/tree/{number % 7}/{number:03}.txt" for number in range(60)]
MOVED = [path.replace("/tree/", "/moved/") for path in TREE]


@dataclass
class Case:
    """An operation, its files, and the contents allowed afterwards; the first of these is the content before."""

    run: Callable[[BackendProtocol], Awaitable[Any]]
    paths: Sequence[str]
    allowed: Sequence[Contents]


ALL, NONE = [b"old"] * len(TREE), [None] * len(TREE)

CASES: dict[str, Case] = {
    "create": Case(lambda on: on.awrite("/d/a.txt", NEW.decode()), ["/d/a.txt"], [[None], [NEW]]),
    "overwrite": Case(lambda on: on.awrite("/a.txt", NEW.decode(), overwrite=True), ["/a.txt"], [[OLD], [NEW]]),
    "edit": Case(lambda on: on.aedit("/a.txt", "old", "new", True), ["/a.txt"], [[OLD], [NEW]]),
    "upload": Case(lambda on: on.aupload_files([("/a.txt", NEW)]), ["/a.txt"], [[OLD], [NEW]]),
    "delete": Case(lambda on: on.adelete("/a.txt"), ["/a.txt"], [[OLD], [None]]),
    "move": Case(lambda on: on.amove("/a.txt", "/d/b.txt"), ["/a.txt", "/d/b.txt"], [[OLD, None], [None, OLD]]),
    "copy": Case(lambda on: on.acopy("/a.txt", "/d/b.txt"), ["/a.txt", "/d/b.txt"], [[OLD, None], [OLD, OLD]]),
    "move a tree": Case(lambda on: on.amove("/tree", "/moved"), [*TREE, *MOVED], [[*ALL, *NONE], [*NONE, *ALL]]),
    "copy a tree": Case(lambda on: on.acopy("/tree", "/moved"), [*TREE, *MOVED], [[*ALL, *NONE], [*ALL, *ALL]]),
    "read": Case(lambda on: on.aread("/a.txt"), ["/a.txt"], [[OLD]]),
    "download": Case(lambda on: on.adownload_files(["/a.txt"] * 10), ["/a.txt"], [[OLD]]),
    "ls": Case(lambda on: on.als("/tree"), TREE, [ALL]),
    "glob": Case(lambda on: on.aglob("**/*.txt"), TREE, [ALL]),
    "grep": Case(lambda on: on.agrep("o+.d", regex=True), TREE, [ALL]),
}


# --- ways to cancel ---


async def by_scope(run: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as tasks:

        async def main() -> None:
            await run()
            tasks.cancel_scope.cancel()

        tasks.start_soon(main)
        await pause()
        tasks.cancel_scope.cancel()


async def by_deadline(run: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]]) -> None:
    with suppress(TimeoutError), anyio.fail_after(random.uniform(0, 0.004)):
        await run()


async def by_task(run: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]]) -> None:
    """Cancel the task by asyncio, which bypasses cancel scopes, and then a second time."""
    task = asyncio.ensure_future(run())
    await pause()
    task.cancel()
    await pause()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def moment() -> None:
    """Wait for a few turns of the loop, or for a part of the time that an operation takes."""
    if random.random() < 0.5:
        for _ in range(random.randrange(12)):
            await anyio.lowlevel.checkpoint()
    else:
        await anyio.sleep(random.uniform(0, 0.006))


WAYS = {"scope": by_scope, "deadline": by_deadline, "task": by_task}


# --- checks ---


class Cancelled:
    """Cancels operations on one backend, and checks the result."""

    def __init__(self, backend: BackendProtocol, root: Path | None = None) -> None:
        self.backend = backend
        self.root = root

    async def check_all(self, way: Callable[..., Awaitable[None]], times: int) -> None:
        for name, case in CASES.items():
            for _ in range(times):
                try:
                    await self.check(case, way)
                except BaseException as error:
                    error.add_note(f"operation: {name}")
                    raise

    async def check(self, case: Case, way: Callable[..., Awaitable[None]]) -> None:
        await self.prepare(case)
        await way(lambda: case.run(self.backend), moment)
        await until_idle()
        assert not await anyio.to_thread.run_sync(children) - self.before
        found = await self.contents(case.paths)
        assert found in [list(allowed) for allowed in case.allowed], "neither all of it nor nothing"
        await self.check_free(case, found)
        assert await self.unfinished() == []

    async def prepare(self, case: Case) -> None:
        self.before = await anyio.to_thread.run_sync(children)
        for path in ("/d", "/moved"):
            await self.backend.adelete(path)
        files = list(zip(case.paths, case.allowed[0], strict=True))
        for path, content in files:
            if content is None:
                await self.backend.adelete(path)
        uploads = await self.backend.aupload_files([(path, content) for path, content in files if content is not None])
        assert not [upload for upload in uploads if upload.error]

    async def contents(self, paths: Sequence[str]) -> list[bytes | None]:
        return [download.content for download in await self.backend.adownload_files(list(paths))]

    async def check_free(self, case: Case, found: Contents) -> None:
        """The paths are usable at once, directories are recognised, and no cancelled operation finishes later."""
        with anyio.fail_after(5):
            for path, content in list(zip(case.paths, found, strict=True))[-2:]:
                directory = path.rpartition("/")[0]
                if directory:
                    written = await self.backend.awrite(directory, "no file")
                    if content is not None:
                        assert written.code in ("already_exists", "is_directory"), written
                    elif written.ok:
                        assert (await self.backend.adelete(directory)).ok
                assert (await self.backend.awrite(path, "usable", overwrite=True)).ok
            await anyio.sleep(0.001)
            assert await self.contents(case.paths[-2:]) == [b"usable"] * len(case.paths[-2:])

    async def unfinished(self) -> list[str]:
        def look() -> list[str]:
            found = [name for _, names, files in os.walk(self.root or "/nowhere") for name in [*names, *files]]
            return [name for name in found if name.startswith(".~deepfs-")]

        return await anyio.to_thread.run_sync(look)


# --- disk ---


@pytest.mark.anyio
@pytest.mark.parametrize("times", few_or_many(3, 500, seconds=7_200))
@pytest.mark.parametrize("way", ["scope", "deadline"])
async def test_operations_on_disk_happen_completely_or_not_at_all(tmp_path: Path, way: str, times: int) -> None:
    await Cancelled(FilesystemBackend(tmp_path), tmp_path).check_all(WAYS[way], times)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("times", few_or_many(3, 500, seconds=7_200))
async def test_operations_on_disk_cancelled_by_asyncio_happen_completely_or_not_at_all(
    tmp_path: Path, times: int
) -> None:
    await Cancelled(FilesystemBackend(tmp_path), tmp_path).check_all(by_task, times)


# --- stores ---


class SlowStore(InMemoryStore):
    """A store with a latency of a millisecond, which also waits in the middle of a change."""

    async def abatch(self, ops: Any) -> list[Any]:
        await anyio.sleep(0.001)
        operations = list(ops)
        results = await super().abatch(operations[:1])
        await anyio.sleep(0.001)
        return results + await super().abatch(operations[1:])


@pytest.fixture(params=["slow", "sqlite_store"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    return SlowStore() if request.param == "slow" else request.getfixturevalue(request.param)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("times", few_or_many(1, 100, seconds=7_200))
@pytest.mark.parametrize("way", WAYS)
async def test_operations_on_a_store_happen_completely_or_not_at_all(
    anyio_backend: str, store: BaseStore, way: str, times: int
) -> None:
    await Cancelled(StoreBackend(store, namespace=("files",))).check_all(WAYS[way], times)
