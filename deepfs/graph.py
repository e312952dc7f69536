"""An agent with files, subagents and a list of things to do, ready to run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from msgspec import Struct

from deepfs._langgraph.private import RUN, STRICT_RESUME, current_ids, run_in
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware._base import (
    InterruptOnConfig,
    SkillSource,
    construct_model,
    create_agent,
    resolve_backend,
)
from deepfs.middleware.approvals import ANSWER_FORM, ApprovalMiddleware, ask_once, warn_of_unknown_tools
from deepfs.middleware.arguments import TOOL_NAMES
from deepfs.middleware.delegation import (
    GENERAL_PURPOSE_SUBAGENT,
    SKILLS,
    AsyncSubAgent,
    CompiledSubAgent,
    Middleware,
    SubAgent,
    Tools,
    has_parent,
    private_keys,
    skills_of,
    split_subagents,
)
from deepfs.middleware.filesystem import FilesystemMiddleware, ModelTool, give_rules, rules_of
from deepfs.middleware.harness import (
    DeepAgentState,
    DelegationMiddleware,
    LeftOut,
    TodoMiddleware,
    check_middleware,
    combine,
    find_exclusions,
    system_prompt_of,
    with_descriptions,
    without_excluded,
)
from deepfs.middleware.patch_tool_calls import UnansweredCallsMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.provider_caching import prompt_caching
from deepfs.middleware.subagents import on_backend
from deepfs.middleware.summarization import create_summarization_middleware
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemPermission, check_rules
from deepfs.profiles.registry import GeneralPurposeSubagentProfile, HarnessProfile, harness_profile_of, load_plugins

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

__all__ = [
    "BASE_AGENT_PROMPT",
    "DEFAULT_MODEL",
    "GENERAL_PURPOSE_SUBAGENT",
    "DeepAgentState",
    "create_deep_agent",
    "get_default_model",
]

BASE_AGENT_PROMPT: Final = ""
"""What each system prompt begins with: nothing. Programs for older versions of deepagents put it before their own."""
DEFAULT_MODEL: Final = "claude-sonnet-5-5"
"""The model of Anthropic that `create_deep_agent` uses if none is given."""

_RECURSION_LIMIT: Final = 9_999

# Here, since `create_deep_agent` may run on an event loop, which reading the metadata of packages would block.
load_plugins()


def create_deep_agent(
    model: str | BaseChatModel | None = None,
    tools: Tools | None = None,
    *,
    system_prompt: str | SystemMessage | None = None,
    middleware: Sequence[Middleware] = (),
    subagents: Sequence[SubAgent | CompiledSubAgent | AsyncSubAgent] | None = None,
    skills: Sequence[SkillSource] | None = None,
    memory: Sequence[str] | None = None,
    permissions: Sequence[FilesystemPermission] | None = None,
    backend: Any = None,
    interrupt_on: dict[str, bool | InterruptOnConfig] | None = None,
    staged: Any = False,
    response_format: Any = None,
    state_schema: type[DeepAgentState] | None = None,
    context_schema: type[Any] | None = None,
    checkpointer: "bool | BaseCheckpointSaver[Any] | None" = None,
    store: "BaseStore | None" = None,
    debug: bool = False,
    name: str | None = None,
    cache: "BaseCache[Any] | None" = None,
) -> "CompiledStateGraph[Any, Any, Any, Any]":
    """Create a LangChain agent that plans, works with files, and hands tasks to subagents.

    In a long conversation, the model sees a summary for the older messages, which stay in the state and are first saved
    in a file under `/conversation_history`. The model is told which tool calls got no result, so a conversation can go
    on without an answer to an interrupt. Models of Anthropic, Bedrock and Fireworks cache the prompt.

    Args:
        model: A chat model, or `"provider:name"`, which the profile of the provider completes; None is the current
            Claude Sonnet, from the package langchain-anthropic. The profile of the model may change all that follows.
        tools: Tools beside those of the middleware: the file tools, `task` and `write_todos`.
        system_prompt: The instructions of the agent. Blocks of a SystemMessage keep their `cache_control`.
        middleware: Further middleware, placed after the agent's own, but before that of the profile, skills, prompt
            caching, memory and approvals. It replaces middleware of the same name. A FilesystemMiddleware without
            permissions of its own gets `permissions`.
        subagents: They have the tools, the model and the `interrupt_on` of the agent unless they name their own. One
            named `general-purpose` is added if there is none. Those of the mode `"async"`, or with a `graph_id` on a
            server, run in the background.
        skills: Directories of skills, each a path or a pair of path and label, for the agent and the subagent
            `general-purpose`; of two skills with the same name, the one of the later directory counts.
        memory: Paths of files that the agent is shown at every turn.
        permissions: Rules about files, for subagents too unless they have their own. The mode `"interrupt"` asks a
            person, as `interrupt_on` does. By default those of a FilesystemMiddleware in `middleware`.
        backend: The backend of the files; None is a StateBackend.
        interrupt_on: The tools before which a person is asked. `write_file`, `edit_file` or `delete` includes other
            tools that replace files, unless these have entries of their own.
        staged: Whether the changes of the agent reach `backend` only when they are committed, by its tool
            `commit_changes` or by a person with `StagedChanges`. They are kept in the state, or in the backend that is
            given here. Before `commit_changes` a person is asked, unless `interrupt_on` sets it to False; that needs a
            checkpointer.
        response_format: The form of the last answer, as in `langchain.agents.create_agent`.
        state_schema: The state of the agent and of its subagents, a subclass of DeepAgentState. Fields that parallel
            subagents change need a reducer.
        context_schema: The type of the run's context, as in `create_agent`.
        checkpointer: What stores the threads, as in `create_agent`.
        store: What stores data across threads, as in `create_agent`.
        debug: Whether the graph logs its steps.
        name: The name of the graph.
        cache: The cache of the graph, as in `create_agent`.

    Returns:
        The agent, a compiled graph.

    Raises:
        ModuleNotFoundError: If a package is missing; it names what to install.
        TypeError: For an argument of another type.
        ValueError: For subagents or rules that cannot be used, rules of a FilesystemMiddleware that differ from
            `permissions`, a profile that excludes middleware which the agent does not have, or a
            FilesystemMiddleware in `middleware` if `staged` is set.
    """
    chat_model = resolve_model(model)
    profile = harness_profile_of(chat_model, model if isinstance(model, str) else None)
    schema = state_schema or DeepAgentState
    upper = None if staged is None or isinstance(staged, bool) else resolve_backend(staged)
    rules, files = check_rules(permissions or ()), resolve_backend(backend)
    staging: list[Middleware] = []
    if stages := staged is True or upper is not None:
        if any(isinstance(each, FilesystemMiddleware) for each in middleware):
            raise ValueError("staged: pass the files as backend, and no FilesystemMiddleware")
        from deepfs.middleware.staging import StagedBackend, StagingMiddleware

        files = staged_files = StagedBackend(files, upper)
        staging = [StagingMiddleware(staged_files, rules)]
        interrupt_on = {"commit_changes": True, **(interrupt_on or {})}
    specs: Sequence[Any] = subagents or ()
    if stages or any("isolation" in spec for spec in specs if isinstance(spec, Mapping)):
        from deepfs.middleware.staging import hide_forks

        files = hide_forks(files)
        own = [isinstance(spec, Mapping) and "backend" in spec for spec in specs]
        hidden: list[Any] = [
            {**spec, "backend": hide_forks(resolve_backend(spec["backend"]))} if has_own else spec
            for spec, has_own in zip(specs, own, strict=True)
        ]
        subagents = hidden
    parts = _Parts(
        model=chat_model,
        profile=profile,
        files=files,
        forks=upper,
        staging=staging,
        rules=rules,
        tools=with_descriptions(tools or (), profile),
        skills=skills,
        memory=memory or (),
        given=list(middleware),
    )
    prompt = system_prompt_of(profile, system_prompt)
    stack = parts.stack(subagents, interrupt_on, schema, prompt)
    if interrupt_on:
        warn_of_unknown_tools(interrupt_on, _all_tools(parts.tools, stack, subagents or ()))
    graph = create_agent(
        chat_model,
        tools=parts.tools,
        system_prompt=prompt,
        middleware=stack,
        response_format=response_format,
        state_schema=schema,
        context_schema=context_schema,
        checkpointer=checkpointer,
        store=store,
        debug=debug,
        name=name,
        cache=cache,
    )
    graph.__class__ = _Agent
    metadata = {"ls_integration": "deepfs", **({"lc_agent_name": name} if name else {})}
    return graph.with_config({"recursion_limit": _RECURSION_LIMIT, "metadata": metadata})


def get_default_model() -> BaseChatModel:
    """Return the model that `create_deep_agent` uses if none is given.

    Raises:
        ModuleNotFoundError: If the package langchain-anthropic is missing.
    """
    return resolve_model(None)


class _Agent(CompiledStateGraph[Any, Any, Any, Any]):
    """An agent whose errors say how to answer an interrupt, where LangGraph would fail on an answer of None."""

    def stream(self, input: Any, config: Any = None, **options: Any) -> Any:
        """Like `CompiledStateGraph.stream`. Raises ValueError for an empty command, and an error for unknown ids."""
        return super().stream(_check_input(input), _strict(input, _with_run(config)), **options)

    def astream(self, input: Any, config: Any = None, **options: Any) -> Any:
        """Like `stream`. A run that is a background task of another agent on its server wakes that agent at its end."""
        stream = super().astream(_check_input(input), _strict(input, _with_run(config)), **options)
        if not has_parent(config):
            return stream
        from deepfs.middleware.async_subagents import wake_parent_at_end

        return wake_parent_at_end(self, stream, config, options.get("context"))


_INTERRUPT_ID: Final = re.compile("[0-9a-f]{32}")


def _strict(given: Any, config: Any) -> Any:
    """The configuration in which answers to unknown interrupts are an error. LangGraph would ignore them."""
    resume = given.resume if isinstance(given, Command) else None
    if not (isinstance(resume, dict) and resume and all(map(_INTERRUPT_ID.fullmatch, map(str, resume)))):
        return config
    config = config or {}
    return {**config, "configurable": {STRICT_RESUME: True, **(config.get("configurable") or {})}}


def _with_run(config: Any) -> Any:
    """The configuration with an id of the run, by which what it and its subagents do to files can be undone."""
    if current_ids().run is not None:  # This is a subagent, and the run is that of its supervisor.
        return config
    config = config or {}
    run = str(config.get("run_id") or run_in(config) or uuid4())
    return {**config, "configurable": {RUN: run, **(config.get("configurable") or {})}}


def _check_input(given: Any) -> Any:
    if isinstance(given, Command) and given.resume is None and not given.update and not given.goto:
        raise ValueError(f"A Command without an answer does nothing. {ANSWER_FORM}.")
    return given


# --- the middleware of the agent and of its subagents ----------------------------------------------------------------


class _Parts(Struct, frozen=True, kw_only=True):
    """The parts that an agent shares with its subagents; builds the middleware of each from them."""

    model: BaseChatModel
    profile: HarnessProfile
    files: BackendProtocol
    forks: BackendProtocol | None
    """What keeps the changes of forks; None is the state."""
    staging: Sequence[Middleware]
    """The middleware with the tools for staged changes, if they are staged."""
    rules: Sequence[FilesystemPermission]
    tools: list[Any]
    skills: Sequence[SkillSource] | None
    memory: Sequence[str]
    given: Sequence[Middleware]
    """The middleware that the user gave."""

    def stack(
        self, subagents: Sequence[Any] | None, interrupt_on: Any, schema: type[Any], prompt: str | SystemMessage | None
    ) -> list[Middleware]:
        """The middleware of the agent, whose system prompt is `prompt`."""
        equipment = self._equipment(self.profile, self.files, self.rules)
        # Summaries come before the files, which fill in only the media of messages that are left.
        own = [UnansweredCallsMiddleware(), create_summarization_middleware(self.model, self.files), *equipment]
        given, asked = ask_once(
            self.rules, interrupt_on, give_rules(self.rules, check_middleware(self.given, self.rules))
        )
        approvals = ApprovalMiddleware.where_needed(self.rules, asked, [*own, *given])
        skilled = self._tail(self.profile, self.skills, _apply_rules(self.files, self._all_rules), self.given)
        tail = [*skilled, *self.staging, *self._remembering, *approvals]
        delegation = self._delegation(
            subagents,
            own,
            default_interrupt_on=interrupt_on,
            state_schema=schema,
            private_state_keys=private_keys(schema, *(each.state_schema for each in [*own, *given, *tail])),
            fork_system_prompt=prompt,
        )
        return without_excluded(self.profile, combine([*own, *delegation], given, tail))

    def _equipment(
        self, profile: HarnessProfile, files: BackendProtocol, rules: Sequence[FilesystemPermission]
    ) -> list[Middleware]:
        """The middleware whose tools have the descriptions of the profile."""
        given = profile.tool_description_overrides
        descriptions = {name: text for name, text in given.items() if name in TOOL_NAMES}
        return [
            TodoMiddleware(tool_description=given.get("write_todos", PROMPTS["todos"])),
            FilesystemMiddleware(
                backend=files,
                permissions=rules,
                custom_tool_descriptions=descriptions,
                model_tools=self._model_tools,
            ),
        ]

    @property
    def _all_rules(self) -> Sequence[FilesystemPermission]:
        """The rules of the agent: `permissions`, or those of the FilesystemMiddleware that the user gave."""
        return self.rules or rules_of(self.given)

    @property
    def _model_tools(self) -> Sequence[ModelTool]:
        """The further tools of the FilesystemMiddleware that the user gave: subagents have them as well."""
        given = [each.model_tools for each in self.given if isinstance(each, FilesystemMiddleware)]
        return given[-1] if given else ()

    def _tail(
        self, profile: HarnessProfile, skills: Sequence[SkillSource] | None, files: Any, given: Sequence[Middleware]
    ) -> list[Middleware]:
        """The middleware of the profile, for skills and for prompt caching, which follows that of the user."""
        return [*profile.materialize_extra_middleware(), *skills_of(files, skills, given), *prompt_caching()]

    @property
    def _remembering(self) -> list[Middleware]:
        """The memory. It follows prompt caching: when it changes, the prompt before it is still cached."""
        if not self.memory:
            return []
        from deepfs.middleware.memory import MemoryMiddleware

        return [MemoryMiddleware(backend=self.files, sources=self.memory, add_cache_control=True)]

    # --- subagents ---

    def _delegation(
        self, subagents: Sequence[Any] | None, own: Sequence[Middleware], **options: Any
    ) -> list[Middleware]:
        """The middleware with the tools that start subagents: `task`, and those for background tasks.

        Args:
            subagents: The argument of `create_deep_agent`.
            own: The middleware that each subagent gets.
            **options: Further arguments of SubAgentMiddleware.
        """
        inline, remote, background = split_subagents(subagents)
        local = [self._complete_spec(spec, own) for spec in inline]
        specs = [*self._general_purpose(local, own), *local]
        background = [self._complete_spec(spec, own) for spec in background]
        if not specs and not background:
            return _in_background(remote)
        in_background: list[Middleware] = []  # Filled below: what runs in the background is built by `delegating`.
        delegating = DelegationMiddleware(
            default_model=self.model,
            default_tools=self.tools,
            default_middleware=own,
            subagents=specs or [{**spec, "mode": "isolated"} for spec in background],
            general_purpose_agent=False,
            task_description=self.profile.tool_description_overrides.get("task"),
            backend=self.files,
            permissions=self.rules,
            fork_middleware=in_background,
            forks=self.forks,
            **options,
        )
        in_background += _in_background([*remote, *map(delegating.as_async, background)])
        return [*([delegating] if specs else []), *in_background]

    def _general_purpose(self, subagents: Sequence[Any], own: Sequence[Middleware]) -> list[Any]:
        """The subagent for anything. Of the middleware that the user gave, it has what replaces the agent's own."""
        settings = self.profile.general_purpose_subagent or GeneralPurposeSubagentProfile()
        taken = {spec.get("name") for spec in subagents if isinstance(spec, Mapping)}
        if settings.enabled is False or GENERAL_PURPOSE_SUBAGENT["name"] in taken:
            return []
        tail = (*self.profile.materialize_extra_middleware(), *prompt_caching())
        names = {SKILLS, *(each.name for each in (*own, *tail))}
        spec: dict[str, Any] = {
            **GENERAL_PURPOSE_SUBAGENT,
            **settings.to_dict(),
            "skills": self.skills,
            "middleware": [each for each in self.given if each.name in names],
        }
        spec.pop("enabled", None)
        has_prompt = settings.system_prompt is not None
        profile = replace(self.profile, base_system_prompt=None) if has_prompt else self.profile
        return [self._with_profile(spec, own, profile)]

    def _complete_spec(self, spec: Any, own: Sequence[Middleware]) -> Any:
        """A SubAgent with its model constructed, changed as the profile of the model says; anything else as it is."""
        if not isinstance(spec, Mapping) or "runnable" in spec:
            return spec
        if "model" not in spec:
            return self._with_profile(spec, own, self.profile)
        model = resolve_model(spec["model"])
        profile = harness_profile_of(model, spec["model"] if isinstance(spec["model"], str) else None)
        return self._with_profile({**spec, "model": model}, own, profile)

    def _with_profile(self, spec: Mapping[str, Any], own: Sequence[Middleware], profile: HarnessProfile) -> Any:
        inherited = self.rules or rules_of(spec.get("middleware", ())) or self._all_rules
        rules = check_rules(spec.get("permissions", inherited))
        files = resolve_backend(spec.get("backend", self.files))
        if is_forked := "isolation" in spec:
            from deepfs.middleware.staging import StagedBackend

            files = StagedBackend(self.files, self.forks, name=None)
        is_fork = spec.get("mode") == "fork"
        equipment: list[Middleware] = []
        if profile.tool_description_overrides != self.profile.tool_description_overrides:
            equipment = self._equipment(profile, files, rules)
        given = list(self.given) if is_fork else []  # With the rules and the backend of the fork.
        given = [each.with_permissions(rules) if isinstance(each, FilesystemMiddleware) else each for each in given]
        if is_fork and ("backend" in spec or is_forked):
            given = on_backend(files, given, is_fork=True)
        given += check_middleware(spec.get("middleware", ()), rules)
        tail = self._tail(profile, self.skills if is_fork else spec.get("skills"), _apply_rules(files, rules), given)
        memory = self._remembering if is_fork else []
        stack = combine(equipment, given, [*tail, *memory])
        # The agent's own stack shows whether its profile excludes what does not exist.
        remaining = without_excluded(profile, stack, beside=own, checks="model" in spec)
        left_out = [LeftOut(each.name) for each in own if find_exclusions(profile, each)]
        prompt = spec.get("system_prompt") or ""
        others = {key: value for key, value in spec.items() if is_fork or key != "skills"}
        return {
            **others,
            "tools": with_descriptions(spec.get("tools", self.tools), profile),
            "middleware": [*left_out, *remaining],
            "permissions": rules,
            "system_prompt": prompt if is_fork else profile.prompt(prompt),
        }


