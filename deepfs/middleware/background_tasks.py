"""Background tasks in this process: where they run, and what is kept of them."""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from uuid import uuid4

import anyio
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import ToolException
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command

from deepfs.middleware._delegation import answer_of
from deepfs.middleware.remote_tasks import MEDIA, WAITING, AsyncTask, Observation, content_of
from deepfs.threads.background import background_loop, start_in_background
from deepfs.threads.loop_bridge import (
    LoopCallbacks,
    ThreadEvent,
    loop_callbacks,
    runs_loop,
    start_task,
    waiting_threads,
)

__all__ = ["BackgroundTasks", "default_tasks"]

_STOP_SECONDS: Final = 10
"""How long `cancel` waits for the end of a task."""
_LOST: Final = (
    "This process does not know the task: the process that ran it has ended or is another one, or the task ended long "
    "ago. Its result is lost, with files that were not merged. Start it again if it is still needed."
)
_LOOP_ENDED: Final = (
    "The event loop that ran the task ended before it did. Start it again. To the programmer: run all turns in one "
    "event loop, or use tasks=BackgroundTasks(own_loop=True)."
)


@dataclass(eq=False)
class _Run:
    """One run of a task: its input, and its outcome once it has ended."""

    given: Any
    id: str = field(default_factory=lambda: str(uuid4()))
    status: str = "pending"
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    interrupts: Sequence[Mapping[str, Any]] = ()
    is_stopped: bool = False
    scope: anyio.CancelScope | None = None
    loop: LoopCallbacks | None = None
    waiting: list[ThreadEvent] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.status not in {"pending", "running"}


@dataclass(eq=False)
class _Task:
    runnable: Runnable[Any, Any]
    config: RunnableConfig
    options: Mapping[str, Any]
    """Further arguments of `ainvoke`."""
    files: Mapping[str, Any]
    """The supervisor's files when the task started."""
    runs: list[_Run] = field(default_factory=list)

    @property
    def latest(self) -> _Run:
        return self.runs[-1]

    @property
    def has_ended(self) -> bool:
        return all(run.has_ended for run in self.runs)


