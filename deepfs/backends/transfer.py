"""Copying and moving trees between two backends, through their public operations.

`TreeCopy` has the steps: make directories, fetch, compare, store, stream, set modes, read back, delete by version. What
differs between its callers is data, in `TreeTerms`. `copy_tree` and `move_tree` transfer a tree whole or refuse it:
they plan before anything changes, and stop at the first file that fails. They are the way of backends without their
own, and that between mounts. The commands `cp` and `mv` merge a tree into what is there, and go on after a file that
fails.

A move deletes the copied files, each only if it still is the version that was copied, and the directories that are
empty. So nothing is lost if it is cancelled, if an end fails, or if a file changes meanwhile.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import anyio
from msgspec import Struct

from deepfs.backends._trees import End, kind_at, list_present
from deepfs.errors import (
    AlreadyExistsError,
    ConflictError,
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
from deepfs.storage.gathering import gather_each, in_batches
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.access import current_access, iterate_under, without_access_check
from deepfs.text.arguments import check_bytes
from deepfs.text.entries import (
    EntryChange,
    StoragePlace,
    TreeEntry,
    check_target,
    check_transferable,
    directories_of,
    empty_directories,
    files_of,
    use_file_mode,
)
from deepfs.text.lines import BOM, decode, digest, version
from deepfs.threads.locks import path_locks
from deepfs.types import FileDownloadResponse, FileUploadResponse, WriteResult, error_behind, error_from

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

MAX_HELD_BYTES = 256 * 1024 * 1024
"""The largest file that is held in memory as a whole."""

_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of a batch."""
_STREAMS_AT_ONCE: Final = 2
_STORED_AT_ONCE: Final = 2
"""How many batches are stored at once. A database that indexes them uses a processor for each."""
_COPIES_AT_ONCE: Final = _STORED_AT_ONCE + 1 + _STREAMS_AT_ONCE
"""Beside the streams and the batches that are stored, one is fetched or read back."""
_CHANGES_AT_ONCE: Final = 64
"""How many files are written or deleted at once."""
_USUAL_MODE: Final = 0o644
"""The mode of new files, so that it need not be set. Where the system gives them less, they keep less."""
_OWN_BITS: Final = 0o700
"""What a new directory permits its owner while the copy goes on, and a file that will be replaced."""
_ENDS_ALL: Final = frozenset({ErrorCode.QUOTA_EXCEEDED, ErrorCode.BACKEND_ERROR, ErrorCode.TIMEOUT})
"""The errors that end a copy: a full storage does at once, the others if no file of the batch was stored."""


# --- whole files ---


async def download_file(source: "BackendProtocol", path: str) -> bytes:
    """The content of a file. Raises the error if it cannot be downloaded."""
    [download] = await source.adownload_files([path])
    if download.error is not None:
        raise _item_error(download, path, "downloaded")
    return download.content or b""


async def collect_chunks(path: str, chunks: AsyncIterable[bytes]) -> bytes:
    """All chunks joined. Raises TooLargeError if they exceed `MAX_HELD_BYTES`."""
    content = bytearray()
    async for chunk in chunks:
        content += check_bytes("each chunk", chunk)
        if len(content) > MAX_HELD_BYTES:
            raise TooLargeError(path, len(content), MAX_HELD_BYTES)
    return bytes(content)


def _item_error(outcome: FileUploadResponse | FileDownloadResponse, path: str, verb: str) -> DeepFSError:
    """The error of one item of a batch, of which perhaps only the code is known."""
    if (error := error_behind(outcome)) is not None:
        return error.with_paths(str)
    code = outcome.error or ErrorCode.BACKEND_ERROR
    # The text of these needs only the path.
    for plain in (NotFoundError, IsDirectoryError, PermissionDeniedError):
        if plain.code == code:
            return plain(path)
    return error_about(code, path, f"it cannot be {verb} ({code})")


# --- the copy of a tree ---


Verify: TypeAlias = Literal["read", "size", "none"]
"""How a file is checked after it was stored: it is read back and compared, or its size is compared."""


