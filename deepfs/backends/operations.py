"""What every backend offers: the operations with their contract, without a line of how they are done."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from deepfs.search.results import Hidden
from deepfs.sync import sync_shims
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing
from deepfs.types import (
    ChangeEvent,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["CHUNK_BYTES", "Capabilities", "Operations", "SyncCommands", "hidden_option", "without_defaults"]

CHUNK_BYTES = 1024 * 1024


class Capabilities(Struct, frozen=True):
    """The ways in which backends may differ, declared as data."""

    keeps_empty_directories: bool = False
    keeps_created_at: bool = True
    durable: bool = False
    """What is stored outlives the process."""
    executes: bool = False
    """The backend runs commands (`aexecute`)."""
    deletes: bool = True
    """The backend deletes files (`adelete`). For a class that defines no `adelete` this is False by itself."""
    watches: bool = False
    """The backend tells of changes as they happen (`awatch`)."""


if TYPE_CHECKING:
    from deepfs.backends._surface import SyncCommands, SyncSurface
else:

    class SyncSurface:
        pass

    class SyncCommands:
        """A base of backends that define `aexecute`: type checkers learn of `execute` by it."""


@sync_shims
class Operations(SyncSurface, ABC):
    """The operations of a backend; `BackendProtocol` is the class to derive from, and does some of them by others."""

    capabilities: Capabilities
    never_waits: bool

    @abstractmethod
    def inner_backends(self) -> Sequence[object]:
        """The backends, of whatever protocol, that this one passes calls on to; none where it stores files itself."""

    @abstractmethod
    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread; sync calls are refused there."""

    @abstractmethod
    async def areal_paths(self, paths: list[str]) -> list[str | None]:
        """Where each path leads once links are followed, or would lead once it is made; None where that is nowhere.

        On storage without links, as here, the paths themselves. Whoever judges paths judges these as well; a layer that
        changes paths on their way to another backend changes these back.
        """

    @abstractmethod
    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        """Every entry at or under `path` as a transfer to another storage needs them: more than `als` shows.

        It is made of `als` and `areal_paths` here. A backend overrides it where it knows of links, special files, mode
        bits, or names that are in no valid path. With `deleting`, what may be read but not deleted counts as omitted.
        Raises leaves of `deepfs.errors`: FileMissingError where nothing is at `path`, AccessError and NotSupportedError
        where nothing can be deleted.
        """

    @abstractmethod
    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        """Changes of directories and mode bits that a transfer needs; one outcome for each, in order.

        Here no directory can be made (`unsupported`), modes are not kept, and a directory is removed by `adelete` if a
        listing just before shows that nothing is in it.
        """

    @abstractmethod
    async def astorage_place(self, path: str) -> StoragePlace:
        """Which storage `path` lies in, and where, by names that do not depend on this object: two mounts compare them.

        Here what is stored at a path belongs to this object and that path, and what others reach is not known: copies
        and moves between it and others find out by a file that they make for a moment. A layer that changes paths on
        their way to another backend asks that one about the changed path.
        """

    @abstractmethod
    async def als(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path; directories end in `/`.

        Errors: file_not_found, not_a_directory.
        """

    @abstractmethod
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        r"""Read `limit` lines from line `offset` (from 0) of a text file, or the whole of a binary one as base64.

        A line ends at `\n`; terminators are kept as stored and a BOM is hidden, so the windows that `next_offset` leads
        through join to the text. Errors: file_not_found, is_directory, too_large, and invalid_content where `offset` is
        past the end.
        """

    @abstractmethod
    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        """Create a text file with the directories above it; a reader sees the old file or the new one.

        `overwrite` replaces what is there; `if_match`, a `version` that a read returned, replaces just that version.
        Errors: already_exists, conflict, is_directory, not_a_directory, invalid_content.
        """

    @abstractmethod
    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        r"""Replace the literal text `old` by `new`, once, or everywhere with `replace_all`.

        No byte outside the replacement changes. In a CRLF file `\n` in `old` also matches `\r\n`, and `new` follows
        suit. Edits of one file are applied one after another. Errors: file_not_found, no_match, ambiguous_match,
        binary_file, conflict, invalid_content (empty or identical strings).
        """

    @abstractmethod
    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        """List the files that match, sorted by path.

        Without `/` the pattern is the name at any depth under `path`; with one it is relative to `path`. `* ** ? [abc]
        [!abc] {a,b}`; a dot-name needs a segment that starts with `.`. Errors: invalid_pattern, file_not_found,
        not_a_directory.
        """

    @abstractmethod
    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: int = 0,
        max_count: int | None = None,
    ) -> GrepResult:
        """Find the lines that hold a literal text, or match a regular expression, in the files under `path`.

        Matches are sorted by path, then line. `glob` chooses the files, `max_count` ends the search after so many
        matches (`truncated`). Binary files are passed over; `skipped` counts files that could not be searched.
        Errors: invalid_pattern, file_not_found.
        """

    @abstractmethod
    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all under it.

        `if_match`, a `version` that a read returned, deletes a file just where it is that version. Errors:
        file_not_found, conflict, is_directory where `if_match` is given for one, permission_denied for `/`, unsupported
        where the backend cannot delete.
        """

    @abstractmethod
    async def aread_raw(self, path: str) -> ReadRawResult:
        """Read the whole file with its timestamps. Errors: file_not_found, is_directory, too_large."""

    @abstractmethod
    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Copy a file, or a directory with all under it.

        Errors: file_not_found, already_exists, is_directory, not_a_directory, invalid_path for a copy into itself.
        """

    @abstractmethod
    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all under it; at no instant are both ends gone. Errors as in `acopy`."""

    @abstractmethod
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store bytes, replacing what is there; one outcome for each item, in order."""

    @abstractmethod
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch bytes; one outcome for each path, in order."""

    @abstractmethod
    def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in chunks, all of one version of the file.

        Leaving the iteration, best by `contextlib.aclosing`, ends the download. Where a backend has no way of its own,
        it holds the whole file meanwhile.

        Args:
            path: The file.
            chunk_size: The most bytes of a chunk; 1 MiB by default.

        Yields:
            The chunks, in order; none for an empty file.

        Raises:
            DeepFSError: The leaf for what is wrong, when the iteration begins or, where the storage fails, later:
                file_not_found, is_directory, permission_denied, too_large.
            ValueError: `chunk_size` is not positive.
        """

    @abstractmethod
    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        """Store the bytes of all `chunks` as one file, replacing what is there once they are complete.

        Where a backend has no way of its own, it holds the whole file meanwhile; over 256 MB is `too_large`.

        Args:
            path: The file; directories above it are made.
            chunks: An async iterable of bytes. A generator is closed in any case.

        Returns:
            The outcome; `error` is the bare code: is_directory, not_a_directory, permission_denied, too_large,
            quota_exceeded. It is also that of a leaf of `deepfs.errors` that `chunks` raises.

        Raises:
            TypeError: `chunks` is no async iterable, or yields something else than bytes.
            Exception: What else `chunks` raises; nothing changed.
        """

    @abstractmethod
    def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        """Tell of changes at and under `path` as they happen, whoever makes them.

        There is no sync form. Leaving the iteration, best by `contextlib.aclosing`, ends the watch.

        Args:
            path: A file or directory, which need not exist yet; by default everything.

        Yields:
            One event for each change that is noticed, in the order in which it is noticed. Changes of one file in quick
            succession may be one event, and a move is a deletion and a creation.

        Raises:
            NotSupportedError: When the iteration begins, where `capabilities.watches` is False.
            DeepFSError: The leaf for a path that is invalid or may not be read, and for a storage that fails.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close what this backend made for itself: clients, pools, a workspace.

        What the caller passed in, such as a store, a client or a sandbox, stays open. Wrappers and composites close the
        backends behind them. It runs to its end also where the caller is cancelled, and does nothing the second time. A
        backend that had something to close answers `backend_error` afterwards; others go on working.
        """


def hidden_option(backend: object, hidden: Hidden | None) -> dict[str, Any]:
    """The option that tells the searches of `backend` what their caller hides; nothing where they do not have it.

    They have it by name: a method that takes any option might change paths, and hide others for it.
    """
    kind: Any = type(backend)
    return {} if hidden is None or not _can_hide(kind) else {"hidden": hidden}


@lru_cache(maxsize=256)
def _can_hide(kind: Any) -> bool:
    return all("hidden" in inspect.signature(search).parameters for search in (kind.aglob, kind.agrep))


def without_defaults(**options: Any) -> dict[str, Any]:
    """The options that are neither None nor False, so that a backend without the others can be called."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
