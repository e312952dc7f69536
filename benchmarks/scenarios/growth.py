"""The cost of each operation as the tree grows, on disk and in memory."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Line, Race, point
from benchmarks.ripgrep import with_ripgrep
from deepfs.backends import FilesystemBackend, MemoryBackend

TITLE: Final = "Growth: from 1,000 files to 100,000"

_SIZES: Final = (1_000, 10_000, 100_000)
_QUICK_SIZES: Final = (300, 3_000)
_SMALL: Final = "/d0001"
"""One of the directories, which have a hundred files each."""
_FILE: Final = f"{_SMALL}/f50.txt"
_TEXT: Final = "a line of a small file\n" * 20


class _Operation(NamedTuple):
    """An operation on a tree, and how often it is repeated in one turn."""

    name: str
    call: str
    run: Callable[[Any], Awaitable[Any]]
    times: int = 1

    @property
    def shown(self) -> str:
        """The calls of one turn, as shown."""
        return f"{self.times}× await fs.{self.call}" if self.is_small else f"await fs.{self.call}"

    @property
    def is_small(self) -> bool:
        """Whether the operation touches only one file or directory."""
        return self.times > 1


def _written(backend: Any) -> Awaitable[Any]:
    options = {} if isinstance(backend, PeerBackend) else {"overwrite": True}
    return backend.awrite(_FILE, _TEXT, **options)


_OPERATIONS: Final = (
    _Operation("read", f'aread("{_FILE}")', lambda fs: fs.aread(_FILE), 100),
    _Operation("write", f'awrite("{_FILE}", text, overwrite=True)', _written, 50),
    _Operation("ls", f'als("{_SMALL}")', lambda fs: fs.als(_SMALL), 50),
    _Operation("glob", 'aglob("**/*.txt")', lambda fs: fs.aglob("**/*.txt")),
    _Operation("grep", 'agrep("needle")', lambda fs: fs.agrep("needle")),
)


async def measure(bench: Bench) -> None:
    """Race each operation on trees of different sizes; the trees of one kind take turns."""
    sizes = _QUICK_SIZES if bench.quick else _SIZES
    with inputs.scratch() as directory:
        roots = {size: inputs.write_tree(directory / str(size), inputs.flat_files(size)) for size in sizes}
        ours = {size: FilesystemBackend(root) for size, root in roots.items()}
        await _measure_kind(bench, "FilesystemBackend", ours)
        await _measure_peer(bench, roots)
    in_memory = {size: await _in_memory(size) for size in sizes}
    await _measure_kind(bench, "MemoryBackend", in_memory)
    bench.note("deepagents stops a glob after 5 s and ripgrep after 15 s; it has no backend in plain memory.")


async def _in_memory(size: int) -> MemoryBackend:
    backend = MemoryBackend()
    await backend.aupload_files([(path, text.encode()) for path, text in inputs.flat_files(size).items()])
    return backend


# --- the backends of deepfs ------------------------------------------------------------------------------------------


async def _measure_kind(bench: Bench, kind: str, backends: dict[int, Any]) -> None:
    sizes = list(backends)
    races = {operation: await _race(bench, kind, operation, backends) for operation in _OPERATIONS}
    for operation, race in races.items():
        ratios = race.ratios(_name(sizes[-1]), _name(sizes[0]))
        claim = f"{kind}: {operation.name} at {_name(sizes[-1])} against {_name(sizes[0])}"
        growth = sizes[-1] / sizes[0]
        if operation.is_small:
            bench.at_most(f"{claim}: within 2×", 2, ratios, reduced=bench.quick)
        else:
            bench.at_most(f"{claim}: linear, at most {growth:,.0f}×", growth, ratios, reduced=bench.quick)
    lines = [
        Line(operation.name, f"await fs.{operation.call}", _points(race, sizes, operation))
        for operation, race in races.items()
    ]
    name = kind.removesuffix("Backend").lower()
    bench.plot(f"growth-{name}", f"{kind}: cost by size of the tree", ("files in the tree", "ms"), lines)


async def _race(bench: Bench, kind: str, operation: _Operation, backends: dict[int, Any]) -> Race:
    contenders = [
        Contender(
            name=_name(size),
            call=operation.shown,
            run=partial(_repeated, operation, backend),
            rows=_succeeded,
            around=with_ripgrep,
            own=True,
        )
        for size, backend in backends.items()
    ]
    return await bench.race(f"{kind}: {operation.name}", contenders, noun="answers", seconds=12, sweep=True)


def _name(size: int) -> str:
    return f"{size:,} files"


async def _repeated(operation: _Operation, backend: Any) -> list[Any]:
    return [await operation.run(backend) for _ in range(operation.times)]


def _succeeded(results: list[Any]) -> range:
    """One row for each answer. Raises if an answer failed or was truncated."""
    for result in results:
        assert result.error is None, result.error
        assert not getattr(result, "truncated", False)
    return range(len(results))


def _points(race: Race, sizes: list[int], operation: _Operation) -> list[Any]:
    return [
        point(size, [took / operation.times * 1000 for took in race.entry(_name(size)).timing.seconds])
        for size in sizes
    ]


# --- deepagents ------------------------------------------------------------------------------------------------------


async def _measure_peer(bench: Bench, roots: dict[int, Path]) -> None:
    """Race each operation of deepagents against that of deepfs on the largest tree."""
    size, root = list(roots.items())[-1]
    backends = {"deepfs": FilesystemBackend(root), "deepagents": PeerBackend(str(root))}
    for operation in _OPERATIONS:
        contenders = [
            Contender(
                name=name,
                call=operation.shown,
                run=partial(_repeated, operation, backend),
                rows=partial(_found, operation),
                around=with_ripgrep,
                may_lose=name == "deepagents",
                own=name == "deepfs",
            )
            for name, backend in backends.items()
        ]
        await bench.race(f"{operation.name} in a tree of {_name(size)}", contenders, noun="rows", rounds=3, seconds=30)


def _found(operation: _Operation, results: list[Any]) -> list[Any]:
    """The paths in the answers; for reads and writes, only the error of each."""
    if operation.name in ("read", "write"):
        return [result.error for result in results]
    fields = "entries" if operation.name == "ls" else "matches"
    return [info["path"] for result in results for info in getattr(result, fields) or ()]
