"""Reads of a LangGraph store by SQL on its table: values, or keys, sizes and times of the items without their values.

Items are read by one call of the connection, where the store itself makes several. A `BaseStore` lists items with their
values only; here the database computes the sizes, once for each version of a row, and transfers no value. The size is
cached with an identifier of the row's version, so a listing sees the changes of every process. A row whose value is no
plain file is fetched, and decoded here.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec
from langgraph.store.base import BaseStore
from msgspec import Struct, field

from deepfs._langgraph import private as _langgraph
from deepfs._langgraph.private import Session
from deepfs.backends._store_items import fetched
from deepfs.backends._store_tables import MOST_PARAMETERS
from deepfs.backends.namespace import Namespace
from deepfs.text.flat_tree import DecodedFiles, FileStat

__all__ = ["Known", "Moment", "can_list", "keys", "stats", "stats_at", "values"]

_Stats: TypeAlias = dict[str, FileStat | None]
"""By key; None for a row whose value must be fetched."""

_SETTLED: Final = timedelta(seconds=2)
"""The age from which no further change of a row can get the same `updated_at`: SQLite keeps times in whole seconds."""


class Moment(Struct):
    """Counters that show whether a SQLite database has changed since they were read."""

    connection: object
    version: int
    """The `data_version`: it differs after another connection has changed the database."""
    changes: int
    """The number of rows that this connection has changed so far."""


class Known(Struct):
    """Cached sizes and times of the rows of one namespace. Threads share it: copy a dict before you iterate over it."""

    rows: dict[str, tuple[str, FileStat]] = field(default_factory=dict)
    """By key, the identifier of the row's version, and its size and times."""
    listing: _Stats = field(default_factory=dict)
    """The rows whose keys begin with `prefix`, at `moment`."""
    prefix: str = ""
    moment: Moment | None = None
    under_way: int = 0
    """The number of changes that this process is making, which a listing may or may not contain."""
    changes: int = 0
    """The number of rows that this process has changed."""
    changes_listed: int = 0
    """The value of `changes` when `listing` was made. The keys of the rows changed since are in `changed`."""
    changed: dict[str, None] = field(default_factory=dict)

    def follow(self, keys: Sequence[str]) -> None:
        """Record that this process has changed the rows with these keys, each once."""
        self.changes += len(keys)
        if self.moment is not None:
            self.changed |= dict.fromkeys(keys)

    def forget(self) -> None:
        """Record that rows may have changed, so that `listing` is not used."""
        self.moment = None

    def covers(self, moment: Moment | None, prefix: str) -> bool:
        """Whether `listing` has all rows with `prefix` as they are at `moment`, except for the rows in `changed`."""
        return (
            moment is not None
            and self.moment is not None
            and not self.under_way
            and moment.connection is self.moment.connection
            and moment.version == self.moment.version
            and moment.changes - self.moment.changes == self.changes - self.changes_listed
            and prefix.startswith(self.prefix)
        )

    def remember(self, listing: _Stats, prefix: str, moment: Moment | None, changes: int) -> None:
        """Store a listing that began at `moment`. It is not used if this process has changed rows since then."""
        is_certain = not self.under_way and changes == self.changes
        self.listing, self.prefix = listing, prefix
        self.moment = moment if is_certain else None
        self.changes_listed, self.changed = self.changes, {}


def can_list(store: BaseStore) -> bool:
    """Whether this module supports `store`: an unmodified store of LangGraph over Postgres or SQLite."""
    return _langgraph.reads_plainly(store)


async def keys(store: BaseStore, namespace: Namespace, prefix: str = "", limit: int | None = None) -> list[str]:
    """The keys that begin with `prefix`, which ends in `/` or is empty; at most `limit`."""
    table = _table(store, namespace)

    async def select(session: Session) -> list[str]:
        cut = "" if limit is None else f" LIMIT {limit:d}"
        return [key for (key,) in await table.rows(session, f"SELECT key FROM store WHERE {table.where}{cut}", prefix)]

    return await _langgraph.with_session(store, select)


async def values(store: BaseStore, namespace: Namespace, wanted: Sequence[str]) -> dict[str, Any]:
    """The values of the `wanted` items that exist, by key.

    If one of them has a lifetime, the store itself reads them: reading may prolong it.
    """
    table = _table(store, namespace)

    async def select(session: Session) -> dict[str, Any] | None:
        rows: list[Any] = []
        for start in range(0, len(wanted), MOST_PARAMETERS):
            rows += await table.values(session, wanted[start : start + MOST_PARAMETERS])
        if any(lifetime is not None for *_, lifetime in rows):
            return None
        # Decoded here, so that a malformed value is an error of the store.
        return {key: msgspec.json.decode(value) for key, value, _ in rows}

    found = await _langgraph.with_session(store, select)
    if found is None:
        return await fetched(store, namespace, wanted)
    return {key: found[key] for key in wanted if key in found}


