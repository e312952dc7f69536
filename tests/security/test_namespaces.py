"""Names that a run gives lead to its own files in a store, or to an error."""

import warnings
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from deepfs.backends.store import StoreBackend
from deepfs.types import ReadResult

pytestmark = pytest.mark.filterwarnings("ignore:StoreBackend without a namespace:DeprecationWarning")

REFUSED = ["", "a\n", "\ud800", "a\0", 3, 3.5, ["a"], ("a", "b"), {"a": 1}, True]


def read_as(assistant: object, store: InMemoryStore, *, writes: bool = False) -> ReadResult:
    """What a run with this `assistant_id` reads; before, it may write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        backend = StoreBackend(store)
    seen: list[Any] = []

    def node(state: MessagesState) -> dict[str, Any]:
        if writes:
            seen.append(backend.write("/secret", "of its own"))
        seen.append(backend.read("/secret"))
        return {"messages": []}

    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile()
    graph.invoke({"messages": []}, {"metadata": {"assistant_id": assistant}})
    return seen[-1]


def test_no_assistant_id_reads_the_files_of_another(subtests: pytest.Subtests) -> None:
    for assistant in REFUSED:
        with subtests.test(assistant=assistant):
            store = InMemoryStore()
            for other in ("a.b", "a", "b"):
                assert read_as(other, store, writes=True).ok
            before = set(store.list_namespaces())
            read = read_as(assistant, store, writes=True)
            if not assistant:  # As without one: the files that all share.
                assert read.ok
                assert set(store.list_namespaces()) == before | {("filesystem",)}
                continue
            assert read.code == "backend_error"
            assert "assistant_id" in (read.error or "")
            assert set(store.list_namespaces()) == before


def test_an_assistant_id_that_prints_has_files_of_its_own_or_an_error() -> None:
    for assistant in ["helper", "a.b", "0f8b-", "langgraph", "filesystem", "x" * 300, "a!b", "a/b", "a b", "*", "é"]:
        store = InMemoryStore()
        read_as("other", store, writes=True)
        assert read_as(assistant, store).code in ("file_not_found", "backend_error")
        assert read_as(assistant, store, writes=True).code in (None, "file_not_found", "backend_error")
