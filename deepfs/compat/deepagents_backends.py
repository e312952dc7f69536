"""Adapters between the backend protocols of deepfs and deepagents, in both directions.

Importing this module imports deepagents.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar, cast

from deepagents.backends import CompositeBackend as PeerCompositeBackend
from deepagents.backends import FilesystemBackend as PeerFilesystemBackend
from deepagents.backends import StateBackend as PeerStateBackend
from deepagents.backends import protocol as peer

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.backends.state import StateBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.compat.adapters import (
    AdaptedBackend,
    AdaptedSandbox,
    Call,
    FactoryBackend,
    adapt_backend_protocol,
    awaitable,
    backend_from,
    caller_of,
    own_instead,
)
from deepfs.errors import DeepFSError, ErrorCode, InvalidPathError, NotSupportedError, quote
from deepfs.operations import Batch, DownloadFiles, UploadFiles
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sync import run_sync, sync_shims
from deepfs.text import paths
from deepfs.threads.loop_bridge import on_asyncio
from deepfs.types import (
    EditResult,
    FileDataV2,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    Result,
    WriteResult,
    error_from,
    failure,
)

# --- results of deepagents, with the texts that its tools and rules search for ---------------------------------------

SANDBOX_BINARY_BYTES: Final = 500 * 1024
"""The most bytes of a binary file that deepagents reads from a sandbox."""

_IMAGES: Final = (".png", ".jpeg", ".jpg", ".webp", ".gif", ".heic", ".heif")
_VIDEOS: Final = (".mp4", ".mpeg", ".mov", ".avi", ".flv", ".mpg", ".webm", ".wmv", ".3gpp", ".mkv")
_SOUNDS: Final = (".wav", ".mp3", ".aiff", ".aac", ".ogg", ".flac")
_DOCUMENTS: Final = (".pdf", ".ppt", ".pptx")

SHOWN_EXTENSIONS: Final = frozenset((*_IMAGES, *_VIDEOS, *_SOUNDS, *_DOCUMENTS))
"""Extensions of files that deepagents shows to a model in their own type; other binaries it sends as a document."""

_LISTING: Final = {ErrorCode.FILE_NOT_FOUND: "path_not_found", ErrorCode.NOT_A_DIRECTORY: "not_a_directory"}
"""The names of these conditions in a listing of deepagents; its rule for `delete` searches for the second."""

_TIMED_OUT: Final = 124
"""The exit code of the command `timeout` when the time is up."""


def _bare(error: str | None) -> str | None:
    """Remove the prefix `Error: `, which the tool of deepagents adds itself."""
    return None if error is None else error.removeprefix("Error: ")


def _plain(records: list[Any] | None) -> list[Any] | None:
    """Convert records to dicts, as deepagents has them."""
    if records is None:
        return None
    return [{key: _plain(each) if isinstance(each, list) else each for key, each in item.items()} for item in records]


def peer_listing(result: LsResult, path: str) -> peer.LsResult:
    """Convert the result of `ls`."""
    error = _bare(result.error)
    if result.code in _LISTING and result.entries is None:
        error = f"Path {quote(path)}: {_LISTING[result.code]}"
    return peer.LsResult(error=error, entries=_plain(result.entries))


def peer_reading(result: ReadResult, path: str, binary_limit: int | None) -> peer.ReadResult:
    """Convert the result of `read`; binary content that deepagents cannot show becomes an error."""
    data = result.file_data
    error = (
        _bare(result.error) if result.error is not None or data is None else _explain_binary(data, path, binary_limit)
    )
    if error is not None or data is None:
        return peer.ReadResult(error=error)
    shown: Any = {key: value for key, value in data.items() if key != "mime_type"}
    if result.start_line is None:
        return peer.ReadResult(file_data=shown, no_lines_requested=result.no_lines_requested)
    return peer.ReadResult(
        file_data=shown,
        total_lines=result.total_lines,
        start_line=result.start_line,
        end_line=result.end_line,
        next_offset=result.next_offset,
    )


def _explain_binary(data: FileDataV2, path: str, limit: int | None) -> str | None:
    """The error text if deepagents cannot show the content; otherwise None."""
    if data.encoding == "utf-8":
        return None
    if PurePosixPath(path).suffix.lower() not in SHOWN_EXTENSIONS:
        kind = data.mime_type or "unknown type"
        return f"File {quote(path)} is binary ({kind}) and cannot be shown; download it, or read it by a command"
    if limit is not None and len(data.content) // 4 * 3 - data.content.count("=") > limit:
        return f"File {quote(path)}: Binary file exceeds maximum preview size of {limit} bytes"
    return None


def peer_matches(result: GrepResult, pattern: str) -> peer.GrepResult:
    """Convert the result of `grep`; as in deepagents, `error` may name skipped files beside the matches."""
    lines = {(match.path, match.line) for match in result.matches or ()}
    matches = _plain(result.matches)
    for match in matches or ():
        for side in ("context_before", "context_after"):
            if side in match:
                beside = [line for line in match[side] if (match["path"], line["line"]) not in lines]
                match[side] = [line for line in beside if pattern not in line["text"]]
    error = result.error
    if result.skipped:
        files = "1 file" if result.skipped == 1 else f"{result.skipped:,} files"
        skipped = f"Error: {files} could not be searched: binary, too large or unreadable"
        error = skipped if error is None else f"{error}\n{skipped}"
    return peer.GrepResult(error=error, matches=matches, truncated=result.truncated)


def peer_files(result: GlobResult) -> peer.GlobResult:
    """Convert the result of `glob`."""
    reason: Any = result.truncation_reason or "budget" if result.truncated else None
    return peer.GlobResult(
        error=_bare(result.error), matches=_plain(result.matches), truncated=result.truncated, truncation_reason=reason
    )


# --- backends --------------------------------------------------------------------------------------------------------

_BASES = (peer.BackendProtocol, peer.SandboxBackendProtocol)


def _owner(kind: type, name: str) -> type | None:
    """The class that defines a method."""
    return next((base for base in kind.__mro__ if name in vars(base)), None)


class DeepagentsBackend(AdaptedBackend):
    """A backend of deepagents as one of deepfs."""

    def _call(self, operation: str) -> Call | None:
        name = f"a{operation}"
        kind = type(self.adapted)
        owners = {each: _owner(kind, each) for each in (operation, name)}
        if operation == "delete" and {*owners.values()} <= {*_BASES, None}:
            return None
        # An async method of the base classes only runs the sync one, in a thread that cannot be cancelled. One of a
        # class above the one with the sync method does not know of that.
        native, sync = owners[name], owners[operation]
        is_native = native is not None and native not in _BASES and (sync is None or issubclass(native, sync))
        if is_native and (on_asyncio() or sync is None or sync in _BASES):
            return caller_of(self.adapted, name)
        return None if sync is None else awaitable(getattr(self.adapted, operation))


class DeepagentsSandbox(DeepagentsBackend, AdaptedSandbox):
    """A sandbox of deepagents as one of deepfs."""


def from_deepagents(backend: object) -> BackendProtocol:
    """Adapt a backend of deepagents to deepfs. Raises TypeError if it is not one."""
    own = own_instead(backend, _adapt_mounted)
    if own is not None:
        return own
    if isinstance(backend, peer.SandboxBackendProtocol):
        return DeepagentsSandbox(backend)
    if isinstance(backend, peer.BackendProtocol):
        return DeepagentsBackend(backend)
    raise TypeError(f"{type(backend).__name__} is no backend of deepagents")


def _adapt_mounted(backend: Any) -> BackendProtocol:
    return from_deepagents(backend) if isinstance(backend, peer.BackendProtocol) else adapt_backend_protocol(backend)


ResultT = TypeVar("ResultT", bound=Result)


@sync_shims
class ToDeepagents(peer.BackendProtocol):
    """The operations of deepagents on a backend of deepfs; the sync ones are generated.

    Rules of deepagents match the text of a path, so a path that is not in normal form is refused.
    """

    def __init__(self, inner: BackendProtocol) -> None:
        self.inner: BackendProtocol = inner
        self.is_synchronous: bool = inner.is_synchronous

    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread; sync calls are refused there."""
        return self.inner.bound_to_this_thread()

    def _refusal(self, path: str | None, result: type[ResultT]) -> ResultT | None:
        """The failed result for a path that is not in normal form; otherwise None."""
        if path is None or _is_normal(path):
            return None
        return failure(result, InvalidPathError(path, "name it without empty names and '.'"))

    def _binary_limit(self, path: str) -> int | None:
        """The most bytes of a binary file that a read may return; None for any number."""
        return None

    async def als(self, path: str) -> peer.LsResult:
        return peer_listing(self._refusal(path, LsResult) or await self.inner.als(path), path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> peer.ReadResult:
        read = self._refusal(file_path, ReadResult) or await self.inner.aread(file_path, offset, limit)
        return peer_reading(read, file_path, self._binary_limit(file_path))

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
        context_lines: int = 0,
    ) -> peer.GrepResult:
        if context_lines < 0:
            raise ValueError(f"context_lines must not be negative, not {context_lines}")
        options = _without_defaults(max_count=max_count, context_lines=context_lines or None)
        found = self._refusal(path, GrepResult) or await self.inner.agrep(pattern, path, glob, **options)
        return peer_matches(found, pattern)

    async def aglob(self, pattern: str, path: str | None = None) -> peer.GlobResult:
        return peer_files(self._refusal(path, GlobResult) or await self.inner.aglob(pattern, path or "/"))

    async def awrite(self, file_path: str, content: str) -> peer.WriteResult:
        written = self._refusal(file_path, WriteResult) or await self.inner.awrite(file_path, content, overwrite=True)
        if written.code is ErrorCode.UNSUPPORTED:
            written = await self.inner.awrite(file_path, content)
        return peer.WriteResult(error=written.error, path=written.path)

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> peer.EditResult:
        edited = self._refusal(file_path, EditResult)
        edited = edited or await self.inner.aedit(file_path, old_string, new_string, replace_all)
        if edited.code is ErrorCode.NO_MATCH and "\r" in old_string:
            # In deepagents, the text to replace may have other line ends than the file.
            again = await self.inner.aedit(file_path, _with_lf(old_string), _with_lf(new_string), replace_all)
            edited = again if again.ok else edited
        return peer.EditResult(error=edited.error, path=edited.path, occurrences=edited.occurrences)

    async def adelete(self, file_path: str) -> peer.DeleteResult:
        refused = self._refusal(file_path, Result)
        if refused is not None:
            return peer.DeleteResult(error=refused.error)
        deleted = await self.inner.adelete(file_path)
        return peer.DeleteResult(error=deleted.error, path=deleted.path)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[peer.FileUploadResponse]:
        outcomes = await UploadFiles(files).where(self._check, self.inner.arun)
        return [peer.FileUploadResponse(path=outcome.path, error=outcome.error) for outcome in outcomes]

    async def adownload_files(self, paths: list[str]) -> list[peer.FileDownloadResponse]:
        outcomes = await DownloadFiles(paths).where(self._check, self.inner.arun)
        return [
            peer.FileDownloadResponse(path=outcome.path, content=outcome.content, error=outcome.error)
            for outcome in outcomes
        ]

    async def _check(self, one: Batch) -> None:
        """Raise if the path of an item is refused."""
        refused = self._refusal(one.paths[0], Result)
        if refused is not None:
            raise error_from(refused)


