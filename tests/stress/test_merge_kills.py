"""A process that merges a workspace is killed at any moment: the merge is repeated by another, and nothing is lost."""

import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.workspaces import OverlayBackend
from support.counts import few_or_many, telling
from support.processes import started

# Forks, for each line of stdin, a process that merges. The process has no threads when it forks.
SPAWNER = """
import os, sys
from pathlib import Path
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.workspaces import OverlayBackend, merging

store = merging._store

async def show_and_store(*arguments):
    print("storing", flush=True)
    return await store(*arguments)

merging._store = show_and_store

async def work(kind, lower, upper):
    below = FilesystemBackend(lower) if kind == "disk" else SqliteBackend(lower)
    workspace = OverlayBackend(below, SqliteBackend(upper))
    assert (await workspace.als("/")).ok
    print(os.getpid(), flush=True)
    await workspace.amerge()

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        import anyio
        anyio.run(work, *line.split())
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""

FILES = 8


async def read_all(backend: BackendProtocol) -> dict[str, bytes]:
    paths = [each.path for each in (await backend.alist_tree("/")).entries if each.kind == "file"]
    return {each.path: each.unwrap() for each in await backend.adownload_files(paths)}


async def change_both(workspace: OverlayBackend, below: BackendProtocol) -> dict[str, bytes]:
    """Change a tree and a workspace of it; return what a merge makes of them."""
    lines = "".join(f"line {number}\n" for number in range(20))
    expected: dict[str, bytes] = {}
    files = [(f"/{kind}/{number}", lines.encode()) for kind in ("edit", "move", "gone") for number in range(FILES)]
    for uploaded in await below.aupload_files([*files, ("/one", b"1"), ("/other", b"2"), ("/file/now", b"3")]):
        uploaded.unwrap()
    for number in range(FILES):
        mine, theirs = f"mine {number}\n", f"theirs {number}\n"
        assert (await workspace.aedit(f"/edit/{number}", "line 1\n", mine)).ok
        assert (await below.aedit(f"/edit/{number}", "line 18\n", theirs)).ok
        expected[f"/edit/{number}"] = lines.replace("line 1\n", mine).replace("line 18\n", theirs).encode()
    assert (await workspace.amove("/move", "/moved")).ok
    assert (await below.aedit("/move/3", "line 5\n", "theirs\n")).ok
    expected |= {f"/moved/{number}": lines.encode() for number in range(FILES)}
    expected["/moved/3"] = lines.replace("line 5\n", "theirs\n").encode()
    assert (await workspace.adelete("/gone")).ok
    for source, target in (("/one", "/three"), ("/other", "/one"), ("/three", "/other"), ("/file/now", "/then")):
        assert (await workspace.amove(source, target)).ok
    assert (await workspace.amove("/then", "/file")).ok
    new = [(f"/new/{number}", bytes([number]) * 10_000) for number in range(FILES)]
    for uploaded in await workspace.aupload_files(new):
        uploaded.unwrap()
    return expected | {"/one": b"2", "/other": b"1", "/file": b"3"} | dict(new)


@asynccontextmanager
async def opened(kind: str, lower: Path, upper: Path) -> AsyncIterator[tuple[OverlayBackend, BackendProtocol]]:
    """The workspace, and the tree."""
    async with AsyncExitStack() as opened:
        above = await opened.enter_async_context(SqliteBackend(upper))
        below = FilesystemBackend(lower) if kind == "disk" else await opened.enter_async_context(SqliteBackend(lower))
        yield OverlayBackend(below, above), below


async def prepare(kind: str, lower: Path, upper: Path) -> dict[str, bytes]:
    async with opened(kind, lower, upper) as (workspace, below):
        return await change_both(workspace, below)


async def check_repeated(kind: str, lower: Path, upper: Path, expected: dict[str, bytes]) -> bool:
    """Check what is there, and merge again; return whether the killed merge had stored a part."""
    async with opened(kind, lower, upper) as (workspace, below):
        before, left = await read_all(below), await workspace.achanges()
        result = await workspace.amerge()
        assert result.ok, result
        assert await read_all(below) == expected
        assert await workspace.achanges() == []
        return bool(left) and not {"/new/0", "/moved/0", "/file"}.isdisjoint(before)


@pytest.mark.parametrize("kind", ["disk", "sqlite"])
@pytest.mark.parametrize("kills", few_or_many(5, 250, seconds=1_800))
def test_a_merge_that_was_killed_is_repeated(
    tmp_path: Path, kills: int, kind: str, record_property: Callable[[str, object], None]
) -> None:
    partly = 0
    with started(SPAWNER) as spawner:
        assert spawner.stdin is not None
        assert spawner.stdout is not None
        for turn in range(kills):
            lower, upper = tmp_path / f"lower-{turn}", tmp_path / f"upper-{turn}"
            if kind == "disk":
                lower.mkdir()
            expected = anyio.run(prepare, kind, lower, upper)
            spawner.stdin.write(f"{kind} {lower} {upper}\n")
            spawner.stdin.flush()
            child = int(spawner.stdout.readline())
            if turn % 4:
                assert spawner.stdout.readline() == "storing\n"
            time.sleep(random.uniform(0, 0.03))
            with suppress(ProcessLookupError):  # It may have ended.
                os.kill(child, signal.SIGKILL)
            assert "ended\n" in iter(spawner.stdout.readline, "")
            partly += anyio.run(check_repeated, kind, lower, upper, expected)
    telling(record_property)(f"{partly} of {kills} merges were killed when a part was stored")
