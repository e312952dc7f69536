"""The tables of a PostgresBackend: their names, the migrations that make them, what a server can do, and the rows."""

from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, Final

from msgspec import Struct

from deepfs.errors import BackendError, InvalidContentError, InvalidPathError
from deepfs.text import records
from deepfs.text.flat_tree import FileStat
from deepfs.text.lines import is_text
from deepfs.types import FileDataV2

SMALL: Final = 262_144
"""Texts of up to so many bytes are in the trigram index."""
INDEXED: Final = f"content IS NOT NULL AND size <= {SMALL}"
"""Which files are in the trigram index. Queries that use a partial index must have its condition."""
UNINDEXED: Final = f"content IS NULL OR size > {SMALL}"
ODD: Final = "strpos(content, chr(8490)) > 0 OR strpos(content, chr(383)) > 0"
"""Which files contain U+212A or U+017F, which a search that ignores case takes for `k` and `s`."""
_MAX_NAME_BYTES: Final = 40


class Names:
    """The names in SQL of the tables and indexes, made from those of the schema and of the table of files."""

    def __init__(self, schema: str, table: str) -> None:
        for what, name in (("schema", schema), ("table", table)):
            if not isinstance(name, str):
                raise TypeError(f"the {what} is a string, not {type(name).__name__}")
            if not name or "\0" in name or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
                raise ValueError(f"the name of the {what} must have 1 to {_MAX_NAME_BYTES} bytes, and no NUL")
        self.schema: str = schema
        self.table: str = table
        self.files: str
        self.versions: str
        self.journal: str
        self.watchers: str
        self.migrations: str
        self.notify: str
        self.files, self.versions, self.journal, self.watchers, self.migrations, self.notify = (
            f"{_identifier(schema)}.{self.index(suffix)}"
            for suffix in ("", "_version", "_journal", "_watcher", "_migration", "_notify")
        )

    def index(self, suffix: str) -> str:
        """The quoted name of an index, which is in the schema of its table."""
        return _identifier(f"{self.table}{suffix}")

    def channel(self, namespace: str) -> str:
        """The channel on which changes in a namespace are announced."""
        named = f"{self.schema}.{self.table}/{namespace}"
        return f"deepfs_{md5(named.encode(), usedforsecurity=False).hexdigest()}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A literal of SQL, whatever the server takes a backslash for."""
    return " E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


class Abilities(Struct, frozen=True):
    """What a database can do for searches, and how it separates tenants."""

    has_trigrams: bool = False
    folds_i: bool = True
    """Whether it takes `i` for the lower case of `I`, as Turkish does not."""
    only_ascii: bool = False
    """Whether only letters of ASCII count as letters, so that others are in no trigram."""
    row_level_security: bool = False


# --- migrations ------------------------------------------------------------------------------------------------------


def _first(names: Names) -> list[str]:
    return [
        f"CREATE SEQUENCE {names.versions} AS bigint",
        f"""
        CREATE TABLE {names.files} (
            namespace text COLLATE "C" NOT NULL,
            path text COLLATE "C" NOT NULL CHECK (path ~ '^(/[^/]+)+$' AND path !~ '/[.][.]?(/|$)'),
            content text COLLATE "C",
            bytes bytea,
            mime_type text COLLATE "C",
            size bigint GENERATED ALWAYS AS (coalesce(octet_length(content), octet_length(bytes))) STORED,
            version bigint NOT NULL DEFAULT nextval({_text(names.versions)}),
            created_at timestamptz NOT NULL DEFAULT now(),
            modified_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (namespace, path),
            CHECK ((content IS NULL) <> (bytes IS NULL))
        )
        """,
        f"CREATE INDEX {names.index('_unindexed')} ON {names.files} (namespace, path) WHERE {UNINDEXED}",
        f"CREATE INDEX {names.index('_odd')} ON {names.files} (namespace, path) WHERE {INDEXED} AND ({ODD})",
        f"""
        CREATE TABLE {names.journal} (
            change bigint PRIMARY KEY,
            namespace text COLLATE "C" NOT NULL,
            was_made boolean NOT NULL DEFAULT true,
            made_at timestamptz NOT NULL DEFAULT now()
        )
        """,
        f"""
        CREATE TABLE {names.watchers} (
            namespace text COLLATE "C" NOT NULL,
            pid integer NOT NULL,
            PRIMARY KEY (namespace, pid)
        )
        """,
        _notifying_function(names),
        f"""
        CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON {names.files}
        FOR EACH ROW EXECUTE FUNCTION {names.notify}()
        """,
    ]


