"""The same operations on every kind of storage, and searches of a store with many files."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from deepagents.backends import FilesystemBackend as PeerFilesystem
from deepagents.backends import StoreBackend as PeerStore

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender, Timed, both
from benchmarks.peers import grep_rows, listed_paths
from deepfs.backends import FilesystemBackend, MemoryBackend

_LINES: Final = [f"line {number} of a note" for number in range(20)]
_UPLOADED: Final = "\n".join(["uploaded", *_LINES, ""]).encode()
_WRITTEN: Final = "\n".join(["written", *_LINES, ""])

Paths = list[str]


class _Operation(NamedTuple):
    """An operation on each file in turn, and how its answers are compared."""

    name: str
    call: str
    run: Callable[[Any, Paths], Awaitable[list[Any]]]
    row: Callable[[Any], Hashable] = lambda result: (result.path, result.error)
    before: Callable[[Any, Paths], Awaitable[list[Any]]] | None = None
    """What restores the files before each turn; it is not timed."""


def _each(call: Callable[[Any, str], Awaitable[Any]]) -> Callable[[Any, Paths], Awaitable[list[Any]]]:
    async def run(backend: Any, paths: Paths) -> list[Any]:
        return [await call(backend, path) for path in paths]

    return run


async def _upload_all(backend: Any, paths: Paths) -> list[Any]:
    return list(await backend.aupload_files([(path, _UPLOADED) for path in paths]))


async def _upload(backend: Any, path: str) -> Any:
    return (await backend.aupload_files([(path, _UPLOADED)]))[0]


def _write(backend: Any, path: str) -> Awaitable[Any]:
    options = {} if isinstance(backend, (PeerFilesystem, PeerStore)) else {"overwrite": True}
    return backend.awrite(path, _WRITTEN, **options)


async def _edit(backend: Any, paths: Paths) -> list[Any]:
    """Edit each file there and back, so that every turn finds the same text."""
    results = [await backend.aedit(path, "line 7 of", "line seven of") for path in paths]
    return results + [await backend.aedit(path, "line seven of", "line 7 of") for path in paths]


def _found(rows: Callable[[Any], list[Any]]) -> Callable[[Any], Hashable]:
    return lambda result: tuple(sorted(rows(result)))


# The reads come after all changes of texts, so that they also compare the texts that these left.
_OPERATIONS: Final = (
    _Operation("uploads", "aupload_files([(path, data)])", _each(_upload)),
    _Operation("files in one upload", "aupload_files([(path, data), …])", _upload_all),
    _Operation("writes", "awrite(path, text, overwrite=True)", _each(_write)),
    _Operation("edits, there and back", "aedit(path, old, new)", _edit, lambda r: (r.path, r.error, r.occurrences)),
    _Operation("ls", 'als("/notes")', _each(lambda fs, _: fs.als("/notes")), _found(listed_paths)),
    _Operation("greps", 'agrep("line 7 of")', _each(lambda fs, _: fs.agrep("line 7 of", "/notes")), _found(grep_rows)),
    _Operation("reads", "aread(path)", _each(lambda fs, path: fs.aread(path)), lambda r: r.file_data["content"]),
    _Operation("deletes", "adelete(path)", _each(lambda fs, path: fs.adelete(path)), lambda r: r.error, _upload_all),
)

_DATABASE: Final = {"writes": 1.0, "edits, there and back": 1.0, "reads": 1.0, "deletes": 1.0, "greps": 1.0}
_LEAST: Final[dict[str, dict[str, float]]] = {
    "disk": {"ls": 5.0},
    "memory": {},
    # There, deepagents checks no tree and holds no lock.
    "InMemoryStore": {"writes": 0.25, "edits, there and back": 0.3, "reads": 1.0},
    "AsyncSqliteStore": _DATABASE,
    "AsyncPostgresStore": _DATABASE,
}
"""The storages, and how many times as fast as deepagents deepfs has to be; those of listings are in `store`."""


async def sequential(bench: Bench) -> None:
    """Operations one after another, by storage: uploads, writes, edits, ls, greps, reads and deletes."""
    paths = [f"/notes/{number:03}.md" for number in range(10 if bench.quick else 100)]
    for storage, floors in _LEAST.items():
        async with _backends(storage) as backends:
            for operation in _OPERATIONS:
                contenders = [
                    Contender(
                        name,
                        f"await fs.{operation.call}",
                        partial(timed, operation, backend, paths),
                        lambda results, row=operation.row: list(map(row, results)),
                    )
                    for name, backend in backends.items()
                ]
                work = f"{storage}: {len(paths)} {operation.name}"
                race = await bench.race(work, contenders, "answers", rounds=9, seconds=2.5)
                if least := floors.get(operation.name):
                    bench.beats_peer(f"{storage}: {operation.name}", least, race)
    bench.note("deepagents has no backend in plain memory. An ls of it over a store asks for pages of 100.")


async def timed(operation: _Operation, backend: Any, paths: Paths) -> Timed:
    """The results of an operation; what restores the files before does not count."""
    if operation.before is not None:
        await operation.before(backend, paths)
    start = time.perf_counter()
    results = await operation.run(backend, paths)
    return Timed(time.perf_counter() - start, results)


@asynccontextmanager
async def _backends(storage: str) -> AsyncIterator[dict[str, Any]]:
    if storage == "memory":
        yield {"deepfs": MemoryBackend()}
    elif storage == "disk":
        with inputs.scratch() as ours, inputs.scratch() as theirs:
            yield {"deepfs": FilesystemBackend(ours), "deepagents": PeerFilesystem(str(theirs), virtual_mode=True)}
    else:
        async with stores.STORES[storage]() as store:
            ours, theirs = (stores.backends(store, (side, "files")) for side in ("ours", "theirs"))
            yield {"deepfs": ours[0], "deepagents": theirs[1]}


async def store(bench: Bench) -> None:
    """StoreBackend over 10,000 items in PostgreSQL: ls, glob and grep."""
    namespace, count, lines = ("assistant", "files"), 10_000, 20
    async with stores.postgres_store() as opened:
        pieces = islice(cycle(_pieces(lines)), count)
        # 100 in each directory, put in one batch, as an import does, so that all changed at one time.
        await opened.abatch(
            [stores.put_op(namespace, f"/src/{n // 100:04}/{n % 100:02}.py", text) for n, text in enumerate(pieces)]
        )
        ours, theirs = stores.backends(opened, namespace)
        for operation, argument, rows in (
            ("ls", "/src/0007", listed_paths),
            ("glob", "*.py", listed_paths),
            ("grep", "import", grep_rows),
        ):
            calls = (partial(getattr(each, f"a{operation}"), argument) for each in (ours, theirs))
            shown = f"await fs.a{operation}({argument!r})"
            contenders = both(shown, *calls, rows, may_lose=True)
            race = await bench.race(f"{shown}, {count:,} items", contenders, "rows", rounds=9, seconds=9)
            claim = f"StoreBackend {operation} over {count:,} items in PostgreSQL"
            bench.beats_peer(claim, 5, race)
            bench.complete(f"{claim}: complete", race)
    bench.note(
        f"Each item holds {lines} lines of Django. deepagents asks for pages of 100 by time of change, which is the "
        "same for all, so that PostgreSQL may cut pages differently each time."
    )


def _pieces(size: int) -> list[str]:
    files = (text.splitlines(keepends=True) for text in inputs.python_files().values())
    return ["".join(lines[start : start + size]) for lines in files for start in range(0, len(lines), size)]
