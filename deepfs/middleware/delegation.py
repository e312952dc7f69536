"""How subagents are described, what a supervisor hands to them and takes back, and the records of their tasks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile
from json import dumps
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypeAlias, cast, get_type_hints
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from deepfs._langgraph.task_files import adopt_files
from deepfs.middleware._base import WORKSPACES, AgentMiddleware, PrivateStateAttr, SkillSource
from deepfs.middleware.approvals import InterruptOn
from deepfs.middleware.compaction import summarized_count
from deepfs.middleware.prompts import PROMPTS
from deepfs.policy.rules import FilesystemPermission

SKILLS: Final = "SkillsMiddleware"
"""The name of the middleware for skills, whose module is imported if there are any."""
PARENT: Final = "deepagents_parent"
"""The key of `configurable` that tells a run which agent started it. Servers know it by the name of deepagents."""
WAITING: Final = "waiting"
UNFINISHED: Final = frozenset({"running", "pending", WAITING})
"""The statuses that can still change."""
MEDIA: Final = frozenset({"image", "audio", "video", "file"})
"""The types of content blocks that are handed on as they are."""
_SOURCES: Final = ("base64", "url", "file_id", "data", "text")
"""The keys of a block of media, one of which has its content or names it."""


class AsyncSubAgent(TypedDict):
    """A subagent that works in the background: a graph on a server (`graph_id`), or a runnable in this process."""

    name: str
    description: str
    """The supervisor chooses a subagent by its description."""
    graph_id: NotRequired[str]
    """The graph or the assistant on the server."""
    runnable: NotRequired[Runnable[Any, Any]]
    """Any runnable over a state with `messages`, run in this process."""
    private_state_keys: NotRequired[frozenset[str]]
    """Keys of the supervisor's state that a runnable does not get."""
    url: NotRequired[str]
    """The server; without it, the server that the supervisor runs on, which needs the async form (`ainvoke`)."""
    headers: NotRequired[dict[str, str]]
    """More headers for the requests."""
    webhook: NotRequired[str]
    """The URL that the server calls when a run has ended."""
    update_strategy: NotRequired[Literal["interrupt", "enqueue"]]
    """Whether a follow-up stops the current run (the default), or waits for its end."""
    notify_parent: NotRequired[bool]
    """Whether its end may wake the supervisor on the same server, while that is idle; True by default."""
    mode: NotRequired[Literal["isolated", "fork"]]
    """`"fork"`: it begins with the supervisor's conversation."""


class AsyncTask(TypedDict):
    """A background task, as the state of its supervisor has it. Times are in UTC, as `2026-01-31T12:00:00Z`."""

    task_id: str
    agent_name: str
    thread_id: str
    """The same as `task_id`."""
    run_id: str
    """The latest run that is known."""
    superseded_run_ids: NotRequired[list[str]]
    """Runs before those that were enqueued, oldest first."""
    merged_run_id: NotRequired[str]
    """The run of this process whose files were merged last."""
    status: str
    """`pending`, `running`, `waiting` for a person, `success`, `error`, `timeout` or `cancelled`."""
    created_at: str
    last_checked_at: str
    last_updated_at: str


def check_subagents(given: Sequence[AsyncSubAgent]) -> Sequence[AsyncSubAgent]:
    """Return the specifications. Raises ValueError for one that cannot be used, and if there are none."""
    specs = list(given)
    if not specs:
        raise ValueError("AsyncSubAgentMiddleware needs at least one subagent")
    names = [spec.get("name", "") for spec in specs]
    if len({*names}) < len(names):
        raise ValueError(f"several subagents have the name {next(name for name in names if names.count(name) > 1)!r}")
    for name, spec in zip(names, specs, strict=True):
        missing = sorted({"name", "description"} - spec.keys())
        if missing:
            raise ValueError(f"subagent {name!r} lacks {', '.join(missing)}")
        if ("graph_id" in spec) == ("runnable" in spec):
            raise ValueError(f"subagent {name!r} needs either graph_id, of a graph on a server, or runnable")
        for key, allowed in (("update_strategy", ("interrupt", "enqueue")), ("mode", ("isolated", "fork"))):
            if spec.get(key, allowed[0]) not in allowed:
                raise ValueError(f"subagent {name!r} has the {key} {spec.get(key)!r}, and not {' or '.join(allowed)}")
    return specs


