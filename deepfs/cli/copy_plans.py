"""What a copy of a tree between two backends has to do: the terms, the files that it stores, and what it counts."""

import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from deepfs.backends.protocol import BackendProtocol
from deepfs.cli.session import Place, Session
from deepfs.errors import DeepFSError, ErrorCode, NotFoundError, NotSupportedError, quoted
from deepfs.storage.gathering import gather_each
from deepfs.text import paths
from deepfs.text.entries import TreeEntry, TreeListing, empty_directories
from deepfs.types import Result, error_told

__all__ = [
    "STREAMED_BYTES",
    "PlannedFile",
    "Terms",
    "Totals",
    "TreePlan",
    "Verify",
    "error_text",
    "kind_at",
    "listed",
    "modification_times",
    "reason_text",
]

STREAMED_BYTES: Final = 8 * 1024 * 1024
"""Files from this size on are streamed."""
_USUAL_MODE: Final = 0o644
"""The mode of new files, so that it need not be set. Where the system gives them less, they keep less."""
_MOST_TOLD: Final = 20
"""How many files that could not be copied are told one by one."""

_TEXTS: Final = {
    ErrorCode.FILE_NOT_FOUND: "No such file or directory",
    ErrorCode.IS_DIRECTORY: "Is a directory",
    ErrorCode.NOT_A_DIRECTORY: "Not a directory",
    ErrorCode.PERMISSION_DENIED: "Permission denied",
    ErrorCode.ALREADY_EXISTS: "File exists",
    ErrorCode.TOO_LARGE: "File too large",
    ErrorCode.QUOTA_EXCEEDED: "Quota exceeded",
    ErrorCode.CONFLICT: "It was changed meanwhile",
    ErrorCode.TIMEOUT: "Timed out",
    ErrorCode.UNSUPPORTED: "Not supported there",
}


def error_text(code: str | None) -> str:
    """What the system's tools say for an error code.

    Args:
        code: The code of `ErrorCode`; None is an unknown error.
    """
    return _TEXTS.get(code, code or "unknown error")  # type: ignore[call-overload,no-any-return]


def reason_text(result: Result) -> str:
    """Why an operation failed, as the system's tools say it where they have words for it.

    Args:
        result: The result of the operation.
    """
    return _TEXTS.get(result.code) or str(error_told(result))  # type: ignore[arg-type]


class Verify(StrEnum):
    """How a file is checked after it was stored."""

    READ = "read"
    """It is read back and compared."""
    SIZE = "size"
    """Its size is compared."""
    NONE = "none"


class Terms(Struct, frozen=True, kw_only=True):
    """What a copy does where something is at the target, and how it is checked."""

    recursive: bool = False
    no_clobber: bool = False
    """Files that exist are left alone."""
    update: bool = False
    """Files that are as new as the source, or newer, are left alone."""
    size_only: bool = False
    """Files of the same size are taken to be equal."""
    verify: Verify = Verify.READ
    moves: bool = False
    """The source is deleted afterwards."""


class Totals(Struct):
    """What a command has done so far. Bytes of skipped files do not count."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0
    failed: int = 0
    planned_files: int = 0
    planned_bytes: int = 0
    started: float = 0.0
    passed_bytes: int = 0
    """The bytes of all files that are done with, and of the parts of streams."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class PlannedFile(Struct, frozen=True):
    """A file to copy."""

    path: str
    target: str
    size: int | None
    mode: int | None
    existing: TreeEntry | None
    """What is at the target."""

    @property
    def exists(self) -> bool:
        return self.existing is not None

    @property
    def existing_size(self) -> int | None:
        return None if self.existing is None else self.existing.size

    @property
    def new_mode(self) -> int | None:
        """The permission bits to set once it is stored; None if there is nothing to set."""
        existing = _USUAL_MODE if self.existing is None else self.existing.mode
        return None if self.mode == existing else self.mode

    @property
    def may_be_equal(self) -> bool:
        return self.exists and (self.size is None or self.existing_size is None or self.size == self.existing_size)

    @property
    def cost(self) -> int:
        """The bytes that it takes in a batch. A file of unknown size is taken to be a large one."""
        return STREAMED_BYTES if self.size is None else self.size


async def listed(backend: BackendProtocol, path: str) -> TreeListing:
    """The entries at and under a path; none where nothing is.

    Args:
        backend: The backend.
        path: The path.

    Raises:
        DeepFSError: The path cannot be listed.
    """
    try:
        return await backend.alist_tree(path)
    except NotFoundError:
        return TreeListing([])


async def modification_times(backend: BackendProtocol, directories: Sequence[str]) -> dict[str, str]:
    """When the files in some directories were changed, by path.

    Args:
        backend: The backend.
        directories: The directories; those that do not exist are left out.
    """
    results = await gather_each(backend.als, directories)
    entries = (entry for result in results for entry in result.entries or ())
    return {entry.path: entry.modified_at for entry in entries if entry.modified_at is not None}


async def kind_at(backend: BackendProtocol, path: str) -> Literal["file", "directory"] | None:
    """What is at a path, links followed; None for nothing.

    Args:
        backend: The backend.
        path: The path.

    Raises:
        DeepFSError: It cannot be found out.
    """
    result = await backend.als(path)
    if result.ok:
        return "directory"
    if result.code is ErrorCode.NOT_A_DIRECTORY:
        return "file"
    if result.code is ErrorCode.FILE_NOT_FOUND:
        return None
    raise error_told(result)


