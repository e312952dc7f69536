"""Operations on a million files of a PostgresBackend, beside those on ten thousand, and the plans of their queries."""

from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

import asyncpg

from benchmarks import inputs, servers
from benchmarks.bench import Bench
from benchmarks.many_files import BYTES, CALLS, IN_DIRECTORY, TIMES, Files, compare, mark_of, path_of
from benchmarks.record import Race
from deepfs.backends import PostgresBackend

TITLE: Final = "A million files in PostgreSQL"

_FEW: Final = 10_000
_MANY: Final = 1_000_000
_FEW_QUICK: Final = 1_000
_MANY_QUICK: Final = 20_000
_NAMESPACE: Final = "bench"
_TABLE: Final = "deepfs.files"

_MILLISECONDS: Final = {
    "a rare literal": 10.0,
    "an absent literal": 10.0,
    "a regular expression": 100.0,
    "a name anywhere": 80.0,
}
"""The limits for one call with many files."""
_RATIOS: Final = {"ls": 1.5, "read": 1.5, "write": 1.5, "edit": 1.5}
"""The limits for the time with many files, in that with few."""


async def measure(bench: Bench) -> None:
    """Race each operation with many files against the same with few."""
    few, many = (_FEW_QUICK, _MANY_QUICK) if bench.quick else (_FEW, _MANY)
    with ExitStack() as stack:
        place = stack.enter_context(servers.postgres())
        places = {number: stack.enter_context(place()) for number in (many, few)}
        for number, dsn in places.items():
            await _fill(dsn, number)
        async with AsyncExitStack() as opened:
            files = [
                Files(await opened.enter_async_context(PostgresBackend(dsn, _NAMESPACE)), number, _content)
                for number, dsn in places.items()
            ]
            for name in CALLS:
                _set_bars(bench, name, await compare(bench, name, files))
        await _note_plans(bench, places[many], many)
    bench.note(f"Files of up to {BYTES:,} bytes, {IN_DIRECTORY} in a directory; medians of {TIMES} calls a turn.")
    bench.note("The server runs with fsync=off, on the same machine.")


def _set_bars(bench: Bench, name: str, race: Race) -> None:
    many, few = (entry.timing.seconds for entry in race.entries)
    if limit := _MILLISECONDS.get(name):
        claim = f"Postgres, {_MANY:,} files: {name}: at most {limit:g} ms"
        bench.at_most(claim, limit, [each / TIMES * 1000 for each in many], " ms", reduced=bench.quick)
    if limit := _RATIOS.get(name):
        claim = f"Postgres, {_MANY:,} files: {name}: at most {limit}× the time with {_FEW:,}"
        ratios = [one / other for one, other in zip(many, few, strict=True)]
        bench.at_most(claim, limit, ratios, reduced=bench.quick)


# --- the files -------------------------------------------------------------------------------------------------------


def _content(number: int) -> str:
    pieces = _pieces()
    return f"# mark {mark_of(number)}\n{pieces[number % len(pieces)]}"


_made: list[str] = []


def _pieces() -> list[str]:
    """The first pieces of the sources of Django, of up to 2 kB."""
    if not _made:
        texts = (text for _, text in sorted(inputs.python_files().items()) if text.isascii())
        _made.extend(text[:at] for text in texts for at in (BYTES // 4, BYTES // 2, BYTES - 100) if len(text) > at)
    return _made


async def _fill(dsn: str, number: int) -> None:
    """Copy files into the table of a new backend; its trigram indexes are made when the files are there."""
    async with PostgresBackend(dsn, _NAMESPACE) as backend:
        assert (await backend.als("/")).ok  # Makes the table.
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"ALTER TABLE {_TABLE} DISABLE TRIGGER USER")
        made = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'deepfs' AND indexdef LIKE '%gin_trgm%'"
        indexes = await connection.fetch(made)
        for name, _ in indexes:
            await connection.execute(f'DROP INDEX deepfs."{name}"')
        rows = ((_NAMESPACE, path_of(each), _content(each)) for each in range(number))
        await connection.copy_records_to_table(
            "files", schema_name="deepfs", records=rows, columns=["namespace", "path", "content"]
        )
        await connection.execute("SET maintenance_work_mem = '1GB'")
        for _, definition in indexes:
            await connection.execute(definition, timeout=3600)
        await connection.execute(f"ALTER TABLE {_TABLE} ENABLE TRIGGER USER")
        await connection.execute(f"VACUUM ANALYZE {_TABLE}", timeout=3600)
    finally:
        await connection.close()


# --- plans -----------------------------------------------------------------------------------------------------------


async def _note_plans(bench: Bench, dsn: str, number: int) -> None:
    """Note how the server carries out the queries of each operation, and the sizes of table and indexes."""
    queries: list[Any] = []

    async def watch(connection: Any) -> None:
        connection.add_query_logger(queries.append)

    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, init=watch) as pool:
        backend = PostgresBackend(pool, _NAMESPACE)
        files = Files(backend, number, _content)
        for name, (_, run) in CALLS.items():
            await run(files, 104_729)
            queries.clear()
            assert (await run(files, 15_485_863)).ok
            plans = [await _plan(dsn, logged) for logged in list(queries)]
            steps = "; ".join(", ".join(plan) or "no plan" for plan in plans)
            bench.note(f"Plans of {name}, {len(plans)} statements: {steps}")
    bench.note(f"Sizes with {number:,} files: {await _sizes(dsn)}")


async def _plan(dsn: str, logged: Any) -> list[str]:
    """The scans of the plan of a logged statement."""
    connection = await asyncpg.connect(dsn)
    try:
        lines = await connection.fetch(f"EXPLAIN (COSTS OFF) {logged.query}", *logged.args)
    except asyncpg.PostgresError:
        return []  # Such as BEGIN.
    finally:
        await connection.close()
    return [line[0].strip().removeprefix("->").strip() for line in lines if "Scan" in line[0]]


async def _sizes(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT relname, pg_relation_size(oid) AS size FROM pg_class "
            "WHERE relnamespace = 'deepfs'::regnamespace AND relkind IN ('r', 'i') ORDER BY size DESC"
        )
    finally:
        await connection.close()
    return ", ".join(f"{row['relname']} {row['size'] / 1e6:,.0f} MB" for row in rows if row["size"] > 1e6)
