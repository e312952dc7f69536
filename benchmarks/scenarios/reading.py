"""Reads: of many small files, on several file systems, of files that are not in memory, of large and of huge ones."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import inputs
from benchmarks.bench import MB, Bench, Contender, Timed, in_new_process, percentile, percentiles, ticking
from benchmarks.machine import file_system
from benchmarks.peers import Read, Reader, contenders, read_text, readers
from benchmarks.record import Line, Point, Race, point
from benchmarks.scenarios import searching

_TASKS: Final = 256


async def reads(bench: Bench) -> None:
    """Reads of the Python files of Django: all at once, one by one, from a script, and the event-loop lag meanwhile."""
    root, paths = str(inputs.django()), list(inputs.python_files())
    ways = readers(root)
    fewer = paths[: 512 if bench.quick else None]
    loop: list[float] = []
    for work, some in (("concurrent reads", paths), ("sequential reads", fewer)):
        shown = f"{len(some):,} {work}"
        race = await bench.race(shown, contenders(ways, root, some, work), "files", seconds=15)
        loop = loop or race.entry("blocking").seconds
        bench.beats_peer(shown, 10, race)
        if some is fewer:
            _near_blocking(bench, shown, race, 1.8)
    work = f"{len(fewer):,} sync reads from a script"
    race = await bench.race(work, _in_a_script(ways[:2], root, fewer), "files", seconds=6)
    bench.beats_peer(work, 1, race)
    _near_blocking(bench, work, race, 2.5)
    await _lag(bench, ways[:2], paths)
    await _throughput(bench, ways, paths, loop)


def _near_blocking(bench: Bench, work: str, race: Race, most: float) -> None:
    claim = f"{work}: at most {most:g}× a blocking loop of open().read()"
    bench.at_most(claim, most, race.ratios("deepfs", "blocking"))


def _in_a_script(ways: list[Reader], root: str, paths: list[str]) -> list[Contender]:
    """The sync methods in a thread that has no event loop, which is what a script has."""

    def timed(read: Callable[[str], Any]) -> Timed:
        start = time.perf_counter()
        found = [read(path) for path in paths]
        return Timed(time.perf_counter() - start, found)

    found = [(way.name, "fs.read(path, 0, 100_000)", way.sync, way.text) for way in ways]
    return [
        Contender(
            name,
            f"[{call} for path in paths]",
            partial(asyncio.to_thread, timed, read),
            lambda found, text=text: list(zip(paths, map(text, found), strict=True)),
        )
        for name, call, read, text in [*found, ("blocking", "open(path).read()", lambda p: read_text(root + p), str)]
    ]


async def _lag(bench: Bench, ways: list[Reader], paths: list[str]) -> None:
    """Set the bar for lag where tasks read that exist already: `gather`, which creates tasks, delays the loop."""
    lags: dict[str, list[float]] = {way.name: [] for way in ways}

    async def beside_ticks(way: Reader) -> int:
        async with ticking(lags[way.name]):
            return await _by_tasks(way.read, paths, _TASKS)

    shown = f"{_TASKS} tasks, each: {{}}; beside them: await anyio.sleep(0.001)"
    found = [Contender(way.name, shown.format(way.call), partial(beside_ticks, way), range) for way in ways]
    work = f"{len(paths):,} reads by {_TASKS} tasks, beside a task that ticks"
    await bench.race(work, found, "files", rounds=25, seconds=6)
    late = percentile(lags["deepfs"], 99) * 1000
    bench.at_most("event-loop lag while 256 tasks read: at most 15 ms, p99", 15, [late], " ms")
    for name, ticks in lags.items():
        if ticks:
            bench.note(f"Lag while {_TASKS} tasks read, {name}: {percentiles(ticks)}, of {len(ticks):,} ticks.")


async def _throughput(bench: Bench, ways: list[Reader], paths: list[str], loop: list[float]) -> None:
    levels = (1, 16, 256) if bench.quick else (1, 16, 256, len(paths))
    some = paths[:256] if bench.quick else paths
    points: dict[str, list[Point]] = {way.name: [] for way in ways}
    for level in levels:
        shown = f"{level:,} tasks, each: {{}}"
        found = [Contender(w.name, shown.format(w.call), partial(_by_tasks, w.read, some, level), range) for w in ways]
        work = f"{len(some):,} reads by {level:,} tasks"
        race = await bench.race(work, found, "files", rounds=5, seconds=4)
        for entry in race.entries:
            points[entry.name].append(point(level, [len(some) / seconds for seconds in entry.seconds]))
    lines = [Line(way.name, points[way.name]) for way in ways]
    rates = [len(paths) / seconds for seconds in loop]
    lines.append(Line("blocking loop", [point(level, rates) for level in levels]))
    bench.plot("throughput", "Reads of small files", ("tasks that read at once", "files a second"), lines)


async def _by_tasks(read: Read, paths: Iterable[str], tasks: int) -> int:
    """Let `tasks` tasks read paths from one queue; return the number of files read."""
    queue = iter(paths)

    async def worker() -> int:
        return len([await read(path) for path in queue])

    return sum(await asyncio.gather(*(worker() for _ in range(tasks))))


_SHARED_MEMORY: Final = Path("/dev/shm")
_OVERLAY: Final = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" || exit 77
shift 2
exec "$@"
"""
"""Mounts an overlay, and runs a command; 77 if the machine forbids the mount."""


