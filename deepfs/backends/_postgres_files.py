"""The files of one namespace in PostgreSQL: the primitives of a storage, and changes that are made once or not at all.

A change carries a number that no other change has, drawn from a sequence beforehand: the version of the rows that it
writes. The same statement or transaction adds the number to a journal. If the answer is lost, the client adds the
number itself. If it is there already, the change was made. If not, the change can no longer be made, because the number
can be added only once, so it is safe to send it again.
"""

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import anyio
from msgspec import Struct

from deepfs.backends._postgres_client import Client, Sent, failure_of, is_transient
from deepfs.backends._postgres_schema import Names
from deepfs.backends.flat_storage import AsyncStorage, Listing
from deepfs.errors import BackendError, DeepFSError, InvalidContentError, InvalidPathError
from deepfs.text import records
from deepfs.text.edits import MAX_EDITED_BYTES
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles
from deepfs.text.lines import is_text
from deepfs.types import FileDataV2

__all__ = [
    "MAX_KEY_BYTES",
    "STAT",
    "Changes",
    "PostgresFiles",
    "behind",
    "check_key",
    "contents",
    "end_of",
    "has_key",
    "stat_of_row",
]

MAX_KEY_BYTES: Final = 2_600
"""The most bytes of a namespace and a path together: an entry of an index has at most 2,704."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""How much content one statement carries, unless a single file has more."""
_RESERVE: Final = 32
"""How many numbers are drawn at once."""
_JOURNAL: Final = 64
"""How many entries of the journal are removed at once."""


def _known_time(column: str) -> str:
    """A column without times that Python does not know, which other programs may store: infinity, or before Christ."""
    known = f"{column} >= '0002-01-01Z'::timestamptz AND {column} < '9999-01-01Z'::timestamptz"
    return f"CASE WHEN {known} THEN {column} END AS {column}"


_TIMES: Final = f"{_known_time('modified_at')}, {_known_time('created_at')}"
STAT: Final = f"path, size, {_TIMES}, version, mime_type"
_BEHIND: Final = "\x01"
"""Appended to a path, it gives the first text behind the path, since NUL is in no text."""


def check_key(namespace: str, path: str) -> None:
    """Raise InvalidPathError if no index can hold the key of the file."""
    if not has_key(namespace, path):
        raise InvalidPathError(path, f"it is too long for this storage, whose limit is {MAX_KEY_BYTES:,} bytes")


def has_key(namespace: str, path: str) -> bool:
    """Whether an index can hold the key of a file, so that there may be one."""
    return len(namespace) + len(path.encode()) <= MAX_KEY_BYTES


def end_of(prefix: str) -> str:
    """The first text behind all that begin with `prefix`, a directory with `/` at the end."""
    return f"{prefix[:-1]}0"


def behind(path: str) -> str:
    """The first text behind `path`."""
    return path + _BEHIND


# --- rows ------------------------------------------------------------------------------------------------------------


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")


def _time(text: str | None) -> datetime:
    """The time for the database; now for a text of another program that is none."""
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)


def stat_of_row(row: Any) -> FileStat:
    """The stat of a row with the columns `STAT`."""
    times = _time_text(row["modified_at"]), _time_text(row["created_at"])
    return FileStat(row["size"], *times, row["version"], row["mime_type"])


def _file_of_row(row: Any) -> FileDataV2:
    content = row["content"]
    times = _time_text(row["created_at"]), _time_text(row["modified_at"])
    if content is None:
        return FileDataV2(b64encode(row["bytes"]).decode("ascii"), "base64", *times, row["mime_type"])
    return FileDataV2(content, "utf-8", *times, row["mime_type"])


class _Row(Struct, frozen=True):
    """What is stored of a file."""

    path: str
    content: str | None
    bytes: bytes | None
    mime_type: str | None
    created_at: datetime
    modified_at: datetime

    @property
    def values(self) -> tuple[Any, ...]:
        return self.path, self.content, self.bytes, self.mime_type, self.created_at, self.modified_at

    @property
    def size(self) -> int:
        return len(self.path) + len(self.content or "") + len(self.bytes or b"")


def _row_of(path: str, data: FileDataV2) -> _Row:
    content = data.content if data.encoding == "utf-8" else None
    if content is not None and not is_text(content):
        raise InvalidContentError(path, "it holds NUL or half a surrogate pair, and this storage cannot")
    mime_type = data.mime_type if data.mime_type is not None and is_text(data.mime_type) else None
    raw = records.content_bytes(data, path) if content is None else None
    return _Row(path, content, raw, mime_type, _time(data.created_at), _time(data.modified_at))


