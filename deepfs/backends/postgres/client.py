"""Connections to a PostgreSQL database: pools that clients share, requests sent again, and the errors of asyncpg."""

import inspect
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
import anyio.to_thread

from deepfs._drivers import REFUSED, condition_of, failure_by
from deepfs.backends._asyncio_client import AsyncioClient, run_named
from deepfs.backends.postgres.schema import Abilities, Names, prepare
from deepfs.errors import BackendError, DeepFSError
from deepfs.storage.runners import Requests, RetryPolicy, until_accepted
from deepfs.text.arguments import check_installed
from deepfs.text.flat_tree import ChangedError
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop

if TYPE_CHECKING:
    from deepfs.threads.loop_bridge import AsyncioLoop


T = TypeVar("T")

_log = logging.getLogger("deepfs.postgres")

# --- errors ----------------------------------------------------------------------------------------------------------

_CHANGED: Final = ("23505", "40001", "40P01")
"""SQLSTATEs of changes that collided with others: unique violation, serialization failure, deadlock."""
_PASSING: Final = ("08", "25006", "53300", "57P01", "57P02", "57P03")
"""Beginnings of the SQLSTATEs that may pass: lost connections, a standby, too many connections, a restart."""


def is_transient(error: Exception) -> bool:
    """Whether an error of asyncpg is one that may pass."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING)
    if isinstance(error, OSError):
        return True
    import asyncpg

    is_lasting = isinstance(error, asyncpg.DataError | asyncpg.ClientConfigurationError)
    return not is_lasting and isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError)


def failure_of(error: Exception) -> Exception:
    """The error of deepfs for an error of asyncpg; other errors are returned as they are."""
    if isinstance(error, DeepFSError):
        return error
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and state in _CHANGED:
        return ChangedError("/")
    if isinstance(state, str) or isinstance(error, TimeoutError) or is_transient(error):
        # Where the server is on this machine, the driver looks for its socket.
        condition = REFUSED if isinstance(error, FileNotFoundError) else condition_of(error)
        return failure_by(error, condition, "postgres", "The database")
    return error


def check_dsn(database: object) -> None:
    """Raise ModuleNotFoundError, TypeError or ValueError unless asyncpg is there, and `database` a DSN or a pool."""
    check_installed("asyncpg", "postgres", "PostgresBackend")
    if isinstance(database, str):
        if not database.startswith(("postgresql://", "postgres://")):
            raise ValueError("a DSN of PostgreSQL starts with postgresql://")  # It may hold a password.
    elif not hasattr(database, "acquire") or not hasattr(database, "_loop"):
        raise TypeError(f"database must be a DSN or a pool of asyncpg, not a {type(database).__name__}")


# --- pools -----------------------------------------------------------------------------------------------------------


def _login(dsn: str) -> dict[str, Any]:
    """What asyncpg would look up in files for each connection, while the event loop waits: the password and the TLS.

    Raises BackendError for a DSN that cannot be parsed.
    """
    import asyncpg
    from asyncpg import connect_utils

    try:
        parse = connect_utils._parse_connect_dsn_and_args
        unknown: dict[str, Any] = dict.fromkeys(inspect.signature(parse).parameters)
        _, found = parse(**{**unknown, "dsn": dsn})
    except (asyncpg.ClientConfigurationError, ValueError, OSError) as error:
        # What asyncpg says of a DSN may quote its password.
        raise BackendError(None, f"The DSN is not valid ({type(error).__name__})") from None
    except (AttributeError, TypeError):
        return {}  # Another version of asyncpg: it then looks for itself.
    known: dict[str, Any] = {"password": found.password or ""}
    if found.sslmode.name not in ("allow", "prefer"):  # For these, asyncpg must know that it may do without.
        known["ssl"] = found.ssl or False
    return known


class Sent:
    """Whether anything of a request may have reached the server."""

    began: bool = False


class _Pool:
    """The pool of one event loop, opened when it is first needed, and closed when nobody uses it any more."""

    def __init__(self, dsn: str, options: Mapping[str, Any]) -> None:
        self.dsn = dsn
        self.options = options
        self.pool: Any = None
        self.lock = anyio.Lock()
        self.keeper: AsyncGenerator[None, None] | None = None
        self.users: WeakKeyDictionary[Client, anyio.Semaphore] = WeakKeyDictionary()
        """Each client, with what it may still take while there are others: it leaves them one connection."""

    async def open(self) -> Any:
        if self.keeper is None:
            async with self.lock:
                if self.keeper is None:
                    import asyncpg

                    login = await anyio.to_thread.run_sync(_login, self.dsn)
                    self.pool = await asyncpg.create_pool(
                        self.dsn, min_size=0, init=_without_jit, reset=_reset_nothing, **self.options, **login
                    )
                    keeper = _open_until_closed(self.pool)
                    await anext(keeper)
                    self.keeper = keeper
        return self.pool

    async def close_unused(self) -> None:
        if self.users or self.keeper is None:
            return
        keeper, self.keeper = self.keeper, None  # Whoever comes now opens another one.
        with anyio.move_on_after(_SECONDS_TO_CLOSE, shield=True):
            await self.pool.close()
        await keeper.aclose()


async def _open_until_closed(pool: Any) -> AsyncGenerator[None, None]:
    """Ends the connections of a pool when its event loop ends, as loops then close their generators."""
    try:
        yield
    finally:
        pool.terminate()


_shared: WeakValueDictionary[Hashable, _Pool] = WeakValueDictionary()


def _pool_on(loop: "AsyncioLoop", dsn: str, options: Mapping[str, Any]) -> _Pool:
    """The pool of all clients on an event loop with the same DSN and options."""
    # What a DSN leaves out comes from the environment.
    defaults = frozenset(item for item in os.environ.items() if item[0].startswith("PG"))
    key = os.getpid(), loop, dsn, *options.items(), defaults
    found = _shared.get(key)
    return _shared.setdefault(key, _Pool(dsn, options)) if found is None else found


_SECONDS_TO_CLOSE: Final = 5.0
_SECONDS_TO_RELEASE: Final = 1.0
"""For a server that does not answer: they are added to the timeout of a request."""
_WARNED: Final[set[str]] = set()
"""The tables whose missing index was logged."""


async def _reset_nothing(connection: Any) -> None:
    """Replaces asyncpg's reset of a returned connection, which takes a round trip: nothing here needs it."""


