"""The same operations on few and on many files: on disk, in memory, in SQLite and in PostgreSQL."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs, stores
from benchmarks.bench import MB, Bench, Contender
from benchmarks.machine import with_ripgrep
from benchmarks.record import Line, Race, point
from deepfs.backends import FilesystemBackend, MemoryBackend, PostgresBackend, SqliteBackend

_SMALL: Final = "/d0001"
"""One of the directories, which have a hundred files each."""
_FILE: Final = f"{_SMALL}/f50.txt"
_TEXT: Final = "a line of a small file\n" * 20


def _write(backend: Any) -> Awaitable[Any]:
    options = {} if isinstance(backend, PeerBackend) else {"overwrite": True}
    return backend.awrite(_FILE, _TEXT, **options)


_OPERATIONS: Final[dict[str, tuple[int, str, Callable[[Any], Awaitable[Any]]]]] = {
    "read": (100, f'aread("{_FILE}")', lambda fs: fs.aread(_FILE)),
    "write": (50, f'awrite("{_FILE}", text, overwrite=True)', _write),
    "ls": (50, f'als("{_SMALL}")', lambda fs: fs.als(_SMALL)),
    "glob": (1, 'aglob("**/*.txt")', lambda fs: fs.aglob("**/*.txt")),
    "grep": (1, 'agrep("needle")', lambda fs: fs.agrep("needle")),
}
"""How often each operation is called in a turn, which is more than once if it touches few files, and its call."""


async def growth(bench: Bench) -> None:
    """Growth from 1,000 files to 100,000: the cost of each operation on disk and in memory."""
    sizes = (300, 3_000) if bench.quick else (1_000, 10_000, 100_000)
    with inputs.scratch() as directory:
        roots = {size: inputs.write_tree(directory / str(size), inputs.flat_files(size)) for size in sizes}
        await _grow(bench, "FilesystemBackend", {size: FilesystemBackend(root) for size, root in roots.items()})
        root = roots[sizes[-1]]
        for name in _OPERATIONS:
            peer = _contender("deepagents", name, PeerBackend(str(root)), partial(_found, name), may_lose=True)
            contenders = [_contender("deepfs", name, FilesystemBackend(root), partial(_found, name)), peer]
            await bench.race(f"{name} in a tree of {sizes[-1]:,} files", contenders, "rows", rounds=3)
    in_memory = {size: MemoryBackend() for size in sizes}
    for size, backend in in_memory.items():
        await backend.aupload_files([(path, text.encode()) for path, text in inputs.flat_files(size).items()])
    await _grow(bench, "MemoryBackend", in_memory)
    bench.note("deepagents stops a glob after 5 s and ripgrep after 15 s; it has no backend in plain memory.")


def _contender(name: str, operation: str, backend: Any, rows: Callable[[Any], Any], **options: Any) -> Contender:
    times, shown, call = _OPERATIONS[operation]

    async def run() -> list[Any]:
        return [await call(backend) for _ in range(times)]

    return Contender(name, f"{times}× await fs.{shown}", run, rows, around=with_ripgrep, **options)


async def _grow(bench: Bench, kind: str, backends: dict[int, Any]) -> None:
    """Race each operation over trees of different sizes, set bars for its growth, and plot it."""
    few, *_, many = backends
    lines = []
    for name, (times, _, _) in _OPERATIONS.items():
        contenders = [_contender(f"{n:,} files", name, each, _succeeded, own=True) for n, each in backends.items()]
        race = await bench.race(f"{kind}: {name}", contenders, "answers", seconds=12)
        ratios = race.ratios(f"{many:,} files", f"{few:,} files")
        limit, told = (2, "within 2×") if times > 1 else (many / few, f"linear, at most {many / few:,.0f}×")
        bench.at_most(f"{kind}: {name} at {many:,} files against {few:,} files: {told}", limit, ratios)
        points = [point(size, race.milliseconds(f"{size:,} files", times)) for size in backends]
        lines.append(Line(name, points))
    name = kind.removesuffix("Backend").lower()
    bench.plot(f"growth-{name}", f"{kind}: cost by size of the tree", ("files in the tree", "ms"), lines)


def _succeeded(results: list[Any]) -> range:
    """One row for each answer. Raises if one failed or is truncated."""
    assert not any(result.error or getattr(result, "truncated", False) for result in results)
    return range(len(results))


def _found(operation: str, results: list[Any]) -> list[Any]:
    """The paths in the answers; for reads and writes, only the error of each."""
    if operation in ("read", "write"):
        return [result.error for result in results]
    fields = "entries" if operation == "ls" else "matches"
    return [info["path"] for result in results for info in getattr(result, fields) or ()]


_BYTES: Final = 2_000  # At most, in a file.
_TIMES: Final = 100
"""How often a race calls an operation in each turn. The first calls are slow, since all garbage is collected before."""


def _path(number: int) -> str:
    return f"/src/{number // 10_000:04}/{number // 100:06}/module_{number:07}.py"


_CALLS: Final[dict[str, tuple[str, Callable[[Any], Awaitable[Any]]]]] = {
    "a rare literal": ("agrep('0076543x')", lambda turn: turn.fs.agrep(turn.mark)),
    "an absent literal": ("agrep('no such mark')", lambda turn: turn.fs.agrep(f"no such mark {turn.number}")),
    "a regular expression": (
        r"agrep(r'^# [a-z]+ 0076543x\b', regex=True)",
        lambda turn: turn.fs.agrep(rf"^# [a-z]+ {turn.mark}\b", regex=True),
    ),
    "a name anywhere": ("aglob('**/name.py')", lambda turn: turn.fs.aglob(f"**/{Path(turn.path).name}")),
    "ls": ("als(directory of 100)", lambda turn: turn.fs.als(turn.path.rpartition("/")[0])),
    "read": ("aread(path)", lambda turn: turn.fs.aread(turn.path)),
    "write": ("awrite(new path, 2 kB)", lambda t: t.fs.awrite(f"/new/{t.number // 100:05}/{t.number}.py", t.text)),
    # The mark stays, so any number may return.
    "edit": ("aedit(path, …)", lambda turn: turn.fs.aedit(turn.path, turn.mark, f"{turn.mark} ")),
}
"""The operations; their argument has the backend, the path and mark of a file, and number and text of a new one."""


async def _compare(
    bench: Bench, kind: str, backends: dict[int, Any], content: Callable[[int], str], most: dict[str, float]
) -> list[Race]:
    """Race each operation over many files and over few; set bars for the milliseconds of a call, if it is in `most`."""
    numbers = count(7_919, 7_919)

    async def turn(call: Callable[[Any], Awaitable[Any]], backend: Any, size: int) -> list[int]:
        found = []
        for number in islice(numbers, _TIMES):
            at = number % size
            about = {"path": _path(at), "mark": f"{at:07}x", "number": number, "text": content(number)}
            result = await call(SimpleNamespace(fs=backend, **about))
            assert result.ok, result.error
            found.append(len(getattr(result, "matches", None) or getattr(result, "entries", None) or ()))
        return found

    races = []
    for name, (shown, call) in _CALLS.items():
        contenders = [
            Contender(f"{size:,} files", f"await fs.{shown}", partial(turn, call, each, size), list, own=True)
            for size, each in backends.items()
        ]
        race = await bench.race(f"{name}, {_TIMES} times", contenders, "rows", rounds=9)
        races.append(race)
        if limit := most.get(name):
            took = race.milliseconds(race.entries[0].name, _TIMES)
            bench.at_most(f"{kind}: {name}: at most {limit:g} ms", limit, took, " ms")
    bench.note(f"Files of up to {_BYTES:,} bytes, 100 in a directory; medians of {_TIMES} calls a turn.")
    return races


async def sqlite(bench: Bench) -> None:
    """A hundred thousand files in SQLite, and each operation beside the same with ten thousand."""
    most = {"a rare literal": 10.0, "an absent literal": 10.0, "read": 0.15, "write": 1.0}
    pieces = inputs.random_texts(20, _BYTES - 100)

    def content(number: int) -> str:
        """A text of one of twenty kinds and of any length."""
        return f"# mark {number:07}x\n{pieces[number % 20][: number * 7_919 % _BYTES]}"

    with TemporaryDirectory() as directory:
        async with AsyncExitStack() as opened:
            backends = {}
            for size in (2_000, 200) if bench.quick else (100_000, 10_000):
                backend = await opened.enter_async_context(SqliteBackend(Path(directory, f"{size}.db")))
                for start in range(0, size, 1_000):
                    numbers = range(start, min(start + 1_000, size))
                    uploads = await backend.aupload_files([(_path(n), content(n).encode()) for n in numbers])
                    assert all(upload.error is None for upload in uploads)
                backends[size] = backend
            await _compare(bench, "SQLite, 100,000 files", backends, content, most)
    bench.note("Each write waits for the disk (`durability='full'`).")


async def postgres(bench: Bench) -> None:
    """A million files in PostgreSQL, and each operation beside the same with ten thousand."""
    most = {"a rare literal": 10.0, "an absent literal": 10.0, "a regular expression": 100.0, "a name anywhere": 80.0}
    with ExitStack() as stack:
        place = stack.enter_context(stores.postgres())
        async with AsyncExitStack() as opened:
            backends = {}
            for size in (20_000, 1_000) if bench.quick else (1_000_000, 10_000):
                dsn = stack.enter_context(place())
                bench.note(f"Sizes with {size:,} files: {await _fill(dsn, size)}")
                backends[size] = await opened.enter_async_context(PostgresBackend(dsn, "bench"))
            races = await _compare(bench, "Postgres, 1,000,000 files", backends, _content, most)
    for race in races:
        name, _, _ = race.work.partition(",")
        if name in ("ls", "read", "write", "edit"):
            claim = f"Postgres, 1,000,000 files: {name}: at most 1.5× the time with 10,000"
            bench.at_most(claim, 1.5, race.ratios(*(entry.name for entry in race.entries)))
    bench.note("The server runs with fsync=off, on the same machine.")


def _content(number: int) -> str:
    pieces = _pieces()
    return f"# mark {number:07}x\n{pieces[number % len(pieces)]}"


@cache
def _pieces() -> list[str]:
    """The first pieces of the sources of Django, of up to 2 kB."""
    texts = (text for _, text in sorted(inputs.python_files().items()) if text.isascii())
    return [text[:at] for text in texts for at in (_BYTES // 4, _BYTES // 2, _BYTES - 100) if len(text) > at]


async def _fill(dsn: str, number: int) -> str:
    """Copy files into the table of a new backend, then make its trigram indexes; return the sizes of all."""
    async with PostgresBackend(dsn, "bench") as backend:
        assert (await backend.als("/")).ok  # Makes the table.
    connection = await asyncpg.connect(dsn, command_timeout=3600)
    try:
        await connection.execute("ALTER TABLE deepfs.files DISABLE TRIGGER USER")
        made = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'deepfs' AND indexdef LIKE '%gin_trgm%'"
        indexes = await connection.fetch(made)
        for name, _ in indexes:
            await connection.execute(f'DROP INDEX deepfs."{name}"')
        rows = (("bench", _path(each), _content(each)) for each in range(number))
        columns = ["namespace", "path", "content"]
        await connection.copy_records_to_table("files", schema_name="deepfs", records=rows, columns=columns)
        await connection.execute("SET maintenance_work_mem = '1GB'")
        for _, definition in indexes:
            await connection.execute(definition)
        await connection.execute("ALTER TABLE deepfs.files ENABLE TRIGGER USER")
        await connection.execute("VACUUM ANALYZE deepfs.files")
        sizes = await connection.fetch(
            "SELECT relname, pg_relation_size(oid) AS size FROM pg_class "
            "WHERE relnamespace = 'deepfs'::regnamespace AND relkind IN ('r', 'i') ORDER BY size DESC"
        )
    finally:
        await connection.close()
    return ", ".join(f"{row['relname']} {row['size'] / MB:,.0f} MB" for row in sizes if row["size"] > MB)
