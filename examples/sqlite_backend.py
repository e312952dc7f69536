"""A backend over a blocking driver: the files of one tenant in a SQLite database, shared with other processes.

backend = SqliteBackend("files.db", "alice")
backend.write("/notes/today.md", "- call Ada")
"""

import sqlite3
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from os import PathLike, fspath
from typing import Any

from deepfs.backends.flat import BlockingStorage, Kind, StorageBackend
from deepfs.backends.protocol import Capabilities
from deepfs.text import records
from deepfs.text.flat_tree import Change, ChangedError, FileStat
from deepfs.types import FileDataV2

SCHEMA = """
    CREATE TABLE IF NOT EXISTS file (
        tenant TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL,
        created_at TEXT, modified_at TEXT, encoding TEXT NOT NULL, content TEXT NOT NULL,
        PRIMARY KEY (tenant, path)
    ) WITHOUT ROWID
"""
MOST_PARAMETERS = 900
"""SQLite may refuse more than 999 parameters."""


class SqliteFiles(BlockingStorage):
    """The files of a tenant, for one operation: a connection and a transaction of its own."""

    failures = (sqlite3.Error,)

    def __init__(self, file: str, tenant: str) -> None:
        self.file, self.tenant = file, tenant

    @contextmanager
    def transaction(self, kind: Kind) -> Iterator[None]:
        # `timeout=0`: waiting here for another process's lock would occupy the worker thread.
        with closing(sqlite3.connect(self.file, timeout=0, isolation_level=None)) as self.connection:
            self.connection.execute("PRAGMA journal_mode = WAL")  # Readers and a writer do not block each other.
            self.connection.execute(SCHEMA)
            # A change locks the database before it reads, so that what it read is still true when it writes.
            self.connection.execute("BEGIN IMMEDIATE" if kind == "change" else "BEGIN")
            yield
            self.connection.execute("COMMIT")  # After an error, closing rolls back.

    def translate(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return ChangedError("/")  # The operation is retried after a pause.
        return super().translate(error)

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: FileStat(*seen) for path, *seen in self.rows(paths, "path, size, modified_at, created_at")}

    def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        rows = self.rows(paths, "path, content, encoding, created_at, modified_at")
        return {path: FileDataV2(*fields) for path, *fields in rows}

    def rows(self, paths: Sequence[str], columns: str) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(paths), MOST_PARAMETERS):
            part = paths[start : start + MOST_PARAMETERS]
            marks = ",".join("?" * len(part))
            query = f"SELECT {columns} FROM file WHERE tenant = ? AND path IN ({marks})"
            yield from self.connection.execute(query, (self.tenant, *part))

    def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        after = prefix[:-1] + chr(ord("/") + 1)
        rows = self.connection.execute(
            "SELECT path, size, modified_at, created_at FROM file WHERE tenant = ? AND path >= ? AND path < ? LIMIT ?",
            (self.tenant, prefix, after, -1 if limit is None else limit),
        )
        return {path: FileStat(*seen) for path, *seen in rows}

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.connection.execute("DELETE FROM file WHERE tenant = ? AND path = ?", (self.tenant, change.path))
            if (data := change.after) is not None:
                row = (records.size_of(data), data.created_at, data.modified_at, data.encoding, data.content)
                self.connection.execute(
                    "INSERT INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", (self.tenant, change.path, *row)
                )


class SqliteBackend(StorageBackend):
    """Files in a SQLite database. No edit is lost, even if several processes edit a file."""

    capabilities = Capabilities(durable=True)

    def __init__(self, file: str | PathLike[str], tenant: str, *, max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self.file, self.tenant = fspath(file), tenant

    def _storage(self) -> SqliteFiles:
        return SqliteFiles(self.file, self.tenant)

    def _scope(self) -> Hashable:
        return "sqlite", self.file, self.tenant
