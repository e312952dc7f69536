"""Programs that gevent has patched: its greenlets call sync methods, and other code of the thread has no loop there."""

import subprocess
import sys
from pathlib import Path

import pytest

BACKENDS = {
    "memory": "MemoryBackend()",
    "disk": "FilesystemBackend(sys.argv[1])",
    "sqlite": "SqliteBackend(f'{sys.argv[1]}/files.db')",
    "store": "StoreBackend(InMemoryStore(), namespace=('files',))",
}
PROGRAM = """
from gevent import monkey
monkey.patch_all()
import asyncio, sys
import gevent
from langgraph.store.memory import InMemoryStore
from deepfs import FilesystemBackend, MemoryBackend, SqliteBackend, StoreBackend

async def answer():
    return 42

files = {backend}
files.write("/a.txt", "0 ").unwrap()
assert asyncio.run(answer()) == 42

def work(number):
    files.write(f"/{{number}}.txt", "text").unwrap()
    files.edit("/a.txt", " ", f"{{number}} ").unwrap()
    assert files.grep("text", f"/{{number}}.txt").unwrap()

gevent.joinall([gevent.spawn(work, number) for number in range(1, 9)], raise_error=True)
assert asyncio.run(answer()) == 42
assert sorted(files.read("/a.txt").file_data.content.strip()) == [*"012345678"]
"""


@pytest.mark.parametrize("kind", BACKENDS)
def test_greenlets_use_a_backend_and_other_code_has_no_loop(kind: str, tmp_path: Path) -> None:
    program = PROGRAM.format(backend=BACKENDS[kind])
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
