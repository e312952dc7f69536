"""How long a script waits for `from … import FilesystemBackend`."""

import sys
from functools import partial
from typing import Final

import anyio

from benchmarks.bench import Bench
from benchmarks.harness import Contender

TITLE: Final = "Import time"

_TIMED: Final = """
from time import perf_counter as now
start = now()
{statement}
print(now() - start)
"""


async def measure(bench: Bench) -> None:
    """Race the imports, each in a new interpreter; the time of the statement alone is what the bar is about."""
    taken: dict[str, list[float]] = {name: [] for name in ("deepfs", "deepagents")}
    contenders = [
        Contender(
            name=name,
            call=f'python -c "from {name}.backends import FilesystemBackend"',
            run=partial(_in_new_interpreter, f"from {name}.backends import FilesystemBackend", times),
            rows=lambda _: ["imported"],
        )
        for name, times in taken.items()
    ]
    race = await bench.race("a new interpreter imports FilesystemBackend", contenders, noun="import", rounds=11, seconds=60)
    ours, theirs = (times[-len(race.entries[0].timing.seconds) :] for times in taken.values())
    for name, times in (("deepfs", ours), ("deepagents", theirs)):
        bench.note(f"the statement alone, {name}: {min(times) * 1000:,.0f}–{max(times) * 1000:,.0f} ms")
    bench.at_least(
        "from deepfs.backends import FilesystemBackend: at least 12× faster than from deepagents",
        12,
        [their / our for their, our in zip(theirs, ours, strict=True)],
    )


async def _in_new_interpreter(statement: str, times: list[float]) -> None:
    finished = await anyio.run_process([sys.executable, "-c", _TIMED.format(statement=statement)], stderr=None)
    times.append(float(finished.stdout))
