"""Every backend over its own storage, with direct access to the storage; for tests of the sync methods."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs import run_sync
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.fsspec import FsspecBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.redis import RedisBackend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.backends.state import StateBackend
from deepfs.backends.store import StoreBackend
from support.files import content_of, stored
from support.fsspec_memory import AsyncMemory
from support.graphs import InNode, open_node
from support.postgres_files import Rows, fresh_namespace
from support.raw import RawMemory, file_of
from support.raw_sqlite import RawSqlite
from support.redis_server import RedisKeys, fresh_redis_namespace

__all__ = ["STORAGES", "Storage", "storage"]

T = TypeVar("T")

STORAGES = (
    "memory",
    "filesystem",
    "sqlite",
    "store",
    "sqlite_store",
    "postgres_store",
    "postgres",
    "redis",
    "state",
    "fsspec",
    "composite",
)

_NAMESPACE = ("tenant", "files")


class _Raw(Protocol):
    def put(self, path: str, data: bytes) -> None: ...

    def peek(self, path: str) -> bytes | None: ...


@dataclass
class Storage:
    """A backend and its storage; `prefixes` are the mount points of its parts, of which the first is empty."""

    backend: BackendProtocol
    parts: Mapping[str, _Raw]
    root: Path | None = None
    """The directory of the part on disk."""

    @property
    def prefixes(self) -> list[str]:
        return list(self.parts)

    def _part(self, path: str) -> tuple[_Raw, str]:
        prefix = max((prefix for prefix in self.parts if path.startswith(f"{prefix}/")), key=len)
        return self.parts[prefix], path[len(prefix) :]

    def put(self, path: str, data: bytes) -> None:
        """Store a file without the backend."""
        part, inner = self._part(path)
        part.put(inner, data)

    def peek(self, path: str) -> bytes | None:
        """The bytes stored at `path`, or None if there is no file."""
        part, inner = self._part(path)
        return part.peek(inner)


class _Memory:
    def __init__(self, backend: MemoryBackend) -> None:
        self.backend = backend

    def put(self, path: str, data: bytes) -> None:
        self.backend._files[path] = file_of(data)
        self.backend._parents.add(path)

    def peek(self, path: str) -> bytes | None:
        return RawMemory.peek(self.backend, path)


class _Disk:
    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def peek(self, path: str) -> bytes | None:
        target = self.root / path.lstrip("/")
        return target.read_bytes() if target.is_file() else None


class _Store:
    def __init__(self, store: BaseStore) -> None:
        self.store = store

    def put(self, path: str, data: bytes) -> None:
        run_sync(self.store.aput, _NAMESPACE, path, stored(data))

    def peek(self, path: str) -> bytes | None:
        item = run_sync(self.store.aget, _NAMESPACE, path)
        return content_of(item and item.value)


class _Keys:
    def __init__(self, filesystem: AsyncMemory) -> None:
        self.filesystem = filesystem

    def put(self, path: str, data: bytes) -> None:
        self.filesystem.pipe_file(path[1:], data)

    def peek(self, path: str) -> bytes | None:
        found = self.filesystem.keys.get(path[1:])
        return None if found is None else found[0]


class _State:
    def __init__(self, node: Any) -> None:
        self.node = node

    def put(self, path: str, data: bytes) -> None:
        self.node.put(path, stored(data))

    def peek(self, path: str) -> bytes | None:
        return content_of(self.node.files.get(path))


def _entered(stack: ExitStack, manager: AbstractAsyncContextManager[T]) -> T:
    """Enter `manager` on the loop of the sync methods, and leave it there at the end."""
    value = run_sync(manager.__aenter__)
    stack.callback(run_sync, partial(manager.__aexit__, None, None, None))
    return value


def _over(store: BaseStore) -> Storage:
    return Storage(StoreBackend(store, namespace=_NAMESPACE), {"": _Store(store)})


def _memory(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    backend = MemoryBackend()
    return Storage(backend, {"": _Memory(backend)})


def _filesystem(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    root = tmp_path / "root"
    root.mkdir()
    return Storage(FilesystemBackend(root), {"": _Disk(root)}, root)


def _sqlite(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    directory = tmp_path / "sqlite"
    directory.mkdir()
    raw = RawSqlite(directory / "files.db")
    return Storage(stack.enter_context(SqliteBackend(raw.file)), {"": raw})


def _store(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    return _over(InMemoryStore())


def _sqlite_store(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    from support.stores import open_sqlite_store

    return _over(_entered(stack, open_sqlite_store(tmp_path / "store.db")))


def _postgres_store(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    from support.stores import open_postgres_store

    return _over(_entered(stack, open_postgres_store(request.getfixturevalue("_postgres_store_dsn"))))


def _postgres(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    rows = Rows(request.getfixturevalue("postgres_files_dsn"), "/".join(space := fresh_namespace()))
    backend = stack.enter_context(PostgresBackend(rows.dsn, space))
    backend.ls("/")  # Makes the tables.
    return Storage(backend, {"": rows})


def _redis(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    keys = RedisKeys(request.getfixturevalue("redis_server"), fresh_redis_namespace())
    return Storage(stack.enter_context(RedisBackend(keys.server.url, keys.namespace)), {"": keys})


def _state(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    node = stack.enter_context(open_node())
    return Storage(InNode(StateBackend(), node), {"": _State(node)})


def _fsspec(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    filesystem = AsyncMemory()
    return Storage(FsspecBackend(filesystem), {"": _Keys(filesystem)})


def _composite(stack: ExitStack, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    parts = {
        "": _state(stack, tmp_path, request),
        "/disk": _filesystem(stack, tmp_path, request),
        "/store": _store(stack, tmp_path, request),
        "/store/deep/memory": _memory(stack, tmp_path, request),
    }
    mounts = {f"{prefix}/": part.backend for prefix, part in parts.items() if prefix}
    composite = CompositeBackend(parts[""].backend, mounts)
    return Storage(composite, {prefix: part.parts[""] for prefix, part in parts.items()}, parts["/disk"].root)


_OPEN: Mapping[str, Callable[[ExitStack, Path, pytest.FixtureRequest], Storage]] = {
    "memory": _memory,
    "filesystem": _filesystem,
    "sqlite": _sqlite,
    "store": _store,
    "sqlite_store": _sqlite_store,
    "postgres_store": _postgres_store,
    "postgres": _postgres,
    "redis": _redis,
    "state": _state,
    "fsspec": _fsspec,
    "composite": _composite,
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Every backend in turn, with empty storage; test modules import this fixture."""
    with ExitStack() as stack:
        yield _OPEN[request.param](stack, tmp_path, request)
