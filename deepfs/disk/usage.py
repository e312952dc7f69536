"""The room that a directory takes on the disk, and a limit of it: files are measured, without quotas of the kernel."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from errno import EACCES, ENOENT, EPERM
from typing import Any, Final

from deepfs.disk.engine import Disk
from deepfs.disk.file_locks import LockHeldError
from deepfs.disk.os_calls import LINK_ERRORS, NO_FOLLOW, READ_DIRECTORY, FileId, file_id, open_as_owner
from deepfs.disk.resolve import Root
from deepfs.disk.trees import directories
from deepfs.disk.writing import Upload, Writer
from deepfs.errors import DeepFSError, NotFoundError, QuotaExceededError
from deepfs.text.entries import EntryChange
from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import ForkSafeLock

_BLOCK: Final = 512
_PAGE: Final = 4096
_ROUNDS: Final = 3


# --- measuring ---


def disk_use(directory: str, limit: int, deadline: Deadline) -> int:
    """The bytes that a directory takes on the disk, with all in it; hard links count once. Follows no symlink in it.

    A directory that its mode keeps from this process, its owner, gets a mode with all rights for the owner. An entry
    counts for 512 bytes at least. The directory need not exist.

    The result is `limit` or less only if all was measured: it is more where that has been reached, and where something
    could not be measured, in three attempts. Raises DeadlineError.
    """
    for _ in range(_ROUNDS):
        try:
            return _measure(directory, limit, deadline)
        except OSError:
            continue  # A directory was moved while it was measured, or the system is short of something.
    return limit + 1


def _measure(directory: str, limit: int, deadline: Deadline) -> int:
    """Add up sizes in one walk, until they exceed `limit`."""
    total = 0
    linked: set[FileId] = set()
    """Files with several names."""
    with closing(directories(directory, None, "", _open_to_list, by_names=True)) as found:
        for level in found:
            deadline.check()
            with os.scandir(level.descriptor) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        level.inside.append(entry.name)
                    elif status.st_nlink > 1:
                        if file_id(status) in linked:
                            continue
                        linked.add(file_id(status))
                    total += max(status.st_blocks, 1) * _BLOCK
                    if total > limit:
                        return total
    return total


def _open_to_list(name: str, parent: int | None) -> int | None:
    """An open directory; None if it is gone, or if neither this process nor its commands get into it."""
    try:
        # The start may be reached through a symlink.
        return os.open(name, READ_DIRECTORY | (0 if parent is None else NO_FOLLOW), dir_fd=parent)
    except OSError as error:
        if error.errno == ENOENT or (error.errno in LINK_ERRORS and parent is not None):
            return None
        if error.errno != EACCES:
            raise
    try:
        return open_as_owner(name, parent)
    except OSError as error:
        if error.errno == EPERM and not os.access(name, os.X_OK, dir_fd=parent):
            return None
        raise


# --- limiting ---


class DiskUse:
    """The bytes that the files in a directory take, known from the last measurement and what was added since."""

    def __init__(self, directory: str, limit: int) -> None:
        self.limit: int = limit
        self.directory: str = directory
        self._lock = ForkSafeLock()
        self._known: int | None = None
        self._pending = 0
        """Bytes of changes that are being made."""
        self._made = 0
        """Bytes of all changes that have been made."""
        self._process = os.getpid()

    def measure(self, deadline: Deadline) -> int:
        """Measure the directory; return its bytes, or more than the limit if it cannot be measured."""
        made = self._made
        found = disk_use(self.directory, self.limit, deadline)
        with self._lock:
            self._known = found + self._made - made
            return self._known

    def forget(self) -> None:
        """Measure again before the next change, since others may have changed files."""
        with self._lock:
            self._known = None

    @contextmanager
    def room(self, path: str, size: int, deadline: Deadline) -> Iterator[None]:
        """A block that adds up to `size` bytes to a file in the directory; the disk stores whole pages.

        Raises QuotaExceededError, about `path`, if that would exceed the limit.
        """
        size = max(-(-size // _PAGE), 0) * _PAGE
        if size and not self._take(size):
            self.measure(deadline)
            if not self._take(size):
                raise QuotaExceededError(path, (self._known or 0) + self._pending + size, self.limit)
        try:
            yield
        except LockHeldError as error:
            self._settle(size, made=error.has_changed)
            raise
        except BaseException:
            self._settle(size)
            raise
        self._settle(size)

    def _take(self, size: int) -> bool:
        """Take room for a change if the limit is known to allow it."""
        with self._lock:
            if self._process != os.getpid():  # The parent ends its changes itself, and others change files meanwhile.
                self._process, self._known, self._pending = os.getpid(), None, 0
            if self._known is None or self._known + self._pending + size > self.limit:
                return False
            self._pending += size
            return True

    def _settle(self, size: int, *, made: bool = True) -> None:
        with self._lock:
            self._pending -= size
            if made:
                self._made += size
                if self._known is not None:
                    self._known += size


class BoundedDisk(Disk):
    """A Disk that refuses what would exceed the limit of `use`, with QuotaExceededError."""

    def __init__(self, root: str, use: DiskUse) -> None:
        super().__init__(root)
        self._use = use

    def write_file(self, path: str, data: bytes, *, deadline: Deadline | None = None, **options: Any) -> None:
        with self._room(path, len(data), deadline):
            super().write_file(path, data, deadline=deadline, **options)

    def _room(self, path: str, size: int, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Room for `size` bytes at `path`: they replace a file, or take at least a page, as does each new directory."""
        missing = _count_missing(self._root, path)
        growth = max(size, 1) if missing else size - self._freed_bytes(path)
        return self._use.room(path, growth + _PAGE * max(missing - 1, 0), deadline or Deadline())

    def _freed_bytes(self, path: str) -> int:
        """The bytes of a file that its replacement frees."""
        try:
            status = self.stat(path)
        except DeepFSError:
            return 0
        return status.st_blocks * _BLOCK if status.st_nlink == 1 and stat.S_ISREG(status.st_mode) else 0

    def edit_file(
        self, path: str, change: Callable[[bytes], bytes], *, deadline: Deadline | None = None, **options: Any
    ) -> None:
        with ExitStack() as rooms:

            def reserve(data: bytes) -> bytes:
                content = change(data)
                growth = len(content) - self._freed_bytes(path)
                rooms.enter_context(self._use.room(path, growth, deadline or Deadline()))
                return content

            super().edit_file(path, reserve, deadline=deadline, **options)

    def upload(self, path: str) -> Upload:
        with self._use.room(path, 1, Deadline()):
            return _BoundedUpload(self._use, self._writer, path)

    def change_entry(self, change: EntryChange) -> None:
        with self._room(change.path, 0) if change.change == "make_directory" else nullcontext():
            super().change_entry(change)

    def move(self, src: str, dst: str, *, deadline: Deadline | None = None, **options: Any) -> None:
        with _room_above(self._use, self._root, dst, deadline or Deadline()):
            super().move(src, dst, deadline=deadline, **options)

    def copy(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        # In whole pages; the copy of a sparse file is not sparse.
        size = sum(-(-max(entry.size or 0, 1) // _PAGE) * _PAGE for entry in self.list_tree(src, deadline).entries)
        with self._room(dst, size, deadline):
            super().copy(src, dst, overwrite=overwrite, deadline=deadline)


class _BoundedUpload(Upload):
    """A new file whose parts need room."""

    def __init__(self, use: DiskUse, writer: Writer, path: str) -> None:
        super().__init__(writer, path)
        self._use = use

    def write(self, data: bytes) -> None:
        with self._use.room(self._path, len(data), Deadline()):
            super().write(data)

    def put(self, deadline: Deadline) -> None:
        with _room_above(self._use, self._root, self._path, deadline):
            super().put(deadline)


def _room_above(use: DiskUse, root: Root, path: str, deadline: Deadline) -> AbstractContextManager[None]:
    """Room for the directories above `path` that are to be made."""
    return use.room(path, _PAGE * max(_count_missing(root, path) - 1, 0), deadline)


def _count_missing(root: Root, path: str) -> int:
    """How many entries have to be made at `path` and above it; links are followed, also those that lead nowhere."""
    names = [name for name in (root.real_path(path) or path).split("/") if name]
    for count in range(len(names)):
        try:
            root.plain.stat("/" + "/".join(names[: len(names) - count]))
        except (NotFoundError, FileNotFoundError):
            continue
        except (DeepFSError, OSError):
            pass
        return count
    return len(names)
