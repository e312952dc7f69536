"""What commands of a LandlockSandbox reach of the machine, tried from within by an account that may do it elsewhere.

The sandbox does not work for root, so programs as another account make it. Each runs several commands, as it starts
slowly.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio.to_thread
import pytest

from deepfs.errors import NotSupportedError
from deepfs.sandboxes import landlock
from deepfs.sandboxes.bubblewrap import bubblewrap_program
from deepfs.sandboxes.landlock import LandlockSandbox
from support.accounts import ACCOUNTS, IMPORTS, ordinary_interpreter, output_as
from support.processes import gone, pause
from support.promises import keeps
from support.system_calls import CALLED, EVERY_CALL, NUMBERS, wrongly_allowed

__all__ = ["pause"]

pytestmark = [pytest.mark.anyio, pytest.mark.needs("LandlockSandbox")]

_IMPORTS: Final = f"{IMPORTS}\nsys._base_executable = {ordinary_interpreter()!r}\n"
_RUN: Final = """
async def main():
    given, commands = map(json.loads, sys.argv[1:])
    if "limits" in given:
        given["limits"] = Limits(**given["limits"])
    async with LandlockSandbox(**given) as box:
        found = []
        for command in commands:
            response = await box.aexecute(command.replace("{pid}", str(os.getpid())))
            found.append([response.exit_code, response.output])
        print(json.dumps(found))
anyio.run(main)
"""
_ACCOUNT: Final = ACCOUNTS[-1]

Outcome = tuple[int | None, str]
"""The exit code of a command, and its output."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def run(*commands: str, **options: Any) -> list[Outcome]:
    """Run the commands, one after another, in one sandbox with these options. `{pid}` is the process of the sandbox."""
    printed = output_as(_ACCOUNT, _RUN, json.dumps(options), json.dumps(commands), imports=_IMPORTS)
    return [(code, output) for code, output in json.loads(printed)]


def in_python(source: str) -> str:
    return f"python3 - <<'END'\n{source}\nEND"


