"""The middleware that lets a LangChain agent hand tasks to subagents."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from json import dumps
from typing import Any, Final, NotRequired, TypeAlias, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from deepfs._langgraph.task_files import adopt_files
from deepfs.middleware._backends import (
    AgentMiddleware,
    InterruptOnConfig,
    Lazy,
    ModelRequest,
    ModelResponse,
    create_agent,
    init_chat_model,
    resolve_backend,
)
from deepfs.middleware._messages import with_prompt
from deepfs.middleware.approvals import ApprovalMiddleware, covering
from deepfs.middleware.filesystem import FilesystemMiddleware, inheriting
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skill_tools import SKILL_STATE_KEYS
from deepfs.middleware.skills import SkillSource, skills_of
from deepfs.middleware.tools import wrong_arguments
from deepfs.policy.rules import FilesystemPermission, checked_rules

__all__ = ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware", "initial_state", "outcome"]

Tools: TypeAlias = Sequence[BaseTool | Callable[..., Any] | dict[str, Any]]
InterruptOn: TypeAlias = Mapping[str, bool | InterruptOnConfig]

GENERAL_PURPOSE: Final = "general-purpose"


class SubAgent(TypedDict):
    """A subagent to build. The defaults of the middleware apply to keys that are left out."""

    name: str
    description: str
    """The supervisor chooses a subagent by its description."""
    system_prompt: NotRequired[str]
    tools: NotRequired[Tools]
    model: NotRequired[str | BaseChatModel]
    middleware: NotRequired[Sequence[AgentMiddleware[Any, Any, Any]]]
    """Comes after the default middleware."""
    interrupt_on: NotRequired[InterruptOn]
    skills: NotRequired[Sequence[SkillSource]]
    """Directories of skills in the backend of its files."""
    permissions: NotRequired[Sequence[FilesystemPermission]]
    """Rules about files that replace the default ones."""
    response_format: NotRequired[Any]
    """The form of its answer, as `create_agent` takes it; the supervisor gets the answer as JSON."""


class CompiledSubAgent(TypedDict):
    """A subagent that is already built: any runnable over a state with `messages`."""

    name: str
    description: str
    runnable: Runnable[Any, Any]


class SubAgentMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives an agent the tool `task`, which runs a subagent in a context of its own.

    Subagents run in parallel if the model calls several at once. Each gets the files in state, and its changes of them
    are merged back.

    Args:
        default_model: The model of subagents that name none.
        default_tools: The tools of subagents that name none.
        default_middleware: Middleware that each subagent gets.
        default_interrupt_on: The `interrupt_on` of subagents that have none.
        subagents: The subagents.
        system_prompt: A text at the end of the agent's system prompt.
        general_purpose_agent: Whether to add a subagent with the default tools, if there is a `default_model`.
        task_description: The description of the tool; `{available_agents}` in it becomes the list of subagents.
        backend: Files for the subagents that have no FilesystemMiddleware.
        permissions: Rules about files for subagents that have none of their own.
        general_purpose_middleware: Further middleware of the subagent that `general_purpose_agent` adds.

    Raises:
        TypeError: If neither `default_model` nor `backend` is given, or an item is not a subagent or not a rule.
        ValueError: If a subagent lacks a key or a model, has an unknown key or the name of another one, or if there are
            no subagents.
    """

    def __init__(
        self,
        *,
        default_model: str | BaseChatModel | None = None,
        default_tools: Tools | None = None,
        default_middleware: Sequence[AgentMiddleware[Any, Any, Any]] | None = None,
        default_interrupt_on: InterruptOn | None = None,
        subagents: Sequence[SubAgent | CompiledSubAgent] | None = None,
        system_prompt: str | None = None,
        general_purpose_agent: bool = True,
        task_description: str | None = None,
        backend: Any = None,
        permissions: Sequence[FilesystemPermission] | None = None,
        general_purpose_middleware: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    ) -> None:
        super().__init__()
        self._general_purpose_middleware = general_purpose_middleware
        self._permissions = checked_rules(permissions or ())
        if default_model is None and backend is None:
            raise TypeError("SubAgentMiddleware needs default_model, or a backend and subagents that name their model")
        self._model = default_model
        self._tools = list(default_tools or ())
        self._middleware = [*self._files(backend, default_middleware or ()), *(default_middleware or ())]
        self._interrupt_on = default_interrupt_on
        self._prompt = system_prompt or ""
        own = _mappings(subagents or ())
        specs = [*self._general_purpose(general_purpose_agent, own), *own]
        self._runnables = {spec["name"]: self._runnable(spec) for spec in _checked(specs)}
        self.tools: list[BaseTool] = [_task_tool(self._runnables, _described(specs, task_description))]

    def _general_purpose(self, wanted: bool, subagents: Sequence[SubAgent | CompiledSubAgent]) -> list[SubAgent]:
        if not wanted or self._model is None or any(spec.get("name") == GENERAL_PURPOSE for spec in subagents):
            return []
        description, prompt = PROMPTS["general_purpose_description"], PROMPTS["general_purpose"]
        middleware = self._general_purpose_middleware
        return [SubAgent(name=GENERAL_PURPOSE, description=description, system_prompt=prompt, middleware=middleware)]

    def _files(self, backend: Any, middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> list[FilesystemMiddleware]:
        has_files = any(isinstance(each, FilesystemMiddleware) for each in middleware)
        if backend is None or has_files:
            return []
        return [FilesystemMiddleware(backend=resolve_backend(backend), permissions=self._permissions)]

    def _runnable(self, spec: SubAgent | CompiledSubAgent) -> Lazy[Runnable[Any, Any]]:
        """The runnable of a subagent; an agent is built at its first use."""
        if "runnable" in spec:
            runnable = cast("CompiledSubAgent", spec)["runnable"]
            return Lazy(lambda: runnable)
        agent = spec
        model = agent.get("model", self._model)
        if model is None:
            raise ValueError(f"subagent {agent['name']!r} needs a model: there is no default_model")
        chat_model = init_chat_model(model) if isinstance(model, str) else model
        rules = checked_rules(agent.get("permissions", self._permissions))
        return Lazy(lambda: self._built(agent, chat_model, rules))

    def _built(self, spec: SubAgent, model: BaseChatModel, rules: Sequence[FilesystemPermission]) -> Runnable[Any, Any]:
        own = [_ruled(each, rules) if "permissions" in spec else each for each in self._middleware]
        named = [*own, *inheriting(rules, spec.get("middleware", ()))]
        given = [*named, *skills_of(_files_of(named), spec.get("skills"), named)]
        asking = ApprovalMiddleware.where_needed(rules, spec.get("interrupt_on", self._interrupt_on), given)
        return create_agent(
            model,
            tools=list(spec.get("tools", self._tools)),
            system_prompt=spec.get("system_prompt"),
            response_format=spec.get("response_format"),
            middleware=_last_of_each_name(covering([*given, *asking])),
            name=spec["name"],
        )

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Append the prompt."""
        return handler(self._prepared(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """As `wrap_model_call`."""
        return await handler(self._prepared(request))

    def _prepared(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        return request.override(system_message=with_prompt(request.system_message, self._prompt))


def _ruled(
    middleware: AgentMiddleware[Any, Any, Any], rules: Sequence[FilesystemPermission]
) -> AgentMiddleware[Any, Any, Any]:
    return middleware.with_permissions(rules) if isinstance(middleware, FilesystemMiddleware) else middleware


def _files_of(middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> Any:
    """The backend of the files of a subagent, with its rules; None if it has none."""
    return next((each.backend for each in reversed(middleware) if isinstance(each, FilesystemMiddleware)), None)


def _last_of_each_name(middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> list[AgentMiddleware[Any, Any, Any]]:
    """Keep the last middleware of each name, at the position of the first."""
    return list({each.name: each for each in middleware}.values())


# --- specifications --------------------------------------------------------------------------------------------------


def _mappings(given: Iterable[SubAgent | CompiledSubAgent]) -> Sequence[SubAgent | CompiledSubAgent]:
    subagents = list(given)
    for spec in subagents:
        if not isinstance(spec, Mapping):
            raise TypeError(f"subagents is a list of SubAgent and CompiledSubAgent, and {spec!r} is none")
    return subagents


def _checked(specs: Sequence[SubAgent | CompiledSubAgent]) -> Sequence[SubAgent | CompiledSubAgent]:
    if not specs:
        raise ValueError("SubAgentMiddleware needs at least one subagent")
    seen: set[str] = set()
    for spec in specs:
        kind = CompiledSubAgent if "runnable" in spec else SubAgent
        missing = sorted(kind.__required_keys__ - spec.keys())
        if missing:
            raise ValueError(f"subagent {spec.get('name', '')!r} lacks {', '.join(missing)}")
        unknown = sorted(spec.keys() - kind.__annotations__.keys())
        if unknown:
            raise ValueError(f"subagent {spec['name']!r} has keys that are not known: {', '.join(unknown)}")
        if spec["name"] in seen:
            raise ValueError(f"two subagents have the name {spec['name']!r}")
        seen.add(spec["name"])
    return specs


def _described(specs: Sequence[SubAgent | CompiledSubAgent], description: str | None) -> str:
    available = "\n".join(f"- {spec['name']}: {spec['description']}" for spec in specs)
    return (PROMPTS["task"] if description is None else description).replace("{available_agents}", available)


# --- the tool --------------------------------------------------------------------------------------------------------


class TaskArguments(BaseModel):
    description: str = Field(description="The whole task, and what to report.")
    subagent_type: str = Field(description="Name of the subagent.")


def _task_tool(runnables: Mapping[str, Lazy[Runnable[Any, Any]]], description: str) -> BaseTool:
    def chosen(name: str, description: str) -> Runnable[Any, Any]:
        if not description.strip():
            raise ToolException("Error: The description is empty. Say what is to be done.")
        if name not in runnables:
            raise ToolException(f"Error: There is no subagent {name!r}. Choose one of: {', '.join(runnables)}.")
        return runnables[name].get()

    def task(description: str, subagent_type: str, runtime: ToolRuntime[Any, Any]) -> Any:
        runnable = chosen(subagent_type, description)
        result = runnable.invoke(initial_state(runtime.state, description))
        return outcome(runtime.state, result, runtime.tool_call_id or "")

    async def atask(description: str, subagent_type: str, runtime: ToolRuntime[Any, Any]) -> Any:
        runnable = chosen(subagent_type, description)
        result = await runnable.ainvoke(initial_state(runtime.state, description))
        return outcome(runtime.state, result, runtime.tool_call_id or "")

    return StructuredTool(
        name="task",
        description=description,
        args_schema=TaskArguments,
        func=task,
        coroutine=atask,
        handle_tool_error=True,
        handle_validation_error=wrong_arguments,
    )


_OWN: Final = SKILL_STATE_KEYS | frozenset(
    {
        "conversation_history_name",
        "file_conflicts",
        "files",
        "jump_to",
        "messages",
        "remaining_steps",
        "structured_response",
        "todos",
    }
)
"""Keys of the state that supervisor and subagent do not share. `files` are merged separately."""
_CONFLICTS: Final = "/conflicts"


def initial_state(state: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The initial state of a subagent: its task as the only message, and the keys shared with the supervisor."""
    shared = {key: value for key, value in state.items() if key not in _OWN}
    files = {"files": state["files"]} if "files" in state else {}
    return {**shared, **files, "messages": [HumanMessage(description)]}


def outcome(state: Mapping[str, Any], result: Any, tool_call_id: str) -> "Command[Any]":
    """Return a subagent's answer for the supervisor, whose state was `state`, and merge its files into the task's.

    A file in which a parallel subagent changed the same lines stays as the parallel one left it; the version of this
    subagent is kept under `/conflicts`, and the answer says so. Raises ToolException for a result without messages.
    """
    messages = result.get("messages") if isinstance(result, Mapping) else None
    if not messages:
        raise ToolException("Error: The subagent returned no messages. Use another one, or do the task yourself.")
    notes = _adopted(state.get("files") or {}, result.get("files") or {}, tool_call_id) if "files" in result else []
    text = "\n\n".join(filter(None, [_answer(messages, result.get("structured_response")), *notes]))
    shared = {key: value for key, value in result.items() if key not in _OWN and value != state.get(key)}
    return Command(update={**shared, "messages": [ToolMessage(text, tool_call_id=tool_call_id, name="task")]})


def _adopted(given: Mapping[str, Any], made: Mapping[str, Any], tool_call_id: str) -> list[str]:
    """Merge the files that the subagent changed; return a note for each file that conflicts."""
    lost = adopt_files(given, made)
    kept = {f"{_CONFLICTS}/{tool_call_id}{path}": made[path] for path in lost if path in made}
    adopt_files({}, kept)
    return [_conflict(path, f"{_CONFLICTS}/{tool_call_id}{path}", path in made) for path in lost]


def _conflict(path: str, copy: str, has_copy: bool) -> str:
    note = f"[{path} was changed elsewhere meanwhile and stays as it is there."
    return f"{note} This subagent's version is in {copy}: merge what is missing]" if has_copy else f"{note}]"


def _answer(messages: Sequence[BaseMessage], structured: Any) -> str:
    """The structured response as JSON, or the last text of the subagent."""
    if isinstance(structured, BaseModel):
        return structured.model_dump_json()
    if structured is not None:
        return dumps(structured, ensure_ascii=False, default=str)
    spoken = (str(message.text) for message in reversed(messages) if isinstance(message, AIMessage))
    return next(filter(None, (text.rstrip() for text in spoken)), "[The subagent ended without a word]")
