"""Backend factories (deprecated): functions that take the runtime and return a backend."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any, cast

from langgraph.runtime import Runtime

from deepfs._deprecated import already_warned, warn_deprecated
from deepfs._langgraph import private as _langgraph
from deepfs.backends.operations import CHUNK_BYTES, without_defaults
from deepfs.backends.protocol import BACKEND_TYPES, AnyBackendProtocol, BackendFactory, BackendProtocol, StoragePlace
from deepfs.compat.adapters import adapt_backend_protocol
from deepfs.errors import BackendError, DeepFSError
from deepfs.search.request import GlobRequest, GrepRequest
from deepfs.text.entries import EntryChange, TreeListing
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["BackendContext", "FactoryBackend", "backend_from"]


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

    def __init__(self, factory: BackendFactory) -> None:
        self._factory = factory
        self._warned: set[str] = set()

    def current(self) -> BackendProtocol:
        """Make the backend for the running node.

        Raises:
            BackendError: If the factory fails, or returns no backend.
        """
        try:
            with already_warned(self._warned):
                return adapt_backend_protocol(self._factory(current_context()))
        except DeepFSError:
            raise
        except Exception as error:
            raise BackendError(None, f"The backend factory failed: {type(error).__name__}: {error}") from error

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        return await self.current().aresolve_paths(paths)

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        return await self.current().alist_tree(path, deleting=deleting)

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        return await self.current().achange_entries(changes)

    async def astorage_place(self, path: str) -> StoragePlace:
        return await self.current().astorage_place(path)

    async def als(self, path: str) -> LsResult:
        return await self.current().als(path)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self.current().aread(path, offset, limit)

    async def aread_raw(self, path: str) -> ReadRawResult:
        return await self.current().aread_raw(path)

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        return await self.current().awrite(path, content, **without_defaults(overwrite=overwrite, if_match=if_match))

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        return await self.current().aedit(path, old, new, replace_all, **without_defaults(if_match=if_match))

    async def arun_glob(self, request: GlobRequest) -> GlobResult:
        return await self.current().arun_glob(request)

    async def arun_grep(self, request: GrepRequest) -> GrepResult:
        return await self.current().arun_grep(request)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        return await self.current().adelete(path, **without_defaults(if_match=if_match))

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self.current().acopy(src, dst, **without_defaults(overwrite=overwrite))

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self.current().amove(src, dst, **without_defaults(overwrite=overwrite))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self.current().aupload_files(files)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self.current().adownload_files(paths)

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        return await self.current().aupload_stream(path, chunks)

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.current().adownload_stream(path, chunk_size=chunk_size)) as chunks:
            async for chunk in chunks:
                yield chunk


class BackendContext(Runtime[Any]):
    """A `Runtime` with the attributes that older factories use: `runtime`, `config` and `state`, all deprecated.

    Factories of namespaces and of backends get it, so they may use the `Runtime` or these attributes.

    Args:
        state: The state of the running graph.
        runtime: The runtime of the running node; None is an empty one.
    """

    def __init__(self, state: Any = None, runtime: Runtime[Any] | None = None) -> None:
        wrapped = runtime or Runtime()
        for field in fields(Runtime):
            object.__setattr__(self, field.name, getattr(wrapped, field.name))
        object.__setattr__(self, "_state", state)

    @property
    def runtime(self) -> Runtime[Any]:
        """The runtime itself."""
        warn_deprecated("BackendContext.runtime is deprecated: the factory gets the Runtime itself, without .runtime")
        return self

    @property
    def config(self) -> Any:
        """The config of the running task."""
        warn_deprecated("BackendContext.config is deprecated: use langgraph.config.get_config, or the Runtime")
        return _langgraph.current_config()

    @property
    def state(self) -> Any:
        """The state of the graph, as the running task sees it."""
        warn_deprecated(
            "BackendContext.state is deprecated: state changes from step to step, so what depends on it moves about. "
            "Use the context, the thread or the user of the Runtime."
        )
        state = vars(self)["_state"]
        return _langgraph.current_state() if state is None else state


def current_context() -> BackendContext | None:
    """The argument for a factory in the running node; None outside a graph."""
    runtime = _langgraph.current_runtime()
    return None if runtime is None else BackendContext(runtime=runtime)
