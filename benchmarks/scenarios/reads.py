"""Reading every Python file of Django: all at once, one by one, from a script, and the event-loop lag meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs, peers
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.lag import percentile, ticking
from benchmarks.readers import LINES, Read, Reader, at_once, concurrent, read_text, readers, sequential
from benchmarks.record import Line, Point, Race, point
from deepfs.backends import FilesystemBackend

TITLE: Final = "Reads of the Python files of Django"


async def measure(bench: Bench) -> None:
    """Race all ways to read, and sync methods; then measure lag, and the files per second by the number of tasks."""
    root, paths = str(inputs.django()), list(inputs.python_files())
    ways = readers(root)
    work = f"{len(paths):,} concurrent reads"
    race = await bench.race(work, concurrent(ways, root, paths), noun="files", seconds=15)
    _bars(bench, work, race, least=14, most=2.2)
    fewer = paths[: 512 if bench.quick else None]
    work = f"{len(fewer):,} sequential reads"
    race = await bench.race(work, sequential(ways, root, fewer), noun="files", seconds=15)
    _bars(bench, work, race, least=12, most=1.8)
    await _in_a_script(bench, root, fewer)
    await _lag(bench, ways[:2], paths)
    await _throughput(bench, ways, paths)


def _bars(bench: Bench, work: str, race: Race, *, least: float, most: float) -> None:
    bench.at_least(
        f"{work}: at least {least:g}× deepagents", least, race.ratios("deepagents", "deepfs"), reduced=bench.quick
    )
    bench.at_most(
        f"{work}: at most {most:g}× a blocking loop of open().read()",
        most,
        race.ratios("deepfs", "blocking"),
        reduced=bench.quick,
    )


# --- a script --------------------------------------------------------------------------------------------------------


async def _in_a_script(bench: Bench, root: str, paths: list[str]) -> None:
    """Race the sync methods in a thread that has no event loop, which is what a script has."""
    backends: dict[str, Any] = {"deepfs": FilesystemBackend(root), "deepagents": PeerBackend(root)}
    contenders = [
        _script(name, "fs.read(path, 0, 100_000)", partial(backend.read, offset=0, limit=LINES), paths, text)
        for (name, backend), text in zip(backends.items(), (peers.our_text, peers.their_text), strict=True)
    ]
    contenders.append(_script("blocking", "open(path).read()", lambda path: read_text(root + path), paths, str))
    work = f"{len(paths):,} sync reads from a script"
    _bars(bench, work, await bench.race(work, contenders, noun="files", seconds=6), least=1, most=2.5)


def _script(
    name: str, call: str, read: Callable[[str], Any], paths: list[str], text: Callable[[Any], str]
) -> Contender:
    def timed() -> tuple[float, list[Any]]:
        start = time.perf_counter()
        found = [read(path) for path in paths]
        return time.perf_counter() - start, found

    return Contender(
        name=name,
        call=f"[{call} for path in paths]",
        run=lambda: asyncio.get_running_loop().run_in_executor(None, timed),
        rows=lambda answer: list(zip(paths, map(text, answer[1]), strict=True)),
        own_seconds=lambda answer: float(answer[0]),
        own=name == "deepfs",
    )


# --- lag -------------------------------------------------------------------------------------------------------------

_TASKS: Final = 256


async def _lag(bench: Bench, ways: list[Reader], paths: list[str]) -> None:
    """Set the bar for lag where tasks that exist already read; note what it is while `gather` creates the tasks."""
    lags: dict[str, list[float]] = {way.name: [] for way in ways}
    contenders = [
        Contender(
            name=way.name,
            call=f"{_TASKS} tasks, each: {way.call}; beside them: await anyio.sleep(0.001)",
            run=partial(_beside_ticks, partial(_by_tasks, way.read, paths, _TASKS), lags[way.name]),
            rows=range,
            own=way.name == "deepfs",
        )
        for way in ways
    ]
    work = f"{len(paths):,} reads by {_TASKS} tasks, beside a task that ticks"
    await bench.race(work, contenders, noun="files", rounds=25, seconds=6)
    late = percentile(lags["deepfs"], 99) * 1000
    bench.at_most("event-loop lag while 256 tasks read: at most 5 ms, p99", 5, [late], " ms", reduced=bench.quick)
    for name, ticks in lags.items():
        bench.note(f"Lag while {_TASKS} tasks read, {name}: {_percentiles(ticks)}.")
    for name, read in (("deepfs", ways[0].read), ("tasks that read nothing", _nothing)):
        ticks = await _lag_of_gather(read, paths)
        bench.note(f"Lag during asyncio.gather of {len(paths):,} tasks, {name}: {_percentiles(ticks)}.")


async def _lag_of_gather(read: Read, paths: list[str]) -> list[float]:
    ticks: list[float] = []
    for _ in range(10):
        await _beside_ticks(partial(at_once, read, paths), ticks)
    return ticks


async def _nothing(path: str) -> None:
    """Takes one turn of the event loop: `gather` itself, which creates a task for each, delays the loop."""
    await asyncio.sleep(0)


async def _beside_ticks(work: Callable[[], Awaitable[Any]], lags: list[float]) -> Any:
    async with ticking() as ticks:
        found = await work()
    lags += ticks
    return found


def _percentiles(ticks: list[float]) -> str:
    if not ticks:
        return "no ticks"
    shown = [f"{percentile(ticks, percent) * 1000:.2f} ms p{percent}" for percent in (50, 99)]
    return f"{', '.join(shown)}, {max(ticks) * 1000:.2f} ms at most, of {len(ticks):,} ticks"


# --- throughput ------------------------------------------------------------------------------------------------------


async def _throughput(bench: Bench, ways: list[Reader], paths: list[str]) -> None:
    """Measure and plot files per second by the number of tasks."""
    levels = (1, 16, 256) if bench.quick else (1, 16, 256, len(paths))
    some = paths[:256] if bench.quick else paths
    points: dict[str, list[Point]] = {way.name: [] for way in ways}
    for level in levels:
        contenders = [
            Contender(
                name=way.name,
                call=f"{level:,} tasks, each: {way.call}",
                run=partial(_by_tasks, way.read, some, level),
                rows=range,
                own=way.name == "deepfs",
            )
            for way in ways
        ]
        work = f"{len(some):,} reads by {level:,} tasks"
        race = await bench.race(work, contenders, noun="files", rounds=5, seconds=4, sweep=True)
        for entry in race.entries:
            points[entry.name].append(point(level, [len(some) / seconds for seconds in entry.timing.seconds]))
    lines = [Line(way.name, way.call, points[way.name]) for way in ways]
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
