"""A SQLite database of files: its errors, and its connections, which all backends of a process share.

Connections are kept open and used by one operation at a time. None is open while the process is forked. Where a file
was replaced by another one, connections to the former are closed.
"""

import atexit
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from deepfs._drivers import add_cause
from deepfs.backends.sqlite.schema import (
    PART_BYTES,
    check_current,
    check_sqlite,
    code_of,
    find_outdated,
    index_pending,
    prepare,
)
from deepfs.errors import BackendError, DeepFSError, PermissionDeniedError
from deepfs.text.flat_tree import ChangedError
from deepfs.threads import pool
from deepfs.threads.batching import BatchedCall, Batcher
from deepfs.threads.deadline import Deadline
from deepfs.threads.forks import get_ident

Durability: TypeAlias = Literal["full", "normal"]

# --- errors -----------------------------------------------------------------------------------------------------------

_REASONS: Final = {
    sqlite3.SQLITE_CANTOPEN: "The database cannot be opened: its directory is missing, or access is denied",
    sqlite3.SQLITE_CORRUPT: "The database is damaged",
    sqlite3.SQLITE_FULL: "The database is full, or its disk is; nothing was changed",
    sqlite3.SQLITE_IOERR: "The database could not be read or written",
    sqlite3.SQLITE_NOTADB: "The file is not a SQLite database",
    sqlite3.SQLITE_PERM: "Access to the database is denied",
    sqlite3.SQLITE_TOOBIG: "The file is larger than SQLite can store",
}
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LOCKED: Final = "The database is locked by another program; try again later"
_UNDONE: Final = "The database undid a transaction that others shared; try again later"


def damaged_error() -> BackendError:
    """The error of a database that contradicts itself."""
    return BackendError(None, _REASONS[sqlite3.SQLITE_CORRUPT])


def error_for(error: sqlite3.Error) -> DeepFSError:
    """Return the error to raise for an error of SQLite; ChangedError if the database is locked at the moment."""
    code = code_of(error)
    if code in _BUSY:
        return ChangedError.because(None, _LOCKED)
    if code == sqlite3.SQLITE_READONLY:
        reason = "the database or its directory is read-only; SQLite writes there even to read"
        return add_cause(PermissionDeniedError("/", reason), error, "sqlite")
    reason = _REASONS.get(code) or f"The database failed ({type(error).__name__})"
    return add_cause(BackendError(None, reason), error, "sqlite")


# --- connections ------------------------------------------------------------------------------------------------------

_CACHE_KB: Final = 8192
_WAL_BYTES: Final = 4 * 1024 * 1024
"""The size of the write-ahead log from which its pages are copied into the database."""
_RESERVE: Final = 1024 * 1024
"""The room on the disk that changes leave which make the database grow, so that files can still be deleted."""
_LITTLE_ROOM: Final = 2 * _WAL_BYTES + _RESERVE
"""With less room than this, the log is copied after each change, since what it holds is on the disk twice."""
_SMALLEST: Final = 512
"""The size of the smallest page of a database."""
_MOST_IDLE: Final = 8
"""How many unused connections are kept."""
_SHARED_S: Final = 0.01
"""Seconds after which a transaction takes no more changes, since other processes wait for its end."""


