"""Files in PostgreSQL: durable, shared by processes without a lost change, and searched by index."""

from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import anyio

from deepfs import operations as ops
from deepfs._brief import address
from deepfs._drivers import log_failure
from deepfs.backends.flat import StorageBackend
from deepfs.backends.namespace import NamespaceFactory, choice_in, fixed_or_chosen, join_names
from deepfs.backends.postgres.client import Client, check_dsn, failure_of, is_transient
from deepfs.backends.postgres.files import Changes, NumberedChange, ReplacedText, WrittenText, small_contents
from deepfs.backends.postgres.schema import Names, check_key, has_key
from deepfs.backends.postgres.search import SearchedFiles
from deepfs.backends.protocol import Capabilities
from deepfs.backends.watching import ChangeBuffer
from deepfs.errors import DeepFSError
from deepfs.storage.runners import RetryPolicy, check_policy
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_integer
from deepfs.text.flat_tree import ChangedError
from deepfs.text.lines import check_text, is_text, version
from deepfs.text.media import is_binary_name
from deepfs.threads.loop_bridge import running_asyncio_loop
from deepfs.types import ChangeEvent, ChangeKind, EditResult, FileDataV2, WriteResult

if TYPE_CHECKING:
    from asyncpg import Pool

__all__ = ["PostgresBackend"]


