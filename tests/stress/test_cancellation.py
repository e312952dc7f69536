"""Every operation cancelled at many moments in every way: all of it happens or nothing, and nothing keeps running.

Afterwards the next operation works at once, no unfinished file is left, and no thread or process is still working.
"""

import asyncio
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

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BackendProtocol
from support.counts import few_or_many
from support.processes import children, until_idle

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


# --- checks ---


async def check(backend: BackendProtocol, root: Path, case: Case, way: Callable[..., Awaitable[None]]) -> None:
    before = await anyio.to_thread.run_sync(children)
    await prepare(backend, case)
    await way(lambda: case.run(backend), moment)
    await until_idle()
    assert not await anyio.to_thread.run_sync(children) - before
    found = await contents(backend, case.paths)
    assert found in [list(allowed) for allowed in case.allowed], "neither all of it nor nothing"
    with anyio.fail_after(20):
        for path in case.paths[-2:]:
            assert (await backend.awrite(path, "usable", overwrite=True)).ok
    await anyio.sleep(0.001)
    assert await contents(backend, case.paths[-2:]) == [b"usable"] * len(case.paths[-2:]), "nothing comes later"
    assert await anyio.to_thread.run_sync(lambda: [*root.rglob(".~deepfs-*")]) == []


async def prepare(backend: BackendProtocol, case: Case) -> None:
    """Make the files of a case have the contents before it."""
    for path in ("/d", "/moved", *case.paths):
        await backend.adelete(path)
    files = [(path, content) for path, content in zip(case.paths, case.allowed[0], strict=True) if content is not None]
    assert not [upload for upload in await backend.aupload_files(files) if upload.error]


async def contents(backend: BackendProtocol, paths: Sequence[str]) -> list[bytes | None]:
    return [download.content for download in await backend.adownload_files(list(paths))]


@pytest.mark.anyio
@pytest.mark.parametrize("times", few_or_many(3, 500, seconds=7_200))
@pytest.mark.parametrize(("anyio_backend", "way"), [("asyncio", by_task), ("asyncio", by_scope), ("trio", by_scope)])
async def test_operations_on_disk_happen_completely_or_not_at_all(
    tmp_path: Path, way: Callable[..., Awaitable[None]], times: int
) -> None:
    backend = FilesystemBackend(tmp_path)
    for name, case in CASES.items():
        for _ in range(times):
            try:
                await check(backend, tmp_path, case, way)
            except BaseException as error:
                error.add_note(f"operation: {name}")
                raise
