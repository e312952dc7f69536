"""The reference backend passes the shipped suite, and does what the model does."""

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.raw import RawMemory


@pytest.mark.both_loops
class TestMemory(RawMemory, BackendConformance, BackendStateMachine, FileAndDirectory):
    """The memory backend alone."""

    @pytest.fixture
    def backend(self) -> MemoryBackend:
        self.memory = MemoryBackend()
        return self.memory


class TestMountedTree(BackendStateMachine):
    """Programs that cross mounts, including mounts in mounts."""

    mounts = ("/m", "/m/in/deep", "/a/n")

    @pytest.fixture
    def backend(self) -> CompositeBackend:
        self.tree = {"": MemoryBackend(), **{mount: MemoryBackend() for mount in self.mounts}}
        return CompositeBackend(self.tree[""], {mount: self.tree[mount] for mount in self.mounts})

    async def raw_put(self, path: str, data: bytes) -> None:
        raise NotImplementedError("the programs store every file through the backend")

    async def raw_peek(self, path: str) -> bytes | None:
        mount = max((mount for mount in self.tree if f"{path}/".startswith(f"{mount}/")), key=len)
        return RawMemory.peek(self.tree[mount], path[len(mount) :])
