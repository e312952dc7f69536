"""A million operations in one process: neither memory nor the number of open files grows."""

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.backends.store import StoreBackend
from deepfs.policy import HistoryBackend, QuotaBackend

OPERATIONS = 1_000_000
ROUNDS = 20
"""Memory is measured after each. The first ones fill caches."""
WARM = 5
AT_ONCE = 20
PATHS = [f"/dir{number % 20}/file{number}.txt" for number in range(400)]

BACKENDS = {
    "memory": lambda place: MemoryBackend(),
    "disk": FilesystemBackend,
    "sqlite": lambda place: SqliteBackend(f"{place}/files.db", durability="normal"),
    "store": lambda place: StoreBackend(InMemoryStore(), namespace=("files",)),
    "history": lambda place: HistoryBackend(QuotaBackend(MemoryBackend(), max_bytes=10**9), keep=3),
}


@pytest.mark.stress
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", BACKENDS)
def test_memory_and_descriptors_stay_flat(name: str, tmp_path: Path) -> None:
    measured = subprocess.run(
        [sys.executable, __file__, name, str(tmp_path), str(OPERATIONS)], check=True, capture_output=True, text=True
    )
    rounds = [json.loads(line) for line in measured.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    early, late = rounds[WARM : WARM + 3], rounds[-3:]
    memory = [max(each["memory"] for each in part) for part in (early, late)]
    print(name, *(f"{each['memory'] / 1e6:.1f}" for each in rounds), "MB")
    assert memory[1] <= memory[0] * 1.05
    assert max(each["files"] for each in late) <= max(each["files"] for each in early)


# --- in a process of its own ---


async def _work(backend: BackendProtocol, count: int, seed: int) -> None:
    """Do operations of all kinds, most of them reads, on few paths."""
    chance = random.Random(seed)
    for _ in range(count):
        path, other = chance.sample(PATHS, 2)
        operation = chance.choices(
            (
                partial(backend.aread, path),
                partial(backend.als, path.rpartition("/")[0]),
                partial(backend.awrite, path, f"text {chance.random()}\n" * 20, overwrite=True),
                partial(backend.aedit, path, "text", "words", True),
                partial(backend.adelete, path),
                partial(backend.acopy, path, other, overwrite=True),
                partial(backend.amove, path, other, overwrite=True),
                partial(backend.adownload_files, [path, other]),
                partial(backend.aupload_files, [(path, b"bytes\n" * 20)]),
                partial(backend.agrep, "words", path.rpartition("/")[0]),
            ),
            (40, 5, 12, 12, 5, 5, 5, 8, 7, 1),
        )
        await operation[0]()


def _measure() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"memory": pages * 4096, "files": len([*Path("/proc/self/fd").iterdir()])}


async def _main(name: str, place: str, count: int) -> None:
    made: Any = BACKENDS[name](place)
    for number in range(ROUNDS):
        async with anyio.create_task_group() as tasks:
            for task in range(AT_ONCE):
                tasks.start_soon(_work, made, count // ROUNDS // AT_ONCE, number * AT_ONCE + task)
        print(json.dumps(_measure()), flush=True)
    await made.aclose()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
