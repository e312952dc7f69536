"""Whole trees: checked, listed, copied, removed; each directory relative to its open parent, and no link followed."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager

from deepfs.disk.file_locks import lock_if_unused, lock_places
from deepfs.disk.os_calls import (
    NEW,
    NO_FOLLOW,
    NOT_REGULAR,
    READ,
    READ_DIRECTORY,
    StorageErrors,
    errno_of,
    is_temporary,
    may_change,
    open_as_owner,
    release,
    storage_error,
    sync,
    temporary_name,
    write_all,
)
from deepfs.disk.reading import blocks, check_entry, is_version, open_regular, open_regular_at, regular_descriptor
from deepfs.disk.resolve import Place, Root
from deepfs.disk.walking import Descent, OpenDirectory
from deepfs.errors import (
    BackendError,
    ConflictError,
    DeepFSError,
    ErrorCode,
    IsDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.text import paths
from deepfs.text.access import permits
from deepfs.text.entries import (
    Kind,
    Omission,
    TreeEntry,
    TreeListing,
    is_valid,
    join_omissions,
    omission_of_name,
    unreadable_omission,
)
from deepfs.threads.deadline import Deadline


class Level(OpenDirectory):
    """A directory that `directories` yields; its reader adds the names `inside` it that are to be entered."""

    __slots__ = ("inside", "path")

    def __init__(self, name: str, descriptor: int, path: str) -> None:
        super().__init__(name, descriptor)
        self.path: str = path
        self.inside: list[str] = []


def directories(
    name: str,
    parent: int | None,
    path: str,
    open_directory: Callable[[str, int | None], int | None],
    *,
    by_names: bool = False,
) -> Generator[Level, None, None]:
    """Yield the directory `name` of `parent`, and then each one beneath it that the reader asks for.

    `path` is that of the directory. If it is empty, so are those of the others, which in deep trees would be long.
    `open_directory` opens one, or returns None to pass it by. Raises OSError if one that the walk has to come back to
    was moved or removed; `by_names` is as in `Descent`.
    """
    with Descent[Level](by_names=by_names) as descent:
        while True:
            if (descriptor := open_directory(name, parent)) is not None:
                descent.enter(level := Level(name, descriptor, path))
                yield level
            while descent.levels and not descent.levels[-1].inside:
                descent.leave()
                if descent.levels and (lost := descent.levels[-1].lost) is not None:
                    raise lost
            if not descent.levels:
                return
            level = descent.levels[-1]
            name, parent = level.inside.pop(), level.descriptor
            path = level.path and paths.join(level.path, name)


# --- access checks ---------------------------------------------------------------------------------------------------


def check_tree(
    root: Root, source: Place, src: str, deadline: Deadline, target: Place | None = None, dst: str = ""
) -> None:
    """Ask the access check of `root`, if any, about all under the directory `source`, and its places in `target`.

    Links are not followed. Raises the error of a refusal, about `src` or `dst`, and PermissionDeniedError if a
    directory cannot be listed.
    """
    if root.access is None:
        return

    def open_directory(name: str, parent: int | None) -> int | None:
        try:
            return os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise PermissionDeniedError(src, "not everything beneath it can be listed") from error

    with StorageErrors(src), closing(directories(source.name, source.directory, source.path, open_directory)) as found:
        for level in found:
            with os.scandir(level.descriptor) as children:
                for child in children:
                    deadline.check_cancelled(src)
                    path = paths.join(level.path, child.name)
                    root.check(path, "source", src)
                    if target is not None:
                        root.check(paths.join(target.path, paths.relative(path, source.path)), "target", dst)
                    if child.is_dir(follow_symlinks=False):
                        level.inside.append(child.name)


# --- listing ---------------------------------------------------------------------------------------------------------

_PERMISSIONS = 0o777


def list_tree(root: Root, path: str, deadline: Deadline, *, deleting: bool) -> TreeListing:
    """Every entry at or under `path`, symlinks as symlinks; a root that does not exist yet is an empty directory.

    With `deleting`, each directory whose entries may not be deleted adds one omission.
    """
    try:
        with StorageErrors(path), root.locate(path, follow=False) as place:
            return _Listing(root, path, place, deadline, deleting).run()
    except NotFoundError:
        if path == "/":
            return TreeListing([TreeEntry(path, "directory")])
        raise


class _Listing:
    """Lists one tree."""

    def __init__(self, root: Root, path: str, place: Place, deadline: Deadline, deleting: bool) -> None:
        self._root = root
        self._start = path
        self._place = place
        self._deadline = deadline
        self._deleting = deleting
        self._entries: list[TreeEntry] = []
        self._omission: Omission | None = None

    def run(self) -> TreeListing:
        start, place = self._start, self._place
        status = place.lstat()
        if status is None:
            raise NotFoundError(start)
        self._add(start, status)
        self._check_changeable(place.directory)
        if stat.S_ISDIR(status.st_mode):
            with closing(directories(place.name, place.directory, start, self._open)) as found:
                for level in found:
                    self._list(level)
        return TreeListing(self._entries, self._omission)

    def _open(self, name: str, parent: int | None) -> int | None:
        self._deadline.check(self._start)
        try:
            return os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent)
        except (PermissionError, NotADirectoryError, FileNotFoundError):
            self._omit(unreadable_omission())
            return None

    def _list(self, level: Level) -> None:
        with os.scandir(level.descriptor) as children:
            for child in sorted(children, key=lambda child: child.name):
                path = paths.join(level.path, child.name)
                if is_temporary(child.name):
                    continue
                if not is_valid(path):
                    self._omit(omission_of_name(child.name))
                elif not self._permits(path):
                    self._omit(Omission(1, ErrorCode.PERMISSION_DENIED, "rules forbid a part of it"))
                elif self._add(path, child.stat(follow_symlinks=False)) == "directory":
                    level.inside.append(child.name)
        self._check_changeable(level.descriptor)

    def _permits(self, path: str) -> bool:
        access = self._root.access
        return access is None or permits(access, paths.join(self._place.path, paths.relative(path, self._start)))

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
        if self._deleting and not may_change(directory):
            self._omit(Omission(1, ErrorCode.PERMISSION_DENIED, "what lies in a directory of it may not be deleted"))

    def _omit(self, omission: Omission) -> None:
        self._omission = join_omissions(self._omission, omission)


def _kind(status: os.stat_result) -> Kind:
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    if stat.S_ISLNK(status.st_mode):
        return "link"
    return "file" if stat.S_ISREG(status.st_mode) else "special"


# --- copying ---------------------------------------------------------------------------------------------------------

ContentId = tuple[int, int, int, int]


def content_id(status: os.stat_result) -> ContentId:
    """Identifies the present state of a file, whatever its name; changes when the file is written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def fill_from(path: str, source: int, deadline: Deadline) -> Callable[[int], None]:
    """Return a function that writes the content of the open file `source` to another one, in bounded memory."""

    def write(descriptor: int) -> None:
        os.lseek(source, 0, os.SEEK_SET)
        for block in blocks(source):
            deadline.check_cancelled(path)
            write_all(block, descriptor)

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
            lock_if_unused(target)
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
                    sync(level.target.descriptor, self._durable)
                    descent.leave()
                    if descent.levels and (lost := descent.levels[-1].lost) is not None:
                        raise storage_error(lost, self._path()) from lost

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
                sync(target, self._durable)
            finally:
                os.close(target)
        finally:
            release(source)


