"""The base of backends over flat storage: three primitives, and every operation of the contract on top of them."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import (
    AccessError,
    BinaryFileError,
    DeepFSError,
    DirectoryError,
    ErrorCode,
    FileMissingError,
    NotDirectoryError,
)
from deepfs.search.flat import glob_tree, grep_tree
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest
from deepfs.search.results import Grep
from deepfs.sync import breathe, finish
from deepfs.text import flat_tree as filemap
from deepfs.text import paths
from deepfs.text import records as filedata
from deepfs.text import windows as reading
from deepfs.text.arguments import bytes_of
from deepfs.text.edits import replace
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing, flat_place, implied_listing
from deepfs.text.flat_tree import Change, ChangedError, FileTree, PartlyDoneError, Uploads
from deepfs.text.lines import check_text
from deepfs.threads.locks import path_locks
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    FileFormat,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["FlatBackend", "RecordBackend"]

T = TypeVar("T")


class FlatBackend(BackendProtocol):
    """A backend over storage that maps path → file: a dict, a key-value store, a table, a bucket.

    A subclass defines `_fetch`, `_fetch_all` and `_commit`. Operations that change files run under locks on their
    paths, shared by every backend object with the same `_scope`, so concurrent edits of one file never lose one another
    within the process.
    """

    _commits_at_once = False
    """Whether `_commit` waits for nothing, whatever else a subclass waits for: then no other task comes in between."""

    def __init__(self, *, max_file_size_mb: int = 10) -> None:
        self._max_bytes = bytes_of(max_file_size_mb)

    # --- what a subclass defines ---

    @abstractmethod
    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        """Those of the `wanted` paths that exist, with their files."""

    @abstractmethod
    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        """Every file; the mapping does not change while it is used."""

    @abstractmethod
    async def _commit(self, changes: Sequence[Change]) -> None:
        """Store the changes, in order: what is added comes before what is removed."""

    # --- what a subclass may refine ---

    def _scope(self) -> Hashable:
        """What tells this storage from others; backends with equal scopes share their locks."""
        return self

    async def astorage_place(self, path: str) -> StoragePlace:
        scope = self._scope()
        # A storage that has no scope of its own may be that of other objects as well.
        return flat_place(scope, paths.normalize(path), storage=scope)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        """Exclude other changes of `held` and of all beneath them."""
        return path_locks(self._scope()).hold(*held)

    async def _tree(self) -> FileTree:
        """The files as a tree."""
        return FileTree(await self._fetch_all())

    async def _is_directory(self, path: str) -> bool:
        """Whether there are files under `path`."""
        return path in (await self._tree()).directories

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        """Raise InvalidContentError where the storage cannot hold `data`."""

    def _files_update(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        """What a result tells of the changes where the storage is graph state."""
        return None

    # --- looking ---

    async def _at(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        """The files at `wanted`; none is at the root, whatever the storage has there."""
        asked = [path for path in wanted if path != "/"]
        return await self._fetch(asked) if asked else {}

    async def _require(self, path: str) -> FileDataV2:
        """The file at `path`."""
        return (await self._existing(path))[path]

    async def _existing(self, path: str) -> Mapping[str, FileDataV2]:
        """The file at `path`, by its path."""
        found = await self._at([path])
        if path not in found:
            raise DirectoryError(path) if await self._is_directory(path) else FileMissingError(path)
        return found

    async def als(self, path: str) -> LsResult:
        return LsResult(entries=(await self._tree()).entries(paths.normalize(path)))

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        path = paths.normalize(path)
        files, chosen = await self._subtree(path)
        return implied_listing(path, [(child, filemap.file_info(child, files).size) for child in chosen])

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path = paths.normalize(path)
        return reading.read_data(path, await self._require(path), offset, limit, max_binary=self._max_bytes)

    async def aread_raw(self, path: str) -> ReadRawResult:
        return ReadRawResult(data=await self._require(paths.normalize(path)))

    async def arun_glob(self, request: GlobRequest) -> GlobResult:
        files = FileFilter(request)
        tree = FileTree(await self._fetch_all())
        if files.root != "/" and files.root in tree.files:
            raise NotDirectoryError(files.root)
        await breathe()
        return await glob_tree(tree, files)

    async def arun_grep(self, request: GrepRequest) -> GrepResult:
        grep = Grep(request, FileFilter(request), self._max_bytes)
        return await grep_tree(FileTree(await self._fetch_all()), grep)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        wanted = [_valid(path) for path in paths]
        try:
            found = await self._at(_paths(wanted))
        except DeepFSError as error:
            found, wanted = {}, [error if isinstance(path, str) else path for path in wanted]
        return [await self._downloaded(given, path, found) for given, path in zip(paths, wanted, strict=True)]

    async def _downloaded(
        self, given: str, path: str | DeepFSError, found: Mapping[str, FileDataV2]
    ) -> FileDownloadResponse:
        try:
            if isinstance(path, DeepFSError):
                raise path
            data = found[path] if path in found else await self._require(path)
            return FileDownloadResponse(given, filedata.content_bytes(data, path))
        except DeepFSError as error:
            return FileDownloadResponse(given, error=error.code.value)

    # --- changing ---

    async def _write(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        if changes and self._commits_at_once:
            await self._commit(changes)
        elif changes:
            await finish(partial(self._commit, changes))
        return self._files_update(changes)

    async def _place(self, path: str) -> Mapping[str, FileDataV2]:
        """The file at `path`, if there is one; raises where nothing can be put there."""
        found = await self._at([path, *paths.ancestors(path)])
        filemap.check_parents(path, found)
        if path not in found and await self._is_directory(path):
            raise DirectoryError(path)
        return found

    async def _changing(self, change: Callable[[], Awaitable[T]], *held: str) -> T:
        """Carry out a change, which looks, decides and stores, while `held` and all beneath them are kept from others.

        A backend that finds out while it stores that another process was faster may carry it out anew.
        """
        async with self._hold(*held):
            return await change()

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        path = paths.normalize(path)
        check_text(content)

        async def write() -> WriteResult:
            found = await self._place(path)
            filemap.check_replaceable(path, found, overwrite=overwrite, if_match=if_match)
            before = filemap.readable(found, path)
            after = filedata.new_file(content, created_at=before and before.created_at)
            update = await self._write([filemap.change_of(path, found, after)])
            return WriteResult(path=path, files_update=update)

        return await self._changing(write, path)

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        path = paths.normalize(path)

        async def edit() -> EditResult:
            found = await self._existing(path)
            before = found[path]
            filemap.check_version(path, found, if_match)
            content = filedata.text_of(before, path)
            if content is None:
                raise BinaryFileError(path)
            done = replace(path, content, old, new, replace_all)
            after = filedata.new_file(done.content, created_at=before.created_at)
            update = await self._write([filemap.change_of(path, found, after, done)])
            return EditResult(path=path, files_update=update, occurrences=done.occurrences)

        return await self._changing(edit, path)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        path = paths.normalize(path)
        if path == "/":
            raise AccessError(path, "the root cannot be deleted")

        async def delete() -> DeleteResult:
            files, chosen = await self._subtree(path)
            filemap.check_version(path, files, if_match)
            await self._write([filemap.change_of(child, files, None) for child in chosen])
            return DeleteResult(path=path)

        return await self._changing(delete, path)

    async def _subtree(self, path: str) -> tuple[Mapping[str, FileDataV2], list[str]]:
        """Files by path, and the paths of those at or under `path`."""
        single = await self._at([path])
        if single:
            return single, [path]
        tree = FileTree(await self._fetch_all())
        return tree.files, tree.beneath(path)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)

        async def move() -> WriteResult:
            files, chosen = await self._subtree(src)
            if src == dst:
                return WriteResult(path=dst)
            added = await self._relocated(src, dst, {path: files[path] for path in chosen}, overwrite=overwrite)
            removed = [filemap.change_of(path, files, None) for path in chosen]
            return WriteResult(path=dst, files_update=await self._write([*added, *removed]))

        return await self._changing(move, src, dst)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)

        async def copy() -> WriteResult:
            files, chosen = await self._subtree(src)
            moved = await self._relocated(src, dst, {path: files[path] for path in chosen}, overwrite=overwrite)
            return WriteResult(path=dst, files_update=await self._write([filemap.as_copy(change) for change in moved]))

        return await self._changing(copy, src, dst)

    async def _relocated(
        self, src: str, dst: str, sources: Mapping[str, FileDataV2], *, overwrite: bool
    ) -> list[Change]:
        """The files that `sources`, which lie at or under `src`, become at `dst`; raises where they cannot go there."""
        targets = filemap.relocation(src, dst, sources)
        found = await self._at([dst, *paths.ancestors(dst)])
        filemap.check_parents(dst, found)
        filemap.check_destination(
            dst,
            found,
            is_directory=dst not in found and await self._is_directory(dst),
            from_file=src in sources,
            overwrite=overwrite,
        )
        return [filemap.change_of(targets[path], found, data) for path, data in sources.items()]

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        # Directories follow from the files: one that is empty is gone already.
        outcomes = {"make_directory": ErrorCode.UNSUPPORTED.value}
        return [FileUploadResponse(change.path, outcomes.get(change.change)) for change in changes]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        targets = [_valid(path) for path, _ in files]
        try:
            outcomes = await self._changing(partial(self._upload, files, targets), *_paths(targets))
        except DeepFSError as error:
            outcomes = [error if isinstance(target, str) else target for target in targets]
        return [
            FileUploadResponse(given, outcome.code.value if outcome else None)
            for (given, _), outcome in zip(files, outcomes, strict=True)
        ]

    async def _upload(
        self, files: Sequence[tuple[str, bytes]], targets: Sequence[str | DeepFSError]
    ) -> list[DeepFSError | None]:
        """Store the files at their targets; why it could not be done, for each."""
        uploads = Uploads(*await self._occupied(_paths(targets)), self._check_storable)
        outcomes = [
            uploads.add(target, content) if isinstance(target, str) else target
            for target, (_, content) in zip(targets, files, strict=True)
        ]
        try:
            await self._write(uploads.changes)
        except PartlyDoneError as error:
            return [
                outcome or (None if target in error.done else error)
                for target, outcome in zip(targets, outcomes, strict=True)
            ]
        except ChangedError:
            raise
        except DeepFSError as error:
            return [outcome or error for outcome in outcomes]
        return outcomes

    async def _occupied(self, targets: list[str]) -> tuple[Mapping[str, FileDataV2], set[str]]:
        """The files at and above `targets`, and those of `targets` that are directories."""
        found = await self._at(_unique([*targets, *(up for path in targets for up in paths.ancestors(path))]))
        return found, {path for path in targets if path not in found and await self._is_directory(path)}


def _valid(path: str) -> str | DeepFSError:
    """`path` normalised, or why it is none."""
    try:
        return paths.normalize(path)
    except DeepFSError as error:
        return error


def _paths(targets: Iterable[str | DeepFSError]) -> list[str]:
    """Those that are paths."""
    return [target for target in targets if isinstance(target, str)]


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


class RecordBackend(FlatBackend):
    """A flat backend that writes one of the two file formats, and reads both."""

    def __init__(self, *, file_format: FileFormat = "v2", max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format is 'v1' or 'v2', not {file_format!r}")
        self._file_format: FileFormat = file_format

    def _records(self, changes: Sequence[Change]) -> dict[str, dict[str, Any] | None]:
        """What to store at each path; None removes it. Raises InvalidContentError for what the format cannot hold."""
        return {
            change.path: None
            if change.after is None
            else filedata.encode_file(change.after, self._file_format, change.path)
            for change in changes
        }

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        if self._file_format == "v1":
            filedata.to_v1(data, path)
