"""Where a path leads below a directory of the host, through links that stay inside; opened without races."""

import errno
import os
import stat
from collections.abc import Hashable, Sequence
from contextlib import suppress
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
    NotSupportedError,
    PermissionDeniedError,
)
from deepfs.text.entries import StoragePlace

__all__ = ["Place", "Root", "place_of"]

_SUPPORTED = os.name == "posix"
_MAX_LINKS = 40


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name and name != "."]


class Place:
    """A name in an open directory: where an entry is, or could be put. The root is the name `.` in itself.

    A context manager that closes the directory and, where the body raises, takes away the directories that were made
    on the way.
    """

    __slots__ = ("_made", "_root", "directory", "name", "names")

    def __init__(self, root: "Root", directory: int, names: Sequence[str], made: list[list[str]]) -> None:
        self._root = root
        self._made = made
        self.directory: int = directory
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
        """The virtual path that leads here without any link."""
        return "/" + "/".join(self.names)

    def lstat(self) -> os.stat_result | None:
        """What stands here, itself where it is a link; None where nothing does."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int) -> int:
        """Open what stands here; never through a link."""
        return os.open(self.name, flags | NO_FOLLOW, dir_fd=self.directory)


class Root:
    """A directory of the host, below which paths are resolved; unconfined it is `/`, and links lead anywhere.

    Creating one touches no disk. The directory is opened anew for every operation: it may be a link, be replaced, or
    not exist yet.
    """

    def __init__(self, path: str, *, confined: bool = True, follow_links: bool = True) -> None:
        self._base = path
        self._given = path if confined else "/"
        self._confined = confined
        self._follow_links = follow_links

    @cached_property
    def host_path(self) -> str:
        """The absolute path of the directory on the host; a relative one is taken from the directory of the process."""
        return os.path.abspath(self._given)

    def is_root_or_above(self, names: list[str]) -> bool:
        """Whether these names lead to the directory that was given, or to one above it."""
        if self._confined:
            return not names
        ways = map(_names, (os.path.abspath(self._base), os.path.realpath(self._base)))
        return any(way[: len(names)] == names for way in ways)

    @cached_property
    def _is_linked(self) -> bool:
        """Whether links lead to the directory when it is first used, which decides how it is best opened."""
        return os.path.realpath(self.host_path) != self.host_path

    def open(self, path: str, flags: int) -> int:
        """Open what `path` leads to, through links that are allowed."""
        try:
            return self._open_plain(path, flags)
        except OSError as error:
            if error.errno not in LINK_ERRORS:
                raise
        with self.locate(path) as place:
            return place.open(flags)

    def _open_plain(self, path: str, flags: int) -> int:
        """Open `path` where no name in it is a link; the common case, without the machinery of the others."""
        if not self._confined and self._follow_links:
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

    def locate(self, path: str, *, follow: bool = True) -> Place:
        """The place of `path`, whose directory must exist; with `follow`, of what a link there leads to.

        Raises PermissionDeniedError where a link leads outside, NotFoundError where a file stands in the way.
        """
        try:
            return _Resolution(self, path, make=False).run(follow=follow)
        except NotDirectoryError as error:
            raise NotFoundError(path) from error

    def locate_target(self, path: str, *, make: bool = True) -> Place:
        """The place where something is to be put; directories above it that are missing are made, if so wanted.

        Raises NotDirectoryError about the file that stands in the way, PermissionDeniedError where a link leads
        outside.
        """
        resolution = _Resolution(self, path, make=make)
        try:
            return resolution.run(follow=True)
        except BaseException:
            self.remove_created(resolution.made)
            raise

    def real_path(self, path: str) -> str | None:
        """The virtual path, without links, of what `path` leads to, or would lead to once it is made.

        None where it leads outside, into a circle of links, or by `..` out of a directory that does not exist. Raises
        OSError where the system has too few descriptors to tell.
        """
        try:
            names = _Resolution(self, path, make=False).names()
        except (OSError, DeepFSError) as error:
            if is_shortage(error):
                raise
            return None
        return None if ".." in names else "/" + "/".join(names)

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to, through links that are allowed."""
        for _ in range(MAX_RACES):
            with self.locate(path) as place:
                status = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
            # What was no link a moment ago may be one now; its own status would tell how long its target is.
            if not stat.S_ISLNK(status.st_mode):
                return status
        raise PermissionDeniedError(path, TOO_MANY_LINKS)

    def enter(self, *, make: bool) -> int:
        """Open the directory itself."""
        if not _SUPPORTED:
            raise NotSupportedError(None, "Files on disk need a system with POSIX directory descriptors")
        try:
            return os.open(self.host_path, SEARCH)
        except FileNotFoundError:
            if not make:
                raise
        os.makedirs(self.host_path, exist_ok=True)
        return os.open(self.host_path, SEARCH)

    def directories(self, names: Sequence[str]) -> list[os.stat_result]:
        """The status of the root and of each directory that `names` lead through, as far as they are directories."""
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
        """The status of this directory and of those of the host above it, outwards; the names of missing ones."""
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
        """Remove directories that an operation made and that are still empty."""
        for names in reversed(made):
            with suppress(OSError, DeepFSError), self.locate("/" + "/".join(names), follow=False) as place:
                os.rmdir(place.name, dir_fd=place.directory)
        made.clear()

    def through_link(self, path: str, above: list[str], target: str) -> list[str]:
        """The names that `target`, read from a link in the directory `above`, stands for."""
        if not self._follow_links:
            raise PermissionDeniedError(path, "links are not followed")
        if not target.startswith("/"):
            return [*above, *_names(target)]
        names = _names(target)
        for base in (self.host_path, os.path.realpath(self.host_path)):
            prefix = _names(base)
            if names[: len(prefix)] == prefix:
                return names[len(prefix) :]
        raise PermissionDeniedError(path, OUTSIDE)

    def above(self, path: str, names: list[str], index: int) -> list[str]:
        """`names` without the run of `..` at `index` and the names that it undoes."""
        end = index
        while end < len(names) and names[end] == "..":
            end += 1
        keep = index - (end - index)
        if keep < 0 and self._confined:
            raise PermissionDeniedError(path, OUTSIDE)
        return names[: max(keep, 0)] + names[end:]


