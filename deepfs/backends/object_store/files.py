"""The objects under a prefix as flat storage: requests at once, listings without markers, changes under conditions."""

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from deepfs._drivers import log_failure
from deepfs.backends.object_store.client import (
    BLOCK_BYTES,
    Aborted,
    FoundObject,
    ObjectClient,
    Tag,
    index_tag,
    stat_of_listed,
)
from deepfs.backends.object_store.index import IndexSearch, SearchIndex
from deepfs.backends.object_store.keys import Keys
from deepfs.disk.reading import MAX_WHOLE, NotTextError, ReadLimits, WindowScan
from deepfs.errors import BackendError, ConflictError, DeepFSError, ErrorCode, TooLargeError
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.storage.gathering import Prefetch, gather_each
from deepfs.storage.runners import AsyncStorage, Kind, Page, Plan
from deepfs.text import media, records
from deepfs.text.arguments import check_bytes
from deepfs.text.flat_tree import Change, ChangedError, FileStat, Keyed, PartlyDoneError, StoredFiles, is_about_one_file
from deepfs.threads.background import on_background_loop
from deepfs.threads.loop_bridge import on_asyncio
from deepfs.types import FileDataV2, ReadResult

if TYPE_CHECKING:
    from anyio.abc import ObjectReceiveStream, ObjectSendStream, TaskGroup


T = TypeVar("T")

