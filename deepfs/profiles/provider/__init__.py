"""Profiles of providers, by the paths that they have in deepagents."""

from deepfs.profiles.provider.provider_profiles import ProviderProfile as ProviderProfile
from deepfs.profiles.provider.provider_profiles import apply_provider_profile as apply_provider_profile
from deepfs.profiles.provider.provider_profiles import get_provider_profile as get_provider_profile
from deepfs.profiles.provider.provider_profiles import register_provider_profile as register_provider_profile
