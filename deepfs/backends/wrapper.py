"""The base of layers: backends that stand before another one, such as policies, hooks and faults."""

from collections.abc import Sequence
from typing import Any

from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    Capabilities,
    SyncCommands,
    as_backend,
    close_each,
    supports_execute,
)
from deepfs.errors import NotSupportedError
from deepfs.operations import Execute, Operation

__all__ = ["WrapperBackend"]


class WrapperBackend(BackendProtocol, SyncCommands):
    """Passes every operation on to another backend, and has its capabilities.

    A subclass overrides `run`, which gets all operations, or some of the named methods.

    Args:
        inner: The backend. One of an older protocol, or a factory, is adapted.

    Raises:
        TypeError: `inner` is no backend.
    """

    is_synchronous: bool = True
    """The class itself never waits; an object is synchronous if its `inner` is, too."""
    _is_layer = True

    def __init__(self, inner: BACKEND_TYPES) -> None:
        self.inner: BackendProtocol = as_backend(inner)
        self.capabilities: Capabilities = self.inner.capabilities
        self.is_synchronous = type(self).is_synchronous and self.inner.is_synchronous

    def inner_backends(self) -> Sequence[object]:
        return (self.inner,)

    def bound_to_this_thread(self) -> bool:
        return self.inner.bound_to_this_thread()

    async def run(self, operation: Operation) -> Any:
        if isinstance(operation, Execute) and not supports_execute(self.inner):
            raise NotSupportedError(None, f"{type(self.inner).__name__} does not run commands")
        return await self.inner.arun(operation)

    async def aclose(self) -> None:
        await close_each([self.inner])
