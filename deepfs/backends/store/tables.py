"""The table of a LangGraph store, reached by the store's own connection: its identity, reads, and conditional changes.

A `BaseStore` has no compare-and-set, and two store objects over one database know nothing of each other. SQL on the
table provides it: the changes of an operation are made as a whole, if each record is still the one that was read. What
one operation reads takes one call of the connection, where the store itself makes several.
"""

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from langgraph.store.base import BaseStore, PutOp
from msgspec import Struct

from deepfs._langgraph import private as _langgraph
from deepfs._langgraph.private import StoreSession
from deepfs.backends.namespace import Namespace
from deepfs.text.flat_tree import ChangedError
from deepfs.threads import pool
from deepfs.threads.loop_bridge import finish

T = TypeVar("T")

_MOST_PARAMETERS: Final = 900
"""The most parameters of a statement: SQLite may refuse more than 999."""


class Put(Struct, frozen=True):
    """A conditional change: store `after` at `path`, or remove the item if it is None; `before` is what was read."""

    path: str
    before: Any
    after: dict[str, Any] | None


class OvertakenError(ChangedError):
    """Nothing was stored, because another change came at the same time; the records may still be as they were read."""


# --- the identity of a database --------------------------------------------------------------------------------------


class _Database:
    """The identity of a table that several stores may use; an object is equal only to itself."""

    def __init__(self, connection: object = None) -> None:
        self.connection = connection
        """The connection, if only its `id` identifies the database. Kept, so that no other object gets this id."""


_databases: WeakValueDictionary[tuple[object, ...], _Database] = WeakValueDictionary()
_known: WeakKeyDictionary[BaseStore, _Database | None] = WeakKeyDictionary()


def storage_of(store: BaseStore) -> Any:
    """The object that identifies the storage of `store`: its database if that is known, else the store itself."""
    return _known.get(store) or store


def is_identified(store: BaseStore) -> bool:
    """Whether `identify` has nothing left to do for `store`."""
    return _langgraph.database_kind(store) is None or store in _known


async def identify(store: BaseStore) -> None:
    """Find out and remember which database `store` uses. If that fails, `store` counts as a storage of its own."""
    try:
        key, connection = await _key(store)
    except Exception:  # A driver may raise anything. Operations work without this, and report errors.
        _known[store] = None
    else:
        _known[store] = _databases.setdefault(key, _Database(connection))


async def _key(store: BaseStore) -> tuple[tuple[object, ...], object]:
    if _langgraph.database_kind(store) == "postgres":
        row = await _langgraph.with_session(store, _postgres_table)
        return ("postgres", *row), None
    file = await _langgraph.with_session(store, _sqlite_file)
    connection = _langgraph.connection_of(store)
    if not file:
        return ("sqlite", id(connection)), connection
    status = await pool.run(os.stat, file)
    return ("sqlite", status.st_dev, status.st_ino), None


_POSTGRES_TABLE: Final = """
    SELECT pg_postmaster_start_time()::text AS started, current_database()::text AS name, 'store'::regclass::oid AS id
"""


async def _postgres_table(session: StoreSession) -> tuple[object, ...]:
    [row] = await session.rows(_POSTGRES_TABLE, None)
    return tuple(row)


async def _sqlite_file(session: StoreSession) -> str:
    listed = await session.rows("PRAGMA database_list", ())
    return next((file or "" for _, name, file in listed if name == "main"), "")


# --- reads -----------------------------------------------------------------------------------------------------------


async def select_values(store: BaseStore, namespace: Namespace, keys: Sequence[str]) -> dict[str, Any] | None:
    """The values of the items with these keys, by key; see `select_inside`."""
    found: dict[str, Any] = {}
    for start in range(0, len(keys), _MOST_PARAMETERS):
        some = keys[start : start + _MOST_PARAMETERS]
        values = await _values(store, namespace, f"key IN ({', '.join('?' * len(some))})", some)
        if values is None:
            return None
        found |= values
    return {key: found[key] for key in keys if key in found}


async def select_inside(store: BaseStore, namespace: Namespace, inside: str) -> dict[str, Any] | None:
    """The values of the item at the directory `inside`, if it is a file, and of all items whose keys begin with it.

    None if one of them has a lifetime, which a read by the store itself may prolong.
    """
    condition = f"(key = ? OR {_BEGINS.format(len(inside))})"
    return await _values(store, namespace, condition, [inside.removesuffix("/"), inside])


async def select_keys(store: BaseStore, namespace: Namespace, inside: str = "", most: int | None = None) -> list[str]:
    """The keys that begin with `inside`, at most `most`."""
    limit = "" if most is None else f" LIMIT {most:d}"
    return await _select(
        store, "key", namespace, _BEGINS.format(len(inside)) + limit, [inside], lambda row: str(row[0])
    )