# --- changes ---------------------------------------------------------------------------------------------------------


class Prepared:
    """A change of one or more files, as statements."""

    in_transaction = False

    def __init__(self, names: Names, namespace: str) -> None:
        self.names = names
        self.namespace = namespace

    async def run(self, number: int, connection: Any) -> bool:
        """Send the statements; return whether a file changed. Raises ChangedError if the change is refused."""
        raise NotImplementedError


def _noted(names: Names, statement: str) -> str:
    """`statement`, which changes at most one row, with an entry in the journal if it does. $1 and $2 are the key."""
    return f"""
        WITH done AS ({statement} RETURNING 1),
        noted AS (INSERT INTO {names.journal} (change, namespace) SELECT $2::bigint, $1::text FROM done RETURNING 1)
        SELECT count(*) FROM noted
    """


_COLUMNS: Final = "path, content, bytes, mime_type, created_at, modified_at"
_REPLACED: Final = ", ".join(
    f"{name} = excluded.{name}" for name in ("content", "bytes", "mime_type", "created_at", "modified_at", "version")
)


class OneChange(Prepared):
    """A change of one file, in one statement."""

    def __init__(self, names: Names, namespace: str, change: Change) -> None:
        super().__init__(names, namespace)
        self.change = change
        self.row = None if change.after is None else _row_of(change.path, change.after)

    async def run(self, number: int, connection: Any) -> bool:
        condition, origin = self.change.condition, self.change.origin
        statement, values = self._removal() if self.row is None else self._storing(self.row)
        given = (*values, origin) if condition == "version" else values
        is_done = bool(await connection.fetchval(_noted(self.names, statement), self.namespace, number, *given))
        if not is_done and condition != "replace":
            raise ChangedError(self.change.path)
        return is_done

    def _removal(self) -> tuple[str, tuple[Any, ...]]:
        same = "AND version = $4::bigint" if self.change.condition == "version" else ""
        where = f"namespace = $1::text AND path = $3::text {same}"
        return f"DELETE FROM {self.names.files} WHERE {where}", (self.change.path,)

    def _storing(self, row: _Row) -> tuple[str, tuple[Any, ...]]:
        values = "$3::text, $4::text, $5::bytea, $6::text, $7::timestamptz, $8::timestamptz"
        if self.change.condition == "version":
            statement = f"""
                UPDATE {self.names.files} SET ({_COLUMNS}, version) = ({values}, $2::bigint)
                WHERE namespace = $1::text AND path = $3::text AND version = $9::bigint
            """
        else:
            others = "NOTHING" if self.change.condition == "create" else f"UPDATE SET {_REPLACED}"
            statement = f"""
                INSERT INTO {self.names.files} (namespace, version, {_COLUMNS})
                VALUES ($1::text, $2::bigint, {values}) ON CONFLICT (namespace, path) DO {others}
            """
        return statement, row.values


class ReplacedText(Prepared):
    """An edit that replaces a text which occurs once, in one statement that reads and writes the file.

    It changes nothing if the text does not occur, or more than once, if overlapping occurrences count, or if the file
    has line ends that need care.
    """

    def __init__(self, names: Names, namespace: str, path: str, old: str, new: str) -> None:
        super().__init__(names, namespace)
        growth = len(new.encode()) - len(old.encode())
        most = MAX_EDITED_BYTES - growth if growth > 0 else _ANY_SIZE
        any_ends = "\r" in old or ("\n" not in old and "\n" not in new)
        self.values = path, old, new, datetime.now(UTC), most, any_ends

    async def run(self, number: int, connection: Any) -> bool:
        place = "strpos(content, $4::text)"
        statement = f"""
            UPDATE {self.names.files}
            SET content = replace(content, $4::text, $5::text), version = $2::bigint, modified_at = $6::timestamptz
            WHERE namespace = $1::text AND path = $3::text AND content IS NOT NULL AND size <= $7::bigint
                AND {place} > 0 AND strpos(substr(content, {place} + 1), $4::text) = 0
                AND ($8::boolean OR strpos(content, chr(13) || chr(10)) = 0)
        """
        return bool(await connection.fetchval(_noted(self.names, statement), self.namespace, number, *self.values))


_ANY_SIZE: Final = 2**62


