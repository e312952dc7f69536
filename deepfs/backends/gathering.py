"""Work on many items: calls at once, files fetched ahead of the need for them, batches of a limited size."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio

from deepfs.errors import DeepFSError
from deepfs.sync import is_inline

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Prefetch", "batched", "gather", "gather_each"]

T = TypeVar("T")
ItemT = TypeVar("ItemT")

_AT_ONCE: Final = 100
"""The most requests of one operation that are sent at once, unless the storage says otherwise."""
_AHEAD_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of files that a search fetches before it needs them."""


async def gather(
    calls: Sequence[Callable[[], Awaitable[T]]],
    enough: Callable[[Sequence[T | None]], bool] = lambda _: False,
) -> list[T | None]:
    """The results of `calls`, run concurrently; None for calls that were stopped once `enough(results)` was true.

    An error stops the other calls, and is raised as it is.
    """
    results: list[T | None] = [None] * len(calls)
    if is_inline() or len(calls) == 1:
        for index, call in enumerate(calls):
            results[index] = await call()
            if enough(results):
                break
        return results

    errors: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def one(index: int, call: Callable[[], Awaitable[T]]) -> None:
            try:
                results[index] = await call()
            except Exception as error:
                errors.append(error)
            if errors or enough(results):
                group.cancel_scope.cancel()

        for index, call in enumerate(calls):
            group.start_soon(one, index, call)
    if errors:
        raise errors.pop(0)
    return results


async def gather_each(
    function: Callable[[ItemT], Awaitable[T]],
    items: Iterable[ItemT],
    *,
    most: int = _AT_ONCE,
    cancels: bool = True,
) -> list[T]:
    """Call an async function with every item, with some of them at once.

    Args:
        function: The function.
        items: The items.
        most: How many calls run at once.
        cancels: Whether calls that have begun are cancelled when another one fails. Otherwise they run to their end.

    Returns:
        The results, in the order of the items.

    Raises:
        Exception: The first error, as it is. No call begins after it.
    """
    given = list(items)
    if len(given) == 1 or most == 1 or is_inline():
        return [await function(item) for item in given]
    results: dict[int, T] = {}
    errors: list[Exception] = []
    remaining = enumerate(given)

    async def work() -> None:
        for number, item in remaining:
            if errors:
                return
            try:
                results[number] = await function(item)
            except Exception as error:
                if not errors:
                    errors.append(error)
                if cancels:
                    tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(most, len(given))):
            tasks.start_soon(work)
    if errors:
        raise errors.pop()  # Its traceback refers to this frame, which must not keep it: that would be a cycle.
    return [results[number] for number in range(len(given))]


def batched(
    items: Iterable[ItemT], size: Callable[[ItemT], int], *, most_bytes: int, most_items: float = inf
) -> Iterator[list[ItemT]]:
    """The items in batches of a limited total size; one that is larger has a batch of its own.

    Args:
        items: The items, whose order is kept.
        size: Returns the size of an item in bytes.
        most_bytes: The largest total size of a batch.
        most_items: The largest number of items in a batch.
    """
    batch: list[ItemT] = []
    held = 0
    for item in items:
        if batch and (held + size(item) > most_bytes or len(batch) >= most_items):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size(item)
    if batch:
        yield batch


class Prefetch(Generic[T]):
    """Fetches files in the order in which a search needs them, some of them before it asks for them.

    Args:
        fetch: Fetches what is at a path, or None for nothing.
        size: The size of what is at a path, as far as known.
        tasks: Where the files are fetched. Cancel it when the search has ended.
    """

    def __init__(
        self, fetch: Callable[[str], Awaitable[T | None]], size: Callable[[str], int], tasks: "TaskGroup"
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._tasks = tasks
        self._queue: list[str] = []
        """All paths that were asked for, now or ahead, in order."""
        self._queued: set[str] = set()
        self._next = 0
        """The place in the queue of the next path to fetch."""
        self._needed = 0
        """How many paths the search has needed so far."""
        self._running = 0
        self._held_bytes = 0
        """The size of what was fetched, or is being fetched, and was not taken."""
        self._fetched: dict[str, T | DeepFSError | None] = {}
        self._missing: set[str] = set()
        """The paths that `take` waits for."""
        self._arrived = anyio.Event()

    async def take(self, wanted: Sequence[str], ahead: Sequence[str]) -> dict[str, T | DeepFSError | None]:
        """Return what is at some paths; the files at others are fetched meanwhile.

        Args:
            wanted: The paths of the files to return, each asked for once in a search.
            ahead: The paths that are asked for next, in this order.

        Returns:
            What was fetched for each path, or the error of that.
        """
        new = [path for path in (*wanted, *ahead) if path not in self._queued]
        self._queue += new
        self._queued.update(new)
        self._needed += len(wanted)
        self._missing = {path for path in wanted if path not in self._fetched}
        self._start()
        if self._missing:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        taken = {path: self._fetched.pop(path) for path in wanted}
        self._held_bytes -= sum(map(self._size, wanted))
        self._start()
        return taken

    def _start(self) -> None:
        """Begin to fetch as many files as may be fetched now."""
        # No more files are fetched before they are needed than may be under way at once.
        end = min(len(self._queue), self._needed + _AT_ONCE)
        while self._next < end and self._running < _AT_ONCE and self._has_room():
            path = self._queue[self._next]
            self._next += 1
            self._running += 1
            self._held_bytes += self._size(path)
            self._tasks.start_soon(self._run, path)

    def _has_room(self) -> bool:
        next_size = self._size(self._queue[self._next])
        return self._held_bytes == 0 or self._held_bytes + next_size <= _AHEAD_BYTES

    async def _run(self, path: str) -> None:
        try:
            self._fetched[path] = await self._fetch(path)
        except DeepFSError as error:
            self._fetched[path] = error
        self._running -= 1
        self._missing.discard(path)
        if not self._missing:
            self._arrived.set()
        self._start()
