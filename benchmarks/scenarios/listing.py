"""An `ls` of 10,000 files of 100 kB in a store, first and repeated: its time, memory, and bytes transferred."""

import sys
from functools import partial
from itertools import cycle
from typing import Final

import anyio
import msgspec
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from benchmarks import inputs, stores
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.listing_process import DIRECTORY, NAMESPACE, Found, Listing, Package, Task, backend_of, fill
from benchmarks.peers import listed_paths

TITLE: Final = "ls of many large files in a store"

_PACKAGES: Final[tuple[Package, ...]] = ("deepfs", "deepagents")
_MB: Final = 1_000_000


async def measure(bench: Bench) -> None:
    """Race both packages on each store; then note the bytes transferred, and the memory."""
    files, size = (300, 10_000) if bench.quick else (10_000, 100_000)
    for kind, opened in stores.STORES.items():
        async with opened() as (store, address):
            await _fill(store, files, size)
            await _measure_store(bench, store, Task(kind, "deepfs", address, files, size, counts=False))
    bench.note("The files in InMemoryStore share one text. Memory and bytes are those of one more process.")


async def _measure_store(bench: Bench, store: BaseStore, task: Task) -> None:
    shown = f"{task.kind}: ls of {task.files:,} files of {task.size // 1000} kB"
    first = [_first(package, task) for package in _PACKAGES]
    await bench.race(f"{shown}, the first of a process", first, noun="paths", rounds=3, seconds=60)
    again = [_again(package, store) for package in _PACKAGES]
    await bench.race(f"{shown}, again", again, noun="paths", rounds=7, seconds=60)
    for package in _PACKAGES[: 1 if bench.quick else None]:
        found = await _in_new_process(msgspec.structs.replace(task, package=package, counts=True))
        bench.note(f"{shown}, {package}: {_cost(found.first)}; again {_cost(found.repeated)}.")


def _cost(listing: Listing) -> str:
    return f"{listing.added / _MB:,.1f} MB of memory added, {listing.moved / _MB:,.2f} MB from the database"


# --- contenders ------------------------------------------------------------------------------------------------------


def _first(package: Package, task: Task) -> Contender:
    return Contender(
        name=package,
        call=f'await fs.als("{DIRECTORY}")',
        run=partial(_in_new_process, msgspec.structs.replace(task, package=package)),
        rows=lambda found: found.paths,
        may_lose=package == "deepagents",
        own_seconds=lambda found: float(found.first.seconds),
        own=package == "deepfs",
    )


async def _in_new_process(task: Task) -> Found:
    command = [sys.executable, "-m", "benchmarks.listing_process", msgspec.json.encode(task).decode()]
    return msgspec.json.decode((await anyio.run_process(command, stderr=None)).stdout, type=Found)


def _again(package: Package, store: BaseStore) -> Contender:
    """A repeated `ls` in this process; the first one is the round that warms up."""
    backend = backend_of(package, store, NAMESPACE)
    return Contender(
        name=package,
        call=f'await fs.als("{DIRECTORY}")',
        run=partial(backend.als, DIRECTORY),
        rows=listed_paths,
        may_lose=package == "deepagents",
        own=package == "deepfs",
    )


async def _fill(store: BaseStore, files: int, size: int) -> None:
    """Fill the store with random texts; an InMemoryStore with one text, as the other processes fill theirs."""
    pieces = cycle(["x" * size] if isinstance(store, InMemoryStore) else inputs.random_texts(20, size))
    await fill(store, files, lambda _: next(pieces))