def _notifying_function(names: Names) -> str:
    """The function of the trigger, which announces changes in namespaces that somebody watches.

    Transactions that notify are committed one at a time by the server, so nobody notifies in vain. The shared lock
    makes a new watcher wait for changes that did not see it. The function has the rights of its owner, since a role
    that changes files need not see who watches.
    """
    place = _text(f"{names.schema}.{names.table}/")

    def notify(kind: str, row: str) -> str:
        return f"""
                channel := 'deepfs_' || md5({place} || {row}.namespace);
                PERFORM pg_advisory_xact_lock_shared(hashtextextended(channel, 0));
                IF EXISTS (SELECT 1 FROM {names.watchers} WHERE namespace = {row}.namespace) THEN
                    PERFORM pg_notify(channel, '{kind} ' || {row}.version || ' ' || {row}.path);
                END IF;
        """

    return f"""
        CREATE OR REPLACE FUNCTION {names.notify}() RETURNS trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
        DECLARE channel text;
        BEGIN
            IF TG_OP = 'INSERT' THEN
                {notify("created", "NEW")}
            ELSIF TG_OP = 'DELETE' THEN
                {notify("deleted", "OLD")}
            ELSIF OLD.path = NEW.path AND OLD.namespace = NEW.namespace THEN
                {notify("modified", "NEW")}
            ELSE
                {notify("deleted", "OLD")}
                {notify("created", "NEW")}
            END IF;
            RETURN NULL;
        END
        $function$
    """


_MIGRATIONS: Final = {1: _first}
_TRIGRAMS: Final = -1
"""The number of the migration that makes the trigram indexes, where the extension is there."""
_SECURITY: Final = -2
"""The number of the migration that turns on row-level security, where the caller asks for it."""


def _trigram_indexes(names: Names, extension: str) -> list[str]:
    operators = f"{_identifier(extension)}.gin_trgm_ops"
    return [
        f"CREATE INDEX {names.index('_path_trigrams')} ON {names.files} USING gin (path {operators})",
        f"""
        CREATE INDEX {names.index("_trigrams")} ON {names.files} USING gin (content {operators})
        WHERE {INDEXED}
        """,
    ]


def _policies(names: Names) -> list[str]:
    own = "namespace = current_setting('deepfs.namespace', true)"
    statements = []
    for table in (names.files, names.journal, names.watchers):
        statements += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON {table} USING ({own}) WITH CHECK ({own})",
        ]
    return statements


# --- applying them ---------------------------------------------------------------------------------------------------


async def prepare(connection: Any, names: Names, *, row_level_security: bool) -> Abilities:
    """Apply the migrations that are missing, and find out what the database can do.

    Nothing is changed in a database that is up to date, so a role without rights to do so can use it. Raises
    BackendError if the database is not encoded in UTF-8.
    """
    facts = await connection.fetchrow(_FACTS)
    if facts["encoding"] != "UTF8":
        raise BackendError(None, f"The database is encoded in {facts['encoding']}; deepfs needs UTF8")
    wanted = {*_MIGRATIONS, _TRIGRAMS, *([_SECURITY] if row_level_security else [])}
    applied = await _find_applied(connection, names)
    if not wanted <= applied:
        applied = await _migrate(connection, names, wanted)
    return Abilities(
        has_trigrams=_TRIGRAMS in applied,
        folds_i=facts["folds_i"],
        only_ascii=facts["only_ascii"],
        row_level_security=await connection.fetchval(_HAS_POLICIES, names.files),
    )


_FACTS: Final = """
    SELECT current_setting('server_encoding') AS encoding, lower('I') = 'i' AS folds_i,
        (SELECT datctype IN ('C', 'POSIX') FROM pg_database WHERE datname = current_database()) AS only_ascii
"""
_HAS_POLICIES: Final = "SELECT relrowsecurity FROM pg_class WHERE oid = $1::text::regclass"


_HAS_TABLE: Final = """
    SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $1 AND relname = $2
"""
"""Unlike `to_regclass`, this also sees what another process made while this one waited for the lock."""


async def _find_applied(connection: Any, names: Names) -> set[int]:
    """The numbers of the migrations that were applied."""
    if not await connection.fetchval(_HAS_TABLE, names.schema, f"{names.table}_migration"):
        return set()
    return {row["number"] for row in await connection.fetch(f"SELECT number FROM {names.migrations}")}


async def _migrate(connection: Any, names: Names, wanted: set[int]) -> set[int]:
    """Apply what is missing; of several processes, one does it while the others wait."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"deepfs {names.files}")
        applied = await _find_applied(connection, names)
        if not applied:
            if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", names.schema):
                await connection.execute(f"CREATE SCHEMA {_identifier(names.schema)}")
            columns = "number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()"
            await connection.execute(f"CREATE TABLE {names.migrations} ({columns})")
        for number in sorted({*_MIGRATIONS} - applied):
            await _apply(connection, names, number, _MIGRATIONS[number](names))
        if _SECURITY in wanted - applied:
            await _apply(connection, names, _SECURITY, _policies(names))
        if _TRIGRAMS in wanted - applied and (extension := await _extension(connection)):
            await _index_trigrams(connection, names, extension)
        return await _find_applied(connection, names)


async def _apply(connection: Any, names: Names, number: int, statements: list[str]) -> None:
    for statement in statements:
        await connection.execute(statement)
    await connection.execute(f"INSERT INTO {names.migrations} (number) VALUES ($1)", number)


async def _index_trigrams(connection: Any, names: Names, extension: str) -> None:
    """Make the trigram indexes; a role that may not, because it does not own the table, does without them."""
    import asyncpg

    try:
        async with connection.transaction():
            await _apply(connection, names, _TRIGRAMS, _trigram_indexes(names, extension))
    except asyncpg.InsufficientPrivilegeError:
        return


async def _extension(connection: Any) -> str | None:
    """The schema of the extension pg_trgm, made if it is not there; None if that is not possible."""
    import asyncpg

    try:
        async with connection.transaction():
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if getattr(error, "sqlstate", None) is None:
            raise
    schema: str | None = await connection.fetchval(_EXTENSION)
    return schema


_EXTENSION: Final = """
    SELECT nspname::text FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
    WHERE extname = 'pg_trgm'
