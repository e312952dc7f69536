"""Trees of entries as data: the input for planning a transfer between two storages.

A `TreeListing` has what the listing of a directory leaves out: links, special files, mode bits, and how many entries
cannot be listed at all. The functions are pure; `backends/transfer.py` carries a transfer out.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from deepfs.errors import (
    AlreadyExistsError,
    DeepFSError,
    ErrorCode,
    IsDirectoryError,
    NotDirectoryError,
    error_about,
    quote,
)
from deepfs.text import paths

Kind: TypeAlias = Literal["file", "directory", "link", "special"]


class TreeEntry(Struct, frozen=True):
    """One entry of a tree. A link is an entry itself; it is not followed."""

    path: str
    kind: Kind
    size: int | None = None
    """The size of a file in bytes, if it is known."""
    mode: int | None = None
    """The permission bits, if the storage has them."""
    leads_to: Kind | None = None
    """The kind of the target of a link; None if it leads nowhere or outside."""


class Omission(Struct, frozen=True):
    """Entries that exist but cannot be listed: their number, and the reason for the first."""

    count: int
    code: ErrorCode
    reason: str
    """It names no path, so that it is correct wherever the storage is mounted."""


class TreeListing(Struct, frozen=True):
    """The entries at or under a path: the path itself first, directories before their content."""

    entries: list[TreeEntry]
    omission: Omission | None = None


class EntryChange(Struct, frozen=True):
    """A change of one entry that no public operation makes.

    `make_directory` makes a directory that is not there yet, `remove_directory` removes one that is empty, `set_mode`
    sets the permission bits of a file or directory.
    """

    path: str
    change: Literal["make_directory", "remove_directory", "set_mode"]
    mode: int | None = None


# --- making listings ---


is_valid: Callable[[str], bool] = paths.is_normal
"""Whether a path, which a storage returned, is a valid normalised path."""


def omission_of_name(name: str) -> Omission:
    """The omission of an entry whose name cannot be in a valid path."""
    return Omission(1, ErrorCode.INVALID_PATH, f"the name {quote(name)} in it is in no valid path")


def unnamed_omission(count: int) -> Omission:
    """The omission of entries whose names are no text."""
    return Omission(count, ErrorCode.INVALID_PATH, "a name in it is no text (UTF-8)")


def unreadable_omission() -> Omission:
    """The omission of the content of a directory that cannot be listed."""
    return Omission(1, ErrorCode.PERMISSION_DENIED, "a directory in it cannot be listed")


def join_omissions(*omissions: Omission | None) -> Omission | None:
    """Several omissions as one, with the reason of the first."""
    found = [omission for omission in omissions if omission is not None]
    return replace(found[0], count=sum(omission.count for omission in found)) if found else None


def list_implied(top: str, files: Iterable[tuple[str, int | None]]) -> TreeListing:
    """The listing of `top` in a flat storage: the files at or under it, with their sizes, and implied directories."""
    entries: dict[str, TreeEntry] = {}
    omission: Omission | None = None
    for path, size in sorted(files):
        if not is_valid(path):
            omission = join_omissions(omission, omission_of_name(paths.name(path)))
            continue
        for directory in ("/", *paths.ancestors(path)):
            if directory == top or paths.is_beneath(directory, top):
                entries.setdefault(directory, TreeEntry(directory, "directory"))
        entries[path] = TreeEntry(path, "file", size)
    if not entries and (omission or top == "/"):
        entries[top] = TreeEntry(top, "directory")
    return TreeListing(sorted(entries.values(), key=lambda entry: entry.path), omission)


# --- reading listings ---


def files_of(entries: Iterable[TreeEntry]) -> list[TreeEntry]:
    """The entries that are copied as files: files, and links to files."""
    return [entry for entry in entries if entry.kind != "directory"]


def directories_of(entries: Iterable[TreeEntry]) -> list[TreeEntry]:
    """The directories, parents before children."""
    return [entry for entry in entries if entry.kind == "directory"]


def empty_directories(entries: Sequence[TreeEntry]) -> list[TreeEntry]:
    """The directories that are empty."""
    filled = {paths.parent(entry.path) for entry in entries if entry.path != "/"}
    return [entry for entry in directories_of(entries) if entry.path not in filled]


def check_transferable(listing: TreeListing, src: str, *, moves: bool) -> None:
    """Raise unless everything at or under `src` can be transferred to another storage."""
    if listing.omission is not None:
        raise _refusal(src, listing.omission.code, listing.omission.reason, moves=moves)
    for entry in listing.entries:
        if entry.path != src and not (is_valid(entry.path) and paths.is_beneath(entry.path, src)):
            reason = "the storage told '{other}', which does not lie in it"
            raise _refusal(src, ErrorCode.BACKEND_ERROR, reason, entry.path, moves=moves)
        objection = _objection(entry, moves=moves)
        if objection is not None:
            raise _refusal(src, ErrorCode.UNSUPPORTED, f"'{{other}}' {objection}", entry.path, moves=moves)


def check_target(dst: str, standing: Kind | None, *, from_file: bool, overwrite: bool) -> None:
    """Raise unless a file (`from_file`) or a directory may be put at `dst`, where a `standing` entry is, or nothing."""
    if standing == "directory":
        raise IsDirectoryError(dst) if overwrite else AlreadyExistsError(dst, is_directory=True)
    if standing is not None and not overwrite:
        raise AlreadyExistsError(dst)
    if standing is not None and not from_file:
        raise NotDirectoryError(dst)


def _objection(entry: TreeEntry, *, moves: bool) -> str | None:
    """Why an entry cannot be transferred; None if it can."""
    if entry.kind == "special":
        return "is neither a file nor a directory"
    if entry.kind != "link":
        return None
    if moves:
        return "is a link, which no other storage can hold"
    if entry.leads_to == "file":
        return None
    return "is a link to a directory" if entry.leads_to == "directory" else "is a link that leads to no file"


def _refusal(src: str, code: ErrorCode, reason: str, other: str | None = None, *, moves: bool) -> DeepFSError:
    done = "moved" if moves else "copied"
    whole = f"it cannot be {done} to another storage whole: {reason}. Nothing changed."
    return error_about(code, src, whole, other=other)


is_probing: ContextVar[bool] = ContextVar("deepfs_is_probing", default=False)
"""Whether the current change is of a temporary file, of which no version is kept."""


mode_of_new_files: ContextVar[int | None] = ContextVar("deepfs_mode_of_new_files", default=None)
"""The permission bits of the files that the current operation makes, if it knows them. A mode that is set afterwards
comes too late: others could have opened the file by then."""


@contextmanager
def use_file_mode(mode: int | None) -> Iterator[None]:
    """A context for storing files: new ones have these permission bits, where the storage has any, from the start.

    None is what the storage gives to new files.
    """
    token = mode_of_new_files.set(mode)
    try:
        yield
    finally:
        mode_of_new_files.reset(token)


class StoragePlace(Struct, frozen=True):
    """A place in a storage, named independently of the backend and of the path by which it is reached."""

    keys: frozenset[Hashable]
    """The names of the place itself. Two places with a name in common are the same."""
    above: frozenset[Hashable]
    """The names of the directories above it."""
    storage: Hashable = None
    """The storage: two places in the same storage that have no name in common are different. None if unknown."""
    is_sole: bool = False
    """Whether no place with another `storage` can be this one."""


class Relation(Enum):
    """The relation of a destination to a source."""

    SAME = "the same place"
    INSIDE = "beneath the source"
    APART = "elsewhere"
    UNKNOWN = "one of the storages does not say where it is"


def flat_place(scope: Hashable, path: str, *, storage: Hashable = None, is_sole: bool = False) -> StoragePlace:
    """The place of a normalised path in a `scope` of its `storage`, where each place has its path as its only name."""
    above = () if path == "/" else ("/", *paths.ancestors(path))
    return StoragePlace(frozenset([(scope, path)]), frozenset((scope, each) for each in above), storage, is_sole)


def relation(source: StoragePlace | None, destination: StoragePlace | None) -> Relation:
    """The relation of `destination` to `source`; UNKNOWN if one of them is None."""
    if source is None or destination is None:
        return Relation.UNKNOWN
    if source.keys & destination.keys:
        return Relation.SAME
    if source.keys & destination.above:
        return Relation.INSIDE
    in_one = source.storage is not None and source.storage == destination.storage
    return Relation.APART if in_one or (source.is_sole and destination.is_sole) else Relation.UNKNOWN
