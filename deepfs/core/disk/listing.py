"""The entries of one directory."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from deepfs.core import paths
from deepfs.core.disk.conditions import StorageErrors, is_shortage
from deepfs.core.disk.files import modified_at
from deepfs.core.disk.flags import READ_DIRECTORY
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Root, release
from deepfs.core.disk.temporary_names import is_temporary
from deepfs.errors import DeepFSError, FileMissingError

__all__ = ["Entry", "Listing", "is_shown", "list_directory", "open_directory"]

_CHECK_EVERY = 1024


class Entry(NamedTuple):
    """A child of a directory; `size` and `modified_at` are None where they cannot be told."""

    name: str
    is_dir: bool
    size: int | None
    modified_at: str | None
    """ISO 8601, UTC."""


class Listing(NamedTuple):
    """Entries sorted by path, where that of a directory ends in `/`; `truncated` where there are more."""

    entries: list[Entry]
    truncated: bool


def is_shown(name: str) -> bool:
    """Whether a file of this name has a path: it is no unfinished file, and its name is text."""
    return not is_temporary(name) and (name.isascii() or _is_text(name))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_directory(root: Root, path: str) -> int:
    """Open the directory at `path` to look through it; NotDirectoryError where something else is there."""
    with StorageErrors(path):
        return root.open(path, READ_DIRECTORY)


def list_directory(root: Root, path: str, limit: int | None, patience: Patience) -> Listing:
    """The children of the directory at `path`; a root that does not exist yet has none."""
    try:
        descriptor = open_directory(root, path)
    except FileMissingError:
        if path == "/":
            return Listing([], False)
        raise
    try:
        with StorageErrors(path), os.scandir(descriptor) as children:
            shown = (child for child in _patiently(children, path, patience) if is_shown(child.name))
            entries = [_entry(root, path, child) for child in islice(shown, limit)]
            truncated = limit is not None and next(shown, None) is not None
    finally:
        release(descriptor)
    entries.sort(key=_sort_key)
    return Listing(entries, truncated)


def _patiently(children: Iterator[os.DirEntry[str]], path: str, patience: Patience) -> Iterator[os.DirEntry[str]]:
    for count, child in enumerate(children):
        if count % _CHECK_EVERY == 0:
            patience.check(path)
        yield child


def _sort_key(entry: Entry) -> str:
    return f"{entry.name}/" if entry.is_dir else entry.name


def _entry(root: Root, directory: str, child: os.DirEntry[str]) -> Entry:
    try:
        own = child.stat(follow_symlinks=False)
    except OSError:
        return Entry(child.name, child.is_dir(follow_symlinks=False), None, None)
    if not stat.S_ISLNK(own.st_mode):
        return _told(child.name, own)
    try:
        return _told(child.name, root.stat(paths.join(directory, child.name)))
    except (OSError, DeepFSError) as error:
        if is_shortage(error):
            raise  # It may lead to a directory as well.
        return Entry(child.name, False, None, modified_at(own))


def _told(name: str, status: os.stat_result) -> Entry:
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return Entry(name, stat.S_ISDIR(status.st_mode), size, modified_at(status))
