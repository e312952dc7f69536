"""Background tasks on a server that speaks the API of LangGraph, and the records of background tasks."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from json import dumps
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NotRequired
from urllib.parse import quote

from anyio import to_thread
from anyio.lowlevel import RunVar
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_core.tools import ToolException
from pydantic import BaseModel
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from langgraph_sdk.client import LangGraphClient

__all__ = [
    "MEDIA",
    "PARENT",
    "UNFINISHED",
    "WAITING",
    "AsyncSubAgent",
    "AsyncTask",
    "Observation",
    "RemoteTasks",
    "checked_subagents",
    "content_of",
    "forwarded_context",
    "now",
    "open_client",
]

PARENT: Final = "deepagents_parent"
"""The key of `configurable` that tells a run which agent started it. Servers know it by the name of deepagents."""
WAITING: Final = "waiting"
UNFINISHED: Final = frozenset({"running", "pending", WAITING})
"""The statuses that can still change."""
MEDIA: Final = frozenset({"image", "audio", "video", "file"})
"""The types of content blocks that are handed on as they are."""
_OF_THREAD: Final = {"interrupted": WAITING, "busy": "running", "error": "error"}


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


class Observation(NamedTuple):
    """What is known of a task at one moment."""

    status: str
    run_id: str
    content: Sequence[Mapping[str, Any]] = ()
    """The answer, as content blocks, after success."""
    error: str | None = None
    interrupts: Sequence[Mapping[str, Any]] = ()
    note: str | None = None


def now() -> str:
    """The time for an `AsyncTask`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def content_of(values: object) -> list[dict[str, Any]]:
    """The last message of a state as content blocks."""
    messages = (values.get("messages") or []) if isinstance(values, Mapping) else []
    if not messages:
        return [{"type": "text", "text": "[The subagent ended without a message]"}]
    try:
        return [dict(block) for block in convert_to_messages(messages[-1:])[0].content_blocks]
    except (ValueError, NotImplementedError):  # A message of no form that LangChain knows, of another kind of server.
        last = messages[-1]
        return [{"type": "text", "text": str(last.get("content", "") if isinstance(last, Mapping) else last)}]


class RemoteTasks:
    """Starts, observes, changes and stops tasks on servers. Every failure is a ToolException."""

    async def start(
        self, spec: AsyncSubAgent, messages: Sequence[AnyMessage], runtime: Any, *, in_sync: bool
    ) -> tuple[str, str]:
        """Start a task; return its id, and that of its run.

        Args:
            spec: The subagent.
            messages: What it begins with.
            runtime: The runtime of the tool.
            in_sync: Whether the agent runs by `invoke`.
        """
        async with _client(spec, "start", in_sync=in_sync) as client:
            thread = await client.threads.create(metadata=_metadata(spec, runtime))
            run = await client.runs.create(
                thread["thread_id"],
                spec["graph_id"],
                input=_serialized(spec, messages),
                **_options(spec, runtime),
            )
            return thread["thread_id"], run["run_id"]

    async def observe(self, spec: AsyncSubAgent, task: AsyncTask, *, in_sync: bool) -> Observation:
        """Look at the latest run, and at the thread, which alone shows whether a run waits for a person.

        Args:
            spec: The subagent.
            task: The task, as the state of its agent has it.
            in_sync: Whether the agent runs by `invoke`.
        """
        async with _client(spec, "look at", in_sync=in_sync) as client:
            run: Any = await client.runs.get(task["thread_id"], task["run_id"])
            if run["status"] == "interrupted" and task["status"] != "cancelled":
                run = await _newest(client, task, run)
            if run["status"] != "success":
                return _observation(run, None, task)
            thread: Any = await client.threads.get(task["thread_id"])
            if thread.get("status") in {"busy", "error"}:
                run = await _newest(client, task, run)
            return _observation(run, thread, task)

    async def update(
        self, spec: AsyncSubAgent, task: AsyncTask, message: str, runtime: Any, *, in_sync: bool
    ) -> tuple[str, str]:
        """Send a follow-up; return the id of its run, and its status.

        Args:
            spec: The subagent.
            task: The task, as the state of its agent has it.
            message: The follow-up.
            runtime: The runtime of the tool.
            in_sync: Whether the agent runs by `invoke`.
        """
        strategy = spec.get("update_strategy", "interrupt")
        async with _client(spec, "send a message to", in_sync=in_sync) as client:
            run = await client.runs.create(
                task["thread_id"],
                spec["graph_id"],
                input=_serialized({**spec, "mode": "isolated"}, [HumanMessage(message)]),
                multitask_strategy=strategy,
                **_options(spec, runtime),
            )
            return run["run_id"], run["status"] if strategy == "enqueue" else "running"

    async def cancel(self, spec: AsyncSubAgent, task: AsyncTask, *, in_sync: bool) -> None:
        """Stop all runs of the task, the newest first, so that no enqueued one starts meanwhile.

        Args:
            spec: The subagent.
            task: The task, as the state of its agent has it.
            in_sync: Whether the agent runs by `invoke`.
        """
        if task["status"] == WAITING:
            return  # No run is active.
        async with _client(spec, "cancel", in_sync=in_sync) as client:
            await client.runs.cancel(task["thread_id"], task["run_id"])
            for run_id in reversed(task.get("superseded_run_ids", [])):
                run = await client.runs.get(task["thread_id"], run_id)
                if run["status"] in {"running", "pending"}:
                    await client.runs.cancel(task["thread_id"], run_id)


