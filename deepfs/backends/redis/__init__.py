"""Files in Redis: shared by processes without a lost change, watched by a stream, and kept for a time if so wanted."""

from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import anyio

from deepfs import operations as ops
from deepfs._brief import address
from deepfs._drivers import log_failure
from deepfs.backends.flat import StorageBackend
from deepfs.backends.namespace import MOST_PLACES, NamespaceFactory, choice_in, fixed_or_chosen, join_names
from deepfs.backends.protocol import Capabilities
from deepfs.backends.redis.client import Client, check_server, close, failure_of, may_pass
from deepfs.backends.redis.files import RedisFiles, Tree, make_changes
from deepfs.backends.redis.scripts import READ_STREAM, WATCH, Keys
from deepfs.backends.watching import ChangeBuffer
from deepfs.errors import DeepFSError, IsDirectoryError
from deepfs.storage.runners import RetryPolicy, check_policy
from deepfs.sync import run_shielded
from deepfs.text import paths, records
from deepfs.text.arguments import check_integer, check_number, check_string
from deepfs.text.flat_tree import Change, ChangedError, FileStat
from deepfs.text.lines import check_text, version
from deepfs.threads.loop_bridge import running_asyncio_loop
from deepfs.types import ChangeEvent, ChangeKind, WriteResult

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["RedisBackend"]


