"""What a supervisor hands to a subagent, and what it takes back: messages, shared state and files."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from json import dumps
from typing import Any, Final, Literal, get_type_hints
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import ToolException
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from deepfs._langgraph.task_files import adopt_files
from deepfs.middleware._base import PrivateStateAttr
from deepfs.middleware.compaction import summarized_count
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skill_tools import SKILL_STATE_KEYS
from deepfs.middleware.task_records import MEDIA, UNFINISHED, content_of

__all__ = [
    "answer_of",
    "content_of_answer",
    "detached",
    "followed_up",
    "fork_messages",
    "forked_state",
    "initial_state",
    "input_id",
    "merged_files",
    "messages_of",
    "missing_results",
    "outcome",
    "private_keys",
    "task_config",
    "tool_description",
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
_STOPPED: Final = "Error: The call was stopped, and its result is not known."
_RUNNING: Final = "[Runs now; its result is not known here]"


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
    results = missing_results(messages, _RUNNING)
    return [*messages, *results, HumanMessage(f"{PROMPTS['fork']}\n\n{description}")]


def _seen(messages: list[AnyMessage], event: Any) -> list[AnyMessage]:
    """The messages with the summary in place of those that it stands for, if the state has one."""
    count = summarized_count(messages, event)
    return messages if count is None else [event["summary_message"], *messages[count:]]


def missing_results(
    messages: Sequence[AnyMessage], text: str, status: Literal["success", "error"] = "success"
) -> Iterator[ToolMessage]:
    """Results with a text for the calls of the last turn that have none: providers refuse such calls."""
    # Some models use the ids of earlier turns again.
    turn = takewhile(lambda each: not isinstance(each, AIMessage), reversed(messages))
    known = {message.tool_call_id for message in turn if isinstance(message, ToolMessage)}
    last = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    for call in last.tool_calls if last is not None else ():
        if call["id"] not in known:
            yield ToolMessage(text, name=call["name"], tool_call_id=call["id"], status=status)


def followed_up(reached: Mapping[str, Any], messages: Sequence[AnyMessage]) -> dict[str, Any]:
    """The input of a follow-up: the messages and files that a subagent has reached, and the new messages."""
    files = {"files": reached["files"]} if reached.get("files") else {}
    known = messages_of(reached)
    return {**files, "messages": [*known, *missing_results(known, _STOPPED, "error"), *messages]}


def input_id(given: object) -> str | None:
    """The id of the last message of an input, which gets one if it has none. A graph that has begun has it in state."""
    match given:
        case {"messages": [*_, BaseMessage() as last]}:
            last.id = last.id or str(uuid4())
            return last.id
    return None


def detached(runnable: Runnable[Any, Any], store: Any) -> Runnable[Any, Any]:
    """A graph with a checkpointer, so that it can go on, and with the store of the supervisor."""
    if not isinstance(runnable, Pregel):
        return runnable
    own = runnable.checkpointer if isinstance(runnable.checkpointer, BaseCheckpointSaver) else InMemorySaver()
    return runnable.copy({"checkpointer": own, "store": runnable.store or store})


def task_config(name: str, task_id: str, runtime: Any) -> RunnableConfig:
    """The configuration of a background task: a thread of its own, and the names by which traces know it."""
    config = getattr(runtime, "config", None) or {}
    parent = (config.get("configurable") or {}).get("thread_id")
    metadata = {"lc_agent_name": name, "subagent_name": name, **({"parent_thread_id": str(parent)} if parent else {})}
    configurable = {"thread_id": task_id, "ls_agent_type": "subagent"}
    return RunnableConfig(configurable=configurable, metadata=metadata, run_name=name)


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
    files = state.get("files") or {}, result.get("files") or {}
    notes = merged_files(*files, tool_call_id) if "files" in result else []
    text = "\n\n".join([answer_of(messages, result.get("structured_response")), *notes])
    hidden = _OWN | private
    made = {**result, **_tasks_to_tell(state, result)}
    shared = {key: value for key, value in made.items() if key not in hidden and _differs(value, state.get(key))}
    return Command(update={**shared, "messages": [ToolMessage(text, tool_call_id=tool_call_id, name="task")]})


def _tasks_to_tell(state: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The background tasks that the subagent saw end, with the status that the supervisor knows: it is told as well."""
    known, seen = state.get("async_tasks") or {}, result.get("async_tasks") or {}
    untold = {name: task["status"] for name, task in known.items() if task["status"] in UNFINISHED and name in seen}
    if not untold:
        return {}
    return {"async_tasks": {**seen, **{name: {**seen[name], "status": status} for name, status in untold.items()}}}


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
    spoken = (_spoken(message).rstrip() for message in reversed(messages))
    return next(filter(None, spoken), "[The subagent ended without a word]")


def _spoken(message: object) -> str:
    """The text of a message of the model, also in the forms of data in which graphs on servers return it."""
    try:
        [converted] = convert_to_messages([message])  # type: ignore[list-item]
    except Exception:  # It is no message.
        return ""
    return str(converted.text) if isinstance(converted, AIMessage) else ""


def content_of_answer(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answer of a subagent, and the media of its last message."""
    blocks, structured = content_of(values), values.get("structured_response")
    messages = messages_of(values)
    if structured is None and not any(isinstance(message, AIMessage) for message in messages):
        return blocks
    media = [block for block in blocks if block["type"] in MEDIA]
    return [{"type": "text", "text": answer_of(messages, structured)}, *media]


def messages_of(values: object) -> list[Any]:
    """The messages of a state; none if it has something else there."""
    match values:
        case {"messages": list(messages)}:
            return messages
    return []


def tool_description(specs: Sequence[Mapping[str, Any]], description: str) -> str:
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