# --- requests --------------------------------------------------------------------------------------------------------


_MAX_CLIENTS: Final = 20
_clients: "Final[RunVar[dict[tuple[Any, ...], LangGraphClient] | None]]" = RunVar("deepfs_langgraph_clients")


@asynccontextmanager
async def _client(spec: AsyncSubAgent, doing: str, *, in_sync: bool) -> "AsyncIterator[LangGraphClient]":
    if in_sync and not spec.get("url"):
        raise ToolException(
            f"Error: The subagent {spec['name']!r} has no url, so it is only available to an agent that runs by "
            "ainvoke or astream. Do the task yourself."
        )
    try:
        async with open_client(spec.get("url"), spec.get("headers")) as client:
            yield client
    except ToolException:
        raise
    except Exception as error:  # The SDK raises errors of several libraries.
        raise ToolException(f"Error: Could not {doing} the background task of {spec['name']!r}: {error}") from error


@asynccontextmanager
async def open_client(url: str | None, headers: Mapping[str, str] | None = None) -> "AsyncIterator[LangGraphClient]":
    """A client for a few requests: that of the event loop for a URL, or a new one for the server of this process."""
    own = {"x-auth-scheme": "langsmith", **{name.lower(): value for name, value in (headers or {}).items()}}
    if url is None:
        async with await to_thread.run_sync(_made_client, None, own) as client:
            yield client
    else:
        yield await _client_of_loop(url, own)


async def _client_of_loop(url: str, headers: dict[str, str]) -> "LangGraphClient":
    """A client that is made once for an event loop, which takes 50 ms. It leaves no connections that must be closed."""
    clients = _clients.get(None)
    if clients is None:
        clients = {}
        _clients.set(clients)
    key = (url, *sorted(headers.items()))
    if key not in clients:
        while len(clients) >= _MAX_CLIENTS:  # Headers may be those of one user.
            del clients[next(iter(clients))]
        # In a thread, since certificates are read from disk.
        clients[key] = await to_thread.run_sync(_made_client, url, {**headers, "connection": "close"})
    return clients[key]


def _made_client(url: str | None, headers: Mapping[str, str]) -> "LangGraphClient":
    from langgraph_sdk import get_client

    return get_client(url=url, headers=headers)


async def _newest(client: "LangGraphClient", task: AsyncTask, run: Any) -> Any:
    return next(iter(await client.runs.list(task["thread_id"], limit=1)), run)


def _observation(run: Any, thread: Any, task: AsyncTask) -> Observation:
    status, run_id = _status(run, thread), run["run_id"]
    if status == "success":
        return Observation(status, run_id, content=content_of(thread.get("values") if thread else None))
    if status == "error":
        return Observation(status, run_id, error=str(run.get("error") or "The server gives no reason."))
    if status == WAITING and task["status"] == "cancelled":
        return Observation("cancelled", run_id)  # The thread of a cancelled task shows its last question on.
    if status == WAITING:
        asked = [item for items in (thread.get("interrupts") or {}).values() for item in items]
        return Observation(status, run_id, interrupts=[{"id": each["id"], "value": each["value"]} for each in asked])
    return Observation(status, run_id)


