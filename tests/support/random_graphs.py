"""Random graphs whose tasks change the same files in parallel, and a report of the changes that succeeded.

A graph has a few steps. In each step, nodes, subgraphs, tools and tasks made by `Send` run in parallel: they call a
StateBackend, or return all files with their own changes; some fail at first, some interrupt. No task changes anything
that the same task, or the subgraph around it, changed before. So every success must be found in the final files, unless
the channel `file_conflicts` names its path.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt

from deepfs import FilesystemState, StateBackend

__all__ = ["RandomGraph", "Report"]

fs = StateBackend()
LINES = 6

_invocation: ContextVar[int] = ContextVar("invocation")
"""The number of the invocation of the graph that the running task belongs to."""


class State(FilesystemState, MessagesState):
    index: int
    log: Annotated[list[str], operator.add]


class BrokenError(Exception):
    """Raised once by a node."""


@dataclass(frozen=True)
class Change:
    """A change that a task makes; `mark` identifies it."""

    kind: str
    path: str
    mark: str
    line: int = 0

    @property
    def new_path(self) -> str:
        return f"/moved/{self.mark}"

    def holds(self, files: dict[str, Any]) -> bool:
        """Whether `files` show the change."""
        content = files.get(self.path, {}).get("content", "")
        match self.kind:
            case "edit" | "create" | "overwrite":
                return f"[{self.mark}]" in content
            case "delete":
                return self.path not in files
        return self.path not in files and self.new_path in files


@dataclass
class Report:
    """The changes that succeeded, by the name of the task; and the tasks that have failed once."""

    done: dict[str, list[Change]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def missing(self, values: Any) -> list[Change]:
        """The successful changes that are neither in the files nor named as conflicts."""
        named = {conflict["path"] for conflict in values["file_conflicts"]}
        return [
            change
            for changes in self.done.values()
            for change in changes
            if not change.holds(values["files"]) and change.path not in named
        ]


def text(path: str) -> str:
    return "".join(f"<{path} {line}>\n\n" for line in range(LINES))


def data(content: str) -> dict[str, Any]:
    return {"content": content, "encoding": "utf-8", "created_at": "0", "modified_at": "0"}


class RandomGraph:
    """A random graph made from `seed`; `report` records what its tasks did."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        self.random = Random(seed)
        self.sync = sync
        self.report = Report()
        self.invocations = 0
        self.files: dict[str, Any] = {"/untouched": data("untouched")}
        self.count = 0
        builder: Any = StateGraph(State)
        self.steps(builder, "", self.random.randint(1, 3), depth=0, taken=None)
        self.builder = builder

    # --- the plan ---

    def unique(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def pool(self, name: str) -> list[str]:
        """Paths that a step may change: files that exist from the beginning, and one that does not."""
        paths = [f"/{name}/{number}" for number in range(self.random.randint(1, 4))]
        self.files.update({path: data(text(path)) for path in paths})
        return [*paths, f"/{name}/new"]

    def changes(self, pools: Sequence[tuple[list[str], dict[str, set[int]]]]) -> list[Change]:
        """The changes of one task: each path is changed once, except for edits of different lines."""
        chosen = []
        for _ in range(self.random.randint(1, 4)):
            paths, taken = self.random.choice(pools)
            path = self.random.choice(paths)
            change = self.change(path, taken)
            if change is not None:
                chosen.append(change)
        return chosen

    def change(self, path: str, taken: dict[str, set[int]]) -> Change | None:
        exists = path in self.files
        kind = self.random.choice(["edit"] * 5 + ["overwrite", "delete", "move"]) if exists else "create"
        line = self.random.randrange(LINES)
        if path in taken and (kind != "edit" or line in taken[path] or -1 in taken[path]):
            return None
        taken.setdefault(path, set()).add(line if kind == "edit" else -1)
        return Change(kind, path, self.unique(), line)

    def steps(self, builder: Any, prefix: str, count: int, *, depth: int, taken: Any) -> None:
        """Add `count` steps of parallel branches to the graph."""
        builder.add_node(f"{prefix}gate0", lambda state: {}).add_edge(START, f"{prefix}gate0")
        for step in range(count):
            name = f"{prefix}{step}"
            shared = [(self.pool(f"shared{name}"), None)]
            branches = [
                self.branch(builder, f"{name}{letter}", shared, depth, taken)
                for letter in "abcd"[: self.random.randint(2, 4)]
            ]
            sent = [
                self.leaf_plan(f"{name}s{number}", shared, {}, taken) for number in range(self.random.choice((0, 0, 3)))
            ]
            if sent:
                builder.add_node(f"{name}send", self.sent(sent))
            self.fan_out(builder, f"{prefix}gate{step}", branches, f"{name}send", len(sent))
            builder.add_node(f"{prefix}gate{step + 1}", lambda state: {})
            builder.add_edge([*branches, *([f"{name}send"] if sent else [])], f"{prefix}gate{step + 1}")

    def fan_out(self, builder: Any, gate: str, branches: list[str], send: str, count: int) -> None:
        def route(state: State) -> list[Any]:
            sends = [Send(send, {"index": index, "files": state["files"]}) for index in range(count)]
            return [*branches, *sends]

        builder.add_conditional_edges(gate, route, [*branches, *([send] if count else [])])

    def leaf_plan(self, name: str, shared: Any, own: dict[str, set[int]], taken: Any) -> tuple[str, str, list[Change]]:
        pools = [(paths, own) for paths, _ in shared] + list(taken or ())
        return name, self.random.choice(["calls", "hand", "both"]), self.changes(pools)

    def branch(self, builder: Any, name: str, shared: Any, depth: int, taken: Any) -> str:
        """Add one branch of a step; returns its name."""
        kind = self.random.choice(["node", "node", "hand", "both", "tools", "subgraph", "called"])
        if kind in ("subgraph", "called") and depth == 2:
            kind = "node"
        if kind in ("subgraph", "called"):
            inner: Any = StateGraph(State)
            outer = [*(taken or ()), *((paths, {}) for paths, _ in shared)]
            self.steps(inner, f"{name}.", self.random.randint(1, 2), depth=depth + 1, taken=outer)
            compiled = inner.compile()
            builder.add_node(name, compiled if kind == "subgraph" else self.called(compiled))
        elif kind == "tools":
            builder.add_node(name, self.tools(name, self.leaf_plan(name, shared, {}, taken)[2]))
        else:
            _, _, changes = self.leaf_plan(name, shared, {}, taken)
            node = self.node(name, {"node": "calls"}.get(kind, kind), changes)
            retry = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=BrokenError)
            builder.add_node(name, node, retry_policy=retry)
        return name

    # --- the tasks ---

    def node(self, name: str, how: str, changes: list[Change]) -> Callable[..., Any]:
        trouble = self.random.choice(["none"] * 4 + ["retry", "fail", "interrupt before", "interrupt after"])
        return self.task(name, how, changes, trouble, sync=self.sync or self.random.random() < 0.3)

    def sent(self, plans: Sequence[tuple[str, str, list[Change]]]) -> Callable[..., Any]:
        tasks = [self.task(*plan, "none", sync=self.sync) for plan in plans]

        def node(state: State) -> Any:
            return tasks[state["index"]](state)

        async def anode(state: State) -> Any:
            return await tasks[state["index"]](state)

        return node if self.sync else anode

    def task(self, name: str, how: str, changes: list[Change], trouble: str, *, sync: bool) -> Callable[..., Any]:
        by_hand = changes if how == "hand" else changes[::2] if how == "both" else []
        by_call = [change for change in changes if change not in by_hand]

        def node(state: State) -> Any:
            with self.attempt(name, trouble) as done:
                done += [change for change in by_call if self.call(change)]
                files = handmade(state, by_hand)
                done += by_hand
            return {"files": files} if how != "calls" else None

        async def anode(state: State) -> Any:
            with self.attempt(name, trouble) as done:
                done += [change for change in by_call if await self.acall(change)]
                files = handmade(state, by_hand)
                done += by_hand
            return {"files": files} if how != "calls" else None

        return node if sync else anode

    @contextmanager
    def attempt(self, name: str, trouble: str) -> Iterator[list[Change]]:
        """One attempt of a task, which may interrupt before or after its changes, or fail after them."""
        done: list[Change] = []
        self.note(name, None)
        if trouble == "interrupt before":
            interrupt(name)
        yield done
        if trouble in ("retry", "fail") and name not in self.report.failed:
            self.report.failed.add(name)
            raise BrokenError(name) if trouble == "retry" else OSError(name)
        if trouble == "interrupt after":
            interrupt(name)
        self.note(name, done)

    def note(self, name: str, done: list[Change] | None) -> None:
        """Note the changes that a task has made, or None when it begins.

        When `ainvoke` fails, LangGraph leaves some nested graphs running, and runs them anew when it resumes. What the
        ones left running change reaches no state, so it is not noted.
        """
        if _invocation.get() == self.invocations:
            self.report.done.pop(name, None)
            if done is not None:
                self.report.done[name] = done

    def tools(self, name: str, changes: list[Change]) -> Callable[..., Any]:
        """A node that runs a tool for each change, all in parallel."""

        def call(index: int) -> str:
            return "done" if self.call(changes[index]) else "error"

        async def acall(index: int) -> str:
            return "done" if await self.acall(changes[index]) else "error"

        made = StructuredTool.from_function(call, None if self.sync else acall, "change", "Change a file.")
        run = ToolNode([made])
        calls = [{"name": "change", "args": {"index": index}, "id": str(index)} for index in range(len(changes))]

        def finish(result: Any) -> None:
            answers = [message.content for message in result["messages"]]
            self.note(name, [change for change, told in zip(changes, answers, strict=True) if told == "done"])

        def node(state: State) -> Any:
            if calls:
                finish(run.invoke({**state, "messages": [AIMessage("", tool_calls=calls)]}))

        async def anode(state: State) -> Any:
            if calls:
                finish(await run.ainvoke({**state, "messages": [AIMessage("", tool_calls=calls)]}))

        return node if self.sync else anode

    def called(self, compiled: Any) -> Callable[..., Any]:
        """A node that invokes another graph and returns the resulting files."""

        def node(state: State) -> Any:
            result = compiled.invoke({"files": state["files"]})
            return {"files": result["files"], "file_conflicts": result["file_conflicts"]}

        async def anode(state: State) -> Any:
            result = await compiled.ainvoke({"files": state["files"]})
            return {"files": result["files"], "file_conflicts": result["file_conflicts"]}

        return node if self.sync else anode

    def call(self, change: Change) -> bool:
        match change.kind:
            case "edit":
                return fs.edit(change.path, f"<{change.path} {change.line}>", f"[{change.mark}]").ok
            case "create":
                return fs.write(change.path, f"[{change.mark}]").ok
            case "overwrite":
                return fs.write(change.path, f"[{change.mark}]", overwrite=True).ok
            case "delete":
                return fs.delete(change.path).ok
        return fs.move(change.path, change.new_path).ok

    async def acall(self, change: Change) -> bool:
        match change.kind:
            case "edit":
                return (await fs.aedit(change.path, f"<{change.path} {change.line}>", f"[{change.mark}]")).ok
            case "create":
                return (await fs.awrite(change.path, f"[{change.mark}]")).ok
            case "overwrite":
                return (await fs.awrite(change.path, f"[{change.mark}]", overwrite=True)).ok
            case "delete":
                return (await fs.adelete(change.path)).ok
        return (await fs.amove(change.path, change.new_path)).ok

    # --- running it ---

    def begin_invocation(self) -> None:
        self.invocations += 1
        _invocation.set(self.invocations)

    def run(self, saver: Any, thread: str) -> Any:
        """Run the graph to its end, resuming it after failures and interrupts; returns the final values."""
        app, config, given = self.builder.compile(checkpointer=saver), self.config(thread), {"files": self.files}
        # With "exit", threads of LangGraph lose writes of one another: github.com/langchain-ai/langgraph/issues/8115.
        durability = self.random.choice(["sync", "async"])
        for _ in range(60):
            self.begin_invocation()
            try:
                app.invoke(given, config, durability=durability)
            except OSError:
                given = None
                continue
            state = app.get_state(config)
            if not state.next:
                return state.values
            given = self.resumption(state)
        raise AssertionError("it does not end")

    async def arun(self, saver: Any, thread: str) -> Any:
        app, config, given = self.builder.compile(checkpointer=saver), self.config(thread), {"files": self.files}
        durability = self.random.choice(["sync", "async", "exit"])
        for _ in range(60):
            self.begin_invocation()
            try:
                await app.ainvoke(given, config, durability=durability)
            except OSError:
                given = None
                continue
            state = await app.aget_state(config)
            if not state.next:
                return state.values
            given = self.resumption(state)
        raise AssertionError("it does not end")

    def config(self, thread: str) -> Any:
        return {"configurable": {"thread_id": thread}, "recursion_limit": 99}

    def resumption(self, state: Any) -> Any:
        """A command that answers some of the interrupts."""
        asked = list(state.interrupts)
        answered = self.random.sample(asked, self.random.randint(1, len(asked))) if asked else []
        return Command(resume={each.id: "go on" for each in answered}) if answered else None


def handmade(state: State, changes: Sequence[Change]) -> dict[str, Any]:
    """All files of the state after these changes, which are made without the backend."""
    files = dict(state["files"])
    for change in changes:
        match change.kind:
            case "edit":
                before = files[change.path]["content"]
                files[change.path] = data(before.replace(f"<{change.path} {change.line}>", f"[{change.mark}]"))
            case "create" | "overwrite":
                files[change.path] = data(f"[{change.mark}]")
            case "delete":
                files[change.path] = None
            case "move":
                files[change.new_path], files[change.path] = files[change.path], None
    return files
