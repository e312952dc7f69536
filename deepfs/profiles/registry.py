"""The registered profiles, and how that of a model is found.

Installed packages may register profiles: the entry points in the groups `deepfs.provider_profiles` and
`deepfs.harness_profiles` are called without arguments.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from deepfs.profiles.settings import (
    GeneralPurposeSubagentProfile,
    HarnessProfile,
    HarnessProfileConfig,
    ProviderProfile,
)
from deepfs.threads.forks import ForkSafeLock

if TYPE_CHECKING:
    from deepfs.profiles.settings import Middleware

__all__ = [
    "apply_provider_profile",
    "get_provider_profile",
    "harness_profile_of",
    "load_plugins",
    "register_harness_profile",
    "register_provider_profile",
]

_log = logging.getLogger(__name__)

P = TypeVar("P")
_loading = ForkSafeLock()
_loaded: list[bool] = []


class _Registry(Generic[P]):
    """Profiles by key. `merge` puts the second of two profiles over the first."""

    def __init__(self, merge: Callable[[P, P], P], built_in: Mapping[str, P]) -> None:
        self._merge = merge
        self._profiles = dict(built_in)

    def register(self, key: str, profile: P) -> None:
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

    def get(self, key: str) -> P | None:
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
        for group in ("deepfs.provider_profiles", "deepfs.harness_profiles"):
            for entry in entry_points(group=group):
                try:
                    entry.load()()
                except Exception:  # A broken package must not break every agent.
                    _log.exception("The entry point %s of %s failed; its profiles are missing", entry.name, group)


def _merged_harness(base: HarnessProfile, over: HarnessProfile) -> HarnessProfile:
    subagent = base.general_purpose_subagent or GeneralPurposeSubagentProfile()
    own = over.general_purpose_subagent or GeneralPurposeSubagentProfile()
    both = GeneralPurposeSubagentProfile(**{**subagent.to_dict(), **own.to_dict()})
    return HarnessProfile(
        base_system_prompt=_first(over.base_system_prompt, base.base_system_prompt),
        system_prompt_suffix=_first(over.system_prompt_suffix, base.system_prompt_suffix),
        tool_description_overrides={**base.tool_description_overrides, **over.tool_description_overrides},
        excluded_tools=base.excluded_tools | over.excluded_tools,
        excluded_middleware=base.excluded_middleware | over.excluded_middleware,
        extra_middleware=_merged_middleware(base, over),
        general_purpose_subagent=both if base.general_purpose_subagent or over.general_purpose_subagent else None,
    )


def _first(own: str | None, inherited: str | None) -> str | None:
    return inherited if own is None else own


def _merged_middleware(base: HarnessProfile, over: HarnessProfile) -> "Sequence[Middleware] | Callable[[], Any]":
    """Return the middleware of both; of one class, the instance of `over` at the place of the first of `base`."""
    if not base.extra_middleware or not over.extra_middleware:
        return over.extra_middleware or base.extra_middleware
    profiles = (base, over)
    return lambda: list({type(each): each for one in profiles for each in one.materialize_extra_middleware()}.values())


def _merged_provider(base: ProviderProfile, over: ProviderProfile) -> ProviderProfile:
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


_HARNESS: Final[_Registry[HarnessProfile]] = _Registry(_merged_harness, {})
_PROVIDERS: Final[_Registry[ProviderProfile]] = _Registry(
    _merged_provider,
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
    keys = [spec] if spec is not None else [key for key in _reported(model) if ":" not in key or key in _HARNESS]
    found = next(filter(None, map(_HARNESS.get, keys)), None)
    return found or HarnessProfile()


def _reported(model: Any) -> Iterator[str]:
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
