"""The defaults of `alist_tree` and `achange_entries`, made of public operations; the test whether two paths are one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from deepfs.errors import BackendError, ErrorCode, InvalidPathError, error_about
from deepfs.sync import shielded
from deepfs.text import paths
from deepfs.text.entries import (
    EntryChange,
    Kind,
    Omission,
    Relation,
    TreeEntry,
    TreeListing,
    is_probing,
    is_valid,
    joined,
    omission_of_name,
    relation,
    unnamed_omission,
    unreadable_omission,
)
from deepfs.text.judging import aside
from deepfs.types import FileInfo, FileUploadResponse, LsResult, Result, error_told

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["End", "are_one", "changed_entry", "listed_tree"]


async def listed_tree(backend: "BackendProtocol", path: str) -> TreeListing:
    """The tree at `path`, made of `als` and `aresolve_paths`. Raises NotFoundError if nothing is there."""
    path = paths.normalize(path)
    listing = await backend.als(path)
    if not listing.ok and listing.code is not ErrorCode.NOT_A_DIRECTORY:
        raise error_told(listing)
    real, above = await backend.aresolve_paths([path, paths.parent(path)])
    own = path if above is None else paths.join(above, paths.name(path))
    walk = _Walk(backend)
    if walk.add(FileInfo(path, is_dir=listing.ok), own, real) == "directory":
        await walk.run(path, own, listing)
    return TreeListing(sorted(walk.entries, key=lambda entry: entry.path), walk.omission)


_MOST_LEVELS: Final = 1_000
"""The deepest directory of a tree. A backend that lists a directory within itself would be walked without end."""


class _Walk:
    """A walk through a tree. An entry is a link if its path resolves to another one. Links are not followed."""

    def __init__(self, backend: "BackendProtocol") -> None:
        self._backend = backend
        self.entries: list[TreeEntry] = []
        self.omission: Omission | None = None

    def add(self, info: FileInfo, own: str, real: str | None) -> Kind:
        """Add an entry and return its kind. Its path resolves to `real`, or to `own` if it is no link."""
        leads_to: Kind = "directory" if info.is_dir else "file"
        path = info.path.rstrip("/") or "/"
        is_link = real != own
        self.entries.append(
            TreeEntry(path, "link", leads_to=leads_to if real else None)
            if is_link
            else TreeEntry(path, leads_to, info.size)
        )
        return "link" if is_link else leads_to

    async def run(self, path: str, real_path: str, listing: LsResult) -> None:
        pending = [(path, real_path, listing)]
        while pending:
            directory, real_directory, listing = pending.pop()
            if listing.skipped:
                self.omission = joined(self.omission, unnamed_omission(listing.skipped))
            children = [info for info in listing.entries or () if self._is_carried(directory, info)]
            named = [info.path.rstrip("/") for info in children]
            real = await self._backend.aresolve_paths(named) if named else []
            for info, child, leads_to in zip(children, named, real, strict=True):
                own = paths.join(real_directory, paths.name(child))
                if self.add(info, own, leads_to) == "directory":
                    if child.count("/") > _MOST_LEVELS:
                        raise BackendError(directory, "its listings have no end")
                    below = await self._backend.als(child)
                    if below.ok:
                        pending.append((child, own, below))
                    else:
                        self.omission = joined(self.omission, unreadable_omission())

    def _is_carried(self, directory: str, info: FileInfo) -> bool:
        """Whether a listed entry has a valid path; else it is counted as an omission.

        Raises BackendError if it does not lie in the listed directory.
        """
        child = info.path.rstrip("/")
        if not child.startswith("/") or paths.parent(child) != directory or paths.name(child) in ("", ".", ".."):
            raise BackendError(directory, "its listing names '{other}', which is elsewhere", info.path)
        if is_valid(child):
            return True
        self.omission = joined(self.omission, omission_of_name(paths.name(child)))
        return False


async def changed_entry(backend: "BackendProtocol", change: EntryChange) -> FileUploadResponse:
    """Make a change with the public operations."""
    return FileUploadResponse(change.path, await _make_change(backend, change))


async def _make_change(backend: "BackendProtocol", change: EntryChange) -> str | None:
    """Make a change and return the error code, or None. Only an empty directory can be removed this way."""
    if change.change == "make_directory":
        return ErrorCode.UNSUPPORTED.value
    if change.change == "set_mode":
        return None
    listing = await backend.als(change.path)
    if listing.code is ErrorCode.FILE_NOT_FOUND:
        return None
    if not listing.ok:
        return (listing.code or ErrorCode.BACKEND_ERROR).value
    if listing.entries:
        return ErrorCode.ALREADY_EXISTS.value
    deleted = await backend.adelete(change.path)
    return None if deleted.ok else (deleted.code or ErrorCode.BACKEND_ERROR).value


T = TypeVar("T")

_CONTENT: Final = "Made to see whether two mounts are one storage; it can be deleted.\n"
_ATTEMPTS: Final = 3
"""The number of attempts to delete that file."""


class End(NamedTuple):
    """A path of a backend."""

    backend: "BackendProtocol"
    path: str


async def are_one(
    tree: "BackendProtocol", src: str, dst: str, sources: Sequence[End], destination: End, *, moving: bool
) -> bool:
    """Whether `src` and `dst` of `tree` are two names of one place.

    `sources` and `destination` are their places in the backends of `tree`: the first source is `src` itself, the others
    lie beneath it. Raises InvalidPathError if `dst` lies inside `src`, and the error of `als` if there is no `src`.
    """
    for source in sources:
        found = await _relation(source, destination, moving=moving)
        if found in (Relation.SAME, Relation.INSIDE):
            _check_there(await tree.als(src))
            if found is Relation.INSIDE:
                raise InvalidPathError(dst, "it lies inside {other}", src)
            return source is sources[0]
    return False


def _check_there(listing: Result) -> None:
    if not listing.ok and listing.code is not ErrorCode.NOT_A_DIRECTORY:
        raise error_told(listing)


async def _relation(source: End, destination: End, *, moving: bool) -> Relation:
    stated = relation(
        await source.backend.astorage_place(source.path), await destination.backend.astorage_place(destination.path)
    )
    return await _probed(source, destination, moving=moving) if stated is Relation.UNKNOWN else stated


# --- storages that do not state the relation of two places ---


@aside
async def _probed(source: End, destination: End, *, moving: bool) -> Relation:
    """Find out the relation by a temporary file; UNKNOWN if nothing can be lost without knowing it.

    A file that moves onto another one may be the same file. A directory replaces nothing, but may go into itself.
    """
    listing = await source.backend.als(source.path)
    standing = await destination.backend.als(destination.path)
    if listing.ok and standing.code is ErrorCode.FILE_NOT_FOUND:
        return await _directory_relation(source, destination)
    if moving and listing.code is standing.code is ErrorCode.NOT_A_DIRECTORY:
        return await _file_relation(source, destination)
    return Relation.UNKNOWN


async def _directory_relation(source: End, destination: End) -> Relation:
    above = paths.parent(destination.path)
    while above != "/" and not (await destination.backend.als(above)).ok:
        above = paths.parent(above)
    async with _probe(End(destination.backend, above)) as name:
        return Relation.INSIDE if name and await _appears_beneath(source, name) else Relation.UNKNOWN


async def _appears_beneath(source: End, name: str) -> bool:
    """Whether an entry beneath the source has this name; links are not followed, since no transfer follows them."""
    listing = await source.backend.alist_tree(source.path)
    return any(paths.name(entry.path) == name for entry in listing.entries)


async def _file_relation(source: End, destination: End) -> Relation:
    file, other = await _followed(source), await _followed(destination)
    async with _probe(End(other.backend, paths.parent(other.path))) as name:
        beside = paths.join(paths.parent(file.path), name or "")
        [found] = await file.backend.adownload_files([beside]) if name else [None]
    if found is not None and found.error is None:
        is_one = paths.name(file.path) == paths.name(other.path)
        return Relation.SAME if is_one else Relation.APART
    if found is None or found.error != ErrorCode.FILE_NOT_FOUND:
        await _check_different(source, destination)
    return Relation.APART


async def _followed(end: End) -> End:
    """`end` with its links resolved; unchanged if the backend does not say where they lead."""
    (real,) = await end.backend.aresolve_paths([end.path])
    return end if real is None else End(end.backend, real)


async def _check_different(source: End, destination: End) -> None:
    """Raise unless two files have different contents, so that they cannot be one file."""
    [one], [other] = (
        await source.backend.adownload_files([source.path]),
        await destination.backend.adownload_files([destination.path]),
    )
    if one.error or other.error or one.content == other.content:
        code = one.error or other.error or ErrorCode.PERMISSION_DENIED
        raise error_about(code, source.path, "it is not moved: it cannot be told whether both ends are one file")


# --- the temporary file ---


@asynccontextmanager
async def _probe(directory: End) -> AsyncIterator[str | None]:
    """Create a temporary file in `directory` and yield its name; None if none can be created and deleted."""
    name = f".deepfs-probe-{token_hex(16)}"
    path, backend = paths.join(directory.path, name), directory.backend
    if (await backend.adelete(path)).code is not ErrorCode.FILE_NOT_FOUND:
        yield None
        return
    try:
        made = await _unkept(partial(backend.awrite, path, _CONTENT))
        yield name if made.ok else None
    finally:
        await _unkept(partial(_deleted, backend, path))


async def _unkept(change: Callable[[], Awaitable[T]]) -> T:
    """Run a change to its end, marked as one of a temporary file, so that no version of it is kept."""
    token = is_probing.set(True)
    try:
        return await shielded(change)
    finally:
        is_probing.reset(token)


async def _deleted(backend: "BackendProtocol", path: str) -> None:
    for _ in range(_ATTEMPTS):
        deleted = await backend.adelete(path)
        if deleted.ok or deleted.code is ErrorCode.FILE_NOT_FOUND:
            return
    cause = error_told(deleted)
    raise error_about(cause.code, path, "it was made for a moment and could not be deleted: {cause}", cause=cause)
