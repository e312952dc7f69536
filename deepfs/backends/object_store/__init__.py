"""Files in an object store: S3, Google Cloud Storage, Azure or memory, by obstore."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Literal

import anyio

from deepfs.backends.flat import StorageBackend
from deepfs.backends.namespace import (
    MOST_PLACES,
    NamespaceFactory,
    check_chosen_prefix,
    check_prefix,
    choice_in,
    fixed_or_chosen,
    namespace_beneath,
)
from deepfs.backends.object_store.client import BLOCK_BYTES, FoundObject, ObjectClient
from deepfs.backends.object_store.files import (
    Bucket,
    ObjectFiles,
    ReadWindow,
    call_on_asyncio,
    hand_over,
    read_beginning,
    read_chunks,
    rechunk,
)
from deepfs.backends.object_store.index import Objects, SearchIndex, check_index
from deepfs.backends.object_store.keys import Keys, as_store, check_key, display_url, identity, store_of_url
from deepfs.backends.protocol import Capabilities
from deepfs.errors import ConflictError, DeepFSError, IsDirectoryError, NotFoundError, NotSupportedError
from deepfs.operations import CHUNK_BYTES
from deepfs.storage import plans
from deepfs.storage.runners import Plan, RetryPolicy, check_policy
from deepfs.sync import call_sync, run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_bytes, check_number, check_string, chunk_bytes
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, FileStat, change_of
from deepfs.text.lines import check_window
from deepfs.threads.locks import path_locks
from deepfs.types import FileDataV2, FileUploadResponse, ReadResult, failed_item

__all__ = ["ObjectStoreBackend", "S3Backend"]


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
        prefix: The directory in the store that is the root of the backend: a path; a tuple of names, of which each is
            one segment whatever it holds; or a factory of these that gets the `Runtime` of the running node (None
            outside a graph).
        retries: How often requests are sent, and how long changes are planned anew; None is `RetryPolicy()`.
        unsafe_overwrites: Use a store that ignores the conditions of puts. Changes of other processes are then
            overwritten.
        index: A `PostgresBackend` or `SqliteBackend` that keeps a copy of what can be searched, so that searches fetch
            only what may match. Give it a namespace of its own, which all clients of the bucket may share; prefixes of
            a factory have theirs beneath it. It is not closed. Changes by clients without the index are found after
            `arefresh_index`.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is searched, or shown if it is binary.
        **options: Options of obstore's store for the URL, such as `region`, `endpoint` or `allow_http`.

    Raises:
        ModuleNotFoundError: Without the extra `objectstore`.
        TypeError: `store` is no store, or an argument is of another type.
        ValueError: For a URL, a prefix or options that cannot be used. No option's value is in its text.
    """

    _asks_together = True
    _shown = ("_url_shown", "prefix=_prefix_shown")

    def __init__(
        self,
        store: Any,
        prefix: str | Sequence[str] | NamespaceFactory = "",
        *,
        retries: RetryPolicy | None = None,
        unsafe_overwrites: bool = False,
        index: StorageBackend | None = None,
        max_file_size_mb: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._prefix = fixed_or_chosen("prefix", prefix, check_prefix, check_chosen_prefix)
        self._choice = choice_in(self._prefix)
        self._retries = check_policy(retries)
        if isinstance(store, str):
            place = store_of_url(store, options, self._retries.attempts)
        elif options:
            raise TypeError("options are for the store of a URL; this one was made by the caller")
        else:
            place = as_store(store)
        self._place = place
        self._bucket_id = place.scope
        keys = Keys(place.root if self._choice else paths.join(place.root, self._prefix()[1:]), place.above)
        self._url_shown = display_url(place.scope, keys.whole("/"))
        self._prefix_shown = prefix if callable(prefix) else None
        self._is_checked = unsafe_overwrites
        self._client = ObjectClient(place, keys, self._retries, is_conditional=not unsafe_overwrites)
        self._index = index
        if index is not None:
            check_index(index, is_shared=self._choice is not None)
            self._finds = True
        self._bucket_at = lru_cache(MOST_PLACES)(self._open_bucket)
        self.capabilities: Capabilities = Capabilities(
            durable=not self._client.in_memory, atomic_between_processes=not unsafe_overwrites
        )

    def _bucket(self) -> Bucket:
        """What is known below the prefix of the caller."""
        return self._bucket_at(self._prefix())

    def _open_bucket(self, prefix: str) -> Bucket:
        keys = Keys(paths.join(self._place.root, prefix[1:]), self._place.above)
        client = self._client.with_keys(keys)
        bucket = Bucket(client, keys, self._max_bytes, partial(self._check_conditions, client))
        if self._index is not None:
            objects = Objects(
                lambda: ObjectFiles(bucket).pages(),
                lambda wanted: ObjectFiles(bucket).stat_for_index(wanted),
                lambda wanted: ObjectFiles(bucket).fetch_for_index(wanted),
                self._max_bytes,
            )
            database = self._index if self._choice is None else namespace_beneath(self._index, prefix)
            bucket.index = SearchIndex(database, objects, identity(self._bucket_id, keys.whole("/")))
        return bucket

    def _storage(self) -> ObjectFiles:
        return ObjectFiles(self._bucket())

    def _scope(self) -> Hashable:
        return self._bucket_id

    async def astorage_place(self, path: str) -> StoragePlace:
        whole = self._bucket().keys.whole(paths.normalize(path))
        return flat_place(self._bucket_id, whole, storage=self._bucket_id, is_sole=self._client.in_memory)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        return path_locks(self._bucket_id).hold(*map(self._bucket().keys.whole, held))

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        check_key(self._bucket().keys, path)

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        for change in changes:
            check_key(self._bucket().keys, change.path)
        return changes

    # --- the search index ---

    async def arefresh_index(self) -> str:
        """Bring the search index up to date with changes by clients that do not keep it.

        All objects are listed, and those that changed are fetched. A search does this first if its request has `fresh`,
        if the index is new, or if a change of this process had an unknown outcome.

        Returns:
            The time when the listing began, as ISO 8601. Searches tell it as `as_of`.

        Raises:
            DeepFSError: NotSupportedError without an index, BackendError if the store or the database failed.
        """
        index = self._bucket().index
        if index is None:
            raise NotSupportedError(backend=type(self).__name__, operation="refresh an index, since it has none")
        return await call_on_asyncio(index.refresh)

    # --- reading ---

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path = paths.normalize(path)
        check_window(offset, limit)
        return await self._look(lambda: self._read(path, offset, limit))

    def _read(self, path: str, offset: int, limit: int) -> Plan[ReadResult]:
        request: Any = ReadWindow(path, offset, limit)
        result: ReadResult | None = None if path == "/" else (yield request)
        if result is None:
            raise (yield from plans.missing_error(path))
        return result

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        path, chunk_size = paths.normalize(path), chunk_bytes(chunk_size)
        client, found = self._bucket().client, None
        if path != "/" and client.keys.fits(path):
            found = await call_on_asyncio(lambda: client.fetch_range(path, 0, BLOCK_BYTES))
        if found is None:
            await self._look(lambda: self._raise_missing(path))
            raise NotFoundError(path)
        async for chunk in rechunk(_blocks(client, path, found), chunk_size):
            yield chunk

    def _raise_missing(self, path: str) -> Plan[None]:
        raise (yield from plans.missing_error(path))

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
        client = self._bucket().client
        check_key(client.keys, path)
        if client.in_memory:
            raise NotSupportedError(backend=type(self).__name__, operation="presigned URLs")
        return await call_on_asyncio(lambda: client.presign(path, method, expires_in))

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

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        try:
            start, rest = await read_beginning(chunks)
            if rest is None:
                [response] = await self.aupload_files([(path, start)])
                return response
            target, bucket = paths.normalize(path), self._bucket()
            check_key(bucket.keys, target)
            await call_on_asyncio(bucket.check_conditions)
            before = await self._look(lambda: self._replaceable(target))
            async with _announce_to_index(bucket.index, target):
                await _upload(bucket.client, target, before, start, rest)
        except DeepFSError as error:
            return failed_item(FileUploadResponse, path, error)
        return FileUploadResponse(path)

    def _replaceable(self, path: str) -> Plan[FileStat | None]:
        """The stat of the file that an upload replaces. Raises if there can be no file at `path`."""
        found = yield from plans.look_before_write(self, path, contents=False)
        self._before_apply([change_of(path, found, FileDataV2("", "utf-8"))])
        return found.get(path)  # type: ignore[return-value]

    async def _check_conditions(self, client: ObjectClient) -> None:
        """Refuse changes if the store does not keep the conditions of puts. It is found out once."""
        if self._is_checked:
            return
        if self._bucket_id in _bare_tags:
            client.has_bare_tags = _bare_tags[self._bucket_id]
        else:
            # The name is too long for a path of the contract, so that nobody meets the object.
            prefix = client.keys.prefix
            key = f"{prefix}deepfs-probe-{secrets.token_hex(8)}".ljust(len(prefix) + 300, "-")
            if problem := await client.probe_conditions(key):
                raise NotSupportedError(
                    None,
                    f"The object store {problem}. ObjectStoreBackend(…, unsafe_overwrites=True) uses it all the same.",
                )
            if client.in_memory:
                self._is_checked = True
            else:
                _bare_tags[self._bucket_id] = client.has_bare_tags


async def _blocks(client: ObjectClient, path: str, first: FoundObject) -> AsyncGenerator[bytes, None]:
    block: FoundObject | None = first
    start, size = 0, first.stat.size or 0
    while block is not None and block.content:
        yield block.content
        start += len(block.content)
        if start >= size:
            return
        block = await call_on_asyncio(partial(client.fetch_range, path, start, start + BLOCK_BYTES, first.tag))
    if start < size:
        raise ConflictError(path, "it changed while it was downloaded")


@asynccontextmanager
async def _announce_to_index(index: SearchIndex | None, path: str) -> AsyncIterator[None]:
    """Have the search index look at an object whose content it is not given, once it is stored or not."""
    if index is None:
        yield
        return
    pending = await call_on_asyncio(partial(index.announce, [path]))
    try:
        yield
    finally:
        await run_shielded(partial(call_on_asyncio, partial(index.settle, pending)))


async def _upload(
    client: ObjectClient, path: str, before: FileStat | None, start: bytes, rest: AsyncIterator[bytes]
) -> None:
    """Store a stream in parts: none of it is there before all of it is.

    The driver runs on asyncio, and takes the chunks one at a time from a task on any loop.
    """
    send, receive = anyio.create_memory_object_stream[bytes | None](0)
    errors: list[BaseException] = []

    async def put() -> None:
        put_parts = partial(client.put_parts, path, before, read_chunks(receive))
        # Shielded on this side: the driver must be there to be told to give up.
        try:
            await run_shielded(partial(call_on_asyncio, put_parts))
        except DeepFSError as error:
            errors.append(error)

    async def hand(chunk: bytes | None) -> bool:
        return await call_on_asyncio(partial(hand_over, send, chunk))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        try:
            await hand(start)
            async for chunk in rest:
                if not await hand(check_bytes("each chunk", chunk)):
                    break
            await hand(None)
        except BaseException as error:
            errors.append(error)
            if not isinstance(error, Exception):
                raise
        finally:  # Whoever closes it before all is there has the driver give up.
            await run_shielded(partial(call_on_asyncio, send.aclose))
    if errors:
        raise errors[0]


_bare_tags: dict[Hashable, bool] = {}
"""The buckets that keep the conditions of puts, and whether they compare tags without quotes."""


class S3Backend(ObjectStoreBackend):
    """`ObjectStoreBackend` for a bucket of Amazon S3, or of a compatible server at `endpoint_url`.

    Args:
        bucket: The name of the bucket.
        prefix: The directory in the bucket that is the root of the backend: a path; a tuple of names, of which each
            is one segment whatever it holds; or a factory of these that gets the `Runtime` of the running node (None
            outside a graph).
        region: The region; None is that of the environment.
        endpoint_url: The address of the server; None is that of Amazon. An `http://` address is not encrypted.
        retries: How often requests are sent, and how long changes are planned anew; None is `RetryPolicy()`.
        unsafe_overwrites: Use a store that ignores the conditions of puts.
        index: A `PostgresBackend` or `SqliteBackend` that keeps a copy of what can be searched, so that searches fetch
            only what may match. Give it a namespace of its own, which all clients of the bucket may share; prefixes of
            a factory have theirs beneath it. It is not closed. Changes by clients without the index are found after
            `arefresh_index`.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is searched, or shown if it is binary.
        **options: Further options of obstore's `S3Store`, such as `access_key_id` and `secret_access_key`.

    Raises:
        ModuleNotFoundError: Without the extra `objectstore`.
        TypeError: An argument is of another type. A function is not taken for a text.
        ValueError: For a bucket, a prefix or options that cannot be used.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str | Sequence[str] | NamespaceFactory = "",
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        retries: RetryPolicy | None = None,
        unsafe_overwrites: bool = False,
        index: StorageBackend | None = None,
        max_file_size_mb: int = 10,
        **options: Any,
    ) -> None:
        check_string("bucket", bucket)
        if endpoint_url is not None:
            check_string("endpoint_url", endpoint_url)
        named = {"region": region, "endpoint": endpoint_url}
        options = {**{name: value for name, value in named.items() if value is not None}, **options}
        if str(options.get("endpoint")).startswith("http://"):
            options = {"allow_http": True, **options}
        super().__init__(
            f"s3://{bucket}",
            prefix,
            retries=retries,
            unsafe_overwrites=unsafe_overwrites,
            index=index,
            max_file_size_mb=max_file_size_mb,
            **options,
        )
