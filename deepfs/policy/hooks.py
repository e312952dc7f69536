"""Hooks that run before and after operations, and the operation that they get as data."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from deepfs._brief import struct_repr
from deepfs.backends.operations import CHUNK_BYTES
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError
from deepfs.sync import OPERATIONS
from deepfs.text import paths
from deepfs.text.arguments import check_callable, check_callables
from deepfs.text.entries import TreeListing
from deepfs.text.judging import aside
from deepfs.types import FileDownloadResponse, FileUploadResponse

__all__ = [
    "CHANGES",
    "AfterHook",
    "BeforeHook",
    "Call",
    "HookedBackend",
    "call_of",
    "without_contents",
]

CHANGES: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files"})
"""The operations that change files, without `execute`: what a command changes is not known."""

_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("path",),
    "read": ("path", "offset", "limit"),
    "read_raw": ("path",),
    "write": ("path", "content"),
    "edit": ("path", "old", "new", "replace_all"),
    "glob": ("pattern", "path"),
    "grep": ("pattern", "path", "glob"),
    "delete": ("path",),
    "move": ("src", "dst"),
    "copy": ("src", "dst"),
    "upload_files": ("files",),
    "download_files": ("paths",),
    "execute": ("command",),
    "upload_stream": ("path",),
    "download_stream": ("path",),
    "watch": ("path",),
}
assert set(_PARAMETERS) > set(OPERATIONS)


class Call(Struct, frozen=True):
    """The sync name of an operation, and its arguments.

    For a batch, there is one call for each item: `upload_files` with `path` and `content`, `download_files` with
    `path`. A stream is such a call, too; without `content` if it passes in chunks.
    """

    operation: str
    arguments: Mapping[str, Any]

    __repr__ = struct_repr

    @property
    def changes(self) -> bool:
        """Whether the operation changes files."""
        return self.operation in CHANGES

    @property
    def paths(self) -> tuple[str, ...]:
        """The normalised paths among the arguments, in their order. Raises InvalidPathError for an invalid path."""
        if self.operation in ("glob", "grep"):
            return (paths.normalize(self.arguments.get("path") or "/"),)
        named = (self.arguments[name] for name in ("path", "src", "dst") if name in self.arguments)
        return tuple(map(paths.normalize, named))


def call_of(operation: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """Make a `Call` of the arguments that `WrapperBackend.dispatch` gets; the chunks of a stream are left out."""
    given = dict(zip(_PARAMETERS[operation], args, strict=False))
    return Call(operation, MappingProxyType(given | dict(options)))


P = ParamSpec("P")
T = TypeVar("T")

BeforeHook: TypeAlias = Callable[[Call], Awaitable[None] | None]
"""Called with an operation before it happens; raising a leaf of `deepfs.errors` denies it."""
AfterHook: TypeAlias = Callable[[Call, Any], Any]
"""Called with an operation and its result, also a failed one. What it returns (unless None) or raises replaces it."""


class _WithoutContents:
    """A hook that does not read contents."""

    reads_contents = False

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        return self._hook(*args)


def without_contents(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that a hook does not look at the contents of uploads and downloads, so that streams pass in chunks.

    It gets such an upload without `content`, and such a download, once it is complete, as a response without `content`.
    What it returns instead of a response to a download changes nothing.

    Args:
        hook: A `before` or an `after` hook.

    Returns:
        The hook to give to `HookedBackend`.

    Raises:
        TypeError: `hook` cannot be called.
    """
    return _WithoutContents(check_callable("hook", hook))


def _read_contents(hooks: Iterable[Callable[..., Any]]) -> bool:
    return any(getattr(hook, "reads_contents", True) for hook in hooks)


