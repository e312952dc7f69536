"""The middleware that shows an agent of LangChain its skills, and copies their files to where commands run."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import get_runtime
from langgraph.types import Command, Overwrite
from typing_extensions import TypedDict

from deepfs.errors import DeepFSError
from deepfs.middleware._base import (
    TRACE_POLICY,
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    OmitFromOutput,
    PrivateStateAttr,
    resolve_backend,
    wait_for,
)
from deepfs.middleware._messages import ToolResult, with_prompt
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skill_files import SkillReader, SkillSource, Source, normal_path, path_and_label, shown_error
from deepfs.middleware.skill_texts import (
    MAX_SKILL_COMPATIBILITY_LENGTH,
    MAX_SKILL_DESCRIPTION_LENGTH,
    MAX_SKILL_FILE_SIZE,
    MAX_SKILL_LOAD_WARNING_LENGTH,
    MAX_SKILL_NAME_LENGTH,
    MAX_SKILLS_LOAD_WARNINGS,
    SkillMetadata,
    bounded,
    checked_template,
    known_skills,
    pinned_text,
    shown_skills,
    shown_warnings,
)
from deepfs.middleware.skill_tools import DISCLOSED, PINNED, SkillToolResolver, SkillTools, disclosed
from deepfs.sandboxes.mirror import MirroredFile, SandboxMirror
from deepfs.sandboxes.reach import command_path, executor_of, reachable_path
from deepfs.storage.gathering import gather
from deepfs.text import paths
from deepfs.text.visible import one_line, shown_path
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
    "skills_of",
]

_log = logging.getLogger("deepfs")

SKILLS_SYSTEM_PROMPT: Final = PROMPTS["skills"]
"""The text of the system prompt, with the places `{skills_locations}`, `{skills_load_warnings}` and `{skills_list}`."""
_READING: Final = frozenset({"read_file", "ls", "glob", "grep"})


def _added(left: list[str] | None, right: list[str] | None) -> list[str]:
    return [name for names in (left, right) for name in names or ()]


class SkillsState(AgentState[Any]):
    """The state of an agent with skills."""

    pinned_skills: NotRequired[Annotated[list[str], OmitFromOutput, _added]]
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


class SkillsMiddleware(AgentMiddleware[Any, Any, Any]):
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

    trace_policy = TRACE_POLICY

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
        self.system_prompt_template: str | None = checked_template(system_prompt)
        self.backend: BackendProtocol = resolve_backend(backend)
        self._tools = SkillTools(tools)
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
        update: dict[str, Any] | None = self._wait_for(partial(self._loaded, state))
        return update

    async def abefore_agent(
        self, state: Any, runtime: Any, config: RunnableConfig | None = None
    ) -> dict[str, Any] | None:
        """As `before_agent`."""
        return await self._loaded(state)

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Add pinned skills to the conversation, and load the skills that the last tool calls may have changed."""
        return self._wait_for(partial(self._before_model, state)) if self._has_work(state) else None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_model`."""
        return await self._before_model(state) if self._has_work(state) else None

    def _has_work(self, state: Any) -> bool:
        return bool(state.get("pinned_skills")) or self._may_have_changed(state)

    def _may_have_changed(self, state: Any) -> bool:
        """Whether a tool call of the last turn names a source, other than to read."""
        turn = next((each for each in reversed(state.get("messages") or ()) if isinstance(each, AIMessage)), None)
        calls = turn.tool_calls if turn is not None else ()
        values = [str(value) for call in calls if call["name"] not in _READING for value in call["args"].values()]
        # Tools and commands take relative paths too.
        sources = [normal_path(source).strip("/") for source in self.sources]
        return any(source in value for source in sources for value in values)

    async def _before_model(self, state: Any) -> dict[str, Any] | None:
        update = dict(await self._loaded(state) or {}) if self._may_have_changed(state) else {}
        if state.get("pinned_skills"):
            update |= await self._pinned({**state, **update})
        return update or None

    async def _loaded(self, state: Any) -> dict[str, Any] | None:
        """The update of the state for what is loaded now; None if the state has it already."""
        before = state.get("skills_metadata")
        loaded = await gather([partial(self._read, source) for source in self.sources])
        skills: dict[str, SkillMetadata] = {}
        warnings: list[str] = []
        for source in loaded:
            if source is not None:
                skills |= {skill["name"]: skill for skill in _skills_of(source, known_skills(state), warnings)}
                warnings += source.warnings
        found, told = list(skills.values()), bounded(warnings)
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
        return source._replace(warnings=[*source.warnings, *await self._copied(self._mirrors[path], source)])

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

    async def _copied(self, mirror: SandboxMirror, source: Source) -> list[str]:
        """Copy what changed; return warnings."""
        files = {
            paths.relative(path, source.path): MirroredFile(digest, is_script)
            for path, (digest, is_script) in source.files.items()
        }
        try:
            return await mirror.update(files, partial(self._contents, source.path))
        except DeepFSError as error:
            return [f"Commands cannot use the files of {one_line(source.path)}: {shown_error(error)}"]

    async def _contents(self, source: str, relative: list[str]) -> dict[str, bytes]:
        responses = await self.backend.adownload_files([paths.join(source, path) for path in relative])
        found = zip(relative, responses, strict=True)
        return {path: response.content for path, response in found if response.content is not None}

    # --- pinned skills ---

    async def _pinned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        known = {skill["name"]: skill for skill in known_skills(state)}
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
            skills_load_warnings=shown_warnings(state.get("skills_load_errors") or ()),
            skills_list=shown_skills(known_skills(state), self.sources),
        )
        return request.override(system_message=with_prompt(request.system_message, section))

    def _locations(self) -> str:
        pairs = zip(self.sources, self.source_labels, strict=True)
        lines = [f"- {one_line(label)}: {shown_path(path)}" for path, label in pairs]
        if len(lines) > 1:
            lines[-1] += " (of equal names, the last source wins)"
        return "\n".join([*lines, *filter(None, map(self._command_note, self.sources))])

    def _command_note(self, path: str) -> str:
        """Where commands find the files of a source, if that is another path."""
        source = normal_path(path)
        found = self._command_paths.get(path, source)
        return "" if found == source else f"- For `execute`, {shown_path(source)} is {shown_path(found)}"

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Append the skills to the system message, and offer the tools of those that were read."""
        request = self.modify_request(request)
        offer = self._tools.offer(request)
        return _recorded(handler(offer.applied(request)), offer.record)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """As `wrap_model_call`."""
        request = self.modify_request(request)
        offer = await self._tools.aoffer(request)
        return _recorded(await handler(offer.applied(request)), offer.record)

    # --- calls of tools of skills ---

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        """Run a tool that only a skill offers; others that are not registered fail as unknown."""
        name = _name_for(request)
        if name is None:
            return handler(request)
        return handler(_with_tool(request, self._tools.called(name, get_runtime())))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """As `wrap_tool_call`."""
        name = _name_for(request)
        if name is None:
            return await handler(request)
        return await handler(_with_tool(request, await self._tools.acalled(name, get_runtime())))

    def _wait_for(self, call: Callable[[], Any]) -> Any:
        return wait_for(self.backend, call, self.name)


def disclosed_skill_tool_names(state: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools that only skills offered in the last request to the model.

    Args:
        state: The state of the agent, as middleware gets it in `request.state`.
    """
    return frozenset(disclosed(state))


def skills_of(
    backend: Any, sources: Sequence[SkillSource] | None, middleware: Iterable[AgentMiddleware[Any, Any, Any]]
) -> list[AgentMiddleware[Any, Any, Any]]:
    """The middleware for `sources`: the one that `middleware` has already, or else a new one; none without sources."""
    given = [each for each in middleware if each.name == SkillsMiddleware.__name__]
    if given or not sources:
        return given[-1:]
    return [SkillsMiddleware(backend=backend, sources=sources)]


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
    text = pinned_text(skill, response.content) if response.content else None
    if text is None:
        _log.info("Skill %s is not pinned: %s cannot be read", skill["name"], skill["path"])
        return None
    told = {key: skill[key] for key in ("name", "path", "description")}
    return HumanMessage(text, additional_kwargs={"lc_source": PINNED, "skill": told})


# --- tools of skills -------------------------------------------------------------------------------------------------


def _recorded(response: Any, record: dict[str, str]) -> Any:
    return ExtendedModelResponse(model_response=response, command=Command(update={DISCLOSED: record}))


def _name_for(request: ToolCallRequest) -> str | None:
    """The name for the resolver of a called tool; None if the agent has the tool, or no request offered it."""
    return None if request.tool is not None else disclosed(request.state).get(request.tool_call["name"])


def _with_tool(request: ToolCallRequest, tools: Iterable[BaseTool]) -> ToolCallRequest:
    """The request with the tool that it calls; as it is, so that it fails as unknown, if the tool is gone."""
    found = {tool.name: tool for tool in tools}.get(request.tool_call["name"])
    if found is None:
        _log.warning("A skill offered the tool %s, which is gone by now", request.tool_call["name"])
    return request if found is None else request.override(tool=found)
