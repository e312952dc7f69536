"""Machines for the services: a directory of this machine, with bubblewrap around each command."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio.to_thread
from msgspec import Struct

from deepfs.sandboxes.bubblewrap import bubblewrap_program

__all__ = ["Machine", "Outcome", "Program"]

_WRITABLE: Final = "/tmp"
_BOX: Final = ("--cap-drop", "ALL", "--die-with-parent", "--chdir", "/")
_SEEN: Final = ("--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev")
_SIGNALLED: Final = 128


class Outcome(Struct, frozen=True):
    """The output of a program, and how it ended: by exit, by a signal, or at the timeout."""

    stdout: bytes
    stderr: bytes
    code: int
    signal: int = 0
    is_late: bool = False


class Program:
    """A program that runs in bubblewrap."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid: int = process.pid
        self._process = process

    async def wait(self, seconds: float | None = None) -> Outcome:
        """Wait for the end of the program, and kill it after `seconds`."""
        return await anyio.to_thread.run_sync(self._wait, seconds)

    def _wait(self, seconds: float | None) -> Outcome:
        late = False
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
            self.kill()
            out, err = self._process.communicate()
        code = self._process.returncode
        # Bubblewrap reports signals as shells do; the code is negative if bubblewrap itself was killed.
        number = -code if code < 0 else max(code - _SIGNALLED, 0)
        return Outcome(out, err or b"", 0 if number else code, number, late)

    def kill(self) -> None:
        """Kill the program and its descendants, unless it has ended."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)


class Machine:
    """A directory that programs see as `/tmp`; they run without privileges and can write nowhere else."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._env = dict(env or {})
        self._started: list[Program] = []

    def at(self, path: str) -> Path:
        """The file of this machine that programs see as `path`."""
        return self.directory / Path(path).relative_to(_WRITABLE)

    async def read(self, path: str) -> bytes:
        """The content of the file that programs see as `path`."""
        return await anyio.to_thread.run_sync(self.at(path).read_bytes)

    async def write(self, path: str, content: bytes) -> None:
        """Write the file that programs see as `path`."""
        await anyio.to_thread.run_sync(self.at(path).write_bytes, content)

    async def check(self) -> None:
        """Fail at once if no program can be started: a client of the service would wait long for that."""
        outcome = await (await self.start("sh", "-c", "exit 7")).wait(10)
        assert outcome.code == 7, outcome.stderr.decode(errors="replace")

    async def start(self, *command: str, stderr: int = subprocess.PIPE) -> Program:
        """Start a program."""

        def start() -> Program:
            bubblewrap = bubblewrap_program()
            assert bubblewrap is not None, "these tests need bubblewrap"
            box = [bubblewrap, *_BOX, *_SEEN, "--bind", str(self.directory), _WRITABLE, *command]
            process = subprocess.Popen(
                box,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={"PATH": os.defpath, **self._env},
                start_new_session=True,
            )
            program = Program(process)
            self._started.append(program)
            return program

        return await anyio.to_thread.run_sync(start)

    def stop(self) -> None:
        """Kill the programs that still run."""
        for program in self._started:
            program.kill()