class TreeTerms(Struct, frozen=True, kw_only=True):
    """How a tree is copied."""

    merges: bool = False
    """The tree goes into what is there: equal files stay, others are replaced and get the mode of the source, and a
    file that fails does not end the copy. Otherwise nothing that appears at the target meanwhile is replaced, and a
    file that is to be replaced keeps its mode."""
    moves: bool = False
    """The source is deleted afterwards."""
    makes_directories: bool = True
    """The target may keep directories, so they are made before their files."""
    verify: Verify = "none"
    streamed_bytes: int = 1024 * 1024
    """Files from this size on are streamed."""
    batch_files: int = 64
    """The most files of a batch: twice as many may be stored after one that fails."""


class PlannedFile(Struct, frozen=True):
    """A file to copy."""

    path: str
    target: str
    size: int | None
    mode: int | None
    existing: TreeEntry | None
    """What is at the target."""
    is_streamed: bool

    @property
    def may_be_equal(self) -> bool:
        there = self.existing
        return there is not None and (self.size is None or there.size is None or self.size == there.size)


class CopyTotals(Struct):
    """What copies have done so far. Bytes of skipped files do not count."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0
    failed: int = 0
    deleted: int = 0
    """What the target had and the source has not."""
    planned_files: int = 0
    planned_bytes: int = 0
    passed_bytes: int = 0
    """The bytes of all files that are done with, failed ones too, and of the parts of streams."""


Step: TypeAlias = Literal["make_directory", "fetch", "store", "check", "set_mode", "delete", "remove_directory"]


class CopyFailure(NamedTuple):
    """A step that failed for one entry."""

    step: Step
    path: str
    """The path at the end that failed."""
    error: DeepFSError
    file: PlannedFile | None = None


class FullError(Exception):
    """The target stores nothing more; `code` is that of the error that says so."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.value)
        self.code: ErrorCode = code


