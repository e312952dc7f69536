"""Profiles of providers, by the paths that they have in deepagents."""

from deepfs.profiles.provider.provider_profiles import (
    ProviderProfile,
    apply_provider_profile,
    get_provider_profile,
    register_provider_profile,
)

__all__ = [
    "ProviderProfile",
    "apply_provider_profile",
    "get_provider_profile",
    "register_provider_profile",
]
