"""A search index beside an object store: copies of its objects in a database that finds candidates by trigrams.

The database is any backend that declares `_finds`, with a namespace of its own; `copies.py` tells what is in
it. What the index finds is only a candidate: the search fetches the object itself. An index that lacks a change of
others can therefore miss matches, but shows none that are not there.

A client of the index notes there what it is about to change, so that searches look at these objects themselves until
the copy is there, even if the client dies. A copy is stored only if its file in the index is the one that was seen
before the object was looked at or changed. So of two clients the slower one cannot store the older copy: it finds that
the file has changed, and looks at the object again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.flat import StorageBackend
from deepfs.backends.object_store.copies import (
    MARK,
    Copies,
    ForeignIndexError,
    Notes,
    Pending,
    copy_of,
    is_abandoned,
    is_copy,
    is_marked,
    is_reserved,
    is_shown,
    object_stat,
    placeholder,
)
from deepfs.errors import BackendError, DeepFSError
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.storage.plans import batches
from deepfs.storage.runners import Find, Page
from deepfs.text.flat_tree import Change, FileStat, file_paths
from deepfs.text.records import timestamp
from deepfs.threads.locks import path_locks
from deepfs.types import FileDataV2

_TOGETHER: Final = 256
"""The most files of the index that one transaction changes."""
_ATTEMPTS: Final = 20
"""How often an object is looked at again while other clients change its file in the index."""


class Objects(Struct, frozen=True):
    """How the index looks at the object store. Each stat has a size, a time and a tag that is a string."""

    listed: Callable[[], AsyncIterator[Mapping[str, FileStat]]]
    """Lists all objects, a page at a time."""
    looked: Callable[[Sequence[str]], Awaitable[Mapping[str, FileStat]]]
    """Looks at objects at once."""
    fetched: Callable[[Sequence[str]], Awaitable[Mapping[str, tuple[FileDataV2, str] | None]]]
    """Fetches objects at once, each with its tag; None for those that cannot be read."""
    max_bytes: int
    """The largest object that is searched."""


def _copied(stat: FileStat, fetched: tuple[FileDataV2, str] | None, most_bytes: int) -> FileDataV2:
    """The file of the index for an object; if it cannot be read, one without a tag, so that it is tried again."""
    return placeholder(replace(stat, tag="")) if fetched is None else copy_of(*fetched, most_bytes)


class SearchIndex:
    """The index of the objects under one root.

    Args:
        database: Where the copies are. Nothing else may be stored under its namespace.
        objects: The object store.
        place: Identifies the root in the object store.
    """

    def __init__(self, database: StorageBackend, objects: Objects, place: str) -> None:
        self._copies = Copies(database, place)
        self._objects = objects
        self._is_suspect = False
        self._left: set[str] = set()
        """The notes of changes of this process whose outcome is not known."""

    def search(self) -> "IndexSearch":
        """A search of the index, for one operation."""
        return IndexSearch(self, self._copies, self._objects)

    # --- changes of this process ---

    async def announce(self, paths: Sequence[str]) -> Pending | None:
        """Note that objects are about to change. None if the database failed, since changes do not depend on it.

        Raises BackendError if the index is that of another place.
        """
        try:
            return await self._copies.announce(paths)
        except ForeignIndexError:
            raise
        except DeepFSError:
            return None

    async def changed(self, pending: Pending | None, changes: Sequence[Change], tags: Mapping[str, str]) -> None:
        """Follow changes that were made. If the index cannot, the next search lists the objects first.

        Args:
            pending: What `announce` returned.
            changes: The changes.
            tags: The tag of each object that was stored.
        """
        if pending is None:
            self.suspect(pending)
            return
        copies = {
            change.path: None
            if change.after is None
            else copy_of(change.after, tags[change.path], self._objects.max_bytes)
            for change in changes
        }
        try:
            changed = await self._copies.store(copies, pending.seen, then_forget=pending.note)
            if changed:
                await self._settle(pending, sorted(changed))
        except DeepFSError:
            self.suspect(pending)

    async def withdraw(self, pending: Pending | None) -> None:
        """Note that a change was refused, so that nothing was changed."""
        if pending is None:
            return
        try:
            await self._copies.withdraw(pending)
        except DeepFSError:
            self.suspect(pending)

    async def settle(self, pending: Pending | None) -> None:
        """Look at the objects that a change was about, and copy what is there now."""
        if pending is None:
            self.suspect(pending)
            return
        try:
            await self._settle(pending, pending.paths)
        except DeepFSError:
            self.suspect(pending)

    async def _settle(self, pending: Pending, paths: Sequence[str]) -> None:
        for _ in range(_ATTEMPTS):
            seen = await self._copies.at(paths)
            paths = sorted(await self._align(await self._objects.looked(paths), seen, {*paths}))
            if not paths:
                await self._copies.forget([pending.note])
                return
        raise BackendError(None, "Other clients change the same files of the search index all the time")

    def suspect(self, pending: Pending | None) -> None:
        """Let the next search list the objects first, since the outcome of a change is not known."""
        self._is_suspect = True
        if pending is not None:
            self._left.add(pending.note)

    # --- changes of others ---

    async def refresh(self) -> str:
        """List all objects, and copy those that the index lacks.

        Returns:
            The time when the listing began.
        """
        async with path_locks(self).hold("/"):
            began, self._is_suspect, left = timestamp(), False, [*self._left]
            try:
                await self._catch_up(left)
                await self._copies.note_listing(began)
            except BaseException:
                self._is_suspect = True
                raise
            self._left.difference_update(left)
            return began

    async def _catch_up(self, left: Sequence[str]) -> None:
        await self._copies.claim()
        ended = {*left, *await self._copies.old_notes()}
        known = await self._copies.all()
        async for page in self._objects.listed():
            await self._align({path: page[path] for path in file_paths(page)}, known, set())
            for path in page:
                known.pop(path, None)
        # What is being created may not be listed yet.
        removed = [path for path, stat in known.items() if not is_reserved(stat) or is_abandoned(stat)]
        for start in range(0, len(removed), _TOGETHER):
            await self._copies.store(dict.fromkeys(removed[start : start + _TOGETHER]), known)
        await self._copies.forget(sorted(ended))

    async def _align(self, listed: Mapping[str, FileStat], seen: Mapping[str, FileStat], gone: set[str]) -> set[str]:
        """Make the files of the index copies of objects that were looked at after the files were `seen`.

        Returns the paths of the files that others changed meanwhile. `gone` are paths to remove if they are not listed.
        """
        stale = {path: stat for path, stat in listed.items() if not is_copy(seen.get(path), stat)}
        removed = [path for path in gone if path not in listed and path in seen]
        changed = await self._copies.store(dict.fromkeys(removed), seen)
        new = [path for path in stale if path not in seen]
        for start in range(0, len(new), _TOGETHER):
            part = new[start : start + _TOGETHER]
            rows, _ = await self._copies.reserved(part)
            changed |= await self._copy({path: stale[path] for path in part}, rows)
        return changed | await self._copy({path: stat for path, stat in stale.items() if path in seen}, seen)

    async def _copy(self, stale: Mapping[str, FileStat], seen: Mapping[str, FileStat]) -> set[str]:
        most = self._objects.max_bytes
        large = [path for path, stat in stale.items() if (stat.size or 0) > most]
        looked = await self._objects.looked(large) if large else {}
        marks = {path: placeholder(looked[path]) if path in looked else None for path in large}
        changed = await self._copies.store(marks, seen)
        for batch in batches((path, stat.size or 0) for path, stat in stale.items() if path not in marks):
            fetched = await self._objects.fetched(batch)
            copies = {path: _copied(stale[path], fetched[path], most) if path in fetched else None for path in batch}
            changed |= await self._copies.store(copies, seen)
        return changed

    async def notes(self, *, fresh: bool) -> Notes:
        """What the index says about itself, after a listing if that is needed."""
        notes = await self._copies.notes()
        if not (fresh or self._is_suspect or notes.has_old or notes.listed_at is None):
            return notes
        began = await self.refresh()
        notes = await self._copies.notes()
        return Notes(notes.listed_at or began, notes.changing, has_old=False)


class IndexSearch:
    """One search of an index."""

    def __init__(self, index: SearchIndex, copies: Copies, objects: Objects) -> None:
        self._index = index
        self._copies = copies
        self._objects = objects
        self._notes: Notes | None = None
        self._changing: set[str] = set()
        """The selected objects that the search looks at, whatever the index says."""

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        """Name the next objects that the search may find; see `Storage.find`.

        Args:
            request: The search. With `fresh`, the objects are listed first.
            files: The files that it selects.
            after: The last path of the page before; None asks for the first page.

        Returns:
            A page with the time of the last listing.
        """
        is_first = self._notes is None
        if self._notes is None:
            # Before the index is asked: what is announced later leaves the copy in its place until there is a new one.
            self._notes = await self._index.notes(fresh=request.fresh)
            self._changing = {path for path in self._notes.changing if path in files}
        page: Page = await self._copies.ask(Find(request, files, after))
        found = {path: stat for path, stat in page.files.items() if is_shown(path)}
        skipped = page.skipped
        if is_first and isinstance(request, GrepRequest):
            skipped += await self._without_content(files, found)
        return Page(await self._checked(found, after, page.last), page.last, skipped, page.truncated, self._notes[0])

    async def _without_content(self, files: FileFilter, found: Mapping[str, FileStat]) -> int:
        """The number of selected objects that are too large to be searched, besides those that were found anyway.

        Those that are being created are taken into the search.
        """
        request, count, after = GrepRequest(MARK, files.root), 0, ""
        while True:
            page: Page = await self._copies.ask(Find(request, files, after or None))
            for path, stat in page.files.items():
                if not (is_shown(path) and is_marked(stat) and path in files):
                    continue
                if is_reserved(stat):
                    self._changing.add(path)
                elif path not in found and path not in self._changing:
                    count += 1
            if page.last is None:
                return count
            after = page.last

    async def _checked(
        self, found: Mapping[str, FileStat], after: str | None, last: str | None
    ) -> Mapping[str, FileStat]:
        """The objects of a page; those that are being changed, or may be, as they are in the object store."""
        here = {path for path in self._changing if (after is None or path > after) and (last is None or path <= last)}
        doubtful = here | {path for path, stat in found.items() if is_reserved(stat) or path in self._changing}
        if not doubtful:
            return {path: object_stat(stat) for path, stat in found.items()}
        looked = await self._objects.looked(sorted(doubtful))
        known = {path: object_stat(stat) for path, stat in found.items() if path not in doubtful}
        known |= {path: FileStat(stat.size, stat.modified_at, stat.created_at) for path, stat in looked.items()}
        return dict(sorted(known.items()))
