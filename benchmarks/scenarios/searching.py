"""Searches of Django: globs, greps, and eight of them at once."""

import asyncio
import os
import subprocess
from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs
from benchmarks.bench import Bench, Contender, both, percentile, ticking
from benchmarks.machine import ripgrep, with_ripgrep, without_ripgrep
from benchmarks.peers import CLIPPED, grep_rows, listed_paths
from benchmarks.record import Line, Point
from deepfs.backends import FilesystemBackend


async def globs(bench: Bench) -> None:
    """glob **/*.py over Django: both packages, ripgrep's file list, os.scandir, and pathlib, blocking and by anyio."""
    race = await bench.race("glob **/*.py", glob_contenders(inputs.django()), "files", rounds=21, seconds=15)
    bench.beats_peer("glob **/*.py", 8, race)
    bench.at_most("glob **/*.py: at most 1.5× os.scandir and os.stat", 1.5, race.ratios("deepfs", "os.scandir"))
    bench.note("deepfs and deepagents return sizes and times, too. deepagents stops a glob after 5 s.")


def glob_contenders(root: Path) -> list[Contender]:
    """All ways to find every Python file below `root`."""
    ours, theirs = FilesystemBackend(root), PeerBackend(str(root))
    command = [ripgrep(), "--files", "--no-config", "--no-ignore", "--glob", "**/*.py", "--glob", "!.*"]

    def by_ripgrep() -> list[str]:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()

    def by_scandir() -> list[tuple[str, os.stat_result]]:
        found, directories = [], [str(root)]
        for directory in directories:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    elif entry.name.endswith(".py"):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
        return found

    def by_pathlib() -> list[str]:
        return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.py"))]

    async def by_anyio() -> list[str]:
        return sorted([path.relative_to(root).as_posix() async for path in anyio.Path(root).rglob("*.py")])

    def visible(found: list[str]) -> list[str]:
        """The paths without dot-names, which pathlib does not leave out."""
        return [f"/{path}" for path in found if "/." not in f"/{path}"]

    call = 'await fs.aglob("**/*.py")'
    return [
        Contender("deepfs", call, lambda: ours.aglob("**/*.py"), listed_paths, around=with_ripgrep),
        Contender("deepagents", call, lambda: theirs.aglob("**/*.py"), listed_paths, may_lose=True),
        Contender("rg --files", " ".join(["rg", *command[1:]]), by_ripgrep, lambda found: [f"/{p}" for p in found]),
        Contender(
            "os.scandir",
            "os.scandir(directory) …, entry.stat() of what matches",
            by_scandir,
            lambda found: visible([os.path.relpath(path, root) for path, _ in found]),
        ),
        Contender("pathlib, blocking", 'sorted(root.rglob("*.py"))', by_pathlib, visible),
        Contender("anyio.Path", '[p async for p in anyio.Path(root).rglob("*.py")]', by_anyio, visible),
    ]


async def greps(bench: Bench) -> None:
    """grep of a literal over Django: a rare one, a frequent one and one that is not there, with and without ripgrep."""
    root = inputs.django()
    literals = ("def get_queryset", "import", "no such words in Django")
    for literal in literals[1:] if bench.quick else literals:
        work = f'grep "{literal}"'
        race = await bench.race(f"{work}, with ripgrep", with_rg(root, literal), "lines", seconds=9)
        bench.at_most(f"{work} with ripgrep: at most 1.3× bare rg", 1.3, race.ratios("deepfs", "rg -nF"))
        if literal == "import":  # Where little is found, both wait for the same ripgrep.
            claim = f"{work} with ripgrep: at least 12× deepagents with ripgrep"
            bench.at_least(claim, 12, race.ratios("deepagents", "deepfs"))
        slow = _both_packages(root, literal, without_ripgrep, ripgrep=False)
        slow += [] if bench.quick else [_by_line(root, literal)]
        race = await bench.race(f"{work}, without ripgrep", slow, "lines", seconds=9)
        claim = f"{work} without ripgrep: at least 5× deepagents without"
        bench.at_least(claim, 5, race.ratios("deepagents", "deepfs"))
    bench.note(f"Lines are compared up to character {CLIPPED:,}, where deepfs clips them.")
    bench.note("deepagents stops ripgrep after 15 s and a grep after 35 s, and returns what it has.")


