"""The operations that every backend offers."""

import inspect
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Self, TypeAlias, TypedDict, TypeVar, cast

from msgspec.structs import replace

from deepfs._brief import arguments, format_attributes
from deepfs.backends._class_setup import answer, complete, complete_protocol
from deepfs.backends._trees import End, are_one, change_entry, change_file, list_tree
from deepfs.backends.foreign import BackendProtocolV1, SandboxBackendProtocolV1, adapters
from deepfs.backends.namespace import Choice
from deepfs.backends.transfer import collect_chunks, copy_tree, download_file, move_tree
from deepfs.errors import DeepFSError, NotSupportedError
from deepfs.operations import CHUNK_BYTES, DownloadStream, Operation, UploadStream, Watch
from deepfs.search.request import SEARCH_SECONDS
from deepfs.sync import call_sync, run_shielded, sync_shims
from deepfs.text import paths
from deepfs.text.arguments import chunk_bytes
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing, flat_place
from deepfs.types import (
    Capabilities,
    ChangeEvent,
    ContentChange,
    ContextLine,
    DeleteResult,
    EditResult,
    ErrorCode,
    ExecuteResponse,
    FileData,
    FileDataV1,
    FileDataV2,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Result,
    TruncationReason,
    WriteResult,
    convert_failure,
    failed_item,
)

__all__ = [
    "ASYNC_GLOB_TIMEOUT",
    "ASYNC_GREP_TIMEOUT",
    "BACKEND_TYPES",
    "DEFAULT_GREP_TIMEOUT",
    "FILE_NOT_FOUND",
    "INVALID_PATH",
    "IS_DIRECTORY",
    "PERMISSION_DENIED",
    "AnyBackendProtocol",
    "BackendFactory",
    "BackendProtocol",
    "BackendProtocolV1",
    "BackendProtocolV2",
    "Capabilities",
    "ContextLine",
    "DeleteResult",
    "EditResult",
    "ErrorCode",
    "ExecuteArtifact",
    "ExecuteOffloadResult",
    "ExecuteResponse",
    "FileData",
    "FileDataV1",
    "FileDataV2",
    "FileDownloadResponse",
    "FileInfo",
    "FileOperationError",
    "FileUploadResponse",
    "GlobResult",
    "GlobTruncationReason",
    "GrepMatch",
    "GrepResult",
    "LsResult",
    "ReadRawResult",
    "ReadResult",
    "SandboxBackendProtocol",
    "SandboxBackendProtocolV1",
    "SandboxBackendProtocolV2",
    "StoragePlace",
    "SyncCommands",
    "WriteResult",
    "as_backend",
    "close_each",
    "execute_accepts_timeout",
    "supports_execute",
]


T = TypeVar("T")

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from deepfs._langgraph.private import Caller
    from deepfs.backends._surface import SyncCommandsSurface, SyncSurface
else:

    class SyncSurface:
        pass

    class SyncCommandsSurface:
        pass


