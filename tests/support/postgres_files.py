"""The rows of a PostgresBackend, read and written by psycopg without deepfs."""

from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import psycopg

__all__ = ["Rows", "fresh_namespace", "peek", "put", "sql"]

_numbers: Final = count()


def fresh_namespace() -> tuple[str, str]:
    """A namespace that no other test of this process uses."""
    return "test", str(next(_numbers))


def sql(dsn: str, statement: Any, *values: Any) -> list[Any]:
    """The rows that a statement returns; it is committed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def put(dsn: str, namespace: str, path: str, data: bytes) -> None:
    """Store a file."""
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" in text:
        text = None
    sql(
        dsn,
        """
        INSERT INTO deepfs.files (namespace, path, content, bytes, created_at, modified_at)
        VALUES (%s, %s, %s, %s, '2020-01-02T03:04:05.000006Z', '2020-01-02T03:04:05.000006Z')
        ON CONFLICT (namespace, path) DO UPDATE
        SET content = excluded.content, bytes = excluded.bytes, version = excluded.version
        """,
        namespace,
        path,
        text,
        data if text is None else None,
    )


def peek(dsn: str, namespace: str, path: str) -> bytes | None:
    """The bytes of a file, or None if there is none."""
    rows = sql(dsn, "SELECT content, bytes FROM deepfs.files WHERE namespace = %s AND path = %s", namespace, path)
    if not rows:
        return None
    content, raw = rows[0]
    return bytes(raw) if content is None else content.encode()


@dataclass(frozen=True)
class Rows:
    """The rows of a namespace."""

    dsn: str
    namespace: str

    def put(self, path: str, data: bytes) -> None:
        """Store a file."""
        put(self.dsn, self.namespace, path, data)

    def peek(self, path: str) -> bytes | None:
        """The bytes of a file, or None if there is none."""
        return peek(self.dsn, self.namespace, path)
