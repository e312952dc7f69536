"""A composite of all backends passes the shipped suite; each of the mounted ones passes it by itself."""

from pathlib import Path

import anyio.to_thread
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.store import StoreBackend
from support.files import content_of
from support.graphs import InNode
from support.raw import RawMemory
from support.state_suite import StateConformance


class TestCompositeOfAll(StateConformance):
    """State by default; the other backends stand beside, and the random programs use them all."""

    mounts = ("/.mounts/disk", "/.mounts/store", "/.mounts/store/memory")
    directory: Path
    store: InMemoryStore
    memory: MemoryBackend

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def over_state(self, state: InNode) -> BackendProtocol:
        self.root = self.directory / f"{id(self.node):x}"
        self.store, self.memory = InMemoryStore(), MemoryBackend()
        return CompositeBackend(
            state,
            {
                "/.mounts/disk/": FilesystemBackend(self.root),
                "/.mounts/store/": StoreBackend(self.store, namespace=("suite",)),
                "/.mounts/store/memory/": self.memory,
            },
        )

    async def raw_peek(self, path: str) -> bytes | None:
        mount = next((mount for mount in reversed(self.mounts) if path.startswith(f"{mount}/")), "")
        inner = path.removeprefix(mount)
        if mount == "/.mounts/disk":
            return await anyio.to_thread.run_sync(self._peek_disk, inner)
        if mount == "/.mounts/store":
            item = await self.store.aget(("suite",), inner)
            return content_of(item.value if item else None)
        return RawMemory.peek(self.memory, inner) if mount else await super().raw_peek(path)

    def _peek_disk(self, path: str) -> bytes | None:
        target = self.root / path.lstrip("/")
        return target.read_bytes() if target.is_file() else None
