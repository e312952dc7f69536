"""Path resolution below a host directory: follows symlinks that stay inside, and opens the result without races."""

import errno
import logging
import os
import stat
from collections.abc import Hashable, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from types import TracebackType

from deepfs.disk.os_calls import (
    LINK_ERRORS,
    MAX_RACES,
    NO_FOLLOW,
    OUTSIDE,
    PREFIX,
    SEARCH,
    TOO_MANY_LINKS,
    file_id,
    is_shortage,
    is_temporary,
    link_target,
    open_directory_in,
    open_unlinked,
    release,
)
from deepfs.errors import (
    DeepFSError,
    InvalidPathError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.text.access import AccessCheck, Role, permits
from deepfs.text.entries import StoragePlace

_log = logging.getLogger("deepfs")

_MAX_LINKS = 40


def _is_no_link(directory: int, name: str) -> bool:
    try:
        return not stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name and name != "."]


def _lstat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


class Place:
    """A name in an open directory, where an entry exists or can be created. The root is the name `.` in itself.

    As a context manager it closes the directory and, if the body raises, removes the directories that were created
    while the path was resolved.
    """

    __slots__ = ("_made", "_root", "directory", "found", "name", "names")

    def __init__(
        self,
        root: "Root",
        directory: int,
        names: Sequence[str],
        made: list[list[str]],
        found: os.stat_result | None = None,
    ) -> None:
        self._root = root
        self._made = made
        self.directory: int = directory
        self.found: os.stat_result | None = found
        """The status of what was here when the path was resolved; None if nothing was, or if it was not looked at."""
        self.names: list[str] = list(names)
        self.name: str = names[-1] if names else "."

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        release(self.directory)
        if error is not None:
            self._root.remove_created(self._made)

    @property
    def path(self) -> str:
        """The virtual path of this place, with all symlinks resolved."""
        return "/" + "/".join(self.names)

    def lstat(self) -> os.stat_result | None:
        """The status of the entry here, of a symlink itself; None if there is no entry."""
        return _lstat(self.directory, self.name)

    def open(self, flags: int) -> int:
        """Open the entry here; fails if it is a symlink."""
        return os.open(self.name, flags | NO_FOLLOW, dir_fd=self.directory)


