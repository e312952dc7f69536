"""The limits that an operator sets for commands hold, whatever the model asks for and whatever the command prints."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs import process
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.tools import filesystem_tools
from deepfs.policy import PermissionedBackend
from deepfs.process import Captured, Chunk, Command, Pipe, Stream, capture
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from deepfs.sandboxes.remote import Done, RemoteSandbox
from support.agents import Sandbox
from support.promises import keeps

pytestmark = pytest.mark.both_loops

TIMEOUT = 0.5
STOPPED = "its time of 0.5 s was up"
TOO_LONG = 3600.0

# --- the timeout of the operator is a ceiling ---

LAYERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda backend: backend,
    "rules": lambda backend: PermissionedBackend(backend, []),
    "composite": lambda backend: CompositeBackend(backend, {"/m/": MemoryBackend()}),
}


@pytest.mark.anyio
async def test_no_call_of_a_shell_gets_more_time_than_its_operator_set(tmp_path: Path) -> None:
    for layer in LAYERS:
        shell = LAYERS[layer](LocalShellBackend(tmp_path, timeout=TIMEOUT))
        response = await shell.aexecute("sleep 20", timeout=TOO_LONG)
        assert STOPPED in response.output
        assert response.exit_code is None
        assert "its time of 0.25 s was up" in (await shell.aexecute("sleep 20", timeout=0.25)).output


@pytest.mark.needs("BubblewrapSandbox")
@pytest.mark.anyio
async def test_no_command_in_a_box_gets_more_time_than_its_operator_set() -> None:
    async with BubblewrapSandbox(timeout=TIMEOUT) as box:
        assert STOPPED in (await box.aexecute("sleep 20", timeout=TOO_LONG)).output
        async with box.astream_execute("sleep 20", timeout=TOO_LONG) as run:
            async for _ in run:
                pass
        assert run.stopped == STOPPED


class Service(RemoteSandbox[None]):
    """A service that runs nothing and notes the seconds that it is asked for."""

    service = "Nothing"
    loop_bound = False

    def __init__(self, timeout: float) -> None:
        super().__init__(None, timeout=timeout)
        self.seconds: list[int] = []

    @property
    def id(self) -> str:
        return "nothing"

    async def _run(self, command: str, seconds: int, most: int) -> Done:
        self.seconds.append(seconds)
        return Done(b"", b"", None)

    async def _send(self, path: str, content: bytes) -> None: ...

    def _errors(self) -> tuple[type[Exception], ...]:
        return (OSError,)


@pytest.mark.anyio
async def test_no_command_in_a_service_gets_more_time_than_its_operator_set() -> None:
    service = Service(timeout=5)
    for timeout in (TOO_LONG, None, 1, 0.1):
        await service.aexecute("true", timeout=timeout)
    assert service.seconds == [5, 5, 1, 1]


def test_no_command_of_a_model_gets_more_time_than_its_operator_set(tmp_path: Path) -> None:
    *_, execute = filesystem_tools(LocalShellBackend(tmp_path, timeout=TIMEOUT))
    answer = execute.invoke({"command": "sleep 20", "timeout": TOO_LONG})
    assert answer == f"[No output]\n[Stopped after {TIMEOUT} s, the maximum. Do less at once]"


def test_the_tool_has_a_ceiling_of_its_own_for_backends_that_set_none() -> None:
    for given in [4000, 1e300, float("inf")]:
        sandbox = Sandbox()
        for tools in (
            filesystem_tools(sandbox),
            filesystem_tools(sandbox, max_execute_timeout=20),
            FilesystemMiddleware(sandbox, max_execute_timeout=10).tools,
        ):
            for timeout in (given, 3, 0):
                tools[-1].invoke({"command": "make", "timeout": timeout})
        assert sandbox.timeouts == [3600, 3, None, 20, 3, None, 10, 3, None]


# --- the limit of output counts all that is shown ---

FLOODS = {
    "newlines": b"\n" * 300_000,
    "short lines": b"a\n" * 100_000,
    "no UTF-8": b"\xff" * 300_000,
    "no UTF-8, in lines": b"\xff\n" * 300_000,
    "text": "\N{PILE OF POO}".encode() * 100_000,
    "one line": b"a" * 300_000,
}
NOTE_BYTES = 80
"""The room of a note of what is left out."""


async def shown(limit: int, *written: tuple[Stream, bytes]) -> tuple[str, bool]:
    captured = Captured(limit)
    for stream, data in written:
        for start in range(0, len(data), 65_536):
            await captured.add(Chunk(stream, data[start : start + 65_536]))
    return captured.text(), captured.truncated


@pytest.mark.anyio
async def test_no_output_exceeds_the_limit_of_its_bytes() -> None:
    for flood in FLOODS:
        for limit in [1, 100, 4_001, 100_000]:
            data = FLOODS[flood]
            cases: list[list[tuple[Stream, bytes]]] = [
                [("stderr", data)],
                [("stdout", data)],
                [("stdout", data), ("stderr", data)],
                [("stdout", b"out\n"), ("stderr", data)],
                [("stdout", data), ("stderr", b"err\n")],
            ]
            for written in cases:
                text, truncated = await shown(limit, *written)
                notes = len(written) * NOTE_BYTES
                assert truncated
                assert "left out" in text
                assert len(text.encode()) <= limit + notes
                if limit > 4_000:
                    assert len(text.encode()) > limit * 0.9, "the limit is used"


@keeps("Its output takes bounded memory")
@pytest.mark.anyio
async def test_a_command_that_floods_stderr_with_lines_is_within_its_limit(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path, max_output_bytes=10_000)
    response = await shell.aexecute("yes '' | head -n 50000 >&2")
    assert response.truncated
    assert len(response.output) <= 10_000 + NOTE_BYTES


# --- commands end, and leave nothing open ---

_MISSES_THE_FIRST = """
trap '' TERM; sleep 0.5; trap 'exit 7' TERM; i=0; while [ $i -lt 60 ]; do sleep 0.1; i=$((i+1)); done; echo end
"""


@pytest.mark.anyio
async def test_a_program_that_misses_the_signal_to_stop_gets_it_again() -> None:
    command = Command(["/bin/sh", "-c", _MISSES_THE_FIRST], timeout=0.1, stop=signal.SIGTERM)
    response = await capture(command, 1000)
    assert response.exit_code is None
    assert "end" not in response.output


def test_a_command_without_descriptors_for_its_output_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def pipe(stream: Stream) -> Pipe:
        if opened:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(Pipe(stream))
        return opened[0]

    monkeypatch.setattr(process, "Pipe", pipe)
    assert anyio.run(capture, Command(["/bin/true"]), 1000).exit_code == 126
    for descriptor in (opened[0].writer, opened[0]._fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
