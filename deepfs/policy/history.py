"""A history of files: their contents before each change."""

import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from logging import getLogger
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, as_backend, close_each
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
    error_class,
)
from deepfs.operations import Copy, Delete, Edit, ListTree, Move, Operation, UploadFiles, UploadStream, Write
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.places import HistoryPlaces, running_ids
from deepfs.policy.rules import FilesystemPermission
from deepfs.policy.undo import (
    UNKNOWN,
    Change,
    ChangeLog,
    FileChange,
    LoggedChange,
    Undo,
    UndoResult,
    combine,
    current_undo,
    new_record,
    oldest_changes,
    time_of,
)
from deepfs.policy.versions import (
    PRIVATE_FILE,
    SavedContent,
    Version,
    VersionFiles,
    keeping_error,
    oldest_versions,
)
from deepfs.sync import run_shielded
from deepfs.text import edits, paths
from deepfs.text.access import AccessScope, access_as, current_access, iterate_under, unchecked, without_access_check
from deepfs.text.arguments import check_integer, check_string
from deepfs.text.diff import unified_diff
from deepfs.text.entries import EntryChange, Omission, TreeListing, files_of, is_probing, join_omissions, use_file_mode
from deepfs.text.lines import decode, version
from deepfs.text.lines import digest as content_digest
from deepfs.threads.locks import path_locks
from deepfs.types import DeleteResult, FileUploadResponse, WriteResult, error_from, failed_item, failure, item_error

_log = getLogger("deepfs")


_NO_FILE = frozenset({"file_not_found", "is_directory", "not_a_directory", "invalid_path"})
_READABLE = frozenset({*_NO_FILE, "too_large"})
"""Errors of a read that do not mean that reading is forbidden."""
_OWN_BITS = 0o700
_ATTEMPTS = 100
"""How often a change is tried anew because another process changed the file after it was kept."""
_IN_PROGRESS = timedelta(hours=1)
"""How long a change may take, until what is kept for it may be deleted to make room."""
_NOT_RESTORED = "it could not be restored"
_CHANGED_MEANWHILE = frozenset({ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS})


class _Pending:
    """A change in progress: what is stored of it."""

    def __init__(self) -> None:
        self.saved: list[SavedContent] = []
        self.files: dict[str, FileChange] = {}
        """What it may do to each file."""
        self.record: str | None = None
        """The path of its record in the log."""
        self.change: LoggedChange | None = None


