"""A server with files for many tenants in one Postgres database: REST, streams, and an agent that works on the files.

    pip install "deepfs[agents,postgres]" starlette uvicorn
    export DATABASE_URL=postgresql://user:password@host/database TOKEN_KEY=a-long-secret
    python tenant_server.py --token acme       # prints a bearer token for the tenant acme
    python tenant_server.py --port 8000

    GET    /files/{path}       a text with its ETag; of a path that ends in "/", the listing of the directory
    PUT    /files/{path}       create or replace a text; If-Match: only that version, If-None-Match: *: only create
    DELETE /files/{path}
    GET    /search?q=…&glob=…  the lines with a literal text
    GET    /raw/{path}         the bytes of a file, as a stream
    PUT    /raw/{path}         store the bytes of the request, as a stream
    GET    /usage              the bytes and files that count for the quota
    POST   /agent              {"message": …}; the answer as server-sent events

One backend serves all tenants, over one pool of connections. Each has a namespace, and the token alone decides which:
no path leads out of it. The agent's tools get it from the context of the run, and requests take a view of the backend,
so both have the same files, count for the same quota and are in the same log. The quota of a tenant is counted by this
process; with several server processes, leave a margin.
"""

import hmac
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import asyncpg
import uvicorn
from common import chosen_model, option_parser
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, ToolMessage
from langgraph.runtime import Runtime
from msgspec import DecodeError, Struct, json
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deepfs import PostgresBackend, create_deep_agent
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.policy import AuditedBackend, AuditRecord, QuotaBackend
from deepfs.testing import Answer, Call, Turn

MAX_TEXT: Final = 1_000_000
MAX_UPLOAD: Final = 100_000_000
"""Bytes of the body of a request."""
MAX_BYTES, MAX_FILES = 1_000_000_000, 10_000
"""The quota of a tenant."""
MAX_MATCHES: Final = 1_000
MAX_STEPS: Final = 100
"""Of one run of the agent: requests to the model and rounds of tools."""
POOL_SIZE: Final = 10

logger = logging.getLogger(__name__)

PRECONDITIONS: Final = (ErrorCode.ALREADY_EXISTS, ErrorCode.CONFLICT)
"""What only `If-None-Match` and `If-Match` ask for."""


# --- tenants ---------------------------------------------------------------------------------------------------------


def token_for(tenant: str, key: str) -> str:
    """A bearer token: the name of the tenant and its signature. A real service would also let it expire."""
    return f"{tenant}.{hmac.new(key.encode(), tenant.encode(), sha256).hexdigest()}"


