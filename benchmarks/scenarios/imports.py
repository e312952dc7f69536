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
    """Race the imports, each in a new interpreter; what counts is the time of the statement alone."""
    contenders = [
        Contender(
            name=name,
            call=f"from {name}.backends import FilesystemBackend",
            run=partial(_in_new_interpreter, f"from {name}.backends import FilesystemBackend"),
            rows=lambda _: ["imported"],
            own_seconds=float,
        )
        for name in ("deepfs", "deepagents")
    ]
    race = await bench.race("import of FilesystemBackend, in a new interpreter", contenders, noun="import", seconds=60)
    claim = "from deepfs.backends import FilesystemBackend: at least 12× faster than from deepagents"
    bench.at_least(claim, 12, race.ratios("deepagents", "deepfs"))


async def _in_new_interpreter(statement: str) -> bytes:
    program = _TIMED.format(statement=statement)
    return (await anyio.run_process([sys.executable, "-c", program], stderr=None)).stdout