async def filesystems(bench: Bench) -> None:
    """Reads on the file system of the inputs, on tmpfs, and on overlayfs, as in a container."""
    root = inputs.django()
    await _read_below(bench, "disk", root)
    bench.note(f"The file system of the disk is {file_system(root)}.")
    if file_system(_SHARED_MEMORY) == "tmpfs":
        with TemporaryDirectory(dir=_SHARED_MEMORY, prefix="deepfs-benchmarks-") as name:
            await _read_below(bench, "tmpfs", inputs.write_tree(Path(name), inputs.python_files()))
    else:
        bench.note(f"tmpfs: not measured, since {_SHARED_MEMORY} is not a tmpfs here.")
    _read_on_overlay(bench, root)
    bench.note("On the overlay, the files lie in the lower layer, as those of an image do.")


async def _read_below(
    bench: Bench, name: str, root: Path, evict: Callable[[], object] = lambda: None
) -> dict[str, Race]:
    """Race reads below `root`, all at once and one after another, each turn after `evict`."""
    paths = list(inputs.python_files())[: 512 if bench.quick else None]
    races = {}
    for work in ("concurrent reads", "sequential reads"):
        ways = contenders(readers(str(root))[:2], str(root), paths, work)
        races[work] = await _race(bench, f"{name}: {work}", ways, "files", evict)
    return races


async def _race(bench: Bench, work: str, ways: list[Contender], noun: str, evict: Callable[[], object]) -> Race:
    return await bench.race(work, [replace(way, before=evict) for way in ways], noun, rounds=9, seconds=5)


def _read_on_overlay(bench: Bench, root: Path) -> None:
    """Race reads in a mount namespace, where alone the overlay exists, and thus by a process in it."""
    if shutil.which("unshare") is None:
        bench.note("overlayfs: not measured, since unshare is not installed.")
        return
    with inputs.scratch() as layers:
        for name in ("upper", "work", "merged"):
            (layers / name).mkdir()
        namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", _OVERLAY, "sh", str(root), str(layers)]
        program = f"from {__name__} import read_in_process; read_in_process()"
        command = [sys.executable, "-c", program, str(layers / "merged"), *["--quick"] * bench.quick]
        done = subprocess.run([*namespace, *command], capture_output=True, check=False)
        if done.returncode in (1, 77) and b"Traceback" not in done.stderr:
            reason = done.stderr.decode(errors="replace").strip().split(": ")[-1]
            bench.note(f"overlayfs: not measured, since this machine does not let it be mounted: {reason}")
        elif done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))
        else:
            bench.record.races += msgspec.json.decode(done.stdout, type=list[Race])


def read_in_process() -> None:
    """Run the races below the directory that the command line names, and print them as JSON."""
    bench = Bench("filesystems", "", quick="--quick" in sys.argv)
    asyncio.run(_read_below(bench, "overlayfs", Path(sys.argv[1])))
    sys.stdout.buffer.write(msgspec.json.encode(bench.record.races))


async def cold(bench: Bench) -> None:
    """Reads and searches of files that are not in memory: first their pages, then their names as well."""
    root, literal = inputs.django(), "def get_queryset"
    evictions = {"cold": inputs.evicting(root)}
    if os.access(inputs.DROP, os.W_OK):
        evictions["cold names"] = inputs.evict_all
    for name, evict in evictions.items():
        races = await _read_below(bench, name, root, evict)
        # There, all wait for the same ripgrep.
        await _race(bench, f'{name}: grep "{literal}"', searching.with_rg(root, literal), "lines", evict)
        if name == "cold names":  # A glob reads no pages of files.
            globs = searching.glob_contenders(root)[:3]
            races["glob **/*.py"] = await _race(bench, f"{name}: glob **/*.py", globs, "files", evict)
        for work, race in races.items():
            bench.beats_peer(f"{name}: {work}", 1, race)
    bench.note("Before each turn, posix_fadvise evicts the pages of all files, where the file system supports it.")
    bench.note("Names and directories are evicted, too, if drop_caches is permitted.")


