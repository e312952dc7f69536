"""Backend factories, the older way to give a backend its runtime: functions of the runtime that return a backend."""

from typing import Any, cast

from deepfs._deprecated import already_warned, warn_deprecated
from deepfs.backends.adapted import adapt_backend_protocol
from deepfs.backends.protocol import BACKEND_TYPES, AnyBackendProtocol, BackendFactory, BackendProtocol
from deepfs.errors import BackendError, DeepFSError
from deepfs.sync import named

__all__ = ["FactoryBackend", "backend_from"]


def backend_from(given: BACKEND_TYPES) -> BackendProtocol:
    """The backend that is meant by a backend of any protocol, or by a factory, which is deprecated.

    TypeError for anything else.
    """
    if callable(given) and not isinstance(given, type) and not hasattr(given, "read"):
        warn_deprecated("backend factories are deprecated: pass the backend itself, it finds the runtime by itself")
        return FactoryBackend(given)
    return adapt_backend_protocol(cast("AnyBackendProtocol", given))


def _delegated(name: str) -> Any:
    async def call(self: "FactoryBackend", *args: Any, **options: Any) -> Any:
        return await getattr(self.current(), name)(*args, **options)

    return named(call, getattr(BackendProtocol, name), name)


class FactoryBackend(BackendProtocol):
    """The backend that a factory returns for the runtime of the running node, made anew for each operation.

    The factory gets a `BackendContext`, or None outside a graph. Where it fails, or returns no backend, the operation
    fails with `backend_error`, and nothing is read or written. What it would run cannot be told before, so it runs no
    commands.
    """

    def __init__(self, factory: BackendFactory) -> None:
        self._factory = factory

    def current(self) -> BackendProtocol:
        """The backend for the running node."""
        from deepfs.backends.context import current_context

        try:
            with already_warned():
                return adapt_backend_protocol(self._factory(current_context()))
        except DeepFSError:
            raise
        except Exception as error:
            raise BackendError(f"Error: The backend factory failed: {type(error).__name__}: {error}") from error

    als = _delegated("als")
    aread = _delegated("aread")
    aread_raw = _delegated("aread_raw")
    awrite = _delegated("awrite")
    aedit = _delegated("aedit")
    aglob = _delegated("aglob")
    agrep = _delegated("agrep")
    adelete = _delegated("adelete")
    acopy = _delegated("acopy")
    amove = _delegated("amove")
    aupload_files = _delegated("aupload_files")
    adownload_files = _delegated("adownload_files")
