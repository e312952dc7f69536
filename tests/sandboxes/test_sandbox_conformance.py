"""The shipped suite over commands: with python3, and with busybox alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from deepfs.testing import BackendConformance
from support.sandboxes import LocalSandbox, raw_peek, raw_put, three_of

T = TypeVar("T")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: only running commands differs between them, and that has tests of its own."""
    return "asyncio"


class _OverCommands(BackendConformance):
    root: Path

    @pytest.fixture
    def second_backend(self, backend: LocalSandbox) -> LocalSandbox:
        return LocalSandbox(self.root, backend._path)

    async def raw_put(self, path: str, data: bytes) -> None:
        await raw_put(self.root, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await raw_peek(self.root, path)


class TestWithPython(_OverCommands):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> LocalSandbox:
        self.root = tmp_path
        return LocalSandbox(tmp_path)


class TestWithBusyboxAlone(_OverCommands):
    @pytest.fixture
    def backend(self, tmp_path: Path, busybox: str) -> LocalSandbox:
        self.root = tmp_path
        return LocalSandbox(tmp_path, busybox)

    def some(self, cases: Iterable[T]) -> list[T]:
        return three_of(cases)