class TreeCopy:
    """The copy of a tree from one end to another, step by step.

    Args:
        source: What to copy.
        target: Where the copy is to be.
        terms: How.
        fail: Called with each failure. It may raise an error, which ends the copy.
        totals: What is counted, also for other copies.
    """

    def __init__(
        self,
        source: End,
        target: End,
        terms: TreeTerms,
        fail: Callable[[CopyFailure], None],
        totals: CopyTotals | None = None,
    ) -> None:
        self.source: End = source
        self.target: End = target
        self.terms: TreeTerms = terms
        self.totals: CopyTotals = CopyTotals() if totals is None else totals
        self.entries: list[TreeEntry] = []
        """What is copied, directories before what is in them."""
        self.existing: dict[str, TreeEntry] = {}
        """What is at the target, by path."""
        self.files: list[PlannedFile] = []
        """The files to copy."""
        self.made: list[str] = []
        """The directories that were made."""
        self.versions: dict[str, str] = {}
        """The version of each file that is at the target, by its path in the source. Only moves need it."""
        self._sizes: dict[PlannedFile, int] = {}
        """The size of each file that was stored."""
        self._fail = fail
        # A copy that does not merge takes one step at a time, and may run without an event loop.
        limit = anyio.CapacityLimiter if terms.merges else nullcontext
        self._storing: AbstractAsyncContextManager[Any] = limit(_STORED_AT_ONCE)
        self._streaming: AbstractAsyncContextManager[Any] = limit(_STREAMS_AT_ONCE)

    def at_target(self, path: str) -> str:
        """The path of the copy of what is at `path` in the source."""
        return paths.join(self.target.path, paths.relative(path, self.source.path))

    def plan_file(self, entry: TreeEntry) -> PlannedFile:
        """What is to be done for a file in the source, or a link to one."""
        target = self.at_target(entry.path)
        # A file of unknown size may be large. Without `merges` it is written by `awrite` all the same: that refuses to
        # replace what appears meanwhile.
        is_streamed = self.terms.merges if entry.size is None else entry.size >= self.terms.streamed_bytes
        return PlannedFile(entry.path, target, entry.size, entry.mode, self.existing.get(target), is_streamed)

    def cost(self, file: PlannedFile) -> int:
        """The bytes that a file takes in a batch."""
        if file.size is not None:
            return file.size
        return _BATCH_BYTES if self.terms.merges else self.terms.streamed_bytes

    async def run(self) -> None:
        """Make the directories, copy the files, and set the modes.

        Raises FullError if the target stores nothing more, other errors if it does not work.
        """
        modes = await self._make_directories()
        batches = [[file] for file in self.files if file.is_streamed]
        small = (file for file in self.files if not file.is_streamed)
        batches += in_batches(small, self.cost, most_bytes=_BATCH_BYTES, most_items=self.terms.batch_files)
        await gather_each(self._copy, batches, most=_COPIES_AT_ONCE if self.terms.merges else 1)
        if self.terms.verify == "size":
            await self._check_sizes()
        await self._set_modes(modes)

    async def find_different(self) -> list[PlannedFile]:
        """The files whose copies are missing, or are found by reading both ends to differ. Nothing changes."""

        async def differs(file: PlannedFile) -> bool:
            here = await _digest_of(self.source.backend, file.path) if file.may_be_equal else None
            return here is None or here != await _digest_of(self.target.backend, file.target)

        different = await gather_each(differs, self.files, most=_COPIES_AT_ONCE)
        return [file for file, is_different in zip(self.files, different, strict=True) if is_different]

    async def _copy(self, batch: list[PlannedFile]) -> None:
        if batch[0].is_streamed:
            async with self._streaming:
                await self._copy_stream(batch[0])
            return
        contents = await self._fetch(batch)
        equal: set[PlannedFile] = set()
        if self.terms.merges:
            equal = await self._find_equal({file: contents[file] for file in contents if file.may_be_equal})
        errors = await self._store({file: contents[file] for file in contents if file not in equal})
        stored = [file for file, error in errors.items() if error is None]
        if self.terms.verify == "read":
            same = await self._find_equal({file: contents[file] for file in stored})
            for file in stored:
                if file not in same:
                    self._fail(CopyFailure("check", file.target, _difference_error(file), file))
            stored = [file for file in stored if file in same]
        await self._set_file_modes([*equal, *stored])
        self.totals.passed_bytes += sum(file.size or 0 for file in batch)
        for file in [*equal, *stored]:
            content = contents[file]
            self._count(file, len(content), version(content) if self.terms.moves else "", is_new=file not in equal)
        for file, error in errors.items():
            if error is not None:
                self._fail(CopyFailure("store", file.target, error, file))
        if errors and (last := [*errors.values()][-1]) is not None:
            self._check_room(last, has_stored=None in errors.values())

    async def _fetch(self, batch: list[PlannedFile]) -> dict[PlannedFile, bytes]:
        """The contents. The files are known by the order of the downloads, whose paths are not used."""
        downloads = await self.source.backend.adownload_files([file.path for file in batch])
        contents: dict[PlannedFile, bytes] = {}
        for file, download in zip(batch, downloads, strict=True):
            if download.error is None:
                contents[file] = download.content or b""
            else:
                self._fail(CopyFailure("fetch", file.path, _item_error(download, file.path, "downloaded"), file))
        return contents

    async def _find_equal(self, contents: dict[PlannedFile, bytes]) -> set[PlannedFile]:
        """The files whose content is what is at the target."""
        if not contents:
            return set()
        downloads = await self.target.backend.adownload_files([file.target for file in contents])
        return {
            file
            for (file, content), download in zip(contents.items(), downloads, strict=True)
            if download.error is None and (download.content or b"") == content
        }

    async def _store(self, contents: dict[PlannedFile, bytes]) -> dict[PlannedFile, DeepFSError | None]:
        """Store files. Returns the error of each one that was tried, None for those that were stored."""
        await self._withhold_from_others(contents)
        errors: dict[PlannedFile, DeepFSError | None] = {}
        files = sorted(contents, key=lambda file: -1 if file.mode is None else file.mode)
        async with self._storing:
            for mode, group in groupby(files, key=attrgetter("mode")):
                with use_file_mode(mode):
                    errors |= await self._store_group({file: contents[file] for file in group})
                if not self.terms.merges and any(errors.values()):
                    break
        return errors

    async def _store_group(self, contents: dict[PlannedFile, bytes]) -> dict[PlannedFile, DeepFSError | None]:
        """Store files of one mode.

        Where nothing may be replaced, texts are written, and no upload begins at a path where something is.
        """
        new = [] if self.terms.merges else [file for file in contents if file.existing is None]
        texts = {file: text for file in new if (text := _plain_text(contents[file])) is not None}
        results = await gather_each(
            lambda file: self.target.backend.awrite(file.target, texts[file]), texts, most=_CHANGES_AT_ONCE
        )
        errors: dict[PlannedFile, DeepFSError | None] = {
            file: None if result.ok else error_from(result) for file, result in zip(texts, results, strict=True)
        }
        uploads = [file for file in contents if file not in texts]
        errors |= await self._find_taken(file for file in new if file not in texts)
        if uploads and not any(errors.values()):
            outcomes = await self.target.backend.aupload_files([(file.target, contents[file]) for file in uploads])
            for file, outcome in zip(uploads, outcomes, strict=True):
                errors[file] = None if outcome.error is None else _item_error(outcome, file.target, "stored")
        return errors

    # To look at the target is no part of the copy: it may be one that can be written and not read.
    @without_access_check
    async def _find_taken(self, files: Iterable[PlannedFile]) -> dict[PlannedFile, DeepFSError]:
        """The files at whose target something appeared since the plan was made."""
        directories: dict[str, list[PlannedFile]] = {}
        for file in files:
            directories.setdefault(paths.parent(file.target), []).append(file)
        taken: dict[PlannedFile, DeepFSError] = {}
        for directory, wanted in directories.items():
            there = {entry.path.rstrip("/") for entry in (await self.target.backend.als(directory)).entries or ()}
            taken |= {file: AlreadyExistsError(file.target) for file in wanted if file.target in there}
        return taken

    async def _copy_stream(self, file: PlannedFile) -> None:
        """Copy a large file chunk by chunk, and compute its version on the way."""
        if self.terms.merges and file.may_be_equal:
            here = await _digest_of(self.source.backend, file.path)
            if here is not None and here == await _digest_of(self.target.backend, file.target):
                await self._set_file_modes([file])
                self._count(file, file.size or 0, here, is_new=False)
                self.totals.passed_bytes += file.size or 0
                return
        hashed, size, failed = digest(), 0, list[DeepFSError]()

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal size
            try:
                async with aclosing(self.source.backend.adownload_stream(file.path)) as stream:
                    async for chunk in stream:
                        hashed.update(chunk)
                        size += len(chunk)
                        self.totals.passed_bytes += len(chunk)
                        yield chunk
            except DeepFSError as error:
                failed.append(error)
                raise

        await self._withhold_from_others([file])
        if not self.terms.merges and file.existing is None:
            for error in (await self._find_taken([file])).values():
                self._fail(CopyFailure("store", file.target, error, file))
        with use_file_mode(file.mode):
            content = iterate_under(current_access(), chunks())
            outcome = await self.target.backend.aupload_stream(file.target, content)
        if failed:
            self._fail(CopyFailure("fetch", file.path, failed[0], file))
        elif outcome.error is not None:
            error = _item_error(outcome, file.target, "stored")
            self._fail(CopyFailure("store", file.target, error, file))
            self._check_room(error, has_stored=False)
        elif self.terms.verify == "read" and await _digest_of(self.target.backend, file.target) != hashed.hexdigest():
            self._fail(CopyFailure("check", file.target, _difference_error(file), file))
        else:
            await self._set_file_modes([file])
            self._count(file, size, hashed.hexdigest(), is_new=True)

    def _count(self, file: PlannedFile, size: int, version: str, *, is_new: bool) -> None:
        if self.terms.moves:
            self.versions[file.path] = version
        if is_new:
            self._sizes[file] = size
            self.totals.files += 1
            self.totals.bytes += size
        else:
            self.totals.skipped += 1

    def _check_room(self, error: DeepFSError, *, has_stored: bool) -> None:
        """Raise FullError if the error of the last file of a batch says that no other file will be stored."""
        if error.code in _ENDS_ALL and (not has_stored or error.code is ErrorCode.QUOTA_EXCEEDED):
            raise FullError(error.code)

    async def _check_sizes(self) -> None:
        found = {entry.path: entry.size for entry in (await list_present(*self.target)).entries}
        for file, size in self._sizes.items():
            if found.get(file.target) != size:
                self.totals.files -= 1
                self.totals.bytes -= size
                self.versions.pop(file.path, None)
                self._fail(CopyFailure("check", file.target, _difference_error(file), file))

    # --- directories and modes ---

    async def _make_directories(self) -> list[EntryChange]:
        """Make the directories, so that what is in a private one is private from the start.

        Returns the changes that give directories their modes once they are full.
        """
        if not self.terms.makes_directories:
            return []
        new = [entry for entry in directories_of(self.entries) if self.at_target(entry.path) not in self.existing]
        needed = {self.at_target(entry.path) for entry in empty_directories(self.entries)}
        changes = [
            EntryChange(
                self.at_target(entry.path), "make_directory", None if entry.mode is None else entry.mode | _OWN_BITS
            )
            for entry in new
        ]
        outcomes = await self.target.backend.achange_entries(changes) if changes else []
        self.made = [change.path for change, outcome in zip(changes, outcomes, strict=True) if outcome.error is None]
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome.error is not None and (outcome.error != ErrorCode.UNSUPPORTED or change.path in needed):
                error = _item_error(outcome, change.path, "made")
                self._fail(CopyFailure("make_directory", change.path, error))
        return [
            EntryChange(self.at_target(entry.path), "set_mode", entry.mode)
            for entry in reversed(new)
            if entry.mode is not None and entry.mode & _OWN_BITS != _OWN_BITS
        ]

    async def _set_file_modes(self, files: Iterable[PlannedFile]) -> None:
        """Set the permission bits of files that are at the target, where they are others."""
        changes: list[EntryChange] = []
        for file in files:
            if self.terms.merges:
                present = _USUAL_MODE if file.existing is None else file.existing.mode
            else:  # What is replaced keeps its mode.
                present = None if file.existing is None else file.mode
            if file.mode is not None and file.mode != present:
                changes.append(EntryChange(file.target, "set_mode", file.mode))
        await self._set_modes(changes)

    async def _withhold_from_others(self, files: Iterable[PlannedFile]) -> None:
        """Take from the files that will be replaced what the new ones permit nobody but their owner.

        It is not given back where storing fails: a new file may be there all the same.
        """
        changes: list[EntryChange] = []
        for file in files:
            present = None if file.existing is None or not self.terms.merges else file.existing.mode
            if (
                present is not None
                and file.mode is not None
                and (narrow := present & (file.mode | _OWN_BITS)) != present
            ):
                changes.append(EntryChange(file.target, "set_mode", narrow))
        await self._set_modes(changes)

    async def _set_modes(self, changes: Sequence[EntryChange]) -> None:
        outcomes = await self.target.backend.achange_entries(changes) if changes else []
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome.error is not None:
                self._fail(CopyFailure("set_mode", change.path, _item_error(outcome, change.path, "changed")))

    # --- deleting what was moved ---

    async def delete_source(self) -> list[CopyFailure]:
        """Delete the files that are at the target and have not changed since, and the directories that are empty.

        Returns what could not be deleted. `versions` has the files that are still there.
        """
        failures: list[CopyFailure] = []

        async def delete(path: str) -> None:
            if failures and not self.terms.merges and failures[-1].error.code is not ErrorCode.CONFLICT:
                return  # The source refuses: to ask it about each of the others says nothing new.
            result = await self.source.backend.adelete(path, if_match=self.versions[path])
            if result.ok or result.code is ErrorCode.FILE_NOT_FOUND:
                del self.versions[path]
            else:
                failures.append(CopyFailure("delete", path, error_from(result)))

        await gather_each(delete, self.versions, most=_CHANGES_AT_ONCE if self.terms.merges else 1)
        directories = [entry.path for entry in directories_of(self.entries) if entry.path != "/"]
        remove = partial(_remove_directories, self.source.backend, directories)
        return failures + await (remove() if self.terms.merges else run_shielded(remove))

    async def undo_directories(self) -> None:
        """Remove the directories that were made and are empty."""
        await run_shielded(partial(_remove_directories, self.target.backend, self.made))


