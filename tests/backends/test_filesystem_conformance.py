"""FilesystemBackend passes the shipped suite, confined and on host paths."""

import os
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.errors import ErrorCode
from deepfs.testing import BackendConformance, BackendStateMachine
from deepfs.testing.suite import assert_failed, assert_ok
from deepfs.text import lines as text


class OnDisk:
    root: Path

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


@pytest.mark.both_loops
class TestFilesystem(OnDisk, BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> FilesystemBackend:
        self.root = tmp_path
        return FilesystemBackend(tmp_path)

    @pytest.fixture
    def second_backend(self, backend: FilesystemBackend) -> FilesystemBackend:
        return FilesystemBackend(self.root)

    async def test_the_hash_of_the_content_is_accepted_as_a_version(self, backend: FilesystemBackend) -> None:
        await self.raw_put("/a.txt", content := b"\xef\xbb\xbfone\r\n")
        path = self.root / "a.txt"
        await anyio.to_thread.run_sync(lambda: (os.utime(path, (1, 1)), path.chmod(0o600)))
        assert assert_ok(await backend.aread("/a.txt")).version == text.version(content)
        assert_ok(await backend.aedit("/a.txt", "one", "two", if_match=text.version(content)))
        assert_failed(await backend.aedit("/a.txt", "two", "three", if_match=text.version(content)), ErrorCode.CONFLICT)
        assert_ok(await backend.awrite("/a.txt", "", if_match=text.version(content.replace(b"one", b"two"))))
        assert await self.raw_peek("/a.txt") == b""


class TestAViewOfATenant(OnDisk, BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> FilesystemBackend:
        self.root = tmp_path / "ada"
        return FilesystemBackend(lambda _: (tmp_path, "nobody")).at((str(tmp_path), "ada"))

    @pytest.fixture
    def second_backend(self, backend: FilesystemBackend) -> FilesystemBackend:
        return FilesystemBackend(self.root)
