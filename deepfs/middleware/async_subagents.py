"""The middleware that runs subagents in the background, what an agent is told of them, and how a server wakes it."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from json import dumps
from secrets import token_hex
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias, cast

import anyio
from langchain.agents.middleware import hook_config
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from deepfs.middleware._base import AgentState, CallStep, PromptMiddleware, Steps, arun_steps, run_steps
from deepfs.middleware._messages import text_block
from deepfs.middleware.background_tasks import BackgroundTasks, default_tasks
from deepfs.middleware.delegation import (
    MEDIA,
    UNFINISHED,
    WAITING,
    AsyncSubAgent,
    AsyncTask,
    TaskObservation,
    check_subagents,
    content_of,
    fork_messages,
    initial_state,
    merge_files,
    new_task,
    parent_of,
    record_follow_up,
    record_observation,
    section,
    tool_description,
)
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.remote_tasks import RemoteTasks, open_client, serialize_context
from deepfs.middleware.tools import Tool
from deepfs.sync import run_sync

__all__ = [
    "ASYNC_TASK_TOOL_DESCRIPTION",
    "AsyncSubAgent",
    "AsyncSubAgentMiddleware",
    "AsyncSubAgentState",
    "AsyncTask",
    "BackgroundTasks",
    "CancelAsyncTaskSchema",
    "CheckAsyncTaskSchema",
    "ListAsyncTasksSchema",
    "StartAsyncTaskSchema",
    "TaskEvent",
    "UpdateAsyncTaskSchema",
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


def notification(task: AsyncTask, seen: TaskObservation, notes: tuple[str, ...] = ()) -> HumanMessage | None:
    """The message that tells the model of a status; None for a status that needs no message.

    What the subagent wrote stands between tags with a number that it cannot know.
    """
    if seen.status not in _NEXT:
        return None
    event = {"task_id": task["task_id"], "agent_name": task["agent_name"], "status": seen.status, "run_id": seen.run_id}
    tag = f"result {token_hex(4)}"
    head = f"[Note of the system, not of the user: background task {task['task_id']} ({task['agent_name']!r}) has the "
    head += f"status {seen.status}.]"
    body: list[dict[str, Any]] = []
    content = [text_block(_json(list(seen.interrupts)))] if seen.interrupts else seen.content
    for block in [*content, *([text_block(seen.error)] if seen.error and not seen.interrupts else [])]:
        text = str(block.get("text", ""))
        if block["type"] in MEDIA:
            body.append(dict(block))
        elif text.strip():  # Providers refuse empty blocks.
            cut = "\n[Cut off: check_async_task shows all]" if len(text) > _MAX_CHARS else ""
            body.append(text_block(text[:_MAX_CHARS] + cut))
    framed = [text_block(f"<{tag}>"), *body, text_block(f"</{tag}>")] if body else []
    blocks = [text_block(head), *framed, *map(text_block, notes), text_block(f"[{_NEXT[seen.status]}]")]
    return HumanMessage(content=list(blocks), additional_kwargs={NOTIFICATION: event})


def notification_update(state: Any) -> dict[str, Any] | None:
    """The update for a notification that a server sent, if it started this run."""
    *_, last = state.get("messages") or [None]
    event = None if last is None else event_of(last)
    task = None if event is None else _tasks_in(state).get(event["task_id"])
    if event is None or task is None:
        return None
    run = event.get("run_id", task["run_id"])
    if run in task.get("superseded_run_ids", ()):  # It must not pass for the latest result.
        note = "[This is of an earlier run, from before your latest follow-up. check_async_task shows the status now.]"
        blocks = [last.content] if isinstance(last.content, str) else last.content[:-1]
        return {"messages": [last.model_copy(update={"content": [*blocks, text_block(note)]})]}
    is_expected = run == task["run_id"] or task["status"] in UNFINISHED
    return {"async_tasks": {task["task_id"]: record_observation(task, event["status"], run)}} if is_expected else None


# --- what its tools answer -------------------------------------------------------------------------------------------


def check_answer(task: AsyncTask, seen: TaskObservation, notes: Sequence[str]) -> Any:
    """The answer of `check_async_task`: facts as JSON, and the media of the result."""
    facts: dict[str, Any] = {"status": seen.status, "thread_id": task["thread_id"]}
    facts |= {"error": seen.error} if seen.error else {}
    facts |= {"interrupts": list(seen.interrupts)} if seen.interrupts else {}
    remarks = [*filter(None, [seen.note, _NEXT[WAITING] if seen.status == WAITING else None]), *notes]
    facts |= {"note": " ".join(remarks)} if remarks else {}
    if seen.status == "success":
        facts["result"] = "".join(str(block["text"]) for block in seen.content if block["type"] == "text")
    media = [dict(block) for block in seen.content if block["type"] in MEDIA]
    return [text_block(_json(facts)), *media] if media else _json(facts)


def list_answer(tasks: Iterable[AsyncTask], seen: Mapping[str, TaskObservation], status: str | None) -> str:
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


def cancel_answer(task: AsyncTask, seen: TaskObservation) -> str:
    """The answer of `cancel_async_task`."""
    match seen.status:
        case "cancelled":
            return f"Cancelled. task_id: {task['task_id']}"
        case "running":
            return "It is being stopped, and has not ended yet. Check it later."
        case status:
            return f"It had ended before, with the status {status}: check_async_task tells more."


def _json(facts: object) -> str:
    return dumps(facts, ensure_ascii=False, default=str)


# --- waking the agent that started this one --------------------------------------------------------------------------


async def wake_parent_at_end(
    graph: Any, stream: AsyncIterator[Any], config: Any, context: object
) -> AsyncIterator[Any]:
    """Hand on the stream of a graph, and wake the agent that started it when it has ended or failed."""
    try:
        async for part in stream:
            yield part
    except Exception as error:
        await wake_parent(config, None, error, context)
        raise
    is_kept = graph.checkpointer or "__pregel_checkpointer" in section(config, "configurable")
    reached = await graph.aget_state(config) if is_kept else None
    if reached is not None and not reached.next:  # A run that waits for a person has not ended.
        await wake_parent(config, reached.values, None, context)


async def wake_parent(config: Mapping[str, Any], values: Any, error: BaseException | None, context: object) -> None:
    """Tell the agent that started this run as a background task that it has ended, if that agent is idle.

    It does nothing in any other run. A busy agent looks for itself. Never raises.
    """
    parent = parent_of(config)
    if "thread_id" not in parent or "assistant_id" not in parent:
        return
    given = serialize_context(context)
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


def _wake_message(config: Mapping[str, Any], values: Any, error: BaseException | None) -> dict[str, Any]:
    about = {**section(config, "metadata"), **section(config, "configurable")}
    names = filter(None, map(about.get, ("subagent_name", "graph_id")))
    task: Any = {"task_id": str(about.get("thread_id", "")), "agent_name": str(next(names, "subagent"))}
    run_id = str(about.get("run_id") or "")
    # The text of the error may tell what the other agent is not to know.
    failed = TaskObservation("error", run_id, error=f"It failed with {type(error).__name__}.")
    message = notification(task, failed if error else TaskObservation("success", run_id, content_of(values)))
    if message is None:
        raise ValueError("an ended run has a notification")
    return {"role": "user", "content": message.content, **message.additional_kwargs}


ASYNC_TASK_TOOL_DESCRIPTION: Final = PROMPTS["start_async_task"]
_LOOK_SECONDS: Final = 5
"""How long a turn waits for the status of tasks on servers."""

Runtime: TypeAlias = ToolRuntime[Any, Any]
StatusFilter: TypeAlias = Literal["running", "pending", "waiting", "success", "error", "cancelled", "all"]


def _merge_tasks(known: Mapping[str, AsyncTask] | None, changed: Mapping[str, AsyncTask]) -> dict[str, AsyncTask]:
    before = known or {}
    return {**before, **{name: cast("AsyncTask", {**before.get(name, {}), **task}) for name, task in changed.items()}}


class AsyncSubAgentState(AgentState[Any]):
    """The state of an agent with background tasks."""

    async_tasks: NotRequired[Annotated[dict[str, AsyncTask], _merge_tasks]]
    """The tasks by their ids."""


# The schemas have no docstrings, which would be sent to models.


class StartAsyncTaskSchema(BaseModel):
    description: str
    subagent_type: str


class CheckAsyncTaskSchema(BaseModel):
    task_id: str


class UpdateAsyncTaskSchema(BaseModel):
    task_id: str
    message: str


class CancelAsyncTaskSchema(BaseModel):
    task_id: str


class ListAsyncTasksSchema(BaseModel):
    status_filter: StatusFilter | None = None


class AsyncSubAgentMiddleware(PromptMiddleware):
    """Gives an agent tools that run subagents in the background, over several of its turns.

    The tools are `start_async_task`, `check_async_task`, `update_async_task`, `cancel_async_task` and
    `list_async_tasks`. A subagent with `graph_id` is a graph on a server that speaks the API of LangGraph; one with
    `runnable` runs in this process, by `BackgroundTasks`. The agent is told of each task that ends or waits for a
    person; tasks on servers are looked at in the async form only (`ainvoke`). The files in state that a task of this
    process changed are merged when the agent gets its result, also that of a task that failed or was cancelled.

    Args:
        async_subagents: The subagents.
        system_prompt: A text at the end of the agent's system prompt.
        tasks: Runs the tasks of this process. By default all middleware shares one.

    Raises:
        ValueError: If there are no subagents, or one lacks a key, has a wrong value or the name of another one.
    """

    state_schema: type[Any] = AsyncSubAgentState

    def __init__(
        self,
        *,
        async_subagents: Sequence[AsyncSubAgent],
        system_prompt: str | None = None,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        super().__init__()
        specs = check_subagents(async_subagents)
        self.system_prompt: str | None = system_prompt
        self.background: BackgroundTasks = tasks or default_tasks()
        """What runs the tasks of this process."""
        self._tasks = _Tasks({spec["name"]: spec for spec in specs}, self.background, RemoteTasks())
        self.tools: list[BaseTool] = _tools(self._tasks, specs)

    # --- what the agent is told ---

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Take the notification that started the run, if one did, as the status of its task."""
        return notification_update(state)

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Tell of tasks of this process that have ended."""
        return self._tasks.state_update(state, self._tasks.observe_local(state))

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Tell of tasks that have ended."""
        return self._tasks.state_update(state, await self._tasks.observe_unfinished(state))

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """After the last answer, look once more: what has ended meanwhile gets a further turn."""
        return (
            None
            if _goes_on(state)
            else _call_model_again(self._tasks.state_update(state, self._tasks.observe_local(state)))
        )

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_model`."""
        if _goes_on(state):
            return None
        return _call_model_again(self._tasks.state_update(state, await self._tasks.observe_unfinished(state)))


def _goes_on(state: Any) -> bool:
    """Whether the model has just called tools."""
    messages = state.get("messages") or []
    return not messages or bool(getattr(messages[-1], "tool_calls", None))


def _call_model_again(update: dict[str, Any] | None) -> dict[str, Any] | None:
    return {**update, "jump_to": "model"} if update is not None and update.get("messages") else update


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tasks:
    """The tasks of an agent, in this process and on servers.

    What a tool waits for is a step, which its sync form runs on an event loop of deepfs. The rest of it merges files
    into the state, so it runs in the thread of LangGraph.
    """

    specs: Mapping[str, AsyncSubAgent]
    local: BackgroundTasks
    remote: RemoteTasks

    # --- what is known of tasks ---

    async def observe(self, task: AsyncTask, *, in_sync: bool = False) -> TaskObservation:
        spec = self.specs.get(task["agent_name"])
        if spec is None:
            return TaskObservation("error", task["run_id"], error=_no_subagent(task["agent_name"]))
        if "runnable" in spec:
            return self.local.observe(task)
        return await self.remote.observe(spec, task, in_sync=in_sync)

    async def observe_all(self, tasks: Sequence[AsyncTask], *, in_sync: bool = False) -> dict[str, TaskObservation]:
        """Look at several tasks at once. Those that cannot be seen in time are left out."""
        seen: dict[str, TaskObservation] = {}

        async def one(task: AsyncTask) -> None:
            with anyio.move_on_after(_LOOK_SECONDS), suppress(ToolException):
                seen[task["task_id"]] = await self.observe(task, in_sync=in_sync)

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(one, task)
        return seen

    async def observe_unfinished(self, state: Any) -> dict[str, TaskObservation]:
        return await self.observe_all([task for task in _unfinished_tasks(state) if task["agent_name"] in self.specs])

    def observe_local(self, state: Any) -> dict[str, TaskObservation]:
        here = [task for task in _unfinished_tasks(state) if "runnable" in self.specs.get(task["agent_name"], {})]
        return {task["task_id"]: self.local.observe(task) for task in here}

    def state_update(self, state: Any, seen: Mapping[str, TaskObservation]) -> dict[str, Any] | None:
        """The update of the state for what was seen; None if nothing has changed."""
        tasks, messages = {}, []
        for task_id, found in seen.items():
            task = state["async_tasks"][task_id]
            if (found.status, found.run_id) == (task["status"], task["run_id"]):
                continue
            tasks[task_id], notes = self.with_files_merged(task, found, state, found.run_id)
            if found.status != task["status"]:
                messages.append(notification(task, found, tuple(notes)))
        told = [message for message in messages if message is not None]
        return {"async_tasks": tasks, **({"messages": told} if told else {})} if tasks else None

    def with_files_merged(
        self, task: AsyncTask, seen: TaskObservation, state: Any, place: str
    ) -> tuple[AsyncTask, list[str]]:
        """Merge the files of a task that has ended. Return the updated task, and notes for the model."""
        updated = record_observation(task, seen.status, seen.run_id)
        here = "runnable" in self.specs.get(task["agent_name"], {})
        files = self.local.files(task) if here and seen.status not in UNFINISHED else None
        if files is None:
            return updated, []
        if "files" not in state:
            return updated, ["[It has files in its state, and this agent has none, so they are not handed over]"]
        return {**updated, "merged_run_id": seen.run_id}, merge_files(*files, place)

    # --- the tools ---

    def start(self, runtime: Runtime, description: str, subagent_type: str) -> Steps["Command[Any]"]:
        if subagent_type not in self.specs:
            names = ", ".join(self.specs)
            raise ToolException(f"Error: There is no background subagent {subagent_type!r}. Choose one of: {names}.")
        if not description.strip():
            raise ToolException("Error: The description is empty. Say what is to be done.")
        spec = self.specs[subagent_type]
        fork = spec.get("mode") == "fork"

        async def begin(in_sync: bool) -> tuple[str, str]:
            if "runnable" in spec:
                private = spec.get("private_state_keys", frozenset()) | {"async_tasks"}
                state = initial_state(runtime.state, description, fork=fork, private=private)
                return self.local.start(spec["name"], spec["runnable"], state, runtime=runtime)
            messages = fork_messages(runtime.state, description) if fork else [HumanMessage(description)]
            return await self.remote.start(spec, messages, runtime, in_sync=in_sync)

        ids = yield _step(begin)
        return _command(runtime, f"Started in the background. task_id: {ids[0]}", new_task(subagent_type, *ids))

    def check(self, runtime: Runtime, task_id: str) -> Steps["Command[Any]"]:
        task = _task(runtime, task_id)
        seen = yield _step(lambda in_sync: self.observe(task, in_sync=in_sync))
        updated, notes = self.with_files_merged(task, seen, runtime.state, runtime.tool_call_id or seen.run_id)
        return _command(runtime, check_answer(task, seen, notes), updated)

    def update(self, runtime: Runtime, task_id: str, message: str) -> Steps["Command[Any]"]:
        task = _task(runtime, task_id)
        spec = self.spec_of(task)
        strategy = spec.get("update_strategy", "interrupt")
        if not message.strip():
            raise ToolException("Error: The message is empty. Say what is to be done.")
        if strategy == "enqueue" and not _is_first(runtime, task["task_id"]):
            raise ToolException("Error: Not sent: this turn sends the task a message already. Send one, or wait.")

        async def send(in_sync: bool) -> tuple[str, str]:
            if "runnable" in spec:
                return await self.local.update(task, message, strategy)
            return await self.remote.update(spec, task, message, runtime, in_sync=in_sync)

        run_id, status = yield _step(send)
        followed = record_follow_up(task, status, run_id, enqueued=strategy == "enqueue")
        return _command(runtime, update_answer(task, enqueued=strategy == "enqueue"), followed)

    def cancel(self, runtime: Runtime, task_id: str) -> Steps["Command[Any]"]:
        task = _task(runtime, task_id)
        spec = self.spec_of(task)

        async def stop(in_sync: bool) -> TaskObservation:
            if "runnable" in spec:
                return await self.local.cancel(task)
            return await self.remote.cancel(spec, task, in_sync=in_sync)

        seen = yield _step(stop)
        updated, notes = self.with_files_merged(task, seen, runtime.state, runtime.tool_call_id or seen.run_id)
        return _command(runtime, " ".join([cancel_answer(task, seen), *notes]), updated)

    def list(self, runtime: Runtime, status_filter: StatusFilter | None = None) -> Steps[str]:
        # The state stays as it is: the agent is told of what has ended before its next turn.
        unfinished = _unfinished_tasks(runtime.state)
        seen = yield _step(lambda in_sync: self.observe_all(unfinished, in_sync=in_sync))
        return list_answer(_tasks_in(runtime.state).values(), seen, status_filter)

    def spec_of(self, task: AsyncTask) -> AsyncSubAgent:
        spec = self.specs.get(task["agent_name"])
        if spec is None:
            raise ToolException(f"Error: {_no_subagent(task['agent_name'])}")
        return spec


def _no_subagent(name: str) -> str:
    return f"There is no background subagent {name!r} any more. Start the task anew with another one if it is needed."


def _tasks_in(state: Any) -> Mapping[str, AsyncTask]:
    return state.get("async_tasks") or {}


def _unfinished_tasks(state: Any) -> list[AsyncTask]:
    return [task for task in _tasks_in(state).values() if task["status"] in UNFINISHED]


def _task(runtime: Runtime, task_id: str) -> AsyncTask:
    task = _tasks_in(runtime.state).get(task_id.strip())
    if task is None:
        raise ToolException(f"Error: There is no background task {task_id!r:.100}. list_async_tasks shows all.")
    return task


def _is_first(runtime: Runtime, task_id: str) -> bool:
    """Whether a call is the first follow-up of its turn to a task. A second one would replace the first's record."""
    messages = reversed(runtime.state.get("messages") or [])
    turn = next((message for message in messages if isinstance(message, AIMessage)), None)
    for call in turn.tool_calls if turn is not None else ():
        match call:
            case {"name": "update_async_task", "args": {"task_id": str(named)}} if named.strip() == task_id:
                return bool(call["id"] == runtime.tool_call_id)
    return True


def _command(runtime: Runtime, content: Any, task: AsyncTask) -> "Command[Any]":
    message = ToolMessage(content, tool_call_id=runtime.tool_call_id or "")
    # Only what is new: another call of the turn, which read the same record, may have changed the rest.
    known: Mapping[str, Any] = _tasks_in(runtime.state).get(task["task_id"], {})
    changed = {key: value for key, value in task.items() if key not in known or known[key] != value}
    return Command(update={"messages": [message], "async_tasks": {task["task_id"]: changed}})


# --- the tools -------------------------------------------------------------------------------------------------------


def _tools(tasks: _Tasks, specs: Sequence[AsyncSubAgent]) -> list[BaseTool]:
    start = tool_description(cast("Sequence[Mapping[str, Any]]", specs), PROMPTS["start_async_task"])
    queued = [spec["name"] for spec in specs if spec.get("update_strategy") == "enqueue"]
    update = PROMPTS["update_async_task"] + (f" For {', '.join(queued)} it waits for the run's end." if queued else "")
    return [
        _tool("start_async_task", start, StartAsyncTaskSchema, tasks.start),
        _tool("check_async_task", PROMPTS["check_async_task"], CheckAsyncTaskSchema, tasks.check),
        _tool("update_async_task", update, UpdateAsyncTaskSchema, tasks.update),
        _tool("cancel_async_task", PROMPTS["cancel_async_task"], CancelAsyncTaskSchema, tasks.cancel),
        _tool("list_async_tasks", PROMPTS["list_async_tasks"], ListAsyncTasksSchema, tasks.list),
    ]


def _step(act: Callable[[bool], Awaitable[Any]]) -> CallStep:
    """The step of what waits, which is told whether the agent runs in the sync form."""
    return CallStep(partial(run_sync, act, True), partial(act, False))


def _tool(name: str, description: str, schema: type[BaseModel], act: Callable[..., Steps[Any]]) -> BaseTool:
    def func(runtime: Runtime, **arguments: Any) -> Any:
        return run_steps(act(runtime, **arguments))

    async def coroutine(runtime: Runtime, **arguments: Any) -> Any:
        return await arun_steps(act(runtime, **arguments))

    return Tool(name=name, description=description, args_schema=schema, func=func, coroutine=coroutine)
