"""Copies of trees between two backends: planned by two listings, made in batches, and checked by reading back.

A file is skipped only if both ends have been read and are equal, unless the user asks for less. So a copy needs no
record of earlier ones: after an interruption, or if the source has changed since, the same copy is made again, and
stores what is missing or different.
"""

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from enum import StrEnum
from operator import attrgetter
from typing import Final

import anyio
from msgspec import Struct

from deepfs.backends.gathering import batched, gather_each
from deepfs.backends.protocol import BackendProtocol
from deepfs.cli.session import Place, Session
from deepfs.errors import DeepFSError, ErrorCode, NotFoundError, NotSupportedError, quoted
from deepfs.text import paths
from deepfs.text.entries import EntryChange, TreeEntry, TreeListing, directories_of, empty_directories
from deepfs.text.lines import digest, version

__all__ = ["FullError", "Terms", "Totals", "TreeCopy", "Verify", "error_text", "listed", "modification_times"]

_BATCH_FILES: Final = 1_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most files and bytes of a batch."""
_STREAMED_BYTES: Final = 8 * 1024 * 1024
"""Files from this size on are streamed."""
_BATCHES_AT_ONCE: Final = 3
"""One is fetched while another one is stored and a third one is read back."""
_STREAMS_AT_ONCE: Final = 2
_CHANGES_AT_ONCE: Final = 32
"""How many files are deleted at once."""
_USUAL_MODE: Final = 0o644
"""The mode of new files, so that it need not be set. Where the system gives them less, they keep less."""
_OWN_BITS: Final = 0o700
"""What a new directory permits its owner while the copy goes on."""
_MOST_TOLD: Final = 20
"""How many files that could not be copied are told one by one."""
_ENDS_ALL: Final = frozenset({ErrorCode.QUOTA_EXCEEDED, ErrorCode.BACKEND_ERROR, ErrorCode.TIMEOUT})
"""The errors after which nothing more is stored: a full storage, and those for which no file of a batch was."""

_TEXTS: Final = {
    ErrorCode.FILE_NOT_FOUND: "No such file or directory",
    ErrorCode.IS_DIRECTORY: "Is a directory",
    ErrorCode.NOT_A_DIRECTORY: "Not a directory",
    ErrorCode.PERMISSION_DENIED: "Permission denied",
    ErrorCode.ALREADY_EXISTS: "File exists",
    ErrorCode.TOO_LARGE: "File too large",
    ErrorCode.QUOTA_EXCEEDED: "Quota exceeded",
    ErrorCode.CONFLICT: "It was changed meanwhile",
    ErrorCode.TIMEOUT: "Timed out",
    ErrorCode.UNSUPPORTED: "Not supported there",
}


def error_text(code: str | None) -> str:
    """What the system's tools say for an error code.

    Args:
        code: The code of `ErrorCode`; None is an unknown error.
    """
    return _TEXTS.get(code, code or "unknown error")  # type: ignore[call-overload,no-any-return]


class Verify(StrEnum):
    """How a file is checked after it was stored."""

    READ = "read"
    """It is read back and compared."""
    SIZE = "size"
    """Its size is compared."""
    NONE = "none"


class Terms(Struct, frozen=True, kw_only=True):
    """What a copy does where something is at the target, and how it is checked."""

    recursive: bool = False
    no_clobber: bool = False
    """Files that exist are left alone."""
    update: bool = False
    """Files that are as new as the source, or newer, are left alone."""
    size_only: bool = False
    """Files of the same size are taken to be equal."""
    verify: Verify = Verify.READ
    moves: bool = False
    """The source is deleted afterwards."""


class Totals(Struct):
    """What a command has done so far. Bytes of skipped files do not count."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0
    failed: int = 0
    planned_files: int = 0
    planned_bytes: int = 0
    started: float = 0.0
    passed_bytes: int = 0
    """The bytes of all files that are done with, and of the parts of streams."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class FullError(Exception):
    """The target stores nothing more; the text says why."""


class _File(Struct, frozen=True):
    """A file to copy."""

    path: str
    target: str
    size: int | None
    mode: int | None
    existing: TreeEntry | None
    """What is at the target."""

    @property
    def exists(self) -> bool:
        return self.existing is not None

    @property
    def existing_size(self) -> int | None:
        return None if self.existing is None else self.existing.size

    @property
    def new_mode(self) -> int | None:
        """The permission bits to set once it is stored; None if there is nothing to set."""
        existing = _USUAL_MODE if self.existing is None else self.existing.mode
        return None if self.mode == existing else self.mode

    @property
    def may_be_equal(self) -> bool:
        return self.exists and (self.size is None or self.existing_size is None or self.size == self.existing_size)

    @property
    def cost(self) -> int:
        """The bytes that it takes in a batch. A file of unknown size is taken to be a large one."""
        return _STREAMED_BYTES if self.size is None else self.size


async def listed(backend: BackendProtocol, path: str) -> TreeListing:
    """The entries at and under a path; none where nothing is.

    Args:
        backend: The backend.
        path: The path.

    Raises:
        DeepFSError: The path cannot be listed.
    """
    try:
        return await backend.alist_tree(path)
    except NotFoundError:
        return TreeListing([])


async def modification_times(backend: BackendProtocol, directories: Sequence[str]) -> dict[str, str]:
    """When the files in some directories were changed, by path.

    Args:
        backend: The backend.
        directories: The directories; those that do not exist are left out.
    """
    results = await gather_each(backend.als, directories)
    entries = (entry for result in results for entry in result.entries or ())
    return {entry.path: entry.modified_at for entry in entries if entry.modified_at is not None}


class TreeCopy:
    """The copy of what is at one place to another place.

    Args:
        session: The session, which tells the errors.
        terms: The terms.
        totals: What is counted, also for other copies of the same command.
        source: What to copy: a file or a directory.
        target: Where its copy is to be; its directory exists, or need not.
    """

    def __init__(self, session: Session, terms: Terms, totals: Totals, source: Place, target: Place) -> None:
        self._session = session
        self._terms = terms
        self._totals = totals
        self._source = source
        self._target = target
        self._entries: list[TreeEntry] = []
        self._existing: dict[str, TreeEntry] = {}
        self._files: list[_File] = []
        self._versions: dict[str, str] = {}
        """The version of each file that is at the target, by its path in the source. Moves need it."""
        self._ended_by: str | None = None
        """The code of the error after which nothing more is stored."""
        self._storing = anyio.Lock()
        self._streaming = anyio.CapacityLimiter(_STREAMS_AT_ONCE)
        self._sizes: dict[str, int] = {}
        """The size of each file that was stored, by its path in the source."""

    # --- planning ----------------------------------------------------------------------------------------------------

    async def plan(self, listing: TreeListing) -> None:
        """Look at the target, and choose the files to copy. What cannot be copied is told.

        Args:
            listing: The entries of the source.

        Raises:
            DeepFSError: The target cannot be listed.
        """
        if listing.omission is not None:
            self._fail(self._source.path, f"not all of it can be listed: {listing.omission.reason}")
        existing = await self._existing_entries()
        self._existing = {entry.path: entry for entry in existing.entries}
        blocked: set[str] = set()
        for entry in listing.entries:
            problem = None if paths.parent(entry.path) in blocked else self._problem(entry)
            if problem is not None:
                self._fail(entry.path, problem)
            if problem is not None or paths.parent(entry.path) in blocked:
                blocked.add(entry.path)
            else:
                self._entries.append(entry)
        self._files = await self._chosen([self._file(entry) for entry in self._entries if entry.kind == "file"])
        self._totals.planned_files += len(self._files)
        self._totals.planned_bytes += sum(file.size or 0 for file in self._files)

    async def _existing_entries(self) -> TreeListing:
        try:
            return await listed(self._target.backend, self._target.path)
        except DeepFSError:
            if self._terms.verify is Verify.READ:
                raise
            return TreeListing([])  # It may be a target that can be written and not read.

    def _at_target(self, path: str) -> str:
        return paths.join(self._target.path, paths.relative(path, self._source.path))

    def _problem(self, entry: TreeEntry) -> str | None:
        """Why an entry cannot be copied; None if it can."""
        if entry.kind == "link":
            return "it is a symbolic link, which is not followed"
        if entry.kind == "special":
            return "it is neither a file nor a directory"
        there = self._existing.get(self._at_target(entry.path))
        if there is None or there.kind == entry.kind or there.kind == "link":
            return None
        if entry.kind == "file":
            return "a directory cannot be replaced by a file"
        return "a file cannot be replaced by a directory"

    def _file(self, entry: TreeEntry) -> _File:
        target = self._at_target(entry.path)
        return _File(entry.path, target, entry.size, entry.mode, self._existing.get(target))

    async def _chosen(self, files: list[_File]) -> list[_File]:
        """The files that the terms do not leave out."""
        chosen = files
        if self._terms.no_clobber:
            chosen = [file for file in chosen if not file.exists]
        if self._terms.update:
            chosen = await self._newer(chosen)
        if self._terms.size_only:
            chosen = [file for file in chosen if not (file.exists and file.size == file.existing_size is not None)]
        self._totals.skipped += len(files) - len(chosen)
        return chosen

    async def _newer(self, files: list[_File]) -> list[_File]:
        """The files that are newer than what is at the target, or of which a time is unknown."""
        known = [file for file in files if file.exists]
        here = await modification_times(self._source.backend, _parents(file.path for file in known))
        there = await modification_times(self._target.backend, _parents(file.target for file in known))
        return [file for file in files if not file.exists or here.get(file.path, "~") > there.get(file.target, "")]

    # --- copying -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make the directories, copy the files, and set the modes.

        Raises:
            FullError: The target stores nothing more.
            DeepFSError: The target does not work.
        """
        modes = await self._make_directories()
        errors: list[Exception] = []
        batches = _batches(self._files)

        async def work() -> None:
            try:
                for batch in batches:
                    await self._copy(batch)
                    if self._ended_by is not None:
                        raise FullError(error_text(self._ended_by))
            except Exception as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(_BATCHES_AT_ONCE + _STREAMS_AT_ONCE - 1):
                tasks.start_soon(work)
        if errors:
            raise errors[0]
        if self._terms.verify is Verify.SIZE:
            await self._check_sizes()
        await self._change(modes)

    async def _copy(self, batch: list[_File]) -> None:
        if batch[0].cost >= _STREAMED_BYTES:
            async with self._streaming:
                await self._copy_stream(batch[0])
            return
        contents = await self._fetched(batch)
        equal = await self._equal({file: content for file, content in contents.items() if file.may_be_equal})
        stored = await self._stored({file: content for file, content in contents.items() if file not in equal})
        if self._terms.verify is Verify.READ and stored:
            same = await self._equal(stored)
            for file in stored.keys() - same:
                self._fail(file.path, f"what was stored at {self._shown_target(file)} differs from it", file)
            stored = {file: stored[file] for file in stored if file in same}
        await self._set_modes([*equal, *stored])
        for file, content in contents.items():
            if file in equal or file in stored:
                self._done(file, content, is_new=file in stored)

    def _done(self, file: _File, content: bytes, *, is_new: bool) -> None:
        if self._terms.moves:
            self._versions[file.path] = version(content)
        self._count(file, len(content), is_new=is_new)
        self._totals.passed_bytes += file.size or 0

    def _count(self, file: _File, size: int, *, is_new: bool) -> None:
        if is_new:
            self._sizes[file.path] = size
            self._totals.files += 1
            self._totals.bytes += size
        else:
            self._totals.skipped += 1

    async def _fetched(self, batch: list[_File]) -> dict[_File, bytes]:
        downloads = await self._source.backend.adownload_files([file.path for file in batch])
        contents: dict[_File, bytes] = {}
        for file, download in zip(batch, downloads, strict=True):
            if download.error is None:
                contents[file] = download.content or b""
            else:
                self._fail(file.path, error_text(download.error), file)
        return contents

    async def _equal(self, contents: dict[_File, bytes]) -> set[_File]:
        """The files whose content is what is at the target."""
        if not contents:
            return set()
        downloads = await self._target.backend.adownload_files([file.target for file in contents])
        return {
            file
            for (file, content), download in zip(contents.items(), downloads, strict=True)
            if download.error is None and (download.content or b"") == content
        }

    async def _stored(self, contents: dict[_File, bytes]) -> dict[_File, bytes]:
        """Store files; return those that were stored."""
        if not contents:
            return {}
        async with self._storing:
            uploads = [(file.target, content) for file, content in contents.items()]
            outcomes = await self._target.backend.aupload_files(uploads)
        stored: dict[_File, bytes] = {}
        for (file, content), outcome in zip(contents.items(), outcomes, strict=True):
            if outcome.error is None:
                stored[file] = content
            else:
                self._fail(file.path, f"{self._shown_target(file)}: {error_text(outcome.error)}", file)
        code = outcomes[-1].error
        if code == ErrorCode.QUOTA_EXCEEDED or (code in _ENDS_ALL and not stored):
            self._ended_by = code
        return stored

    # --- large files -------------------------------------------------------------------------------------------------

    async def _copy_stream(self, file: _File) -> None:
        if file.may_be_equal and file.existing_size is not None and await self._are_equal(file):
            await self._set_modes([file])
            self._count(file, file.size or 0, is_new=False)
            return
        hashed, sizes, failed = digest(), [0], list[DeepFSError]()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async with aclosing(self._source.backend.adownload_stream(file.path)) as stream:
                    async for chunk in stream:
                        hashed.update(chunk)
                        sizes[0] += len(chunk)
                        self._totals.passed_bytes += len(chunk)
                        yield chunk
            except DeepFSError as error:
                failed.append(error)
                raise

        outcome = await self._target.backend.aupload_stream(file.target, chunks())
        if failed:
            self._fail(file.path, error_text(failed[0].code), file)
        elif outcome.error is not None:
            self._fail(file.path, f"{self._shown_target(file)}: {error_text(outcome.error)}", file)
        elif self._terms.verify is Verify.READ and await self._digest_at_target(file) != hashed.hexdigest():
            self._fail(file.path, f"what was stored at {self._shown_target(file)} differs from it", file)
        else:
            await self._set_modes([file])
            self._versions[file.path] = hashed.hexdigest()
            self._count(file, sizes[0], is_new=True)
        if outcome.error in _ENDS_ALL and not failed:
            self._ended_by = outcome.error

    async def _are_equal(self, file: _File) -> bool:
        """Whether a large file is at the target already."""
        here = await _digest_of(self._source.backend, file.path)
        if here is None or here != await self._digest_at_target(file):
            return False
        self._versions[file.path] = here
        self._totals.passed_bytes += file.size or 0
        return True

    async def _digest_at_target(self, file: _File) -> str | None:
        return await _digest_of(self._target.backend, file.target)

    # --- directories and modes ---------------------------------------------------------------------------------------

    async def _make_directories(self) -> list[EntryChange]:
        """Make the directories, so that what is in a private one is private from the start.

        Returns:
            The changes that give directories their modes once they are full.
        """
        if self._entries[:1] and self._entries[0].kind != "directory":
            return []
        new = [entry for entry in directories_of(self._entries) if self._at_target(entry.path) not in self._existing]
        needed = {self._at_target(entry.path) for entry in empty_directories(self._entries)}
        changes = [
            EntryChange(
                self._at_target(entry.path), "make_directory", (entry.mode or 0) | _OWN_BITS if entry.mode else None
            )
            for entry in new
        ]
        lost = 0
        for change, outcome in zip(changes, await self._target.backend.achange_entries(changes), strict=True):
            if outcome.error == ErrorCode.UNSUPPORTED:
                lost += change.path in needed
            elif outcome.error not in (None, ErrorCode.ALREADY_EXISTS):
                shown = quoted(self._target.shown(change.path))
                self._tell(f"cannot create directory {shown}: {error_text(outcome.error)}")
        if lost:
            self._session.screen.note(
                f"deepfs {self._session.name}: empty directories the target cannot keep: {lost:,}"
            )
        return [
            EntryChange(self._at_target(entry.path), "set_mode", entry.mode)
            for entry in reversed(new)
            if entry.mode is not None and entry.mode & _OWN_BITS != _OWN_BITS
        ]

    async def _set_modes(self, files: Iterable[_File]) -> None:
        """Set the permission bits of files that are at the target."""
        await self._change([EntryChange(file.target, "set_mode", file.new_mode) for file in files if file.new_mode])

    async def _change(self, changes: Sequence[EntryChange]) -> None:
        if not changes:
            return
        for change, outcome in zip(changes, await self._target.backend.achange_entries(changes), strict=True):
            if outcome.error is not None:
                shown = quoted(self._target.shown(change.path))
                self._tell(f"the mode of {shown} could not be set: {error_text(outcome.error)}")

    async def _check_sizes(self) -> None:
        found = {entry.path: entry for entry in (await listed(self._target.backend, self._target.path)).entries}
        for file in self._files:
            size = self._sizes.get(file.path)
            if size is not None and (file.target not in found or found[file.target].size != size):
                self._fail(file.path, f"what was stored at {self._shown_target(file)} has another size")
                self._totals.files -= 1
                self._versions.pop(file.path, None)

    # --- deleting what was moved -------------------------------------------------------------------------------------

    def check_movable(self) -> None:
        """Check that no empty directory would be lost.

        Raises:
            NotSupportedError: The target keeps no empty directories, and the source has one.
        """
        empty = empty_directories(self._entries)
        if empty and not self._target.backend.capabilities.keeps_empty_directories:
            what = "it cannot be moved whole: the target keeps no empty directories. Nothing changed."
            raise NotSupportedError(self._source.shown(empty[0].path), what)

    async def delete_source(self) -> None:
        """Delete the files that are at the target and have not changed since, and the directories that are empty."""
        await gather_each(self._delete, list(self._versions), most=_CHANGES_AT_ONCE)
        directories = [entry.path for entry in directories_of(self._entries) if entry.path != "/"]
        changes = [EntryChange(path, "remove_directory") for path in sorted(directories, reverse=True)]
        if changes:
            await self._source.backend.achange_entries(changes)

    async def _delete(self, path: str) -> None:
        backend, copied = self._source.backend, self._versions[path]
        result = await backend.adelete(path, if_match=copied)
        if result.code is ErrorCode.UNSUPPORTED and await _digest_of(backend, path) == copied:
            # This storage cannot compare and delete in one step: a change between the two is lost.
            result = await backend.adelete(path)
        if not result.ok and result.code is not ErrorCode.FILE_NOT_FOUND:
            self._fail(path, f"it was copied but not deleted: {error_text(result.code)}")

    # --- errors ------------------------------------------------------------------------------------------------------

    def _shown_target(self, file: _File) -> str:
        return quoted(self._target.shown(file.target))

    def _fail(self, path: str, reason: str, file: _File | None = None) -> None:
        """Tell that something could not be copied."""
        if file is not None:
            self._totals.passed_bytes += file.size or 0
        verb = "move" if self._terms.moves else "copy"
        self._tell(f"cannot {verb} {quoted(self._source.shown(path))}: {reason}")

    def _tell(self, problem: str) -> None:
        self._totals.failed += 1
        self._session.status = max(self._session.status, 1)
        if self._totals.failed <= _MOST_TOLD:
            self._session.failed(problem)
        elif self._totals.failed == _MOST_TOLD + 1:
            self._session.failed("further errors are counted only")


def _parents(given: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(paths.parent, given)))


def _batches(files: Sequence[_File]) -> Iterator[list[_File]]:
    """The files in batches; each large file alone, and these first."""
    yield from ([file] for file in files if file.cost >= _STREAMED_BYTES)
    small = (file for file in files if file.cost < _STREAMED_BYTES)
    yield from batched(small, attrgetter("cost"), most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES)


async def _digest_of(backend: BackendProtocol, path: str) -> str | None:
    """The version of a file, read in parts; None if it cannot be read."""
    hashed = digest()
    try:
        async with aclosing(backend.adownload_stream(path)) as stream:
            async for chunk in stream:
                hashed.update(chunk)
    except DeepFSError:
        return None
    return hashed.hexdigest()