@dataclass(eq=False)
class DatabaseSession:
    """A connection, used by one operation at a time."""

    file: str
    connection: sqlite3.Connection
    identity: tuple[int, int]
    """The device and the number of the file that the connection has opened."""
    has_index: bool
    """Whether the database has a search index that this SQLite can use."""
    stamp: tuple[int, ...] | None
    """The state of the file when it was opened without any lock; None for a connection that uses locks."""

    def __post_init__(self) -> None:
        _open.add(self)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement with its parameters."""
        return self.connection.execute(statement, parameters)

    def begin(self, statement: str) -> None:
        """Begin a transaction. Raises BackendError if the database is none of this version by now."""
        self.execute(statement)
        check_current(self.connection)

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part of the transaction, of which nothing remains if it raises."""
        self.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self.undo_part()
            raise
        finally:
            self._end_part("RELEASE part")

    def undo_part(self) -> None:
        """Take back the changes of the `part`."""
        self._end_part("ROLLBACK TO part")

    def _end_part(self, statement: str) -> None:
        if not self.connection.in_transaction:
            return
        try:
            self.execute(statement)
        except BaseException:  # Else the transaction would be committed with a part that failed.
            self.roll_back()
            raise

    def pages(self) -> int:
        """How many pages the database has, with the changes of the transaction."""
        [pages] = self.execute("PRAGMA page_count").fetchone()
        return int(pages)

    def roll_back(self) -> None:
        """End the transaction, if there is one, without its changes."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection, unless that is done already."""
        if self in _open:
            _open.discard(self)
            with suppress(sqlite3.Error):
                self.connection.close()


SharedChange: TypeAlias = BatchedCall[Callable[[DatabaseSession, Deadline], Any], Any]
"""Makes a change within a transaction that others may share."""


def _claim(waiting: deque[SharedChange]) -> SharedChange | None:
    """Take the next change whose task still waits; until then, the task may withdraw it."""
    while waiting:
        if (call := waiting.popleft()).take():
            return call
    return None


