"""The middleware that shows an agent of LangChain its skills, and copies their files to where commands run."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NotRequired, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableBinding, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import get_runtime
from langgraph.types import Command, Overwrite
from typing_extensions import TypedDict

from deepfs.errors import DeepFSError
from deepfs.middleware._base import (
    AgentState,
    CallStep,
    ExtendedModelResponse,
    ModelCallSteps,
    ModelRequest,
    OmitFromOutput,
    PrivateStateAttr,
    SkillSource,
    Steps,
    ToolCallSteps,
    is_of,
    resolve_backend,
    step_of_call,
    wait_for,
)
from deepfs.middleware._messages import ToolResult, with_prompt
from deepfs.middleware.prompts import PROMPTS, check_template
from deepfs.middleware.rendering import plain_error
from deepfs.middleware.skill_files import (
    MAX_SKILL_COMPATIBILITY_LENGTH,
    MAX_SKILL_DESCRIPTION_LENGTH,
    MAX_SKILL_FILE_SIZE,
    MAX_SKILL_LOAD_WARNING_LENGTH,
    MAX_SKILL_NAME_LENGTH,
    MAX_SKILLS_LOAD_WARNINGS,
    SkillMetadata,
    SkillReader,
    Source,
    limit_warnings,
    normal_path,
    parse_skills,
    path_and_label,
    render_pinned,
    render_skills,
    render_warnings,
)
from deepfs.sandboxes.mirror import MirroredFile, SandboxMirror, command_path, executor_of, reachable_path
from deepfs.storage.gathering import gather
from deepfs.text import paths
from deepfs.text.visible import display_path, one_line
from deepfs.types import FileDownloadResponse

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = [
    "MAX_SKILLS_LOAD_WARNINGS",
    "MAX_SKILL_COMPATIBILITY_LENGTH",
    "MAX_SKILL_DESCRIPTION_LENGTH",
    "MAX_SKILL_FILE_SIZE",
    "MAX_SKILL_LOAD_WARNING_LENGTH",
    "MAX_SKILL_NAME_LENGTH",
    "SKILLS_SYSTEM_PROMPT",
    "SkillMetadata",
    "SkillSource",
    "SkillToolResolver",
    "SkillsMiddleware",
    "SkillsState",
    "SkillsStateUpdate",
    "disclosed_skill_tool_names",
]


SkillToolResolver: TypeAlias = Callable[[str, Any], Sequence[BaseTool] | Awaitable[Sequence[BaseTool]]]
"""Returns the tools for a name that a skill lists, given the name and the `Runtime` of the graph.