_MAX_KNOWN: Final = 65_536
"""The most empty objects that a backend remembers."""
_MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""The largest file that is held in memory as a whole."""


_used_by: int | None = None
"""The process that first used the driver, here or before this process was forked from it."""


async def call_on_asyncio(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of the driver, which needs asyncio. What it said of a failure is logged.

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
    try:
        return await (call() if on_asyncio() else on_background_loop(call))
    except DeepFSError as error:
        log_failure(error)
        raise


class _Objects(Keyed[FileDataV2], StoredFiles):
    """Fetched objects as files. Access to one that could not be fetched raises the error that `found` has in its place.

    Access to one that was too large to fetch raises TooLargeError.
    """

    def _at(self, path: str) -> FoundObject:
        found: FoundObject | DeepFSError = self._files[path]
        if isinstance(found, DeepFSError):
            raise found
        return found

    def __getitem__(self, path: str) -> FileDataV2:
        found = self._at(path)
        if found.content is None:
            raise TooLargeError(path, found.stat.size or 0, _MAX_HELD_BYTES)
        return found.file()

    def origin(self, path: str) -> Tag | None:
        return self._at(path).tag if path in self else None

    def stat(self, path: str) -> FileStat:
        return self._at(path).stat

    def is_version(self, path: str, if_match: str) -> bool:
        return path in self and if_match == self._at(path).version_of_unread()


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
        self.bucket = bucket
        self._client = bucket.client
        self._keys = bucket.keys
        self._sizes: Mapping[str, FileStat] = {}
        self._tasks: TaskGroup | None = None
        """Where a search fetches files before it needs them."""
        self._prefetch: Prefetch[FoundObject] | None = None
        self._tags: dict[str, Tag] = {}
        self._search: IndexSearch | None = None

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        return await call_on_asyncio(partial(self._carry_out, plan, kind))

    async def _carry_out(self, plan: Plan[T], kind: Kind) -> T:
        if kind != "search":
            return await super().carry_out(plan, kind)
        outcome: T | Exception
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                outcome = await super().carry_out(plan, kind)
            except Exception as error:
                outcome = error
            tasks.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        found = await self._each(self._client.stat, paths)
        return {path: each.stat for path, each in found.items()}

    async def get(self, paths: Sequence[str]) -> _Objects:
        return _Objects(await self._each(self._fetch, paths))

    async def _each(
        self, ask: Callable[[str], Awaitable[FoundObject | None]], paths: Sequence[str], *, keeps_errors: bool = False
    ) -> dict[str, Any]:
        """What `ask` finds at `paths`; with `keeps_errors`, the errors about one file are among it."""

        async def outcome(path: str) -> FoundObject | DeepFSError | None:
            try:
                return await ask(path)
            except DeepFSError as error:
                if not keeps_errors or not is_about_one_file(error):
                    raise
                return error

        asked = [path for path in paths if self._keys.fits(path)]
        answers = await gather_each(outcome, asked)
        return {path: found for path, found in zip(asked, answers, strict=True) if found is not None}

    async def get_each(self, paths: Sequence[str], ahead: Sequence[str]) -> _Objects:
        if self._tasks is None:
            return _Objects(await self._each(self._fetch, paths, keeps_errors=True))
        if self._prefetch is None:
            self._prefetch = Prefetch(self._fetch, self._size, self._tasks)
        taken = await self._prefetch.take(paths, ahead)
        for outcome in taken.values():
            if isinstance(outcome, DeepFSError) and not is_about_one_file(outcome):
                raise outcome
        return _Objects({path: outcome for path, outcome in taken.items() if outcome is not None})

    def _fetch(self, path: str) -> Awaitable[FoundObject | None]:
        return self._client.fetch(path, limit=_MAX_HELD_BYTES)

    def _size(self, path: str) -> int:
        """The size of a file by the last listing."""
        listed = self._sizes.get(path)
        return listed.size or 0 if listed else 0

    # --- listing ---

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        listed: dict[str, FileStat] = {}
        if not self._keys.fits(prefix):
            return listed
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
        known, before = self.bucket.known_empty, len(listed)
        empty = {path: stat.modified_at for path, stat in listed.items() if stat.size == 0}
        unknown = [path for path, modified_at in empty.items() if known.get(path, (None,))[0] != modified_at]
        looked = await self._each(
            self._client.stat, unknown, keeps_errors=True
        )  # What may not be looked at is taken for a file.
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
            if self.bucket.index is None:
                raise NotImplementedError
            self._search = self.bucket.index.search()
        return await self._search.find(request, files, after)

    async def pages(self) -> AsyncIterator[Mapping[str, FileStat]]:
        """All files, a page of the listing at a time, each with a text as its tag, for the search index."""
        async for page in self._client.pages(self._keys.key("/")):
            listed: dict[str, FileStat] = {}
            self._add(listed, page, "/")
            await self._without_markers(listed)
            yield {path: replace(stat, tag=index_tag(stat)) for path, stat in listed.items()}

    async def stat_for_index(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        """The stats of the files at `paths`, each with a text as its tag, for the search index."""
        found = await self.stat(paths)
        return {path: replace(stat, tag=index_tag(stat)) for path, stat in found.items()}

    async def fetch_for_index(self, paths: Sequence[str]) -> Mapping[str, tuple[FileDataV2, str] | None]:
        """The files at `paths`, each with a text as its tag, for the search index; None for what cannot be read."""
        found = await self._each(self._fetch, paths, keeps_errors=True)
        return {
            path: None if isinstance(each, DeepFSError) else (each.file(), index_tag(each.stat))
            for path, each in found.items()
        }

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        await self.bucket.check_conditions()
        index = self.bucket.index
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
        await index.follow_changes(
            pending, changes, {path: index_tag(FileStat(tag=tag)) for path, tag in self._tags.items()}
        )

    async def _apply(self, changes: Sequence[Change]) -> None:
        additions = [change for change in changes if change.after is not None]
        removals = [change for change in changes if change.after is None]
        if additions:
            await self._put_all(additions, moves=bool(removals))
        if removals:
            await self._remove_all(removals, additions)

    async def _put_all(self, additions: Sequence[Change], *, moves: bool) -> None:
        done, failures = await _try_each(self._client.put, additions)
        if not failures:
            self._tags = done
            return
        if moves:
            await self._take_back(additions, done)
        _raise_partly(failures, done)

    async def _delete(self, change: Change) -> None:
        await self._client.delete(change.path, change.origin)

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

        await gather_each(remove, additions)

    async def _remove_all(self, removals: Sequence[Change], additions: Sequence[Change]) -> None:
        # Deleting has no condition, so files whose content was read, for a copy or for `if_match`, are looked at first.
        if failure := await self._change_error(removals):
            done = dict(self._tags)
            await self._take_back(additions, done)
            _raise_partly([failure], done)
        deleted, failures = await _try_each(self._delete, removals)
        if failures:
            _raise_partly(failures, [*deleted, *(change.path for change in additions)])

    async def _change_error(self, removals: Sequence[Change]) -> DeepFSError | None:
        """The error to raise if a file whose content was read is no longer what was read."""
        read = {change.path: change.origin for change in removals if change.before is not None}
        if not read:
            return None
        try:
            found = await self.stat(list(read))
        except DeepFSError as error:
            return error
        changed = (path for path, tag in read.items() if path not in found or not found[path].tag.is_same(tag))
        path = next(changed, None)
        return None if path is None else ChangedError(path)


async def _try_each(
    make: Callable[[Change], Awaitable[T]], changes: Sequence[Change]
) -> tuple[dict[str, T], list[DeepFSError]]:
    """Make the changes at once. Returns the results of those that were made, by path, and the errors of the others."""
    done: dict[str, T] = {}
    failures: list[DeepFSError] = []

    async def attempt(change: Change) -> None:
        try:
            done[change.path] = await make(change)
        except DeepFSError as error:
            failures.append(error)

    await gather_each(attempt, changes)
    return done, failures


def _raise_partly(failures: Sequence[DeepFSError], done: Collection[str]) -> NoReturn:
    """Raise the error of an operation of which some changes failed, and those of the paths `done` were made."""
    if not done:
        raise next((error for error in failures if not isinstance(error, ChangedError)), failures[0])
    has_failed = any(not isinstance(error, ChangedError) for error in failures)
    kind = PartlyDoneError if has_failed else _PartlyChangedError
    raise kind("The object store stored only a part of the changes", done, failures[0])


class _PartlyChangedError(PartlyDoneError):
    """The other files changed after they were looked at."""

    code = ErrorCode.CONFLICT


class ReadWindow(Struct, frozen=True):
    """Asks for a window of a file, as a plan does. The answer is that of `read_window`."""

    path: str
    offset: int
    limit: int

    async def ask(self, storage: ObjectFiles) -> ReadResult | None:
        bucket = storage.bucket
        if not bucket.keys.fits(self.path):
            return None
        return await read_window(bucket.client, self.path, self.offset, self.limit, max_binary=bucket.max_bytes)


# --- large objects in parts ------------------------------------------------------------------------------------------

_ATTEMPTS: Final = 5
"""How often a file is read from its start if it changes meanwhile."""


# --- windows of text -------------------------------------------------------------------------------------------------


async def read_window(
    client: ObjectClient, path: str, offset: int, limit: int, *, max_binary: int
) -> ReadResult | None:
    """Read a window of a text, of which no more is fetched than needed, or a whole binary file; None for no file.

    Raises TooLargeError, and ConflictError if the file changes all the time.
    """
    for _ in range(_ATTEMPTS):
        first = await client.fetch_range(path, 0, MAX_WHOLE)
        if first is None:
            return None
        if (first.stat.size or 0) <= MAX_WHOLE:
            return records.read_data(path, first.file(), offset, limit, max_binary=max_binary)
        try:
            return await _read_large(client, path, first, offset, limit, max_binary)
        except _ChangedMeanwhileError:
            continue
    raise ConflictError(path, "it changed each time while it was read")


class _ChangedMeanwhileError(Exception):
    pass


async def _read_large(
    client: ObjectClient, path: str, first: FoundObject, offset: int, limit: int, max_binary: int
) -> ReadResult:
    if media.is_binary_name(path):
        return await _read_binary(client, path, first, max_binary)
    size = first.stat.size or 0
    scan = WindowScan(path, size, offset, limit, ReadLimits(), None)
    try:
        position, block = 0, first.content or b""
        while block:
            position += len(block)
            if scan.add(block):
                break
            block = (await _part(client, path, first, position)) if position < size else b""
        else:
            scan.end()
    except NotTextError:
        return await _read_binary(client, path, first, max_binary)
    stat = first.stat
    shown = scan.window()
    data = FileDataV2(shown.text, "utf-8", stat.created_at, stat.modified_at, media.mime_type(path))
    return records.read_window(data, shown, first.content_version or first.version_of_unread())


async def _part(client: ObjectClient, path: str, first: FoundObject, start: int) -> bytes:
    part = await client.fetch_range(path, start, start + BLOCK_BYTES, first.tag)
    if part is None or not part.content:
        raise _ChangedMeanwhileError
    return part.content


async def _read_binary(client: ObjectClient, path: str, first: FoundObject, max_binary: int) -> ReadResult:
    if (first.stat.size or 0) > max_binary:
        raise TooLargeError(path, first.stat.size or 0, max_binary)
    whole = await client.fetch(path, limit=max_binary)
    if whole is None or whole.content is None:
        raise _ChangedMeanwhileError
    return records.read_data(path, whole.file(), 0, 0, max_binary=max_binary)


# --- streams ---------------------------------------------------------------------------------------------------------


async def rechunk(blocks: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in chunks of `size` bytes, but for the last."""
    held = bytearray()
    async for block in blocks:
        held += block
        start = 0
        while len(held) - start >= size:
            yield bytes(held[start : start + size])
            start += size
        del held[:start]
    if held:
        yield bytes(held)


async def read_beginning(chunks: AsyncIterable[bytes]) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The first bytes of a stream and what follows them; None follows if they are all, at most a block."""
    start = bytearray()
    iterator = aiter(chunks)
    async for chunk in iterator:
        start += check_bytes("each chunk", chunk)
        if len(start) > BLOCK_BYTES:
            return bytes(start), iterator
    return bytes(start), None


async def hand_over(chunks: "ObjectSendStream[bytes | None]", chunk: bytes | None) -> bool:
    """Hand a chunk to the driver, or None after the last one; False if it has given up."""
    try:
        await chunks.send(chunk)
    except anyio.BrokenResourceError:
        return False
    return True


async def read_chunks(chunks: "ObjectReceiveStream[bytes | None]") -> AsyncGenerator[bytes, None]:
    """The chunks that are handed over, for the driver. Raises Aborted if they end before all are there."""
    async with chunks:
        async for chunk in chunks:
            if chunk is None:
                return
            yield chunk
    raise Aborted
