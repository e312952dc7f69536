"""The threads of `deepfs agent`, which a SQLite database keeps with their checkpoints."""

import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex
from typing import Final

import anyio
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from msgspec import Struct

from deepfs.config.urls import inert_serializer

if sys.platform != "win32":
    import fcntl

__all__ = ["Thread", "ThreadLock", "Threads", "checked_name", "default_file", "new_name", "open_threads"]

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS deepfs_threads (
    name TEXT PRIMARY KEY, title TEXT NOT NULL, tree TEXT NOT NULL, place TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL
)
"""
_UPDATE: Final = """
INSERT INTO deepfs_threads VALUES (:name, :title, :tree, :place, :now, :now)
ON CONFLICT (name) DO UPDATE SET tree = :tree, place = :place, updated_at = :now
"""
_LONGEST_NAME: Final = 200
_LONGEST_TITLE: Final = 200


class Thread(Struct, frozen=True):
    """A conversation that can be resumed."""

    name: str
    title: str
    """The beginning of the first task."""
    tree: str
    """The address of the files, as the user gave it, without a password."""
    place: str
    """A digest of the whole address."""
    created_at: str
    updated_at: str


class Threads:
    """The threads in an open database.

    Args:
        saver: What keeps the checkpoints.
    """

    def __init__(self, saver: AsyncSqliteSaver) -> None:
        self.saver: AsyncSqliteSaver = saver

    async def list(self) -> list[Thread]:
        """All threads, the last used one first."""
        rows = await self.saver.conn.execute_fetchall("SELECT * FROM deepfs_threads ORDER BY updated_at DESC, name")
        return [Thread(*row) for row in rows]

    async def last(self, url: str) -> Thread | None:
        """The thread that was used last with these files.

        Args:
            url: The URL of the files.
        """
        return next((each for each in await self.list() if each.place == _digest(url)), None)

    async def used(self, name: str, task: str, tree: str, url: str) -> None:
        """Note that a thread gets a task.

        Args:
            name: The name of the thread.
            task: The task, which is the title of a new thread.
            tree: What a user calls the files.
            url: The URL of the files.
        """
        title = " ".join(task.split())[:_LONGEST_TITLE]
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = {"name": name, "title": title, "tree": tree, "place": _digest(url), "now": now}
        await self.saver.conn.execute(_UPDATE, values)
        await self.saver.conn.commit()


def _digest(url: str) -> str:
    return sha256(url.encode()).hexdigest()


@asynccontextmanager
async def open_threads(file: str) -> AsyncIterator[Threads]:
    """Open a database of threads, which is made if it is missing, and close it at the end.

    Args:
        file: The path of the database. A new file, and its directories, can be read by this user only.

    Raises:
        ValueError: The file is no database.
        OSError: The file cannot be opened.
    """
    await anyio.to_thread.run_sync(_make, file)
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        saver.serde = inert_serializer()
        try:
            await saver.setup()
            await saver.conn.execute(_TABLE)
            await saver.conn.commit()
        except sqlite3.Error as error:
            raise ValueError(f"{file} cannot be used as a database of threads: {error}") from None
        yield Threads(saver)


def _make(file: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(file)), mode=0o700, exist_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


def default_file() -> str:
    """The database in this user's directory for state, as XDG has it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "deepfs", "threads.db")


def new_name() -> str:
    """A name for a new thread: the day, and a random part."""
    return f"{datetime.now():%Y%m%d}-{token_hex(3)}"


def checked_name(name: str) -> str:
    """The name of a thread. Raises ValueError if it is empty, too long, or has characters that do not print.

    Args:
        name: The name.
    """
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"the name of a thread has 1 to {_LONGEST_NAME} characters that print: {name[:80]!r}")
    return name


class ThreadLock:
    """Keeps other processes from the thread that this one works on.

    The lock is on one byte of a file beside the database, so that a process that dies releases it, and nothing is left
    of a thread that is not used.

    Args:
        file: The path of the database.
    """

    def __init__(self, file: str) -> None:
        self._descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: int | None = None

    def take(self, name: str) -> None:
        """Lock a thread in place of the one that was locked.

        Args:
            name: The name of the thread.

        Raises:
            ValueError: Another process works on it. Then the lock stays where it was.
        """
        byte = int.from_bytes(sha256(name.encode()).digest()[:7], "big")
        if sys.platform == "win32" or byte == self._held:
            return
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            raise ValueError(f"another process works on the thread {name!r}") from None
        self.release()
        self._held = byte

    def release(self) -> None:
        """Unlock the thread."""
        if sys.platform != "win32" and self._held is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._held)
        self._held = None

    def close(self) -> None:
        """Unlock the thread, and close the file."""
        os.close(self._descriptor)
