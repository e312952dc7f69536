"""Subclasses that override operations, sync or async: an override runs exactly once for every kind of caller."""

import asyncio
import threading
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
from deepfs.sync import is_inline
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


class TestOperationsBuiltOnOverrides:
    @pytest.mark.anyio
    async def test_sync_calls_on_a_loop_run_the_override_inline(self) -> None:
        threads = []

        class Audited(MemoryBackend):
            def write(self, path: str, content: str, **options: Any) -> WriteResult:
                threads.append(threading.get_ident())
                return super().write(path, content, **options)

        backend = CompositeBackend(MemoryBackend(), {"/m/": WrapperBackend(Audited())})
        assert backend.write("/m/a.txt", "one").ok
        assert threads == [threading.get_ident()]

    def test_an_override_within_an_inline_call_may_wait_for_other_backends(self, tmp_path: Path) -> None:
        journal = FilesystemBackend(tmp_path)

        class Journaled(MemoryBackend):
            def write(self, path: str, content: str, **options: Any) -> WriteResult:
                assert not is_inline()
                assert journal.write(path, content).ok
                assert asyncio.run(journal.aread(path)).ok
                return super().write(path, content, **options)

        backend = CompositeBackend(Journaled(), {})
        assert backend.is_synchronous
        assert backend.write("/a.txt", "one").ok
        assert (tmp_path / "a.txt").read_text() == "one"


# --- the documentation's example -------------------------------------------------------------------------------------


class GuardedBackend(FilesystemBackend):
    """The example in the documentation of deepagents."""

    def write(self, file_path: str, content: str) -> WriteResult:
        if file_path.startswith("/secret/"):
            return WriteResult(error=f"Writes are not allowed under {file_path}")
        return super().write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        if file_path.startswith("/secret/"):
            return EditResult(error=f"Edits are not allowed under {file_path}")
        return super().edit(file_path, old_string, new_string, replace_all)


