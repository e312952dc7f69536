"""What commands may use of this machine: their limits, and the control groups that count memory and processes."""

import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from secrets import token_hex
from time import sleep
from typing import Final

from msgspec import Struct

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True):
    """Limits of commands, in bytes and seconds. `memory` and `processes` apply to a command with all that it starts.

    If no control groups can be made, `memory` applies to the data of each process, without memory that processes share;
    results then have `"memory"` in `not_enforced`. `cpu_seconds` and `file_size` apply to each process and file;
    `workspace` to all files in the workspace, those that commands and file operations write; `temporary` to those in
    `/tmp` and shared memory.
    """

    memory: int = 1024 * _MEGABYTE
    processes: int = 128
    cpu_seconds: int = 120
    file_size: int = 256 * _MEGABYTE
    open_files: int = 1024
    workspace: int = 1024 * _MEGABYTE
    temporary: int = 64 * _MEGABYTE


# --- where groups can be made ---

_ROOT: Final = "/sys/fs/cgroup"
_CONTROLLERS: Final = ("memory", "pids")


class GroupHome(Struct, frozen=True):
    """A directory of control groups in which this process may make groups."""

    directory: str
    controllers: tuple[str, ...]
    """Those that count in groups made here: `memory`, `pids` or both."""
    is_unified: bool
    """Whether the groups are of cgroups v2."""

    def settings(self, limits: Limits) -> Iterator[tuple[str, int]]:
        """The files of a group made here and their values. Not every kernel has the files about swap."""
        if "memory" in self.controllers and self.is_unified:
            yield from ((_MEMORY[0], limits.memory), ("memory.swap.max", 0))
        elif "memory" in self.controllers:
            yield from ((_MEMORY[1], limits.memory), ("memory.memsw.limit_in_bytes", limits.memory))
        if "pids" in self.controllers:
            yield _PIDS, limits.processes

    @property
    def entrance(self) -> str:
        """The file of a group to which a process without threads writes `0` to join.

        In cgroups v1 that moves a thread, since moving a process waits for all processors.
        """
        return "cgroup.procs" if self.is_unified else "tasks"


_MEMORY: Final = ("memory.max", "memory.limit_in_bytes")
_PIDS: Final = "pids.max"


