"""A history of files: their contents before each change."""

import re
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from logging import getLogger
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.protocol import (
    BackendProtocol,
    StoragePlace,
    as_backend,
    caller_places,
    close_each,
    parts_by_caller,
    parts_of,
)
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import (
    BackendError,
    ConflictError,
    DeepFSError,
    ErrorCode,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    error_about,
)
from deepfs.operations import Copy, Delete, Edit, ListTree, Move, Operation, UploadFiles, UploadStream, Write
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemPermission
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.access import AccessScope, access_as, current_access, iterate_under, unchecked, without_access_check
from deepfs.text.arguments import check_integer, check_string
from deepfs.text.diff import unified_diff
from deepfs.text.entries import EntryChange, Omission, TreeListing, files_of, is_probing, join_omissions, use_file_mode
from deepfs.text.lines import digest as content_digest
from deepfs.text.lines import version
from deepfs.threads.locks import path_locks
from deepfs.types import FileUploadResponse, WriteResult, error_from, failure

_log = getLogger("deepfs")


class RunningIds(NamedTuple):
    """The ids of the running graph; None where there is none, or it has none."""

    thread: str | None = None
    run: str | None = None


def running_ids() -> RunningIds:
    """The ids of the graph whose task runs here."""
    if "langgraph.config" not in sys.modules:  # Importing LangGraph takes a second, and without it no graph runs.
        return RunningIds()
    from deepfs._langgraph.private import current_ids

    return RunningIds(*current_ids())


_NO_FILE = frozenset({"file_not_found", "is_directory", "not_a_directory", "invalid_path"})
_READABLE = frozenset({*_NO_FILE, "too_large"})
"""Errors of a read that do not mean that reading is forbidden."""
_PRIVATE_FILE, _PRIVATE_DIRECTORY = 0o600, 0o700
_OWN_BITS = 0o700
_ATTEMPTS = 100
"""How often a change is tried anew because another process changed the file after it was kept."""
_NO_MODE = "none"
_CHANGED_MEANWHILE = frozenset({ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS})
_is_mode = re.compile("[0-7]{1,4}").fullmatch
_is_number = re.compile(r"[0-9]{8,18}").fullmatch
_parsed = re.compile(r"(?P<number>\d{8,})-(?P<at>\d{8}T\d{6}\.\d{6}Z)-(?P<digest>[0-9a-f]{32})").fullmatch


class Version(Struct, frozen=True):
    """The content of a file until a change."""

    number: int
    """Counts up from 1 for each path."""
    saved_at: str
    """When this content was replaced or deleted: ISO 8601, UTC."""
    size: int | None = None
    """Bytes."""


class _SavedContent(NamedTuple):
    """The content of a file, stored in the directory `place` before a change; it is deleted if the change fails."""

    path: str
    place: str
    number: int
    name: str
    content_version: str
    is_streamed: bool
    """The content may be too large for memory, so it is compared in chunks."""


