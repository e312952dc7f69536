"""Adapts backends of the V1 protocol, of the protocol of deepagents, and factories of backends, to that of deepfs.

V1 backends are synchronous: `ls_info`, `read` with numbered text, `grep_raw`, `glob_info`, `write` that only creates,
`edit`, and perhaps `upload_files`, `download_files`, `delete`, `execute`. They run in worker threads.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from deepfs._deprecated import already_warned, warn_deprecated
from deepfs.backends import foreign
from deepfs.backends._trees import list_tree
from deepfs.backends.foreign import V1_NAMES, Adapters, is_v1, register, shows_file, takes_option
from deepfs.backends.namespace import Choice
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    AnyBackendProtocol,
    BackendFactory,
    BackendProtocol,
    Capabilities,
    SandboxBackendProtocol,
    StoragePlace,
    SyncCommands,
)
from deepfs.backends.transfer import download_file
from deepfs.errors import (
    AlreadyExistsError,
    ConflictError,
    DeepFSError,
    ErrorCode,
    InvalidContentError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    error_about,
)
from deepfs.operations import Batch, DownloadFiles, Operation, UploadFiles
from deepfs.search.flat import BatchedGrep, run_search
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, GrepScan
from deepfs.sync import in_thread
from deepfs.text import paths, records
from deepfs.text.entries import TreeListing, flat_place
from deepfs.text.flat_tree import FileTree
from deepfs.text.lines import check_text, version
from deepfs.threads.locks import path_locks
from deepfs.types import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    Result,
    WriteResult,
    failure,
)

ResultT = TypeVar("ResultT", bound=Result)

Call: TypeAlias = Callable[..., Awaitable[Any]]

_ALL_LINES: Final = 2**31 - 1
_BATCH: Final = 64

_AMBIGUOUS: Final = re.compile(r"[\\.^$*+?{}\[\]|()]")
"""Characters that a V1 search takes literally or as a regular expression: the protocol does not say which."""


def caller_of(backend: Any, name: str) -> Call | None:
    """The method `name` of `backend` as an async function, or None. A sync method runs in a worker thread."""
    method = getattr(backend, name, None)
    return None if not callable(method) else awaitable(method)


def awaitable(method: Callable[..., Any]) -> Call:
    """Make `method` an async function; an option or an operation that it lacks is a NotSupportedError."""

    async def call(*args: Any, **options: Any) -> Any:
        for option in options:
            if not takes_option(method, option):
                raise NotSupportedError(None, f"{method.__qualname__} has no parameter {option!r}; leave it out")
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **options)
            return await in_thread(partial(method, *args, **options))
        except NotImplementedError as error:
            owner = type(getattr(method, "__self__", method)).__name__
            name = getattr(method, "__name__", "it").removeprefix("a")
            raise NotSupportedError(backend=owner, operation=name) from error

    return call


def _is_generated(backend: Any, name: str) -> bool:
    """Whether a method is one that a subclass of `BackendProtocol` does not define itself."""
    module = getattr(getattr(backend, name, None), "__module__", None) or ""
    return isinstance(backend, BackendProtocol) and module.partition(".")[0] == "deepfs"


class AdaptedBackend(BackendProtocol, SyncCommands):
    """A backend of deepagents, of its current protocol or of V1, as one of deepfs.

    V1 is recognised by the methods of the class. An operation that the backend lacks is `unsupported` or built from
    others: `if_match` is checked within the process, and a search that the backend does not offer reads the files into
    memory.
    """

    def __init__(self, backend: Any) -> None:
        self.adapted: Any = backend
        self.is_v1: bool = is_v1(type(backend))
        self.capabilities: Capabilities = Capabilities(
            executes=self._call("execute") is not None,
            deletes=self._call("delete") is not None,
            has_links=hasattr(backend, "_real_path")
            or hasattr(backend, "_get_backend_and_key"),  # Those of deepagents.
        )
        self._whole: BackendProtocol = self

    def inner_backends(self) -> Sequence[object]:
        return (self.adapted,)

    async def astorage_place(self, path: str) -> StoragePlace:
        # The backend may have links, so different paths may be the same file.
        return flat_place(("adapted", id(self.adapted)), paths.normalize(path))

    def sandbox_path(self, path: str) -> str:
        """The path for commands of a file; a `virtual_mode` of deepagents does not change what they see."""
        is_virtual = getattr(self.adapted, "virtual_mode", False) is True
        return paths.join(str(getattr(self.adapted, "cwd", "/")), path.lstrip("/")) if is_virtual else path

    def _call(self, operation: str) -> Call | None:
        """The backend's method for an operation as an async function; None if it has none."""
        if self.is_v1:
            name = V1_NAMES.get(operation, operation)
            return None if _is_generated(self.adapted, name) else caller_of(self.adapted, name)
        return caller_of(self.adapted, f"a{operation}") or caller_of(self.adapted, operation)

    def _require(self, operation: str) -> Call:
        call = self._call(operation)
        if call is None:
            raise NotSupportedError(backend=type(self.adapted).__name__, operation=operation)
        return call

    def _hold(self, path: str) -> AbstractAsyncContextManager[None]:
        return path_locks(("adapted", id(self.adapted))).hold(path)

    # --- looking ---

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        if not self.capabilities.has_links:
            return [*paths]
        return await in_thread(lambda: [_real_path(self.adapted, path) for path in paths])

    async def als(self, path: str) -> LsResult:
        path = paths.normalize(path)
        answer = await self._require("ls")(path)
        failed = foreign.failure_in(answer, LsResult, path)
        if failed is not None:
            return failed
        entries = foreign.children(answer, path)
        if path != "/" and not entries:
            await self._require_directory(path)
        return LsResult(entries=entries)

    async def _require_directory(self, path: str) -> None:
        """Raise unless `path` is a directory; its parent shows it, since a file or nothing may list as empty, too."""
        above = await self._require("ls")(paths.parent(path))
        known = {info.path.rstrip("/"): info for info in foreign.children(above, paths.parent(path))}
        if path not in known:
            raise NotFoundError(path)
        if not known[path].is_dir:
            raise NotDirectoryError(path)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path, offset, limit = paths.normalize(path), max(offset, 0), max(limit, 0)
        answer = await self._require("read")(path, offset, limit + foreign.PROBE)
        return await self._unless_directory(foreign.read_result(answer, path, offset, limit), path)

    async def _unless_directory(self, result: ResultT, path: str) -> ResultT:
        """Return `result`. Raises IsDirectoryError if no file was found and `path` is a directory."""
        if result.code is ErrorCode.FILE_NOT_FOUND and await self._has_children(path):
            raise IsDirectoryError(path)
        return result

    async def run(self, operation: Operation) -> Any:
        match operation:
            case GlobRequest():
                return await self._glob(operation)
            case GrepRequest():
                return await self._grep(operation)
        return await super().run(operation)

    async def _glob(self, request: GlobRequest) -> GlobResult:
        files = FileFilter(request)
        path = files.root
        answer = await self._require("glob")(request.pattern, path)
        failed = foreign.failure_in(answer, GlobResult, path)
        if failed is not None:
            return failed
        matches = [info for info in foreign.infos(answer, "matches", path) if not info.is_dir and info.path in files]
        if not matches and path != "/":
            await self._require_directory(path)
        return GlobResult(
            matches=matches,
            truncated=getattr(answer, "truncated", False),
            truncation_reason=getattr(answer, "truncation_reason", None),
        )

    async def _grep(self, request: GrepRequest) -> GrepResult:
        grep = GrepScan(request, FileFilter(request))
        path = grep.files.root
        if request.kwargs.keys() - {"max_count"} or (self.is_v1 and _AMBIGUOUS.search(request.pattern)):
            search = BatchedGrep(await self._files(path), grep)
            await run_search(search.scan_all)
            return search.result()
        answer = await self._require("grep")(request.pattern, path, request.glob)
        failed = foreign.failure_in(answer, GrepResult, path)
        if failed is not None:
            return failed
        found = [match for match in foreign.match_list(answer, path) if match.path in grep.files]
        if not found and path != "/":
            with suppress(NotDirectoryError):  # A file may be searched, too.
                await self._require_directory(path)
        cut = request.max_count is not None and len(found) > request.max_count
        return GrepResult(matches=found[: request.max_count], truncated=cut or getattr(answer, "truncated", False))

    async def _files(self, path: str) -> FileTree:
        """The files at or under `path`, in memory; files that cannot be downloaded are left out."""
        tree = await list_tree(self._whole, path)
        listed = [entry.path for entry in tree.entries if "file" in (entry.kind, entry.leads_to)]
        files: dict[str, FileDataV2] = {}
        for start in range(0, len(listed), _BATCH):
            for download in await self._whole.adownload_files(listed[start : start + _BATCH]):
                if download.content is not None:
                    files[download.path] = records.new_file(download.content)
        return FileTree(files)

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        listing = await list_tree(self._whole, path)
        if deleting:
            self._require("delete")
        return listing

    # --- changing ---

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        path = paths.normalize(path)
        check_text(content)
        async with self._hold(path):
            try:
                await self._check_version(path, if_match)
            except NotFoundError:
                raise ConflictError(path) from None
            replaces = overwrite or if_match is not None
            exists = await self._exists(path, replaces=replaces)
            if not exists:
                await self._check_place(path)
            elif not replaces:
                raise AlreadyExistsError(path)
            if exists and self.is_v1:
                return await self._replace(path, content)
            return foreign.change_result(await self._require("write")(path, content), WriteResult, path)

    async def _exists(self, path: str, *, replaces: bool) -> bool:
        """Whether a file is at `path`.

        If a read cannot show that, return True for a write that `replaces`; otherwise raise the read's error.
        """
        try:
            return shows_file(await self._first_line(path), path)
        except DeepFSError:
            if replaces:
                return True
            raise

    async def _check_place(self, path: str) -> None:
        """Raise if no file can be created at `path`, because it is a directory or lies beneath a file."""
        if await self._has_children(path):
            raise IsDirectoryError(path)
        for directory in reversed(paths.ancestors(path)):
            if await self._has_children(directory):
                return
            if (await self._first_line(directory)).ok:
                raise NotDirectoryError(directory)

    async def _has_children(self, path: str) -> bool:
        try:
            return bool(foreign.children(await self._require("ls")(path), path))
        except (NotDirectoryError, NotSupportedError):
            return False

    async def _first_line(self, path: str) -> ReadResult:
        try:
            return await self.aread(path, 0, 1)
        except InvalidContentError:
            return ReadResult()
        except foreign.MISSING:
            return failure(ReadResult, NotFoundError(path))

    async def _replace(self, path: str, content: str) -> WriteResult:
        """Replace a file by an upload, the only way in V1."""
        upload = self._call("upload_files")
        if upload is None:
            raise NotSupportedError(None, f"{type(self.adapted).__name__} cannot replace a file; edit it instead")
        [outcome] = foreign.outcome_list(await upload([(path, content.encode())]), [path], FileUploadResponse)
        if outcome.error is not None:
            return failure(WriteResult, error_about(outcome.error, path, "it cannot be replaced"))
        return WriteResult(path=path)

    async def _check_version(self, path: str, if_match: str | None) -> None:
        if if_match is None:
            return
        found = await self._whole.aread(path, 0, _ALL_LINES)
        if found.code is ErrorCode.FILE_NOT_FOUND:
            raise NotFoundError(path)
        if found.version != if_match:
            raise ConflictError(path)

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        path = paths.normalize(path)
        if not old or old == new:
            raise InvalidContentError(None, "The text to replace is empty or the same as the new one.")
        check_text(new, "new text")
        async with self._hold(path):
            await self._check_version(path, if_match)
            answer = await self._require("edit")(path, old, new, replace_all)
            return await self._unless_directory(foreign.change_result(answer, EditResult, path), path)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        path = paths.normalize(path)
        if path == "/":
            raise PermissionDeniedError(path, "the root cannot be deleted")
        async with self._hold(path):
            if if_match is not None:
                if await self._has_children(path):
                    raise IsDirectoryError(path)
                if version(await download_file(self._whole, path)) != if_match:
                    raise ConflictError(path)
            return foreign.change_result(await self._require("delete")(path), DeleteResult, path)

    # --- bytes and commands ---

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        done = await self._own_way(UploadFiles(files))
        return await BackendProtocol.aupload_files(self, files) if done is None else done

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        done = await self._own_way(DownloadFiles(paths))
        return await BackendProtocol.adownload_files(self, paths) if done is None else done

    async def _own_way(self, batch: Batch) -> list[Any] | None:
        """Call the backend's own method with the items whose path is valid; return None if it has no such method."""
        call = self._call(batch.name)
        if call is None:
            return None

        async def check(one: Batch) -> None:
            paths.normalize(one.paths[0])

        async def run(valid: Batch) -> list[Any]:
            return foreign.outcome_list(await call([*valid.items]), valid.paths, batch.item)

        try:
            return await batch.where(check, run)
        except NotSupportedError:
            return None

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command in the adapted backend.

        Args:
            command: The shell command.
            timeout: The most seconds it may take, if less than the limit of that backend; None and 0 are that limit.

        Raises:
            NotSupportedError: If that backend runs no commands, or takes no timeout.
        """
        call, timeout = self._require("execute"), timeout or None
        # The sandboxes of deepagents and its partners keep the limit of their operator by this name.
        limit = getattr(self.adapted, "_default_timeout", None)
        if timeout is not None and isinstance(limit, int | float):
            timeout = min(timeout, limit)
        answer = await (call(command) if timeout is None else call(command, timeout=timeout))
        return ExecuteResponse(answer.output, answer.exit_code, getattr(answer, "truncated", False))


def own_instead(backend: Any, adapt: Callable[[Any], BackendProtocol]) -> BackendProtocol | None:
    """Return deepfs's own backend in place of a StateBackend or CompositeBackend of deepagents, otherwise None.

    Both StateBackends use the same channel, but only deepfs merges what parallel tools write. The exact class is
    compared by name, without an import of deepagents: subclasses may behave differently. `adapt` converts the backends
    that a composite mounts.
    """
    match f"{type(backend).__module__}.{type(backend).__qualname__}":
        case "deepagents.backends.state.StateBackend":
            from deepfs.backends.state import StateBackend

            return StateBackend()
        case "deepagents.backends.composite.CompositeBackend":
            from deepfs.backends.composite import CompositeBackend

            routes = {route: adapt(mounted) for route, mounted in backend.routes.items()}
            return CompositeBackend(adapt(backend.default), routes, artifacts_root=backend.artifacts_root)
    return None


def adapt_backend_protocol(backend: AnyBackendProtocol) -> BackendProtocol:
    """Adapt `backend` to deepfs; a backend of deepfs is returned unchanged.

    V1 is recognised by the methods of the class; its methods run in worker threads. Raises TypeError if `backend` is
    not a backend.
    """
    if isinstance(backend, BackendProtocol):
        return backend
    if isinstance(backend, type):
        raise TypeError(f"{backend.__name__} is a class, not a backend: pass an object of it")
    if not is_v1(type(backend)) and not (hasattr(backend, "read") or hasattr(backend, "aread")):
        raise TypeError(f"{type(backend).__name__} is no backend: it has neither the methods of V1 nor those of V2")
    return own_instead(backend, adapt_backend_protocol) or AdaptedBackend(backend)


def adapt_sandbox_protocol(backend: AnyBackendProtocol) -> SandboxBackendProtocol:
    """Adapt `backend`, which runs commands, to a sandbox of deepfs. Raises TypeError if it has no `execute`."""
    if isinstance(backend, SandboxBackendProtocol):
        return backend
    if not callable(getattr(backend, "execute", None)):
        raise TypeError(f"{type(backend).__name__} runs no commands: it has no execute")
    return AdaptedSandbox(backend)


class AdaptedSandbox(AdaptedBackend, SandboxBackendProtocol):
    """A sandbox of deepagents, of its current protocol or of V1, as one of deepfs."""

    @property
    def id(self) -> str:
        return str(getattr(self.adapted, "id", None) or f"{type(self.adapted).__name__}-{id(self.adapted):x}")


def _real_path(backend: Any, path: str) -> str | None:
    """Resolve links in a FilesystemBackend of deepagents, also in a mounted one; None if that fails."""
    try:
        path = paths.normalize(path)
        if hasattr(backend, "_real_path"):
            return str(backend._real_path(path))
        if not hasattr(backend, "_get_backend_and_key"):
            return path
        mounted, inner = backend._get_backend_and_key(path)
        real = _real_path(mounted, inner)
    except (DeepFSError, OSError, RuntimeError, ValueError):
        return None
    mount = path if inner == "/" else path.removesuffix(inner)
    return None if real is None else paths.join(mount or "/", real.lstrip("/"))


# --- factories (deprecated): functions that take the runtime and return a backend ---


def backend_from(meant: BACKEND_TYPES) -> BackendProtocol:
    """Return a backend of deepfs for a backend of any protocol, or for a factory (deprecated).

    Raises TypeError for any other value.
    """
    if callable(meant) and not isinstance(meant, type) and not hasattr(meant, "read"):
        warn_deprecated("backend factories are deprecated: pass the backend itself, it finds the runtime by itself")
        return FactoryBackend(meant)
    return adapt_backend_protocol(cast("AnyBackendProtocol", meant))


class FactoryBackend(BackendProtocol):
    """Passes each operation to a new backend, which a factory makes for the runtime of the running node.

    The factory gets a `BackendContext`, or None outside a graph. If it fails, or returns no backend, the operation
    fails with `backend_error`, and nothing is read or written. Commands are not offered, since only a call of the
    factory shows whether its backend runs them.

    Args:
        factory: The factory. It is called in the task that awaits the operation.
    """

    capabilities: Capabilities = Capabilities(has_links=True)  # It is not known before a call.

    def __init__(self, factory: BackendFactory) -> None:
        self._choice: Choice[BackendProtocol] = Choice("backend", factory, adapt_backend_protocol, is_place=False)
        self._warned: set[str] = set()

    def current(self) -> BackendProtocol:
        """Make the backend for the running node.

        Raises:
            BackendError: If the factory fails, or returns no backend.
        """
        with already_warned(self._warned):
            return self._choice()

    async def run(self, operation: Operation) -> Any:
        return await self.current().arun(operation)


register(Adapters(backend=backend_from, older=AdaptedBackend))
