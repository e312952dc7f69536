"""Files in a SQLite database: durable without a server or a graph, shared by processes, searched by an index."""

import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from os import PathLike, fspath
from typing import Any, Final, TypeAlias, TypeVar

from deepfs._drivers import log_failure
from deepfs.backends.flat import StorageBackend
from deepfs.backends.namespace import Namespace, NamespaceFactory, choice_in, fixed_or_chosen, join_names
from deepfs.backends.protocol import Capabilities
from deepfs.backends.sqlite.database import Database, DatabaseSession, Durability, damaged_error, database_at, error_for
from deepfs.backends.sqlite.schema import check_current
from deepfs.backends.sqlite.search import MIME_TYPE, STAT_COLUMNS, TIMES, Candidates, marks, pad, stat_rows, successor
from deepfs.errors import BackendError, InvalidContentError
from deepfs.operations import DownloadFiles, Ls, Read, ReadRaw
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.storage.runners import BlockingStorage, Kind, Page, Plan, until_accepted
from deepfs.sync import is_inline
from deepfs.text import paths, records
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles
from deepfs.text.paths import end_of_prefix
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.threads.locks import path_locks
from deepfs.types import FileDataV2

__all__ = ["SqliteBackend"]

T = TypeVar("T")

Rows: TypeAlias = list[Sequence[Any]]

_MOST_AT_ONCE: Final = 256
"""How many files one statement names."""
_Row: TypeAlias = tuple[int, int, str | None, str | None, str | None, str | None, bytes | None]
_ROW: Final = "size, version, created_at, modified_at, mime_type, content, bytes"
_INSERT: Final = f"INSERT INTO files ({_ROW}, namespace, path) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = f"UPDATE files SET ({_ROW}) = (?, ?, ?, ?, ?, ?, ?) WHERE id = ?"


