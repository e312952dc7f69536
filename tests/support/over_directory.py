"""The shipped suite over backends whose files lie in a directory of this machine."""

from pathlib import Path

import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing import BackendConformance
from support.sandboxes import raw_peek, raw_put

__all__ = ["OverDirectory"]


class OverDirectory(BackendConformance):
    """The shipped suite over a backend that `make` gives for the directory `root`."""

    root: Path

    def make(self) -> BackendProtocol:
        raise NotImplementedError

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendProtocol:
        self.root = tmp_path
        return self.make()

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return self.make()

    async def raw_put(self, path: str, data: bytes) -> None:
        await raw_put(self.root, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await raw_peek(self.root, path)
