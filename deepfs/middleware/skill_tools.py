"""Tools that a model is offered once it has read the skill that names them.

A skill names tools in `metadata.include_tools`, or in `allowed-tools`. What was read follows from the messages of each
request: the tool results of `read_file`, and the messages of pinned skills. So a skill that a summary removed from the
conversation offers its tools when it is read again.
"""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from deepfs.errors import DeepFSError
from deepfs.middleware.skill_files import SkillMetadata
from deepfs.text import paths

__all__ = [
    "DISCLOSED",
    "PINNED",
    "SKILL_STATE_KEYS",
    "Offer",
    "Reading",
    "SkillToolResolver",
    "acalled",
    "called",
    "disclosed",
    "offer_of",
    "resolver_of",
    "wanted_names",
]

_log = logging.getLogger("deepfs")

SkillToolResolver: TypeAlias = Callable[[str, Any], Sequence[BaseTool] | Awaitable[Sequence[BaseTool]]]
"""Returns the tools for a name that a skill lists, given the name and the `Runtime` of the graph.

It is called for every request to the model after the skill was read, and again before one of its tools runs, so it
should be fast, and its answer for a name should not change. One that is async needs `ainvoke`.
"""

DISCLOSED: Final = "_skill_tools_disclosed"
"""The key of the state with the tools that the last request offered, each with the name that a skill lists."""
PINNED: Final = "pinned_skill"
"""The `lc_source` of the message of a pinned skill."""
SKILL_STATE_KEYS: Final = frozenset({"pinned_skills", "skills_load_errors", "skills_metadata", DISCLOSED})
"""The keys of the state that an agent and its subagents do not share."""

_INCLUDED: Final = "include_tools"
_DEFERRED: Final = "defer_loading"
_REFUSED_BY_ANTHROPIC: Final = ("oneOf", "anyOf", "allOf")
"""Keys at the root of a schema for which Anthropic refuses the whole request."""


# --- resolving -------------------------------------------------------------------------------------------------------


def resolver_of(tools: Any) -> SkillToolResolver:
    """Return the resolver for the argument `tools`: a list of tools and functions, a resolver, or None.

    Raises:
        TypeError: For a single tool, and for an item that is neither a tool nor a function.
        ValueError: If two tools have the same name.
    """
    if not isinstance(tools, Sequence | None):
        return _checked_resolver(tools)
    by_name: dict[str, BaseTool] = {}
    for tool in map(_made_tool, tools or ()):
        if by_name.setdefault(tool.name, tool) is not tool:
            raise ValueError(f"two items of tools have the name {tool.name!r}")
    return lambda name, runtime: [by_name[name]] if name in by_name else []


def _checked_resolver(given: Any) -> SkillToolResolver:
    if callable(given) and not isinstance(given, BaseTool):
        resolver: SkillToolResolver = given
        return resolver
    raise TypeError(f"tools is a list of tools or a resolver, not {type(given).__name__}")


def _made_tool(given: Any) -> BaseTool:
    if isinstance(given, BaseTool):
        return given
    if callable(given) and not isinstance(given, dict | str):
        made: BaseTool = as_tool(given)
        return made
    raise TypeError(f"an item of tools is a tool or a function, not {type(given).__name__}")


def called(resolver: SkillToolResolver, name: str, runtime: Any) -> list[BaseTool]:
    """The tools that a sync resolver returns.

    Raises:
        TypeError: If it is async, or returns anything but tools.
    """
    result = resolver(name, runtime)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"the resolver of skill tools is async (asked for {name!r}): run the agent with ainvoke")
    return _checked(name, result)


async def acalled(resolver: SkillToolResolver, name: str, runtime: Any) -> list[BaseTool]:
    """The tools that a resolver returns.

    Raises:
        TypeError: If it returns anything but tools.
    """
    result = resolver(name, runtime)
    return _checked(name, await result if inspect.isawaitable(result) else result)


def _checked(name: str, result: object) -> list[BaseTool]:
    given = result if isinstance(result, Sequence) and not isinstance(result, str) else [None]
    tools: dict[str, BaseTool] = {}
    for tool in given:
        if not isinstance(tool, BaseTool):
            raise TypeError(f"the resolver of skill tools must return tools for {name!r}, not {result!r:.200}")
        tools.setdefault(tool.name, tool)
    return list(tools.values())


# --- what was read ---------------------------------------------------------------------------------------------------

Reading: TypeAlias = tuple[int, SkillMetadata]
"""The index of the message by which a skill was read, and the skill."""


def readings(messages: Sequence[AnyMessage], skills: Iterable[SkillMetadata]) -> list[Reading]:
    """The readings of skills that name tools. A part of the file counts, and so does a result that was cut later."""
    by_path = {_normal(skill["path"]): skill for skill in skills if _names(skill)}
    if not by_path:
        return []
    asked = {
        call["id"]: call["args"].get("file_path")
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
        if call["name"] == "read_file"
    }
    read = ((index, _normal(_path_read(message, asked))) for index, message in enumerate(messages))
    return [(index, by_path[path]) for index, path in read if path is not None and path in by_path]