class Database:
    """The connections of this process to one file."""

    def __init__(self, file: str, durability: Durability) -> None:
        self.file: str = file
        self._durability = durability
        self._idle: deque[DatabaseSession] = deque()
        self._wal_size = 0
        self.changes: Batcher[None, Callable[[DatabaseSession, Deadline], Any], Any] = Batcher(file, one_by_one=True)
        """The changes that wait for the one writer that a database has."""
        self._alone = 0
        """How many changes are not to share a transaction, since one with as many failed."""

    @contextmanager
    def session(self) -> Iterator[DatabaseSession]:
        """A connection for one operation. A transaction that is open at the end is rolled back."""
        with _hold_forks(self.file):
            session = self._take()
            is_usable = False
            try:
                try:
                    yield session
                finally:
                    session.roll_back()
                if session.stamp is not None and session.stamp != _stamp(self.file):
                    raise ChangedError.because(None, _LOCKED)
                is_usable = session.stamp is None
            except UnicodeDecodeError as error:  # The message of SQLite quotes what it found.
                raise damaged_error() from error
            except sqlite3.Error as error:
                is_usable = code_of(error) in (*_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT)
                raise
            except Exception:
                is_usable = not session.connection.in_transaction
                raise
            finally:
                if is_usable and len(self._idle) < _MOST_IDLE:
                    self._idle.append(session)
                else:
                    session.close()

    def _take(self) -> DatabaseSession:
        identity = _identity(self.file)
        if _is_cut_off or identity in _inherited:
            raise BackendError(None, _FORKED)
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return self._open()
            if session not in _open:  # It was closed for a fork.
                continue
            if session.identity == identity:
                return session
            session.close()

    def _open(self) -> DatabaseSession:
        check_sqlite()
        if 0 < _size(self.file) < _SMALLEST:  # SQLite would take it for an empty database, and overwrite it.
            raise BackendError(None, _REASONS[sqlite3.SQLITE_NOTADB])
        try:
            return self._connect(self.file)
        except sqlite3.OperationalError as error:
            stamp = _stamp(self.file)
            # SQLite writes even to read, unless it is told that nobody changes the file. So that is true afterwards.
            is_possible = code_of(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) and stamp[-1] == 0
            if not is_possible or os.access(os.path.dirname(self.file), os.W_OK):
                raise
            return self._connect(f"{Path(self.file).as_uri()}?immutable=1", stamp)

    def _connect(self, name: str, stamp: tuple[int, ...] | None = None) -> DatabaseSession:
        # Operations on a connection are one after another, on whichever thread makes them.
        connection = sqlite3.connect(
            name, timeout=0, isolation_level=None, check_same_thread=False, uri=stamp is not None
        )
        try:
            has_index = prepare(connection)
            connection.execute(f"PRAGMA synchronous = {self._durability}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # See `checkpoint`.
            # The log is seldom shortened: a flush takes longer where the file has grown.
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES - _SMALLEST}")
            connection.execute("PRAGMA temp_store = MEMORY")
            identity = _identity(self.file)
            if identity is None:
                raise BackendError(None, "The database was deleted while it was opened")
        except BaseException as error:
            connection.close()
            if isinstance(error, UnicodeDecodeError):
                raise damaged_error() from error
            raise
        return DatabaseSession(self.file, connection, identity, has_index, stamp)

    def close(self) -> None:
        """Close the connections that are not in use. An operation opens a new one."""
        with _hold_forks(self.file):
            while True:
                try:
                    session = self._idle.pop()
                except IndexError:
                    return
                session.close()

    def __del__(self) -> None:
        idle = list(self._idle)
        if not idle:
            return
        try:
            # The last connection copies the log, which may take long.
            pool.start_long(self.file, _close_all, self.file, idle)
        except RuntimeError:  # No thread can be started.
            _close_all(self.file, idle)

    # --- changes ---

    @contextmanager
    def change(self) -> Iterator[DatabaseSession]:
        """A connection with a transaction that is committed at the end, if it is still open."""
        with self.session() as session:
            # The database is locked before anything is read, so that what was read is still true when it is changed.
            session.begin("BEGIN IMMEDIATE")
            pages = session.pages()
            yield session
            if session.connection.in_transaction:
                self.check_room(session, pages)
                try:
                    session.execute("COMMIT")
                except sqlite3.Error as error:
                    self.empty_log_for(session, error)
                    raise
            with suppress(sqlite3.Error, OSError):  # What was stored stays so, whatever becomes of these.
                self.index(session)
                self.checkpoint(session)

    def make_changes(self, _: None, calls: list[SharedChange]) -> None:
        """Make changes that came at about the same time. They share transactions, and so the waits for the disk.

        Each fails alone. If a transaction fails as a whole, its changes are planned anew, and made one by one.
        """
        waiting = deque(calls)
        while (call := _claim(waiting)) is not None:
            begun = [call]
            undone: SharedChange | None = None
            until = time.monotonic() + _SHARED_S
            try:
                with self.change() as session:
                    while True:
                        call.keep(partial(call.request, session, call.deadline))
                        if not session.connection.in_transaction:  # It undid those before it as well.
                            undone = begun.pop()
                            raise ChangedError.because(None, _UNDONE)
                        if not waiting:
                            waiting += self.changes.take(None)
                        if self._alone or time.monotonic() > until or (call := _claim(waiting)) is None:
                            break
                        begun.append(call)
            except BaseException as error:
                if undone is not None:
                    undone.tell()
                if len(begun) == 1:
                    begun[0].fail(error)
                else:
                    self._alone = max(self._alone, len(begun))
                    for call in begun:
                        call.fail(ChangedError.because(None, _UNDONE))
            else:
                self._alone = max(0, self._alone - 1)
                for call in begun:
                    call.tell()

    # --- the write-ahead log ---

    def checkpoint(self, session: DatabaseSession) -> None:
        """Copy the write-ahead log into the database if it is long. Errors are left to the next operation.

        Another connection holds the write lock meanwhile, so that nobody starts the log again: versions of SQLite
        before 3.51.3 can then, in rare cases, lose what was written to it.
        """
        size = _size(f"{self.file}-wal")
        if size < self._wal_size:
            self._wal_size = 0
        if size < self._wal_size + _WAL_BYTES and self.has_room():
            return
        with suppress(sqlite3.Error, BackendError, ChangedError), self.session() as writer:
            writer.execute("BEGIN IMMEDIATE")
            self._wal_size = size
            session.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def empty_log_for(self, session: DatabaseSession, error: BaseException) -> None:
        """If `error` says that the disk is full, and the log can be emptied, have the operation planned anew."""
        if not isinstance(error, sqlite3.Error) or code_of(error) != sqlite3.SQLITE_FULL:
            return
        session.roll_back()
        size = _size(f"{self.file}-wal")
        with suppress(sqlite3.Error):
            if not session.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] and size > 0:
                raise ChangedError("/", "the disk was full") from error

    def has_room(self) -> bool:
        """Whether the disk has room for more than the next changes."""
        return disk_usage(self.file).free >= _LITTLE_ROOM

    def index(self, session: DatabaseSession) -> None:
        """Bring the search index up to date, if it is due and there is room for it."""
        if not session.has_index:
            return
        if self.has_room():
            index_pending(session.connection, PART_BYTES)
            return
        # Files that were deleted stay in the database until the index has been told.
        sizes = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
        [free] = session.execute(sizes).fetchone()
        if free >= _RESERVE:
            index_pending(session.connection, _RESERVE // 4)

    def check_room(self, session: DatabaseSession, pages: int) -> None:
        """Raise BackendError if the disk is too full for a change, before which the database had so many `pages`.

        Nothing could be deleted later if the log filled the disk: a deletion is added to the log as well, and the log
        starts anew only when the database has got the pages that it holds.
        """
        grown = session.pages()
        if grown > pages:
            [page] = session.execute("PRAGMA page_size").fetchone()
            missing = max(0, grown * page - _size(self.file)) + (grown - pages) * page
            if _room(self.file) < missing + _RESERVE:
                raise BackendError(None, _REASONS[sqlite3.SQLITE_FULL])

    # --- copies and checks ---

    def snapshot(self, target: str, *, overwrite: bool) -> None:
        """Copy the database, as it is at one moment, to the file `target`: wholly, or not at all."""
        part = f"{target}.{os.getpid()}-{get_ident()}.part"
        try:
            with self.session() as session:
                with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                    session.connection.backup(copy)
                _publish(part, target, overwrite=overwrite)
        finally:
            for file in (part, *_beside(part)):
                with suppress(OSError):
                    os.unlink(file)

    def problems(self) -> list[str]:
        """What SQLite finds wrong with the database and its search index; empty if nothing is wrong."""
        with self.session() as session:
            found = [str(row[0]) for row in session.execute("PRAGMA integrity_check") if row[0] != "ok"]
            if session.has_index:
                session.execute("BEGIN IMMEDIATE")
                found += [f"{index} is not up to date" for index in find_outdated(session.connection)]
            return found


def _publish(part: str, target: str, *, overwrite: bool) -> None:
    with open(part, "rb+") as copied:
        os.fsync(copied.fileno())
    if overwrite:
        _settle(target)
    elif os.path.lexists(target):
        raise FileExistsError(target)
    for file in _beside(target):  # SQLite would play an old log or journal into the copy.
        with suppress(FileNotFoundError):
            os.unlink(file)
    if overwrite:
        os.replace(part, target)
    else:
        os.link(part, target)


def _beside(file: str) -> list[str]:
    """The files that SQLite keeps beside a database."""
    return [f"{file}-{name}" for name in ("journal", "wal", "shm")]


def _settle(file: str) -> None:
    """Bring what is beside a database into it, so that it stays whole without; raise BackendError if it is in use."""
    if _size(file) < _SMALLEST:
        return
    try:
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:  # Of others, the file is no database that could be kept whole.
        if code_of(error) in _BUSY:
            raise BackendError(None, "The database where the copy should be is in use") from error


def _identity(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _stamp(file: str) -> tuple[int, ...]:
    """What shows whether a database is changed; the last number is the size of its log."""
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, _size(f"{file}-wal")


def _room(file: str) -> int:
    return disk_usage(file).free


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _close_all(file: str, sessions: Iterable[DatabaseSession]) -> None:
    with _hold_forks(file):
        for session in sessions:
            session.close()


# --- the databases of this process ------------------------------------------------------------------------------------

_databases: WeakValueDictionary[tuple[str, Durability], Database] = WeakValueDictionary()


def database_at(file: str, durability: Durability) -> Database:
    """The connections to the file with this path; links in it are followed. Makes system calls."""
    key = os.path.realpath(file), durability
    found = _databases.get(key)
    return _databases.setdefault(key, Database(*key)) if found is None else found


# --- forks ------------------------------------------------------------------------------------------------------------
# SQLite keeps tables of the locks that a process holds. A forked child inherits the tables and not the locks: on a file
# that was open it takes no lock of its own, and what it writes is lost. So nothing is open while a process is forked.
# Sets and lists change in one step each, so that no lock is needed, which a signal handler or a child could not get.

_FORK_WAIT: Final = 5.0
"""For how many seconds a fork waits for operations that are under way."""
_EXIT_WAIT: Final = 1.0
"""For how many seconds the end of the process waits for them."""
_FORK_PAUSE: Final = 0.001
_FORKED: Final = (
    "This process was forked while its parent used the database, so it cannot use it; fork it again, or start it anew"
)


@dataclass(eq=False)
class _DatabaseUse:
    """That a thread uses, opens or closes connections to a file."""

    file: str
    thread: int = field(default_factory=get_ident)


_open: set[DatabaseSession] = set()
_uses: set[_DatabaseUse] = set()
_forking: list[int] = []
"""The threads that fork."""
_inherited: set[tuple[int, int]] = set()
"""The files that were open when this process was forked."""
_is_cut_off = False
"""Whether this process was forked while a thread was in SQLite, whose own locks may never be released here."""


@contextmanager
def _hold_forks(file: str) -> Iterator[None]:
    """Keep forks waiting for this thread; first wait for the end of a fork."""
    use = _DatabaseUse(file)
    _uses.add(use)
    try:
        while _forking and not _may_go_on(use):
            _uses.discard(use)
            time.sleep(_FORK_PAUSE)
            _uses.add(use)
        yield
    finally:
        _uses.discard(use)


def _may_go_on(use: _DatabaseUse) -> bool:
    """Whether the thread forks, or a fork waits for it already."""
    return use.thread in _forking or any(each.thread == use.thread and each is not use for each in list(_uses))


@atexit.register
def _close_at_exit() -> None:
    """Bring the logs of databases into their files; a thread whose call has just returned may still leave it."""
    _wait_for_other_threads(_EXIT_WAIT)
    _close_unused()


def _wait_for_other_threads(seconds: float) -> None:
    """Wait until no other thread uses a file, for at most so long."""
    thread, end = get_ident(), time.monotonic() + seconds
    while any(use.thread != thread for use in list(_uses)) and time.monotonic() < end:
        time.sleep(_FORK_PAUSE)


def _close_unused() -> None:
    """Close what no thread uses."""
    used = {use.file for use in list(_uses)}
    for session in list(_open):
        if session.file not in used:
            session.close()


def _before_fork() -> None:
    _forking.append(get_ident())
    _wait_for_other_threads(_FORK_WAIT)
    _close_unused()


def _after_fork_in_parent() -> None:
    _forking.remove(get_ident())


def _after_fork_in_child() -> None:
    global _is_cut_off
    _is_cut_off = _is_cut_off or any(use.thread != get_ident() for use in _uses)
    for session in _open:
        _inherited.add(session.identity)
        _keep_for_ever(session.connection)
        session.connection = _CLOSED
    _open.clear()
    _uses.clear()
    _forking.clear()


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """Keep a connection from being closed even at the end of the process: that may spoil the log of the parent."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_CLOSED: Final = sqlite3.connect(":memory:")
_CLOSED.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
