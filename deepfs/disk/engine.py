"""The files below one directory of the host: every operation, blocking, to be called in a worker thread."""

import os
from collections.abc import Callable, Generator
from typing import BinaryIO

from deepfs.disk.atomic import Sweeper
from deepfs.disk.os_calls import StorageErrors, release
from deepfs.disk.reading import DEFAULT_LIMITS, Limits, Reading, open_regular, read_descriptor, read_whole, read_window
from deepfs.disk.relocation import Relocator
from deepfs.disk.removal import delete
from deepfs.disk.resolve import Root, place_of
from deepfs.disk.trees import list_tree
from deepfs.disk.walking import FoundFile, Listing, list_directory, walk
from deepfs.disk.writing import Upload, Writer, change_entry
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing
from deepfs.threads.deadline import Deadline

__all__ = ["Disk"]

_WAIT_S = 30.0


class Disk:
    """The files below the directory `root` of the host.

    Paths are normalised virtual ones (`/a/b`); with `confined=False` they are absolute paths of the host, and links
    lead anywhere. Creating a Disk does no I/O; a root that does not exist is empty. The first write makes it, and so
    does a change of `/` itself, even one that is refused.

    Nothing outside the root is read, listed or changed, whatever others do to directories and links meanwhile. Links
    that stay inside work, unless `follow_links_inside=False`: relative ones, and absolute ones that start with the
    path of the root as given or without links. The root itself may be a link.

    Files are replaced in one step, so a reader sees the old content or the new. Changes of one file through any Disk
    follow one another, across threads and processes; programs that write into the file by themselves take no part in
    that. Replacing a file keeps its mode, and its owner where that is allowed; other hard links to it keep the old
    content, and extended attributes do not pass over. With `durable` a change is on the disk when its method returns.

    Every method raises leaves of `deepfs.errors` about the path that it was given, with no host path in their text.
    `deadline` ends long looking and waiting for others with DeadlineError; a change waits 30 seconds where none is
    given. Cancelled, it also ends the work of a change: a file is then as it was or as it was to be, a copy is gone, a
    directory may be deleted in part.
    """

    def __init__(
        self, root: str, *, follow_links_inside: bool = True, durable: bool = False, confined: bool = True
    ) -> None:
        self._root = Root(root, confined=confined, follow_links=follow_links_inside)
        sweeper = Sweeper()
        self._sweeper = sweeper
        self._durable = durable
        self._writer = Writer(self._root, sweeper, durable=durable)
        self._relocator = Relocator(self._root, sweeper, durable=durable)

    @property
    def host_path(self) -> str:
        """The absolute path of the root on the host; asks for the directory of the process where it is relative."""
        return self._root.host_path

    # --- looking ---

    def read_file(self, path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
        """The whole content and the status of a file.

        Args:
            path: A path to a file, or to a link to one.
            limit: The most bytes; None for no limit.

        Raises:
            TooLargeError: The file is over `limit`.
            NotFoundError, IsDirectoryError, PermissionDeniedError: There is no file to be read.
        """
        with StorageErrors(path):
            descriptor, status = open_regular(self._root, path)
            try:
                return read_descriptor(path, descriptor, status.st_size, limit), status
            finally:
                release(descriptor)

    def read_whole(self, path: str, limit: int) -> Reading:
        """`read_file`, with the version of the content."""
        with StorageErrors(path):
            return read_whole(self._root, path, limit)

    def open_file(self, path: str) -> tuple[BinaryIO, os.stat_result]:
        """A file opened for reading in binary, which the caller closes, and its status."""
        with StorageErrors(path):
            descriptor, status = open_regular(self._root, path)
            return os.fdopen(descriptor, "rb"), status

    def read_window(
        self, path: str, offset: int, limit: int, limits: Limits = DEFAULT_LIMITS, deadline: Deadline | None = None
    ) -> Reading:
        """A window of a text file, or the whole of a file that proves to be binary.

        A file over `limits.judged` is read only as far as the window goes, and judged by that.

        Args:
            path: A path to a file, or to a link to one.
            offset: The first line, from 0.
            limit: The most lines.
            limits: Where reading stops, in bytes.
            deadline: When to stop.

        Raises:
            TooLargeError: The window, or the binary file, is over its limit.
            InvalidContentError: `offset` is past the end.
        """
        with StorageErrors(path):
            return read_window(self._root, path, offset, limit, limits, deadline or Deadline())

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to."""
        with StorageErrors(path):
            return self._root.stat(path)

    def real_path(self, path: str) -> str | None:
        """The path without links to where `path` leads, or would lead once it is made; None where that is outside."""
        with StorageErrors(path):
            return self._root.real_path(path)

    def place(self, path: str) -> StoragePlace:
        """Where on this host `path` leads, or would lead once it is made.

        Equal for two paths that lead to one entry, through whatever roots and links.
        """
        with StorageErrors(path):
            return place_of(self._root, path)

    def list_directory(self, path: str, limit: int | None = None, deadline: Deadline | None = None) -> Listing:
        """The children of a directory, sorted by path, where that of a directory ends in `/`.

        A link is listed as what it leads to, or as a file without size where it leads nowhere or outside. Unfinished
        files and names that are not UTF-8 are left out.

        Args:
            path: A path to a directory.
            limit: How many children are looked at; None for all.
            deadline: When to stop.

        Raises:
            NotDirectoryError: Something else is at `path`.
        """
        return list_directory(self._root, path, limit, deadline or Deadline())

    def list_tree(self, path: str, deadline: Deadline | None = None, *, deleting: bool = False) -> TreeListing:
        """Every entry at or under `path`, links as themselves, and how many entries cannot be listed.

        Args:
            path: Where to start; a file or a link is the only entry.
            deadline: When to stop.
            deleting: Whether entries that may not be deleted are left out and counted.
        """
        return list_tree(self._root, path, deadline or Deadline(), deleting=deleting)

    def walk(
        self,
        path: str,
        *,
        enter: Callable[[str], bool] | None = None,
        unreadable: Callable[[str, OSError], None] | None = None,
        deadline: Deadline | None = None,
    ) -> Generator[FoundFile, None, None]:
        """The files at or beneath `path`, sorted by path; to be closed where it is left early.

        Linked files are included where the link stays inside; linked directories are not entered, so no cycle is
        possible.

        Args:
            path: Where to start.
            enter: Whether to go into the directory at a path; asked before it is opened. None for all.
            unreadable: Called with the path of each directory that cannot be read, and of each link that cannot be
                followed because the system has too few descriptors.
            deadline: When to stop.
        """
        return walk(self._root, path, deadline or Deadline(), enter=enter, unreadable=unreadable)

    # --- changing ---

    def write_file(
        self,
        path: str,
        data: bytes,
        *,
        overwrite: bool = False,
        if_match: str | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Put `data` at `path`, making the directories above it.

        Args:
            path: A path to a file, or to a link to one.
            data: The whole content.
            overwrite: Whether to replace a file that is there.
            if_match: Replace just this version, whatever `overwrite` says.
            deadline: When to stop waiting for others; 30 seconds by default.

        Raises:
            AlreadyExistsError: A file is there, and neither `overwrite` nor `if_match` is set.
            ConflictError: The file is not of the version `if_match`, or is gone.
            IsDirectoryError: A directory is there.
            NotDirectoryError: A file stands above `path`.
            PermissionDeniedError: The file may not be written.
        """
        self._writer.write(path, data, deadline or Deadline(_WAIT_S), overwrite=overwrite, if_match=if_match)

    def upload(self, path: str) -> Upload:
        """A file to be written in parts and then put at `path`; the caller closes it."""
        return Upload(self._root, path, self._sweeper, durable=self._durable)

    def edit_file(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        *,
        if_match: str | None = None,
        limit: int | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Replace the content of a file, with nobody else changing it meanwhile.

        Args:
            path: A path to a file, or to a link to one.
            change: Makes the new content of the old; what it raises leaves the file as it is.
            if_match: Edit just this version.
            limit: The most bytes of the old content; None for no limit.
            deadline: When to stop waiting for others; 30 seconds by default.

        Raises:
            ConflictError: The file is not of the version `if_match`.
            TooLargeError: The file is over `limit`.
        """
        self._make_root_of(path)
        self._writer.edit(path, change, deadline or Deadline(_WAIT_S), if_match=if_match, limit=limit)

    def delete(self, path: str, deadline: Deadline | None = None, *, if_match: str | None = None) -> None:
        """Delete a file, a link itself, or a directory with all under it; never anything behind a link.

        Where something cannot be deleted, all the rest is, and the error names what stayed.

        Args:
            path: What to delete.
            deadline: When to stop waiting for others; 30 seconds by default.
            if_match: Delete just this version of a file, or the link to one.

        Raises:
            ConflictError: The file is not of the version `if_match`.
            IsDirectoryError: `if_match` is given for a directory.
            PermissionDeniedError: `path` is the root, or something may not be deleted.
        """
        self._make_root_of(path)
        delete(self._root, path, deadline or Deadline(_WAIT_S), if_match=if_match)

    def change_entry(self, change: EntryChange) -> None:
        """Make or remove one directory, or set a mode.

        Raises:
            AlreadyExistsError: A directory to be made is there already, or one to be removed is not empty.
        """
        change_entry(self._root, change, durable=self._durable)

    def move(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        """Move a file, a link itself, or a directory; at every instant it is at one of both paths.

        Nothing changes where both paths are names of one entry, as are a link and the file that it leads to.

        Args:
            src: What to move.
            dst: Where to; directories above it are made.
            overwrite: Whether a file may replace a file. A directory is never replaced.
            deadline: When to stop waiting for others; 30 seconds by default.

        Raises:
            AlreadyExistsError, IsDirectoryError, NotDirectoryError: What stands at `dst` is in the way.
            InvalidPathError: `dst` lies inside `src`.
        """
        self._make_root_of(src, dst)
        self._relocator.move(src, dst, deadline or Deadline(_WAIT_S), overwrite=overwrite)

    def copy(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        """Copy a file, a link itself, or a directory with all under it, which appears when it is complete.

        Links are copied as they are.

        Args:
            src: What to copy.
            dst: Where to; directories above it are made.
            overwrite: Whether a file may replace a file. A directory is never replaced.
            deadline: When to stop waiting for others; 30 seconds by default.

        Raises:
            AlreadyExistsError: Something stands at `dst`, perhaps `src` itself by another name.
            IsDirectoryError, NotDirectoryError: What stands at `dst` may not be replaced.
            InvalidPathError: `dst` lies inside `src`.
        """
        self._make_root_of(src, dst)
        self._relocator.copy(src, dst, deadline or Deadline(_WAIT_S), overwrite=overwrite)

    def _make_root_of(self, *paths: str) -> None:
        """Make the root if one of the paths is `/`, so that the change finds a directory there."""
        if "/" in paths:
            with StorageErrors("/"):
                release(self._root.enter(make=True))
