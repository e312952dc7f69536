"""The directories of a store namespace, remembered between operations.

A store finds items by namespace alone, so whether a path is a directory takes a listing of everything. This process
lists once, then follows its own changes; a directory that another process made meanwhile is not known here until the
next listing.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from deepfs.backends.namespace import Namespace
from deepfs.core.filemap import Change, Directories

__all__ = ["StoreIndex", "index_of"]

_MAX_NAMESPACES = 1024
"""Namespaces remembered for one storage; the one that was first seen longest ago is forgotten first."""


class StoreIndex:
    """What is known of one namespace. `directories` is None before the first listing."""

    def __init__(self) -> None:
        self.directories: Directories | None = None
        self._changes = 0

    def listing_starts(self) -> int:
        """A mark to hand to `listed` with what the listing found."""
        return self._changes

    def listed(self, mark: int, directories: Directories) -> None:
        """Take a listing over, unless changes that it may lack came meanwhile."""
        if self._changes == mark:
            self.directories = directories

    def changed(self, changes: Iterable[Change]) -> None:
        """Follow changes of this process."""
        self._changes += 1
        if self.directories is not None:
            self.directories.apply(changes)

    def forget(self) -> None:
        """A change may have happened, or another process made one: what is known, and being listed, is not trusted."""
        self._changes += 1
        self.directories = None


_indexes: WeakKeyDictionary[Any, dict[Namespace, StoreIndex]] = WeakKeyDictionary()


def index_of(storage: object, namespace: Namespace) -> StoreIndex:
    """The index that all backends over `storage`, a store or a database, and `namespace` share."""
    indexes = _indexes.setdefault(storage, {})
    if namespace not in indexes and len(indexes) >= _MAX_NAMESPACES:
        indexes.pop(next(iter(indexes)))
    return indexes.setdefault(namespace, StoreIndex())
