"""Every operation on the files below one host directory. The methods block: call them in a worker thread."""

import os
from collections.abc import Callable, Generator, Iterable
from copy import copy
from io import BufferedReader, FileIO
from itertools import groupby
from typing import BinaryIO

from deepfs.disk.in_memory import FilesInMemory
from deepfs.disk.os_calls import StorageErrors, check_platform, release
from deepfs.disk.programs import add_root, import_late_modules
from deepfs.disk.reading import (
    DEFAULT_LIMITS,
    Reading,
    ReadLimits,
    open_regular,
    read_descriptor,
    read_whole,
    read_window,
)
from deepfs.disk.relocation import MoveProgress, Relocator
from deepfs.disk.resolve import Root, place_of
from deepfs.disk.trees import delete, list_tree
from deepfs.disk.unchanged import UnchangedFiles
from deepfs.disk.walking import Choice, FileRun, Listing, Walk, list_directory
from deepfs.disk.watching import DiskWatch
from deepfs.disk.writing import NEW_MODE, Sweeper, Upload, Writer, change_entry
from deepfs.text.access import AccessCheck
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing
from deepfs.text.paths import name, parent
from deepfs.threads.deadline import Deadline

_MAX_VIEWS = 64


class _ReleasedFile(FileIO):
    """An open file that is closed by `release`."""

    def close(self) -> None:
        descriptor = -1 if self.closed else self.fileno()
        super().close()
        if descriptor >= 0:
            release(descriptor)