class Root:
    """A host directory below which paths are resolved; if not confined it is `/`, and symlinks may lead anywhere.

    Creating a Root does no I/O. Every operation opens the directory anew, since it may be a symlink, be replaced, or
    not exist yet.

    With an `access` check, every path is checked once it is resolved, and before anything is opened: its directory is
    held open then, and its name is opened without following links, so what is used is what was checked.
    """

    def __init__(self, path: str, *, confined: bool = True) -> None:
        self.access: AccessCheck | None = None
        self.plain: Root = self
        """This root without an access check."""
        self._base = path
        self._given = path if confined else "/"
        self._confined = confined
        self.has_warned: bool = False

    def with_access(self, access: AccessCheck) -> "Root":
        """The same directory, where `access` is asked about every path."""
        root = copy(self)
        root.access = access
        return root

    def check(self, path: str, role: Role, shown: str) -> None:
        """Ask the access check, if there is one, about a path without links; an error names the path `shown`."""
        if self.access is not None:
            self.access.check(path, role, shown)

    @property
    def starts_in_working_directory(self) -> bool:
        """Whether paths are those of the host, and relative ones start in the working directory of the process."""
        return not self._confined and not os.path.isabs(self._base)

    @cached_property
    def host_path(self) -> str:
        """The absolute path of the directory on the host; a relative one is resolved from the current directory."""
        return os.path.abspath(self._given)

    def warn_missing(self) -> None:
        """Log, the first time, that the directory does not exist: its path may be mistyped."""
        if not self.plain.has_warned:
            self.plain.has_warned = True
            _log.warning(
                "the root directory %r does not exist; it counts as empty until a file is written", self._given
            )

    def is_root_or_above(self, names: list[str]) -> bool:
        """Whether `names` lead to the directory that was given, or to one of its parents."""
        if self._confined:
            return not names
        roots = map(_names, (os.path.abspath(self._base), os.path.realpath(self._base)))
        return any(root[: len(names)] == names for root in roots)

    @cached_property
    def _is_linked(self) -> bool:
        """Whether the directory's path contains symlinks when it is first used; decides how to open it fastest."""
        return os.path.realpath(self.host_path) != self.host_path

    def open(self, path: str, flags: int) -> int:
        """Open what `path` leads to, following symlinks that are allowed."""
        return self.open_real(path, flags)[0]

    def open_real(self, path: str, flags: int) -> tuple[int, str]:
        """Open what `path` leads to; returns its path without symlinks as well, if there is a access."""
        if self.access is None:
            try:
                return self._open_plain(path, flags), path
            except OSError as error:
                if error.errno not in LINK_ERRORS:
                    raise
        elif path != "/" and permits(self.access, path):
            # What is opened without following links is what was checked. All else is resolved first, and then checked.
            with suppress(OSError):
                return self._open_unlinked(path, flags), path
        with self.locate(path) as place:
            return place.open(flags), place.path

    def _open_plain(self, path: str, flags: int) -> int:
        """Open `path` the fast way, in the common case that no name in it is a symlink; else raise a link error."""
        if not self._confined:
            return os.open(path, flags)
        if "/.." in path or PREFIX in path:
            raise OSError(errno.ELOOP, "not plain")
        if not self._is_linked and (descriptor := open_unlinked(self.host_path + path, flags)) is not None:
            return descriptor
        directory = self.enter(make=False)
        try:
            if self._is_linked and (descriptor := open_unlinked(path[1:] or ".", flags, directory)) is not None:
                return descriptor
            *above, name = path[1:].split("/")
            for each in above:
                child = os.open(each, SEARCH | NO_FOLLOW, dir_fd=directory)
                directory, left = child, directory
                os.close(left)
            return os.open(name or ".", flags | NO_FOLLOW, dir_fd=directory)
        finally:
            os.close(directory)

    def open_parent(self, names: list[str]) -> int | None:
        """Open the directory of the last name in one call; None if that fails, as it does where a name is a symlink."""
        if len(names) < 2 or ".." in names or self._is_linked:
            return None
        return open_unlinked(f"{self.host_path}/{'/'.join(names[:-1])}", SEARCH)

    def locate(self, path: str, *, follow: bool = True, role: Role = "source") -> Place:
        """The place of `path`, whose parent directory must exist; `follow` resolves a symlink at the end of `path`.

        Raises PermissionDeniedError if a symlink leads outside, NotFoundError if a parent is a file.
        """
        try:
            return _Resolution(self, path, make=False, role=role).run(follow=follow)
        except NotDirectoryError as error:
            raise NotFoundError(path) from error

    def locate_target(self, path: str, *, make: bool = True) -> Place:
        """The place of an entry to be created or replaced at `path`; with `make`, missing parents are created.

        Raises NotDirectoryError about a parent that is a file, PermissionDeniedError if a symlink leads outside.
        """
        resolution = _Resolution(self, path, make=make, role="target")
        try:
            return resolution.run(follow=True)
        except BaseException:
            self.remove_created(resolution.made)
            raise

    def real_path(self, path: str) -> str | None:
        """The virtual path of what `path` leads to, with all symlinks resolved; it need not exist yet.

        None if it cannot be resolved, or leads outside or through `..` out of a directory that does not exist.
        Raises OSError if the system is short of file descriptors or memory.
        """
        try:
            names = _Resolution(self, path, make=False, role=None).names()
        except (OSError, DeepFSError) as error:
            if is_shortage(error):
                raise
            return None
        return None if ".." in names else "/" + "/".join(names)

    def are_real(self, directory: str, names: Sequence[str]) -> list[bool]:
        """For each of `names` in `directory` whether `real_path` is its path, as no symlink is in it.

        True is certain, also where nothing is there; False is not.
        """
        try:
            descriptor = self._open_unlinked(directory, SEARCH)
        except OSError:
            return [False] * len(names)
        try:
            return [_is_no_link(descriptor, name) for name in names]
        finally:
            release(descriptor)

    def _open_unlinked(self, path: str, flags: int) -> int:
        """Open `path` if no name in it is a symlink; otherwise raise OSError."""
        if self._confined:
            return self._open_plain(path, flags)
        descriptor = None if "/.." in path or PREFIX in path else open_unlinked(path, flags)
        if descriptor is None:
            raise OSError(errno.ELOOP, "not plain")
        return descriptor

    def peek(self, path: str) -> os.stat_result | None:
        """The status of what seems to be at `path`, None if nothing is; fast, and only a hint.

        The system resolves the path, so another process could lead it outside.
        """
        try:
            return os.stat(self.host_path + path)
        except (OSError, ValueError):
            return None

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to, following symlinks that are allowed."""
        for _ in range(MAX_RACES):
            with self.locate(path) as place:
                status = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
            # The entry may have become a symlink since it was resolved; the status of a symlink has the wrong size.
            if not stat.S_ISLNK(status.st_mode):
                return status
        raise PermissionDeniedError(path, TOO_MANY_LINKS)

    def enter(self, *, make: bool) -> int:
        """Open the directory itself; `make` creates it if it is missing."""
        try:
            return os.open(self.host_path, SEARCH)
        except FileNotFoundError:
            if not make:
                raise
        os.makedirs(self.host_path, exist_ok=True)
        return os.open(self.host_path, SEARCH)

    def directories(self, names: Sequence[str]) -> list[os.stat_result]:
        """The status of the root and of each directory along `names`, up to the first name that is no directory."""
        directory, found = self.enter(make=False), []
        try:
            found.append(os.fstat(directory))
            for name in names:
                child = open_directory_in(directory, name)
                if child is None:
                    break
                directory, left = child, directory
                release(left)
                found.append(os.fstat(directory))
        finally:
            release(directory)
        return found

    def directories_above(self) -> tuple[list[os.stat_result], list[str]]:
        """The status of this directory and its parents on the host, innermost first; the names of missing ones."""
        path, missing = self.host_path, list[str]()
        while not os.path.isdir(path):
            path, name = os.path.split(path)
            missing.insert(0, name)
        directory, found = os.open(path, SEARCH), list[os.stat_result]()
        try:
            while not found or not os.path.samestat(found[-1], os.fstat(directory)):
                found.append(os.fstat(directory))
                directory, left = os.open("..", SEARCH, dir_fd=directory), directory
                release(left)
        except PermissionError:
            return found, missing
        finally:
            release(directory)
        return found, missing

    def remove_created(self, made: list[list[str]]) -> None:
        """Remove directories that an operation created, if they are still empty."""
        for names in reversed(made):
            with suppress(OSError, DeepFSError), self.plain.locate("/" + "/".join(names), follow=False) as place:
                os.rmdir(place.name, dir_fd=place.directory)
        made.clear()

    def through_link(self, path: str, above: list[str], target: str) -> list[str]:
        """The names, from the root on, of the `target` of a symlink in the directory `above`."""
        if not target.startswith("/"):
            return [*above, *_names(target)]
        names = _names(target)
        for base in (self.host_path, os.path.realpath(self.host_path)):
            prefix = _names(base)
            if names[: len(prefix)] == prefix:
                return names[len(prefix) :]
        raise PermissionDeniedError(path, OUTSIDE)

    def above(self, path: str, names: list[str], index: int) -> list[str]:
        """`names` without the consecutive `..` from `index` on, and without the names that they cancel."""
        end = index
        while end < len(names) and names[end] == "..":
            end += 1
        keep = index - (end - index)
        if keep < 0 and self._confined:
            raise PermissionDeniedError(path, OUTSIDE)
        return names[: max(keep, 0)] + names[end:]


class _Resolution:
    """Resolves one path to a place; starts again at the root after every symlink and every `..`.

    The access check of the root is asked about the place in this `role`; with None it is not asked.
    """

    __slots__ = ("_access", "_make", "_path", "_role", "_root", "made")

    def __init__(self, root: Root, path: str, *, make: bool, role: Role | None) -> None:
        self._root = root
        self._path = path
        self._make = make
        self._role = role
        self._access = root.access
        self.made: list[list[str]] = []

    def run(self, *, follow: bool) -> Place:
        names = _names(self._path)
        if any(map(is_temporary, names)):
            raise InvalidPathError(self._path, "the name is reserved")
        for _ in range(2 * _MAX_LINKS):
            try:
                found = self._descend(names, follow)
            except (OSError, DeepFSError):
                self._check(names)  # The error would tell whether something is there.
                raise
            if isinstance(found, Place):
                return found
            names = found
        raise PermissionDeniedError(self._path, TOO_MANY_LINKS)

    def _check(self, names: list[str]) -> None:
        """Ask the access check about the path `names`, in which no symlink is left.

        Nothing can change where `/` leads, so who asks for it has checked it. A search of all mounts starts there too,
        although only a part of a mount may be read.
        """
        if self._access is not None and self._role is not None and self._path != "/":
            self._access.check("/" + "/".join(names), self._role, self._path)

    def names(self) -> list[str]:
        """The names of the place, with symlinks resolved; from the first missing directory on, they stay as given."""
        names = _names(self._path)
        for _ in range(2 * _MAX_LINKS):
            try:
                found = self._descend(names, follow=True)
            except (FileNotFoundError, NotDirectoryError):
                return names
            if isinstance(found, Place):
                release(found.directory)
                return found.names
            names = found
        raise PermissionDeniedError(self._path, TOO_MANY_LINKS)

    def _descend(self, names: list[str], follow: bool) -> Place | list[str]:
        """Return the place of the last name; or, at a symlink or `..`, the names to resolve next from the root."""
        directory = self._root.open_parent(names)
        if directory is not None:
            return self._arrive(directory, names, follow)
        directory = self._root.enter(make=self._make)
        try:
            for index, name in enumerate(names):
                if name == "..":
                    return self._root.above(self._path, names, index)
                if index == len(names) - 1:
                    break
                child = self._enter(directory, names, index)
                if child is None:
                    return self._follow_link(directory, names, index)
                directory, left = child, directory
                release(left)
            arrived, directory = directory, -1
            return self._arrive(arrived, names, follow)
        finally:
            if directory >= 0:
                release(directory)

    def _arrive(self, directory: int, names: list[str], follow: bool) -> Place | list[str]:
        """Look at the last name in its open directory, which the place then owns; otherwise the directory is closed."""
        try:
            found = _lstat(directory, names[-1] if names else ".") if follow else None
            if found is not None and stat.S_ISLNK(found.st_mode):
                target = link_target(directory, names[-1])
                # If it is no symlink any more, look again.
                there = names if target is None else self._root.through_link(self._path, names[:-1], target)
                release(directory)
                return there
            self._check(names)
            return Place(self._root, directory, names, self.made, found)
        except BaseException:
            release(directory)
            raise

    def _enter(self, directory: int, names: list[str], index: int) -> int | None:
        """Open the directory `names[index]`, creating it if `make` was given; None if it is no directory."""
        for _ in range(MAX_RACES):
            try:
                return os.open(names[index], SEARCH | NO_FOLLOW, dir_fd=directory)
            except OSError as error:
                if error.errno in LINK_ERRORS:
                    return None
                if error.errno != errno.ENOENT or not self._make:
                    raise
            self._check(names)
            with suppress(FileExistsError):
                os.mkdir(names[index], dir_fd=directory)
                self.made.append(names[: index + 1])
        raise NotFoundError(self._path)

    def _follow_link(self, directory: int, names: list[str], index: int) -> list[str]:
        target = link_target(directory, names[index])
        if target is None:
            raise NotDirectoryError("/" + "/".join(names[: index + 1]))
        return self._root.through_link(self._path, names[:index], target) + names[index + 1 :]


# --- the identity of a place -----------------------------------------------------------------------------------------

_STORAGE = "disk"


def place_of(root: Root, path: str) -> StoragePlace:
    """The identity of what `path` leads to: keys of the entry, and of all directories above it, also above the root.

    A path that leads outside, or into a cycle of symlinks, has a key that no other place has.
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
    """The keys of all `directories`, and of the parents in the missing path below the last of them."""
    return [
        *(_entry(directory, ()) for directory in directories),
        *(_entry(directories[-1], missing[:count]) for count in range(1, len(missing))),
    ]


def _keys(root: Root, path: str, directory: os.stat_result, missing: Sequence[str]) -> frozenset[Hashable]:
    """The keys of the path `missing` below `directory`; an existing file with one link also has its own id as a key."""
    keys = [_entry(directory, missing)]
    if len(missing) == 1:
        # On a file system that ignores case, or with bind mounts of files, one entry has several names.
        with suppress(DeepFSError, OSError), root.locate(path, follow=False) as place:
            status = place.lstat()
            if status is not None and status.st_nlink == 1 and not stat.S_ISDIR(status.st_mode):
                keys.append((*file_id(status), None))
    return frozenset(keys)
