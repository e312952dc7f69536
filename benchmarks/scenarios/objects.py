"""Searches in an S3 server that answers after 20 ms, and how many requests each operation sends."""

import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import obstore
from obstore.store import S3Store

from benchmarks import inputs, servers
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs.backends import S3Backend, SqliteBackend

TITLE: Final = "A thousand objects in S3, 20 ms away"

_DELAY: Final = 0.02
_OBJECTS: Final = 1_000
_IN_DIRECTORY: Final = 100
_NEEDLES: Final = 10
_IN_FLIGHT: Final = 100
"""How many requests `ObjectStoreBackend` has in flight, so that the bare loop has as many."""
_INDEX_REQUESTS: Final = 5
"""How many requests a search by the index may send besides those for its candidates."""


async def measure(bench: Bench) -> None:
    """Race a grep against a bare loop over the driver; count the requests of each operation."""
    with ExitStack() as stack:
        server = stack.enter_context(servers.slow_s3(_DELAY))
        directory = stack.enter_context(inputs.scratch())
        options = json.loads(server.place)
        store = S3Store(
            options["bucket"],
            prefix="files",
            endpoint=options["endpoint_url"],
            client_options={"allow_http": True},
            **{name: options[name] for name in ("region", "access_key_id", "secret_access_key")},
        )
        await _fill(store)
        bare = S3Backend(prefix="files", **options)
        async with SqliteBackend(directory / "index.db") as index:
            indexed = S3Backend(prefix="files", index=index, **options)
            await _race(bench, store, bare, indexed)
            await _count(bench, server.requests, bare, indexed)
        bench.note(f"Index of {_OBJECTS:,} objects: {_kilobytes(directory)} kB in SQLite.")


async def _fill(store: S3Store) -> None:
    lines = b"".join(b"line %d of a file with some text\n" % number for number in range(50))

    async def put(number: int) -> None:
        content = lines + (b"needle\n" if number % (_OBJECTS // _NEEDLES) == 0 else b"")
        await obstore.put_async(store, _path(number)[1:], content)

    async with anyio.create_task_group() as tasks:
        for number in range(_OBJECTS):
            tasks.start_soon(put, number)


def _path(number: int) -> str:
    return f"/d{number // _IN_DIRECTORY}/{number:04}.txt"


def _kilobytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir()) // 1000


async def _race(bench: Bench, store: S3Store, bare: S3Backend, indexed: S3Backend) -> None:
    async def found(backend: S3Backend) -> list[str]:
        result = await backend.agrep("needle")
        assert result.matches is not None, result.error
        return [match.path for match in result.matches]

    race = await bench.race(
        f"grep a rare text in {_OBJECTS:,} objects",
        [
            Contender(name="obstore, a bare loop", call="list, get, in", run=lambda: _looped(store), rows=list),
            Contender(name="deepfs", call="await fs.agrep('needle')", run=lambda: found(bare), rows=list, own=True),
            Contender(
                name="deepfs, index=", call="await fs.agrep('needle')", run=lambda: found(indexed), rows=list, own=True
            ),
        ],
        noun="files",
    )
    loop, ours = (race.entry(name).timing.seconds for name in ("obstore, a bare loop", "deepfs"))
    ratios = [one / other for one, other in zip(ours, loop, strict=True)]
    bench.at_most("S3, 20 ms away: grep over 1,000 objects: at most 1.3× a bare obstore loop", 1.3, ratios)


async def _looped(store: S3Store) -> list[str]:
    """The files that have the text, by the driver alone, with as many requests in flight."""
    names = iter([each["path"] for each in await obstore.list(store).collect_async()])
    found: list[str] = []

    async def take() -> None:
        for name in names:
            content = await (await obstore.get_async(store, name)).bytes_async()
            if b"needle" in bytes(content):
                found.append(f"/{name}")

    async with anyio.create_task_group() as tasks:
        for _ in range(_IN_FLIGHT):
            tasks.start_soon(take)
    return found


async def _count(bench: Bench, requests: Callable[[], int], bare: S3Backend, indexed: S3Backend) -> None:
    async def counted(call: Callable[[], Awaitable[Any]]) -> int:
        before = requests()
        result = await call()
        assert result.error is None, result.error
        return requests() - before

    numbers = count()
    searched = await counted(lambda: indexed.agrep("needle"))
    bench.at_most(
        f"S3: grep by the index: at most {_INDEX_REQUESTS} requests besides its {_NEEDLES} candidates",
        _INDEX_REQUESTS + _NEEDLES,
        [float(searched)],
        " requests",
    )
    assert (await bare.awrite("/first", "At the first change, the conditions of the store are tried.")).ok
    edits = [float(await counted(lambda: bare.aedit(_path(1), "line 1 ", "line 1  "))) for _ in range(3)]
    bench.at_most("S3: an edit: at most 2 requests", 2, edits, " requests")
    listed = await counted(lambda: bare.als("/d1"))
    bench.at_most("S3: ls of 100 objects: 1 request", 1, [float(listed)], " requests")
    others = {
        "read": lambda: bare.aread(_path(2)),
        "create": lambda: bare.awrite(f"/new/{next(numbers)}", "text"),
        "glob": lambda: bare.aglob("**/0001.txt"),
        "grep": lambda: bare.agrep("needle"),
        "move": lambda: bare.amove(_path(3), "/moved.txt"),
        "delete": lambda: bare.adelete("/moved.txt"),
    }
    shown = [f"{name} {await counted(call)}" for name, call in others.items()]
    bench.note(f"Requests without an index: {', '.join(shown)}.")
