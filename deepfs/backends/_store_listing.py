"""What the table of a LangGraph store says of its items without their values: keys, sizes and times.

A `BaseStore` lists items with their values only. Where the table can be read by SQL, the database works out the sizes,
once for each state of a row, and no value leaves it. What it found is kept with what tells that state, so that a
listing sees what any process changed. A row whose value is no plain file is fetched, and looked at here.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from langgraph.store.base import BaseStore
from msgspec import Struct, field

from deepfs._langgraph import private as _langgraph
from deepfs.backends._store_items import fetched
from deepfs.backends.namespace import Namespace
from deepfs.text.flat_tree import DecodedFiles, FileStat

__all__ = ["Known", "Moment", "can_list", "keys", "stats", "stats_at"]

_Stats: TypeAlias = dict[str, FileStat | None]
"""By key; None for a row that has to be looked at here."""

_MOST_PARAMETERS: Final = 900
"""SQLite may refuse over 999."""
_SETTLED: Final = timedelta(seconds=2)
"""After which no other change of a row gets the same time: SQLite keeps times in whole seconds."""


class Moment(Struct):
    """What tells whether a SQLite database has changed since."""

    connection: object
    version: int
    """Another one whenever another connection has changed the database."""
    changes: int
    """Rows that this connection has changed so far."""


class Known(Struct):
    """What was found out of the rows of one namespace. Threads share it: copy a dict before you iterate over it."""

    rows: dict[str, tuple[str, FileStat]] = field(default_factory=dict)
    """By key, what told the state of the row, and what was found out."""
    listing: _Stats = field(default_factory=dict)
    """The rows whose keys begin with `prefix`, at `moment`."""
    prefix: str = ""
    moment: Moment | None = None
    under_way: int = 0
    """Changes by this process of which it is not known yet whether they are part of a listing."""
    changes: int = 0
    """Rows that this process has changed."""
    changes_listed: int = 0
    """How many of them were so when `listing` was made; the keys of the others are `changed`."""
    changed: dict[str, None] = field(default_factory=dict)

    def follow(self, keys: Sequence[str]) -> None:
        """This process has changed the rows with these keys, each once."""
        self.changes += len(keys)
        self.changed |= dict.fromkeys(keys)

    def forget(self) -> None:
        """Rows may have changed."""
        self.moment = None

    def covers(self, moment: Moment | None, prefix: str) -> bool:
        """Whether `listing` has all rows with `prefix` as they are at `moment`, but for those that are `changed`."""
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
        """Take over a listing that began at `moment`, unless rows were changed by this process since."""
        is_certain = not self.under_way and changes == self.changes
        self.listing, self.prefix = listing, prefix
        self.moment = moment if is_certain else None
        self.changes_listed, self.changed = self.changes, {}


def can_list(store: BaseStore) -> bool:
    """Whether this module serves `store`: one over Postgres or SQLite, as LangGraph makes it."""
    return _langgraph.reads_plainly(store)


async def keys(store: BaseStore, namespace: Namespace, prefix: str = "", limit: int | None = None) -> list[str]:
    """The keys that begin with `prefix`, which ends in `/` or is empty; at most `limit`."""
    table = _table(store, namespace)

    async def select(cursor: Any) -> list[str]:
        cut = "" if limit is None else f" LIMIT {limit:d}"
        return [key for (key,) in await table.rows(cursor, f"SELECT key FROM store WHERE {table.where}{cut}", prefix)]

    return await _langgraph.with_cursor(store, select)


async def stats(store: BaseStore, namespace: Namespace, prefix: str, known: Known) -> dict[str, FileStat]:
    """What can be said of the items whose keys begin with `prefix`, which ends in `/` or is empty."""
    table = _table(store, namespace)

    async def select(cursor: Any) -> _Stats:
        changes = known.changes
        # Read before the listing: what comes after it makes another moment.
        moment = await table.moment(cursor)
        if known.covers(moment, prefix):
            listing, listed = await _followed(table, cursor, known), known.prefix
        else:
            listing, listed = await _listed(table, cursor, prefix, known), prefix
        known.remember(listing, listed, moment, changes)
        return listing if listed == prefix else {key: listing[key] for key in listing if key.startswith(prefix)}

    return await _looked_at(store, namespace, await _langgraph.with_cursor(store, select))


async def stats_at(store: BaseStore, namespace: Namespace, wanted: Sequence[str], known: Known) -> dict[str, FileStat]:
    """What can be said of those of the `wanted` items that there are."""
    table = _table(store, namespace)

    async def select(cursor: Any) -> _Stats:
        return await _details(table, cursor, wanted, known)

    return await _looked_at(store, namespace, await _langgraph.with_cursor(store, select))


async def _followed(table: "_Table", cursor: Any, known: Known) -> _Stats:
    """The listing that is known, with what this process has changed since."""
    changed = known.changed.copy()
    if not changed:
        return known.listing
    kept = {key: stat for key, stat in known.listing.items() if key not in changed}
    return kept | await _details(table, cursor, [key for key in changed if key.startswith(known.prefix)], known)


async def _listed(table: "_Table", cursor: Any, prefix: str, known: Known) -> _Stats:
    states = dict(await table.rows(cursor, f"SELECT key, {table.state} FROM store WHERE {table.where}", prefix))
    found: _Stats = {key: known.rows[key][1] for key, state in states.items() if _is_known(known, key, state)}
    if not prefix:
        known.rows = {key: row for key, row in known.rows.copy().items() if key in states}
    found |= await _details(table, cursor, [key for key in states if key not in found], known)
    return found


def _is_known(known: Known, key: str, state: str) -> bool:
    return key in known.rows and known.rows[key][0] == state


async def _details(table: "_Table", cursor: Any, wanted: Sequence[str], known: Known) -> _Stats:
    """What the database finds out of these rows; what is certain not to change unnoticed is kept."""
    settled = (datetime.now(UTC) - _SETTLED).strftime("%Y-%m-%d %H:%M:%S")
    found: _Stats = {}
    for start in range(0, len(wanted), _MOST_PARAMETERS):
        for key, state, updated_at, kind, size, others in await table.details(
            cursor, wanted[start : start + _MOST_PARAMETERS]
        ):
            stat = found[key] = _stat_of(kind, size, others)
            if stat is not None and (table.keeps_exact_states or str(updated_at) < settled):
                known.rows[key] = state, stat
    return found


def _stat_of(kind: str | None, size: int | None, others: str | None) -> FileStat | None:
    """The size and times by the columns of a row; None where its value has to be fetched to know them."""
    if kind not in ("text", "string") or size is None or others is None:
        return None
    encoding, *rest = json.loads(others)
    if encoding not in ("utf-8", "base64") or not all(value is None or isinstance(value, str) for value in rest):
        return None
    return FileStat(max(0, size), modified_at=rest[0], created_at=rest[1])


async def _looked_at(store: BaseStore, namespace: Namespace, found: _Stats) -> dict[str, FileStat]:
    odd = [key for key, stat in found.items() if stat is None]
    records = DecodedFiles(await fetched(store, namespace, odd) if odd else {})
    looked_at = {key: FileStat(*records.described(key)) for key in records}
    every = ((key, stat or looked_at.get(key)) for key, stat in found.items())
    return {key: stat for key, stat in every if stat is not None}


# --- the two databases -----------------------------------------------------------------------------------------------


class _Table:
    """The rows of one namespace, in the SQL of one kind of database."""

    where: str
    """The condition of rows whose keys begin with a prefix."""
    state: str
    """What another state of a row never has, or, by `updated_at`, not at another time."""
    keeps_exact_states: bool

    def __init__(self, store: BaseStore, namespace: Namespace) -> None:
        self._store = store
        self._namespace = ".".join(namespace)

    async def rows(self, cursor: Any, query: str, prefix: str) -> list[tuple[Any, ...]]:
        """The rows of a query with the condition `where`."""
        raise NotImplementedError

    async def details(self, cursor: Any, wanted: Sequence[str]) -> list[tuple[Any, ...]]:
        """Key, state, `updated_at`, kind of the content, its size in bytes, and the other fields as JSON."""
        raise NotImplementedError

    async def moment(self, cursor: Any) -> Moment | None:
        """What changes whenever anything in the database does; None where that cannot be told."""
        return None


def _table(store: BaseStore, namespace: Namespace) -> _Table:
    return (_Postgres if _langgraph.database_kind(store) == "postgres" else _Sqlite)(store, namespace)


def _size(content: str, utf8: str, ignored: str) -> str:
    """The bytes of a file with this `content`, as `size_of` counts them; of text those of `utf8`."""
    return f"""CASE encoding WHEN 'base64'
        THEN length({ignored}) * 3 / 4 - (length({content}) - length(replace({content}, '=', '')))
        ELSE {utf8} END"""


class _Sqlite(_Table):
    where = "prefix = ? AND key >= ? AND key < ?"
    # A put of LangGraph gives the row another number. To read `updated_at` is to read past the value of the row.
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

    async def rows(self, cursor: Any, query: str, prefix: str) -> list[tuple[Any, ...]]:
        after = f"{prefix[:-1]}{chr(ord('/') + 1)}" if prefix else "\U0010ffff"
        await cursor.execute(query, (self._namespace, prefix, after))
        return list(await cursor.fetchall())

    async def details(self, cursor: Any, wanted: Sequence[str]) -> list[tuple[Any, ...]]:
        size = _size("content", "length(CAST(content AS BLOB))", self._IGNORED)
        marks = ",".join("?" * len(wanted))
        query = f"SELECT key, state, updated_at, kind, {size}, others FROM ({self._DETAILS} ({marks}))"
        await cursor.execute(query, (self._namespace, *wanted))
        return list(await cursor.fetchall())

    async def moment(self, cursor: Any) -> Moment | None:
        await cursor.execute("SELECT data_version, total_changes() FROM pragma_data_version")
        version, changes = await cursor.fetchone()
        return Moment(_langgraph.connection_of(self._store), version, changes)


class _Postgres(_Table):
    state = "xmin::text || ' ' || ctid::text || ' ' || updated_at::text"
    keeps_exact_states = True

    def __init__(self, store: BaseStore, namespace: Namespace) -> None:
        super().__init__(store, namespace)
        omits = _langgraph.omits_expired(store)
        self._unexpired = "(expires_at IS NULL OR expires_at > NOW())" if omits else "TRUE"
        self.where = f"prefix = %s AND starts_with(key, %s) AND {self._unexpired}"

    async def rows(self, cursor: Any, query: str, prefix: str) -> list[tuple[Any, ...]]:
        await cursor.execute(query, (self._namespace, prefix))
        return [_values(row) for row in await cursor.fetchall()]

    async def details(self, cursor: Any, wanted: Sequence[str]) -> list[tuple[Any, ...]]:
        size = _size("content", "octet_length(convert_to(content, 'UTF8'))", "translate(content, E' \\t\\r\\n', '')")
        # What is made of `value` first is in memory then; each look at the column itself would read it anew.
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
        await cursor.execute(query, (self._namespace, list(wanted)))
        return [_values(row) for row in await cursor.fetchall()]


def _values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())