class ManyChanges(Prepared):
    """Changes of several files in one transaction. Rows are locked in the order of their paths."""

    in_transaction = True

    def __init__(self, names: Names, namespace: str, changes: Sequence[Change]) -> None:
        super().__init__(names, namespace)
        self.changes = sorted(changes, key=lambda change: change.path)
        self.rows = {change.path: _row_of(change.path, change.after) for change in changes if change.after is not None}

    async def run(self, number: int, connection: Any) -> bool:
        await self._check(connection)
        removed = [change.path for change in self.changes if change.after is None]
        if removed:
            remove = f"DELETE FROM {self.names.files} WHERE namespace = $1 AND path = ANY($2)"
            await connection.execute(remove, self.namespace, removed)
        created = [change.path for change in self.changes if change.after and change.condition == "create"]
        replaced = [change.path for change in self.changes if change.after and change.condition != "create"]
        await self._store(connection, number, created, "")
        await self._store(connection, number, replaced, f"ON CONFLICT (namespace, path) DO UPDATE SET {_REPLACED}")
        note = f"INSERT INTO {self.names.journal} (change, namespace) VALUES ($1, $2)"
        await connection.execute(note, number, self.namespace)
        return True

    async def _check(self, connection: Any) -> None:
        """Lock the rows, and raise ChangedError unless the condition of each change holds."""
        lock = _each(self.names, "path, version", "FOR UPDATE")
        rows = await connection.fetch(lock, self.namespace, [change.path for change in self.changes])
        versions = {row["path"]: row["version"] for row in rows}
        for change in self.changes:
            is_new = change.condition == "create" and change.path in versions
            if is_new or (change.condition == "version" and versions.get(change.path) != change.origin):
                raise ChangedError(change.path)

    async def _store(self, connection: Any, number: int, paths: Sequence[str], conflict: str) -> None:
        statement = f"""
            INSERT INTO {self.names.files} (namespace, version, {_COLUMNS})
            SELECT $1::text, $2::bigint, given.* FROM unnest(
                $3::text[], $4::text[], $5::bytea[], $6::text[], $7::timestamptz[], $8::timestamptz[]
            ) AS given ORDER BY 3 {conflict}
        """
        for batch in _batches([self.rows[path] for path in paths]):
            columns = zip(*(row.values for row in batch), strict=True)
            await connection.execute(statement, self.namespace, number, *map(list, columns))


