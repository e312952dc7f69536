"""Operations on 100,000 files of a SqliteBackend, beside those on ten thousand."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs.backends import SqliteBackend

TITLE: Final = "A hundred thousand files in SQLite"

_FEW: Final = 10_000
_MANY: Final = 100_000
_FEW_QUICK: Final = 200
_MANY_QUICK: Final = 2_000
_UPLOADED_AT_ONCE: Final = 1_000
_IN_DIRECTORY: Final = 100
_BYTES: Final = 2_000
_TIMES: Final = 20
"""How often a race calls an operation in each turn."""
_MEGABYTE: Final = 1_000_000


class _Files(NamedTuple):
    """A backend with `count` files, and a number for each call."""

    backend: SqliteBackend
    count: int
    numbers: Iterator[int]

    def path(self, number: int) -> str:
        return _path(number % self.count)


class _Case(NamedTuple):
    name: str
    call: str
    run: Callable[[_Files, int], Awaitable[Any]]
    milliseconds: float | None = None
    """The limit for one call with many files."""


async def _rare(files: _Files, number: int) -> Any:
    return await files.backend.agrep(_mark(number % files.count))


async def _absent(files: _Files, number: int) -> Any:
    return await files.backend.agrep(f"no such mark {number}")


async def _regex(files: _Files, number: int) -> Any:
    return await files.backend.agrep(rf"^# [a-z]+ {number % files.count:07}x\b", regex=True)


async def _named(files: _Files, number: int) -> Any:
    return await files.backend.aglob(f"**/{files.path(number).rpartition('/')[2]}")


async def _listed(files: _Files, number: int) -> Any:
    return await files.backend.als(files.path(number).rpartition("/")[0])


async def _read(files: _Files, number: int) -> Any:
    return await files.backend.aread(files.path(number))


async def _written(files: _Files, number: int) -> Any:
    return await files.backend.awrite(f"/new/{number // 100:05}/{number}.py", _content(number))


async def _edited(files: _Files, number: int) -> Any:
    mark = _mark(number % files.count)
    return await files.backend.aedit(files.path(number), f"# mark {mark}", f"# edited {number} {mark}")


_CASES: Final = (
    _Case("a rare literal", "await fs.agrep('0076543x')", _rare, milliseconds=10),
    _Case("an absent literal", "await fs.agrep('no such mark')", _absent, milliseconds=10),
    _Case("a regular expression", r"await fs.agrep(r'^# [a-z]+ 0076543x\b', regex=True)", _regex),
    _Case("a name anywhere", "await fs.aglob('**/name.py')", _named),
    _Case("ls", "await fs.als(directory of 100)", _listed),
    _Case("read", "await fs.aread(path)", _read, milliseconds=0.15),
    _Case("write", "await fs.awrite(new path, 2 kB)", _written, milliseconds=1),
    _Case("edit", "await fs.aedit(path, …)", _edited),
)


async def measure(bench: Bench) -> None:
    """Race each operation with many files against the same with few."""
    sizes = (_MANY_QUICK, _FEW_QUICK) if bench.quick else (_MANY, _FEW)
    with TemporaryDirectory() as directory:
        async with AsyncExitStack() as opened:
            files = []
            for size in sizes:
                backend = await opened.enter_async_context(SqliteBackend(Path(directory) / f"{size}.db"))
                await _fill(backend, size)
                files.append(_Files(backend, size, count(7_919, 7_919)))
            for case in _CASES:
                await _race(bench, case, files)
        bench.note(_sizes(Path(directory), sizes))
    bench.note(f"Files of up to {_BYTES:,} bytes, {_IN_DIRECTORY} in a directory; medians of {_TIMES} calls a turn.")
    bench.note("Each write waits for the disk (`durability='full'`).")


async def _race(bench: Bench, case: _Case, files: list[_Files]) -> None:
    async def run(one: _Files) -> list[int]:
        return [_rows(await case.run(one, next(one.numbers))) for _ in range(_TIMES)]

    contenders = [
        Contender(name=f"{one.count:,} files", call=case.call, run=lambda one=one: run(one), rows=list, own=True)
        for one in files
    ]
    race = await bench.race(f"{case.name}, {_TIMES} times", contenders, noun="rows", rounds=9, seconds=30)
    if case.milliseconds is not None:
        claim = f"SQLite, {_MANY:,} files: {case.name}: at most {case.milliseconds:g} ms"
        seconds = race.entries[0].timing.seconds
        bench.at_most(claim, case.milliseconds, [each / _TIMES * 1000 for each in seconds], " ms", reduced=bench.quick)


def _rows(result: Any) -> int:
    assert result.ok, result.error
    found = getattr(result, "matches", None) or getattr(result, "entries", None)
    return len(found) if found else 0


# --- the files -------------------------------------------------------------------------------------------------------


def _path(number: int) -> str:
    return f"/src/{number // 10_000:04}/{number // _IN_DIRECTORY:06}/module_{number:07}.py"


def _mark(number: int) -> str:
    return f"{number:07}x"


_pieces: Final = inputs.random_texts(20, _BYTES - 100)


def _content(number: int) -> str:
    """Each has a line of its own, and a text of one of twenty kinds and of any length."""
    return f"# mark {_mark(number)}\n{_pieces[number % 20][: number * 7_919 % _BYTES]}"


async def _fill(backend: SqliteBackend, size: int) -> None:
    for start in range(0, size, _UPLOADED_AT_ONCE):
        numbers = range(start, min(start + _UPLOADED_AT_ONCE, size))
        uploads = await backend.aupload_files([(_path(number), _content(number).encode()) for number in numbers])
        assert all(upload.error is None for upload in uploads)


def _sizes(directory: Path, sizes: tuple[int, int]) -> str:
    found = [(directory / f"{size}.db").stat().st_size / _MEGABYTE for size in sizes]
    texts = [sum(len(_content(number)) for number in range(size)) / _MEGABYTE for size in sizes]
    told = [
        f"{size:,} files with {text:,.0f} MB of text take {taken:,.0f} MB"
        for size, text, taken in zip(sizes, texts, found, strict=True)
    ]
    return "; ".join(told) + "."
