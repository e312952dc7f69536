"""The StateBackend of deepagents, which has to be the real one: it is recognised by the name of its class alone."""

from typing import Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend
from deepagents.middleware.filesystem import FilesystemState as StateOfDeepagents
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from deepfs import ErrorCode, FilesystemState, MemoryBackend, adapt_backend_protocol
from deepfs.compat.deepagents import from_deepagents


@pytest.mark.parametrize("adapt", [adapt_backend_protocol, from_deepagents])
@pytest.mark.parametrize("state", [FilesystemState, StateOfDeepagents], ids=["deepfs", "deepagents"])
def test_parallel_edits_of_one_file_in_one_step_lose_nothing(adapt: Any, state: Any) -> None:
    """Under the state of deepfs, all edits are merged; under that of deepagents, the later ones are told to fail."""
    for theirs in (StateBackend(), CompositeBackend(StateBackend(), {"/other/": MemoryBackend()})):  # type: ignore[dict-item]
        adapted, made = adapt(theirs), []

        def edit(given: Any, adapted: Any = adapted, made: list[int] = made) -> None:
            done = adapted.edit("/a", f"<{given['n']}>", f"[edited {given['n']}]")
            assert done.code in (None, ErrorCode.CONFLICT)
            made += [given["n"]] * done.ok

        builder = StateGraph(state).add_node("edit", edit)
        builder.add_conditional_edges(
            START, lambda given: [Send("edit", {**given, "n": n}) for n in range(20)], ["edit"]
        )
        before = {"content": "".join(f"<{n}>" for n in range(20)), "encoding": "utf-8"}
        after = builder.compile().invoke({"messages": [], "files": {"/a": before}})
        assert len(made) == (20 if state is FilesystemState else 1)
        assert after["files"]["/a"]["content"] == "".join(f"[edited {n}]" if n in made else f"<{n}>" for n in range(20))
        assert not after.get("file_conflicts")
