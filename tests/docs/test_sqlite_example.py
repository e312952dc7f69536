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
from support.raw import file_of, raw_bytes

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "sqlite_backend.py"


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


def test_errors_of_the_driver_become_results(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"no database" * 100)
    backend = example.SqliteBackend(tmp_path / "broken.db", "t")
    for result in (backend.ls("/"), backend.read("/a"), backend.write("/a", "x"), backend.grep("x")):
        assert (result.code, result.error) == ("backend_error", "Error: The storage failed (DatabaseError)")
