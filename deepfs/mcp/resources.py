"""Files as resources: their URIs, contents and list, and the events of clients that listen for changes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from anyio import CancelScope, Event, Lock, create_task_group, sleep
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, Annotations, Resource, ResourceTemplate
from msgspec import to_builtins

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode, InvalidPathError, TooLargeError
from deepfs.mcp.settings import ServerLimits
from deepfs.mcp.tools import ROOT, BoundedCalls, failure_of, uri_of
from deepfs.middleware.tools import ToolFailure
from deepfs.text import paths
from deepfs.text.lines import decode
from deepfs.text.media import is_binary_name, mime_type, sniff
from deepfs.types import ChangeEvent, FileInfo, error_from

_PAGE: Final = 100
_PAUSE: Final = 0.1
"""The seconds between two events that tell that the list of resources changed."""
LISTEN: Final = "subscriptions/listen"

TEMPLATE: Final = ResourceTemplate(
    uri_template=f"{ROOT}{{+path}}",
    name="file",
    title="File",
    description="A file, by its path without the leading slash.",
)


# --- one file --------------------------------------------------------------------------------------------------------


def path_of(uri: str) -> str:
    """The normalised path that a URI means. Raises InvalidPathError if it goes up, is no text, or otherwise invalid."""
    encoded = uri.removeprefix(ROOT)
    try:
        return paths.normalize(f"/{unquote(encoded, errors='strict')}")
    except UnicodeDecodeError:
        raise InvalidPathError(encoded, "it is no text in UTF-8") from None


async def fetch(backend: BackendProtocol, path: str, most: int) -> bytes:
    """The content of a file. Raises TooLargeError if it has more than `most` bytes, and what the backend says."""
    content = bytearray()
    async with aclosing(backend.adownload_stream(path)) as chunks:
        async for chunk in chunks:
            content += chunk
            if len(content) > most:
                raise TooLargeError.because(path, f"it has more than {most:,} bytes")
    return bytes(content)


def _protocol_error(uri: str, error: DeepFSError | ToolFailure) -> MCPError:
    """The error of the protocol for a resource that cannot be read."""
    code = INTERNAL_ERROR if error.code in (ErrorCode.BACKEND_ERROR, ErrorCode.TIMEOUT) else INVALID_PARAMS
    failure = failure_of(error)
    return MCPError(code=code, message=failure.message, data={"uri": uri, "error": to_builtins(failure)})


# --- all files -------------------------------------------------------------------------------------------------------


class FileResources:
    """The files of a backend as resources; `calls` bounds the reads and lists in number and time."""

    def __init__(self, backend: BackendProtocol, limits: ServerLimits, calls: BoundedCalls) -> None:
        self._backend = backend
        self._limits = limits
        self._calls = calls

    @staticmethod
    def has(uri: str) -> bool:
        """Whether a URI is that of a file."""
        return uri.startswith(ROOT)

    async def read(self, uri: str) -> list[ReadResourceContents]:
        """Read a file, as text if it is text. Raises MCPError if it cannot be read."""
        try:
            path = path_of(uri)
            content = await self._calls.run(partial(fetch, self._backend, path, self._limits.max_file_bytes))
        except (DeepFSError, ToolFailure) as error:
            raise _protocol_error(uri, error) from error
        text = None if is_binary_name(path) else decode(content)
        if text is not None:
            return [ReadResourceContents(text, mime_type(path) or "text/plain")]
        return [ReadResourceContents(content, mime_type(path) or sniff(content))]

    async def page(self, cursor: str | None) -> tuple[list[Resource], str | None]:
        """List files in the order of their paths, but none with a name that starts with a dot. Raises MCPError."""
        try:
            result = await self._calls.run(partial(self._backend.aglob, "**/*", "/"))
            if result.error is not None and not result.matches:
                raise error_from(result)
        except (DeepFSError, ToolFailure) as error:
            raise _protocol_error(ROOT, error) from error
        listed = (result.matches or [])[: self._limits.max_listed]
        left = [info for info in listed if cursor is None or info.path > cursor]
        shown = left[:_PAGE]
        return [_resource(info) for info in shown], shown[-1].path if len(left) > _PAGE else None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Append files to the list of resources; a middleware of the SDK, whose own handler has no pages."""
        result = await call_next(ctx)
        if ctx.method != "resources/list" or not isinstance(result, dict):
            return result
        cursor = (ctx.params or {}).get("cursor")
        resources, following = await self.page(cursor)
        others = result.get("resources", []) if cursor is None else []
        wire = [resource.model_dump(by_alias=True, mode="json", exclude_none=True) for resource in resources]
        result = {**result, "resources": [*others, *wire]}
        return result if following is None else {**result, "nextCursor": following}


