"""Which files have not changed since a search began, as the system tells without reading the whole tree before.

A program that opens files by name, such as ripgrep, can be led elsewhere: another process may replace a directory by a
symlink for a moment. What such a program found in a file counts only if nothing changed meanwhile: neither the file,
nor the names in its directory and in those above. Each such change sets a change time (ctime), which nobody can set
back. A directory is checked after everything beneath it, so its names were the same until then.

Change times only count where this machine's clock made them, on file systems known to do so, and while nobody sets that
clock.
"""

import os
import stat
import time
from collections.abc import Iterable
from typing import Final

from deepfs.disk.os_calls import NO_FOLLOW, READ, SEARCH, file_system_type, release
from deepfs.disk.resolve import Root
from deepfs.errors import DeepFSError
from deepfs.text import paths as texts
from deepfs.text.lines import has_plain_lines
from deepfs.threads.deadline import Deadline

__all__ = ["UnchangedFiles"]

_SECOND: Final = 1_000_000_000
_SLACK_NS: Final = 2 * _SECOND
"""How long before the start the last change must be. Some of the file systems store whole seconds."""
_CLOCK_ERROR_NS: Final = _SECOND // 2

_LOCAL: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x794C7630})
"""The types of ext2 to ext4, XFS, Btrfs, F2FS, tmpfs and overlayfs."""


class UnchangedFiles:
    """Selects the files of `root` that have not changed since this object was created, or within two seconds before.

    The paths in use must contain no symlinks.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._last = time.time_ns() - _SLACK_NS
        self._clock = _clock()
        self._device = _local_device(root, self._last)

    @property
    def is_possible(self) -> bool:
        """Whether files can be selected: the root has not changed, and its file system tells when files do."""
        return self._device is not None

    def select_plain(self, files: Iterable[str], limit: int, deadline: Deadline) -> set[str]:
        """Those of `files` that are unchanged, have at most `limit` bytes, and are text with plain lines.

        Args:
            files: Their paths.
            limit: The most bytes of a file.
            deadline: When to stop.

        Raises:
            DeadlineError: The time is up.
        """
        if abs(_clock() - self._clock) > _CLOCK_ERROR_NS:
            return set()
        names: dict[str, list[str]] = {}
        for file in files:
            names.setdefault(texts.parent(file), []).append(file)
        above = {each for directory in names for each in (directory, *texts.ancestors(directory), "/")}
        # Children come before their parents.
        found = {each: self._selected(each, names.get(each, ()), limit, deadline) for each in _upwards(above)}
        return {file for each in _unchanged(found) for file in found[each] or ()}

    def _selected(self, directory: str, files: Iterable[str], limit: int, deadline: Deadline) -> list[str] | None:
        """Select from the `files` in a directory; None if the directory has changed."""
        deadline.check(directory)
        try:
            descriptor = self._root.open(directory, SEARCH)
        except (OSError, DeepFSError):
            return None
        try:
            selected = [file for file in files if self._is_plain(descriptor, file, limit, deadline)]
            status = os.fstat(descriptor)
        finally:
            release(descriptor)
        return selected if status.st_ctime_ns < self._last and status.st_dev == self._device else None

    def _is_plain(self, directory: int, file: str, limit: int, deadline: Deadline) -> bool:
        name = file[file.rfind("/") + 1 :]
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_ctime_ns >= self._last or status.st_size > limit or not stat.S_ISREG(status.st_mode):
                return False
            key = _key(status)
            if (known := _plain.get(key)) is None:
                deadline.check(file)
                known = _remember(key, _content(directory, name, key))
        except (OSError, UnicodeEncodeError):
            return False
        return known


_Key = tuple[int, int, int]
_plain: dict[_Key, bool] = {}
"""Whether the lines of files are plain. Content cannot change without a new change time."""
_MAX_REMEMBERED = 16_384


def _key(status: os.stat_result) -> _Key:
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _remember(key: _Key, content: bytes | None) -> bool:
    if content is None:
        return False
    if len(_plain) >= _MAX_REMEMBERED:
        _plain.clear()
    is_plain = _plain[key] = has_plain_lines(content)
    return is_plain


def _content(directory: int, name: str, key: _Key) -> bytes | None:
    """The content of a file; None if it is not the one with this key."""
    descriptor = os.open(name, READ | NO_FOLLOW, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        content = os.read(descriptor, status.st_size + 1)
        return content if _key(os.fstat(descriptor)) == key and len(content) == status.st_size else None
    finally:
        release(descriptor)


def _clock() -> int:
    """The difference between the clock that files get their times from and one that nobody can set."""
    return time.time_ns() - time.monotonic_ns()


def _local_device(root: Root, last: int) -> int | None:
    """The device of the root; None if it changed after `last`, or if its times are not those of this machine."""
    try:
        descriptor = root.open("/", SEARCH)
    except (OSError, DeepFSError):
        return None
    try:
        status = os.fstat(descriptor)
        return status.st_dev if status.st_ctime_ns < last and file_system_type(descriptor) in _LOCAL else None
    finally:
        release(descriptor)


def _upwards(directories: Iterable[str]) -> list[str]:
    return sorted(directories, reverse=True)


def _unchanged(found: dict[str, list[str] | None]) -> set[str]:
    """The directories that have not changed, and neither have those above."""
    unchanged: set[str] = set()
    for directory in reversed(found):
        if found[directory] is not None and (directory == "/" or texts.parent(directory) in unchanged):
            unchanged.add(directory)
    return unchanged
