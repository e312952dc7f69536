"""The interface of every backend: the operations with their contract, without implementation."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from deepfs.errors import NotSupportedError
from deepfs.operations import CHUNK_BYTES, Operation
from deepfs.sync import sync_shims
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing
from deepfs.types import (
    ChangeEvent,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["CHUNK_BYTES", "Capabilities", "Operations", "SyncCommands", "without_defaults"]


class Capabilities(Struct, frozen=True):
    """The ways in which backends may differ, declared as data."""

    keeps_empty_directories: bool = False
    keeps_created_at: bool = True
    durable: bool = False
    """What is stored outlives the process."""
    executes: bool = False
    """The backend runs commands (`aexecute`)."""
    deletes: bool = True
    """The backend deletes files (`adelete`). For a class that defines no `adelete` this is set to False."""
    watches: bool = False
    """The backend reports every change as it happens, whoever makes it (`awatch`)."""
    atomic_between_processes: bool = False
    """Create-only writes, edits and `if_match` hold also against other processes, on this machine and on others that
    use the storage."""


if TYPE_CHECKING:
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


@sync_shims
class Operations(SyncSurface, ABC):
    """The operations of a backend. Derive from `BackendProtocol`, which implements some operations with others."""

    capabilities: Capabilities
    is_synchronous: bool
    offers_move: bool
    offers_changes: bool
    judges_results: bool

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

    @abstractmethod
    async def arun(self, operation: Operation) -> Any:
        """Carry out an operation that is given as a value.

        Args:
            operation: The operation.

        Returns:
            What `run` returns, or the failed result.

        Raises:
            DeepFSError: The operation failed, and has no result that says so, such as `Execute`.
        """

    @abstractmethod
    def inner_backends(self) -> Sequence[object]:
        """The backends, of any protocol, that this one passes calls on to.

        Returns:
            An empty sequence if this backend stores files itself.
        """

    @abstractmethod
    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread.

        Returns:
            True where a synchronous call in this thread would wait for itself; such calls are refused.
        """

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    async def als(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path.

        Args:
            path: The directory.

        Returns:
            `entries`, each with its path, size in bytes and time of modification where they are known; the path of a
            directory ends in `/`. Errors: `file_not_found`, `not_a_directory`.
            See the contract under "ls".
        """

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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
        raise NotImplementedError

    @abstractmethod
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
        raise NotImplementedError

    @abstractmethod
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

    @abstractmethod
    async def aread_raw(self, path: str) -> ReadRawResult:
        """Read a whole file with its times.

        Args:
            path: The file.

        Returns:
            `data`, with the content and both times. Errors: `file_not_found`, `is_directory`, `too_large`.
            See the contract under "read and read_raw".
        """

    @abstractmethod
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

    @abstractmethod
    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all that is in it. At every instant one of both paths has the file.

        Args:
            src: What to move.
            dst: Its new path.
            overwrite: Replace a file at `dst`. A directory is never replaced.

        Returns:
            The new path. Errors: as of `acopy`. See the contract under "delete, move and copy".
        """

    @abstractmethod
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store files of any bytes, replacing what is there.

        Args:
            files: The path and the bytes of each file.

        Returns:
            One outcome for each file, in order; its `error` is None or a code. Errors: `is_directory`,
            `not_a_directory`, `invalid_path`, `permission_denied`, `too_large`, `unsupported` where the backend stores
            text only. See the contract under "upload_files and download_files".
        """

    @abstractmethod
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files.

        Args:
            paths: The files.

        Returns:
            One outcome for each path, in order, with `content` or a code as `error`. Errors: `file_not_found`,
            `is_directory`, `invalid_path`, `permission_denied`, `too_large`.
            See the contract under "upload_files and download_files".
        """

    @abstractmethod
    def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
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

    @abstractmethod
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

    @abstractmethod
    def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
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

    @abstractmethod
    async def aclose(self) -> None:
        """Close what this backend made for itself: clients, pools, a workspace.

        What the caller passed in, such as a store, a client or a sandbox, stays open. Wrappers and composites close the
        backends behind them. It completes even if the caller is cancelled, and a second call does nothing. Afterwards,
        a backend that had something to close returns `backend_error`; other backends continue to work.
        """


def without_defaults(**options: Any) -> dict[str, Any]:
    """The options that are neither None nor False, so that a backend that lacks the others can be called."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
