"""Backend factories (deprecated): functions that take the runtime and return a backend."""

from dataclasses import fields
from typing import Any, cast

from langgraph.runtime import Runtime

from deepfs._deprecated import already_warned, warn_deprecated
from deepfs._langgraph import private as _langgraph
from deepfs.backends.older_protocols import Adapters, register
from deepfs.backends.protocol import BACKEND_TYPES, AnyBackendProtocol, BackendFactory, BackendProtocol, Capabilities
from deepfs.compat.adapters import AdaptedBackend, adapt_backend_protocol
from deepfs.errors import BackendError, DeepFSError
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
        self._factory = factory
        self._warned: set[str] = set()

    def current(self) -> BackendProtocol:
        """Make the backend for the running node.

        Raises:
            BackendError: If the factory fails, or returns no backend.
        """
        try:
            with already_warned(self._warned):
                return adapt_backend_protocol(self._factory(current_context()))
        except DeepFSError:
            raise
        except Exception as error:
            raise BackendError(None, f"The backend factory failed: {type(error).__name__}: {error}") from error

    async def run(self, operation: Operation) -> Any:
        return await self.current().arun(operation)


class BackendContext(Runtime[Any]):
    """A `Runtime` with the attributes that older factories use: `runtime`, `config` and `state`, all deprecated.

    Factories of namespaces and of backends get it, so they may use the `Runtime` or these attributes.

    Args:
        state: The state of the running graph.
        runtime: The runtime of the running node; None is an empty one.
    """

    def __init__(self, state: Any = None, runtime: Runtime[Any] | None = None) -> None:
        wrapped = runtime or Runtime()
        for field in fields(Runtime):
            object.__setattr__(self, field.name, getattr(wrapped, field.name))
        object.__setattr__(self, "_state", state)

    @property
    def runtime(self) -> Runtime[Any]:
        """The runtime itself."""
        warn_deprecated("BackendContext.runtime is deprecated: the factory gets the Runtime itself, without .runtime")
        return self

    @property
    def config(self) -> Any:
        """The config of the running task."""
        warn_deprecated("BackendContext.config is deprecated: use langgraph.config.get_config, or the Runtime")
        return _langgraph.current_config()

    @property
    def state(self) -> Any:
        """The state of the graph, as the running task sees it."""
        warn_deprecated(
            "BackendContext.state is deprecated: state changes from step to step, so what depends on it moves about. "
            "Use the context, the thread or the user of the Runtime."
        )
        state = vars(self)["_state"]
        return _langgraph.current_state() if state is None else state


def current_context() -> BackendContext | None:
    """The argument for a factory in the running node; None outside a graph."""
    runtime = _langgraph.current_runtime()
    return None if runtime is None else BackendContext(runtime=runtime)


register(Adapters(backend=backend_from, older=AdaptedBackend, context=current_context))
