"""Backends over flat storage, which maps path → file: every operation of the contract, planned over four primitives."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from deepfs import operations as ops
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.watching import run_and_report, watch_storage
from deepfs.errors import DeepFSError, ErrorCode, NotSupportedError
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest
from deepfs.storage import plans as plans
from deepfs.storage.runners import (
    AsyncStorage,
    BlockingStorage,
    InlineStorage,
    Kind,
    Listing,
    Plan,
    RetryPolicy,
    Storage,
    until_accepted,
)
from deepfs.text import paths, records
from deepfs.text.arguments import bytes_from_mb
from deepfs.text.entries import flat_place
from deepfs.text.flat_tree import Change, Directories, FileStat, FileTree, stats_of
from deepfs.text.lines import check_text
from deepfs.threads.locks import path_locks
from deepfs.types import FileDataV2, FileFormat, FileUploadResponse, failed_item

__all__ = [
    "AsyncStorage",
    "BlockingStorage",
    "FlatBackend",
    "InlineStorage",
    "Kind",
    "RecordStorageBackend",
    "StorageBackend",
]

T = TypeVar("T")


class StorageBackend(BackendProtocol):
    """A backend over a flat storage: a dict, a key-value store, a table, a bucket.

    A subclass defines `_storage`, and `_scope` if two objects may use one storage. Operations that change files run
    under locks on their paths, shared by every backend object with an equal scope, so that edits in one process do not
    overwrite each other. If the storage refuses a change with ChangedError, the operation is planned anew, for up to 30
    seconds.

    A subclass that declares `watches` in its `capabilities` has `awatch`, which tells what backend objects with an
    equal scope store in this process. Declare it only where nobody else changes the storage. If the storage itself
    tells of changes, override `awatch` as well.

    Args:
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
    """

    _reads_before_change = False
    """Whether a change needs the content of the file that it replaces, because the storage has no tag to compare."""
    _asks_together = False
    """Whether it takes less time to ask the storage several things at once than one after the other."""
    _finds = False
    """Whether the storage finds candidates of a search by itself (`Storage.find`), so that nothing is listed."""
    _is_transactional = False
    """Whether the storage makes all changes of one `apply` or none, whatever happens meanwhile. Only then has
    `achange_files` its `all_or_none`."""
    _retries = RetryPolicy()
    """How long a change is planned anew, and how often requests are sent again."""

    def __init__(self, *, max_file_size_mb: int = 10) -> None:
        self._max_bytes = bytes_from_mb(max_file_size_mb)

    # --- what a subclass defines ---

    @abstractmethod
    def _storage(self) -> Storage:
        """The storage, for one operation."""

    # --- what a subclass may refine ---

    def _scope(self) -> Hashable:
        """Identifies the storage; backends with equal scopes share their locks."""
        return self

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        """Lock the paths `held`, and everything beneath them, against other changes."""
        return path_locks(self._scope()).hold(*held)

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        """Raise InvalidContentError if the storage cannot hold `data`."""

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Return the changes to store for one operation; raise to refuse them all.

        Every change of the backend passes through here, under its locks, in the thread that calls the storage.
        """
        return changes

    # --- running plans ---

    def _look(self, plan: Callable[[], Plan[T]], kind: Kind = "look") -> Awaitable[T]:
        storage = self._storage()
        if kind == "search":
            storage.scope = self._scope()
        return storage.look(plan, kind)

    def _change(self, plan: Callable[[], Plan[T]], *held: str) -> Awaitable[T]:
        """Run a change with the paths `held`, and everything beneath them, locked."""
        return until_accepted(lambda: self._attempt(plan, *held), self._retries.contention)

    async def _attempt(self, plan: Callable[[], Plan[T]], *held: str) -> T:
        async with self._hold(*held):
            return await run_and_report(self._storage(), plan(), self._scope)

    # --- operations ---

    async def run(self, operation: ops.Operation) -> Any:
        match operation:
            case ops.Read() | ops.ReadRaw() | ops.Ls() | ops.ListTree():
                plan = partial(plans.PLANS[type(operation)], self, operation.at(paths.normalize))
                return await self._look(plan)
            case ops.Write() | ops.Edit() | ops.Delete() | ops.Copy():
                operation = operation.at(paths.normalize)
                if isinstance(operation, ops.Write):
                    check_text(operation.content)
                plan = partial(plans.PLANS[type(operation)], self, operation)
                return await self._change(plan, *operation.paths)
            case ops.ResolvePaths(given):
                return list(given)
            case GlobRequest():
                files = FileFilter(operation)
                return await self._look(lambda: plans.glob(self, operation, files), "search")
            case GrepRequest():
                files = FileFilter(operation)
                return await self._look(lambda: plans.grep(self, operation, files), "search")
            case ops.DownloadFiles(wanted):
                return await self._look(lambda: plans.download(wanted))
            case ops.FileBatch():
                return await self._change_files(operation)
            case ops.ChangeEntries(entries):
                # Directories are implied by files, so an empty directory does not exist and need not be removed.
                outcomes = {"make_directory": ErrorCode.UNSUPPORTED.value}
                return [FileUploadResponse(change.path, outcomes.get(change.change)) for change in entries]
            case ops.StoragePlaceOf(path):
                # Not `is_sole`: backend objects with other scopes may use the same storage.
                scope = self._scope()
                return flat_place(scope, paths.normalize(path), storage=scope)
            case ops.Watch(path) if self.capabilities.watches:
                path = paths.normalize(path)
                return watch_storage(self._scope, path, self._hold(path))
        return await super().run(operation)

    async def _change_files(self, operation: ops.FileBatch) -> list[FileUploadResponse]:
        if self._is_transactional:
            return await self._change_together(operation)
        if operation.is_whole:
            raise NotSupportedError(None, "this storage has no transactions: leave out all_or_none")
        outcomes: list[FileUploadResponse] = []
        # In order: what is added is stored before what follows it is removed, and the other way round.
        changes = zip(operation.items, operation.content_changes, strict=True)
        for _, part in groupby(changes, lambda each: each[1].content is None):
            outcomes += await self._change_together(operation.only([item for item, _ in part]))
        return outcomes

    async def _change_together(self, operation: ops.FileBatch) -> list[FileUploadResponse]:
        given = operation.paths
        targets = [plans.valid_path(path) for path in given]
        held = [target for target in targets if isinstance(target, str)]
        done: dict[int, DeepFSError | None] = {}
        try:
            done = await self._change(lambda: plans.change_files(self, operation, done), *held)
        except DeepFSError as error:
            for number, target in enumerate(targets):
                done.setdefault(number, error if isinstance(target, str) else target)
        failed = [
            failed_item(FileUploadResponse, path, reason) if (reason := done[number]) else None
            for number, path in enumerate(given)
        ]
        if operation.is_whole and any(failed):
            return operation.refuse_others(failed)
        return [FileUploadResponse(path) if each is None else each for path, each in zip(given, failed, strict=True)]


