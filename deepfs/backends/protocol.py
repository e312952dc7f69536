"""The operations that every backend offers."""

from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from deepfs.backends._completion import bound_operations, complete
from deepfs.backends._v1 import BackendProtocolV1, SandboxBackendProtocolV1
from deepfs.core import paths
from deepfs.core.arguments import check_number
from deepfs.core.identity import StoragePlace, flat_place
from deepfs.core.trees import EntryChange, TreeListing
from deepfs.errors import DeepFSError, NotSupportedError
from deepfs.sync import sync_shims
from deepfs.types import (
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
    WriteResult,
    failed_as,
)

__all__ = [
    "BACKEND_TYPES",
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
    "ExecuteResponse",
    "FileData",
    "FileDataV1",
    "FileDataV2",
    "FileDownloadResponse",
    "FileInfo",
    "FileOperationError",
    "FileUploadResponse",
    "GlobResult",
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
    "supports_execute",
]


CHUNK_BYTES = 1024 * 1024


class Capabilities(Struct, frozen=True):
    """The ways in which backends may differ, declared as data."""

    keeps_empty_directories: bool = False
    keeps_created_at: bool = True
    durable: bool = False
    """What is stored outlives the process."""
    executes: bool = False
    """The backend runs commands (`aexecute`)."""


if TYPE_CHECKING:
    from deepfs.backends._surface import SyncCommands, SyncSurface
else:

    class SyncSurface:
        pass

    class SyncCommands:
        """A base of backends that define `aexecute`: type checkers learn of `execute` by it."""