# --- files of the machine ---


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A directory that every account may change, with a file in it that every account may change."""
    with TemporaryDirectory(dir="/tmp", prefix="outside-") as directory:
        os.chmod(directory, 0o777)
        file = Path(directory, "file")
        file.write_text("the secret of the host")
        file.chmod(0o666)
        with suppress(OSError):  # Not every file system has attributes.
            os.setxattr(file, "user.secret", b"the secret of the host")
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
        yield Path(directory)


READ = (
    *("cat /etc/passwd", "ls /", "ls /tmp", "ls /home", "ls /run", "ls /sys", "ls /proc", "ls /dev", "ls {outside}"),
    *("cat {outside}/file", "cp {outside}/file copy", "ln -s {outside}/file link && cat link"),
    *("ln {outside}/file hard && cat hard", "mv {outside}/file moved && cat moved", "cd {outside} && ls"),
    *("cd {outside} && cat file", "cat /proc/self/root{outside}/file"),
    *('python3 -c \'import os; print(os.getxattr("{outside}/file", "user.secret"))\'', "cat /proc/{pid}/environ"),
    *("cat /proc/{pid}/cmdline", "ls /proc/{pid}/fd", "readlink /proc/{pid}/cwd"),
    *("cat /proc/{pid}/root{outside}/file", "cat /proc/self/environ", "cat /proc/$PPID/environ", "cat /proc/kcore"),
    *("cat /dev/mem", "echo x > /dev/tty"),
)


@keeps("Commands open the workspace")
def test_files_of_the_machine_cannot_be_read(outside: Path, subtests: pytest.Subtests) -> None:
    commands = [command.replace("{outside}", str(outside)) for command in READ]
    for command, (code, output) in zip(commands, run(*commands), strict=True):
        with subtests.test(command=command):
            assert code not in (0, None), output
            assert "secret" not in output


CHANGED = (
    *("echo x > {outside}/file", "echo x >> {outside}/file", "echo x > {outside}/new", "mkdir {outside}/new"),
    *("mkfifo {outside}/new", "ln -s x {outside}/new", "touch {outside}/new", "rm {outside}/file"),
    *("mv {outside}/file {outside}/new", "echo x > mine && mv mine {outside}/new"),
    *("echo x > mine && ln mine {outside}/new", "truncate -s 0 {outside}/file"),
    *("python3 -c 'import os; os.truncate(\"{outside}/file\", 0)'", "cd {outside} && echo x > new"),
    *("chgrp nogroup {outside}/file", 'python3 -c \'import os; os.setxattr("{outside}/file", "user.x", b"1")\''),
    *("echo x > /dev/shm/new", "echo x > /tmp/new-of-test"),
    *("cat /proc/sys/kernel/hostname > /proc/sys/kernel/hostname", "mknod pipe c 1 3", "unshare -U true"),
    "unshare -r chroot / true",
)


def test_files_of_the_machine_cannot_be_changed(outside: Path, subtests: pytest.Subtests) -> None:
    commands = [command.replace("{outside}", str(outside)) for command in CHANGED]
    for command, (code, output) in zip(commands, run(*commands), strict=True):
        with subtests.test(command=command):
            assert code not in (0, None), output
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "the secret of the host"


USUAL = {
    "pwd | sed 's/[0-9a-f]*.workspace$//'": "/tmp/deepfs-\n",
    "echo one > a && cat a && mkdir d && mv a d/b && ln d/b c && cat c": "one\none\n",
    "echo two > $TMPDIR/x && mv $TMPDIR/x y && cat y && ls -A $TMPDIR": "two\n",
    "chmod +x y && test -x y && rm y && echo removed": "removed\n",
    "echo out > /dev/stdout; cat < /dev/null; bash -c 'cat <(echo in)'": "out\nin\n",
    "timeout 0.1 sleep 9; echo $?": "124\n",
    "{ sleep 9 & kill $! && wait $!; echo $?; } 2> /dev/null": "143\n",
    "setsid sh -c 'echo session' & wait": "session\n",
    "python3 -c 'import asyncio, ssl; asyncio.run(asyncio.sleep(0)); print(1)'": "1\n",
    "python3 -c 'import socket; print(len(socket.socketpair()))'": "2\n",
    "nice true; ulimit -n 64 && ulimit -n": "64\n",
    "stat -c %a .": "700\n",
    # Tools that look which system this is, as pip does, take a file that is there and cannot be opened for an error.
    "test ! -e /etc/debian_version || head -c 0 /etc/debian_version; echo $?": "0\n",
}


def test_usual_commands_work() -> None:
    assert dict(zip(USUAL, run(*USUAL), strict=True)) == {command: (0, shown) for command, shown in USUAL.items()}


def test_nothing_is_left_of_a_command() -> None:
    deep = "cd $TMPDIR; for i in $(seq 300); do mkdir d; cd d; done; echo x > f; echo $TMPDIR; pwd -P | head -c 5"
    (_, first), (_, second) = run(deep, 'echo "$TMPDIR"; ls -A "$TMPDIR"')
    assert first.splitlines()[0] != second.splitlines()[0]
    assert not any(Path(line.splitlines()[0]).exists() for line in (first, second))


# --- modes ---


@keeps("change the modes of no other file")
def test_modes_of_other_files_cannot_be_changed(outside: Path) -> None:
    (outside / "file").chmod(0o640)
    opened = f"os.open('{outside}/file', os.O_RDONLY)"
    ways = (
        f"chmod 666 {outside}/file",
        f"ln -s {outside}/file link; chmod 666 link",
        f"chmod 666 /proc/self/root{outside}/file",
        f"ln -s {outside} top; chmod 666 top/file",
        in_python(f"import os; os.fchmod({opened}, 0o666)"),
        in_python(f"import os; os.chmod('/proc/self/fd/%d' % {opened}, 0o666)"),
        in_python(f"import os; os.chmod('file', 0o666, dir_fd=os.open('{outside}', os.O_PATH))"),
        in_python(f"{CALLED}\nimport os\nassert called({NUMBERS['fchmodat2']}, {opened}, b'', 0o666, 0x1000) == 0"),
    )
    found = run(*(f"! (\n{way}\n)" for way in ways), read_only=[str(outside)])
    assert [code for code, _ in found] == [0] * len(ways), found
    assert (outside / "file").stat().st_mode & 0o777 == 0o640


@keeps("Other users of the machine look into no workspace")
def test_a_workspace_cannot_be_opened_to_other_accounts() -> None:
    opening = "chmod -f 777 .. . ../.. $PWD/.. $TMPDIR $TMPDIR/.. $TMPDIR/../..; stat -c %a .. $TMPDIR/.. . $TMPDIR"
    assert run(opening) == [(0, "700\n700\n777\n777\n")]


# --- system calls ---


@pytest.mark.parametrize("network", [False, True])
def test_every_call_that_the_filter_refuses_fails(network: bool) -> None:
    [(_, output)] = run(in_python(EVERY_CALL), network=network)
    assert wrongly_allowed(json.loads(output), shared=True, network=network) == {}


def test_commands_inherit_no_descriptors_and_no_rights() -> None:
    source = """
