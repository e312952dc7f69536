"""A queue that serves groups in rotation: the calls of an event loop, the searches of a storage, a backend's commands.

It is not safe for threads by itself: its owner holds a lock, or uses it on one event loop only.
"""

from collections import deque
from collections.abc import Hashable
from math import inf
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["FairQueue"]


class Grouped(Protocol):
    """An item of a fair queue."""

    @property
    def group(self) -> Hashable:
        """The key of the group that it belongs to."""
        ...


ItemT = TypeVar("ItemT", bound=Grouped)


class FairQueue(Generic[ItemT]):
    """Waiting items in groups, which are served in rotation, one item each.

    At most `most` items of a group are served at a time; its other items wait without holding up the other groups. An
    item that was interrupted comes back by `put_back`: it still counts as served, and is next in its group.
    """

    def __init__(self, most: float = inf) -> None:
        self._most = most
        self._ring: deque[Hashable] = deque()
        """The groups with waiting items, in the order of service."""
        self._waiting: dict[Hashable, deque[ItemT]] = {}
        self._interrupted: dict[Hashable, deque[ItemT]] = {}
        self._served: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        """Whether there is an item that may be served now."""
        return any(map(self._may_serve, self._ring))

    def _may_serve(self, group: Hashable) -> bool:
        return group in self._interrupted or self._served.get(group, 0) < self._most

    def put(self, item: ItemT) -> None:
        """Add a new item, behind those of its group; a group that was empty is served last."""
        self._add(self._waiting, item)

    def put_back(self, item: ItemT) -> None:
        """Add an item that is served, and that `pop` is to return again before new ones of its group."""
        self._add(self._interrupted, item)

    def _add(self, queues: dict[Hashable, deque[ItemT]], item: ItemT) -> None:
        queue = queues.get(item.group)
        if queue is None:
            if item.group not in self._waiting and item.group not in self._interrupted:
                self._ring.append(item.group)
            queue = queues[item.group] = deque()
        queue.append(item)

    def pop(self, most: float = inf) -> ItemT | None:
        """Remove and return the next item, which is served until `ended`; None if none may be served.

        Args:
            most: Return no new item of a group of which as many are served already.
        """
        most = min(most, self._most)
        for _ in range(len(self._ring)):
            group = self._ring[0]
            self._ring.rotate(-1)
            if group in self._interrupted:
                return self._taken(self._interrupted, group)
            served = self._served.get(group, 0)
            if served < most:
                if self._most != inf:
                    self._served[group] = served + 1
                return self._taken(self._waiting, group)
        return None

    def _taken(self, queues: dict[Hashable, deque[ItemT]], group: Hashable) -> ItemT:
        """Take the first item of a group that the rotation has just put last."""
        queue = queues[group]
        item = queue.popleft()
        if not queue:
            del queues[group]
            if group not in self._waiting and group not in self._interrupted:
                self._ring.pop()
        return item

    def remove(self, item: ItemT) -> None:
        """Remove an item that `put_back` added; it is served still. ValueError if it is not there."""
        self._drop(self._interrupted, item)

    def withdraw(self, item: ItemT) -> None:
        """Remove an item that `put` added and that was never served. ValueError if it is not there."""
        self._drop(self._waiting, item)

    def _drop(self, queues: dict[Hashable, Any], item: ItemT) -> None:
        queue = queues.get(item.group, deque())
        queue.remove(item)
        if not queue:
            del queues[item.group]
            if item.group not in self._waiting and item.group not in self._interrupted:
                self._ring.remove(item.group)

    def ended(self, item: ItemT) -> None:
        """Stop counting `item` as served."""
        if self._most != inf:
            left = self._served.pop(item.group) - 1
            if left:
                self._served[item.group] = left
