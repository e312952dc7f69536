"""The files of one namespace in PostgreSQL as flat storage, with changes that are made once or not at all.

A change carries a number that no other change has, drawn from a sequence beforehand: the version of the rows that it
writes. The same statement or transaction adds the number to a journal. If the answer is lost, the client adds the
number itself. If it is there already, the change was made. If not, the change can no longer be made, because the number
can be added only once, so it is safe to send it again.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

import anyio

from deepfs.backends.postgres.client import Client, Sent, failure_of, is_transient
from deepfs.backends.postgres.schema import (
    COLUMNS,
    FILE,
    STAT,
    Names,
    Row,
    check_key,
    file_of_row,
    has_key,
    row_of,
    rows_at,
    stats_of_rows,
)
from deepfs.errors import BackendError, DeepFSError
from deepfs.storage.gathering import in_batches
from deepfs.storage.runners import AsyncStorage, Listing
from deepfs.text.edits import MAX_EDITED_BYTES
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles
from deepfs.text.paths import ancestors, end_of_prefix
from deepfs.text.records import text_file
from deepfs.types import FileDataV2

_STATEMENT_BYTES: Final = 16 * 1024 * 1024
"""How much content one statement carries, unless a single file has more."""
_DRAWN_AT_ONCE: Final = 32
"""How many numbers are drawn at once."""
_FORGOTTEN_AT_ONCE: Final = 64
"""How many entries of the journal are removed at once."""
_ANY_SIZE: Final = 2**62
"""Larger than any file."""

_OVERWRITE: Final = "ON CONFLICT (namespace, path) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in ("content", "bytes", "mime_type", "modified_at", "version")
)
_REPLACE: Final = f"{_OVERWRITE}, created_at = excluded.created_at"
_KEEP: Final = "ON CONFLICT (namespace, path) DO NOTHING"
_VALUES: Final = "$3::text, $4::text, $5::bytea, $6::text, $7::timestamptz, $8::timestamptz"
"""The values of `COLUMNS` in a statement whose first parameters are the namespace and the number of the change."""
_HASHED_BYTES: Final = 65_536
"""The largest file whose version an event of `awatch` tells."""
_LONG_STEP: Final = 100
"""How many rows a step reads."""
_SHORT_STEP: Final = 12
"""How many it reads after one that found one subdirectory only: the next one is probably as large."""

# --- changes as statements -------------------------------------------------------------------------------------------


class NumberedChange:
    """A change of one or more files, as statements."""

    in_transaction = False

    def __init__(self, names: Names, namespace: str) -> None:
        self.names = names
        self.namespace = namespace

    async def run(self, number: int, connection: Any) -> bool:
        """Send the statements; return whether a file changed. Raises ChangedError if the change is refused."""
        raise NotImplementedError


def _with_journal(names: Names, statement: str) -> str:
    """`statement`, which changes at most one row, with an entry in the journal if it does.

    $1 is the namespace, $2 the number of the change, and the result the number of changed rows.
    """
    return f"""
        WITH done AS ({statement} RETURNING 1),
        noted AS (INSERT INTO {names.journal} (change, namespace) SELECT $2::bigint, $1::text FROM done RETURNING 1)
        SELECT count(*) FROM noted
    """


class OneChange(NumberedChange):
    """A change of one file, in one statement."""

    def __init__(self, names: Names, namespace: str, change: Change) -> None:
        super().__init__(names, namespace)
        self.change = change
        self.row: Row | None = None if change.after is None else row_of(change.path, change.after)

    async def run(self, number: int, connection: Any) -> bool:
        condition, origin = self.change.condition, self.change.origin
        statement, values = self._removal() if self.row is None else self._store(self.row)
        given = (*values, origin) if condition == "version" else values
        is_done = bool(await connection.fetchval(_with_journal(self.names, statement), self.namespace, number, *given))
        if not is_done and condition != "replace":
            raise ChangedError(self.change.path)
        return is_done

    def _removal(self) -> tuple[str, tuple[Any, ...]]:
        same = "AND version = $4::bigint" if self.change.condition == "version" else ""
        where = f"namespace = $1::text AND path = $3::text {same}"
        return f"DELETE FROM {self.names.files} WHERE {where}", (self.change.path,)

    def _store(self, row: Row) -> tuple[str, tuple[Any, ...]]:
        if self.change.condition == "version":
            statement = f"""
                UPDATE {self.names.files} SET ({COLUMNS}, version) = ({_VALUES}, $2::bigint)
                WHERE namespace = $1::text AND path = $3::text AND version = $9::bigint
            """
        else:
            otherwise = _KEEP if self.change.condition == "create" else _REPLACE
            statement = f"""
                INSERT INTO {self.names.files} (namespace, version, {COLUMNS})
                VALUES ($1::text, $2::bigint, {_VALUES}) {otherwise}
            """
        return statement, row.values


class ReplacedText(NumberedChange):
    """An edit that replaces a text which occurs once, in one statement that reads and writes the file.

    It changes nothing if the text does not occur, or more than once, if overlapping occurrences count, or if the file
    has line ends that need care.
    """

    def __init__(self, names: Names, namespace: str, path: str, old: str, new: str) -> None:
        super().__init__(names, namespace)
        growth = len(new.encode()) - len(old.encode())
        most = MAX_EDITED_BYTES - growth if growth > 0 else _ANY_SIZE
        any_ends = "\r" in old or ("\n" not in old and "\n" not in new)
        self.values: tuple[Any, ...] = path, old, new, datetime.now(UTC), most, any_ends

    async def run(self, number: int, connection: Any) -> bool:
        place = "strpos(content, $4::text)"
        statement = f"""
            UPDATE {self.names.files}
            SET content = replace(content, $4::text, $5::text), version = $2::bigint, modified_at = $6::timestamptz
            WHERE namespace = $1::text AND path = $3::text AND content IS NOT NULL AND size <= $7::bigint
                AND {place} > 0 AND strpos(substr(content, {place} + 1), $4::text) = 0
                AND ($8::boolean OR strpos(content, chr(13) || chr(10)) = 0)
        """
        return bool(
            await connection.fetchval(_with_journal(self.names, statement), self.namespace, number, *self.values)
        )


class WrittenText(NumberedChange):
    """A write, in one statement that also looks at what is there.

    It changes nothing if the path is a directory, if a file is above it or, without `overwrite`, at it.
    """

    def __init__(self, names: Names, namespace: str, path: str, text: str, *, overwrite: bool) -> None:
        super().__init__(names, namespace)
        self.otherwise: str = _OVERWRITE if overwrite else _KEEP
        beneath = f"{path}/"
        row = row_of(path, text_file(text, None))
        self.values: tuple[Any, ...] = *row.values, ancestors(path), beneath, end_of_prefix(beneath)

    async def run(self, number: int, connection: Any) -> bool:
        # EXISTS would drop the order, and with it what makes the planner take the index.
        statement = f"""
            INSERT INTO {self.names.files} (namespace, version, {COLUMNS})
            SELECT $1::text, $2::bigint, {_VALUES} WHERE NOT EXISTS ({rows_at(self.names, "path", paths="$9")}) AND (
                SELECT path FROM {self.names.files} WHERE namespace = $1::text AND path >= $10 AND path < $11
                ORDER BY path LIMIT 1
            ) IS NULL {self.otherwise}
        """
        return bool(
            await connection.fetchval(_with_journal(self.names, statement), self.namespace, number, *self.values)
        )


class ManyChanges(NumberedChange):
    """Changes of several files in one transaction. Rows are locked in the order of their paths."""

    in_transaction = True

    def __init__(self, names: Names, namespace: str, changes: Sequence[Change]) -> None:
        super().__init__(names, namespace)
        self.changes: list[Change] = sorted(changes, key=lambda change: change.path)
        self.rows: dict[str, Row] = {
            change.path: row_of(change.path, change.after) for change in changes if change.after is not None
        }

    async def run(self, number: int, connection: Any) -> bool:
        await self._check(connection)
        removed = [change.path for change in self.changes if change.after is None]
        if removed:
            remove = f"DELETE FROM {self.names.files} WHERE namespace = $1 AND path = ANY($2)"
            await connection.execute(remove, self.namespace, removed)
        created = [change.path for change in self.changes if change.after and change.condition == "create"]
        replaced = [change.path for change in self.changes if change.after and change.condition != "create"]
        await self._store(connection, number, created, "")
        await self._store(connection, number, replaced, _REPLACE)
        note = f"INSERT INTO {self.names.journal} (change, namespace) VALUES ($1, $2)"
        await connection.execute(note, number, self.namespace)
        return True

    async def _check(self, connection: Any) -> None:
        """Lock the rows, and raise ChangedError unless the condition of each change holds."""
        lock = rows_at(self.names, "path, version", "FOR UPDATE")
        rows = await connection.fetch(lock, self.namespace, [change.path for change in self.changes])
        versions = {row["path"]: row["version"] for row in rows}
        for change in self.changes:
            is_new = change.condition == "create" and change.path in versions
            if is_new or (change.condition == "version" and versions.get(change.path) != change.origin):
                raise ChangedError(change.path)

    async def _store(self, connection: Any, number: int, paths: Sequence[str], otherwise: str) -> None:
        statement = f"""
            INSERT INTO {self.names.files} (namespace, version, {COLUMNS})
            SELECT $1::text, $2::bigint, given.* FROM unnest(
                $3::text[], $4::text[], $5::bytea[], $6::text[], $7::timestamptz[], $8::timestamptz[]
            ) AS given ORDER BY 3 {otherwise}
        """
        rows = [self.rows[path] for path in paths]
        for batch in in_batches(rows, attrgetter("size"), most_bytes=_STATEMENT_BYTES):
            columns = zip(*(row.values for row in batch), strict=True)
            await connection.execute(statement, self.namespace, number, *map(list, columns))


# --- making them -----------------------------------------------------------------------------------------------------


class Changes:
    """The changes of all backends over one client: their numbers, and whether each was made."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._numbers: list[int] = []
        self._process = os.getpid()
        self._settled: dict[str, list[int]] = {}
        """Numbers whose outcome is known, so that their entries can be removed by one of the tenants who see them."""

    async def make(self, change: NumberedChange) -> bool:
        """Make a change once; if the answer is lost, find out whether it was made, and send it again if not.

        Returns whether it changed anything. Raises ChangedError if it was refused, since the files are no longer as
        they were read, and BackendError if the storage failed; then nothing was changed, unless the text says that this
        is not known.
        """
        namespace, requests = change.namespace, self.client.requests
        failure: Exception | None = None
        for failed in range(requests.policy.attempts):
            if failed:
                await anyio.sleep(requests.policy.delay(failed))
            number, sent = await self._next_number(namespace), Sent()
            try:
                made = await self.client.change(
                    namespace, partial(change.run, number), sent, in_transaction=change.in_transaction
                )
            except Exception as error:
                if not (is_transient(error) or isinstance(error, TimeoutError)):
                    raise failure_of(error)  # noqa: B904  # It has its cause.
                if sent.began and await self._was_made(namespace, number, error):
                    return True
                failure = error
            else:
                await self._settle(namespace, number)
                return made
        assert failure is not None
        raise failure_of(failure)

    async def _next_number(self, namespace: str) -> int:
        if self._process != os.getpid():  # The numbers belong to the process that this one was forked from.
            self._numbers, self._process = [], os.getpid()
        try:
            return self._numbers.pop()
        except IndexError:
            rows = await self.client.ask(namespace, self._draw)
        numbers = [row["number"] for row in rows]
        number: int = numbers.pop()
        self._numbers += numbers
        return number

    async def _draw(self, connection: Any) -> Any:
        # Entries that their processes left behind are removed on the way. The oldest ones have the smallest numbers.
        journal = self.client.names.journal
        draw = f"""
            WITH oldest AS MATERIALIZED (
                SELECT change FROM {journal} ORDER BY change LIMIT {_FORGOTTEN_AT_ONCE} FOR UPDATE SKIP LOCKED
            ), left_behind AS (
                DELETE FROM {journal}
                WHERE change IN (SELECT change FROM oldest) AND made_at < now() - interval '1 day'
            )
            SELECT nextval($1::text::regclass) AS number FROM generate_series(1, $2::integer)
        """
        return await connection.fetch(draw, self.client.names.versions, _DRAWN_AT_ONCE)

    async def _was_made(self, namespace: str, number: int, error: Exception) -> bool:
        """Whether a change whose answer was lost was made. If it was not, it cannot be made any more."""
        fence = f"""
            INSERT INTO {self.client.names.journal} (change, namespace, was_made) VALUES ($1, $2, false)
            ON CONFLICT (change) DO UPDATE SET change = excluded.change RETURNING was_made
        """

        async def add(connection: Any) -> bool:
            return bool(await connection.fetchval(fence, number, namespace))

        try:
            was_made = await self.client.ask(namespace, add)
        except DeepFSError as failed:
            reason = "The answer was lost, so it is not known whether the change was made: {cause}"
            raise BackendError.because(None, reason, cause=failed) from failed
        if was_made:
            await self._settle(namespace, number)
        # Else the entry stays: the lost statement may wait for a lock in the server, and must not be made after all.
        return was_made

    async def _settle(self, namespace: str, number: int) -> None:
        """Note that the outcome of a change is known. Entries of the journal are removed many at once."""
        seen_by = namespace if self.client.is_secured else ""
        settled = self._settled.setdefault(seen_by, [])
        settled.append(number)
        if len(settled) < _FORGOTTEN_AT_ONCE:
            return
        del self._settled[seen_by]
        forget = f"DELETE FROM {self.client.names.journal} WHERE change = ANY($1)"
        with suppress(DeepFSError):  # The change itself was made.
            await self.client.ask(namespace, lambda connection: connection.execute(forget, settled))


