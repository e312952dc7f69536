"""Control groups for one command: memory and processes of all that it starts, counted together."""

import os
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from time import sleep

from deepfs.backends._bubblewrap.limits import Limits

__all__ = ["Cgroup"]

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
