"""The base of test classes for a backend, and the assertions about results that they share."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

import anyio
import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.types import FileInfo, GrepMatch, GrepResult, LsResult, ReadResult, Result

__all__ = ["BackendSuite", "Both"]

T = TypeVar("T")
ResultT = TypeVar("ResultT", bound=Result)

_NO_PAYLOAD = {"error", "code", "truncated", "truncation_reason", "skipped", "no_lines_requested"}


def assert_ok(result: ResultT) -> ResultT:
    """Assert that `result` has no error, and return it."""
    assert result.ok, f"failed with {result.code}: {result.error}"
    assert result.error is None
    assert result.code is None
    return result


def assert_failed(result: ResultT, *codes: ErrorCode) -> ResultT:
    """Assert that `result` has one of the error `codes`, a text that can be encoded, and no payload; return it."""
    assert not result.ok, f"succeeded instead of failing with {' or '.join(codes)}: {result}"
    assert result.code in codes, f"failed with {result.code} instead of {' or '.join(codes)}: {result.error}"
    assert isinstance(result.error, str)
    assert result.error.encode(), "a failed result has an error text"
    payload = {name: getattr(result, name) for name in result.__struct_fields__ if name not in _NO_PAYLOAD}
    assert not any(value is not None for value in payload.values()), f"a failed result has a payload: {payload}"
    return result


def only(items: Iterable[T] | None) -> T:
    """Assert that there is exactly one item, and return it."""
    found = list(items or ())
    assert len(found) == 1, f"there should be one, not {found}"
    return found[0]


def paths_of(items: Iterable[FileInfo | GrepMatch] | None) -> list[str]:
    """The paths of `items`, in order."""
    assert items is not None, "a successful result has a payload"
    return [item.path for item in items]


def paths_in(result: LsResult) -> list[str]:
    """The paths in the result of a listing."""
    return paths_of(assert_ok(result).entries)


async def list_paths(backend: BackendProtocol, path: str) -> list[str]:
    """List a directory, and return the paths in it."""
    return paths_in(await backend.als(path))


def content_of(result: ReadResult) -> str:
    """The content in the result of a read."""
    data = assert_ok(result).file_data
    assert data is not None, "a successful read has file_data"
    return data.content


async def text_of(backend: BackendProtocol, path: str) -> str:
    """Read a file with few lines, and return its text."""
    return content_of(await backend.aread(path))


def lines_of(result: GrepResult) -> list[tuple[str, int]]:
    """Path and line of each match."""
    matches = assert_ok(result).matches
    assert matches is not None, "a successful grep has matches"
    return [(match.path, match.line) for match in matches]


async def gather(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run each of `calls` in its own task, and return their results in order."""
    results: dict[int, T] = {}

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        results[number] = await call()

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    return [result for _, result in sorted(results.items(), key=lambda item: item[0])]


Both: TypeAlias = tuple[BackendProtocol, BackendProtocol]
"""Two backend objects over one storage."""


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

    @pytest.fixture
    def both(self, backend: BackendProtocol, second_backend: BackendProtocol) -> Both:
        """The backend under test, and the other one."""
        return backend, second_backend

    def some(self, cases: Iterable[T]) -> list[T]:
        """The cases that a test tries, out of many similar ones, or of concurrent calls; by default all.

        Override it if each operation takes long, as in a remote sandbox: return a few, different ones in each run.
        """
        return list(cases)

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        """`raw_put` for several files."""
        for path, content in files.items():
            await self.raw_put(path, content.encode() if isinstance(content, str) else content)

    async def _peek_each(self, *paths: str) -> list[bytes | None]:
        """`raw_peek` for several files."""
        return [await self.raw_peek(path) for path in paths]