_LIMIT: Final = 200
"""MB that the reads may add beside what their results hold: 2 % of what they read."""
_BACKEND: Final = """
from {}.backends import FilesystemBackend
fs = FilesystemBackend(sys.argv[1])
async def read(path, offset, lines):
    result = await fs.aread(path, offset, lines)
    assert result.error is None, result.error
    return result.file_data["content"]
"""
_SLICE: Final = """
import itertools
def blocking(path, offset, lines):
    with open(sys.argv[1] + path, encoding="utf-8") as file:
        return "".join(itertools.islice(file, offset, offset + lines))
async def read(*arguments):
    return {}
"""
_BLOCKING: Final = _SLICE.format("blocking(*arguments)")
_TO_THREAD: Final = _SLICE.format("await asyncio.to_thread(blocking, *arguments)")
_AIOFILES: Final = """
import aiofiles
async def read(path, offset, lines):
    async with aiofiles.open(sys.argv[1] + path, encoding="utf-8") as file:
        found, number = [], 0
        while number < offset + lines:
            some = await file.readlines(2**20)
            found += some[max(offset - number, 0) : offset + lines - number]
            number += len(some)
        return "".join(found)
"""
_MANY: Final = """
async def main(root, *numbers):
    count, files, lines, kept = map(int, numbers)
    async def use(path):
        content = await read(path, 0, lines)
        return content if kept else len(content)
    await use("/0.txt")  # loads modules
    async def use_all():
        return await asyncio.gather(*(use(f"/{number % files}.txt") for number in range(count)))
    seconds, found, added = await measured(use_all(), lambda found: sum(map(sys.getsizeof, found)) if kept else 0)
    return seconds, [len(each) if kept else each for each in found], added
"""
_WINDOW: Final = """
async def main(root, offset, lines):
    await read("/small.txt", 0, 1)  # loads modules
    seconds, text, added = await measured(read("/huge.txt", int(offset), int(lines)))
    return seconds, text.splitlines(), added
"""


async def memory(bench: Bench) -> None:
    """Memory of 10,000 concurrent reads of 1 MB files, each way in a new process."""
    count, files = 200 if bench.quick else 10_000, 16
    ways = {
        "deepfs": ("asyncio.gather(*(fs.aread(path, 0, lines) for path in paths))", _BACKEND.format("deepfs")),
        "asyncio.to_thread": ("asyncio.gather(*(asyncio.to_thread(…islice…) for path in paths))", _TO_THREAD),
    }
    line = "the quick brown fox jumps over the lazy dog and runs on, on, and on\n"
    with inputs.scratch() as root:
        inputs.write_tree(root, {f"/{number}.txt": line * (MB // len(line)) for number in range(files)})
        for what, shown, lines, kept in (
            ("whole files", "whole files at once, nothing kept", MB, 0),
            ("windows", "100 lines at once, all kept", 100, 1),
        ):
            work, options = f"{count:,} reads of {shown}", (root, count, files, lines, kept)
            added = await _race_processes(bench, work, "results", ways, _MANY, options, rounds=1, seconds=0, patience=0)
            claim = f"10,000 concurrent reads of 1 MB, {what}: at most {_LIMIT} MB above the results"
            bench.at_most(claim, _LIMIT, added, " MB")
    bench.note("deepagents is left out for time.")


async def window(bench: Bench) -> None:
    """A window of a huge file: a hundred lines from its middle, and the memory of the read, each in a new process."""
    size, lines = (20 if bench.quick else 1_000) * MB, 100
    ways = {
        "deepfs": ("await fs.aread(path, offset, 100)", _BACKEND.format("deepfs")),
        "deepagents": ("await fs.aread(path, offset, 100)", _BACKEND.format("deepagents")),
        "aiofiles": ("while …: await file.readlines(2**20)", _AIOFILES),
        "blocking": ("islice(open(path), offset, offset + 100)", _BLOCKING),
    }
    with inputs.scratch() as root:
        (root / "small.txt").write_text("one line\n", encoding="utf-8")
        offset = inputs.huge_file(root / "huge.txt", size) // 2
        work = f"lines {offset:,} to {offset + lines:,} of a file of {size // MB:,} MB, in a new process"
        options = (root, offset, lines)
        added = await _race_processes(bench, work, "lines", ways, _WINDOW, options, rounds=5, seconds=90)
    bench.at_most("100 lines from the middle of 1 GB: under 32 MB added", 32, added, " MB")


async def _race_processes(
    bench: Bench, work: str, noun: str, ways: Any, program: str, options: tuple[object, ...], **limits: float
) -> list[float]:
    """Race ways to read, each turn in a new process; return the MB that each turn of deepfs added to its memory."""
    added: dict[str, list[float]] = {name: [] for name in ways}

    async def run(name: str, way: str) -> Timed:
        done = await in_new_process(way + program, *options)
        added[name].append(done.added / MB)
        return done

    found = [Contender(name, call, partial(run, name, way), list) for name, (call, way) in ways.items()]
    await bench.race(work, found, noun, **limits)
    for name, amounts in added.items():
        if amounts:
            shown = f"{min(amounts):,.1f}–{max(amounts):,.1f} MB"
            bench.note(f"{work}: {name} added {shown} to the memory of the process, besides the results.")
    return added["deepfs"]
