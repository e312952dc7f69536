"""Work on many items: calls at once, files fetched ahead of the need for them, batches of a limited size."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio

from deepfs.errors import DeepFSError
from deepfs.sync import is_inline

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


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

    async def make(index: int) -> bool:
        results[index] = await calls[index]()
        return enough(results)

    await _each(make, len(calls), most=len(calls), cancels=True)
    return results


async def gather_each(
    function: Callable[[ItemT], Awaitable[T]],
    items: Iterable[ItemT],
    *,
    most: int = _AT_ONCE,
    cancels: bool = True,
) -> list[T]:
    """The results of an async function for every item, in their order; `most` calls run at once.

    The first error is raised as it is, and no call begins after it. Those that have begun are cancelled, unless
    `cancels` is False: then they run to their end.
    """
    given = list(items)
    results: dict[int, T] = {}

    async def make(number: int) -> bool:
        results[number] = await function(given[number])
        return False

    await _each(make, len(given), most=most, cancels=cancels)
    return [results[number] for number in range(len(given))]


async def _each(make: Callable[[int], Awaitable[bool]], count: int, *, most: int, cancels: bool) -> None:
    """Await `make` of each number below `count`, at most `most` at once, until one call returns True or raises."""
    if is_inline() or count == 1 or most == 1:
        for number in range(count):
            if await make(number):
                break
        return
    errors: list[Exception] = []
    remaining = iter(range(count))

    async def work() -> None:
        for number in remaining:
            if errors:
                return
            try:
                is_enough = await make(number)
            except Exception as error:
                if not errors:
                    errors.append(error)
                is_enough = cancels
            if is_enough:
                tasks.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(min(most, count)):
            tasks.start_soon(work)
    if errors:
        raise errors.pop()  # Its traceback refers to this frame, which must not keep it: that would be a cycle.


def in_batches(
    items: Iterable[ItemT], size: Callable[[ItemT], int], *, most_bytes: int, most_items: float = inf
) -> Iterator[list[ItemT]]:
    """The items in batches of a limited total size; one that is larger has a batch of its own."""
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

    `size` is that of what is at a path, as far as known. The files are fetched in `tasks`: cancel that in the end.
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
        """Return what is at each path, or its error. The files `ahead`, asked for next, are fetched meanwhile."""
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
