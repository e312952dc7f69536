"""Limits: for changes at all, for the rate of operations, and for the bytes and files in a storage."""

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from msgspec.structs import replace

from deepfs._brief import arguments
from deepfs.backends.namespace import Choice
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    Capabilities,
    caller_places,
    is_by_place,
    parts_by_caller,
)
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import NotSupportedError, PermissionDeniedError, QuotaExceededError
from deepfs.operations import Batch, Execute, ListTree, Operation
from deepfs.policy.changes import ChangePolicy, PlannedChange
from deepfs.policy.hooks import Call
from deepfs.sync import OPERATIONS
from deepfs.text import paths
from deepfs.text.arguments import check_callable, check_integer
from deepfs.threads.forks import ForkSafeLock
from deepfs.threads.locks import path_locks

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

# --- no changes ------------------------------------------------------------------------------------------------------


class ReadOnlyBackend(WrapperBackend):
    """Refuses every change with `permission_denied`. Commands are refused as well, since they could change files.

    Args:
        inner: The backend.
    """

    is_synchronous: bool = True
    offers_changes: bool = False

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.capabilities: Capabilities = replace(self.capabilities, executes=False, deletes=False)

    async def run(self, operation: Operation) -> Any:
        match operation:
            case Batch() if operation.changes:
                return await operation.where(_refuse, self.inner.arun)
            case Execute():
                raise NotSupportedError(None, "The files are read-only, so no commands are run")
            case ListTree(path, deleting=True):
                await self.inner.arun(ListTree(path))
                await _refuse(operation)
        if operation.changes:
            await _refuse(operation)
        return await self.inner.arun(operation)


async def _refuse(operation: Operation) -> None:
    path = (operation.changed_paths or operation.paths)[0]
    raise PermissionDeniedError(paths.normalize(path), "the files are read-only")


# --- the rate of operations ------------------------------------------------------------------------------------------


class RateLimitError(PermissionDeniedError):
    """There were too many operations.

    Args:
        limit: The most operations in a period.
        seconds: The length of the period.
        retry_after: Seconds until the next operation is allowed.
    """

    def __init__(self, limit: int, seconds: float, retry_after: float) -> None:
        self.retry_after: float = retry_after
        reached = f"Rate limit reached: {limit} operations in {seconds:g} seconds."
        self._set(None, f"{reached} Try again in {retry_after:.1f} seconds.")


