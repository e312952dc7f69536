"""Tools that a model is offered once it has read the skill that names them.

A skill names tools in `metadata.include_tools`, or in `allowed-tools`. What was read follows from the messages of each
request: the tool results of `read_file`, and the messages of pinned skills. So a skill that a summary removed from the
conversation offers its tools when it is read again.
"""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from deepfs.errors import DeepFSError
from deepfs.middleware.skill_texts import SkillMetadata, known_skills
from deepfs.text import paths

__all__ = ["DISCLOSED", "PINNED", "SKILL_STATE_KEYS", "Offer", "SkillToolResolver", "SkillTools", "disclosed"]

_log = logging.getLogger("deepfs")

SkillToolResolver: TypeAlias = Callable[[str, Any], Sequence[BaseTool] | Awaitable[Sequence[BaseTool]]]
"""Returns the tools for a name that a skill lists, given the name and the `Runtime` of the graph.

Each request after the skill was read calls it, and so does each call of one of the tools: it should be fast, and give
the same answer for a name. One that is async needs `ainvoke`.
"""

DISCLOSED: Final = "_skill_tools_disclosed"
"""The key of the state with the tools that the last request offered, each with the name that a skill lists."""
PINNED: Final = "pinned_skill"
"""The `lc_source` of the message of a pinned skill."""
SKILL_STATE_KEYS: Final = frozenset({"pinned_skills", "skills_load_errors", "skills_metadata", DISCLOSED})
"""The keys of the state that an agent and its subagents do not share."""

_DEFERRED: Final = "defer_loading"
_REFUSED_BY_ANTHROPIC: Final = frozenset({"oneOf", "anyOf", "allOf"})
"""Keys at the root of a schema for which Anthropic refuses the whole request."""


class SkillTools:
    """The tools that skills name.

    Args:
        tools: A list of tools and functions, a resolver, or None.

    Raises:
        TypeError: For a single tool, and for an item that is neither a tool nor a function.
        ValueError: If two tools have the same name.
    """

    def __init__(self, tools: Any) -> None:
        self._resolve = _checked_resolver(tools) if not isinstance(tools, Sequence | None) else _by_name(tools or ())

    def called(self, name: str, runtime: Any) -> list[BaseTool]:
        """The tools for a name.

        Args:
            name: A name that a skill lists.
            runtime: The `Runtime` of the graph.

        Raises:
            TypeError: If the resolver needs an event loop, or its answer is anything but tools.
        """
        answer: Any = self._resolve(name, runtime)
        if not inspect.isawaitable(answer):
            return _tools_in(answer, name)
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"the resolver of skill tools is async (asked for {name!r}): run the agent with ainvoke")

    async def acalled(self, name: str, runtime: Any) -> list[BaseTool]:
        """As `called`, for a resolver that may be async.

        Args:
            name: A name that a skill lists.
            runtime: The `Runtime` of the graph.

        Raises:
            TypeError: If its answer is anything but tools.
        """
        answer: Any = self._resolve(name, runtime)
        return _tools_in(await answer if inspect.isawaitable(answer) else answer, name)

    def offer(self, request: Any) -> "Offer":
        """The tools of the skills that were read.

        Args:
            request: The request to the model.
        """
        wanted = list(_wanted(request))
        found: dict[str, list[BaseTool]] = {}
        for name, refusals in _names_to_resolve(wanted, request).items():
            with suppress(*refusals):
                found[name] = self.called(name, request.runtime)
        return _offer_of(wanted, request, found)

    async def aoffer(self, request: Any) -> "Offer":
        """As `offer`, for a resolver that may be async.

        Args:
            request: The request to the model.
        """
        wanted = list(_wanted(request))
        found: dict[str, list[BaseTool]] = {}
        for name, refusals in _names_to_resolve(wanted, request).items():
            with suppress(*refusals):
                found[name] = await self.acalled(name, request.runtime)
        return _offer_of(wanted, request, found)


def _by_name(tools: Iterable[Any]) -> SkillToolResolver:
    named: dict[str, BaseTool] = {}
    for tool in map(_made_tool, tools):
        if named.setdefault(tool.name, tool) is not tool:
            raise ValueError(f"two items of tools have the name {tool.name!r}")
    return lambda name, runtime: [tool for tool in [named.get(name)] if tool is not None]


def _checked_resolver(given: Any) -> SkillToolResolver:
    if callable(given) and not isinstance(given, BaseTool):
        resolver: SkillToolResolver = given
        return resolver
    raise TypeError(f"tools is a list, or a function of a name and the runtime, not {type(given).__name__}")


def _made_tool(given: Any) -> BaseTool:
    if isinstance(given, BaseTool):
        return given
    if callable(given) and not isinstance(given, dict | str):
        made: BaseTool = as_tool(given)
        return made
    raise TypeError(f"an item of tools is a tool or a function, not {type(given).__name__}")


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


