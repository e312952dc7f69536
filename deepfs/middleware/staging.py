"""Agents that change no file for good: their changes are staged, or made on a fork, until someone takes them over."""

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, ToolException
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from msgspec import json
from pydantic import Field

from deepfs._langgraph.channel import FilesystemState
from deepfs._langgraph.private import current_config, current_ids, running_task
from deepfs._langgraph.reducers import stored_file
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.protocol import BackendProtocol, as_backend
from deepfs.backends.state import StateBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError, DeepFSError
from deepfs.middleware._base import (
    FORK,
    WORKSPACES,
    AgentMiddleware,
    CallStep,
    Steps,
    artifacts_root,
    arun_steps,
    run_steps,
    wait_for,
)
from deepfs.middleware.approved import ABSENT, shown_versions
from deepfs.middleware.arguments import ToolArguments
from deepfs.middleware.previews import PreviewMaker, PreviewPage
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.rendering import plain_error
from deepfs.middleware.tools import Tool, tool_of
from deepfs.operations import Operation
from deepfs.policy.rules import FilesystemPermission, decide
from deepfs.text import paths
from deepfs.text.lines import version
from deepfs.text.visible import display_path, one_line, visible
from deepfs.workspaces.entries import Entry, StoredEntries
from deepfs.workspaces.merging import MergeResult, Strategy, WorkspaceChange
from deepfs.workspaces.overlay import OverlayBackend

__all__ = ["StagedBackend", "StagedChanges"]

T = TypeVar("T")

_STAGED: Final = "staged"
_FORK_ID: Final = re.compile(r"fork-[0-9a-f]{8}")
_ARTIFACTS: Final = ("blobs", "conversation_history", "large_messages", "large_tool_results")
"""The directories in which middleware keeps files of its own. They stay staged unless they are named."""
_BATCH: Final = 64
_WHOLE: Final = (5_000, 400_000)
"""The rows and characters of a diff that a person is asked about, in addition to those of other previews."""
_NAMES: Final = 20
"""The most paths that a text for a model names at once."""


# --- where changes are kept ------------------------------------------------------------------------------------------


class StagedBackend(WrapperBackend):
    """The files of a backend with the changes that the running thread has staged, of which the backend knows nothing.

    Each thread has its own changes. In graph state they are a part of its checkpoints: a thread that is resumed has
    them, and one that starts at an earlier checkpoint has those of then. Another storage keeps the latest ones only.

    Args:
        backend: The files.
        upper: What keeps the changes; None is the state of the running graph. Agents do not share a directory of it:
            give each of them a storage of its own.
        name: The name of the workspace; None for the fork that the running subagent works on.

    Raises:
        TypeError: `backend` or `upper` is no backend.
    """

    def __init__(self, backend: Any, upper: Any = None, *, name: str | None = _STAGED) -> None:
        self.lower: BackendProtocol = hide_forks(as_backend(backend))
        self.upper: BackendProtocol = StateBackend() if upper is None else as_backend(upper)
        self._name = name
        self.is_of_forks: bool = name is None
        super().__init__(OverlayBackend(self.lower, self.upper))  # For its capabilities; `run` chooses the directory.

    async def run(self, operation: Operation) -> Any:
        return await self.workspace().arun(operation)

    def workspace(self, name: str | None = None) -> OverlayBackend:
        """Return the workspace of the running thread.

        Args:
            name: Its name, if it is another one than usual.

        Raises:
            BackendError: No thread or no subagent runs here, so it is not known which one is meant.
        """
        name = name or self._name or (current_config().get("configurable") or {}).get(FORK)
        if name is None:
            raise BackendError(None, "These are the files of a fork, and no subagent with a fork runs here.")
        return OverlayBackend(self.lower, self.upper, directory=paths.join(self._directory(), name))

    def _directory(self) -> str:
        if isinstance(self.upper, StateBackend):  # The state is that of the thread.
            return WORKSPACES
        ids = current_ids()
        if ids.thread is None and ids.run is None:
            raise BackendError(None, "Staged changes are those of a thread, and no graph runs here.")
        owner = f"run {ids.run}" if ids.thread is None else f"thread {ids.thread}"
        return paths.join(WORKSPACES, version(owner))

    async def claim(self, workspace: OverlayBackend, changes: Iterable[WorkspaceChange]) -> None:
        """Keep other calls of the same turn from changes of files that are about to be merged.

        In a state, such a change would keep a merged file here, over what was below before the merge.

        Raises:
            DeepFSError: Another call of this turn has changed such a file. The merge can be made in the next turn.
        """
        if isinstance(self.upper, StateBackend):
            entries = StoredEntries(self.upper, workspace.directory)
            ends = {end for each in changes for end in (each.path, each.moved_from) if end is not None}
            found = await entries.get([*ends])
            await entries.put(found, found)

    async def forks(self) -> list[str]:
        """The ids of the forks of the thread that have changes."""
        listing = await self.upper.als(self._directory())
        names = (paths.name(each.path.rstrip("/")) for each in listing.entries or ())
        return [name for name in names if _FORK_ID.fullmatch(name)]