class _Resolution:
    """One walk from a root to a place, begun anew at the root after every link and every `..`."""

    __slots__ = ("_make", "_path", "_root", "made")

    def __init__(self, root: Root, path: str, *, make: bool) -> None:
        self._root = root
        self._path = path
        self._make = make
        self.made: list[list[str]] = []

    def run(self, *, follow: bool) -> Place:
        names = _names(self._path)
        if any(map(is_temporary, names)):
            raise InvalidPathError(self._path, "the name is reserved")
        for _ in range(2 * _MAX_LINKS):
            found = self._descend(names, follow)
            if isinstance(found, Place):
                return found
            names = found
        raise PermissionDeniedError(self._path, TOO_MANY_LINKS)

    def names(self) -> list[str]:
        """The names that lead to the place without links; those from the first missing one on are as written."""
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
        """The place of the last name, or, as soon as a link or `..` comes, the names that lead on from the root."""
        directory = self._root.enter(make=self._make)
        try:
            for index, name in enumerate(names):
                if name == "..":
                    return self._root.above(self._path, names, index)
                if index == len(names) - 1:
                    break
                child = self._enter(directory, names, index)
                if child is None:
                    return self._through(directory, names, index)
                directory, left = child, directory
                release(left)
            if follow and names and (target := link_target(directory, names[-1])) is not None:
                return self._root.through_link(self._path, names[:-1], target)
            place = Place(self._root, directory, names, self.made)
            directory = -1
            return place
        finally:
            if directory >= 0:
                release(directory)

    def _enter(self, directory: int, names: list[str], index: int) -> int | None:
        """Open a directory on the way, making it where that is wanted; None where something else is there."""
        for _ in range(MAX_RACES):
            try:
                return os.open(names[index], SEARCH | NO_FOLLOW, dir_fd=directory)
            except OSError as error:
                if error.errno in LINK_ERRORS:
                    return None
                if error.errno != errno.ENOENT or not self._make:
                    raise
            with suppress(FileExistsError):
                os.mkdir(names[index], dir_fd=directory)
                self.made.append(names[: index + 1])
        raise NotFoundError(self._path)

    def _through(self, directory: int, names: list[str], index: int) -> list[str]:
        target = link_target(directory, names[index])
        if target is None:
            raise NotDirectoryError("/" + "/".join(names[: index + 1]))
        return self._root.through_link(self._path, names[:index], target) + names[index + 1 :]


# --- the identity of a place -----------------------------------------------------------------------------------------

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
