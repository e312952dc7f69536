"""FsspecBackend passes the shipped suite over a sync and an async filesystem of fsspec."""

from typing import Any

import fsspec
import pytest

from deepfs.backends.fsspec import FsspecBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from deepfs.threads.loop_bridge import call_on
from support.flat_trees import FileAndDirectory
from support.fsspec_memory import AsyncMemory


@pytest.fixture(autouse=True)
def _empty_memory() -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class TestMemory(BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self) -> FsspecBackend:
        return FsspecBackend("memory://tenant/files")

    @pytest.fixture
    def second_backend(self, backend: FsspecBackend) -> FsspecBackend:
        return FsspecBackend("memory://tenant", "files")

    async def raw_put(self, path: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(f"/tenant/files{path}", data)

    async def raw_peek(self, path: str) -> bytes | None:
        memory: Any = fsspec.filesystem("memory")
        return memory.cat_file(f"/tenant/files{path}") if memory.isfile(f"/tenant/files{path}") else None


class TestAsync(BackendConformance, BackendStateMachine, FileAndDirectory):
    """An async filesystem, whose calls run on the loop of fsspec."""

    @pytest.fixture
    def backend(self) -> FsspecBackend:
        self.filesystem = AsyncMemory()
        return FsspecBackend(self.filesystem, "tenant/files")

    @pytest.fixture
    def second_backend(self, backend: FsspecBackend) -> FsspecBackend:
        return FsspecBackend(AsyncMemory(self.filesystem.keys), "/tenant/files")

    async def raw_put(self, path: str, data: bytes) -> None:
        await call_on(self.filesystem.loop, lambda: self.filesystem._pipe_file(f"tenant/files{path}", data))

    async def raw_peek(self, path: str) -> bytes | None:
        found = self.filesystem.keys.get(f"tenant/files{path}")
        return None if found is None else found[0]
