"""Direct access to the database of a `SqliteBackend`, by the driver and by a schema of its own making."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from deepfs.backends.sqlite import SqliteBackend

__all__ = ["RawSqlite", "rows"]

_PUT_AT = "2020-01-02T03:04:05.000006+00:00"


def rows(file: Path, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """The rows that a statement returns on a connection of its own, which commits."""
    with closing(sqlite3.connect(file, timeout=10)) as connection, connection:
        return connection.execute(statement, parameters).fetchall()


class RawSqlite:
    """The files of one namespace in a database, which is made as the first operation would make it."""

    def __init__(self, file: Path, namespace: str = "files") -> None:
        self.file, self.namespace = file, namespace

    def put(self, path: str, data: bytes) -> None:
        """Store a file without the backend."""
        with SqliteBackend(self.file) as backend:
            backend.ls("/")
        text = _text(data)
        row = (self.namespace, path, len(data), _PUT_AT, _PUT_AT, text, data if text is None else None)
        rows(self.file, "DELETE FROM files WHERE namespace = ? AND path = ?", row[:2])
        columns = "namespace, path, size, created_at, modified_at, content, bytes"
        rows(self.file, f"INSERT INTO files ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def peek(self, path: str) -> bytes | None:
        """The bytes of a file, or None if there is none."""
        if not self.file.exists() or not rows(self.file, "SELECT 1 FROM sqlite_master"):
            return None
        query = "SELECT coalesce(bytes, CAST(content AS BLOB)) FROM files WHERE namespace = ? AND path = ?"
        found = rows(self.file, query, (self.namespace, path))
        return found[0][0] if found else None


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
