"""The shipped suite over commands: with python3, and with busybox alone."""

from collections.abc import Iterable
from typing import TypeVar

import pytest

from support.over_directory import OverDirectory
from support.sandboxes import LocalSandbox, three_of

T = TypeVar("T")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: only running commands differs between them, and that has tests of its own."""
    return "asyncio"


class TestWithPython(OverDirectory):
    def make(self) -> LocalSandbox:
        return LocalSandbox(self.root)


class TestWithBusyboxAlone(OverDirectory):
    @pytest.fixture(autouse=True)
    def _tools(self, busybox: str) -> None:
        self.busybox = busybox

    def make(self) -> LocalSandbox:
        return LocalSandbox(self.root, self.busybox)

    def some(self, cases: Iterable[T]) -> list[T]:
        return three_of(cases)
