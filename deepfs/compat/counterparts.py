"""Backends of deepagents in whose place deepfs has its own."""

from collections.abc import Callable
from typing import Any

from deepfs.backends.protocol import BackendProtocol

__all__ = ["own_instead"]


def own_instead(backend: Any, adapt: Callable[[Any], BackendProtocol]) -> BackendProtocol | None:
    """The backend of deepfs that does what one of deepagents does; None where there is none.

    Files in state are in the same channel, where only deepfs merges what parallel tools write. It is told by the very
    class, without an import of deepagents: a subclass does something else. `adapt` takes in what a composite mounts.
    """
    match f"{type(backend).__module__}.{type(backend).__qualname__}":
        case "deepagents.backends.state.StateBackend":
            from deepfs.backends.state import StateBackend

            return StateBackend()
        case "deepagents.backends.composite.CompositeBackend":
            from deepfs.backends.composite import CompositeBackend

            routes = {route: adapt(mounted) for route, mounted in backend.routes.items()}
            return CompositeBackend(adapt(backend.default), routes, artifacts_root=backend.artifacts_root)
    return None
