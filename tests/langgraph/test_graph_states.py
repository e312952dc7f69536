"""StateBackend and StoreBackend in graphs with every kind of state, node and run."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field

from deepfs import CompositeBackend, FilesystemState, StateBackend, StoreBackend
from deepfs.backends.state import FileConflicts, Files

pytestmark = pytest.mark.anyio

THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}

files = CompositeBackend(StateBackend(), {"/store/": StoreBackend(namespace=("all",))})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Typed(FilesystemState):
    log: Annotated[list[str], operator.add]


@dataclass
class Data:
    files: Files = field(default_factory=dict)
    file_conflicts: FileConflicts = field(default_factory=list)
    log: Annotated[list[str], operator.add] = field(default_factory=list)


class Model(BaseModel):
    files: Files = Field(default_factory=dict)
    file_conflicts: FileConflicts = Field(default_factory=list)
    log: Annotated[list[str], operator.add] = Field(default_factory=list)


class WithoutConflicts(BaseModel):
    files: Files = Field(default_factory=dict)
    log: Annotated[list[str], operator.add] = Field(default_factory=list)


STATES: list[Any] = [Typed, Data, Model, WithoutConflicts]


def work(state: Any) -> dict[str, list[str]]:
    written = [files.write(path, "one two\n") for path in ("/a.txt", "/store/b.txt")]
    edited = files.edit("/a.txt", "one", "1")
    found = files.grep("two")
    return {"log": [str([result.error for result in (*written, edited)]), str([m.path for m in found.matches or ()])]}


async def awork(state: Any) -> dict[str, list[str]]:
    written = [await files.awrite(path, "one two\n") for path in ("/a.txt", "/store/b.txt")]
    edited = await files.aedit("/a.txt", "one", "1")
    found = await files.agrep("two")
    return {"log": [str([result.error for result in (*written, edited)]), str([m.path for m in found.matches or ()])]}


def later(state: Any) -> dict[str, list[str]]:
    """A node of the next step that edits and reads the file of the first node."""
    edited = files.edit("/a.txt", "two", "2")
    seen = files.read("/a.txt").file_data or {}
    return {"log": [str(edited.error), seen["content"]]}


EXPECTED = ["[None, None, None]", "['/a.txt', '/store/b.txt']", "None", "1 2\n"]


def builder(state: Any, node: Callable[..., Any]) -> StateGraph[Any]:
    graph = StateGraph(state).add_node("work", node).add_node("later", later)
    return graph.add_edge(START, "work").add_edge("work", "later")


@pytest.mark.parametrize("state", STATES)
async def test_every_kind_of_state_can_hold_files(state: Any) -> None:
    for node in (work, awork):
        saver = InMemorySaver()
        graph = builder(state, node).compile(checkpointer=saver, store=InMemoryStore())
        final = await graph.ainvoke({}, THREAD)
        assert final["log"] == EXPECTED
        assert {path: data["content"] for path, data in final["files"].items()} == {"/a.txt": "1 2\n"}
        reloaded = (await builder(state, node).compile(checkpointer=saver).aget_state(THREAD)).values
        assert reloaded["files"] == final["files"]


def test_a_sync_run_gives_the_same_results() -> None:
    for state in STATES:
        graph = builder(state, work).compile(checkpointer=InMemorySaver(), store=InMemoryStore())
        assert graph.invoke({}, THREAD)["log"] == EXPECTED


async def test_a_state_without_files_raises_an_error_that_names_filesystem_state() -> None:
    graph = StateGraph(MessagesState).add_node("work", awork).add_edge(START, "work").compile(store=InMemoryStore())
    with pytest.raises(RuntimeError, match="class State\\(FilesystemState\\)"):
        await graph.ainvoke({"messages": []})


# --- namespaces ---


@dataclass
class Context:
    user: str = "nobody"


def of_user(runtime: Runtime[Context]) -> tuple[str, ...]:
    return (runtime.context.user, "files")


def of_authenticated_user(runtime: Runtime[Context]) -> tuple[str, ...]:
    assert runtime.server_info is not None
    assert runtime.server_info.user is not None
    return (runtime.server_info.user.identity, "files")


@dataclass
class Authenticated:
    """The authenticated user as LangGraph's server passes it, reduced to the identity."""

    identity: str


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        (of_user, [("ada", "files"), ("bob", "files")]),
        (of_authenticated_user, [("ada@example.org", "files"), ("bob@example.org", "files")]),
    ],
    ids=["user", "authenticated user"],
)
async def test_a_namespace_may_come_from_the_runtime(
    namespace: Callable[[Any], tuple[str, ...]], expected: list[tuple[str, ...]]
) -> None:
    backend = StoreBackend(namespace=namespace)

    async def write(state: Typed) -> dict[str, list[str]]:
        return {"log": [str((await backend.awrite("/mine.txt", "mine")).error)]}

    store = InMemoryStore()
    graph = StateGraph(Typed, context_schema=Context).add_node(write).add_edge(START, "write").compile(store=store)
    for user, thread in (("ada", "t1"), ("bob", "t2")):
        configurable = {
            "thread_id": thread,
            "langgraph_auth_user": Authenticated(f"{user}@example.org"),
        }
        config: RunnableConfig = {"configurable": configurable}
        assert (await graph.ainvoke({}, config, context=Context(user)))["log"] == ["None"]
    # Stores refuse dots in namespace labels, so another character replaces them.
    stored = [tuple(label.replace(".", "!") for label in namespace) for namespace in expected]
    assert sorted(store.list_namespaces()) == sorted(stored)
