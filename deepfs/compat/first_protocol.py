"""How classes speak V1, the first protocol: told by what they define."""

import inspect
from collections.abc import Iterator

from deepfs.backends.older_protocols import V1_NAMES, mark_v1, speaks_v1
from deepfs.sync import OPERATIONS

__all__ = [
    "is_v1",
    "own_name",
    "v1_operations",
]


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