import os
def is_open(descriptor):
    try:
        return bool(os.fstat(descriptor))
    except OSError:
        return False
print([descriptor for descriptor in range(100) if is_open(descriptor)], os.getpid() != os.getsid(0), os.read(0, 1))
"""
    (_, output), privileged = run(f"python3 -c {quote(source)}", "sudo -n true || su -c true")
    assert output == "[0, 1, 2] True b''\n"
    assert privileged[0] != 0


# --- other processes ---


@keeps("They signal and trace no process but what they started")
def test_signals_reach_only_what_the_command_started() -> None:
    others = "kill -0 {pid} || kill -9 {pid} || kill -9 $PPID || kill -STOP $PPID || kill -9 1 || echo none"
    (_, reached), killed, alive = run(others, "sleep 9 & kill -9 -1; kill -9 0; sleep 9", "echo alive")
    assert reached.splitlines()[0] == "none"
    assert killed[0] == 128 + signal.SIGKILL
    assert alive == (0, "alive\n")


def test_a_command_line_shows_no_variables() -> None:
    look = "tr '\\0' ' ' < /proc/{pid}/cmdline"
    assert run(look)[0][0] != 0
    shown = output_as(_ACCOUNT, _COMMAND_LINES, imports=_IMPORTS)
    assert "sleep 9" in shown
    assert "secret" not in shown


_COMMAND_LINES: Final = """
def lines():
    for process in set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}:
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                yield file.read().split(b"\\0")
        except OSError:
            pass
async def main():
    async with LandlockSandbox(env={"KEY": "a-secret"}) as box, box.astream_execute("echo $KEY; sleep 9") as run:
        async for chunk in run:
            assert "secret" in chunk.text
            break
        print([line for line in lines() if line[1:4] == [b"-I", b"-S", b"-c"] or b"sleep 9" in b" ".join(line)])
anyio.run(main)
"""


# --- the network ---

_SERVERS: Final = """
async def main():
    tcp, named = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    abstract, udp = socket.socket(socket.AF_UNIX), socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    abstract.bind(f"\\0deepfs-test-{os.getpid()}")
    places = [(2, 1, tcp.getsockname()), (2, 2, udp.getsockname()), (1, 1, abstract.getsockname().decode())]
    async with LandlockSandbox(network=sys.argv[1] == "True") as box:
        await box.awrite("/a", "")
        named.bind(os.path.join(box.sandbox_path("/"), "s"))
        places.append((1, 1, named.getsockname()))
        for server in (tcp, abstract, named):
            server.listen()
        for family, kind, address in places:
            source = f"import socket; socket.socket({family}, {kind}).connect({address!r})"
            print((await box.aexecute(f"python3 - <<'END'\\n{source}\\nEND")).exit_code)
anyio.run(main)
"""


@keeps("They make no socket")
@pytest.mark.parametrize(("network", "codes"), [(False, "1 1 1 1"), (True, "0 0 1 1")])
def test_there_is_no_network_unless_it_is_asked_for_and_no_service_of_the_machine(network: bool, codes: str) -> None:
    assert output_as(_ACCOUNT, _SERVERS, str(network), imports=_IMPORTS).split() == codes.split()


# --- time ---


def test_the_end_of_a_command_ends_all_that_it_started(pause: str) -> None:
    command = f"setsid sleep {pause} > /dev/null 2>&1 & (trap '' TERM HUP; sleep {pause}) & echo done"
    assert run(command) == [(0, "done\n")]
    assert anyio.run(gone, pause)


_CANCELLED: Final = """
async def main():
    async with LandlockSandbox() as box:
        with anyio.move_on_after(0.5):
            await box.aexecute(sys.argv[1])
        print("cancelled")
anyio.run(main)
"""


def test_cancellation_ends_all_that_it_started(pause: str) -> None:
    assert output_as(_ACCOUNT, _CANCELLED, f"setsid sleep {pause} & sleep {pause}", imports=_IMPORTS) == "cancelled\n"
    assert anyio.run(gone, pause)


_HELD_BACK: Final = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
async def main():
    async with LandlockSandbox(timeout=1) as box:
        response = await box.aexecute(sys.argv[1])
        print(response.exit_code, "goes on" in response.output)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
anyio.run(main)
"""


def test_signals_that_this_process_holds_back_end_commands() -> None:
    imports = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);{_IMPORTS}"
    assert output_as(_ACCOUNT, _HELD_BACK, "sleep 4; echo goes on", imports=imports) == "None False\n"


