"""Files in PostgreSQL: durable, shared by processes without a lost change, and searched by index."""

from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from deepfs import operations as ops
from deepfs._brief import address
from deepfs.backends.flat import StorageBackend
from deepfs.backends.namespace import NamespaceFactory, choice_in, fixed_or_chosen, join_names
from deepfs.backends.postgres.client import Client, check_dsn
from deepfs.backends.postgres.files import Changes, NumberedChange, ReplacedText, WrittenText
from deepfs.backends.postgres.schema import Names, check_key, has_key
from deepfs.backends.postgres.search import SearchedFiles
from deepfs.backends.postgres.watch import watch_namespace
from deepfs.backends.protocol import Capabilities
from deepfs.storage.retries import RetryPolicy, check_policy
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_integer
from deepfs.text.flat_tree import ChangedError
from deepfs.text.lines import check_text, is_text
from deepfs.text.media import is_binary_name
from deepfs.threads.loop_bridge import running_asyncio_loop
from deepfs.types import ChangeEvent, EditResult, FileDataV2, WriteResult

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