def test_the_guard_of_the_example_holds_for_every_way_to_call_it(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a.txt").write_text("one")
    guarded: Any = GuardedBackend(root_dir=tmp_path, virtual_mode=True)
    work: Any = CompositeBackend(MemoryBackend(), {"/work/": guarded})
    assert guarded.write(file_path="/a.txt", content="one").ok
    assert guarded.edit(path="/a.txt", old="one", new="two").ok
    assert run_sync(guarded.aedit, file_path="/a.txt", old_string="two", new_string="2", replace_all=True).ok
    assert run_sync(work.aedit, "/work/a.txt", "2", "two").ok
    assert guarded.edit("/secret/a.txt", "one", "x").error == "Edits are not allowed under /secret/a.txt"
    assert run_sync(guarded.awrite, "/secret/b.txt", "x").error == "Writes are not allowed under /secret/b.txt"
    for refused in (
        guarded.write("/secret/b.txt", "x"),
        run_sync(guarded.awrite, path="/secret/b.txt", content="x"),
        guarded.edit(file_path="/secret/a.txt", old_string="one", new_string="x"),
        run_sync(work.awrite, "/work/secret/b.txt", "x"),
        run_sync(work.aedit, "/work/secret/a.txt", "one", "x"),
    ):
        assert not refused.ok
    assert (tmp_path / "a.txt").read_text() == "two"
    assert (tmp_path / "secret/a.txt").read_text() == "one"
    assert not (tmp_path / "secret/b.txt").exists()


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
    def test_a_class_with_only_sync_methods_is_a_complete_backend(self) -> None:
        backend = Files()
        assert backend.write("/a.txt", "one").ok
        assert run_sync(backend.aedit, "/a.txt", "one", "two").ok
        assert content(run_sync(backend.aread, "/a.txt")) == "two"
        assert CompositeBackend(MemoryBackend(), {"/m/": backend}).ls("/m").entries == [{"path": "/m/a.txt"}]

    @pytest.mark.anyio
    async def test_an_operation_that_a_class_does_not_define_is_unsupported(self) -> None:
        class Incomplete(BackendProtocol):
            def ls(self, path: str) -> LsResult:
                return LsResult(entries=[])

            async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
                raise NotImplementedError

        backend = Incomplete()
        assert backend.ls("/").entries == []
        results = [
            await backend.aread("/x"),
            await backend.awrite("/x", "text"),
            await backend.aedit("/x", "a", "b"),
            await backend.aglob("*"),
            await backend.agrep("x"),
            await backend.adelete("/x"),
        ]
        assert [result.code for result in results] == ["unsupported"] * 6
        assert [each.error for each in await backend.adownload_files(["/x"])] == ["unsupported"]
        assert [each.error for each in await backend.aupload_files([("/x", b"")])] == ["unsupported"]

    def test_a_subclass_may_complete_an_incomplete_class(self) -> None:
        class Half(BackendProtocol):
            ls, read, write = Files.ls, Files.read, Files.write

        class Whole(Half):
            edit, glob, grep = Files.edit, Files.glob, Files.grep

        assert Whole().ls.__name__ == "ls"

    @pytest.mark.anyio
    async def test_a_raised_deepfs_error_becomes_the_result(self) -> None:
        backend = Files()
        composite = CompositeBackend(MemoryBackend(), {"/m/": backend})
        denied = "Error: Permission denied for '/etc'"
        for result in (backend.write("/etc", ""), await backend.awrite("/etc", "")):
            assert (type(result), result.code, result.error) == (WriteResult, ErrorCode.PERMISSION_DENIED, denied)
        assert (await composite.awrite("/m/etc", "")).code is ErrorCode.PERMISSION_DENIED
        assert (await backend.aglob("*")).code is backend.glob("*").code is ErrorCode.INVALID_PATTERN


class TestIsSynchronous:
    def test_sync_overrides_keep_a_backend_synchronous(self) -> None:
        assert only_write(MemoryBackend).is_synchronous
        assert a_mixin(MemoryBackend).is_synchronous
        assert not only_write(FilesystemBackend).is_synchronous

    def test_async_overrides_make_it_asynchronous_unless_it_declares_otherwise(self) -> None:
        class Mixin:
            async def _fetch(self) -> None: ...

        class Mixed(Mixin, MemoryBackend):
            pass

        class Swift(only_awrite(MemoryBackend)):
            is_synchronous = True

        class Derived(Swift):
            pass

        assert not only_awrite(MemoryBackend).is_synchronous
        assert not Mixed.is_synchronous
        assert Swift.is_synchronous
        assert Derived.is_synchronous

    def test_a_base_class_with_async_overrides_makes_it_asynchronous(self) -> None:
        class Audit(BackendProtocol):
            async def awrite(self, path: str, content: str, **options: Any) -> WriteResult:
                return await super().awrite(path, content, **options)

        class Audited(MemoryBackend, Audit):
            pass

        assert not Audited.is_synchronous

    def test_what_a_class_or_an_object_declares_is_respected_by_wrappers_too(self) -> None:
        class ByProperty(MemoryBackend):
            @property
            def is_synchronous(self) -> bool:
                return False

        class ByObject(WrapperBackend):
            def __init__(self, inner: BackendProtocol) -> None:
                super().__init__(inner)
                self.is_synchronous = False

        for backend in (ByProperty(), ByObject(MemoryBackend()), WrapperBackend(ByProperty()), Files()):
            assert not backend.is_synchronous
        assert WrapperBackend(MemoryBackend()).is_synchronous


# --- signatures of deepagents ----------------------------------------------------------------------------------------


class WithoutOptions(MemoryBackend):
    """Overrides operations with the parameters that they have in deepagents, as its documentation shows."""

    def write(self, file_path: str, content: str) -> WriteResult:
        return super().write(file_path, content)

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> GrepResult:
        return super().grep(pattern, path, glob)


def test_options_at_their_defaults_are_not_passed_to_an_override_that_lacks_them() -> None:
    files = WithoutOptions()
    assert files.write("/a", "x\nx\n", overwrite=False, if_match=None).ok
    assert files.grep("x", regex=False, ignore_case=False, context_lines=0, max_count=None).ok


def test_an_option_missing_from_an_override_is_an_error_that_names_it() -> None:
    files = WithoutOptions()
    files.write("/a", "x\n")
    found = files.grep("x", regex=True)
    assert found.code is ErrorCode.UNSUPPORTED
    assert "'regex'" in str(found.error)


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


def test_max_count_applies_to_an_override_that_lacks_it() -> None:
    files = WithoutOptions()
    files.write("/a", "x\nx\n")
    found = files.grep("x", max_count=1)
    assert (len(found.matches or ()), found.truncated) == (1, True)
    assert not files.grep("x", max_count=2).truncated