async def _remove_directories(backend: "BackendProtocol", made: Iterable[str]) -> list[CopyFailure]:
    """Remove empty directories, the deepest first. Returns those that remain."""
    changes = [EntryChange(path, "remove_directory") for path in sorted(made, reverse=True)]
    outcomes = await backend.achange_entries(changes) if changes else []
    return [
        CopyFailure("remove_directory", change.path, _item_error(outcome, change.path, "removed"))
        for change, outcome in zip(changes, outcomes, strict=True)
        if outcome.error is not None and outcome.error != ErrorCode.FILE_NOT_FOUND
    ]


def _difference_error(file: PlannedFile) -> DeepFSError:
    return ConflictError(file.target, "what was stored differs from '{other}'", file.path)


def _plain_text(content: bytes) -> str | None:
    """`content` as a text that a write stores unchanged, on older backends too; None if it is no such text."""
    text = decode(content)
    return None if text is None or "\r" in text or text.startswith(BOM) else text


async def _digest_of(backend: "BackendProtocol", path: str) -> str | None:
    """The version of a file, read in parts; None if it cannot be read."""
    hashed = digest()
    try:
        async with aclosing(backend.adownload_stream(path)) as stream:
            async for chunk in stream:
                hashed.update(chunk)
    except DeepFSError:
        return None
    return hashed.hexdigest()


