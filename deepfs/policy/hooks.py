"""Hooks that run before and after operations, and the operation that they get as data."""

import inspect
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from deepfs._brief import struct_repr
from deepfs.backends.foreign import complete_answer
from deepfs.backends.protocol import BackendProtocol, parts_of_tenants, tenant_of
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError, NoMatchError
from deepfs.operations import (
    ChangeEntries,
    DownloadFiles,
    DownloadStream,
    FileBatch,
    ListTree,
    Operation,
    Read,
    UploadStream,
)
from deepfs.text import paths
from deepfs.text.access import without_access_check
from deepfs.text.arguments import check_callable, check_callables
from deepfs.types import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDataV1,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    GrepMatch,
    GrepResult,
    ReadRawResult,
    ReadResult,
    error_behind,
    failed_item,
    failure,
    item_error,
    replace_fields,
)

CHANGES: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files", "change_files"})
"""The operations that change files, without `execute`: what a command changes is not known."""


class Call(Struct, frozen=True):
    """The sync name of an operation, and its arguments.

    For a batch, there is one call for each item: `upload_files` with `path` and `content`, `download_files` with
    `path`. A stream is such a call, too; without `content` if it passes in chunks. Of `change_files`, a deletion is
    `delete` with `path`, and any other change is `upload_files`.
    """

    operation: str
    arguments: Mapping[str, Any]
    tenant: str | None = None
    """The place that a factory has for the caller, such as `ada/files`; of several factories, joined by a comma. None
    where all callers have the same files."""

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


def call_of(operation: Operation, tenant: str | None) -> Call | None:
    """The call that hooks see for an operation; None for one that only prepares another."""
    names = operation.known_as
    return Call(names[0], MappingProxyType(operation.arguments), tenant) if names else None


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
    `after` hooks do not see what was denied before. `upload_files`, `download_files` and `change_files` are shown to
    hooks as one call for each item, with the item's response as result; a deletion of the latter is `delete`. `execute`
    has no failed result, so what hooks raise reaches its caller. So do other exceptions, of any operation: they are
    bugs.

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
        self._of_tenants = parts_of_tenants(self.inner)
        self.before: list[BeforeHook] = check_callables("before", before)
        self.after: list[AfterHook] = check_callables("after", after)

    async def run(self, operation: Operation) -> Any:
        tenant = tenant_of(self._of_tenants)
        match operation:
            case FileBatch() | DownloadFiles():
                return await self._run_each(operation, tenant)
            case UploadStream(path):
                if _read_contents([*self.before, *self.after]):
                    return await BackendProtocol.run(self, operation)
                call = Call("upload_files", {"path": path}, tenant)
            case DownloadStream(path):
                if _read_contents(self.after):
                    return await BackendProtocol.run(self, operation)
                return self._pass_chunks(Call("download_files", {"path": path}, tenant), operation)
            case ChangeEntries(entries) if len(entries) > 1:
                return [outcome for each in entries for outcome in await self.arun(operation.only([each]))]
            case _:
                made = call_of(operation, tenant)
                if made is None:
                    return await super().run(operation)
                call = made
        await self._ask(call)
        answer = await super().run(operation)
        # Listings of trees are not shown to `after` hooks, which expect a result of `ls` or of `write`.
        if not self.after or isinstance(operation, ListTree | ChangeEntries):
            return answer
        told = await self._notify(call, answer)
        # A hook may give another result, which need not say where its lines stand.
        return (
            complete_answer("read", told, call.arguments)
            if isinstance(operation, Read) and told is not answer
            else told
        )

    async def _run_each(self, batch: FileBatch | DownloadFiles, tenant: str | None) -> list[Any]:
        """Run a batch, of which every item is a call."""

        async def ask(one: FileBatch | DownloadFiles) -> None:
            await self._ask(_call_of_item(one, tenant))

        async def run(passed: FileBatch | DownloadFiles) -> list[Any]:
            calls = [_call_of_item(passed.only([item]), tenant) for item in passed.items]
            outcomes = await self.inner.arun(passed)
            return [await self._item_response(*each, passed) for each in zip(calls, outcomes, strict=True)]

        return await batch.where(ask, run)

    @without_access_check
    async def _ask(self, call: Call) -> None:
        for hook in self.before:
            answer = hook(call)
            if inspect.isawaitable(answer):
                await answer

    @without_access_check
    async def _notify(self, call: Call, result: T) -> T:
        for hook in self.after:
            answer = hook(call, result)
            answer = await answer if inspect.isawaitable(answer) else answer
            result = result if answer is None else answer
        return result

    async def _pass_chunks(self, call: Call, operation: DownloadStream) -> AsyncGenerator[bytes, None]:
        await self._ask(call)
        async with aclosing(await self.inner.arun(operation)) as chunks:
            async for chunk in chunks:
                yield chunk
        await self._notify(call, FileDownloadResponse(operation.path))

    async def _item_response(self, call: Call, response: Any, batch: FileBatch | DownloadFiles) -> Any:
        """Run the `after` hooks for one item of a batch; an error that they raise becomes its response."""
        path = call.arguments["path"]
        try:
            if call.operation != "delete":
                return await self._notify(call, response)
            error = item_error(response, "it cannot be deleted") if response.error else None
            told = await self._notify(call, failure(DeleteResult, error) if error else DeleteResult(path=path))
            told.unwrap()
        except DeepFSError as error:
            return failed_item(batch.item, path, error)
        return FileUploadResponse(path)


