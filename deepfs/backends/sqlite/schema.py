"""The tables of a SQLite database of files, and its search index: how they are made, kept current and checked.

Adding one file to an index of FTS5 costs several times as much as storing it, and much less if others are added with
it. So a change only notes that the file has to be indexed, in the table `pending`, and the index takes many such files
at once. Searches look at the files that are noted one by one.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from logging import getLogger
from typing import Final, TypeVar

from deepfs.errors import BackendError

T = TypeVar("T")

_log = getLogger("deepfs")

INDEXED_BYTES: Final = 256 * 1024
"""The largest text that is in the index of contents."""
SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x64656673
"""Identifies a database of deepfs: "defs" in ASCII."""

_OLDEST: Final = (3, 24, 0)
"""The oldest SQLite that is used."""

_MOST_PENDING: Final = 64
"""How many files are indexed at once."""
_MOST_PENDING_BYTES: Final = 1024 * 1024
"""About how many bytes of contents may wait to be indexed, since each search reads them."""
PART_BYTES: Final = 8 * 1024 * 1024
"""About how many bytes one transaction adds to the index, since other processes wait meanwhile."""
_FILE_COST: Final = 1024
"""The bytes as which a file counts besides its contents."""


# --- the tables -------------------------------------------------------------------------------------------------------

_UNINDEXED: Final = f"content IS NULL OR size > {INDEXED_BYTES}"

# Columns that listings need come before the contents: what follows a long value takes many pages to reach.
_SCHEMA: Final = (
    """
    CREATE TABLE files (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        path TEXT NOT NULL,
        size INTEGER NOT NULL,
        version INTEGER NOT NULL DEFAULT 0,
        created_at TEXT,
        modified_at TEXT,
        mime_type TEXT,
        content TEXT,
        bytes BLOB,
        UNIQUE (namespace, path),
        CHECK ((content IS NULL) <> (bytes IS NULL))
    )
    """,
    f"CREATE INDEX unindexed_files ON files (namespace, path) WHERE {_UNINDEXED}",
    "CREATE TABLE state (last_version INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0)",
)


_INDEXED_CONTENT: Final = f"CASE WHEN {{row}}.size <= {INDEXED_BYTES} THEN {{row}}.content END"
# What is noted already stays, since the index has that. The size is the largest that the file had in between.
_NOTED: Final = "ON CONFLICT (id) DO UPDATE SET size = max(size, excluded.size)"
_NOTE_NEW: Final = f"INSERT INTO pending (id, size) VALUES (new.id, new.size) {_NOTED}"
_NOTE_OLD: Final = f"""
    INSERT INTO pending (id, size, path, content)
    VALUES (old.id, old.size, old.path, {_INDEXED_CONTENT.format(row="old")}) {_NOTED}
"""
# `INSERT OR REPLACE` and `UPDATE OR REPLACE` remove rows without a trigger for deleted ones.
_NOTE_REPLACED: Final = f"""
    INSERT INTO pending (id, size, path, content)
    SELECT id, size, path, {_INDEXED_CONTENT.format(row="files")} FROM files
    WHERE id = new.id OR (namespace = new.namespace AND path = new.path) {_NOTED}