class _SqliteFiles(BlockingStorage):
    """The files of a namespace, for one operation."""

    failures = (sqlite3.Error,)
    _session: DatabaseSession
    _shared: DatabaseSession | None = None
    """The connection with the transaction that a change shares with others."""
    _search: Candidates | None = None
    _has_read = False
    """Whether what a change rests on was read while the database was locked."""

    def __init__(self, database: Callable[[], Database], namespace: str, max_bytes: int, max_scanned: int) -> None:
        self._database = database
        self._namespace = namespace
        self._max_bytes = max_bytes
        self._max_scanned = max_scanned

    @contextmanager
    def transaction(self, kind: Kind) -> Iterator[None]:
        if kind == "change":
            shared = self._shared
            with nullcontext(shared) if shared else self._database().change() as session, session.part():
                self._session = session
                self._has_read = False
                yield
            return
        with self._database().session() as session:
            self._session = session
            if kind == "look":
                session.begin("BEGIN")
            else:  # Pages are read one by one: a long transaction would keep the log from being emptied.
                check_current(session.connection)
            yield

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        if kind != "change" or is_inline():
            return await super().carry_out(plan, kind)
        database = self._database()
        with self._reporting():
            result: T = await database.changes.ask(database.make_changes, None, partial(self._take_part, plan))
        return result

    def _take_part(self, plan: Plan[T], shared: DatabaseSession, deadline: Deadline) -> T:
        """Run a plan in a transaction that others share."""
        self._shared = shared
        return self._in_transaction(deadline, plan, "change")

    def translate(self, error: Exception) -> Exception:
        if isinstance(error, UnicodeDecodeError):  # The message of SQLite quotes what it found.
            return damaged_error()
        return error_for(error) if isinstance(error, sqlite3.Error) else super().translate(error)

    # --- reading ---

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return stat_rows(self._rows(paths, STAT_COLUMNS))

    def get(self, paths: Sequence[str]) -> TaggedFiles:
        files: dict[str, FileDataV2] = {}
        tags: dict[str, int] = {}
        for row in self._rows(paths, f"path, version, content, bytes, {TIMES}, {MIME_TYPE}"):
            files[row[0]] = _file(*row[2:])
            tags[row[0]] = row[1]
        return TaggedFiles(files, tags)

    def _rows(self, paths: Sequence[str], columns: str) -> Iterator[Sequence[Any]]:
        self._has_read = True
        for start in range(0, len(paths), _MOST_AT_ONCE):
            part = pad(paths[start : start + _MOST_AT_ONCE])
            query = f"SELECT {columns} FROM files WHERE namespace = ? AND path IN ({marks(part)})"
            yield from self._session.execute(query, (self._namespace, *part))

    def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        return stat_rows(self._range(prefix, end_of_prefix(prefix), -1 if limit is None else limit))

    def _range(self, start: str, end: str, limit: int) -> Rows:
        self._has_read = True
        query = f"SELECT {STAT_COLUMNS} FROM files WHERE namespace = ? AND path >= ? AND path < ? ORDER BY path LIMIT ?"
        return self._session.execute(query, (self._namespace, start, end, limit)).fetchall()

    def children(self, prefix: str) -> Mapping[str, FileStat]:
        found: dict[str, FileStat] = {}
        start, end, count = prefix, end_of_prefix(prefix), _FIRST_CHILDREN
        while start:
            rows = self._range(start, end, count)
            fresh = len(found)
            start = _take_children(prefix, rows, found) if rows else ""
            if len(rows) < count:
                break
            # Rows deep in a directory are read in vain: then fewer are read at once.
            is_useful = (len(found) - fresh) * 2 > len(rows)
            count = min(count * 2, _MOST_CHILDREN) if is_useful else max(count // 2, _FEWEST_CHILDREN)
        return found

    def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        if self._search is None:
            self._search = Candidates(
                self._session,
                self._namespace,
                request,
                files,
                max_bytes=self._max_bytes,
                max_scanned=self._max_scanned,
            )
        return self._search.page(after)

    # --- writing ---

    def apply(self, changes: Sequence[Change]) -> None:
        is_certain = self._session.connection.in_transaction and self._has_read
        try:
            version = self._next_version()
            for change in changes:
                if not self._apply(change, version):
                    # While the database is locked, nobody changes what was read.
                    raise damaged_error() if is_certain else ChangedError(change.path)
        except BaseException as error:
            # The plan may go on after an error, and must not commit a part of the changes.
            self._session.undo_part()
            self._database().empty_log_for(self._session, error)
            raise

    def _next_version(self) -> int:
        """A version that no file ever had."""
        rows = self._session.execute("SELECT typeof(last_version) FROM state").fetchall()
        if rows != [("integer",)]:  # Another program has changed it.
            self._session.execute("DELETE FROM state")
            self._session.execute("INSERT INTO state SELECT coalesce(max(CAST(version AS INTEGER)), 0) FROM files")
        self._session.execute("UPDATE state SET last_version = last_version + 1")
        [version] = self._session.execute("SELECT last_version FROM state").fetchone()
        return int(version)

    def _apply(self, change: Change, version: int) -> bool:
        """Make a change; return False if its condition does not hold."""
        query = "SELECT id, version FROM files WHERE namespace = ? AND path = ?"
        number, before = self._session.execute(query, (self._namespace, change.path)).fetchone() or (None, None)
        is_other = change.condition == "version" and before != change.origin
        if is_other or (change.condition == "create" and before is not None):
            return False
        if change.after is None:
            self._session.execute("DELETE FROM files WHERE id = ?", (number,))
        elif number is None:
            row = _row(change.path, change.after, version)
            self._session.execute(_INSERT, (*row, self._namespace, change.path))
        else:
            self._session.execute(_UPDATE, (*_row(change.path, change.after, version), number))
        return True


_FIRST_CHILDREN: Final = 100
_FEWEST_CHILDREN: Final = 4
_MOST_CHILDREN: Final = 1000


def _take_children(prefix: str, rows: Sequence[Sequence[Any]], found: dict[str, FileStat]) -> str:
    """Add the files directly in the directory `prefix`, and one for each directory there; return where to go on."""
    directory = ""
    for row in rows:
        path: str = row[0]
        if directory and path.startswith(directory):
            continue
        at = path.find("/", len(prefix))
        directory = path[: at + 1] if at > 0 else ""
        found[f"{directory}_" if directory else path] = FileStat() if directory else FileStat(*row[1:6])
    return end_of_prefix(directory) if directory else successor(rows[-1][0])


def _file(
    content: object, data: object, created_at: str | None, modified_at: str | None, mime_type: str | None
) -> FileDataV2:
    # Both columns may hold any type, and numbers are what their text is.
    stored = data if content is None else content
    if isinstance(stored, bytes):
        return FileDataV2(b64encode(stored).decode("ascii"), "base64", created_at, modified_at, mime_type)
    return FileDataV2(str(stored), "utf-8", created_at, modified_at, mime_type)


def _row(path: str, data: FileDataV2, version: int) -> _Row:
    """The values of the columns `_ROW`: content that is no text is stored as bytes."""
    if data.encoding == "utf-8" and "\0" not in data.content:
        try:
            size = len(data.content.encode())
        except UnicodeEncodeError as error:
            raise InvalidContentError(path, "it holds half a surrogate pair, which is not text") from error
        return size, version, data.created_at, data.modified_at, data.mime_type, data.content, None
    raw = records.content_bytes(data, path)
    return len(raw), version, data.created_at, data.modified_at, data.mime_type, None, raw


class SqliteBackend(StorageBackend):
    """Files in a SQLite database, which several processes may use. No edit is lost, whichever process makes it.

    Searches find their files by an index of trigrams. The database is one file, with two more beside it while it is in
    use, and must be on a local disk. The first operation makes it, but not the directory that it is in.

    Args:
        file: The path of the database.
        namespace: A name, a tuple of names, or a factory of these that gets the `Runtime` of the running node (None
            outside a graph). Any identity of a user is a name. Only files of exactly this namespace are seen.
        durability: With `"full"`, what was stored survives a power failure; changes at the same time share the wait for
            the disk. With `"normal"`, the last changes before one may be lost, but nothing else, and writes wait for no
            disk.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
        max_scanned: The most files that a search looks at one by one, where its pattern has no text of three characters
            in a row that the index could find. Its result is then `truncated`.

    Raises:
        TypeError: An argument is of another type.
        ValueError: For a namespace that cannot be used, another durability, numbers that are not positive, and the name
            of a database in memory.
    """

    capabilities: Capabilities = Capabilities(durable=True, atomic_between_processes=True)
    _blocks_inline = frozenset({Ls, Read, ReadRaw, DownloadFiles})
    _finds = True
    _is_transactional = True
    _shown = ("_file", "_given_namespace")

    def __init__(
        self,
        file: str | PathLike[str],
        namespace: str | Namespace | NamespaceFactory = "files",
        *,
        durability: Durability = "full",
        max_file_size_mb: int = 10,
        max_scanned: int = 1_000_000,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._file = fspath(file)
        if self._file in ("", ":memory:"):
            raise ValueError("a SqliteBackend needs a file; for files in memory there is MemoryBackend")
        if durability not in ("full", "normal"):
            raise ValueError(f"durability is 'full' or 'normal', not {durability!r}")
        if max_scanned < 1:
            raise ValueError(f"max_scanned must be positive, not {max_scanned!r}")
        self._durability: Durability = durability
        self._max_scanned = max_scanned
        self._namespace = fixed_or_chosen("namespace", namespace, join_names)
        given = (namespace,) if isinstance(namespace, str) else namespace
        self._choice = choice_in(self._namespace)
        self._given_namespace = given if callable(given) else tuple(given)
        self._known: Database | None = None

    def _database(self) -> Database:
        """The connections to the file. Makes system calls at first."""
        if self._known is None:
            self._known = database_at(self._file, self._durability)
        return self._known

    async def _open_database(self) -> Database:
        """The connections to the file."""
        if self._known is None and not is_inline():
            await pool.run(self._database)
        return self._database()

    def _storage(self) -> _SqliteFiles:
        return _SqliteFiles(self._database, self._namespace(), self._max_bytes, self._max_scanned)

    def _scope(self) -> Hashable:
        known = self._known
        return "sqlite", self._file if known is None else known.file, self._namespace()

    async def astorage_place(self, path: str) -> StoragePlace:
        database = await self._open_database()
        scope = self._scope()
        return flat_place(scope, paths.normalize(path), storage=("sqlite", database.file))

    @asynccontextmanager
    async def _hold(self, *held: str) -> AsyncIterator[None]:
        await self._open_database()  # The locks are those of the file that links lead to.
        locks = path_locks(self._scope())
        if is_inline():
            with locks.hold_blocking(*held):
                yield
        else:
            async with locks.hold(*held):
                yield

    # --- the database ---

    async def aclose(self) -> None:
        """Close the connections of this process to the file that are not in use. Later operations open new ones."""
        if self._known is not None:
            await self._in_worker(self._known.close)

    async def asnapshot(self, file: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Copy the database, all namespaces included, to another file, as it is at one moment.

        Others may go on reading and writing. The copy is made wholly or not at all.

        Args:
            file: The path of the copy.
            overwrite: Whether to replace a file that is there.

        Raises:
            BackendError: The copy failed, there is a file and `overwrite` is False, or the database there is in use.
            ConflictError: Others kept the database locked for 30 seconds.
        """
        copy = partial(self._snapshot, fspath(file), overwrite)
        await until_accepted(lambda: self._in_worker(copy), self._retries.contention)

    def _snapshot(self, target: str, overwrite: bool) -> None:
        try:
            self._database().snapshot(target, overwrite=overwrite)
        except FileExistsError as error:
            raise BackendError(None, "There is a file where the copy should be") from error
        except OSError as error:
            raise BackendError(None, f"The copy failed ({type(error).__name__})") from error

    async def acheck(self) -> list[str]:
        """Check the whole database and its search index, as SQLite does by `PRAGMA integrity_check`.

        It takes long if there is much in the database. While the index is checked, no other process can write.

        Returns:
            What is wrong; empty if the database is sound.

        Raises:
            BackendError: The database cannot be opened or read.
            ConflictError: Others kept it locked for 30 seconds.
        """
        return await until_accepted(
            lambda: self._in_worker(lambda: self._database().problems()), self._retries.contention
        )

    async def _in_worker(self, function: Callable[[], T]) -> T:
        try:
            return function() if is_inline() else await pool.run(function)
        except sqlite3.Error as error:
            failure = error_for(error)
            log_failure(failure)
            raise failure from failure.__cause__