# --- the storage ------------------------------------------------------------------------------------------------------


class PostgresFiles(AsyncStorage):
    """The files of a namespace, for one operation."""

    def __init__(self, changes: Changes, namespace: str) -> None:
        self.changes = changes
        self.client: Client = changes.client
        self.names: Names = changes.client.names
        self.namespace = namespace

    def translate(self, error: Exception) -> Exception:
        return failure_of(error)

    async def rows(self, query: str, *values: Any) -> Any:
        """The rows that a query returns; its first parameter is the namespace."""
        return await self.client.ask(
            self.namespace, lambda connection: connection.fetch(query, self.namespace, *values)
        )

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        wanted = [path for path in paths if has_key(self.namespace, path)]
        return stats_of_rows(await self.rows(rows_at(self.names, STAT), wanted))

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        wanted = [path for path in paths if has_key(self.namespace, path)]
        rows = await self.rows(rows_at(self.names, FILE), wanted)
        files = {row["path"]: file_of_row(row) for row in rows}
        return TaggedFiles(files, {row["path"]: row["version"] for row in rows})

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        query = f"""
            SELECT {STAT} FROM {self.names.files} WHERE namespace = $1 AND path >= $2 AND path < $3
            ORDER BY path LIMIT $4
        """
        return stats_of_rows(await self.rows(query, prefix, end_of_prefix(prefix), limit))

    async def children(self, prefix: str) -> Listing:
        query = _children(self.names)
        return stats_of_rows(await self.rows(query, prefix, end_of_prefix(prefix), len(prefix) + 1))

    async def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            check_key(self.namespace, change.path)
        if len(changes) == 1:
            await self.changes.make(OneChange(self.names, self.namespace, changes[0]))
        elif changes:
            await self.changes.make(ManyChanges(self.names, self.namespace, changes))


