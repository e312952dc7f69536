"""A node of a real graph that stays open while a test uses its state, and the context of one."""

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONFIG_KEY_READ, CONFIG_KEY_SEND
from langgraph.config import get_config
from langgraph.graph import START, StateGraph

from deepfs import FilesystemState, StateBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import Operation, Streamed

__all__ = ["InNode", "OpenNode", "in_run", "open_node"]


class OpenNode:
    """A node that runs until the block ends; it accesses the files by LangGraph's own calls, without the backend."""

    def __init__(self, config: RunnableConfig) -> None:
        self.config = config

    @property
    def files(self) -> Mapping[str, Any]:
        """The files as a plain reader of the state sees them."""
        return dict(self.config["configurable"][CONFIG_KEY_READ]("files", True))

    def put(self, path: str, data: Mapping[str, Any]) -> None:
        """Write a plain file dict to the channel, as any node may."""
        self.config["configurable"][CONFIG_KEY_SEND]([("files", {path: dict(data)})])


class InNode(WrapperBackend):
    """A backend whose operations run in the context of the node, whatever thread calls them."""

    is_synchronous = True

    def __init__(self, inner: StateBackend, node: OpenNode) -> None:
        super().__init__(inner)
        self._node = node

    async def run(self, operation: Operation) -> Any:
        with self._in_node():
            answer = await super().run(operation)
        return self._stream(answer) if isinstance(operation, Streamed) else answer

    async def _stream(self, source: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(source):
            while True:
                with self._in_node():
                    try:
                        item = await anext(source)
                    except StopAsyncIteration:
                        return
                yield item

    @contextmanager
    def _in_node(self) -> Iterator[None]:
        token = var_child_runnable_config.set(self._node.config)
        try:
            yield
        finally:
            var_child_runnable_config.reset(token)


@contextmanager
def open_node() -> Iterator[OpenNode]:
    """Run a compiled graph in a thread; its only node runs until the block ends."""
    opened: list[OpenNode] = []
    is_open, may_end = threading.Event(), threading.Event()

    def node(state: FilesystemState) -> None:
        opened.append(OpenNode(get_config()))
        is_open.set()
        may_end.wait()

    graph = StateGraph(FilesystemState).add_node(node).add_edge(START, "node").compile()
    thread = threading.Thread(target=graph.invoke, args=({"files": {}},), daemon=True)
    thread.start()
    is_open.wait()
    try:
        yield opened[0]
    finally:
        may_end.set()
        thread.join()


@contextmanager
def in_run(run: str | None, thread: str = "t") -> Iterator[None]:
    """A context like that of a node of a graph in this run."""
    token = var_child_runnable_config.set({"configurable": {"thread_id": thread, "run_id": run}})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