class PostgresBackend(StorageBackend):
    """Files in a table of a PostgreSQL database, which it makes itself.

    No change is lost, whichever process made it, and none is made twice if a connection breaks. Searches use trigram
    indexes if the extension `pg_trgm` can be made; without it they give the same answers, and read every file. Needs
    the extra `postgres`. asyncpg runs on asyncio; calls from trio and synchronous ones run on deepfs's background loop.

    Args:
        database: A DSN (`postgresql://user:password@host/database`), or a pool of asyncpg. On each event loop, backends
            with one DSN share a pool, unless `max_connections` or `statement_cache_size` differ; `aclose` of the last
            one closes it. A pool that is given is never closed. Behind a pgbouncer that shares connections between
            transactions, prepared statements must be off: `statement_cache_size=0`.
        namespace: A name, a tuple of names, or a factory of these that gets the `Runtime` of the running node (None
            outside a graph). Any identity of a user is a name. Only files of exactly this namespace are seen.
        schema: The schema of the tables; it is made if it does not exist.
        table: The name of the table of files. Those of other tables and of indexes begin with it.
        row_level_security: Whether the database itself keeps namespaces apart: policies show a role the rows of the
            namespace in the setting `deepfs.namespace` only. It does not hold for superusers. Each statement becomes a
            transaction, and searches use no trigram index.
        retries: When requests are sent again; None is the policy of all backends.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
        max_scanned: How many files a search for text without trigrams (shorter than three letters or digits) compares
            in vain before its result is `truncated`.
        max_connections: The most connections of a pool that is opened here.
        statement_cache_size: The number of prepared statements that a connection keeps.

    Raises:
        ModuleNotFoundError: Without the extra `postgres`.
        TypeError: For an argument of another type.
        ValueError: For a DSN, a namespace, a name or a number that cannot be used.
    """

    capabilities: Capabilities = Capabilities(durable=True, watches=True, atomic_between_processes=True)
    _asks_together = True
    _finds = True
    _is_transactional = True
    _shown = ("_shown_database", "_given_namespace")

    def __init__(
        self,
        database: "str | Pool",
        namespace: str | Sequence[str] | NamespaceFactory,
        *,
        schema: str = "deepfs",
        table: str = "files",
        row_level_security: bool = False,
        retries: RetryPolicy | None = None,
        max_file_size_mb: int = 10,
        max_scanned: int = 100_000,
        max_connections: int = 10,
        statement_cache_size: int = 100,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        check_dsn(database)
        for name, number in (("max_scanned", max_scanned), ("max_connections", max_connections)):
            check_integer(name, number)
            if number < 1:
                raise ValueError(f"{name} must be positive, not {number}")
        self._retries = check_policy(retries)
        self._max_scanned = max_scanned
        self._names = Names(schema, table)
        self._namespace = fixed_or_chosen("namespace", namespace, join_names)
        self._choice = choice_in(self._namespace)
        self._given_namespace = namespace if callable(namespace) else self._namespace()
        self._shown_database = address(database) if isinstance(database, str) else f"a {type(database).__name__}"
        self._client = Client(
            database,
            self._names,
            self._retries,
            row_level_security=row_level_security,
            max_connections=max_connections,
            statement_cache_size=statement_cache_size,
        )
        self._changes = Changes(self._client)
        self._database: Hashable = sha256(database.encode()).digest() if isinstance(database, str) else id(database)

    def _storage(self) -> SearchedFiles:
        namespace = self._namespace()
        return SearchedFiles(self._changes, namespace, max_bytes=self._max_bytes, max_scanned=self._max_scanned)

    def _scope(self) -> Hashable:
        return "postgres", self._database, self._names.files, self._namespace()

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        check_key(self._namespace(), path)

    def bound_to_this_thread(self) -> bool:
        loop = self._client.given_loop
        return loop is not None and running_asyncio_loop() is loop

    async def run(self, operation: ops.Operation) -> Any:
        match operation:
            case ops.Write(path, content, overwrite, if_match=None):
                path = paths.normalize(path)
                check_text(content)
                kind = partial(WrittenText, overwrite=overwrite)
                if self._is_simple(path) and await self._change_at_once(path, kind, content):
                    return WriteResult(path=path)
            case ops.Edit(path, old, new, replace_all=False, if_match=None):
                path = paths.normalize(path)
                if self._is_simple_edit(path, old, new) and await self._change_at_once(path, ReplacedText, old, new):
                    return EditResult(path=path, occurrences=1)
        return await super().run(operation)

    async def _change_at_once(self, path: str, kind: Callable[..., NumberedChange], *given: str) -> bool:
        """Make a change in one round trip; return False, with nothing changed, where the database cannot do so."""
        storage = self._storage()
        make = partial(self._changes.make, kind(self._names, storage.namespace, path, *given))
        async with self._hold(path):
            try:
                return await run_shielded(make)
            except ChangedError:
                return False
            except Exception as error:
                failure = storage._report(error)
                raise failure from failure.__cause__

    def _is_simple(self, path: str) -> bool:
        """Whether the database may be able to make a change of a path by itself."""
        judges = "_before_apply" in self.__dict__ or type(self)._before_apply is not StorageBackend._before_apply
        return path != "/" and not judges and has_key(self._namespace(), path)

    def _is_simple_edit(self, path: str, old: object, new: object) -> bool:
        """Whether the database may be able to make an edit by itself."""
        if not isinstance(old, str) or not isinstance(new, str) or not old or old == new:
            return False
        return self._is_simple(path) and is_text(old) and is_text(new) and not is_binary_name(path)

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(watch_namespace(self._client, self._namespace(), paths.normalize(path))) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        await self._client.aclose()


# --- watches: a trigger notifies the channel of a namespace that is watched -------------------------------------------

_MOST_AT_ONCE: Final = 64
"""The most events that are taken at once; the contents of their files are fetched together."""
_SECONDS_OF_SILENCE: Final = 30.0
"""After so long without a notification the connection is tested."""
_PROCESSES: Final = "SELECT pid FROM pg_stat_activity WHERE pid IS NOT NULL"
"""The connections to the server. One that has ended left its entry behind."""


async def watch_namespace(client: Client, namespace: str, path: str) -> AsyncGenerator[ChangeEvent, None]:
    """The changes at and beneath a path, after an event `resync` that says that the watch is active.

    Raises BackendError if the storage failed, other than by a connection that was lost.
    """
    listener = _Listener(client, namespace, path)
    try:
        while True:
            for event in await client.on_loop(listener.next_events):
                yield event
    finally:
        await run_shielded(lambda: client.on_loop(listener.close))


class _Listener:
    """A connection that listens, and the changes that were announced on it. Used on the loop of the connection."""

    def __init__(self, client: Client, namespace: str, path: str) -> None:
        self._client = client
        self._namespace = namespace
        self._path = path
        self._channel = client.names.channel(namespace)
        self._connection: Any = None
        self._stack = AsyncExitStack()
        self._buffer = ChangeBuffer(path)
        self._has_begun = False

    async def next_events(self) -> list[ChangeEvent]:
        """Wait for changes, and return those that came since the last call."""
        while True:
            if self._connection is None or self._connection.is_closed():
                await self._reconnect()
                return [ChangeEvent(self._path, "resync")]
            with anyio.move_on_after(_SECONDS_OF_SILENCE) as silence:
                events = [await self._buffer.read()]
            if silence.cancelled_caught:
                await self._test()
            elif self._connection is not None:
                while len(events) < _MOST_AT_ONCE and (event := self._buffer.pop()) is not None:
                    events.append(event)
                return await self._with_versions(events)

    async def _with_versions(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        """The events with the versions of the contents. A file may have changed again; that is another event."""
        changed = [event.path for event in events if event.kind in ("created", "modified")]
        found = {}
        if changed:
            with suppress(DeepFSError):
                found = await small_contents(self._client, self._namespace, changed)
        versions = {path: version(content) for path, content in found.items()}
        return [ChangeEvent(event.path, event.kind, versions.get(event.path)) for event in events]

    async def _reconnect(self) -> None:
        """Connect; try again for ever if it was connected before."""
        failed = 0
        while True:
            await self.close()
            try:
                with anyio.fail_after(self._client.requests.policy.timeout):
                    await self._connect()
            except Exception as error:
                failed += 1
                is_last = not self._has_begun and failed >= self._client.requests.policy.attempts
                if is_last or not (is_transient(error) or isinstance(error, TimeoutError)):
                    if isinstance(failure := failure_of(error), DeepFSError):
                        log_failure(failure)
                    raise failure from failure.__cause__
                await anyio.sleep(self._client.requests.policy.delay(failed))
            else:
                self._has_begun = True
                return

    async def _connect(self) -> None:
        await self._client.learn_abilities(self._namespace)
        connection = await self._stack.enter_async_context(self._client.listener())
        connection.add_termination_listener(self._resync)
        self._buffer = ChangeBuffer(self._path)
        await connection.add_listener(self._channel, self._add_event)
        async with self._client.act_for(self._namespace, connection, changes=True):
            await self._register(connection)
        self._connection = connection

    async def _register(self, connection: Any) -> None:
        """Have changes announced from now on: wait for those that did not see this watcher."""
        names, namespace = self._client.names, self._namespace
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._channel)
        left_behind = f"DELETE FROM {names.watchers} WHERE namespace = $1 AND pid NOT IN ({_PROCESSES})"
        await connection.execute(left_behind, namespace)
        add = f"INSERT INTO {names.watchers} VALUES ($1, pg_backend_pid()) ON CONFLICT DO NOTHING"
        await connection.execute(add, namespace)

    async def _unregister(self, connection: Any) -> None:
        remove = f"DELETE FROM {self._client.names.watchers} WHERE namespace = $1 AND pid = pg_backend_pid()"
        async with self._client.act_for(self._namespace, connection, changes=False):
            await connection.execute(remove, self._namespace)
        await connection.remove_listener(self._channel, self._add_event)

    async def _test(self) -> None:
        try:
            with anyio.fail_after(_SECONDS_OF_SILENCE):
                await self._connection.execute("SELECT 1")
        except Exception:
            self._connection = None

    def _resync(self, _: Any) -> None:
        self._connection = None
        self._buffer.resync()  # It wakes the reader, who connects anew.

    def _add_event(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        event = _event(payload)
        if event is not None and self._buffer.covers(event.path):
            self._buffer.add(event)

    async def close(self) -> None:
        """Give back the connection."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.remove_termination_listener(self._resync)
            with anyio.move_on_after(1), suppress(Exception):
                await self._unregister(connection)
        await self._stack.aclose()


_KINDS: Final[dict[str, ChangeKind]] = {"created": "created", "modified": "modified", "deleted": "deleted"}


def _event(payload: str) -> ChangeEvent | None:
    """The change that a notification tells of; None for one of another program."""
    kind, _, rest = payload.partition(" ")
    _, _, path = rest.partition(" ")
    return ChangeEvent(path, _KINDS[kind]) if kind in _KINDS and path.startswith("/") else None
