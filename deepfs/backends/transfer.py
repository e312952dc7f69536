"""Copying and moving trees through the public operations, for backends without their own way and across mounts."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, TypeVar

from deepfs.core import paths
from deepfs.errors import (
    BackendError,
    DirectoryError,
    ErrorCode,
    ExistsError,
    InvalidPathError,
    NotDirectoryError,
)
from deepfs.types import LsResult, Result, WriteResult

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["copy_tree", "move_tree"]

_BATCH = 64
"""Files in memory at once."""

T = TypeVar("T")


class _StoppedError(Exception):
    """A step failed; `result` tells it."""

    def __init__(self, result: Result) -> None:
        self.result = result


async def copy_tree(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool
) -> WriteResult:
    """Copy what is at `src` of `source` to `dst` of `target`; what was copied before a failure stays."""
    src, dst = paths.normalize(src), paths.normalize(dst)
    try:
        listing = await source.als(src)
        is_file = listing.code is ErrorCode.NOT_A_DIRECTORY
        if not listing.ok and not is_file:
            raise _StoppedError(listing)
        if source is target and paths.is_beneath(dst, src):
            raise InvalidPathError(dst, f"it lies inside {src}")
        _check_destination(dst, await target.als(dst), from_file=is_file, overwrite=overwrite)
        files = [src] if is_file else [path async for path in _walk(source, listing)]
        for batch in _batched(files):
            await _copy_files(source, target, [(path, dst + path[len(src) :]) for path in batch])
    except _StoppedError as stopped:
        return WriteResult(stopped.result.error, code=stopped.result.code)
    return WriteResult(path=dst)


async def move_tree(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool
) -> WriteResult:
    """Copy, then delete the source; where that fails, both ends stay and the error says so."""
    if source is target and paths.normalize(src) == paths.normalize(dst):
        exists = await source.als(src)
        return WriteResult(path=dst) if exists.ok or exists.code is ErrorCode.NOT_A_DIRECTORY else _failed(exists)
    copied = await copy_tree(source, src, target, dst, overwrite=overwrite)
    if not copied.ok:
        return copied
    deleted = await source.adelete(src)
    if not deleted.ok:
        return WriteResult(f"{deleted.error} (the copy at '{dst}' stays)", code=deleted.code)
    return copied


def _failed(result: Result) -> WriteResult:
    return WriteResult(result.error, code=result.code)


def _check_destination(dst: str, listing: LsResult, *, from_file: bool, overwrite: bool) -> None:
    if listing.ok:
        raise DirectoryError(dst) if overwrite else ExistsError(dst)
    if listing.code is ErrorCode.NOT_A_DIRECTORY:
        if not overwrite:
            raise ExistsError(dst)
        if not from_file:
            raise NotDirectoryError(dst)
    elif listing.code is not ErrorCode.FILE_NOT_FOUND:
        raise _StoppedError(listing)


async def _walk(source: "BackendProtocol", listing: LsResult) -> AsyncIterator[str]:
    """Every file under a listed directory."""
    pending = [listing]
    while pending:
        for entry in pending.pop().entries or ():
            if not entry.is_dir:
                yield entry.path
                continue
            below = await source.als(entry.path)
            if not below.ok:
                raise _StoppedError(below)
            pending.append(below)


async def _copy_files(source: "BackendProtocol", target: "BackendProtocol", pairs: list[tuple[str, str]]) -> None:
    downloads = await source.adownload_files([path for path, _ in pairs])
    for download in downloads:
        if download.content is None:
            raise BackendError(f"Error: copying '{download.path}' failed: {download.error}")
    uploads = await target.aupload_files(
        [(there, download.content or b"") for (_, there), download in zip(pairs, downloads, strict=True)]
    )
    for upload in uploads:
        if upload.error:
            raise BackendError(f"Error: copying to '{upload.path}' failed: {upload.error}")


def _batched(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
