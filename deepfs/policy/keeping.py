"""What a history keeps of each change: the contents before it, and a record of the change."""

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
from functools import partial
from logging import getLogger
from typing import Any

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, as_backend, close_each
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import (
    ConflictError,
    DeepFSError,
    ErrorCode,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    error_about,
)
from deepfs.operations import Copy, Delete, Edit, FileBatch, ListTree, Move, Operation, UploadStream, Write
from deepfs.policy.archive import (
    PRIVATE_FILE,
    UNKNOWN,
    ChangeLog,
    FileChange,
    HistoryPlaces,
    LoggedChange,
    SavedContent,
    VersionFiles,
    current_undo,
    keeping_error,
    new_record,
    running_ids,
)
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemPermission
from deepfs.sync import run_shielded
from deepfs.text import edits, paths
from deepfs.text.access import AccessScope, access_as, current_access, iterate_under, unchecked, without_access_check
from deepfs.text.arguments import check_integer, check_string
from deepfs.text.entries import Omission, TreeListing, files_of, is_probing, join_omissions, use_file_mode
from deepfs.text.lines import decode, version
from deepfs.text.lines import digest as content_digest
from deepfs.threads.locks import path_locks
from deepfs.types import FileUploadResponse, error_from, item_error

_log = getLogger("deepfs")


NO_FILE = frozenset({"file_not_found", "is_directory", "not_a_directory", "invalid_path"})
_ATTEMPTS = 100
"""How often a change is tried anew because another process changed the file after it was kept."""
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


class KeepingBackend(WrapperBackend):
    """Keeps the content of files before each change that passes through it; `HistoryBackend` has the rest.

    The arguments are those of `HistoryBackend`.
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
        super().__init__(files if versions is not None else without_directory(files, self._directory))
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

    # --- changes ---

    async def run(self, operation: Operation) -> Any:
        match operation:
            case ListTree():
                return await self._list_tree(operation)
            case FileBatch():
                return await self._change_files(operation)
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
        for _ in range(_ATTEMPTS):
            result = await self._try_change(operation, touched)
            if result is not None:
                return result
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

    async def _change_files(self, operation: FileBatch) -> list[FileUploadResponse]:
        touched = {path: _normal_paths([path]) for path in operation.paths}
        async with await self._hold(_normal_paths(touched)):
            return await self._change_files_held(operation, touched)

    async def _change_files_held(
        self, operation: FileBatch, touched: Mapping[str, Sequence[str]]
    ) -> list[FileUploadResponse]:
        """Change files whose paths are locked; `touched` has the normalised path of each, if there is one."""
        changes, pending = operation.content_changes, _Pending()
        deleted = {change.path for change in changes if change.content is None}
        done: dict[str, bool] = {}
        try:
            errors = {
                path: await self._try_keep(each, pending, must_fit=path not in deleted)
                for path, each in touched.items()
            }
            for change in changes:  # Of two contents for one file, the later one counts.
                after = None if change.content is None else version(change.content)
                for path in touched[change.path] if errors[change.path] is None else ():
                    pending.files[path] = replace(pending.files[path], after=after)
            try:
                await self._record(operation.name, pending, must_fit=len(deleted) < len(changes))
            except DeepFSError as error:
                errors = {path: errors[path] or (error if each else None) for path, each in touched.items()}

            async def check(one: FileBatch) -> None:
                if (error := errors[one.paths[0]]) is not None:
                    raise error

            outcomes: list[FileUploadResponse] = await operation.where(check, self.inner.arun)
            results = zip(operation.paths, outcomes, strict=True)
            done = {path: outcome.error is None for given, outcome in results for path in touched[given]}
            return outcomes
        finally:
            await self._settle(pending, done)

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
        copied, access = content_digest(), current_access()

        async def pass_on(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
            async for chunk in chunks:
                copied.update(chunk)
                yield chunk

        async def copy(file: str) -> FileUploadResponse:
            async with aclosing(self.inner.adownload_stream(path)) as chunks:
                return await self._versions.aupload_stream(file, pass_on(iterate_under(access, chunks)))

        with unchecked():
            await self._save(path, digest, copy, pending)
        if copied.hexdigest() != digest:
            last = pending.saved.pop()
            with unchecked():
                await run_shielded(partial(self._kept.forget, last))
            raise ConflictError(path)

    async def _hash_by_stream(self, path: str) -> str | None:
        """The content version of the file, read in chunks; None if there is no file."""
        hashed = content_digest()
        try:
            async with aclosing(self.inner.adownload_stream(path)) as chunks:
                async for chunk in chunks:
                    hashed.update(chunk)
        except DeepFSError as error:
            if error.code in NO_FILE:
                return None
            if error.code is ErrorCode.PERMISSION_DENIED:
                raise
            raise keeping_error(path, error) from error
        return hashed.hexdigest()

    async def _try_keep(self, touched: Sequence[str], pending: _Pending, *, must_fit: bool) -> DeepFSError | None:
        """Store the files before they are replaced or deleted; return the error if that fails."""
        try:
            for path in touched:
                with access_as("target" if must_fit else "source"):
                    await self._keep_tree(path, pending, deep=False, must_fit=must_fit)
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
                if pending.record.endswith(("00", "80")):  # One change in 128, since it takes a listing.
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
        if found.error is None or found.error in NO_FILE:
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

    async def _place(self, path: str) -> str:
        """The directory of the versions of a file."""
        [where] = await self._places.of([paths.normalize(path)])
        return where.directory


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


def without_directory(inner: BackendProtocol, directory: str) -> BackendProtocol:
    """The backend without a directory: it is not listed, and what is in it can be neither read nor changed."""
    pattern = re.sub(r"([*?\[\]{},!\\])", r"\\\1", directory)
    return PermissionedBackend(inner, [FilesystemPermission(["read", "write"], [f"{pattern}/**"], "deny")])


def _normal_paths(named: Iterable[str]) -> list[str]:
    """The normalised paths, each once. Invalid paths are left out: the operation itself refuses them."""
    touched = []
    for path in named:
        with suppress(DeepFSError):
            touched.append(paths.normalize(path))
    return list(dict.fromkeys(touched))
