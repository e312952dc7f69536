"""The backend that a caller of the middleware means."""

from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.state import StateBackend

__all__ = ["resolve_backend"]


def resolve_backend(backend: object) -> BackendProtocol:
    """`backend`, or StateBackend for None. Raises TypeError for what is no backend."""
    if backend is None:
        return StateBackend()
    if isinstance(backend, BackendProtocol):
        return backend
    raise TypeError(f"backend must be a BackendProtocol, not {type(backend).__name__}")
