"""The files of SQLite databases that this process uses: opening and closing them would drop SQLite's locks."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from deepfs import FilesystemBackend, run_sync
from deepfs.errors import DeepFSError

_OTHER: Final = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error)
"""
_LOCKED: Final = "database is locked\n"


def _try_to_write(file: Path) -> str:
    """What another process gets that begins to write a database."""
    command = [sys.executable, "-I", "-S", "-c", _OTHER, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _descriptors(file: Path) -> int:
    """How many descriptors of this process lead to a file."""
    found = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return found.count(str(file))


@pytest.fixture(params=["wal", "delete"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def used(tmp_path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A connection that has locked `dir/n.db` to write."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "plain.txt").write_text("plain")
    connection = sqlite3.connect(tmp_path / "dir" / "n.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE texts (text)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO texts VALUES ('word')")
        yield connection


@pytest.fixture
def backend(tmp_path: Path) -> FilesystemBackend:
    return FilesystemBackend(tmp_path)


async def _streamed(backend: FilesystemBackend, path: str) -> str:
    try:
        return str([chunk async for chunk in backend.adownload_stream(path)])
    except DeepFSError as error:
        return error.code


_USES: Final[dict[str, Callable[[FilesystemBackend, str], Any]]] = {
    "read": lambda backend, path: backend.read(path).code,
    "read_raw": lambda backend, path: backend.read_raw(path).code,
    "download": lambda backend, path: backend.download_files([path])[0].error,
    "stream": lambda backend, path: run_sync(_streamed, backend, path),
    "edit": lambda backend, path: backend.edit(path, "a", "b").code,
    "write": lambda backend, path: backend.write(path, "x", overwrite=True).code,
    "write a version": lambda backend, path: backend.write(path, "x", if_match="0").code,
    "upload": lambda backend, path: backend.upload_files([(path, b"x")])[0].error,
    "copy": lambda backend, path: backend.copy(path, "/copy.db").code,
    "copy over": lambda backend, path: backend.copy("/plain.txt", path, overwrite=True).code,
    "copy all": lambda backend, path: backend.copy("/dir", "/copy").code,
    "move": lambda backend, path: backend.move(path, "/moved.db").code,
    "move over": lambda backend, path: backend.move("/plain.txt", path, overwrite=True).code,
    "delete": lambda backend, path: backend.delete(path).code,
    "delete a version": lambda backend, path: backend.delete(path, if_match="0").code,
}


def test_a_used_database_is_refused_and_stays_locked(
    used: sqlite3.Connection, backend: FilesystemBackend, tmp_path: Path, mode: str
) -> None:
    for name in {"wal": ("n.db", "n.db-shm", "n.db-wal"), "delete": ("n.db",)}[mode]:
        for use, call in _USES.items():
            assert [call(backend, f"/dir/{name}") for _ in range(3)] == ["permission_denied"] * 3, use
            assert _try_to_write(tmp_path / "dir" / "n.db") == _LOCKED, use
    used.execute("COMMIT")
    assert used.execute("SELECT * FROM texts").fetchall() == [("word",)]
    assert used.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_searches_pass_a_used_database(used: sqlite3.Connection, backend: FilesystemBackend, tmp_path: Path) -> None:
    for _ in range(3):
        assert [match.path for match in backend.grep("plain").matches] == ["/plain.txt"]
    assert _try_to_write(tmp_path / "dir" / "n.db") == _LOCKED


def test_a_used_database_is_read_again_when_it_is_closed(
    used: sqlite3.Connection, backend: FilesystemBackend, tmp_path: Path
) -> None:
    before = _descriptors(tmp_path / "dir" / "n.db")
    for _ in range(20):
        assert backend.download_files(["/dir/n.db"])[0].error == "permission_denied"
    assert _descriptors(tmp_path / "dir" / "n.db") == before + 1
    used.execute("COMMIT")
    used.close()
    [download] = backend.download_files(["/dir/n.db"])
    assert download.content == (tmp_path / "dir" / "n.db").read_bytes()
    assert _descriptors(tmp_path / "dir" / "n.db") == 0
    assert backend.delete("/dir/n.db").ok


def test_a_database_that_is_opened_while_it_is_read_keeps_its_locks(
    used: sqlite3.Connection, backend: FilesystemBackend, tmp_path: Path
) -> None:
    used.execute("COMMIT")
    used.close()
    disk = backend._disk
    file, _ = disk.open_file("/dir/n.db")
    with closing(sqlite3.connect(tmp_path / "dir" / "n.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        file.close()
        assert _try_to_write(tmp_path / "dir" / "n.db") == _LOCKED
