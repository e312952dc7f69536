"""The place of a file on its host, told by devices and inodes: the same by whatever root, link or mount."""

import os
import stat
from collections.abc import Hashable, Sequence
from contextlib import suppress

from deepfs.core.disk.flocks import file_id
from deepfs.core.disk.places import Root
from deepfs.core.identity import StoragePlace
from deepfs.errors import DeepFSError

__all__ = ["place_of"]

_STORAGE = "disk"


def place_of(root: Root, path: str) -> StoragePlace:
    """Where `path` leads below `root`, with the directories above it, those above the root included.

    A path that leads nowhere, outside or into a circle of links, is a place by itself.
    """
    real = root.real_path(path)
    if real is None:
        return StoragePlace(frozenset([object()]), frozenset(), _STORAGE, is_sole=True)
    names = [name for name in real.split("/") if name]
    above, lacking = root.directories_above()
    down = [] if lacking else root.directories(names)
    missing = names[len(down) - 1 :] if down else [*lacking, *names]
    directories = [*reversed(above), *down]
    keys = _keys(root, real, directories[-1], missing)
    return StoragePlace(keys, frozenset(_above(directories, missing)) - keys, _STORAGE, is_sole=True)


def _entry(directory: os.stat_result, names: Sequence[str]) -> Hashable:
    return (*file_id(directory), *names)


def _above(directories: Sequence[os.stat_result], missing: Sequence[str]) -> list[Hashable]:
    """The directories above what `missing` names of the last of `directories`, or above that one itself."""
    return [
        *(_entry(directory, ()) for directory in directories),
        *(_entry(directories[-1], missing[:count]) for count in range(1, len(missing))),
    ]


def _keys(root: Root, path: str, directory: os.stat_result, missing: Sequence[str]) -> frozenset[Hashable]:
    """The names of what `missing` names of `directory`; of a file with one name also what it is by itself."""
    keys = [_entry(directory, missing)]
    if len(missing) == 1:
        # Where the file system ignores case, or files are mounted, one entry has several names.
        with suppress(DeepFSError, OSError), root.locate(path, follow=False) as place:
            status = place.lstat()
            if status is not None and status.st_nlink == 1 and not stat.S_ISDIR(status.st_mode):
                keys.append((*file_id(status), None))
    return frozenset(keys)
