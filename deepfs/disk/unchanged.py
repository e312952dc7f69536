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

from deepfs.disk.os_calls import READ, SEARCH, file_system_type, release
from deepfs.disk.reading import check_opened, refuse_used_database
from deepfs.disk.resolve import Root
from deepfs.errors import DeepFSError
from deepfs.text import paths as texts
from deepfs.text.lines import has_plain_lines
from deepfs.threads.deadline import Deadline

_SECOND: Final = 1_000_000_000
_SLACK_NS: Final = 2 * _SECOND
"""How long before the start the last change must be. Some of the file systems store whole seconds."""
_CLOCK_ERROR_NS: Final = _SECOND // 2
"""By how much the clock may be corrected during a search; if it was by more, no file counts as unchanged."""

_LOCAL: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x794C7630})
"""The types of ext2 to ext4, XFS, Btrfs, F2FS, tmpfs and overlayfs."""


class UnchangedFiles:
    """Selects the files of `root` that have not changed since this object was created, or within two seconds before.

    The paths in use must contain no symlinks.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._host_path = root.host_path.rstrip("/")
        self._last = time.time_ns() - _SLACK_NS
        self._clock = _clock()
        self._device = _local_device(root, self._last)

    @property
    def is_possible(self) -> bool:
        """Whether files can be selected: the root has not changed, and its file system tells when files do."""
        return self._device is not None

    def select_plain(self, files: Iterable[str], limit: int, deadline: Deadline) -> set[str]:
        """Those of `files` that are unchanged, have at most `limit` bytes, and are text with plain lines.

        Raises DeadlineError if the time is up.
        """
        if abs(_clock() - self._clock) > _CLOCK_ERROR_NS:
            return set()
        selected = [file for file in files if self._is_plain(file, limit, deadline)]
        directories = {texts.parent(file) for file in selected}
        directories.update([each for directory in directories for each in texts.ancestors(directory)], "/")
        unchanged = self._select_unchanged(directories, deadline)
        return {file for file in selected if texts.parent(file) in unchanged}

    def _is_plain(self, file: str, limit: int, deadline: Deadline) -> bool:
        """Whether a file is unchanged and plain, if the directories above it turn out to be unchanged."""
        deadline.check(file)
        try:
            status = os.lstat(self._host_path + file)
            if status.st_ctime_ns >= self._last or status.st_size > limit or not stat.S_ISREG(status.st_mode):
                return False
            refuse_used_database(file, status)
            key = _key(status)
            known = _plain.get(key)
            return _remember(key, self._content(file, key)) if known is None else known
        except (OSError, UnicodeEncodeError, DeepFSError):
            return False

    def _content(self, file: str, key: "_Key") -> bytes | None:
        """The content of a file; None if it is not the one with this key."""
        descriptor = self._root.open(file, READ)
        try:
            status = os.fstat(descriptor)
            if _key(status) != key:
                return None
            check_opened(file, descriptor, status)
            content = os.read(descriptor, status.st_size + 1)
            return content if _key(os.fstat(descriptor)) == key and len(content) == status.st_size else None
        finally:
            release(descriptor)

    def _select_unchanged(self, directories: Iterable[str], deadline: Deadline) -> set[str]:
        """The directories that have not changed, and neither have those above, which must be among them."""
        # From the bottom up: if a name above leads elsewhere while a directory is looked at, what is above has changed.
        is_unchanged = {each: self._is_unchanged(each, deadline) for each in sorted(directories, reverse=True)}
        unchanged: set[str] = set()
        for directory in reversed(is_unchanged):
            if is_unchanged[directory] and (directory == "/" or texts.parent(directory) in unchanged):
                unchanged.add(directory)
        return unchanged

    def _is_unchanged(self, directory: str, deadline: Deadline) -> bool:
        deadline.check(directory)
        try:
            status = os.lstat(self._host_path + directory)
        except (OSError, UnicodeEncodeError):
            return False
        is_old = status.st_ctime_ns < self._last and status.st_dev == self._device
        return is_old and stat.S_ISDIR(status.st_mode)


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
