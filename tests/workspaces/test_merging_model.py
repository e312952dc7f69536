"""Random trees and workspaces are changed at once and merged: no side loses what it wrote."""

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.workspaces import OverlayBackend
from support.counts import few_or_many
from support.merges import play_merges

pytestmark = pytest.mark.anyio


async def play(seed: int, directory: Path, lower: str, upper: str | None) -> None:
    """Play one program over new storages in a directory."""
    made = 0

    async with AsyncExitStack() as opened:

        async def new(kind: str) -> BackendProtocol:
            nonlocal made
            made += 1
            place = directory / f"{seed}-{made}"
            if kind == "sqlite":
                return await opened.enter_async_context(SqliteBackend(place))
            if kind == "disk":
                await anyio.Path(place).mkdir()
                return FilesystemBackend(place)
            return MemoryBackend()

        async def fork(below: BackendProtocol) -> OverlayBackend:
            return OverlayBackend(below, None if upper is None else await new(upper), directory="/changes")

        await play_merges(seed, await new(lower), fork)


@pytest.mark.parametrize("programs", few_or_many(200, 50_000, seconds=7_200))
async def test_merges_over_memory(tmp_path: Path, programs: int) -> None:
    for seed in range(programs):
        await play(seed, tmp_path, "memory", None)


@pytest.mark.parametrize("programs", few_or_many(20, 2_000, seconds=3_600))
@pytest.mark.parametrize(
    ("lower", "upper"),
    [("disk", None), ("sqlite", None), ("memory", "memory"), ("memory", "sqlite"), ("disk", "sqlite")],
)
async def test_merges_over_other_storages(tmp_path: Path, lower: str, upper: str | None, programs: int) -> None:
    for seed in range(programs):
        await play(seed, tmp_path, lower, upper)
