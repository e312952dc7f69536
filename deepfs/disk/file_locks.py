"""Locks on files that other processes respect, with nothing left behind in the tree.

The lock is on the file itself (`flock`). Since a change replaces the file, whoever gets the lock looks whether the file
is still the one that stands at its place, and begins anew with the one that does if not. So the lock of a path passes
on from file to file, and a process that dies frees it. Locks are never waited for while another one is held: where one
of several is taken, all are given back, so nobody waits in a circle.
"""

import errno
import logging
import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import NamedTuple, TypeVar

from deepfs.disk.os_calls import READ, UPDATE, FileId, file_id, release
from deepfs.disk.reading import check_regular
from deepfs.disk.resolve import Place
from deepfs.threads.deadline import Deadline

if sys.platform != "win32":
    import fcntl

__all__ = ["locked_file", "locked_places", "mark_in_use"]

_log = logging.getLogger("deepfs")

_T = TypeVar("_T")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY})


class _ProcessLocks:
    """Locks between the threads of this process, for file systems that offer no others."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._held: set[FileId] = set()
        self._told = False

    def try_lock(self, file: FileId) -> bool:
        with self._guard:
            if not self._told:
                self._told = True
                _log.warning("A file system in use offers no locks: edits are safe within this process only")
            free = file not in self._held
            self._held.add(file)
            return free

    def unlock(self, file: FileId) -> None:
        with self._guard:
            self._held.discard(file)


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


def mark_in_use(descriptor: int) -> bool:
    """Lock a file while `descriptor` is open, so that others see that it is in use; False where one holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(descriptor: int, file: FileId) -> None:
    """Give a lock back. A child that was forked meanwhile shares it, so closing the descriptor is not enough."""
    _process_locks.unlock(file)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class _Held(NamedTuple):
    descriptor: int
    file: FileId

    def give_back(self) -> None:
        unlock(*self)
        release(self.descriptor)


@contextmanager
def locked_file(path: str, place: Place, deadline: Deadline) -> Iterator[int]:
    """Lock the regular file at `place`, which is to be replaced, and open it for reading.

    PermissionDeniedError where the file may not be written, although its directory may; NotFoundError where nothing is
    there, DeadlineError where the lock does not come in time.
    """
    file = _wait(lambda: _try_hold(path, place), path, deadline)
    try:
        yield file.descriptor
    finally:
        file.give_back()


@contextmanager
def locked_places(path: str, places: Sequence[Place], deadline: Deadline) -> Iterator[None]:
    """Lock those of `places` where a regular file stands that may be opened, which are to be moved, or removed."""
    with _wait(lambda: _try_hold_all(path, places), path, deadline):
        yield


def _wait(attempt: Callable[[], _T | None], path: str, deadline: Deadline) -> _T:
    """What `attempt` returns once it is not None; asked again and again, so that the wait can end at any time."""
    pause = _SHORTEST_PAUSE
    while (result := attempt()) is None:
        deadline.check(path)
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(pause * 2, _LONGEST_PAUSE)
    return result


def _try_hold(path: str, place: Place) -> _Held | None:
    """The file at `place`, locked; None where somebody else has it or has just replaced it."""
    status = place.lstat()
    if status is not None and not stat.S_ISLNK(status.st_mode):
        check_regular(path, status)  # Opening a FIFO would let its writers go on, to nobody.
    return _try_lock_standing(path, place, place.open(UPDATE))


def _try_lock_standing(path: str, place: Place, descriptor: int) -> _Held | None:
    """The file behind `descriptor`, locked, as long as it stands at `place`; closes the descriptor otherwise."""
    with ExitStack() as undo:
        undo.callback(release, descriptor)
        status = os.fstat(descriptor)
        check_regular(path, status)
        if not try_lock(descriptor):
            return None
        file = _Held(descriptor, file_id(status))
        undo.callback(unlock, *file)
        standing = place.lstat()
        if standing is None or file_id(standing) != file.file:
            return None
        undo.pop_all()
        return file


def _try_hold_all(path: str, places: Sequence[Place]) -> ExitStack | None:
    """Locks on all files of `places`, or none of them; the same file, under two names, counts once."""
    with ExitStack() as files:
        locked: set[FileId] = set()
        for place in places:
            status = place.lstat()
            if status is None or not stat.S_ISREG(status.st_mode) or file_id(status) in locked:
                continue
            descriptor = _open_if_allowed(place)
            if descriptor is None:
                continue
            file = _try_lock_standing(path, place, descriptor)
            if file is None:
                return None
            files.callback(file.give_back)
            locked.add(file.file)
        return files.pop_all()


def _open_if_allowed(place: Place) -> int | None:
    """Open a file to lock it, for writing where that is allowed, since some network file systems demand it."""
    for access in (UPDATE, READ):
        try:
            return place.open(access)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno not in _MAY_NOT:
                raise
    return None