@sync_shims
@bound_operations
class BackendProtocol(SyncSurface, ABC):
    """A filesystem for agents, over whatever stores it.

    A subclass defines the abstract operations, each as `aread` (async) or as `read` (sync, run in a worker thread); the
    other name of each is generated. Methods may raise the leaves of `deepfs.errors`: callers get them as the error
    of the operation's Result. Paths are absolute and POSIX; a `..` segment, a leading `~`, NUL, a lone surrogate, a
    component over 255 bytes and a drive letter are `invalid_path`.
    """

    capabilities: Capabilities = Capabilities()
    never_waits: bool = False
    """Its coroutines never suspend, so sync calls need no event loop; a class that adds async code declares it anew."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls, BackendProtocol)

    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread; sync calls are refused there."""
        return False

    async def areal_paths(self, paths: list[str]) -> list[str | None]:
        """Where each path leads once links are followed, or would lead once it is made; None where that is nowhere.

        On storage without links, as here, the paths themselves. Whoever judges paths judges these as well; a layer that
        changes paths on their way to another backend changes these back.
        """
        return [*paths]

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        """Every entry at or under `path` as a transfer to another storage needs them: more than `als` shows.

        It is made of `als` and `areal_paths` here. A backend overrides it where it knows of links, special files, mode
        bits, or names that are in no valid path. With `deleting`, what may be read but not deleted counts as omitted.
        Raises leaves of `deepfs.errors`: FileMissingError where nothing is at `path`, AccessError and NotSupportedError
        where nothing can be deleted.
        """
        from deepfs.backends._trees import listed_tree

        listing = await listed_tree(self, path)
        if deleting and type(self).adelete is BackendProtocol.adelete:
            raise _unsupported(self, "delete")
        return listing

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        """Changes of directories and mode bits that a transfer needs; one outcome for each, in order.

        Here no directory can be made (`unsupported`), modes are not kept, and a directory is removed by `adelete` if a
        listing just before shows that nothing is in it.
        """
        from deepfs.backends._trees import changed_entry

        return [await changed_entry(self, change) for change in changes]

    async def astorage_place(self, path: str) -> StoragePlace:
        """Which storage `path` lies in, and where, by names that do not depend on this object: two mounts compare them.

        Here what is stored at a path belongs to this object and that path, and what others reach is not known: copies
        and moves between it and others find out by a file that they make for a moment. A layer that changes paths on
        their way to another backend asks that one about the changed path.
        """
        scope = ("object", id(self))
        return flat_place(scope, paths.normalize(path), storage=scope)

    @abstractmethod
    async def als(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path; directories end in `/`.

        Errors: file_not_found, not_a_directory.
        """

    @abstractmethod
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        r"""Read `limit` lines from line `offset` (from 0) of a text file, or the whole of a binary one as base64.

        A line ends at `\n`; terminators are kept as stored and a BOM is hidden, so the windows that `next_offset` leads
        through join to the text. Errors: file_not_found, is_directory, too_large, and invalid_content where `offset` is
        past the end.
        """

    @abstractmethod
    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        """Create a text file with the directories above it; a reader sees the old file or the new one.

        `overwrite` replaces what is there; `if_match`, a `version` that a read returned, replaces just that version.
        Errors: already_exists, conflict, is_directory, not_a_directory, invalid_content.
        """

    @abstractmethod
    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        r"""Replace the literal text `old` by `new`, once, or everywhere with `replace_all`.

        No byte outside the replacement changes. In a CRLF file `\n` in `old` also matches `\r\n`, and `new` follows
        suit. Edits of one file are applied one after another. Errors: file_not_found, no_match, ambiguous_match,
        binary_file, conflict, invalid_content (empty or identical strings).
        """

    @abstractmethod
    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        """List the files that match, sorted by path.

        Without `/` the pattern is the name at any depth under `path`; with one it is relative to `path`. `* ** ? [abc]
        [!abc] {a,b}`; a dot-name needs a segment that starts with `.`. Errors: invalid_pattern, file_not_found,
        not_a_directory.
        """

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
        """Find the lines that hold a literal text, or match a regular expression, in the files under `path`.

        Matches are sorted by path, then line. `glob` chooses the files, `max_count` ends the search after so many
        matches (`truncated`). Binary files are passed over; `skipped` counts files that could not be searched.
        Errors: invalid_pattern, file_not_found.
        """

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all under it.

        `if_match`, a `version` that a read returned, deletes a file just where it is that version. Errors:
        file_not_found, conflict, is_directory where `if_match` is given for one, permission_denied for `/`, unsupported
        where the backend cannot delete.
        """
        raise _unsupported(self, "delete")

    async def aread_raw(self, path: str) -> ReadRawResult:
        """Read the whole file with its timestamps. Errors: file_not_found, is_directory, too_large."""
        read = await self.aread(path, 0, 2**31 - 1)
        return ReadRawResult(data=read.file_data) if read.ok else failed_as(ReadRawResult, read)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Copy a file, or a directory with all under it.

        Errors: file_not_found, already_exists, is_directory, not_a_directory, invalid_path for a copy into itself.
        """
        from deepfs.backends._identity import End, are_one
        from deepfs.backends.transfer import copy_tree

        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=False):
            src = dst
        keeps_empty = self.capabilities.keeps_empty_directories
        return await copy_tree(self, src, self, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all under it; at no instant are both ends gone. Errors as in `acopy`."""
        from deepfs.backends._identity import End, are_one
        from deepfs.backends.transfer import move_tree

        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=True):
            return WriteResult(path=dst)
        keeps_empty = self.capabilities.keeps_empty_directories
        return await move_tree(self, src, self, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store bytes, replacing what is there; one outcome for each item, in order."""
        return [await self._upload_text(path, content) for path, content in files]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch bytes; one outcome for each path, in order."""
        return [await self._download(path) for path in paths]

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in chunks of at most `chunk_size`; raises the leaf of `deepfs.errors` where that fails.

        All are of one version of the file. Where a backend has no way of its own, it holds the whole file meanwhile.
        """
        from deepfs.backends.transfer import downloaded

        check_number("chunk_size", chunk_size)
        content = await downloaded(self, path)
        for start in range(0, len(content), chunk_size):
            yield content[start : start + chunk_size]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        """Store the bytes of all `chunks` as one file, replacing what is there once they are complete.

        What `chunks` raises is raised, and nothing changed; a generator is closed in any case. Where a backend has no
        way of its own, it holds the whole file meanwhile; over 256 MB is `too_large`.
        """
        from deepfs.backends.transfer import collected

        try:
            content = await collected(path, chunks)
        except DeepFSError as error:
            return FileUploadResponse(path, error.code.value)
        [outcome] = await self.aupload_files([(path, content)])
        return outcome

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

    @property
    @abstractmethod
    def id(self) -> str:
        """What tells this sandbox from others."""

    @abstractmethod
    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command and return its output; `timeout` is in seconds."""


FileOperationError: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]
"""The error codes of uploads and downloads in deepagents; those of deepfs may be others of `ErrorCode` as well."""

BackendProtocolV2: TypeAlias = BackendProtocol
SandboxBackendProtocolV2: TypeAlias = SandboxBackendProtocol

AnyBackendProtocol: TypeAlias = BackendProtocol | BackendProtocolV1
"""What `adapt_backend_protocol` takes."""

BackendFactory: TypeAlias = Callable[[Any], AnyBackendProtocol]
"""The older way to give a backend its runtime; deprecated."""

BACKEND_TYPES: TypeAlias = AnyBackendProtocol | BackendFactory
"""What a composite takes."""


def supports_execute(backend: object) -> bool:
    """Whether `backend` runs commands; known without a call, also through wrappers and composites."""
    capabilities = getattr(backend, "capabilities", None)
    return isinstance(capabilities, Capabilities) and capabilities.executes


def _code(result: Result) -> str | None:
    """The bare error code of a failed result."""
    return None if result.error is None else (result.code or ErrorCode.BACKEND_ERROR).value


def _unsupported(backend: object, operation: str) -> NotSupportedError:
    return NotSupportedError(f"Error: {type(backend).__name__} does not support {operation}")
