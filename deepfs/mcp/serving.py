"""The MCP server over the files of a backend: tokens, transports, and what the command line names."""

import hmac
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from inspect import signature
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, SubscriptionBus
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, InputRequiredResult, JSONRPCError, ResourceTemplate
from msgspec.structs import replace
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deepfs import __version__
from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, as_backend
from deepfs.config.trees import load_tree, open_backend, open_tree
from deepfs.config.urls import TREE
from deepfs.mcp.reference import at_own_paths, reference_tools
from deepfs.mcp.resources import LISTEN, TEMPLATE, FileEvents, FileResources
from deepfs.mcp.settings import HttpSettings, McpSettings, check_settings, settings_from
from deepfs.mcp.tools import BoundedCalls, agent_tools
from deepfs.policy.limits import ReadOnlyBackend

if TYPE_CHECKING:
    from mcp.server.context import ServerMiddleware
    from uvicorn.protocols.http.h11_impl import H11Protocol

# --- the server ------------------------------------------------------------------------------------------------------


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
    settings = check_settings(settings or McpSettings())
    files = as_backend(backend)
    files = ReadOnlyBackend(files) if read_only else files
    calls = BoundedCalls(settings.limits)
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
                number, reason = request
                told = ErrorData(code=INVALID_REQUEST, message=f"The request cannot be read: {reason}")
                await answers.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=told)))


def _request_in(error: ValidationError) -> tuple[int | str, str] | None:
    """The id of a request that could not be read, and why; None if it was none, or has no id to answer to."""
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
    return (number, first["msg"]) if isinstance(number, int | str) else None


TOKEN_VARIABLE: Final = "DEEPFS_MCP_TOKEN"
"""The variable of the environment with the token of a server over HTTP whose settings name none."""
_SHORTEST_TOKEN: Final = 16
_DIGEST: Final = "sha256:"
_GRACE: Final = 5
"""The seconds that open requests have to end when the server stops."""
_BACKLOG: Final = 128
"""The connections that are taken at once, before any of them can be refused."""


# --- tokens ----------------------------------------------------------------------------------------------------------


