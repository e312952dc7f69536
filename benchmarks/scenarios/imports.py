"""The time of a first import, in a new interpreter that finds compiled modules."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.inputs import scratch
from benchmarks.record import Race

TITLE: Final = "Import time"

_TIMED: Final = """
from time import perf_counter as now
start = now()
{statement}
print(now() - start)
"""
_BACKEND: Final = "from {}.backends import FilesystemBackend"
_BOTH: Final = ("deepfs", "deepagents")


async def measure(bench: Bench) -> None:
    """Race the imports, each in a new interpreter; only the time of the import statement counts."""
    with scratch() as compiled:
        await _race(bench, "import {}", _BOTH, compiled)
        await _race(bench, "from {} import FilesystemBackend", ("deepfs",), compiled)
        await _race(bench, "from {} import create_deep_agent", _BOTH, compiled)
        race = await _race(bench, _BACKEND, _BOTH, compiled)
    claim = "from deepfs.backends import FilesystemBackend: at least 12× faster than from deepagents"
    bench.at_least(claim, 12, race.ratios("deepagents", "deepfs"))


async def _race(bench: Bench, statement: str, packages: tuple[str, ...], compiled: Path) -> Race:
    for package in packages:
        await _in_new_interpreter(statement.format(package), compiled)
    contenders = [
        Contender(
            name=package,
            call=statement.format(package),
            run=partial(_in_new_interpreter, statement.format(package), compiled),
            rows=lambda _: ["imported"],
            own_seconds=float,
            own=package == "deepfs",
        )
        for package in packages
    ]
    work = f"{statement.format('…')}, in a new interpreter"
    return await bench.race(work, contenders, noun="import", seconds=60)


async def _in_new_interpreter(statement: str, compiled: Path) -> bytes:
    # A package from an index is compiled when it is installed, a clone when it is first used, unless that is forbidden.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
    program = _TIMED.format(statement=statement)
    return (await anyio.run_process([sys.executable, "-c", program], stderr=None, env=environment)).stdout
