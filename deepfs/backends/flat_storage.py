"""What a flat storage is, and how plans run on each kind: at once, in a worker thread, or awaited.

A storage maps path → file and has four primitives: `stat`, `get`, `list` and `apply`. Derive from `InlineStorage` where
they wait for nothing, from `BlockingStorage` where they block (sqlite3, boto3), from `AsyncStorage` where they are
awaited (asyncpg). `StorageBackend` in `flat.py` makes every operation of the contract of it.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

import anyio

from deepfs.backends.flat_plans import Apply, Plan, Primitive, Request, Work
from deepfs.errors import BackendError
from deepfs.search.flat import search_deadline, searched
from deepfs.sync import shielded
from deepfs.text.flat_tree import Change, ChangedError, FileStat, FileTree
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2

__all__ = ["AsyncStorage", "BlockingStorage", "InlineStorage", "Kind", "Listing", "Storage", "until_accepted"]

T = TypeVar("T")

Kind: TypeAlias = Literal["look", "search", "change"]
Listing: TypeAlias = Mapping[str, FileStat] | FileTree


_SECONDS: Final = 30.0
"""How long an operation is planned anew because others change the same files."""
_PAUSE: Final = 0.02
"""Seconds to wait at most before that."""


async def until_accepted(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run an operation; run it again while it raises ChangedError, for up to 30 seconds."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return await attempt()
        except ChangedError:
            if time.monotonic() > deadline:
                raise
        # The pause is random, so that attempts that met do not meet again.
        await anyio.sleep(random.uniform(0, _PAUSE))


class Storage(ABC):
    """Files by path, as one operation uses them."""

    failures: ClassVar[tuple[type[Exception], ...]] = ()
    """What the driver raises where it fails; the caller gets `backend_error`. Errors of `deepfs.errors` stay."""

    @abstractmethod
    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        """The result of `plan`, which looks at files, searches or changes them."""

    def look(self, plan: Callable[[], Plan[T]], kind: Kind) -> Awaitable[T]:
        """The result of a plan that changes nothing, which no storage refuses but by its transaction."""
        return self.carry_out(plan(), kind)

    def failed(self, error: Exception) -> Exception:
        """What to raise for an error of a primitive or a transaction: a leaf of `deepfs.errors` where it is expected.

        ChangedError has the operation tried anew.
        """
        if not isinstance(error, self.failures):
            return error
        told = BackendError(None, f"The storage failed ({type(error).__name__})")
        told.__cause__ = error
        return told


class _SyncStorage(Storage):
    @abstractmethod
    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        """What can be said of those of `paths` that are files, without fetching content."""

    @abstractmethod
    def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        """The files at those of `paths` that there are; `TaggedFiles` where each has a tag."""

    @abstractmethod
    def list(self, prefix: str, limit: int | None = None) -> Listing:
        """What can be said of all files whose paths begin with `prefix`, which ends in `/`; of `limit` of them.

        More files than asked for do no harm. A storage that has the contents at hand returns a `FileTree` of them.
        """

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        """Store all changes, or none: those that add come before those that remove.

        Raises ChangedError where the `condition` of a change does not hold; the operation is then planned anew.
        Returns the `files_update` of the result where the storage is graph state, else None.
        """


class InlineStorage(_SyncStorage):
    """A storage whose primitives wait for nothing: no operation but a search ever suspends."""

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        step: Any = plan.send
        given: Any = None
        try:
            while True:
                request = step(given)
                try:
                    if type(request) is Work:
                        given = await searched(request.run, deadline=request.deadline, is_short=request.is_short)
                    else:
                        given = request.ask(self)
                    step = plan.send
                except Exception as error:
                    step, given = plan.throw, self.failed(error)
        except StopIteration as end:
            return cast("T", end.value)


class BlockingStorage(_SyncStorage):
    """A storage whose primitives block: each operation runs as a whole, in one transaction, in a worker thread.

    An object serves one operation, so that what `transaction` opens is its own.
    """

    def transaction(self, kind: Kind) -> AbstractContextManager[object]:
        """What surrounds the primitives of an operation, in the thread that calls them.

        It commits at the end and rolls back on an error. `kind` is "change" where something may be applied. It raises
        ChangedError where another process is in the way: waiting here would occupy the thread.
        """
        return nullcontext()

    def look(self, plan: Callable[[], Plan[T]], kind: Kind) -> Awaitable[T]:
        return until_accepted(lambda: self.carry_out(plan(), kind))

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        if kind == "search":
            return await pool.run_long(self._in_transaction, plan, kind, deadline=search_deadline())
        return await pool.run(self._in_transaction, Deadline(), plan, kind)

    def _in_transaction(self, deadline: Deadline, plan: Plan[T], kind: Kind) -> T:
        try:
            with self.transaction(kind):
                return self._run_plan(plan, deadline)
        except self.failures as error:
            raise self.failed(error) from error

    def _run_plan(self, plan: Plan[T], deadline: Deadline) -> T:
        step: Any = plan.send
        given: Any = None
        try:
            while True:
                request = step(given)
                deadline.check_cancelled()
                try:
                    given = request.run(deadline) if isinstance(request, Work) else request.ask(self)
                    step = plan.send
                except Exception as error:
                    step, given = plan.throw, self.failed(error)
        except StopIteration as end:
            return cast("T", end.value)


class AsyncStorage(Storage):
    """A storage whose primitives are awaited. `apply` is shielded: once begun, it runs to its end."""

    @abstractmethod
    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        """As of a storage that blocks."""

    @abstractmethod
    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        """As of a storage that blocks."""

    @abstractmethod
    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        """As of a storage that blocks."""

    @abstractmethod
    async def apply(self, changes: Sequence[Change]) -> dict[str, Any] | None:
        """As of a storage that blocks."""

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        step: Any = plan.send
        given: Any = None
        try:
            while True:
                request = step(given)
                try:
                    given = await self._asked(request)
                    step = plan.send
                except Exception as error:
                    step, given = plan.throw, self.failed(error)
        except StopIteration as end:
            return cast("T", end.value)

    def _asked(self, request: Request) -> Awaitable[Any]:
        if type(request) is Work:
            return searched(request.run, deadline=request.deadline, is_short=request.is_short)
        if type(request) is Apply:
            return shielded(partial(request.ask, self))
        answer: Awaitable[Any] = cast("Primitive", request).ask(self)
        return answer
