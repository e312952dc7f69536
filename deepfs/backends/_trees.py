"""Trees of backends that know no more than their public operations: what `alist_tree` and `achange_entries` make of
these."""

from typing import TYPE_CHECKING

from deepfs.core import paths
from deepfs.core.trees import (
    EntryChange,
    Kind,
    Omission,
    TreeEntry,
    TreeListing,
    is_valid,
    joined,
    omission_of_name,
    unreadable_omission,
)
from deepfs.errors import BackendError, ErrorCode, error_of, quoted
from deepfs.types import FileInfo, FileUploadResponse, LsResult, error_behind

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["changed_entry", "listed_tree"]


async def listed_tree(backend: "BackendProtocol", path: str) -> TreeListing:
    """The tree at `path`, made of `als` and `areal_paths`; raises FileMissingError where nothing is there."""
    path = paths.normalize(path)
    listing = await backend.als(path)
    if not listing.ok and listing.code is not ErrorCode.NOT_A_DIRECTORY:
        raise error_behind(listing) or error_of(listing.code or ErrorCode.BACKEND_ERROR, listing.error or "")
    real, above = await backend.areal_paths([path, paths.parent(path)])
    own = path if above is None else paths.join(above, paths.name(path))
    walk = _Walk(backend)
    if walk.add(FileInfo(path, is_dir=listing.ok), own, real) == "directory":
        await walk.run(path, own, listing)
    return TreeListing(sorted(walk.entries, key=lambda entry: entry.path), walk.omission)


class _Walk:
    """One walk; a link is told by where it leads, and never followed."""

    def __init__(self, backend: "BackendProtocol") -> None:
        self._backend = backend
        self.entries: list[TreeEntry] = []
        self.omission: Omission | None = None

    def add(self, info: FileInfo, own: str, real: str | None) -> Kind:
        """Note an entry that lies at `own` without links; returns what it is."""
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
            children = [info for info in listing.entries or () if self._is_carried(directory, info)]
            named = [info.path.rstrip("/") for info in children]
            real = await self._backend.areal_paths(named) if named else []
            for info, child, leads_to in zip(children, named, real, strict=True):
                own = paths.join(real_directory, paths.name(child))
                if self.add(info, own, leads_to) == "directory":
                    below = await self._backend.als(child)
                    if below.ok:
                        pending.append((child, own, below))
                    else:
                        self.omission = joined(self.omission, unreadable_omission())

    def _is_carried(self, directory: str, info: FileInfo) -> bool:
        """Whether a listed entry has a path; BackendError where it does not lie in the directory that was listed."""
        child = info.path.rstrip("/")
        if not child.startswith("/") or paths.parent(child) != directory or paths.name(child) in ("", ".", ".."):
            raise BackendError(
                f"Error: The listing of {quoted(directory)} names {quoted(info.path)}, which is elsewhere"
            )
        if is_valid(child):
            return True
        self.omission = joined(self.omission, omission_of_name(paths.name(child)))
        return False


async def changed_entry(backend: "BackendProtocol", change: EntryChange) -> FileUploadResponse:
    """Make a change by the public operations."""
    return FileUploadResponse(change.path, await _failure(backend, change))


async def _failure(backend: "BackendProtocol", change: EntryChange) -> str | None:
    """Make a change; returns the code of the error."""
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
