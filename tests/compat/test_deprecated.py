"""Deprecated shapes still work; their warnings point at the line that uses them."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    ErrorCode,
    FilesystemState,
    MemoryBackend,
    StateBackend,
    StoreBackend,
)
from deepfs.backends import BackendContext


class State(FilesystemState, total=False):
    tenant: str


class Context(TypedDict):
    user: str


def in_graph(work: Callable[[], Any], store: Any = None, files: dict[str, Any] | None = None) -> Any:
    """Result of `work`, called in a node of a graph, and the files of the state afterwards."""
    returned: list[Any] = []

    def node(state: State) -> Any:
        returned.append(work())
        return {}

    graph = StateGraph(State, context_schema=Context).add_node(node).add_edge(START, "node").compile(store=store)
    after = graph.invoke({"tenant": "acme", "files": files or {}}, context={"user": "ada"})
    return returned[0], after.get("files", {})


class Warned:
    """Expects one DeprecationWarning with this text, at the line that follows the `with`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        self._line = inspect.stack()[1].lineno + 1
        self._catching: Any = warnings.catch_warnings(record=True)
        self._caught: list[Any] = self._catching.__enter__()
        warnings.simplefilter("always")

    def __exit__(self, *raised: Any) -> None:
        self._catching.__exit__(*raised)
        if raised[0] is None:
            assert [warning.category for warning in self._caught] == [DeprecationWarning]
            assert self.text in str(self._caught[0].message)
            assert (self._caught[0].filename, self._caught[0].lineno) == (__file__, self._line)


class TestRuntimes:
    def test_a_state_backend_accepts_a_runtime(self) -> None:
        with Warned("StateBackend(runtime)"):
            backend = StateBackend(Runtime())
        written, files = in_graph(lambda: backend.write("/a.txt", "x"))
        assert written.ok
        assert list(files) == ["/a.txt"]

    def test_a_store_backend_accepts_a_runtime(self) -> None:
        store = InMemoryStore()
        with Warned("StoreBackend(runtime)"):
            backend = StoreBackend(Runtime(store=store), namespace=("files",))
        assert backend.write("/a.txt", "x").ok
        assert store.get(("files",), "/a.txt") is not None

    def test_a_store_backend_without_a_namespace_warns(self) -> None:
        with Warned("without a namespace"):
            StoreBackend(InMemoryStore())


class TestFactories:
    def test_a_factory_may_use_the_config_and_the_state(self) -> None:
        seen: list[Any] = []

        def factory(rt: Any) -> BackendProtocol:
            seen.append((rt.config["metadata"]["langgraph_node"], rt.state["tenant"], rt.context["user"]))
            return StateBackend(rt)

        with Warned("factories are deprecated"):
            backend = CompositeBackend(factory, {"/memory/": MemoryBackend()})
        written, files = in_graph(lambda: [backend.write("/a.txt", "x"), backend.write("/memory/b.txt", "x")])
        assert all(result.ok for result in written)
        assert list(files) == ["/a.txt"]
        assert seen[0] == ("node", "acme", "ada")

    def test_shared_files_of_a_factory_are_warned_about_once(self) -> None:
        def factory(rt: Any) -> Any:
            return StoreBackend(rt)

        with pytest.deprecated_call(match="factories are deprecated"):
            backend = CompositeBackend(StateBackend(), {"/m/": factory})
        with pytest.deprecated_call(match="all users of an assistant share its files") as caught:
            written, _ = in_graph(
                lambda: [backend.write("/m/a.txt", "x"), backend.read("/m/a.txt")], store=InMemoryStore()
            )
        assert all(result.ok for result in written)
        assert [(warning.filename, "share" in str(warning.message)) for warning in caught] == [(__file__, True)]

    @pytest.mark.parametrize(
        "factory",
        [lambda rt: rt.no_such_thing, lambda rt: 3, lambda rt: MemoryBackend],
        ids=["raises", "number", "class"],
    )
    def test_a_failing_factory_fails_the_operation(self, factory: Any) -> None:
        with pytest.deprecated_call():
            backend = CompositeBackend(MemoryBackend(), {"/made/": factory})
        result = backend.write("/made/a.txt", "x")
        assert result.code is ErrorCode.BACKEND_ERROR
        assert "factory" in str(result.error)

    def test_values_that_are_neither_backend_nor_factory_are_refused(self) -> None:
        for nonsense in (3, None, MemoryBackend, "/path"):
            with pytest.raises(TypeError):
                CompositeBackend(nonsense, {})  # type: ignore[arg-type]


