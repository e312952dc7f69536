"""The state and the order of an agent's middleware, and what a profile changes: prompt, descriptions and tools."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Required, cast

from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage, SystemMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.types import Overwrite

from deepfs._langgraph.private import messages_reducer
from deepfs.middleware._base import (
    TRACE_POLICY,
    AgentMiddleware,
    AgentState,
    ModelRequest,
    RequestMiddleware,
    Steps,
    TodoListMiddleware,
    ToolCallSteps,
    step_of_call,
)
from deepfs.middleware._messages import ToolResult, with_prompt
from deepfs.middleware.approvals import ApprovalMiddleware
from deepfs.middleware.delegation import Middleware, Tools
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.patch_tool_calls import UnansweredCallsMiddleware
from deepfs.middleware.subagents import SubAgentMiddleware
from deepfs.middleware.tools import Tool
from deepfs.policy.rules import FilesystemPermission
from deepfs.profiles.registry import HarnessProfile

_SNAPSHOT: Final = 50


class _MessagesChannel(DeltaChannel[Any]):
    """Messages. A checkpoint holds those that were added; every 50 updates, it holds all of them.

    Unlike the reducer of LangGraph, it follows `RemoveMessage(REMOVE_ALL_MESSAGES)`, which summaries use.
    """

    def __init__(
        self, reducer: Any = messages_reducer, typ: Any = list, *, snapshot_frequency: int = _SNAPSHOT
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    def update(self, values: Sequence[Any]) -> bool:
        """Apply the writes of a superstep."""
        kept = None if any(map(_is_overwrite, values)) else _after_removal(values)
        if kept is None:
            return super().update(values)
        self.value: list[Any] = []
        return super().update(kept)

    def replay_writes(self, writes: Sequence[Any]) -> None:
        """Apply saved writes, oldest first."""
        kept = _after_removal([value for *_, value in writes])
        if kept is None:
            return super().replay_writes(writes)
        self.value = []
        return super().replay_writes([("", "", value) for value in kept])


def _after_removal(values: Sequence[Any]) -> list[Any] | None:
    """Return what follows the last removal of all messages; None if there is none."""
    for index in reversed(range(len(values))):
        write = values[index] if isinstance(values[index], list) else [values[index]]
        for place in reversed(range(len(write))):
            if isinstance(write[place], RemoveMessage) and write[place].id == REMOVE_ALL_MESSAGES:
                return [write[place + 1 :], *values[index + 1 :]]
    return None


def _is_overwrite(value: object) -> bool:
    return isinstance(value, Overwrite) or (isinstance(value, dict) and "__overwrite__" in value)


class DeepAgentState(AgentState[Any]):
    """The state of an agent; a `state_schema` inherits from it. Each message is saved about once per thread.

    LangGraph's usual channel saves all messages at every step.
    """

    messages: Required[Annotated[list[AnyMessage], _MessagesChannel()]]


def combine(own: Sequence[Middleware], given: Sequence[Middleware], tail: Sequence[Middleware]) -> list[Middleware]:
    """All middleware in order; one of `given` with the name of another takes its place."""
    replacing = {each.name: each for each in given}
    replaced = {each.name for each in (*own, *tail)}
    new = [each for name, each in replacing.items() if name not in replaced]
    first, last = ([replacing.get(each.name, each) for each in part] for part in (own, tail))
    return [*first, *new, *last]


def check_middleware(middleware: Sequence[Middleware], rules: Sequence[FilesystemPermission]) -> Sequence[Middleware]:
    """Return `middleware`.

    Raises ValueError if a name is there twice, or if a FilesystemMiddleware of it has other rules than `rules`.
    """
    names = [each.name for each in middleware]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"middleware has {min(twice)} twice: give one of the two another `name`, or remove it")
    for each in middleware:
        own = each.permissions if isinstance(each, FilesystemMiddleware) else ()
        if own and rules and list(own) != list(rules):
            raise ValueError("permissions differ from those of the FilesystemMiddleware: pass them in one place")
    return middleware


def system_prompt_of(profile: HarnessProfile, given: str | SystemMessage | None) -> str | SystemMessage | None:
    """The system prompt that was given, with that of the profile after it; None if both are empty."""
    if isinstance(given, SystemMessage):
        return with_prompt(given, profile.prompt(""))
    return "\n\n".join(part for part in (given, profile.prompt("")) if part) or None


def with_descriptions(tools: Tools, profile: HarnessProfile) -> list[Any]:
    """The tools, with the descriptions of the profile in place of their own."""
    described: list[Any] = list(tools)
    for place, tool in enumerate(described):
        description = profile.tool_description_overrides.get(_name_of(tool))
        if description is not None and isinstance(tool, BaseTool):
            described[place] = tool.model_copy(update={"description": description})
        elif description is not None and isinstance(tool, dict):
            described[place] = {**tool, "description": description}
    return described


_ALSO_NAMED: Final[Mapping[str, str]] = {
    "HumanInTheLoopMiddleware": ApprovalMiddleware.__name__,
    "PatchToolCallsMiddleware": UnansweredCallsMiddleware.__name__,
}
"""Names in deepagents of the agent's own middleware."""


