"""The reference backend passes the shipped suite, alone and mounted, and does what the model does."""

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.testing import BackendConformance, BackendStateMachine
from support.flat_trees import FileAndDirectory
from support.raw import RawMemory
from support.rooted import RootedBackend
from support.selection import few_on_trio


class TestMemory(RawMemory, BackendConformance, BackendStateMachine, FileAndDirectory):
    """The memory backend alone."""

    @pytest.fixture
    def backend(self) -> MemoryBackend:
        self.memory = MemoryBackend()
        return self.memory


@few_on_trio
class TestDefaultOfComposite(RawMemory, BackendConformance):
    """The default of a composite with backends mounted at several depths."""

    @pytest.fixture
    def backend(self) -> CompositeBackend:
        self.memory = MemoryBackend()
        return _mounted(self.memory)

    @pytest.fixture
    def second_backend(self) -> CompositeBackend:
        return _mounted(self.memory)


class TestMount(RawMemory, BackendConformance, BackendStateMachine):
    """A mount deep in a composite that has another composite below."""

    @pytest.fixture
    def backend(self) -> RootedBackend:
        self.memory = MemoryBackend()
        return _rooted(self.memory)

    @pytest.fixture
    def second_backend(self) -> RootedBackend:
        return _rooted(self.memory)


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


def _mounted(memory: MemoryBackend) -> CompositeBackend:
    return CompositeBackend(
        memory,
        {"/mounted/": MemoryBackend(), "/at/some/depth/": MemoryBackend(), "/at/some/depth/below/": MemoryBackend()},
    )


def _rooted(memory: MemoryBackend) -> RootedBackend:
    inner = CompositeBackend(MemoryBackend(), {"/in/a/mount": memory})
    outer = CompositeBackend(MemoryBackend(), {"/outer": inner, "/out": MemoryBackend()})
    return RootedBackend(outer, "/outer/in/a/mount")
