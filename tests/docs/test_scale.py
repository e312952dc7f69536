"""docs/scale.md: what it says about requests and bytes to S3 is measured, and its statements of SQL work."""

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import pytest

from deepfs import PostgresBackend, S3Backend
from deepfs.backends.protocol import BackendProtocol
from support.object_server import ObjectServer, running_object_server

pytestmark = pytest.mark.anyio

DOCUMENT: Final = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
SIZE: Final = 200_000
"""The size of the file of each operation."""
TEXT: Final = "".join(f"line {number:06}\n" for number in range(SIZE // 12))

Call = Callable[[BackendProtocol], Awaitable[Any]]
CALLS: Final[dict[str, Call]] = {
    "create": lambda fs: fs.awrite("/d/new.txt", TEXT),
    "read": lambda fs: fs.aread("/d/new.txt", limit=1_000_000),
    "edit": lambda fs: fs.aedit("/d/new.txt", "line 000001", "line one"),
    "edit, `replace_all`": lambda fs: fs.aedit("/d/new.txt", "line 000002", "line two", replace_all=True),
    "overwrite": lambda fs: fs.awrite("/d/new.txt", TEXT, overwrite=True),
    "`ls`": lambda fs: fs.als("/d"),
    "`glob`": lambda fs: fs.aglob("**/new.txt"),
    "copy": lambda fs: fs.acopy("/d/new.txt", "/d/copy.txt"),
    "move": lambda fs: fs.amove("/d/copy.txt", "/d/moved.txt"),
    "delete": lambda fs: fs.adelete("/d/moved.txt"),
}


class Traffic(NamedTuple):
    """What an operation sent and received."""

    requests: int
    turns: int
    up: int
    down: int

    def shown(self) -> str:
        """As in the table: `3 in 2, S up`."""
        sizes = [
            f"{self._times(amount)}S {way}"
            for way, amount in (("up", self.up), ("down", self.down))
            if amount > SIZE / 2
        ]
        return ", ".join([f"{self.requests} in {self.turns}", *sizes])

    def _times(self, amount: int) -> str:
        times = round(amount / SIZE)
        return "" if times == 1 else f"{times} "


def documented(column: str) -> dict[str, str]:
    """The cells of a column of the table of requests, by operation."""
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in DOCUMENT.splitlines() if line[:1] == "|"
    ]
    start = next(at for at, row in enumerate(rows) if row[0] == "Operation")
    place = rows[start].index(column)
    return {row[0]: row[place] for row in rows[start + 2 : start + 2 + len(CALLS)]}


async def measured(backend: BackendProtocol, traffic: Callable[[], Traffic]) -> dict[str, str]:
    assert (await backend.awrite("/d/first.txt", "The first change also prepares the storage.")).ok
    found = {}
    for name, call in CALLS.items():
        before = traffic()
        result = await call(backend)
        assert result.error is None, name
        found[name] = Traffic(*(now - then for now, then in zip(traffic(), before, strict=True))).shown()
    return found


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with running_object_server() as server:
        server.delay = 0.02
        yield server


async def test_requests_to_s3(server: ObjectServer) -> None:
    backend = S3Backend("bucket", "files", **server.options())
    found = await measured(backend, lambda: Traffic(server.requests, server.turns, server.received, server.sent))
    assert found == documented("S3: requests")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_table_in_partitions(postgres_dsn: str) -> None:
    [statements] = re.findall(r"^```sql\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    async with PostgresBackend(postgres_dsn, "before") as backend:
        assert (await backend.awrite("/kept.txt", "made before")).ok
    connection = await asyncpg.connect(postgres_dsn, password="")
    await connection.execute(statements)
    async with PostgresBackend(postgres_dsn, "before") as before:
        assert [match.path for match in (await before.agrep("made before")).matches or ()] == ["/kept.txt"]
    tenants = [PostgresBackend(postgres_dsn, f"tenant-{number}", max_connections=1) for number in range(8)]
    for number, backend in enumerate(tenants):
        watch = backend.awatch("/")
        assert (await anext(watch)).kind == "resync"
        assert (await backend.awrite("/d/a.txt", f"text of {number}")).ok
        assert (await anext(watch)).path == "/d/a.txt"
        await watch.aclose()
        assert (await backend.aedit("/d/a.txt", "text", "words")).ok
        assert (await backend.amove("/d", "/e")).ok
    for number, backend in enumerate(tenants):
        assert [match.text for match in (await backend.agrep("words of")).matches or ()] == [f"words of {number}"]
        assert [match.path for match in (await backend.aglob("**/a.*")).matches or ()] == ["/e/a.txt"]
        await backend.aclose()
    used = await connection.fetch("SELECT DISTINCT tableoid::regclass::text AS name FROM deepfs.files")
    await connection.close()
    assert len(used) > 1
