"""Flushing to the disk, by itself or together with other changes that wait for it at the same time."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from deepfs.disk.os_calls import file_id, is_shortage, start_writeback, sync, sync_directory
from deepfs.threads import pool

__all__ = [
    "FlushedChange",
    "Steps",
    "ToFlush",
    "carry_out",
    "finish",
    "finish_together",
]

T = TypeVar("T")

_MOST_TOGETHER = 40
"""The most changes that are flushed together; each has three descriptors open until then."""


class ToFlush(NamedTuple):
    """An open file or directory that must be on the disk before a change goes on."""

    descriptor: int
    is_directory: bool = False

    def flush(self) -> None:
        """Wait until it is on the disk."""
        if self.is_directory:
            sync_directory(self.descriptor, durable=True)
        else:
            sync(self.descriptor)


Steps = Generator[ToFlush, None, T]
"""A change that stops where something has to be flushed, so that several changes can be flushed together."""


class FlushedChange(Generic[T]):
    """A change that has begun: it runs to where it needs a flush, and `finish_together` takes it on from there."""

    _value: T

    def __init__(self, start: Callable[[], Steps[T]]) -> None:
        self.waits_for: ToFlush | None = None
        """What has to be flushed next; None once the change has ended."""
        self.error: BaseException | None = None
        """Why the change failed."""
        try:
            self._steps = start()
            self.waits_for = next(self._steps)
        except StopIteration as end:
            self._value = end.value
        except BaseException as error:
            self.error = error

    def go_on(self, failure: BaseException | None) -> None:
        """Continue after the flush, or after its failure."""
        self.waits_for = None
        try:
            self.waits_for = next(self._steps) if failure is None else self._steps.throw(failure)
        except StopIteration as end:
            self._value = end.value
        except BaseException as error:
            self.error = error

    def result(self) -> T:
        """Return what the change returned, or raise what it raised."""
        if self.error is None:
            return self._value
        try:
            raise self.error
        finally:
            del self  # The traceback holds this frame: no cycle through the change.


def finish(steps: Steps[T]) -> T:
    """Carry out a change by itself."""
    try:
        asked = next(steps)
        while True:
            failure = _failure(asked)
            asked = next(steps) if failure is None else steps.throw(failure)
    except StopIteration as end:
        value: T = end.value
        return value


def finish_together(changes: Sequence[FlushedChange[Any]]) -> None:
    """Take changes to their ends; what several of them wait for is flushed at once, and a shared directory only once.

    The changes must not depend on one another.
    """
    while waiting := [change for change in changes if change.waits_for is not None]:
        if len(waiting) == 1:
            _go_on({}, waiting[0])
            continue
        asked = [change.waits_for for change in waiting if change.waits_for is not None]
        for each in asked:
            if not each.is_directory:
                start_writeback(each.descriptor)
        directories = {_key(each): each for each in asked if each.is_directory}
        flushed = dict(zip(directories, pool.call_together(_failure, directories.values()), strict=True))
        # What comes next may wait for the disk as well.
        pool.call_together(partial(_go_on, flushed), waiting)


def _go_on(flushed: Mapping[object, BaseException | None], change: FlushedChange[Any]) -> None:
    """Flush what a change waits for, unless `flushed` has the outcome of that already; then take the change on."""
    asked = change.waits_for
    assert asked is not None
    key = _key(asked)
    change.go_on(flushed[key] if key in flushed else _failure(asked))


def _key(asked: ToFlush) -> object:
    try:
        return file_id(os.fstat(asked.descriptor)) if asked.is_directory else asked
    except OSError:
        return asked


def _failure(asked: ToFlush) -> BaseException | None:
    try:
        asked.flush()
    except BaseException as error:
        return error
    return None


def carry_out(starts: Sequence[Callable[[], Steps[Any]]]) -> Iterator[FlushedChange[Any]]:
    """Carry out changes that do not depend on one another, flushing up to 40 together.

    Yields the changes, in order, each when it has ended.
    """
    begun = 0
    while begun < len(starts):
        changes: list[FlushedChange[Any]] = []
        for start in starts[begun : begun + _MOST_TOGETHER]:
            change = FlushedChange(start)
            if changes and is_shortage(change.error):
                break  # The changes that have begun give their descriptors back when they end.
            changes.append(change)
        begun += len(changes)
        finish_together(changes)
        yield from changes