def split_subagents(specs: Sequence[Any] | None) -> tuple[list[Any], list[AsyncSubAgent], list[Any]]:
    """Divide specifications: those for the tool `task`, those of servers, and those of the mode `"async"`."""
    given = list(specs or ())
    remote = [spec for spec in given if isinstance(spec, Mapping) and "graph_id" in spec]
    here = [spec for spec in given if isinstance(spec, Mapping) and spec.get("mode") == "async"]
    inline = [spec for spec in given if not any(spec is each for each in (*remote, *here))]
    return inline, cast("list[AsyncSubAgent]", remote), here


class TaskObservation(NamedTuple):
    """What is known of a task at one moment."""

    status: str
    run_id: str
    content: Sequence[Mapping[str, Any]] = ()
    """The answer, as content blocks, after success."""
    error: str | None = None
    interrupts: Sequence[Mapping[str, Any]] = ()
    note: str | None = None


# --- records ---------------------------------------------------------------------------------------------------------


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_task(agent_name: str, task_id: str, run_id: str) -> AsyncTask:
    """The record of a task that was just started."""
    time = _now()
    return AsyncTask(
        task_id=task_id,
        agent_name=agent_name,
        thread_id=task_id,
        run_id=run_id,
        status="running",
        created_at=time,
        last_checked_at=time,
        last_updated_at=time,
    )


def record_observation(task: AsyncTask, status: str, run_id: str) -> AsyncTask:
    """The record of a task as it was just seen."""
    time = _now()
    seen: AsyncTask = {**task, "last_checked_at": time}
    if (status, run_id) != (task["status"], task["run_id"]):
        seen |= {"status": status, "run_id": run_id, "last_updated_at": time}
    return seen


def record_follow_up(task: AsyncTask, status: str, run_id: str, *, enqueued: bool) -> AsyncTask:
    """The record of a task that was just sent a follow-up, which an enqueued run begins with."""
    sent: AsyncTask = {**task, "status": status, "run_id": run_id, "last_updated_at": _now()}
    if enqueued:
        before = [*task.get("superseded_run_ids", ()), task["run_id"]]
        sent["superseded_run_ids"] = before if task["status"] in UNFINISHED else before[-1:]
    return sent


# --- answers ---------------------------------------------------------------------------------------------------------


def content_of(values: object) -> list[dict[str, Any]]:
    """The texts and the media of the last message of a state."""
    match values:
        case {"messages": [*_, last]}:
            return [dict(block) for block in _blocks(last) if _is_shown(block)]
        case _:
            return [{"type": "text", "text": "[The subagent ended without a message]"}]


def _blocks(message: object) -> Sequence[Mapping[str, Any]]:
    try:
        [converted] = convert_to_messages([message])  # type: ignore[list-item]
        return converted.content_blocks
    except Exception:  # A message of no form that LangChain knows, of another kind of server.
        text = message.get("content", "") if isinstance(message, Mapping) else message
        return [{"type": "text", "text": str(text)}]


def _is_shown(block: Mapping[str, Any]) -> bool:
    """Whether a block can be handed to a model: it has the content that its type promises.

    Models refuse media without a source, and content without its type.
    """
    if block.get("type") == "text" or block.get("type") not in MEDIA:
        return block.get("type") == "text" and isinstance(block.get("text"), str)
    given = {key: block[key] for key in _SOURCES if block.get(key)}
    needed = {"mime_type": block.get("mime_type")} if {"base64", "data"} & given.keys() else {}
    return bool(given) and all(isinstance(value, str) for value in (given | needed).values())


Tools: TypeAlias = Sequence[BaseTool | Callable[..., Any] | dict[str, Any]]
Middleware: TypeAlias = AgentMiddleware[Any, Any, Any]


class SubAgent(TypedDict):
    """A subagent to build. The defaults of the middleware apply to keys that are left out."""

    name: str
    description: str
    """The supervisor chooses a subagent by its description."""
    system_prompt: NotRequired[str]
    """With the mode `"fork"` it follows the supervisor's prompt."""
    tools: NotRequired[Tools]
    model: NotRequired[str | BaseChatModel]
    middleware: NotRequired[Sequence[Middleware]]
    """Comes after the default middleware."""
    interrupt_on: NotRequired[InterruptOn]
    skills: NotRequired[Sequence[SkillSource]]
    """Directories of its skills. A fork has those of the supervisor instead."""
    permissions: NotRequired[Sequence[FilesystemPermission]]
    """Rules about files that replace the default ones."""
    backend: NotRequired[Any]
    """A backend for its files in place of the supervisor's."""
    response_format: NotRequired[Any]
    """The form of its answer, as `create_agent` takes it; the supervisor gets the answer as JSON."""
    isolation: NotRequired[Literal["fork"]]
    """`"fork"`: each of its tasks works on a copy of the supervisor's files, which costs nothing. The answer has the
    changes as a diff, and the supervisor gets the tools `merge_fork`, `review_fork` and `discard_fork`. The mode is
    about the conversation, and not about files."""
    mode: NotRequired[Literal["isolated", "fork", "async"]]
    """`"isolated"` (the default) knows its task only; `"fork"` continues the supervisor's conversation. `"async"` runs
    in the background by the tools of `AsyncSubAgentMiddleware`, and is for `create_deep_agent`."""