_KILLED: Final = """
os.environ["TMPDIR"] = sys.argv[2]  # What a killed process leaves goes with it.
async def main():
    async with LandlockSandbox(sys.argv[2]) as box, box.astream_execute(sys.argv[1]) as run:
        async for chunk in run:
            os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""


@keeps("All that a command started ends with it")
def test_all_that_a_command_started_ends_with_this_process(pause: str, outside: Path) -> None:
    command = f"setsid sleep {pause} & (trap '' TERM HUP; sleep {pause}) & sleep 0.2; echo begun; sleep {pause}"
    workspace = TemporaryDirectory(dir="/tmp")
    with workspace as directory:
        os.chmod(directory, 0o777)
        with pytest.raises((AssertionError, subprocess.SubprocessError)):
            output_as(_ACCOUNT, _KILLED, command, directory, imports=_IMPORTS)
    assert anyio.run(gone, pause)


# --- limits ---

_MEGABYTE: Final = 2**20


@keeps("Bounded memory, processes, time and room.")
def test_limits_hold() -> None:
    limits = {"memory": 128 * _MEGABYTE, "processes": 24, "cpu_seconds": 1, "file_size": 4 * _MEGABYTE}
    bomb = "f() { f | f & }; f 2>/dev/null; sleep 0.5; echo end"
    count = "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done; echo all"
    memory = "python3 -c 'x = bytearray(400 * 2**20); print(len(x))'"
    file = "head -c 10000000 /dev/zero > large; stat -c %s large; rm large"
    busy = "while :; do :; done"
    alive = "echo alive"
    found = run(bomb, count, memory, file, busy, alive, limits=limits, timeout=30)
    assert found[1][0] != 0
    assert "all" not in found[1][1].splitlines()
    assert found[2][0] not in (0, None)
    assert found[3][1].startswith(f"{4 * _MEGABYTE}\n")
    assert found[4][0] == 128 + signal.SIGKILL
    assert found[5] == (0, "alive\n")


def test_the_disk_cannot_be_filled() -> None:
    limits = {"workspace": 4 * _MEGABYTE, "temporary": 2 * _MEGABYTE}
    fill = "i=0; while :; do head -c 200000 /dev/zero > {}/f$i; i=$((i+1)); sleep 0.01; done"
    for directory, size in ((".", 4), ("$TMPDIR", 2)):
        [(code, output)] = run(fill.replace("{}", directory), limits=limits)
        assert code is None
        assert f"files take more than {size * _MEGABYTE:,} bytes" in output


# --- where it works, and where not ---

_BOTH: Final = """
import anyio
from deepfs.sandboxes import BubblewrapSandbox, LandlockSandbox
async def main():
    for kind in (BubblewrapSandbox, LandlockSandbox):
        async with kind() as box:
            print((await box.aexecute("echo works; cat /etc/passwd")).output.splitlines()[0])
anyio.run(main)
"""


@pytest.mark.needs("boxes of bubblewrap")
def test_it_works_where_user_namespaces_are_not_allowed() -> None:
    machine = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--cap-drop", "ALL"]
    files = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--setenv", "TMPDIR", "/run"]
    source = f"import sys; sys.path[:0] = {sys.path!r}\n{_BOTH}"
    line = [bubblewrap_program() or "", *machine, *files, "--die-with-parent", sys.executable, "-c", source]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    bubblewrap, works = done.stdout.splitlines()
    assert "namespace failed" in bubblewrap
    assert works == "works"


async def test_it_refuses_to_run_commands_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock.os, "geteuid", lambda: 0)
    with pytest.raises(NotSupportedError, match="root"):
        await LandlockSandbox(tmp_path).aexecute("true")


def test_it_refuses_an_interpreter_that_commands_could_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock.os, "geteuid", lambda: 1000)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "link").symlink_to(sys.executable)
    (tmp_path / "python3").symlink_to("bin/link")
    for interpreter, workspace in (("bin/link", ""), ("bin/link", "bin"), ("python3", "bin")):
        monkeypatch.setattr(sys, "_base_executable", str(tmp_path / interpreter))
        with pytest.raises(NotSupportedError, match="lies in the workspace"):
            LandlockSandbox(tmp_path / workspace).execute("true")


@keeps("It refuses to run commands of root, on kernels before Linux 6.12")
async def test_it_refuses_older_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock.os, "geteuid", lambda: 1000)
    for version, found in ((0, "has none"), (5, "has version 5")):
        monkeypatch.setattr(landlock, "landlock_version", lambda version=version: version)
        with pytest.raises(NotSupportedError, match=found):
            await LandlockSandbox(tmp_path).aexecute("true")
