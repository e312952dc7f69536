"""The shipped suite over commands: with python3, and with busybox alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from deepfs.testing import BackendConformance
from support.sandboxes import LocalSandbox, busybox_tools, raw_peek, raw_put, three_of

T = TypeVar("T")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One loop is enough: what differs between the loops is how commands are run, which has tests of its own."""
    return "asyncio"


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the tools of busybox and nothing else."""
    return busybox_tools(tmp_path_factory.mktemp("busybox"))


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
    def backend(self, tmp_path: Path, tools: str) -> LocalSandbox:
        self.root = tmp_path
        return LocalSandbox(tmp_path, tools)

    def some(self, cases: Iterable[T]) -> list[T]:
        return three_of(cases)
