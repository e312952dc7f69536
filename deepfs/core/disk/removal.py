"""Recursive delete: every name relative to its open directory, never through a link."""

import errno
import os
import stat

from deepfs.core.disk.conditions import StorageErrors, leaf
from deepfs.core.disk.files import check_regular, is_version, open_regular
from deepfs.core.disk.flags import NO_FOLLOW, READ, READ_DIRECTORY
from deepfs.core.disk.flocks import holding
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Place, Root, release
from deepfs.errors import AccessError, BackendError, ConflictError, DeepFSError, FileMissingError, quoted

__all__ = ["delete", "remove_standing", "remove_tree"]

Stayed = list[tuple[str, OSError]]
"""What could not be removed, each with the reason."""

_NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EMLINK})
# What unlinking a directory says: EISDIR on Linux, EPERM elsewhere.
_PERHAPS_A_DIRECTORY = frozenset({errno.EISDIR, errno.EPERM})
# What removing a directory says where others put something into it, or something else in its place.
_REFILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST, *_NO_DIRECTORY})
_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_ROUNDS = 1000


def delete(root: Root, path: str, patience: Patience, *, if_match: str | None = None) -> None:
    """Delete what stands at `path`, a link itself rather than what it leads to, a directory with all under it.

    A file that others edit is deleted once they are done. Where something cannot be deleted, everything else is, and
    the error says what stayed. With `if_match` only a file of this version is deleted, never a directory.
    """
    with StorageErrors(path), root.locate(path, follow=False) as place:
        if root.must_stay(place.names):
            raise AccessError(path, "the root cannot be deleted")
        with holding(path, [place], patience):
            if if_match is None:
                remove_standing(place, path, patience)
            else:
                _check_version(root, place, path, if_match, patience)
                os.unlink(place.name, dir_fd=place.directory)


def _check_version(root: Root, place: Place, path: str, if_match: str, patience: Patience) -> None:
    """Raise unless the file at `place`, or the one that the link there leads to, is of this version."""
    status = place.lstat()
    is_link = status is not None and stat.S_ISLNK(status.st_mode)
    descriptor = open_regular(root, path)[0] if is_link else place.open(READ)
    try:
        check_regular(path, os.fstat(descriptor))
        if not is_version(path, descriptor, if_match, patience):
            raise ConflictError(path)
    finally:
        release(descriptor)


def remove_standing(place: Place, path: str, patience: Patience) -> None:
    """Remove what stands at `place`, called `path`, or raise an error that says what stayed."""
    status = place.lstat()
    if status is None:
        raise FileMissingError(path)
    is_dir = stat.S_ISDIR(status.st_mode)
    stayed = remove_tree(place.directory, place.name, path, is_dir=is_dir, patience=patience)
    if stayed:
        raise _incomplete(path, stayed)


def _incomplete(path: str, stayed: Stayed) -> DeepFSError:
    """The error that names what stayed of `path`, with the first reason."""
    first, reason = stayed[0]
    if first == path and reason.errno not in _REFILLED:
        return leaf(reason, path)
    others = f" and {len(stayed) - 1:,} more" if len(stayed) > 1 else ""
    why = os.strerror(reason.errno) if reason.errno else "the disk failed"
    what = f"{quoted(first)}{others} could not be deleted ({why}), the rest is gone"
    if reason.errno in _REFUSALS:
        return AccessError(path, what)
    return BackendError(f"Error: {quoted(path)} was not deleted completely: {what}")


def remove_tree(
    directory: int, name: str, path: str = "", *, is_dir: bool = True, patience: Patience | None = None
) -> Stayed:
    """Remove `name` from `directory` with all under it, and return what could not be removed.

    `path` is what it is called in the result; `is_dir` is a hint.
    """
    return _Removal(patience or Patience()).run(directory, name, path, is_dir)


class _Level:
    """A directory being emptied, for the `rounds`-th time since others put something into it."""

    __slots__ = ("children", "descriptor", "name", "parent", "path", "rounds", "stayed")

    def __init__(self, parent: int, name: str, path: str, rounds: int) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        self.rounds = rounds
        self.stayed: Stayed = []
        self.descriptor = os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent)
        try:
            self.children = os.scandir(self.descriptor)
        except BaseException:
            release(self.descriptor)
            raise

    def close(self) -> None:
        self.children.close()
        release(self.descriptor)


class _Removal:
    """One removal, which goes on with the rest where something cannot be removed."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._levels: list[_Level] = []
        self._stayed: Stayed = []

    def run(self, directory: int, name: str, path: str, is_dir: bool) -> Stayed:
        try:
            self._remove(directory, name, path, is_dir)
            while self._levels:
                self._patience.check_wanted(path)
                level = self._levels[-1]
                entry = next(level.children, None)
                if entry is None:
                    self._leave(level)
                else:
                    child_is_dir = entry.is_dir(follow_symlinks=False)
                    self._remove(level.descriptor, entry.name, f"{level.path}/{entry.name}", child_is_dir)
        finally:
            for level in self._levels:
                level.close()
        return self._stayed

    def _remove(self, parent: int, name: str, path: str, is_dir: bool, rounds: int = 0) -> None:
        """Remove a file, or begin with a directory."""
        try:
            if is_dir and self._entered(parent, name, path, rounds):
                return
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if is_dir or error.errno not in _PERHAPS_A_DIRECTORY or not self._entered(parent, name, path, rounds):
                self._keep(path, error)

    def _entered(self, parent: int, name: str, path: str, rounds: int) -> bool:
        """Whether `name` is a directory that can be emptied; one that cannot be opened may still be empty."""
        try:
            self._levels.append(_Level(parent, name, path, rounds))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return False
            self._remove_unopened(parent, name, path, error)
        return True

    def _remove_unopened(self, parent: int, name: str, path: str, reason: OSError) -> None:
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            self._keep(path, reason)

    def _leave(self, level: _Level) -> None:
        """Remove a directory that was emptied, or begin anew with what stands in its place by now."""
        self._levels.pop()
        level.close()
        if level.stayed:
            self._holder.extend(level.stayed)
            return
        try:
            os.rmdir(level.name, dir_fd=level.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in _REFILLED and level.rounds < _MAX_ROUNDS:
                self._remove(level.parent, level.name, level.path, is_dir=True, rounds=level.rounds + 1)
            else:
                self._keep(level.path, error)

    @property
    def _holder(self) -> Stayed:
        """Where failures of what is being removed now are noted."""
        return self._levels[-1].stayed if self._levels else self._stayed

    def _keep(self, path: str, reason: OSError) -> None:
        self._holder.append((path, reason))