# --- removing --------------------------------------------------------------------------------------------------------

Stayed = list[tuple[str, OSError | DeepFSError]]
"""The paths that could not be removed, each with the reason."""

Unlink = Callable[[int, str], None]
"""Removes an entry other than a directory, given its open directory and its name."""

_NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EMLINK})
# Errors of unlinking a directory: EISDIR on Linux, EPERM elsewhere.
_PERHAPS_A_DIRECTORY = frozenset({errno.EISDIR, errno.EPERM})
# Errors of removing a directory that another process filled again, or replaced by something else.
_REFILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST, *_NO_DIRECTORY})
_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_ROUNDS = 1000


def delete(root: Root, path: str, deadline: Deadline, *, if_match: str | None = None, only_file: bool = False) -> None:
    """Delete the entry at `path`: a directory with all under it, a symlink itself and not its target.

    A file that is being edited is deleted after the edit. If something in a directory cannot be deleted, everything
    else is, and the error names what stayed. With `if_match` only a file of this version is deleted. With it, and with
    `only_file`, a directory never is.
    """
    with StorageErrors(path), root.locate(path, follow=False) as place:
        if root.is_root_or_above(place.names):
            raise PermissionDeniedError(path, "the root cannot be deleted")
        with lock_places(path, [place], deadline):
            if if_match is not None:
                _check_version(root, place, path, if_match, deadline)
                os.unlink(place.name, dir_fd=place.directory)
                return
            status = place.lstat()
            if status is None:
                raise NotFoundError(path)
            is_dir = stat.S_ISDIR(status.st_mode)
            if only_file:
                if is_dir:
                    raise IsDirectoryError(path)
                os.unlink(place.name, dir_fd=place.directory)  # Fails if it has become one.
                return
            if is_dir:
                check_tree(root, place, path, deadline)
            stayed = remove_tree(place.directory, place.name, path, is_dir=is_dir, deadline=deadline)
            if stayed:
                raise _incomplete(path, stayed)