def _apply_rules(files: BackendProtocol, rules: Sequence[FilesystemPermission]) -> BackendProtocol:
    return PermissionedBackend(files, rules) if rules else files


def _all_tools(tools: Sequence[Any], stack: Sequence[Middleware], subagents: Sequence[Any]) -> list[Any]:
    """The tools of an agent with this middleware, and those that its subagents name."""
    specs: list[Mapping[str, Any]] = [spec for spec in subagents if isinstance(spec, Mapping)]
    given = [*tools, *chain.from_iterable(spec.get("tools") or () for spec in specs)]
    owners = [*stack, *chain.from_iterable(spec.get("middleware") or () for spec in specs)]
    return [*given, *chain.from_iterable(getattr(each, "tools", ()) for each in owners)]


def _in_background(subagents: Sequence[AsyncSubAgent]) -> list[Middleware]:
    if not subagents:
        return []
    from deepfs.middleware.async_subagents import AsyncSubAgentMiddleware

    return [AsyncSubAgentMiddleware(async_subagents=subagents)]


# --- the model -------------------------------------------------------------------------------------------------------


def resolve_model(model: str | BaseChatModel | None) -> BaseChatModel:
    """Return a model; None is the default one, and a string is constructed as the profile of its provider says."""
    if model is not None:
        return construct_model(model)
    try:
        return construct_model(f"anthropic:{DEFAULT_MODEL}")
    except ImportError as error:
        raise ModuleNotFoundError(
            "The default model needs the package langchain-anthropic: pip install langchain-anthropic, or pass a model",
            name="langchain_anthropic",
        ) from error
