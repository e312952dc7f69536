"""Subclasses that override operations, sync or async: an override runs exactly once for every kind of caller."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemState,
    MemoryBackend,
    StateBackend,
    StoreBackend,
    run_sync,
)
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import ErrorCode, InvalidPatternError, PermissionDeniedError
from deepfs.testing import LatencyBackend
from deepfs.types import DeleteResult, EditResult, FileInfo, GlobResult, GrepResult, LsResult, ReadResult, WriteResult

# --- overrides -------------------------------------------------------------------------------------------------------


def only_write(base: type[BackendProtocol]) -> type[Any]:
    class OnlyWrite(base):
        def write(self, path: str, content: str, **options: Any) -> WriteResult:
            return super().write(path, f"{content}, by write", **options)

    return OnlyWrite


def only_awrite(base: type[BackendProtocol]) -> type[Any]:
    class OnlyAwrite(base):
        async def awrite(self, path: str, content: str, **options: Any) -> WriteResult:
            return await super().awrite(path, f"{content}, by awrite", **options)

    return OnlyAwrite


def both(base: type[BackendProtocol]) -> type[Any]:
    class Both(base):
        def write(self, path: str, content: str, **options: Any) -> WriteResult:
            return super().write(path, f"{content}, by write", **options)

        async def awrite(self, path: str, content: str, **options: Any) -> WriteResult:
            return await super().awrite(path, f"{content}, by awrite", **options)

    return Both


def both_in_levels(base: type[BackendProtocol]) -> type[Any]:
    """Make a class with a sync override, derived from a class with an async one."""
    return only_write(only_awrite(base))


def a_mixin(base: type[BackendProtocol]) -> type[Any]:
    class Mixin:
        def write(self, path: str, content: str, **options: Any) -> WriteResult:
            return super().write(path, f"{content}, by write", **options)  # type: ignore[misc]

    class WithMixin(Mixin, base):
        pass

    return WithMixin


# The content after a sync call and after an async call.
OVERRIDES = {
    only_write: ("x, by write", "x, by write"),
    only_awrite: ("x, by awrite", "x, by awrite"),
    both: ("x, by write", "x, by awrite"),
    both_in_levels: ("x, by write, by awrite", "x, by write, by awrite"),
    a_mixin: ("x, by write", "x, by write"),
}

# --- overridden classes ----------------------------------------------------------------------------------------------

BASES: dict[type[BackendProtocol], Callable[[type[Any], Path], BackendProtocol]] = {
    MemoryBackend: lambda cls, _: cls(),
    FilesystemBackend: lambda cls, root: cls(root),
    StoreBackend: lambda cls, _: cls(InMemoryStore(), namespace=("n",)),
    StateBackend: lambda cls, _: cls(),
}

# --- callers ---------------------------------------------------------------------------------------------------------

CALLERS: dict[str, Callable[[BackendProtocol], tuple[BackendProtocol, str]]] = {
    "direct": lambda backend: (backend, "/a.txt"),
    "composite-default": lambda backend: (CompositeBackend(backend, {"/m/": MemoryBackend()}), "/a.txt"),
    "composite-route": lambda backend: (CompositeBackend(MemoryBackend(), {"/m/": backend}), "/m/a.txt"),
    "wrapper": lambda backend: (WrapperBackend(backend), "/a.txt"),
    "wrapper-that-waits": lambda backend: (LatencyBackend(backend, 0.001), "/a.txt"),
}

Act = Callable[[], Any]
AsyncAct = Callable[[], Awaitable[Any]]


def in_sync_node(act: Act, *, run: Callable[[Any], Any] = lambda graph: graph.invoke({"files": {}})) -> Any:
    outcome: list[Any] = []

    def node(state: FilesystemState) -> None:
        outcome.append(act())

    run(StateGraph(FilesystemState).add_node(node).add_edge(START, "node").compile())
    return outcome[0]


def in_sync_node_of_an_async_run(act: Act) -> Any:
    return in_sync_node(act, run=lambda graph: asyncio.run(graph.ainvoke({"files": {}})))


def in_async_node(act: AsyncAct) -> Any:
    outcome: list[Any] = []

    async def node(state: FilesystemState) -> None:
        outcome.append(await act())

    graph = StateGraph(FilesystemState).add_node(node).add_edge(START, "node").compile()
    asyncio.run(graph.ainvoke({"files": {}}))
    return outcome[0]


def in_script(act: Act) -> Any:
    return act()


def on_asyncio(act: AsyncAct) -> Any:
    return anyio.run(act)


def on_trio(act: AsyncAct) -> Any:
    return anyio.run(act, backend="trio")


def on_background_loop(act: AsyncAct) -> Any:
    return run_sync(act)


SYNC_PLACES = [in_script, in_sync_node, in_sync_node_of_an_async_run]
ASYNC_PLACES = [on_asyncio, on_trio, on_background_loop, in_async_node]
IN_NODES = {in_sync_node, in_sync_node_of_an_async_run, in_async_node}


def content(result: ReadResult) -> str:
    assert result.file_data is not None, result.error
    return result.file_data.content


@pytest.mark.parametrize("base", BASES)
def test_an_override_runs_once_by_every_call(base: type[BackendProtocol], tmp_path: Path) -> None:
    """Each pair of an override and a caller meets one place of sync and one of async calls; all places have a turn."""
    found, expected = [], []
    pairs = product(OVERRIDES, CALLERS)
    for number, ((override, caller), sync, later) in enumerate(zip(pairs, cycle(SYNC_PLACES), cycle(ASYNC_PLACES))):
        by_sync, by_async = OVERRIDES[override]
        if base is StateBackend and sync not in IN_NODES:
            sync = in_sync_node
        if base is StateBackend and later not in IN_NODES:
            later = in_async_node
        called, path = CALLERS[caller](BASES[base](override(base), tmp_path / str(number)))
        other, _ = CALLERS[caller](BASES[base](override(base), tmp_path / f"{number} async"))

        def act(called: BackendProtocol = called, path: str = path) -> str:
            assert called.write(path, "x").ok
            return content(called.read(path))

        async def act_later(other: BackendProtocol = other, path: str = path) -> str:
            assert (await other.awrite(path, "x")).ok
            return content(await other.aread(path))

        found.append((override, caller, sync(act), later(act_later)))
        expected.append((override, caller, by_sync if caller == "direct" else by_async, by_async))
    assert found == expected


# --- classes with sync methods only ----------------------------------------------------------------------------------


class Files(BackendProtocol):
    """A complete backend with only sync methods."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.written: list[str] = []

    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[FileInfo(name) for name in sorted(self.files)])

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return ReadResult(file_data={"content": self.files[path]})  # type: ignore[arg-type]

    def write(self, path: str, content: str, **_: Any) -> WriteResult:
        if path == "/etc":
            raise PermissionDeniedError(path)
        self.files[path] = content
        self.written.append(path)
        return WriteResult(path=path)

    def edit(self, path: str, old: str, new: str, replace_all: bool = False, **_: Any) -> EditResult:
        self.files[path] = self.files[path].replace(old, new)
        return EditResult(path=path, occurrences=1)

    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        raise InvalidPatternError("Error: no globs here")

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None, **_: Any) -> GrepResult:
        raise ZeroDivisionError