def _check_version(root: Root, place: Place, path: str, if_match: str, deadline: Deadline) -> None:
    """Raise ConflictError unless the file at `place`, or the target of a symlink there, has this version."""
    status = place.lstat()
    is_link = status is not None and stat.S_ISLNK(status.st_mode)
    descriptor, _ = open_regular(root, path) if is_link else open_regular_at(path, place)
    try:
        if not is_version(path, descriptor, if_match, deadline):
            raise ConflictError(path)
    finally:
        release(descriptor)


def _incomplete(path: str, stayed: Stayed) -> DeepFSError:
    """The error that names the first path that stayed, its reason, and how many more stayed."""
    first, reason = stayed[0]
    if first == path and errno_of(reason) not in _REFILLED:
        return storage_error(reason, path)
    others = f" and {len(stayed) - 1:,} more" if len(stayed) > 1 else ""
    number = errno_of(reason)
    why = os.strerror(number) if number else "the disk failed"
    what = f"'{{other}}'{others} could not be deleted ({why}), the rest is gone"
    if number in _REFUSALS:
        return PermissionDeniedError(path, what, first)
    return BackendError(path, f"it was not deleted completely: {what}", first)


def _unlink(directory: int, name: str) -> None:
    os.unlink(name, dir_fd=directory)


def remove_tree(
    directory: int,
    name: str,
    path: str = "",
    *,
    is_dir: bool = True,
    deadline: Deadline | None = None,
    unlink: Unlink = _unlink,
    force: bool = False,
) -> Stayed:
    """Remove `name` from `directory` with all under it, and return what could not be removed.

    Paths in the result start with `path`. `is_dir` is a hint and may be wrong. Entries other than directories are
    removed by `unlink`; an entry stays if that raises an error. With `force`, also what the modes of directories keep
    from their owner is removed.
    """
    return _Removal(directory, name, path, deadline or Deadline(), unlink, force).run(is_dir)


class _RemovalLevel(OpenDirectory):
    """A directory being emptied; `rounds` counts how often other processes filled it again."""

    __slots__ = ("children", "kept", "rounds", "stayed")

    def __init__(self, parent: int, name: str, rounds: int, force: bool) -> None:
        super().__init__(
            name,
            open_as_owner(name, parent) if force else os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent),
        )
        self.rounds = rounds
        self.stayed: Stayed = []
        self.kept: set[str] = set()
        """The names in this directory that could not be removed and are not tried again."""
        try:
            self.children = os.scandir(self.descriptor)
        except BaseException:
            self.close()
            raise

    def adopt(self, descriptor: int) -> None:
        super().adopt(descriptor)
        # The scan starts anew; it finds only what is left.
        self.children = os.scandir(self.descriptor)

    def close(self) -> None:
        if hasattr(self, "children"):
            self.children.close()
        super().close()


