"""Assertions about results."""

from collections.abc import Iterable
from typing import TypeVar

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.types import FileInfo, GrepMatch, GrepResult, LsResult, ReadResult, Result

__all__ = ["failed", "lines_of", "listed", "listing", "only", "paths_of", "shown", "succeeded", "text_of"]

T = TypeVar("T")
ResultT = TypeVar("ResultT", bound=Result)

_NO_PAYLOAD = {"error", "code", "truncated", "truncation_reason", "skipped", "no_lines_requested"}


def succeeded(result: ResultT) -> ResultT:
    """Assert that `result` has no error, and return it."""
    assert result.ok, f"failed with {result.code}: {result.error}"
    assert result.error is None
    assert result.code is None
    return result


def failed(result: ResultT, *codes: ErrorCode) -> ResultT:
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


def listed(result: LsResult) -> list[str]:
    """The paths in the result of a listing."""
    return paths_of(succeeded(result).entries)


async def listing(backend: BackendProtocol, path: str) -> list[str]:
    """List a directory, and return the paths in it."""
    return listed(await backend.als(path))


def shown(result: ReadResult) -> str:
    """The content in the result of a read."""
    data = succeeded(result).file_data
    assert data is not None, "a successful read has file_data"
    return data.content


async def text_of(backend: BackendProtocol, path: str) -> str:
    """Read a file with few lines, and return its text."""
    return shown(await backend.aread(path))


def lines_of(result: GrepResult) -> list[tuple[str, int]]:
    """Path and line of each match."""
    matches = succeeded(result).matches
    assert matches is not None, "a successful grep has matches"
    return [(match.path, match.line) for match in matches]
