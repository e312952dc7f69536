"""Files in an object store: S3, Google Cloud Storage, Azure or memory, by obstore."""

import secrets
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Literal, TypeVar

import anyio
from msgspec import Struct

from deepfs.backends import flat_plans as plans
from deepfs.backends._object_client import Found, ObjectClient, Tag, stat_of_listed
from deepfs.backends._object_keys import Keys, Place, as_store, check_key, store_of_url
from deepfs.backends._object_streams import (
    BLOCK_BYTES,
    Parts,
    beginning,
    read_window,
    rechunked,
    version_of_unread,
)
from deepfs.backends.flat import StorageBackend
from deepfs.backends.flat_requests import Plan
from deepfs.backends.flat_storage import AsyncStorage, Kind, Storage
from deepfs.backends.operations import CHUNK_BYTES
from deepfs.backends.protocol import Capabilities
from deepfs.backends.retries import RetryPolicy
from deepfs.errors import (
    ConflictError,
    DeepFSError,
    ErrorCode,
    IsDirectoryError,
    NotFoundError,
    NotSupportedError,
    TooLargeError,
)
from deepfs.sync import call_sync, shielded
from deepfs.text import paths
from deepfs.text.arguments import bytes_given, check_number, chunk_bytes
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, ChangedError, FileStat, PartlyDoneError, StoredFiles, change_of
from deepfs.text.lines import check_window
from deepfs.threads.background import on_background_loop
from deepfs.threads.locks import path_locks
from deepfs.threads.loop_bridge import on_asyncio
from deepfs.types import FileDataV2, FileUploadResponse, ReadResult

__all__ = ["ObjectStoreBackend", "S3Backend"]

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