"""


# --- keys ------------------------------------------------------------------------------------------------------------

_MAX_KEY_BYTES: Final = 2_600
"""The most bytes of a namespace and a path together: an entry of an index has at most 2,704."""


def has_key(namespace: str, path: str) -> bool:
    """Whether an index can hold the key of a file, so that there may be one."""
    return len(namespace) + len(path.encode()) <= _MAX_KEY_BYTES


def check_key(namespace: str, path: str) -> None:
    """Raise InvalidPathError if no index can hold the key of the file."""
    if not has_key(namespace, path):
        raise InvalidPathError(path, f"it is too long for this storage, whose limit is {_MAX_KEY_BYTES:,} bytes")


def successor(path: str) -> str:
    """The first text after `path`: no text has NUL."""
    return f"{path}\x01"


# --- reading ---------------------------------------------------------------------------------------------------------


def _known_time(column: str) -> str:
    """A column without times that Python does not know, which other programs may store: infinity, or before Christ."""
    known = f"{column} >= '0002-01-01Z'::timestamptz AND {column} < '9999-01-01Z'::timestamptz"
    return f"CASE WHEN {known} THEN {column} END AS {column}"


_TIMES: Final = f"{_known_time('modified_at')}, {_known_time('created_at')}"
STAT: Final = f"path, size, {_TIMES}, version, mime_type"
"""The columns that a stat needs."""
FILE: Final = f"path, version, content, bytes, mime_type, {_TIMES}"
"""The columns that a file needs."""
COLUMNS: Final = "path, content, bytes, mime_type, created_at, modified_at"
"""The columns that are stored, in the order of `Row.values`."""


def rows_at(names: Names, columns: str, lock: str = "", paths: str = "$2") -> str:
    """The query of the rows at the `paths` in the namespace $1, in the order of the paths.

    It looks into the index of the key once for each path. A comparison with ANY would make the planner choose, and read
    the whole namespace where the table is new to it.
    """
    return f"""
        SELECT file.* FROM unnest({paths}::text[]) AS wanted CROSS JOIN LATERAL (
            SELECT {columns} FROM {names.files} WHERE namespace = $1 AND path = wanted LIMIT 1 {lock}
        ) AS file
    """


def stats_of_rows(rows: Iterable[Any]) -> dict[str, FileStat]:
    """The stats of rows with the columns `STAT`, by path."""
    return {
        row["path"]: FileStat(
            row["size"], _time_text(row["modified_at"]), _time_text(row["created_at"]), row["version"], row["mime_type"]
        )
        for row in rows
    }


def file_of_row(row: Any) -> FileDataV2:
    """The file of a row with the columns `FILE`."""
    content = row["content"]
    times = _time_text(row["created_at"]), _time_text(row["modified_at"])
    if content is None:
        return FileDataV2(b64encode(row["bytes"]).decode("ascii"), "base64", *times, row["mime_type"])
    return FileDataV2(content, "utf-8", *times, row["mime_type"])


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else records.time_text(time)


# --- writing ---------------------------------------------------------------------------------------------------------


class Row(Struct, frozen=True):
    """What is stored of a file."""

    path: str
    content: str | None
    bytes: bytes | None
    mime_type: str | None
    created_at: datetime
    modified_at: datetime

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the columns `COLUMNS`."""
        return self.path, self.content, self.bytes, self.mime_type, self.created_at, self.modified_at

    @property
    def size(self) -> int:
        """About how much a statement carries for the row."""
        return len(self.path) + len(self.content or "") + len(self.bytes or b"")


def row_of(path: str, data: FileDataV2) -> Row:
    """The row of a file. Raises InvalidContentError if it holds what a text of PostgreSQL cannot."""
    content = data.content if data.encoding == "utf-8" else None
    if content is not None and not is_text(content):
        raise InvalidContentError(path, "it holds NUL or half a surrogate pair, and this storage cannot")
    mime_type = data.mime_type if data.mime_type is not None and is_text(data.mime_type) else None
    raw = records.content_bytes(data, path) if content is None else None
    return Row(path, content, raw, mime_type, _time(data.created_at), _time(data.modified_at))


def _time(text: str | None) -> datetime:
    """The time for the database; now if `text`, which another program may have written, is no time."""
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)
