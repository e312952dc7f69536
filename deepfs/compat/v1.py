"""The first protocol: what its backends define, and how they become backends of deepfs."""

from deepfs.backends._v1 import BackendProtocolV1, SandboxBackendProtocolV1
from deepfs.backends.adapted import adapt_backend_protocol, adapt_sandbox_protocol

__all__ = ["BackendProtocolV1", "SandboxBackendProtocolV1", "adapt_backend_protocol", "adapt_sandbox_protocol"]
