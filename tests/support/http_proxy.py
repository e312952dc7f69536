"""An HTTP proxy before a server of the tests: it counts requests, and delays, refuses, cuts or drops answers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import pytest

from support.object_stores import S3Server
from support.served import served

__all__ = ["Fault", "HttpProxy", "Request", "one_proxy", "proxy"]

_OF_ONE_HOP: Final = (b"connection", b"expect")
_SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@dataclass(frozen=True)
class Request:
    """A request of a client."""

    method: str
    target: str
    head: bytes
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request."""

    reaches: bool = True
    """Whether the server gets the request."""
    status: int | None = None
    """The status of an error that is answered, whatever the server does."""
    body: bytes = _SLOW_DOWN
    """What is answered with it."""
    sent: int | None = None
    """How many bytes of the answer are sent before the connection is cut; None is all."""
    delay: float = 0
    """Seconds before the answer."""
    first: Callable[[], object] | None = None
    """Called before the server gets the request."""
    then: Callable[[], object] | None = None
    """Called after the server has answered, and before the client gets the answer."""


@dataclass
class HttpProxy:
    """A running proxy. Its attributes may be set at any time."""

    upstream: int
    port: int = 0
    without: tuple[bytes, ...] = ()
    """The names of headers, in lower case, that do not reach the server."""
    fault: Callable[[Request], Fault | None] = lambda request: None
    requests: list[Request] = field(default_factory=list)
    sent: int = 0
    """How many bytes of answers were sent."""
    _serving: set[object] = field(default_factory=set)
    """The tasks of connections: asyncio holds them only weakly."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def methods(self) -> list[str]:
        """The methods of the requests so far, which are then forgotten."""
        requests, self.requests = self.requests, []
        return [request.method for request in requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (request := await _received(reader, writer)) is not None:
                self.requests.append(request)
                answer = await self._answer(request)
                self.sent += len(answer.content)
                writer.write(answer.content)
                await writer.drain()
                if answer.is_last:
                    break
        self._serving.discard(task)

    async def _answer(self, request: Request) -> "_Answer":
        fault = self.fault(request) or Fault()
        if fault.first is not None:
            await asyncio.to_thread(fault.first)
        content = await self._forwarded(request) if fault.reaches else b""
        if fault.then is not None:
            await asyncio.to_thread(fault.then)
        await asyncio.sleep(fault.delay)
        if fault.status is not None:
            head = f"HTTP/1.1 {fault.status} Fault\r\nContent-Length: {len(fault.body)}\r\n\r\n"
            return _Answer(head.encode() + (b"" if request.method == "HEAD" else fault.body), is_last=False)
        is_cut = fault.sent is not None or not fault.reaches
        return _Answer(content[: fault.sent], is_last=is_cut or b"connection: close" in content[:2000].lower())

    async def _forwarded(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        lines = request.head.split(b"\r\n")
        kept = [line for line in lines[1:] if line.partition(b":")[0].lower() not in (*self.without, *_OF_ONE_HOP)]
        with closing(writer):
            writer.write(b"\r\n".join([lines[0], *kept, b"Connection: close", b"", request.body]))
            return await reader.read(-1)


@dataclass(frozen=True)
class _Answer:
    content: bytes
    is_last: bool


async def _received(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None if the client has closed it."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"expect" in fields:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(fields.get(b"content-length", 0)))
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    return Request(method, target, head, body)


@pytest.fixture(scope="module")
def one_proxy(s3_server: S3Server) -> Iterator[HttpProxy]:
    """A proxy before the S3 server, on a thread of its own."""
    proxy = HttpProxy(urlsplit(s3_server.url).port or 0)
    with served(proxy.serve) as proxy.port:
        yield proxy


@pytest.fixture
def proxy(one_proxy: HttpProxy) -> Iterator[HttpProxy]:
    """The proxy, as if it were new."""
    one_proxy.without, one_proxy.fault, one_proxy.requests, one_proxy.sent = (), lambda request: None, [], 0
    yield one_proxy
    one_proxy.fault = lambda request: None
