"""Small file systems for tests: mounted here or, without the privilege, in a namespace of their own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "bound", "small_disk"]


class SmallDisk:
    """A mounted file system; `path` is its path as seen by this process."""

    def __init__(self, shell: "subprocess.Popen[str]", mount_point: Path, path: Path) -> None:
        self._shell = shell
        self._mount_point = mount_point
        self.path = path

    def remount(self, options: str) -> None:
        """Change the options of the mount, such as `ro`."""
        assert _output_and_status(self._shell, f"mount -o remount,bind,{options} '{self._mount_point}'") == "0"

    def fill(self) -> Path:
        """Use up the space; returns the file that takes it."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue
        return filler


@contextmanager
def small_disk(mount_point: Path, options: str) -> Iterator[SmallDisk]:
    """A tmpfs with these mount options; the test fails with the reason if it cannot be mounted."""
    mount_point.mkdir()
    reasons = []
    for command, prefix in ((["sh"], ""), (["unshare", "--user", "--map-root-user", "--mount", "sh"], "/proc/{}/root")):
        with _shell(command) as shell:
            told = _output_and_status(shell, f"mount -t tmpfs -o {options} tmpfs '{mount_point}' 2>&1")
            if told == "0":
                try:
                    yield SmallDisk(shell, mount_point, Path(f"{prefix.format(shell.pid)}{mount_point}"))
                finally:
                    # Lazily, since an open file would keep the mount busy.
                    _output_and_status(shell, f"umount -l '{mount_point}'")
                return
            reasons.append(f"{' '.join(command)}: {told}")
    pytest.fail(f"no file system can be mounted here, neither by this user nor in a namespace of its own: {reasons}")


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
