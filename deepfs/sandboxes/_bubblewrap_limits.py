"""What a sandbox may use."""

import atexit
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from secrets import token_hex
from tempfile import mkdtemp
from time import sleep

from msgspec import Struct

from deepfs.threads.deadline import Deadline

__all__ = ["Cgroup", "Limits", "is_beyond", "private_devices"]

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True):
    """What commands may use; bytes and seconds. `memory` and `processes` are for a command with all that it starts.

    Where the system has no control groups for us, `memory` is for each process. `cpu_seconds` and `file_size` are for
    each process and file; `workspace` and `temporary` for all files in the workspace, and in `/tmp` and shared memory.
    """

    memory: int = 1024 * _MEGABYTE
    processes: int = 128
    cpu_seconds: int = 120
    file_size: int = 256 * _MEGABYTE
    open_files: int = 1024
    workspace: int = 1024 * _MEGABYTE
    temporary: int = 64 * _MEGABYTE


_ROOT = "/sys/fs/cgroup"
_TRIES = 1000


class Cgroup:
    """The control groups of one command, in the first or the second version, as far as we may make them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._name = f"deepfs-{os.getpid()}-{token_hex(4)}"
        self._groups: list[str] = []

    def make(self) -> None:
        """Make the groups; blocks for a moment."""
        for parent, settings in _hierarchies(self._limits):
            with suppress(OSError):
                self._make(os.path.join(parent, self._name), settings)

    def _make(self, group: str, settings: dict[str, int]) -> None:
        os.mkdir(group)
        self._groups.append(group)
        for file in settings.keys() & set(os.listdir(group)):
            with open(os.path.join(group, file), "w") as setting:
                setting.write(str(settings[file]))

    @property
    def files(self) -> list[str]:
        """What a process writes its number into to join."""
        return [os.path.join(group, "cgroup.procs") for group in self._groups]

    @property
    def counts_memory(self) -> bool:
        """Whether one of the groups limits memory."""
        return self.holds("memory.max") or self.holds("memory.limit_in_bytes")

    def holds(self, file: str) -> bool:
        """Whether one of the groups has the limit `file`."""
        return any(os.path.exists(os.path.join(group, file)) for group in self._groups)

    def remove(self) -> None:
        """Remove the groups; what was killed may need a moment to be gone."""
        for group in self._groups:
            for _ in range(_TRIES):
                try:
                    os.rmdir(group)
                    break
                except OSError:
                    sleep(0.001)


def _hierarchies(limits: Limits) -> Iterator[tuple[str, dict[str, int]]]:
    """Where groups can be made, each with its settings."""
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        yield _ROOT, {"memory.swap.max": 0, "memory.max": limits.memory, "pids.max": limits.processes}
        return
    yield f"{_ROOT}/memory", {"memory.limit_in_bytes": limits.memory}
    yield f"{_ROOT}/pids", {"pids.max": limits.processes}


_NUMBERS = {"full": (1, 7), "null": (1, 3), "random": (1, 8), "tty": (5, 0), "urandom": (1, 9), "zero": (1, 5)}


@cache
def private_devices(sandbox: str) -> dict[str, str]:
    """The devices of one sandbox, by the name in /dev; they last as long as this process.

    The caller is root. Raises OSError where the temporary directory takes no devices.
    """
    directory = mkdtemp(prefix="deepfs-devices-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = {}
    for name, numbers in _NUMBERS.items():
        made[name] = os.path.join(directory, name)
        os.mknod(made[name], stat.S_IFCHR | 0o666, os.makedev(*numbers))
        os.chmod(made[name], 0o666)
    with open(made["null"], "wb"):  # Fails where the filesystem allows no devices.
        return made


_BLOCK = 512


def is_beyond(deadline: Deadline, directory: str, limit: int) -> bool:
    """Whether the files beneath `directory` take more than `limit` bytes of the disk; follows no link."""
    total = 0
    waiting = [directory]
    while waiting:
        deadline.check(directory)
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += _size(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
        if total > limit:
            return True
    return False


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * _BLOCK
    except OSError:
        return 0