def _status(run: Any, thread: Any) -> str:
    """The status of a task. A run that asks a person ends with success; one that was stopped, as interrupted."""
    if run["status"] == "interrupted":
        return "cancelled"
    if run["status"] != "success" or thread is None:
        return str(run["status"])
    return _OF_THREAD.get(str(thread.get("status")), "success")


def _serialized(spec: AsyncSubAgent, messages: Sequence[AnyMessage]) -> Any:
    if spec.get("mode") != "fork":
        return {"messages": [{"role": "user", "content": message.content} for message in messages]}
    # Artifacts are objects of this process; the mark of an evicted message names a file that the server lacks.
    plain = [
        message.model_copy(update={"artifact": None}) if isinstance(message, ToolMessage) else message
        for message in messages
    ]
    hidden: Any = {"artifact": True, "additional_kwargs": {"lc_evicted_to"}}
    return {"messages": deepcopy([message.model_dump(exclude=hidden) for message in plain])}


# --- how the run knows its supervisor --------------------------------------------------------------------------------


def _reference(spec: AsyncSubAgent, runtime: Any) -> dict[str, str]:
    """The supervisor's thread, and its assistant where its server may wake it."""
    configurable, metadata = runtime.config.get("configurable") or {}, runtime.config.get("metadata") or {}
    found = {"thread_id": configurable.get("thread_id")}
    if not spec.get("url") and spec.get("notify_parent") is not False:
        found["assistant_id"] = metadata.get("assistant_id") or configurable.get("assistant_id")
    return {key: str(value) for key, value in found.items() if value}


def _metadata(spec: AsyncSubAgent, runtime: Any) -> dict[str, str]:
    reference = {f"parent_{key}": value for key, value in _reference(spec, runtime).items()}
    return {"subagent_name": spec["name"], **reference}


def _options(spec: AsyncSubAgent, runtime: Any) -> dict[str, Any]:
    is_foreign = bool(spec.get("url"))
    context = None if is_foreign else forwarded_context(runtime.context)
    reference = _reference(spec, runtime)
    # A server takes a context or `configurable`, not both.
    origin = {"configurable": {PARENT: reference}} if context is None and reference else None
    options = {"webhook": spec.get("webhook"), "context": context, "config": origin}
    return {"headers": _trace_headers(spec), **{name: value for name, value in options.items() if value}}


def forwarded_context(context: object) -> dict[str, Any] | None:
    """The context of a run as JSON data for another one; None if there is none."""
    fields = {name: value for name, value in _fields(context).items() if name != PARENT}
    return fields or None


def _fields(context: object) -> dict[str, Any]:
    """The fields of a context: a model, a dataclass or a mapping. Anything else has none."""
    match context:
        case BaseModel():
            return context.model_dump(mode="json")
        case Mapping():
            return {str(name): value for name, value in context.items()}
        case _:
            return asdict(context) if is_dataclass(context) and not isinstance(context, type) else {}


def _trace_headers(spec: AsyncSubAgent) -> dict[str, str]:
    """Headers by which the run is traced beneath this one; only for the same server, which may know of it."""
    from langsmith.run_helpers import get_current_run_tree

    tree = get_current_run_tree()
    if tree is None or spec.get("url"):
        return {}
    said = {"metadata": dumps({"ls_nest_under_parent": True}), "project": tree.session_name or ""}
    entries = [f"langsmith-{name}={quote(value)}" for name, value in said.items() if value]
    return {"langsmith-trace": tree.dotted_order, "baggage": ",".join([*_own_baggage(spec), *entries])}


def _own_baggage(spec: AsyncSubAgent) -> list[str]:
    """The baggage among the headers of a subagent, which other tools may use as well."""
    headers = {name.lower(): value for name, value in (spec.get("headers") or {}).items()}
    return list(filter(None, [headers.get("baggage")]))
