"""Finding a literal in all of Django: a rare one, a frequent one and one that is not there."""

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.peers import CLIPPED, grep_rows
from benchmarks.record import Race
from benchmarks.ripgrep import ripgrep, with_ripgrep, without_ripgrep
from deepfs.backends import FilesystemBackend

TITLE: Final = "grep of a literal over Django"

_LITERALS: Final = ("def get_queryset", "import", "no such words in Django")
_FLAGS: Final = ("-nF", "--no-config", "--no-ignore", "--no-heading", "--with-filename", "--color=never")


async def measure(bench: Bench) -> None:
    """For each literal, race deepfs and deepagents, with and without ripgrep, and ripgrep itself."""
    root = inputs.django()
    for literal in _LITERALS[1:] if bench.quick else _LITERALS:
        fast = by_ripgrep(root, literal)
        slow = _backends(root, literal, FilesystemBackend(root, ripgrep=False), without_ripgrep)
        slow += [] if bench.quick else [_by_line(root, literal)]
        _bars(
            bench,
            literal,
            await bench.race(f'grep "{literal}", with ripgrep', fast, noun="lines", seconds=9),
            await bench.race(f'grep "{literal}", without ripgrep', slow, noun="lines", seconds=9),
        )
    bench.note(f"Lines are compared up to character {CLIPPED:,}, where deepfs clips them.")
    bench.note("deepagents stops ripgrep after 15 s and a grep after 35 s, and returns what it has.")


def _bars(bench: Bench, literal: str, fast: Race, slow: Race) -> None:
    """Where much is found, deepagents builds the lines one by one; where little is, all wait for ripgrep."""
    most, least = (1.3, 15) if literal == "import" else (1.15, 1)
    work = f'grep "{literal}"'
    bench.at_most(f"{work} with ripgrep: at most {most:g}× bare rg", most, fast.ratios("deepfs", "rg -nF"))
    bench.at_least(
        f"{work} with ripgrep: at least {least}× deepagents with ripgrep", least, fast.ratios("deepagents", "deepfs")
    )
    bench.at_least(f"{work} without ripgrep: at least 7× deepagents without", 7, slow.ratios("deepagents", "deepfs"))


# --- contenders ------------------------------------------------------------------------------------------------------


def by_ripgrep(root: Path, literal: str) -> list[Contender]:
    """Both packages with ripgrep, and ripgrep itself."""
    return [*_backends(root, literal, FilesystemBackend(root), with_ripgrep), _bare(root, literal)]


def _backends(
    root: Path, literal: str, ours: FilesystemBackend, around: Callable[[], AbstractContextManager[object]]
) -> list[Contender]:
    backends: dict[str, Any] = {"deepfs": ours, "deepagents": PeerBackend(str(root))}
    return [
        Contender(
            name=name,
            call=f'await fs.agrep("{literal}")',
            run=partial(backend.agrep, literal),
            rows=grep_rows,
            around=around,
            may_lose=name == "deepagents",
            own=name == "deepfs",
        )
        for name, backend in backends.items()
    ]


def _bare(root: Path, literal: str) -> Contender:
    command = [ripgrep(), *_FLAGS, "--", literal, "."]

    def run() -> bytes:
        return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=False).stdout

    return Contender(
        name="rg -nF", call=" ".join(["rg", *_FLAGS, "--", repr(literal), "."]), run=run, rows=_lines_of_ripgrep
    )


def _lines_of_ripgrep(output: bytes) -> list[tuple[str, int, str]]:
    rows = []
    for line in output.decode().removesuffix("\n").split("\n") if output else ():
        path, number, text = line.split(":", 2)
        rows.append((path[1:], int(number), text[:CLIPPED]))
    return rows


def _by_line(root: Path, literal: str) -> Contender:
    """A blocking loop as one would write it by hand."""

    def run() -> list[tuple[str, int, str]]:
        found = []
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and "/." not in f"/{name}":
                found += _matching_lines(path, f"/{name}", literal)
        return found

    return Contender(
        name="line by line, blocking", call=f'for line in open(path): "{literal}" in line', run=run, rows=list
    )


def _matching_lines(path: Path, name: str, literal: str) -> list[tuple[str, int, str]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            found = [(number, line) for number, line in enumerate(file, 1) if literal in line]
    except UnicodeDecodeError:
        return []
    return [(name, number, line.rstrip("\r\n")[:CLIPPED]) for number, line in found]