class TestSyncClasses:
    @pytest.mark.anyio
    async def test_a_raised_deepfs_error_becomes_the_result(self) -> None:
        backend = Files()
        composite = CompositeBackend(MemoryBackend(), {"/m/": backend})
        denied = "Error: Permission denied for '/etc'"
        for result in (backend.write("/etc", ""), await backend.awrite("/etc", "")):
            assert (type(result), result.code, result.error) == (WriteResult, ErrorCode.PERMISSION_DENIED, denied)
        assert (await composite.awrite("/m/etc", "")).code is ErrorCode.PERMISSION_DENIED
        assert (await backend.aglob("*")).code is backend.glob("*").code is ErrorCode.INVALID_PATTERN


def test_async_overrides_make_a_backend_asynchronous_unless_it_declares_otherwise() -> None:
    class Mixin:
        async def _fetch(self) -> None: ...

    class Mixed(Mixin, MemoryBackend):
        pass

    class Swift(only_awrite(MemoryBackend)):
        is_synchronous = True

    class Derived(Swift):
        pass

    synchronous = [only_write(MemoryBackend), a_mixin(MemoryBackend), Swift, Derived]
    waiting = [only_write(FilesystemBackend), only_awrite(MemoryBackend), Mixed]
    assert [kind.is_synchronous for kind in (*synchronous, *waiting)] == [True] * 4 + [False] * 3


