"""The specifications and the records of background tasks, and what was seen of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, NotRequired, cast

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

__all__ = [
    "MEDIA",
    "UNFINISHED",
    "WAITING",
    "AsyncSubAgent",
    "AsyncTask",
    "Observation",
    "checked_subagents",
    "content_of",
    "continued_task",
    "new_task",
    "observed_task",
    "split_subagents",
]

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


def checked_subagents(given: Sequence[AsyncSubAgent]) -> Sequence[AsyncSubAgent]:
    """Return the specifications. Raises ValueError for one that cannot be used, and if there are none."""
    specs = list(given)
    if not specs:
        raise ValueError("AsyncSubAgentMiddleware needs at least one subagent")
    names = [spec.get("name", "") for spec in specs]
    if len({*names}) < len(names):
        raise ValueError(f"several subagents have the name {next(name for name in names if names.count(name) > 1)!r}")
    for spec in specs:
        _check(spec)
    return specs


def _check(spec: AsyncSubAgent) -> None:
    name = spec.get("name", "")
    missing = sorted({"name", "description"} - spec.keys())
    if missing:
        raise ValueError(f"subagent {name!r} lacks {', '.join(missing)}")
    if ("graph_id" in spec) == ("runnable" in spec):
        raise ValueError(f"subagent {name!r} needs either graph_id, of a graph on a server, or runnable")
    for key, allowed in (("update_strategy", ("interrupt", "enqueue")), ("mode", ("isolated", "fork"))):
        if spec.get(key, allowed[0]) not in allowed:
            raise ValueError(f"subagent {name!r} has the {key} {spec.get(key)!r}, and not {' or '.join(allowed)}")


def split_subagents(specs: Sequence[Any] | None) -> tuple[list[Any], list[AsyncSubAgent], list[Any]]:
    """Divide specifications: those for the tool `task`, those of servers, and those of the mode `"async"`."""
    given = list(specs or ())
    remote = [spec for spec in given if isinstance(spec, Mapping) and "graph_id" in spec]
    here = [spec for spec in given if isinstance(spec, Mapping) and spec.get("mode") == "async"]
    inline = [spec for spec in given if not any(spec is each for each in (*remote, *here))]
    return inline, cast("list[AsyncSubAgent]", remote), here


class Observation(NamedTuple):
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


def observed_task(task: AsyncTask, status: str, run_id: str) -> AsyncTask:
    """The record of a task as it was just seen."""
    time = _now()
    seen: AsyncTask = {**task, "last_checked_at": time}
    if (status, run_id) != (task["status"], task["run_id"]):
        seen |= {"status": status, "run_id": run_id, "last_updated_at": time}
    return seen


def continued_task(task: AsyncTask, status: str, run_id: str, *, enqueued: bool) -> AsyncTask:
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
    """Whether a block can be handed to a model: it has the content that its type promises."""
    kind = block.get("type")
    return isinstance(block.get("text"), str) if kind == "text" else kind in MEDIA and _has_source(block)


def _has_source(block: Mapping[str, Any]) -> bool:
    """Whether a block of media has a source, and its type where it holds the content: models refuse others."""
    given = {key: block[key] for key in _SOURCES if block.get(key)}
    needed = {"mime_type": block.get("mime_type")} if {"base64", "data"} & given.keys() else {}
    return bool(given) and all(isinstance(value, str) for value in (given | needed).values())
