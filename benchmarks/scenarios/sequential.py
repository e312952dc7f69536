"""One file after another, on each kind of storage: uploads, writes, edits, ls, greps, reads and deletes."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from deepagents.backends import FilesystemBackend as PeerFilesystem
from deepagents.backends import StoreBackend as PeerStore

from benchmarks import inputs, peers, stores
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs.backends import FilesystemBackend, MemoryBackend, StoreBackend

TITLE: Final = "Operations one after another, by storage"

_Storage = Literal["disk", "memory"] | stores.Kind
_STORAGES: Final[tuple[_Storage, ...]] = ("disk", "memory", *stores.STORES)
_LINES: Final = [f"line {number} of a note" for number in range(20)]
_UPLOADED: Final = "\n".join(["uploaded", *_LINES, ""])
_WRITTEN: Final = "\n".join(["written", *_LINES, ""])
_DIRECTORY: Final = "/notes"

Paths = list[str]


class _Operation(NamedTuple):
    """An operation on each file in turn, and how its answers are compared."""

    name: str
    call: str
    run: Callable[[Any, Paths], Awaitable[list[Any]]]
    row: Callable[[Any], Hashable] = lambda result: (result.path, result.error)
    before: Callable[[Any, Paths], Awaitable[list[Any]]] | None = None
    """What restores the files before each turn; it is not timed."""


class _Backends(NamedTuple):
    """Backends of both packages on storage of one kind, with separate files; deepagents has none in plain memory."""

    ours: Any
    theirs: Any


# --- operations ------------------------------------------------------------------------------------------------------


async def _upload_each(backend: Any, paths: Paths) -> list[Any]:
    return [(await backend.aupload_files([(path, _UPLOADED.encode())]))[0] for path in paths]


async def _upload_all(backend: Any, paths: Paths) -> list[Any]:
    return list(await backend.aupload_files([(path, _UPLOADED.encode()) for path in paths]))


async def _write(backend: Any, paths: Paths) -> list[Any]:
    options = {} if isinstance(backend, (PeerFilesystem, PeerStore)) else {"overwrite": True}
    return [await backend.awrite(path, _WRITTEN, **options) for path in paths]


async def _edit(backend: Any, paths: Paths) -> list[Any]:
    """Edit each file there and back, so that every turn finds the same text."""
    results = [await backend.aedit(path, "line 7 of", "line seven of") for path in paths]
    return results + [await backend.aedit(path, "line seven of", "line 7 of") for path in paths]


async def _list(backend: Any, paths: Paths) -> list[Any]:
    return [await backend.als(_DIRECTORY) for _ in paths]


async def _read(backend: Any, paths: Paths) -> list[Any]:
    return [await backend.aread(path) for path in paths]


async def _grep(backend: Any, paths: Paths) -> list[Any]:
    return [await backend.agrep("line 7 of", _DIRECTORY) for _ in paths]


async def _delete(backend: Any, paths: Paths) -> list[Any]:
    return [await backend.adelete(path) for path in paths]


# The reads come after all changes of texts, so that they also compare the texts that these left.
_OPERATIONS: Final = (
    _Operation("uploads", "aupload_files([(path, data)])", _upload_each),
    _Operation("files in one upload", "aupload_files([(path, data), …])", _upload_all),
    _Operation("writes", "awrite(path, text, overwrite=True)", _write),
    _Operation(
        "edits, there and back",
        "aedit(path, old, new)",
        _edit,
        lambda result: (result.path, result.error, result.occurrences),
    ),
    _Operation("ls", f'als("{_DIRECTORY}")', _list, lambda result: tuple(sorted(peers.listed_paths(result)))),
    _Operation(
        "greps", f'agrep("line 7 of", "{_DIRECTORY}")', _grep, lambda result: tuple(sorted(peers.grep_rows(result)))
    ),
    _Operation("reads", "aread(path)", _read, lambda result: (result.error, result.file_data["content"])),
    _Operation("deletes", "adelete(path)", _delete, lambda result: result.error, before=_upload_all),
)

_DATABASE: Final = {"writes": 1.0, "edits, there and back": 1.0, "reads": 1.0, "deletes": 1.0, "greps": 1.0}
_LEAST: Final[dict[_Storage, dict[str, float]]] = {
    "disk": {"writes": 2.0, "edits, there and back": 2.0, "ls": 5.0, "uploads": 1.5},
    # There, deepagents checks no tree and holds no lock.
    "InMemoryStore": {"writes": 0.25, "edits, there and back": 0.3, "reads": 1.5},
    "AsyncSqliteStore": _DATABASE,
    "AsyncPostgresStore": _DATABASE,
}
"""How many times as fast as deepagents deepfs has to be; listings of databases have their bars in `store`."""


# --- races -----------------------------------------------------------------------------------------------------------


async def measure(bench: Bench) -> None:
    """Race each operation on each kind of storage."""
    paths = [f"{_DIRECTORY}/{number:03}.md" for number in range(10 if bench.quick else 100)]
    for storage in _STORAGES:
        async with _backends(storage) as backends:
            for operation in _OPERATIONS:
                await _race(bench, storage, operation, backends, paths)
    bench.note("deepagents has no backend in plain memory. An ls of it over a store asks for pages of 100.")


async def _race(bench: Bench, storage: _Storage, operation: _Operation, backends: _Backends, paths: Paths) -> None:
    contenders = [
        Contender(
            name=name,
            call=f"await fs.{operation.call}",
            run=partial(_timed, operation, backend, paths),
            rows=lambda answer: _rows(operation, answer.results),
            own_seconds=lambda answer: float(answer.seconds),
            own=name == "deepfs",
        )
        for name, backend in (("deepfs", backends.ours), ("deepagents", backends.theirs))
        if backend is not None
    ]
    work = f"{storage}: {len(paths)} {operation.name}"
    race = await bench.race(work, contenders, noun="answers", rounds=9, seconds=2.5)
    if least := _LEAST.get(storage, {}).get(operation.name):
        claim = f"{storage}: {operation.name}: at least {least:g}× deepagents"
        bench.at_least(claim, least, race.ratios("deepagents", "deepfs"), reduced=bench.quick)


class _Answer(NamedTuple):
    """The results of a turn, and how long the operations took."""

    seconds: float
    results: list[Any]


async def _timed(operation: _Operation, backend: Any, paths: Paths) -> _Answer:
    if operation.before is not None:
        await operation.before(backend, paths)
    start = time.perf_counter()
    results = await operation.run(backend, paths)
    return _Answer(time.perf_counter() - start, results)


def _rows(operation: _Operation, results: list[Any]) -> Collection[Hashable]:
    return [(number, operation.row(result)) for number, result in enumerate(results)]


@asynccontextmanager
async def _backends(storage: _Storage) -> AsyncIterator[_Backends]:
    if storage == "memory":
        yield _Backends(MemoryBackend(), None)
    elif storage == "disk":
        with inputs.scratch() as ours, inputs.scratch() as theirs:
            yield _Backends(FilesystemBackend(ours), PeerFilesystem(str(theirs), virtual_mode=True))
    else:
        async with stores.STORES[storage]() as (store, _):
            yield _Backends(
                StoreBackend(store, namespace=("ours", "files")),
                PeerStore(store=store, namespace=lambda _: ("theirs", "files")),
            )