class TreePlan:
    """What has to be done to copy what is at one place to another place.

    Args:
        session: The session, which tells the errors.
        terms: The terms.
        totals: What is counted, also for other copies of the same command.
        source: What to copy: a file or a directory.
        target: Where its copy is to be; the directory that it is in exists, or need not.
        is_put_into: Whether the user named the directory above the target, and not the target itself.
    """

    def __init__(
        self,
        session: Session,
        terms: Terms,
        totals: Totals,
        source: Place,
        target: Place,
        *,
        is_put_into: bool = False,
    ) -> None:
        self.session: Session = session
        self.terms: Terms = terms
        self.totals: Totals = totals
        self.source: Place = source
        self.target: Place = target
        self.is_put_into: bool = is_put_into
        self.entries: list[TreeEntry] = []
        """What can be copied, directories before what is in them."""
        self.existing: dict[str, TreeEntry] = {}
        """What is at the target, by path."""
        self.files: list[PlannedFile] = []
        """The files to copy."""

    async def make(self, listing: TreeListing) -> None:
        """Look at the target, and choose the files to copy. What cannot be copied is told.

        Args:
            listing: The entries of the source.

        Raises:
            DeepFSError: The target cannot be listed.
        """
        if listing.omission is not None:
            self.fail(self.source.path, f"not all of it can be listed: {listing.omission.reason}")
        existing = await self._existing_entries()
        self.existing = {entry.path: entry for entry in existing.entries}
        blocked: set[str] = set()
        for entry in listing.entries:
            problem = None if paths.parent(entry.path) in blocked else self._problem(entry)
            if problem is not None:
                self.fail(entry.path, problem)
            if problem is not None or paths.parent(entry.path) in blocked:
                blocked.add(entry.path)
            else:
                self.entries.append(entry)
        self.files = await self._chosen([self._file(entry) for entry in self.entries if entry.kind == "file"])
        self.totals.planned_files += len(self.files)
        self.totals.planned_bytes += sum(file.size or 0 for file in self.files)

    async def _existing_entries(self) -> TreeListing:
        try:
            return await listed(self.target.backend, self.target.path)
        except DeepFSError:
            if self.terms.verify is Verify.READ:
                raise
            return TreeListing([])  # It may be a target that can be written and not read.

    def at_target(self, path: str) -> str:
        """The path of the copy.

        Args:
            path: The path in the source.
        """
        return paths.join(self.target.path, paths.relative(path, self.source.path))

    def _problem(self, entry: TreeEntry) -> str | None:
        """Why an entry cannot be copied; None if it can."""
        if entry.kind == "link":
            return "it is a symbolic link, which is not followed"
        if entry.kind == "special":
            return "it is neither a file nor a directory"
        there = self.existing.get(self.at_target(entry.path))
        if there is None:
            return None
        # Whoever may write at the target can have put a link there, to have something written elsewhere. So only the
        # directory that the user named may be one.
        is_named = entry.path == self.source.path and not self.is_put_into
        if there.kind == "link" and (there.leads_to != entry.kind or (entry.kind == "directory" and not is_named)):
            return f"{quoted(self.target.shown(there.path))} is a symbolic link, which is not followed"
        if there.kind in (entry.kind, "link"):
            return None
        if entry.kind == "file":
            return "a directory cannot be replaced by a file"
        return "a file cannot be replaced by a directory"

    def _file(self, entry: TreeEntry) -> PlannedFile:
        target = self.at_target(entry.path)
        return PlannedFile(entry.path, target, entry.size, entry.mode, self.existing.get(target))

    async def _chosen(self, files: list[PlannedFile]) -> list[PlannedFile]:
        """The files that the terms do not leave out."""
        chosen = files
        if self.terms.no_clobber:
            chosen = [file for file in chosen if not file.exists]
        if self.terms.update:
            chosen = await self._newer(chosen)
        if self.terms.size_only:
            chosen = [file for file in chosen if not (file.exists and file.size == file.existing_size is not None)]
        self.totals.skipped += len(files) - len(chosen)
        return chosen

    async def _newer(self, files: list[PlannedFile]) -> list[PlannedFile]:
        """The files that are newer than what is at the target, or of which a time is unknown."""
        known = [file for file in files if file.exists]
        here = await modification_times(self.source.backend, _parents(file.path for file in known))
        there = await modification_times(self.target.backend, _parents(file.target for file in known))
        return [file for file in files if not file.exists or here.get(file.path, "~") > there.get(file.target, "")]

    def check_movable(self) -> None:
        """Check that no empty directory would be lost.

        Raises:
            NotSupportedError: The target keeps no empty directories, and the source has one.
        """
        empty = empty_directories(self.entries)
        if empty and not self.target.backend.capabilities.keeps_empty_directories:
            what = "it cannot be moved whole: the target keeps no empty directories. Nothing changed."
            raise NotSupportedError(self.source.shown(empty[0].path), what)

    def shown_target(self, file: PlannedFile) -> str:
        """The path of a copy, quoted, as the user calls it.

        Args:
            file: The file.
        """
        return quoted(self.target.shown(file.target))

    def fail(self, path: str, reason: str, file: PlannedFile | None = None) -> None:
        """Tell that something could not be copied.

        Args:
            path: The path in the source.
            reason: Why.
            file: The file of which no more is read.
        """
        if file is not None:
            self.totals.passed_bytes += file.size or 0
        verb = "move" if self.terms.moves else "copy"
        self.tell(f"cannot {verb} {quoted(self.source.shown(path))}: {reason}")

    def tell(self, problem: str) -> None:
        """Tell a problem, after which the command ends with status 1. Many of them are only counted.

        Args:
            problem: What went wrong.
        """
        self.totals.failed += 1
        self.session.status = max(self.session.status, 1)
        if self.totals.failed <= _MOST_TOLD:
            self.session.failed(problem)
        elif self.totals.failed == _MOST_TOLD + 1:
            self.session.failed("further errors are counted only")


def _parents(given: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(paths.parent, given)))
