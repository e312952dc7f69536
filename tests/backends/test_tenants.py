"""A hundred tenants in one storage, with names that resemble one another: none sees or changes a file of another."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from deepfs import MemoryBackend, PostgresBackend, SqliteBackend
from deepfs.backends.flat import StorageBackend
from support.object_stores import S3Server
from support.postgres_files import fresh_namespace

pytestmark = pytest.mark.anyio

NAMES: Final = [
    *(str(number) for number in range(60)),
    *(f"{number}-{number}" for number in range(20)),
    *(f"{number}.0" for number in range(10)),
    *"abcdeABCD",
    "a_",
]
OPERATIONS: Final = 1000


SPACES: Final = [(name,) if at % 2 else ("1", name) for at, name in enumerate(NAMES)]
"""Half of the tenants are beneath another one."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # A pool of asyncpg needs it.


@asynccontextmanager
async def in_postgres(dsn: str) -> AsyncIterator[list[StorageBackend]]:
    above = fresh_namespace()
    async with asyncpg.create_pool(dsn, password="", min_size=0, max_size=2) as pool:
        yield [PostgresBackend(pool, (*above, *space)) for space in SPACES]


@asynccontextmanager
async def in_sqlite(file: Path) -> AsyncIterator[list[StorageBackend]]:
    backends: list[StorageBackend] = [SqliteBackend(file, space) for space in SPACES]
    yield backends
    for backend in backends:
        await backend.aclose()


async def test_a_database_of_postgres(postgres_files_dsn: str) -> None:
    async with in_postgres(postgres_files_dsn) as backends:
        await compare_with_models(backends, OPERATIONS)


@pytest.mark.parametrize("always_indexed", [False, True])
async def test_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always_indexed: bool) -> None:
    if always_indexed:
        for name, value in {"_SAMPLE": 1, "_SHORT_WALK": 0, "_MANY": 10**9}.items():
            monkeypatch.setattr(f"deepfs.backends.sqlite.search.{name}", value)
    async with in_sqlite(tmp_path / "files.db") as backends:
        await compare_with_models(backends, OPERATIONS)


async def test_a_bucket(s3_server: S3Server) -> None:
    above = s3_server.prefix()
    await compare_with_models([s3_server.backend(f"{above}/{name}") for name in NAMES], OPERATIONS // 3)


async def compare_with_models(backends: Sequence[StorageBackend], operations: int) -> None:
    """Let random tenants do random operations; each must find what it would find alone."""
    assert len(backends) == 100
    chosen = random.Random(3)
    models = [MemoryBackend() for _ in backends]
    for _ in range(operations):
        at = chosen.randrange(len(backends))
        path, other = (f"/{chosen.choice('ab')}/file-{chosen.choice('xyz')}" for _ in range(2))
        name, *arguments = chosen.choice(
            [
                ("awrite", path, f"text of {at}"),
                ("awrite", path, f"another text of {at}"),
                ("aedit", path, "text", "words"),
                ("adelete", path),
                ("adelete", "/a"),
                ("amove", path, other),
                ("amove", "/a", "/b/a"),
                ("als", "/"),
                ("aread", path),
                ("aglob", "**"),
                ("aglob", "**/file-x"),
                ("agrep", "text of"),
            ]
        )
        found, expected = [await getattr(each, name)(*arguments) for each in (backends[at], models[at])]
        assert (found.code, plain(found)) == (expected.code, plain(expected)), (name, arguments)
    for backend, model in zip(backends, models, strict=True):
        for name, pattern in (("aglob", "**"), ("aglob", "**/file-[xy]"), ("agrep", "text of")):
            assert plain(await getattr(backend, name)(pattern)) == plain(await getattr(model, name)(pattern))


def plain(result: Any) -> Any:
    """The parts of a result that are equal on all backends."""
    if hasattr(result, "entries"):
        return [(entry.path, entry.size) for entry in result.entries or ()]
    if hasattr(result, "matches"):
        return [(match.path, getattr(match, "text", None)) for match in result.matches or ()]
    return getattr(result.file_data, "content", None) if hasattr(result, "file_data") else None
