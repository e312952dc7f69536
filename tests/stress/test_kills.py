"""A process that changes files is killed at any moment: all files are whole, and the next operation works at once."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BackendProtocol
from support.counts import few_or_many
from support.processes import Process, started

# For each line of stdin, forks a process that changes files until it is killed: starting an interpreter would take
# longer than all the rest. The process has no threads when it forks.
SPAWNER = """
import os, sys
from deepfs.backends.filesystem import FilesystemBackend

def work(root):
    backend = FilesystemBackend(root)
    turn = 0
    assert backend.ls("/").ok
    print(os.getpid(), flush=True)
    while True:
        turn += 1
        tag = str(turn % 10)
        assert backend.write("/file.txt", tag * 1_000_000, overwrite=True).ok
        assert backend.edit("/file.txt", tag, "e", replace_all=True).ok
        backend.upload_files([("/file.txt", b"u" * 1_000_000), (f"/dir/{tag}.txt", b"d" * 50_000)])
        backend.copy("/file.txt", "/copy.txt", overwrite=True)
        backend.move("/copy.txt", f"/dir/moved-{tag}.txt", overwrite=True)
        backend.write(f"/new/{turn}/file.txt", "n" * 50_000)
        backend.delete("/new")

for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        work(sys.argv[1])
    os.waitpid(child, 0)
    print("ended", flush=True)
"""

TAGS = {*"0123456789", "e", "u"}


def killed_after(spawner: Process, seconds: float) -> None:
    """Start a process, and kill it this long after its first operation."""
    assert spawner.stdin is not None
    assert spawner.stdout is not None
    spawner.stdin.write("go\n")
    spawner.stdin.flush()
    child = int(spawner.stdout.readline())
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert spawner.stdout.readline() == "ended\n"


def check_whole(backend: BackendProtocol, root: Path) -> None:
    """Every file is one complete version, and no unfinished file is visible."""
    seen = [entry.path for entry in backend.glob("**").matches or ()]
    for path in seen:
        content = (root / path[1:]).read_text()
        size = 1_000_000 if path in ("/file.txt", "/copy.txt") or "moved" in path else 50_000
        assert len(content) == size, path
        assert len(set(content)) == 1, path
    listed = {entry.path for directory in ("/", "/dir") for entry in backend.ls(directory).entries or ()}
    assert not [path for path in listed | set(seen) if "~" in path]
    assert backend.glob("**/.*").matches == []
    assert backend.glob(".*").matches == []
    assert backend.grep("", glob="**/.*").matches == []


def check_works(backend: BackendProtocol) -> None:
    """The next operations work: they do not wait for the killed process for ever."""
    content = backend.download_files(["/file.txt"])[0].content
    assert content is not None
    tag = content[:1].decode()
    assert tag in TAGS
    assert backend.edit("/file.txt", tag * 1_000_000, "e" * 999_999 + "u" if tag == "e" else "e" * 1_000_000).ok
    assert backend.write("/file.txt", "0" * 1_000_000, overwrite=True).ok
    backend.delete("/new")


@pytest.mark.parametrize("kills", few_or_many(25, 1_000, seconds=1_800))
def test_a_process_killed_at_any_moment_leaves_whole_files(tmp_path: Path, kills: int) -> None:
    backend = FilesystemBackend(tmp_path)
    assert backend.write("/file.txt", "0" * 1_000_000).ok
    assert backend.write("/dir/0.txt", "d" * 50_000).ok
    with started(SPAWNER, tmp_path) as spawner:
        for _ in range(kills):
            killed_after(spawner, random.uniform(0, 0.03))
            check_whole(backend, tmp_path)
            check_works(backend)
