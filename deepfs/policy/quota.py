"""How much may be stored."""

from collections.abc import Iterable, Sequence
from threading import RLock
from typing import NamedTuple

from deepfs.backends.protocol import BACKEND_TYPES
from deepfs.errors import QuotaExceededError
from deepfs.policy.changes import ChangePolicy, PlannedChange
from deepfs.text.arguments import check_integer
from deepfs.types import ExecuteResponse

__all__ = ["QuotaBackend", "Usage"]


class Usage(NamedTuple):
    """How much is stored."""

    bytes: int
    files: int


class QuotaBackend(ChangePolicy):
    """Refuses changes by which `inner` would hold more than a number of bytes or files, with `quota_exceeded`.

    Room is set aside before a change is made and given back where it fails, so changes at once never exceed the quota
    together. An upload by a stream ends at the chunk that is too much, and nothing is stored. Deletes free room. A
    change that adds nothing is never refused, also where more is stored than the quota allows.

    The files of `inner` are counted at the first change, by a listing of its whole tree, and again after each command
    (`execute`), since what commands store is not known. What others store past this object is not counted until
    `arecount`: let all writers use one object, or keep a margin. What cannot be listed is not counted either. Of a file
    with several hard links each counts; links and directories count nothing. A copy of links to files sets room aside
    for their content. A move between mounts needs room for what it moves twice for a moment, which is not counted.

    Args:
        inner: The storage. Put policies that hide files before this one, not behind it.
        max_bytes: The most bytes that the contents of all files may have; None for any number.
        max_files: The most files there may be; None for any number.

    Raises:
        TypeError: A limit is no integer.
        ValueError: A limit is negative, or none is given.
    """

    is_synchronous: bool = True

    def __init__(self, inner: BACKEND_TYPES, max_bytes: int | None = None, max_files: int | None = None) -> None:
        super().__init__(inner)
        _check_limits(max_bytes=max_bytes, max_files=max_files)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lock = RLock()
        self._used = Usage(0, 0)
        """With the room that is set aside."""
        self._wanted_count = object()
        """Another one each time that the files have to be counted anew."""
        self._last_count: object = None

    async def ausage(self) -> Usage:
        """What is stored, with what changes that go on may add.

        Raises:
            DeepFSError: The files cannot be listed.
        """
        await self._count()
        return self._used

    async def arecount(self) -> Usage:
        """Count the files anew, and return what is stored; it waits for the changes that go on.

        Raises:
            DeepFSError: The files cannot be listed; the old count stays.
        """
        self._wanted_count = object()
        return await self.ausage()

    async def _count(self) -> None:
        if self._last_count is not self._wanted_count:
            async with self._locks.hold("/"):
                await self._count_alone()

    async def _count_alone(self) -> None:
        wanted = self._wanted_count  # A command that ends meanwhile wants yet another count.
        if self._last_count is wanted:  # By a change that came first.
            return
        sizes = (await self._listed_sizes("/")).values()
        self._used = Usage(sum(sizes), len(sizes))
        self._last_count = wanted

    async def _prepare(self) -> None:
        await self._count()

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        try:
            return await super().aexecute(command, timeout=timeout)
        finally:
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
        aside, difference = _growth(planned), _difference(made)
        with self._lock:
            used_bytes = self._used.bytes - aside.bytes + difference.bytes
            used_files = self._used.files - aside.files + difference.files
            self._used = Usage(max(0, used_bytes), max(0, used_files))


def _difference(changes: Iterable[PlannedChange]) -> Usage:
    changes = list(changes)
    return Usage(sum(change.grown_bytes for change in changes), sum(change.grown_files for change in changes))


def _growth(changes: Iterable[PlannedChange]) -> Usage:
    """The room that changes need before they are made; what they free counts once they are."""
    more = _difference(changes)
    return Usage(max(0, more.bytes), max(0, more.files))


def _check_limits(**limits: int | None) -> None:
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise ValueError("a quota needs max_bytes or max_files")
    for name, limit in given.items():
        check_integer(name, limit)
        if limit < 0:
            raise ValueError(f"{name} must not be negative, not {limit}")
