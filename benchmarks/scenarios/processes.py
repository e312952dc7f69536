"""Processes that edit one file at the same time, commands in a box, and tenants of one process."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from operator import sub
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender, Timed, in_new_process, percentile, percentiles
from benchmarks.record import Race
from deepfs.backends import FilesystemBackend, LocalShellBackend, MemoryBackend
from deepfs.sandboxes import BubblewrapSandbox

_PROCESSES: Final = 4
_EDITS: Final = 50
_TOTAL: Final = _PROCESSES * _EDITS
_CHILD: Final = """
import asyncio, json, sys, time
from contextlib import AsyncExitStack
from {package} import backends

async def main(job, place, first, count):
    async with AsyncExitStack() as stack:
        if {is_store}:
            from langgraph.store.postgres.aio import AsyncPostgresStore
            store = await stack.enter_async_context(AsyncPostgresStore.from_conn_string(place))
            await store.setup()
        fs = backends.{made}
        if hasattr(fs, "__aenter__"):
            await stack.enter_async_context(fs)
        if job == "make":
            await fs.awrite("/log.txt", "".join(f"<{{number}}>\\n" for number in range(count)))
            return
        # What a first call loads takes longer than many edits.
        print(json.dumps((await fs.aread("/log.txt")).file_data["content"]), flush=True)
        if job == "show":
            return
        sys.stdin.readline()
        start, told = time.perf_counter(), []
        for number in range(first, first + count):
            if (await fs.aedit("/log.txt", f"<{{number}}>", f"({{number}})")).error is None:
                told.append(number)
        print(json.dumps([time.perf_counter() - start, told]), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""
_STORE: Final = "StoreBackend(store=store, namespace=lambda _: ('bench',))"
_KINDS: Final = {
    "deepfs, disk": ("disk", "FilesystemBackend(place)", True),
    "deepagents, disk": ("disk", "FilesystemBackend(place, virtual_mode=True)", False),
    "deepfs, SQLite": ("disk", "SqliteBackend(place + '/files.db', namespace='bench')", True),
    "deepfs, Postgres": ("postgres", "PostgresBackend(place, namespace='bench')", True),
    "deepfs, store in Postgres": ("postgres", _STORE, False),
    "deepagents, store in Postgres": ("postgres", _STORE, False),
    "deepfs, S3": ("s3", "S3Backend(**json.loads(place))", True),
}
"""The kind of place, how to make the backend, and whether it promises that no edit is lost between processes."""


async def processes(bench: Bench) -> None:
    """Four processes that edit one file: which edits are there in the end, and how long all of them take."""
    told: dict[str, int] = {}
    with ExitStack() as stack:
        postgres, s3 = stack.enter_context(stores.postgres()), stack.enter_context(stores.s3())
        places = {"disk": inputs.scratch, "postgres": postgres, "s3": s3}
        call = "await fs.aedit(path, old, new)"
        contenders = [
            Contender(name, call, partial(_edited, name, places[kind], told), list, not keeps)
            for name, (kind, _, keeps) in _KINDS.items()
        ]
        work = f"{_PROCESSES} processes × {_EDITS} edits of one file"
        race = await bench.race(work, contenders, "edits", rounds=5, seconds=120)
    for name, (_, _, keeps) in _KINDS.items():
        if keeps:
            bench.complete(f"{name}: all {_TOTAL} edits are there", race, name)
    bench.note(f"Each process edits lines of its own. Edits that succeeded by their result, in the last round: {told}.")


def _edited(name: str, place: Any, told: dict[str, int]) -> Timed:
    """Carry out all edits; return the seconds of the slowest process, and the numbers of the edits that are there."""
    program = _CHILD.format(package=name.partition(",")[0], is_store="store" in name, made=_KINDS[name][1])

    def started(*arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", program, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with place() as where, ExitStack() as stack:
        with started("make", where, 0, _TOTAL):
            pass
        children: list[Any] = [
            stack.enter_context(started("edit", where, number * _EDITS, _EDITS)) for number in range(_PROCESSES)
        ]
        for child in children:
            assert child.stdout.readline()
        for child in children:
            print("go", file=child.stdin, flush=True)
        reports = [json.loads(child.stdout.readline()) for child in children]
        with started("show", where, 0, 0) as child:
            content = json.loads(child.communicate()[0])
    told[name] = sum(len(numbers) for _, numbers in reports)
    there = [number for number in range(_TOTAL) if f"({number})" in content]
    return Timed(max(seconds for seconds, _ in reports), there)


_COMMAND: Final = "echo a line"
_COUNT: Final = 10
_DATA: Final = Path(__file__).parents[1]
_SRT: Final = "@anthropic-ai/sandbox-runtime@0.0.78"
_FIRST: Final = """
from deepfs.backends import FilesystemBackend, LocalShellBackend, MemoryBackend
from deepfs.sandboxes import BubblewrapSandbox
async def main(root):
    async def run():
        return await {made}.aexecute({command!r})
    seconds, response, added = await measured(run())
    return seconds, [response.output], added
"""


async def boxes(bench: Bench) -> None:
    """Commands in a box: what a box costs over a plain process, and what it keeps from commands."""
    with inputs.scratch() as root:
        workspace = root / "workspace"
        runtime = None if bench.quick else await _installed(root)
        if runtime is None:
            bench.note("Without the sandbox-runtime of Anthropic: npm did not install it here, or the run is quick.")
        async with BubblewrapSandbox(workspace) as box:
            made = {
                "box": (box, "BubblewrapSandbox(root)"),
                "plain": (LocalShellBackend(workspace, inherit_env=True), "LocalShellBackend(root, inherit_env=True)"),
            }
            contenders = [
                Contender(name, f"await {shown}.aexecute(command)", partial(_execute, backend), list, own=True)
                for name, (backend, shown) in made.items()
            ]
            contenders.append(Contender("anyio", "await anyio.run_process(command)", _run_processes, list))
            if runtime is not None:
                call = "SandboxManager.wrapWithSandbox(command), in a program that runs already"
                run = partial(_in_runtime, runtime, _COUNT, [_COMMAND])
                contenders.append(Contender("sandbox-runtime", call, run, lambda found: [said for _, said in found]))
            race = await bench.race(f"{_COUNT} commands one after another", contenders, "lines", seconds=60)
            bench.at_most("A box adds at most 15 ms to a command", 15, _added(race, _COUNT), " ms")
            programs = {name: _FIRST.format(made=shown, command=_COMMAND) for name, (_, shown) in made.items()}
            first = [
                Contender(
                    name, "await ….aexecute(command)", partial(in_new_process, program, workspace), list, own=True
                )
                for name, program in programs.items()
            ]
            race = await bench.race("the first command, in a new process", first, "lines", seconds=60)
            bench.at_most("A box adds at most 30 ms to the first command", 30, _added(race), " ms")
            await _attempt(bench, box, runtime)


async def _execute(backend: Any) -> list[str]:
    return [(await backend.aexecute(_COMMAND)).output for _ in range(_COUNT)]


async def _run_processes() -> list[str]:
    return [(await anyio.run_process(_COMMAND)).stdout.decode() for _ in range(_COUNT)]


def _added(race: Race, times: int = 1) -> list[float]:
    return list(map(sub, race.milliseconds("box", times), race.milliseconds("plain", times)))


async def _installed(root: Path) -> Path | None:
    """The directory that has the sandbox-runtime of Anthropic in it; None if it cannot be installed."""
    place = root / "runtime"
    place.mkdir()
    if not all(map(shutil.which, ("npm", "socat", "rg"))):
        return None
    done = await anyio.run_process(["npm", "install", "--prefix", str(place), _SRT], check=False)
    shutil.copy(_DATA / "sandbox_runtime.mjs", place / "run.mjs")
    return place if done.returncode == 0 else None


async def _in_runtime(place: Path, number: int, commands: Sequence[str]) -> Timed:
    """How commands end and what they print, each so many times, after a first one that is not counted."""
    line = ["node", "run.mjs", str(number), *commands]
    return Timed(*json.loads((await anyio.run_process(line, cwd=place, stderr=None)).stdout))


async def _attempt(bench: Bench, box: BubblewrapSandbox, runtime: Path | None) -> None:
    attempts = json.loads((_DATA / "box_attempts.json").read_text("utf-8"))
    commands = [_command(text) for text in attempts.values()]
    codes = {"BubblewrapSandbox": [(await box.aexecute(command)).exit_code for command in commands]}
    if runtime is not None:
        codes["sandbox-runtime"] = [code for code, _ in (await _in_runtime(runtime, 1, commands)).answer]
    for name, found in codes.items():
        said = (f"{attempt}: {'no' if code else 'yes'}" for attempt, code in zip(attempts, found, strict=True))
        bench.note(f"{name}: a command can {'; '.join(said)}.")


def _command(attempt: str) -> str:
    """The shell command of an attempt. A system call of x86-64 is let through if it succeeds or finds a bad address."""
    if not attempt.startswith("syscall "):
        return attempt
    code = "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
    code += f"sys.exit(libc.syscall({attempt.removeprefix('syscall ')}) == -1 and ctypes.get_errno() != 14)"
    return f"python3 -c '{code}'"


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
_LIMITS: Final = {"read": 50, f"grep of {_FILES} files": 500, "grep in memory": 500, "echo": 1000}
"""The bars, in milliseconds, of what the neighbour does."""

Waits = dict[str, list[float]]


async def neighbour(bench: Bench) -> None:
    """A tenant beside a noisy one: its reads, greps and commands, in quiet and beside all the noise."""
    with inputs.scratch() as root:
        tenants = await anyio.to_thread.run_sync(_Tenants, root)
        noises = [tenants.locks, tenants.greps, tenants.commands]
        quiet = await _beside(tenants, [], bench.quick)
        rounds = [await _beside(tenants, noises, bench.quick) for _ in range(1 if bench.quick else 3)]
    for kind, limit in _LIMITS.items():
        values = [percentile(waits[kind], 99) * 1000 for waits in rounds]
        bench.at_most(f"{kind}, beside all of it: p99 at most {limit} ms", limit, values, " ms")
        bench.note(f"{kind}: {percentiles(quiet[kind])} in quiet; {percentiles(rounds[-1][kind])} beside all of it")
    bench.note(
        f"Locks: {_LOCKS} edits of files that another process has locked. Greps: {_GREPS} regular expressions over "
        f"trees of {_TREE} × 2 MB, each of a backend of its own, and as many of one backend in memory. "
        f"Commands: {_COMMANDS} × `sleep 60`."
    )


_HOLD: Final = """
import fcntl, os, sys
held = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for descriptor in held:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class _Tenants:
    """The directories of a noisy tenant and of its neighbour, and the noise."""

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

    async def locks(self) -> None:
        files = sorted(map(str, self.locked.iterdir()))
        line = [sys.executable, "-c", _HOLD, *files]
        async with await anyio.open_process(line, stderr=None) as holder:
            assert holder.stdout is not None
            await holder.stdout.receive()
            edit = FilesystemBackend(self.locked).aedit
            await _repeat_all(partial(edit, f"/{os.path.basename(file)}", "free", "taken") for file in files)

    async def greps(self) -> None:
        on_disk = [FilesystemBackend(tree).agrep for tree in self.trees]
        await _repeat_all(partial(grep, _PATTERN, regex=True) for grep in [*on_disk, *[self.memory.agrep] * _GREPS])

    async def commands(self) -> None:
        await _repeat_all([partial(LocalShellBackend(self.locked).aexecute, "sleep 60")] * _COMMANDS)


async def _repeat_all(calls: Any) -> None:
    async def repeat(call: Callable[[], Awaitable[object]]) -> None:
        while True:
            await call()

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(repeat, call)


async def _beside(tenants: _Tenants, noises: Sequence[Callable[[], Awaitable[None]]], quick: bool) -> Waits:
    """The seconds that each call of the neighbour took beside the noise."""
    backend, memory = LocalShellBackend(tenants.neighbour), MemoryBackend()
    await memory.aupload_files([(f"/{number}.txt", b"a needle\n") for number in range(_IN_MEMORY)])
    calls: list[Callable[[], Awaitable[Any]]] = [
        partial(backend.aread, "/d0000/f00.txt"),
        partial(backend.agrep, "needle"),
        partial(memory.agrep, "needle"),
        partial(backend.aexecute, "echo"),
    ]
    waits: Waits = {kind: [] for kind in _LIMITS}

    async def wait(kind: str, call: Callable[[], Awaitable[Any]]) -> None:
        while time.perf_counter() < end:
            begun = time.perf_counter()
            answer = await call()
            waits[kind].append(time.perf_counter() - begun)
            assert answer.error is None if hasattr(answer, "error") else answer.exit_code == 0
            await anyio.sleep(0.005 if kind == "read" else 0.05)

    async with anyio.create_task_group() as outer:
        for noise in noises:
            outer.start_soon(noise)
        await anyio.sleep(1)
        end = time.perf_counter() + (1.5 if quick else 8)
        async with anyio.create_task_group() as tasks:
            for kind, call in zip(_LIMITS, calls, strict=True):
                tasks.start_soon(wait, kind, call)
        outer.cancel_scope.cancel()
    return waits