def _batches(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """The rows in batches of a total size that one statement may carry."""
    batch: list[_Row] = []
    held = 0
    for row in rows:
        if batch and held + row.size > _MOST_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += row.size
    if batch:
        yield batch


class Changes:
    """The changes of all backends over one client: their numbers, and whether each was made."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._numbers: list[int] = []
        self._process = os.getpid()
        self._known: list[int] = []
        """Numbers in the journal that nobody will ask for."""

    async def make(self, change: Prepared) -> bool:
        """Make a change once; if the answer is lost, find out whether it was made, and send it again if not.

        Args:
            change: The change.

        Returns:
            Whether it changed anything.

        Raises:
            ChangedError: It was refused, since the files are no longer as they were read.
            BackendError: The storage failed; then nothing was changed, unless the text says that this is not known.
        """
        namespace, requests = change.namespace, self.client.requests
        failure: Exception | None = None
        for failed in range(requests.policy.attempts):
            if failed:
                await anyio.sleep(requests.policy.delay(failed))
            number, sent = await self._number(namespace), Sent()
            try:
                made = await self.client.change(
                    namespace, partial(change.run, number), sent, in_transaction=change.in_transaction
                )
            except Exception as error:
                if not (is_transient(error) or isinstance(error, TimeoutError)):
                    raise _raised(error)  # noqa: B904  # It has its cause.
                if sent.began and await self._was_made(namespace, number, error):
                    return True
                failure = error
            else:
                await self._note(namespace, number)
                return made
        assert failure is not None
        raise _raised(failure)

    async def _number(self, namespace: str) -> int:
        if self._process != os.getpid():  # The numbers belong to the process that this one was forked from.
            self._numbers, self._process = [], os.getpid()
        try:
            return self._numbers.pop()
        except IndexError:
            rows = await self.client.ask(namespace, self._drawn)
        numbers = [row["number"] for row in rows]
        number: int = numbers.pop()
        self._numbers += numbers
        return number

    async def _drawn(self, connection: Any) -> Any:
        # Entries that their processes left behind are removed on the way. The oldest ones have the smallest numbers.
        draw = f"""
            WITH oldest AS MATERIALIZED (
                SELECT change FROM {self.client.names.journal} ORDER BY change LIMIT {_JOURNAL} FOR UPDATE SKIP LOCKED
            ), left_behind AS (
                DELETE FROM {self.client.names.journal}
                WHERE change IN (SELECT change FROM oldest) AND made_at < now() - interval '1 day'
            )
            SELECT nextval($1::text::regclass) AS number FROM generate_series(1, $2::integer)
        """
        return await connection.fetch(draw, self.client.names.versions, _RESERVE)

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
            reason = f"The answer was lost, so it is not known whether the change was made ({type(error).__name__})"
            raise BackendError(None, reason) from failed
        if was_made:
            await self._note(namespace, number)
        # Else the entry stays: the lost statement may wait for a lock in the server, and must not be made after all.
        return was_made

    async def _note(self, namespace: str, number: int) -> None:
        """Remove entries of the journal that are no longer needed, some of them at once."""
        self._known.append(number)
        if len(self._known) < _JOURNAL:
            return
        known, self._known = self._known, []
        forget = f"DELETE FROM {self.client.names.journal} WHERE change = ANY($1)"
        with suppress(DeepFSError):  # The change itself was made.
            await self.client.ask(namespace, lambda connection: connection.execute(forget, known))


def _raised(error: Exception) -> Exception:
    """The error to raise for that of a change."""
    return failure_of(error)


# --- the storage -----------------------------------------------------------------------------------------------------


class PostgresFiles(AsyncStorage):
    """The files of a namespace, for one operation."""

    def __init__(self, changes: Changes, namespace: str) -> None:
        self.changes = changes
        self.client = changes.client
        self.names = changes.client.names
        self.namespace = namespace

    def failed(self, error: Exception) -> Exception:
        return failure_of(error)

    async def rows(self, query: str, *values: Any) -> Any:
        """The rows that a query returns; its first parameter is the namespace."""
        return await self.client.ask(
            self.namespace, lambda connection: connection.fetch(query, self.namespace, *values)
        )

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        wanted = [path for path in paths if has_key(self.namespace, path)]
        return _stats(await self.rows(_each(self.names, STAT), wanted))

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        wanted = [path for path in paths if has_key(self.namespace, path)]
        rows = await self.rows(_each(self.names, f"path, version, content, bytes, mime_type, {_TIMES}"), wanted)
        files = {row["path"]: _file_of_row(row) for row in rows}
        return TaggedFiles(files, {row["path"]: row["version"] for row in rows})

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        query = f"""
            SELECT {STAT} FROM {self.names.files} WHERE namespace = $1 AND path >= $2 AND path < $3
            ORDER BY path LIMIT $4
        """
        return _stats(await self.rows(query, prefix, end_of(prefix), limit))

    async def children(self, prefix: str) -> Listing:
        query = _children(self.names)
        return _stats(await self.rows(query, prefix, end_of(prefix), len(prefix) + 1))

    async def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            check_key(self.namespace, change.path)
        if len(changes) == 1:
            await self.changes.make(OneChange(self.names, self.namespace, changes[0]))
        elif changes:
            await self.changes.make(ManyChanges(self.names, self.namespace, changes))

    async def replace_once(self, path: str, old: str, new: str) -> bool:
        """Replace a text in a file if that is simple; return whether it was."""
        return await self.changes.make(ReplacedText(self.names, self.namespace, path, old, new))


def _each(names: Names, columns: str, lock: str = "") -> str:
    """The rows at the paths $2, in the order of the paths, each by one look into the index of the key.

    A comparison with ANY would make the planner choose, and read the whole namespace where the table is new to it.
    """
    return f"""
        SELECT file.* FROM unnest($2::text[]) AS wanted CROSS JOIN LATERAL (
            SELECT {columns} FROM {names.files} WHERE namespace = $1 AND path = wanted LIMIT 1 {lock}
        ) AS file
    """


async def contents(client: Client, namespace: str, paths: Sequence[str]) -> dict[str, bytes]:
    """The contents of those of the files that are small.

    Args:
        client: The client of the database.
        namespace: The namespace.
        paths: The paths of the files.
    """
    query = _each(client.names, f"path, content, bytes, size <= {_MOST_HASHED} AS is_small")
    columns = "path, CASE WHEN is_small THEN content END AS content, CASE WHEN is_small THEN bytes END AS bytes"
    rows = await client.ask(
        namespace, lambda connection: connection.fetch(f"SELECT {columns} FROM ({query}) AS file", namespace, paths)
    )
    found = ((row["path"], row["bytes"] if row["content"] is None else row["content"].encode()) for row in rows)
    return {path: content for path, content in found if content is not None}


_MOST_HASHED: Final = 65_536


def _stats(rows: Any) -> dict[str, FileStat]:
    return {row["path"]: stat_of_row(row) for row in rows}


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


_LONG_STEP: Final = 100
_SHORT_STEP: Final = 12
"""How many rows to read after a step that found one subdirectory only: the next one is probably as large."""


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