class StaticTokens(TokenVerifier):
    """Verifies bearer tokens by a list of them. Only their digests are kept, and comparing takes constant time.

    Args:
        tokens: The tokens: as they are, or as `sha256:` and the digest in hexadecimal.

    Raises:
        ValueError: A token has fewer than 16 characters, or a digest is none.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    async def verify_token(self, token: str) -> AccessToken | None:
        """Verify a token.

        Args:
            token: The token of a request.

        Returns:
            What it grants; None if it is unknown. Sessions belong to the token that opened them.
        """
        given = sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = [each for each in self._digests if hmac.compare_digest(each, given)]
        return AccessToken(token=token, client_id=f"token-{known[0].hex()[:12]}", scopes=[]) if known else None


def _digest(token: str) -> bytes:
    """The digest of a token. No part of a token is in an error."""
    if token.startswith(_DIGEST):
        try:
            digest = bytes.fromhex(token.removeprefix(_DIGEST))
        except ValueError:
            digest = b""
        if len(digest) != sha256().digest_size:
            raise ValueError("a token that starts with 'sha256:' goes on with 64 hexadecimal digits")
        return digest
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"a token needs {_SHORTEST_TOKEN} characters at least, or others guess it")
    return sha256(token.encode()).digest()


# --- transports ------------------------------------------------------------------------------------------------------


async def serve(
    backend: BACKEND_TYPES,
    settings: McpSettings | None = None,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    read_only: bool = False,
    token_verifier: TokenVerifier | None = None,
    auth: AuthSettings | None = None,
) -> None:
    """Serve the files of a backend, until the client leaves (stdio) or the process is told to end (HTTP).

    It runs on asyncio, as the HTTP server does. Only messages of the protocol go to stdout, all else to stderr.

    Args:
        backend: The backend of the files. The caller closes it.
        settings: What is offered, and where.
        transport: `"stdio"` for one client that started this process, `"http"` for streamable HTTP.
        read_only: Whether changes are refused.
        token_verifier: What checks the bearer tokens of requests; by default the tokens of the settings.
        auth: The settings of OAuth for clients that look for an authorization server.

    Raises:
        ValueError: A setting is wrong, or other machines could reach the server without a token.
        ModuleNotFoundError: The transport is HTTP, and the MCP SDK is older than 2.2.
        OSError: The address cannot be used.
    """
    settings = check_settings(settings or McpSettings())
    if transport == "stdio":
        await create_server(backend, settings, read_only=read_only).run_stdio_async()
        return
    if token_verifier is None and settings.http.tokens:
        token_verifier = StaticTokens(settings.http.tokens)
    if token_verifier is None and not settings.http.is_local and not settings.http.allow_anonymous:
        host = settings.http.host
        raise ValueError(
            f"anyone who reaches {host} could use the files: set tokens for the server, or allow_anonymous"
        )
    server = create_server(backend, settings, read_only=read_only, token_verifier=token_verifier, auth=auth)
    await _serve_http(http_app(server, settings.http), settings.http)


def http_app(server: MCPServer, settings: HttpSettings | None = None) -> Starlette:
    """The application of a server for streamable HTTP, with its limits and accepted hosts.

    Args:
        server: The server. It checks tokens if it was made with a `token_verifier`.
        settings: The limits and hosts.

    Returns:
        The application; its lifespan must run. To mount it in another one, run `server.session_manager.run()` there.

    Raises:
        ValueError: The accepted hosts are not known.
        ModuleNotFoundError: The MCP SDK is older than 2.2, the first one that bounds sessions.
    """
    settings = settings or HttpSettings()
    hosts = [*settings.hosts()]
    if "max_sessions" not in signature(server.streamable_http_app).parameters:
        reason = "over HTTP, before mcp 2.2, clients could open sessions without end: pip install 'mcp>=2.2'"
        raise ModuleNotFoundError(reason, name="mcp")
    local = [f"http://{host}" for host in hosts] if settings.is_local and not settings.allowed_hosts else []
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts),
        allowed_hosts=hosts,
        allowed_origins=settings.allowed_origins or local,
    )
    app = server.streamable_http_app(
        streamable_http_path=settings.path,
        max_request_body_size=settings.max_request_bytes,
        session_idle_timeout=settings.session_idle_timeout,
        max_sessions=settings.max_sessions,
        transport_security=security,
    )
    if not hosts:
        app.add_middleware(_CheckedOrigins, allowed=settings.allowed_origins)
    return app


class _CheckedOrigins:
    """Refuses requests of other origins where any host is accepted; the SDK checks both or neither."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin and not any(self._accepts(origin, each) for each in self._allowed):
            await Response("Invalid Origin header", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _accepts(origin: str, allowed: str) -> bool:
        return origin == allowed or (allowed.endswith(":*") and origin.startswith(allowed[:-1]))


async def _serve_http(app: Starlette, settings: HttpSettings) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        http=await anyio.to_thread.run_sync(_make_protocol, settings),
        ws="none",
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        lifespan="on",
    )
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = await anyio.to_thread.run_sync(partial(socket.create_server, (host, settings.port), family=family))
    with listener:
        port = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        print(f"deepfs mcp: listening on http://{shown}:{port}{settings.path}", file=sys.stderr, flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


def _make_protocol(settings: HttpSettings) -> type["H11Protocol"]:
    """HTTP/1.1 for clients that are not known yet: how many connect, and how long each request takes, is bounded."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    most = min(settings.max_connections, _most_descriptors())

    class BoundedProtocol(H11Protocol):
        """Ends a connection beyond the bound, and one whose request is not there in time."""

        _timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def _watch(self) -> None:
            """Run the timer while a request is owed, from its first byte or the beginning of the connection."""
            if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(settings.request_timeout, self.transport.abort)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol


def _most_descriptors() -> int:
    """The connections that leave descriptors for a burst of others, and for files and commands."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else max(allowed // 2, allowed - 2 * _BACKLOG)


# --- the command line ------------------------------------------------------------------------------------------------


async def serve_places(
    places: Sequence[str],
    *,
    on: str | None,
    variables: Collection[str] = (),
    transport: Literal["stdio", "http"],
    address: Mapping[str, Any],
    read_only: bool,
    reference_names: bool,
) -> None:
    """Serve what a command names. Raises as `open_files`, and OSError if the address cannot be used."""
    # Plain lines: the handler of the SDK opens the files of a traceback, and an error in it ends the event loop.
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if transport == "stdio" and threading.current_thread() is threading.main_thread():
        # The thread that reads stdin cannot be interrupted, so that Ctrl-C would wait for the next line. As on SIGTERM,
        # the process ends at once: files are whole at any instant.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with open_files(places, on=on, variables=variables, reference_names=reference_names) as (backend, settings):
        settings = replace(settings, http=replace(settings.http, **address))
        await serve(backend, settings, transport=transport, read_only=read_only)


@asynccontextmanager
async def open_files(
    places: Sequence[str], *, on: str | None = None, variables: Collection[str] = (), reference_names: bool = False
) -> AsyncIterator[tuple[BackendProtocol, McpSettings]]:
    """Open what a command names, and close it at the end.

    `on` is the URL of a backend, or `tree://FILE` with its settings, in the place of `places`; `variables` are those of
    the environment that the file may use. With the names of the reference filesystem server, each directory has the
    path in the tree that it has on this machine, as there.

    Raises ValueError if nothing is named, or too much, or a setting is wrong; OSError if a file is missing.
    """
    if bool(places) == (on is not None):
        raise ValueError("name what to serve: directories, or one URL, or a TOML file with --config")
    if on is not None and on.startswith(TREE):
        tree = await load_tree(on.removeprefix(TREE), variables=variables)
        settings = settings_from(tree.mcp)
        async with open_tree(tree) as backend:
            yield backend, _with_names(settings, reference_names)
        return
    settings = _with_names(McpSettings(), reference_names)
    if on is None and all("://" not in place for place in places):
        directories = [await _directory(place) for place in places]
        if settings.reference_names:
            async with at_own_paths(directories) as backend:
                yield backend, replace(settings, allowed_directories=directories)
            return
        places = [f"file://{quote(directory)}" for directory in directories]
    [url, *more] = places if on is None else [on]
    if more:
        raise ValueError("one place can be served; a TOML file joins several, and so does --reference-names")
    url, _, path = url.partition("#")
    if path.strip("/"):
        raise ValueError("a backend is served as a whole, without a path behind #")
    async with open_backend(url) as backend:
        yield backend, settings


def _with_names(settings: McpSettings, reference_names: bool) -> McpSettings:
    """The settings with a token of the environment, if they have none."""
    token = os.environ.get(TOKEN_VARIABLE)
    # An empty one is a mistake, which must not open the server to all.
    if token is not None and not settings.http.tokens:
        settings = replace(settings, http=replace(settings.http, tokens=[token]))
    return replace(settings, reference_names=True) if reference_names else settings


async def _directory(place: str) -> str:
    path = await (await anyio.Path(place).expanduser()).absolute()
    if not await path.is_dir():
        raise NotADirectoryError(f"{place} is no directory")
    # Behind a link, `..` is the directory above its target.
    return normpath(await path.resolve() if ".." in path.parts else path)
