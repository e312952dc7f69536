"""LocalShellBackend: a timeout or cancellation ends the whole process group of a command; output is bounded."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import supports_execute
from deepfs.errors import InvalidPathError
from deepfs.process import MAX_COMMANDS
from deepfs.testing.suite import gather
from deepfs.types import ExecuteResponse
from support.processes import appeared, gone, pause
from support.waiting import until_tasks_wait

__all__ = ["pause"]

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def shell(tmp_path: Path) -> LocalShellBackend:
    return LocalShellBackend(tmp_path)


# --- output -----------------------------------------------------------------------------------------------------------


async def test_a_command_returns_its_output_and_exit_code(shell: LocalShellBackend) -> None:
    assert supports_execute(shell)
    assert await shell.aexecute("echo out; exit 3") == ExecuteResponse("out\n", 3, False)
    response = await shell.aexecute("echo bad >&2; printf good; printf 'worse\\nworst' >&2")
    assert response.output == "good\n[stderr] bad\n[stderr] worse\n[stderr] worst\n", (
        "errors are marked, and at the end"
    )
    with anyio.fail_after(20):
        assert await shell.aexecute("cat; echo end") == ExecuteResponse("end\n", 0), "its input is empty"


async def test_long_output_keeps_its_head_and_tail(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path, max_output_bytes=1000)
    response = await shell.aexecute("echo first; seq 100000; echo last; echo error >&2")
    assert response.truncated
    assert response.output.startswith("first\n1\n2\n")
    assert response.output.endswith("100000\nlast\n[stderr] error\n")
    assert "bytes left out" in response.output
    assert len(response.output) < 1200


async def test_output_is_cut_between_characters(tmp_path: Path) -> None:
    for size in range(96, 106):
        shell = LocalShellBackend(tmp_path, max_output_bytes=size)
        response = await shell.aexecute("i=0; while [ $i -lt 200 ]; do printf 'aé€😀'; i=$((i+1)); done")
        assert (response.truncated, "\ufffd" in response.output) == (True, False), size


# --- timeouts, cancellation and background processes ------------------------------------------------------------------


async def test_the_whole_process_group_ends_at_the_timeout(shell: LocalShellBackend, pause: str) -> None:
    response = await shell.aexecute(f"echo begun; sleep {pause} & sleep {pause}", timeout=1)
    assert response.exit_code is None
    assert response.output.startswith("begun\n")
    assert "1 s" in response.output
    assert await gone(pause)


async def test_the_whole_process_group_ends_on_cancellation(shell: LocalShellBackend, pause: str) -> None:
    with anyio.move_on_after(0.3) as scope:
        await shell.aexecute(f"sleep {pause} & sleep {pause}")
    assert scope.cancelled_caught
    assert await gone(pause)


async def test_a_command_cancelled_while_it_starts_is_ended(shell: LocalShellBackend, pause: str) -> None:
    for turns in range(12):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shell.aexecute, f"sleep {pause}")
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(turns / 4000)
            tasks.cancel_scope.cancel()
        assert await gone(pause), turns


async def test_a_background_child_does_not_delay_the_result(shell: LocalShellBackend, pause: str) -> None:
    response = await shell.aexecute(f"sleep {pause} & echo started")
    assert response == ExecuteResponse("started\n", 0)
    assert await appeared(pause), "it lives on"


async def test_all_output_before_the_end_of_the_command_is_returned(shell: LocalShellBackend) -> None:
    for _ in range(20):
        response = await shell.aexecute("sleep 2.0625 & seq 8000; echo last")
        assert response.output.endswith("8000\nlast\n")
        assert response.output.count("\n") == 8001


async def test_a_command_that_cannot_start_gives_exit_code_126(shell: LocalShellBackend) -> None:
    response = await shell.aexecute(f"echo {'x' * 300_000}")
    assert response.exit_code == 126
    assert "cannot be started" in response.output


# --- concurrency ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fifos(tmp_path: Path) -> Iterator[list[int]]:
    """FIFOs, open for reading and writing, so that neither side waits for the other."""
    with ExitStack() as stack:
        opened = []
        for number in range(MAX_COMMANDS + 6):
            os.mkfifo(tmp_path / f"fifo{number}")
            opened.append(os.open(tmp_path / f"fifo{number}", os.O_RDWR))
            stack.callback(os.close, opened[-1])
        yield opened


async def test_concurrent_commands_are_bounded_and_first_come_first_served(tmp_path: Path, fifos: list[int]) -> None:
    """Each command runs until it is told to end, so that the order is not that of the scheduler."""
    shell, log = LocalShellBackend(tmp_path), anyio.Path(tmp_path / "log")
    await log.touch()

    async def run(number: int) -> None:
        assert (await shell.aexecute(f"echo {number} >> log; read line < fifo{number}")).exit_code == 0

    async def begun(expected: int) -> list[int]:
        for _ in range(6000):
            numbers = (await log.read_text()).split()
            if len(numbers) >= expected:
                break
            await anyio.sleep(0.005)
        return [int(number) for number in numbers]

    async with anyio.create_task_group() as tasks:
        for number in range(len(fifos)):
            tasks.start_soon(run, number)
            await until_tasks_wait()
        first = await begun(MAX_COMMANDS)
        assert sorted(first) == list(range(MAX_COMMANDS))
        later = range(MAX_COMMANDS, len(fifos))
        for number, fifo in enumerate(fifos):
            await anyio.to_thread.run_sync(os.write, fifo, b"end\n")
            expected = [*first, *later[: number + 1]]
            assert await begun(len(expected)) == expected


async def test_long_commands_of_one_backend_do_not_hold_up_another(tmp_path: Path) -> None:
    busy, other = LocalShellBackend(tmp_path / "busy"), LocalShellBackend(tmp_path / "other")
    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_COMMANDS + 1):
            tasks.start_soon(busy.aexecute, "sleep 100.375")
        await until_tasks_wait()
        with anyio.fail_after(60):
            assert (await other.aexecute("echo")).output == "\n"
        tasks.cancel_scope.cancel()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_no_descriptor_is_left_open(shell: LocalShellBackend) -> None:
    await shell.aexecute("true")
    before = await anyio.to_thread.run_sync(descriptors)
    await gather(partial(shell.aexecute, "echo x; sleep 0.01 &") for _ in range(40))
    with anyio.move_on_after(0.05):
        await shell.aexecute("sleep 9")
    assert await anyio.to_thread.run_sync(descriptors) <= before


# --- streams ----------------------------------------------------------------------------------------------------------


async def test_output_is_streamed_while_the_command_runs(shell: LocalShellBackend, pause: str) -> None:
    seen = []
    async with shell.astream_execute(
        f"echo one; echo two >&2; sleep {pause} & while [ ! -e go ]; do sleep 0.01; done"
    ) as run:
        async for chunk in run:
            seen.append((chunk.stream, chunk.text))
            if len(seen) == 2:
                await shell.awrite("/go", "")
    assert sorted(seen) == [("stderr", "two\n"), ("stdout", "one\n")]
    assert (run.exit_code, run.stopped) == (0, None)


async def test_leaving_the_stream_ends_the_command(shell: LocalShellBackend, pause: str) -> None:
    async with shell.astream_execute(f"while :; do echo more; sleep 0.001; done; echo {pause}") as run:
        async for chunk in run:
            assert chunk.text.startswith("more\n")
            break
    assert await gone(pause)


# --- files and environment --------------------------------------------------------------------------------------------


async def test_an_error_in_the_block_of_a_stream_stays_as_it_is(shell: LocalShellBackend) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with shell.astream_execute("sleep 100.125"):
            raise LookupError("mine")


async def test_a_stream_of_a_command_that_cannot_be_started_fails(shell: LocalShellBackend) -> None:
    with pytest.raises(OSError, match="too long"):
        async with shell.astream_execute("echo " + "x" * 200_000):
            await anyio.sleep_forever()  # As for a server that the command would start.


async def test_commands_and_file_operations_see_the_same_files(shell: LocalShellBackend) -> None:
    await shell.awrite("/dir/a.txt", "one\n")
    assert (await shell.aexecute("cat dir/a.txt; echo two > dir/b.txt")).output == "one\n"
    assert (await shell.aread("/dir/b.txt")).unwrap().content == "two\n"


async def test_host_paths_and_virtual_paths_are_converted_both_ways(shell: LocalShellBackend, tmp_path: Path) -> None:
    printed = (await shell.aexecute("pwd")).output.strip()
    assert shell.virtual_path(printed) == "/"
    assert shell.host_path("/dir/a.txt") == os.path.join(printed, "dir/a.txt")
    assert shell.virtual_path(os.path.join(printed, "dir/a.txt")) == "/dir/a.txt"
    assert shell.virtual_path("dir/a.txt") == "/dir/a.txt"
    for outside in ("/etc/passwd", "..", "../x", f"{printed}-sibling"):
        with pytest.raises(InvalidPathError):
            shell.virtual_path(outside)
