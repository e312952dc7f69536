"""The StateBackend of deepagents, which has to be the real one: it is recognised by the name of its class alone."""

from typing import Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from deepfs import FilesystemState, MemoryBackend, adapt_backend_protocol
from deepfs.compat.deepagents import from_deepagents


class State(FilesystemState):
    n: int


@pytest.mark.parametrize("adapt", [adapt_backend_protocol, from_deepagents])
def test_parallel_edits_of_one_file_in_one_step_lose_nothing(adapt: Any) -> None:
    for theirs in (StateBackend(), CompositeBackend(StateBackend(), {"/other/": MemoryBackend()})):  # type: ignore[dict-item]
        adapted = adapt(theirs)

        def edit(state: State, adapted: Any = adapted) -> None:
            assert adapted.edit("/a", f"<{state['n']}>", f"[edited {state['n']}]").ok

        builder = StateGraph(State).add_node("edit", edit)
        builder.add_conditional_edges(START, lambda _: [Send("edit", {"n": n}) for n in range(20)], ["edit"])
        before = {"content": "".join(f"<{n}>\n" for n in range(20)), "encoding": "utf-8"}
        after = builder.compile().invoke({"files": {"/a": before}, "n": 0})
        assert after["files"]["/a"]["content"] == "".join(f"[edited {n}]\n" for n in range(20))
        assert after["file_conflicts"] == []
