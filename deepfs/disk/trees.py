"""Whole trees: copied into a hidden directory until the copy is complete, and listed for a transfer."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from deepfs.disk.atomic import Fill
from deepfs.disk.databases import check_entry
from deepfs.disk.file_locks import mark_in_use
from deepfs.disk.flushing import sync
from deepfs.disk.os_calls import (
    NEW,
    NO_FOLLOW,
    NOT_REGULAR,
    READ,
    READ_DIRECTORY,
    StorageErrors,
    is_temporary,
    leaf,
    may_change,
    release,
    temporary_name,
)
from deepfs.disk.reading import blocks, regular_descriptor
from deepfs.disk.removal import remove_tree
from deepfs.disk.resolve import Place, Root
from deepfs.disk.walking import Descent, OpenDirectory
from deepfs.errors import DeepFSError, ErrorCode, NotFoundError, PermissionDeniedError
from deepfs.text import paths
from deepfs.text.entries import (
    Kind,
    Omission,
    TreeEntry,
    TreeListing,
    is_valid,
    joined,
    omission_of_name,
    unreadable_omission,
)
from deepfs.text.judging import permits
from deepfs.threads.deadline import Deadline

__all__ = ["ContentId", "content_id", "fill_from", "list_tree", "tree_copy"]


# --- copying ---------------------------------------------------------------------------------------------------------

ContentId = tuple[int, int, int, int]


def content_id(status: os.stat_result) -> ContentId:
    """Identifies the present state of a file, whatever its name; changes when the file is written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def fill_from(path: str, source: int, deadline: Deadline) -> Fill:
    """Return a Fill that writes the content of the open file `source`, in bounded memory."""

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
    """Copy the open directory `source` to a temporary directory in `directory`, which is removed unless it was renamed.

    Yields the name of the copy. `copied` receives the state of every copied entry, directories excepted, from before it
    was read. Modes are kept as far as the umask allows, and the owner may always write in a copied directory. Symlinks
    are copied as symlinks; PermissionDeniedError is raised for anything but files, directories and symlinks.
    """
    name = temporary_name()
    try:
        target = _new_directory(name, source, directory)
        try:
            mark_in_use(target)
            _Copy(deadline, copied, durable).run(path, source, target)
            yield name
        finally:
            release(target)
    finally:
        remove_tree(directory, name)


def _new_directory(name: str, source: int, directory: int) -> int:
    os.mkdir(name, stat.S_IMODE(os.fstat(source).st_mode) | stat.S_IRWXU, dir_fd=directory)
    return os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=directory)


class _CopyLevel(OpenDirectory):
    """A directory being copied: first its files and symlinks, then the directories `inside` it."""

    __slots__ = ("children", "inside", "target")

    def __init__(self, name: str, source: int, target: int, *, borrowed: bool = False) -> None:
        super().__init__(name, source, borrowed=borrowed)
        self.target = OpenDirectory(name, target, borrowed=borrowed)
        self.inside: list[str] = []
        self.children = os.scandir(source)

    def close_for_now(self) -> None:
        self.target.close_for_now()
        super().close_for_now()

    def reopen(self, child: OpenDirectory) -> None:
        super().reopen(child)
        if isinstance(child, _CopyLevel):
            self.target.reopen(child.target)

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.target.close)
            closing.callback(super().close)
            self.children.close()


class _Copy:
    """One copy of a tree; the caller closes the descriptors of its top directory."""

    def __init__(self, deadline: Deadline, copied: set[ContentId], durable: bool) -> None:
        self._deadline = deadline
        self._copied = copied
        self._durable = durable
        self._descent: Descent[_CopyLevel] = Descent(by_names=False)

    def run(self, path: str, source: int, target: int) -> None:
        with self._descent as descent:
            descent.enter(_CopyLevel(path, source, target, borrowed=True))
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

    def _check_found(self, levels: list[_CopyLevel]) -> None:
        """Raise if the directory to continue in was moved or removed meanwhile."""
        for level in levels:
            if level.lost is not None:
                raise leaf(level.lost, self._path()) from level.lost

    def _path(self, *names: str) -> str:
        return "/".join([*(level.name for level in self._descent.levels), *names])

    def _copy_files(self, level: _CopyLevel) -> None:
        """Copy the files and symlinks of a directory, and collect its directories; does nothing the second time."""
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
                else:  # Opening a FIFO would wake its writers, although nothing reads.
                    raise PermissionDeniedError(path, NOT_REGULAR)

    def _directory(self, level: _CopyLevel, name: str) -> _CopyLevel:
        self._deadline.check_cancelled(name)
        with ExitStack() as undo:
            source = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=level.descriptor)
            undo.callback(release, source)
            target = _new_directory(name, source, level.target.descriptor)
            undo.callback(release, target)
            made = _CopyLevel(name, source, target)
            undo.pop_all()
            return made

    def _file(self, path: str, level: _CopyLevel, name: str) -> None:
        check_entry(path, name, level.descriptor)
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


# --- listing ---------------------------------------------------------------------------------------------------------

_PERMISSIONS = 0o777


def list_tree(root: Root, path: str, deadline: Deadline, *, deleting: bool) -> TreeListing:
    """Every entry at or under `path`, symlinks as symlinks; a root that does not exist yet is an empty directory.

    With `deleting`, each directory whose entries may not be deleted adds one omission.
    """
    try:
        with StorageErrors(path), root.locate(path, follow=False) as place:
            return _Listing(root, deadline, deleting).run(path, place)
    except NotFoundError:
        if path == "/":
            return TreeListing([TreeEntry(path, "directory")])
        raise


class _ListLevel(OpenDirectory):
    """A directory being listed, with the paths of directories `inside` it that are not listed yet."""

    __slots__ = ("inside",)

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__(name, descriptor)
        self.inside: list[str] = []


class _Listing:
    """Lists one tree; each directory is opened relative to its open parent, so no symlink is followed."""

    def __init__(self, root: Root, deadline: Deadline, deleting: bool) -> None:
        self._root = root
        self._deadline = deadline
        self._deleting = deleting
        self._entries: list[TreeEntry] = []
        self._omission: Omission | None = None

    def run(self, path: str, place: Place) -> TreeListing:
        self._start, self._real = path, place.path
        status = place.lstat()
        if status is None:
            raise NotFoundError(path)
        self._add(path, status)
        if self._deleting:
            self._check_changeable(place.directory)
        if stat.S_ISDIR(status.st_mode):
            self._walk(path, place)
        return TreeListing(self._entries, self._omission)

    def _walk(self, path: str, place: Place) -> None:
        with Descent[_ListLevel](by_names=False) as descent:
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

    def _enter(self, descent: Descent[_ListLevel], parent: int, name: str, path: str) -> None:
        """Enter a directory and add its entries, or add an omission if it cannot be opened."""
        try:
            descriptor = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent)
        except (PermissionError, NotADirectoryError, FileNotFoundError):
            self._omit(unreadable_omission())
            return
        level = _ListLevel(name, descriptor)
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
                elif not self._permits(path):
                    self._omit(Omission(1, ErrorCode.PERMISSION_DENIED, "rules forbid a part of it"))
                elif self._add(path, child.stat(follow_symlinks=False)) == "directory":
                    below.append(path)
        if self._deleting:
            self._check_changeable(descriptor)
        return below

    def _permits(self, path: str) -> bool:
        judge = self._root.judge
        return judge is None or permits(judge, paths.join(self._real, paths.relative(path, self._start)))

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