class BearerTokens(AuthenticationBackend):
    """Takes the tenant from the token, after its signature was checked."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        scheme, _, token = conn.headers.get("authorization", "").partition(" ")
        tenant = token.rpartition(".")[0]
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), token_for(tenant, self._key).encode()):
            raise AuthenticationError("a valid bearer token is needed")
        return AuthCredentials(["files"]), SimpleUser(tenant)


def unauthorized(conn: HTTPConnection, error: AuthenticationError) -> Response:
    return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": "Bearer"})


@dataclass(frozen=True)
class Caller:
    """The context of a run of the agent."""

    tenant: str


def place_of(runtime: Runtime[Caller]) -> tuple[str, str]:
    """The namespace of the files for a run of the agent."""
    return "tenants", runtime.context.tenant


class Files:
    """The files of all tenants, and their quota."""

    def __init__(self, pool: "asyncpg.Pool", max_bytes: int) -> None:
        self.quota = QuotaBackend(PostgresBackend(pool, namespace=place_of), max_bytes=max_bytes, max_files=MAX_FILES)
        self.audited = AuditedBackend(self.quota, log_change)


def log_change(record: AuditRecord) -> None:
    if record.operation in ("write", "edit", "delete", "move", "copy", "upload_stream"):
        logger.info("%s %s %s", record.tenant, record.operation, record.code or "done")


def files_of(request: Request) -> BackendProtocol:
    """The files of the tenant whose token the request has."""
    files: Files = request.state.files
    return files.audited.at(("tenants", request.user.username))


async def usage(request: Request) -> Response:
    files: Files = request.state.files
    used = await files.quota.at(("tenants", request.user.username)).ausage()
    return JSONResponse({"bytes": used.bytes, "files": used.files})


def path_of(request: Request) -> str:
    return f"/{request.path_params['path']}"


async def limited(request: Request, most: int) -> AsyncIterator[bytes]:
    """The body of a request, up to `most` bytes, whatever its headers claim."""
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most:
            raise HTTPException(413, f"the body may have {most} bytes")
        yield chunk


# --- files -----------------------------------------------------------------------------------------------------------


async def read(request: Request) -> Response:
    files, path = files_of(request), path_of(request)
    if path.endswith("/"):
        return JSONResponse([dict(entry) for entry in (await files.als(path)).unwrap()])
    found = await files.aread(path, limit=MAX_TEXT)
    data = found.unwrap()
    if data.encoding != "utf-8" or found.next_offset:
        raise HTTPException(415, f"{path} is no text, or a very long one; use /raw{path}")
    headers = {"ETag": f'"{found.version}"'}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(data.content, headers=headers, media_type="text/plain")


async def write(request: Request) -> Response:
    files, path, expected = files_of(request), path_of(request), expected_version(request)
    text = await text_of(request)
    if expected:
        done = await files.awrite(path, text, if_match=expected)
    else:
        done = await files.awrite(path, text, overwrite=request.headers.get("if-none-match") != "*")
    done.unwrap()
    return Response(status_code=204)


async def delete(request: Request) -> Response:
    (await files_of(request).adelete(path_of(request), if_match=expected_version(request))).unwrap()
    return Response(status_code=204)


def expected_version(request: Request) -> str | None:
    """The version in If-Match, without its quotes."""
    header = request.headers.get("if-match")
    if header is None:
        return None
    if not (quoted := re.fullmatch(r'"([^"]+)"', header)):
        raise HTTPException(400, "If-Match takes one ETag, in quotes")
    return quoted[1]


async def text_of(request: Request) -> str:
    body = b"".join([chunk async for chunk in limited(request, MAX_TEXT)])
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HTTPException(400, "the body is not UTF-8; use /raw for other files") from error


async def search(request: Request) -> Response:
    asked = request.query_params
    if not asked.get("q"):
        raise HTTPException(400, "q is the text to search for")
    found = await files_of(request).agrep(asked["q"], glob=asked.get("glob"), max_count=MAX_MATCHES)
    return JSONResponse({"matches": [dict(match) for match in found.unwrap()], "truncated": found.truncated})


async def download(request: Request) -> Response:
    chunks = files_of(request).adownload_stream(path_of(request))
    first = await anext(chunks, b"")  # Fails here if the file cannot be read, while a status can still be sent.
    return StreamingResponse(after(first, chunks), media_type="application/octet-stream")


async def after(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


async def upload(request: Request) -> Response:
    (await files_of(request).aupload_stream(path_of(request), limited(request, MAX_UPLOAD))).unwrap()
    return Response(status_code=204)


# --- the agent -------------------------------------------------------------------------------------------------------


class Question(Struct, forbid_unknown_fields=True):
    message: str


SCRIPT: Final[list[Answer]] = [
    Turn("I look at your files. ", [Call("glob", {"pattern": "**/*"})]),
    lambda messages: f"There is: {messages[-1].text}",
]


async def ask(request: Request) -> Response:
    body = b"".join([chunk async for chunk in limited(request, MAX_TEXT)])
    try:
        question = json.decode(body, type=Question)
    except (DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, str(error)) from error
    files: Files = request.state.files
    agent = create_deep_agent(request.state.new_model(), backend=files.audited, context_schema=Caller)
    return StreamingResponse(events(agent, question.message, Caller(request.user.username)), headers=SSE)


SSE: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}


async def events(agent: Any, message: str, caller: Caller) -> AsyncIterator[str]:
    """The run as server-sent events: `text` in pieces, `tool` for each result, then `end` or `error`."""
    options = {"recursion_limit": MAX_STEPS}
    try:
        given = {"messages": [("user", message)]}
        async for piece, _ in agent.astream(given, options, context=caller, stream_mode="messages"):
            if isinstance(piece, AIMessageChunk) and piece.text:
                yield event("text", str(piece.text))
            elif isinstance(piece, ToolMessage):
                yield event("tool", f"{piece.name}: {piece.status}")
    except Exception:  # The status was sent, so the error must be an event. Its text may hold secrets.
        logger.exception("an agent failed")
        yield event("error", "the agent failed")
    else:
        yield event("end", "")


def event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {json.encode(data).decode()}\n\n"


# --- the server ------------------------------------------------------------------------------------------------------


async def file_error(request: Request, error: Exception) -> Response:
    """The answer to an operation that failed: its text is for people, its code for programs."""
    assert isinstance(error, DeepFSError)
    status = 412 if error.code in PRECONDITIONS else error.code.http_status
    return JSONResponse({"error": str(error), "code": error.code}, status)


async def disconnected(request: Request, error: Exception) -> Response:
    """The client has left in the middle of its body, of which nothing was stored. Nobody reads this answer."""
    return Response(status_code=400)


def server(dsn: str, key: str, new_model: Callable[[], str | BaseChatModel], max_bytes: int = MAX_BYTES) -> Starlette:
    """The application. `new_model` is called for each run of the agent."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        async with asyncpg.create_pool(dsn, max_size=POOL_SIZE) as pool:
            yield {"files": Files(pool, max_bytes), "new_model": new_model}

    routes = [
        Route("/files/{path:path}", read, methods=["GET"]),
        Route("/files/{path:path}", write, methods=["PUT"]),
        Route("/files/{path:path}", delete, methods=["DELETE"]),
        Route("/raw/{path:path}", download, methods=["GET"]),
        Route("/raw/{path:path}", upload, methods=["PUT"]),
        Route("/search", search, methods=["GET"]),
        Route("/usage", usage, methods=["GET"]),
        Route("/agent", ask, methods=["POST"]),
    ]
    checked = Middleware(AuthenticationMiddleware, backend=BearerTokens(key), on_error=unauthorized)
    handlers = {DeepFSError: file_error, ClientDisconnect: disconnected}
    return Starlette(routes=routes, middleware=[checked], exception_handlers=handlers, lifespan=lifespan)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--token", metavar="TENANT", help="print a token for the tenant, and end")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="the quota of a tenant")
    given = parser.parse_args()
    key = os.environ["TOKEN_KEY"]
    if given.token:
        print(token_for(given.token, key))
        return
    app = server(os.environ["DATABASE_URL"], key, lambda: chosen_model(given.model, SCRIPT), given.max_bytes)
    uvicorn.run(app, host="127.0.0.1", port=given.port)


if __name__ == "__main__":
    main()
