"""Copying a directory tree into a new directory that nobody sees before it is complete."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from deepfs.disk.atomic import Fill, sync
from deepfs.disk.descent import Descent, OpenDirectory
from deepfs.disk.file_locks import mark
from deepfs.disk.os_errors import NOT_REGULAR, StorageErrors, leaf
from deepfs.disk.reading import blocks, regular_descriptor
from deepfs.disk.removal import remove_tree
from deepfs.disk.resolve import NEW, NO_FOLLOW, READ, READ_DIRECTORY, is_temporary, release, temporary_name
from deepfs.errors import AccessError
from deepfs.threads.deadline import Deadline

__all__ = ["ContentId", "content_id", "fill_from", "tree_copy"]

ContentId = tuple[int, int, int, int]


def content_id(status: os.stat_result) -> ContentId:
    """What tells a file as it is from what it becomes once it is written, by whatever name."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def fill_from(path: str, source: int, deadline: Deadline) -> Fill:
    """Write what the open file `source` holds, in bounded memory."""

    def write(descriptor: int) -> None:
        os.lseek(source, 0, os.SEEK_SET)
        for block in blocks(source):
            deadline.check_cancelled(path)
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    return write


@contextmanager
def tree_copy(
    path: str, source: int, directory: int, deadline: Deadline, copied: set[ContentId], *, durable: bool
) -> Iterator[str]:
    """A copy of the open directory `source`, as an unfinished directory in `directory`; gone unless it was renamed.

    What was `copied`, but for directories, is noted there as it was before it was read. Modes are kept as far as the
    umask allows, and the owner may always write in a copied directory. Links are copied as they are; what is neither
    file, directory nor link is refused.
    """
    name = temporary_name()
    try:
        target = _new_directory(name, source, directory)
        try:
            mark(target)
            _Copy(deadline, copied, durable).run(path, source, target)
            yield name
        finally:
            release(target)
    finally:
        remove_tree(directory, name)


def _new_directory(name: str, source: int, directory: int) -> int:
    os.mkdir(name, stat.S_IMODE(os.fstat(source).st_mode) | stat.S_IRWXU, dir_fd=directory)
    return os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=directory)


class _Level(OpenDirectory):
    """A directory being copied: first what is no directory, then the directories `inside` it."""

    __slots__ = ("children", "inside", "target")

    def __init__(self, name: str, source: int, target: int, *, borrowed: bool = False) -> None:
        super().__init__(name, source, borrowed=borrowed)
        self.target = OpenDirectory(name, target, borrowed=borrowed)
        self.inside: list[str] = []
        self.children = os.scandir(source)

    def rest(self) -> None:
        self.target.rest()
        super().rest()

    def wake(self, child: OpenDirectory) -> None:
        super().wake(child)
        if isinstance(child, _Level):
            self.target.wake(child.target)

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.target.close)
            closing.callback(super().close)
            self.children.close()


class _Copy:
    """One copy of a tree; the descriptors of its first level are the caller's."""

    def __init__(self, deadline: Deadline, copied: set[ContentId], durable: bool) -> None:
        self._deadline = deadline
        self._copied = copied
        self._durable = durable
        self._descent: Descent[_Level] = Descent(by_names=False)

    def run(self, path: str, source: int, target: int) -> None:
        with self._descent as descent:
            descent.enter(_Level(path, source, target, borrowed=True))
            while descent.levels:
                level = descent.levels[-1]
                self._copy_files(level)
                if level.inside:
                    name = level.inside.pop()
                    with StorageErrors(self._path(name)):
                        descent.enter(self._directory(level, name))
                else:
                    self._sync(level.target.descriptor)
                    descent.leave()
                    self._check_found(descent.levels[-1:])

    def _check_found(self, levels: list[_Level]) -> None:
        """Raise where the directory to go on with is not there any more."""
        for level in levels:
            if level.lost is not None:
                raise leaf(level.lost, self._path()) from level.lost

    def _path(self, *names: str) -> str:
        return "/".join([*(level.name for level in self._descent.levels), *names])

    def _copy_files(self, level: _Level) -> None:
        """Copy what is in a directory but for the directories, unless that was done."""
        for entry in level.children:
            if is_temporary(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                level.inside.append(entry.name)
                continue
            path = self._path(entry.name)
            self._deadline.check_cancelled(path)
            with StorageErrors(path):
                if entry.is_symlink():
                    self._copied.add(content_id(os.lstat(entry.name, dir_fd=level.descriptor)))
                    link = os.readlink(entry.name, dir_fd=level.descriptor)
                    os.symlink(link, entry.name, dir_fd=level.target.descriptor)
                elif entry.is_file(follow_symlinks=False):
                    self._file(path, level, entry.name)
                else:  # Opening a FIFO would let its writers go on, to nobody.
                    raise AccessError(path, NOT_REGULAR)

    def _directory(self, level: _Level, name: str) -> _Level:
        self._deadline.check_cancelled(name)
        with ExitStack() as undo:
            source = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=level.descriptor)
            undo.callback(release, source)
            target = _new_directory(name, source, level.target.descriptor)
            undo.callback(release, target)
            made = _Level(name, source, target)
            undo.pop_all()
            return made

    def _file(self, path: str, level: _Level, name: str) -> None:
        source = os.open(name, READ | NO_FOLLOW, dir_fd=level.descriptor)
        status = regular_descriptor(path, source)
        self._copied.add(content_id(status))
        try:
            target = os.open(name, NEW, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=level.target.descriptor)
            try:
                fill_from(path, source, self._deadline)(target)
                self._sync(target)
            finally:
                os.close(target)
        finally:
            release(source)

    def _sync(self, descriptor: int) -> None:
        if self._durable:
            sync(descriptor)
