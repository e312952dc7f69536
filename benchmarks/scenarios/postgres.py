"""Operations on a million files of a PostgresBackend, beside those on ten thousand, and the plans of their queries."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from typing import Any, Final, NamedTuple

import asyncpg

from benchmarks import inputs, servers
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Race
from deepfs.backends import PostgresBackend

TITLE: Final = "A million files in PostgreSQL"

_FEW: Final = 10_000
_MANY: Final = 1_000_000
_FEW_QUICK: Final = 1_000
_MANY_QUICK: Final = 20_000
_IN_DIRECTORY: Final = 100
_BYTES: Final = 2_000
_NAMESPACE: Final = "bench"
_TABLE: Final = "deepfs.files"
_TIMES: Final = 20
"""How often a race calls an operation in each turn."""

Operation = Callable[["_Files", int], Awaitable[Any]]


class _Files(NamedTuple):
    """A backend with `count` files, and a number for each call."""

    backend: PostgresBackend
    count: int
    numbers: Iterator[int]

    def path(self, number: int) -> str:
        return _path(number % self.count)


class _Case(NamedTuple):
    name: str
    call: str
    run: Operation
    milliseconds: float | None = None
    """The limit for one call with many files."""
    ratio: float | None = None
    """The limit for the time with many files, in that with few."""


async def _rare(files: _Files, number: int) -> Any:
    return await files.backend.agrep(_mark(number % files.count))


async def _absent(files: _Files, number: int) -> Any:
    return await files.backend.agrep(f"no such mark {number}")


async def _regex(files: _Files, number: int) -> Any:
    return await files.backend.agrep(rf"^# [a-z]+ {number % files.count:07}x\b", regex=True)


async def _named(files: _Files, number: int) -> Any:
    return await files.backend.aglob(f"**/{files.path(number).rpartition('/')[2]}")


async def _listed(files: _Files, number: int) -> Any:
    return await files.backend.als(files.path(number).rpartition("/")[0])


async def _read(files: _Files, number: int) -> Any:
    return await files.backend.aread(files.path(number))


async def _written(files: _Files, number: int) -> Any:
    return await files.backend.awrite(f"/new/{number // 100:05}/{number}.py", _content(number))


async def _edited(files: _Files, number: int) -> Any:
    mark = _mark(number % files.count)
    return await files.backend.aedit(files.path(number), f"# mark {mark}", f"# edited {number} {mark}")


_CASES: Final = (
    _Case("a rare literal", "await fs.agrep('0765432x')", _rare, milliseconds=10),
    _Case("an absent literal", "await fs.agrep('no such mark')", _absent, milliseconds=10),
    _Case("a regular expression", r"await fs.agrep(r'^# [a-z]+ 0765432x\b', regex=True)", _regex, milliseconds=100),
    _Case("a name anywhere", "await fs.aglob('**/name.py')", _named, milliseconds=80),
    _Case("ls", "await fs.als(directory of 100)", _listed, ratio=1.5),
    _Case("read", "await fs.aread(path)", _read, ratio=1.5),
    _Case("write", "await fs.awrite(new path, 2 kB)", _written, ratio=1.5),
    _Case("edit", "await fs.aedit(path, …)", _edited, ratio=1.5),
)


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
                _Files(await opened.enter_async_context(PostgresBackend(dsn, _NAMESPACE)), number, count(7_919, 7_919))
                for number, dsn in places.items()
            ]
            for case in _CASES:
                _set_bars(bench, case, await _race(bench, case, files), reduced=bench.quick)
        await _note_plans(bench, places[many], many)
    bench.note(f"Files of up to {_BYTES:,} bytes, {_IN_DIRECTORY} in a directory; medians of {_TIMES} calls a turn.")
    bench.note("The server runs with fsync=off, on the same machine.")


async def _race(bench: Bench, case: _Case, files: list[_Files]) -> Race:
    async def run(one: _Files) -> list[int]:
        return [_rows(await case.run(one, next(one.numbers))) for _ in range(_TIMES)]

    contenders = [
        Contender(name=f"{one.count:,} files", call=case.call, run=lambda one=one: run(one), rows=list, own=True)
        for one in files
    ]
    return await bench.race(f"{case.name}, {_TIMES} times", contenders, noun="rows", rounds=9, seconds=30)


def _rows(result: Any) -> int:
    assert result.ok, result.error
    found = getattr(result, "matches", None) or getattr(result, "entries", None)
    return len(found) if found else 0


def _set_bars(bench: Bench, case: _Case, race: Race, *, reduced: bool) -> None:
    many, few = (entry.timing.seconds for entry in race.entries)
    if case.milliseconds is not None:
        claim = f"Postgres, {_MANY:,} files: {case.name}: at most {case.milliseconds:g} ms"
        bench.at_most(claim, case.milliseconds, [each / _TIMES * 1000 for each in many], " ms", reduced=reduced)
    if case.ratio is not None:
        claim = f"Postgres, {_MANY:,} files: {case.name}: at most {case.ratio}× the time with {_FEW:,}"
        bench.at_most(claim, case.ratio, [one / other for one, other in zip(many, few, strict=True)], reduced=reduced)


# --- the files -------------------------------------------------------------------------------------------------------


def _path(number: int) -> str:
    return f"/src/{number // 10_000:04}/{number // _IN_DIRECTORY:06}/module_{number:07}.py"


def _mark(number: int) -> str:
    return f"{number:07}x"


def _content(number: int) -> str:
    pieces = _pieces()
    return f"# mark {_mark(number)}\n{pieces[number % len(pieces)]}"


_made: list[str] = []


def _pieces() -> list[str]:
    """The first pieces of the sources of Django, of up to 2 kB."""
    if not _made:
        texts = (text for _, text in sorted(inputs.python_files().items()) if text.isascii())
        _made.extend(text[:at] for text in texts for at in (_BYTES // 4, _BYTES // 2, _BYTES - 100) if len(text) > at)
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
        rows = ((_NAMESPACE, _path(each), _content(each)) for each in range(number))
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
        files = _Files(backend, number, count())
        for case in _CASES:
            await case.run(files, 104_729)
            queries.clear()
            assert (await case.run(files, 15_485_863)).ok
            plans = [await _plan(dsn, logged) for logged in list(queries)]
            steps = "; ".join(", ".join(plan) or "no plan" for plan in plans)
            bench.note(f"Plans of {case.name}, {len(plans)} statements: {steps}")
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
