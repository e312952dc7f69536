"""Profiles of harnesses, by the paths that they have in deepagents."""

from deepfs.profiles.registry import register_harness_profile
from deepfs.profiles.settings import GeneralPurposeSubagentProfile, HarnessProfile, HarnessProfileConfig

__all__ = [
    "GeneralPurposeSubagentProfile",
    "HarnessProfile",
    "HarnessProfileConfig",
    "register_harness_profile",
]
