"""Snapshots of a tree: what its files were, kept under a name.

In the storage of the snapshots, `manifests/NAME.json` lists the files of a snapshot with their versions, and
`contents/ab/abcd…` holds each content once, named by its version. The manifest is stored last, so a snapshot that is
listed is complete. Contents that no manifest names are removed after a deletion, unless a snapshot is being made:
`making/` and `cleaning` tell processes of each other, and what is left of one that was killed counts for a while only.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from secrets import token_hex
from time import time
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from deepfs.backends._trees import list_present
from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, as_backend
from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    ErrorCode,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.policy.archive import PRIVATE_FILE
from deepfs.storage.gathering import in_batches
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_integer, check_string
from deepfs.text.diff import git_diff
from deepfs.text.entries import TreeEntry, files_of, use_file_mode
from deepfs.text.lines import version
from deepfs.text.records import timestamp
from deepfs.threads.locks import path_locks
from deepfs.types import ContentChange, error_from, item_error
from deepfs.workspaces.entries import NO_FILE
from deepfs.workspaces.overlay import OverlayBackend

__all__ = ["RestoreResult", "Snapshot", "Snapshots"]

T = TypeVar("T")

_BATCH_BYTES: Final = 16 * 1024 * 1024
_BATCH_FILES: Final = 256
_MAKING_SECONDS: Final = 24 * 3600
"""How long a snapshot that is being made counts, if its process does not end that."""
_CLEANING_SECONDS: Final = 600
_CLEANS_FOR: Final = 300
"""How long contents are removed at most. Well before others take it for killed, a process that cleans has ended."""


class Snapshot(Struct, frozen=True):
    """A snapshot in a list."""

    name: str
    created_at: str
    """ISO 8601, UTC."""
    files: int
    bytes: int
    """The sizes of all files together."""
    left_out: int = 0
    """How many entries are not in it: links to directories, special files, names that are in no valid path."""


class RestoreResult(Struct):
    """What became of a restore."""

    changed: list[str]
    """The files that were written or deleted."""
    refused: dict[str, str]
    """The codes of errors by path: others changed these files meanwhile, or rules or a quota did not permit it."""
    before: str | None
    """The name of the snapshot of what was there before; None if nothing had to change, or none was wanted."""

    @property
    def ok(self) -> bool:
        """Whether the tree is what the snapshot was."""
        return not self.refused


class _Manifest(Struct, frozen=True):
    name: str
    created_at: str
    files: dict[str, tuple[str, int]]
    """The version and the size of each file."""
    left_out: int = 0
    modes: dict[str, int] = {}
    """The permission bits of files, where the tree has any. A restored file that is new has them from the start."""

    def summary(self) -> Snapshot:
        sizes = sum(size for _, size in self.files.values())
        return Snapshot(self.name, self.created_at, len(self.files), sizes, self.left_out)


class Snapshots:
    """The snapshots of a tree. Each content is stored once, however many snapshots have it.

    A snapshot has each file as it was when it was read: files that change meanwhile are in it as they were before or
    after. It has the files of the tree, not its empty directories and links to directories.

    Args:
        tree: The tree: any backend, also a workspace.
        storage: The backend that keeps the snapshots. It may be `tree` itself, or what `tree` is a layer
            over: `directory` is no part of a snapshot then.
        directory: The directory in `storage` that holds them.
        keep: How many snapshots are kept: `atake` deletes the oldest beyond them. None keeps all.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a `keep` below 1.
    """

    def __init__(
        self,
        tree: BACKEND_TYPES,
        storage: BACKEND_TYPES,
        *,
        directory: str = "/.snapshots",
        keep: int | None = None,
    ) -> None:
        self._tree: BackendProtocol = as_backend(tree)
        self._storage: BackendProtocol = as_backend(storage)
        self._directory = paths.normalize(directory)
        if keep is not None:
            check_integer("keep", keep)
            if keep < 1:
                raise ValueError("keep must be at least 1")
        self._keep = keep

    # --- what callers use ---

    async def atake(self, name: str | None = None) -> Snapshot:
        """Make a snapshot.

        Args:
            name: Its name, which is also that of a file; None is the time.

        Returns:
            The snapshot.

        Raises:
            AlreadyExistsError: There is one of this name.
            InvalidPathError: The name cannot be that of a file.
            ConflictError: Another process removes the contents of a deleted snapshot just now.
            DeepFSError: A file cannot be read, or the storage fails. Then there is no snapshot.
        """
        taken = await self._take(f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}" if name is None else name)
        if self._keep is not None:
            for old in (await self.alist())[: -self._keep]:
                await self.adelete(old.name)
        return taken

    async def _take(self, name: str) -> Snapshot:
        place = self._manifest_place(name)
        if (await self._storage.aread(place, 0, 1)).code not in NO_FILE:
            raise AlreadyExistsError(name)
        async with path_locks(("snapshots", id(self._storage))).hold(self._directory), self._announce():
            stored = await self._stored_contents()
            entries, left_out = await self._list_tree()
            files: dict[str, tuple[str, int]] = {}
            async for batch in self._read(self._tree, _sizes(entries)):
                contents = {version(content): content for content in batch.values()}
                await self._store({each: content for each, content in contents.items() if each not in stored})
                stored.update(contents)
                files |= {path: (version(content), len(content)) for path, content in batch.items()}
            modes = {path: mode for path in files if (mode := entries[path].mode) is not None}
            manifest = _Manifest(name, timestamp(), dict(sorted(files.items())), left_out, modes)
            with use_file_mode(PRIVATE_FILE):
                written = await self._storage.awrite(place, msgspec.json.encode(manifest).decode())
            if written.code is ErrorCode.ALREADY_EXISTS:
                raise AlreadyExistsError(name)
            if not written.ok:
                raise error_from(written)
        return manifest.summary()

    async def alist(self) -> list[Snapshot]:
        """List the snapshots, oldest first.

        Raises:
            DeepFSError: The storage fails, or has a manifest that is none.
        """
        return sorted(
            (manifest.summary() for manifest in await self._manifests()), key=lambda each: (each.created_at, each.name)
        )

    async def arestore(
        self, name: str, *, chosen: Iterable[str] | None = None, keep_present: bool = True
    ) -> RestoreResult:
        """Make the tree what it was. A file that others change meanwhile is left as it is, and named.

        Where the tree has transactions, all is changed in one step or nothing.

        Args:
            name: The name of the snapshot.
            chosen: Files and directories to restore; None is everything.
            keep_present: Whether a snapshot of the tree as it is now is made before.

        Returns:
            What was changed.

        Raises:
            NotFoundError: There is no such snapshot.
            DeepFSError: As `atake`; or a content is damaged. Nothing changed then.
        """
        manifest = await self._manifest(name)
        wanted = _choose(manifest.files, chosen)
        present = _sizes(_choose((await self._list_tree())[0], chosen))
        changes: list[ContentChange] = []
        now: dict[str, str] = {}
        async for batch in self._read(self._tree, present):
            now |= {path: version(content) for path, content in batch.items()}
        sought = {path: size for path, (_, size) in wanted.items() if now.get(path) != wanted[path][0]}
        contents = await self._fetch({wanted[path] for path in sought})
        changes += [ContentChange(path, contents[wanted[path][0]], if_match=now.get(path)) for path in sought]
        changes += [ContentChange(path, None, if_match=now[path]) for path in now.keys() - wanted.keys()]
        if not changes:
            return RestoreResult([], {}, None)
        before = (await self._take(f"before-{name}-{token_hex(4)}"[-200:])).name if keep_present else None
        outcomes = await self._tree.achange_files(changes, all_or_none=True)
        if all(outcome.error == ErrorCode.UNSUPPORTED for outcome in outcomes):
            outcomes = []
            for mode in {manifest.modes.get(change.path) for change in changes}:
                with use_file_mode(mode):
                    outcomes += await self._tree.achange_files(
                        [change for change in changes if manifest.modes.get(change.path) == mode]
                    )
        changed = sorted(outcome.path for outcome in outcomes if outcome.error is None)
        return RestoreResult(changed, {each.path: each.error for each in outcomes if each.error is not None}, before)

    async def adiff(self, name: str, other: str | None = None) -> str:
        """Compare a snapshot with another one, or with the tree as it is.

        Args:
            name: The name of the snapshot.
            other: The name of the other one; None is the tree.

        Returns:
            The unified diff with the headings of git; empty if both are the same.

        Raises:
            NotFoundError: There is no such snapshot.
            DeepFSError: A file cannot be read.
        """
        old = (await self._manifest(name)).files
        present: dict[str, bytes] = {}
        if other is None:
            new: dict[str, tuple[str, int]] = {}
            async for batch in self._read(self._tree, _sizes((await self._list_tree())[0])):
                for path, content in batch.items():
                    new[path] = version(content), len(content)
                    if old.get(path) != new[path]:
                        present[new[path][0]] = content
        else:
            new = (await self._manifest(other)).files
        differing = sorted(path for path in {**old, **new} if old.get(path) != new.get(path))
        needed = {side[path] for side in (old, new) for path in differing if path in side}
        contents = present | await self._fetch({each for each in needed if each[0] not in present})
        before, after = ({path: contents[side[path][0]] for path in differing if path in side} for side in (old, new))
        return "".join(git_diff(path, before.get(path), after.get(path)) for path in differing)

    async def adelete(self, name: str) -> None:
        """Delete a snapshot, and the contents that no other one has.

        The contents stay until the next deletion if a snapshot is being made meanwhile.

        Args:
            name: Its name.

        Raises:
            NotFoundError: There is no such snapshot.
            DeepFSError: The storage fails.
        """
        deleted = await self._storage.adelete(self._manifest_place(name))
        if deleted.code is ErrorCode.FILE_NOT_FOUND:
            raise NotFoundError(name)
        if not deleted.ok:
            raise error_from(deleted)
        async with path_locks(("snapshots", id(self._storage))).hold(self._directory):
            await self._clean()

    # --- manifests and contents ---

    def _place(self, *names: str) -> str:
        return paths.join(self._directory, "/".join(names))

    def _manifest_place(self, name: str) -> str:
        check_string("name", name)
        if not name or name in (".", "..") or "/" in name or not paths.is_normal(f"/{name}.json"):
            raise InvalidPathError(name, "it is no name of a file")
        return self._place("manifests", f"{name}.json")

    def _content_place(self, named: str) -> str:
        return self._place("contents", named[:2], named)

    async def _manifest(self, name: str) -> _Manifest:
        [download] = await self._storage.adownload_files([self._manifest_place(name)])
        if download.error in NO_FILE:
            raise NotFoundError(name)
        return _decode(download.path, download.unwrap())

    async def _manifests(self) -> list[_Manifest]:
        listing = await list_present(self._storage, self._place("manifests"))
        places = [entry.path for entry in files_of(listing.entries)]
        downloads = await self._storage.adownload_files(places) if places else []
        return [_decode(each.path, each.unwrap()) for each in downloads if each.error not in NO_FILE]

    async def _stored_contents(self) -> set[str]:
        listing = await list_present(self._storage, self._place("contents"))
        return {paths.name(entry.path) for entry in files_of(listing.entries)}

    async def _list_tree(self) -> tuple[dict[str, TreeEntry], int]:
        """The files of the tree, and how many entries cannot be in a snapshot.

        Raises PermissionDeniedError if a directory cannot be listed: a restore would take its files for new ones.
        """
        listing = await self._tree.alist_tree("/")
        left_out = 0 if listing.omission is None else listing.omission.count
        if listing.omission is not None and listing.omission.code is ErrorCode.PERMISSION_DENIED:
            raise PermissionDeniedError("/", listing.omission.reason)
        files: dict[str, TreeEntry] = {}
        kept = await self._storage.astorage_place(self._directory)
        named = [each.path for each in listing.entries if paths.name(each.path) == paths.name(self._directory)]
        trees = [self._tree]
        while isinstance(trees[-1], OverlayBackend):  # It shows what is below.
            trees.append(trees[-1].lower)
        hidden = {path for path in named for tree in trees if kept.keys & (await tree.astorage_place(path)).keys}
        for entry in files_of(listing.entries):
            if paths.is_within(entry.path, hidden):
                continue
            if entry.kind == "file" or entry.leads_to == "file":
                files[entry.path] = entry
            else:
                left_out += 1
        return files, left_out

    @staticmethod
    async def _read(backend: BackendProtocol, sizes: Mapping[str, int]) -> AsyncIterator[dict[str, bytes]]:
        """The contents of files, in batches. Files that are gone are left out."""
        sized = sizes.items()
        for batch in in_batches(sized, lambda each: each[1], most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
            downloads = await backend.adownload_files([path for path, _ in batch])
            yield {each.path: each.unwrap() for each in downloads if each.error not in NO_FILE}

    async def _fetch(self, wanted: set[tuple[str, int]]) -> dict[str, bytes]:
        """The contents with these versions and sizes. Raises BackendError for one that is missing or damaged."""
        places = {self._content_place(named): size for named, size in wanted}
        found: dict[str, bytes] = {}
        async for batch in self._read(self._storage, places):
            found |= {paths.name(place): content for place, content in batch.items()}
        for named, _ in wanted:
            if named not in found or version(found[named]) != named:
                raise BackendError(self._content_place(named), "it is not what was stored for a snapshot")
        return found

    async def _store(self, contents: Mapping[str, bytes]) -> None:
        places = [(self._content_place(named), content) for named, content in contents.items()]
        with use_file_mode(PRIVATE_FILE):
            outcomes = await self._storage.aupload_files(places) if places else []
        for outcome in outcomes:
            if outcome.error is not None:
                raise item_error(outcome, "it cannot be stored")

    # --- processes that make and clean ---

    @asynccontextmanager
    async def _announce(self) -> AsyncIterator[None]:
        """While a snapshot is made, no process removes contents. Each looks for the other after it has told itself."""
        place = self._place("making", token_hex(8))
        told = await self._storage.awrite(place, repr(time()))
        if not told.ok:
            raise error_from(told)
        try:
            if await self._is_any_recent([self._place("cleaning")], _CLEANING_SECONDS):
                raise ConflictError.because(None, "another process removes the contents of deleted snapshots")
            yield
        finally:
            await run_shielded(lambda: self._storage.adelete(place))

    async def _is_any_recent(self, places: Sequence[str], seconds: float) -> bool:
        """Whether one of these files exists and tells a time that is not older than `seconds`."""
        downloads = await self._storage.adownload_files([*places]) if places else []
        return any(each.error not in NO_FILE and _is_recent(each.unwrap(), seconds) for each in downloads)

    async def _clean(self) -> None:
        """Remove the contents that no manifest names, unless a snapshot is being made, or another process does it."""
        place, until, claim = self._place("cleaning"), time() + _CLEANS_FOR, f"{time()!r} {token_hex(8)}"
        [present] = await self._storage.adownload_files([place])
        if present.content is not None and _is_recent(present.content, _CLEANING_SECONDS):
            return
        stale = None if present.content is None else version(present.content)
        claimed = await self._storage.awrite(place, claim, if_match=stale)
        if claimed.code in (ErrorCode.ALREADY_EXISTS, ErrorCode.CONFLICT):
            return  # Another process was faster.
        if not claimed.ok:
            raise error_from(claimed)
        try:
            making = await list_present(self._storage, self._place("making"))
            if await self._is_any_recent([each.path for each in files_of(making.entries)], _MAKING_SECONDS):
                return
            named = {each for manifest in await self._manifests() for each, _ in manifest.files.values()}
            for unnamed in sorted(await self._stored_contents() - named):
                if time() > until:
                    return
                await self._storage.adelete(self._content_place(unnamed))
        finally:
            await run_shielded(lambda: self._storage.adelete(place, if_match=version(claim)))


def _is_recent(content: bytes, seconds: float) -> bool:
    """Whether the time that a file begins with is not older than `seconds`; True for something else than a time."""
    try:
        return time() - float(content.split()[0]) < seconds
    except (ValueError, IndexError):
        return True


def _decode(place: str, content: bytes) -> _Manifest:
    try:
        return msgspec.json.decode(content, type=_Manifest)
    except msgspec.DecodeError as error:
        raise BackendError(place, "it is no manifest of a snapshot") from error


def _sizes(files: Mapping[str, TreeEntry]) -> dict[str, int]:
    return {path: entry.size or 0 for path, entry in files.items()}


def _choose(files: Mapping[str, T], chosen: Iterable[str] | None) -> dict[str, T]:
    """The files at and under the `chosen` paths; all for None."""
    if chosen is None:
        return {**files}
    tops = {paths.normalize(path) for path in chosen}
    return {path: each for path, each in files.items() if paths.is_within(path, tops)}
