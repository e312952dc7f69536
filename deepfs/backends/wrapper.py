"""The base of backends that wrap another one: policies, hooks, faults."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from msgspec.structs import replace

from deepfs.backends._class_setup import made_by_overrides
from deepfs.backends.answers import completed
from deepfs.backends.operations import CHUNK_BYTES, without_defaults
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    Capabilities,
    SandboxBackendProtocol,
    StoragePlace,
    SyncCommands,
    as_backend,
    close_each,
    supports_execute,
)
from deepfs.errors import DeepFSError, ErrorCode, NotSupportedError, error_about
from deepfs.search.request import GlobRequest, GrepRequest, SearchRequest
from deepfs.sync import shielded
from deepfs.text.entries import EntryChange, TreeListing
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
    failure,
)

__all__ = ["WrapperBackend"]

RequestT = TypeVar("RequestT", bound=SearchRequest)
P = ParamSpec("P")
T = TypeVar("T")


class WrapperBackend(BackendProtocol, SyncCommands):
    """Passes every operation on to another backend, and has its capabilities.

    A subclass overrides the operations that it changes, or `dispatch`, which runs all operations. Options that have
    their default value are not passed on, so `inner` may lack parameters for them.

    Args:
        inner: The backend. One of an older protocol, or a factory, is adapted.

    Raises:
        TypeError: `inner` is no backend.
    """

    is_synchronous: bool = True
    """The class itself never waits; an object is synchronous if its `inner` is, too."""

    def __init__(self, inner: BACKEND_TYPES) -> None:
        self.inner: BackendProtocol = as_backend(inner)
        self.capabilities: Capabilities = self.inner.capabilities
        self.is_synchronous = type(self).is_synchronous and self.inner.is_synchronous

    def inner_backends(self) -> Sequence[object]:
        return (self.inner,)

    def bound_to_this_thread(self) -> bool:
        return self.inner.bound_to_this_thread()

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        return await self.inner.aresolve_paths(paths)

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        """List the tree of `inner`, dispatched as `ls`. A subclass that overrides `als` lists the tree by its `als`."""
        listing: object = await self.dispatch("ls", self.inner.alist_tree, path, **without_defaults(deleting=deleting))
        if isinstance(listing, TreeListing):
            return listing
        return await super().alist_tree(path, deleting=deleting)

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        """Change entries of `inner`. Making a directory is dispatched as `write`, removing one as `delete`."""
        if all(change.change == "set_mode" for change in changes):
            return await self.inner.achange_entries(changes)
        return [await self._changed_directory(change) for change in changes]

    async def _changed_directory(self, change: EntryChange) -> FileUploadResponse:
        result: type[DeleteResult | WriteResult] = DeleteResult if change.change == "remove_directory" else WriteResult

        async def call(path: str) -> DeleteResult | WriteResult:
            [outcome] = await self.inner.achange_entries([change])
            if outcome.error is None:
                return result(path=path)
            return failure(
                result, error_about(outcome.error, path, f"the directory cannot be changed ({outcome.error})")
            )

        try:
            done = await self.dispatch("delete" if result is DeleteResult else "write", call, change.path)
        except DeepFSError as error:
            return FileUploadResponse(change.path, error.code.value)
        return FileUploadResponse(change.path, None if done.ok else (done.code or ErrorCode.BACKEND_ERROR).value)

    async def astorage_place(self, path: str) -> StoragePlace:
        return await self.inner.astorage_place(path)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        made_by_overrides(cls, WrapperBackend, BackendProtocol)

    async def dispatch(
        self, operation: str, call: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs
    ) -> T:
        """Run `call`, the method of `inner` for an operation; a subclass overrides this to act on all operations.

        Args:
            operation: The sync name: `"read"`, `"write"`, … Streams are `"upload_stream"`, with the path and the
                chunks, and `"download_stream"`, with the path. Listing a tree is `"ls"`.
            call: The function that does it. For a `"download_stream"` it opens the stream, raises if that fails, and
                returns an async iterator of all chunks; for a `"watch"` it returns an async iterator of the events.
            args: The positional arguments of the operation.
            options: The options that differ from their defaults.

        Returns:
            The result of `call`, or a replacement for it.

        Raises:
            DeepFSError: The operation is refused; its caller gets it as the error of the result.
        """
        return await call(*args, **options)

    async def als(self, path: str) -> LsResult:
        return await self.dispatch("ls", self.inner.als, path)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        read = await self.dispatch("read", self.inner.aread, path, offset, limit)
        # `dispatch` may give another result, which need not say where its lines stand.
        return read if read.start_line else completed("read", read, {"path": path, "offset": offset, "limit": limit})

    async def aread_raw(self, path: str) -> ReadRawResult:
        return await self.dispatch("read_raw", self.inner.aread_raw, path)

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        options = without_defaults(overwrite=overwrite, if_match=if_match)
        return await self.dispatch("write", self.inner.awrite, path, content, **options)

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        options = without_defaults(if_match=if_match)
        return await self.dispatch("edit", self.inner.aedit, path, old, new, replace_all, **options)

    async def arun_glob(self, request: GlobRequest) -> GlobResult:
        run = _taking_arguments(self.inner.arun_glob, request)
        return await self.dispatch("glob", run, *request.arguments, **request.options)

    async def arun_grep(self, request: GrepRequest) -> GrepResult:
        run = _taking_arguments(self.inner.arun_grep, request)
        return await self.dispatch("grep", run, *request.arguments, **request.options)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        return await self.dispatch("delete", self.inner.adelete, path, **without_defaults(if_match=if_match))

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self.dispatch("copy", self.inner.acopy, src, dst, **without_defaults(overwrite=overwrite))

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self.dispatch("move", self.inner.amove, src, dst, **without_defaults(overwrite=overwrite))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self.dispatch("upload_files", self.inner.aupload_files, files)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self.dispatch("download_files", self.inner.adownload_files, paths)

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        return await self.dispatch("upload_stream", self.inner.aupload_stream, path, chunks)

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        opened: list[_Opened | AsyncGenerator[bytes, None]] = []

        async def open_stream(path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
            opened.append(stream := _Opened(self.inner.adownload_stream(path, chunk_size=chunk_size)))
            await stream.begin()
            return stream

        try:
            chunks = await self.dispatch("download_stream", open_stream, path, chunk_size=chunk_size)
            if isinstance(chunks, AsyncGenerator):  # Made by an override; it reads the opened stream: close it first.
                opened.insert(0, chunks)
            async for chunk in chunks:
                yield chunk
        finally:
            for each in opened:
                await shielded(each.aclose)

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        opened: list[AsyncGenerator[ChangeEvent, None]] = []

        async def open_watch(path: str) -> AsyncIterator[ChangeEvent]:
            opened.append(self.inner.awatch(path))
            return opened[-1]

        try:
            events = await self.dispatch("watch", open_watch, path)
            if isinstance(events, AsyncGenerator):
                opened.insert(0, events)
            async for event in events:
                yield event
        finally:
            for each in opened:
                await shielded(each.aclose)

    async def aclose(self) -> None:
        await close_each([self.inner])

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command in the inner backend.

        Args:
            command: The shell command.
            timeout: The most seconds it may take, if less than the limit of that backend; None is that limit.

        Raises:
            NotSupportedError: That backend runs no commands.
        """
        if not supports_execute(self.inner):
            raise NotSupportedError(None, f"{type(self.inner).__name__} does not run commands")
        execute = cast("SandboxBackendProtocol", self.inner).aexecute
        return await self.dispatch("execute", execute, command, **without_defaults(timeout=timeout))


class _Opened(AsyncIterator[bytes]):
    """A download whose first chunk is fetched by `begin`, so that an error of opening it is raised early."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks
        self._first: list[bytes] = []

    async def begin(self) -> None:
        async for chunk in self._chunks:
            self._first.append(chunk)
            return

    async def __anext__(self) -> bytes:
        return self._first.pop() if self._first else await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _taking_arguments(
    run: Callable[[RequestT], Awaitable[T]], request: RequestT
) -> Callable[..., Coroutine[Any, Any, T]]:
    """`run` as a function of arguments like those of `request`, which `dispatch` may have changed."""

    async def search(*placed: Any, **options: Any) -> T:
        made = type(request).called_with(placed, options)
        # If `dispatch` changed the start path, the filter `hidden` may not fit the paths there.
        hidden = request.hidden if made.path == request.path else None
        is_plain = hidden is None and not request.fresh
        return await run(made if is_plain else replace(made, hidden=hidden, fresh=request.fresh))

    return search