class HistoryBackend(WrapperBackend):
    """Keeps the content of files before each change that passes through it.

    It also keeps a log of the latest 1,000 changes and of the runs of graphs that made them, so that a run can be
    undone.

    A change that fails keeps nothing. A change whose version cannot be stored does not happen; only a deletion does
    where a quota has no room for the version, since it is the way out. The oldest versions and changes are deleted if
    that makes the room which a `QuotaBackend` over them lacks; not for what a stream stores.

    A version can be read if its path may be read through `inner` now, and restored if the path may be written,
    whichever object stored it. Reads of `versions` without this object are not subject to these rules.

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
    caller has versions of its own, also where `versions` is one storage for all of them. In a graph without a
    `thread_id`, a state and its versions are those of the run; without a `run_id` either, its changes are refused.

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
        self._places = HistoryPlaces(files, self._versions, self._directory)
        self._kept = VersionFiles(self._versions, keep)
        self._log = ChangeLog(self._versions)
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
        versions, _ = await self._kept.list(await self._place(path))
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
        versions, _ = await self._kept.list(place)
        for found, name in versions:
            if found.number == number:
                return await self._kept.fetch(place, name, named)
        raise NotFoundError(named)

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
            async with await self._hold([path]):
                mode = await self._kept.mode(await self._place(path), f"{number:08d}")
                code = await self._put_back(path, content, mode)
        except DeepFSError as error:
            return failure(WriteResult, error)
        return WriteResult(path=path) if code is None else failure(WriteResult, error_about(code, path, _NOT_RESTORED))

    async def _put_back(self, path: str, content: bytes, mode: int | None) -> str | None:
        """Store what the file at `path`, which is locked, once was; return the code of the error if that fails."""
        now = await self._mode(path)
        narrow = now if mode is None or now is None else now & (mode | _OWN_BITS)
        if narrow is not None and narrow != now:  # Before the content is there for others to read.
            await self.inner.achange_entries([EntryChange(path, "set_mode", narrow)])
        with use_file_mode(mode):
            (stored,) = await self._upload_held(UploadFiles([(path, content)]), {path: [path]})
        wanted = now if stored.error is not None else mode if now is None else narrow
        if wanted is not None and wanted != narrow:  # The umask may have left less; or nothing was stored.
            await self.inner.achange_entries([EntryChange(path, "set_mode", wanted)])
        return stored.error

    # --- undoing ---

    async def achanges(
        self, path: str | None = None, *, thread: str | None = None, run: str | None = None, limit: int = 20
    ) -> list[Change]:
        """List the latest changes, newest first.

        Each of their files is looked at, whether it may be read: others are left out.

        Args:
            path: A file; None is all.
            thread: The thread of the graph that made them; None is any.
            run: The run of the graph, or the undo, that made them; None is any.
            limit: The most changes to list.

        Returns:
            The changes that the log still has.

        Raises:
            ValueError: For a `limit` below 1.
            DeepFSError: The log cannot be read.
        """
        check_integer("limit", limit)
        if limit < 1:
            raise ValueError("limit must be positive")
        wanted = None if path is None else paths.normalize(path)
        found: list[Change] = []
        async with aclosing(self._log.read(await self._places.of_log(), run)) as changes:
            async for name, change in changes:
                if thread not in (None, change.thread) or wanted not in (None, *(file.path for file in change.files)):
                    continue
                if shown := [file.path for file in await self._own(change.files) if await self._is_readable(file.path)]:
                    found.append(Change(name, change.operation, shown, time_of(name), change.thread, change.run))
                if len(found) == limit:
                    break
        return found

    async def aundo(self, run: str | None = None, *, change: str | None = None, force: bool = False) -> UndoResult:
        """Bring the files of a run back to what they were before it. Files of other callers are left alone.

        Files that it made are deleted, and those that it deleted or moved are where they were. A file that somebody
        else changed during the run or since, also without this object, is left as it is, and named; a change that was
        taken back is not noticed. The undo is a run itself, and can be undone. If it is cancelled, or its process ends,
        a second call does the rest.

        What was moved stays in its new place if it cannot be brought back. Directories that are empty then may stay.
        Links are not undone: they are named as conflicts.

        Args:
            run: The id of a run of a graph, or of an undo, which `achanges` lists.
            change: The id of a single change, instead of a run.
            force: Whether files that others changed, too, are brought back. What they hold becomes a version.

        Returns:
            The id of the undo, the files that are as they were, and the conflicts.

        Raises:
            ValueError: Not one of `run` and `change` is given.
            NotFoundError: The log has no such change.
            PermissionDeniedError: One of the files may not be read; nothing is undone.
            DeepFSError: The log cannot be read.
        """
        if (run is None) == (change is None):
            raise ValueError("say which run, or which change, is to be undone")
        directory, changes = await self._places.of_log(), list[LoggedChange]()
        if change is not None:
            changes = [found for found in [await self._log.read_one(directory, change)] if found is not None]
        elif run is not None:
            async with aclosing(self._log.read(directory, run)) as logged:
                changes = [found async for _, found in logged]
        combined, interrupted = combine(reversed(changes))
        files = await self._own(combined)
        if not files:
            raise NotFoundError.because(None, "the history has no such change")
        if not all([await self._is_readable(file.path) for file in files]):
            raise PermissionDeniedError.because(None, "a rule forbids to read a part of what would be undone")
        result = UndoResult(str(uuid4()), [], {})
        left: dict[str | None, ErrorCode] = {}
        moved_to = {file.source: file.place for file in files}
        for file in _in_undo_order(files):
            code = left.get(file.source)  # What was moved here stays if it could not be brought back to where it was.
            if code is None:
                token = current_undo.set(Undo(result.run, moved_to.get(file.place)))
                try:
                    code = await self._undo(file, is_own=file.place not in interrupted, force=force)
                finally:
                    current_undo.reset(token)
            if code is None:
                result.paths.append(file.path)
            else:
                left[file.place] = result.conflicts[file.path] = code
        result.paths.sort()
        return result

    async def _undo(self, file: FileChange, *, is_own: bool, force: bool) -> ErrorCode | None:
        """Bring a file back; return why that was not done."""
        async with await self._hold([file.path]):
            now = await self._version_now(file.path)
            if now == file.before:
                return None
            place, is_known = await self._place(file.path), now != UNKNOWN
            if paths.name(place) != file.place or not (force or (is_own and is_known and now == file.after)):
                return ErrorCode.CONFLICT
            if file.before is None and await self._is_link(file.path):  # It was there before what it leads to.
                return ErrorCode.CONFLICT
            try:
                if file.before is None:
                    seen = now if is_known and self.inner.capabilities.atomic_between_processes else None
                    deleted: DeleteResult = await self._change_held(Delete(file.path, seen), [file.path])
                    return deleted.code
                if file.version is None:
                    return ErrorCode.FILE_NOT_FOUND
                content = await self._kept.fetch(place, file.version, file.path)
                await self._clear(file.path)
                mode = await self._kept.mode(place, file.version)
                code = await self._put_back(file.path, content, mode)
                return None if code is None else error_class(code).code
            except DeepFSError as error:
                return error.code

    async def _is_link(self, path: str) -> bool:
        real, above = await self.inner.aresolve_paths([path, paths.parent(path)])
        return real is not None and above is not None and real != paths.join(above, paths.name(path))

    async def _clear(self, path: str) -> None:
        """Remove the directories without files that are where a file was."""
        try:
            listing = await self.inner.alist_tree(path)
        except NotFoundError:
            return
        if listing.omission is None and all(entry.kind == "directory" for entry in listing.entries):
            below = sorted((entry.path for entry in listing.entries), reverse=True)
            await self.inner.achange_entries([EntryChange(each, "remove_directory") for each in below])

    async def _own(self, files: Sequence[FileChange]) -> list[FileChange]:
        """The files that this caller has at these paths."""
        callers = await self._places.callers([file.path for file in files])
        return [file for file, caller in zip(files, callers, strict=True) if file.caller == caller]

    async def _is_readable(self, path: str) -> bool:
        try:
            await self._check_readable(path)
        except PermissionDeniedError:
            return False
        return True

    # --- modes ---

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
            return await self._change_held(operation, touched)

    async def _change_held(self, operation: Write | Edit | Delete | Copy, touched: Sequence[str]) -> Any:
        has_room = False
        for _ in range(_ATTEMPTS):
            result = await self._try_change(operation, touched)
            if result is None:
                continue
            if has_room or result.ok or not await self._make_room_for(touched[-1], error_from(result)):
                return result
            has_room = True
        raise ConflictError(touched[0])

    async def _try_change(self, operation: Write | Edit | Delete | Copy, touched: Sequence[str]) -> Any:
        """Keep the files and make the change; None if another process changed a file in between, so nothing is done."""
        pending = _Pending()
        succeeded, surely_unchanged = False, False
        try:
            removes = isinstance(operation, Delete | Move)
            must_fit = not isinstance(operation, Delete) or current_undo.get() is not None
            content: bytes | None = None
            for place, path in enumerate(touched):
                with access_as("source" if removes and place == 0 else "target"):
                    content = await self._keep_tree(path, pending, deep=removes, must_fit=must_fit)
            if isinstance(operation, Copy):
                await self._note_arrivals(operation, pending)
            else:
                after = _version_after(operation, content)
                pending.files = {path: replace(file, after=after) for path, file in pending.files.items()}
            await self._record(operation.name, pending, must_fit=must_fit)
            pinned = self._pin(operation, touched, pending.saved)
            result = await super().run(pinned)
            surely_unchanged = pinned is not operation and result.code in _CHANGED_MEANWHILE
            succeeded = result.ok
            return None if surely_unchanged else result
        finally:
            done = dict.fromkeys((*pending.files, *(each.path for each in pending.saved)), succeeded)
            await self._settle(pending, done, surely_unchanged=surely_unchanged)

    @without_access_check
    async def _note_arrivals(self, operation: Copy, pending: _Pending) -> None:
        """Add the files that a copy or move makes. What is there already it leaves, or is locked and known."""
        try:
            src, dst = paths.normalize(operation.src), paths.normalize(operation.dst)
            arriving = {paths.join(dst, paths.relative(path, src)): path for path in await self._list_files(src)}
            there = {*await self._list_files(dst), *pending.files}
        except DeepFSError:  # The operation itself will fail, too.
            return
        made = [path for path in arriving if path not in there]
        for path, where in zip(made, await self._places.of(made), strict=True):
            pending.files[path] = FileChange(path, paths.name(where.directory), UNKNOWN, where.caller)
        if isinstance(operation, Move):
            files = dict(pending.files)
            for path, file in files.items():
                moved = files.get(arriving.get(path, ""))
                if moved is not None:
                    pending.files[path] = replace(file, after=moved.before, source=moved.place)
                elif path not in arriving:
                    pending.files[path] = replace(file, after=None)

    async def _list_files(self, path: str) -> list[str]:
        try:
            return [entry.path for entry in files_of((await self.alist_tree(path)).entries)]
        except NotFoundError:
            return []

    async def _record(self, operation: str, pending: _Pending, *, must_fit: bool = True) -> None:
        """Store in the log what is about to be changed, so that it is known even if this process ends now."""
        files = [file for file in pending.files.values() if file.after != file.before]
        if not files:
            return
        thread, run = running_ids()
        undo = current_undo.get()
        if undo is not None:
            operation, run = "undo", undo.run
            files = [replace(file, source=undo.source) for file in files]
        change = LoggedChange(operation, files, thread, run)
        with unchecked():
            pending.record, pending.change = new_record(await self._places.of_log(), run), change
            error = await self._log.store(pending.record, change)
            if error is not None and await self._make_room(error):
                error = await self._log.store(pending.record, change)
        if error is not None and (must_fit or error.code is not ErrorCode.QUOTA_EXCEEDED):
            raise keeping_error(files[0].path, error)

    def _pin(
        self, operation: Write | Edit | Delete | Copy, touched: Sequence[str], saved: Sequence[SavedContent]
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
        touched = {path: _normal_paths([path]) for path in operation.paths}
        normal = list(dict.fromkeys(path for each in touched.values() for path in each))
        async with await self._hold(normal):
            return await self._upload_held(operation, touched)

    async def _upload_held(
        self, operation: UploadFiles, touched: Mapping[str, Sequence[str]]
    ) -> list[FileUploadResponse]:
        """Upload to paths that are locked; `touched` has the normalised path of each, if there is one."""
        files, pending = operation.files, _Pending()
        done: dict[str, bool] = {}
        try:
            errors = {path: await self._try_keep(each, pending) for path, each in touched.items()}
            for given, content in files:  # Of two contents for one file, the later one counts.
                for path in touched[given] if errors[given] is None else ():
                    pending.files[path] = replace(pending.files[path], after=version(content))
            try:
                await self._record(operation.name, pending)
            except DeepFSError as error:
                errors = {path: errors[path] or (error if each else None) for path, each in touched.items()}
            passed = [file for file in files if errors[file[0]] is None]
            stored = iter(await self._upload_kept(passed) if passed else [])
            outcomes = [
                next(stored) if error is None else failed_item(FileUploadResponse, path, error)
                for path, error in ((path, errors[path]) for path, _ in files)
            ]
            results = [(path, outcome.error is None) for outcome, (path, _) in zip(outcomes, files, strict=True)]
            done = {path: ok for given, ok in results for path in touched[given]}
            return outcomes
        finally:
            await self._settle(pending, done)

    async def _upload_kept(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        outcomes = await self.inner.aupload_files(files)
        refused = next((each for each in outcomes if each.error == ErrorCode.QUOTA_EXCEEDED), None)
        if refused is not None and await self._make_room_for(refused.path, item_error(refused, "")):
            return await self.inner.aupload_files(files)
        return outcomes

    async def _upload_stream(self, operation: UploadStream) -> FileUploadResponse:
        path = paths.normalize(operation.path)
        async with await self._hold([path]):
            pending = _Pending()
            done = False
            try:
                with access_as("target"):
                    await self._keep_by_stream(path, pending)
                await self._record(operation.name, pending)
                outcome: FileUploadResponse = await self.inner.arun(operation)
                done = outcome.error is None
                return outcome
            finally:
                await self._settle(pending, {path: done})

    async def _keep_by_stream(self, path: str, pending: _Pending) -> None:
        """Store the file at `path`, of any size, and add it to `pending`.

        The file is read twice, because the name of a version includes the hash of its content.
        """
        digest = await self._hash_by_stream(path)
        if digest is None:
            with unchecked():
                await self._note(path, None, pending)
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
            await self._save(path, digest, copy, pending)
        if copied and copied[-1] != digest:
            last = pending.saved.pop()
            with unchecked():
                await run_shielded(partial(self._kept.forget, last))
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
            raise keeping_error(path, error) from error
        return content.version()

    async def _try_keep(self, touched: Sequence[str], pending: _Pending) -> DeepFSError | None:
        """Store the files before they are replaced; return the error if that fails."""
        try:
            for path in touched:
                with access_as("target"):
                    await self._keep_tree(path, pending, deep=False, must_fit=True)
        except DeepFSError as error:
            return error
        return None

    async def _keep_tree(self, path: str, pending: _Pending, *, deep: bool, must_fit: bool) -> bytes | None:
        """Store the file at `path`, with `deep` also the files beneath it, and add them to `pending`.

        Returns the content of the last one; None if there is none.

        Without `must_fit`, files for which a quota has no room are left out. The file at `path` is checked where it is
        read. What lies beneath it may be a link, which the operation does not follow.
        """
        access = current_access()
        content: bytes | None = None
        with unchecked():
            for each in await self._files_of(path) if deep else [path]:
                with AccessScope(access if each == path else None):
                    content = await self._current(each)
                if content is None:
                    await self._note(each, None, pending)
                    continue
                try:
                    await self._save(each, version(content), partial(self._put, content), pending)
                except QuotaExceededError:
                    if must_fit:
                        raise
                    await self._note(each, version(content), pending)
        return content

    async def _note(self, path: str, before: str | None, pending: _Pending) -> None:
        """Add a file of which no version is kept, since there is none, or no room for it."""
        [where] = await self._places.of([path])
        pending.files[path] = FileChange(path, paths.name(where.directory), UNKNOWN, where.caller, None, before)

    async def _put(self, content: bytes, file: str) -> FileUploadResponse:
        [stored] = await self._versions.aupload_files([(file, content)])
        return stored

    async def _settle(self, pending: _Pending, done: Mapping[str, bool], *, surely_unchanged: bool = False) -> None:
        """Delete what was stored of changes that did not happen; complete the others, and delete the oldest versions.

        With `surely_unchanged`, it is certain that none of them happened.
        """
        if pending.saved or pending.record is not None:
            await run_shielded(partial(self._settle_each, pending, done, surely_unchanged))

    @without_access_check
    async def _settle_each(self, pending: _Pending, done: Mapping[str, bool], surely_unchanged: bool) -> None:
        touched = {*pending.files, *(each.path for each in pending.saved)}
        known = {path for path, file in pending.files.items() if done.get(path) and file.after != UNKNOWN}
        now = {} if surely_unchanged else {path: await self._version_now(path) for path in touched - known}
        for each in pending.saved:
            # A change without a result may have happened, for example if it was cancelled.
            happened = done.get(each.path) or now.get(each.path, each.content_version) != each.content_version
            with _tidying():
                if happened and not surely_unchanged:
                    await self._kept.prune(each.place)
                else:
                    await self._kept.forget(each)
        if pending.record is not None and pending.change is not None:
            files = [
                file if file.path in known else replace(file, after=now.get(file.path, file.before))
                for file in ([] if surely_unchanged else pending.change.files)
            ]
            changed = [file for file in files if file.after != file.before]
            with _tidying():
                if not changed:
                    await self._log.forget(pending.record)
                elif changed != pending.change.files:
                    await self._log.replace(pending.record, replace(pending.change, files=changed))
                if pending.record.endswith("0"):  # One change in sixteen, since it takes a listing.
                    await self._log.prune(paths.parent(pending.record))

    async def _version_now(self, path: str) -> str | None:
        """The content version of the file; None if there is none, `UNKNOWN` if it cannot be read."""
        try:
            return await self._hash_by_stream(path)
        except Exception as error:
            if not isinstance(error, DeepFSError):
                _log.exception("it could not be looked up what became of a change")
            return UNKNOWN

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
        raise keeping_error(path, item_error(found, "it cannot be read"))

    async def _save(
        self,
        path: str,
        digest: str,
        store: Callable[[str], Awaitable[FileUploadResponse]],
        pending: _Pending,
    ) -> None:
        """Call `store` with a new path for this content."""
        for _ in range(2):  # There may be no room for the number, or for the content.
            try:
                return await self._try_save(path, digest, store, pending)
            except QuotaExceededError as error:
                if not await self._make_room(error):
                    raise
        return await self._try_save(path, digest, store, pending)

    async def _try_save(
        self,
        path: str,
        digest: str,
        store: Callable[[str], Awaitable[FileUploadResponse]],
        pending: _Pending,
    ) -> None:
        [where], mode = await self._places.of([path]), await self._mode(path)
        saved = await self._kept.claim(path, where.directory, mode, digest)
        # Appended before the call: if the result is lost, the file may have been stored all the same.
        pending.saved.append(saved)
        with use_file_mode(PRIVATE_FILE):
            stored = await store(paths.join(saved.place, saved.name))
        if stored.error == ErrorCode.QUOTA_EXCEEDED:
            pending.saved.pop()
            await run_shielded(partial(self._kept.forget, saved))
        if stored.error is not None:
            raise keeping_error(path, item_error(stored, "it cannot be stored"))
        pending.files[path] = FileChange(path, paths.name(saved.place), UNKNOWN, where.caller, saved.name, digest)

    async def _make_room_for(self, path: str, error: DeepFSError) -> bool:
        """`_make_room` for a file, if the versions lie in the same storage."""
        if self._versions is not self._beneath:
            return False
        place, kept = [await self._beneath.astorage_place(each) for each in (path, self._directory)]
        return place.storage == kept.storage and await self._make_room(error)

    @without_access_check
    async def _make_room(self, error: DeepFSError) -> bool:
        """Delete the oldest versions and changes if that makes the room that a quota lacked, else nothing.

        An undo makes none, since it needs them; nor does one caller delete what may be another one's.
        """
        if not isinstance(error, QuotaExceededError) or error.size is None or error.limit is None:
            return False
        if current_undo.get() is not None or not await self._places.are_of_one_caller():
            return False
        entries = [each for each in (await self._versions.alist_tree(self._directory)).entries if each.kind == "file"]
        settled = f"{datetime.now(UTC) - _IN_PROGRESS:%Y%m%dT%H%M%S.%fZ}"
        old = sorted([*oldest_versions(entries, settled), *oldest_changes(entries, settled, running_ids()[1])])
        lacking, deleted = error.size - error.limit, list[str]()
        for each in old:
            if lacking <= 0:
                break
            deleted += each.paths
            lacking -= each.size if error.unit == "bytes" else len(each.paths)
        if lacking > 0:
            return False
        for path in deleted:
            await self._versions.adelete(path)
        return True

    async def _place(self, path: str) -> str:
        """The directory of the versions of a file."""
        [where] = await self._places.of([paths.normalize(path)])
        return where.directory


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


def _in_undo_order(files: Sequence[FileChange]) -> list[FileChange]:
    """What is in the way of others first, and what was moved after the place from where it was moved."""
    restored = {file.path for file in files if file.before is not None}
    above = {directory for path in restored for directory in paths.ancestors(path)}

    def turn(file: FileChange) -> int:
        if file.before is not None:
            return 1 if file.source is None else 2
        return 0 if file.path in above or not restored.isdisjoint(paths.ancestors(file.path)) else 3

    return sorted(files, key=turn)


def _version_after(operation: Write | Edit | Delete, content: bytes | None) -> str | None:
    """The content version that a change makes of `content`; None if it deletes the file, `UNKNOWN` if it must fail."""
    match operation:
        case Write():
            return version(operation.content)
        case Delete():
            return None
    text = None if content is None else decode(content)
    try:
        edited = None if text is None else edits.replace(operation.path, text, *operation.args[1:])
    except DeepFSError:
        return UNKNOWN
    return UNKNOWN if edited is None else version(edited.content)


@contextmanager
def _tidying() -> Iterator[None]:
    try:
        yield
    except Exception:
        # The change itself is over; at worst an unneeded version stays.
        _log.exception("the history of a file could not be tidied up")


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
