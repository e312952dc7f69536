"""A proxy on a local port before a server on a unix socket, which breaks connections at a given byte."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import SHUT_RDWR
from typing import Literal

import anyio
import anyio.abc
from anyio.abc import ByteStream

__all__ = ["CuttingProxy", "proxied"]

Direction = Literal["answer", "request"]


class CuttingProxy:
    """Passes bytes between clients and a server. `cut` breaks the connection that carries the next ones."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._left: int | None = None
        self._direction: Direction = "answer"
        self.cuts: int = 0
        self.port: int = 0
        self.is_open: bool = True
        """Whether connections are taken."""
        self._streams: set[ByteStream] = set()

    def cut(self, offset: int, direction: Direction = "answer") -> None:
        """Break the connection after `offset` more bytes in this direction. The rest is dropped.

        The server gets the whole request if an answer is cut, and has made it.
        """
        self._left, self._direction = offset, direction

    def relent(self) -> bool:
        """Cut no more; return whether a cut was still to come."""
        waited, self._left = self._left is not None, None
        return waited

    def break_all(self) -> None:
        """Break every connection."""
        for stream in list(self._streams):
            _end(stream)

    async def serve(self, client: ByteStream) -> None:
        if not self.is_open:
            await _close(client)
            return
        try:
            server = await anyio.connect_unix(str(self._target))
        except OSError:
            await _close(client)
            return
        self._streams |= {client, server}
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, client, server, "request")
                tasks.start_soon(self._pump, server, client, "answer")
        finally:
            self._streams -= {client, server}
            await _close(client)
            await _close(server)

    async def _pump(self, source: ByteStream, sink: ByteStream, direction: Direction) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await source.receive()
                if self._left is not None and direction == self._direction:
                    if len(data) > self._left:
                        data, self._left = data[: self._left], None
                        self.cuts += 1
                        if data:
                            await sink.send(data)
                        break
                    self._left -= len(data)
                await sink.send(data)
        _end(source)
        _end(sink)


def _end(stream: ByteStream) -> None:
    """Have both sides of a connection receive no more. A stream must not be closed while a task waits for its data."""
    with suppress(OSError, anyio.ClosedResourceError):
        stream.extra(anyio.abc.SocketAttribute.raw_socket).shutdown(SHUT_RDWR)


async def _close(stream: ByteStream) -> None:
    with anyio.CancelScope(shield=True), suppress(Exception):
        await stream.aclose()


@asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[CuttingProxy]:
    """A proxy before the server whose socket is `target`."""
    proxy = CuttingProxy(target)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        yield proxy
        tasks.cancel_scope.cancel()
