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
    FilesystemMiddleware,
    FilesystemState,
    MemoryBackend,
    StateBackend,
    StoreBackend,
)


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


class TestNamespaces:
    def test_the_older_context_has_a_runtime_and_the_state(self) -> None:
        store = InMemoryStore()
        backend = StoreBackend(store, namespace=lambda ctx: (ctx.runtime.context["user"], ctx.state["tenant"]))
        with pytest.deprecated_call(match=r"BackendContext\.(runtime|state)") as caught:
            assert in_graph(lambda: backend.write("/a.txt", "x"))[0].ok
        assert {warning.filename for warning in caught} == {__file__}
        assert store.get(("ada", "acme"), "/a.txt") is not None


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


def test_the_class_of_the_state_stands_for_a_backend() -> None:
    with Warned("the class StateBackend as a backend"):
        assert type(FilesystemMiddleware(backend=StateBackend).backend) is StateBackend
