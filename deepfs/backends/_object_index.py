"""A search index beside an object store: copies of its objects in a database that finds candidates by trigrams.

The database is any backend that declares `_finds`, with a namespace of its own. Each object has a file there, at the
same path and with the same content. The media type of that file tells which version of the object it is a copy of.
Objects too large to be searched are there as `_TOO_LARGE`, so that a search can count them.

What the index finds is only a candidate: the search fetches the object itself. An index that lacks a change of others
can therefore miss matches, but shows none that are not there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from deepfs.backends.flat import StorageBackend
from deepfs.backends.flat_requests import Apply, Find, Get, List, Page, Plan, Request
from deepfs.backends.flat_searches import batches
from deepfs.errors import DeepFSError
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.text.flat_tree import Change, FileStat
from deepfs.text.records import size_of, timestamp
from deepfs.threads.locks import path_locks
from deepfs.types import FileDataV2

__all__ = ["Objects", "SearchIndex"]

_LISTED: Final = "/.deepfs-index"
"""The file in the index that holds the time of the last listing."""
_TOO_LARGE: Final = "\x1f too large for the search index \x1f"
_TOGETHER: Final = 256
"""The most files that are removed from the index in one transaction."""


class Objects(Struct, frozen=True):
    """How the index looks at the object store."""

    listed: Callable[[], AsyncIterator[Mapping[str, FileStat]]]
    """Lists all objects, a page at a time. Each stat has a size, a time and a tag that is a string."""
    fetched: Callable[[Sequence[str]], Awaitable[Mapping[str, tuple[FileDataV2, str]]]]
    """Fetches objects at once, each with its tag."""
    max_bytes: int
    """The largest object that is searched."""


class SearchIndex:
    """The index of one object store.

    Args:
        database: Where the copies are. Nothing else may be stored under its namespace.
        objects: The object store.
    """

    def __init__(self, database: StorageBackend, objects: Objects) -> None:
        if not database._finds:
            raise ValueError("index must be a backend that finds files by an index of its own: Postgres or SQLite")
        self._database = database
        self._objects = objects
        self._is_suspect = False
        self._changed: set[str] = set()
        """The paths that were changed here since the last listing began, so that it must not change them."""

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        """Name the next objects that a search may find; see `Storage.find`.

        Args:
            request: The search. With `fresh`, the objects are listed first.
            files: The files that it selects.
            after: The last path of the page before; None asks for the first page.

        Returns:
            A page with the time of the last listing.
        """
        as_of = await self._listed_at(fresh=request.fresh and after is None)
        page: Page = await self._asked(Find(request, files, after))
        found = {path: _object_stat(stat) for path, stat in page.files.items() if path != _LISTED}
        skipped = page.skipped
        if after is None and isinstance(request, GrepRequest):
            skipped += await self._too_large(files, found)
        return Page(found, page.last, skipped, page.truncated, as_of)

    async def _too_large(self, files: FileFilter, found: Mapping[str, FileStat]) -> int:
        """The number of selected objects that are too large to be searched, besides those that were found anyway."""
        request, count, after = GrepRequest(_TOO_LARGE, files.root), 0, ""
        while True:
            page: Page = await self._asked(Find(request, files, after or None))
            count += sum(path in files and path not in found for path in page.files)
            if page.last is None:
                return count
            after = page.last

    async def changed(self, changes: Sequence[Change], tags: Mapping[str, str]) -> None:
        """Follow changes of this process. If the index cannot, the next search lists the objects first.

        Args:
            changes: The changes, which have been made.
            tags: The tag of each object that was stored.
        """
        copies = [
            _replacing(change.path, None if change.after is None else self._copy(change.after, tags[change.path]))
            for change in changes
        ]
        self._changed.update(change.path for change in changes)
        try:
            await self._store(copies)
        except DeepFSError:
            self._is_suspect = True

    def suspect(self) -> None:
        """Let the next search list the objects first, since the outcome of a change is not known."""
        self._is_suspect = True

    async def refresh(self) -> str:
        """List all objects, and copy those that the index lacks.

        Returns:
            The time when the listing began.
        """
        async with path_locks(self).hold("/"):
            began, self._is_suspect, self._changed = timestamp(), False, set()
            try:
                await self._catch_up()
                await self._store([_replacing(_LISTED, FileDataV2(began, "utf-8", began, began))])
            except BaseException:
                self._is_suspect = True
                raise
            return began

    async def _listed_at(self, *, fresh: bool) -> str:
        if fresh or self._is_suspect:
            return await self.refresh()
        kept: Mapping[str, FileDataV2] = await self._asked(Get([_LISTED]))
        return kept[_LISTED].content if _LISTED in kept else await self.refresh()

    async def _catch_up(self) -> None:
        known: dict[str, FileStat] = dict(await self._asked(List("/")))
        known.pop(_LISTED, None)
        async for page in self._objects.listed():
            stale = {path: stat for path, stat in page.items() if not _is_copy(known.pop(path, None), stat)}
            stale.pop(_LISTED, None)
            await self._copy_objects(stale)
        removed = list(known)
        for start in range(0, len(removed), _TOGETHER):
            await self._follow([_replacing(path, None) for path in removed[start : start + _TOGETHER]])

    async def _copy_objects(self, stale: Mapping[str, FileStat]) -> None:
        large = {path: stat for path, stat in stale.items() if (stat.size or 0) > self._objects.max_bytes}
        await self._follow([_replacing(path, self._placeholder(stat)) for path, stat in large.items()])
        for batch in batches((path, stat.size or 0) for path, stat in stale.items() if path not in large):
            fetched = await self._objects.fetched(batch)
            await self._follow([_replacing(path, self._copy(data, tag)) for path, (data, tag) in fetched.items()])

    def _copy(self, data: FileDataV2, tag: str) -> FileDataV2:
        size = size_of(data)
        if size > self._objects.max_bytes:
            return self._placeholder(FileStat(size, data.modified_at, data.created_at, tag))
        return FileDataV2(data.content, data.encoding, data.created_at, data.modified_at, _copied_from(tag, size))

    def _placeholder(self, stat: FileStat) -> FileDataV2:
        kind = _copied_from(stat.tag, stat.size or 0)
        return FileDataV2(_TOO_LARGE, "utf-8", stat.created_at, stat.modified_at, kind)

    async def _follow(self, changes: Sequence[Change]) -> None:
        """Store changes that a listing showed, but for files that were changed here meanwhile."""
        await self._store([change for change in changes if change.path not in self._changed])

    async def _store(self, changes: Sequence[Change]) -> None:
        if changes:
            await self._database._change(lambda: _single(Apply(changes)), *(change.path for change in changes))

    async def _asked(self, request: Request) -> Any:
        return await self._database._look(lambda: _single(request), "search" if type(request) is Find else "look")


def _single(request: Request) -> Plan[Any]:
    """The plan that asks for one thing."""
    return (yield request)


# --- what a copy says about its object ---


def _replacing(path: str, copy: FileDataV2 | None) -> Change:
    """The change that puts `copy` to `path`, or removes what is there, whatever that is."""
    return Change(path, None, copy, seen=FileStat())


def _copied_from(tag: str, size: int) -> str:
    return f"text/plain; size={size}; etag={tag}"


def _is_copy(copy: FileStat | None, stat: FileStat) -> bool:
    return copy is not None and copy.mime_type == _copied_from(stat.tag, stat.size or 0)


def _object_stat(copy: FileStat) -> FileStat:
    """The stat of the object that a file of the index is a copy of."""
    _, _, size = (copy.mime_type or "").partition("; size=")
    digits = size.partition(";")[0]
    return FileStat(int(digits) if digits.isdecimal() else copy.size, copy.modified_at, copy.created_at)