async def stats(store: BaseStore, namespace: Namespace, prefix: str, known: Known) -> dict[str, FileStat]:
    """The sizes and times of the items whose keys begin with `prefix`, which ends in `/` or is empty."""
    table = _table(store, namespace)

    async def select(session: Session) -> _Stats:
        changes = known.changes
        # Read before the listing, so that any later change leads to another moment.
        moment = await table.moment(session)
        if known.covers(moment, prefix):
            listing, listed = await _followed(table, session, known), known.prefix
        else:
            listing, listed = await _listed(table, session, prefix, known), prefix
        known.remember(listing, listed, moment, changes)
        return listing if listed == prefix else {key: listing[key] for key in listing if key.startswith(prefix)}

    return await _with_fetched(store, namespace, await _langgraph.with_session(store, select))


async def stats_at(store: BaseStore, namespace: Namespace, wanted: Sequence[str], known: Known) -> dict[str, FileStat]:
    """The sizes and times of the `wanted` items that exist."""
    table = _table(store, namespace)

    async def select(session: Session) -> _Stats:
        return await _details(table, session, wanted, known)

    return await _with_fetched(store, namespace, await _langgraph.with_session(store, select))


async def _followed(table: "_Table", session: Session, known: Known) -> _Stats:
    """The cached listing, updated with the rows that this process has changed since."""
    changed = known.changed.copy()
    if not changed:
        return known.listing
    kept = {key: stat for key, stat in known.listing.items() if key not in changed}
    return kept | await _details(table, session, [key for key in changed if key.startswith(known.prefix)], known)


async def _listed(table: "_Table", session: Session, prefix: str, known: Known) -> _Stats:
    states = dict(await table.rows(session, f"SELECT key, {table.state} FROM store WHERE {table.where}", prefix))
    rows = known.rows.copy()
    found: _Stats = {key: rows[key][1] for key, state in states.items() if key in rows and rows[key][0] == state}
    if not prefix:
        known.rows = {key: row for key, row in rows.items() if key in states}
    found |= await _details(table, session, [key for key in states if key not in found], known)
    return found


async def _details(table: "_Table", session: Session, wanted: Sequence[str], known: Known) -> _Stats:
    """The sizes and times of these rows. A row is cached if no later change of it can go unnoticed."""
    settled = (datetime.now(UTC) - _SETTLED).strftime("%Y-%m-%d %H:%M:%S")
    found: _Stats = {}
    for start in range(0, len(wanted), MOST_PARAMETERS):
        for key, state, updated_at, kind, size, others in await table.details(
            session, wanted[start : start + MOST_PARAMETERS]
        ):
            stat = found[key] = _stat_of(kind, size, others)
            if stat is not None and (table.keeps_exact_states or str(updated_at) < settled):
                known.rows[key] = state, stat
    return found


def _stat_of(kind: str | None, size: int | None, others: str | None) -> FileStat | None:
    """The size and times from the columns of a row; None if its value must be fetched to know them."""
    if kind not in ("text", "string") or size is None or others is None:
        return None
    encoding, *rest = json.loads(others)
    if encoding not in ("utf-8", "base64") or not all(value is None or isinstance(value, str) for value in rest):
        return None
    return FileStat(max(0, size), modified_at=rest[0], created_at=rest[1])


async def _with_fetched(store: BaseStore, namespace: Namespace, found: _Stats) -> dict[str, FileStat]:
    """`found`, completed with the stats of rows whose values must be fetched."""
    missing = [key for key, stat in found.items() if stat is None]
    records = DecodedFiles(await fetched(store, namespace, missing) if missing else {})
    decoded = {key: FileStat(*records.described(key)) for key in records}
    every = ((key, stat or decoded.get(key)) for key, stat in found.items())
    return {key: stat for key, stat in every if stat is not None}


# --- the two databases -----------------------------------------------------------------------------------------------


