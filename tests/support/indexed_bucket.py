"""Objects in memory with a search index beside them, for several clients that share both, slow ones and dying ones."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import count

from deepfs.backends.flat import AsyncStorage, StorageBackend
from deepfs.backends.object_store.index import IndexSearch, Objects, SearchIndex
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.storage.runners import Page
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles, stat_of
from deepfs.types import FileDataV2
from support.raw import file_of

__all__ = ["MAX_BYTES", "BucketBackend"]

MAX_BYTES = 1000

_numbers = count(1)


async def _at_once(_: str) -> None:
    pass


class Bucket(AsyncStorage):
    """Objects with a tag each, and an index; it counts what it is asked.

    `pause` is awaited at each step, with its name; it may raise a BaseException as if the client died there.
    """

    def __init__(self, database: StorageBackend, objects: dict[str, tuple[FileDataV2, str]], place: str) -> None:
        self.objects = objects
        self.listed = 0
        self.fetched: list[str] = []
        self.pause: Callable[[str], Awaitable[None]] = _at_once
        self.index = SearchIndex(database, Objects(self._pages, self._looked, self._tagged, MAX_BYTES), place)
        self._search: IndexSearch | None = None

    def put(self, path: str, data: bytes) -> None:
        """Store an object as another client does, which knows nothing of the index."""
        self.objects[path] = file_of(data), f'"{next(_numbers)}"'

    async def _pages(self) -> AsyncIterator[Mapping[str, FileStat]]:
        self.listed += 1
        names = sorted(self.objects)
        for start in range(0, len(names), 3):
            await self.pause("list")
            yield self._stats(names[start : start + 3])

    async def _looked(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        await self.pause("look")
        return self._stats(paths)

    async def _tagged(self, paths: Sequence[str]) -> Mapping[str, tuple[FileDataV2, str]]:
        await self.pause("fetch")
        self.fetched += paths
        found = {path: self.objects[path] for path in paths if path in self.objects}
        await self.pause("fetched")
        return found

    def _stats(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: self._stat(*self.objects[path]) for path in paths if path in self.objects}

    def _stat(self, data: FileDataV2, tag: str) -> FileStat:
        stat = stat_of(data)
        return FileStat(stat.size, stat.modified_at, stat.created_at, tag)

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return self._stats(paths)

    async def get(self, paths: Sequence[str]) -> TaggedFiles:
        found = await self._tagged(paths)
        return TaggedFiles({path: data for path, (data, _) in found.items()}, {p: tag for p, (_, tag) in found.items()})

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        return self._stats([path for path in sorted(self.objects) if path.startswith(prefix)][:limit])

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        if self._search is None or after is None:
            self._search = self.index.search()
        return await self._search.find(request, files, after)

    async def apply(self, changes: Sequence[Change]) -> None:
        pending = await self.index.announce([change.path for change in changes])
        await self.pause("put")
        if any(not self._holds(change) for change in changes):
            await self.index.withdraw(pending)
            raise ChangedError("/")
        tags = {}
        for change in changes:
            self.objects.pop(change.path, None)
            if change.after is not None:
                tags[change.path] = f'"{next(_numbers)}"'
                self.objects[change.path] = change.after, tags[change.path]
        await self.pause("follow")
        await self.index.follow_changes(pending, changes, tags)

    def _holds(self, change: Change) -> bool:
        stored = self.objects.get(change.path)
        if change.condition == "create":
            return stored is None
        return change.condition == "replace" or (stored is not None and stored[1] == change.origin)


class BucketBackend(StorageBackend):
    """A client of a bucket. It shares no locks with others, as if it were another process."""

    _finds = True

    def __init__(
        self,
        database: StorageBackend,
        objects: dict[str, tuple[FileDataV2, str]] | None = None,
        place: str = "a bucket",
    ) -> None:
        super().__init__()
        self._max_bytes = MAX_BYTES
        self.bucket = Bucket(database, {} if objects is None else objects, place)

    def _storage(self) -> Bucket:
        return self.bucket
