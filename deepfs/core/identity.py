"""Which storage a path lies in, and where: what tells whether two backends, or two paths, mean the same file."""

from collections.abc import Hashable
from contextvars import ContextVar
from enum import Enum

from msgspec import Struct

from deepfs.core import paths

__all__ = ["Relation", "StoragePlace", "flat_place", "is_probing", "relation"]


is_probing: ContextVar[bool] = ContextVar("deepfs_is_probing", default=False)
"""Whether the change under way is of a file made for a moment, of which no version is kept."""


class StoragePlace(Struct, frozen=True):
    """A place of a storage, by names that do not depend on the backend or the path that leads there."""

    keys: frozenset[Hashable]
    """The names of the place itself: one in common is enough for two places to be the same."""
    above: frozenset[Hashable]
    """The names of the directories above it."""
    storage: Hashable = None
    """Places of one storage are told apart by their keys; None where that cannot be relied on."""
    is_sole: bool = False
    """Nothing that names another storage leads here."""


class Relation(Enum):
    """How a destination lies to a source."""

    SAME = "the same place"
    INSIDE = "beneath the source"
    APART = "elsewhere"
    UNKNOWN = "one of the storages does not say where it is"


def flat_place(scope: Hashable, path: str, *, storage: Hashable = None, is_sole: bool = False) -> StoragePlace:
    """The place of a normalised path in a `scope` of its `storage` where paths are the names of things."""
    above = () if path == "/" else ("/", *paths.ancestors(path))
    return StoragePlace(
        keys=frozenset([(scope, path)]),
        above=frozenset((scope, directory) for directory in above),
        storage=storage,
        is_sole=is_sole,
    )


def relation(source: StoragePlace | None, destination: StoragePlace | None) -> Relation:
    """How `destination` lies to `source`; a None tells nothing."""
    if source is None or destination is None:
        return Relation.UNKNOWN
    if source.keys & destination.keys:
        return Relation.SAME
    if source.keys & destination.above:
        return Relation.INSIDE
    in_one = source.storage is not None and source.storage == destination.storage
    return Relation.APART if in_one or (source.is_sole and destination.is_sole) else Relation.UNKNOWN
