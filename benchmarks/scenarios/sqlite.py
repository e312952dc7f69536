"""Operations on 100,000 files of a SqliteBackend, beside those on ten thousand."""

from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.many_files import BYTES, CALLS, IN_DIRECTORY, TIMES, Files, compare, mark_of, path_of
from deepfs.backends import SqliteBackend

TITLE: Final = "A hundred thousand files in SQLite"

_FEW: Final = 10_000
_MANY: Final = 100_000
_FEW_QUICK: Final = 200
_MANY_QUICK: Final = 2_000
_UPLOADED_AT_ONCE: Final = 1_000
_MEGABYTE: Final = 1_000_000

_MILLISECONDS: Final = {"a rare literal": 10.0, "an absent literal": 10.0, "read": 0.15, "write": 1.0}
"""The limits for one call with many files."""


async def measure(bench: Bench) -> None:
    """Race each operation with many files against the same with few."""
    sizes = (_MANY_QUICK, _FEW_QUICK) if bench.quick else (_MANY, _FEW)
    with TemporaryDirectory() as directory:
        async with AsyncExitStack() as opened:
            files = []
            for size in sizes:
                backend = await opened.enter_async_context(SqliteBackend(Path(directory) / f"{size}.db"))
                await _fill(backend, size)
                files.append(Files(backend, size, _content))
            for name in CALLS:
                await _race(bench, name, files)
        bench.note(_sizes(Path(directory), sizes))
    bench.note(f"Files of up to {BYTES:,} bytes, {IN_DIRECTORY} in a directory; medians of {TIMES} calls a turn.")
    bench.note("Each write waits for the disk (`durability='full'`).")


async def _race(bench: Bench, name: str, files: list[Files]) -> None:
    race = await compare(bench, name, files)
    if limit := _MILLISECONDS.get(name):
        claim = f"SQLite, {_MANY:,} files: {name}: at most {limit:g} ms"
        seconds = race.entries[0].timing.seconds
        bench.at_most(claim, limit, [each / TIMES * 1000 for each in seconds], " ms", reduced=bench.quick)


# --- the files -------------------------------------------------------------------------------------------------------


_pieces: Final = inputs.random_texts(20, BYTES - 100)


def _content(number: int) -> str:
    """Each has a line of its own, and a text of one of twenty kinds and of any length."""
    return f"# mark {mark_of(number)}\n{_pieces[number % 20][: number * 7_919 % BYTES]}"


async def _fill(backend: SqliteBackend, size: int) -> None:
    for start in range(0, size, _UPLOADED_AT_ONCE):
        numbers = range(start, min(start + _UPLOADED_AT_ONCE, size))
        uploads = await backend.aupload_files([(path_of(number), _content(number).encode()) for number in numbers])
        assert all(upload.error is None for upload in uploads)


def _sizes(directory: Path, sizes: tuple[int, int]) -> str:
    found = [(directory / f"{size}.db").stat().st_size / _MEGABYTE for size in sizes]
    texts = [sum(len(_content(number)) for number in range(size)) / _MEGABYTE for size in sizes]
    told = [
        f"{size:,} files with {text:,.0f} MB of text take {taken:,.0f} MB"
        for size, text, taken in zip(sizes, texts, found, strict=True)
    ]
    return "; ".join(told) + "."