# --- contents in results ---


def map_contents(result: T, change: Callable[[str], str]) -> T:
    """A copy of a result that shows other contents of files, as an `after` hook or a layer returns it.

    It covers reads, the lines of matches and those beside them, downloads and the output of commands; a failed edit
    shows no lines. A search for a text that `change` hides still tells where it is, and the version of a file, and
    `files_update`, are those of what is stored. `change` sees each window, line or file alone.

    Args:
        result: The result of any operation, of one item of a batch, or of a whole batch.
        change: Returns the text to show for a text: a window of a file, one line, or a whole file. Bytes that are no
            UTF-8 come as surrogates (`surrogateescape`), and go back the same way.

    Returns:
        The copy; `result` itself where no contents are in it.
    """
    shown: Any = result
    match result:
        case ReadResult(file_data=data) if data is not None:
            shown = replace_fields(result, file_data=_map_data(data, change))
        case ReadRawResult(data=data) if data is not None:
            shown = replace_fields(result, data=_map_data(data, change))
        case GrepResult(matches=list(matches)):
            shown = replace_fields(result, matches=[_map_match(match, change) for match in matches])
        case EditResult() if isinstance(error := error_behind(result), NoMatchError) and error.hint:
            # The hint shows pieces of lines, in which `change` need not know what it looks for.
            shown = failure(EditResult, NoMatchError(error.path or "", is_decorated=error.is_decorated))
        case FileDownloadResponse(content=bytes(content)):
            shown = replace(result, content=_map_bytes(content, change))
        case ExecuteResponse():
            shown = replace(result, output=change(result.output))
        case list():
            shown = [map_contents(item, change) for item in result]
    return cast("T", shown)


def _map_data(data: FileDataV1 | FileDataV2, change: Callable[[str], str]) -> FileDataV1 | FileDataV2:
    if isinstance(data, FileDataV1):
        return replace(data, content=change("\n".join(data.content)).split("\n"))
    if data.encoding == "utf-8":
        return replace(data, content=change(data.content))
    return replace(data, content=b64encode(_map_bytes(b64decode(data.content), change)).decode())


def _map_bytes(content: bytes, change: Callable[[str], str]) -> bytes:
    return change(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _map_match(match: GrepMatch, change: Callable[[str], str]) -> GrepMatch:
    before, after = (
        None if beside is None else [replace(line, text=change(line.text)) for line in beside]
        for beside in (match.context_before, match.context_after)
    )
    return replace(match, text=change(match.text), context_before=before, context_after=after)


def _call_of_item(one: FileBatch | DownloadFiles, tenant: str | None) -> Call:
    if isinstance(one, DownloadFiles):
        return Call(one.name, {"path": one.paths[0]}, tenant)
    [change] = one.content_changes
    if change.content is None:
        return Call("delete", {"path": change.path}, tenant)
    return Call("upload_files", {"path": change.path, "content": change.content}, tenant)
