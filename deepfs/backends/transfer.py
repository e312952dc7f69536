"""Copying and moving trees through the public operations, for backends without their own way and across mounts."""

from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from deepfs.core import paths
from deepfs.errors import (
    ConflictError,
    DirectoryError,
    ErrorCode,
    ExistsError,
    InvalidPathError,
    NotDirectoryError,
    quoted,
)
from deepfs.types import FileDownloadResponse, FileUploadResponse, LsResult, Result, WriteResult

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
        await _copied(source, src, target, dst, overwrite=overwrite)
    except _StoppedError as stopped:
        return WriteResult(stopped.result.error, code=stopped.result.code)
    return WriteResult(path=dst)


async def move_tree(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool
) -> WriteResult:
    """Copy, then delete what was copied and has not changed since; where that fails, the error says what stays."""
    src, dst = paths.normalize(src), paths.normalize(dst)
    try:
        if source is target and src == dst:
            await _listing(source, src)
            return WriteResult(path=dst)
        copied = await _copied(source, src, target, dst, overwrite=overwrite)
        await _delete(source, src, copied)
    except _StoppedError as stopped:
        return WriteResult(stopped.result.error, code=stopped.result.code)
    return WriteResult(path=dst)


# --- copying ---


async def _copied(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool
) -> dict[str, bytes]:
    """Copy, and return what was copied: the digest of each file by its path in the source."""
    listing = await _listing(source, src)
    if source is target and paths.is_beneath(dst, src):
        raise InvalidPathError(dst, f"it lies inside {src}")
    await _check_parents(target, dst)
    _check_destination(dst, await target.als(dst), from_file=not listing.ok, overwrite=overwrite)
    copied: dict[str, bytes] = {}
    files = [path async for path in _walk(source, listing)] if listing.ok else [src]
    for batch in _batched(files):
        contents = await _download(source, batch)
        uploads = [(dst + path[len(src) :], content) for path, content in contents.items()]
        for upload in await target.aupload_files(uploads):
            _check_outcome(upload)
        copied |= {path: _digest(content) for path, content in contents.items()}
    return copied


async def _listing(source: "BackendProtocol", src: str) -> LsResult:
    """The listing of `src`, with the code not_a_directory where it is a file."""
    listing = await source.als(src)
    if listing.ok or listing.code is ErrorCode.NOT_A_DIRECTORY:
        return listing
    raise _StoppedError(listing)


async def _check_parents(target: "BackendProtocol", dst: str) -> None:
    """Raise where a file stands above `dst`."""
    for directory in reversed(paths.ancestors(dst)):
        listing = await target.als(directory)
        if listing.ok:
            return
        if listing.code is ErrorCode.NOT_A_DIRECTORY:
            raise NotDirectoryError(directory)
        if listing.code is not ErrorCode.FILE_NOT_FOUND:
            raise _StoppedError(listing)


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


async def _download(source: "BackendProtocol", batch: list[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for download in await source.adownload_files(batch):
        _check_outcome(download)
        contents[download.path] = download.content or b""
    return contents


def _check_outcome(outcome: FileDownloadResponse | FileUploadResponse) -> None:
    if outcome.error is not None:
        known = outcome.error in ErrorCode.__members__.values()
        code = ErrorCode(outcome.error) if known else ErrorCode.BACKEND_ERROR
        raise _StoppedError(Result(f"Error: Copying stopped at {quoted(outcome.path)}: {outcome.error}", code=code))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _batched(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


# --- deleting what was copied ---


async def _delete(source: "BackendProtocol", src: str, copied: dict[str, bytes]) -> None:
    """Delete the copied files unless they changed, then the directories, unless there are new files in them."""
    for batch in _batched(list(copied)):
        for path, content in (await _download(source, batch)).items():
            if _digest(content) != copied[path]:
                raise ConflictError(path)
            await _deleted(source, path)
    left = await source.als(src)
    if left.ok:
        async for path in _walk(source, left):
            raise ConflictError(path)
        await _deleted(source, src)


async def _deleted(source: "BackendProtocol", path: str) -> None:
    result = await source.adelete(path)
    if not result.ok and result.code is not ErrorCode.FILE_NOT_FOUND:
        raise _StoppedError(Result(f"{result.error} (both ends stay)", code=result.code))
