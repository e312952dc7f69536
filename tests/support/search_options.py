"""Each search option with a search whose result it changes, and the backends that must respect it.

The options come from the protocol's signature. An option that has no row here fails the tests.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio.to_thread
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FsspecBackend,
    GlobResult,
    GrepResult,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.object_store import ObjectStoreBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.compat.adapters import FactoryBackend, adapt_backend_protocol, adapt_sandbox_protocol
from deepfs.policy import (
    AuditedBackend,
    ChangePolicy,
    FilesystemPermission,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    QuotaBackend,
    ReadOnlyBackend,
    TracedBackend,
)
from deepfs.policy.keeping import KeepingBackend
from deepfs.policy.observing import ObservedBackend
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from deepfs.sandboxes.landlock import LandlockSandbox
from deepfs.sandboxes.virtual_shell import VirtualShell
from deepfs.testing import FaultyBackend, LatencyBackend
from support.fsspec_memory import AsyncMemory
from support.graphs import InNode, open_node
from support.sandboxes import LocalSandbox
from support.v1_backend import DuckS3

__all__ = ["BACKENDS", "CASES", "FILES", "WRAPPERS", "Case", "filled", "options_of", "shown"]

FILES: Final = {
    "/docs/d.txt": "ALPHA\nalpha.beta\n",
    "/src/a.txt": "alpha\nBeta\nalpha beta\n",
    "/src/b.py": "beta\nalphabet\n",
    "/src/deep/c.txt": "gamma\nalpha\ndelta\n",
}

Case: TypeAlias = tuple[str, str, str, Any]
"""An operation, a pattern, and an option with its value."""

_VALUES: Final[Mapping[str, Mapping[str, tuple[str, Any]]]] = {
    "glob": {"path": ("*.txt", "/src")},
    "grep": {
        "path": ("alpha", "/src/deep"),
        "glob": ("alpha", "*.py"),
        "regex": ("al.*t", True),
        "ignore_case": ("alpha", True),
        "context_lines": ("gamma", 1),
        "max_count": ("alpha", 2),
    },
}


def options_of(operation: str, protocol: type = BackendProtocol) -> list[str]:
    """The options of an operation besides the pattern, from the signature of a protocol."""
    _, _, *options = inspect.signature(getattr(protocol, f"a{operation}")).parameters
    return options


CASES: Final[list[Case]] = [
    (operation, *_VALUES[operation].get(option, ("no row for this option", None))[:1], option, value)
    for operation in ("glob", "grep")
    for option in options_of(operation)
    for value in [_VALUES[operation].get(option, ("", None))[1]]
]


def shown(result: GlobResult | GrepResult) -> tuple[object, ...]:
    """The result of a search, without times."""
    assert result.ok, result.error
    found = [
        (match.path, match.line, match.text, match.context_before or None, match.context_after or None)
        if hasattr(match, "line")
        else (match.path, match.is_dir)
        for match in result.matches or ()
    ]
    return (found, result.truncated)


async def filled(backend: BackendProtocol, beneath: str = "/") -> BackendProtocol:
    """Fill `backend` with the files beneath a directory, by their paths relative to it."""
    start = beneath.rstrip("/")
    files = [(path[len(start) :], text.encode()) for path, text in FILES.items() if path.startswith(f"{start}/")]
    assert all(outcome.error is None for outcome in await backend.aupload_files(files))
    return backend


# --- wrappers ---


def _kept(path: str) -> FilesystemPermission:
    return FilesystemPermission(["read"], [path], "deny")


WRAPPERS: Final[Mapping[type[WrapperBackend], Callable[[BackendProtocol], WrapperBackend]]] = {
    WrapperBackend: WrapperBackend,
    PermissionedBackend: lambda inner: PermissionedBackend(inner, [_kept("/secret/**")]),
    HookedBackend: lambda inner: HookedBackend(inner, [lambda call: None], [lambda call, result: None]),
    AuditedBackend: lambda inner: AuditedBackend(inner, lambda record: None),
    ObservedBackend: lambda inner: AuditedBackend(inner, lambda record: None),
    TracedBackend: TracedBackend,
    HistoryBackend: HistoryBackend,
    KeepingBackend: HistoryBackend,
    ReadOnlyBackend: ReadOnlyBackend,
    ChangePolicy: ChangePolicy,
    QuotaBackend: lambda inner: QuotaBackend(inner, max_files=1_000_000),
    LatencyBackend: lambda inner: LatencyBackend(inner, 0),
    FaultyBackend: lambda inner: FaultyBackend(inner, {}),
    VirtualShell: VirtualShell,
}


# --- backends ---


class _Sync(MemoryBackend):
    """A subclass that overrides the sync names."""

    is_synchronous = False

    def grep(self, pattern: str, *args: Any, **options: Any) -> GrepResult:
        return super().grep(pattern, *args, **options)

    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        return super().glob(pattern, path)


class _Async(FilesystemBackend):
    """A subclass that overrides the async names."""

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        return await super().agrep(pattern, path, glob, **options)

    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        return await super().aglob(pattern, path)


class _V1Sandbox(DuckS3):
    id = "v1"

    def execute(self, command: str) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def _in_state(_: Path) -> AsyncIterator[BackendProtocol]:
    stack = ExitStack()
    node = await anyio.to_thread.run_sync(stack.enter_context, open_node())
    try:
        yield await filled(InNode(StateBackend(), node))
    finally:
        await anyio.to_thread.run_sync(stack.close)


def _plain(make: Callable[[Path], BackendProtocol]) -> Any:
    @asynccontextmanager
    async def opened(directory: Path) -> AsyncIterator[BackendProtocol]:
        yield await filled(make(directory))

    return opened


def _ready(make: Callable[[Path], Awaitable[BackendProtocol]]) -> Any:
    @asynccontextmanager
    async def opened(directory: Path) -> AsyncIterator[BackendProtocol]:
        yield await make(directory)

    return opened


async def _mounted(_: Path) -> BackendProtocol:
    tree = CompositeBackend(MemoryBackend(), {"/src": MemoryBackend(), "/other": MemoryBackend()})
    return await filled(tree)


async def _in_mounts(directory: Path) -> BackendProtocol:
    """Mounts within a mount, each behind a policy."""
    inner = CompositeBackend(MemoryBackend(), {"/deep": WRAPPERS[PermissionedBackend](FilesystemBackend(directory))})
    return await filled(CompositeBackend(MemoryBackend(), {"/src": WRAPPERS[HookedBackend](inner)}))


async def _of_factory(_: Path) -> BackendProtocol:
    memory = await filled(MemoryBackend())
    return FactoryBackend(lambda runtime: memory)


async def _of_v1(_: Path) -> BackendProtocol:
    return adapt_backend_protocol(DuckS3({**FILES}))


async def _sandbox_of_v1(_: Path) -> BackendProtocol:
    return adapt_sandbox_protocol(_V1Sandbox({**FILES}))


def _wrapped(*kinds: type[WrapperBackend]) -> Callable[[Path], Awaitable[BackendProtocol]]:
    async def make(_: Path) -> BackendProtocol:
        backend = await filled(MemoryBackend())
        for kind in kinds:
            backend = WRAPPERS[kind](backend)
        return backend

    return make


BACKENDS: Final[Mapping[str, Any]] = {
    "memory": _plain(lambda directory: MemoryBackend()),
    "object store": _plain(lambda directory: ObjectStoreBackend("memory://")),
    "store": _plain(lambda directory: StoreBackend(InMemoryStore(), namespace=("files",))),
    "state": _in_state,
    "filesystem": _plain(FilesystemBackend),
    "sqlite": _plain(lambda directory: SqliteBackend(directory / "files.db")),
    "without ripgrep": _plain(lambda directory: FilesystemBackend(directory, ripgrep=False)),
    "local_shell": _plain(LocalShellBackend),
    "fsspec": _plain(lambda directory: FsspecBackend(AsyncMemory())),
    "fsspec memory": _plain(lambda directory: FsspecBackend("memory://", str(directory))),
    "bubblewrap": _plain(BubblewrapSandbox),
    "landlock": _plain(LandlockSandbox),
    "sandbox": _plain(LocalSandbox),
    "mounts": _ready(_mounted),
    "mounts in mounts": _ready(_in_mounts),
    "factory": _ready(_of_factory),
    "V1": _ready(_of_v1),
    "V1 sandbox": _ready(_sandbox_of_v1),
    "sync override": _plain(lambda directory: _Sync()),
    "async override": _plain(_Async),
    "three policies": _ready(_wrapped(PermissionedBackend, HistoryBackend, HookedBackend)),
}