class HookedBackend(WrapperBackend):
    """Runs hooks, sync or async, before and after each operation.

    A leaf of `deepfs.errors` that a `before` hook raises becomes the result, and the operation does not happen. The
    `after` hooks do not see what was denied before. `upload_files` and `download_files` are shown to hooks as one call
    for each item, with the item's response as result. `execute` has no failed result, so what hooks raise reaches its
    caller. So do other exceptions, of any operation: they are bugs.

    Streams are shown as `upload_files` and `download_files` of one item. Hooks see its content, so a stream holds the
    whole file, up to 256 MB, unless all hooks declare that they do not look at contents (`without_contents`; a
    `RateLimit` does). Then it passes in chunks.

    Hooks run on the event loop and must not block it. Call what blocks in an async hook, by `anyio.to_thread.run_sync`.

    Args:
        inner: The backend.
        before: Hooks that run before the operation, in this order.
        after: Hooks that run after it, in this order, each with the result of the one before.

    Raises:
        TypeError: If a hook cannot be called.
    """

    def __init__(
        self, inner: BackendProtocol, before: Iterable[BeforeHook] = (), after: Iterable[AfterHook] = ()
    ) -> None:
        super().__init__(inner)
        self.before: list[BeforeHook] = check_callables("before", before)
        self.after: list[AfterHook] = check_callables("after", after)

    async def dispatch(
        self, operation: str, call: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs
    ) -> T:
        made = call_of(operation, args, options)
        await self._ask(made)
        return await self._tell(made, await call(*args, **options))

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        # Not shown to `after` hooks: they expect a result of `ls`.
        await self._ask(call_of("ls", (path,), {}))
        return await self.inner.alist_tree(path, deleting=deleting)

    @aside
    async def _ask(self, call: Call) -> None:
        for hook in self.before:
            answer = hook(call)
            if inspect.isawaitable(answer):
                await answer

    @aside
    async def _tell(self, call: Call, result: T) -> T:
        for hook in self.after:
            answer = hook(call, result)
            answer = await answer if inspect.isawaitable(answer) else answer
            result = result if answer is None else answer
        return result

    # --- batches: every item is a call ---

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        calls = [Call("upload_files", {"path": path, "content": content}) for path, content in files]
        denied = [await self._denied(call) for call in calls]
        passed = [file for file, error in zip(files, denied, strict=True) if error is None]
        stored = iter(await self.inner.aupload_files(passed) if passed else [])
        return [
            await self._item_response(call, next(stored), FileUploadResponse)
            if error is None
            else FileUploadResponse(call.arguments["path"], error.code.value)
            for call, error in zip(calls, denied, strict=True)
        ]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        calls = [Call("download_files", {"path": path}) for path in paths]
        denied = [await self._denied(call) for call in calls]
        passed = [path for path, error in zip(paths, denied, strict=True) if error is None]
        fetched = iter(await self.inner.adownload_files(passed) if passed else [])
        return [
            await self._item_response(call, next(fetched), FileDownloadResponse)
            if error is None
            else FileDownloadResponse(call.arguments["path"], error=error.code.value)
            for call, error in zip(calls, denied, strict=True)
        ]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        if _read_contents([*self.before, *self.after]):
            return await BackendProtocol.aupload_stream(self, path, chunks)
        call = Call("upload_files", {"path": path})
        await self._ask(call)
        return await self._tell(call, await self.inner.aupload_stream(path, chunks))

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        if _read_contents(self.after):
            stream = BackendProtocol.adownload_stream(self, path, chunk_size=chunk_size)
        else:
            stream = self._passed_on(Call("download_files", {"path": path}), path, chunk_size)
        async with aclosing(stream):
            async for chunk in stream:
                yield chunk

    async def _passed_on(self, call: Call, path: str, chunk_size: int) -> AsyncGenerator[bytes, None]:
        await self._ask(call)
        async with aclosing(self.inner.adownload_stream(path, chunk_size=chunk_size)) as stream:
            async for chunk in stream:
                yield chunk
        await self._tell(call, FileDownloadResponse(path))

    async def _denied(self, call: Call) -> DeepFSError | None:
        try:
            await self._ask(call)
        except DeepFSError as error:
            return error
        return None

    async def _item_response(self, call: Call, response: T, failed: Callable[..., T]) -> T:
        """Run the `after` hooks for one item of a batch; an error that they raise becomes its response."""
        try:
            return await self._tell(call, response)
        except DeepFSError as error:
            return failed(call.arguments["path"], error=error.code.value)
