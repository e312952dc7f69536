"""The operations that every backend offers."""

import inspect
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, Literal, NotRequired, Self, TypeAlias, TypedDict, cast

from deepfs._brief import arguments, shown_attributes
from deepfs.backends._class_setup import answer, complete, complete_protocol
from deepfs.backends._trees import End, are_one, changed_entry, listed_tree
from deepfs.backends.older_protocols import BackendProtocolV1, SandboxBackendProtocolV1, adapters
from deepfs.backends.operations import CHUNK_BYTES, Capabilities, Operations, SyncCommands
from deepfs.backends.transfer import collected, copy_tree, downloaded, move_tree
from deepfs.errors import DeepFSError, NotSupportedError
from deepfs.operations import Operation
from deepfs.search.results import SEARCH_SECONDS
from deepfs.sync import call_sync, shielded
from deepfs.text import paths
from deepfs.text.arguments import chunk_bytes
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing, flat_place
from deepfs.types import (
    ChangeEvent,
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
    failed_as,
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


@complete_protocol
class BackendProtocol(Operations):
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
    _is_layer: bool = False
    """Whether it stands before another backend, to which it passes on what it does not override."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls, BackendProtocol, is_layer=cls._is_layer)

    def __repr__(self) -> str:
        try:
            shown = shown_attributes(self, self._shown) or arguments(*self.inner_backends())
        except Exception:  # The constructor failed, or did not call that of its base.
            shown = ""
        return f"{type(self).__name__}({shown})" if shown else object.__repr__(self)

    async def arun(self, operation: Operation) -> Any:
        return await answer(type(self).run, self, operation)

    def inner_backends(self) -> Sequence[object]:
        return ()

    def bound_to_this_thread(self) -> bool:
        return False

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        return [*paths]

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        listing = await listed_tree(self, path)
        if deleting and not self.capabilities.deletes:
            raise _unsupported(self, "delete")
        return listing

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        return [await changed_entry(self, change) for change in changes]

    async def astorage_place(self, path: str) -> StoragePlace:
        scope = ("object", id(self))
        return flat_place(scope, paths.normalize(path), storage=scope)

    async def als(self, path: str) -> LsResult:
        raise _unsupported(self, "ls")

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        raise _unsupported(self, "read")

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        raise _unsupported(self, "write")

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        raise _unsupported(self, "edit")

    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        raise _unsupported(self, "glob")

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
        raise _unsupported(self, "grep")

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        raise _unsupported(self, "delete")

    async def aread_raw(self, path: str) -> ReadRawResult:
        read = await self.aread(path, 0, 2**31 - 1)
        return ReadRawResult(data=read.file_data) if read.ok else failed_as(ReadRawResult, read)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=False):
            src = dst
        keeps_empty = self.capabilities.keeps_empty_directories
        return await copy_tree(self, src, self, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)
        if await are_one(self, src, dst, [End(self, src)], End(self, dst), moving=True):
            return WriteResult(path=dst)
        keeps_empty = self.capabilities.keeps_empty_directories
        return await move_tree(self, src, self, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [await self._upload_text(path, content) for path, content in files]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [await self._download(path) for path in paths]

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        chunk_size = chunk_bytes(chunk_size)
        content = await downloaded(self, path)
        for start in range(0, len(content), chunk_size):
            yield content[start : start + chunk_size]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        try:
            content = await collected(path, chunks)
        except DeepFSError as error:
            return FileUploadResponse(path, error.code.value)
        [outcome] = await self.aupload_files([(path, content)])
        return outcome

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        for event in _no_events(self):
            yield event

    # --- closing ---

    async def aclose(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await shielded(self.aclose)

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
    """The result of `BaseSandbox.execute_with_offload`.

    `offloaded` says that the whole output is in the file, and `response.output` is its beginning and end. Then
    `preview_has_truncation_marker` says whether a line of the output stands for what is left out between them.
    """

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
    errors = await shielded(partial(_closing_errors, list({id(backend): backend for backend in backends}.values())))
    if errors:
        raise errors[0]


async def _closing_errors(backends: Sequence[BackendProtocol]) -> list[Exception]:
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
    raise _unsupported(backend, "watch")


def _unsupported(backend: object, operation: str) -> NotSupportedError:
    return NotSupportedError(backend=type(backend).__name__, operation=operation)