@sync_shims
class SyncCommands(SyncCommandsSurface):
    """A base of backends that run commands."""

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command.

        Args:
            command: The command.
            timeout: Seconds after which it is ended, if less than the limit of the backend; None and 0 are that limit.
                It never gives a command more time, since a model may choose it.

        Returns:
            Its output and exit code; the code is None if the command was ended.

        Raises:
            DeepFSError: BackendError if the command cannot be run, NotSupportedError if the backend runs no commands,
                InvalidContentError for a command with NUL or half a surrogate pair.
        """
        raise NotSupportedError(backend=type(self).__name__, operation="execute")


@complete_protocol
class BackendProtocol(SyncSurface):
    """A filesystem for agents, over any storage.

    A subclass defines operations, each as `aread` (async) or as `read` (sync, run in a worker thread); the other name
    of each is generated. An operation that it does not define, and that is not made of others, is `unsupported`.
    Methods may raise the leaves of `deepfs.errors`: callers get them as the error of the operation's Result. What a
    result leaves out counts as not known. Paths are absolute and POSIX; a `..` segment, a leading `~`, NUL, a lone
    surrogate, a component over 255 bytes and a drive letter are `invalid_path`.
    """

    capabilities: Capabilities = Capabilities(deletes=False)
    is_synchronous: bool = False
    """Whether its coroutines never suspend, so that sync calls need no event loop. A class that adds async code is not
    synchronous unless it declares this again."""
    offers_move: bool = True
    """Whether models get a tool `move`. Unless it declares this, a class that overrides `write` and not `move` gets
    False, since a move would bypass its `write`."""
    offers_changes: bool = True
    """Whether models get tools that change files. A wrapper that refuses every change sets it to False."""
    judges_results: bool = False
    """Whether `ls`, `glob` and `grep` themselves leave out what the rules of a policy refuse, links followed, so that
    the policy need not resolve each path that they return. A class that overrides one of them, or `aresolve_paths`,
    or `run`, gets False unless its body declares this again."""
    _shown: tuple[str, ...] = ()
    """What the repr shows to tell which storage this is, nothing secret: names of attributes, or `option=attribute`.
    By default the inner backends."""
    _runs_inline: frozenset[type[Operation]] = frozenset()
    """Operations that wait for nothing where no event loop runs: their sync methods run in the thread of the caller."""
    _blocks_inline: frozenset[type[Operation]] = frozenset()
    """Operations that block there: as `_runs_inline`, but not in the thread of a caller that runs an event loop."""
    _is_v1: bool = False
    """Whether its sync methods are those of V1."""
    _choice: Choice[Any] | None = None
    """What a factory decides by the caller, if there is one: the place of the files, or the whole backend."""
    _is_by_thread: bool = False
    """Whether each thread of a graph has other files."""
    _is_layer: bool = False
    """Whether it stands before another backend, to which it passes on what it does not override."""

    def _name_places(self) -> list[str]:
        """The places that factories have for the caller, for people. Raises BackendError if one fails."""
        choice = self._choice
        return [choice.label(choice())] if choice is not None and choice.is_place else []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls, BackendProtocol, is_layer=cls._is_layer)

    def __repr__(self) -> str:
        try:
            shown = format_attributes(self, self._shown) or arguments(*self.inner_backends())
        except Exception:  # The constructor failed, or did not call that of its base.
            shown = ""
        return f"{type(self).__name__}({shown})" if shown else object.__repr__(self)

    async def run(self, operation: Operation) -> Any:
        """Carry out an operation that is given as a value, such as `Read("/a")`. Layers and mounts pass these on.

        A class defines this or named methods such as `aread`; the others are generated. Callers use `arun`.

        Args:
            operation: The operation.

        Returns:
            What the method of its name returns. For streams and watches that is an async generator that opens nothing
            before its first step.

        Raises:
            DeepFSError: The operation failed; its caller gets it as the error of the result.
        """
        raise NotSupportedError(backend=type(self).__name__, operation=operation.name)

    async def arun(self, operation: Operation) -> Any:
        """Carry out an operation that is given as a value.

        Args:
            operation: The operation.

        Returns:
            What `run` returns, or the failed result.

        Raises:
            DeepFSError: The operation failed, and has no result that says so, such as `Execute`.
        """
        return await answer(type(self).run, self, operation)

    def at(self, place: "str | Sequence[str] | Runtime[Any]") -> Self:
        """Show the files of one tenant, in a graph or outside of one, where a factory decides by the caller.

        The view has the methods of this backend, which do what they do in a graph that runs for the tenant: the layers
        and mounts are the same, so a quota or a rate limit counts both together. It opens nothing, and closing it
        closes nothing. What `StateBackend` has remains that of the running graph.

        Args:
            place: What the factory would return, such as `("ada", "files")`; or a `Runtime` to call the factories
                with: `at(Runtime(context=...))`. Several factories that differ need the latter.

        Returns:
            The view.

        Raises:
            TypeError: `place` is neither.
            ValueError: It cannot be a place; or no factory decides by the caller, or several that differ.
        """
        return cast("Self", TenantView(self, place))

    def inner_backends(self) -> Sequence[object]:
        """The backends, of any protocol, that this one passes calls on to.

        Returns:
            An empty sequence if this backend stores files itself.
        """
        return ()

    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread.

        Returns:
            True where a synchronous call in this thread would wait for itself; such calls are refused.
        """
        return False

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        """Resolve links.

        Access checks must also check the resolved paths. A layer that changes paths on their way to another backend
        changes the resolved paths back.

        Args:
            paths: The paths to resolve. They need not exist.

        Returns:
            For each path the path after following links, or None if that is outside of the backend. On storage without
            links these are the paths themselves.
        """
        return [*paths]

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        """List every entry at or under a path, as a transfer to another storage needs them; `als` shows less.

        By default this is made of `als` and `aresolve_paths`. A backend overrides it if it knows of links, special
        files, mode bits, or names that are in no valid path.

        Args:
            path: The file or directory to list.
            deleting: Whether the entries are to be deleted. Entries that may be read but not deleted are then counted
                as omitted.

        Returns:
            The entries, and how many were omitted and why.

        Raises:
            NotFoundError: Nothing is at `path`.
            PermissionDeniedError: With `deleting`: nothing may be deleted.
            NotSupportedError: With `deleting`: the backend cannot delete.
        """
        listing = await list_tree(self, path)
        if deleting and not self.capabilities.deletes:
            raise _refuse(self, "delete")
        return listing

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        """Make and remove directories and set mode bits, as a transfer needs it.

        By default no directory can be made (`unsupported`), modes are not kept, and a directory is removed by `adelete`
        if a listing just before shows that it is empty.

        Args:
            changes: The changes, carried out in order.

        Returns:
            One outcome for each change, in order. Errors: `unsupported`, `permission_denied`, `file_not_found`, and
            what `adelete` has.
        """
        return [await change_entry(self, change) for change in changes]

    async def astorage_place(self, path: str) -> StoragePlace:
        """Name the storage that a path is in, and the place there, independently of this object.

        Two mounts compare these names to find out whether they show one file. By default a place belongs to this
        object, and it is not known which other objects reach it: copies and moves between such objects find out by
        creating a temporary file. A layer that changes paths on their way to another backend asks that backend about
        the changed path.

        Args:
            path: A path of this backend. It need not exist.

        Returns:
            The place.
        """
        scope = ("object", id(self))
        return flat_place(scope, paths.normalize(path), storage=scope)

    async def als(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path.

        Args:
            path: The directory.

        Returns:
            `entries`, each with its path, size in bytes and time of modification where they are known; the path of a
            directory ends in `/`. Errors: `file_not_found`, `not_a_directory`.
            See the contract under "ls".
        """
        raise _refuse(self, "ls")

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        r"""Read lines of a text file, or the whole of a binary file.

        A line ends at `\n`. Line ends are kept as stored and a BOM is hidden, so the windows that `next_offset` leads
        through join to the text.

        Args:
            path: The file.
            offset: The first line to read; the first of the file is 0.
            limit: The most lines to read.

        Returns:
            `file_data` with the text, or with base64 and `mime_type` for a binary file; `start_line`, `end_line`,
            `next_offset` and `total_lines`; `version`, to be given as `if_match`. Errors: `file_not_found`,
            `is_directory`, `too_large` over `max_file_size_mb`, `invalid_content` where `offset` is past the end.
            See the contract under "read and read_raw".
        """
        raise _refuse(self, "read")

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        """Create a text file, with the directories above it. A reader sees the old file or the new one.

        Args:
            path: The file.
            content: The text. It must not contain NUL or lone surrogates.
            overwrite: Replace the file if it exists.
            if_match: Replace the file if it is this version, which a read returned; None sets no condition.

        Returns:
            The path. Errors: `already_exists` without `overwrite`, `conflict` where `if_match` is not the version
            that is there, `is_directory`, `not_a_directory` where a file is above the path, `invalid_content`.
            See the contract under "write".
        """
        raise _refuse(self, "write")

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        r"""Replace a literal text of a file. No byte outside of the replacement changes.

        In a file with CRLF line ends, `\n` in `old` also matches `\r\n`, and `new` is stored with `\r\n` as well. Edits
        of one file are applied one after another.

        Args:
            path: The file.
            old: The text to replace. It must occur exactly once, unless `replace_all` is set.
            new: The text to put in its place.
            replace_all: Replace every occurrence, from left to right.
            if_match: Edit the file if it is this version, which a read returned; None sets no condition.

        Returns:
            The path and the number of `occurrences` replaced. Errors: `file_not_found`, `is_directory`, `no_match`
            with a hint where the text nearly occurs, `ambiguous_match` with the number of occurrences, `binary_file`,
            `conflict`, `invalid_content` where `old` is empty or the same as `new`.
            See the contract under "edit".
        """
        raise _refuse(self, "edit")

    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        """Find the files that match a pattern, sorted by path.

        Args:
            pattern: A glob of `*`, `**`, `?`, `[abc]`, `[!abc]` and `{a,b}`. Without `/` it matches names at any depth
                under `path`; with `/` it is relative to `path`. Only a segment that starts with `.` matches names that
                do.
            path: The directory to search.

        Returns:
            `matches`, and `truncated` if there are more. Errors: `invalid_pattern`, `file_not_found`,
            `not_a_directory`. See the contract under "glob".
        """
        raise _refuse(self, "glob")

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: int = 0,
        max_count: int | None = None,
    ) -> GrepResult:
        """Find the lines that contain a text, in the files under a path.

        Binary files are left out. `skipped` counts files that could not be searched.

        Args:
            pattern: The literal text, or the regular expression if `regex` is set.
            path: The directory or file to search; None is `/`.
            glob: Search only files that match this pattern, which is as in `aglob`; None searches all but those with a
                name that starts with `.`.
            regex: Read `pattern` as a regular expression of RE2 and match it with each line.
            ignore_case: Ignore case.
            context_lines: The number of lines to return before and after each match.
            max_count: The most matches to return; None sets no limit of its own.

        Returns:
            `matches`, sorted by path, then line; `truncated` if the search ended before all was searched. Errors:
            `invalid_pattern`, `file_not_found`. See the contract under "grep".
        """
        raise _refuse(self, "grep")

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all that is in it.

        Args:
            path: The file or directory.
            if_match: Delete the file if it is this version, which a read returned; None sets no condition.

        Returns:
            The path. Errors: `file_not_found`, `conflict`, `is_directory` where `if_match` is given for a
            directory, `permission_denied` for `/`, `unsupported` where the backend cannot delete. See the contract
            under "delete, move and copy".
        """
        raise _refuse(self, "delete")

    async def aread_raw(self, path: str) -> ReadRawResult:
        """Read a whole file with its times.

        Args:
            path: The file.

        Returns:
            `data`, with the content and both times. Errors: `file_not_found`, `is_directory`, `too_large`.
            See the contract under "read and read_raw".
        """
        read = await self.aread(path, 0, 2**31 - 1)
        return ReadRawResult(data=read.file_data) if read.ok else convert_failure(ReadRawResult, read)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Copy a file, or a directory with all that is in it.

        Args:
            src: What to copy.
            dst: The path of the copy.
            overwrite: Replace a file at `dst`. A directory is never replaced.

        Returns:
            The path of the copy. Errors: `file_not_found`, `already_exists`, `is_directory`, `not_a_directory`,
            `invalid_path` for a copy of a directory into itself. See the contract under "delete, move and copy".
        """
        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=False):
            src = dst
        keeps_empty = self.capabilities.keeps_empty_directories
        return await copy_tree(self, src, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all that is in it. At every instant one of both paths has the file.

        Args:
            src: What to move.
            dst: Its new path.
            overwrite: Replace a file at `dst`. A directory is never replaced.

        Returns:
            The new path. Errors: as of `acopy`. See the contract under "delete, move and copy".
        """
        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=True):
            return WriteResult(path=dst)
        keeps_empty = self.capabilities.keeps_empty_directories
        return await move_tree(self, src, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store files of any bytes, replacing what is there.

        Args:
            files: The path and the bytes of each file.

        Returns:
            One outcome for each file, in order; its `error` is None or a code. Errors: `is_directory`,
            `not_a_directory`, `invalid_path`, `permission_denied`, `too_large`, `unsupported` where the backend stores
            text only. See the contract under "upload_files and download_files".
        """
        return [await self._upload_text(path, content) for path, content in files]

    async def achange_files(
        self, files: Sequence[ContentChange], *, all_or_none: bool = False
    ) -> list[FileUploadResponse]:
        """Create, replace and delete whole files of any bytes, each on a condition.

        A backend without its own implementation makes one change after another, by `awrite`, `adelete` and
        `aupload_files`. Then the condition of a change to bytes that are no text, and whether a path to delete is a
        file, are looked up just before: changes by this method exclude one another, and nothing else.

        Args:
            files: The changes, made in order. A path may have one.
            all_or_none: Make all changes in one step, or none if one of them cannot be made: the others are then a
                `conflict`. Several changes need a storage that has transactions: memory, graph state, SQLite,
                Postgres or Redis, and one mount of a composite.

        Returns:
            One outcome for each change, in order; its `error` is None or a code. Errors: `already_exists` without
            `overwrite`, `conflict` where `if_match` is not the version that is there, `file_not_found` for a deletion,
            `is_directory`, `not_a_directory`, `invalid_path`, `permission_denied`, and what `aupload_files` has; all
            are `unsupported` where `all_or_none` is not possible. See the contract under "change_files".

        Raises:
            ValueError: Two changes have one path.
        """
        if all_or_none and len(files) > 1:
            raise _refuse(self, "all_or_none for several changes")
        return [await change_file(self, change) for change in files]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files.

        Args:
            paths: The files.

        Returns:
            One outcome for each path, in order, with `content` or a code as `error`. Errors: `file_not_found`,
            `is_directory`, `invalid_path`, `permission_denied`, `too_large`.
            See the contract under "upload_files and download_files".
        """
        return [await self._download(path) for path in paths]

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in chunks, all of one version of the file.

        Leaving the iteration, best by `contextlib.aclosing`, ends the download. A backend without its own
        implementation holds the whole file in memory meanwhile.

        Args:
            path: The file.
            chunk_size: The most bytes of a chunk; 1 MiB by default, and no more than 64 MiB.

        Yields:
            The chunks, in order; none for an empty file.

        Raises:
            DeepFSError: The leaf for what is wrong, when the iteration begins or, where the storage fails, later:
                file_not_found, is_directory, permission_denied, too_large.
            ValueError: `chunk_size` is not positive.
        """
        chunk_size = chunk_bytes(chunk_size)
        content = await download_file(self, path)
        for start in range(0, len(content), chunk_size):
            yield content[start : start + chunk_size]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        """Store the bytes of all chunks as one file, once they are complete, replacing what is there.

        A backend without its own implementation holds the whole file in memory; over 256 MB is `too_large`.

        Args:
            path: The file; directories above it are made.
            chunks: An async iterable of bytes. A generator is closed in any case.

        Returns:
            The outcome; `error` is the bare code: is_directory, not_a_directory, permission_denied, too_large,
            quota_exceeded. It is also that of a leaf of `deepfs.errors` that `chunks` raises.

        Raises:
            TypeError: `chunks` is no async iterable, or yields something else than bytes.
            Exception: Any other error that `chunks` raises; nothing changed.
        """
        try:
            content = await collect_chunks(path, chunks)
        except DeepFSError as error:
            return failed_item(FileUploadResponse, path, error)
        [outcome] = await self.aupload_files([(path, content)])
        return outcome

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        """Report changes at and under `path` as they happen, also those made by others.

        The first event is a `resync` of `path`, as soon as the watch is active: nothing that changes afterwards is
        missed without another `resync`. So a reader that looks at the files at each `resync`, and follows the other
        events, always knows them. Changes of the content of files are told; those of times and modes, and directories
        without files, are not. See the contract under "Watching".

        There is no sync form. Leaving the iteration, best by `contextlib.aclosing`, ends the watch, and so does the
        cancellation of a waiting `anext`.

        Args:
            path: A file or directory, which need not exist yet; by default everything.

        Yields:
            One event for each changed file, in the order in which changes are noticed. Changes of one file in quick
            succession may be one event, and a move is a deletion and a creation. `resync` is told where changes at and
            under its path may have been missed.

        Raises:
            NotSupportedError: When the iteration begins, where `capabilities.watches` is False, and on a composite
                where that of a mount at or under `path` is.
            DeepFSError: The leaf for a path that is invalid or may not be read, and for a storage that fails.
        """
        for event in _no_events(self):
            yield event

    # --- closing ---

    async def aclose(self) -> None:
        """Close what this backend made for itself: clients, pools, a workspace.

        What the caller passed in, such as a store, a client or a sandbox, stays open. Wrappers and composites close the
        backends behind them. It completes even if the caller is cancelled, and a second call does nothing. Afterwards,
        a backend that had something to close returns `backend_error`; other backends continue to work.
        """
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_shielded(self.aclose)

    def close(self) -> None:
        """`aclose`, for code without an event loop."""
        name = type(self).__name__
        call_sync(self, self.aclose, f"{name}.close()", f"{name}.aclose()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _upload_text(self, path: str, content: bytes) -> FileUploadResponse:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return FileUploadResponse(path, ErrorCode.UNSUPPORTED)
        return FileUploadResponse(path, _code(await self.awrite(path, text, overwrite=True)))

    async def _download(self, path: str) -> FileDownloadResponse:
        raw = await self.aread_raw(path)
        if not isinstance(raw.data, FileDataV2):
            return FileDownloadResponse(path, error=_code(raw))
        content = b64decode(raw.data.content) if raw.data.encoding == "base64" else raw.data.content.encode()
        return FileDownloadResponse(path, content)


class SandboxBackendProtocol(BackendProtocol, SyncCommands):
    """A backend that also runs commands."""

    capabilities: Capabilities = Capabilities(executes=True)
    working_directory: str | None = None
    """The path, for file operations, of the directory where commands start; None if it is not known."""
    command_timeout: float = inf
    """The most seconds of a command; infinite if it is not known."""
    commands_on_host: bool = False
    """Whether commands see the files of this machine under the paths that this process has for them."""

    @property
    def id(self) -> str:
        """The identifier of this sandbox; by default one that holds within the process."""
        return f"{type(self).__name__}-{id(self):x}"


@dataclass(frozen=True, slots=True)
class ExecuteOffloadResult:
    """The result of `BaseSandbox.execute_with_offload`, as deepagents has it: here nothing is ever `offloaded`."""

    offloaded: bool
    response: ExecuteResponse
    preview_has_truncation_marker: bool = False


class ExecuteArtifact(TypedDict):
    """What `ToolMessage.artifact` of the tool `execute` holds: the outcome of the command, for programs."""

    exit_code: NotRequired[int]
    truncated: NotRequired[bool]
    output_file: NotRequired[str]


FileOperationError: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]
"""The error codes of uploads and downloads in deepagents. In deepfs they may be other codes of `ErrorCode` as well."""
FILE_NOT_FOUND: Final = ErrorCode.FILE_NOT_FOUND.value
PERMISSION_DENIED: Final = ErrorCode.PERMISSION_DENIED.value
IS_DIRECTORY: Final = ErrorCode.IS_DIRECTORY.value
INVALID_PATH: Final = ErrorCode.INVALID_PATH.value
GlobTruncationReason: TypeAlias = TruncationReason

DEFAULT_GREP_TIMEOUT: Final = int(SEARCH_SECONDS)
"""Seconds after which a search ends with what it found, unless its backend sets another limit."""
ASYNC_GREP_TIMEOUT: Final = DEFAULT_GREP_TIMEOUT
ASYNC_GLOB_TIMEOUT: Final = DEFAULT_GREP_TIMEOUT

BackendProtocolV2: TypeAlias = BackendProtocol
SandboxBackendProtocolV2: TypeAlias = SandboxBackendProtocol

AnyBackendProtocol: TypeAlias = BackendProtocol | BackendProtocolV1
"""The backends that `adapt_backend_protocol` accepts."""

BackendFactory: TypeAlias = Callable[[Any], AnyBackendProtocol]
"""The older way to give a backend its runtime; deprecated."""

BACKEND_TYPES: TypeAlias = AnyBackendProtocol | BackendFactory
"""The backends that a composite accepts."""


def as_backend(meant: BACKEND_TYPES) -> BackendProtocol:
    """Return a `BackendProtocol` for a backend of any protocol, or for a factory, which is deprecated.

    Raises TypeError for anything else.
    """
    return meant if isinstance(meant, BackendProtocol) else cast("BackendProtocol", adapters().backend(meant))


async def close_each(backends: Iterable[BackendProtocol]) -> None:
    """Close each backend once, even if the caller is cancelled.

    Raises:
        Exception: The first error of a backend, raised after `aclose` of all backends was called.
    """
    errors = await run_shielded(partial(_close_all, list({id(backend): backend for backend in backends}.values())))
    if errors:
        raise errors[0]


async def _close_all(backends: Sequence[BackendProtocol]) -> list[Exception]:
    errors: list[Exception] = []
    for backend in backends:
        try:
            await backend.aclose()
        except Exception as error:
            errors.append(error)
    return errors


def supports_execute(backend: object) -> bool:
    """Whether `backend` runs commands; known without a call, also through wrappers and composites."""
    capabilities = getattr(backend, "capabilities", None)
    return isinstance(capabilities, Capabilities) and capabilities.executes


def offers_move(backend: BackendProtocol) -> bool:
    """Whether `backend` and all its inner backends offer `move` to a model."""
    inner = (each for each in backend.inner_backends() if isinstance(each, BackendProtocol))
    return backend.offers_move and all(map(offers_move, inner))


def execute_accepts_timeout(cls: type[Any]) -> bool:
    """Whether `execute` of a class of sandboxes takes a `timeout`."""
    try:
        return "timeout" in inspect.signature(cls.execute).parameters
    except (TypeError, ValueError):
        return False


def _code(result: Result) -> str | None:
    """The error code of a failed result; None if it succeeded."""
    return None if result.error is None else (result.code or ErrorCode.BACKEND_ERROR).value


def _no_events(backend: object) -> Iterable[ChangeEvent]:
    raise _refuse(backend, "watch")


def _refuse(backend: object, operation: str) -> NotSupportedError:
    return NotSupportedError(backend=type(backend).__name__, operation=operation)


# --- tenants ---------------------------------------------------------------------------------------------------------


class TenantView(BackendProtocol, SyncCommands):
    """The files of one tenant of a backend; what `at` returns."""

    is_synchronous: bool = True
    _is_layer = True
    _shown = ("inner", "place=_shown_place")

    def __init__(self, inner: BackendProtocol, place: "str | Sequence[str] | Runtime[Any]") -> None:
        choices = [part._choice for part in parts_by_caller(inner) if part._choice is not None]
        if not choices:
            raise ValueError(f"no factory decides about the files of {type(inner).__name__}: it has no tenants")
        self.inner = inner
        self.capabilities: Capabilities = inner.capabilities
        self.is_synchronous = inner.is_synchronous
        self._shown_place: str | None = None  # A runtime may hold what is secret.
        self._runtime: Runtime[Any] | None = None
        self._places: dict[Choice[Any], Any] = {}
        self._choices = frozenset(choices)
        if not isinstance(place, str | Sequence):
            from deepfs._langgraph.private import check_runtime

            self._runtime = check_runtime(place)
        elif all(choice.is_place and choice.factory is choices[0].factory for choice in choices):
            self._places = {choice: choice.check(place) for choice in choices}
            self._shown_place = choices[0].label(self._places[choices[0]])
        else:
            raise ValueError("several factories decide about the files, so pass the Runtime to call them with")

    def inner_backends(self) -> Sequence[object]:
        return (self.inner,)

    def bound_to_this_thread(self) -> bool:
        with self._acting():
            return self.inner.bound_to_this_thread()

    def __getattr__(self, name: str) -> Any:
        """What the backend has beside the operations, such as `ausage` of a quota, for the tenant."""
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        with self._acting():
            found = getattr(self.inner, name)
        if not callable(found):
            return found

        @wraps(found)
        def call(*args: Any, **options: Any) -> Any:
            with self._acting():
                answer = found(*args, **options)
            return self._await(answer) if inspect.isawaitable(answer) else answer

        return call

    async def run(self, operation: Operation) -> Any:
        from deepfs._langgraph.private import acting_caller, iterate_for

        if isinstance(operation, UploadStream):  # The chunks may be those of another tenant.
            operation = replace(operation, chunks=iterate_for(acting_caller.get(), operation.chunks))
        answer = await self._await(self.inner.arun(operation))
        return iterate_for(self._caller(), answer) if isinstance(operation, DownloadStream | Watch) else answer

    async def aclose(self) -> None:
        """Do nothing: what is open belongs to the backend."""

    def _name_places(self) -> list[str]:
        with self._acting():
            return [name for part in parts_by_caller(self.inner) for name in part._name_places()]

    async def _await(self, answer: Awaitable[T]) -> T:
        with self._acting():
            return await answer

    def _acting(self) -> AbstractContextManager[None]:
        from deepfs._langgraph.private import acting_for

        return acting_for(self._caller())

    def _caller(self) -> "Caller":
        from deepfs._langgraph.private import Caller, acting_caller

        before = acting_caller.get()
        others = {choice: place for choice, place in before.places.items() if choice not in self._choices}
        return Caller(self._runtime or before.runtime, {**others, **self._places})


def parts_by_caller(backend: object) -> list[BackendProtocol]:
    """The parts of a backend, or itself, of which a factory decides by the caller which files they have."""
    return [part for part in parts_of(backend) if isinstance(part, BackendProtocol) and part._choice is not None]


def is_by_place(backend: object) -> bool:
    """Whether factories of places decide by the caller about all files of a backend, whatever it consists of."""
    choices = [part._choice if isinstance(part, BackendProtocol) else None for part in parts_of(backend)]
    return all(choice is not None and choice.is_place for choice in choices)


def caller_places(parts: Iterable[BackendProtocol]) -> tuple[Hashable, ...]:
    """The places that the parts by the caller have for this caller. Raises BackendError if a factory fails."""
    return tuple([part._choice() for part in parts if part._choice is not None and part._choice.is_place])


def parts_of_tenants(backend: object) -> list[BackendProtocol]:
    """The same parts, and those that are views of one tenant."""
    parts = [part for part in parts_of(backend) if isinstance(part, BackendProtocol)]
    return [part for part in parts if part._choice is not None or isinstance(part, TenantView)]


def tenant_of(parts: Iterable[BackendProtocol]) -> str | None:
    """The places of these parts for this caller, for people; None where there are none, or a factory fails."""
    try:
        return ", ".join(dict.fromkeys(name for part in parts for name in part._name_places())) or None
    except DeepFSError:
        return None


def parts_of(backend: object) -> list[object]:
    """The backends that store the files of a backend. A view has the files of one tenant only."""
    if isinstance(backend, TenantView) or not isinstance(backend, BackendProtocol):
        return [backend]
    return [part for each in backend.inner_backends() for part in parts_of(each)] or [backend]
