"""Every operation of every backend returns a result, whatever it is called with; a wrong type is a TypeError."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.fsspec import FsspecBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.object_store import ObjectStoreBackend
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.redis import RedisBackend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.backends.state import StateBackend
from deepfs.backends.store import StoreBackend
from deepfs.compat.adapters import FactoryBackend
from deepfs.policy import (
    AuditedBackend,
    FilesystemPermission,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    QuotaBackend,
    ReadOnlyBackend,
)
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from support.fsspec_memory import AsyncMemory
from support.fuzzing import fuzz, seed_of
from support.graphs import InNode, open_node
from support.postgres_files import fresh_namespace
from support.promises import keeps
from support.redis_server import RedisServer, fresh_redis_namespace
from support.sandboxes import LocalSandbox

Make = Callable[[Path, ExitStack], Any]

RULES = [
    FilesystemPermission(["read", "write"], ["/no/**"], "deny"),
    FilesystemPermission(["write"], ["/ask/**"], "interrupt"),
]


def _mounted(root: Path, stack: ExitStack) -> Any:
    routes = {"/disk/": FilesystemBackend(root), "/store/": _store(root, stack), "/ruled/": _ruled(root, stack)}
    return CompositeBackend(MemoryBackend(), routes)


def _store(root: Path, stack: ExitStack) -> Any:
    return StoreBackend(InMemoryStore(), namespace=("fs",))


def _ruled(root: Path, stack: ExitStack) -> Any:
    return PermissionedBackend(MemoryBackend(), RULES)


def _made_once(root: Path, stack: ExitStack) -> Any:
    made = MemoryBackend()
    return FactoryBackend(lambda _: made)


def _stacked(root: Path, stack: ExitStack) -> Any:
    backend: Any = HistoryBackend(QuotaBackend(FilesystemBackend(root), max_bytes=1_000_000))
    return AuditedBackend(PermissionedBackend(HookedBackend(backend), RULES), lambda record: None)


BACKENDS: dict[str, Make] = {
    "memory": lambda root, stack: MemoryBackend(),
    "state": lambda root, stack: InNode(StateBackend(), stack.enter_context(open_node())),
    "store": _store,
    "store of lists": lambda root, stack: StoreBackend(InMemoryStore(), namespace=("fs",), file_format="v1"),
    "sqlite": lambda root, stack: stack.enter_context(SqliteBackend(root.with_name("files.db"))),
    "objects": lambda root, stack: ObjectStoreBackend("memory://"),
    "fsspec": lambda root, stack: FsspecBackend(AsyncMemory()),
    "disk": lambda root, stack: FilesystemBackend(root),
    "disk with ignored files": lambda root, stack: FilesystemBackend(root, ignore="git"),
    "shell": lambda root, stack: LocalShellBackend(root, timeout=20),
    "mounts": _mounted,
    "rules over a disk": lambda root, stack: PermissionedBackend(FilesystemBackend(root), RULES),
    "history": lambda root, stack: HistoryBackend(MemoryBackend()),
    "quota": lambda root, stack: QuotaBackend(MemoryBackend(), max_bytes=1_000_000, max_files=100),
    "read-only": lambda root, stack: ReadOnlyBackend(MemoryBackend()),
    "factory": _made_once,
    "many layers": _stacked,
}
SLOW: dict[str, Make] = {
    "sandbox": lambda root, stack: LocalSandbox(root),
    "box": lambda root, stack: stack.enter_context(BubblewrapSandbox(root, timeout=20)),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@keeps("What does raise is the calling program's", "no error text shows a path of the host")
@pytest.mark.parametrize("kind", BACKENDS)
def test_no_call_of_a_backend_raises(kind: str, tmp_path: Path, stack: ExitStack, pytestconfig: pytest.Config) -> None:
    fuzz(BACKENDS[kind](tmp_path / "root", stack), seed_of(pytestconfig), 1_000, str(tmp_path))


@keeps("have no result to carry an error")
@pytest.mark.parametrize(
    "kind", [pytest.param("sandbox"), pytest.param("box", marks=pytest.mark.needs("BubblewrapSandbox"))]
)
def test_no_call_of_a_sandbox_raises(kind: str, tmp_path: Path, stack: ExitStack, pytestconfig: pytest.Config) -> None:
    (tmp_path / "root").mkdir()
    fuzz(SLOW[kind](tmp_path / "root", stack), seed_of(pytestconfig), 200, str(tmp_path))


@keeps("have no result to carry an error")
def test_no_call_of_a_database_raises(postgres_files_dsn: str, pytestconfig: pytest.Config) -> None:
    with PostgresBackend(postgres_files_dsn, fresh_namespace()) as backend:
        fuzz(backend, seed_of(pytestconfig), 500, postgres_files_dsn)


@keeps("have no result to carry an error", "make no operation raise, wait or grow")
def test_no_call_of_redis_raises(redis_server: RedisServer, pytestconfig: pytest.Config) -> None:
    with RedisBackend(redis_server.url, fresh_redis_namespace()) as backend:
        fuzz(backend, seed_of(pytestconfig), 500, redis_server.url)
