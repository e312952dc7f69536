"""Copying and moving trees through the public operations, for backends without their own way and across mounts.

A transfer is planned before anything changes, and refused if not everything can be transferred. Then it copies. A move
then deletes exactly the copied files, each only if it still is the version that was copied, and the directories that
are empty.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from deepfs.errors import (
    AlreadyExistsError,
    DeepFSError,
    ErrorCode,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    TooLargeError,
    error_about,
)
from deepfs.storage.gathering import batched, gather
from deepfs.sync import shielded
from deepfs.text import paths
from deepfs.text.arguments import bytes_given
from deepfs.text.entries import (
    Change,
    EntryChange,
    StoragePlace,
    TreeEntry,
    TreeListing,
    check_transferable,
    directories_of,
    empty_directories,
    files_of,
    making_files,
)
from deepfs.text.judging import aside, current_judge, given_under
from deepfs.text.lines import BOM, decode, digest, version
from deepfs.threads.locks import path_locks
from deepfs.types import (
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    Result,
    WriteResult,
    error_told,
)

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["MAX_HELD_BYTES", "collected", "copy_tree", "downloaded", "move_tree"]

MAX_HELD_BYTES = 256 * 1024 * 1024
"""The largest file that is held in memory as a whole."""

_BATCH_FILES = 64
_BATCH_BYTES = 8 * 1024 * 1024
"""The most files and bytes in memory at once."""
_STREAMED_BYTES = 1024 * 1024
"""Files from this size on are streamed, one by one."""

_PLAIN = (NotFoundError, IsDirectoryError, PermissionDeniedError)
"""The errors whose text needs only the path."""


async def copy_tree(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool, keeps_empty: bool
) -> WriteResult:
    """Copy what is at `src` of `source` to `dst` of `target`; what was copied before a failure stays.

    `keeps_empty` is whether the destination keeps empty directories. Raises errors of `deepfs.errors`.
    """
    transfer = _Transfer(source, src, target, dst, overwrite=overwrite, keeps_empty=keeps_empty)
    await transfer.plan(moves=False)
    await transfer.copy()
    return WriteResult(path=transfer.dst)


async def move_tree(
    source: "BackendProtocol", src: str, target: "BackendProtocol", dst: str, *, overwrite: bool, keeps_empty: bool
) -> WriteResult:
    """Copy, then delete the copied files that have not changed since. If that fails, the error says what was moved."""
    transfer = _Transfer(source, src, target, dst, overwrite=overwrite, keeps_empty=keeps_empty)
    if source is target and transfer.src == transfer.dst:
        await source.alist_tree(transfer.src)
        return WriteResult(path=transfer.dst)
    async with _apart(await source.astorage_place(transfer.src), await target.astorage_place(transfer.dst)):
        await transfer.plan(moves=True)
        await transfer.copy()
        await transfer.delete()
    return WriteResult(path=transfer.dst)


_moves = path_locks("moves between storages")
_is_moving: ContextVar[bool] = ContextVar("deepfs_is_moving", default=False)


@asynccontextmanager
async def _apart(*ends: StoragePlace) -> AsyncIterator[None]:
    """Lock both ends against other moves of this process: two in opposite directions would delete each other's copy.

    A move that is a part of another one, as a layer may make it, takes no lock.
    """
    if _is_moving.get():
        yield
        return
    keys, above = (frozenset().union(*each) for each in ((end.keys for end in ends), (end.above for end in ends)))
    async with _moves.hold_places(keys, above - keys):
        token = _is_moving.set(True)
        try:
            yield
        finally:
            _is_moving.reset(token)


# --- whole files for streams ---


async def downloaded(source: "BackendProtocol", path: str) -> bytes:
    """The content of a file. Raises the error if it cannot be downloaded."""
    [download] = await source.adownload_files([path])
    if download.error is not None:
        raise _leaf(download.error, path)
    return download.content or b""


async def collected(path: str, chunks: AsyncIterable[bytes]) -> bytes:
    """All chunks joined. Raises TooLargeError if they exceed `MAX_HELD_BYTES`."""
    content = bytearray()
    async for chunk in chunks:
        content += bytes_given("each chunk", chunk)
        if len(content) > MAX_HELD_BYTES:
            raise TooLargeError(path, len(content), MAX_HELD_BYTES)
    return bytes(content)


def _leaf(code: str, path: str) -> DeepFSError:
    """The error of `deepfs.errors` for an error code of a download or an upload."""
    plain = next((leaf for leaf in _PLAIN if leaf.code == code), None)
    return plain(path) if plain else error_about(code, path, f"it cannot be downloaded ({code})")


# --- one transfer ---


class _StoppedError(Exception):
    """A step failed at `path`, with the error `cause`."""

    def __init__(self, path: str, cause: DeepFSError) -> None:
        self.path = path
        self.cause = cause


class _Transfer:
    """A copy or a move, step by step."""

    def __init__(
        self,
        source: "BackendProtocol",
        src: str,
        target: "BackendProtocol",
        dst: str,
        *,
        overwrite: bool,
        keeps_empty: bool,
    ) -> None:
        self._source = source
        self.src = paths.normalize(src)
        self._target = target
        self.dst = paths.normalize(dst)
        self._overwrite = overwrite
        self._keeps_empty = keeps_empty
        self._listing = TreeListing([])
        self._replaces = False
        self._copied: dict[str, str] = {}
        """The version of each file that was copied, by its path in the source."""
        self._arrived = 0

    def _at_target(self, path: str) -> str:
        """The destination of the entry at `path` of the source."""
        return paths.join(self.dst, paths.relative(path, self.src))

    # --- before anything changes ---

    async def plan(self, *, moves: bool) -> None:
        """Look at both ends. Raises if not everything can be transferred, or the destination does not permit it."""
        refusal = await self._list(moves=moves)
        if self._source is self._target and paths.is_beneath(self.dst, self.src):
            raise InvalidPathError(self.dst, "it lies inside {other}", self.src)
        check_transferable(self._listing, self.src, moves=moves)
        from_file = self._listing.entries[0].kind != "directory"
        await self._check_parents()
        await self._check_target(from_file=from_file)
        for entry in self._listing.entries:
            paths.normalize(self._at_target(entry.path))
        empty = empty_directories(self._listing.entries)
        if moves and empty and not self._keeps_empty:
            what = "'{other}' is an empty directory, which the destination cannot keep"
            raise NotSupportedError(self.src, f"it cannot be moved whole: {what}. Nothing changed.", empty[0].path)
        if refusal is not None:
            raise refusal

    async def _list(self, *, moves: bool) -> NotSupportedError | None:
        """List the source. Returns the error of a source that cannot delete, if this is a move."""
        try:
            self._listing = await self._source.alist_tree(self.src, deleting=moves)
        except NotSupportedError as error:
            if not moves:
                raise
            self._listing = await self._source.alist_tree(self.src)
            return error
        return None

    # To look at the destination is no part of the copy: it may be one that can be written and not read.

    @aside
    async def _check_parents(self) -> None:
        """Raise if a path above the destination is a file."""
        for directory in reversed(paths.ancestors(self.dst)):
            listing = await self._target.als(directory)
            if listing.ok:
                return
            if listing.code is ErrorCode.NOT_A_DIRECTORY:
                raise NotDirectoryError(directory)
            if listing.code is not ErrorCode.FILE_NOT_FOUND:
                raise error_told(listing)

    @aside
    async def _check_target(self, *, from_file: bool) -> None:
        self._check_destination(await self._target.als(self.dst), from_file=from_file)

    def _check_destination(self, listing: LsResult, *, from_file: bool) -> None:
        if listing.ok:
            raise IsDirectoryError(self.dst) if self._overwrite else AlreadyExistsError(self.dst, is_directory=True)
        if listing.code is ErrorCode.NOT_A_DIRECTORY:
            if not self._overwrite:
                raise AlreadyExistsError(self.dst)
            if not from_file:
                raise NotDirectoryError(self.dst)
            self._replaces = True
        elif listing.code is not ErrorCode.FILE_NOT_FOUND:
            raise error_told(listing)

    # --- copying ---

    async def copy(self) -> None:
        """Copy all files. If one fails, the error says how many arrived."""
        made = await self._make_directories()
        try:
            for batch in _batches(files_of(self._listing.entries)):
                await self._copy_batch(batch)
        except _StoppedError as stopped:
            if self._arrived:
                all_files = len(files_of(self._listing.entries))
                what = f"{self._arrived} of {all_files} files are in '{{dst}}' already"
            else:
                await self._remove_directories(self._target, made)
                what = "nothing was copied"
            reason = f"copying stopped here: {{cause}}. All of '{{src}}' is still there, {what}."
            raise self._about(stopped, reason) from None

    async def _make_directories(self) -> list[str]:
        """Make the directories, with their modes, if the destination keeps them. Returns their paths, parents first."""
        if not self._keeps_empty:
            return []
        wanted = directories_of(self._listing.entries)
        needed = {self._at_target(entry.path) for entry in empty_directories(self._listing.entries)}
        made: list[str] = []
        changes = [EntryChange(self._at_target(entry.path), "make_directory", entry.mode) for entry in wanted]
        for change, outcome in zip(changes, await self._target.achange_entries(changes), strict=True):
            if outcome.error is None:
                made.append(change.path)
            elif change.path in needed or outcome.error != ErrorCode.UNSUPPORTED:
                await self._remove_directories(self._target, made)
                reason = f"the directory could not be made ({outcome.error}). Nothing changed."
                raise error_about(outcome.error, change.path, reason)
        return made

    async def _copy_batch(self, batch: Sequence[TreeEntry]) -> None:
        if _size(batch[0]) >= _STREAMED_BYTES:
            with making_files(batch[0].mode):
                await self._stream(batch[0].path)
        else:
            contents = await self._download([entry.path for entry in batch])
            for mode in dict.fromkeys(entry.mode for entry in batch):
                with making_files(mode):
                    await self._put({entry.path: contents[entry.path] for entry in batch if entry.mode == mode})
            self._copied |= {path: version(content) for path, content in contents.items()}
        if not self._replaces:
            modes = [(self._at_target(entry.path), entry.mode) for entry in batch if entry.mode is not None]
            await self._target.achange_entries([EntryChange(path, "set_mode", mode) for path, mode in modes])

    async def _download(self, asked: list[str]) -> dict[str, bytes]:
        """The contents by path. The paths are those of `asked`; the paths in the responses are not used."""
        contents: dict[str, bytes] = {}
        for path, download in zip(asked, await self._source.adownload_files(asked), strict=True):
            _check_outcome(path, download)
            contents[path] = download.content or b""
        return contents

    async def _put(self, contents: dict[str, bytes]) -> None:
        """Store files: new text files by `awrite`, which refuses to replace a file, all others by `aupload_files`."""
        texts: dict[str, str] = {}
        if not self._replaces:
            texts = {path: text for path, content in contents.items() if (text := _plain_text(content)) is not None}
        uploads = [(self._at_target(path), content) for path, content in contents.items() if path not in texts]
        await self._create(texts)
        await self._check_free(path for path, _ in uploads)
        outcomes = await self._target.aupload_files(uploads) if uploads else []
        self._arrived += sum(outcome.error is None for outcome in outcomes)
        for (path, _), outcome in zip(uploads, outcomes, strict=True):
            _check_outcome(path, outcome)

    async def _create(self, texts: dict[str, str]) -> None:
        """Write new text files concurrently."""
        writes = [partial(self._target.awrite, self._at_target(path), text) for path, text in texts.items()]
        results = dict(zip(texts, await gather(writes), strict=True))
        self._arrived += sum(result is not None and result.ok for result in results.values())
        for path, result in results.items():
            if result is not None:
                _check_result(path, result)

    @aside
    async def _check_free(self, wanted: Iterable[str]) -> None:
        """Raise _StoppedError if something appeared at one of the `wanted` paths since the plan was made."""
        if self._replaces:
            return
        asked = list(wanted)
        for directory in dict.fromkeys(paths.parent(path) for path in asked):
            taken = {entry.path.rstrip("/") for entry in (await self._target.als(directory)).entries or ()}
            for path in taken.intersection(asked):
                raise _StoppedError(path, AlreadyExistsError(path))

    async def _stream(self, path: str) -> None:
        """Copy a large file chunk by chunk, and compute its version on the way."""
        hashed = digest()
        failed: list[DeepFSError] = []

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async with aclosing(self._source.adownload_stream(path)) as stream:
                    async for chunk in stream:
                        hashed.update(chunk)
                        yield chunk
            except DeepFSError as error:
                failed.append(error)
                raise

        await self._check_free([self._at_target(path)])
        content = given_under(current_judge(), chunks())
        outcome = await self._target.aupload_stream(self._at_target(path), content)
        if failed:
            raise _StoppedError(path, failed[0])
        _check_outcome(self._at_target(path), outcome)
        self._copied[path] = hashed.hexdigest()
        self._arrived += 1

    # --- deleting what was copied ---

    async def delete(self) -> None:
        """Delete the copied files that have not changed since, then the directories that are empty."""
        stayed: list[_StoppedError] = []
        deleted = 0
        for path, copied in self._copied.items():
            result = await self._source.adelete(path, if_match=copied)
            if result.ok or result.code is ErrorCode.FILE_NOT_FOUND:
                deleted += 1
                continue
            stayed.append(_StoppedError(path, error_told(result)))
            if result.code is not ErrorCode.CONFLICT:
                break
        directories = [entry.path for entry in directories_of(self._listing.entries) if entry.path != "/"]
        failed = await self._remove_directories(self._source, directories)
        if stayed:
            raise self._partly_moved(deleted, stayed[0])
        await self._check_gone(failed)

    def _partly_moved(self, deleted: int, stayed: _StoppedError) -> DeepFSError:
        """The error that says which files were moved, and which are at both ends."""
        both = len(self._copied) - deleted
        if len(self._copied) == 1:
            what = "'{src}' was copied to '{dst}' but not deleted, so both are there"
        else:
            what = (
                f"'{{src}}' was moved to '{{dst}}' in part: all of its {len(self._copied)} files are there, "
                f"but {both} still {'lies' if both == 1 else 'lie'} in '{{src}}' as well, this one first"
            )
        return self._about(stayed, f"{what}. The reason: {{cause}}")

    def _about(self, stopped: _StoppedError, reason: str) -> DeepFSError:
        cause = stopped.cause
        return error_about(cause.code, stopped.path, reason, src=self.src, dst=self.dst, cause=cause)

    async def _check_gone(self, failed: Sequence[tuple[str, str]]) -> None:
        """Raise if directories of the source remain, for example because something was put into them meanwhile."""
        is_file = self._listing.entries[0].kind != "directory"
        if not failed and (is_file or not (await self._source.als(self.src)).ok):
            return
        path, code = failed[0] if failed else (self.src, ErrorCode.ALREADY_EXISTS.value)
        there = "all that was in '{src}' is in '{dst}'"
        if code == ErrorCode.ALREADY_EXISTS:
            code, reason = ErrorCode.CONFLICT, f"{there}, and what was put into it meanwhile is still there."
        else:
            reason = f"{there}, but this empty directory could not be deleted ({code})"
        raise error_about(code, path, reason, src=self.src, dst=self.dst)

    async def _remove_directories(self, backend: "BackendProtocol", made: Sequence[str]) -> list[tuple[str, str]]:
        """Remove the empty directories, the deepest first. Returns those that remain, each with its error code."""
        change: Change = "remove_directory"
        changes = [EntryChange(path, change) for path in sorted(made, reverse=True)]
        outcomes = await shielded(partial(backend.achange_entries, changes)) if changes else []
        errors = [(change.path, outcome.error) for change, outcome in zip(changes, outcomes, strict=True)]
        return [(path, code) for path, code in errors if code is not None and code != ErrorCode.FILE_NOT_FOUND]


def _check_result(path: str, result: Result) -> None:
    if not result.ok:
        raise _StoppedError(path, error_told(result))


def _check_outcome(path: str, outcome: FileDownloadResponse | FileUploadResponse) -> None:
    if outcome.error is not None:
        raise _StoppedError(path, _leaf(outcome.error, path))


def _plain_text(content: bytes) -> str | None:
    """`content` as a text that a write stores unchanged, on older backends too; None if it is no such text."""
    text = decode(content)
    return None if text is None or "\r" in text or text.startswith(BOM) else text


def _size(entry: TreeEntry) -> int:
    return _STREAMED_BYTES - 1 if entry.size is None else entry.size


def _batches(entries: Sequence[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """The files in groups, each small enough to be held in memory; the large files first, each alone.

    If one end refuses a large file, the transfer then stops before anything is copied.
    """
    by_size = sorted(entries, key=_size, reverse=True)
    large = [entry for entry in by_size if _size(entry) >= _STREAMED_BYTES]
    yield from ([entry] for entry in large)
    yield from batched(by_size[len(large) :], _size, most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES)