class Client(AsyncioClient):
    """Sends statements to one database, from tasks of any event loop."""

    def __init__(
        self,
        dsn: Any,
        names: Names,
        policy: RetryPolicy,
        *,
        row_level_security: bool,
        max_connections: int,
        statement_cache_size: int,
    ) -> None:
        super().__init__("PostgresBackend", None if isinstance(dsn, str) else dsn, "pool")
        self._dsn: str | None = dsn if isinstance(dsn, str) else None
        self.names: Names = names
        self.requests: Requests = Requests(policy, is_transient)
        self.abilities: Abilities | None = None
        self._wants_security = row_level_security
        self._options = {"max_size": max_connections, "statement_cache_size": statement_cache_size}
        self._pools: dict[AsyncioLoop, _Pool] = {}
        self._preparing: dict[AsyncioLoop, anyio.Lock] = {}

    @property
    def given_loop(self) -> "AsyncioLoop | None":
        return None if self._given is None else self._given._loop

    @property
    def is_secured(self) -> bool:
        """Whether the database shows a connection only the rows of one tenant."""
        return self.abilities is not None and self.abilities.row_level_security

    def _after_fork(self) -> None:
        super()._after_fork()
        self._of_parent.append(self._pools)
        self._pools, self._preparing = {}, {}

    # --- connections ---

    def _pool(self, dsn: str) -> _Pool:
        """The pool of the running loop."""
        loop = running_asyncio_loop()
        assert loop is not None
        if (found := self._pools.get(loop)) is None:
            for other in [other for other in list(self._pools) if other.is_closed()]:
                self._pools.pop(other, None)
            found = self._pools[loop] = _pool_on(loop, dsn, self._options)
            found.users[self] = anyio.Semaphore(max(1, self._options["max_size"] - 1), fast_acquire=True)
        return found

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection from the pool of the running loop; the tables are ready."""
        held = None if self._dsn is None else self._pool(self._dsn)  # Kept, since it is closed with its last reference.
        async with nullcontext() if held is None or len(held.users) == 1 else held.users[self]:
            pool = self._given if held is None else await held.open()
            connection = await pool.acquire()
            try:
                if self.abilities is None:
                    await self._prepare(connection)
                yield connection
            finally:
                with anyio.CancelScope(shield=True):
                    await _release(pool, connection)

    async def _prepare(self, connection: Any) -> None:
        loop = running_asyncio_loop()
        assert loop is not None
        async with self._preparing.setdefault(loop, anyio.Lock()):
            if self.abilities is not None:
                return
            abilities = await prepare(connection, self.names, row_level_security=self._wants_security)
        if not abilities.has_trigrams and self.names.files not in _WARNED:
            _WARNED.add(self.names.files)
            _log.warning("The database has no extension pg_trgm: searches read every file, which takes longer")
        self.abilities = abilities

    @asynccontextmanager
    async def tenant(self, namespace: str, *, changes: bool = False) -> AsyncIterator[Any]:
        """A connection that may see the rows of `namespace`; with `changes`, in a transaction."""
        async with self.connection() as connection, self.act_for(namespace, connection, changes=changes):
            yield connection

    @asynccontextmanager
    async def act_for(self, namespace: str, connection: Any, *, changes: bool) -> AsyncIterator[None]:
        """Let a connection see the rows of `namespace`; with `changes`, in a transaction."""
        if not self.is_secured and not changes:
            yield
            return
        async with _transaction(connection):
            if self.is_secured:
                await connection.execute("SELECT set_config('deepfs.namespace', $1, true)", namespace)
            yield

    @asynccontextmanager
    async def listener(self) -> AsyncIterator[Any]:
        """A connection for notifications: one of its own, or one of the pool that was given."""
        import asyncpg

        if self._given is not None:
            if self._given.get_max_size() < 2:
                raise BackendError(
                    None, "A watch keeps a connection of the pool, which has one only: open a larger pool"
                )
            connection = await self._given.acquire()
        else:
            connection = await asyncpg.connect(self._dsn, **await anyio.to_thread.run_sync(_login, self._dsn or ""))
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                if self._given is not None:
                    await _release(self._given, connection)
                else:
                    connection.terminate()

    async def learn_abilities(self, namespace: str) -> Abilities:
        """What the database can do."""
        if self.abilities is None:
            await self.ask(namespace, _nothing)
        assert self.abilities is not None
        return self.abilities

    # --- requests ---

    async def ask(self, namespace: str, work: Callable[[Any], Awaitable[T]]) -> T:
        """Ask the database, again if the connection breaks: `work` changes no file, and may be done again."""

        async def attempt() -> T:
            async with self.tenant(namespace) as connection:
                return await work(connection)

        async def ask() -> T:
            try:
                return await self.on_loop(lambda: self.requests.send(attempt))
            except Exception as error:
                if (failure := failure_of(error)) is error:
                    raise
                raise failure from failure.__cause__

        # What changes nothing cannot collide with what was read before, so a deadlock or a failed serialization passes.
        return await until_accepted(ask, self.requests.policy.contention)

    async def change(
        self,
        namespace: str,
        work: Callable[[Any], Awaitable[T]],
        sent: Sent,
        *,
        in_transaction: bool = False,
    ) -> T:
        """Send a change once. The error is that of asyncpg, which may leave open whether it was made.

        `sent` notes whether the server may know of it; with `in_transaction` it consists of several statements.
        """

        async def attempt() -> T:
            sent.began = False
            async with self.tenant(namespace, changes=in_transaction) as connection:
                sent.began = True
                return await work(connection)

        return await self.on_loop(lambda: self.requests.send(attempt, attempts=1))

    async def aclose(self) -> None:
        """Close the pools that were opened here and that no other client uses."""
        for loop, pool in list(self._pools.items()):
            self._pools.pop(loop, None)
            pool.users.pop(self, None)
            if loop is running_asyncio_loop():
                await pool.close_unused()
            elif loop.is_running():
                await call_on(loop, partial(run_named, pool.close_unused))


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction that is also rolled back if its task is cancelled, which asyncpg leaves to the pool, and logs."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    except BaseException:
        with suppress(Exception), anyio.move_on_after(_SECONDS_TO_RELEASE, shield=True):
            await transaction.rollback()
        raise
    await transaction.commit()


async def _nothing(connection: Any) -> None:
    """Asks for nothing: the tables are ready when there is a connection."""


async def _without_jit(connection: Any) -> None:
    """Compiling a search takes longer than the search."""
    await connection.execute("SET jit = off")


async def _release(pool: Any, connection: Any) -> None:
    # asyncpg ends a connection that it cannot return, and the outcome of the request is known by now.
    with suppress(Exception), anyio.move_on_after(_SECONDS_TO_RELEASE):
        await pool.release(connection)
