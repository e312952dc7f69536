"""Storage that takes 20 ms to answer: a tree of many mounts, and an object store."""

import asyncio
from typing import Any, Final

import anyio
import obstore
from deepagents.backends import CompositeBackend as PeerComposite
from deepagents.backends.protocol import BackendProtocol as PeerProtocol
from deepagents.backends.protocol import GrepResult as PeerGrepResult
from deepagents.backends.utils import create_file_data, grep_matches_from_files
from obstore.store import S3Store

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender
from benchmarks.peers import grep_rows
from benchmarks.record import Line, Race, point
from deepfs.backends import CompositeBackend, MemoryBackend, S3Backend, SqliteBackend
from deepfs.testing import LatencyBackend

_DELAY: Final = 0.020

_FILES: Final = {f"/notes/{number}.md": f"# Note {number}\na needle\nmore text\n" for number in range(10)}


async def mounts(bench: Bench) -> None:
    """grep over many mounts of 20 ms each, against the slowest mount alone, and against deepagents."""
    counts = (1, 8, 100) if bench.quick else (1, 2, 4, 8, 16, 32, 64, 100)
    races = {number: await _race(bench, number) for number in counts}
    for number, limit in ((8, 1.25), (100, 2)):
        claim = f"composite grep over {number} mounts of 20 ms: at most {limit:g}× the slowest mount"
        bench.at_most(claim, limit, races[number].ratios("deepfs", "slowest mount"))
    lines = [
        Line(entry.name, [point(at, race.milliseconds(entry.name)) for at, race in races.items()])
        for entry in races[1].entries
    ]
    bench.plot("mounts", "grep over mounts of 20 ms each", ("mounts", "ms"), lines)


async def _race(bench: Bench, mounts: int) -> Race:
    names = [f"/m{number:03}" for number in range(mounts)]
    ours = CompositeBackend(MemoryBackend(), {f"{name}/": await _slow_mount() for name in names})
    theirs = PeerComposite(_PeerMount({}, 0), {f"{name}/": _PeerMount(_FILES, _DELAY) for name in names})
    alone = await _slow_mount()

    def under_each(result: Any) -> list[tuple[str, int, str]]:
        """The matches of one mount, repeated for each."""
        return [(name + path, line, text) for name in names for path, line, text in grep_rows(result)]

    call = 'await CompositeBackend(…).agrep("needle")'
    contenders = [
        Contender("deepfs", call, lambda: ours.agrep("needle"), grep_rows),
        Contender("deepagents", call, lambda: theirs.agrep("needle"), grep_rows),
        Contender(
            "slowest mount", 'await LatencyBackend(…).agrep("needle")', lambda: alone.agrep("needle"), under_each
        ),
    ]
    work = f"grep over {mounts} mounts of 20 ms"
    return await bench.race(work, contenders, "lines", seconds=10)


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
        return grep_matches_from_files(dict(self._files), pattern, path or "/", glob, max_count=max_count)


_OBJECTS: Final = 1_000
_NEEDLES: Final = 10
_IN_FLIGHT: Final = 100
"""How many requests `ObjectStoreBackend` has in flight, so that the bare loop has as many."""


async def objects(bench: Bench) -> None:
    """A thousand objects in S3, 20 ms away: a grep against a loop over the driver, and with an index."""
    with stores.slow_s3(_DELAY) as options, inputs.scratch() as directory:
        kept = {name: options[name] for name in ("region", "access_key_id", "secret_access_key")}
        plain = {"allow_http": True}
        store = S3Store("bucket", prefix="files", endpoint=options["endpoint_url"], client_options=plain, **kept)
        await _fill(store)
        bare = S3Backend(prefix="files", **options)
        async with SqliteBackend(directory / "index.db") as index:
            indexed = S3Backend(prefix="files", index=index, **options)
            call = "await fs.agrep('needle')"
            contenders = [
                Contender("obstore, a bare loop", "list, get, in", lambda: _looped(store), list),
                Contender("deepfs", call, lambda: bare.agrep("needle"), _matched),
                Contender("deepfs, index=", call, lambda: indexed.agrep("needle"), _matched),
            ]
            race = await bench.race(f"grep a rare text in {_OBJECTS:,} objects", contenders, "files")
            claim = "S3, 20 ms away: grep over 1,000 objects: at most 1.3× a bare obstore loop"
            bench.at_most(claim, 1.3, race.ratios("deepfs", "obstore, a bare loop"))
        size = sum(file.stat().st_size for file in directory.iterdir()) // 1000
        bench.note(f"Index of {_OBJECTS:,} objects: {size} kB in SQLite.")


def _matched(result: Any) -> list[str]:
    return [match.path for match in result.matches]


async def _fill(store: S3Store) -> None:
    lines = b"".join(b"line %d of a file with some text\n" % number for number in range(50))
    texts = (lines + b"needle\n" * (number % (_OBJECTS // _NEEDLES) == 0) for number in range(_OBJECTS))
    await asyncio.gather(*(obstore.put_async(store, _path(at)[1:], text) for at, text in enumerate(texts)))


def _path(number: int) -> str:
    return f"/d{number // 100}/{number:04}.txt"


async def _looped(store: S3Store) -> list[str]:
    """The files that have the text, by the driver alone, with as many requests in flight."""
    names = iter([each["path"] for each in await obstore.list(store).collect_async()])
    found: list[str] = []

    async def take() -> None:
        for name in names:
            content = await (await obstore.get_async(store, name)).bytes_async()
            if b"needle" in bytes(content):
                found.append(f"/{name}")

    await asyncio.gather(*(take() for _ in range(_IN_FLIGHT)))
    return found
