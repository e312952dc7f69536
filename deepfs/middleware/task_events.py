"""What an agent is told of its background tasks, what its tools answer, and how a server wakes it."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from json import dumps
from secrets import token_hex
from typing import Any, Final, Literal, NotRequired, cast

from langchain_core.messages import BaseMessage, HumanMessage
from typing_extensions import TypedDict

from deepfs.middleware.remote_tasks import PARENT, forwarded_context, open_client
from deepfs.middleware.task_records import MEDIA, UNFINISHED, WAITING, AsyncTask, Observation, content_of, observed_task

__all__ = [
    "NOTIFICATION",
    "TaskEvent",
    "cancel_answer",
    "check_answer",
    "event_of",
    "has_parent",
    "list_answer",
    "notification",
    "notification_update",
    "telling_parent",
    "update_answer",
    "wake_parent",
]

_log = logging.getLogger("deepfs")

NOTIFICATION: Final = "deepagents_notification"
"""The key of `additional_kwargs` that marks a notification. Programs know it by the name of deepagents."""
_MAX_CHARS: Final = 80_000
_NEXT: Final = {
    "success": "Go on with the result; tell the user if they wait for it.",
    "error": "Call check_async_task for details. Then try again, try another way, or tell the user.",
    "timeout": "It took too long and was stopped. Give it less to do, or tell the user.",
    "cancelled": "It was stopped, and not by you. Ask the user whether it is still needed.",
    WAITING: "A person must answer it; you cannot. Go on with other work.",
}


class TaskEvent(TypedDict):
    """The end or the pause of a background task, as `additional_kwargs["deepagents_notification"]` has it."""

    task_id: str
    agent_name: str
    status: Literal["success", "error", "timeout", "cancelled", "waiting"]
    run_id: NotRequired[str]


def event_of(message: BaseMessage) -> TaskEvent | None:
    """The event that a message tells of; None for any other message."""
    match message.additional_kwargs.get(NOTIFICATION):
        case {"task_id": str(), "status": str(status)} as event if status in _NEXT:
            return cast("TaskEvent", event)
    return None


def notification(task: AsyncTask, seen: Observation, notes: tuple[str, ...] = ()) -> HumanMessage | None:
    """The message that tells the model of a status; None for a status that needs no message.

    What the subagent wrote stands between tags with a number that it cannot know.
    """
    if seen.status not in _NEXT:
        return None
    event = {
        "task_id": task["task_id"],
        "agent_name": task["agent_name"],
        "status": seen.status,
        "run_id": seen.run_id,
    }
    tag = f"result {token_hex(4)}"
    head = f"[Note of the system, not of the user: background task {task['task_id']} ({task['agent_name']!r}) has the "
    head += f"status {seen.status}.]"
    body = [block for block in map(_shown, _content(seen)) if block is not None]
    framed = [_text(f"<{tag}>"), *body, _text(f"</{tag}>")] if body else []
    blocks = [_text(head), *framed, *map(_text, notes), _text(f"[{_NEXT[seen.status]}]")]
    return HumanMessage(content=list(blocks), additional_kwargs={NOTIFICATION: event})


def _content(seen: Observation) -> list[Mapping[str, Any]]:
    if seen.interrupts:
        return [_text(dumps(list(seen.interrupts), ensure_ascii=False, default=str))]
    return [*seen.content, *([_text(seen.error)] if seen.error else [])]


def _shown(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """A block as a message of a user may have it; None for one that it may not."""
    if block["type"] in MEDIA:
        return dict(block)
    text = str(block["text"])
    cut = "\n[Cut off: check_async_task shows all]" if len(text) > _MAX_CHARS else ""
    return _text(text[:_MAX_CHARS] + cut) if text.strip() else None  # Providers refuse empty blocks.


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _superseded(message: BaseMessage) -> BaseMessage:
    """The notification of a run that was followed up meanwhile, so that it does not pass for the latest result."""
    note = "[This is of an earlier run, from before your latest follow-up. check_async_task shows the status now.]"
    blocks = [message.content] if isinstance(message.content, str) else message.content[:-1]
    return message.model_copy(update={"content": [*blocks, _text(note)]})


def notification_update(state: Any) -> dict[str, Any] | None:
    """The update for a notification that a server sent, if it started this run."""
    *_, last = state.get("messages") or [None]
    event = None if last is None else event_of(last)
    if event is None:
        return None
    known: Mapping[str, AsyncTask] = state.get("async_tasks") or {}
    task = known.get(event["task_id"])
    return None if task is None else _update_of_event(task, event, last)


def _update_of_event(task: AsyncTask, event: TaskEvent, message: Any) -> dict[str, Any] | None:
    """The update for an event of a task: of its run, of one that an update replaced, or of a new one."""
    run = event.get("run_id", task["run_id"])
    if run in task.get("superseded_run_ids", ()):
        return {"messages": [_superseded(message)]}
    is_expected = run == task["run_id"] or task["status"] in UNFINISHED
    return {"async_tasks": {task["task_id"]: observed_task(task, event["status"], run)}} if is_expected else None


# --- what its tools answer -------------------------------------------------------------------------------------------


def check_answer(task: AsyncTask, seen: Observation, notes: Sequence[str]) -> Any:
    """The answer of `check_async_task`: facts as JSON, and the media of the result."""
    facts: dict[str, Any] = {"status": seen.status, "thread_id": task["thread_id"]}
    facts |= {"error": seen.error} if seen.error else {}
    facts |= {"interrupts": list(seen.interrupts)} if seen.interrupts else {}
    remarks = [*filter(None, [seen.note, _NEXT[WAITING] if seen.status == WAITING else None]), *notes]
    facts |= {"note": " ".join(remarks)} if remarks else {}
    if seen.status == "success":
        facts["result"] = "".join(str(block["text"]) for block in seen.content if block["type"] == "text")
    media = [dict(block) for block in seen.content if block["type"] in MEDIA]
    return [_text(_json(facts)), *media] if media else _json(facts)


def list_answer(tasks: Iterable[AsyncTask], seen: Mapping[str, Observation], status: str | None) -> str:
    """The answer of `list_async_tasks`: the tasks that have a status now."""
    lines = []
    for task in tasks:
        found = seen.get(task["task_id"])
        current = task["status"] if found is None else found.status
        doubt = " when last seen: it cannot be reached now" if found is None and current in UNFINISHED else ""
        if status in {None, "all", current}:
            lines.append(f"- task_id: {task['task_id']} ({task['agent_name']}), {current}{doubt}")
    if not lines:
        return "There are no background tasks" + (f" with the status {status}." if status else ".")
    return "\n".join([f"{len(lines)} background tasks:", *lines])


def update_answer(task: AsyncTask, *, enqueued: bool) -> str:
    """The answer of `update_async_task`, for the task as it was before."""
    effect = "It starts when the current run has ended. " if enqueued and task["status"] in UNFINISHED else ""
    if task["status"] == WAITING:
        effect = "Its question to a person is dropped. "
    return f"Sent. {effect}task_id: {task['task_id']}"


def cancel_answer(task: AsyncTask, seen: Observation) -> str:
    """The answer of `cancel_async_task`."""
    match seen.status:
        case "cancelled":
            return f"Cancelled. task_id: {task['task_id']}"
        case "running":
            return "It is being stopped, and has not ended yet. Check it later."
        case status:
            return f"It had ended before, with the status {status}: check_async_task tells more."


def _json(facts: Mapping[str, Any]) -> str:
    return dumps(facts, ensure_ascii=False, default=str)


# --- waking the agent that started this one --------------------------------------------------------------------------


def has_parent(config: Mapping[str, Any] | None) -> bool:
    """Whether the graph with this configuration was started as a background task, and not within another graph."""
    return config is not None and bool(_parent(config)) and not _section(config, "configurable").get("checkpoint_ns")


async def telling_parent(graph: Any, stream: AsyncIterator[Any], config: Any, context: object) -> AsyncIterator[Any]:
    """Hand on the stream of a graph, and wake the agent that started it when it has ended or failed."""
    try:
        async for part in stream:
            yield part
    except Exception as error:
        await wake_parent(config, None, error, context)
        raise
    reached = await graph.aget_state(config) if graph.checkpointer or _has_checkpointer(config) else None
    if reached is not None and not reached.next:  # A run that waits for a person has not ended.
        await wake_parent(config, reached.values, None, context)


def _has_checkpointer(config: Mapping[str, Any]) -> bool:
    return "__pregel_checkpointer" in _section(config, "configurable")


async def wake_parent(config: Mapping[str, Any], values: Any, error: BaseException | None, context: object) -> None:
    """Tell the agent that started this run as a background task that it has ended, if that agent is idle.

    It does nothing in any other run. A busy agent looks for itself. Never raises.

    Args:
        config: The configuration of the run that ended.
        values: Its last state, or None.
        error: What it failed with, or None.
        context: Its context, with which the agent is woken.
    """
    parent = _parent(config)
    if "thread_id" not in parent or "assistant_id" not in parent:
        return
    given = forwarded_context(context)
    options: Any = {"context": given} if given else {}
    try:
        message = _wake_message(config, values, error)
        async with open_client(None) as client:
            thread: Any = await client.threads.get(parent["thread_id"])
            if thread["status"] not in {"busy", "interrupted"}:
                # Another run, or a question to a person, must not be replaced.
                options |= {"input": {"messages": [message]}, "multitask_strategy": "reject"}
                await client.runs.create(parent["thread_id"], parent["assistant_id"], **options)
    except Exception:  # The SDK raises errors of several libraries.
        _log.debug("The agent that started this task was not told of its end", exc_info=True)


def _parent(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The agent that started a run: from its configuration, or from the metadata of its thread."""
    configured = _section(config, "configurable").get(PARENT)
    if isinstance(configured, Mapping):
        return configured
    metadata = _section(config, "metadata")
    known = [(name, metadata.get(f"parent_{name}")) for name in ("thread_id", "assistant_id")]
    return {name: str(value) for name, value in known if value}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return config.get(name) or {}


def _wake_message(config: Mapping[str, Any], values: Any, error: BaseException | None) -> dict[str, Any]:
    about = {**_section(config, "metadata"), **_section(config, "configurable")}
    names = filter(None, map(about.get, ("subagent_name", "graph_id")))
    task: Any = {"task_id": str(about.get("thread_id", "")), "agent_name": str(next(names, "subagent"))}
    run_id = str(about.get("run_id") or "")
    # The text of the error may tell what the other agent is not to know.
    failed = Observation("error", run_id, error=f"It failed with {type(error).__name__}.")
    message = notification(task, failed if error else Observation("success", run_id, content_of(values)))
    if message is None:
        raise ValueError("an ended run has a notification")
    return {"role": "user", "content": message.content, **message.additional_kwargs}
