"""The backend that a caller of the middleware means."""

from typing import Any

from deepfs.backends._behind import behind
from deepfs.backends.factories import backend_from
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.state import StateBackend
from deepfs.core import paths

__all__ = ["artifacts_root", "resolve_backend"]


def resolve_backend(backend: Any) -> BackendProtocol:
    """The backend that is meant by one of any protocol, by a factory, or by None, which is StateBackend.

    Raises TypeError for what is none of these.
    """
    return StateBackend() if backend is None else backend_from(backend)


def artifacts_root(backend: object) -> str:
    """Where middleware puts what it offloads: where the composite that `backend` is, or stands before, has it."""
    own = getattr(backend, "artifacts_root", None)
    if own is not None:
        return paths.normalize(own)
    return next(map(artifacts_root, behind(backend)), "/")