# --- whole trees, or nothing ---


async def copy_tree(
    backend: "BackendProtocol", src: str, dst: str, *, overwrite: bool, keeps_empty: bool
) -> WriteResult:
    """Copy what is at `src` to `dst`, two normalised paths; what was copied before a failure stays.

    `keeps_empty` is whether the destination keeps empty directories. Raises errors of `deepfs.errors`.
    """
    await _copy_whole(backend, src, dst, TreeTerms(makes_directories=keeps_empty), overwrite=overwrite)
    return WriteResult(path=dst)


async def move_tree(
    backend: "BackendProtocol", src: str, dst: str, *, overwrite: bool, keeps_empty: bool
) -> WriteResult:
    """Copy between two places, then delete the copied files that have not changed since.

    If that fails, the error says what was moved.
    """
    async with _lock_ends(await backend.astorage_place(src), await backend.astorage_place(dst)):
        terms = TreeTerms(moves=True, makes_directories=keeps_empty)
        copying = await _copy_whole(backend, src, dst, terms, overwrite=overwrite)
        copied = len(copying.versions)
        failures = await copying.delete_source()
        if failures or (copying.entries[0].kind == "directory" and (await backend.als(src)).ok):
            raise _partly_moved(copying, copied, failures)
    return WriteResult(path=dst)