def hide_forks(backend: BackendProtocol) -> BackendProtocol:
    """The backend without the directory of workspaces, where it has the files of a state."""
    places = [*_state_places(backend, "/")]
    if places:
        from deepfs.policy.keeping import without_directory

        for place in places:
            backend = without_directory(backend, paths.join(place, WORKSPACES[1:]))
    return backend


def _state_places(backend: object, at: str) -> Iterator[str]:
    """The directories in which a backend has files of the state."""
    if isinstance(backend, StateBackend):
        yield at
    elif isinstance(backend, CompositeBackend):
        yield from _state_places(backend.default, at)
        for route, each in backend.routes.items():
            yield from _state_places(each, paths.join(at, route.strip("/")))
    elif isinstance(backend, BackendProtocol) and not isinstance(backend, StagedBackend):
        for inner in backend.inner_backends():
            yield from _state_places(inner, at)


def keep_lost(lost: Mapping[str, Any], into: str) -> list[str]:
    """Stage copies of what a subagent staged in files that parallel ones changed as well; return a note for each.

    Args:
        lost: The stored entries by their paths in the state; None for one that the subagent removed.
        into: The directory of the copies.
    """
    notes: list[str] = []
    for place, stored in lost.items():
        found = stored_file(stored, place)
        entry = None if found is None else json.decode(found.content, type=Entry)
        if entry is None or entry.data is None:
            name = "A file" if entry is None else display_path(entry.path)
            notes.append(f"[{name} was changed elsewhere meanwhile: what this subagent did to it has no effect]")
            continue
        copy = f"{into}{entry.path}"
        entries = StoredEntries(StateBackend(), "/".join(place.split("/")[:3]))
        wait_for(StateBackend(), partial(entries.put, {copy: Entry(copy, data=entry.data)}, {}), "StagedBackend")
        where = f"This subagent's version is in {display_path(copy)}: merge what is missing"
        notes.append(f"[{display_path(entry.path)} was changed elsewhere meanwhile and stays as it is there. {where}]")
    return notes


# --- forks of subagents ----------------------------------------------------------------------------------------------


def new_fork_id(tool_call_id: str) -> str:
    """The id of the fork for a call of `task`: the same if the same step of the graph runs again."""
    return f"fork-{version(f'{running_task().task} {tool_call_id}')[:8]}"


async def add_changes(forks: StagedBackend, fork_id: str, rules: Sequence[FilesystemPermission], made: Any) -> Any:
    """Add the changes of a fork to the answer of its subagent."""
    [*others, message] = made.update["messages"]
    workspace, page = forks.workspace(fork_id), PreviewPage()
    try:
        chosen = await _choose(workspace, forks, None)
        note = f"[It worked on the fork {fork_id}. Your files do not have these changes unless you call merge_fork]"
        page.row(note if chosen else "[It worked on a fork of your files, and changed none]")
        await _show(page, workspace, chosen, rules)
    except DeepFSError as error:
        page.note(f"The changes of the fork {fork_id} cannot be shown: {plain_error(error)}")
    told = ToolMessage(f"{message.text}\n\n{page.text()}", tool_call_id=message.tool_call_id, name=message.name)
    return Command(update={**made.update, "messages": [*others, told]})


# --- what can be done with changes -----------------------------------------------------------------------------------


async def _choose(
    workspace: OverlayBackend, staged: StagedBackend, chosen: Sequence[str] | None
) -> list[WorkspaceChange]:
    """The changes at and under paths; for None, all but those of files that middleware keeps for itself."""
    changes = await workspace.achanges()
    if chosen is None:
        own = [paths.join(artifacts_root(staged.lower), name) for name in _ARTIFACTS]
        return [change for change in changes if not any(_is_at(change.path, top) for top in own)]
    tops = [paths.normalize(path) for path in chosen]
    found = {top: [each for each in changes if _is_at(each.path, top) or _is_at(each.moved_from, top)] for top in tops}
    missing = [top for top in tops if not found[top]]
    if missing:
        raise ToolException(f"Error: Nothing was done: nothing is changed at {_list(missing)}.")
    wanted = {change.path for each in found.values() for change in each}
    return [change for change in changes if change.path in wanted]


