"""The same operations on few and on many files of a backend: the files, the operations, and the races."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Race

__all__ = ["BYTES", "CALLS", "IN_DIRECTORY", "TIMES", "Files", "compare", "mark_of", "path_of"]

IN_DIRECTORY: Final = 100
BYTES: Final = 2_000
"""The most bytes of a file."""
TIMES: Final = 100
"""How often a race calls an operation in each turn. The first calls are slow, since all garbage is collected before."""


def path_of(number: int) -> str:
    """The path of a file."""
    return f"/src/{number // 10_000:04}/{number // IN_DIRECTORY:06}/module_{number:07}.py"


def mark_of(number: int) -> str:
    """The text in the first line of a file, behind `# mark`, which no other file has."""
    return f"{number:07}x"


class Files:
    """A backend with many files.

    Args:
        backend: The backend.
        size: How many files it has, at `path_of` each number.
        content: Returns the content of the file with a number.
    """

    def __init__(self, backend: Any, size: int, content: Callable[[int], str]) -> None:
        self.backend = backend
        self.count = size
        self.content = content
        self.numbers: Iterator[int] = count(7_919, 7_919)
        """A number for each call."""

    def path(self, number: int) -> str:
        return path_of(number % self.count)


Operation = Callable[[Files, int], Awaitable[Any]]


async def _rare(files: Files, number: int) -> Any:
    return await files.backend.agrep(mark_of(number % files.count))


async def _absent(files: Files, number: int) -> Any:
    return await files.backend.agrep(f"no such mark {number}")


async def _regex(files: Files, number: int) -> Any:
    return await files.backend.agrep(rf"^# [a-z]+ {number % files.count:07}x\b", regex=True)


async def _named(files: Files, number: int) -> Any:
    return await files.backend.aglob(f"**/{files.path(number).rpartition('/')[2]}")


async def _listed(files: Files, number: int) -> Any:
    return await files.backend.als(files.path(number).rpartition("/")[0])


async def _read(files: Files, number: int) -> Any:
    return await files.backend.aread(files.path(number))


async def _written(files: Files, number: int) -> Any:
    return await files.backend.awrite(f"/new/{number // 100:05}/{number}.py", files.content(number))


async def _edited(files: Files, number: int) -> Any:
    mark = mark_of(number % files.count)
    return await files.backend.aedit(files.path(number), mark, f"{mark} ")  # The mark stays, so any number may return.


CALLS: Final[dict[str, tuple[str, Operation]]] = {
    "a rare literal": ("await fs.agrep('0076543x')", _rare),
    "an absent literal": ("await fs.agrep('no such mark')", _absent),
    "a regular expression": (r"await fs.agrep(r'^# [a-z]+ 0076543x\b', regex=True)", _regex),
    "a name anywhere": ("await fs.aglob('**/name.py')", _named),
    "ls": ("await fs.als(directory of 100)", _listed),
    "read": ("await fs.aread(path)", _read),
    "write": ("await fs.awrite(new path, 2 kB)", _written),
    "edit": ("await fs.aedit(path, …)", _edited),
}
"""The operations by name, each with its call as shown."""


async def compare(bench: Bench, name: str, files: Sequence[Files]) -> Race:
    """Race one operation over each of `files`."""
    shown, run = CALLS[name]

    async def turn(one: Files) -> list[int]:
        return [_rows(await run(one, next(one.numbers))) for _ in range(TIMES)]

    contenders = [
        Contender(name=f"{one.count:,} files", call=shown, run=lambda one=one: turn(one), rows=list, own=True)
        for one in files
    ]
    return await bench.race(f"{name}, {TIMES} times", contenders, noun="rows", rounds=9, seconds=30)


def _rows(result: Any) -> int:
    assert result.ok, result.error
    found = getattr(result, "matches", None) or getattr(result, "entries", None)
    return len(found) if found else 0
