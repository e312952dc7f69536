"""A history of files: their contents before each change."""

from collections.abc import Sequence
from contextlib import aclosing
from uuid import uuid4

from deepfs.errors import DeepFSError, ErrorCode, NotFoundError, PermissionDeniedError, error_about, error_class
from deepfs.operations import Delete, UploadFiles
from deepfs.policy.archive import (
    UNKNOWN,
    Change,
    FileChange,
    LoggedChange,
    Undo,
    UndoResult,
    Version,
    combine,
    current_undo,
    storage_error,
    time_of,
)
from deepfs.policy.keeping import NO_FILE, KeepingBackend
from deepfs.text import paths
from deepfs.text.arguments import check_integer
from deepfs.text.diff import unified_diff
from deepfs.text.entries import EntryChange, use_file_mode
from deepfs.types import DeleteResult, WriteResult, error_from, failure

_READABLE = frozenset({*NO_FILE, "too_large"})
"""Errors of a read that do not mean that reading is forbidden."""
_OWN_BITS = 0o700
_NOT_RESTORED = "it could not be restored"


class HistoryBackend(KeepingBackend):
    """Keeps the content of files before each change that passes through it.

    It also keeps a log of the latest 1,000 changes and of the runs of graphs that made them, so that a run can be
    undone.

    A change that fails keeps nothing. A change whose version cannot be stored does not happen; only a deletion does
    where a quota has no room for the version, since it is the way out; `aforget` makes room.

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
            DeadlineError: The storage did not answer in time.
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
        raise storage_error(None, "{cause}", error_from(read))

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
            async with await self._hold([path]):  # No version is pruned before its mode is known.
                content = await self.aread_version(path, number)
                mode = await self._kept.mode(await self._place(path), f"{number:08d}")
                code = await self._put_back(path, content, mode)
        except DeepFSError as error:
            return failure(WriteResult, error)
        return WriteResult(path=path) if code is None else failure(WriteResult, error_about(code, path, _NOT_RESTORED))

    async def aforget(self, path: str, *, keep: int = 0) -> int:
        """Delete the versions of a file: to make room under a quota, or since they hold what must not be kept.

        The file itself stays as it is. An undo that needs one of them says `file_not_found` then.

        Args:
            path: The file. It need not exist any more.
            keep: How many of the latest versions stay.

        Returns:
            How many were deleted.

        Raises:
            ValueError: For a negative `keep`.
            PermissionDeniedError: The path may not be read.
            DeepFSError: The versions cannot be listed.
        """
        check_integer("keep", keep)
        if keep < 0:
            raise ValueError("keep must not be negative")
        await self._check_readable(path)
        path = paths.normalize(path)
        async with await self._hold([path]):
            return await self._kept.prune(await self._place(path), keep)

    async def _put_back(self, path: str, content: bytes, mode: int | None) -> str | None:
        """Store what the file at `path`, which is locked, once was; return the code of the error if that fails."""
        now = await self._mode(path)
        narrow = now if mode is None or now is None else now & (mode | _OWN_BITS)
        if narrow is not None and narrow != now:  # Before the content is there for others to read.
            await self.inner.achange_entries([EntryChange(path, "set_mode", narrow)])
        with use_file_mode(mode):
            (stored,) = await self._change_files_held(UploadFiles([(path, content)]), {path: [path]})
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


def _in_undo_order(files: Sequence[FileChange]) -> list[FileChange]:
    """What is in the way of others first, and what was moved after the place from where it was moved."""
    restored = {file.path for file in files if file.before is not None}
    above = {directory for path in restored for directory in paths.ancestors(path)}

    def turn(file: FileChange) -> int:
        if file.before is not None:
            return 1 if file.source is None else 2
        return 0 if file.path in above or not restored.isdisjoint(paths.ancestors(file.path)) else 3

    return sorted(files, key=turn)
