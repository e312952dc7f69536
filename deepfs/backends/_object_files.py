"""The objects under a prefix as flat storage: requests at once, listings without markers, changes under conditions."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends._object_client import Found, ObjectClient, Tag, stat_of_listed
from deepfs.backends._object_index import IndexSearch, SearchIndex
from deepfs.backends._object_keys import Keys
from deepfs.backends._object_streams import read_window, version_of_unread
from deepfs.backends.flat_requests import Page, Plan
from deepfs.backends.flat_storage import AsyncStorage, Kind
from deepfs.errors import BackendError, DeepFSError, ErrorCode, TooLargeError
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.text.flat_tree import Change, ChangedError, FileStat, PartlyDoneError, StoredFiles
from deepfs.threads.background import on_background_loop
from deepfs.threads.loop_bridge import on_asyncio
from deepfs.types import FileDataV2, ReadResult

__all__ = ["Bucket", "ObjectFiles", "ReadWindow", "call_on_asyncio"]

T = TypeVar("T")

_IN_FLIGHT: Final = 100
"""The most requests of one operation that are sent at once."""
_AHEAD_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of files that a search fetches before it needs them."""
_MAX_KNOWN: Final = 65_536
"""The most empty objects that a backend remembers."""
_MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""The largest file that is held in memory as a whole."""


async def _each(items: Sequence[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do the work for each item, for at most 100 items at once. Raises the first error, after which none is begun."""
    if len(items) == 1:
        await work(items[0])
        return
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(min(len(items), _IN_FLIGHT)):
                tasks.start_soon(worker)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


_used_by: int | None = None
"""The process that first used the driver, here or before this process was forked from it."""


