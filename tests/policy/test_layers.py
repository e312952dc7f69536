"""One law for every layer: a layer that allows everything gives the results and the files of its inner backend."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio.to_thread
import pytest

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.policy import (
    AuditedBackend,
    Call,
    FilesystemPermission,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    QuotaBackend,
    WrapperBackend,
)
from deepfs.sandboxes import VirtualShell
from deepfs.testing import BackendStateMachine
from deepfs.testing.conformance.at_once import CancellationConformance, ConcurrencyConformance, WatchingConformance
from deepfs.testing.conformance.surface import TransferConformance
from support.raw import RawMemory
from support.rooted import RootedBackend

Layer = Callable[[BackendProtocol], BackendProtocol]

ALL_ALLOWED: Final = [
    FilesystemPermission(["read", "write", "execute"], ["/**"]),
    FilesystemPermission(["read", "write"], ["/**"], "deny"),
]
DENIED_ELSEWHERE: Final = [
    FilesystemPermission(["read"], ["/never/seen/**"], "deny"),
    FilesystemPermission(["write"], ["/**/never.seen"], "interrupt"),
]


def nothing(call: Call, result: object = None) -> None:
    """A hook that does nothing."""


async def nothing_async(call: Call, result: object = None) -> None:
    """An async hook that does nothing."""


def hooked(inner: BackendProtocol) -> BackendProtocol:
    audited = AuditedBackend(inner, lambda record: None)
    return HookedBackend(audited, [nothing, nothing_async], [nothing, nothing_async])


def mount_in_a_mount(inner: BackendProtocol) -> BackendProtocol:
    mounted = CompositeBackend(MemoryBackend(), {"/in/a/mount": inner})
    outer = CompositeBackend(MemoryBackend(), {"/outer": mounted, "/out": MemoryBackend()})
    return RootedBackend(outer, "/outer/in/a/mount")


LAYERS: Final[dict[str, Layer]] = {
    "a wrapper in a wrapper": lambda inner: WrapperBackend(WrapperBackend(inner)),
    "hooks that do nothing": hooked,
    "versions elsewhere": lambda inner: HistoryBackend(inner, MemoryBackend(), "/"),
    "all allowed": lambda inner: PermissionedBackend(inner, ALL_ALLOWED),
    "denied elsewhere": lambda inner: PermissionedBackend(inner, DENIED_ELSEWHERE),
    "a quota never reached": lambda inner: QuotaBackend(inner, max_bytes=10**9, max_files=10**6),
    "a mount in a mount": mount_in_a_mount,
    "commands in an interpreter": VirtualShell,
}


def all_layers(inner: BackendProtocol) -> BackendProtocol:
    for layer in LAYERS.values():
        inner = layer(inner)
    return inner


class TestEachLayer(RawMemory, BackendStateMachine):
    """Random programs."""

    steps = 600

    @pytest.fixture(params=LAYERS.values(), ids=LAYERS)
    def backend(self, request: pytest.FixtureRequest) -> BackendProtocol:
        self.memory = MemoryBackend()
        layer: Layer = request.param
        return layer(self.memory)


class TestAllLayers(
    RawMemory, TransferConformance, ConcurrencyConformance, CancellationConformance, WatchingConformance
):
    """What layers decide themselves: streams, tasks at once, cancellation, watching."""

    @pytest.fixture(params=[all_layers, HistoryBackend], ids=["all", "versions within"])
    def backend(self, request: pytest.FixtureRequest) -> BackendProtocol:
        self.memory = MemoryBackend()
        layer: Layer = request.param
        return layer(self.memory)


class TestPermissionsOnDisk(BackendStateMachine):
    """Rules over real files, where links are resolved too."""

    steps = 600

    @pytest.fixture
    def backend(self, tmp_path: Path) -> PermissionedBackend:
        self.root = tmp_path
        return PermissionedBackend(FilesystemBackend(tmp_path), DENIED_ELSEWHERE)

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self._peek, self.root / path.lstrip("/"))

    @staticmethod
    def _peek(file: Path) -> bytes | None:
        return file.read_bytes() if file.is_file() else None