def _is_normal(path: str) -> bool:
    """Whether `path` has no empty name and no `.` in it; the root may be written as `/.`, as deepagents does."""
    within = path.removeprefix("/").removesuffix("/")
    return within in ("", ".") or not {"", "."} & set(within.split("/"))


def _with_lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@sync_shims
class ToDeepagentsSandbox(ToDeepagents, peer.SandboxBackendProtocol):
    """The operations of deepagents on a backend that runs commands."""

    @property
    def id(self) -> str:
        return str(getattr(self.inner, "id", None) or f"deepfs-{id(self.inner):x}")

    def _binary_limit(self, path: str) -> int | None:
        return SANDBOX_BINARY_BYTES

    async def aexecute(self, command: str, *, timeout: int | None = None) -> peer.ExecuteResponse:
        try:
            done = await cast("SandboxBackendProtocol", self.inner).aexecute(
                command, **_without_defaults(timeout=timeout)
            )
        except NotSupportedError as error:
            raise NotImplementedError(str(error)) from error
        exit_code = done.exit_code if done.timed_out is None else _TIMED_OUT
        return peer.ExecuteResponse(output=done.output, exit_code=exit_code, truncated=done.truncated)


class ToDeepagentsOnDisk(ToDeepagents, PeerFilesystemBackend):
    """The operations of deepagents on a backend with links.

    For a FilesystemBackend, deepagents resolves links by `_real_path` and checks the resolved path as well.
    """

    def _refusal(self, path: str | None, result: type[ResultT]) -> ResultT | None:
        return None

    def _real_path(self, key: str) -> str:
        """Resolve the links in `key`. Raises ValueError if it leads nowhere."""
        try:
            real = _real_path(self.inner, key)
        except DeepFSError as error:
            raise ValueError(str(error)) from error
        if real is None:
            raise ValueError(f"{key!r} leads nowhere")
        return real

    @property
    def cwd(self) -> Path:  # type: ignore[override]
        """The root directory. Raises AttributeError if no inner backend has one."""
        return cast("Path", _on_disk(self.inner).cwd)

    @property
    def virtual_mode(self) -> bool:  # type: ignore[override]
        """Whether paths are relative to the root directory, not paths of the host."""
        return bool(_on_disk(self.inner).virtual_mode)

    @property
    def max_file_size_bytes(self) -> int:  # type: ignore[override]
        """The size above which files are not searched."""
        return int(_on_disk(self.inner).max_file_size_bytes)


