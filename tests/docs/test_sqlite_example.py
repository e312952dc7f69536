"""The example of a backend over a blocking driver passes the shipped suite, and concurrent processes lose no edit."""

import sqlite3
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from deepfs.testing import BackendConformance, BackendStateMachine
from deepfs.text.records import size_of
from deepfs.types import FileDataV2
from support.flat_trees import FileAndDirectory
from support.processes import printed_at_once
from support.raw import file_of, raw_bytes

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "sqlite_backend.py"
PROCESSES: Final = 2
EDITS: Final = 25


def _loaded() -> Any:
    spec = spec_from_file_location("sqlite_backend", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example: Final = _loaded()


def _put(file: Path, path: str, data: bytes) -> None:
    record = file_of(data)
    row = ("t", path, size_of(record), record.created_at, record.modified_at, record.encoding, record.content)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(example.SCHEMA)
        connection.execute("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _peek(file: Path, path: str) -> bytes | None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(example.SCHEMA)
        query = "SELECT content, encoding FROM file WHERE tenant = 't' AND path = ?"
        row = connection.execute(query, (path,)).fetchone()
    return raw_bytes(row and FileDataV2(*row))


@pytest.mark.suite_parts("Concurrency", "Cancellation", "Transfer", "StateMachine")
class TestSqliteExample(BackendConformance, BackendStateMachine, FileAndDirectory):
    """The suite; raw access uses the driver directly."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Any:
        self.file = tmp_path / "files.db"
        return example.SqliteBackend(self.file, "t")

    @pytest.fixture
    def second_backend(self, backend: Any) -> Any:
        return example.SqliteBackend(self.file, "t")

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(_put, self.file, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(_peek, self.file, path)


def test_the_example_is_as_short_as_promised() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 120


CHILD = """
import sys
import time
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from sqlite_backend import SqliteBackend, SqliteFiles

class SlowFiles(SqliteFiles):
    def get(self, paths):
        found = super().get(paths)
        time.sleep(0.01)  # There is time for the other process to come in between, if anything lets it.
        return found

class SlowBackend(SqliteBackend):
    def _storage(self):
        return SlowFiles(self.file, self.tenant)

backend = SlowBackend(sys.argv[2], "t")
assert backend.read("/log.txt").ok  # What the first call loads takes longer than many edits.
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    result = backend.edit("/log.txt", f"<{number}>", f"({number})")
    print("ok" if result.ok else result.error, flush=True)
"""


def test_concurrent_processes_lose_no_edit(tmp_path: Path) -> None:
    file = tmp_path / "files.db"
    total = PROCESSES * EDITS
    backend = example.SqliteBackend(file, "t")
    assert backend.write("/log.txt", "".join(f"<{number}>\n" for number in range(total))).ok
    arguments = [(EXAMPLE, file, first * EDITS, (first + 1) * EDITS) for first in range(PROCESSES)]
    assert printed_at_once(CHILD, arguments) == ["ok"] * total
    assert _peek(file, "/log.txt") == "".join(f"({number})\n" for number in range(total)).encode()


def test_errors_of_the_driver_become_results(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"no database" * 100)
    backend = example.SqliteBackend(tmp_path / "broken.db", "t")
    for result in (backend.ls("/"), backend.read("/a"), backend.write("/a", "x"), backend.grep("x")):
        assert (result.code, result.error) == ("backend_error", "Error: The storage failed (DatabaseError)")
