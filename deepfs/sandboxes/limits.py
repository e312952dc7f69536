"""What commands may use of this machine: control groups count memory and processes; files are measured."""

import os
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from time import sleep

from msgspec import Struct

from deepfs.threads.deadline import Deadline

__all__ = ["Cgroup", "Limits", "is_beyond"]

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True):
    """Limits of commands, in bytes and seconds. `memory` and `processes` apply to a command with all that it starts.

    If no control groups can be made, `memory` applies to each process. `cpu_seconds` and `file_size` apply to each
    process and file; `workspace` to all files in the workspace, `temporary` to those in `/tmp` and shared memory.
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
    """The control groups of one command (cgroups v1 or v2), as far as this process may make them.

    Args:
        limits: The limits that the groups enforce.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._name = f"deepfs-{os.getpid()}-{token_hex(4)}"
        self._groups: list[str] = []

    def make(self) -> None:
        """Make the groups. Blocks for a moment."""
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
        """The files to which a process writes its PID to join the groups."""
        return [os.path.join(group, "cgroup.procs") for group in self._groups]

    @property
    def counts_memory(self) -> bool:
        """Whether one of the groups limits memory."""
        return self.holds("memory.max") or self.holds("memory.limit_in_bytes")

    def holds(self, file: str) -> bool:
        """Whether one of the groups enforces a limit.

        Args:
            file: The name of the file that sets the limit, such as `pids.max`.
        """
        return any(os.path.exists(os.path.join(group, file)) for group in self._groups)

    def remove(self) -> None:
        """Remove the groups; retry while killed processes are still ending."""
        for group in self._groups:
            for _ in range(_TRIES):
                try:
                    os.rmdir(group)
                    break
                except OSError:
                    sleep(0.001)


def _hierarchies(limits: Limits) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the parent directories of the groups, each with the settings of its group."""
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        yield _ROOT, {"memory.swap.max": 0, "memory.max": limits.memory, "pids.max": limits.processes}
        return
    yield f"{_ROOT}/memory", {"memory.limit_in_bytes": limits.memory}
    yield f"{_ROOT}/pids", {"pids.max": limits.processes}


_BLOCK = 512


def is_beyond(deadline: Deadline, directory: str, limit: int) -> bool:
    """Whether the files beneath `directory` take more than `limit` bytes of the disk. Does not follow symlinks."""
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
