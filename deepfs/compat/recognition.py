"""Recognises V1 classes, and the backends of deepagents that deepfs replaces by its own."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from deepfs.backends.older_protocols import V1_NAMES, mark_v1, speaks_v1
from deepfs.backends.protocol import BackendProtocol
from deepfs.sync import OPERATIONS

__all__ = ["is_v1", "own_instead", "own_name", "v1_operations"]


def is_v1(cls: type) -> bool:
    """Whether `cls` is V1: the first class in its MRO that defines a listing method defines only `ls_info`."""
    for base in cls.__mro__:
        if "ls" in vars(base) or "als" in vars(base):
            return False
        if "ls_info" in vars(base):
            return True
    return False


def own_name(cls: type, operation: str) -> str:
    """The name of an operation in the body of `cls`: the V1 name if the body defines it."""
    v1_name = V1_NAMES.get(operation, operation)
    return v1_name if v1_name in vars(cls) else operation


def v1_operations(cls: type) -> Iterator[str]:
    """Yield the operations that the body of a backend class defines only in V1.

    In a class that is V1 itself, or has a V1 base, all sync methods count as V1.
    """
    whole = is_v1(cls) or any(map(speaks_v1, cls.__bases__))
    for operation in OPERATIONS:
        name = V1_NAMES.get(operation, operation)
        newer = {f"a{operation}", operation} - {name}
        if inspect.isfunction(vars(cls).get(name)) and not newer & vars(cls).keys() and (whole or name != operation):
            yield operation
    if whole:
        mark_v1(cls)


def own_instead(backend: Any, adapt: Callable[[Any], BackendProtocol]) -> BackendProtocol | None:
    """Return deepfs's own backend in place of a StateBackend or CompositeBackend of deepagents, otherwise None.

    Both StateBackends use the same channel, but only deepfs merges what parallel tools write. The exact class is
    compared by name, without an import of deepagents: subclasses may behave differently. `adapt` converts the backends
    that a composite mounts.
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