class CompiledSubAgent(TypedDict):
    """A subagent that is already built: any runnable over a state with `messages`."""

    name: str
    description: str
    runnable: Runnable[Any, Any]
    mode: NotRequired[Literal["isolated", "fork", "async"]]
    """As in `SubAgent`; the prompt of a fork is that of the runnable."""


DEFAULT_SUBAGENT_PROMPT: Final = PROMPTS["general_purpose"]
DEFAULT_GENERAL_PURPOSE_DESCRIPTION: Final = PROMPTS["general_purpose_description"]
GENERAL_PURPOSE_SUBAGENT: Final = SubAgent(
    name="general-purpose", description=DEFAULT_GENERAL_PURPOSE_DESCRIPTION, system_prompt=DEFAULT_SUBAGENT_PROMPT
)
"""The subagent that is added if there is none of its name."""


# --- checks ----------------------------------------------------------------------------------------------------------


def check_mappings(given: Iterable[SubAgent | CompiledSubAgent]) -> list[SubAgent | CompiledSubAgent]:
    """Return the specifications in a list. Raises TypeError if one is not a mapping."""
    specs = list(given)
    for each in specs:
        if not isinstance(each, Mapping):
            raise TypeError(f"subagents is a list of SubAgent and CompiledSubAgent, and {each!r} is none")
    return specs


def check_specs(specs: Sequence[SubAgent | CompiledSubAgent]) -> Sequence[SubAgent | CompiledSubAgent]:
    """Return the specifications. Raises ValueError if there are none, or for one that cannot be used."""
    if not specs:
        raise ValueError("SubAgentMiddleware needs at least one subagent")
    names: set[str] = set()
    for spec in specs:
        fault = _keys_fault(spec) or _mode_fault(spec) or _isolation_fault(spec)
        if fault:
            raise ValueError(f"subagent {spec.get('name', '')!r} {fault}")
        if spec["name"] in names:
            raise ValueError(f"two subagents have the name {spec['name']!r}")
        names.add(spec["name"])
    return specs


def _keys_fault(spec: SubAgent | CompiledSubAgent) -> str:
    kind = CompiledSubAgent if "runnable" in spec else SubAgent
    missing, unknown = kind.__required_keys__ - spec.keys(), spec.keys() - kind.__annotations__.keys()
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    return f"has keys that are not known: {', '.join(sorted(unknown))}" if unknown else ""


def _mode_fault(spec: Mapping[str, Any]) -> str:
    match spec.get("mode"):
        case None | "isolated":
            return ""
        case "fork":
            return "is a fork, which has the skills of its supervisor: omit skills" if spec.get("skills") else ""
        case "async":
            return "is async: give it to create_deep_agent, or use as_async"
    return f"has the mode {spec['mode']!r}, and not isolated, fork or async"


def _isolation_fault(spec: Mapping[str, Any]) -> str:
    if "isolation" not in spec:
        return ""
    if spec["isolation"] != "fork":
        return f"has the isolation {spec['isolation']!r}, and not fork"
    return "works on a fork of its supervisor's files: omit backend" if "backend" in spec else ""