class _Table:
    """The rows of one namespace, in the SQL of one kind of database."""

    where: str
    """The SQL condition of rows whose keys begin with a prefix."""
    state: str
    """The SQL expression that identifies the version of a row; see `keeps_exact_states`."""
    keeps_exact_states: bool
    """Whether `state` always differs between versions of a row, not only between those with different `updated_at`."""

    def __init__(self, store: BaseStore, namespace: Namespace) -> None:
        self._store = store
        self._namespace = ".".join(namespace)

    async def rows(self, session: Session, query: str, prefix: str) -> Sequence[Any]:
        """The rows that a query with the condition `where` returns."""
        raise NotImplementedError

    async def details(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        """Key, state, `updated_at`, kind of the content, its size in bytes, and the other fields as JSON."""
        raise NotImplementedError

    async def values(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        """Key, value as JSON, and lifetime if any, of these rows."""
        raise NotImplementedError

    async def moment(self, session: Session) -> Moment | None:
        """Counters that change whenever the database changes; None if the database has none."""
        return None


def _table(store: BaseStore, namespace: Namespace) -> _Table:
    return (_Postgres if _langgraph.database_kind(store) == "postgres" else _Sqlite)(store, namespace)


def _size(content: str, utf8: str, ignored: str) -> str:
    """The SQL expression for the size of a file in bytes, as `size_of` counts it.

    `content` is the SQL expression for the content, `utf8` the one for its size as text, `ignored` the one for the
    content without the characters that base64 ignores.
    """
    return f"""CASE encoding WHEN 'base64'
        THEN length({ignored}) * 3 / 4 - (length({content}) - length(replace({content}, '=', '')))
        ELSE {utf8} END"""


class _Sqlite(_Table):
    where = "prefix = ? AND key >= ? AND key < ?"
    # A put of LangGraph gives the row another rowid. Reading `updated_at` means reading past the value of the row.
    state = "rowid || ' ' || length(value) || ' ' || updated_at"
    keeps_exact_states = False

    # One statement for each row keeps the value out of temporary tables.
    _DETAILS: Final = f"""
        SELECT key, {state} AS state, updated_at,
            CASE WHEN json_valid(CAST(value AS TEXT)) AND NOT instr(CAST(value AS TEXT), '\\u0000')
                THEN json_type(CAST(value AS TEXT), '$.content') END AS kind,
            CASE WHEN json_valid(CAST(value AS TEXT))
                THEN json_extract(CAST(value AS TEXT), '$.content') END AS content,
            CASE WHEN json_valid(CAST(value AS TEXT))
                THEN json_extract(CAST(value AS TEXT), '$.encoding') END AS encoding,
            CASE WHEN json_valid(CAST(value AS TEXT))
                THEN json_extract(CAST(value AS TEXT), '$.encoding', '$.modified_at', '$.created_at', '$.mime_type',
                    '$.mimeType') END AS others
        FROM store WHERE prefix = ? AND key IN
    """
    _IGNORED: Final = "replace(replace(replace(replace(content, ' ', ''), char(9), ''), char(10), ''), char(13), '')"

    async def rows(self, session: Session, query: str, prefix: str) -> Sequence[Any]:
        after = f"{prefix[:-1]}{chr(ord('/') + 1)}" if prefix else "\U0010ffff"
        return await session.rows(query, (self._namespace, prefix, after))

    async def details(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        size = _size("content", "length(CAST(content AS BLOB))", self._IGNORED)
        marks = ",".join("?" * len(wanted))
        query = f"SELECT key, state, updated_at, kind, {size}, others FROM ({self._DETAILS} ({marks}))"
        return await session.rows(query, (self._namespace, *wanted))

    async def values(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        marks = ",".join("?" * len(wanted))
        query = f"SELECT key, value, ttl_minutes FROM store WHERE prefix = ? AND key IN ({marks})"
        return await session.rows(query, (self._namespace, *wanted))

    async def moment(self, session: Session) -> Moment | None:
        [(version, changes)] = await session.rows("SELECT data_version, total_changes() FROM pragma_data_version", ())
        return Moment(_langgraph.connection_of(self._store), version, changes)


class _Postgres(_Table):
    state = "xmin::text || ' ' || ctid::text || ' ' || updated_at::text"
    keeps_exact_states = True

    def __init__(self, store: BaseStore, namespace: Namespace) -> None:
        super().__init__(store, namespace)
        omits = _langgraph.omits_expired(store)
        self._unexpired = "(expires_at IS NULL OR expires_at > NOW())" if omits else "TRUE"
        self.where = f"prefix = %s AND starts_with(key, %s) AND {self._unexpired}"

    async def rows(self, session: Session, query: str, prefix: str) -> Sequence[Any]:
        return await session.rows(query, (self._namespace, prefix))

    async def values(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        # As text: the driver decodes it several times slower.
        query = f"""
            SELECT key, value::text, ttl_minutes FROM store
            WHERE prefix = %s AND key = ANY(%s::text[]) AND {self._unexpired}
        """
        return await session.rows(query, (self._namespace, list(wanted)))

    async def details(self, session: Session, wanted: Sequence[str]) -> Sequence[Any]:
        size = _size("content", "octet_length(convert_to(content, 'UTF8'))", "translate(content, E' \\t\\r\\n', '')")
        # The result of `value || '{}'` is in memory. Each use of the column itself would read the value again.
        query = f"""
            SELECT key, state, updated_at, kind, {size} AS size, others
            FROM (
                SELECT key, state, updated_at, jsonb_typeof(value -> 'content') AS kind,
                    value ->> 'content' AS content, value ->> 'encoding' AS encoding,
                    jsonb_build_array(value -> 'encoding', value -> 'modified_at', value -> 'created_at',
                        value -> 'mime_type', value -> 'mimeType')::text AS others
                FROM (
                    SELECT key, {self.state} AS state, updated_at::text AS updated_at, value || '{{}}' AS value
                    FROM store WHERE prefix = %s AND key = ANY(%s::text[]) AND {self._unexpired} OFFSET 0
                ) AS held OFFSET 0
            ) AS found
        """
        return await session.rows(query, (self._namespace, list(wanted)))