def _is_at(path: str | None, top: str) -> bool:
    return path is not None and (path == top or paths.is_beneath(path, top))


def _list(named: Sequence[str]) -> str:
    more = f" and {len(named) - _NAMES:,} more" if len(named) > _NAMES else ""
    return ", ".join(map(display_path, named[:_NAMES])) + more


async def _show(
    page: PreviewPage,
    workspace: OverlayBackend,
    changes: Sequence[WorkspaceChange],
    rules: Sequence[FilesystemPermission] = (),
) -> None:
    """Add a row for each change, and then the diffs, except those of files that `rules` keep from the reader."""
    rows = 0
    for change in changes:
        now = f" from {display_path(change.moved_from)}" if change.moved_from else ""
        size = "" if change.size is None else f" ({change.size:,} bytes)"
        rows += page.row(f"{change.kind} {display_path(change.path)}{now}{size}")
    shown = [each.path for each in changes if all(_is_readable(rules, path) for path in (each.path, each.moved_from))]
    left_rows = left_files = 0
    for start in range(0, len(shown), _BATCH):
        batch = shown[start : start + _BATCH]
        if left_rows:
            left_files += len(batch)
            continue
        for row in (await workspace.adiff(batch)).rstrip("\n").split("\n"):
            left_rows += not page.row(visible(row))
    if len(shown) < len(changes):
        page.note(f"By the rules, the texts of {len(changes) - len(shown):,} files are not shown")
    if left_rows:
        others = f", {left_files:,} more diffs" if left_files else ""
        names = f", {len(changes) - rows:,} names of changed files" if rows < len(changes) else ""
        page.note(f"Not shown: {left_rows:,} more rows of diffs{others}{names}. Ask for a part of the paths")


def _is_readable(rules: Sequence[FilesystemPermission], path: str | None) -> bool:
    return path is None or decide(rules, "read", path).mode == "allow"


async def _review(
    workspace: OverlayBackend, staged: StagedBackend, rules: Sequence[FilesystemPermission], path: str | None
) -> str:
    chosen = await _choose(workspace, staged, None if path is None else [path])
    page = PreviewPage()
    await _show(page, workspace, chosen, rules)
    return page.text() if chosen else "Nothing is changed."


async def _merge(
    workspace: OverlayBackend, staged: StagedBackend, chosen: Sequence[str] | None, strategy: Strategy = "keep"
) -> str:
    """Merge changes, of those that a person was asked about only what the person saw; return the text of the result."""
    shown, changes = shown_versions(), await _choose(workspace, staged, chosen)
    unseen = [] if shown is None else _find_unseen(changes, shown)
    seen = [each for each in changes if each.path not in unseen]
    await staged.claim(workspace, seen)
    result = await workspace.amerge(paths=[each.path for each in seen], strategy=strategy)
    done = [each.path for each in changes if each.path in result.merged]
    rows = [
        f"Merged {len(done):,} of {len(changes):,} changed files: {_list(done)}." if done else "Nothing was merged."
    ]
    if unseen:
        rows.append(
            f"Not merged, since a person was asked about other versions of these or of files there: {_list(unseen)}."
        )
    for conflict in result.conflicts:
        kept = f" Both versions: {_list(conflict.kept)}." if conflict.kept else ""
        rows.append(f"Conflict in {display_path(conflict.path)}: others changed it too, and it stays as it was.{kept}")
    rows += [f"Refused: {display_path(path)}: {one_line(str(code))}." for path, code in result.refused.items()]
    if not done and len(rows) > 1:
        raise ToolException("Error: " + "\n".join(rows))
    return "\n".join(rows)


def _find_unseen(changes: Sequence[WorkspaceChange], shown: Mapping[str, str]) -> list[str]:
    """The changes that a person did not see as they are, and those that are not merged without one of these."""
    unseen: dict[str, WorkspaceChange] = {}
    found = [each for each in changes if shown.get(each.path) != _version_of(each)]
    while found:
        unseen |= {each.path: each for each in found}
        ends = {end for each in unseen.values() for end in (each.path, each.moved_from) if end is not None}
        tied = ends.union(*map(paths.ancestors, ends))
        found = [each for each in changes if each.path not in unseen and tied & {each.path, each.moved_from}]
    return [*unseen]


def _version_of(change: WorkspaceChange) -> str:
    return f"{change.version or ABSENT} {change.base_version or ABSENT} {change.moved_from or ''}"