async def _on_asyncio(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of the driver, which needs asyncio."""
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
        if not self._queue:
            self._queue = [*wanted, *ahead]
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
        while self._running < _IN_FLIGHT and self._next < len(self._queue) and self._has_room():
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


class _ObjectFiles(AsyncStorage):
    """The objects under a prefix as files, for one operation."""

    def __init__(self, backend: "ObjectStoreBackend") -> None:
        self._backend = backend
        self._client = backend._client
        self._keys = backend._keys
        self._sizes: Mapping[str, FileStat] = {}
        self._prefetch: _Prefetch | None = None

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        return await _on_asyncio(partial(self._carry_out, plan, kind))

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
        return await read_window(self._client, path, offset, limit, max_binary=self._backend._max_bytes)

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
        known, before = self._backend._known_empty, len(listed)
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

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        await self._backend._check_conditions()
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

    _tags: dict[str, Tag]


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


async def _hand_over(parts: Parts, start: bytes, rest: AsyncIterator[bytes]) -> None:
    await _on_asyncio(partial(parts.add, start))
    async for chunk in rest:
        if not await _on_asyncio(partial(parts.add, bytes_given("each chunk", chunk))):
            return


class _ReadWindow(Struct, frozen=True):
    """Asks for a window of a file."""

    path: str
    offset: int
    limit: int

    def ask(self, storage: Any) -> Any:
        return storage.read_window(self.path, self.offset, self.limit)


class ObjectStoreBackend(StorageBackend):
    """Files in an object store: Amazon S3 and what is compatible with it, Google Cloud Storage, Azure, or memory.

    The file `/a/b` is the object `prefix/a/b`. Puts are conditional on what was read, so no edit is lost, whichever
    process made it. At the first change it checks that the store keeps these conditions. Deleting has no condition in
    the driver: a file is looked at just before.

    Needs the extra `objectstore`. Keys over 1,024 bytes are refused. Empty objects that only mark a directory (`a/`)
    are not shown as files; `ls` shows the directory that they mark.

    Args:
        store: A URL (`s3://bucket/prefix`, `gs://bucket`, `az://container`, `memory://`), or a store of obstore, which
            stays the caller's.
        prefix: The directory in the store that is the root of the backend.
        retries: How often requests are sent, and how long changes are planned anew; None is `RetryPolicy()`.
        unsafe_overwrites: Use a store that ignores the conditions of puts. Changes of other processes are then
            overwritten.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is searched, or shown if it is binary.
        **options: Options of obstore's store for the URL, such as `region`, `endpoint` or `client_options`.

    Raises:
        ModuleNotFoundError: Without the extra `objectstore`.
        TypeError: `store` is no store.
        ValueError: For a URL, a prefix or options that cannot be used. No option's value is in its text.
    """

    _asks_together = True

    def __init__(
        self,
        store: Any,
        prefix: str = "",
        *,
        retries: RetryPolicy | None = None,
        unsafe_overwrites: bool = False,
        max_file_size_mb: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._retries = retries or RetryPolicy()
        place = self._opened(store, prefix, options)
        self._keys = Keys(place.root, place.above)
        self._bucket = place.scope
        self._unsafe = unsafe_overwrites
        self._is_checked = unsafe_overwrites
        self._known_empty: dict[str, tuple[str | None, bool]] = {}
        """When empty objects of listings were last modified, and whether they are files, not markers of directories."""
        self._in_memory = type(place.store).__name__ == "MemoryStore"
        self._client = ObjectClient(place, self._keys, self._retries, is_conditional=not unsafe_overwrites)
        self.capabilities: Capabilities = Capabilities(
            durable=not self._in_memory, atomic_between_processes=not unsafe_overwrites
        )

    def _opened(self, store: Any, prefix: str, options: dict[str, Any]) -> Place:
        if not isinstance(store, str):
            if options:
                raise TypeError("options are for the store of a URL; this one was made by the caller")
            return as_store(store, prefix)
        return store_of_url(store, prefix, options, self._retries.attempts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._keys.whole('/')!r})"

    def _storage(self) -> Storage:
        return _ObjectFiles(self)

    def _scope(self) -> Hashable:
        return self._bucket

    async def astorage_place(self, path: str) -> StoragePlace:
        whole = self._keys.whole(paths.normalize(path))
        return flat_place(self._bucket, whole, storage=self._bucket, is_sole=self._in_memory)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        return path_locks(self._bucket).hold(*map(self._keys.whole, held))

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        check_key(self._keys, path)

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        for change in changes:
            check_key(self._keys, change.path)
        return changes

    # --- reading ---

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path = paths.normalize(path)
        check_window(offset, limit)
        return await self._look(lambda: self._read(path, offset, limit))

    def _read(self, path: str, offset: int, limit: int) -> Plan[ReadResult]:
        request: Any = _ReadWindow(path, offset, limit)
        result: ReadResult | None = None if path == "/" else (yield request)
        if result is None:
            raise (yield from plans.missing(path))
        return result

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        path, chunk_size = paths.normalize(path), chunk_bytes(chunk_size)
        found: Found | None = None
        if path != "/" and self._keys.fits(path):
            found = await _on_asyncio(lambda: self._client.fetch_range(path, 0, BLOCK_BYTES))
        if found is None:
            await self._look(lambda: self._raise_missing(path))
            raise NotFoundError(path)
        async for chunk in rechunked(self._blocks(path, found), chunk_size):
            yield chunk

    def _raise_missing(self, path: str) -> Plan[None]:
        raise (yield from plans.missing(path))

    async def _blocks(self, path: str, first: Found) -> AsyncGenerator[bytes, None]:
        block: Found | None = first
        start, size = 0, first.stat.size or 0
        while block is not None and block.content:
            yield block.content
            start += len(block.content)
            if start >= size:
                return
            block = await _on_asyncio(partial(self._client.fetch_range, path, start, start + BLOCK_BYTES, first.tag))
        if start < size:
            raise ConflictError(path, "it changed while it was downloaded")

    async def apresign(self, path: str, *, expires_in: float = 3600, method: Literal["GET", "PUT"] = "GET") -> str:
        """Return a URL with which anybody can read or replace a file for some time, without further credentials.

        Whether the file exists is not checked.

        Args:
            path: The path of the file.
            expires_in: Seconds for which the URL is valid.
            method: The request that the URL is for.

        Returns:
            The URL. It is a secret.

        Raises:
            DeepFSError: InvalidPathError for a path that is not valid, NotSupportedError if the store has no such
                URLs, BackendError if the URL cannot be made, as without credentials.
            ValueError: For another method, or a time that is not positive.
        """
        path = paths.normalize(path)
        check_number("expires_in", expires_in)
        if method not in ("GET", "PUT"):
            raise ValueError(f"method is 'GET' or 'PUT', not {method!r}")
        if path == "/":
            raise IsDirectoryError(path)
        check_key(self._keys, path)
        if self._in_memory:
            raise NotSupportedError(backend=type(self).__name__, operation="presigned URLs")
        return await _on_asyncio(lambda: self._client.presign(path, method, expires_in))

    def presign(self, path: str, *, expires_in: float = 3600, method: Literal["GET", "PUT"] = "GET") -> str:
        """`apresign`, for code without an event loop.

        Args:
            path: The path of the file.
            expires_in: Seconds for which the URL is valid.
            method: The request that the URL is for.

        Returns:
            The URL.

        Raises:
            DeepFSError: As `apresign`.
            ValueError: As `apresign`.
        """
        call = partial(self.apresign, path, expires_in=expires_in, method=method)
        name = type(self).__name__
        return call_sync(self, call, f"{name}.presign()", f"{name}.apresign()")

    # --- changing ---

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = await super().aupload_files(files)
        deadline = time.monotonic() + self._retries.contention
        # A part of the files may have changed while they were replaced; the others are stored.
        while time.monotonic() < deadline:
            again = [number for number, response in enumerate(responses) if response.error == ErrorCode.CONFLICT]
            if not again:
                break
            for number, response in zip(
                again, await super().aupload_files([files[number] for number in again]), strict=True
            ):
                responses[number] = response
        return responses

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        try:
            start, rest = await beginning(chunks)
            if rest is None:
                [response] = await self.aupload_files([(path, start)])
                return response
            target = paths.normalize(path)
            check_key(self._keys, target)
            await _on_asyncio(self._check_conditions)
            before = await self._look(lambda: self._replaceable(target))
            await self._upload(target, before, start, rest)
        except DeepFSError as error:
            return FileUploadResponse(path, error.code.value)
        return FileUploadResponse(path)

    def _replaceable(self, path: str) -> Plan[FileStat | None]:
        """The stat of the file that an upload replaces. Raises if there can be no file at `path`."""
        found = yield from plans.place(self, path, contents=False)
        self._before_apply([change_of(path, found, FileDataV2("", "utf-8"))])
        return found.get(path)  # type: ignore[return-value]

    async def _upload(self, path: str, before: FileStat | None, start: bytes, rest: AsyncIterator[bytes]) -> None:
        """Store a stream in parts: none of it is there before all of it is."""
        parts = Parts()
        errors: list[BaseException] = []

        async def put() -> None:
            # Shielded on this side: the driver must be there to be told to give up.
            try:
                await shielded(partial(_on_asyncio, partial(self._client.put_parts, path, before, parts.chunks())))
            except DeepFSError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            try:
                await _hand_over(parts, start, rest)
                await _on_asyncio(parts.end)
            except BaseException as error:
                errors.append(error)
                await shielded(partial(_on_asyncio, parts.abort))
                if not isinstance(error, Exception):
                    raise
        if errors:
            raise errors[0]

    async def _check_conditions(self) -> None:
        """Refuse changes if the store ignores the conditions of puts. It is found out once."""
        if self._is_checked or self._bucket in _checked:
            return
        # The name is too long for a path of the contract, so that nobody meets the object.
        key = f"{self._keys.prefix}deepfs-probe-{secrets.token_hex(8)}".ljust(len(self._keys.prefix) + 300, "-")
        if not await self._client.checks_conditions(key):
            raise NotSupportedError(
                None,
                "The object store ignores the conditions of puts, so changes could overwrite one another. "
                "ObjectStoreBackend(…, unsafe_overwrites=True) uses it all the same.",
            )
        self._is_checked = True
        if not self._in_memory:
            _checked.add(self._bucket)


_checked: set[Hashable] = set()
"""The buckets that keep the conditions of puts."""


class S3Backend(ObjectStoreBackend):
    """`ObjectStoreBackend` for a bucket of Amazon S3, or of a compatible server at `endpoint_url`.

    Args:
        bucket: The name of the bucket.
        prefix: The directory in the bucket that is the root of the backend.
        region: The region; None is that of the environment.
        endpoint_url: The address of the server; None is that of Amazon. An `http://` address is not encrypted.
        retries: How often requests are sent, and how long changes are planned anew; None is `RetryPolicy()`.
        unsafe_overwrites: Use a store that ignores the conditions of puts.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is searched, or shown if it is binary.
        **options: Further options of obstore's `S3Store`, such as `access_key_id` and `secret_access_key`.

    Raises:
        ModuleNotFoundError: Without the extra `objectstore`.
        ValueError: For a bucket, a prefix or options that cannot be used.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        retries: RetryPolicy | None = None,
        unsafe_overwrites: bool = False,
        max_file_size_mb: int = 10,
        **options: Any,
    ) -> None:
        named = {"region": region, "endpoint": endpoint_url}
        options = {**{name: value for name, value in named.items() if value is not None}, **options}
        if endpoint_url is not None and endpoint_url.startswith("http://"):
            options["client_options"] = {"allow_http": True, **options.get("client_options", {})}
        super().__init__(
            f"s3://{bucket}",
            prefix,
            retries=retries,
            unsafe_overwrites=unsafe_overwrites,
            max_file_size_mb=max_file_size_mb,
            **options,
        )