def _wanted(request: Any) -> Iterator[_Wanted]:
    """The names of the skills that were read, in the order of reading."""
    listed = {path: _names(each) for each in known_skills(request.state) if (path := _normal(each["path"]))}
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
            asked |= {each["id"]: _path_to_read(each) for each in message.tool_calls}
        elif isinstance(message, ToolMessage) and message.tool_call_id in asked and message.status == "success":
            yield index, asked[message.tool_call_id]
        elif isinstance(message, HumanMessage):
            yield index, _pinned_path(message.additional_kwargs)


def _pinned_path(marks: Mapping[str, Any]) -> Any:
    skill: Any = marks.get("skill")
    return skill.get("path") if marks.get("lc_source") == PINNED and isinstance(skill, dict) else None


def _path_to_read(call: Mapping[str, Any]) -> Any:
    return call["args"].get("file_path") if call["name"] == "read_file" else None


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


class _Found(NamedTuple):
    tool: BaseTool
    read_at: int
    """The index of the message by which its skill was read."""
    name: str | None
    """The name that the skill lists; None for a deferred tool of the agent."""


class Offer(NamedTuple):
    """The tools to add to a request."""

    found: Mapping[str, _Found]

    @property
    def record(self) -> dict[str, str]:
        """The tools that only skills offer, each with the name that a skill lists."""
        return {name: each.name for name, each in sorted(self.found.items()) if each.name is not None}

    def applied(self, request: Any) -> Any:
        """Return the request with the tools: within its messages where the model takes that, else among its tools.

        Args:
            request: The request to the model, which stays as it is.
        """
        if not self.found:
            return request
        build = _inline_builder(request.model)
        if build is not None:
            return request.override(messages=[*self._inserted(request.messages, build)])
        replaced = {each.tool.name: _undeferred(each.tool) for each in self.found.values() if each.name is None}
        own = [replaced.get(_name_of(tool) or "", tool) for tool in request.tools]
        return request.override(tools=[*own, *(self.found[name].tool for name in self.record)])

    def _inserted(
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


def _offer_of(wanted: Iterable[_Wanted], request: Any, resolved: Mapping[str, Sequence[BaseTool]]) -> Offer:
    """The tools of the names, each at the first message by which a skill with it was read.

    A tool that the request has already wins over one of a skill, since it is the one that runs; if it is deferred, it
    is offered now.
    """
    present = {_name_of(tool): tool for tool in request.tools}
    found: dict[str, _Found] = {}
    for name, read_at, _ in wanted:
        tools = {tool.name: tool for tool in resolved.get(name, ())}
        for each in [name, *tools]:
            own = present.get(each)
            if own is None and each in tools:
                found.setdefault(each, _Found(tools[each], read_at, name))
            elif isinstance(own, BaseTool) and (own.extras or {}).get(_DEFERRED) is True:
                found.setdefault(each, _Found(own, read_at, None))
    return Offer({name: each for name, each in found.items() if _is_accepted(each.tool, request.model)})


def _undeferred(tool: BaseTool) -> BaseTool:
    extras = dict(tool.extras or {})
    extras.pop(_DEFERRED, None)
    return tool.model_copy(update={"extras": extras})


def disclosed(state: Mapping[str, Any]) -> dict[str, str]:
    """The tools that the last request offered, from the state; empty if the state has something else there."""
    record: Any = state.get(DISCLOSED)
    is_known = isinstance(record, dict) and {str}.issuperset(map(type, [*record, *record.values()]))
    return {**record} if is_known else {}


# --- the forms of providers ------------------------------------------------------------------------------------------


def _end_of_turn(messages: Sequence[AnyMessage], index: int) -> int:
    """The index behind the results of the turn with this message, and behind what people said after them.

    Providers refuse a message of the system between the results of one turn, or before a message of a person.
    """
    answers = (place for place in range(index + 1, len(messages)) if _is_answer(messages[place]))
    return next(answers, len(messages))


def _is_answer(message: AnyMessage) -> bool:
    """Whether a message is one of the model that providers keep: they drop those that are empty."""
    is_kept = isinstance(message, AIMessage) and bool(message.content or message.tool_calls)
    return is_kept or isinstance(message, SystemMessage)


def _chat_model(model: Any) -> Any:
    while isinstance(model, RunnableBinding):
        model = model.bound
    return model


def _is_of(model: Any, module: str, name: str) -> bool:
    """Whether a model is of a class of a package; if the package is not loaded, it is not."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(_chat_model(model), kind)


def _is_anthropic(model: Any) -> bool:
    return _is_of(model, "langchain_anthropic.chat_models", "ChatAnthropic")


def _inline_builder(model: Any) -> Callable[[BaseTool], dict[str, Any]] | None:
    """How to give the model a tool within its messages, which keeps the cached prefix; None if it takes none there."""
    if not (getattr(_chat_model(model), "profile", None) or {}).get("mid_conversation_tools"):
        return None
    if _is_anthropic(model):
        return _for_anthropic
    return _for_openai if _is_of(model, "langchain_openai.chat_models.base", "BaseChatOpenAI") else None


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
