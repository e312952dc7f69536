"""Profiles of harnesses, by the paths that they have in deepagents."""

from deepfs.profiles.registry import GeneralPurposeSubagentProfile as GeneralPurposeSubagentProfile
from deepfs.profiles.registry import HarnessProfile as HarnessProfile
from deepfs.profiles.registry import HarnessProfileConfig as HarnessProfileConfig
from deepfs.profiles.registry import register_harness_profile as register_harness_profile
