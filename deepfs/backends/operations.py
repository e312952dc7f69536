"""What every backend offers: the operations with their contract, without a line of how they are done."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from deepfs.search.request import GlobRequest, GrepRequest
from deepfs.sync import sync_shims
from deepfs.text.entries import EntryChange, StoragePlace, TreeListing
from deepfs.types import (
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

__all__ = ["CHUNK_BYTES", "Capabilities", "Operations", "SyncCommands", "without_defaults"]

CHUNK_BYTES = 1024 * 1024

MethodT = TypeVar("MethodT")


class Capabilities(Struct, frozen=True):
    """The ways in which backends may differ, declared as data."""

    keeps_empty_directories: bool = False
    keeps_created_at: bool = True
    durable: bool = False
    """What is stored outlives the process."""
    executes: bool = False
    """The backend runs commands (`aexecute`)."""


if TYPE_CHECKING:
    from deepfs.backends._surface import SyncCommands, SyncSurface
else:

    class SyncSurface:
        pass

    class SyncCommands:
        """A base of backends that define `aexecute`: type checkers learn of `execute` by it."""


def _either_way(method: MethodT) -> MethodT:
    """Declare a search that a class defines in one of two ways: by its parameters, or as `arun_…` by its request.

    The other way is generated. So a class must define one, but type checkers are not to ask for both.
    """
    method.__isabstractmethod__ = True  # type: ignore[attr-defined]
    return method


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

    @_either_way
    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        """List the files that match, sorted by path.

        Without `/` the pattern is the name at any depth under `path`; with one it is relative to `path`. `* ** ? [abc]
        [!abc] {a,b}`; a dot-name needs a segment that starts with `.`. Errors: invalid_pattern, file_not_found,
        not_a_directory.
        """
        raise NotImplementedError

    @_either_way
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
        raise NotImplementedError

    async def arun_glob(self, request: GlobRequest) -> GlobResult:
        """Carry out an `aglob` that is given as one value. Backends, wrappers and mounts call each other by this.

        Each class has both ways, of which it defines one and the other is generated.
        """
        raise NotImplementedError

    async def arun_grep(self, request: GrepRequest) -> GrepResult:
        """Carry out an `agrep` that is given as one value; otherwise as `arun_glob`."""
        raise NotImplementedError

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
        """The bytes of a file in chunks of at most `chunk_size`; raises the leaf of `deepfs.errors` where that fails.

        All are of one version of the file. Where a backend has no way of its own, it holds the whole file meanwhile.
        """

    @abstractmethod
    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        """Store the bytes of all `chunks` as one file, replacing what is there once they are complete.

        What `chunks` raises is raised, and nothing changed; a generator is closed in any case. Where a backend has no
        way of its own, it holds the whole file meanwhile; over 256 MB is `too_large`.
        """


def without_defaults(**options: Any) -> dict[str, Any]:
    """The options that are neither None nor False, so that a backend without the others can be called."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
