"""`deepfs://`: fsspec's own suites, URLs, and the libraries that read them."""

import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
    BaseAbstractFixtures,
)

from deepfs import FilesystemBackend, MemoryBackend
from deepfs.backends.fsspec_filesystem import DeepFSFileSystem


class _Fixtures(BaseAbstractFixtures):
    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return "scenario"

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_join(self) -> Any:
        return os.path.join

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def fs_sanitize_path(self) -> Any:
        return lambda path: path

    @pytest.fixture
    def supports_empty_directories(self, fs: DeepFSFileSystem) -> bool:
        return fs.backend.capabilities.keeps_empty_directories


class _Memory(_Fixtures):
    @pytest.fixture
    def fs(self) -> DeepFSFileSystem:
        return DeepFSFileSystem(backend=MemoryBackend())


class _Disk(_Fixtures):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> DeepFSFileSystem:
        (tmp_path / "root").mkdir()
        return DeepFSFileSystem(backend=FilesystemBackend(tmp_path / "root"))


class TestMemoryCopies(_Memory, AbstractCopyTests):
    pass


class TestMemoryGets(_Memory, AbstractGetTests):
    pass


class TestMemoryPuts(_Memory, AbstractPutTests):
    pass


class TestMemoryOpens(_Memory, AbstractOpenTests):
    pass


class TestMemoryPipes(_Memory, AbstractPipeTests):
    pass


class TestDiskCopies(_Disk, AbstractCopyTests):
    pass


class TestDiskGets(_Disk, AbstractGetTests):
    pass


class TestDiskPuts(_Disk, AbstractPutTests):
    pass


class TestDiskOpens(_Disk, AbstractOpenTests):
    pass


class TestDiskPipes(_Disk, AbstractPipeTests):
    pass