class Disk:
    """The files below the directory `root` of the host.

    Paths are normalised virtual paths (`/a/b`); with `confined=False` they are absolute paths of the host, and symlinks
    may lead anywhere. Creating a Disk does no I/O. A root that does not exist counts as an empty directory; a listing
    or search of it logs a warning once. The first write creates it, and so does a change of `/` itself, even one that
    is refused.

    Nothing outside the root is read, listed or changed, even if other processes replace directories and symlinks during
    the operation. Symlinks that stay inside the root are followed: relative ones, and absolute ones that start with the
    path of the root, as given or with its own symlinks resolved. The root itself may be a symlink.

    Files are replaced in one step, so a reader sees the old content or the new. Changes of one file through any Disk
    are made one after another, across threads and processes; programs that write into the file directly do not wait
    for these locks. Replacing a file keeps its mode, without set-id bits, its group if that is permitted, its access
    control list and its user attributes; the owner becomes that of the process, and other hard links to it keep the old
    content. A file that is mounted by itself, as containers mount single files, is written in place instead. With
    `durable` a change is on the disk when its method returns.

    Every method raises leaf errors of `deepfs.errors` about the path that it was given; their texts contain no host
    path. Where others hold the lock of a file, a change raises LockHeldError, and can be repeated with the same
    arguments. When its time is up, a `deadline` makes that, long reads and scans end with DeadlineError. When it is
    cancelled, it also ends the work of a change: a file then has the old content or the new, an incomplete copy is
    removed, a directory may be partly deleted.
    """

    def __init__(self, root: str, *, durable: bool = False, confined: bool = True) -> None:
        check_platform()
        self._sweeper = Sweeper()
        self._durable = durable
        self._new_mode = NEW_MODE
        self._views: dict[AccessCheck, Disk] = {}
        self._has_changed = False
        add_root(self, root)
        self._work_in(Root(root, confined=confined))

    def _work_in(self, root: Root) -> None:
        self._root = root
        self.in_memory: FilesInMemory = FilesInMemory(root)
        """The same files, read without waiting: raises BlockingIOError where a read would wait."""
        self._writer = Writer(root, self._sweeper, durable=self._durable, new_mode=self._new_mode)
        self._relocator = Relocator(root, self._sweeper, durable=self._durable)

    def expect_no_root(self) -> None:
        """Have nothing logged where the root does not exist."""
        self._root.plain.has_warned = True

    def with_access(self, access: AccessCheck | None) -> "Disk":
        """The same files, where every path that is used is checked first, with its symlinks resolved.

        Entries that are refused are left out of listings and walks. A directory is moved, copied or deleted only if
        nothing beneath it is refused. None is this disk itself.
        """
        if access is None:
            return self
        view = self._views.get(access)
        if view is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            view = self._views[access] = copy(self)
            view._views = {}
            view._work_in(self._root.with_access(access))
        return view

    def with_file_mode(self, mode: int | None) -> "Disk":
        """The same files, where writes and uploads make new files with these permission bits, less those of the umask.

        None is this disk itself.
        """
        if mode is None:
            return self
        view = copy(self)
        view._views = {}
        view._new_mode = mode & 0o777
        view._writer = Writer(self._root, self._sweeper, durable=self._durable, new_mode=view._new_mode)
        return view

    @property
    def host_path(self) -> str:
        """The absolute path of the root on the host; a relative root is resolved from the current directory."""
        return self._root.host_path

    # --- reading ---

    def read_file(self, path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
        """The whole content and the status of a file; TooLargeError if it is over `limit` bytes."""
        with StorageErrors(path):
            descriptor, status = open_regular(self._root, path)
            try:
                return read_descriptor(path, descriptor, status.st_size, limit), status
            finally:
                release(descriptor)

    def read_whole(self, path: str, limit: int) -> Reading:
        """Like `read_file`, with the version of the content."""
        with StorageErrors(path):
            return read_whole(self._root, path, limit)

    def open_file(self, path: str) -> tuple[BinaryIO, os.stat_result]:
        """Open a file for reading bytes; returns it, to be closed by the caller, and its status."""
        with StorageErrors(path):
            descriptor, status = open_regular(self._root, path)
            return BufferedReader(_ReleasedFile(descriptor, closefd=False)), status

    def read_window(
        self, path: str, offset: int, limit: int, limits: ReadLimits = DEFAULT_LIMITS, deadline: Deadline | None = None
    ) -> Reading:
        """A window of a text file, or the whole of a binary file.

        A file over `limits.judged` is read only to the end of the window; that part decides whether it is text. Raises
        TooLargeError if the window or the binary file is over its limit, InvalidContentError if `offset` is past the
        end.
        """
        with StorageErrors(path):
            return read_window(self._root, path, offset, limit, limits, deadline or Deadline())

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to."""
        with StorageErrors(path):
            return self._root.stat(path)

    def real_path(self, path: str) -> str | None:
        """The path with all symlinks resolved; it need not exist yet. None if it leads outside the root."""
        with StorageErrors(path):
            return self._root.real_path(path)

    def real_paths(self, paths: Iterable[str | None]) -> list[str | None]:
        """The path of each of `paths` with all symlinks resolved; None if it cannot be resolved, or leads outside.

        Raises DeepFSError if the system is short of file descriptors or memory.
        """
        found: list[str | None] = []
        # Paths that are resolved together, such as those that a search finds, are mostly in few directories.
        for directory, group in groupby(paths, lambda path: None if path is None else parent(path)):
            if directory is None:
                found += group
                continue
            beside = list(filter(None, group))
            are_real = self._root.are_real(directory, list(map(name, beside)))
            found += [path if is_real else self.real_path(path) for path, is_real in zip(beside, are_real, strict=True)]
        return found

    def place(self, path: str) -> StoragePlace:
        """The identity of what `path` leads to on this host; it need not exist yet.

        If two paths lead to the same entry, even through different roots or symlinks, their places share a key.
        """
        with StorageErrors(path):
            return place_of(self._root, path)

    def list_directory(self, path: str, deadline: Deadline | None = None) -> Listing:
        """The children of a directory, sorted by path; the path of a directory ends in `/`.

        A symlink is listed as its target, or as a file without size if the target is missing or outside the root.
        Temporary files of this package are left out, and names that are not UTF-8 are counted only.
        """
        return list_directory(self._root, path, deadline or Deadline())

    def list_tree(self, path: str, deadline: Deadline | None = None, *, deleting: bool = False) -> TreeListing:
        """Every entry at or under `path`, and how many entries cannot be listed. Symlinks are listed as symlinks.

        With `deleting`, entries that may not be deleted are left out and counted.
        """
        return list_tree(self._root, path, deadline or Deadline(), deleting=deleting)

    def walk_runs(
        self,
        path: str,
        choice: Choice | None = None,
        *,
        unreadable: Callable[[str, OSError], None] | None = None,
        deadline: Deadline | None = None,
    ) -> Generator[FileRun, None, None]:
        """The files at or beneath `path`, sorted by path, many at a time. Close the generator if you stop early.

        A symlink to a file is included if it stays inside the root; a symlink to a directory is not entered, so no
        cycle is possible. `unreadable` is called with the path of each directory that cannot be read, and of each
        symlink that cannot be followed because the system is short of file descriptors or memory.
        """
        return Walk(self._root, deadline or Deadline(), choice, unreadable).runs(path)

    def select_unchanged(self, path: str) -> UnchangedFiles | None:
        """What selects the files beneath `path` that do not change from now on.

        None if it cannot tell: `path` leads through a symlink, access is checked, the root changed just now, or its
        file system is not known to tell when files change.
        """
        if self._root.access is not None or self.real_path(path) != path:
            return None
        unchanged = UnchangedFiles(self._root)
        return unchanged if unchanged.is_possible else None

    def watch(self, path: str) -> DiskWatch:
        """A watch of what is at and under a path, which need not exist. It has to be started, and to be closed."""
        return DiskWatch(self._root.plain, path)

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

        Raises AlreadyExistsError if a file is there and neither `overwrite` nor `if_match` is set, ConflictError if the
        file does not have the version `if_match`, or does not exist. With `if_match`, `overwrite` is ignored.
        """
        self._prepare()
        self._writer.write(path, data, deadline or Deadline(), overwrite=overwrite, if_match=if_match)

    def upload(self, path: str) -> Upload:
        """Start a file that is written in parts and then put at `path`; the caller closes it."""
        self._prepare()
        return Upload(self._writer, path)

    def edit_file(
        self,
        path: str,
        change: Callable[[bytes], bytes],
        *,
        if_match: str | None = None,
        limit: int | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Replace the content of a file; it is locked from reading the old content to storing the new.

        If `change` raises, the file stays unchanged. Raises ConflictError if the file does not have the version
        `if_match`, TooLargeError if it is over `limit` bytes.
        """
        self._prepare()
        self._make_root_of(path)
        self._writer.edit(path, change, deadline or Deadline(), if_match=if_match, limit=limit)

    def delete(
        self, path: str, deadline: Deadline | None = None, *, if_match: str | None = None, only_file: bool = False
    ) -> None:
        """Delete a file, a symlink, or a directory with all under it; the target of a symlink stays.

        If something in a directory cannot be deleted, all the rest is, and the error names what stayed. With `if_match`
        only this version of a file, or a symlink to a file of this version, is deleted. With it, and with `only_file`,
        a directory stays.
        """
        self._prepare()
        self._make_root_of(path)
        delete(self._root, path, deadline or Deadline(), if_match=if_match, only_file=only_file)

    def change_entry(self, change: EntryChange) -> None:
        """Make or remove one directory, or set a mode.

        Raises AlreadyExistsError if a directory to be made is there already, or one to be removed is not empty.
        """
        self._prepare()
        change_entry(self._root, change, durable=self._durable)

    def move(
        self,
        src: str,
        dst: str,
        *,
        overwrite: bool = False,
        deadline: Deadline | None = None,
        progress: MoveProgress | None = None,
    ) -> None:
        """Move a file, a symlink, or a directory; at every instant it exists at `src` or at `dst`.

        If both paths name the same entry, such as a symlink and the file that it leads to, nothing changes. With
        `overwrite` a file may replace a file, but a directory is never replaced. A call that is repeated after
        LockHeldError gets the same `progress`.
        """
        self._prepare()
        self._make_root_of(src, dst)
        progress = progress or MoveProgress()
        self._relocator.move(src, dst, deadline or Deadline(), overwrite=overwrite, progress=progress)

    def copy(self, src: str, dst: str, *, overwrite: bool = False, deadline: Deadline | None = None) -> None:
        """Copy a file, a symlink, or a directory with all under it; the copy appears at `dst` once it is complete.

        Symlinks are copied as symlinks. `overwrite` is as in `move`. Raises AlreadyExistsError also if `dst` is `src`
        itself under another name.
        """
        self._prepare()
        self._make_root_of(src, dst)
        self._relocator.copy(src, dst, deadline or Deadline(), overwrite=overwrite)

    def _prepare(self) -> None:
        """Before the first change, import what a change could replace."""
        if not self._has_changed:
            import_late_modules()
            self._has_changed = True

    def _make_root_of(self, *paths: str) -> None:
        """Make the root if one of the paths is `/`, since a change of `/` needs an existing directory."""
        if "/" in paths:
            with StorageErrors("/"):
                release(self._root.enter(make=True))
