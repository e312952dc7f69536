"""What passes between an agent and its subagents: the state that they begin with, and what comes back."""

from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException
from langgraph.types import Command
from pydantic import BaseModel

from deepfs.backends._nested import adopt_files

__all__ = ["initial_state", "outcome"]

_OWN: Final = frozenset(
    {
        "conversation_history_name",
        "file_conflicts",
        "files",
        "jump_to",
        "messages",
        "remaining_steps",
        "structured_response",
        "todos",
    }
)
"""What each agent keeps to itself; files are merged instead."""
_CONFLICTS: Final = "/conflicts"


def initial_state(state: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The state that a subagent begins with: its task as the only message, and what it shares with the supervisor."""
    shared = {key: value for key, value in state.items() if key not in _OWN}
    files = {"files": state["files"]} if "files" in state else {}
    return {**shared, **files, "messages": [HumanMessage(description)]}


def outcome(state: Mapping[str, Any], result: Any, tool_call_id: str) -> "Command[Any]":
    """The answer of a subagent for the supervisor, whose state was `state`; its files are written to the supervisor's.

    A file that a parallel subagent changed in the same place stays as that one left it; the other version is kept
    under `/conflicts`, and the answer tells so. Raises ToolException for a result without messages.
    """
    messages = result.get("messages") if isinstance(result, Mapping) else None
    if not messages:
        raise ToolException("Error: The subagent returned no messages. Use another one, or do the task yourself.")
    notes = _adopted(state.get("files") or {}, result.get("files") or {}, tool_call_id) if "files" in result else []
    text = "\n\n".join(filter(None, [_answer(messages, result.get("structured_response")), *notes]))
    shared = {key: value for key, value in result.items() if key not in _OWN and value != state.get(key)}
    return Command(update={**shared, "messages": [ToolMessage(text, tool_call_id=tool_call_id, name="task")]})


def _adopted(given: Mapping[str, Any], made: Mapping[str, Any], tool_call_id: str) -> list[str]:
    """Take the files over; a note for each that could not be."""
    lost = adopt_files(given, made)
    kept = {f"{_CONFLICTS}/{tool_call_id}{path}": made[path] for path in lost if path in made}
    adopt_files({}, kept)
    return [_conflict(path, f"{_CONFLICTS}/{tool_call_id}{path}", path in made) for path in lost]


def _conflict(path: str, copy: str, has_copy: bool) -> str:
    told = f"[{path} was changed elsewhere meanwhile and stays as it is there."
    return f"{told} This subagent's version is in {copy}: merge what is missing]" if has_copy else f"{told}]"


def _answer(messages: Sequence[BaseMessage], structured: Any) -> str:
    """The structured response, or the last words of the subagent."""
    if isinstance(structured, BaseModel):
        return structured.model_dump_json()
    if structured is not None:
        return dumps(structured, ensure_ascii=False, default=str)
    spoken = (str(message.text) for message in reversed(messages) if isinstance(message, AIMessage))
    return next(filter(None, (text.rstrip() for text in spoken)), "[The subagent ended without a word]")
