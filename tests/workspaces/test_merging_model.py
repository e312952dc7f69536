"""Random trees and workspaces are changed at once and merged: no side loses what it wrote."""

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.workspaces import fork
from support.merges import play_merges

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("first", range(0, 300, 100))
async def test_merges_over_memory(first: int) -> None:
    async def make(below):
        return fork(below)

    for seed in range(first, first + 100):
        await play_merges(seed, MemoryBackend(), make)
