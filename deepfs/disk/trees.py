"""Whole trees for a transfer to another storage: every entry as it is, and the changes of directories and modes."""

import os
import stat
from collections.abc import Hashable, Sequence
from contextlib import suppress

from deepfs.disk.atomic import sync_directory
from deepfs.disk.descent import Descent, OpenDirectory
from deepfs.disk.file_locks import file_id
from deepfs.disk.os_errors import StorageErrors, leaf
from deepfs.disk.resolve import NO_FOLLOW, READ, READ_DIRECTORY, Place, Root, is_temporary, may_change, release
from deepfs.errors import AccessError, DeepFSError, ErrorCode, FileMissingError
from deepfs.text import paths
from deepfs.text.entries import (
    EntryChange,
    Kind,
    Omission,
    StoragePlace,
    TreeEntry,
    TreeListing,
    is_valid,
    joined,
    omission_of_name,
    unreadable_omission,
)
from deepfs.threads.deadline import Deadline

__all__ = ["change_entry", "list_tree", "place_of"]

_PERMISSIONS = 0o777


def list_tree(root: Root, path: str, deadline: Deadline, *, deleting: bool) -> TreeListing:
    """Every entry at or under `path`, a link as itself; a root that does not exist yet is an empty directory.

    With `deleting`, directories whose entries may not be deleted count as omitted.
    """
    try:
        with StorageErrors(path), root.locate(path, follow=False) as place:
            return _Listing(root, deadline, deleting).run(path, place)
    except FileMissingError:
        if path == "/":
            return TreeListing([TreeEntry(path, "directory")])
        raise


class _Level(OpenDirectory):
    """A directory being listed, with the paths of the directories in it that are still to be."""

    __slots__ = ("inside",)

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__(name, descriptor)
        self.inside: list[str] = []


class _Listing:
    """One walk; each open directory is the place of what is looked at next, so that no link is followed."""

    def __init__(self, root: Root, deadline: Deadline, deleting: bool) -> None:
        self._root = root
        self._deadline = deadline
        self._deleting = deleting
        self._entries: list[TreeEntry] = []
        self._omission: Omission | None = None

    def run(self, path: str, place: Place) -> TreeListing:
        status = place.lstat()
        if status is None:
            raise FileMissingError(path)
        self._add(path, status)
        if self._deleting:
            self._check_changeable(place.directory)
        if stat.S_ISDIR(status.st_mode):
            self._walk(path, place)
        return TreeListing(self._entries, self._omission)

    def _walk(self, path: str, place: Place) -> None:
        with Descent[_Level](by_names=False) as descent:
            self._enter(descent, place.directory, place.name, path)
            while descent.levels:
                self._deadline.check(path)
                level = descent.levels[-1]
                if level.lost is not None:
                    raise leaf(level.lost, path) from level.lost
                if level.inside:
                    child = level.inside.pop()
                    self._enter(descent, level.descriptor, paths.name(child), child)
                else:
                    descent.leave()

    def _enter(self, descent: Descent[_Level], parent: int, name: str, path: str) -> None:
        """Go into a directory; its entries are noted, or that it cannot be listed."""
        try:
            descriptor = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent)
        except (PermissionError, NotADirectoryError, FileNotFoundError):
            self._omit(unreadable_omission())
            return
        level = _Level(name, descriptor)
        descent.enter(level)
        level.inside = self._listed(descriptor, path)

    def _listed(self, descriptor: int, directory: str) -> list[str]:
        below = []
        with os.scandir(descriptor) as children:
            for child in sorted(children, key=lambda child: child.name):
                path = paths.join(directory, child.name)
                if is_temporary(child.name):
                    continue
                if not is_valid(path):
                    self._omit(omission_of_name(child.name))
                elif self._add(path, child.stat(follow_symlinks=False)) == "directory":
                    below.append(path)
        if self._deleting:
            self._check_changeable(descriptor)
        return below

    def _add(self, path: str, status: os.stat_result) -> Kind:
        kind = _kind(status)
        size = status.st_size if kind == "file" else None
        leads_to = self._leads_to(path) if kind == "link" else None
        mode = None if kind == "link" else stat.S_IMODE(status.st_mode) & _PERMISSIONS
        self._entries.append(TreeEntry(path, kind, size, mode, leads_to))
        return kind

    def _leads_to(self, path: str) -> Kind | None:
        try:
            return _kind(self._root.stat(path))
        except (OSError, DeepFSError):
            return None

    def _check_changeable(self, directory: int) -> None:
        if not may_change(directory):
            self._omit(Omission(1, ErrorCode.PERMISSION_DENIED, "what lies in a directory of it may not be deleted"))

    def _omit(self, omission: Omission) -> None:
        self._omission = joined(self._omission, omission)


def _kind(status: os.stat_result) -> Kind:
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    if stat.S_ISLNK(status.st_mode):
        return "link"
    return "file" if stat.S_ISREG(status.st_mode) else "special"


def change_entry(root: Root, change: EntryChange, *, durable: bool) -> None:
    """Make the change; ExistsError where a directory that is to be made is there, or one to be removed not empty."""
    if change.change == "make_directory":
        _make_directory(root, change.path, change.mode, durable)
    elif change.change == "remove_directory":
        _remove_directory(root, change.path, durable)
    else:
        _set_mode(root, change.path, change.mode)


def _make_directory(root: Root, path: str, mode: int | None, durable: bool) -> None:
    with StorageErrors(path), root.locate_target(path) as place:
        os.mkdir(place.name, _PERMISSIONS, dir_fd=place.directory)
        if mode is not None:
            # What is to be put into it needs the owner's rights.
            _change_mode(place, mode | stat.S_IRWXU)
        sync_directory(place.directory, durable)


def _remove_directory(root: Root, path: str, durable: bool) -> None:
    with StorageErrors(path), root.locate(path, follow=False) as place:
        if root.must_stay(place.names):
            raise AccessError(path, "the root cannot be deleted")
        os.rmdir(place.name, dir_fd=place.directory)
        sync_directory(place.directory, durable)


def _set_mode(root: Root, path: str, mode: int | None) -> None:
    if mode is not None:
        with StorageErrors(path), root.locate(path, follow=False) as place:
            _change_mode(place, mode)


def _change_mode(place: Place, mode: int) -> None:
    descriptor = place.open(READ)
    try:
        os.fchmod(descriptor, mode & _PERMISSIONS)
    finally:
        release(descriptor)


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