# --- queries ---------------------------------------------------------------------------------------------------------


async def small_contents(client: Client, namespace: str, paths: Sequence[str]) -> dict[str, bytes]:
    """The contents of the files, but for large ones."""
    query = rows_at(client.names, f"path, content, bytes, size <= {_HASHED_BYTES} AS is_small")
    columns = "path, CASE WHEN is_small THEN content END AS content, CASE WHEN is_small THEN bytes END AS bytes"
    rows = await client.ask(
        namespace, lambda connection: connection.fetch(f"SELECT {columns} FROM ({query}) AS file", namespace, paths)
    )
    found = ((row["path"], row["bytes"] if row["content"] is None else row["content"].encode()) for row in rows)
    return {path: content for path, content in found if content is not None}


def _children(names: Names) -> str:
    """What is directly in a directory: by steps that skip the rest of a subdirectory.

    $2 is the path of the directory with a slash, $3 what is behind it, $4 where the name of a child begins.
    """
    skipped = "left(walked.path, $4::integer - 2 + walked.slash) || '0'"
    start = f"CASE WHEN walked.slash > 0 THEN {skipped} ELSE walked.path || chr(1) END"
    return f"""
        WITH RECURSIVE walked AS (
            {_step(names, "$2::text", str(_LONG_STEP))}
            UNION ALL
            SELECT more.* FROM walked CROSS JOIN LATERAL ({_step(names, start, "walked.next")}) AS more
            WHERE walked.is_last
        )
        SELECT {STAT} FROM walked WHERE slash = 0
        UNION ALL
        SELECT min(path), NULL, NULL, NULL, NULL, NULL FROM walked WHERE slash > 0
        GROUP BY left(path, $4::integer - 1 + slash)
    """


def _step(names: Names, start: str, size: str) -> str:
    in_one = "slash > 0 AND starts_with(first_value(path) OVER rows, left(path, $4::integer - 1 + slash))"
    return f"""
        SELECT {STAT}, slash, row_number() OVER rows = {size} AS is_last,
            CASE WHEN {in_one} THEN {_SHORT_STEP} ELSE {_LONG_STEP} END AS next
        FROM (
            SELECT {STAT}, strpos(substr(path, $4::integer), '/') AS slash FROM {names.files}
            WHERE namespace = $1 AND path >= {start} AND path < $3 ORDER BY path LIMIT {size}
        ) AS step WINDOW rows AS (ORDER BY path)
    """
