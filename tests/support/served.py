"""Servers of tests that run on a thread of their own, with an event loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

__all__ = ["served"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def served(serve: Serve) -> Iterator[int]:
    """Serve each connection by `serve`, at a port of the loopback interface, which this gives."""
    ports: list[int] = []
    ready, ended = Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await ended.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def in_thread() -> None:
        loop.run_until_complete(run())
        loop.close()

    thread = Thread(target=in_thread, name="server of a test")
    thread.start()
    ready.wait(30)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
