"""FilesystemBackend passes the shipped suite, confined and on host paths."""

from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.testing import BackendConformance, BackendStateMachine


class TestFilesystem(BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> FilesystemBackend:
        self.root = tmp_path
        return FilesystemBackend(tmp_path)

    @pytest.fixture
    def second_backend(self, backend: FilesystemBackend) -> FilesystemBackend:
        return FilesystemBackend(self.root)

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
