"""How subagents are described: the keys of their specifications, and what is checked of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NotRequired, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from typing_extensions import TypedDict

from deepfs.middleware._base import AgentMiddleware
from deepfs.middleware.asked_calls import InterruptOn
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skills import SkillSource
from deepfs.policy.rules import FilesystemPermission

__all__ = [
    "DEFAULT_GENERAL_PURPOSE_DESCRIPTION",
    "DEFAULT_SUBAGENT_PROMPT",
    "GENERAL_PURPOSE_SUBAGENT",
    "CompiledSubAgent",
    "Middleware",
    "SubAgent",
    "Tools",
    "checked",
    "mappings",
]

Tools: TypeAlias = Sequence[BaseTool | Callable[..., Any] | dict[str, Any]]
Middleware: TypeAlias = AgentMiddleware[Any, Any, Any]


class SubAgent(TypedDict):
    """A subagent to build. The defaults of the middleware apply to keys that are left out."""

    name: str
    description: str
    """The supervisor chooses a subagent by its description."""
    system_prompt: NotRequired[str]
    """With the mode `"fork"` it follows the supervisor's prompt."""
    tools: NotRequired[Tools]
    model: NotRequired[str | BaseChatModel]
    middleware: NotRequired[Sequence[Middleware]]
    """Comes after the default middleware."""
    interrupt_on: NotRequired[InterruptOn]
    skills: NotRequired[Sequence[SkillSource]]
    """Directories of its skills. A fork has those of the supervisor instead."""
    permissions: NotRequired[Sequence[FilesystemPermission]]
    """Rules about files that replace the default ones."""
    backend: NotRequired[Any]
    """A backend for its files in place of the supervisor's."""
    response_format: NotRequired[Any]
    """The form of its answer, as `create_agent` takes it; the supervisor gets the answer as JSON."""
    mode: NotRequired[Literal["isolated", "fork", "async"]]
    """`"isolated"` (the default) knows its task only; `"fork"` continues the supervisor's conversation. `"async"` runs
    in the background by the tools of `AsyncSubAgentMiddleware`, and is for `create_deep_agent`."""


class CompiledSubAgent(TypedDict):
    """A subagent that is already built: any runnable over a state with `messages`."""

    name: str
    description: str
    runnable: Runnable[Any, Any]
    mode: NotRequired[Literal["isolated", "fork", "async"]]
    """As in `SubAgent`; the prompt of a fork is that of the runnable."""


DEFAULT_SUBAGENT_PROMPT: Final = PROMPTS["general_purpose"]
DEFAULT_GENERAL_PURPOSE_DESCRIPTION: Final = PROMPTS["general_purpose_description"]
GENERAL_PURPOSE_SUBAGENT: Final = SubAgent(
    name="general-purpose", description=DEFAULT_GENERAL_PURPOSE_DESCRIPTION, system_prompt=DEFAULT_SUBAGENT_PROMPT
)
"""The subagent that is added if there is none of its name."""


# --- checks ----------------------------------------------------------------------------------------------------------


def mappings(given: Iterable[SubAgent | CompiledSubAgent]) -> Sequence[SubAgent | CompiledSubAgent]:
    """Return the specifications in a list. Raises TypeError if one is not a mapping."""
    specs = list(given)
    for each in specs:
        if not isinstance(each, Mapping):
            raise TypeError(f"subagents is a list of SubAgent and CompiledSubAgent, and {each!r} is none")
    return specs


def checked(specs: Sequence[SubAgent | CompiledSubAgent]) -> Sequence[SubAgent | CompiledSubAgent]:
    """Return the specifications. Raises ValueError if there are none, or for one that cannot be used."""
    if not specs:
        raise ValueError("SubAgentMiddleware needs at least one subagent")
    names: set[str] = set()
    for spec in specs:
        fault = _keys_fault(spec) or _mode_fault(spec)
        if fault:
            raise ValueError(f"subagent {spec.get('name', '')!r} {fault}")
        if spec["name"] in names:
            raise ValueError(f"two subagents have the name {spec['name']!r}")
        names.add(spec["name"])
    return specs


def _keys_fault(spec: SubAgent | CompiledSubAgent) -> str:
    kind = CompiledSubAgent if "runnable" in spec else SubAgent
    missing, unknown = kind.__required_keys__ - spec.keys(), spec.keys() - kind.__annotations__.keys()
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    return f"has keys that are not known: {', '.join(sorted(unknown))}" if unknown else ""


def _mode_fault(spec: Mapping[str, Any]) -> str:
    match spec.get("mode"):
        case None | "isolated":
            return ""
        case "fork":
            return "is a fork, which has the skills of its supervisor: omit skills" if spec.get("skills") else ""
        case "async":
            return "is async: give it to create_deep_agent, or use as_async"
    return f"has the mode {spec['mode']!r}, and not isolated, fork or async"