async def _discard(workspace: OverlayBackend, staged: StagedBackend, chosen: Sequence[str] | None) -> str:
    changes = [each.path for each in await _choose(workspace, staged, chosen)]
    await workspace.adiscard(None if chosen is None and staged.is_of_forks else changes)
    return f"Discarded the changes of {len(changes):,} files: {_list(changes)}." if changes else "Nothing is changed."


# --- the tools -------------------------------------------------------------------------------------------------------


class ReviewChangesArguments(ToolArguments):
    tool = "review_changes"
    path: str | None = None


class CommitChangesArguments(ToolArguments):
    tool = "commit_changes"
    paths: list[str] | None = None


class DiscardChangesArguments(CommitChangesArguments):
    tool = "discard_changes"


class ReviewForkArguments(ReviewChangesArguments):
    tool = "review_fork"
    fork_id: str


class MergeForkArguments(CommitChangesArguments):
    tool = "merge_fork"
    fork_id: str
    strategy: Literal["keep", "refuse", "mine", "theirs"] = "keep"


class DiscardForkArguments(ToolArguments):
    tool = "discard_fork"
    fork_id: str


class _WorkspaceTool(Tool):
    staged: Any = Field(default=None, exclude=True)
    preview: Any = Field(default=None, exclude=True)
    """The PreviewMaker for approvals; None for a tool that changes nothing."""


def _make_tool(
    staged: StagedBackend,
    schema: type[ToolArguments],
    act: Callable[..., Coroutine[Any, Any, str]],
    preview: PreviewMaker | None = None,
) -> BaseTool:
    async def call(fork_id: str | None = None, **given: Any) -> str:
        try:
            return await act(await _find(staged, fork_id), staged, **given)
        except DeepFSError as error:
            raise ToolException(f"Error: {plain_error(error)}") from None

    made = tool_of(staged, call, schema.tool, PROMPTS[schema.tool], schema)
    return _WorkspaceTool(**{**dict(made), "staged": staged, "preview": preview})


async def _find(staged: StagedBackend, fork_id: str | None) -> OverlayBackend:
    if fork_id is None:
        return staged.workspace()
    known = await staged.forks()
    if fork_id not in known:
        forks = ", ".join(known) or "none"
        raise ToolException(f"Error: No fork {one_line(fork_id, 60)} has changes. Forks with changes: {forks}.")
    return staged.workspace(fork_id)


def _preview_of(staged: StagedBackend, rules: Sequence[FilesystemPermission]) -> PreviewMaker:
    denied = [rule for rule in rules if rule.mode == "deny"]

    async def make(page: PreviewPage, _: BackendProtocol, arguments: Mapping[str, Any]) -> None:
        page.versions["/"] = ABSENT  # If this fails, the person has seen nothing, and so nothing is merged.
        workspace = await _find(staged, arguments.get("fork_id"))
        changes = await _choose(workspace, staged, arguments.get("paths"))
        page.versions |= {change.path: _version_of(change) for change in changes}
        page.extend(*_WHOLE)
        await _show(page, workspace, changes, denied)

    return make


class StagingMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives an agent the tools to review, commit and discard its staged changes."""

    state_schema: type[Any] = FilesystemState

    def __init__(self, staged: StagedBackend, rules: Sequence[FilesystemPermission]) -> None:
        super().__init__()
        self.tools: list[BaseTool] = [
            _make_tool(staged, ReviewChangesArguments, _with_path(rules)),
            _make_tool(staged, CommitChangesArguments, _with_paths(_merge), _preview_of(staged, rules)),
            _make_tool(staged, DiscardChangesArguments, _with_paths(_discard), _preview_of(staged, rules)),
        ]


def fork_tools(forks: StagedBackend, rules: Sequence[FilesystemPermission]) -> list[BaseTool]:
    """The tools with which a supervisor reviews, merges and discards the forks of its subagents."""
    return [
        _make_tool(forks, ReviewForkArguments, _with_path(rules)),
        _make_tool(forks, MergeForkArguments, _with_paths(_merge), _preview_of(forks, rules)),
        _make_tool(forks, DiscardForkArguments, _with_paths(_discard), _preview_of(forks, rules)),
    ]


def _with_path(rules: Sequence[FilesystemPermission]) -> Callable[..., Coroutine[Any, Any, str]]:
    async def act(workspace: OverlayBackend, staged: StagedBackend, path: str | None = None) -> str:
        return await _review(workspace, staged, rules, path)

    return act


def _with_paths(act: Callable[..., Coroutine[Any, Any, str]]) -> Callable[..., Coroutine[Any, Any, str]]:
    async def call(workspace: OverlayBackend, staged: StagedBackend, paths: Any = None, **given: Any) -> str:
        return await act(workspace, staged, paths, **given)

    return call


# --- for people and programs -----------------------------------------------------------------------------------------


class StagedChanges:
    """The changes that an agent of `create_deep_agent(staged=…)` has staged in a thread, for a person or a program.

    Nothing may run in the thread meanwhile. Each method has an async form and a sync one.

    Args:
        agent: The agent, which has a checkpointer.
        config: The configuration with the `thread_id`.
        context: The context of a run, if the backend of the agent chooses files by it.

    Raises:
        ValueError: The agent stages nothing.
    """

    def __init__(self, agent: Any, config: RunnableConfig, *, context: Any = None) -> None:
        tools = getattr(getattr(agent.nodes.get("tools"), "bound", None), "tools_by_name", {})
        tool = tools.get(CommitChangesArguments.tool)
        if not isinstance(tool, _WorkspaceTool):
            raise ValueError("the agent stages nothing: make it by create_deep_agent(staged=True)")
        self._agent, self._config, self._context = agent, config, context
        self._staged: StagedBackend = tool.staged

    def review(self, path: str | None = None) -> str:
        """Show the changes as one unified diff, as `OverlayBackend.adiff` does.

        Args:
            path: A file or directory; None is everything.

        Returns:
            The diff, of any length; empty if nothing is staged.

        Raises:
            DeepFSError: A file cannot be read.
        """
        return run_steps(self._run(lambda workspace: workspace.adiff(path or "/")))

    async def areview(self, path: str | None = None) -> str:
        """As `review`."""
        return await arun_steps(self._run(lambda workspace: workspace.adiff(path or "/")))

    def commit(self, paths: Iterable[str] | None = None, *, strategy: Strategy = "keep") -> MergeResult:
        """Make the changes in the backend of the agent, as `OverlayBackend.amerge` does.

        Args:
            paths: Files and directories; None is everything.
            strategy: For files that others changed in the same place meanwhile.

        Returns:
            What was merged, the conflicts, and the files that the backend refused.

        Raises:
            ValueError: For another strategy.
            DeepFSError: A file cannot be read. What was merged until then stays merged.
        """
        return run_steps(self._run(lambda workspace: workspace.amerge(paths=paths, strategy=strategy)))

    async def acommit(self, paths: Iterable[str] | None = None, *, strategy: Strategy = "keep") -> MergeResult:
        """As `commit`."""
        return await arun_steps(self._run(lambda workspace: workspace.amerge(paths=paths, strategy=strategy)))

    def discard(self, paths: Iterable[str] | None = None) -> list[str]:
        """Undo changes: the agent sees the files of its backend again.

        Args:
            paths: Files and directories; None is everything.

        Returns:
            The paths of the files that had been changed.

        Raises:
            DeepFSError: The changes cannot be reached.
        """
        return run_steps(self._run(lambda workspace: workspace.adiscard(paths)))

    async def adiscard(self, paths: Iterable[str] | None = None) -> list[str]:
        """As `discard`."""
        return await arun_steps(self._run(lambda workspace: workspace.adiscard(paths)))

    def _run(self, act: Callable[[OverlayBackend], Coroutine[Any, Any, T]]) -> Steps[T]:
        """Run code in a graph that has the files of the thread, and store in the thread what it changes in them."""
        agent, found = self._agent, list[T]()
        state = yield CallStep(partial(agent.get_state, self._config), partial(agent.aget_state, self._config))
        files = state.values.get("files") or {}

        async def node(_: Any) -> dict[str, Any]:
            found.append(await act(self._staged.workspace()))
            return {}

        def sync_node(given: Any) -> dict[str, Any]:
            return wait_for(self._staged, partial(node, given), type(self).__name__)

        builder = StateGraph(FilesystemState).add_node("act", RunnableLambda(sync_node, afunc=node))
        graph = builder.add_edge(START, "act").add_edge("act", END).compile(store=agent.store)
        thread = {"configurable": {"thread_id": (self._config.get("configurable") or {}).get("thread_id")}}
        run: list[Any] = [partial(each, {"files": files}, thread) for each in (graph.invoke, graph.ainvoke)]
        made = (yield CallStep(*(partial(each, context=self._context) for each in run))).get("files") or {}
        changed = {path: made.get(path) for path in {**files, **made} if files.get(path) != made.get(path)}
        if changed:
            update = (self._config, {"files": changed})
            yield CallStep(partial(agent.update_state, *update), partial(agent.aupdate_state, *update))
        return found[0]
