"""Settings per model: how `create_deep_agent` constructs it (providers), and how an agent with it is set up (harness).

A profile is registered for a provider (`"openai"`) or for one model (`"openai:gpt-5"`), whose profile then inherits
from that of the provider. Only the first colon of a key counts.
"""

from deepfs.profiles.harness import (
    GeneralPurposeSubagentProfile,
    HarnessProfile,
    HarnessProfileConfig,
    register_harness_profile,
)
from deepfs.profiles.provider import (
    ProviderProfile,
    apply_provider_profile,
    get_provider_profile,
    register_provider_profile,
)

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
