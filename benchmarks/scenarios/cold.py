"""Reads and searches of files that are not in memory: first their pages, then their names and directories as well."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.eviction import evict_all, evicting, may_evict_all, pages_evicted
from benchmarks.harness import Contender
from benchmarks.readers import concurrent, readers, sequential
from benchmarks.scenarios import globs, greps

TITLE: Final = "Reads and searches of files that are not in memory"

_LITERAL: Final = "def get_queryset"
Around = Callable[[], AbstractContextManager[object]]

_SAID: Final = {True: "Yes", False: "No", None: "The file system does not tell"}


async def measure(bench: Bench) -> None:
    """Evict the files before each turn, and race reads and searches."""
    root = inputs.django()
    evicted = evicting(root)
    with evicted():
        works = pages_evicted(root / "README.rst")
    bench.note(f"Before each turn, posix_fadvise evicts the pages of all files. Does that work here? {_SAID[works]}.")
    await _race(bench, "cold", root, evicted)
    if may_evict_all():
        await _race(bench, "cold names", root, evict_all)
    else:
        bench.note("Cold names and directories: not measured, since drop_caches is not permitted.")


async def _race(bench: Bench, name: str, root: Path, around: Around) -> None:
    paths = list(inputs.python_files())[: 256 if bench.quick else None]
    ways = readers(str(root))[:2]
    reads = {"concurrent": concurrent, "sequential": sequential}
    for work, contenders in reads.items():
        await _turns(bench, f"{name}: {work} reads", contenders(ways, str(root), paths), "files", around)
    await _turns(bench, f'{name}: grep "{_LITERAL}"', greps.by_ripgrep(root, _LITERAL), "lines", around)
    if around is evict_all:  # A glob reads no pages of files.
        await _turns(bench, f"{name}: glob **/*.py", globs.contenders(root)[:3], "files", around)


async def _turns(bench: Bench, work: str, contenders: list[Contender], noun: str, around: Around) -> None:
    within = [_within(contender, around) for contender in contenders]
    race = await bench.race(work, within, noun=noun, rounds=7, seconds=5)
    if "grep" not in work:  # There, all wait for the same ripgrep.
        ratios = race.ratios("deepagents", "deepfs")
        bench.at_least(f"{work}: at least 1× deepagents", 1, ratios, reduced=bench.quick)


def _within(contender: Contender, around: Around) -> Contender:
    """The contender, which also runs within `around`, entered last."""

    @contextmanager
    def both() -> Iterator[None]:
        with contender.around(), around():
            yield

    return replace(contender, around=both)