def group_homes(root: str, membership: str) -> list[GroupHome]:
    """Where a process may make control groups that limit memory and processes.

    In cgroups v1 that is its own group of each controller, so that the limits of that group hold as well. In cgroups v2
    a group that limits its children holds no processes itself, so it is the nearest ancestor that limits its children.
    There is at most one directory for each controller; those of cgroups v1 come first.

    `root` is where the control groups are mounted, `membership` the content of `/proc/self/cgroup`.
    """
    groups: dict[str, str] = {}
    """The path of the group of each controller of cgroups v1, and that of cgroups v2 for the empty name."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    homes = [home for name in _CONTROLLERS if name in groups and (home := _home_v1(root, name, groups[name]))]
    missing = [name for name in _CONTROLLERS if name not in groups]
    unified = _home_v2(root, groups[""], missing) if "" in groups and missing else None
    return [*homes, unified] if unified else homes


def _home_v1(root: str, controller: str, path: str) -> GroupHome | None:
    top = os.path.join(root, controller)
    own = os.path.join(top, path.strip("/"))
    # In a container, the path may be that of the machine, where the hierarchy of the container is mounted.
    directory = own if os.path.isdir(own) else top
    return GroupHome(directory, (controller,), False) if _may_make(directory) else None


def _home_v2(root: str, path: str, wanted: Sequence[str]) -> GroupHome | None:
    top = next((at for at in (root, f"{root}/unified") if os.path.exists(f"{at}/cgroup.controllers")), None)
    names = [name for name in path.split("/") if name]
    if top is None or ".." in names:  # It lies outside of what this process sees.
        return None
    upwards = [os.path.join(top, *names[:count]) for count in range(len(names), -1, -1)]
    found = {directory: _enabled_controllers(directory, wanted) for directory in upwards if _may_make(directory)}
    best = max(found, key=lambda directory: len(found[directory]), default=None)  # The first, which is the nearest.
    return GroupHome(best, found[best], True) if best and found[best] else None


def _enabled_controllers(directory: str, wanted: Sequence[str]) -> tuple[str, ...]:
    try:
        with open(f"{directory}/cgroup.subtree_control") as file:
            enabled = file.read().split()
    except OSError:
        return ()
    return tuple(name for name in wanted if name in enabled)


def _may_make(directory: str) -> bool:
    """Whether this process may make groups in `directory`, and move processes of its own into them."""
    effective = os.access in os.supports_effective_ids
    return os.access(directory, os.W_OK, effective_ids=effective) and os.access(
        f"{directory}/cgroup.procs", os.W_OK, effective_ids=effective
    )


# --- the groups of one command ---

_TRIES: Final = 1000


class Cgroup:
    """The control groups of one command, as far as this process may make them. The methods block for a moment.

    The groups enforce `limits`, and are made in `homes`; None for where this process may.
    """

    def __init__(self, limits: Limits, homes: Sequence[GroupHome] | None = None) -> None:
        self._limits = limits
        self._homes = homes
        self._groups: list[tuple[str, GroupHome]] = []
        self._enforced: set[str] = set()

    def make(self) -> None:
        """Make the groups."""
        name = f"deepfs-{os.getpid()}-{_pid_namespace()}-{token_hex(4)}"
        for home in _homes_of(os.getpid()) if self._homes is None else self._homes:
            group = os.path.join(home.directory, name)
            try:
                os.mkdir(group)
            except OSError:
                continue
            self._groups.append((group, home))
            for file, value in home.settings(self._limits):
                path = os.path.join(group, file)
                with suppress(OSError):
                    if os.path.exists(path):
                        _write_text(path, str(value))
                        self._enforced.add(file)

    @property
    def entrances(self) -> list[str]:
        """The files to which a process without threads writes `0` to join the groups."""
        return [os.path.join(group, home.entrance) for group, home in self._groups]

    @property
    def counts_memory(self) -> bool:
        """Whether one of the groups limits memory."""
        return not self._enforced.isdisjoint(_MEMORY)

    @property
    def counts_processes(self) -> bool:
        """Whether one of the groups limits processes."""
        return _PIDS in self._enforced

    def processes_of(self, pid: int) -> list[int]:
        """The processes of the command. `pid` is the one that started it, which is used if there are no groups."""
        return _members(self._groups[0][0]) if self._groups else _processes_beneath(pid)

    def remove(self) -> None:
        """Kill the processes in the groups, and remove the groups."""
        for group, _ in self._groups:
            for _ in range(_TRIES):
                if _try_remove(group):
                    break
                _kill(group)
                sleep(0.001)


def _write_text(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _try_remove(group: str) -> bool:
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _members(group: str) -> list[int]:
    """The PIDs in a group; 0 stands for processes that this process cannot see, and is left out."""
    try:
        with open(f"{group}/cgroup.procs") as file:
            return [int(line) for line in file if int(line) > 0]
    except OSError:
        return []


def _kill(group: str) -> None:
    """Kill what is in a group."""
    try:
        _write_text(f"{group}/cgroup.kill", "1")
    except OSError:
        for pid in _members(group):
            with suppress(OSError):
                process = os.pidfd_open(pid)
                try:
                    if pid in _members(group):  # The PID was not reused meanwhile.
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)


# --- groups that are left behind ---


@cache
def _homes_of(process: int) -> list[GroupHome]:
    """The directories in which this process makes groups. Groups that killed processes left there are removed.

    `process` is the PID of this process, so that a fork looks anew.
    """
    try:
        with open("/proc/self/cgroup") as file:
            homes = group_homes(_ROOT, file.read())
    except OSError:
        return []
    for home in homes:
        with suppress(OSError):  # Its group was removed meanwhile, or may not be listed.
            _sweep(home.directory, process)
    return homes


def _pid_namespace() -> int:
    """The number of the PID namespace of this process: PIDs of different containers may be the same."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


_NAME: Final = re.compile(r"deepfs-(\d+)-(\d+)-[0-9a-f]+")


def _sweep(directory: str, process: int) -> None:
    """Remove the groups of processes that ended without doing so. Their commands ended with them."""
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) != _pid_namespace():
            continue
        owner = int(match[1])  # It may have had the PID of this process.
        if owner == process or not os.path.exists(f"/proc/{owner}"):
            _try_remove(os.path.join(directory, name))


# --- files that are open and have no name ---

_BLOCK: Final = 512


def held_bytes(pids: Iterable[int], device: int) -> int:
    """The bytes that unlinked files take on a device because processes have them open.

    Raises PermissionError if a process hides which files it has open.
    """
    found = {
        status.st_ino: status.st_blocks
        for pid in pids
        for status in _open_files(pid)
        if status.st_nlink == 0 and status.st_dev == device
    }
    return sum(found.values()) * _BLOCK


def _open_files(pid: int) -> Iterator[os.stat_result]:
    """The status of what each thread of a process has open; threads may have descriptors of their own."""
    for thread in _names(f"/proc/{pid}/task"):
        directory = f"/proc/{pid}/task/{thread}"
        try:
            for name in _names(f"{directory}/fd"):
                with suppress(FileNotFoundError, ProcessLookupError):  # Closed meanwhile.
                    yield os.stat(f"{directory}/fd/{name}")
        except PermissionError:
            if _has_memory(directory):
                raise


def _has_memory(thread: str) -> bool:
    """Whether a thread is not about to end. One that ends has no memory any more, and shows its files to nobody."""
    try:
        with open(f"{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[_SIZE_OF_MEMORY] != b"0"
    except OSError:
        return False


_SIZE_OF_MEMORY: Final = 20
"""Where `stat` has it, counted from the state of the process; see proc(5)."""


def _names(directory: str) -> list[str]:
    """The names in a directory of /proc; none if the process has ended. Raises PermissionError."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _processes_beneath(pid: int) -> list[int]:
    """The PIDs of a process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, ()))
    return found
