"""Change events: the bounded buffer of a watch, the watches of storages in this process, and merged watches of mounts.

A backend over a flat storage reports the changes that it has stored (`run_and_report`), and each watch of that storage
(`watch_storage`) gets those at and under its path.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from deepfs.errors import DeepFSError, ErrorCode
from deepfs.storage.runners import Apply, Plan, Storage
from deepfs.sync import yield_to_loop
from deepfs.text import paths, records
from deepfs.text.flat_tree import Change
from deepfs.text.lines import version
from deepfs.threads.forks import ForkSafeLock, after_fork
from deepfs.threads.loop_bridge import ThreadEvent, loop_callbacks, start_task
from deepfs.types import ChangeEvent, ChangeKind

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
    changes, also after the reader's loop has ended, and no call but `read` waits: each step on the mapping is atomic.
    Changes of one path must be added one after another.

    Args:
        top: The watched path, normalised.
    """

    __slots__ = ("_end", "_pending", "_reads", "_top", "_wakes")

    def __init__(self, top: str) -> None:
        self._top = top
        self._pending: OrderedDict[str, ChangeEvent] = OrderedDict()
        self._end: Exception | None = None
        self._wakes: ThreadEvent | None = None
        self._reads = 0

    def covers(self, path: str) -> bool:
        """Whether `path`, which is normalised, is the watched path or lies under it."""
        return path == self._top or self._top == "/" or paths.is_beneath(path, self._top)

    def add(self, event: ChangeEvent) -> None:
        """Add a change at or under the watched path. It joins the one that is pending for the same path."""
        pending = self._pending
        whole = pending.get(self._top)
        if whole is not None and whole.kind == "resync":
            return  # It is read later than this change was made, so its reader will see this change.
        pending[event.path] = _join(pending.get(event.path), event)
        with suppress(KeyError):  # It may have been read already.
            pending.move_to_end(event.path)
        if len(pending) > _MAX_PENDING:
            self.resync()
        self._wake()

    def resync(self) -> None:
        """Replace all pending changes by a `resync` of the watched path."""
        self._pending.clear()
        self._pending[self._top] = ChangeEvent(self._top, "resync")
        self._wake()

    def end(self, reason: Exception) -> None:
        """Have `read` raise `reason` when all pending changes are read. Only the first call counts."""
        self._end = self._end or reason
        self._wake()

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, None
        if wakes is not None:
            wakes.set()

    def pop(self) -> ChangeEvent | None:
        """Take the first event; None if there is none."""
        try:
            return self._pending.popitem(last=False)[1]
        except KeyError:
            return None

    async def read(self) -> ChangeEvent:
        """Wait for the next event, and take it. One task at a time may call this. Raises what `end` was given."""
        self._reads += 1
        if self._reads % _EVENTS_A_TURN == 0:
            await yield_to_loop()
        while (event := self.pop()) is None:
            if self._end is not None:
                raise self._end
            self._wakes = wakes = loop_callbacks().event()
            # Looked at after the event was set up: what comes later sets it.
            if not self._pending and self._end is None:
                await wakes.wait()
        return event


def _join(before: ChangeEvent | None, event: ChangeEvent) -> ChangeEvent:
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


_watches: dict[Hashable, tuple[ChangeBuffer, ...]] = {}
"""The watches of each storage, by its scope. Tuples are replaced, never changed, so reading needs no lock."""
_changing = ForkSafeLock()
"""Held to replace a tuple."""


@after_fork
def _after_fork() -> None:
    """Forget all watches in a forked child: the event loops that would read them do not run there."""
    _watches.clear()


async def watch_storage(
    find_scope: Callable[[], Hashable], top: str, unchanging: AbstractAsyncContextManager[None]
) -> AsyncGenerator[ChangeEvent, None]:
    """The events of `awatch(top)` for a storage whose changes all go through `run_and_report` in this process.

    `find_scope` returns what identifies the storage. `unchanging` locks `top`: the watch begins between two changes,
    since a change that has begun without it would not be told.
    """
    buffer = ChangeBuffer(top)
    async with unchanging:
        scope = find_scope()
        with _changing:
            _watches[scope] = (*_watches.get(scope, ()), buffer)
    try:
        yield ChangeEvent(top, "resync")
        while True:
            yield await buffer.read()
    finally:
        with _changing:
            left = tuple(each for each in _watches.get(scope, ()) if each is not buffer)
            if left:
                _watches[scope] = left
            else:
                _watches.pop(scope, None)


