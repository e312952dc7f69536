"""Background tasks in this process: where they run, and what is kept of them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from uuid import uuid4
from weakref import WeakSet

import anyio
from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import ToolException
from langgraph.pregel import Pregel
from langgraph.types import Command

from deepfs.middleware.delegation import (
    UNFINISHED,
    WAITING,
    AsyncTask,
    TaskObservation,
    content_of_answer,
    detach,
    follow_up,
    input_id,
    messages_of,
    task_config,
)
from deepfs.threads.background import background_loop, start_in_background
from deepfs.threads.forks import Lock, after_fork
from deepfs.threads.loop_bridge import (
    LoopCallbacks,
    ThreadEvent,
    loop_callbacks,
    runs_loop,
    start_task,
    waiting_threads,
)

__all__ = ["BackgroundTasks"]

_STOP_SECONDS: Final = 10
"""How long `cancel` waits for the end of a task."""
_LOST: Final = (
    "This process does not know the task: the process that ran it has ended or is another one, or the task ended long "
    "ago. Its result is lost, with files that were not merged. Start it again if it is still needed."
)
_FORGOTTEN: Final = "This process no longer has the answer of the task. Start it again if the answer is still needed."
_LOOP_ENDED: Final = (
    "The event loop that ran the task ended before it did. Start it again. To the programmer: run all turns in one "
    "event loop, or use tasks=BackgroundTasks(own_loop=True)."
)


@dataclass(eq=False)
class _Run:
    """One run of a task: its input, and its outcome once it has ended."""

    given: Any
    """A state, the messages of a follow-up, or a command."""
    id: str = field(default_factory=lambda: str(uuid4()))
    status: str = "pending"
    values: Mapping[str, Any] = field(default_factory=dict)
    """The state that it has reached."""
    error: str | None = None
    interrupts: Sequence[Mapping[str, Any]] = ()
    is_stopped: bool = False
    scope: anyio.CancelScope | None = None
    loop: LoopCallbacks | None = None
    waiting: list[ThreadEvent] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.status not in {"pending", "running"}

    def end(self, status: str, error: str | None = None) -> None:
        """Set the outcome, unless there is one, and wake those that wait for it."""
        if not self.has_ended:
            self.error, self.status = error, status  # In this order: observers do not wait for the lock.
            self.given, self.scope, self.loop = None, None, None
            while self.waiting:
                self.waiting.pop().set()


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
        """Whether all runs have ended; those whose event loop was closed end here."""
        if any(run.loop is not None and run.loop.is_closed() for run in self.runs):
            self.lose()
        return all(run.has_ended for run in self.runs)

    def lose(self) -> None:
        """End all runs that have not ended: their event loop has."""
        for run in self.runs:
            run.end("error", _LOOP_ENDED)


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
        self._limit, self._kept, self._own_loop = limit, kept, own_loop
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        self._lock = Lock()
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
            runnable=detach(runnable, getattr(runtime, "store", None)),
            config=task_config(name, task_id, runtime),
            options={} if context is None else {"context": context},
            files=dict(state.get("files") or {}),
        )
        run = _Run(dict(state))
        input_id(state)
        with self._lock:
            self._check_room()
            # Those that wait for a person go last: their answers are still to come.
            ended = [name for name, known in self._tasks.items() if known.has_ended]
            ended.sort(key=lambda name: self._tasks[name].latest.status == WAITING)
            for name in ended[: max(0, len(ended) - self._kept + 1)]:
                del self._tasks[name]
            task.runs.append(run)
            self._tasks[task_id] = task
        self._begin(task, run)
        return task_id, run.id

    def observe(self, task: AsyncTask) -> TaskObservation:
        """Return what is known of a task. One that this process does not know is an error.

        Args:
            task: The task, as the state of its agent has it.
        """
        known = self._tasks.get(task["task_id"])
        return _unknown(task) if known is None else _observation(known)

    def files(self, task: AsyncTask) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """The files before and after what was not merged yet; None if there is nothing to merge.

        Args:
            task: The task, as the state of its agent has it.
        """
        known, merged = self._tasks.get(task["task_id"]), task.get("merged_run_id")
        if known is None or not known.latest.has_ended or merged == known.latest.id:
            return None
        files = known.latest.values.get("files")
        before = next((run.values.get("files") for run in known.runs if run.id == merged), None)
        given = known.files if before is None else before
        return (given, files) if isinstance(files, Mapping) else None

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
        known = self._tasks.get(task["task_id"])
        if known is None:
            raise ToolException(f"Error: {_LOST}")
        if strategy == "interrupt" and not await self._stop(known):
            raise ToolException("Error: The current run does not stop. Try again later, or start another task.")
        return self._follow(known, _Run([HumanMessage(message, id=str(uuid4()))]))

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

    async def cancel(self, task: AsyncTask) -> TaskObservation:
        """Stop a task, wait for its end, at most 10 seconds, and return what became of it.

        Args:
            task: The task, as the state of its agent has it.
        """
        known = self._tasks.get(task["task_id"])
        if known is None:
            return _unknown(task)
        await self._stop(known)
        with self._lock:
            if known.latest.status == WAITING:
                known.latest.status, known.latest.interrupts = "cancelled", ()
        return _observation(known)

    async def await_all(self) -> None:
        """Wait until no task runs. Tasks that wait for a person do not count."""
        for task in list(self._tasks.values()):
            while not task.has_ended:
                for run in task.runs:
                    await self._wait_for_run(run)

    async def aclose(self) -> None:
        """Stop all tasks, wait for their ends, and forget them."""
        for task in list(self._tasks.values()):
            await self._stop(task)
        with self._lock:
            self._tasks.clear()

    # --- runs ---

    def _check_room(self) -> None:
        if sum(not task.has_ended for task in self._tasks.values()) >= self._limit:
            raise ToolException(f"Error: {self._limit} background tasks run already. Wait for an end, or cancel one.")

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
        # The loop of deepfs serves sync calls, which must not wait for what a task does.
        stays = runs_loop() and not background_loop().is_here() and not self._own_loop
        run.status, run.loop = "running", loop_callbacks() if stays else None
        try:
            (start_task if stays else start_in_background)(partial(self._work, task, run))
        except RuntimeError as error:
            run.end("error", str(error))

    async def _work(self, task: _Task, run: _Run) -> None:
        var_child_runnable_config.set(None)  # The task is no part of the graph that started it,
        waiting_threads.set(frozenset())  # and nobody waits for it.
        run.loop, run.scope = loop_callbacks(), anyio.CancelScope()
        status, error = "cancelled", None
        try:
            # A follow-up adds to what the runs before have reached, even if they were stopped.
            before = next((each.values for each in reversed(task.runs[: task.runs.index(run)]) if each.values), {})
            given = follow_up(before, run.given) if isinstance(run.given, list) else run.given
            run.values = given if isinstance(given, Mapping) else before
            with run.scope:
                if not run.is_stopped:
                    result = await task.runnable.ainvoke(given, task.config, **task.options)
                    run.values = result if isinstance(result, Mapping) else {}
                    asked = run.values.get("__interrupt__", ())
                    run.interrupts = [{"id": each.id, "value": each.value} for each in asked]
                    status = WAITING if asked else "success"
        except Exception as failure:
            status, error = "error", f"{type(failure).__name__}: {failure}"
        except BaseException:  # Not raised: nobody is there to take it.
            status = "lost"
        if status not in {"success", WAITING}:
            with anyio.CancelScope(shield=True), suppress(BaseException):
                run.values = await _read_state(task, run)
        with self._lock:
            if status == "lost":
                task.lose()
            else:
                run.end(status, error)
            following = next((each for each in task.runs if each.status == "pending"), None)
        if following is not None:
            self._begin(task, following)

    async def _stop(self, task: _Task) -> bool:
        """Stop all runs of a task, the newest first. Return whether they have ended in time."""
        runs = [] if task.has_ended else [*reversed(task.runs)]
        for run in runs:
            with self._lock:
                run.is_stopped = True
                if run.status == "pending":
                    run.end("cancelled")
                loop, scope = run.loop, run.scope
            if loop is not None and scope is not None:  # Else it has not begun, or has ended.
                with suppress(RuntimeError):
                    loop.call(scope.cancel)
            with anyio.move_on_after(_STOP_SECONDS):
                await self._wait_for_run(run)
        return all(run.has_ended for run in runs)

    async def _wait_for_run(self, run: _Run) -> None:
        ended = loop_callbacks().event()
        with self._lock:
            if run.has_ended:
                return
            run.waiting.append(ended)
        await ended.wait()


def _observation(task: _Task) -> TaskObservation:
    is_over, run = task.has_ended, task.latest
    if run.has_ended and not is_over:
        return TaskObservation("running", run.id)  # An earlier run has not stopped yet.
    content = content_of_answer(run.values) if run.status == "success" else ()
    note = "The latest follow-up has not started yet." if run.status == "pending" else None
    return TaskObservation(run.status, run.id, content, run.error, run.interrupts, note)


def _unknown(task: AsyncTask) -> TaskObservation:
    if task["status"] in UNFINISHED:
        return TaskObservation("error", task["run_id"], error=_LOST)
    return TaskObservation(task["status"], task["run_id"], note=_FORGOTTEN)


async def _read_state(task: _Task, run: _Run) -> Mapping[str, Any]:
    """The state that a run without an outcome has reached, with what its unfinished step has written."""
    if not isinstance(task.runnable, Pregel):
        return run.values
    values = (await task.runnable.aget_state(task.config)).values
    if input_id(run.values) in {None, *(message.id for message in messages_of(values))}:
        return values if isinstance(values, Mapping) else {}
    # The graph was stopped before its first step, or dropped its input.
    return {**run.values, **values, "messages": messages_of(run.values)}


_all: "Final[WeakSet[BackgroundTasks]]" = WeakSet()


@after_fork
def _forget_after_fork() -> None:
    """Forget the tasks in a forked child: the threads and the loops that run them stay in the parent."""
    for tasks in list(_all):
        tasks._forget()


_default: Final = BackgroundTasks()


def default_tasks() -> BackgroundTasks:
    """The tasks of all middleware that is made without `tasks`."""
    return _default
