"""Which older backends are met: classes that speak V1, and those of deepagents in whose place deepfs has its own."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from deepfs.backends.older_protocols import V1_NAMES, mark_v1, speaks_v1
from deepfs.backends.protocol import BackendProtocol
from deepfs.sync import OPERATIONS

__all__ = ["is_v1", "own_instead", "own_name", "v1_operations"]


def is_v1(cls: type) -> bool:
    """Whether `cls` speaks V1: of its classes, the most derived that lists directories does it by `ls_info` alone."""
    for base in cls.__mro__:
        if "ls" in vars(base) or "als" in vars(base):
            return False
        if "ls_info" in vars(base):
            return True
    return False


def own_name(cls: type, operation: str) -> str:
    """How the body of `cls` spells an operation."""
    v1_name = V1_NAMES.get(operation, operation)
    return v1_name if v1_name in vars(cls) else operation


def v1_operations(cls: type) -> Iterator[str]:
    """The operations that the body of a backend class defines in V1, and in no other way.

    A class whose bases are V1 defines its sync methods in V1 as well.
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
    """The backend of deepfs that does what one of deepagents does; None where there is none.

    Files in state are in the same channel, where only deepfs merges what parallel tools write. It is told by the very
    class, without an import of deepagents: a subclass does something else. `adapt` takes in what a composite mounts.
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
