"""The runtime as older factories know it."""

from dataclasses import fields
from typing import Any

from langgraph.runtime import Runtime

from deepfs._deprecated import warn_deprecated
from deepfs.backends import _langgraph

__all__ = ["BackendContext"]


class BackendContext(Runtime[Any]):
    """A `Runtime` that has also what older factories ask for: `runtime`, `config` and `state`, all deprecated.

    Factories of namespaces and of backends get it, so they may be written for either.
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
        """The state of the graph, as the running task reads it."""
        warn_deprecated(
            "BackendContext.state is deprecated: state changes from step to step, so what depends on it moves about. "
            "Use the context, the thread or the user of the Runtime."
        )
        state = vars(self)["_state"]
        return _langgraph.current_state() if state is None else state


def current_context() -> BackendContext | None:
    """What a factory gets for the running node; None outside a graph."""
    runtime = _langgraph.current_runtime()
    return None if runtime is None else BackendContext(runtime=runtime)