_PARTS_OF_OTHERS: Final = frozenset({"UnsupportedContentMiddleware"})
"""Names in deepagents of what is here a part of FilesystemMiddleware."""


def find_exclusions(profile: HarnessProfile, middleware: Middleware) -> list[object]:
    """The entries of the profile that exclude this middleware. A class excludes our own middleware by its name."""
    is_ours = type(middleware).__module__.startswith("deepfs.")

    def excludes(entry: object) -> bool:
        name = entry.__name__ if isinstance(entry, type) else str(entry)
        is_named = middleware.name in (name, _ALSO_NAMED.get(name))
        return type(middleware) is entry or (is_named and (is_ours or not isinstance(entry, type)))

    return [entry for entry in profile.excluded_middleware if excludes(entry)]


def without_excluded(
    profile: HarnessProfile, stack: Sequence[Middleware], *, beside: Sequence[Middleware] = (), checks: bool = True
) -> list[Middleware]:
    """The middleware that the profile does not exclude, and what hides its excluded tools.

    Raises ValueError if it excludes what is neither in `stack` nor `beside`.
    """
    found = {entry for each in (*stack, *beside) for entry in find_exclusions(profile, each)}
    named = {str(getattr(entry, "__name__", entry)) for entry in profile.excluded_middleware - found}
    missing = sorted(named - _PARTS_OF_OTHERS)
    if missing and checks:
        raise ValueError(f"excluded_middleware of the profile: the agent has no {', '.join(missing)}")
    hiding = [_ToolExclusion(profile.excluded_tools)] if profile.excluded_tools else []
    return [*(each for each in stack if not find_exclusions(profile, each)), *hiding]


class LeftOut(AgentMiddleware[Any, Any, Any]):
    """Takes the place of middleware that a profile excludes, and does nothing.

    Args:
        name: The name of that middleware.
    """

    trace_policy = TRACE_POLICY

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    @property
    def name(self) -> str:
        """The name of the excluded middleware."""
        return self._name


class _ToolExclusion(RequestMiddleware, ToolCallSteps):
    """Hides tools from the model, and refuses calls of them."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request with the other tools only."""
        return request.override(tools=[tool for tool in request.tools if _name_of(tool) not in self._names])

    def _tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        """Refuse a call of a hidden tool."""
        if request.tool_call["name"] in self._names:
            return _refuse(request.tool_call)
        result: ToolResult = yield step_of_call(handler, request)
        return result


def _refuse(call: ToolCall) -> ToolMessage:
    text = f"Error: There is no tool {call['name']!r} here. Use one of those that you are offered."
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


def _name_of(tool: Any) -> str:
    """The name of a tool, or of the description of one that the provider runs; `""` for a function."""
    return str((tool.get("name") if isinstance(tool, dict) else getattr(tool, "name", "")) or "")


# --- without a prompt ------------------------------------------------------------------------------------------------


class TodoMiddleware(TodoListMiddleware[Any, Any]):
    """The todo tool without a system prompt. LangChain's class appends even an empty prompt, which providers refuse.

    Several lists in one turn are refused by the tool, not by a step of the graph at every turn.
    """

    trace_policy = TRACE_POLICY

    wrap_model_call: Any = AgentMiddleware.wrap_model_call
    awrap_model_call: Any = AgentMiddleware.awrap_model_call
    after_model: Any = AgentMiddleware.after_model
    aafter_model: Any = AgentMiddleware.aafter_model

    def __init__(self, tool_description: str) -> None:
        super().__init__(tool_description=tool_description)
        [tool] = self.tools
        write = cast("StructuredTool", tool).func
        assert write is not None  # LangChain gives both forms.

        def write_todos(runtime: ToolRuntime[Any, Any], todos: list[Any]) -> Any:
            messages = runtime.state["messages"]
            calls = next((each.tool_calls for each in reversed(messages) if isinstance(each, AIMessage)), [])
            if [call["name"] for call in calls].count(tool.name) > 1:
                raise ToolException("Error: Nothing was changed: call write_todos once in a turn, with the whole list.")
            return write(runtime, todos)

        async def awrite_todos(runtime: ToolRuntime[Any, Any], todos: list[Any]) -> Any:
            return write_todos(runtime, todos)

        given = {"func": write_todos, "coroutine": awrite_todos, "handle_tool_error": True}
        self.tools: list[BaseTool] = [Tool(**{**dict(tool), **given})]

    @property
    def name(self) -> str:
        """The name of LangChain's class, so that each of the two classes can replace the other."""
        return "TodoListMiddleware"


class DelegationMiddleware(SubAgentMiddleware):
    """SubAgentMiddleware without a prompt of its own. LangChain leaves it out of the way to the model."""

    wrap_model_call: Any = AgentMiddleware.wrap_model_call
    awrap_model_call: Any = AgentMiddleware.awrap_model_call

    @property
    def name(self) -> str:
        """The name of the base class, which middleware of the user may replace."""
        return "SubAgentMiddleware"
