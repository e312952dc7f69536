"""Processes that edit one file at the same time: which edits are there in the end, and how long all of them take."""

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from benchmarks import inputs, servers
from benchmarks.bench import Bench
from benchmarks.harness import Contender

TITLE: Final = "Four processes that edit one file"

_PROCESSES: Final = 4
_EDITS: Final = 50
_TOTAL: Final = _PROCESSES * _EDITS

_CHILD: Final = """
import asyncio, json, sys, time
from contextlib import asynccontextmanager

PATH = "/log.txt"

{opened}

async def main(job, place, first, count):
    async with opened(place) as backend:
        if job == "make":
            lines = "".join(f"<{{number}}>\\n" for number in range(count))
            await backend.awrite(PATH, lines)
            return
        if job == "show":
            print(json.dumps((await backend.aread(PATH)).file_data["content"]))
            return
        await backend.aread(PATH)  # What the first call loads takes longer than many edits.
        print("ready", flush=True)
        sys.stdin.readline()
        start, told = time.perf_counter(), []
        for number in range(first, first + count):
            result = await backend.aedit(PATH, f"<{{number}}>", f"({{number}})")
            if result.error is None:
                told.append(number)
        print(json.dumps([time.perf_counter() - start, told]), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""

_PLAIN: Final = """
@asynccontextmanager
async def opened(place):
    {imported}
    yield {made}
"""

_OPENED: Final = """
@asynccontextmanager
async def opened(place):
    {imported}
    async with {made} as backend:
        yield backend
"""

_STORE: Final = """
@asynccontextmanager
async def opened(place):
    from {package}.backends import StoreBackend
    from langgraph.store.postgres.aio import AsyncPostgresStore
    async with AsyncPostgresStore.from_conn_string(place) as store:
        await store.setup()
        yield StoreBackend(store=store, namespace=lambda _: ("bench",))
"""


class _Kind(NamedTuple):
    name: str
    call: str
    opened: str
    place: str
    """The kind of place where its files are."""
    own: bool = True
    keeps: bool = True
    """Whether it promises that no edit is lost between processes."""


_KINDS: Final = (
    _Kind(
        "deepfs, disk",
        "await FilesystemBackend(…).aedit(…)",
        _PLAIN.format(imported="from deepfs import FilesystemBackend", made="FilesystemBackend(place)"),
        "disk",
    ),
    _Kind(
        "deepagents, disk",
        "await FilesystemBackend(…).aedit(…)",
        _PLAIN.format(
            imported="from deepagents.backends import FilesystemBackend",
            made="FilesystemBackend(place, virtual_mode=True)",
        ),
        "disk",
        own=False,
        keeps=False,
    ),
    _Kind(
        "deepfs, SQLite",
        "await SqliteBackend(…).aedit(…)",
        _OPENED.format(
            imported="from deepfs import SqliteBackend", made='SqliteBackend(place + "/files.db", namespace="bench")'
        ),
        "disk",
    ),
    _Kind(
        "deepfs, Postgres",
        "await PostgresBackend(…).aedit(…)",
        _OPENED.format(imported="from deepfs import PostgresBackend", made='PostgresBackend(place, namespace="bench")'),
        "postgres",
    ),
    _Kind(
        "deepfs, store in Postgres",
        "await StoreBackend(…).aedit(…)",
        _STORE.format(package="deepfs"),
        "postgres",
        keeps=False,
    ),
    _Kind(
        "deepagents, store in Postgres",
        "await StoreBackend(…).aedit(…)",
        _STORE.format(package="deepagents"),
        "postgres",
        own=False,
        keeps=False,
    ),
    _Kind(
        "deepfs, S3",
        "await S3Backend(…).aedit(…)",
        _OPENED.format(imported="import json; from deepfs import S3Backend", made="S3Backend(**json.loads(place))"),
        "s3",
    ),
)


async def measure(bench: Bench) -> None:
    """Let each backend do all edits in rounds; every round begins with a new file."""
    told: dict[str, int] = {}
    with ExitStack() as stack:
        places = {
            "disk": inputs.scratch,
            "postgres": stack.enter_context(servers.postgres()),
            "s3": stack.enter_context(servers.s3()),
        }
        contenders = [
            Contender(
                name=kind.name,
                call=kind.call,
                run=partial(_edited, kind, places[kind.place], told),
                rows=lambda done: done[1],
                own_seconds=lambda done: float(done[0]),
                may_lose=not kind.keeps,
                own=kind.own,
            )
            for kind in _KINDS
        ]
        work = f"{_PROCESSES} processes × {_EDITS} edits of one file"
        race = await bench.race(work, contenders, noun="edits", rounds=5, seconds=120)
    for kind in _KINDS:
        if kind.keeps:
            bench.complete(f"{kind.name}: all {_TOTAL} edits are there", race, kind.name)
    shown = "; ".join(f"{name} {count}" for name, count in told.items())
    bench.note(
        f"Each process edits lines of its own. Edits that succeeded by their result, in the last round: {shown}."
    )


def _edited(kind: _Kind, place: servers.Places, told: dict[str, int]) -> tuple[float, list[int]]:
    """Carry out all edits; return the seconds of the slowest process, and the numbers of the edits that are there."""
    program = _CHILD.format(opened=kind.opened)
    with place() as where:
        _printed(program, "make", where, 0, _TOTAL)
        with ExitStack() as stack:
            processes = [
                stack.enter_context(_started(program, "edit", where, number * _EDITS, _EDITS))
                for number in range(_PROCESSES)
            ]
            for process in processes:
                assert _line(process) == "ready\n"
            for process in processes:
                _send(process, "go\n")
            reports = [json.loads(_line(process)) for process in processes]
        content = json.loads(_printed(program, "show", where, 0, 0))
    told[kind.name] = sum(len(numbers) for _, numbers in reports)
    there = [number for number in range(_TOTAL) if f"({number})" in content]
    return max(seconds for seconds, _ in reports), there


def _started(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _printed(program: str, *arguments: object) -> str:
    with _started(program, *arguments) as process:
        return process.communicate()[0]


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _send(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