class RateLimit:
    """A hook for `HookedBackend(before=[…])` that limits the rate of operations.

    One object may serve several backends and threads, which then share its limit. Where a factory of the backend
    decides by the caller about the files, each tenant has the whole limit. An operation that is denied does not count.

    Args:
        limit: The most operations in any period.
        seconds: The length of the period.
        operations: The operations that count and are limited, by sync name; None is all.
        key: Gets the `Runtime` of the running node (None outside a graph), and returns whose limit counts, such as the
            name of a user; None counts by the tenant. If it fails, so does the operation, with `backend_error`.
        clock: Returns the time in seconds.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a `limit` below 1, `seconds` that are not positive, and unknown operations.
    """

    reads_contents: bool = False

    def __init__(
        self,
        limit: int,
        seconds: float,
        operations: Collection[str] | None = None,
        *,
        key: "Callable[[Runtime[Any]], Hashable] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, given in (("limit", limit), ("seconds", seconds)):
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise TypeError(f"{name} must be a number, not {given!r:.100}")
        check_callable("clock", clock)
        if not (limit >= 1 and seconds > 0):
            raise ValueError("a rate limit needs at least one operation in more than no time")
        if operations is not None:
            _check_operations(operations)
        self._limit = limit
        self._seconds = seconds
        self._operations = operations
        self._key = None if key is None else Choice("key", check_callable("key", key), _check_key, is_place=False)
        self._clock = clock
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()
        """The times of the operations that count, by the key; the one that was used last is at the end."""
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"RateLimit({arguments(self._limit, self._seconds, operations=self._operations)})"

    def __call__(self, call: Call) -> None:
        if self._operations is not None and call.operation not in self._operations:
            return
        key = call.tenant if self._key is None else self._key()
        with self._lock:
            now = self._clock()
            while self._times and next(iter(self._times.values()))[-1] <= now - self._seconds:
                self._times.popitem(last=False)
            times = self._times.setdefault(key, deque())
            while times and times[0] <= now - self._seconds:
                times.popleft()
            if len(times) >= self._limit:
                raise RateLimitError(self._limit, self._seconds, times[0] + self._seconds - now)
            times.append(now)
            self._times.move_to_end(key)


def _check_key(given: Any) -> Hashable:
    hash(given)
    key: Hashable = given
    return key


def _check_operations(given: Collection[str]) -> None:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise TypeError(f"operations is a collection of names, not {given!r}")
    unknown = [name for name in given if name not in OPERATIONS]
    if unknown or not given:
        wrong = f"unknown operation {unknown[0]!r}" if unknown else "operations is empty"
        raise ValueError(f"{wrong}; known are {', '.join(OPERATIONS)}")


# --- bytes and files -------------------------------------------------------------------------------------------------


_MOST_CALLERS: Final = 1_000
"""How many callers' counts a quota keeps, the latest ones; each takes about 3 kB."""


class Usage(NamedTuple):
    """How much is stored."""

    bytes: int
    files: int


class QuotaBackend(ChangePolicy):
    """Refuses changes by which `inner` would hold more than a number of bytes or files, with `quota_exceeded`.

    Room is reserved before a change is made and released if it fails, so concurrent changes never exceed the quota
    together. An upload by a stream ends at the chunk that exceeds it, and nothing is stored. Deletes free room. A
    change that adds nothing is never refused, even if more is stored than the quota allows.

    The files of `inner` are counted at the first change, by a listing of its whole tree, and again after each command
    (`execute`), since what commands store is not known. Files stored without this object are not counted until
    `arecount`: let all writers use one object, or keep a margin. Files that cannot be listed are not counted either.
    Each hard link of a file counts; symlinks and directories do not. A copy of symlinks to files reserves room for the
    content of these files. A move between mounts briefly stores the files twice, which is not counted.

    Where `inner` has a factory for its namespace, each namespace has the whole quota for itself, and is counted by
    itself. What `StateBackend` has depends on the thread of the graph, and all threads together would share one count:
    over it, make a quota, and a graph with it, for each thread.

    Args:
        inner: The storage. Put policies that hide files before this one, not behind it.
        max_bytes: The most bytes that the contents of all files may have; None for any number.
        max_files: The most files there may be; None for any number.

    Raises:
        TypeError: A limit is no integer.
        ValueError: A limit is negative, or none is given; or a factory decides about a part of `inner` only, or makes
            backends, since the files of all callers would be counted together.
    """

    is_synchronous: bool = True
    _shown = ("inner", "max_bytes=_max_bytes", "max_files=_max_files")

    def __init__(self, inner: BACKEND_TYPES, max_bytes: int | None = None, max_files: int | None = None) -> None:
        super().__init__(inner)
        limits = {"max_bytes": max_bytes, "max_files": max_files}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise ValueError("a quota needs max_bytes or max_files")
        for name, limit in given.items():
            check_integer(name, limit)
            if limit < 0:
                raise ValueError(f"{name} must not be negative, not {limit}")
        self._by_caller = parts_by_caller(self.inner)
        if self._by_caller and not is_by_place(self.inner):
            raise ValueError(
                "a quota would count the files of all callers together, since these share a part of the storage, or a "
                "factory makes backends: make a quota over each part that has a factory for its namespace"
            )
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._of_callers: WeakValueDictionary[Hashable, QuotaBackend] = WeakValueDictionary()
        self._recent: OrderedDict[Hashable, QuotaBackend] = OrderedDict()
        self._start()

    def _start(self) -> None:
        self._lock = ForkSafeLock()
        self._used = Usage(0, 0)
        """Includes the reserved room."""
        self._wanted_count = object()
        """Replaced by a new object whenever the files must be counted again."""
        self._last_count: object = None
        self._process = os.getpid()

    def _quota(self) -> "QuotaBackend":
        """The quota of the caller: another object for each combination of namespaces."""
        if not self._by_caller:
            return self
        place = caller_places(self._by_caller)
        with self._lock:
            quota = self._of_callers.get(place)
            if quota is None:
                quota = self._of_callers[place] = copy(self)
                quota._by_caller = []
                quota._locks = path_locks(("changes", id(quota)))
                quota._start()
            # One with a change in progress is held by its call; another one is counted anew when it is needed again.
            self._recent[place] = quota
            self._recent.move_to_end(place)
            if len(self._recent) > _MOST_CALLERS:
                self._recent.popitem(last=False)
        return quota

    async def ausage(self) -> Usage:
        """Return what is stored, with the room reserved for changes in progress.

        Raises:
            DeepFSError: The files cannot be listed.
        """
        quota = self._quota()
        await quota._prepare()
        return quota._used

    async def arecount(self) -> Usage:
        """Wait for the changes in progress, count the files again, and return what is stored.

        Raises:
            DeepFSError: The files cannot be listed; the old count stays.
        """
        self._quota()._wanted_count = object()
        return await self.ausage()

    async def _prepare(self) -> None:
        """Count the files, unless that is done."""
        if self._process != os.getpid():  # The parent ends the changes for which room is reserved.
            self._process, self._wanted_count = os.getpid(), object()
        if self._last_count is self._wanted_count:
            return
        async with self._locks.hold("/"):
            wanted = self._wanted_count  # Read before counting: a command that ends meanwhile requires another count.
            if self._last_count is not wanted:  # Else another task counted while this one waited for the lock.
                sizes = (await self._list_sizes("/")).values()
                self._used = Usage(sum(sizes), len(sizes))
                self._last_count = wanted

    async def run(self, operation: Operation) -> Any:
        if self._by_caller and (operation.changes or isinstance(operation, Execute)):
            return await self._quota().run(operation)
        try:
            return await super().run(operation)
        finally:
            if isinstance(operation, Execute):
                self._wanted_count = object()

    async def achanging(self, changes: Sequence[PlannedChange]) -> None:
        growth = _growth(changes)
        path = changes[-1].path
        with self._lock:
            wanted = Usage(self._used.bytes + growth.bytes, self._used.files + growth.files)
            if growth.bytes and self._max_bytes is not None and wanted.bytes > self._max_bytes:
                raise QuotaExceededError(path, wanted.bytes, self._max_bytes)
            if growth.files and self._max_files is not None and wanted.files > self._max_files:
                raise QuotaExceededError(path, wanted.files, self._max_files, "files")
            self._used = wanted

    async def achanged(self, planned: Sequence[PlannedChange], made: Sequence[PlannedChange]) -> None:
        reserved, difference = _growth(planned), _difference(made)
        with self._lock:
            used_bytes = self._used.bytes - reserved.bytes + difference.bytes
            used_files = self._used.files - reserved.files + difference.files
            self._used = Usage(max(0, used_bytes), max(0, used_files))


def _difference(changes: Sequence[PlannedChange]) -> Usage:
    return Usage(sum(change.grown_bytes for change in changes), sum(change.grown_files for change in changes))


def _growth(changes: Sequence[PlannedChange]) -> Usage:
    """The room to reserve before changes are made; room that they free counts only afterwards."""
    more = _difference(changes)
    return Usage(max(0, more.bytes), max(0, more.files))
