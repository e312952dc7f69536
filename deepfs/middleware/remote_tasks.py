"""Background tasks on a server that speaks the API of LangGraph."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, is_dataclass
from itertools import chain
from json import dumps
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import ToolException
from pydantic import BaseModel

from deepfs.middleware.delegation import PARENT, WAITING, AsyncSubAgent, AsyncTask, TaskObservation, content_of
from deepfs.text.visible import one_line

if TYPE_CHECKING:
    from langgraph_sdk.client import LangGraphClient

_ACTIVE: Final = frozenset({"pending", "running"})
_REQUEST_SECONDS: Final = 60
"""How long the requests of one tool call may take."""
_MAX_REASON: Final = 1_000
"""The most characters of what a server says about a request that failed."""
_GONE: Final = "The server does not know the task any more. Start it again if it is still needed."


class RemoteTasks:
    """Starts, observes, changes and stops tasks on servers. Every failure is a ToolException."""

    async def start(
        self, spec: AsyncSubAgent, messages: Sequence[AnyMessage], runtime: Any, *, in_sync: bool
    ) -> tuple[str, str]:
        """Start a task; return its id, and that of its run."""
        given = [_full(message) for message in messages] if spec.get("mode") == "fork" else _plain(messages)
        async with _client(spec, "start", in_sync=in_sync) as client:
            thread = await client.threads.create(metadata=_metadata(spec, runtime))
            run = await _begin(client, spec, thread["thread_id"], given, runtime)
            return str(thread["thread_id"]), str(run["run_id"])

    async def observe(self, spec: AsyncSubAgent, task: AsyncTask, *, in_sync: bool) -> TaskObservation:
        """Look at a task. One that the server does not know is an error; one that was cancelled stays so."""
        if task["status"] == "cancelled":  # Its thread would show its last question on, and runs of others.
            return TaskObservation("cancelled", task["run_id"])
        async with _client(spec, "look at", in_sync=in_sync) as client:
            try:
                return await _observe(client, task)
            except _not_found():
                return TaskObservation("error", task["run_id"], error=_GONE)

    async def update(
        self, spec: AsyncSubAgent, task: AsyncTask, message: str, runtime: Any, *, in_sync: bool
    ) -> tuple[str, str]:
        """Send a follow-up; return the id of its run, and its status."""
        strategy = spec.get("update_strategy", "interrupt")
        async with _client(spec, "send a message to", in_sync=in_sync) as client:
            given = _plain([HumanMessage(message)])
            run = await _begin(client, spec, task["thread_id"], given, runtime, multitask_strategy=strategy)
            # Servers begin a run in a moment: only one that waits for another is told to be pending.
            return str(run["run_id"]), "pending" if strategy == "enqueue" and run["status"] == "pending" else "running"

    async def cancel(self, spec: AsyncSubAgent, task: AsyncTask, *, in_sync: bool) -> TaskObservation:
        """Stop all runs of the task; return what became of it, which may have ended before."""
        async with _client(spec, "cancel", in_sync=in_sync) as client:
            stopped = [run for run in await _runs(client, task) if await _stop(client, task["thread_id"], run)]
        seen = None if stopped else await self.observe(spec, task, in_sync=in_sync)
        if seen is None or seen.status == WAITING:  # A task that waits has no run to stop.
            return TaskObservation("cancelled", task["run_id"])
        return seen


# --- runs ------------------------------------------------------------------------------------------------------------


def _not_found() -> type[Exception]:
    from langgraph_sdk.errors import NotFoundError

    return NotFoundError


def _full(message: AnyMessage) -> dict[str, Any]:
    """A message as data, without what belongs to this process: its artifact, and the file of an evicted content."""
    data = message.model_dump(exclude={"artifact"})
    data["additional_kwargs"].pop("lc_evicted_to", None)
    return data


def _plain(messages: Sequence[AnyMessage]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": message.content} for message in messages]


async def _begin(
    client: "LangGraphClient", spec: AsyncSubAgent, thread: str, messages: Sequence[Any], runtime: Any, **options: Any
) -> Any:
    given: Any = {"messages": messages}
    return await client.runs.create(thread, spec["graph_id"], input=given, **options, **_options(spec, runtime))


async def _observe(client: "LangGraphClient", task: AsyncTask) -> TaskObservation:
    """What a server tells of a task: by its run, or by the newest one, with which others went on with the thread."""
    run: Any = await client.runs.get(task["thread_id"], task["run_id"])
    if run["status"] in _ACTIVE:
        return TaskObservation(run["status"], str(run["run_id"]))
    thread: Any = await client.threads.get(task["thread_id"])
    if run["status"] == "interrupted" or thread["status"] in {"busy", "error"}:
        run, *_ = [*await client.runs.list(task["thread_id"], limit=1), run]
    return _look_at(run, thread)


def _look_at(run: Any, thread: Any) -> TaskObservation:
    run_id = str(run["run_id"])
    match run["status"], thread["status"]:
        case "success", "interrupted":  # A run that asks a person ends so.
            asked = chain.from_iterable((thread.get("interrupts") or {}).values())
            return TaskObservation(
                WAITING, run_id, interrupts=[{"id": one["id"], "value": one["value"]} for one in asked]
            )
        case ("success", "busy") | ("running", _):
            return TaskObservation("running", run_id)
        case ("error", _) | ("success", "error"):
            return TaskObservation("error", run_id, error=_reason(run, thread))
        case "success", _:
            return TaskObservation("success", run_id, content=content_of(thread.get("values")))
        case "interrupted", _:
            return TaskObservation("cancelled", run_id)
        case ("pending" | "timeout") as status, _:
            return TaskObservation(status, run_id)
    raise ToolException(f"Error: The server gives the task a status that is not known: {run['status']!r:.100}.")


def _reason(run: Any, thread: Any) -> str:
    """Why a run failed: servers tell it with the run, or with the thread."""
    match run.get("error") or thread.get("error"):
        case {"error": kind, "message": text}:
            return f"{kind}: {text}"
        case None:
            return "The server gives no reason."
        case other:
            return str(other)


async def _runs(client: "LangGraphClient", task: AsyncTask) -> list[str]:
    """The runs of a task that may be active, the newest first: so no enqueued one starts while they are stopped."""
    try:
        newest = [str(run["run_id"]) for run in await client.runs.list(task["thread_id"], limit=1)]
    except _not_found():
        newest = []
    return [*dict.fromkeys([*newest, task["run_id"], *reversed(task.get("superseded_run_ids", []))])]


async def _stop(client: "LangGraphClient", thread: str, run_id: str) -> bool:
    """Stop a run. Return whether it was active."""
    try:
        run = await client.runs.get(thread, run_id)
        if run["status"] in _ACTIVE:
            await client.runs.cancel(thread, run_id)
            return True
    except _not_found():  # It has ended meanwhile, or was deleted.
        pass
    return False


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
        with anyio.fail_after(_REQUEST_SECONDS):
            async with open_client(spec.get("url"), spec.get("headers")) as client:
                yield client
    except ToolException:
        raise
    except Exception as error:  # The SDK raises errors of several libraries.
        reason = one_line(str(error), _MAX_REASON).rstrip(".") or type(error).__name__
        raise ToolException(
            f"Error: Could not {doing} the background task of {spec['name']!r}: {reason}. Try again later, or go on "
            "without it."
        ) from error


@asynccontextmanager
async def open_client(url: str | None, headers: Mapping[str, str] | None = None) -> "AsyncIterator[LangGraphClient]":
    """A client for a few requests: that of the event loop for a URL, or a new one for the server of this process."""
    own = {"x-auth-scheme": "langsmith", **{name.lower(): value for name, value in (headers or {}).items()}}
    if url is None:
        async with await to_thread.run_sync(_make_client, None, own) as client:
            yield client
        return
    # Making one takes 50 ms. It leaves no connections that must be closed.
    clients = _clients.get(None)
    if clients is None:
        clients = {}
        _clients.set(clients)
    key = (url, *sorted(own.items()))
    if key not in clients:
        while len(clients) >= _MAX_CLIENTS:  # Headers may be those of one user.
            del clients[next(iter(clients))]
        # In a thread, since certificates are read from disk.
        clients[key] = await to_thread.run_sync(_make_client, url, {**own, "connection": "close"})
    yield clients[key]


def _make_client(url: str | None, headers: Mapping[str, str]) -> "LangGraphClient":
    from langgraph_sdk import get_client

    return get_client(url=url, headers=headers)


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
    context = None if is_foreign else serialize_context(runtime.context)
    reference = _reference(spec, runtime)
    # A server takes a context or `configurable`, not both.
    origin = {"configurable": {PARENT: reference}} if context is None and reference else None
    options = {"webhook": spec.get("webhook"), "context": context, "config": origin}
    return {"headers": _trace_headers(spec), **{name: value for name, value in options.items() if value}}


def serialize_context(context: object) -> dict[str, Any] | None:
    """The context of a run as JSON data for another one; None if there is none."""
    fields: dict[str, Any] = {}
    match context:
        case BaseModel():
            fields = context.model_dump(mode="json")
        case Mapping():
            fields = {str(name): value for name, value in context.items()}
        case _ if is_dataclass(context) and not isinstance(context, type):
            fields = asdict(context)
    fields.pop(PARENT, None)
    return fields or None


def _trace_headers(spec: AsyncSubAgent) -> dict[str, str]:
    """Headers by which the run is traced beneath this one; only for the same server, which may know of it."""
    from langsmith.run_helpers import get_current_run_tree

    tree = get_current_run_tree()
    if tree is None or spec.get("url"):
        return {}
    said = {"metadata": dumps({"ls_nest_under_parent": True}), "project": tree.session_name or ""}
    entries = [f"langsmith-{name}={quote(value)}" for name, value in said.items() if value]
    # The baggage among the headers of a subagent may be that of other tools.
    own = [value for name, value in (spec.get("headers") or {}).items() if name.lower() == "baggage" and value]
    return {"langsmith-trace": tree.dotted_order, "baggage": ",".join([*own[-1:], *entries])}