_OWN: Final = frozenset(
    {
        "_skill_tools_disclosed",
        "_summarization_event",
        "_summarization_session_id",
        "file_conflicts",
        "files",
        "jump_to",
        "messages",
        "pinned_skills",
        "remaining_steps",
        "rubric",
        "skills_load_errors",
        "skills_metadata",
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


def fork_state(state: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The initial state of a fork with the supervisor's own middleware: all that the supervisor knows, and its task."""
    shared = {key: value for key, value in state.items() if key not in _NOT_FORKED}
    return {**shared, "messages": fork_messages(state, description)}


def fork_messages(state: Mapping[str, Any], description: str) -> list[AnyMessage]:
    """The supervisor's conversation for a fork. The calls of its last turn, which run now, get results that say so."""
    messages, event = list(state.get("messages") or ()), state.get("_summarization_event")
    count = summarized_count(messages, event)
    if count is not None and event is not None:
        messages = [event["summary_message"], *messages[count:]]
    results = missing_results(messages, _RUNNING)
    return [*messages, *results, HumanMessage(f"{PROMPTS['fork']}\n\n{description}")]


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


def follow_up(reached: Mapping[str, Any], messages: Sequence[AnyMessage]) -> dict[str, Any]:
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


def detach(runnable: Runnable[Any, Any], store: Any) -> Runnable[Any, Any]:
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
    notes = merge_files(*files, tool_call_id) if "files" in result else []
    text = "\n\n".join([answer_of(messages, result.get("structured_response")), *notes])
    hidden = _OWN | private
    made = dict(result)
    # Background tasks that the subagent saw end keep the status that the supervisor knows, so that it is told as well.
    known, seen = state.get("async_tasks") or {}, result.get("async_tasks") or {}
    untold = {name: task["status"] for name, task in known.items() if task["status"] in UNFINISHED and name in seen}
    if untold:
        made["async_tasks"] = {**seen, **{name: {**seen[name], "status": status} for name, status in untold.items()}}
    shared = {key: value for key, value in made.items() if key not in hidden and _differs(value, state.get(key))}
    return Command(update={**shared, "messages": [ToolMessage(text, tool_call_id=tool_call_id, name="task")]})


def _differs(value: object, before: object) -> bool:
    """Whether a subagent changed a value. What cannot be compared counts as changed."""
    if value is before:
        return False
    try:
        return not value == before  # noqa: SIM201
    except Exception:  # An array has no truth value.
        return True


def merge_files(given: Mapping[str, Any], made: Mapping[str, Any], tool_call_id: str) -> list[str]:
    """Merge the files that a subagent changed from `given` to `made`; return a note for each file that conflicts."""
    every = adopt_files(given, made)
    staged = [path for path in every if path.startswith(f"{WORKSPACES}/")]
    lost = [path for path in every if path not in staged]
    copies = {path: f"{_CONFLICTS}/{tool_call_id}{path}" for path in lost if path in made}
    adopt_files({}, {copy: made[path] for path, copy in copies.items()})
    notes = [f"[{path} was changed elsewhere meanwhile and stays as it is there." for path in lost]
    own = [f" This subagent's version is in {copies[path]}: merge what is missing" * (path in copies) for path in lost]
    notes = [f"{note}{where}]" for note, where in zip(notes, own, strict=True)]
    if not staged:
        return notes
    from deepfs.middleware.staging import keep_lost

    return [*notes, *keep_lost({path: made.get(path) for path in staged}, f"{_CONFLICTS}/{tool_call_id}")]


def answer_of(messages: Sequence[BaseMessage], structured: Any) -> str:
    """The structured response as JSON, or the last text of the subagent."""
    if isinstance(structured, BaseModel):
        return structured.model_dump_json()
    if structured is not None:
        return dumps(to_jsonable_python(structured, fallback=str), ensure_ascii=False)
    spoken = (_text_of_message(message).rstrip() for message in reversed(messages))
    return next(filter(None, spoken), "[The subagent ended without a word]")


def _text_of_message(message: object) -> str:
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
    notes = {"fork": " (knows this conversation)"}
    forked = " (works on a fork of your files: merge_fork takes its changes over)"
    lines = (
        f"- {spec['name']}: {spec['description']}{notes.get(spec.get('mode', ''), '')}{forked * ('isolation' in spec)}"
        for spec in specs
    )
    return description.replace("{available_agents}", "\n".join(lines))


def skills_of(
    backend: Any, sources: Sequence[SkillSource] | None, middleware: Iterable[Middleware]
) -> list[Middleware]:
    """The middleware for `sources`: the one that `middleware` has already, or else a new one; none without sources."""
    given = [each for each in middleware if each.name == SKILLS]
    if given or not sources:
        return given[-1:]
    from deepfs.middleware.skills import SkillsMiddleware

    return [SkillsMiddleware(backend=backend, sources=sources)]


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


# --- the agent that started a run -------------------------------------------------------------------------------------


def has_parent(config: Mapping[str, Any] | None) -> bool:
    """Whether the graph with this configuration was started as a background task, and not within another graph."""
    return config is not None and bool(parent_of(config)) and not section(config, "configurable").get("checkpoint_ns")


def parent_of(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The agent that started a run: from its configuration, or from the metadata of its thread."""
    configured = section(config, "configurable").get(PARENT)
    if isinstance(configured, Mapping):
        return configured
    metadata = section(config, "metadata")
    known = [(name, metadata.get(f"parent_{name}")) for name in ("thread_id", "assistant_id")]
    return {name: str(value) for name, value in known if value}


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a configuration; an empty one if it is missing."""
    return config.get(name) or {}
