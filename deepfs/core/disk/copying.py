"""Copying a directory tree into a new directory that nobody sees before it is complete."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from deepfs.core.disk.conditions import StorageErrors
from deepfs.core.disk.files import blocks, regular_descriptor
from deepfs.core.disk.flags import NEW, NO_FOLLOW, READ, READ_DIRECTORY
from deepfs.core.disk.flocks import mark
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import release
from deepfs.core.disk.removal import remove_tree
from deepfs.core.disk.temporaries import Fill, sync
from deepfs.core.disk.temporary_names import is_temporary, temporary_name

__all__ = ["fill_from", "tree_copy"]


def fill_from(path: str, source: int, patience: Patience) -> Fill:
    """Write what the open file `source` holds, in bounded memory."""

    def write(descriptor: int) -> None:
        os.lseek(source, 0, os.SEEK_SET)
        for block in blocks(source):
            patience.check_wanted(path)
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    return write


@contextmanager
def tree_copy(path: str, source: int, directory: int, patience: Patience, *, durable: bool) -> Iterator[str]:
    """A copy of the open directory `source`, as an unfinished directory in `directory`; gone unless it was renamed.

    Modes are kept as far as the umask allows, and the owner may always write in a copied directory. Links are copied as
    they are; what is neither file, directory nor link is refused.
    """
    name = temporary_name()
    try:
        target = _new_directory(name, source, directory)
        try:
            mark(target)
            _Copy(patience, durable).run(path, source, target)
            yield name
        finally:
            release(target)
    finally:
        remove_tree(directory, name)


def _new_directory(name: str, source: int, directory: int) -> int:
    os.mkdir(name, stat.S_IMODE(os.fstat(source).st_mode) | stat.S_IRWXU, dir_fd=directory)
    return os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=directory)


class _Level:
    """A directory being copied."""

    __slots__ = ("children", "path", "source", "target")

    def __init__(self, path: str, source: int, target: int) -> None:
        self.path = path
        self.source = source
        self.target = target
        self.children = os.scandir(source)


class _Copy:
    """One copy of a tree; the descriptors of its first level are the caller's."""

    def __init__(self, patience: Patience, durable: bool) -> None:
        self._patience = patience
        self._durable = durable

    def run(self, path: str, source: int, target: int) -> None:
        levels = [_Level(path, source, target)]
        try:
            while levels:
                level = levels[-1]
                entry = next(level.children, None)
                if entry is None:
                    self._sync(level.target)
                    self._close(levels)
                elif not is_temporary(entry.name):
                    child = self._copy(level, entry)
                    if child is not None:
                        levels.append(child)
        finally:
            while levels:
                self._close(levels)

    def _close(self, levels: list[_Level]) -> None:
        level = levels.pop()
        level.children.close()
        if levels:
            try:
                release(level.source)
            finally:
                release(level.target)

    def _copy(self, level: _Level, entry: os.DirEntry[str]) -> _Level | None:
        """Copy one entry; a directory is made and returned, to be gone through."""
        path = f"{level.path}/{entry.name}"
        self._patience.check_wanted(path)
        with StorageErrors(path):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.name, dir_fd=level.source), entry.name, dir_fd=level.target)
            elif entry.is_dir(follow_symlinks=False):
                return self._directory(path, level, entry.name)
            else:
                self._file(path, level, entry.name)
        return None

    def _directory(self, path: str, level: _Level, name: str) -> _Level:
        with ExitStack() as undo:
            source = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=level.source)
            undo.callback(release, source)
            target = _new_directory(name, source, level.target)
            undo.callback(release, target)
            made = _Level(path, source, target)
            undo.pop_all()
            return made

    def _file(self, path: str, level: _Level, name: str) -> None:
        source = os.open(name, READ | NO_FOLLOW, dir_fd=level.source)
        status = regular_descriptor(path, source)
        try:
            target = os.open(name, NEW, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=level.target)
            try:
                fill_from(path, source, self._patience)(target)
                self._sync(target)
            finally:
                os.close(target)
        finally:
            release(source)

    def _sync(self, descriptor: int) -> None:
        if self._durable:
            sync(descriptor)