_moves = path_locks("moves between storages")
_is_moving: ContextVar[bool] = ContextVar("deepfs_is_moving", default=False)


@asynccontextmanager
async def _lock_ends(*ends: StoragePlace) -> AsyncIterator[None]:
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


class _StoppedError(Exception):
    """A step failed, which ends the copy."""

    def __init__(self, failure: CopyFailure) -> None:
        self.failure = failure


def _stop(failure: CopyFailure) -> None:
    if failure.step != "set_mode":
        raise _StoppedError(failure)


async def _copy_whole(backend: "BackendProtocol", src: str, dst: str, terms: TreeTerms, *, overwrite: bool) -> TreeCopy:
    """Plan a copy, and carry it out.

    Raises before anything changes if not everything can be transferred, or if the destination does not permit it; later
    the error says how many files arrived.
    """
    refusal: NotSupportedError | None = None
    try:
        listing = await backend.alist_tree(src, deleting=terms.moves)
    except NotSupportedError as error:
        if not terms.moves:
            raise
        listing, refusal = await backend.alist_tree(src), error
    if paths.is_beneath(dst, src):
        raise InvalidPathError(dst, "it lies inside {other}", src)
    check_transferable(listing, src, moves=terms.moves)
    target = End(backend, dst)
    copying = TreeCopy(End(backend, src), target, terms, _stop)
    copying.entries = listing.entries
    for entry in listing.entries:
        paths.normalize(copying.at_target(entry.path))
    from_file = listing.entries[0].kind != "directory"
    if await _check_target(target, from_file=from_file, overwrite=overwrite):
        copying.existing = {dst: TreeEntry(dst, "file")}
    empty = empty_directories(listing.entries)
    if terms.moves and empty and not terms.makes_directories:
        what = "'{other}' is an empty directory, which the destination cannot keep"
        raise NotSupportedError(src, f"it cannot be moved whole: {what}. Nothing changed.", empty[0].path)
    if refusal is not None:  # Errors of the destination come first.
        raise refusal
    # The largest first: if an end refuses one, nothing was copied yet.
    copying.files = sorted(map(copying.plan_file, files_of(listing.entries)), key=copying.cost, reverse=True)
    try:
        await copying.run()
    except _StoppedError as stopped:
        if copying.totals.files:
            what = f"{copying.totals.files} of {len(copying.files)} files are in '{{dst}}' already"
        else:
            await copying.undo_directories()
            what = "nothing was copied"
        reason = f"copying stopped here: {{cause}}. All of '{{src}}' is still there, {what}."
        raise _error_of(copying, stopped.failure, reason) from None
    return copying


