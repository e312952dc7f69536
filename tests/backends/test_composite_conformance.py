"""Random programs over composites; the law for layers runs the parts of the shipped suite on what is mounted."""

from pathlib import Path

import anyio.to_thread
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.store import StoreBackend
from deepfs.testing import BackendStateMachine
from support.files import content_of
from support.graphs import InNode
from support.raw import RawMemory
from support.state_suite import OverState


class TestFlatMounts(OverState, BackendStateMachine):
    """Random programs over state, with a store mounted in it and a memory mounted in the store."""

    mounts = ("/.mounts/store", "/.mounts/store/memory")
    store: InMemoryStore
    memory: MemoryBackend

    def over_state(self, state: InNode) -> BackendProtocol:
        self.store, self.memory = InMemoryStore(), MemoryBackend()
        store = StoreBackend(self.store, namespace=("suite",))
        return CompositeBackend(state, {"/.mounts/store/": store, "/.mounts/store/memory/": self.memory})

    async def raw_peek(self, path: str) -> bytes | None:
        mount = next((mount for mount in reversed(self.mounts) if path.startswith(f"{mount}/")), "")
        if mount.endswith("memory"):
            return RawMemory.peek(self.memory, path.removeprefix(mount))
        if mount:
            item = await self.store.aget(("suite",), path.removeprefix(mount))
            return content_of(item.value if item else None)
        return await super().raw_peek(path)


class TestDiskMounts(BackendStateMachine):
    """Random programs over two directories, one mounted in the other."""

    mounts = ("/b/disk",)
    root: Path

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendProtocol:
        self.root = tmp_path
        inner = FilesystemBackend(tmp_path / "inner")
        return CompositeBackend(FilesystemBackend(tmp_path / "outer"), {"/b/disk/": inner})

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self._peek, path)

    def _peek(self, path: str) -> bytes | None:
        inner = path.removeprefix("/b/disk")
        target = self.root / ("outer" if inner == path else "inner") / inner.lstrip("/")
        return target.read_bytes() if target.is_file() else None
