"""The base of test classes for a backend: hooks that make the backend and access its storage directly."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest

from deepfs.backends.protocol import BackendProtocol

__all__ = ["BackendSuite"]

T = TypeVar("T")


class BackendSuite:
    """The base of every test class here.

    A test class defines the fixture `backend` (or the coroutine function `make_backend`), `raw_put` and `raw_peek`.
    Each test gets a new, empty backend. Fixtures of a class share `self` with its tests: the storage can be kept there.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    async def make_backend(self) -> BackendProtocol:
        """A new backend over empty storage, made on the event loop of the test."""
        raise NotImplementedError(f"{type(self).__name__} defines neither the fixture `backend` nor `make_backend`")

    async def raw_put(self, path: str, data: bytes) -> None:
        """Store a file and its parent directories directly, bypassing the backend under test."""
        raise NotImplementedError(f"{type(self).__name__} defines no `raw_put`")

    async def raw_peek(self, path: str) -> bytes | None:
        """Return the bytes stored at `path`, bypassing the backend under test; None if there is no file."""
        raise NotImplementedError(f"{type(self).__name__} defines no `raw_peek`")

    @pytest.fixture
    async def backend(self) -> BackendProtocol:
        """The backend under test."""
        return await self.make_backend()

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        """Another backend object over the same storage; override it if there can be one."""
        return backend

    def some(self, cases: Iterable[T]) -> list[T]:
        """The cases that a test tries, out of many similar ones, or of concurrent calls; by default all.

        Override it if each operation takes long, as in a remote sandbox: return a few, different ones in each run.
        """
        return list(cases)

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        """`raw_put` for several files."""
        for path, content in files.items():
            await self.raw_put(path, content.encode() if isinstance(content, str) else content)
