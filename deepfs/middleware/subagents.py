"""The middleware that lets a LangChain agent hand tasks to subagents."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langgraph.prebuilt import ToolRuntime
from langsmith.run_helpers import get_tracing_context, tracing_context

from deepfs._langgraph.channel import FilesystemState
from deepfs.middleware._base import (
    FORK,
    TRACE_POLICY,
    AgentMiddleware,
    Lazy,
    PromptMiddleware,
    construct_model,
    create_agent,
    resolve_backend,
    wait_for,
)
from deepfs.middleware._messages import with_prompt
from deepfs.middleware.approvals import ApprovalMiddleware, InterruptOn, ask_once
from deepfs.middleware.arguments import ToolArguments
from deepfs.middleware.delegation import (
    DEFAULT_GENERAL_PURPOSE_DESCRIPTION,
    DEFAULT_SUBAGENT_PROMPT,
    GENERAL_PURPOSE_SUBAGENT,
    AsyncSubAgent,
    CompiledSubAgent,
    Middleware,
    SubAgent,
    Tools,
    check_mappings,
    check_specs,
    fork_state,
    initial_state,
    outcome,
    skills_of,
    tool_description,
)
from deepfs.middleware.filesystem import FilesystemMiddleware, give_rules, rules_of
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.tools import Tool
from deepfs.policy.rules import FilesystemPermission, check_rules

if TYPE_CHECKING:
    from deepfs.middleware.staging import StagedBackend

__all__ = [
    "DEFAULT_GENERAL_PURPOSE_DESCRIPTION",
    "DEFAULT_SUBAGENT_PROMPT",
    "GENERAL_PURPOSE_SUBAGENT",
    "SUBAGENT_RESPONSE_FORMAT_CONFIG_KEY",
    "TASK_TOOL_DESCRIPTION",
    "CompiledSubAgent",
    "SubAgent",
    "SubAgentMiddleware",
    "TaskToolSchema",
    "create_sub_agent",
]


SUBAGENT_RESPONSE_FORMAT_CONFIG_KEY: Final = "__deepagents_subagent_response_format"
"""The key of `configurable` with the `response_format` of the subagents of a run. deepagents has the same key."""


TASK_TOOL_DESCRIPTION: Final = PROMPTS["task"]


class TaskToolSchema(ToolArguments):  # Without a docstring, which would be sent to models.
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"description": ("prompt", "task", "instructions")}
    ignored: ClassVar[tuple[str, ...]] = ("runtime",)  # ToolNode adds it.
    description: str
    subagent_type: str


class SubAgentMiddleware(PromptMiddleware):
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
        permissions: Rules about files for subagents that have none of their own; by default those of a
            FilesystemMiddleware in `default_middleware`.
        private_state_keys: Keys of the agent's state that subagents neither get nor change.
        state_schema: The base of the state of subagents, as `create_agent` takes it.
        fork_system_prompt: The agent's own system prompt, with which forks begin.
        fork_middleware: Middleware of the agent that forks have besides.
        forks: The backend that keeps the changes of subagents with `isolation="fork"`; None is the state of the agent.

    Raises:
        TypeError: If neither `default_model` nor `backend` is given, or an item is not a subagent or not a rule.
        ValueError: If a subagent lacks a key or a model, has an unknown key or mode or the name of another one, or if
            there are no subagents, or one with `isolation="fork"` and no `backend`.
    """

    state_schema: type[Any] = FilesystemState
    private_state_keys: frozenset[str]
    """Keys of the agent's state that subagents neither get nor change."""

    def __init__(
        self,
        *,
        default_model: str | BaseChatModel | None = None,
        default_tools: Tools | None = None,
        default_middleware: Sequence[Middleware] | None = None,
        default_interrupt_on: InterruptOn | None = None,
        subagents: Sequence[SubAgent | CompiledSubAgent] | None = None,
        system_prompt: str | None = None,
        general_purpose_agent: bool = True,
        task_description: str | None = None,
        backend: Any = None,
        permissions: Sequence[FilesystemPermission] | None = None,
        private_state_keys: frozenset[str] | None = None,
        state_schema: type[Any] | None = None,
        fork_system_prompt: str | SystemMessage | None = None,
        fork_middleware: Sequence[Middleware] = (),
        forks: Any = None,
    ) -> None:
        super().__init__()
        self._permissions = check_rules(permissions or ()) or rules_of(default_middleware or ())
        if default_model is None and backend is None:
            raise TypeError("SubAgentMiddleware needs default_model, or a backend and subagents that name their model")
        self._model = default_model
        self._tools = list(default_tools or ())
        self._backend = backend
        self._middleware = list(default_middleware or ())
        if backend is not None and not any(isinstance(each, FilesystemMiddleware) for each in self._middleware):
            files = FilesystemMiddleware(backend=resolve_backend(backend), permissions=self._permissions)
            self._middleware.insert(0, files)
        self._interrupt_on = default_interrupt_on
        self._state_schema = state_schema
        self._fork_prompt, self._fork_middleware = fork_system_prompt, fork_middleware
        self.system_prompt: str | None = system_prompt
        self.private_state_keys = private_state_keys or frozenset()
        specs = check_mappings(subagents or ())
        name = GENERAL_PURPOSE_SUBAGENT["name"]
        if general_purpose_agent and default_model is not None and all(spec.get("name") != name for spec in specs):
            specs.insert(0, GENERAL_PURPOSE_SUBAGENT)
        check_specs(specs)
        self._forks: StagedBackend | None = None
        merging: list[BaseTool] = []
        if any("isolation" in spec for spec in specs):
            if backend is None:
                raise ValueError('subagents with isolation="fork" need the backend of the agent as backend')
            from deepfs.middleware import staging

            self._forks = staging.StagedBackend(resolve_backend(backend), forks, name=None)
            merging = staging.fork_tools(self._forks, self._permissions)
            given = {"backend": self._forks}
            specs = [cast("SubAgent", {**given, **spec}) if "isolation" in spec else spec for spec in specs]
        self._specs = {spec["name"]: spec for spec in specs}
        self.subagent_names: frozenset[str] = frozenset(self._specs)
        """The names of the subagents."""
        self._description = tool_description(specs, PROMPTS["task"] if task_description is None else task_description)
        self._runnables = {spec["name"]: self._runnable(spec) for spec in specs}
        self.tools: list[BaseTool] = [_tool(self._description, self._task, self._atask), *merging]

    def as_async(self, spec: SubAgent | CompiledSubAgent) -> AsyncSubAgent:
        """Return the subagent for `AsyncSubAgentMiddleware`, built with the defaults of this middleware.

        Raises:
            ValueError: If it lacks a key or a model, has an unknown key, or is to work on a fork of the files.
        """
        if "isolation" in spec:
            raise ValueError(f"subagent {spec['name']!r} runs in the background, and cannot have the key isolation")
        isolated = cast("SubAgent | CompiledSubAgent", {**spec, "mode": "isolated"})
        (complete,) = check_specs(check_mappings([isolated]))
        runnable = self._runnable(complete).get()
        return AsyncSubAgent(
            name=spec["name"],
            description=spec["description"],
            runnable=runnable,
            private_state_keys=self.private_state_keys,
        )

    # --- building subagents ---

    def _runnable(self, spec: SubAgent | CompiledSubAgent) -> Lazy[Runnable[Any, Any]]:
        """The runnable of a subagent; an agent is built at its first use."""
        if "runnable" in spec:
            name, given = spec["name"], cast("CompiledSubAgent", spec)["runnable"]
            named = RunnableConfig(metadata={"lc_agent_name": name}, run_name=name)
            return Lazy(lambda: given.with_config(named))
        agent = self._complete(spec)
        return Lazy(lambda: self._build(agent))

    def _complete(self, spec: SubAgent) -> SubAgent:
        """The specification with the defaults for what it leaves out."""
        model = spec.get("model", self._model)
        if model is None:
            raise ValueError(f"subagent {spec['name']!r} needs a model: there is no default_model")
        inherited = rules_of(spec.get("middleware", ())) or self._permissions
        rules = check_rules(spec.get("permissions", inherited))
        defaults: dict[str, Any] = {"tools": self._tools, "interrupt_on": self._interrupt_on}
        return cast("SubAgent", {**defaults, **spec, "model": construct_model(model), "permissions": rules})

    def _build(self, spec: SubAgent, response_format: Any = None) -> Runnable[Any, Any]:
        middleware = self._with_files(spec)
        prompt: Any = spec.get("system_prompt")
        if spec.get("mode") == "fork":
            places = [place for place, each in enumerate(middleware) if isinstance(each, FilesystemMiddleware)]
            middleware.insert(places[0] + 1 if places else 0, _RefusingTask(self._description))
            middleware += self._fork_middleware
            first, own = self._fork_prompt, prompt
            if first is None or not own:
                prompt = own or first
            else:
                prompt = with_prompt(first, own) if isinstance(first, SystemMessage) else f"{first}\n\n{own}"
        files = [each.backend for each in middleware if isinstance(each, FilesystemMiddleware)]
        middleware += skills_of(files[-1] if files else None, spec.get("skills"), spec.get("middleware", ()))
        complete = {**spec, "system_prompt": prompt, "middleware": [*middleware, *spec.get("middleware", ())]}
        agent: Runnable[Any, Any] = create_sub_agent(
            cast("SubAgent", complete), state_schema=self._state_schema, response_format=response_format
        )
        return agent

    def _with_files(self, spec: SubAgent) -> list[Middleware]:
        """The default middleware with the rules and the backend of the subagent."""
        own: list[Middleware] = list(self._middleware)
        if "backend" in spec:
            own = on_backend(spec["backend"], own, is_fork=spec.get("mode") == "fork")
            if not any(isinstance(each, FilesystemMiddleware) for each in own):
                own.insert(0, FilesystemMiddleware(backend=spec["backend"]))
        rules = spec.get("permissions", ())
        return [each.with_permissions(rules) if isinstance(each, FilesystemMiddleware) else each for each in own]

    # --- running subagents ---

    def _task(self, description: str, subagent_type: str, runtime: ToolRuntime[Any, Any]) -> Any:
        runnable = self._choose(subagent_type, description, runtime)
        configurable = self._configurable(subagent_type, runtime)
        with _trace_inside():
            given = self._initial(subagent_type, description, runtime)
            result = runnable.invoke(given, {"configurable": configurable})
        made = outcome(runtime.state, result, runtime.tool_call_id or "", self.private_state_keys)
        if self._forks is None or FORK not in configurable:
            return made
        from deepfs.middleware.staging import add_changes

        shows = partial(add_changes, self._forks, configurable[FORK], self._permissions, made)
        return wait_for(self._forks, shows, self.name)

    async def _atask(self, description: str, subagent_type: str, runtime: ToolRuntime[Any, Any]) -> Any:
        runnable = self._choose(subagent_type, description, runtime)
        configurable = self._configurable(subagent_type, runtime)
        with _trace_inside():
            given = self._initial(subagent_type, description, runtime)
            result = await runnable.ainvoke(given, {"configurable": configurable})
        made = outcome(runtime.state, result, runtime.tool_call_id or "", self.private_state_keys)
        if self._forks is None or FORK not in configurable:
            return made
        from deepfs.middleware.staging import add_changes

        return await add_changes(self._forks, configurable[FORK], self._permissions, made)

    def _configurable(self, name: str, runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
        if "isolation" not in self._specs[name]:
            return {**_MARK}
        from deepfs.middleware.staging import new_fork_id

        return {**_MARK, FORK: new_fork_id(runtime.tool_call_id or "")}

    def _choose(self, name: str, description: str, runtime: ToolRuntime[Any, Any]) -> Runnable[Any, Any]:
        if not description.strip():
            raise ToolException("Error: The description is empty. Say what is to be done.")
        if name not in self._runnables:
            raise ToolException(f"Error: There is no subagent {name!r}. Choose one of: {', '.join(self._runnables)}.")
        asked = (runtime.config.get("configurable") or {}).get(SUBAGENT_RESPONSE_FORMAT_CONFIG_KEY)
        if asked is None:
            return self._runnables[name].get()
        spec = self._specs[name]
        if "runnable" in spec:
            raise ToolException(
                f"Error: {name!r} is already built, and cannot answer in another form. Use another one."
            )
        return self._build(self._complete(spec), asked)

    def _initial(self, name: str, description: str, runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
        spec = self._specs[name]
        fork = spec.get("mode") == "fork"
        if fork and "runnable" not in spec:
            is_elsewhere = "backend" in spec and "isolation" not in spec
            task = f"{PROMPTS['fork_files']}\n\n{description}" if is_elsewhere else description
            return fork_state(runtime.state, task)
        return initial_state(runtime.state, description, fork=fork, private=self.private_state_keys)


@runtime_checkable
class _StoresFiles(Protocol):
    """Middleware that stores files, in a backend that can be replaced."""

    def with_backend(self, backend: Any, /) -> Any: ...


def on_backend(backend: Any, middleware: Sequence[Middleware], *, is_fork: bool) -> list[Middleware]:
    """The middleware, with another backend for those that store files."""
    resolved = resolve_backend(backend)
    moved: list[Middleware] = []
    for each in middleware:
        if isinstance(each, FilesystemMiddleware):  # The messages of a fork refer to media of its supervisor.
            moved.append(each.with_backend(resolved, keeps_media=is_fork))
        else:
            moved.append(each.with_backend(resolved) if isinstance(each, _StoresFiles) else each)
    return moved


def create_sub_agent(spec: SubAgent, *, state_schema: type[Any] | None = None, response_format: Any = None) -> Any:
    """Build the agent of a subagent.

    Args:
        spec: The subagent, with `model` and `tools`. Its middleware is all that it gets, beside what asks a person.
        state_schema: The base of its state, as `create_agent` takes it.
        response_format: Replaces that of `spec`.

    Returns:
        The agent, a runnable.

    Raises:
        ValueError: If `spec` names no model or no tools.
    """
    for key in ("model", "tools"):
        if key not in spec:
            raise ValueError(f"subagent {spec['name']!r} lacks {key}")
    rules = check_rules(spec.get("permissions", ()))
    given, asked = ask_once(rules, spec.get("interrupt_on"), give_rules(rules, spec.get("middleware", ())))
    asking = ApprovalMiddleware.where_needed(rules, asked, given)
    last_of_each_name = {each.name: each for each in [*given, *asking]}
    return create_agent(
        spec["model"],
        tools=list(spec["tools"]),
        system_prompt=spec.get("system_prompt"),
        response_format=response_format if response_format is not None else spec.get("response_format"),
        middleware=list(last_of_each_name.values()),
        state_schema=state_schema,
        name=spec["name"],
    )


# --- forks -----------------------------------------------------------------------------------------------------------


class _RefusingTask(AgentMiddleware[Any, Any, Any]):
    """The tool `task` as the supervisor has it, so that the prompt is the same; every call is refused."""

    trace_policy = TRACE_POLICY

    def __init__(self, description: str) -> None:
        super().__init__()

        def task(description: str, subagent_type: str) -> Any:
            raise ToolException("Error: A fork cannot hand on its task. Carry it out yourself.")

        self.tools: list[BaseTool] = [_tool(description, task)]


# --- the tool --------------------------------------------------------------------------------------------------------


def _tool(
    description: str, func: Callable[..., Any], coroutine: Callable[..., Awaitable[Any]] | None = None
) -> BaseTool:
    return Tool(name="task", description=description, args_schema=TaskToolSchema, func=func, coroutine=coroutine)


_MARK: Final = {"ls_agent_type": "subagent"}
"""By this, LangSmith knows a subagent."""


def _trace_inside() -> AbstractContextManager[None]:
    """The tracing of the supervisor, with the mark in addition."""
    outer = dict(get_tracing_context())
    outer["metadata"] = (outer["metadata"] or {}) | _MARK
    return tracing_context(**outer)