class RedisBackend(StorageBackend):
    """Files in a Redis or Valkey server (6.2 or later), a hash each.

    No change is lost, whichever process made it, and none is made twice if a connection breaks: a script on the server
    makes each as a whole. What was acknowledged survives a crash of the server only as far as its own settings say.
    Needs the extra `redis`. redis-py runs on asyncio; calls from trio and synchronous ones run on deepfs's background
    loop.

    Args:
        server: A URL (`redis://user:password@host:6379/0`, `rediss://…`, `unix:///path?db=0`), or a client of
            `redis.asyncio`, which is never closed and belongs to the event loop on which it is first used.
        namespace: A name, a tuple of names, or a factory of these that gets the `Runtime` of the running node (None
            outside a graph). Any identity of a user is a name. Only files of exactly this namespace are seen.
        prefix: The beginning of the names of all keys.
        expires_after: Seconds, by the clock of the server, after which a file that is written here is gone, unless it
            is written again before; None keeps it. Files that others wrote keep their own time.
        retries: When requests are sent again; None is the policy of all backends.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
        max_connections: The most connections that are opened on an event loop; each watch has one more.

    Raises:
        ModuleNotFoundError: Without the extra `redis`.
        TypeError: For an argument of another type.
        ValueError: For a URL, a client, a namespace, a prefix or a number that cannot be used.
    """

    capabilities: Capabilities = Capabilities(durable=True, watches=True, atomic_between_processes=True)
    _asks_together = True
    _is_transactional = True
    _finds = True
    _shown = ("_shown_server", "_given_namespace")

    def __init__(
        self,
        server: "str | Redis",
        namespace: str | Sequence[str] | NamespaceFactory,
        *,
        prefix: str = "deepfs",
        expires_after: float | None = None,
        retries: RetryPolicy | None = None,
        max_file_size_mb: int = 10,
        max_connections: int = 10,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        check_server(server)
        if not check_string("prefix", prefix).isprintable() or not prefix or not {"{", "}"}.isdisjoint(prefix):
            raise ValueError(f"prefix must be a printable text without braces, not {prefix!r:.100}")
        if expires_after is not None:
            check_number("expires_after", expires_after)
        check_integer("max_connections", max_connections)
        if max_connections < 1:
            raise ValueError(f"max_connections must be positive, not {max_connections}")
        self._retries = check_policy(retries)
        self._namespace = fixed_or_chosen("namespace", namespace, join_names)
        self._choice = choice_in(self._namespace)
        self._given_namespace = namespace if callable(namespace) else self._namespace()
        self._shown_server = address(server) if isinstance(server, str) else f"a {type(server).__name__}"
        self._prefix = prefix
        self._expires_after = expires_after
        self._client = Client(server, self._retries, max_connections)
        self._settled: dict[str, list[bytes]] = {}
        self._server: Hashable = sha256(server.encode()).digest() if isinstance(server, str) else id(server)

    def _tree(self) -> Tree:
        namespace = self._namespace()
        if len(self._settled) > MOST_PLACES:
            self._settled.clear()
        settled = self._settled.setdefault(namespace, [])
        return Tree(self._client, Keys(self._prefix, namespace), self._expires_after, settled)

    def _storage(self) -> RedisFiles:
        return RedisFiles(self._tree())

    def _scope(self) -> Hashable:
        return "redis", self._server, self._prefix, self._namespace()

    def bound_to_this_thread(self) -> bool:
        loop = self._client.given_loop
        return loop is not None and running_asyncio_loop() is loop

    async def run(self, operation: ops.Operation) -> Any:
        match operation:
            case ops.Write(path, content, overwrite, if_match=None):
                path = paths.normalize(path)
                check_text(content)
                if path != "/" and not self._judges() and await self._write_at_once(path, content, overwrite):
                    return WriteResult(path=path)
        return await super().run(operation)

    async def _write_at_once(self, path: str, content: str, overwrite: bool) -> bool:
        """Write in one round trip, without a look before; return False, with nothing changed, if that is refused."""
        tree, seen = self._tree(), FileStat() if overwrite else None
        change = Change(path, None, records.text_file(content, None), seen=seen)
        async with self._hold(path):
            try:
                await run_shielded(lambda: make_changes(tree, [change], keeps_creation=True))
            except (ChangedError, IsDirectoryError):
                return False
            except DeepFSError as error:
                log_failure(error)
                raise
        return True

    def _judges(self) -> bool:
        """Whether a subclass or a layer has to see each change with what was there before."""
        return "_before_apply" in self.__dict__ or type(self)._before_apply is not StorageBackend._before_apply

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(_watch(self._storage(), paths.normalize(path))) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        await self._client.aclose()


# --- watches: changes add to a stream while somebody watches ----------------------------------------------------------

_SECONDS_KEPT: Final = 120
"""How long the stream stays when nobody reads it."""
_ENTRIES_AT_ONCE: Final = 65
"""How many entries are read at once; the first one is known. Each has up to 64 changes."""
_HASHED_BYTES: Final = 65_536
"""The largest file whose version an event tells."""
_KINDS: Final[dict[bytes, ChangeKind]] = {b"created": "created", b"modified": "modified", b"deleted": "deleted"}


async def _watch(files: RedisFiles, path: str) -> AsyncGenerator[ChangeEvent, None]:
    """The changes at and beneath a path, after an event `resync` that says that the watch is active.

    Raises BackendError if the storage failed, other than by a connection that was lost after the beginning.
    """
    client = files.tree.client
    stream = _Stream(files, path)
    try:
        while True:
            for event in await client.on_loop(stream.next_events):
                yield event
    finally:
        await run_shielded(lambda: client.on_loop(stream.close))


class _Stream:
    """The stream of the changes of a tree, and how far a watch has read it. Used on the loop of the connection."""

    def __init__(self, files: RedisFiles, path: str) -> None:
        self._files = files
        self._client = files.tree.client
        self._key = files.tree.keys.stream
        self._path = path
        self._last: bytes | None = None
        self._has_begun = False
        self._waiting: Any = None
        """The client that waits for entries: they would hold up all other requests on its connection."""

    async def next_events(self) -> list[ChangeEvent]:
        """Wait for changes, and return them. A connection that was lost is made anew, for ever if there was one."""
        failed = 0
        while True:
            try:
                if self._last is None:
                    self._last = await self._client.ask(WATCH, [self._key], _SECONDS_KEPT * 1000)
                    self._has_begun = True
                    return [ChangeEvent(self._path, "resync")]
                if events := await self._read():
                    return events
                failed = 0
            except Exception as error:
                if not self._has_begun or not may_pass(getattr(error, "_driver_error", None) or error):
                    if isinstance(failure := failure_of(error), DeepFSError):
                        log_failure(failure)
                    raise failure from failure.__cause__
                failed += 1
                await anyio.sleep(self._client.requests.policy.delay(failed))

    async def _read(self) -> list[ChangeEvent]:
        assert self._last is not None
        if self._waiting is None:
            self._waiting = self._client.given or self._client.open(1)
        await self._client.wait_for_entry(self._waiting, self._key, self._last)
        entries = await self._client.ask(READ_STREAM, [self._key], _SECONDS_KEPT * 1000, self._last, _ENTRIES_AT_ONCE)
        if not entries or entries[0][0] != self._last:  # It was cut, or the server lost its end.
            self._last = None
            return []
        buffer = ChangeBuffer(self._path)
        for number, fields in entries[1:]:
            self._last = number
            for kind, name in zip(fields[::2], fields[1::2], strict=False):
                path = name.decode("utf-8", "replace")
                if kind in _KINDS and paths.is_normal(path) and buffer.covers(path):
                    buffer.add(ChangeEvent(path, _KINDS[kind]))
        return await self._with_versions(list(iter(buffer.pop, None)))

    async def _with_versions(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        """The events with the versions of the contents. A file may have changed again; that is another event."""
        versions = {}
        with suppress(DeepFSError):
            stats = await self._files.stat([event.path for event in events if event.kind != "deleted"])
            found = await self._files.get([path for path, stat in stats.items() if (stat.size or 0) <= _HASHED_BYTES])
            versions = {path: version(records.content_bytes(found[path], path)) for path in found}
        return [ChangeEvent(event.path, event.kind, versions.get(event.path)) for event in events]

    async def close(self) -> None:
        """Close the connection that waits."""
        if self._waiting is not None and self._client.given is None:
            await close(self._waiting)
