"""The files below one directory of the host: every operation, blocking, to be called in a worker thread."""

import os
from collections.abc import Callable, Generator
from typing import BinaryIO

from deepfs.disk.atomic import Sweeper
from deepfs.disk.os_errors import StorageErrors
from deepfs.disk.reading import DEFAULT_LIMITS, Limits, Reading, open_regular, read_descriptor, read_whole, read_window
from deepfs.disk.relocation import Relocator
from deepfs.disk.removal import delete
from deepfs.disk.resolve import Root, release
from deepfs.disk.trees import change_entry, list_tree, place_of
from deepfs.disk.walking import FoundFile, Listing, list_directory, walk
from deepfs.disk.writing import Upload, Writer
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
        """The whole content and the status of a file; TooLargeError where it is over `limit` bytes."""
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
        """At most `limit` lines from line `offset`, from 0, of a text file; the whole of one that proves to be binary.

        A file over `limits.judged` is read only as far as the window goes, and judged by that. TooLargeError where the
        window or the binary file is over its limit, InvalidContentError where `offset` is past the end.
        """
        with StorageErrors(path):
            return read_window(self._root, path, offset, limit, limits, deadline or Deadline())

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to."""
        with StorageErrors(path):
            return self._root.stat(path)

    def real_path(self, path: str) -> str | None:
        """Where `path` leads, or would lead once it is made, without links; None where that is nowhere in here."""
        with StorageErrors(path):
            return self._root.real_path(path)

    def place(self, path: str) -> StoragePlace:
        """Where on this host `path` leads, or would lead once it is made: the same by whatever root and name."""
        with StorageErrors(path):
            return place_of(self._root, path)

    def list_directory(self, path: str, limit: int | None = None, deadline: Deadline | None = None) -> Listing:
        """The children of a directory, sorted by path, where that of a directory ends in `/`.

        Links are told by what they lead to; those that lead nowhere, or outside, as files without size. Unfinished
        files and names that are not UTF-8 are left out. `limit` bounds how many children are looked at.
        """
        return list_directory(self._root, path, limit, deadline or Deadline())

    def list_tree(self, path: str, deadline: Deadline | None = None, *, deleting: bool = False) -> TreeListing:
        """Every entry at or under `path`, links as themselves, and how many cannot be told.

        With `deleting`, what may not be deleted counts as omitted.
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
        possible. `enter` is asked about each directory, by its path, before it is opened; `unreadable` is told of each
        that cannot be, and of links that cannot be followed for want of descriptors.
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

        Creates only, unless `overwrite`; `if_match` replaces just that version. ExistsError, ConflictError,
        DirectoryError, NotDirectoryError where a file stands above, AccessError for a file that may not be written.
        """
        self._writer.write(path, data, deadline or Deadline(_WAIT_S), overwrite=overwrite, if_match=if_match)

    def upload(self, path: str) -> Upload:
        """A file to be written bit by bit and then put at `path`; the caller closes it."""
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
        """Replace the content of a file by what `change` makes of it, with nobody else changing it meanwhile.

        What `change` raises leaves the file as it is. TooLargeError where the file is over `limit` bytes.
        """
        self._make_root_of(path)
        self._writer.edit(path, change, deadline or Deadline(_WAIT_S), if_match=if_match, limit=limit)

    def delete(self, path: str, deadline: Deadline | None = None, *, if_match: str | None = None) -> None:
        """Delete a file, a link itself, or a directory with all under it; never anything behind a link.

        `if_match` deletes just that version of a file, or the link to one: ConflictError where it is another one,
        DirectoryError for a directory. Where something cannot be deleted all the rest is, and the error says what
        stayed. The root: AccessError.
        """
        self._make_root_of(path)
        delete(self._root, path, deadline or Deadline(_WAIT_S), if_match=if_match)

    def change_entry(self, change: EntryChange) -> None:
        """Make or remove one directory, or set a mode.

        ExistsError where a directory that is to be made is there already, or one that is to be removed is not empty.
        """
        change_entry(self._root, change, durable=self._durable)

    def move(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        """Move a file, a link itself, or a directory; one end stands at every instant.

        `overwrite` replaces a file by a file, never a directory. Nothing changes where both are one by other names, as
        are a link and the file that it leads to. ExistsError, DirectoryError, NotDirectoryError, InvalidPathError for a
        move into itself.
        """
        self._make_root_of(src, dst)
        self._relocator.move(src, dst, deadline or Deadline(_WAIT_S), overwrite=overwrite)

    def copy(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        """Copy a file, a link itself, or a directory with all under it, which appears when it is complete.

        Links are copied as they are. Errors as of `move`, and ExistsError for a copy onto itself without `overwrite`.
        """
        self._make_root_of(src, dst)
        self._relocator.copy(src, dst, deadline or Deadline(_WAIT_S), overwrite=overwrite)

    def _make_root_of(self, *paths: str) -> None:
        """Make the root if one of the paths is `/`, so that the change finds a directory there."""
        if "/" in paths:
            with StorageErrors("/"):
                release(self._root.enter(make=True))
