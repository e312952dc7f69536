"""The files of one namespace in PostgreSQL as flat storage."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deepfs.backends.postgres.changes import Changes, ManyChanges, OneChange, ReplacedText
from deepfs.backends.postgres.client import Client, failure_of
from deepfs.backends.postgres.rows import (
    FILE,
    STAT,
    check_key,
    file_of_row,
    has_key,
    rows_at,
    stats_of_rows,
)
from deepfs.backends.postgres.schema import Names
from deepfs.storage.runners import AsyncStorage, Listing
from deepfs.text.flat_tree import Change, FileStat, TaggedFiles
from deepfs.text.paths import end_of
from deepfs.types import FileDataV2

_HASHED_BYTES: Final = 65_536
"""The largest file whose version an event of `awatch` tells."""
_LONG_STEP: Final = 100
"""How many rows a step reads."""
_SHORT_STEP: Final = 12
"""How many it reads after one that found one subdirectory only: the next one is probably as large."""


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
        return stats_of_rows(await self.rows(query, prefix, end_of(prefix), limit))

    async def children(self, prefix: str) -> Listing:
        query = _children(self.names)
        return stats_of_rows(await self.rows(query, prefix, end_of(prefix), len(prefix) + 1))

    async def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            check_key(self.namespace, change.path)
        if len(changes) == 1:
            await self.changes.make(OneChange(self.names, self.namespace, changes[0]))
        elif changes:
            await self.changes.make(ManyChanges(self.names, self.namespace, changes))

    async def replace_once(self, path: str, old: str, new: str) -> bool:
        """Replace a text in a file in one round trip; return False, with nothing changed, where this cannot be done."""
        return await self.changes.make(ReplacedText(self.names, self.namespace, path, old, new))


# --- queries ---------------------------------------------------------------------------------------------------------


async def small_contents(client: Client, namespace: str, paths: Sequence[str]) -> dict[str, bytes]:
    """The contents of the files, but for large ones.

    Args:
        client: The client of the database.
        namespace: The namespace.
        paths: The paths of the files.
    """
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
