"""The settings that a profile holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

if TYPE_CHECKING:
    from langchain.agents.middleware.types import AgentMiddleware

    Middleware: TypeAlias = AgentMiddleware[Any, Any, Any]

__all__ = [
    "REQUIRED_MIDDLEWARE",
    "GeneralPurposeSubagentProfile",
    "HarnessProfile",
    "HarnessProfileConfig",
    "ProviderProfile",
]

REQUIRED_MIDDLEWARE: Final = frozenset({"FilesystemMiddleware", "SubAgentMiddleware"})
"""Middleware that no profile can exclude: it enforces permissions and runs subagents."""


# --- profiles of the harness -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneralPurposeSubagentProfile:
    """Changes of the subagent `general-purpose` that `create_deep_agent` adds. None leaves a setting as it is."""

    enabled: bool | None = None
    """False adds no such subagent. Without any other subagent, there is then no tool `task`."""
    description: str | None = None
    system_prompt: str | None = None
    """Takes precedence over the `base_system_prompt` of the profile."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a profile from a mapping.

        Args:
            data: The settings by name.

        Raises:
            TypeError: For an unknown key or a value of another type.
        """
        _check_keys(cls, data)
        for name, kind in (("enabled", bool), ("description", str), ("system_prompt", str)):
            _check_type(name, data.get(name), kind)
        return cls(**data)


@dataclass(frozen=True)
class HarnessProfileConfig:
    """The part of a HarnessProfile that a JSON or YAML file can hold.

    Raises:
        TypeError: If an entry of `excluded_middleware` is not a string.
        ValueError: If an entry of it is not a name of middleware, or of middleware that is required.
    """

    base_system_prompt: str | None = None
    system_prompt_suffix: str | None = None
    tool_description_overrides: Mapping[str, str] = field(default_factory=dict)
    excluded_tools: frozenset[str] = frozenset()
    excluded_middleware: frozenset[str] = frozenset()
    general_purpose_subagent: GeneralPurposeSubagentProfile | None = None

    def __post_init__(self) -> None:
        _freeze(self, "tool_description_overrides")
        for entry in self.excluded_middleware:
            if not isinstance(entry, str):
                raise TypeError(f"excluded_middleware holds names, not {entry!r}")
        _check_excluded(self.excluded_middleware)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as values for JSON or YAML.

        Raises TypeError if `tool_description_overrides` holds anything but strings.
        """
        prompts = {"base_system_prompt": self.base_system_prompt, "system_prompt_suffix": self.system_prompt_suffix}
        lists = {"excluded_tools": self.excluded_tools, "excluded_middleware": self.excluded_middleware}
        overrides = _strings_by_name(self.tool_description_overrides)
        subagent = self.general_purpose_subagent
        return {
            **{name: text for name, text in prompts.items() if text is not None},
            **({"tool_description_overrides": overrides} if overrides else {}),
            **{name: sorted(names) for name, names in lists.items() if names},
            **({} if subagent is None else {"general_purpose_subagent": subagent.to_dict()}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a profile from a mapping.

        Args:
            data: The settings by name, as `to_dict` returns them.

        Raises:
            TypeError: For an unknown key or a value of another type.
            ValueError: As the constructor does.
        """
        _check_keys(cls, data)
        for name in ("base_system_prompt", "system_prompt_suffix"):
            _check_type(name, data.get(name), str)
        subagent = data.get("general_purpose_subagent")
        _check_type("general_purpose_subagent", subagent, Mapping)
        return cls(
            base_system_prompt=data.get("base_system_prompt"),
            system_prompt_suffix=data.get("system_prompt_suffix"),
            tool_description_overrides=_strings_by_name(data.get("tool_description_overrides")),
            excluded_tools=_names("excluded_tools", data.get("excluded_tools")),
            excluded_middleware=_names("excluded_middleware", data.get("excluded_middleware")),
            general_purpose_subagent=None if subagent is None else GeneralPurposeSubagentProfile.from_dict(subagent),
        )

    def to_harness_profile(self) -> "HarnessProfile":
        """Return a HarnessProfile with the same settings."""
        return HarnessProfile(**{each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def from_harness_profile(cls, profile: "HarnessProfile") -> Self:
        """Create a config from a HarnessProfile.

        Args:
            profile: The profile.

        Raises:
            TypeError: If `tool_description_overrides` holds anything but strings.
            ValueError: If the profile has `extra_middleware`, or excludes a class that has no `serialized_name`.
        """
        if profile.extra_middleware:
            raise ValueError("extra_middleware cannot be exported: keep it in a HarnessProfile")
        settings = {each.name: getattr(profile, each.name) for each in fields(cls)}
        settings["tool_description_overrides"] = _strings_by_name(profile.tool_description_overrides)
        settings["excluded_middleware"] = frozenset(map(_serialized, profile.excluded_middleware))
        return cls(**settings)


@dataclass(frozen=True)
class HarnessProfile:
    """How `create_deep_agent` sets up agents with a model.

    It holds for the agent itself, for the subagent `general-purpose`, and for each SubAgent by the model that this one
    has; not for a CompiledSubAgent or an AsyncSubAgent.

    Raises:
        ValueError: If an entry of `excluded_middleware` is not a name of middleware, or of middleware that is required.
    """

    base_system_prompt: str | None = None
    """Follows the agent's `system_prompt`; replaces that of a subagent."""
    system_prompt_suffix: str | None = None
    """The end of the system prompt of the agent and of its subagents."""
    tool_description_overrides: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name of the tool: the file tools, `task`, `write_todos`, and tools given as BaseTool or dict.

    `{available_agents}` in that of `task` becomes the list of subagents.
    """
    excluded_tools: frozenset[str] = frozenset()
    """Tools that the model is not offered and cannot call. This adapts to a model; it is not a permission."""
    excluded_middleware: "frozenset[type[Middleware] | str]" = frozenset()
    """Middleware to leave out: classes, without their subclasses, and names. Each must match at least once."""
    extra_middleware: "Sequence[Middleware] | Callable[[], Sequence[Middleware]]" = ()
    """Further middleware, or a function that makes it anew for each agent and subagent."""
    general_purpose_subagent: GeneralPurposeSubagentProfile | None = None

    def __post_init__(self) -> None:
        _freeze(self, "tool_description_overrides")
        if not callable(self.extra_middleware):
            object.__setattr__(self, "extra_middleware", tuple(self.extra_middleware))
        _check_excluded(self.excluded_middleware)

    def materialize_extra_middleware(self) -> "list[Middleware]":
        """Return the `extra_middleware` as a new list."""
        extra = self.extra_middleware
        return list(extra() if callable(extra) else extra)

    def prompt(self, text: str) -> str:
        """Return a system prompt with the base prompt and the suffix of the profile.

        Args:
            text: The prompt that the base prompt, if any, replaces.
        """
        base = text if self.base_system_prompt is None else self.base_system_prompt
        return "\n\n".join(part for part in (base, self.system_prompt_suffix) if part)


def _freeze(profile: object, name: str) -> None:
    object.__setattr__(profile, name, MappingProxyType(dict(getattr(profile, name))))


def _check_excluded(entries: "frozenset[type[Middleware] | str]") -> None:
    for entry in entries:
        if isinstance(entry, str) and (not entry.strip() or ":" in entry or entry.startswith("_")):
            raise ValueError(f"excluded_middleware: {entry!r} is not the public name of a middleware")
    required = sorted({entry if isinstance(entry, str) else entry.__name__ for entry in entries} & REQUIRED_MIDDLEWARE)
    if required:
        raise ValueError(
            f"excluded_middleware: {', '.join(required)} is required and cannot be excluded. Use excluded_tools to "
            "hide its tools, or GeneralPurposeSubagentProfile(enabled=False) for an agent without subagents."
        )


def _serialized(entry: "type[Middleware] | str") -> str:
    name = entry if isinstance(entry, str) else getattr(entry, "serialized_name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"excluded_middleware: {entry!r} has no serialized_name. Exclude it by its name.")
    return name


def _check_keys(profile: type[Any], data: Mapping[str, Any]) -> None:
    unknown = sorted(data.keys() - {each.name for each in fields(profile)})
    if unknown:
        raise TypeError(f"Unknown keys of {profile.__name__}: {', '.join(unknown)}")


def _check_type(name: str, value: object, kind: type[Any]) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is of type {kind.__name__} or None, not {type(value).__name__}")


def _strings_by_name(value: object) -> dict[str, str]:
    _check_type("tool_description_overrides", value, Mapping)
    given = dict(cast("Mapping[str, str]", value or {}))
    if not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise TypeError("tool_description_overrides holds strings by name of the tool")
    return given


def _names(setting: str, value: object) -> frozenset[str]:
    given = () if value is None else value
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"{setting} is a list of names, not {value!r}")
    return frozenset(given)


# --- profiles of providers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProviderProfile:
    """How `create_deep_agent` constructs a model from a string. A model that is given as an object stays as it is."""

    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `init_chat_model`."""
    pre_init: Callable[[str], None] | None = None
    """Called with the string before the model is constructed. An exception stops that."""
    init_kwargs_factory: Callable[[], dict[str, Any]] | None = None
    """Makes further arguments for each model; they take precedence over `init_kwargs`."""

    def __post_init__(self) -> None:
        _freeze(self, "init_kwargs")
