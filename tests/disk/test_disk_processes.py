"""Concurrent changes by several processes, and changes by processes that are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepfs.disk import Disk, is_temporary
from support.promises import keeps

EDITOR = """
import sys
from deepfs.disk import Disk
from support.disks import when_free

root, name, edits = sys.argv[1], sys.argv[2], int(sys.argv[3])
disk = Disk(root)
for number in range(edits):
    when_free(disk.edit_file, "/log", lambda data: data + f"{name}-{number}\\n".encode())
    print(f"{name}-{number}")
"""

CREATOR = """
import sys
from deepfs.disk import Disk
from deepfs.errors import AlreadyExistsError

disk = Disk(sys.argv[1])
for number in range(int(sys.argv[3])):
    try:
        disk.write_file(f"/new/{number}", sys.argv[2].encode())
    except AlreadyExistsError:
        continue
    print(number)
"""

WRITER = """
import sys
from deepfs.disk import Disk

disk = Disk(sys.argv[1])
print("ready", flush=True)
while True:
    for number in range(8):
        disk.write_file("/file", bytes([number]) * 200_000, overwrite=True)
        disk.edit_file("/file", lambda data: data[::-1])
"""

HOLDER = """
import sys, time
from deepfs.disk import Disk

def hang(data):
    print("held", flush=True)
    time.sleep(60)
    return data

Disk(sys.argv[1]).edit_file("/file", hang)
"""


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def outcomes(script: str, root: Path, processes: int, count: int) -> list[str]:
    """Run `script` in several concurrent processes, check that all succeed, and return the lines that they print."""
    running = [start(script, root, name, count) for name in range(processes)]
    printed = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return [line for lines in printed for line in lines]


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@keeps("Edits hold across processes that use deepfs.")
@pytest.mark.parametrize("edits", [50, pytest.param(2_000, marks=pytest.mark.stress)])
def test_every_successful_edit_is_in_the_file(tmp_path: Path, edits: int) -> None:
    (tmp_path / "log").write_bytes(b"")
    succeeded = outcomes(EDITOR, tmp_path, 4, edits)
    assert len(succeeded) == 4 * edits
    assert sorted((tmp_path / "log").read_text().split()) == sorted(succeeded)
    assert os.listdir(tmp_path) == ["log"]


def test_of_several_concurrent_creations_one_succeeds(tmp_path: Path) -> None:
    succeeded = outcomes(CREATOR, tmp_path, 4, 100)
    assert sorted(succeeded, key=int) == [str(number) for number in range(100)]


@pytest.mark.parametrize("kills", [10, pytest.param(300, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])])
def test_a_writer_killed_at_any_moment_leaves_a_complete_file(tmp_path: Path, kills: int) -> None:
    disk = Disk(str(tmp_path))
    disk.write_file("/file", bytes(200_000))
    whole = {bytes([number]) * 200_000 for number in range(8)}
    for number in range(kills):
        process = start(WRITER, tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.002 + 0.013 * (number % 7) / 7)
        kill(process)
        assert disk.read_file("/file")[0] in whole
        disk.edit_file("/file", lambda data: data[::-1])
        assert [entry.path for entry in disk.list_directory("/").entries] == ["/file"]
        left = [name for name in os.listdir(tmp_path) if name != "file"]
        assert all(map(is_temporary, left))


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    disk.write_file("/file", b"old")
    process = start(HOLDER, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    kill(process)
    disk.edit_file("/file", bytes.upper)
    assert disk.read_file("/file")[0] == b"OLD"
