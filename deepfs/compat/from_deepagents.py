"""A backend of deepagents behind the protocol of deepfs; importing this imports deepagents."""

from typing import Any

from deepagents.backends import protocol as peer

from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol
from deepfs.compat.adapters import AdaptedBackend, Call, adapt_backend_protocol, awaitable, caller_of
from deepfs.compat.recognition import own_instead
from deepfs.threads.loop_bridge import on_asyncio

__all__ = ["DeepagentsBackend", "DeepagentsSandbox", "from_deepagents"]

_BASES = (peer.BackendProtocol, peer.SandboxBackendProtocol)


class DeepagentsBackend(AdaptedBackend):
    """A backend of deepagents as one of deepfs."""

    def _call(self, operation: str) -> Call | None:
        name = f"a{operation}"
        kind = type(self.adapted)
        method = getattr(kind, operation, None)
        if method is None or (operation == "delete" and method is peer.BackendProtocol.delete):
            return None
        # What the base class has is the sync method, in a thread that nothing can stop.
        is_native = getattr(kind, name, None) not in [getattr(base, name, None) for base in _BASES]
        if is_native and on_asyncio():
            return caller_of(self.adapted, name)
        return awaitable(getattr(self.adapted, operation))


class DeepagentsSandbox(DeepagentsBackend, SandboxBackendProtocol):
    """A sandbox of deepagents as one of deepfs."""

    @property
    def id(self) -> str:
        return str(self.adapted.id)


def from_deepagents(backend: object) -> BackendProtocol:
    """`backend` as one of deepfs."""
    own = own_instead(backend, _mounted)
    if own is not None:
        return own
    if isinstance(backend, peer.SandboxBackendProtocol):
        return DeepagentsSandbox(backend)
    if isinstance(backend, peer.BackendProtocol):
        return DeepagentsBackend(backend)
    raise TypeError(f"{type(backend).__name__} is no backend of deepagents")


def _mounted(backend: Any) -> BackendProtocol:
    return from_deepagents(backend) if isinstance(backend, peer.BackendProtocol) else adapt_backend_protocol(backend)
