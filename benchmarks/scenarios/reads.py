"""Reading every Python file of Django, all at once and one by one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

import aiofiles
import anyio
from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs, peers
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Line, Point, point
from deepfs.backends import FilesystemBackend

TITLE: Final = "Reads of the Python files of Django"

_LINES: Final = 100_000
"""More lines than any file has: by default, both backends return only the first 2,000."""

Read = Callable[[str], Awaitable[Any]]


async def measure(bench: Bench) -> None:
    """Race all ways to read; then measure the files per second of each, for different numbers of tasks."""
    root, paths = str(inputs.django()), list(inputs.python_files())
    readers = _readers(root)
    count = f"{len(paths):,}"
    at_once = [_contender(reader, paths, _at_once, "asyncio.gather(*({}))") for reader in readers]
    together = await bench.race(f"{count} concurrent reads", [*at_once, _blocking(root, paths)], noun="files")
    fewer = paths[: 512 if bench.quick else None]
    one_by_one = [_contender(reader, fewer, _one_by_one, "[{}]") for reader in readers]
    in_turn = await bench.race(f"{len(fewer):,} sequential reads", [*one_by_one, _blocking(root, fewer)], noun="files")
    bench.at_least(f"{count} concurrent reads: at least 10× deepagents", 10, together.ratios("deepagents", "deepfs"))
    bench.at_most(
        f"{count} concurrent reads: at most 3× a blocking loop of open().read()",
        3,
        together.ratios("deepfs", "blocking"),
    )
    bench.at_least(
        f"{count} sequential reads: at least 2× deepagents",
        2,
        in_turn.ratios("deepagents", "deepfs"),
        reduced=bench.quick,
    )
    await _throughput(bench, readers, paths)


# --- ways to read ----------------------------------------------------------------------------------------------------


class _Reader:
    """One way to read a file, and a function that gets the text from its result."""

    def __init__(self, name: str, call: str, read: Read, text: Callable[[Any], str] = str) -> None:
        self.name = name
        self.call = call
        self.read = read
        self.text = text


def _readers(root: str) -> list[_Reader]:
    ours, theirs = FilesystemBackend(root), PeerBackend(root)

    async def by_aiofiles(path: str) -> str:
        async with aiofiles.open(root + path, encoding="utf-8") as file:
            return await file.read()

    async def by_anyio(path: str) -> str:
        return await anyio.Path(root + path).read_text(encoding="utf-8")

    async def by_to_thread(path: str) -> str:
        return await asyncio.to_thread(_read, root + path)

    return [
        _Reader("deepfs", "await fs.aread(path, 0, 100_000)", lambda path: ours.aread(path, 0, _LINES), peers.our_text),
        _Reader(
            "deepagents",
            "await fs.aread(path, 0, 100_000)",
            lambda path: theirs.aread(path, 0, _LINES),
            peers.their_text,
        ),
        _Reader("aiofiles", "async with aiofiles.open(path) as f: await f.read()", by_aiofiles),
        _Reader("anyio.Path", "await anyio.Path(path).read_text()", by_anyio),
        _Reader("asyncio.to_thread", "await asyncio.to_thread(lambda: open(path).read())", by_to_thread),
    ]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- races -----------------------------------------------------------------------------------------------------------


async def _at_once(read: Read, paths: list[str]) -> list[Any]:
    return await asyncio.gather(*(read(path) for path in paths))


async def _one_by_one(read: Read, paths: list[str]) -> list[Any]:
    return [await read(path) for path in paths]


def _contender(
    reader: _Reader, paths: list[str], gather: Callable[[Read, list[str]], Awaitable[list[Any]]], shown: str
) -> Contender:
    return Contender(
        name=reader.name,
        call=shown.format(f"{reader.call.removeprefix('await ' if 'gather' in shown else '')} for path in paths"),
        run=partial(gather, reader.read, paths),
        rows=lambda found: list(zip(paths, map(reader.text, found), strict=True)),
        own=reader.name == "deepfs",
    )


def _blocking(root: str, paths: list[str]) -> Contender:
    return Contender(
        name="blocking",
        call='[open(path, encoding="utf-8").read() for path in paths]',
        run=lambda: [_read(root + path) for path in paths],
        rows=lambda found: list(zip(paths, found, strict=True)),
    )


# --- throughput ------------------------------------------------------------------------------------------------------


async def _throughput(bench: Bench, readers: list[_Reader], paths: list[str]) -> None:
    """Measure and plot files per second by the number of tasks."""
    levels = (1, 16, 256) if bench.quick else (1, 4, 16, 64, 256, 1024, len(paths))
    some = paths[:256] if bench.quick else paths
    points: dict[str, list[Point]] = {reader.name: [] for reader in readers}
    for level in levels:
        contenders = [
            Contender(
                name=reader.name,
                call=f"{level:,} tasks, each: {reader.call}",
                run=partial(_by_tasks, reader.read, some, level),
                rows=range,
                own=reader.name == "deepfs",
            )
            for reader in readers
        ]
        work = f"{len(some):,} reads by {level:,} tasks"
        race = await bench.race(work, contenders, noun="files", rounds=5, seconds=12, sweep=True)
        for entry in race.entries:
            points[entry.name].append(point(level, [len(some) / seconds for seconds in entry.timing.seconds]))
    lines = [Line(reader.name, reader.call, points[reader.name]) for reader in readers]
    loop = bench.record.races[0].entry("blocking")
    rates = [len(paths) / seconds for seconds in loop.timing.seconds]
    lines.append(Line("blocking loop", loop.call, [point(level, rates) for level in levels]))
    bench.plot("throughput", "Reads of small files", ("tasks that read at once", "files a second"), lines)


async def _by_tasks(read: Read, paths: Iterable[str], tasks: int) -> int:
    """Let `tasks` tasks read paths from one queue; return the number of files read."""
    queue = iter(paths)

    async def worker() -> int:
        return len([await read(path) for path in queue])

    return sum(await asyncio.gather(*(worker() for _ in range(tasks))))