_BEGINS: Final = "substr(key, 1, {}) = ?"


async def _values(
    store: BaseStore, namespace: Namespace, condition: str, parameters: Sequence[str]
) -> dict[str, Any] | None:
    # As text: the driver of Postgres decodes JSON several times slower. Malformed JSON is an error of the store.
    columns = "key, CAST(value AS TEXT), ttl_minutes"
    rows = await _select(
        store, columns, namespace, condition, parameters, lambda row: (row[0], msgspec.json.decode(row[1]), row[2])
    )
    return None if any(lifetime is not None for *_, lifetime in rows) else {key: value for key, value, _ in rows}


async def _select(
    store: BaseStore,
    columns: str,
    namespace: Namespace,
    condition: str,
    parameters: Sequence[str],
    convert: Callable[[Sequence[Any]], T],
) -> list[T]:
    """The rows of a namespace that meet a condition, each converted; an error of `convert` is one of the store."""
    unexpired = " AND (expires_at IS NULL OR expires_at > NOW())" if _langgraph.omits_expired(store) else ""
    query = f"SELECT {columns} FROM store WHERE prefix = ?{unexpired} AND {condition}"
    if _langgraph.database_kind(store) == "postgres":
        query = query.replace("?", "%s")

    async def select(session: StoreSession) -> list[T]:
        return [convert(row) for row in await session.rows(query, (".".join(namespace), *parameters))]

    return await _langgraph.with_session(store, select)


# --- conditional changes ---------------------------------------------------------------------------------------------


async def put_if_unchanged(store: BaseStore, namespace: Namespace, puts: Sequence[Put]) -> None:
    """Make all changes if every record is the one that was read, else none. Rows are written as the store writes them.

    Raises ChangedError with the path of a record that is another one, OvertakenError if another change came at the same
    time, so that it is not known whether the records have changed.
    """
    is_postgres = _langgraph.database_kind(store) == "postgres"

    async def change(session: StoreSession) -> str | None:
        if is_postgres:
            return await _postgres(store, session, namespace, puts)
        return await _sqlite(store, session, namespace, puts)

    changed = await _langgraph.with_session(store, change, changes=True)
    if changed is not None:
        raise ChangedError(changed)


# In binary form (`b`): in text form, the driver escapes each quotation mark in an array of texts by itself, slowly.
_COMPARE_AND_SET: Final = """
    WITH wanted AS (
        SELECT * FROM unnest(%(keys)s::text[], %(befores)b::text[], %(afters)b::text[]) AS w(key, before, after)
    ), held AS (
        SELECT key, CASE WHEN %(omits)s AND expires_at <= NOW() THEN NULL ELSE value END AS value
        FROM store WHERE prefix = %(prefix)s AND key = ANY(%(keys)s::text[]) ORDER BY key FOR UPDATE
    ), wrong AS (
        SELECT w.key FROM wanted w LEFT JOIN held h ON h.key = w.key WHERE w.before::jsonb IS DISTINCT FROM h.value
    ), removed AS (
        DELETE FROM store s USING wanted w
        WHERE s.prefix = %(prefix)s AND s.key = w.key AND w.after IS NULL AND NOT EXISTS (SELECT FROM wrong)
    ), replaced AS (
        UPDATE store s
        SET value = w.after::jsonb, updated_at = CURRENT_TIMESTAMP, expires_at = NULL, ttl_minutes = NULL
        FROM wanted w JOIN held h ON h.key = w.key
        WHERE s.prefix = %(prefix)s AND s.key = w.key AND w.after IS NOT NULL AND NOT EXISTS (SELECT FROM wrong)
    ), created AS (
        INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
        SELECT %(prefix)s, w.key, w.after::jsonb, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, NULL, NULL FROM wanted w
        WHERE w.after IS NOT NULL AND NOT EXISTS (SELECT FROM held h WHERE h.key = w.key)
        AND NOT EXISTS (SELECT FROM wrong)
    )
    SELECT key FROM wrong LIMIT 1
"""
"""One statement, so it takes effect as a whole or not at all. Rows are locked in key order, then compared. If two
statements create the same row, the second violates the unique key and fails as a whole."""

_OVERTAKEN: Final = frozenset({"23505", "40001", "40P01"})
"""SQLSTATE codes after losing to a concurrent change: unique violation, serialization failure, deadlock."""


async def _postgres(store: BaseStore, session: StoreSession, namespace: Namespace, puts: Sequence[Put]) -> str | None:
    connection = session.connection
    try:
        # If the connection is in a transaction, a failure must not abort it.
        async with nullcontext() if connection.autocommit else connection.transaction():
            return await _compare_and_set_in_postgres(
                session, ".".join(namespace), puts, omits=_langgraph.omits_expired(store)
            )
    except Exception as error:
        if getattr(error, "sqlstate", None) in _OVERTAKEN:
            raise OvertakenError(puts[0].path) from error
        raise


