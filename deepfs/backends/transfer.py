"""Copying and moving trees through the public operations, for backends without their own way and across mounts."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from deepfs.core import paths
from deepfs.errors import (
    AccessError,
    ConflictError,
    DeepFSError,
    DirectoryError,
    ErrorCode,
    ExistsError,
    FileMissingError,
    InvalidPathError,
    NotDirectoryError,
    TooLargeError,
    error_of,
    quoted,
)
from deepfs.sync import finish
from deepfs.types import FileDownloadResponse, FileUploadResponse, LsResult, Result, WriteResult

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["MAX_HELD_BYTES", "closed_after", "collected", "copy_tree", "downloaded", "move_tree"]

MAX_HELD_BYTES = 256 * 1024 * 1024
"""The largest file that is held in memory as a whole."""

_BATCH = 64
"""Files in memory at once."""

T = TypeVar("T")

_PLAIN = (FileMissingError, DirectoryError, AccessError)
"""The leaves whose text needs the path alone."""


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


# --- whole files for streams ---


async def downloaded(source: "BackendProtocol", path: str) -> bytes:
    """The content of a file; raises why it cannot be had."""
    [download] = await source.adownload_files([path])
    if download.error is not None:
        raise _leaf(download.error, path)
    return download.content or b""


async def collected(path: str, chunks: AsyncIterable[bytes]) -> bytes:
    """All chunks as one; TooLargeError where they are too many."""
    content = bytearray()
    async with closed_after(chunks):
        async for chunk in chunks:
            content += chunk
            if len(content) > MAX_HELD_BYTES:
                raise TooLargeError(path, len(content), MAX_HELD_BYTES)
    return bytes(content)


@asynccontextmanager
async def closed_after(chunks: AsyncIterable[bytes]) -> AsyncIterator[None]:
    """Close a source that can be closed, such as a generator, also where it was not read to its end."""
    try:
        yield
    finally:
        if isinstance(chunks, AsyncGenerator):
            await finish(chunks.aclose)


def _leaf(code: str, path: str) -> DeepFSError:
    """The leaf of the bare error code of a download."""
    plain = next((leaf for leaf in _PLAIN if leaf.code == code), None)
    return plain(path) if plain else error_of(code, f"Error: {quoted(path)} cannot be downloaded: {code}")


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
        error = error_of(outcome.error, f"Error: Copying stopped at {quoted(outcome.path)}: {outcome.error}")
        raise _StoppedError(Result(str(error), code=error.code))


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
