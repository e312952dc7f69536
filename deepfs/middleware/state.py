"""The state of an agent."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Required

from langchain_core.messages import AnyMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite

from deepfs._langgraph.private import messages_reducer
from deepfs.middleware._base import AgentState

__all__ = ["DeepAgentState"]

_SNAPSHOT: Final = 50


class _MessagesChannel(DeltaChannel[Any]):
    """Messages. A checkpoint holds those that were added; every 50 updates, it holds all of them.

    Unlike the reducer of LangGraph, it follows `RemoveMessage(REMOVE_ALL_MESSAGES)`, which summaries use.
    """

    def __init__(
        self, reducer: Any = messages_reducer, typ: Any = list, *, snapshot_frequency: int = _SNAPSHOT
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    def update(self, values: Sequence[Any]) -> bool:
        """Apply the writes of a superstep."""
        kept = None if any(map(_is_overwrite, values)) else _after_removal(values)
        if kept is None:
            return super().update(values)
        self.value: list[Any] = []
        return super().update(kept)

    def replay_writes(self, writes: Sequence[Any]) -> None:
        """Apply saved writes, oldest first."""
        kept = _after_removal([value for *_, value in writes])
        if kept is None:
            return super().replay_writes(writes)
        self.value = []
        return super().replay_writes([("", "", value) for value in kept])


def _after_removal(values: Sequence[Any]) -> list[Any] | None:
    """Return what follows the last removal of all messages; None if there is none."""
    for index in reversed(range(len(values))):
        write = values[index] if isinstance(values[index], list) else [values[index]]
        for place in reversed(range(len(write))):
            if isinstance(write[place], RemoveMessage) and write[place].id == REMOVE_ALL_MESSAGES:
                return [write[place + 1 :], *values[index + 1 :]]
    return None


def _is_overwrite(value: object) -> bool:
    return isinstance(value, Overwrite) or (isinstance(value, dict) and "__overwrite__" in value)


class DeepAgentState(AgentState[Any]):
    """The state of an agent; a `state_schema` inherits from it. Each message is saved about once per thread.

    LangGraph's usual channel saves all messages at every step.
    """

    messages: Required[Annotated[list[AnyMessage], _MessagesChannel()]]