class ToDeepagentsComposite(ToDeepagents, PeerCompositeBackend):
    """The operations of deepagents on a backend that mounts backends, or on a wrapper of one.

    deepagents reads `default` and `routes` to resolve links and to find files in state and the backend that runs
    commands; all operations are those of `inner`. Middleware stores its files in `artifacts_root`.
    """

    def __init__(
        self, inner: BackendProtocol, default: ToDeepagents, routes: dict[str, ToDeepagents], artifacts_root: str
    ) -> None:
        super().__init__(inner)
        self.default: Any = default
        self.routes: Any = routes
        self.sorted_routes: Any = sorted(routes.items(), key=lambda item: len(item[0]), reverse=True)
        self.artifacts_root = artifacts_root

    def _binary_limit(self, path: str) -> int | None:
        backend, key = self._get_backend_and_key(path)
        return cast("ToDeepagents", backend)._binary_limit(key)


class _ExecutingComposite(ToDeepagentsComposite, ToDeepagentsSandbox):
    """A composite that runs commands."""


# --- choosing a class ------------------------------------------------------------------------------------------------


def to_deepagents(backend: BACKEND_TYPES) -> ToDeepagents:
    """Adapt `backend` to deepagents, by the class that has the right bases."""
    inner = backend_from(backend)
    root = _artifacts_root(inner)
    if isinstance(inner, CompositeBackend):
        return _composite(inner, root)
    single = _single(inner)
    return single if root is None else _composite_kind(inner)(inner, single, {}, root)