"""
_TRIGGERS: Final = {
    "file_inserted": f"AFTER INSERT ON files BEGIN {_NOTE_NEW}; END",
    "file_deleted": f"AFTER DELETE ON files BEGIN {_NOTE_OLD}; END",
    "file_updated": f"AFTER UPDATE OF id, path, content, size ON files BEGIN {_NOTE_OLD}; {_NOTE_NEW}; END",
    "file_replaced": f"BEFORE INSERT ON files BEGIN {_NOTE_REPLACED}; END",
    "file_displaced": f"BEFORE UPDATE OF id, namespace, path ON files BEGIN {_NOTE_REPLACED}; END",
}

# The triggers also see the changes of programs that use the tables by themselves. `detail = none` makes the smallest
# index. It cannot tell where trigrams are, so the query has all of those of a text.
_INDEX: Final = (
    "CREATE TABLE pending (id INTEGER PRIMARY KEY, size INTEGER NOT NULL, path TEXT, content TEXT)",
    f"CREATE VIEW indexed_contents AS SELECT id, content FROM files WHERE NOT ({_UNINDEXED})",
    """
    CREATE VIRTUAL TABLE content_index USING fts5 (
        content, content = 'indexed_contents', content_rowid = 'id',
        tokenize = 'trigram', detail = 'none', columnsize = 0
    )
    """,
    """
    CREATE VIRTUAL TABLE path_index USING fts5 (
        path, content = 'files', content_rowid = 'id', tokenize = 'trigram', detail = 'none', columnsize = 0
    )
    """,
    *(f"CREATE TRIGGER {name} {definition}" for name, definition in _TRIGGERS.items()),
    # Parts of the index are merged later than by default: writes take less time, searches hardly more.
    "INSERT INTO content_index (content_index, rank) VALUES ('automerge', 8)",
    "INSERT INTO content_index (content_index) VALUES ('rebuild')",
    "INSERT INTO path_index (path_index) VALUES ('rebuild')",
)
_INDEX_NAMES: Final = ("content_index", "path_index")
_PARTS: Final = (*_INDEX_NAMES, "pending", "indexed_contents", *_TRIGGERS)
_NO_INDEX: Final = (
    *(f"DROP TRIGGER IF EXISTS {name}" for name in _TRIGGERS),
    *(f"DROP TABLE IF EXISTS {table}" for table in (*_INDEX_NAMES, "pending")),
    "DROP VIEW IF EXISTS indexed_contents",
)
"""Removes an index of which a part is missing."""


# --- the index --------------------------------------------------------------------------------------------------------

_CONTENT: Final = "(SELECT content FROM indexed_contents WHERE id = pending.id)"
_PATH: Final = "(SELECT path FROM files WHERE id = pending.id)"

# With joins instead of these subqueries, SQLite might read all files to find the few that are pending.
_INDEX_PENDING: Final = (
    *(
        f"INSERT INTO {index} {columns} SELECT {values} FROM pending "
        f"WHERE id <= ? AND {value} IS NOT NULL AND {column} IS NOT {now}"
        for index, column, now in (("content_index", "content", _CONTENT), ("path_index", "path", _PATH))
        for columns, values, value in (
            (f"({index}, rowid, {column})", f"'delete', id, {column}", column),
            (f"(rowid, {column})", f"id, {now}", now),
        )
    ),
    "DELETE FROM pending WHERE id <= ?",
)


def index_pending(connection: sqlite3.Connection, part: int) -> None:
    """Bring the index up to date if many files are pending; one transaction adds about `part` bytes.

    If that fails, as when the index is damaged or the disk is full, the files stay pending, and searches find them. The
    connection is in no transaction: what was stored must not depend on the index.
    """
    try:
        while _is_due(connection):
            _in_transaction(connection, "BEGIN IMMEDIATE", partial(_index_part, part))
    except sqlite3.Error as error:
        if code_of(error) != sqlite3.SQLITE_BUSY:  # The process that has locked the database tries it next.
            _say_not_indexed()


def _is_due(connection: sqlite3.Connection) -> bool:
    count, size = connection.execute("SELECT count(*), total(size) FROM pending").fetchone()
    return bool(count >= _MOST_PENDING or size >= _MOST_PENDING_BYTES)


def _index_part(part: int, connection: sqlite3.Connection) -> None:
    """Index the first pending files."""
    cost, last = 0, _LAST_ID
    for number, size in connection.execute("SELECT id, coalesce(CAST(size AS INTEGER), 0) FROM pending ORDER BY id"):
        cost, last = cost + size + _FILE_COST, number
        if cost >= part:
            break
    _index(connection, last)


_LAST_ID: Final = 2**63 - 1


def _index(connection: sqlite3.Connection, last: int = _LAST_ID) -> None:
    """Index the pending files whose numbers are at most `last`."""
    for statement in _INDEX_PENDING:
        connection.execute(statement, (last,))


INDEX_FAILURES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
"""The codes of errors of an index that is damaged or missing."""


def find_outdated(connection: sqlite3.Connection) -> list[str]:
    """The indexes that do not agree with the files and what is pending. The caller rolls its transaction back."""
    try:
        _index(connection)
    except sqlite3.Error as error:
        if code_of(error) not in INDEX_FAILURES:
            raise
    return [index for index in _INDEX_NAMES if not _is_current(connection, index)]


def _is_current(connection: sqlite3.Connection, index: str) -> bool:
    try:
        connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        if code_of(error) not in INDEX_FAILURES:
            raise
        return False
    return True


# --- making them ------------------------------------------------------------------------------------------------------


@cache
def check_sqlite() -> None:
    """Raise BackendError if this SQLite is too old."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise BackendError(None, f"SQLite {sqlite3.sqlite_version} is too old: 3.24 or later is needed")


