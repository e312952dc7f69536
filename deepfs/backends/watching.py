"""Change events: the bounded buffer of a watch, the watches of storages in this process, and merged watches of mounts.

A backend over a flat storage reports the changes that it has stored (`reported`), and each watch of that storage
(`watch_storage`) gets those at and under its path.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from deepfs.backends.flat_requests import Apply, Plan
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.sync import yield_to_loop
from deepfs.text import paths, records
from deepfs.text.flat_tree import Change
from deepfs.text.lines import version
from deepfs.threads.forks import ForkSafeLock, after_fork
from deepfs.threads.loop_bridge import ThreadEvent, loop_callbacks, start_task
from deepfs.types import ChangeEvent, ChangeKind

__all__ = ["ChangeBuffer", "is_watched", "merged_watches", "reported", "watch_storage"]

T = TypeVar("T")

_MAX_PENDING: Final = 10_000
"""The most paths whose changes are kept for a reader."""
_MAX_HASHED: Final = 256 * 1024
"""The most bytes of content whose version an event tells; hashing them takes about 0.2 ms."""
_EVENTS_A_TURN: Final = 64
"""The most events that are read before other tasks get their turn."""
_OUTCOME_UNKNOWN: Final = frozenset([ErrorCode.BACKEND_ERROR, ErrorCode.TIMEOUT])
"""The errors of a storage after which a change may have been stored all the same."""


# --- the buffer of one watch -----------------------------------------------------------------------------------------


class ChangeBuffer:
    """The changes that the reader of a watch has not read yet: one event for each path, in the order of last changes.

    With changes of more than 10,000 paths, one `resync` of the watched path takes their place. Any thread may add
    changes, and no call blocks: each step on the mapping is atomic. Changes of one path must be added one after
    another.

    Args:
        top: The watched path, normalised.
    """

    __slots__ = ("_pending", "_top")

    def __init__(self, top: str) -> None:
        self._top = top
        self._pending: OrderedDict[str, ChangeEvent] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._pending)

    def covers(self, path: str) -> bool:
        """Whether `path` is the watched path or lies under it.

        Args:
            path: A normalised path.
        """
        return path == self._top or self._top == "/" or paths.is_beneath(path, self._top)

    def add(self, event: ChangeEvent) -> None:
        """Add a change. It joins the one that is pending for the same path.

        Args:
            event: A change at or under the watched path.
        """
        pending = self._pending
        whole = pending.get(self._top)
        if whole is not None and whole.kind == "resync":
            return  # It is read later than this change was made, so its reader will see this change.
        pending[event.path] = _joined(pending.get(event.path), event)
        with suppress(KeyError):  # It may have been read already.
            pending.move_to_end(event.path)
        if len(pending) > _MAX_PENDING:
            self.resync()

    def resync(self) -> None:
        """Replace all pending changes by a `resync` of the watched path."""
        self._pending.clear()
        self._pending[self._top] = ChangeEvent(self._top, "resync")

    def pop(self) -> ChangeEvent | None:
        """Take the first event; None if there is none."""
        try:
            return self._pending.popitem(last=False)[1]
        except KeyError:
            return None


def _joined(before: ChangeEvent | None, event: ChangeEvent) -> ChangeEvent:
    """One event for two changes of a path, of which the first was not read yet."""
    if before is None or event.kind == "resync":
        return event
    if before.kind == "resync":
        return before
    if event.kind == "deleted":
        return event
    kind: ChangeKind = "created" if before.kind == "created" else "modified"
    return ChangeEvent(event.path, kind, event.version)


# --- watches of storages in this process -----------------------------------------------------------------------------


class _Watch:
    """A watch of one storage, read by a task of the loop on which it was made."""

    def __init__(self, top: str) -> None:
        self.buffer: ChangeBuffer = ChangeBuffer(top)
        self._callbacks = loop_callbacks()
        self._wakes: ThreadEvent | None = None

    def tell(self, event: ChangeEvent) -> None:
        """Add a change; safe from any thread, also after the loop has ended."""
        self.buffer.add(event)
        wakes, self._wakes = self._wakes, None
        if wakes is not None:
            wakes.set()

    async def read(self) -> ChangeEvent:
        """Wait for the next change."""
        while True:
            event = self.buffer.pop()
            if event is not None:
                return event
            self._wakes = wakes = self._callbacks.event()
            if not self.buffer:  # Looked at after the event was set up: what is added later sets it.
                await wakes.wait()


_watches: dict[Hashable, tuple[_Watch, ...]] = {}
"""The watches of each storage, by its scope. Tuples are replaced, never changed, so reading needs no lock."""
_changing = ForkSafeLock()
"""Held to replace a tuple."""


def _add(scope: Hashable, watch: _Watch) -> None:
    with _changing:
        _watches[scope] = (*_watches.get(scope, ()), watch)


def _remove(scope: Hashable, watch: _Watch) -> None:
    with _changing:
        left = tuple(each for each in _watches.get(scope, ()) if each is not watch)
        if left:
            _watches[scope] = left
        else:
            _watches.pop(scope, None)


@after_fork
def _after_fork() -> None:
    """Forget all watches in a forked child: the event loops that would read them do not run there."""
    _watches.clear()


async def watch_storage(
    find_scope: Callable[[], Hashable], top: str, unchanging: AbstractAsyncContextManager[None]
) -> AsyncGenerator[ChangeEvent, None]:
    """The events of `awatch(top)` for a storage whose changes all go through `reported` in this process.

    Args:
        find_scope: Returns what identifies the storage.
        top: The normalised path to watch.
        unchanging: Locks `top`. The watch begins between two changes, since a change that has begun without it would
            not be told.

    Yields:
        A `resync` as soon as the watch is active, then an event for each change.
    """
    watch = _Watch(top)
    async with unchanging:
        scope = find_scope()
        _add(scope, watch)
    try:
        yield ChangeEvent(top, "resync")
        while True:
            for _ in range(_EVENTS_A_TURN):
                yield await watch.read()
            await yield_to_loop()
    finally:
        _remove(scope, watch)


# --- reporting changes -----------------------------------------------------------------------------------------------


def is_watched() -> bool:
    """Whether there is a watch of any storage. Ask with the paths of a change locked."""
    return bool(_watches)


async def reported(scope: Hashable, carry_out: Callable[[Plan[T]], Awaitable[T]], plan: Plan[T]) -> T:
    """Run the plan of a change, and tell the watches of the storage what was stored.

    Call it with the changed paths locked, so that the changes of one path are told in their order. Where it is unknown
    whether a change was stored, its path is told as `resync`.

    Args:
        scope: Identifies the storage.
        carry_out: Runs a plan to its end, with the transaction that it runs in.
        plan: The plan.

    Returns:
        The result of the plan.
    """
    stored: list[Change] = []
    unknown: list[Change] = []
    try:
        result = await carry_out(_noted(plan, stored, unknown))
    except BaseException as error:
        if not _is_refusal(error):
            unknown += stored
        stored = []
        raise
    finally:
        _tell(scope, stored, unknown)
    return result


def _noted(plan: Plan[T], stored: list[Change], unknown: list[Change]) -> Plan[T]:
    """The same plan. It lists changes as `unknown` while they are being applied, then as `stored`."""
    try:
        request = plan.send(None)
        while True:
            changes = request.changes if type(request) is Apply else ()
            unknown += changes
            try:
                answer: Any = yield request
            except Exception as error:
                if _is_refusal(error):
                    _drop(unknown, changes)
                request = plan.throw(error)
            else:
                _drop(unknown, changes)
                stored += changes
                request = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _drop(items: list[Change], last: Sequence[Change]) -> None:
    del items[len(items) - len(last) :]


def _is_refusal(error: BaseException) -> bool:
    """Whether a storage that raised `error` has certainly stored nothing."""
    return isinstance(error, DeepFSError) and error.code not in _OUTCOME_UNKNOWN


def _tell(scope: Hashable, stored: Iterable[Change], unknown: Iterable[Change]) -> None:
    watches = _watches.get(scope, ())
    if not watches:
        return
    for change in stored:
        watching = [watch for watch in watches if watch.buffer.covers(change.path)]
        if watching:
            event = _event_of(change)
            for watch in watching:
                watch.tell(event)
    for path in {change.path for change in unknown}:
        for watch in watches:
            if watch.buffer.covers(path):
                watch.tell(ChangeEvent(path, "resync"))


def _event_of(change: Change) -> ChangeEvent:
    if change.after is None:
        return ChangeEvent(change.path, "deleted")
    is_new = change.before is None and change.seen is None and change.origin is None
    known: str | None = None
    with suppress(DeepFSError):  # A copied record may be malformed.
        if change.size_after <= _MAX_HASHED:
            known = version(records.content_bytes(change.after))
    return ChangeEvent(change.path, "created" if is_new else "modified", known)


# --- several watches as one ------------------------------------------------------------------------------------------


async def merged_watches(
    top: str, sources: Sequence[Callable[[], AsyncGenerator[ChangeEvent, None]]]
) -> AsyncGenerator[ChangeEvent, None]:
    """The events of several watches, read by tasks of their own, so that nothing of them is open between two events.

    Args:
        top: The path that is watched by all of them together.
        sources: Each starts one of the watches.

    Yields:
        A `resync` of `top` as soon as all watches are active, then their events.

    Raises:
        Exception: What the first watch to fail raises; the others are then ended.
    """
    merging = _Merging(sources)
    send, receive = anyio.create_memory_object_stream[tuple[int, ChangeEvent]]()
    ended = loop_callbacks().event()
    start_task(partial(merging.run, send, ended))
    try:
        inactive = set(range(len(sources)))
        async for source, event in receive:
            if not inactive:
                yield event
            elif source in inactive:
                inactive.remove(source)
                if not inactive:
                    yield ChangeEvent(top, "resync")
        if merging.failure is not None:
            raise merging.failure
    finally:
        merging.scope.cancel()
        receive.close()
        if merging.has_begun:
            await ended.wait_shielded()


class _Merging:
    """Reads several watches in one task group, and sends their events to one reader, who may be slower."""

    def __init__(self, sources: Sequence[Callable[[], AsyncGenerator[ChangeEvent, None]]]) -> None:
        self._sources = sources
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.failure: Exception | None = None
        self.has_begun = False
        """A task that is cancelled before its first step never runs, nor tells that it has ended."""

    async def run(self, send: MemoryObjectSendStream[tuple[int, ChangeEvent]], ended: ThreadEvent) -> None:
        self.has_begun = True
        try:
            with self.scope:
                async with send, anyio.create_task_group() as group:
                    for index, source in enumerate(self._sources):
                        group.start_soon(self._read, index, source, send)
        finally:
            ended.fire()

    async def _read(
        self,
        index: int,
        source: Callable[[], AsyncGenerator[ChangeEvent, None]],
        send: MemoryObjectSendStream[tuple[int, ChangeEvent]],
    ) -> None:
        try:
            async with aclosing(source()) as events:
                async for event in events:
                    await send.send((index, event))
        except Exception as error:
            self.failure = self.failure or error
            self.scope.cancel()