class HistoryBackend(WrapperBackend):
    """Keeps the content of files before each change that passes through it.

    A change that fails keeps nothing. A change whose version cannot be stored does not happen; only a deletion does
    where a quota has no room for the version, since it is the way out. A version can be read if its path may be read
    through `inner` now, and restored if the path may be written, whichever object stored it. Reads of `versions`
    without this object are not subject to these rules.

    Deleted and moved files can be restored at the path that they had. Versions are private to the owner of the storage,
    and a restored file is open to no more accounts than its version was.

    Changes of one path, through any object of this process over the same storage of versions, run one after another, so
    no version is missed. Processes may share both storages if these are `atomic_between_processes`: then writes, edits
    and deletions of single files miss no version either. Uploads, copies and moves over a file, and deletions of
    directories, may miss what another process stores at that very moment.

    Changes made without this object create no version; the content that they leave is kept at the next change through
    it. Commands (`execute`) create none either. A file over the limits of `inner` can only be replaced by
    `aupload_stream`, which keeps a file of any size in chunks; such a version is listed and stored in `versions`, but
    it is too large for `aread_version` and `arestore`.

    Where a factory chooses by the caller where files lie, or threads have files of their own (`StateBackend`), each
    caller has versions of its own, also where `versions` is one storage for all of them.

    Args:
        inner: The backend.
        versions: The backend that stores the versions; None is `inner`, where `directory` is then hidden and cannot be
            changed through this object.
        directory: The directory in `versions` that holds them.
        keep: How many versions of each path are kept; older ones are deleted.

    Raises:
        ValueError: For a `keep` below 1, for `directory="/"` without `versions`, and where a factory makes `inner` or a
            part of it: which callers share files is not known then.
        TypeError: For an argument of another type.
    """

    is_synchronous: bool = True
    _shown = ("_beneath", "directory=_directory")

    def __init__(
        self,
        inner: BackendProtocol,
        versions: BackendProtocol | None = None,
        directory: str = "/.history",
        *,
        keep: int = 100,
    ) -> None:
        check_integer("keep", keep)
        check_string("directory", directory)
        if keep < 1:
            raise ValueError("keep at least one version")
        self._directory = paths.normalize(directory)
        if self._directory == "/" and versions is None:
            raise ValueError("the versions need a directory of their own")
        files = as_backend(inner)
        super().__init__(files if versions is not None else _without(files, self._directory))
        self._beneath = files
        self._versions = files if versions is None else as_backend(versions)
        if any(part._chosen_by_caller == "backend" for part in parts_by_caller(files)):
            raise ValueError(
                "a factory makes backends, so versions of several callers could lie in one place: "
                "let the factory make the history, or give each backend a factory for its namespace"
            )
        self._keep = keep
        self.is_synchronous = self.is_synchronous and self._versions.is_synchronous

    def bound_to_this_thread(self) -> bool:
        return super().bound_to_this_thread() or self._versions.bound_to_this_thread()

    async def aclose(self) -> None:
        await close_each([self._beneath, self._versions])

    # --- looking back ---

    async def ahistory(self, path: str) -> list[Version]:
        """List the versions of a file, oldest first.

        Args:
            path: The file. It need not exist any more.

        Returns:
            The versions; none if the file never changed.

        Raises:
            PermissionDeniedError: The path may not be read.
        """
        await self._check_readable(path)
        versions, _ = await self._list_versions(await self._place(path))
        return [found for found, _ in versions]

    async def aread_version(self, path: str, number: int) -> bytes:
        """Read what a file contained.

        Args:
            path: The file. It need not exist any more.
            number: The number of the version.

        Raises:
            NotFoundError: The version is not kept.
            PermissionDeniedError: The path may not be read.
            BackendError: The version cannot be read, or is not what was stored.
        """
        await self._check_readable(path)
        place = await self._place(path)
        named = f"{paths.normalize(path)} (version {number})"
        versions, _ = await self._list_versions(place)
        for found, name in versions:
            if found.number == number:
                return await self._fetch_version(paths.join(place, name), named)
        raise NotFoundError(named)

    async def _fetch_version(self, file: str, named: str) -> bytes:
        (stored,) = await self._versions.adownload_files([file])
        if stored.error == ErrorCode.FILE_NOT_FOUND:
            raise NotFoundError(named)
        if stored.content is None or not file.endswith(version(stored.content)):
            raise BackendError(named, f"it cannot be read: {stored.error or 'it was changed'}")
        return stored.content

    async def _check_readable(self, path: str) -> None:
        """Raise if the rules of `inner` forbid reading `path` now; they may differ from those when it was stored."""
        read = await self.inner.aread(path, 0, 1)
        if read.ok or read.code in _READABLE:
            return
        if read.code is ErrorCode.PERMISSION_DENIED:
            raise error_from(read)
        raise BackendError.because(None, "{cause}", cause=error_from(read))

    async def adiff(self, path: str, number: int, other: int | None = None) -> str:
        """Compare a version with another one, or with the file as it is.

        Args:
            path: The file. A missing file counts as empty.
            number: The number of the version.
            other: The number of the version to compare with; None is the present file.

        Returns:
            The unified diff; empty if both are the same. Binary content is reported, not shown.

        Raises:
            DeepFSError: As `aread_version`.
        """
        path = paths.normalize(path)
        before = await self.aread_version(path, number)
        after = (await self._current(path) or b"") if other is None else await self.aread_version(path, other)
        label = f"{path} (version {other})" if other is not None else path
        return unified_diff(before, after, f"{path} (version {number})", label)

    async def arestore(self, path: str, number: int) -> WriteResult:
        """Give a file the content of a version, also if it was deleted. Its present content becomes a version.

        Args:
            path: The file.
            number: The number of the version.

        Returns:
            The path. Errors: those of `aread_version` and of `awrite`.
        """
        path = paths.normalize(path)
        try:
            content = await self.aread_version(path, number)
        except DeepFSError as error:
            return failure(WriteResult, error)
        mode, now = await self._mode_of_version(path, number), await self._mode(path)
        if mode is not None and now is not None and (narrow := now & (mode | _OWN_BITS)) != now:
            await self.inner.achange_entries([EntryChange(path, "set_mode", narrow)])
        with use_file_mode(mode):
            (stored,) = await self.aupload_files([(path, content)])
        if stored.error is not None:
            return failure(WriteResult, error_about(stored.error, path, "it could not be restored"))
        if mode is not None and now is None:  # The umask may have left less than that.
            await self.inner.achange_entries([EntryChange(path, "set_mode", mode)])
        return WriteResult(path=path)

    @without_access_check
    async def _mode(self, path: str) -> int | None:
        """The permission bits of the file at `path`, if there is a file that has any."""
        [real] = await self.inner.aresolve_paths([path])
        if real is None:
            return None
        try:
            entry = (await self.inner.alist_tree(real)).entries[0]
        except NotFoundError:
            return None
        return entry.mode if entry.kind == "file" else None

    @without_access_check
    async def _mode_of_version(self, path: str, number: int) -> int | None:
        read = await self._versions.aread(paths.join(await self._place(path), f"{number:08d}"))
        text = read.file_data.content if read.file_data is not None else ""
        return int(text, 8) if _is_mode(text) else None

    # --- keeping ---

    async def run(self, operation: Operation) -> Any:
        match operation:
            case ListTree():
                return await self._list_tree(operation)
            case UploadFiles():
                return await self._upload(operation)
            case UploadStream():
                return await self._upload_stream(operation)
            case Write() | Edit() | Delete() | Copy() if not is_probing.get():
                return await self._change(operation)
        return await super().run(operation)

    async def _list_tree(self, operation: ListTree) -> Any:
        """List without the versions. A tree to be deleted that contains them has an omission: it is not deleted."""
        if self._versions is not self._beneath or _is_in(paths.normalize(operation.path), self._directory):
            return await super().run(operation)
        listing: TreeListing = await self._beneath.arun(operation)
        shown = [entry for entry in listing.entries if not _is_in(entry.path, self._directory)]
        reason = Omission(1, ErrorCode.PERMISSION_DENIED, "the history lies in it")
        omission = reason if operation.deleting and len(shown) < len(listing.entries) else None
        return TreeListing(shown, join_omissions(omission, listing.omission))

    async def _change(self, operation: Write | Edit | Delete | Copy) -> Any:
        touched = _normal_paths(operation.changed_paths)
        if not touched:
            return await super().run(operation)
        async with await self._hold(touched):
            for _ in range(_ATTEMPTS):
                result = await self._try_change(operation, touched)
                if result is not None:
                    return result
        raise ConflictError(touched[0])

    async def _try_change(self, operation: Write | Edit | Delete | Copy, touched: Sequence[str]) -> Any:
        """Keep the files and make the change; None if another process changed a file in between, so nothing is done."""
        saved: list[_SavedContent] = []
        succeeded, surely_unchanged = False, False
        try:
            removes = isinstance(operation, Delete | Move)
            for place, path in enumerate(touched):
                with access_as("source" if removes and place == 0 else "target"):
                    await self._keep_tree(path, saved, deep=removes, must_fit=not isinstance(operation, Delete))
            pinned = self._pin(operation, touched, saved)
            result = await super().run(pinned)
            surely_unchanged = pinned is not operation and result.code in _CHANGED_MEANWHILE
            succeeded = result.ok
            return None if surely_unchanged else result
        finally:
            await self._settle(saved, {each.path: succeeded for each in saved}, surely_unchanged=surely_unchanged)

    def _pin(
        self, operation: Write | Edit | Delete | Copy, touched: Sequence[str], saved: Sequence[_SavedContent]
    ) -> Operation:
        """The change, which, if it is a single step, replaces just what was saved, whatever others do."""
        if isinstance(operation, Copy) or operation.if_match is not None:
            return operation
        if not self.inner.capabilities.atomic_between_processes:
            return operation
        if saved:
            # What lies in a directory that is deleted has no common version.
            return replace(operation, if_match=saved[0].content_version) if saved[0].path == touched[0] else operation
        is_overwriting = isinstance(operation, Write) and operation.overwrite
        return replace(operation, overwrite=False) if is_overwriting else operation

    async def _hold(self, touched: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """Lock files against changes through all histories that have their versions in the same storage."""
        scope = await self._versions.astorage_place(self._directory)
        ends = [await self.inner.astorage_place(path) for path in touched]
        keys = frozenset[Hashable]([await self._place(path) for path in touched]).union(*(end.keys for end in ends))
        above = frozenset[Hashable]().union(*(end.above for end in ends))
        return path_locks(("history", scope.keys)).hold_places(keys, above - keys)

    async def _upload(self, operation: UploadFiles) -> list[FileUploadResponse]:
        files = operation.files
        touched = {path: _normal_paths([path]) for path in operation.paths}
        normal = list(dict.fromkeys(path for each in touched.values() for path in each))
        async with await self._hold(normal):
            saved: list[_SavedContent] = []
            done: dict[str, bool] = {}
            try:
                codes = {path: await self._try_keep(each, saved) for path, each in touched.items()}
                stored = iter(await self.inner.aupload_files([file for file in files if codes[file[0]] is None]))
                outcomes = [
                    next(stored) if code is None else FileUploadResponse(path, code)
                    for path, code in ((path, codes[path]) for path, _ in files)
                ]
                results = [(path, outcome.error is None) for outcome, (path, _) in zip(outcomes, files, strict=True)]
                done = {path: ok for given, ok in results for path in touched[given]}
                return outcomes
            finally:
                await self._settle(saved, done)

    async def _upload_stream(self, operation: UploadStream) -> FileUploadResponse:
        path = paths.normalize(operation.path)
        async with await self._hold([path]):
            saved: list[_SavedContent] = []
            done = False
            try:
                with access_as("target"):
                    await self._keep_by_stream(path, saved)
                outcome: FileUploadResponse = await self.inner.arun(operation)
                done = outcome.error is None
                return outcome
            finally:
                await self._settle(saved, {path: done})

    async def _keep_by_stream(self, path: str, saved: list[_SavedContent]) -> None:
        """Store the file at `path`, of any size, and add it to `saved`.

        The file is read twice, because the name of a version includes the hash of its content.
        """
        digest = await self._hash_by_stream(path)
        if digest is None:
            return
        copied: list[str] = []
        access = current_access()

        async def copy(file: str) -> FileUploadResponse:
            content = _Digest()
            async with aclosing(self.inner.adownload_stream(path)) as chunks:
                stored = await self._versions.aupload_stream(file, content.pass_on(iterate_under(access, chunks)))
            copied.append(content.version())
            return stored

        with unchecked():
            await self._save(path, digest, copy, saved, is_streamed=True)
        if copied and copied != [digest]:
            last = saved.pop()
            with unchecked():
                await run_shielded(partial(self._forget, last.place, last.number, last.name))
            raise ConflictError(path)

    async def _hash_by_stream(self, path: str) -> str | None:
        """The content version of the file, read in chunks; None if there is no file."""
        content = _Digest()
        try:
            async with aclosing(self.inner.adownload_stream(path)) as chunks:
                async for _ in content.pass_on(chunks):
                    pass
        except DeepFSError as error:
            if error.code in _NO_FILE:
                return None
            if error.code is ErrorCode.PERMISSION_DENIED:
                raise
            raise _keeping_error(path, error.code) from error
        return content.version()

    async def _try_keep(self, touched: list[str], saved: list[_SavedContent]) -> str | None:
        """Store the files before they are replaced; return the error code if that fails."""
        try:
            for path in touched:
                with access_as("target"):
                    await self._keep_tree(path, saved, deep=False, must_fit=True)
        except DeepFSError as error:
            return error.code.value
        return None

    async def _keep_tree(self, path: str, saved: list[_SavedContent], *, deep: bool, must_fit: bool) -> None:
        """Store the file at `path`, with `deep` also the files beneath it, and add them to `saved`.

        Without `must_fit`, files for which a quota has no room are left out. The file at `path` is checked where it is
        read. What lies beneath it may be a link, which the operation does not follow.
        """
        access = current_access()
        with unchecked():
            for each in await self._files_of(path) if deep else [path]:
                with AccessScope(access if each == path else None):
                    content = await self._current(each)
                if content is None:
                    continue
                try:
                    await self._save(each, version(content), partial(self._put, content), saved)
                except QuotaExceededError:
                    if must_fit:
                        raise

    async def _put(self, content: bytes, file: str) -> FileUploadResponse:
        [stored] = await self._versions.aupload_files([(file, content)])
        return stored

    async def _settle(
        self, saved: list[_SavedContent], done: dict[str, bool], *, surely_unchanged: bool = False
    ) -> None:
        """Delete the stored content of changes that did not happen; after the others, delete the oldest versions.

        With `surely_unchanged`, it is certain that none of them happened.
        """
        if saved:
            await run_shielded(partial(self._settle_each, saved, done, surely_unchanged))

    @without_access_check
    async def _settle_each(self, saved: list[_SavedContent], done: dict[str, bool], surely_unchanged: bool) -> None:
        for each in saved:
            try:
                if not surely_unchanged and (done.get(each.path) or await self._has_changed(each)):
                    await self._prune(each.place)
                else:
                    await self._forget(each.place, each.number, each.name)
            except Exception:
                # The change itself is over; at worst an unneeded version stays.
                _log.exception("the history of a file could not be tidied up")

    async def _has_changed(self, saved: _SavedContent) -> bool:
        """Whether the file differs from the stored content, or cannot be read.

        A change without a result may have happened, for example if it was cancelled.
        """
        try:
            if saved.is_streamed:
                return await self._hash_by_stream(saved.path) != saved.content_version
            content = await self._current(saved.path)
        except DeepFSError:
            return True
        return content is None or version(content) != saved.content_version

    async def _files_of(self, path: str) -> list[str]:
        """The files at or under `path`. Raises if some are not listed, since these could not be saved."""
        try:
            listing = await self.alist_tree(path)
        except NotFoundError:
            return []
        if listing.omission is not None:
            reason = listing.omission.reason
            raise error_about(listing.omission.code, path, f"it cannot be kept in the history: {reason}")
        # A link that leads nowhere, perhaps to itself, has no content.
        return [entry.path for entry in files_of(listing.entries) if entry.kind != "link" or entry.leads_to]

    async def _current(self, path: str) -> bytes | None:
        """The content of the file; None if there is no file."""
        (found,) = await self.inner.adownload_files([path])
        if found.error is None or found.error in _NO_FILE:
            return found.content
        if found.error == ErrorCode.PERMISSION_DENIED:
            read = await self.inner.aread(path, 0, 1)  # Its error names the rule, and that of a download is but a code.
            if read.code is ErrorCode.PERMISSION_DENIED:
                raise error_from(read)
            raise PermissionDeniedError(path, "it cannot be kept in the history")
        raise _keeping_error(path, found.error)

    async def _save(
        self,
        path: str,
        digest: str,
        store: Callable[[str], Awaitable[FileUploadResponse]],
        saved: list[_SavedContent],
        *,
        is_streamed: bool = False,
    ) -> None:
        """Call `store` with a new path for this content.

        The number of the version is that of a file, which holds the mode, and which only one process can create.
        """
        place, mode = await self._place(path), await self._mode(path)
        versions, claims = await self._list_versions(place)
        numbers = {*claims, *(found.number for found, _ in versions)}
        if not numbers:
            private = [EntryChange(each, "make_directory", _PRIVATE_DIRECTORY) for each in (self._directory, place)]
            await self._versions.achange_entries(private)
        number = max(numbers, default=0) + 1
        with use_file_mode(_PRIVATE_FILE):
            while not (
                claimed := await self._versions.awrite(
                    paths.join(place, f"{number:08d}"), f"{mode:o}" if mode is not None else _NO_MODE
                )
            ).ok:
                if claimed.code is not ErrorCode.ALREADY_EXISTS:
                    raise _not_kept(path, claimed.code, claimed.error)
                number += 1
            name = f"{number:08d}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{digest}"
            # Appended before the call: if the result is lost, the file may have been stored all the same.
            saved.append(_SavedContent(path, place, number, name, digest, is_streamed))
            stored = await store(paths.join(place, name))
        if stored.error == ErrorCode.QUOTA_EXCEEDED:
            await run_shielded(partial(self._forget, *saved.pop()[1:4]))
        if stored.error is not None:
            raise _not_kept(path, stored.error, stored.error)

    async def _prune(self, place: str) -> None:
        versions, claims = await self._list_versions(place)
        if len(versions) > self._keep:
            oldest = versions[-self._keep][0].number
            old = [name for _, name in versions[: -self._keep]]
            for name in [*old, *(f"{number:08d}" for number in claims if number < oldest)]:
                await self._versions.adelete(paths.join(place, name))

    async def _forget(self, place: str, number: int, name: str) -> None:
        """Delete a version, and then the file that claims its number."""
        for each in (name, f"{number:08d}"):
            await self._versions.adelete(paths.join(place, each))

    async def _place(self, path: str) -> str:
        """The directory of the versions of a file, the same for all links to it, and another one for each caller."""
        (real,) = await self.inner.aresolve_paths([path := paths.normalize(path)])
        caller = await self._caller(path)
        named = real or path if caller is None else f"{caller}\0{real or path}"  # No path holds NUL.
        return paths.join(self._directory, blake2b(named.encode(), digest_size=16).hexdigest())

    async def _caller(self, path: str) -> str | None:
        """What tells apart callers for whom other files are at `path`, but versions in one place; None if none are."""
        parts = [part for part in parts_of(self._beneath) if isinstance(part, BackendProtocol)]
        if not any(part._is_by_thread or part._chosen_by_caller for part in parts):
            return None
        place, kept = await self.inner.astorage_place(path), await self._versions.astorage_place(self._directory)
        roots = [(part, root) for part in parts if (root := await _root(part)) is not None]
        # A layer may not say where the path lies: then it may be in any part.
        holding = [each for each in roots if _holds(each[1], place)] or roots
        apart = [part for part, root in holding if not _holds(root, kept)]
        thread = [running_ids().thread] if any(part._is_by_thread for part in apart) else []
        callers = [*caller_places(part for part in apart if part._chosen_by_caller), *thread]
        return repr(callers) if callers else None

    async def _list_versions(self, place: str) -> tuple[list[tuple[Version, str]], list[int]]:
        """The versions in the directory `place`, each with its file name, oldest first; and the numbers taken."""
        listing = await self._versions.als(place)
        if listing.entries is None and listing.code is not ErrorCode.FILE_NOT_FOUND:
            raise BackendError(None, f"The history could not be read: {listing.error}")
        found, claims = [], []
        for info in listing.entries or ():
            name = paths.name(info.path)
            if parsed := _version_in(name, info.size):
                found.append((parsed, name))
            elif _is_number(name):
                claims.append(int(name))
        return sorted(found, key=lambda each: each[0].number), claims


class _Digest:
    """Computes the content version of a stream of chunks."""

    def __init__(self) -> None:
        self._digest = content_digest()

    async def pass_on(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            self._digest.update(chunk)
            yield chunk

    def version(self) -> str:
        return self._digest.hexdigest()


def _version_in(name: str, size: int | None) -> Version | None:
    """The version that a file with this name holds; None for the names that are not made here."""
    if parsed := _parsed(name):
        with suppress(ValueError):  # There is no such day.
            # `strptime` has a lock, which a forked child may find taken for ever.
            at = datetime.fromisoformat(parsed["at"]).isoformat(timespec="microseconds")
            return Version(int(parsed["number"]), at, size)
    return None


def _keeping_error(path: str, code: str) -> DeepFSError:
    return BackendError(path, f"it could not be kept in the history: {code}")


def _not_kept(path: str, code: str | None, told: str | None) -> DeepFSError:
    """Why a version was not stored: where a quota is used up, that is the condition of the change as well."""
    if code == ErrorCode.QUOTA_EXCEEDED:
        return error_about(ErrorCode.QUOTA_EXCEEDED, path, "there is no room for what it was")
    return BackendError(path, f"it could not be kept in the history: {told}")


async def _root(part: BackendProtocol) -> StoragePlace | None:
    try:
        return await part.astorage_place("/")
    except DeepFSError:  # Its factory has no place for this caller, so no file of the caller is in it.
        return None


def _holds(root: StoragePlace, place: StoragePlace) -> bool:
    return not root.keys.isdisjoint(place.keys | place.above)


def _is_in(path: str, directory: str) -> bool:
    return path == directory or paths.is_beneath(path, directory)


def _without(inner: BackendProtocol, directory: str) -> BackendProtocol:
    pattern = re.sub(r"([*?\[\]{},!\\])", r"\\\1", directory)
    return PermissionedBackend(inner, [FilesystemPermission(["read", "write"], [f"{pattern}/**"], "deny")])


def _normal_paths(named: Iterable[str]) -> list[str]:
    """The normalised paths, each once. Invalid paths are left out: the operation itself refuses them."""
    touched = []
    for path in named:
        with suppress(DeepFSError):
            touched.append(paths.normalize(path))
    return list(dict.fromkeys(touched))
