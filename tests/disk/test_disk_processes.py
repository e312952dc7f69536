"""Concurrent changes by several processes, and changes by processes that are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from deepfs.disk import Disk

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


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    disk.write_file("/file", b"old")
    process = start(HOLDER, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    kill(process)
    disk.edit_file("/file", bytes.upper)
    assert disk.read_file("/file")[0] == b"OLD"
