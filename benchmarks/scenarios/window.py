"""A read of a hundred lines from the middle of a huge file, and its memory; each time in a new process."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender

TITLE: Final = "A window of a huge file"

_LINES: Final = 100
_MB: Final = 1_000_000

_BACKEND: Final = """
from {package}.backends import FilesystemBackend
fs = FilesystemBackend(root)
async def window():
    result = await fs.aread(name, offset, limit)
    assert result.error is None, result.error
    return result.file_data["content"]
"""
_AIOFILES: Final = """
import aiofiles
async def window():
    async with aiofiles.open(root + name, encoding="utf-8") as file:
        found, number = [], 0
        while number < offset + limit:
            lines = await file.readlines(2**20)
            found += lines[max(offset - number, 0) : offset + limit - number]
            number += len(lines)
        return "".join(found)
"""
_BLOCKING: Final = """
import itertools
async def window():
    with open(root + name, encoding="utf-8") as file:
        return "".join(itertools.islice(file, offset, offset + limit))
"""
# A first read of another file loads modules, so that only the window itself is measured.
_PROGRAM: Final = """
import asyncio, json, re, sys, time
from pathlib import Path
root, name, offset, limit = sys.argv[1], "/small.txt", 0, 1
{way}
def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{{field}}:\\s+(\\d+) kB", status, re.MULTILINE)[1]) * 1024
async def main():
    global name, offset, limit
    await window()
    name, offset, limit = "/huge.txt", int(sys.argv[2]), int(sys.argv[3])
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, start = memory("VmRSS"), time.perf_counter()
    content = await window()
    took, peak = time.perf_counter() - start, memory("VmHWM")
    print(json.dumps({{"content": content, "seconds": took, "added": peak - before}}))
asyncio.run(main())
"""
_WAYS: Final = {
    "deepfs": ("await fs.aread(path, offset, 100)", _BACKEND.format(package="deepfs")),
    "deepagents": ("await fs.aread(path, offset, 100)", _BACKEND.format(package="deepagents")),
    "aiofiles": ("while …: await file.readlines(2**20)", _AIOFILES),
    "blocking": ("islice(open(path), offset, offset + 100)", _BLOCKING),
}


async def measure(bench: Bench) -> None:
    """Race the ways to read the window; the bar is the resident memory that it adds to the process."""
    size = 20 * _MB if bench.quick else 1_000 * _MB
    added: dict[str, list[float]] = {name: [] for name in _WAYS}
    with inputs.scratch() as root:
        (root / "small.txt").write_text("one line\n", encoding="utf-8")
        offset = inputs.huge_file(root / "huge.txt", size) // 2
        contenders = [
            Contender(
                name=name,
                call=shown,
                run=partial(_in_new_process, way, root, offset, added[name]),
                rows=lambda found: found["content"].splitlines(),
                own_seconds=lambda found: float(found["seconds"]),
                own=name == "deepfs",
            )
            for name, (shown, way) in _WAYS.items()
        ]
        work = f"lines {offset:,} to {offset + _LINES:,} of a file of {size // _MB:,} MB, in a new process"
        await bench.race(work, contenders, noun="lines", rounds=5, seconds=90)
    for name, amounts in added.items():
        if amounts:
            bench.note(f"{name} added {min(amounts):,.1f}–{max(amounts):,.1f} MB to the memory of the process.")
    bench.at_most(
        "100 lines from the middle of 1 GB: under 32 MB added", 32, added["deepfs"], " MB", reduced=bench.quick
    )


async def _in_new_process(way: str, root: Path, offset: int, added: list[float]) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROGRAM.format(way=way), str(root), str(offset), str(_LINES)]
    found: dict[str, Any] = json.loads((await anyio.run_process(command, stderr=None)).stdout)
    added.append(found["added"] / _MB)
    return found