# --- signatures of deepagents ----------------------------------------------------------------------------------------


class WithoutOptions(MemoryBackend):
    """Overrides operations with the parameters that they have in deepagents, as its documentation shows."""

    def write(self, file_path: str, content: str) -> WriteResult:
        return super().write(file_path, content)

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> GrepResult:
        return super().grep(pattern, path, glob)


def test_options_that_an_override_lacks_are_left_out_at_their_defaults_and_named_otherwise() -> None:
    files = WithoutOptions()
    assert files.write("/a", "x\nx\n", overwrite=False, if_match=None).ok
    assert files.grep("x", regex=False, ignore_case=False, context_lines=0, max_count=None).ok
    found = files.grep("x", regex=True)
    assert (found.code, "'regex'" in str(found.error)) == (ErrorCode.UNSUPPORTED, True)
    found = files.grep("x", max_count=1)
    assert (len(found.matches or ()), found.truncated) == (1, True)


@pytest.mark.anyio
async def test_overwrite_reaches_the_write_of_the_base_through_an_override_that_lacks_it() -> None:
    class Async(MemoryBackend):
        async def awrite(self, path: str, content: str) -> WriteResult:  # type: ignore[override]
            return await super().awrite(path, f"{content}!")

    class Twice(WithoutOptions):
        def write(self, file_path: str, content: str) -> WriteResult:
            return super().write(file_path, content)

    for files, end in ((WithoutOptions(), ""), (Async(), "!"), (Twice(), "")):
        for backend in (files, WrapperBackend(files)):
            assert (await backend.awrite("/a", "x", overwrite=True)).ok
            assert (await backend.awrite("/a", "y")).code == "already_exists"
            assert (await backend.awrite("/a", "y", overwrite=True)).ok
            assert (await backend.awrite("/a", "z")).code == "already_exists"
            version = (await backend.aread("/a")).version
            assert (await backend.awrite("/a", "z", if_match=version)).ok
            assert (await backend.aread("/a")).unwrap().content == f"z{end}"
            assert (await backend.awrite("/a", "w", if_match=version)).code == "conflict"


def test_if_match_holds_for_overrides_that_lack_it() -> None:
    class LacksAsync(MemoryBackend):
        async def adelete(self, path: str) -> DeleteResult:
            return await super().adelete(path)

        async def aedit(self, path: str, old: str, new: str, replace_all: bool = False) -> EditResult:
            return await super().aedit(path, old, new, replace_all)

    class Lacks(MemoryBackend):
        def delete(self, file_path: str) -> DeleteResult:
            return super().delete(file_path)

        def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
            return super().edit(file_path, old_string, new_string, replace_all)

    for lacking in (LacksAsync, Lacks):
        for backend in (lacking(), WrapperBackend(lacking()), CompositeBackend(lacking())):
            assert backend.write("/a", "x").ok
            version = backend.read("/a").version
            for named in ("", "guess"):
                assert backend.delete("/a", if_match=named).code == "conflict"
                assert backend.edit("/a", "x", "y", if_match=named).code == "conflict"
            assert backend.edit("/a", "x", "y", if_match=version).ok
            assert backend.delete("/a", if_match=version).code == "conflict"
            assert backend.read("/a").unwrap().content == "y"
            assert backend.delete("/a", if_match=backend.read("/a").version).ok
