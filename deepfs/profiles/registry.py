"""The profiles: their settings, those that are registered, and how that of a model is found.

Installed packages may register profiles: the entry points in the groups `deepfs.provider_profiles` and
`deepfs.harness_profiles` are called without arguments.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias, TypeVar, cast

from msgspec import ValidationError, convert

from deepfs.threads.forks import ForkSafeLock

if TYPE_CHECKING:
    from langchain.agents.middleware.types import AgentMiddleware

    Middleware: TypeAlias = AgentMiddleware[Any, Any, Any]

__all__ = [
    "GeneralPurposeSubagentProfile",
    "HarnessProfile",
    "HarnessProfileConfig",
    "ProviderProfile",
    "apply_provider_profile",
    "get_provider_profile",
    "register_harness_profile",
    "register_provider_profile",
]

_log = logging.getLogger(__name__)

T = TypeVar("T")

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
        return _from_dict(cls, data)


@dataclass(frozen=True)
class HarnessProfileConfig:
    """The part of a HarnessProfile that a JSON or YAML file can hold.

    Raises:
        TypeError: If `tool_description_overrides` or `excluded_middleware` holds anything but strings.
        ValueError: If an entry of the latter is not a name of middleware, or of middleware that is required.
    """

    base_system_prompt: str | None = None
    system_prompt_suffix: str | None = None
    tool_description_overrides: Mapping[str, str] = field(default_factory=dict)
    excluded_tools: frozenset[str] = frozenset()
    excluded_middleware: frozenset[str] = frozenset()
    general_purpose_subagent: GeneralPurposeSubagentProfile | None = None

    def __post_init__(self) -> None:
        _freeze(self, "tool_description_overrides")
        overrides: Mapping[Any, Any] = self.tool_description_overrides
        excluded: frozenset[Any] = self.excluded_middleware
        for name, texts in (
            ("tool_description_overrides", [*overrides, *overrides.values()]),
            ("excluded_middleware", excluded),
        ):
            if other := [each for each in texts if not isinstance(each, str)]:
                raise TypeError(f"{name} holds strings, not {other[0]!r}")
        _check_excluded(self.excluded_middleware)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as values for JSON or YAML."""
        subagent = self.general_purpose_subagent
        settings = {
            "base_system_prompt": self.base_system_prompt,
            "system_prompt_suffix": self.system_prompt_suffix,
            "tool_description_overrides": dict(self.tool_description_overrides) or None,
            "excluded_tools": sorted(self.excluded_tools) or None,
            "excluded_middleware": sorted(self.excluded_middleware) or None,
            "general_purpose_subagent": None if subagent is None else subagent.to_dict(),
        }
        return {name: value for name, value in settings.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a profile from a mapping.

        Args:
            data: The settings by name, as `to_dict` returns them.

        Raises:
            TypeError: For an unknown key or a value of another type.
            ValueError: As the constructor does.
        """
        subagent = data.get("general_purpose_subagent")
        if isinstance(subagent, Mapping):
            data = {**data, "general_purpose_subagent": GeneralPurposeSubagentProfile.from_dict(subagent)}
        return _from_dict(cls, data)

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
        settings["excluded_middleware"] = frozenset(map(_serialized_name, profile.excluded_middleware))
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


def _serialized_name(entry: "type[Middleware] | str") -> str:
    name = entry if isinstance(entry, str) else getattr(entry, "serialized_name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"excluded_middleware: {entry!r} has no serialized_name. Exclude it by its name.")
    return name


def _from_dict(kind: type[T], data: Mapping[str, Any]) -> T:
    """A profile of settings by name, of which None stands for the default. Raises TypeError, and what `kind` raises."""
    unknown = sorted(data.keys() - {each.name for each in fields(cast("Any", kind))})
    if unknown:
        raise TypeError(f"Unknown keys of {kind.__name__}: {', '.join(unknown)}")
    try:
        return convert({name: value for name, value in data.items() if value is not None}, kind)
    except ValidationError as error:
        raise error.__cause__ or TypeError(f"{kind.__name__}: {error}") from None


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


# --- the registered profiles -----------------------------------------------------------------------------------------

_loading = ForkSafeLock()
_loaded: list[bool] = []


class _Registry(Generic[T]):
    """Profiles by key. `merge` puts the second of two profiles over the first."""

    def __init__(self, merge: Callable[[T, T], T], built_in: Mapping[str, T]) -> None:
        self._merge = merge
        self._profiles = dict(built_in)

    def register(self, key: str, profile: T) -> None:
        """Add a profile, over the one that the key has."""
        provider, colon, model = key.partition(":")
        if not provider or (colon and not model) or any(part != part.strip() for part in (provider, model)):
            raise ValueError(f"A profile has the key 'provider' or 'provider:model', not {key!r}")
        load_plugins()
        with _loading:
            self._profiles[key] = self._merge(self._profiles[key], profile) if key in self._profiles else profile

    def __contains__(self, key: str) -> bool:
        load_plugins()
        return key in self._profiles

    def get(self, key: str) -> T | None:
        """Return the profile of a provider or a model; that of a model inherits from that of its provider."""
        load_plugins()
        provider, colon, model = key.partition(":")
        if colon and not (provider and model):
            return None
        found = [self._profiles[each] for each in dict.fromkeys([provider, key]) if each in self._profiles]
        return self._merge(found[0], found[1]) if len(found) > 1 else next(iter(found), None)


def load_plugins() -> None:
    """Call the entry points of installed packages; only the first call does."""
    with _loading:
        if _loaded:
            return
        _loaded.append(True)  # First, since the entry points register profiles.
        installed = entry_points()  # All of them, since it looks through every package each time.
        for group in ("deepfs.provider_profiles", "deepfs.harness_profiles"):
            for entry in installed.select(group=group):
                try:
                    entry.load()()
                except Exception:  # A broken package must not break every agent.
                    _log.exception("The entry point %s of %s failed; its profiles are missing", entry.name, group)


def _merge_harness(base: HarnessProfile, over: HarnessProfile) -> HarnessProfile:
    subagent = base.general_purpose_subagent or GeneralPurposeSubagentProfile()
    own = over.general_purpose_subagent or GeneralPurposeSubagentProfile()
    both = GeneralPurposeSubagentProfile(**{**subagent.to_dict(), **own.to_dict()})
    return HarnessProfile(
        base_system_prompt=base.base_system_prompt if over.base_system_prompt is None else over.base_system_prompt,
        system_prompt_suffix=base.system_prompt_suffix
        if over.system_prompt_suffix is None
        else over.system_prompt_suffix,
        tool_description_overrides={**base.tool_description_overrides, **over.tool_description_overrides},
        excluded_tools=base.excluded_tools | over.excluded_tools,
        excluded_middleware=base.excluded_middleware | over.excluded_middleware,
        extra_middleware=_merge_middleware(base, over),
        general_purpose_subagent=both if base.general_purpose_subagent or over.general_purpose_subagent else None,
    )


def _merge_middleware(base: HarnessProfile, over: HarnessProfile) -> "Sequence[Middleware] | Callable[[], Any]":
    """Return the middleware of both; of one class, the instance of `over` at the place of the first of `base`."""
    if not base.extra_middleware or not over.extra_middleware:
        return over.extra_middleware or base.extra_middleware
    profiles = (base, over)
    return lambda: list({type(each): each for one in profiles for each in one.materialize_extra_middleware()}.values())


def _merge_provider(base: ProviderProfile, over: ProviderProfile) -> ProviderProfile:
    checks = [each for each in (base.pre_init, over.pre_init) if each]
    factories = [each for each in (base.init_kwargs_factory, over.init_kwargs_factory) if each]

    def check(spec: str) -> None:
        for each in checks:
            each(spec)

    def make() -> dict[str, Any]:
        return {name: value for factory in factories for name, value in factory().items()}

    return ProviderProfile(
        {**base.init_kwargs, **over.init_kwargs}, check if checks else None, make if factories else None
    )


_HARNESS: Final[_Registry[HarnessProfile]] = _Registry(_merge_harness, {})
_PROVIDERS: Final[_Registry[ProviderProfile]] = _Registry(
    _merge_provider,
    {
        "openai": ProviderProfile({"use_responses_api": True}),
        # Azure cannot look up the reasoning items of earlier turns that OpenRouter passes on.
        "openrouter": ProviderProfile({"openrouter_provider": {"ignore": ["azure"]}}),
    },
)


def register_harness_profile(key: str, profile: HarnessProfile | HarnessProfileConfig) -> None:
    """Register a profile for agents that are created afterwards.

    It is put over the one that the key has: prompts and the settings of the subagent replace those that were given,
    descriptions do by name and middleware by class, and exclusions add up.

    Args:
        key: A provider, `"openai"`, or a model, `"openai:gpt-5"`.
        profile: The profile, or its declarative form.

    Raises:
        ValueError: If the key has another form.
    """
    _HARNESS.register(key, profile.to_harness_profile() if isinstance(profile, HarnessProfileConfig) else profile)


def register_provider_profile(key: str, profile: ProviderProfile) -> None:
    """Register a profile for models that are constructed afterwards.

    It is put over the one that the key has: arguments replace others by name, and all functions are called in order.

    Args:
        key: A provider, `"openai"`, or a model, `"openai:gpt-5"`.
        profile: The profile.

    Raises:
        ValueError: If the key has another form.
    """
    _PROVIDERS.register(key, profile)


def get_provider_profile(spec: str) -> ProviderProfile | None:
    """Return the profile of a model, merged with that of its provider; None if neither is registered."""
    return _PROVIDERS.get(spec)


def apply_provider_profile(
    spec: str, kwargs: Mapping[str, Any] | None = None, *, run_pre_init: bool = True
) -> dict[str, Any]:
    """Return the arguments for `init_chat_model(spec, **arguments)`.

    Args:
        spec: The model as `"provider:model"`.
        kwargs: Arguments that take precedence over those of the profile.
        run_pre_init: Whether to call the profile's `pre_init`.
    """
    profile = get_provider_profile(spec) or ProviderProfile()
    if run_pre_init and profile.pre_init:
        profile.pre_init(spec)
    made = profile.init_kwargs_factory() if profile.init_kwargs_factory else {}
    return {**profile.init_kwargs, **made, **(kwargs or {})}


def harness_profile_of(model: Any, spec: str | None = None) -> HarnessProfile:
    """Return the profile for agents with a model, or an empty one.

    Args:
        model: The chat model. It is looked up by the provider and the name that it reports.
        spec: The string that it was constructed from; None if it was given as an object.
    """
    keys = [spec] if spec is not None else [key for key in _model_keys(model) if ":" not in key or key in _HARNESS]
    found = next(filter(None, map(_HARNESS.get, keys)), None)
    return found or HarnessProfile()


def _model_keys(model: Any) -> Iterator[str]:
    """Yield the keys of a model object: its provider and name, its name if that has a provider, and the provider."""
    name = next((each for attr in ("model_name", "model") if _is_text(each := getattr(model, attr, None))), None)
    provider = _provider(model)
    if provider and name:
        yield f"{provider}:{name}"
    if name and ":" in name:
        yield name
    if provider:
        yield provider
    elif name and ":" in name:
        yield name.partition(":")[0]


def _provider(model: Any) -> str | None:
    try:
        reported = model._get_ls_params().get("ls_provider")
    except (AttributeError, NotImplementedError, TypeError) as error:
        _log.info("No provider is known of %s: %r", type(model).__name__, error)
        return None
    return reported if _is_text(reported) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