def _single(inner: BackendProtocol) -> ToDeepagents:
    return _kind(supports_execute(inner), _has_links(inner), _keeps_state(inner))(inner)


@cache
def _kind(executes: bool, has_links: bool, keeps_state: bool) -> type[ToDeepagents]:
    """The class with the bases that deepagents tests with isinstance to learn what a backend can do."""
    known = ((ToDeepagentsSandbox, executes), (ToDeepagentsOnDisk, has_links), (PeerStateBackend, keeps_state))
    bases: list[Any] = [base for base, wanted in known if wanted]
    if not (executes or has_links):
        bases.insert(0, ToDeepagents)
    return bases[0] if len(bases) == 1 else cast("type[ToDeepagents]", type("ToDeepagents", tuple(bases), {}))


def _composite(inner: CompositeBackend, artifacts_root: str | None) -> ToDeepagents:
    routes = {f"{paths.normalize(route)}/": backend for route, backend in inner.routes.items()}
    executor = inner.executor
    default = to_deepagents(inner.default)
    if executor is not inner.default and supports_execute(inner):
        # Commands reach the files of their mount whatever the rules say, so it is not shown as a mount of its own.
        routes = {route: backend for route, backend in routes.items() if backend is not executor}
        default = _single(inner)
    mounts = {route: to_deepagents(backend) for route, backend in routes.items()}
    return _composite_kind(inner)(inner, default, mounts, artifacts_root or "/")


