"""A grep of a tree of many mounts, each of which takes 20 ms to answer."""

from typing import Any, Final

import anyio
from deepagents.backends import CompositeBackend as PeerComposite
from deepagents.backends.protocol import BackendProtocol as PeerProtocol
from deepagents.backends.protocol import GrepResult as PeerGrepResult
from deepagents.backends.utils import create_file_data, grep_matches_from_files

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.peers import grep_rows
from benchmarks.record import Line, Point, Race, point
from deepfs.backends import CompositeBackend, MemoryBackend
from deepfs.testing import LatencyBackend

TITLE: Final = "grep over many mounts of 20 ms each"

_DELAY: Final = 0.020
_FILES: Final = {f"/notes/{number}.md": f"# Note {number}\na needle\nmore text\n" for number in range(10)}


async def measure(bench: Bench) -> None:
    """Race a grep over a growing number of mounts against the slowest mount alone, and against deepagents."""
    counts = (1, 8, 100) if bench.quick else (1, 2, 4, 8, 16, 32, 64, 100)
    races = {count: await _race(bench, count) for count in counts}
    for count, limit in ((8, 1.25), (100, 2)):
        claim = f"composite grep over {count} mounts of 20 ms: at most {limit:g}× the slowest mount"
        bench.at_most(claim, limit, races[count].ratios("deepfs", "slowest mount"))
    lines = [
        Line(entry.name, entry.call, [_latency(count, race, entry.name) for count, race in races.items()])
        for entry in races[1].entries
    ]
    bench.plot("mounts", "grep over mounts of 20 ms each", ("mounts", "ms"), lines)


def _latency(count: int, race: Race, name: str) -> Point:
    return point(count, [took * 1000 for took in race.entry(name).timing.seconds])


async def _race(bench: Bench, count: int) -> Race:
    ours = CompositeBackend(MemoryBackend(), {f"/m{number:03}/": await _slow_mount() for number in range(count)})
    theirs = PeerComposite(
        _PeerMount({}, 0), {f"/m{number:03}/": _PeerMount(_FILES, _DELAY) for number in range(count)}
    )
    alone = await _slow_mount()
    contenders = [
        Contender(
            name="deepfs",
            call='await CompositeBackend(…).agrep("needle")',
            run=lambda: ours.agrep("needle"),
            rows=grep_rows,
            own=True,
        ),
        Contender(
            name="deepagents",
            call='await CompositeBackend(…).agrep("needle")',
            run=lambda: theirs.agrep("needle"),
            rows=grep_rows,
        ),
        Contender(
            name="slowest mount",
            call='await LatencyBackend(…, 0.020).agrep("needle")',
            run=lambda: alone.agrep("needle"),
            rows=lambda result: _under_each_mount(result, count),
        ),
    ]
    work = f"grep over {count} mounts of 20 ms"
    return await bench.race(work, contenders, noun="lines", rounds=15, seconds=10, sweep=count not in (8, 100))


async def _slow_mount() -> LatencyBackend:
    """A backend of ten files in memory, which answers after 20 ms."""
    memory = MemoryBackend()
    await memory.aupload_files([(path, text.encode()) for path, text in _FILES.items()])
    return LatencyBackend(memory, _DELAY)


class _PeerMount(PeerProtocol):
    """A slow mount for deepagents: files in memory, searched by its own function after the delay."""

    def __init__(self, files: dict[str, str], delay: float) -> None:
        self._files = {path: create_file_data(text) for path, text in files.items()}
        self._delay = delay

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> PeerGrepResult:
        await anyio.sleep(self._delay)
        files: dict[str, Any] = dict(self._files)
        return grep_matches_from_files(files, pattern, path or "/", glob, max_count=max_count)


def _under_each_mount(result: Any, count: int) -> list[tuple[str, int, str]]:
    """The matches of one mount, repeated for each of `count` mounts."""
    return [(f"/m{number:03}{path}", line, text) for number in range(count) for path, line, text in grep_rows(result)]
