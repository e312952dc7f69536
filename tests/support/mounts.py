"""Mounts for tests, in a namespace of their own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["bound"]


@contextmanager
def bound(directory: Path, mount_point: Path, seen: Path) -> Iterator[Path]:
    """Mount `directory` at `mount_point` as well, in a separate namespace; yields the path of `seen` there."""
    is_root = os.geteuid() == 0
    with _shell(["unshare", *([] if is_root else ["--user", "--map-root-user"]), "--mount", "sh"]) as shell:
        told = _output_and_status(shell, f"mount --bind '{directory}' '{mount_point}' 2>&1")
        if told != "0":
            pytest.fail(f"no directory can be mounted here: {told}")
        yield Path(f"/proc/{shell.pid}/root{seen}")


@contextmanager
def _shell(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as shell:
        try:
            yield shell
        finally:
            shell.kill()


def _output_and_status(shell: "subprocess.Popen[str]", command: str) -> str:
    """The output of a command, followed by its status."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    with suppress(BrokenPipeError):
        shell.stdin.write(f'{command}; echo "$?"; echo END\n')
        shell.stdin.flush()
    lines = []
    while (line := shell.stdout.readline()) not in ("", "END\n"):
        lines.append(line)
    return "".join(lines).strip()
