"""Locks on files that hold between processes, and leave no lock files in the tree.

The lock is on the file itself (`flock`), so a process that dies releases it. A change replaces the file at a path by
another one. A process that gets the lock therefore checks whether the path still leads to the locked file, and
otherwise starts again with the file that is there. No process waits for a lock while it holds another one: if one of
several locks is taken, all are released and tried again, so there are no deadlocks.

No thread waits for a lock, since that would keep it from others. A change that finds a lock taken ends with
LockHeldError before it has changed anything; `when_free` makes it again after a pause on the event loop.
"""

import errno
import logging
import os
import random
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import anyio

from deepfs.disk.os_calls import READ, UPDATE, FileId, file_id, release
from deepfs.disk.reading import check_opened, check_regular
from deepfs.disk.resolve import Place
from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import ForkSafeLock, after_fork

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger("deepfs")

_T = TypeVar("_T")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01
_ATTEMPTS_A_SECOND = 1000
"""The most attempts of all waiting changes of this process together, so that many of them leave room for others."""
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY})


class _ProcessLocks:
    """Locks between the threads of this process, for file systems without `flock`."""

    def __init__(self) -> None:
        self._guard = ForkSafeLock()
        self._held: set[FileId] = set()
        self._has_warned = False
        """Whether the warning was logged."""

    def try_lock(self, file: FileId) -> bool:
        with self._guard:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("A file system in use offers no locks: edits are safe within this process only")
            free = file not in self._held
            self._held.add(file)
            return free

    def unlock(self, file: FileId) -> None:
        if self._held:
            with self._guard:
                self._held.discard(file)


_process_locks = _ProcessLocks()


@after_fork
def _after_fork() -> None:
    global _process_locks
    _process_locks = _ProcessLocks()


def try_lock(descriptor: int) -> bool:
    """Lock the file behind `descriptor` if it is free; never waits."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return _process_locks.try_lock(file_id(os.fstat(descriptor)))
    return True


def lock_if_unused(descriptor: int) -> bool:
    """Lock a file while `descriptor` is open, to show that it is in use.

    Returns False if another holds it, or on a file system without such locks, where nobody can tell: `try_lock` would
    take the lock of this process then, which others do not see.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(descriptor: int, file: FileId) -> None:
    """Release a lock. Closing the descriptor is not enough: a child process forked meanwhile shares the lock."""
    _process_locks.unlock(file)
    try:  # noqa: SIM105 - as in `release`
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


class LockHeldError(Exception):
    """Others hold the lock of a file; the change can be repeated with the same arguments."""

    def __init__(self, *, has_changed: bool = False) -> None:
        super().__init__()
        self.has_changed: bool = has_changed
        """Whether a part of the change has been made, with which the next attempt goes on."""


_waiting: set[object] = set()


async def when_free(change: Callable[[], Awaitable[_T]]) -> _T:
    """Await `change` again and again until it does not raise LockHeldError; the pauses occupy no thread."""
    pause, waiter = _SHORTEST_PAUSE, object()
    try:
        while True:
            with suppress(LockHeldError):
                return await change()
            _waiting.add(waiter)
            await anyio.sleep(max(pause * random.uniform(0.5, 1), len(_waiting) / _ATTEMPTS_A_SECOND))
            pause = min(pause * 2, _LONGEST_PAUSE)
    finally:
        _waiting.discard(waiter)


class LockedFile:
    """A regular file that is open for reading, and locked until the end of a `with` block."""

    __slots__ = ("descriptor", "status")

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor: int = descriptor
        self.status: os.stat_result = status
        """The status of the file from just before it was locked."""

    def __enter__(self) -> "LockedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Unlock and close the file."""
        unlock(self.descriptor, file_id(self.status))
        release(self.descriptor)


def lock_file(path: str, place: Place, deadline: Deadline) -> LockedFile:
    """Lock the regular file at `place`, which is about to be replaced, and open it for reading.

    Raises OSError if the file does not exist, or may not be written although its directory may; LockHeldError if others
    hold the lock, or DeadlineError if they did for too long.
    """
    if place.found is not None and not stat.S_ISLNK(place.found.st_mode):
        check_regular(path, place.found)  # Opening a FIFO would wake its writers, although nothing reads.
    return _if_locked(_try_lock_standing(path, place, place.open(UPDATE)), path, deadline)


@contextmanager
def lock_places(path: str, places: Sequence[Place], deadline: Deadline) -> Iterator[None]:
    """Lock those of `places` that are regular files and can be opened, before they are moved or removed.

    Raises LockHeldError or DeadlineError as `lock_file` does.
    """
    with _if_locked(_try_hold_all(path, places), path, deadline):
        yield


def _if_locked(locked: _T | None, path: str, deadline: Deadline) -> _T:
    if locked is None:
        deadline.check(path)
        raise LockHeldError
    return locked


def _try_lock_standing(path: str, place: Place, descriptor: int) -> LockedFile | None:
    """Lock the open file if it is free and still at `place`; otherwise close `descriptor` and return None."""
    locked = None
    try:
        status = os.fstat(descriptor)
        check_opened(path, descriptor, status)
        if try_lock(descriptor):
            locked = file_id(status)
            standing = place.lstat()
            if standing is not None and file_id(standing) == locked:
                return LockedFile(descriptor, status)
    except BaseException:
        _give_back(descriptor, locked)
        raise
    _give_back(descriptor, locked)
    return None


def _give_back(descriptor: int, locked: FileId | None) -> None:
    """Close a descriptor, and before that unlock the file."""
    if locked is not None:
        unlock(descriptor, locked)
    release(descriptor)


def _try_hold_all(path: str, places: Sequence[Place]) -> ExitStack | None:
    """Lock all files of `places`, or none and return None; a file with two names is locked once."""
    with ExitStack() as files:
        locked: set[FileId] = set()
        for place in places:
            status = place.lstat()
            if status is None or not stat.S_ISREG(status.st_mode) or file_id(status) in locked:
                continue
            check_regular(path, status)
            descriptor = _open_if_allowed(place)
            if descriptor is None:
                continue
            file = _try_lock_standing(path, place, descriptor)
            if file is None:
                return None
            files.callback(file.give_back)
            locked.add(file_id(file.status))
        return files.pop_all()


def _open_if_allowed(place: Place) -> int | None:
    """Open a file to lock it, if possible for writing, which some network file systems require; None if impossible."""
    for access in (UPDATE, READ):
        try:
            return place.open(access)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno not in _MAY_NOT:
                raise
    return None