def _composite_kind(inner: BackendProtocol) -> type[ToDeepagentsComposite]:
    return _ExecutingComposite if supports_execute(inner) else ToDeepagentsComposite


def _inner(backend: object) -> Sequence[object]:
    """The backends, of any protocol, that `backend` passes calls on to."""
    if isinstance(backend, BackendProtocol):
        return backend.inner_backends()
    inner = getattr(backend, "inner", None)
    return () if inner is None else (inner,)


def _artifacts_root(backend: object) -> str | None:
    """The `artifacts_root` of the composite that `backend` is or wraps; None without one."""
    root = getattr(backend, "artifacts_root", None)
    return root if root is not None else next(filter(None, map(_artifacts_root, _inner(backend))), None)


def _keeps_state(backend: object) -> bool:
    """Whether `backend` or an inner backend may keep files in state; a factory may return one that does."""
    kinds = StateBackend | FactoryBackend | PeerStateBackend
    return isinstance(backend, kinds) or any(map(_keeps_state, _inner(backend)))


# --- resolving links -------------------------------------------------------------------------------------------------


def _has_links(backend: object) -> bool:
    """Whether a path of `backend` may resolve to another path."""
    if isinstance(backend, BaseSandbox) or not isinstance(backend, BackendProtocol):
        return False  # deepagents asks in a sync method on its event loop, where no command of a sandbox can run.
    inner = () if isinstance(backend, AdaptedBackend) else _inner(backend)
    return any(map(_has_links, inner)) if inner else backend.capabilities.has_links


def _real_path(backend: BackendProtocol, path: str) -> str | None:
    """Resolve the links in `path`. deepagents calls this on its event loop, from a sync method."""
    while isinstance(backend, FactoryBackend | WrapperBackend) and type(backend).__module__.startswith("deepfs."):
        backend = backend.current() if isinstance(backend, FactoryBackend) else backend.inner
    if type(backend).run is FilesystemBackend.run:
        return cast("FilesystemBackend", backend).real_path(path)  # A few system calls: faster than `run_sync`.
    [real] = run_sync(backend.aresolve_paths, [path])
    return real


def _on_disk(backend: object) -> Any:
    """The first FilesystemBackend in `backend` or its inner backends. Raises AttributeError if there is none."""
    found = next(_directories(backend), None)
    if found is None:
        raise AttributeError(f"{type(backend).__name__} has no directory")
    return found


def _directories(backend: object) -> Iterator[Any]:
    if isinstance(backend, FilesystemBackend | PeerFilesystemBackend):
        yield backend
    elif isinstance(backend, FactoryBackend):
        yield from _directories(backend.current())
    else:
        for inner in _inner(backend):
            yield from _directories(inner)


def _without_defaults(**options: Any) -> dict[str, Any]:
    """The options that are neither None nor False, so that a backend that lacks the others can be called."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
