"""`python -m benchmarks.listing_process TASK`: lists a store twice, in a new process.

It prints the cost of each `ls`: seconds, memory, and the bytes that came from the database.
"""

import asyncio
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, Literal

import msgspec
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from benchmarks.stores import Kind

__all__ = ["DIRECTORY", "NAMESPACE", "Found", "Listing", "Package", "Task", "backend_of", "fill"]

DIRECTORY: Final = "/files"
NAMESPACE: Final = ("listing", "files")
_SOCKET: Final = ".s.PGSQL.5432"
_STAMP: Final = "2026-01-01T00:00:00+00:00"

Package = Literal["deepfs", "deepagents"]


class Task(msgspec.Struct, frozen=True):
    """The store to list, and the package that lists it."""

    kind: Kind
    package: Package
    address: str
    """The file of SQLite, or the directory of the socket of PostgreSQL."""
    files: int
    size: int
    """Bytes of each file. In an InMemoryStore, which the process fills itself, the files share one text."""
    counts: bool
    """Whether bytes from PostgreSQL are counted; the relay that counts them takes time, too."""


class Listing(msgspec.Struct, frozen=True):
    """The cost of one `ls`."""

    seconds: float
    added: int
    """Bytes by which the peak of resident memory exceeded the memory before the call."""
    moved: int
    """Bytes that came from the database."""


class Found(msgspec.Struct, frozen=True):
    """The listed paths, and the cost of the first `ls` and of the same one repeated."""

    paths: list[str]
    first: Listing
    repeated: Listing


async def fill(store: BaseStore, files: int, text: Callable[[int], str]) -> None:
    """Put `files` files into the store, 100 at a time."""
    data = {"encoding": "utf-8", "created_at": _STAMP, "modified_at": _STAMP}
    for start in range(0, files, 100):
        numbers = range(start, min(start + 100, files))
        await store.abatch(
            [PutOp(NAMESPACE, f"{DIRECTORY}/{number:05}.py", {"content": text(number), **data}) for number in numbers]
        )


# --- stores ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(task: Task) -> AsyncIterator[tuple[BaseStore, Callable[[], int]]]:
    """The store, and a function that returns how many bytes have come from its database."""
    async with AsyncExitStack() as stack:
        if task.kind == "InMemoryStore":
            store = InMemoryStore()
            content = "x" * task.size
            await fill(store, task.files, lambda _: content)
            yield store, lambda: 0
        elif task.kind == "AsyncSqliteStore":
            yield await stack.enter_async_context(AsyncSqliteStore.from_conn_string(task.address)), _bytes_read
        else:
            host, received = stack.enter_context(_relay(task.address)) if task.counts else (task.address, lambda: 0)
            dsn = f"postgresql://postgres@/postgres?host={host}"
            yield await stack.enter_async_context(AsyncPostgresStore.from_conn_string(dsn)), received


def _bytes_read() -> int:
    """The bytes that this process has read from files."""
    found = re.search(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@contextmanager
def _relay(host: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """Relay one connection to the server: its socket directory, and a function that returns the bytes received."""
    received = [0]

    def pump(source: socket.socket, target: socket.socket, *, counted: bool) -> None:
        while chunk := source.recv(2**18):
            received[0] += counted * len(chunk)
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/{_SOCKET}")
        Thread(target=pump, args=(server, client), kwargs={"counted": True}, daemon=True).start()
        pump(client, server, counted=False)

    with TemporaryDirectory(dir="/tmp", prefix="deepfs-pg-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/{_SOCKET}")
        listener.listen()
        Thread(target=accept, daemon=True).start()
        yield directory, lambda: received[0]


# --- listings --------------------------------------------------------------------------------------------------------


def backend_of(package: str, store: BaseStore, namespace: tuple[str, ...]) -> Any:
    """The StoreBackend of deepfs or of deepagents."""
    backends = import_module(f"{package}.backends")
    given: Any = namespace if package == "deepfs" else lambda _: namespace
    return backends.StoreBackend(store=store, namespace=given)


async def _run(task: Task) -> Found:
    async with _opened(task) as (store, moved):
        # Load modules before measuring; in another namespace, so that nothing of the measured one is cached.
        await backend_of(task.package, store, ("listing", "nothing")).als(DIRECTORY)
        backend = backend_of(task.package, store, NAMESPACE)
        _, first = await _list(backend, moved)
        paths, repeated = await _list(backend, moved)
        return Found(paths, first, repeated)


async def _list(backend: Any, moved: Callable[[], int]) -> tuple[list[str], Listing]:
    memory, read, start = _memory_now(), moved(), time.perf_counter()
    result = await backend.als(DIRECTORY)
    took = time.perf_counter() - start
    assert result.error is None, result.error
    listing = Listing(took, _memory("VmHWM") - memory, moved() - read)
    return [info["path"] for info in result.entries], listing


def _memory_now() -> int:
    """Return the resident memory, and reset its peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=Task)))))