class FlatBackend(StorageBackend):
    """A backend over a storage of whole files. A subclass defines `_fetch`, `_fetch_all` and `_commit`.

    For a storage that knows sizes and times without contents, or that can store conditionally, `StorageBackend` is
    better.
    """

    _reads_before_change = True

    @abstractmethod
    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        """The files at the `wanted` paths, by path; paths without a file are left out."""

    @abstractmethod
    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        """Every file; the mapping does not change while it is used."""

    @abstractmethod
    async def _commit(self, changes: Sequence[Change]) -> None:
        """Store the changes, in order: additions come before removals.

        It may run several times at once, with changes of different paths.
        """

    async def _tree(self) -> FileTree:
        """The files as a tree."""
        return FileTree(await self._fetch_all())

    async def _is_directory(self, path: str) -> bool:
        """Whether there are files under `path`."""
        return path in (await self._tree()).directories

    def _files_update(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        """The `files_update` of the result, if the storage is graph state."""
        return None

    async def _changing(self, change: Callable[[], Awaitable[T]], *held: str) -> T:
        """Run a change, from reading to storing, with the paths `held`, and everything beneath them, locked.

        If `_commit` raises ChangedError, this is called again, for up to 30 seconds.
        """
        async with self._hold(*held):
            return await change()

    async def _attempt(self, plan: Callable[[], Plan[T]], *held: str) -> T:
        return await self._changing(lambda: run_and_report(self._storage(), plan(), self._scope), *held)

    def _storage(self) -> Storage:
        return _FetchedFiles(self)


class _FetchedFiles(AsyncStorage):
    """The four primitives, made of the methods of a `FlatBackend`."""

    def __init__(self, backend: FlatBackend) -> None:
        self._backend = backend

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return stats_of(await self._backend._fetch(paths))

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        return await self._backend._fetch(paths)

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        if limit is None:
            return await self._backend._tree()
        # With a limit, the caller only asks whether the directory exists.
        is_directory = await self._backend._is_directory(prefix.rstrip("/") or "/")
        return FileTree({}, Directories([f"{prefix}_"] if is_directory else ()))

    async def apply(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        await self._backend._commit(changes)
        return self._backend._files_update(changes)


def records_of(changes: Sequence[Change], file_format: FileFormat) -> dict[str, dict[str, Any] | None]:
    """What to store at each path; None removes a file. Raises InvalidContentError if the format cannot hold it."""
    return {
        change.path: None if change.after is None else records.encode_file(change.after, file_format, change.path)
        for change in changes
    }


class RecordStorageBackend(StorageBackend):
    """A backend that writes one of the two file formats, and reads both.

    Args:
        file_format: `"v2"`, or `"v1"` for the older form that holds text only.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ValueError: For another format, and a size that is not positive.
    """

    def __init__(self, *, file_format: FileFormat = "v2", max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format is 'v1' or 'v2', not {file_format!r}")
        self._file_format: FileFormat = file_format

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        if self._file_format == "v1":
            records.to_v1(data, path)