async def _compare_and_set_in_postgres(
    session: StoreSession, prefix: str, puts: Sequence[Put], *, omits: bool
) -> str | None:
    parameters = {
        "prefix": prefix,
        "keys": [put.path for put in puts],
        "befores": [_json(put.before) for put in puts],
        "afters": [_json(put.after) for put in puts],
        "omits": omits,
    }
    changed = await session.rows(_COMPARE_AND_SET, parameters)
    return str(changed[0][0]) if changed else None


def _json(record: Any) -> str | None:
    return None if record is None else json.dumps(record)


async def _sqlite(store: BaseStore, session: StoreSession, namespace: Namespace, puts: Sequence[Put]) -> str | None:
    connection = session.connection
    # Else a single statement would belong to a transaction, which it could not commit.
    is_alone = connection.isolation_level is None and not connection.in_transaction
    if is_alone and _RETURNS and await _try_single_change(session, ".".join(namespace), puts):
        return None
    async with _sqlite_transaction(session):
        changed = await _find_difference_in_sqlite(session, ".".join(namespace), puts)
        if changed is None:
            operations = [PutOp(namespace, put.path, put.after) for put in puts]
            for statement, parameters in _langgraph.put_statements(store, operations):
                await session.rows(statement, parameters)
    return changed


@asynccontextmanager
async def _sqlite_transaction(session: StoreSession) -> AsyncIterator[None]:
    """A transaction, which is rolled back if it is left by an error or a cancellation."""
    is_within_another = session.connection.in_transaction  # Of the caller, as it seems. BEGIN then fails.
    try:
        # Lock for writing at once: two transactions that read first and write later would refuse each other.
        await session.rows("BEGIN IMMEDIATE", ())
    except Exception:
        raise  # Nothing was begun: if a transaction is open, the caller began it just before.
    except BaseException:  # A cancelled statement is still executed.
        if not is_within_another:
            await finish(partial(_roll_back, session))
        raise
    try:
        yield
        # This may fail as well, if another process reads for long. The transaction then stays open.
        await session.rows("COMMIT", ())
    except BaseException:
        await finish(partial(_roll_back, session))
        raise


async def _roll_back(session: StoreSession) -> None:
    # A cancelled statement is still executed. So only SQLite knows whether a transaction is open; if not, this fails.
    with suppress(Exception):
        await session.rows("ROLLBACK", ())


def _encode_value(record: Any) -> bytes | None:
    """The value of a row, as the store writes it."""
    return None if record is None else msgspec.json.encode(record)


async def _find_difference_in_sqlite(session: StoreSession, prefix: str, puts: Sequence[Put]) -> str | None:
    found: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(puts), _MOST_PARAMETERS):
        keys = [put.path for put in puts[start : start + _MOST_PARAMETERS]]
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, value FROM store WHERE prefix = ? AND key IN ({marks})"
        found |= {key: json.loads(value) for key, value in await session.rows(query, (prefix, *keys))}
    return next((put.path for put in puts if found.get(put.path) != put.before), None)


_RETURNS: Final = sqlite3.sqlite_version_info >= (3, 35)
"""Whether SQLite knows `RETURNING`."""


# --- a single change in SQLite, in one short statement -------------------------------------------------------------
# Each statement makes the change if the record is the one that was read, and then returns a row.

_CREATE: Final = """
    INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
    VALUES (:prefix, :key, :after, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, NULL, NULL)
    ON CONFLICT (prefix, key) DO NOTHING RETURNING key
"""
# As the store replaces a row, which gives it another rowid.
_REPLACE: Final = """
    INSERT OR REPLACE INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
    SELECT :prefix, :key, :after, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, NULL, NULL
    WHERE EXISTS (SELECT 1 FROM store WHERE prefix = :prefix AND key = :key AND value = :before) RETURNING key
"""
_REMOVE: Final = "DELETE FROM store WHERE prefix = :prefix AND key = :key AND value = :before RETURNING key"


async def _try_single_change(session: StoreSession, prefix: str, puts: Sequence[Put]) -> bool:
    """Make a single change, and return whether it was made.

    If it was not, as when another program has written the same record in another form, the general statements decide.
    """
    [put, *others] = puts
    if others:
        return False
    parameters = {"prefix": prefix, "key": put.path, "after": _encode_value(put.after)}
    if put.before is None:
        return bool(await session.rows(_CREATE, parameters))
    statement = _REMOVE if put.after is None else _REPLACE
    return bool(await session.rows(statement, {**parameters, "before": _encode_value(put.before)}))
