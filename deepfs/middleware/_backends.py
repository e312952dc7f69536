"""The backend that a caller of the middleware means."""

from typing import Any

from deepfs.backends.factories import backend_from
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.state import StateBackend

__all__ = ["resolve_backend"]


def resolve_backend(backend: Any) -> BackendProtocol:
    """The backend that is meant by one of any protocol, by a factory, or by None, which is StateBackend.

    Raises TypeError for what is none of these.
    """
    return StateBackend() if backend is None else backend_from(backend)
