"""Trees are moved between storages while tasks write into them: every acknowledged write is found somewhere."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, StoreBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from support.counts import few_or_many

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

WRITERS, FILES = 4, 12
EXPECTED = {
    ErrorCode.FILE_NOT_FOUND,
    ErrorCode.CONFLICT,
    ErrorCode.ALREADY_EXISTS,
    ErrorCode.NOT_A_DIRECTORY,
    ErrorCode.UNSUPPORTED,  # another move has just emptied a directory, which not every destination can keep
}


@pytest.fixture
def tree(tmp_path: Path) -> BackendProtocol:
    return CompositeBackend(
        MemoryBackend(),
        {
            "/disk/": FilesystemBackend(tmp_path),
            "/memory/": MemoryBackend(),
            "/store/": StoreBackend(InMemoryStore(), namespace=("moves",)),
        },
    )


class Writer:
    """Creates and edits files of a directory; `written` has the tokens of its successful changes."""

    def __init__(self, tree: BackendProtocol, directory: str, number: int) -> None:
        self._tree = tree
        self._directory = directory
        self._number = number
        self._count = 0
        self.written: list[str] = []
        self.began = anyio.Event()

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._write()
            if self.written:
                self.began.set()
            await anyio.lowlevel.checkpoint()

    async def _write(self) -> None:
        self._count += 1
        token = f"<{self._number}.{self._count}>\n"
        path = f"{self._directory}/{self._count % 3}/{self._count % FILES}.txt"
        done = await self._tree.aedit(path, "end", f"{token}end")
        if done.code is ErrorCode.FILE_NOT_FOUND:
            created = await self._tree.awrite(path, f"{token}end")
            assert created.ok or created.code in EXPECTED, created.error
            self.written += [token] if created.ok else []
        else:
            assert done.ok or done.code in EXPECTED, done.error
            self.written += [token] if done.ok else []


async def everything(tree: BackendProtocol, directory: str = "/") -> AsyncIterator[str]:
    listing = await tree.als(directory)
    for entry in listing.entries or ():
        if entry.is_dir:
            async for content in everything(tree, entry.path):
                yield content
        else:
            [download] = await tree.adownload_files([entry.path])
            yield (download.content or b"").decode()


@pytest.mark.parametrize(
    ("source", "target"), [("/disk", "/memory"), ("/memory", "/store"), ("/store", "/disk"), ("/disk", "/disk")]
)
@pytest.mark.parametrize("moves", few_or_many(3, 15))
async def test_acknowledged_writes_are_found_somewhere(
    tree: BackendProtocol, source: str, target: str, moves: int
) -> None:
    src = f"{source}/src"
    writers = [Writer(tree, src, number) for number in range(WRITERS)]
    results: list[ErrorCode | None] = []

    async def move(mover: int) -> None:
        for number in range(moves):
            await anyio.sleep(0.01)
            done = await tree.amove(src, f"{target}/moved/{mover}-{number}")
            assert done.code in {None, *EXPECTED}, done.error
            results.append(done.code)

    over = False
    async with anyio.create_task_group() as tasks:
        for writer in writers:
            tasks.start_soon(writer.run, lambda: over)
        for writer in writers:
            await writer.began.wait()
        async with anyio.create_task_group() as movers:
            for mover in range(2):
                movers.start_soon(move, mover)
        over = True
    found = "".join([content async for content in everything(tree)])
    lost = [token for writer in writers for token in writer.written if token not in found]
    assert lost == []
    assert (await tree.als(f"{target}/moved")).ok, "nothing was moved"
