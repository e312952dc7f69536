"""What a tenant waits for beside another one of the same process, whose edits, searches and commands take long."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.lag import percentile
from deepfs.backends import FilesystemBackend, LocalShellBackend, MemoryBackend

TITLE: Final = "A tenant beside a noisy one"

_LOCKS: Final = 60
_GREPS: Final = 6
_COMMANDS: Final = 32
_FILES: Final = 100
_IN_MEMORY: Final = 600
"""So many files are not searched on the event loop."""
_TREE: Final = 20
"""Files of 2 MB in each tree that is searched for long."""
_PATTERN: Final = r"[a-q ].{300}[0-9]"
"""An expression without a small automaton, which takes seconds for each file; no line matches."""
_PERCENT: Final = 99.0

Noise = Callable[["_Tenants"], Awaitable[None]]
Waits = dict[str, list[float]]


async def measure(bench: Bench) -> None:
    """Measure a neighbour's reads, greps and commands: in quiet, beside each kind of noise, and beside all at once."""
    with inputs.scratch() as root:
        tenants = await anyio.to_thread.run_sync(_Tenants, root)
        rows = {"nothing": await _beside(tenants, [], bench.quick)}
        for name, noise in _NOISES.items():
            rows[name] = await _beside(tenants, [noise], bench.quick)
        rounds = [await _beside(tenants, [*_NOISES.values()], bench.quick) for _ in range(1 if bench.quick else 3)]
    rows["all of it"] = {kind: [wait for waits in rounds for wait in waits[kind]] for kind in _LIMITS}
    for kind, limit in _LIMITS.items():
        values = [percentile(waits[kind], _PERCENT) * 1000 for waits in rounds]
        bench.at_most(f"{kind}, beside all of it: p99 at most {limit} ms", limit, values, " ms", reduced=bench.quick)
    bench.note(_table(rows))
    bench.note(
        f"Locks: {_LOCKS} edits of files that another process has locked. Greps: {_GREPS} regular expressions over "
        f"trees of {_TREE} × 2 MB, each of a backend of its own, and as many of one backend in memory. "
        f"Commands: {_COMMANDS} × `sleep 60`."
    )


_LIMITS: Final = {"read": 50, f"grep of {_FILES} files": 500, "grep in memory": 500, "echo": 1000}
"""The bars, in milliseconds, of what the neighbour does."""


class _Tenants:
    """The directories of a noisy tenant and of its neighbour, filled."""

    def __init__(self, root: Path) -> None:
        self.locked = root / "locked"
        self.trees = [root / f"tree{number}" for number in range(_GREPS)]
        self.neighbour = inputs.write_tree(root / "neighbour", inputs.flat_files(_FILES))
        inputs.write_tree(self.locked, {f"/{number}.txt": "free\n" for number in range(_LOCKS)})
        text = "\n".join(inputs.random_texts(2_000, 1_000))
        self.memory = MemoryBackend()
        self.memory.upload_files([(f"/{number}.txt", b"short\n") for number in range(_IN_MEMORY)])
        self.memory.upload_files([(f"/long/{number}.txt", text.encode()) for number in range(_TREE)])
        inputs.write_tree(self.trees[0], {f"/{number:03}.txt": text for number in range(_TREE)})
        for tree in self.trees[1:]:
            tree.mkdir()
            for file in self.trees[0].iterdir():
                (tree / file.name).hardlink_to(file)


# --- the noise -------------------------------------------------------------------------------------------------------

_HOLD: Final = """
import fcntl, os, sys
held = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for descriptor in held:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


async def _locks(tenants: _Tenants) -> None:
    files = sorted(map(str, tenants.locked.iterdir()))
    line = [sys.executable, "-c", _HOLD, *files]
    async with await anyio.open_process(line, stderr=None) as holder, anyio.create_task_group() as tasks:
        assert holder.stdout is not None
        await holder.stdout.receive()
        backend = FilesystemBackend(tenants.locked)
        for file in files:
            tasks.start_soon(_again, partial(backend.aedit, f"/{os.path.basename(file)}", "free", "taken"))


async def _greps(tenants: _Tenants) -> None:
    async with anyio.create_task_group() as tasks:
        for tree in tenants.trees:
            tasks.start_soon(_again, partial(FilesystemBackend(tree).agrep, _PATTERN, regex=True))
        for _ in range(_GREPS):
            tasks.start_soon(_again, partial(tenants.memory.agrep, _PATTERN, regex=True))


async def _commands(tenants: _Tenants) -> None:
    backend = LocalShellBackend(tenants.locked)
    async with anyio.create_task_group() as tasks:
        for _ in range(_COMMANDS):
            tasks.start_soon(_again, partial(backend.aexecute, "sleep 60"))


async def _again(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        await call()


_NOISES: Final[dict[str, Noise]] = {"locks": _locks, "greps": _greps, "commands": _commands}


# --- the neighbour ---------------------------------------------------------------------------------------------------


async def _beside(tenants: _Tenants, noises: Sequence[Noise], quick: bool) -> Waits:
    """The seconds that each call of the neighbour took beside the noise."""
    backend, memory = LocalShellBackend(tenants.neighbour), MemoryBackend()
    await memory.aupload_files([(f"/{number}.txt", b"a needle\n") for number in range(_IN_MEMORY)])
    calls: dict[str, tuple[float, Callable[[], Awaitable[Any]]]] = {
        "read": (0.005, partial(backend.aread, "/d0000/f00.txt")),
        f"grep of {_FILES} files": (0.05, partial(backend.agrep, "needle")),
        "grep in memory": (0.05, partial(memory.agrep, "needle")),
        "echo": (0.05, partial(backend.aexecute, "echo")),
    }
    waits: Waits = {kind: [] for kind in calls}
    async with anyio.create_task_group() as outer:
        for noise in noises:
            outer.start_soon(noise, tenants)
        await anyio.sleep(1)
        end = time.perf_counter() + (1.5 if quick else 8)
        async with anyio.create_task_group() as tasks:
            for kind, (pause, call) in calls.items():
                tasks.start_soon(_repeat, call, pause, end, waits[kind])
        outer.cancel_scope.cancel()
    return waits


async def _repeat(call: Callable[[], Awaitable[Any]], pause: float, end: float, waits: list[float]) -> None:
    while time.perf_counter() < end:
        begun = time.perf_counter()
        answer = await call()
        waits.append(time.perf_counter() - begun)
        assert answer.error is None if hasattr(answer, "error") else answer.exit_code == 0
        await anyio.sleep(pause)


def _table(rows: dict[str, Waits]) -> str:
    """The median, the 99th percentile and the longest of the waits in milliseconds, beside each kind of noise."""
    lines = [f"{'beside (ms)':12}" + "".join(f"{f'{kind}: p50, p99, max':>36}" for kind in _LIMITS)]
    for name, waits in rows.items():
        cells = (
            "  ".join(f"{percentile(waits[kind], percent) * 1000:9.1f}" for percent in (50.0, _PERCENT, 100.0))
            for kind in _LIMITS
        )
        lines.append(f"{name:12}" + "".join(f"{cell:>36}" for cell in cells))
    return "\n".join(lines)