def _resource(info: FileInfo) -> Resource:
    modified = None if info.modified_at is None else Annotations(last_modified=info.modified_at)
    name = info.path.removeprefix("/")
    return Resource(
        uri=uri_of(info.path), name=name, mime_type=mime_type(info.path), size=info.size, annotations=modified
    )


# --- changes ---------------------------------------------------------------------------------------------------------


class FileEvents:
    """Publishes the changes of files while a client listens; a middleware of the SDK.

    One of the clients' calls watches the files for all of them. When it ends, another one goes on.

    Args:
        backend: Where the files are. It declares `watches`.
        bus: Where the events go.
    """

    def __init__(self, backend: BackendProtocol, bus: SubscriptionBus) -> None:
        self._backend = backend
        self._bus = bus
        self._lock = Lock()
        self._active = Event()
        self._list_changed = Event()
        self._listened: list[frozenset[str]] = []
        self._following = 0

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != LISTEN:
            return await call_next(ctx)
        uris = frozenset(_uris_in(ctx.params or {}))
        self._listened.append(uris)
        try:
            # What changes after the client was told that it listens must not be missed, so the watch comes first.
            async with self._watch_files():
                return await call_next(ctx)
        finally:
            self._listened.remove(uris)

    @asynccontextmanager
    async def _watch_files(self) -> AsyncIterator[None]:
        """Watch the files, or know that another call does. Raises MCPError if the watch fails."""
        failed: list[DeepFSError] = []
        async with create_task_group() as group:
            group.start_soon(self._watch, group.cancel_scope, failed)
            await self._active.wait()
            self._following += 1
            try:
                yield
            finally:
                self._following -= 1
            group.cancel_scope.cancel()
        if failed:
            raise _protocol_error(ROOT, failed[0])

    async def _watch(self, scope: CancelScope, failed: list[DeepFSError]) -> None:
        """Watch the files when no other call does. A failure ends `scope`, since nothing would be told any more."""
        async with self._lock, create_task_group() as group:
            group.start_soon(self._notify_lists)
            try:
                async with aclosing(self._backend.awatch("/")) as events:
                    async for event in events:
                        # The first event says that the watch is active. Between two watches, changes may be missed.
                        if self._active.is_set() or self._following:
                            await self._publish(event)
                        self._active.set()
            except DeepFSError as error:
                failed.append(error)
                scope.cancel()
            finally:
                group.cancel_scope.cancel()
                if self._active.is_set():
                    self._active = Event()

    async def _notify_lists(self) -> None:
        while True:
            await self._list_changed.wait()
            self._list_changed = Event()
            await self._bus.publish(ResourcesListChanged())
            await sleep(_PAUSE)

    async def _publish(self, event: ChangeEvent) -> None:
        if event.kind != "modified":
            self._list_changed.set()
        for uri in [uri_of(event.path)] if event.kind != "resync" else self._uris_beneath(event.path):
            await self._bus.publish(ResourceUpdated(uri))

    def _uris_beneath(self, path: str) -> Sequence[str]:
        """The URIs that clients listen for and whose files may have changed unseen."""
        root = uri_of(path).rstrip("/")
        return [uri for uri in {each for uris in self._listened for each in uris} if uri.startswith(root)]


_MOST_URIS: Final = 10_000


def _uris_in(params: Any) -> list[str]:
    """The URIs in the parameters of a call that listens. They are not checked yet."""
    asked = params.get("notifications")
    uris = asked.get("resourceSubscriptions") if isinstance(asked, dict) else None
    return [uri for uri in islice(uris, _MOST_URIS) if isinstance(uri, str)] if isinstance(uris, list) else []
