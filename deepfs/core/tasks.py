"""One search of a tree on disk: what it wants, what it found, when it ends."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, TypeAlias, TypeVar

from deepfs.core.disk import Disk, FoundFile, Patience, is_shortage, leaf, modified_at
from deepfs.core.search import MAX_GLOB_MATCHES, Grep, Wanted, glob_result
from deepfs.errors import (
    AccessError,
    DeadlineError,
    DeepFSError,
    DirectoryError,
    FileMissingError,
    NotDirectoryError,
)
from deepfs.types import FileInfo, GlobResult, GrepResult

__all__ = ["AnyTask", "GlobTask", "GrepTask", "NamedFile", "Seen"]

ResultT = TypeVar("ResultT", GlobResult, GrepResult)


class NamedFile:
    """A file known by its path."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path: str = path

    def stat(self) -> os.stat_result:
        """The status of the file."""
        return self._disk.stat(self.path)

    def read(self, limit: int) -> bytes:
        """The content; TooLargeError where it is over `limit` bytes, FileMissingError where no walk would find it."""
        try:
            return self._disk.read_file(self.path, limit)[0]
        except (AccessError, DirectoryError, NotDirectoryError) as error:
            # The system refuses what is inside alone; the others lead outside, or to what is no file.
            if isinstance(error.__cause__, PermissionError):
                raise
            raise FileMissingError(self.path) from error


class Seen:
    """A file that a pass comes by; what one search has it find out, the others are told."""

    __slots__ = ("_content", "_file", "_info", "_max_bytes", "path")

    def __init__(self, file: FoundFile | NamedFile, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._content: bytes | DeepFSError | None = None
        self._info: FileInfo | None = None
        self.path: str = file.path

    def info(self) -> FileInfo:
        """What a listing says of it."""
        if self._info is None:
            self._info = _info(self._file)
        return self._info

    def content(self) -> bytes:
        """What it holds; raises where it cannot be read, or is too large to be searched."""
        if self._content is None:
            try:
                self._content = self._file.read(self._max_bytes)
            except DeepFSError as error:
                self._content = error
        if isinstance(self._content, DeepFSError):
            raise self._content
        return self._content


def _info(file: FoundFile | NamedFile) -> FileInfo:
    try:
        status = file.stat()
    except DeepFSError:
        return FileInfo(file.path, False)
    return FileInfo(file.path, False, status.st_size, modified_at(status))


class _Task(ABC, Generic[ResultT]):
    """One search. `on_end` is called once, on the thread of the pass, when `result` is known."""

    on_end: Callable[[], object] | None = None

    def __init__(self, wanted: Wanted, patience: Patience) -> None:
        self.wanted: Wanted = wanted
        self.done: str = ""
        """A path up to which nothing is left, in the order of a walk."""
        self.is_over: bool = False
        self.has_expired: bool = False
        """Whether it ended for want of time, or because nobody waits for it any more."""
        self.shortage: DeepFSError | None = None
        """What kept some of the tree from being looked at, though it could be."""
        self._patience = patience

    def check(self, path: str) -> None:
        """End it where its time is up."""
        try:
            self._patience.check(path)
        except DeadlineError:
            self._expire()

    def attend(self, file: Seen) -> bool:
        """Search a file that it wants, unless that was done; whether it wants no more.

        Where its time is up meanwhile, it ends.
        """
        if not self.is_over and file.path > self.done:
            try:
                self._search(file)
            except DeadlineError:
                self._expire()
        return self.is_over or self.has_enough

    def end(self) -> None:
        """Nothing more comes."""
        if not self.is_over:
            self.is_over = True
            if self.on_end is not None:
                self.on_end()

    def _expire(self) -> None:
        self.has_expired = True
        self.end()

    @property
    @abstractmethod
    def has_enough(self) -> bool:
        """Whether more files would change nothing."""

    @abstractmethod
    def _search(self, file: Seen) -> None: ...

    def start_in_file(self) -> None:
        """Learn that what it starts in is a file."""
        return

    def lack(self, path: str, error: OSError | DeepFSError) -> bool:
        """Whether `path` was not looked at for want of something of the system, which the result then tells."""
        if not is_shortage(error):
            return False
        self.shortage = self.shortage or (error if isinstance(error, DeepFSError) else leaf(error, path))
        return True

    @abstractmethod
    def miss(self, path: str, error: OSError) -> None:
        """Count a directory, with `/` at the end, that cannot be read."""

    def _told(self, result: ResultT) -> ResultT:
        """`result`, which says whether it is incomplete."""
        result.truncated = result.truncated or self.has_expired or self.shortage is not None
        if self.shortage is not None:
            result.error, result.code = f"{self.shortage}: the search is not complete", self.shortage.code
        return result

    @abstractmethod
    def result(self) -> ResultT:
        """The result, complete or as far as the search came; raises what kept it from having one."""


class GlobTask(_Task[GlobResult]):
    """A search for files by their paths."""

    def __init__(self, wanted: Wanted, patience: Patience) -> None:
        super().__init__(wanted, patience)
        self._matches: list[FileInfo] = []
        self._starts_in_file = False

    @property
    def has_enough(self) -> bool:
        return len(self._matches) > MAX_GLOB_MATCHES

    def _search(self, file: Seen) -> None:
        self._matches.append(file.info())

    def start_in_file(self) -> None:
        self._starts_in_file = True
        self.end()

    def miss(self, path: str, error: OSError) -> None:
        self.lack(path, error)

    def result(self) -> GlobResult:
        """Sorted by path; NotDirectoryError where the search starts in a file."""
        if self._starts_in_file:
            raise NotDirectoryError(self.wanted.root)
        result = self._told(glob_result(self._matches))
        if self.shortage is not None:
            result.truncation_reason = "unreadable"
        elif self.has_expired:
            result.truncation_reason = "budget"
        return result


class GrepTask(_Task[GrepResult]):
    """A search for lines. Files must come sorted by path where `grep` has a limit, otherwise each once."""

    def __init__(self, grep: Grep, patience: Patience) -> None:
        super().__init__(grep.wanted, patience)
        self.grep: Grep = grep

    @property
    def has_enough(self) -> bool:
        return self.grep.truncated

    def _search(self, file: Seen) -> None:
        try:
            content = file.content()
        except FileMissingError:
            return
        except DeepFSError as error:
            if not self.lack(file.path, error):
                self.grep.skip()
        else:
            self.grep.scan(file.path, content)

    def miss(self, path: str, error: OSError) -> None:
        if path > self.done and not self.lack(path, error):
            self.grep.skip()

    def result(self) -> GrepResult:
        """Sorted by path, then line."""
        # Matches of one file are together and in order already.
        self.grep.matches.sort(key=attrgetter("path"))
        return self._told(self.grep.result())


AnyTask: TypeAlias = GlobTask | GrepTask