def with_rg(root: Path, literal: str) -> list[Contender]:
    """Both packages with ripgrep, and ripgrep itself."""
    flags = ("-nF", "--no-config", "--no-ignore", "--no-heading", "--with-filename", "--color=never", "--")

    def bare() -> str:
        command = [ripgrep(), *flags, literal, "."]
        return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=False).stdout.decode()

    def rows(output: str) -> list[tuple[str, int, str]]:
        lines = (line.split(":", 2) for line in output.removesuffix("\n").split("\n") if line)
        return [(path[1:], int(number), text[:CLIPPED]) for path, number, text in lines]

    call = " ".join(["rg", *flags, repr(literal), "."])
    return [*_both_packages(root, literal, with_ripgrep), Contender("rg -nF", call, bare, rows)]


def _both_packages(root: Path, literal: str, around: Any, **options: Any) -> list[Contender]:
    ours, theirs = FilesystemBackend(root, **options), PeerBackend(str(root))
    call = f'await fs.agrep("{literal}")'
    found = both(call, lambda: ours.agrep(literal), lambda: theirs.agrep(literal), grep_rows, may_lose=True)
    for contender in found:
        contender.around = around
    return found


def _by_line(root: Path, literal: str) -> Contender:
    """A blocking loop as one would write it by hand."""

    def run() -> list[tuple[str, int, str]]:
        found = []
        for path in sorted(root.rglob("*")):
            name = f"/{path.relative_to(root).as_posix()}"
            if "/." not in name and path.is_file():
                with suppress(UnicodeDecodeError), path.open(encoding="utf-8", newline="\n") as file:
                    lines = [(number, line) for number, line in enumerate(file, 1) if literal in line]
                    found += [(name, number, line.rstrip("\r\n")[:CLIPPED]) for number, line in lines]
        return found

    return Contender("line by line, blocking", f'for line in open(path): "{literal}" in line', run, list)


_LITERALS: Final = ("def get_queryset", "import", "self.assertEqual", "no such words in Django")
_GLOBS: Final = ("**/*.py", "**/*.txt", "tests/**/*.py", "*.html")


async def together(bench: Bench) -> None:
    """Four greps and four globs of Django at once, and the event-loop lag that they cause."""
    root, where = inputs.django(), "/docs" if bench.quick else "/"
    lags: dict[str, list[float]] = {}

    async def search(backend: Any, ticks: list[float]) -> list[Any]:
        async with ticking(ticks):
            searches = [backend.agrep(text, where) for text in _LITERALS]
            return await asyncio.gather(*searches, *(backend.aglob(pattern, where) for pattern in _GLOBS))

    def contender(name: str, backend: Any, around: Any) -> Contender:
        call = f'asyncio.gather(*(fs.agrep(text, "{where}") …), *(fs.aglob(pattern, "{where}") …))'
        run = partial(search, backend, lags.setdefault(name, []))
        return Contender(name, call, run, _rows, "deepagents" in name, around)

    contenders = [
        contender("deepfs, with rg", FilesystemBackend(root), with_ripgrep),
        contender("deepagents, with rg", PeerBackend(str(root)), with_ripgrep),
        contender("deepfs, without rg", FilesystemBackend(root, ripgrep=False), without_ripgrep),
        contender("deepagents, without rg", PeerBackend(str(root)), without_ripgrep),
    ]
    race = await bench.race(f"4 greps and 4 globs at once below {where}", contenders, "rows", rounds=5, seconds=45)
    for engine in ("with rg", "without rg"):
        work = f"four greps and four globs, {engine}"
        bench.complete(f"{work}: complete results", race, f"deepfs, {engine}")
        bench.beats_peer(work, 20, race, f"deepfs, {engine}", f"deepagents, {engine}")
        lag = max(lags[f"deepfs, {engine}"]) * 1000
        bench.at_most(f"event-loop lag at most 15 ms, throughout, {engine}", 15, [lag], " ms")
    percents = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
    lines = []
    for name, ticks in lags.items():
        late = [max(percentile(ticks, percent) * 1000, 0.01) for percent in percents.values() if ticks]
        lines += [Line(name, [Point(at, each, each, each) for at, each in enumerate(late)])] if ticks else []
    title, axes = "Event-loop lag during four greps and four globs", ("of all ticks, one a millisecond", "ms late")
    bench.plot("lag", title, axes, lines, log_x=False, ticks=list(percents))
    bench.note(f"The greps look for {', '.join(map(repr, _LITERALS))}; the globs are {', '.join(_GLOBS)}.")
    bench.note("deepagents stops a glob after 5 s, ripgrep after 15 s and a grep after 35 s, and returns what it has.")


def _rows(found: list[Any]) -> list[Hashable]:
    greps = [(text, row) for text, result in zip(_LITERALS, found[:4], strict=True) for row in grep_rows(result)]
    globs = [(name, path) for name, result in zip(_GLOBS, found[4:], strict=True) for path in listed_paths(result)]
    return [*greps, *globs]
