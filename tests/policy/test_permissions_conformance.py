"""Permissions that deny nothing used by the suite change no result."""

from pathlib import Path

import anyio.to_thread
import pytest

from deepfs import FilesystemBackend, MemoryBackend
from deepfs.policy import FilesystemPermission, PermissionedBackend
from deepfs.testing import BackendConformance
from support.raw import RawMemory
from support.selection import few_on_trio

DENIED_ELSEWHERE = [
    FilesystemPermission(["read"], ["/never/seen/**"], "deny"),
    FilesystemPermission(["write"], ["/**/never.seen"], "interrupt"),
]


@few_on_trio
class TestNoRules(RawMemory, BackendConformance):
    """An empty list of rules allows everything."""

    @pytest.fixture
    def backend(self) -> PermissionedBackend:
        self.memory = MemoryBackend()
        return PermissionedBackend(self.memory)

    @pytest.fixture
    def second_backend(self) -> PermissionedBackend:
        return PermissionedBackend(self.memory, [])


@few_on_trio
class TestAllAllowed(RawMemory, BackendConformance):
    """The first rule allows everything."""

    @pytest.fixture
    def backend(self) -> PermissionedBackend:
        self.memory = MemoryBackend()
        allowed = FilesystemPermission(["read", "write", "execute"], ["/**"])
        return PermissionedBackend(self.memory, [allowed, FilesystemPermission(["read", "write"], ["/**"], "deny")])


class TestDeniedElsewhere(RawMemory, BackendConformance):
    """The rules are checked, but match no path of the suite."""

    @pytest.fixture
    def backend(self) -> PermissionedBackend:
        self.memory = MemoryBackend()
        return PermissionedBackend(self.memory, DENIED_ELSEWHERE)


@few_on_trio
class TestOnDisk(BackendConformance):
    """The same rules over real files, where symlinks are resolved too."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> PermissionedBackend:
        self.root = tmp_path / "root"
        return PermissionedBackend(FilesystemBackend(self.root), DENIED_ELSEWHERE)

    async def raw_put(self, path: str, data: bytes) -> None:
        def put() -> None:
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await anyio.to_thread.run_sync(put)

    async def raw_peek(self, path: str) -> bytes | None:
        def peek() -> bytes | None:
            target = self.root / path.lstrip("/")
            return target.read_bytes() if target.is_file() else None

        return await anyio.to_thread.run_sync(peek)