Each request after the skill was read calls it, and so does each call of one of the tools: it should be fast, and give
the same answer for a name. One that is async needs `ainvoke`.
"""

DISCLOSED: Final = "_skill_tools_disclosed"
"""The key of the state with the tools that the last request offered, each with the name that a skill lists."""
PINNED: Final = "pinned_skill"
"""The `lc_source` of the message of a pinned skill."""

_DEFERRED: Final = "defer_loading"
_REFUSED_BY_ANTHROPIC: Final = frozenset({"oneOf", "anyOf", "allOf"})
"""Keys at the root of a schema for which Anthropic refuses the whole request."""


class _SkillTools:
    """The tools that skills name, given as a list of tools and functions, as a resolver, or None."""

    def __init__(self, tools: Any) -> None:
        if callable(tools) and not isinstance(tools, BaseTool):
            self._resolve: SkillToolResolver = tools
            return
        if not isinstance(tools, Sequence | None):
            raise TypeError(f"tools is a list, or a function of a name and the runtime, not {type(tools).__name__}")
        named: dict[str, BaseTool] = {}
        for given in tools or ():
            if not callable(given) and not isinstance(given, BaseTool):
                raise TypeError(f"an item of tools is a tool or a function, not {type(given).__name__}")
            tool: BaseTool = given if isinstance(given, BaseTool) else as_tool(given)
            if named.setdefault(tool.name, tool) is not tool:
                raise ValueError(f"two items of tools have the name {tool.name!r}")
        self._resolve = lambda name, runtime: [named[name]] if name in named else []

    def resolve(self, name: str, runtime: Any) -> Steps[list[BaseTool]]:
        """The tools for a name that a skill lists. A resolver that is async needs the async form of the agent."""
        answer: Any = self._resolve(name, runtime)
        if inspect.isawaitable(answer):
            awaited: Any = answer

            def refuse() -> None:
                if inspect.iscoroutine(awaited):
                    awaited.close()
                raise TypeError(
                    f"the resolver of skill tools is async (asked for {name!r}): run the agent with ainvoke"
                )

            answer = yield CallStep(refuse, lambda: awaited)
        return _tools_in(answer, name)

    def offer(self, request: Any) -> Steps["_Offer"]:
        """The tools of the skills that were read, for a request to the model."""
        wanted = list(_find_wanted(request))
        found: dict[str, list[BaseTool]] = {}
        for name, refusals in _names_to_resolve(wanted, request).items():
            with suppress(*refusals):
                found[name] = yield from self.resolve(name, request.runtime)
        return _offer_of(wanted, request, found)


def _tools_in(answer: Any, name: str) -> list[BaseTool]:
    """What a resolver answered. Of tools with the same name the first one counts."""
    is_list = isinstance(answer, Sequence) and not isinstance(answer, str)
    if not is_list or not all(isinstance(each, BaseTool) for each in answer):
        raise TypeError(f"the resolver of skill tools must return tools for {name!r}, not {answer!r:.200}")
    return list({tool.name: tool for tool in reversed(answer)}.values())[::-1]


# --- what was read ---------------------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """A name that a skill lists which was read."""

    name: str
    read_at: int
    """The index of the message by which the skill was read."""
    is_included: bool
    """Whether it is in `metadata.include_tools`. Others may be those of the whole agent, or of other programs."""


def _find_wanted(request: Any) -> Iterator[_Wanted]:
    """The names of the skills that were read, in the order of reading."""
    listed = {path: _names(each) for each in parse_skills(request.state) if (path := _normal(each["path"]))}
    if any(listed.values()):
        for index, path in _paths_read(request.messages):
            for name, is_included in listed.get(_normal(path), {}).items():
                yield _Wanted(name, index, is_included)


def _names(skill: SkillMetadata) -> dict[str, bool]:
    """The names of tools that a skill lists, and whether each is included. `Bash(git:*)` is the tool `Bash`."""
    metadata: Any = skill.get("metadata")
    allowed: Any = skill.get("allowed_tools")
    included = str(metadata.get("include_tools", "")).split() if isinstance(metadata, dict) else []
    others = [str(each).partition("(")[0] for each in allowed] if isinstance(allowed, list) else []
    return {name: name in included for name in [*included, *others] if name}


def _paths_read(messages: Iterable[AnyMessage]) -> Iterator[tuple[int, Any]]:
    """The paths that were read, each with the index of the message that has the text, or a part of it.

    A result counts also if it was cut later.
    """
    asked: dict[Any, Any] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            # Some models use their ids again, so calls of other tools take theirs away from earlier ones that failed.
            for call in message.tool_calls:
                asked[call["id"]] = call["args"].get("file_path") if call["name"] == "read_file" else None
        elif isinstance(message, ToolMessage) and message.tool_call_id in asked and message.status == "success":
            yield index, asked[message.tool_call_id]
        elif isinstance(message, HumanMessage):
            match message.additional_kwargs:
                case {"lc_source": "pinned_skill", "skill": {"path": path}}:
                    yield index, path


def _normal(path: Any) -> str:
    """The normalised path; an empty text for what is no path."""
    try:
        return paths.normalize(path) if isinstance(path, str) else ""
    except DeepFSError:
        return ""


def _names_to_resolve(wanted: Iterable[_Wanted], request: Any) -> dict[str, list[type[Exception]]]:
    """The names that no tool of the request has, each with the exceptions by which a resolver may refuse it."""
    present = {_name_of(tool) for tool in request.tools}
    included = {each.name for each in wanted if each.is_included}
    names = dict.fromkeys(each.name for each in wanted if each.name not in present)
    return {name: [] if name in included else [LookupError] for name in names}


def _name_of(tool: Any) -> str | None:
    if isinstance(tool, BaseTool):
        return tool.name
    described = tool.get("function")
    named = [tool, *([described] if isinstance(described, dict) else [])]
    return next(filter(None, (each.get("name") for each in named)), None)


# --- what is offered -------------------------------------------------------------------------------------------------


class _FoundTool(NamedTuple):
    tool: BaseTool
    read_at: int
    """The index of the message by which its skill was read."""
    name: str | None
    """The name that the skill lists; None for a deferred tool of the agent."""


class _Offer(NamedTuple):
    """The tools to add to a request."""

    found: Mapping[str, _FoundTool]

    @property
    def record(self) -> dict[str, str]:
        """The tools that only skills offer, each with the name that a skill lists."""
        return {name: each.name for name, each in sorted(self.found.items()) if each.name is not None}

    def apply(self, request: Any) -> Any:
        """The request with the tools: within its messages where the model takes that, else among its tools."""
        if not self.found:
            return request
        build = _inline_builder(request.model)
        if build is not None:
            return request.override(messages=[*self._insert_tools(request.messages, build)])
        own = list(request.tools)
        for place, tool in enumerate(own):
            found = self.found.get(_name_of(tool) or "")
            if found is not None and found.name is None:
                extras = {key: value for key, value in (found.tool.extras or {}).items() if key != _DEFERRED}
                own[place] = found.tool.model_copy(update={"extras": extras})
        return request.override(tools=[*own, *(self.found[name].tool for name in self.record)])

    def _insert_tools(
        self, messages: Sequence[AnyMessage], build: Callable[[BaseTool], dict[str, Any]]
    ) -> Iterator[AnyMessage]:
        """The messages, with the tools of each skill after the turn that read it, at every request the same."""
        places: dict[int, list[str]] = {}
        for name, each in self.found.items():
            places.setdefault(_end_of_turn(messages, each.read_at), []).append(name)
        for index in range(len(messages) + 1):
            if index in places:
                yield SystemMessage(content=[build(self.found[name].tool) for name in sorted(places[index])])
            yield from messages[index : index + 1]


def _offer_of(wanted: Iterable[_Wanted], request: Any, resolved: Mapping[str, Sequence[BaseTool]]) -> _Offer:
    """The tools of the names, each at the first message by which a skill with it was read.

    A tool that the request has already wins over one of a skill, since it is the one that runs; if it is deferred, it
    is offered now.
    """
    present = {_name_of(tool): tool for tool in request.tools}
    found: dict[str, _FoundTool] = {}
    for name, read_at, _ in wanted:
        tools = {tool.name: tool for tool in resolved.get(name, ())}
        for each in [name, *tools]:
            own = present.get(each)
            if own is None and each in tools:
                found.setdefault(each, _FoundTool(tools[each], read_at, name))
            elif isinstance(own, BaseTool) and (own.extras or {}).get(_DEFERRED) is True:
                found.setdefault(each, _FoundTool(own, read_at, None))
    return _Offer({name: each for name, each in found.items() if _is_accepted(each.tool, request.model)})


def read_disclosed(state: Mapping[str, Any]) -> dict[str, str]:
    """The tools that the last request offered, from the state; empty if the state has something else there."""
    record: Any = state.get(DISCLOSED)
    is_known = isinstance(record, dict) and {str}.issuperset(map(type, [*record, *record.values()]))
    return {**record} if is_known else {}


# --- the forms of providers ------------------------------------------------------------------------------------------


def _end_of_turn(messages: Sequence[AnyMessage], index: int) -> int:
    """The index behind the results of the turn with this message, and behind what people said after them.

    Providers refuse a message of the system between the results of one turn, or before a message of a person.
    """
    for place in range(index + 1, len(messages)):
        message = messages[place]
        # Providers drop empty answers.
        is_answer = isinstance(message, AIMessage) and bool(message.content or message.tool_calls)
        if is_answer or isinstance(message, SystemMessage):
            return place
    return len(messages)


def _chat_model(model: Any) -> Any:
    while isinstance(model, RunnableBinding):
        model = model.bound
    return model


def _is_anthropic(model: Any) -> bool:
    return is_of(_chat_model(model), "langchain_anthropic", "ChatAnthropic")


def _inline_builder(model: Any) -> Callable[[BaseTool], dict[str, Any]] | None:
    """How to give the model a tool within its messages, which keeps the cached prefix; None if it takes none there."""
    if not (getattr(_chat_model(model), "profile", None) or {}).get("mid_conversation_tools"):
        return None
    if _is_anthropic(model):
        return _for_anthropic
    return _for_openai if is_of(_chat_model(model), "langchain_openai", "BaseChatOpenAI") else None


def _for_anthropic(tool: BaseTool) -> dict[str, Any]:
    from langchain_anthropic import convert_to_anthropic_tool

    converted = convert_to_anthropic_tool(tool)
    definition = {key: value for key, value in converted.items() if key not in {_DEFERRED, "cache_control"}}
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}


def _for_openai(tool: BaseTool) -> dict[str, Any]:
    function = {key: value for key, value in convert_to_openai_tool(tool)["function"].items() if key != _DEFERRED}
    return {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", **function}]}


def _is_accepted(tool: BaseTool, model: Any) -> bool:
    if not _is_anthropic(model):
        return True
    from langchain_anthropic import convert_to_anthropic_tool

    schema: Any = convert_to_anthropic_tool(tool).get("input_schema")
    refused = _REFUSED_BY_ANTHROPIC.intersection(schema if isinstance(schema, dict) else ())
    if refused:
        _log.warning("Tool %s is not offered: Anthropic takes no %s at the root of a schema", tool.name, min(refused))
    return not refused


_log = logging.getLogger("deepfs")

SKILLS_SYSTEM_PROMPT: Final = PROMPTS["skills"]
"""The text of the system prompt, with the places `{skills_locations}`, `{skills_load_warnings}` and `{skills_list}`."""
_PLACES: Final = ("skills_locations", "skills_load_warnings", "skills_list")
_READING: Final = frozenset({"read_file", "ls", "glob", "grep"})


def _add(left: list[str] | None, right: list[str] | None) -> list[str]:
    return [name for names in (left, right) for name in names or ()]


class SkillsState(AgentState[Any]):
    """The state of an agent with skills."""

    pinned_skills: NotRequired[Annotated[list[str], OmitFromOutput, _add]]
    """Names of skills whose text is added to the conversation before the next request to the model."""
    skills_metadata: NotRequired[Annotated[list[SkillMetadata] | None, OmitFromOutput]]
    """The skills, as they were when the agent was last called."""
    skills_load_errors: NotRequired[Annotated[list[str], PrivateStateAttr]]
    """What is wrong with skills and sources."""
    _skill_tools_disclosed: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]
    """The tools of skills that the last request offered, each with the name that a skill lists."""


class SkillsStateUpdate(TypedDict):
    """What loading skills changes in the state."""

    skills_metadata: list[SkillMetadata]
    skills_load_errors: NotRequired[list[str]]


class SkillsMiddleware(ModelCallSteps, ToolCallSteps):
    """Shows the model the names, descriptions and paths of skills, whose texts it reads with `read_file`.

    A skill is a directory of a source with a `SKILL.md`, in the Agent Skills format. At each call of the agent, and
    after a tool call that names a source, the sources are listed, and what changed is read. Where the backend is a
    composite whose commands do not reach the storage of a source, the files of the source are copied to where they
    run, to the same path beneath the root of that backend. What is wrong with a skill is a warning, which the log and
    the model get; the other skills are not affected.

    Names in the state's `pinned_skills` add the texts of these skills to the conversation.

    Args:
        backend: The backend of the sources; None is a StateBackend.
        sources: The directories, each a path or a pair of path and label. Of two skills with the same name the one of
            the later source counts.
        system_prompt: A text with the places `{skills_locations}`, `{skills_load_warnings}` and `{skills_list}`; None
            shows the model nothing.
        tools: Tools that the model is offered once it has read a skill that names them in `metadata.include_tools` or
            `allowed-tools`: a list, or a function that returns them for a name.
        copy_files: Whether to copy files to where commands run.

    Attributes:
        sources: The paths of the sources.
        source_labels: The label of each source.

    Raises:
        TypeError: For an argument of another type.
        ValueError: If `system_prompt` lacks a place or has others, or two tools have the same name.
    """

    state_schema: type[Any] = SkillsState

    def __init__(
        self,
        *,
        backend: Any = None,
        sources: Sequence[SkillSource],
        system_prompt: str | None = SKILLS_SYSTEM_PROMPT,
        tools: Sequence[BaseTool | Callable[..., Any]] | SkillToolResolver | None = None,
        copy_files: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(sources, str):
            raise TypeError(f"sources is a list of paths, not {sources!r}")
        pairs = [path_and_label(source) for source in sources]
        self.sources: list[str] = [path for path, _ in pairs]
        self.source_labels: list[str] = [label for _, label in pairs]
        self.system_prompt_template: str | None = check_template(system_prompt, _PLACES)
        self.backend: BackendProtocol = resolve_backend(backend)
        self._tools = _SkillTools(tools)
        self._reader = SkillReader(self.backend)
        self._sandbox = sandbox = executor_of(self.backend)
        copied = self.sources if sandbox is not None and copy_files else []
        self._mirrors = {path: SandboxMirror(sandbox, normal_path(path)) for path in copied if sandbox is not None}
        self._reachable: set[str] = set()
        """The sources that commands reach as they are."""
        self._command_paths: dict[str, str] = {}

    # --- loading ---

    def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> dict[str, Any] | None:
        """Load the skills that changed."""
        return wait_for(self.backend, partial(self._load, state), self.name)

    async def abefore_agent(
        self, state: Any, runtime: Any, config: RunnableConfig | None = None
    ) -> dict[str, Any] | None:
        """As `before_agent`."""
        return await self._load(state)

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Add pinned skills to the conversation, and load the skills that the last tool calls may have changed."""
        if not state.get("pinned_skills") and not self._may_have_changed(state):
            return None
        return wait_for(self.backend, partial(self.abefore_model, state, runtime), self.name)

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_model`."""
        update = dict(await self._load(state) or {}) if self._may_have_changed(state) else {}
        if state.get("pinned_skills"):
            update |= await self._pin({**state, **update})
        return update or None

    def _may_have_changed(self, state: Any) -> bool:
        """Whether a tool call of the last turn names a source, other than to read."""
        turn = next((each for each in reversed(state.get("messages") or ()) if isinstance(each, AIMessage)), None)
        calls = turn.tool_calls if turn is not None else ()
        values = [str(value) for call in calls if call["name"] not in _READING for value in call["args"].values()]
        # Tools and commands take relative paths too.
        sources = [normal_path(source).strip("/") for source in self.sources]
        return any(source in value for source in sources for value in values)

    async def _load(self, state: Any) -> dict[str, Any] | None:
        """The update of the state for what is loaded now; None if the state has it already."""
        before = state.get("skills_metadata")
        loaded = await gather([partial(self._read, source) for source in self.sources])
        skills: dict[str, SkillMetadata] = {}
        warnings: list[str] = []
        for source in loaded:
            if source is not None:
                skills |= {skill["name"]: skill for skill in _skills_of(source, parse_skills(state), warnings)}
                warnings += source.warnings
        found, told = list(skills.values()), limit_warnings(warnings)
        if before == found and (state.get("skills_load_errors") or []) == told:
            return None
        if told:
            _log.warning("Skills: %s", "; ".join(told))
        return dict(SkillsStateUpdate(skills_metadata=found, skills_load_errors=told))

    async def _read(self, path: str) -> Source:
        is_copied = await self._is_copied(path)
        source = await self._reader.read(path, with_files=is_copied)
        if not is_copied:
            return source
        if not source.is_whole:
            warning = f"Commands get no changes of {one_line(source.path)} while some of its files cannot be read"
            return source._replace(warnings=[*source.warnings, warning])
        return source._replace(warnings=[*source.warnings, *await self._copy(self._mirrors[path], source)])

    # --- copies for commands ---

    async def _is_copied(self, path: str) -> bool:
        if self._sandbox is None or path in self._reachable:
            return False
        try:
            found = await reachable_path(self.backend, self._sandbox, normal_path(path))
        except DeepFSError:
            return False
        is_copied = found is None and path in self._mirrors
        if found is not None:
            self._reachable.add(path)
        elif is_copied and path not in self._command_paths:
            found = await command_path(self._sandbox, normal_path(path))
        if found is not None:
            self._command_paths[path] = found
        return is_copied

    async def _copy(self, mirror: SandboxMirror, source: Source) -> list[str]:
        """Copy what changed; return warnings."""
        files = {
            paths.relative(path, source.path): MirroredFile(digest, is_script)
            for path, (digest, is_script) in source.files.items()
        }
        try:
            return await mirror.update(files, partial(self._contents, source.path))
        except DeepFSError as error:
            return [f"Commands cannot use the files of {one_line(source.path)}: {one_line(plain_error(error))}"]

    async def _contents(self, source: str, relative: list[str]) -> dict[str, bytes]:
        responses = await self.backend.adownload_files([paths.join(source, path) for path in relative])
        found = zip(relative, responses, strict=True)
        return {path: response.content for path, response in found if response.content is not None}

    # --- pinned skills ---

    async def _pin(self, state: Mapping[str, Any]) -> dict[str, Any]:
        known = {skill["name"]: skill for skill in parse_skills(state)}
        skills = [known[name] for name in dict.fromkeys(state["pinned_skills"]) if name in known]
        places = [skill["path"] for skill in skills]
        responses = await self.backend.adownload_files(places) if places else []
        made = (_pinned_message(*each) for each in zip(skills, responses, strict=True))
        messages = [message for message in made if message is not None]
        return {"pinned_skills": Overwrite([]), **({"messages": messages} if messages else {})}

    # --- requests to the model ---

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request with the skills of its state at the end of the system message."""
        if self.system_prompt_template is None:
            return request
        state: Mapping[str, Any] = request.state
        section = self.system_prompt_template.format(
            skills_locations=self._locations(),
            skills_load_warnings=render_warnings(state.get("skills_load_errors") or ()),
            skills_list=render_skills(parse_skills(state), self.sources),
        )
        return request.override(system_message=with_prompt(request.system_message, section))

    def _locations(self) -> str:
        pairs = zip(self.sources, self.source_labels, strict=True)
        lines = [f"- {one_line(label)}: {display_path(path)}" for path, label in pairs]
        if len(lines) > 1:
            lines[-1] += " (of equal names, the last source wins)"
        for path in self.sources:
            source = normal_path(path)
            found = self._command_paths.get(path, source)
            if found != source:
                lines.append(f"- For `execute`, {display_path(source)} is {display_path(found)}")
        return "\n".join(lines)

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[Any]:
        """Append the skills to the system message, and offer the tools of those that were read."""
        request = self.modify_request(request)
        offer = yield from self._tools.offer(request)
        response = yield step_of_call(handler, offer.apply(request))
        return ExtendedModelResponse(model_response=response, command=Command(update={DISCLOSED: offer.record}))

    # --- calls of tools of skills ---

    def _tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        """Run a tool that only a skill offers; others that are not registered fail as unknown."""
        called = request.tool_call["name"]
        # The agent has the tool, or no request offered it: then it fails as unknown.
        name = None if request.tool is not None else read_disclosed(request.state).get(called)
        if name is not None:
            tools = yield from self._tools.resolve(name, get_runtime())
            found = {tool.name: tool for tool in tools}.get(called)
            if found is None:
                _log.warning("A skill offered the tool %s, which is gone by now", called)
            else:
                request = request.override(tool=found)
        result: ToolResult = yield step_of_call(handler, request)
        return result


def disclosed_skill_tool_names(state: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools that only skills offered in the last request to the model.

    Args:
        state: The state of the agent, as middleware gets it in `request.state`.
    """
    return frozenset(read_disclosed(state))


def _skills_of(source: Source, before: Iterable[SkillMetadata], warnings: list[str]) -> Sequence[SkillMetadata]:
    """The skills of a source; those from before if it cannot be listed now. Later ones of the same name win."""
    if not source.is_listed:
        return [skill for skill in before if skill["path"].startswith(f"{source.path.rstrip('/')}/")]
    first: dict[str, str] = {}
    for skill in source.skills:
        other = first.setdefault(skill["name"], skill["path"])
        if other != skill["path"]:
            warnings.append(f"{one_line(skill['path'])} has the name of {one_line(other)}, which is left out")
    return source.skills


def _pinned_message(skill: SkillMetadata, response: FileDownloadResponse) -> HumanMessage | None:
    text = render_pinned(skill, response.content) if response.content else None
    if text is None:
        _log.info("Skill %s is not pinned: %s cannot be read", skill["name"], skill["path"])
        return None
    told = {key: skill[key] for key in ("name", "path", "description")}
    return HumanMessage(text, additional_kwargs={"lc_source": PINNED, "skill": told})