def prepare(connection: sqlite3.Connection) -> bool:
    """Bring the schema up to date; return whether there is a search index that this SQLite can use.

    Raises BackendError if the database is not one of this version, or cannot be shared where its file is.
    """
    if not _in_transaction(connection, "BEGIN", _schema_version):
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BackendError(None, "The database cannot be shared where its file is: it must be on a local disk")
        _in_transaction(connection, "BEGIN IMMEDIATE", _create)
    has_index = _has_index(connection) or (_offers_trigrams() and _add_index(connection))
    if not has_index:
        _say_slower()
    return has_index


def _in_transaction(connection: sqlite3.Connection, begin: str, step: Callable[[sqlite3.Connection], T]) -> T:
    # A change locks the database before it reads, so of several processes that start at once one makes it.
    connection.execute(begin)
    try:
        result = step(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _schema_version(connection: sqlite3.Connection) -> int:
    """The version of the schema; 0 for an empty database. Raises BackendError if it is not one of deepfs."""
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application == _APPLICATION_ID and version <= SCHEMA_VERSION:
        return int(version)
    if application == _APPLICATION_ID:
        raise BackendError(None, "The database was made by a later version of deepfs")
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or version or tables:
        raise BackendError(None, "The file is a database of another program")
    return 0


def check_current(connection: sqlite3.Connection) -> None:
    """Raise BackendError if the database is none of this version by now."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        _schema_version(connection)


def _create(connection: sqlite3.Connection) -> None:
    if _schema_version(connection) > 0:  # Another process was faster.
        return
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    if _offers_trigrams():
        _create_index(connection)


def _add_index(connection: sqlite3.Connection) -> bool:
    """Add the index to a database that was made without it; return False if the database is read-only."""
    try:
        _in_transaction(connection, "BEGIN IMMEDIATE", _create_index)
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_READONLY:
            raise
        return False
    return True


def _create_index(connection: sqlite3.Connection) -> None:
    if not _has_index(connection):
        for statement in (*_NO_INDEX, *_INDEX):
            connection.execute(statement)


def _has_index(connection: sqlite3.Connection) -> bool:
    found = connection.execute(f"SELECT count(*) FROM sqlite_master WHERE name IN {_PARTS}")
    return bool(found.fetchone()[0] == len(_PARTS)) and _offers_trigrams()


@cache
def _offers_trigrams() -> bool:
    """Whether this SQLite has FTS5 with the trigram tokenizer, as most builds since 3.34 have."""
    with closing(sqlite3.connect(":memory:")) as memory:
        try:
            memory.execute("CREATE VIRTUAL TABLE tried USING fts5 (text, tokenize = 'trigram', detail = 'none')")
        except sqlite3.OperationalError:
            return False
    return True


@cache
def _say_slower() -> None:
    _log.warning("This SQLite has no FTS5 with trigrams, so searches read every file. Results are the same.")


@cache
def _say_not_indexed() -> None:
    _log.warning("Changed files cannot be added to the search index, so searches become slower. `acheck` tells more.")


def code_of(error: sqlite3.Error) -> int:
    """The primary code of an error of SQLite; 0 if it has none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