class BackgroundTasks:
    """Runs subagents in the background of this process.

    A task that an agent starts by `ainvoke` runs on the event loop of that agent, so that clients and connections that
    belong to the loop can be used; it ends with an error if the loop ends first. A task that an agent starts by
    `invoke` runs on an event loop of deepfs, in a thread of its own. Tasks live as long as the process.

    Args:
        limit: The most tasks that run at once.
        kept: The most tasks that are remembered after their end.
        own_loop: Run every task on the event loop of deepfs. So tasks survive turns that have an event loop each; what
            they share with the agent must then work on several event loops.
    """

    def __init__(self, *, limit: int = 50, kept: int = 200, own_loop: bool = False) -> None:
        self._limit = limit
        self._kept = kept
        self._own_loop = own_loop
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}

    @property
    def running(self) -> int:
        """The number of tasks that run."""
        with self._lock:
            return sum(not task.has_ended for task in self._tasks.values())

    # --- for the tools of an agent ---

    def start(
        self, name: str, runnable: Runnable[Any, Any], state: Mapping[str, Any], *, runtime: Any = None
    ) -> tuple[str, str]:
        """Start a task; return its id, and that of its run.

        Args:
            name: The name of the subagent.
            runnable: What runs.
            state: Its initial state.
            runtime: The runtime of the tool; the task has its context and its store.

        Raises:
            ToolException: If as many tasks run as are allowed.
        """
        task_id = str(uuid4())
        context = getattr(runtime, "context", None)
        task = _Task(
            runnable=_detached(runnable, getattr(runtime, "store", None)),
            config=_config(name, task_id, runtime),
            options={} if context is None else {"context": context},
            files=dict(state.get("files") or {}),
        )
        run = _Run(dict(state))
        with self._lock:
            self._check_room()
            self._forget_oldest()
            task.runs.append(run)
            self._tasks[task_id] = task
        self._begin(task, run)
        return task_id, run.id

    def observe(self, task: AsyncTask) -> Observation:
        """Return what is known of a task. One that this process does not know is an error.

        Args:
            task: The task, as the state of its agent has it.
        """
        known = self._tasks.get(task["task_id"])
        if known is None:
            return _unknown(task)
        run = known.latest
        content = _content(run.values) if run.status == "success" else ()
        note = "The latest follow-up has not started yet." if run.status == "pending" else None
        return Observation(run.status, run.id, content, run.error, run.interrupts, note)

    def values(self, task: AsyncTask) -> Mapping[str, Any]:
        """The state in which the latest run ended; empty if it has not, or is not known.

        Args:
            task: The task, as the state of its agent has it.
        """
        known = self._tasks.get(task["task_id"])
        return known.latest.values if known is not None and known.latest.has_ended else {}

    def files(self, task: AsyncTask) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """The files before and after what was not merged yet; None if there is nothing to merge.

        Args:
            task: The task, as the state of its agent has it.
        """
        known, values = self._tasks.get(task["task_id"]), self.values(task)
        merged = task.get("merged_run_id")
        if known is None or "files" not in values or merged == known.latest.id:
            return None
        before = next((run.values.get("files") for run in known.runs if run.id == merged), None)
        return known.files if before is None else before, values["files"]

    async def update(
        self, task: AsyncTask, message: str, strategy: Literal["interrupt", "enqueue"] = "interrupt"
    ) -> tuple[str, str]:
        """Send a follow-up; return the id of its run, and its status.

        Args:
            task: The task, as the state of its agent has it.
            message: The follow-up.
            strategy: Whether it stops the current run, or waits for its end.

        Raises:
            ToolException: If the task is not known, or does not stop.
        """
        known = self._known(task)
        if strategy == "interrupt" and not await self._stop(known):
            raise ToolException("Error: The current run does not stop. Try again later, or start another task.")
        return self._follow(known, _Run([HumanMessage(message)]))

    async def resume(self, task_id: str, answer: Any) -> None:
        """Answer what a task that waits asks a person, as `Command(resume=answer)` would.

        Args:
            task_id: The id of the task.
            answer: The answer.

        Raises:
            ValueError: If the task is not known, or does not wait.
        """
        known = self._tasks.get(task_id)
        if known is None or known.latest.status != WAITING:
            raise ValueError(f"no background task {task_id!r} waits for an answer")
        self._follow(known, _Run(Command(resume=answer)))

    async def cancel(self, task: AsyncTask) -> None:
        """Stop a task, and wait for its end, at most 10 seconds.

        Args:
            task: The task, as the state of its agent has it.

        Raises:
            ToolException: If the task is not known.
        """
        known = self._known(task)
        await self._stop(known)
        if known.latest.status == WAITING:
            known.latest.status = "cancelled"

    async def await_all(self) -> None:
        """Wait until no task runs. Tasks that wait for a person do not count."""
        for task in list(self._tasks.values()):
            while not task.has_ended:
                await _ended(next(run for run in task.runs if not run.has_ended), self._lock)

    async def aclose(self) -> None:
        """Stop all tasks, wait for their ends, and forget them."""
        for task in list(self._tasks.values()):
            await self._stop(task)
        with self._lock:
            self._tasks.clear()

    # --- runs ---

    def _known(self, task: AsyncTask) -> _Task:
        known = self._tasks.get(task["task_id"])
        if known is None:
            raise ToolException(f"Error: {_LOST}")
        return known

    def _check_room(self) -> None:
        if sum(not task.has_ended for task in self._tasks.values()) >= self._limit:
            raise ToolException(
                f"Error: {self._limit} background tasks run already. Wait until one has ended, or cancel one."
            )

    def _forget_oldest(self) -> None:
        ended = [task_id for task_id, task in self._tasks.items() if task.has_ended]
        for task_id in ended[: max(0, len(ended) - self._kept + 1)]:
            del self._tasks[task_id]

    def _follow(self, task: _Task, run: _Run) -> tuple[str, str]:
        """Add a run, and begin it unless another one must end first."""
        with self._lock:
            begins = task.has_ended
            if begins:
                self._check_room()
            task.runs.append(run)
        if begins:
            self._begin(task, run)
        return run.id, run.status

    def _begin(self, task: _Task, run: _Run) -> None:
        run.status = "running"
        start = start_in_background if self._own_loop or not _is_in_lasting_loop() else start_task
        try:
            start(partial(self._work, task, run))
        except RuntimeError as error:
            run.error, run.status = str(error), "error"

    async def _work(self, task: _Task, run: _Run) -> None:
        var_child_runnable_config.set(None)  # The task is no part of the graph that started it,
        waiting_threads.set(frozenset())  # and nobody waits for it.
        run.loop, run.scope = loop_callbacks(), anyio.CancelScope()
        status, run.error = "cancelled", None
        try:
            with run.scope:
                if not run.is_stopped:
                    status = await self._invoked(task, run)
        except Exception as error:
            status, run.error = "error", f"{type(error).__name__}: {error}"
        except BaseException:  # Not raised: nobody is there to take it.
            status, run.error = "error", _LOOP_ENDED
        if status in {"cancelled", "error"}:
            with anyio.CancelScope(shield=True), suppress(BaseException):
                run.values = await _reached(task, run)
        self._end(task, run, status)

    async def _invoked(self, task: _Task, run: _Run) -> str:
        result = await task.runnable.ainvoke(await _input(task, run), task.config, **task.options)
        run.values = result if isinstance(result, Mapping) else {}
        run.interrupts = [{"id": each.id, "value": each.value} for each in run.values.get("__interrupt__", ())]
        return WAITING if run.interrupts else "success"

    def _end(self, task: _Task, run: _Run, status: str) -> None:
        with self._lock:
            run.status = status
            run.given, run.scope = None, None
            waiting, run.waiting = run.waiting, []
            following = next((each for each in task.runs if each.status == "pending"), None)
            if following is not None and run.error == _LOOP_ENDED:
                following.status, following.error, following = "error", _LOOP_ENDED, None
        for event in waiting:
            event.set()
        if following is not None:
            self._begin(task, following)

    async def _stop(self, task: _Task) -> bool:
        """Stop all runs of a task, the newest first. Return whether they have ended."""
        for run in reversed(task.runs):
            with self._lock:
                run.is_stopped = True
                if run.status == "pending":
                    run.status = "cancelled"
            if not await _stopped(run, self._lock):
                return False
        return True