async def call_on_asyncio(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of the driver, which needs asyncio.

    Raises BackendError in a process forked from one that used the driver, whose threads are not there: the call would
    never end.
    """
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
    elif _used_by != os.getpid():
        raise BackendError(
            None,
            "This process was forked from one that used object stores, whose driver does not work then. "
            "Start processes by 'spawn' or 'forkserver'.",
        )
    return await (call() if on_asyncio() else on_background_loop(call))


class _Objects(StoredFiles):
    """Fetched objects as files. Access to one that was too large to fetch raises TooLargeError."""

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = found

    def __getitem__(self, path: str) -> FileDataV2:
        found = self._found[path]
        if found.content is None:
            raise TooLargeError(path, found.stat.size or 0, _MAX_HELD_BYTES)
        return found.file()

    def __iter__(self) -> Any:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, path: object) -> bool:
        return path in self._found

    def origin(self, path: str) -> Tag | None:
        found = self._found.get(path)
        return None if found is None else found.tag

    def stat(self, path: str) -> FileStat:
        return self._found[path].stat

    def is_version(self, path: str, if_match: str) -> bool:
        found = self._found.get(path)
        return found is not None and if_match == version_of_unread(found)


class _Prefetch:
    """Fetches files in the order in which a search needs them, some of them before it asks for them."""

    def __init__(self, fetch: Callable[[str], Awaitable[Found | None]], sizes: Mapping[str, FileStat]) -> None:
        self._fetch = fetch
        self._sizes = sizes
        self._queue: list[str] = []
        self._seen: set[str] = set()
        self._wanted = 0
        """How many files of the queue the search has asked for."""
        self._next = 0
        self._running = 0
        self._held = 0
        self._fetched: dict[str, Found | DeepFSError | None] = {}
        self._missing: set[str] = set()
        self._arrived = anyio.Event()
        self.tasks: Any = None

    def __contains__(self, path: str) -> bool:
        return path in self._fetched

    async def take(self, wanted: Sequence[str], ahead: Sequence[str]) -> dict[str, Found]:
        """The files at `wanted`; those `ahead` are fetched meanwhile."""
        new = [path for path in (*wanted, *ahead) if path not in self._seen]
        self._queue += new
        self._wanted += len(wanted)
        self._seen.update(new)
        self._missing = {path for path in wanted if path not in self._fetched}
        self._start()
        if self._missing:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        taken = {path: self._fetched.pop(path) for path in wanted}
        self._held -= sum(map(self._size, wanted))
        self._start()
        for answer in taken.values():
            if isinstance(answer, DeepFSError):
                raise answer
        return {path: answer for path, answer in taken.items() if isinstance(answer, Found)}

    def _size(self, path: str) -> int:
        known = self._sizes.get(path)
        return known.size or 0 if known else 0

    def _start(self) -> None:
        # No more files are fetched before they are needed than may be under way at once.
        end = min(len(self._queue), self._wanted + _IN_FLIGHT)
        while self._next < end and self._running < _IN_FLIGHT and self._has_room():
            path = self._queue[self._next]
            self._next += 1
            self._running += 1
            self._held += self._size(path)
            self.tasks.start_soon(self._run, path)

    def _has_room(self) -> bool:
        return self._held == 0 or self._held + self._size(self._queue[self._next]) <= _AHEAD_BYTES

    async def _run(self, path: str) -> None:
        try:
            self._fetched[path] = await self._fetch(path)
        except DeepFSError as error:
            self._fetched[path] = error
        self._running -= 1
        self._missing.discard(path)
        if not self._missing:
            self._arrived.set()
        self._start()


class Bucket(Struct):
    """What the operations of a backend share."""

    client: ObjectClient
    keys: Keys
    max_bytes: int
    """The largest object that is searched."""
    check_conditions: Callable[[], Awaitable[None]]
    """Refuses changes if the store ignores the conditions of puts."""
    index: SearchIndex | None = None
    known_empty: dict[str, tuple[str | None, bool]] = {}
    """When empty objects of listings were last modified, and whether they are files, not markers of directories."""


class ObjectFiles(AsyncStorage):
    """The objects under a prefix as files, for one operation."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._client = bucket.client
        self._keys = bucket.keys
        self._sizes: Mapping[str, FileStat] = {}
        self._prefetch: _Prefetch | None = None
        self._tags: dict[str, Tag] = {}
        self._search: IndexSearch | None = None

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        return await call_on_asyncio(partial(self._carry_out, plan, kind))

    async def _carry_out(self, plan: Plan[T], kind: Kind) -> T:
        self._listings = anyio.Semaphore(_IN_FLIGHT)  # Made here, on the loop that uses it.
        if kind != "search":
            return await super().carry_out(plan, kind)
        outcome: T | Exception
        async with anyio.create_task_group() as self._tasks:
            try:
                outcome = await super().carry_out(plan, kind)
            except Exception as error:
                outcome = error
            self._tasks.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        found: dict[str, FileStat] = {}

        async def look(path: str) -> None:
            if (answer := await self._client.stat(path)) is not None:
                found[path] = answer.stat

        await _each([path for path in paths if self._keys.fits(path)], look)
        return found

    async def get(self, paths: Sequence[str]) -> _Objects:
        if self._prefetch is not None:
            return await self.get_first(paths, ())
        found: dict[str, Found] = {}

        async def fetch(path: str) -> None:
            if (answer := await self._fetch(path)) is not None:
                found[path] = answer

        await _each([path for path in paths if self._keys.fits(path)], fetch)
        return _Objects(found)

    async def get_first(self, paths: Sequence[str], ahead: Sequence[str]) -> _Objects:
        if self._prefetch is None:
            self._prefetch = _Prefetch(self._fetch, self._sizes)
            self._prefetch.tasks = self._tasks
        return _Objects(await self._prefetch.take(paths, ahead))

    def _fetch(self, path: str) -> Awaitable[Found | None]:
        return self._client.fetch(path, limit=_MAX_HELD_BYTES)

    async def read_window(self, path: str, offset: int, limit: int) -> ReadResult | None:
        """The window of a read, for which only a part of a large text is fetched; None if there is no file."""
        if not self._keys.fits(path):
            return None
        return await read_window(self._client, path, offset, limit, max_binary=self._bucket.max_bytes)

    # --- listing ---

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        listed: dict[str, FileStat] = {}
        if not self._keys.fits(prefix):
            return listed
        async with self._listings:  # An upload of many files asks for as many listings at once.
            async for page in self._client.pages(self._keys.key(prefix)):
                self._add(listed, page, prefix)
                if limit is not None and len(listed) >= limit and await self._without_markers(listed):
                    break
            await self._without_markers(listed)
        self._sizes = listed
        return listed

    def _add(self, listed: dict[str, FileStat], page: Sequence[Mapping[str, Any]], prefix: str) -> None:
        for meta in page:
            path = self._keys.path(meta["path"])
            if path != prefix[:-1]:  # The marker of the directory itself.
                listed[path] = stat_of_listed(meta)

    async def _without_markers(self, listed: dict[str, FileStat]) -> bool:
        """Remove the markers of directories, which are listed like empty files. Returns whether there was none.

        The marker of `/a` has the key `a/`, which the driver shows as `a`.
        """
        known, before = self._bucket.known_empty, len(listed)
        empty = {path: stat.modified_at for path, stat in listed.items() if stat.size == 0}
        unknown = [path for path, modified_at in empty.items() if known.get(path, (None,))[0] != modified_at]
        looked = await self.stat(unknown)
        if len(known) + len(unknown) > _MAX_KNOWN:
            known.clear()
        known.update((path, (empty[path], path in looked)) for path in unknown)
        for path in empty:
            if not known.get(path, (None, path in looked))[1]:
                del listed[path]
        return len(listed) == before

    async def children(self, prefix: str) -> Mapping[str, FileStat]:
        if not self._keys.fits(prefix):
            return {}
        answer = await self._client.children(self._keys.key(prefix))
        listed: dict[str, FileStat] = {}
        self._add(listed, answer["objects"], prefix)
        for directory in answer["common_prefixes"]:
            listed[f"{self._keys.path(directory)}/_"] = FileStat()
        return listed

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        if self._search is None:
            if self._bucket.index is None:
                raise NotImplementedError
            self._search = self._bucket.index.search()
        return await self._search.find(request, files, after)

    async def pages(self) -> AsyncIterator[Mapping[str, FileStat]]:
        """All files, a page of the listing at a time, each with a text as its tag, for the search index."""
        async for page in self._client.pages(self._keys.key("/")):
            listed: dict[str, FileStat] = {}
            self._add(listed, page, "/")
            await self._without_markers(listed)
            yield {path: replace(stat, tag=index_tag(stat)) for path, stat in listed.items()}

    async def looked(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        """The stats of the files at `paths`, each with a text as its tag, for the search index."""
        found = await self.stat(paths)
        return {path: replace(stat, tag=index_tag(stat)) for path, stat in found.items()}

    async def tagged(self, paths: Sequence[str]) -> Mapping[str, tuple[FileDataV2, str]]:
        """The files at `paths`, each with a text as its tag, for the search index."""
        found = await self.get(paths)
        return {path: (found[path], index_tag(found.stat(path))) for path in found}

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        await self._bucket.check_conditions()
        index = self._bucket.index
        if index is None:
            await self._apply(changes)
            return
        pending = await index.announce([change.path for change in changes])
        try:
            await self._apply(changes)
        except ChangedError:
            await index.withdraw(pending)
            raise
        except PartlyDoneError:
            await index.settle(pending)
            raise
        except BaseException:
            index.suspect(pending)
            raise
        await index.changed(pending, changes, {path: index_tag(FileStat(tag=tag)) for path, tag in self._tags.items()})

    async def _apply(self, changes: Sequence[Change]) -> None:
        additions = [change for change in changes if change.after is not None]
        removals = [change for change in changes if change.after is None]
        if additions:
            await self._put_all(additions, moves=bool(removals))
        if removals:
            await self._remove_all(removals, additions)

    async def _put_all(self, additions: Sequence[Change], *, moves: bool) -> None:
        done: dict[str, Tag] = {}
        failures: list[DeepFSError] = []

        async def put(change: Change) -> None:
            try:
                done[change.path] = await self._put(change)
            except DeepFSError as error:
                failures.append(error)

        await _each(additions, put)
        if not failures:
            self._tags = done
            return
        if moves:
            await self._take_back(additions, done)
        _raise_partly(failures, done)

    async def _put(self, change: Change) -> Tag:
        if change.after is None:
            raise AssertionError("a removal is no put")
        return await self._client.put(change.path, change.after, change.origin, creates=change.condition == "create")

    async def _take_back(self, additions: Sequence[Change], done: dict[str, Tag]) -> None:
        """Delete the files that were added, if nobody has changed them since; those remain in `done`."""

        async def remove(change: Change) -> None:
            tag = done.get(change.path)
            if tag is None or change.condition != "create":
                return
            try:
                found = await self._client.stat(change.path)
                if found is not None and found.tag.is_same(tag):
                    await self._client.delete(change.path, tag)
            except DeepFSError:
                return
            del done[change.path]

        await _each(additions, remove)

    async def _remove_all(self, removals: Sequence[Change], additions: Sequence[Change]) -> None:
        # Deleting has no condition. So what must be the version that was read, because its copy takes its place or the
        # caller named it, is looked at just before.
        if failure := await self._changed(removals):
            done = dict(self._tags) if additions else {}
            await self._take_back(additions, done) if additions else None
            _raise_partly([failure], done)
        deleted: list[str] = []
        failures: list[DeepFSError] = []

        async def delete(change: Change) -> None:
            try:
                await self._client.delete(change.path, change.origin)
                deleted.append(change.path)
            except DeepFSError as error:
                failures.append(error)

        await _each(removals, delete)
        if failures:
            _raise_partly(failures, [*deleted, *(change.path for change in additions)])

    async def _changed(self, removals: Sequence[Change]) -> DeepFSError | None:
        """The error to raise if a file whose content was read is no longer what was read."""
        read = {change.path: change.origin for change in removals if change.before is not None}
        if not read:
            return None
        try:
            found = await self.stat(list(read))
        except DeepFSError as error:
            return error
        same = (path in found and found[path].tag.is_same(tag) for path, tag in read.items())
        return None if all(same) else ChangedError(next(iter(read)))


def _raise_partly(failures: Sequence[DeepFSError], done: Any) -> None:
    """Raise for the failures of some changes: the first one if nothing is `done`."""
    if not done:
        raise next((error for error in failures if not isinstance(error, ChangedError)), failures[0])
    has_failed = any(not isinstance(error, ChangedError) for error in failures)
    kind = PartlyDoneError if has_failed else _PartlyChangedError
    raise kind("The object store stored only a part of the changes", done, failures[0])


class _PartlyChangedError(PartlyDoneError):
    """The other files changed after they were looked at."""

    code = ErrorCode.CONFLICT


class ReadWindow(Struct, frozen=True):
    """Asks for a window of a file."""

    path: str
    offset: int
    limit: int

    def ask(self, storage: Any) -> Any:
        return storage.read_window(self.path, self.offset, self.limit)


def index_tag(stat: FileStat) -> str:
    """The tag of an object as a text that listings, too, know of; for a store without ETags, the time of its change."""
    return stat.tag.e_tag or (f"at {stat.modified_at}" if stat.modified_at else "")
