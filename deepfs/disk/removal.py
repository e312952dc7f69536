"""Recursive delete: every entry is removed relative to its open directory, and no symlink is followed."""

import errno
import os
import stat
from collections.abc import Callable

from deepfs.disk.file_locks import locked_places
from deepfs.disk.os_calls import NO_FOLLOW, READ, READ_DIRECTORY, StorageErrors, errno_of, leaf, open_as_owner, release
from deepfs.disk.reading import check_regular, is_version, open_regular
from deepfs.disk.resolve import Place, Root
from deepfs.disk.walking import Descent, OpenDirectory
from deepfs.errors import BackendError, ConflictError, DeepFSError, NotFoundError, PermissionDeniedError
from deepfs.threads.deadline import Deadline

__all__ = ["delete", "remove_standing", "remove_tree"]

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


def delete(root: Root, path: str, deadline: Deadline, *, if_match: str | None = None) -> None:
    """Delete the entry at `path`: a directory with all under it, a symlink itself and not its target.

    A file that is being edited is deleted after the edit. If something in a directory cannot be deleted, everything
    else is, and the error names what stayed. With `if_match` only a file of this version is deleted, never a directory.
    """
    with StorageErrors(path), root.locate(path, follow=False) as place:
        if root.is_root_or_above(place.names):
            raise PermissionDeniedError(path, "the root cannot be deleted")
        with locked_places(path, [place], deadline):
            if if_match is None:
                remove_standing(place, path, deadline)
            else:
                _check_version(root, place, path, if_match, deadline)
                os.unlink(place.name, dir_fd=place.directory)


def _check_version(root: Root, place: Place, path: str, if_match: str, deadline: Deadline) -> None:
    """Raise ConflictError unless the file at `place`, or the target of a symlink there, has this version."""
    status = place.lstat()
    is_link = status is not None and stat.S_ISLNK(status.st_mode)
    descriptor = open_regular(root, path)[0] if is_link else place.open(READ)
    try:
        check_regular(path, os.fstat(descriptor))
        if not is_version(path, descriptor, if_match, deadline):
            raise ConflictError(path)
    finally:
        release(descriptor)


def remove_standing(place: Place, path: str, deadline: Deadline) -> None:
    """Remove the entry at `place`, or raise an error that names what stayed; `path` is its path in the error."""
    status = place.lstat()
    if status is None:
        raise NotFoundError(path)
    is_dir = stat.S_ISDIR(status.st_mode)
    stayed = remove_tree(place.directory, place.name, path, is_dir=is_dir, deadline=deadline)
    if stayed:
        raise _incomplete(path, stayed)


def _incomplete(path: str, stayed: Stayed) -> DeepFSError:
    """The error that names the first path that stayed, its reason, and how many more stayed."""
    first, reason = stayed[0]
    if first == path and errno_of(reason) not in _REFILLED:
        return leaf(reason, path)
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


class _Level(OpenDirectory):
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
        self._descent: Descent[_Level] = Descent()
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
            if is_dir and self._entered(name, rounds):
                return
            self._unlink(self._parent, name)
        except FileNotFoundError:
            return
        except DeepFSError as error:  # Locking it failed.
            self._keep(name, error)
        except OSError as error:
            if is_dir or error.errno not in _PERHAPS_A_DIRECTORY or not self._entered(name, rounds):
                self._keep(name, error)

    def _entered(self, name: str, rounds: int) -> bool:
        """Enter the directory `name`, or remove it if it cannot be opened but is empty; False if it is no directory."""
        try:
            self._descent.enter(_Level(self._parent, name, rounds, self._force))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return False
            self._remove_unopened(name, error)
        return True

    def _remove_unopened(self, name: str, reason: OSError) -> None:
        try:
            os.rmdir(name, dir_fd=self._parent)
        except FileNotFoundError:
            return
        except OSError:
            self._keep(name, reason)

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