# --- reporting changes -----------------------------------------------------------------------------------------------


def run_and_report(storage: Storage, plan: Plan[T], scope: Callable[[], Hashable]) -> Awaitable[T]:
    """Run the plan of a change, and tell the watches of the storage, which `scope` identifies, what was stored.

    Call it with the changed paths locked, so that the changes of one path are told in their order. Where it is unknown
    whether a change was stored, its path is told as `resync`.
    """
    return _report_changes(storage, plan, scope()) if _watches else storage.carry_out(plan, "change")


async def _report_changes(storage: Storage, plan: Plan[T], scope: Hashable) -> T:
    stored: list[Change] = []
    unknown: list[Change] = []
    try:
        return await storage.carry_out(_note_changes(plan, stored, unknown), "change")
    except BaseException as error:
        if not _is_refusal(error):
            unknown += stored
        stored = []
        raise
    finally:
        for change in stored:
            _report(scope, change.path, partial(_event_of, change))
        for change in unknown:
            _report(scope, change.path, partial(ChangeEvent, change.path, "resync"))


def _note_changes(plan: Plan[T], stored: list[Change], unknown: list[Change]) -> Plan[T]:
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
                    del unknown[len(unknown) - len(changes) :]
                request = plan.throw(error)
            else:
                del unknown[len(unknown) - len(changes) :]
                stored += changes
                request = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _is_refusal(error: BaseException) -> bool:
    """Whether a storage that raised `error` has certainly stored nothing."""
    return isinstance(error, DeepFSError) and error.code not in _OUTCOME_UNKNOWN


def _report(scope: Hashable, path: str, make: Callable[[], ChangeEvent]) -> None:
    buffers = [buffer for buffer in _watches.get(scope, ()) if buffer.covers(path)]
    if buffers:
        event = make()
        for buffer in buffers:
            buffer.add(event)


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


async def merge_watches(
    top: str, sources: Sequence[Callable[[], AsyncGenerator[ChangeEvent, None]]]
) -> AsyncGenerator[ChangeEvent, None]:
    """The events of several watches, read by tasks of their own, so that nothing of them is open between two events.

    The first is a `resync` of `top`, which they watch together, as soon as all are active. What the first watch to fail
    raises ends the others, and is raised.
    """
    buffer, scope, ended = ChangeBuffer(top), anyio.CancelScope(), loop_callbacks().event()
    inactive, all_active = len(sources), anyio.Event()
    # A task that is cancelled before its first step never runs, nor says that it has ended.
    has_begun = False

    async def read(source: Callable[[], AsyncGenerator[ChangeEvent, None]]) -> None:
        nonlocal inactive
        is_active = False
        try:
            async with aclosing(source()) as events:
                async for event in events:
                    if is_active:
                        buffer.add(event)
                        continue
                    is_active = True
                    inactive -= 1
                    if not inactive:
                        all_active.set()
        except Exception as error:
            buffer.end(error)
            scope.cancel()

    async def read_all() -> None:
        nonlocal has_begun
        has_begun = True
        try:
            with scope:
                async with anyio.create_task_group() as group:
                    for source in sources:
                        group.start_soon(read, source)
        finally:
            buffer.end(anyio.EndOfStream())
            all_active.set()
            ended.fire()

    start_task(read_all)
    try:
        await all_active.wait()
        if inactive:
            while buffer.pop():  # One failed before, and nothing may come before the first `resync`.
                pass
        else:
            yield ChangeEvent(top, "resync")
        while True:
            try:
                event = await buffer.read()
            except anyio.EndOfStream:
                return
            yield event
    finally:
        scope.cancel()
        if has_begun:
            await ended.wait_shielded()
