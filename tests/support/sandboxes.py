"""Sandboxes that run processes of this machine without isolation; their files are accessed by commands only."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import sample
from typing import Final, TypeVar

import anyio.to_thread

from deepfs.process import Command, capture
from deepfs.sandboxes.base import BaseSandbox
from deepfs.types import ExecuteResponse

__all__ = ["WITH_PYTHON", "LocalSandbox", "busybox_tools", "raw_peek", "raw_put", "three_of"]

T = TypeVar("T")

WITH_PYTHON: Final = f"{os.defpath}:{Path(sys.executable).parent}"
"""The directories of the system's programs, and of `python3`, which the system may lack."""


class LocalSandbox(BaseSandbox):
    """A sandbox with the programs in the directories of `path`; counts its commands, and can delay them."""

    def __init__(
        self, root: Path, path: str = WITH_PYTHON, *, delay: float = 0, max_output_bytes: int = 100_000
    ) -> None:
        super().__init__(str(root))
        self.root = root
        self.commands = 0
        self.longest = 0
        self._path = path
        self._shell = "/bin/sh" if path == WITH_PYTHON else f"{path}/sh"
        self._delay = delay
        self._max_output_bytes = max_output_bytes

    @property
    def id(self) -> str:
        return f"local:{self.root}"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        self.commands += 1
        self.longest = max(self.longest, len(command))
        if self._delay:
            await anyio.sleep(self._delay)
        run = Command([self._shell, "-c", command], str(self.root), {"PATH": self._path}, timeout or 60)
        return await capture(run, self._max_output_bytes)


def busybox_tools(directory: Path) -> str:
    """A directory with the tools of busybox and nothing else."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["busybox", "--install", "-s", str(directory)], check=True, capture_output=True)
    return str(directory)


async def raw_put(root: Path, path: str, data: bytes) -> None:
    def put() -> None:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    await anyio.to_thread.run_sync(put)


async def raw_peek(root: Path, path: str) -> bytes | None:
    def peek() -> bytes | None:
        target = root / path.lstrip("/")
        return target.read_bytes() if target.is_file() else None

    return await anyio.to_thread.run_sync(peek)


def three_of(cases: Iterable[T]) -> list[T]:
    """Three random cases, in their order: commands are slow here, and all cases run where commands start fast."""
    listed = list(cases)
    return [listed[at] for at in sorted(sample(range(len(listed)), min(len(listed), 3)))]