def _is_in_lasting_loop() -> bool:
    """Whether the caller runs in an event loop of the program. That of deepfs serves sync calls, which are short."""
    return runs_loop() and not background_loop().is_here()


async def _stopped(run: _Run, lock: threading.Lock) -> bool:
    """Stop a run that may not have begun. Return whether it has ended in time."""
    with lock:
        loop, scope = run.loop, run.scope
    if loop is not None and scope is not None:
        with suppress(RuntimeError):
            loop.call(scope.cancel)
    with anyio.move_on_after(_STOP_SECONDS):
        await _ended(run, lock)
    return run.has_ended


async def _ended(run: _Run, lock: threading.Lock) -> None:
    ended = loop_callbacks().event()
    with lock:
        if run.has_ended:
            return
        run.waiting.append(ended)
    await ended.wait()


def _content(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answer of a subagent, and the media of its last message."""
    media = [block for block in content_of(values) if block["type"] in MEDIA]
    text = answer_of(values.get("messages") or (), values.get("structured_response"))
    return [{"type": "text", "text": text}, *media]


def _unknown(task: AsyncTask) -> Observation:
    if task["status"] in {"running", "pending", WAITING}:
        return Observation("error", task["run_id"], error=_LOST)
    return Observation(task["status"], task["run_id"], note="This process no longer has the answer of the task.")


# --- graphs ----------------------------------------------------------------------------------------------------------


def _detached(runnable: Runnable[Any, Any], store: Any) -> Runnable[Any, Any]:
    """A graph with a checkpointer, so that it can go on, and with the store of the supervisor."""
    if not isinstance(runnable, Pregel):
        return runnable
    own = runnable.checkpointer if isinstance(runnable.checkpointer, BaseCheckpointSaver) else InMemorySaver()
    return runnable.copy({"checkpointer": own, "store": runnable.store or store})


def _config(name: str, task_id: str, runtime: Any) -> RunnableConfig:
    config = getattr(runtime, "config", None) or {}
    parent = (config.get("configurable") or {}).get("thread_id")
    metadata = {"lc_agent_name": name, "subagent_name": name, **({"parent_thread_id": str(parent)} if parent else {})}
    configurable = {"thread_id": task_id, "ls_agent_type": "subagent"}
    return RunnableConfig(configurable=configurable, metadata=metadata, run_name=name)


async def _input(task: _Task, run: _Run) -> Any:
    """The input of a run. A follow-up adds to what the runs before have reached, even if they were stopped."""
    if not isinstance(run.given, list):
        return run.given
    before = next((each.values for each in reversed(task.runs[: task.runs.index(run)]) if each.values), {})
    messages = list(before.get("messages") or ())
    files = {"files": before["files"]} if before.get("files") else {}
    return {**files, "messages": [*messages, *_results(messages), *run.given]}


def _results(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Results for calls that were stopped: providers refuse calls without any."""
    known = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    text = "Error: The call was stopped, and its result is not known."
    return [
        ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")
        for call in calls
        if call["id"] not in known
    ]


async def _reached(task: _Task, run: _Run) -> Mapping[str, Any]:
    """The state that a run without an outcome has reached, with what its unfinished step has written."""
    if not isinstance(task.runnable, Pregel):
        return run.values
    values = (await task.runnable.aget_state(task.config)).values
    return values if isinstance(values, Mapping) else {}


_default: Final = BackgroundTasks()

if hasattr(os, "register_at_fork"):
    # The threads and the loops that run the tasks stay in the parent.
    os.register_at_fork(after_in_child=_default.__init__)  # type: ignore[misc]


def default_tasks() -> BackgroundTasks:
    """The tasks of all middleware that is made without `tasks`."""
    return _default
