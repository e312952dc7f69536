"""The backends that another stands before."""

from typing import Any

from deepfs.backends.composite import CompositeBackend

__all__ = ["behind"]


def behind(backend: object) -> list[Any]:
    """Those that a composite mounts, or the one that a wrapper or an adapter passes calls to, of whatever protocol."""
    if isinstance(backend, CompositeBackend):
        return [backend.default, *backend.routes.values()]
    inner = getattr(backend, "inner", None) or getattr(backend, "adapted", None)
    return [] if inner is None else [inner]