class _Removal:
    """One removal of `name` from an open directory; if an entry cannot be removed, it goes on with the rest."""

    def __init__(self, directory: int, name: str, path: str, deadline: Deadline, unlink: Unlink, force: bool) -> None:
        self._unlink = unlink
        self._force = force
        self._directory = directory
        self._name = name
        self._path = path
        self._deadline = deadline
        self._descent: Descent[_RemovalLevel] = Descent()
        self._stayed: Stayed = []

    def run(self, is_dir: bool) -> Stayed:
        with self._descent as descent:
            self._remove(self._name, is_dir)
            while descent.levels:
                self._deadline.check_cancelled(self._path)
                level = descent.levels[-1]
                if level.lost is not None:
                    self._lose(level.lost)
                elif (entry := next(level.children, None)) is None:
                    self._leave()
                elif entry.name not in level.kept:
                    self._remove(entry.name, entry.is_dir(follow_symlinks=False))
        return self._stayed

    @property
    def _parent(self) -> int:
        """The open directory whose entries are being removed."""
        return self._descent.levels[-1].descriptor if self._descent.levels else self._directory

    def _remove(self, name: str, is_dir: bool, rounds: int = 0) -> None:
        """Remove a file, or enter a directory."""
        try:
            if is_dir and self._enter(name, rounds):
                return
            self._unlink(self._parent, name)
        except FileNotFoundError:
            return
        except DeepFSError as error:  # Locking it failed.
            self._keep(name, error)
        except OSError as error:
            if is_dir or error.errno not in _PERHAPS_A_DIRECTORY or not self._enter(name, rounds):
                self._keep(name, error)

    def _enter(self, name: str, rounds: int) -> bool:
        """Enter the directory `name`, or remove it if it cannot be opened but is empty; False if it is no directory."""
        try:
            self._descent.enter(_RemovalLevel(self._parent, name, rounds, self._force))
        except OSError as reason:
            if reason.errno in _NO_DIRECTORY:
                return False
            try:
                os.rmdir(name, dir_fd=self._parent)
            except FileNotFoundError:
                pass
            except OSError:
                self._keep(name, reason)
        return True

    def _leave(self) -> None:
        """Remove a directory that was emptied; if it was filled or replaced meanwhile, start again with it."""
        level = self._descent.leave()
        if level.stayed:
            self._note(level.name, level.stayed)
            return
        if self._descent.levels and self._descent.levels[-1].lost:
            return
        try:
            os.rmdir(level.name, dir_fd=self._parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in _REFILLED and level.rounds < _MAX_ROUNDS:
                self._remove(level.name, is_dir=True, rounds=level.rounds + 1)
            else:
                self._keep(level.name, error)

    def _lose(self, reason: OSError) -> None:
        """Continue in the parent of a directory that another process moved or removed."""
        level = self._descent.leave()
        self._note(level.name, level.stayed)
        if not isinstance(reason, FileNotFoundError):
            self._keep(level.name, reason)

    def _keep(self, name: str, reason: OSError | DeepFSError) -> None:
        levels = self._descent.levels
        path = "/".join([self._path, *(level.name for level in levels[1:]), name]) if levels else self._path
        self._note(name, [(path, reason)])

    def _note(self, name: str, stayed: Stayed) -> None:
        """Record failures below `name` in the level above it, or in the result, so that they are not tried again."""
        if self._descent.levels:
            self._descent.levels[-1].kept.add(name)
            self._descent.levels[-1].stayed.extend(stayed)
        else:
            self._stayed.extend(stayed)