def _path_read(message: AnyMessage, asked: Mapping[str | None, Any]) -> Any:
    if isinstance(message, ToolMessage):
        return asked.get(message.tool_call_id) if message.status != "error" else None
    if isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") == PINNED:
        skill = message.additional_kwargs.get("skill")
        return skill.get("path") if isinstance(skill, dict) else None
    return None


def _normal(path: Any) -> str | None:
    try:
        return paths.normalize(path) if isinstance(path, str) else None
    except DeepFSError:
        return None


def _names(skill: SkillMetadata) -> list[str]:
    """The names of tools that a skill lists. `Bash(git:*)` is the tool `Bash`."""
    included = str((skill.get("metadata") or {}).get(_INCLUDED, "")).split()
    allowed = (name.partition("(")[0] for name in skill.get("allowed_tools") or ())
    return list(dict.fromkeys([*included, *filter(None, allowed)]))


def wanted_names(
    messages: Sequence[AnyMessage], skills: Iterable[SkillMetadata], offered: Iterable[Any]
) -> tuple[list[Reading], dict[str, bool]]:
    """The readings, and the names to ask the resolver for: those that are not offered anyway.

    The value of a name says whether a skill lists it in `metadata.include_tools`. Resolvers may fail for other names,
    which tools of the whole agent or of other programs have.
    """
    read = readings(messages, skills)
    present = {_name_of(tool) for tool in offered}
    names: dict[str, bool] = {}
    for _, skill in read:
        included = str((skill.get("metadata") or {}).get(_INCLUDED, "")).split()
        for name in _names(skill):
            if name not in present:
                names[name] = names.get(name, False) or name in included
    return read, names


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
        own = [self._undeferred(tool) for tool in request.tools]
        return request.override(tools=[*own, *(self.found[name].tool for name in self.record)])

    def _undeferred(self, tool: Any) -> Any:
        found = self.found.get(_name_of(tool) or "")
        if found is None or found.name is not None or found.tool is not tool:
            return tool
        extras = {key: value for key, value in (tool.extras or {}).items() if key != _DEFERRED}
        return tool.model_copy(update={"extras": extras})

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


def offer_of(read: Sequence[Reading], request: Any, resolved: Mapping[str, Sequence[BaseTool]]) -> Offer:
    """The tools of the skills that were read, each at the first message by which one was.

    A tool that the request has already wins over one of a skill, since it is the one that runs; if it is deferred, it
    is offered now.
    """
    present = {_name_of(tool): tool for tool in request.tools}
    found: dict[str, _Found] = {}
    for index, skill in read:
        for name in _names(skill):
            for tool in [present[name]] if name in present else resolved.get(name, ()):
                if isinstance(tool, BaseTool) and tool.name not in found:
                    found |= _classified(tool, present.get(tool.name), index, name)
    return Offer({name: each for name, each in found.items() if _is_accepted(each.tool, request.model)})


def _classified(tool: BaseTool, own: Any, index: int, name: str) -> dict[str, _Found]:
    if own is None:
        return {tool.name: _Found(tool, index, name)}
    if isinstance(own, BaseTool) and (own.extras or {}).get(_DEFERRED) is True:
        return {tool.name: _Found(own, index, None)}
    return {}


def disclosed(state: Mapping[str, Any]) -> dict[str, str]:
    """The tools that the last request offered, from the state; empty if the state has something else there."""
    record: Any = state.get(DISCLOSED)
    if not isinstance(record, dict) or not all(isinstance(each, str) for item in record.items() for each in item):
        return {}
    return dict(record)


# --- the forms of providers ------------------------------------------------------------------------------------------


def _end_of_turn(messages: Sequence[AnyMessage], index: int) -> int:
    """The index behind the results of the turn with this message, and behind what people said after them.

    Providers refuse a message of the system between the results of one turn, or before a message of a person.
    """
    index += 1
    while index < len(messages) and _continues(messages[index]):
        index += 1
    return index


def _continues(message: AnyMessage) -> bool:
    is_empty = isinstance(message, AIMessage) and not message.content and not message.tool_calls
    return isinstance(message, ToolMessage | HumanMessage) or is_empty


def _chat_model(model: Any) -> Any:
    return model.bound if isinstance(model, RunnableBinding) else model


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
    refused = [key for key in _REFUSED_BY_ANTHROPIC if isinstance(schema, dict) and key in schema]
    if refused:
        _log.warning("Tool %s is not offered: Anthropic takes no %s at the root of a schema", tool.name, refused[0])
    return not refused
