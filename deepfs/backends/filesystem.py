"""Real files below a directory of this machine."""

import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, TypeVar

import anyio
from msgspec.structs import replace as replace_fields

from deepfs.backends.namespace import MOST_PLACES, Choice, path_of_names
from deepfs.backends.protocol import ASYNC_GREP_TIMEOUT as ASYNC_GREP_TIMEOUT
from deepfs.backends.protocol import DEFAULT_GREP_TIMEOUT as DEFAULT_GREP_TIMEOUT
from deepfs.backends.protocol import FILE_NOT_FOUND as FILE_NOT_FOUND
from deepfs.backends.protocol import INVALID_PATH as INVALID_PATH
from deepfs.backends.protocol import IS_DIRECTORY as IS_DIRECTORY
from deepfs.backends.protocol import PERMISSION_DENIED as PERMISSION_DENIED
from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.backends.transfer import MAX_HELD_BYTES
from deepfs.backends.watching import ChangeBuffer
from deepfs.disk import (
    CAN_WATCH,
    Disk,
    FilesInMemory,
    MoveProgress,
    Reading,
    ReadLimits,
    Upload,
    modified_at,
    when_free,
)
from deepfs.errors import BinaryFileError, DeepFSError, InvalidPathError, NotSupportedError
from deepfs.operations import (
    ChangeEntries,
    Copy,
    Delete,
    DownloadFiles,
    DownloadStream,
    Edit,
    FileBatch,
    ListTree,
    Ls,
    Move,
    Operation,
    Read,
    ReadRaw,
    ResolvePaths,
    StoragePlaceOf,
    UploadStream,
    Watch,
    Write,
)
from deepfs.search.disk import LocalSearch
from deepfs.search.gitignore import IgnoreOption
from deepfs.search.request import SearchRequest
from deepfs.sync import is_inline, run_shielded
from deepfs.text import media, paths, records
from deepfs.text.access import AccessCheck, current_access, unchecked
from deepfs.text.arguments import bytes_from_mb, check_bool, check_bytes, check_directory, check_number
from deepfs.text.edits import replace
from deepfs.text.entries import EntryChange, TreeListing, mode_of_new_files
from deepfs.text.lines import check_text, decode
from deepfs.text.media import MAX_MEDIA_BYTES as MAX_VIDEO_INPUT_BYTES
from deepfs.text.paths import host_path
from deepfs.threads import pool
from deepfs.threads.batching import BatchedCall, Batcher
from deepfs.threads.deadline import Deadline
from deepfs.threads.locks import path_locks
from deepfs.threads.loop_bridge import loop_callbacks
from deepfs.types import (
    ChangeEvent,
    ContentChange,
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
    failed_item,
)

__all__ = ["MAX_VIDEO_INPUT_BYTES", "ON_DISK", "FilesystemBackend"]

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

T = TypeVar("T")
DirectoryFactory: TypeAlias = Callable[["Runtime[Any]"], tuple[str | os.PathLike[str], *tuple[str, ...]]]

_WAIT_S = 30.0
"""Seconds that a change waits for other processes."""
_FILES_A_CALL = 16
"""The most files of a batch that one call in a worker thread changes, so that other calls get their turns."""
_FEW = 8
"""The most paths that are resolved on the event loop, one by one; more of them share steps."""
_NO_DEADLINE = Deadline()
"""For reads that end at once."""


ON_DISK: Final = Capabilities(
    keeps_empty_directories=True,
    keeps_created_at=False,
    has_links=True,
    durable=True,
    watches=CAN_WATCH,
    atomic_between_processes=True,
)


def _check_directory_of_names(given: Any) -> tuple[str, str]:
    """The directory and the path below it of the answer of a factory, whose texts name neither."""
    if not isinstance(given, tuple) or len(given) < 2 or not isinstance(given[0], str | os.PathLike):
        raise TypeError("root_dir must be a tuple of a directory and one name or more, such as ('/srv/files', user)")
    directory = check_directory("root_dir", given[0])
    if not os.path.isabs(directory):
        raise ValueError("root_dir must begin with an absolute directory")
    return directory.rstrip("/"), path_of_names("root_dir", given[1:])