class TestNamespaces:
    def test_the_older_context_has_a_runtime_and_the_state(self) -> None:
        store = InMemoryStore()
        backend = StoreBackend(store, namespace=lambda ctx: (ctx.runtime.context["user"], ctx.state["tenant"]))
        with pytest.deprecated_call(match=r"BackendContext\.(runtime|state)") as caught:
            assert in_graph(lambda: backend.write("/a.txt", "x"))[0].ok
        assert {warning.filename for warning in caught} == {__file__}
        assert store.get(("ada", "acme"), "/a.txt") is not None

    def test_a_backend_context_can_be_constructed(self) -> None:
        context = BackendContext(state={"a": 1}, runtime=Runtime(context="c"))
        with Warned("state"):
            assert context.state == {"a": 1}
        with Warned("runtime"):
            assert context.runtime.context == "c"


class TestOldNames:
    def test_backends_have_the_old_method_names(self) -> None:
        backend: Any = MemoryBackend()
        backend.write("/dir/a.txt", "needle\n")
        with Warned("ls_info"):
            assert backend.ls_info("/") == [{"path": "/dir/", "is_dir": True}]
        with Warned("grep_raw"):
            assert backend.grep_raw("needle") == [{"path": "/dir/a.txt", "line": 1, "text": "needle"}]
        with Warned("glob_info"):
            assert [info["path"] for info in backend.glob_info("*.txt")] == ["/dir/a.txt"]
        with pytest.deprecated_call():
            assert backend.ls_info("/none") == []
        with pytest.deprecated_call():
            assert "not found" in backend.grep_raw("x", "/none")

    def test_an_override_is_called_once_by_either_name(self) -> None:
        hits: list[str] = []

        class Logged(MemoryBackend):
            def ls_info(self, path: str) -> Any:
                hits.append(path)
                return [info for info in super().ls_info(path) if "secret" not in info["path"]]

        backend: Any = Logged()
        backend.write("/secret.txt", "x")
        backend.write("/open.txt", "x")
        tree = CompositeBackend(MemoryBackend(), {"/m/": backend})
        with pytest.deprecated_call():
            assert [info.path for info in tree.ls("/m").entries or ()] == ["/m/open.txt"]
        assert hits == ["/"]
        with pytest.deprecated_call():
            assert [info.path for info in backend.ls_info("/")] == ["/open.txt"]
        assert hits == ["/", "/"]


class PolicyWrapper(BackendProtocol):
    """A wrapper from the older documentation around a backend of deepfs; it mixes both protocols."""

    def __init__(self, inner: Any, deny_prefixes: list[str]) -> None:
        self.inner = inner
        self.deny_prefixes = deny_prefixes

    def ls_info(self, path: str) -> Any:
        return self.inner.ls_info(path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return self.inner.read(file_path, offset=offset, limit=limit)

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        return self.inner.grep_raw(pattern, path, glob)

    def glob_info(self, pattern: str, path: str = "/") -> Any:
        return self.inner.glob_info(pattern, path)

    def write(self, file_path: str, content: str) -> Any:
        if any(file_path.startswith(prefix) for prefix in self.deny_prefixes):
            from deepfs.backends.protocol import WriteResult

            return WriteResult(error=f"Writes are not allowed under {file_path}")
        return self.inner.write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        return self.inner.edit(file_path, old_string, new_string, replace_all)


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
@pytest.mark.anyio
async def test_a_v1_wrapper_may_mix_both_protocols() -> None:
    tree = CompositeBackend(MemoryBackend(), {"/guarded/": PolicyWrapper(MemoryBackend(), ["/private/"])})
    assert (await tree.awrite("/guarded/a.txt", "one\ntwo\nthree\n")).ok
    denied = await tree.awrite("/guarded/private/a.txt", "x")
    assert denied.code is ErrorCode.PERMISSION_DENIED
    shown = await tree.aread("/guarded/a.txt", 1, 1)
    assert (shown.file_data and shown.file_data.content, shown.start_line, shown.end_line) == ("two\n", 2, 2)
    assert (shown.next_offset, shown.total_lines) == (2, 3)
    assert (await tree.aedit("/guarded/a.txt", "two", "2")).occurrences == 1
    assert [match.line for match in (await tree.agrep("2", "/guarded")).matches or ()] == [2]
    assert [info.path for info in (await tree.aglob("*.txt")).matches or ()] == ["/guarded/a.txt"]
    assert (await tree.aread("/guarded/none")).code is ErrorCode.FILE_NOT_FOUND
