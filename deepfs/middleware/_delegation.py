"""What a supervisor hands to a subagent, and what it takes back: messages, shared state and files."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from json import dumps
from typing import Any, Final, get_type_hints

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException
from langgraph.types import Command
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from deepfs._langgraph.task_files import adopt_files
from deepfs.middleware._backends import PrivateStateAttr
from deepfs.middleware.compaction import summarized_count
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skill_tools import SKILL_STATE_KEYS

__all__ = [
    "answer_of",
    "described",
    "fork_messages",
    "forked_state",
    "initial_state",
    "merged_files",
    "outcome",
    "private_keys",
]

_OWN: Final = SKILL_STATE_KEYS | frozenset(
    {
        "_summarization_event",
        "_summarization_session_id",
        "file_conflicts",
        "files",
        "jump_to",
        "messages",
        "remaining_steps",
        "rubric",
        "structured_response",
        "todos",
    }
)
"""Keys of the state that supervisor and subagent do not share. `files` are merged separately."""
_NOT_FORKED: Final = _OWN - {"files", "skills_load_errors", "skills_metadata", "todos"}
"""Keys that a fork does not continue with."""
_CONFLICTS: Final = "/conflicts"


# --- to the subagent -------------------------------------------------------------------------------------------------


def initial_state(
    state: Mapping[str, Any], description: str, *, fork: bool = False, private: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The initial state of a subagent: its task as the only message, and the keys shared with the supervisor.

    With `fork`, the messages of the supervisor come before the task. Keys in `private` are not shared.
    """
    shared = {key: value for key, value in state.items() if key not in _OWN and key not in private}
    files = {"files": state["files"]} if "files" in state else {}
    messages = fork_messages(state, description) if fork else [HumanMessage(description)]
    return {**shared, **files, "messages": messages}


def forked_state(state: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The initial state of a fork with the supervisor's own middleware: all that the supervisor knows, and its task."""
    shared = {key: value for key, value in state.items() if key not in _NOT_FORKED}
    return {**shared, "messages": fork_messages(state, description)}


def fork_messages(state: Mapping[str, Any], description: str) -> list[AnyMessage]:
    """The supervisor's conversation for a fork. The calls of its last turn, which run now, get results that say so."""
    messages = _seen(list(state.get("messages") or ()), state.get("_summarization_event"))
    return [*messages, *_running_calls(messages), HumanMessage(f"{PROMPTS['fork']}\n\n{description}")]


def _seen(messages: list[AnyMessage], event: Any) -> list[AnyMessage]:
    """The messages with the summary in place of those that it stands for, if the state has one."""
    count = summarized_count(messages, event)
    return messages if count is None else [event["summary_message"], *messages[count:]]


def _running_calls(messages: Sequence[AnyMessage]) -> Iterator[ToolMessage]:
    # Some models use the ids of earlier turns again.
    turn = takewhile(lambda each: not isinstance(each, AIMessage), reversed(messages))
    known = {message.tool_call_id for message in turn if isinstance(message, ToolMessage)}
    last = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    for call in last.tool_calls if last is not None else ():
        if call["id"] not in known:
            yield ToolMessage("[Runs now; its result is not known here]", name=call["name"], tool_call_id=call["id"])


# --- from the subagent -----------------------------------------------------------------------------------------------


def outcome(
    state: Mapping[str, Any], result: Any, tool_call_id: str, private: frozenset[str] = frozenset()
) -> "Command[Any]":
    """Return a subagent's answer for the supervisor, whose state was `state`, and merge its files into the task's.

    A file in which a parallel subagent changed the same lines stays as the parallel one left it; the version of this
    subagent is kept under `/conflicts`, and the answer says so. Raises ToolException for a result without messages.
    """
    messages = result.get("messages") if isinstance(result, Mapping) else None
    if not messages:
        raise ToolException("Error: The subagent returned no messages. Use another one, or do the task yourself.")
    given, made = state.get("files") or {}, result.get("files") or {}
    notes = merged_files(given, made, tool_call_id) if "files" in result else []
    text = "\n\n".join([answer_of(messages, result.get("structured_response")), *notes])
    hidden = _OWN | private
    shared = {key: value for key, value in result.items() if key not in hidden and _differs(value, state.get(key))}
    return Command(update={**shared, "messages": [ToolMessage(text, tool_call_id=tool_call_id, name="task")]})


def _differs(value: object, before: object) -> bool:
    """Whether a subagent changed a value. What cannot be compared counts as changed."""
    if value is before:
        return False
    try:
        return not value == before  # noqa: SIM201
    except Exception:  # An array has no truth value.
        return True


def merged_files(given: Mapping[str, Any], made: Mapping[str, Any], tool_call_id: str) -> list[str]:
    """Merge the files that a subagent changed from `given` to `made`; return a note for each file that conflicts."""
    lost = adopt_files(given, made)
    kept = {f"{_CONFLICTS}/{tool_call_id}{path}": made[path] for path in lost if path in made}
    adopt_files({}, kept)
    return [_conflict(path, f"{_CONFLICTS}/{tool_call_id}{path}", path in made) for path in lost]


def _conflict(path: str, copy: str, has_copy: bool) -> str:
    note = f"[{path} was changed elsewhere meanwhile and stays as it is there."
    return f"{note} This subagent's version is in {copy}: merge what is missing]" if has_copy else f"{note}]"


def answer_of(messages: Sequence[BaseMessage], structured: Any) -> str:
    """The structured response as JSON, or the last text of the subagent."""
    if isinstance(structured, BaseModel):
        return structured.model_dump_json()
    if structured is not None:
        return dumps(to_jsonable_python(structured, fallback=str), ensure_ascii=False)
    spoken = (str(message.text) for message in reversed(messages) if isinstance(message, AIMessage))
    return next(filter(None, (text.rstrip() for text in spoken)), "[The subagent ended without a word]")


def described(specs: Sequence[Mapping[str, Any]], description: str) -> str:
    """`description` with a line for each subagent in place of `{available_agents}`."""
    lines = (f"- {spec['name']}: {spec['description']}{_fork_note(spec)}" for spec in specs)
    return description.replace("{available_agents}", "\n".join(lines))


def _fork_note(spec: Mapping[str, Any]) -> str:
    return " (knows this conversation)" if spec.get("mode") == "fork" else ""


def private_keys(*schemas: Any) -> frozenset[str]:
    """Return the keys of state schemas that are marked as private, by `PrivateStateAttr`."""
    return frozenset(key for schema in schemas for key in _private_keys(schema))


@lru_cache(maxsize=512)
def _private_keys(schema: type[Any]) -> frozenset[str]:
    try:
        hints = get_type_hints(schema, include_extras=True)
    except Exception:  # The names in its annotations are imported for type checkers only.
        return frozenset()
    return frozenset(key for key, hint in hints.items() if PrivateStateAttr in _marks(hint))


def _marks(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    for inner in getattr(hint, "__args__", ()):
        yield from _marks(inner)