class FilesystemBackend(BackendProtocol):
    """Files on disk, below a directory.

    With `virtual_mode`, `/` is `root_dir`, and nothing outside of it is reached, not through links either. Without it,
    paths are those of the host and nothing is confined: relative paths, and searches without a path, start at
    `root_dir`; that directory and all above it cannot be changed.

    Files are replaced in one step. Edits exclude one another across the tasks, threads and processes that use deepfs.

    Args:
        root_dir: The directory; None is the working directory of the process. It is created by the first write; a
            listing or search before that finds nothing, and logs a warning once, since the path may be mistyped. Or a
            factory that gets the `Runtime` of the running node (None outside a graph), and returns a tuple of a
            directory and one name or more: `("/srv/files", user)`. Each name is one segment whatever it holds. The
            directory is not checked: never make it of what a user said.
        virtual_mode: Whether to confine all operations to `root_dir`.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
        durable: Whether a change returns only when the disk has stored it.
        search_timeout: Seconds, not counting the wait for other searches, after which a search ends `truncated`.
        ignore: What searches leave out: `"git"` for what the `.gitignore` files from `root_dir` down say, a list of
            patterns in the syntax of such a file, or None for nothing. The directory that a search starts in is
            searched in any case, and other operations ignore nothing. A `.gitignore` that is no regular file, or is
            over 128 KiB or 4,000 lines, has no rules. So has one that cannot be compiled, and each one after the first
            2 MiB of a search; a grep counts these two as `skipped`.
        ripgrep: Whether to use ripgrep for large trees where it is installed. Results are the same.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or an `ignore` that cannot be used, and a factory without `virtual_mode`.
        NotSupportedError: On Windows, where other backends have to be used.
    """

    capabilities: Capabilities = ON_DISK
    _runs_inline = frozenset({Ls, Read, ReadRaw, DownloadFiles})
    _shown = ("_given_root", "virtual_mode=_virtual")
    judges_results: bool = True

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | DirectoryFactory | None = None,
        virtual_mode: bool = True,
        max_file_size_mb: int = 10,
        *,
        durable: bool = False,
        search_timeout: float = 60,
        ignore: IgnoreOption = None,
        ripgrep: bool = True,
    ) -> None:
        check_number("search_timeout", search_timeout, positive=False)
        for name, given in (("virtual_mode", virtual_mode), ("durable", durable), ("ripgrep", ripgrep)):
            check_bool(name, given)
        self._virtual = virtual_mode
        self._max_bytes = bytes_from_mb(max_file_size_mb)
        self.host_directory: str | None = None
        """The directory that file operations call `/`; None for a relative `root_dir`, and for a factory."""
        self._given_root: Any = root_dir  # For the repr.
        if callable(root_dir):
            if not virtual_mode:
                raise ValueError("root_dir by a factory needs virtual_mode: without it nobody is kept apart")
            self._choice = Choice("root_dir", root_dir, _check_directory_of_names, lambda found: found[1][1:])
            options: Any = {"durable": durable, "search_timeout": search_timeout, "ignore": ignore, "ripgrep": ripgrep}

            @lru_cache(MOST_PLACES)
            def open_directory(directory: str) -> FilesystemBackend:
                backend = FilesystemBackend(directory, max_file_size_mb=max_file_size_mb, **options)
                backend._disk.expect_no_root()
                return backend

            self._open_directory = open_directory
            return
        self._given_root = check_directory("root_dir", root_dir) if root_dir is not None else "."
        self._storage = "disk", self._given_root
        self._changed = ("durable", *self._storage) if durable else self._storage  # Flushes hold up no reads.
        # The disk's own locks exclude other processes; these let tasks of this process wait without a thread.
        self._locks = path_locks(self._storage)
        if not virtual_mode:
            self.host_directory = "/"
        elif os.path.isabs(self._given_root):  # To resolve a relative one may block.
            self.host_directory = os.path.normpath(self._given_root)
        self._disk = Disk(self._given_root, confined=virtual_mode, durable=durable)
        self._limits = ReadLimits(binary=self._max_bytes)
        self._search = LocalSearch(self._disk, max_bytes=self._max_bytes, ignore=ignore, ripgrep=ripgrep)
        self._searches: Batcher[tuple[str, AccessCheck | None], SearchRequest, Any] = Batcher(
            self._storage, timeout=search_timeout
        )

    def _here(self) -> "FilesystemBackend":
        """The files of the caller: this backend, or one below the directory that the factory names."""
        if self._choice is None:
            return self
        return self._open_directory("".join(self._choice()))

    # --- paths and threads ---

    def _path(self, path: str) -> str:
        """`path` normalised. Best in a worker thread: with a relative root it makes a system call."""
        return paths.normalize(path) if self._virtual else host_path(path, self._given_root)

    def _files(self) -> Disk:
        """The files for one operation: every path that it uses is checked, where a policy left its access check."""
        access, mode = current_access(), mode_of_new_files.get()
        return self._disk if access is None and mode is None else self._disk.with_access(access).with_file_mode(mode)

    async def _change(self, held: Sequence[str], function: Callable[..., T], *args: Any) -> T:
        """Run a change in a worker thread, with its paths locked."""
        async with self._locks.hold(*_lockable(held)):
            return await self._run_change(function, *args)

    async def _run_change(self, function: Callable[..., T], *args: Any) -> T:
        """Run a change whose paths are locked. Its deadline limits the wait for other processes.

        `function` is called again, with the same arguments, if others held the lock of a file.
        """
        deadline = Deadline(_WAIT_S)
        change = partial(pool.run, function, deadline, self._files(), *args, deadline=deadline, storage=self._changed)
        return await when_free(change)

    @property
    def cwd(self) -> Path:
        """The directory, absolute; with `virtual_mode=False` the one in which relative paths start."""
        return Path(os.path.abspath(self._here()._given_root))

    @property
    def virtual_mode(self) -> bool:
        """Whether paths are those of the directory, not of the host."""
        return self._virtual

    @property
    def max_file_size_bytes(self) -> int:
        """The size over which files are not searched, and binary ones not read."""
        return self._max_bytes

    async def _resolve_paths(self, paths: list[str]) -> list[str | None]:
        found = await _in_memory(self._disk, self._resolve, paths) if len(paths) <= _FEW else None
        if found is None:
            resolve = partial(_prepare_and_run, _NO_DEADLINE, self._disk, self._resolve)
            found = await pool.run(resolve, paths, abandon_on_cancel=True, storage=self._storage)
        return found

    def _resolve(self, _: Deadline, disk: Disk | FilesInMemory, given: list[str]) -> list[str | None]:
        return disk.real_paths([_valid(self._path, path) for path in given])

    def real_path(self, path: str) -> str | None:
        """Resolve the links of one path, by system calls in the calling thread.

        Args:
            path: The path. It need not exist.

        Returns:
            The path after following links; None if it leads outside, or cannot be followed.

        Raises:
            DeepFSError: The machine lacks a resource, such as file descriptors. No access check may pass then.
        """
        here = self._here()
        [real] = here._resolve(_NO_DEADLINE, here._disk, [path])
        return real

    async def run(self, operation: Operation) -> Any:
        if (here := self._here()) is not self:
            return await here.run(operation)
        match operation:
            case Read(path, offset, limit):
                return await self._look_at_file(self._read, path, offset, limit)
            case ReadRaw(path):
                return await self._look_at_file(self._read_raw, path)
            case DownloadFiles(wanted):
                return await self._download_files(wanted)
            case Ls(path):
                return await self._look(self._ls, path)
            case ListTree(path, deleting):
                return await self._look(self._list_tree, path, deleting)
            case SearchRequest(path=start):
                # The root is the empty path, which stands for `root_dir` in both modes.
                start = "" if start is None or start == "/" else start
                return await self._searches.ask(self._run_searches, (start, current_access()), operation)
            case Write(path, content, overwrite, if_match):
                check_text(content)
                return await self._change([path], self._write, path, content.encode(), overwrite, if_match)
            case Edit(path, old, new, replace_all, if_match):
                return await self._change([path], self._edit, path, old, new, replace_all, if_match)
            case Delete(path, if_match):
                return await self._change([path], self._delete, path, if_match)
            case Move(src, dst, overwrite):
                return await self._change([src, dst], self._move, src, dst, overwrite, MoveProgress())
            case Copy(src, dst, overwrite):
                return await self._change([src, dst], self._copy, src, dst, overwrite)
            case FileBatch():
                return await self._change_files(operation)
            case UploadStream(path, chunks):
                return await self._upload_stream(path, chunks)
            case DownloadStream(path, chunk_size):
                return self._download_stream(path, chunk_size)
            case ChangeEntries(entries):
                return await self._change(operation.paths, self._change_entries, entries)
            case ResolvePaths(given):
                return await self._resolve_paths(given)
            case StoragePlaceOf(path):
                return await pool.run(
                    lambda: self._disk.place(self._path(path)), abandon_on_cancel=True, storage=self._storage
                )
            case Watch(path) if self.capabilities.watches:
                return _changes(self, path)
        return await super().run(operation)

    # --- looking ---

    async def _look(self, function: Callable[..., T], *args: Any) -> T:
        """Run a read in a worker thread. On cancellation it is not awaited, and its deadline makes it end soon."""
        deadline = Deadline()
        if is_inline():
            return function(deadline, self._files(), *args)
        return await pool.run(
            function, deadline, self._files(), *args, abandon_on_cancel=True, deadline=deadline, storage=self._storage
        )

    async def _look_at_file(self, function: Callable[..., T], *args: Any) -> T:
        """Read a file: on the event loop if it is in the system's memory, else in a worker thread."""
        found = await _in_memory(self._files(), function, *args)
        return await self._look(_prepare_and_run, function, *args) if found is None else found

    def _ls(self, deadline: Deadline, disk: Disk, path: str) -> LsResult:
        listing = disk.list_directory(self._path(path), deadline=deadline)
        return LsResult(entries=listing.entries, skipped=listing.skipped)

    def _list_tree(self, deadline: Deadline, disk: Disk, path: str, deleting: bool) -> TreeListing:
        return disk.list_tree(self._path(path), deadline, deleting=deleting)

    def _read(self, deadline: Deadline, disk: Disk | FilesInMemory, path: str, offset: int, limit: int) -> ReadResult:
        path = self._path(path)
        mime_type = media.mime_type(path)
        if media.is_binary_type(mime_type):
            return self._binary(path, disk.read_whole(path, self._max_bytes))
        read = disk.read_window(path, offset, limit, self._limits, deadline)
        if isinstance(read.shown, bytes):
            return self._binary(path, read)
        text = FileDataV2(read.shown.text, "utf-8", None, modified_at(read.status), mime_type)
        return records.read_window(text, read.shown, read.version)

    def _binary(self, path: str, read: Reading) -> ReadResult:
        assert isinstance(read.shown, bytes)
        at = FileDataV2("", modified_at=modified_at(read.status))
        return records.read_binary(path, read.shown, at=at, content_version=read.version, limit=self._max_bytes)

    def _read_raw(self, _: Deadline, disk: Disk | FilesInMemory, path: str) -> ReadRawResult:
        data, status = disk.read_file(self._path(path), MAX_HELD_BYTES)
        return ReadRawResult(data=replace_fields(records.new_file(data, now=modified_at(status)), created_at=None))

    def _run_searches(
        self, key: tuple[str, AccessCheck | None], calls: Sequence[BatchedCall[SearchRequest, Any]]
    ) -> None:
        start, access = key
        base = self._path("/" if self._virtual else "")
        self._search.run_batch(calls, self._path(start) if start else base, base, access)

    async def _download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        disk = self._files()
        found = [await _in_memory(disk, self._download_file, path) for path in paths]
        left = [path for path, response in zip(paths, found, strict=True) if response is None]
        rest: list[FileDownloadResponse] = []
        if is_inline():
            rest = [await self._look(_prepare_and_run, self._download_file, path) for path in left]
        elif left:
            download = partial(_prepare_and_run, _NO_DEADLINE, disk, self._download_file)
            rest = await pool.run_each(download, left, abandon_on_cancel=True, storage=self._storage)
        fetched = iter(rest)
        return [next(fetched) if response is None else response for response in found]

    def _download_file(self, _: Deadline, disk: Disk | FilesInMemory, path: str) -> FileDownloadResponse:
        try:
            data, _status = disk.read_file(self._path(path), MAX_HELD_BYTES)
        except DeepFSError as error:
            return failed_item(FileDownloadResponse, path, error)
        return FileDownloadResponse(path, data)

    async def _download_stream(self, path: str, chunk_size: int) -> AsyncGenerator[bytes, None]:
        disk = self._files()
        opened: list[BinaryIO] = []
        try:
            await pool.run(lambda: opened.append(disk.open_file(self._path(path))[0]), storage=self._storage)
            while chunk := await pool.run(opened[0].read, chunk_size, storage=self._storage):
                yield chunk
        finally:
            await run_shielded(partial(pool.run, _close, opened))

    # --- changing ---

    def _write(
        self, deadline: Deadline, disk: Disk, path: str, content: bytes, overwrite: bool, if_match: str | None
    ) -> WriteResult:
        path = self._path(path)
        disk.write_file(path, content, overwrite=overwrite, if_match=if_match, deadline=deadline)
        return WriteResult(path=path)

    def _edit(
        self, deadline: Deadline, disk: Disk, path: str, old: str, new: str, replace_all: bool, if_match: str | None
    ) -> EditResult:
        path = self._path(path)
        change = _FileReplacement(path, old, new, replace_all)
        disk.edit_file(path, change, if_match=if_match, limit=MAX_HELD_BYTES, deadline=deadline)
        return EditResult(path=path, occurrences=change.occurrences)

    def _delete(self, deadline: Deadline, disk: Disk, path: str, if_match: str | None) -> DeleteResult:
        path = self._path(path)
        disk.delete(path, deadline, if_match=if_match)
        return DeleteResult(path=path)

    def _move(
        self, deadline: Deadline, disk: Disk, src: str, dst: str, overwrite: bool, progress: MoveProgress
    ) -> WriteResult:
        src, dst = self._path(src), self._path(dst)
        disk.move(src, dst, overwrite=overwrite, deadline=deadline, progress=progress)
        return WriteResult(path=dst)

    def _copy(self, deadline: Deadline, disk: Disk, src: str, dst: str, overwrite: bool) -> WriteResult:
        src, dst = self._path(src), self._path(dst)
        disk.copy(src, dst, overwrite=overwrite, deadline=deadline)
        return WriteResult(path=dst)

    def _change_entries(
        self, deadline: Deadline, disk: Disk, changes: Sequence[EntryChange]
    ) -> list[FileUploadResponse]:
        outcomes: list[FileUploadResponse] = []
        for change in changes:
            try:
                disk.change_entry(replace_fields(change, path=self._path(change.path)))
            except DeepFSError as error:
                outcomes.append(failed_item(FileUploadResponse, change.path, error))
            else:
                outcomes.append(FileUploadResponse(change.path))
        return outcomes

    async def _change_files(self, operation: FileBatch) -> list[FileUploadResponse]:
        if operation.is_whole:
            raise NotSupportedError(None, "a disk has no transactions: leave out all_or_none")
        changes = operation.content_changes
        done: list[FileUploadResponse] = []
        # To the end: no other change comes to a path of the batch between two of its parts.
        async with self._locks.hold(*_lockable(operation.paths)):
            for start in range(0, len(changes), _FILES_A_CALL):
                outcomes: list[FileUploadResponse] = []
                await self._run_change(self._change_each, changes[start : start + _FILES_A_CALL], outcomes)
                done += outcomes
        return done

    async def _upload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        begun: list[Upload] = []
        try:
            await pool.run(self._begin, self._files(), path, begun, storage=self._storage)
            with unchecked():  # The chunks may come from elsewhere; what has begun keeps its access check.
                async for chunk in chunks:
                    await pool.run(begun[0].write, check_bytes("each chunk", chunk), storage=self._storage)
                await self._change([path], lambda deadline, _: begun[0].put(deadline))
        finally:
            await run_shielded(partial(pool.run, _close, begun))
        return FileUploadResponse(path)

    def _begin(self, disk: Disk, path: str, begun: list[Upload]) -> None:
        begun.append(disk.upload(self._path(path)))

    def _change_each(
        self, deadline: Deadline, disk: Disk, changes: Sequence[ContentChange], outcomes: list[FileUploadResponse]
    ) -> None:
        """Make the changes that have no outcome yet, in order. The deadline starts anew for each."""
        for change in changes[len(outcomes) :]:
            try:
                path, if_match = self._path(change.path), change.if_match
                if change.content is None:
                    disk.delete(path, deadline, if_match=if_match, only_file=True)
                else:
                    disk.write_file(
                        path, change.content, overwrite=change.overwrite, if_match=if_match, deadline=deadline
                    )
            except DeepFSError as error:
                outcomes.append(failed_item(FileUploadResponse, change.path, error))
            else:
                outcomes.append(FileUploadResponse(change.path))
            deadline.restart()


