"""What backends without a way of their own know of their trees, by public operations.

The defaults of `alist_tree`, `achange_entries` and `achange_files`, what is at a path, and whether two paths of two
backends are one place.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    DeepFSError,
    ErrorCode,
    InvalidPathError,
    IsDirectoryError,
    NotFoundError,
    error_about,
)
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.access import without_access_check
from deepfs.text.entries import (
    EntryChange,
    Kind,
    Omission,
    Relation,
    TreeEntry,
    TreeListing,
    is_probing,
    is_valid,
    join_omissions,
    omission_of_name,
    relation,
    unnamed_omission,
    unreadable_omission,
)
from deepfs.text.lines import decode, version
from deepfs.threads.locks import path_locks
from deepfs.types import ContentChange, FileUploadResponse, Result, error_from, failed_item, item_error

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

_MOST_LEVELS: Final = 1_000
"""The deepest directory of a tree. A backend that lists a directory within itself would be walked without end."""


class End(NamedTuple):
    """A path of a backend."""

    backend: "BackendProtocol"
    path: str


async def kind_at(backend: "BackendProtocol", path: str) -> Literal["file", "directory"] | None:
    """What is at a path, links followed; None for nothing. Raises the error if that cannot be found out."""
    listing = await backend.als(path)
    if listing.ok:
        return "directory"
    if listing.code is ErrorCode.NOT_A_DIRECTORY:
        return "file"
    if listing.code is ErrorCode.FILE_NOT_FOUND:
        return None
    raise error_from(listing)


async def list_present(backend: "BackendProtocol", path: str) -> TreeListing:
    """The entries at and under a path; none where nothing is."""
    try:
        return await backend.alist_tree(path)
    except NotFoundError:
        return TreeListing([])


async def list_tree(backend: "BackendProtocol", path: str) -> TreeListing:
    """The tree at `path`, made of `als` and `aresolve_paths`. Raises NotFoundError if nothing is there.

    An entry is a link if its path resolves to another one. Links are not followed.
    """
    path = paths.normalize(path)
    listing = await backend.als(path)
    if not listing.ok and listing.code is not ErrorCode.NOT_A_DIRECTORY:
        raise error_from(listing)
    real, above = await backend.aresolve_paths([path, paths.parent(path)])
    own = path if above is None else paths.join(above, paths.name(path))
    entries = [_entry(path, own, real, is_dir=listing.ok)]
    omission: Omission | None = None
    pending = [(path, own, listing)] if entries[0].kind == "directory" else []
    while pending:
        directory, real_directory, listing = pending.pop()
        if listing.skipped:
            omission = join_omissions(omission, unnamed_omission(listing.skipped))
        children = {}
        for info in listing.entries or ():
            child = info.path.rstrip("/")
            if not child.startswith("/") or paths.parent(child) != directory or paths.name(child) in ("", ".", ".."):
                raise BackendError(directory, "its listing names '{other}', which is elsewhere", info.path)
            if is_valid(child):
                children[child] = info
            else:
                omission = join_omissions(omission, omission_of_name(paths.name(child)))
        leads_to = await backend.aresolve_paths([*children]) if children else []
        for (child, info), real in zip(children.items(), leads_to, strict=True):
            own = paths.join(real_directory, paths.name(child))
            entries.append(_entry(child, own, real, is_dir=bool(info.is_dir), size=info.size))
            if entries[-1].kind != "directory":
                continue
            if child.count("/") > _MOST_LEVELS:
                raise BackendError(directory, "its listings have no end")
            below = await backend.als(child)
            if below.ok:
                pending.append((child, own, below))
            else:
                omission = join_omissions(omission, unreadable_omission())
    return TreeListing(sorted(entries, key=lambda entry: entry.path), omission)


def _entry(path: str, own: str, real: str | None, *, is_dir: bool, size: int | None = None) -> TreeEntry:
    """The entry of a path that resolves to `real`, or to `own` if it is no link."""
    kind: Kind = "directory" if is_dir else "file"
    return TreeEntry(path, kind, size) if real == own else TreeEntry(path, "link", leads_to=kind if real else None)


async def change_entry(backend: "BackendProtocol", change: EntryChange) -> FileUploadResponse:
    """Make a change with the public operations. Only an empty directory can be removed this way.

    A mode is not kept, and that is no failure.
    """
    error: str | None = None
    if change.change == "make_directory":
        error = ErrorCode.UNSUPPORTED.value
    elif change.change == "remove_directory":
        listing = await backend.als(change.path)
        if listing.ok and listing.entries:
            error = ErrorCode.ALREADY_EXISTS.value
        elif listing.code is not ErrorCode.FILE_NOT_FOUND:
            result = await backend.adelete(change.path) if listing.ok else listing
            error = None if result.ok else (result.code or ErrorCode.BACKEND_ERROR).value
    return FileUploadResponse(change.path, error)


async def change_file(backend: "BackendProtocol", change: ContentChange) -> FileUploadResponse:
    """Make a change of a whole file with the public operations."""
    path, content = change.path, change.content
    text = None if content is None else decode(content)
    result: Result
    try:
        # No `awrite` or `adelete` holds this, but one that compares versions just before its call holds the other lock.
        async with path_locks(("change_files", id(backend))).hold(paths.normalize(path)):
            if content is None:
                if paths.normalize(path) != "/" and await kind_at(backend, path) == "directory":
                    raise IsDirectoryError(path)
                result = await backend.adelete(path, if_match=change.if_match)
            elif text is not None:
                result = await backend.awrite(path, text, overwrite=change.overwrite, if_match=change.if_match)
            else:
                async with path_locks(("if_match", id(backend))).hold(paths.normalize(path)):
                    await _check_condition(backend, change)
                    [outcome] = await backend.aupload_files([(path, content)])
                return outcome
        return FileUploadResponse(path) if result.ok else failed_item(FileUploadResponse, path, error_from(result))
    except DeepFSError as error:
        return failed_item(FileUploadResponse, path, error)


async def _check_condition(backend: "BackendProtocol", change: ContentChange) -> None:
    """Raise unless the file at the path of a change is as that expects it."""
    if change.if_match is not None:
        read = await backend.aread(change.path, 0, 1)
        if read.version == change.if_match:
            return
        [found] = await backend.adownload_files([change.path])
        if found.error == ErrorCode.FILE_NOT_FOUND:
            raise ConflictError(change.path)
        if found.content is None:
            raise item_error(found, "it cannot be compared")
        if version(found.content) != change.if_match:
            raise ConflictError(change.path)
    elif not change.overwrite and await kind_at(backend, change.path) == "file":
        raise AlreadyExistsError(change.path)


# --- whether two places are one ---

T = TypeVar("T")

_CONTENT: Final = "Made to see whether two mounts are one storage; it can be deleted.\n"
_ATTEMPTS: Final = 3
"""The number of attempts to delete that file."""


async def are_one(
    tree: "BackendProtocol", src: str, dst: str, sources: Sequence[End], destination: End, *, moving: bool
) -> bool:
    """Whether `src` and `dst` of `tree` are two names of one place.

    `sources` and `destination` are their places in the backends of `tree`: the first source is `src` itself, the others
    lie beneath it. Raises InvalidPathError if `dst` lies inside `src`, and the error of `als` if there is no `src`.
    """
    for source in sources:
        here = await source.backend.astorage_place(source.path)
        found = relation(here, await destination.backend.astorage_place(destination.path))
        if found is Relation.UNKNOWN:
            found = await _probe_relation(source, destination, moving=moving)
        if found in (Relation.SAME, Relation.INSIDE):
            if await kind_at(tree, src) is None:
                raise NotFoundError(src)
            if found is Relation.INSIDE:
                raise InvalidPathError(dst, "it lies inside {other}", src)
            # A mount beneath `src` that is what `dst` names is no second name of `src` itself.
            return source is sources[0]
    return False


@without_access_check
async def _probe_relation(source: End, destination: End, *, moving: bool) -> Relation:
    """Find out the relation by a temporary file; UNKNOWN if nothing can be lost without knowing it.

    A file that moves onto another one may be the same file. A directory replaces nothing, but may go into itself.
    """
    listing = await source.backend.als(source.path)
    standing = await destination.backend.als(destination.path)
    if listing.ok and standing.code is ErrorCode.FILE_NOT_FOUND:
        above = paths.parent(destination.path)
        while above != "/" and not (await destination.backend.als(above)).ok:
            above = paths.parent(above)
        async with _probe(End(destination.backend, above)) as name:
            # Links are not followed, since no transfer follows them.
            below = (await source.backend.alist_tree(source.path)).entries if name else ()
            return Relation.INSIDE if any(paths.name(each.path) == name for each in below) else Relation.UNKNOWN
    if moving and listing.code is standing.code is ErrorCode.NOT_A_DIRECTORY:
        return await _probe_files(source, destination)
    return Relation.UNKNOWN


async def _probe_files(source: End, destination: End) -> Relation:
    file, other = await _resolve(source), await _resolve(destination)
    async with _probe(End(other.backend, paths.parent(other.path))) as name:
        beside = paths.join(paths.parent(file.path), name or "")
        [found] = await file.backend.adownload_files([beside]) if name else [None]
    if found is not None and found.error is None:
        return Relation.SAME if paths.name(file.path) == paths.name(other.path) else Relation.APART
    if found is None or found.error != ErrorCode.FILE_NOT_FOUND:
        # Two files with different contents cannot be one.
        [one] = await source.backend.adownload_files([source.path])
        [two] = await destination.backend.adownload_files([destination.path])
        if one.error or two.error or one.content == two.content:
            code = one.error or two.error or ErrorCode.PERMISSION_DENIED
            raise error_about(code, source.path, "it is not moved: it cannot be told whether both ends are one file")
    return Relation.APART


async def _resolve(end: End) -> End:
    """`end` with its links resolved; unchanged if the backend does not say where they lead."""
    (real,) = await end.backend.aresolve_paths([end.path])
    return end if real is None else End(end.backend, real)


@asynccontextmanager
async def _probe(directory: End) -> AsyncIterator[str | None]:
    """Create a temporary file in `directory` and yield its name; None if none can be created and deleted."""
    name = f".deepfs-probe-{token_hex(16)}"
    path, backend = paths.join(directory.path, name), directory.backend
    if (await backend.adelete(path)).code is not ErrorCode.FILE_NOT_FOUND:
        yield None
        return
    try:
        made = await _change_probe(partial(backend.awrite, path, _CONTENT))
        yield name if made.ok else None
    finally:
        await _change_probe(partial(_delete_probe, backend, path))


async def _change_probe(change: Callable[[], Awaitable[T]]) -> T:
    """Run a change to its end, marked as one of a temporary file, so that no version of it is kept."""
    token = is_probing.set(True)
    try:
        return await run_shielded(change)
    finally:
        is_probing.reset(token)


async def _delete_probe(backend: "BackendProtocol", path: str) -> None:
    for _ in range(_ATTEMPTS):
        deleted = await backend.adelete(path)
        if deleted.ok or deleted.code is ErrorCode.FILE_NOT_FOUND:
            return
    cause = error_from(deleted)
    raise error_about(cause.code, path, "it was made for a moment and could not be deleted: {cause}", cause=cause)
