"""Profiles of harnesses, by the paths that they have in deepagents."""

from deepfs.profiles.harness.harness_profiles import GeneralPurposeSubagentProfile as GeneralPurposeSubagentProfile
from deepfs.profiles.harness.harness_profiles import HarnessProfile as HarnessProfile
from deepfs.profiles.harness.harness_profiles import HarnessProfileConfig as HarnessProfileConfig
from deepfs.profiles.harness.harness_profiles import register_harness_profile as register_harness_profile
