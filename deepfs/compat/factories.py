"""Backend factories (deprecated): functions that take the runtime and return a backend."""

from typing import Any, cast

from deepfs._deprecated import already_warned, warn_deprecated
from deepfs._langgraph.private import BackendContext
from deepfs.backends.foreign import Adapters, register
from deepfs.backends.namespace import Choice
from deepfs.backends.protocol import BACKEND_TYPES, AnyBackendProtocol, BackendFactory, BackendProtocol, Capabilities
from deepfs.compat.adapters import AdaptedBackend, adapt_backend_protocol
from deepfs.operations import Operation

__all__ = ["BackendContext", "FactoryBackend", "backend_from"]


def backend_from(meant: BACKEND_TYPES) -> BackendProtocol:
    """Return a backend of deepfs for a backend of any protocol, or for a factory (deprecated).

    Raises TypeError for any other value.
    """
    if callable(meant) and not isinstance(meant, type) and not hasattr(meant, "read"):
        warn_deprecated("backend factories are deprecated: pass the backend itself, it finds the runtime by itself")
        return FactoryBackend(meant)
    return adapt_backend_protocol(cast("AnyBackendProtocol", meant))


class FactoryBackend(BackendProtocol):
    """Passes each operation to a new backend, which a factory makes for the runtime of the running node.

    The factory gets a `BackendContext`, or None outside a graph. If it fails, or returns no backend, the operation
    fails with `backend_error`, and nothing is read or written. Commands are not offered, since only a call of the
    factory shows whether its backend runs them.

    Args:
        factory: The factory. It is called in the task that awaits the operation.
    """

    capabilities: Capabilities = Capabilities(has_links=True)  # It is not known before a call.

    def __init__(self, factory: BackendFactory) -> None:
        self._choice: Choice[BackendProtocol] = Choice("backend", factory, adapt_backend_protocol, is_place=False)
        self._warned: set[str] = set()

    def current(self) -> BackendProtocol:
        """Make the backend for the running node.

        Raises:
            BackendError: If the factory fails, or returns no backend.
        """
        with already_warned(self._warned):
            return self._choice()

    async def run(self, operation: Operation) -> Any:
        return await self.current().arun(operation)


register(Adapters(backend=backend_from, older=AdaptedBackend))