async def _in_memory(disk: Disk, function: Callable[..., T], *args: Any) -> T | None:
    """Read a file that is in the system's memory, in this thread; None if it is not."""
    files = disk.in_memory
    if not files.begin_read():
        return None
    try:
        if is_inline():
            found = function(_NO_DEADLINE, files, *args)
        else:
            loop = loop_callbacks()
            if not loop.has_time():
                await loop.next_turn()
            found = loop.work(function, _NO_DEADLINE, files, *args)
    except BlockingIOError:
        files.note_miss()
        return None
    files.note_hit()
    return found


def _prepare_and_run(deadline: Deadline, disk: Disk, function: Callable[..., T], *args: Any) -> T:
    """Run a read, and prepare for reads in memory."""
    disk.in_memory.prepare()
    return function(deadline, disk, *args)


async def _changes(backend: FilesystemBackend, path: str) -> AsyncGenerator[ChangeEvent, None]:
    """The events of `awatch(path)`. The system keeps what happens while the reader is elsewhere."""
    start = await pool.run(backend._path, "" if path == "/" else path)
    watch, buffer = backend._disk.watch(start), ChangeBuffer(start)
    try:
        await pool.run_long(watch.start)
        yield ChangeEvent(start, "resync")
        while True:
            await anyio.wait_readable(watch.descriptor)
            deadline = Deadline()
            for event in await pool.run(watch.changes, deadline, deadline=deadline):
                buffer.add(event)
            while (told := buffer.pop()) is not None:
                yield told
    finally:
        await run_shielded(partial(pool.run, watch.close))


def _close(opened: Iterable[BinaryIO | Upload]) -> None:
    for each in opened:
        each.close()


class _FileReplacement:
    """Changes the content of a file as an edit asks for."""

    def __init__(self, path: str, *arguments: Any) -> None:
        self._path = path
        self._arguments = arguments
        self.occurrences: int = 0

    def __call__(self, data: bytes) -> bytes:
        content = None if media.is_binary_name(self._path) else decode(data)
        if content is None:
            raise BinaryFileError(self._path)
        done = replace(self._path, content, *self._arguments)
        self.occurrences = done.occurrences
        return done.content.encode()


def _lockable(given: Iterable[str]) -> list[str]:
    """The normal forms of the valid paths in `given`. Operations on invalid paths fail before they change anything."""
    return [path for path in (_valid(paths.normalize, path) for path in given) if path is not None]


def _valid(normalize: Callable[[str], str], path: str) -> str | None:
    """What `normalize` makes of a path; None if the path is not valid."""
    try:
        return normalize(path)
    except InvalidPathError:
        return None