# To look at the destination is no part of the copy: it may be one that can be written and not read.
@without_access_check
async def _check_target(target: End, *, from_file: bool, overwrite: bool) -> bool:
    """Raise if a path above the destination is a file, or if what is there may not be replaced.

    Returns whether a file is there.
    """
    for directory in reversed(paths.ancestors(target.path)):
        kind = await kind_at(target.backend, directory)
        if kind == "file":
            raise NotDirectoryError(directory)
        if kind is not None:
            break
    standing = await kind_at(*target)
    check_target(target.path, standing, from_file=from_file, overwrite=overwrite)
    return standing is not None


def _error_of(copying: TreeCopy, failure: CopyFailure, reason: str) -> DeepFSError:
    cause, ends = failure.error, {"src": copying.source.path, "dst": copying.target.path}
    return error_about(cause.code, failure.path, reason, cause=cause, **ends)


def _partly_moved(copying: TreeCopy, copied: int, failures: Sequence[CopyFailure]) -> DeepFSError:
    """The error that says which files were moved, which are at both ends, and which directories remain."""
    both, first = len(copying.versions), failures[0] if failures else None
    if first is not None and first.step == "delete":
        if copied == 1:
            what = "'{src}' was copied to '{dst}' but not deleted, so both are there"
        else:
            what = (
                f"'{{src}}' was moved to '{{dst}}' in part: all of its {copied} files are there, "
                f"but {both} still {'lies' if both == 1 else 'lie'} in '{{src}}' as well, this one first"
            )
        return _error_of(copying, first, f"{what}. The reason: {{cause}}")
    src, dst = copying.source.path, copying.target.path
    there = "all that was in '{src}' is in '{dst}'"
    if first is None or first.error.code is ErrorCode.ALREADY_EXISTS:
        path = src if first is None else first.path
        return ConflictError.because(
            path, f"{there}, and what was put into it meanwhile is still there.", src=src, dst=dst
        )
    reason = f"{there}, but this empty directory could not be deleted ({first.error.code})"
    return _error_of(copying, first, reason)
