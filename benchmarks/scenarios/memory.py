"""The memory that 10,000 concurrent reads of 1 MB files add to a process, each way in a new process."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender

TITLE: Final = "Memory of 10,000 concurrent reads of 1 MB files"

_MB: Final = 1_000_000
_FILES: Final = 16
_LINE: Final = "the quick brown fox jumps over the lazy dog and runs on, on, and on\n"
_KEPT: Final = 100
"""Lines of each result that the caller keeps, where results are kept."""
_LIMIT: Final = 200
"""MB that the reads may add beside what their results hold: 2 % of what they read."""

_BACKEND: Final = """
from deepfs.backends import FilesystemBackend
fs = FilesystemBackend(root)
async def read(path, lines):
    result = await fs.aread(path, 0, lines)
    assert result.error is None, result.error
    return result.file_data["content"]
"""
_TO_THREAD: Final = """
import itertools
def blocking(path, lines):
    with open(root + path, encoding="utf-8") as file:
        return "".join(itertools.islice(file, lines))
async def read(path, lines):
    return await asyncio.to_thread(blocking, path, lines)
"""
_NOTHING: Final = """
async def read(path, lines):
    await asyncio.sleep(0)
    return ""
"""
_PROGRAM: Final = """
import asyncio, json, re, sys, time
from pathlib import Path
root, count, files, lines, kept = sys.argv[1], *map(int, sys.argv[2:])
{way}
def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{{field}}:\\s+(\\d+) kB", status, re.MULTILINE)[1]) * 1024
async def use(path):
    content = await read(path, lines)
    return content if kept else len(content)
async def main():
    await use("/0.txt")  # loads modules
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, start = memory("VmRSS"), time.perf_counter()
    results = await asyncio.gather(*(use(f"/{{number % files}}.txt") for number in range(count)))
    took, peak = time.perf_counter() - start, memory("VmHWM")
    held = sum(map(sys.getsizeof, results)) if kept else 0
    sizes = [len(result) if kept else result for result in results]
    print(json.dumps({{"sizes": sizes, "seconds": took, "added": peak - before - held}}))
asyncio.run(main())
"""
_WAYS: Final = {
    "deepfs": ("await fs.aread(path, 0, lines)", _BACKEND),
    "asyncio.to_thread": ("await asyncio.to_thread(lambda: islice(open(path), lines))", _TO_THREAD),
}


async def measure(bench: Bench) -> None:
    """Race reads of whole files, of which nothing is kept, and of windows, which are; the bars are for the memory."""
    count = 200 if bench.quick else 10_000
    with inputs.scratch() as root:
        text = _LINE * (_MB // len(_LINE))
        inputs.write_tree(root, {f"/{number}.txt": text for number in range(_FILES)})
        await _race(bench, root, count, f"{count:,} reads of whole files at once, nothing kept", lines=_MB, kept=False)
        await _race(bench, root, count, f"{count:,} reads of {_KEPT} lines at once, all kept", lines=_KEPT, kept=True)
        fewer = await _in_new_process(_BACKEND, root, (count // 5, _FILES, _MB, 0), [])
        tasks = await _in_new_process(_NOTHING, root, (count, _FILES, 1, 0), [])
    bench.note(f"{count // 5:,} reads of whole files at once: deepfs added {fewer['added'] / _MB:,.1f} MB.")
    bench.note(f"{count:,} tasks of asyncio that read nothing: {tasks['added'] / _MB:,.1f} MB.")
    bench.note("deepagents is left out for time.")


async def _race(bench: Bench, root: Path, count: int, work: str, *, lines: int, kept: bool) -> None:
    added: dict[str, list[float]] = {name: [] for name in _WAYS}
    contenders = [
        Contender(
            name=name,
            call=f"asyncio.gather(*({call.removeprefix('await ')} for path in paths))",
            run=partial(_in_new_process, way, root, (count, _FILES, lines, int(kept)), added[name]),
            rows=lambda found: list(enumerate(found["sizes"])),
            own_seconds=lambda found: float(found["seconds"]),
            own=name == "deepfs",
        )
        for name, (call, way) in _WAYS.items()
    ]
    await bench.race(work, contenders, noun="results", rounds=1, seconds=0, patience=0)
    for name, amounts in added.items():
        if amounts:
            bench.note(
                f"{work}: {name} added {max(amounts):,.1f} MB to the memory of the process, besides the results."
            )
    what = "windows" if kept else "whole files"
    claim = f"10,000 concurrent reads of 1 MB, {what}: at most {_LIMIT} MB above the results"
    bench.at_most(claim, _LIMIT, added["deepfs"], " MB", reduced=bench.quick)


async def _in_new_process(way: str, root: Path, options: tuple[int, ...], added: list[float]) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROGRAM.format(way=way), str(root), *map(str, options)]
    found: dict[str, Any] = json.loads((await anyio.run_process(command, stderr=None)).stdout)
    added.append(found["added"] / _MB)
    return found
