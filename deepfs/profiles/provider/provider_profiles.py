"""Profiles of providers, by the paths that they have in deepagents."""

from deepfs.profiles.registry import ProviderProfile as ProviderProfile
from deepfs.profiles.registry import apply_provider_profile as apply_provider_profile
from deepfs.profiles.registry import get_provider_profile as get_provider_profile
from deepfs.profiles.registry import register_provider_profile as register_provider_profile
