"""The MCP server over the files of a backend."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, SubscriptionBus
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, InputRequiredResult, JSONRPCError, ResourceTemplate
from pydantic import ValidationError

from deepfs import __version__
from deepfs.backends.protocol import BACKEND_TYPES
from deepfs.compat.factories import backend_from
from deepfs.mcp.calls import Calls
from deepfs.mcp.reference import reference_tools
from deepfs.mcp.resources import LISTEN, TEMPLATE, FileEvents, FileResources
from deepfs.mcp.settings import McpSettings, checked
from deepfs.mcp.tools import agent_tools
from deepfs.policy.read_only import ReadOnlyBackend

if TYPE_CHECKING:
    from mcp.server.context import ServerMiddleware

__all__ = ["create_server"]


def create_server(
    backend: BACKEND_TYPES,
    settings: McpSettings | None = None,
    *,
    read_only: bool = False,
    token_verifier: TokenVerifier | None = None,
    auth: AuthSettings | None = None,
    subscriptions: SubscriptionBus | None = None,
) -> MCPServer[Any]:
    """Make an MCP server for the files of a backend, to be run, or to be mounted in a Starlette application.

    It has the file tools of an agent, with the same names, arguments and answers, and the files as resources. A tool
    that the backend refuses in any case is not offered. What rules of a `PermissionedBackend` refuse is refused here.
    More tools, resources and prompts may be added with the methods of the SDK.

    Args:
        backend: The backend of the files. The caller closes it.
        settings: What is offered; by default all but commands and patches.
        read_only: Whether changes are refused.
        token_verifier: What checks bearer tokens of requests over HTTP; `StaticTokens` knows them by a list.
        auth: The settings of OAuth for clients that look for an authorization server; by default none is named.
        subscriptions: What carries events of changed files to clients that listen; by default memory of this process.

    Returns:
        The server.

    Raises:
        TypeError: If `backend` is not a backend.
        ValueError: If a setting is wrong.
    """
    settings = checked(settings or McpSettings())
    files = backend_from(backend)
    files = ReadOnlyBackend(files) if read_only else files
    calls = Calls(settings.limits)
    resources = FileResources(files, settings.limits, calls) if settings.resources else None
    bus = subscriptions or InMemorySubscriptionBus()
    watches = resources is not None and files.capabilities.watches
    middleware: list[ServerMiddleware[Any]] = [] if resources is None else [resources]
    return _FileServer(
        settings.name,
        files=resources,
        watches=watches,
        version=__version__,
        instructions=settings.instructions or _INSTRUCTIONS,
        tools=(reference_tools if settings.reference_names else agent_tools)(files, settings, calls),
        token_verifier=token_verifier,
        auth=auth or (None if token_verifier is None else _NO_OAUTH),
        log_level="WARNING",
        subscriptions=bus,
        middleware=[*middleware, FileEvents(files, bus)] if watches else middleware,
    )


_INSTRUCTIONS = "Files in one tree. Paths are absolute: they start with / at the root of the tree."
# The SDK asks for an issuer. Without the URL of a resource it is named to nobody.
_NO_OAUTH = AuthSettings.model_validate({"issuer_url": "http://localhost", "resource_server_url": None})


class _FileServer(MCPServer[Any]):
    """A server of the SDK that also has files as resources."""

    def __init__(self, name: str, *, files: FileResources | None, watches: bool, **options: Any) -> None:
        super().__init__(name, **options)
        self._files = files
        if not watches:  # Releases before 2.3 have no option for it.
            self._lowlevel_server._request_handlers.pop(LISTEN, None)

    async def run_stdio_async(self) -> None:
        server = self._lowlevel_server
        async with stdio_server() as (messages, answers), anyio.create_task_group() as group:
            send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
            group.start_soon(_answer_unreadable, messages, answers, send)
            await server.run(receive, answers, server.create_initialization_options())

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        own: Sequence[ResourceTemplate] = [] if self._files is None else [TEMPLATE]
        return [*own, *await super().list_resource_templates()]

    async def read_resource(
        self, uri: object, context: Any = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        asked = str(uri)
        if self._files is None or not self._files.has(asked):
            return await super().read_resource(asked, context)
        return await self._files.read(asked)


async def _answer_unreadable(messages: Any, answers: Any, readable: MemoryObjectSendStream[Any]) -> None:
    """Pass messages on, but answer requests that the SDK cannot read, so that no client waits for ever.

    Such are those with half of a surrogate pair in a text, which is valid JSON.
    """
    async with readable:
        async for message in messages:
            request = _request_in(message) if isinstance(message, ValidationError) else None
            if request is None:
                await readable.send(message)
            else:
                told = ErrorData(code=INVALID_REQUEST, message=f"The request cannot be read: {request.reason}")
                await answers.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=told)))


class _Unreadable(NamedTuple):
    id: int | str
    reason: str


def _request_in(error: ValidationError) -> _Unreadable | None:
    """The request that could not be read; None if it was none, or has no id to answer to."""
    first = error.errors(include_url=False)[0]
    request = first["input"]
    if isinstance(request, str):
        try:
            request = json.loads(request)
        except (ValueError, RecursionError):
            return None
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        return None
    number = request.get("id")
    return _Unreadable(number, first["msg"]) if isinstance(number, int | str) else None
