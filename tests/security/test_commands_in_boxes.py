"""What commands in a box of bubblewrap reach of the kernel, tried from within, in boxes of root and of nobody."""

import errno
import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.errors import BackendError, NotSupportedError
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, private_devices
from support.accounts import ACCOUNTS, output_as
from support.promises import keeps
from support.system_calls import CALLED, EVERY_CALL, NUMBERS, wrongly_allowed

pytestmark = [pytest.mark.anyio, pytest.mark.needs("BubblewrapSandbox")]
accounts = pytest.mark.parametrize("account", ACCOUNTS)

_RUN = """
async def main():
    async with BubblewrapSandbox() as box:
        response = await box.aexecute(sys.argv[1])
        print(response.output, end="")
        assert response.exit_code == 0, response
anyio.run(main)
"""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@cache
def output(account: str, command: str) -> str:
    """What a command prints in a box of this account."""
    return output_as(account, _RUN, command)


def in_python(source: str) -> str:
    return f"python3 - <<'END'\n{source}\nEND"


async def printed(account: str, source: str) -> Any:
    """What a Python program prints in a box of this account, decoded from JSON."""
    return json.loads(await anyio.to_thread.run_sync(output, account, in_python(source)))


# --- what of the machine is there ---

_REACHES = """
import json, os, socket
def tried(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True
def writes(path):
    open(path, "w").close()
def connects(address):
    socket.create_connection(address, 1)
def is_there(path):
    return os.path.exists(path)
"""
_WRITTEN = ("/", "/usr/bin/x", "/etc/x", "/proc/sys/kernel/core_pattern", "/dev/x", "/sys/x")
_READ = ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/root", "/home", "/var", "/sys", "/run", "/opt")


@keeps("Commands reach the workspace")
@accounts
async def test_commands_reach_nothing_else_of_the_machine(account: str) -> None:
    source = f"""{_REACHES}
found = [path for path in {_READ} if os.path.exists(path)]
found += [path for path in {_WRITTEN} if tried(writes, path.rstrip("/") + "/deepfs" if path.endswith("/") else path)]
found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 99]
found += [name for _, name in socket.if_nameindex() if name != "lo"]
found += ["network"] if tried(connects, ("192.0.2.1", 80)) else []
own = [tried(writes, "/workspace/x"), tried(writes, "/tmp/x"), os.path.exists("/usr/bin/env")]
print(json.dumps([found, own]))
"""
    assert await printed(account, source) == [[], [True] * 3]


_DESCRIPTORS = """
import glob, json, os
def owned():
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            status = os.stat(path)
            os.chmod(path, status.st_mode & 0o777)  # Allowed to its owner alone; it stays as it is.
        except OSError:
            continue
        yield [status.st_dev, status.st_ino]
print(json.dumps(list(owned())))
"""


@accounts
def test_no_descriptor_leads_to_a_device_of_the_host_that_the_command_could_change(account: str) -> None:
    """As root a command owns the devices of the host: it could keep /dev/null from everybody else."""
    devices = [os.stat(path) for path in ("/dev/null", "/dev/zero", "/dev/tty")]
    changed = json.loads(output(account, in_python(_DESCRIPTORS)))
    assert changed, "it owns its pipes"
    assert not [device for device in devices if [device.st_dev, device.st_ino] in changed]


@pytest.mark.parametrize("shown", ["link", "link/file", "chain", "chain/file", "absolute", "out/../link", "in/../file"])
async def test_no_link_in_the_workspace_decides_what_a_read_only_path_shows(tmp_path: Path, shown: str) -> None:
    """Such a link need not be a part of the path: links outside may lead to it, and from it to the outside again."""

    def make() -> None:
        (tmp_path / "workspace" / "sub").mkdir(parents=True)
        for directory in ("workspace/sub/data", "outside", "around"):
            (tmp_path / directory).mkdir()
            (tmp_path / directory / "file").write_text("")
        (tmp_path / "link").symlink_to("workspace/sub/data")
        (tmp_path / "out").symlink_to("outside")
        (tmp_path / "in").symlink_to("workspace/hop")
        (tmp_path / "file").write_text("")
        (tmp_path / "workspace" / "hop").symlink_to(tmp_path / "outside")
        (tmp_path / "chain").symlink_to("around/../workspace/hop")
        (tmp_path / "absolute").symlink_to(tmp_path / "chain")

    await anyio.to_thread.run_sync(make)
    box = BubblewrapSandbox(tmp_path / "workspace", read_only=[str(tmp_path / shown)])
    with pytest.raises(NotSupportedError, match="in the workspace"):
        await box.aexecute("true")


# --- system calls ---


@keeps("They make no file with set-id bits")
@accounts
async def test_every_call_that_the_filter_refuses_fails(account: str) -> None:
    assert wrongly_allowed(await printed(account, EVERY_CALL)) == {}


_KILLED_BY = """
import ctypes, json, mmap, os
def signal_of(action):
    if (child := os.fork()) == 0:
        action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def run_code(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the calling conventions of x86-64")
@accounts
async def test_calls_of_i386_and_x32_kill_the_process(account: str) -> None:
    # mov eax, 20 (getpid); int 0x80; ret
    i386 = "lambda: run_code(bytes.fromhex('b814000000cd80c3'))"
    x32 = "lambda: ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))"
    source = f"{_KILLED_BY}\nprint(json.dumps([signal_of({i386}), signal_of({x32}), signal_of(lambda: None)]))"
    assert await printed(account, source) == [-signal.SIGSYS, -signal.SIGSYS, 0]


async def test_debuggers_may_not_trace_the_process_that_ends_all_others(tmp_path: Path) -> None:
    seize = 0x4206
    command = in_python(f"{CALLED}\nprint(called({NUMBERS['ptrace']}, {seize}, 1, 0, 0))")
    assert (await BubblewrapSandbox(tmp_path, debugging=True).aexecute(command)).output == f"{errno.EPERM}\n"


# --- what is shared with others ---

_KEYS = f"""
import ctypes, os
libc = ctypes.CDLL(None)
JOIN, SEARCH, SESSION = 1, 10, -3
def key(): return libc.syscall({NUMBERS["keyctl"]}, SEARCH, SESSION, b"user", b"deepfs-test", 0)
"""
_OWN_KEYRING = f"""
from deepfs.sandboxes.bubblewrap import join_new_keyring
libc.syscall({NUMBERS["keyctl"]}, JOIN, None)
libc.syscall({NUMBERS["add_key"]}, b"user", b"deepfs-test", b"secret", 6, SESSION)
command = process.Command([sys.executable, "-c", sys.argv[1]], prepare=join_new_keyring)
print(anyio.run(process.capture, command, 1000).output.strip(), key() > 0)
"""


async def test_a_session_keyring_is_not_shared_with_commands() -> None:
    shown = await anyio.to_thread.run_sync(output_as, ACCOUNTS[0], _KEYS + _OWN_KEYRING, _KEYS + "print(key() > 0)")
    assert shown in ("False True\n", "False False\n"), "the second where the machine has no keyrings"


@accounts
async def test_files_of_the_kernel_tell_nothing_about_the_machine(account: str) -> None:
    hidden = ("keys", "key-users", "cmdline", "kallsyms", "iomem", "interrupts", "vmallocinfo", "bus/pci")
    hidden += ("kcore", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "pagetypeinfo", "slabinfo", "timer_list")
    command = f"cd /proc; for f in {' '.join(hidden)}; do head -c 64 $f | od -A n -c; done; ls -A bus acpi"
    command = f"({command}) 2>/dev/null; true"
    shown = await anyio.to_thread.run_sync(output, account, command)
    assert not [line for line in shown.splitlines() if line and not line.endswith(":")]


@accounts
async def test_a_command_line_shows_no_variables_and_no_paths(account: str) -> None:
    """The command line of a box can be read by every user of the machine."""
    shown = await anyio.to_thread.run_sync(output_as, account, _COMMAND_LINES)
    assert "--args" in shown
    assert "secret" not in shown
    assert "workspace" not in shown


_COMMAND_LINES = """
import os
from pathlib import Path
PAUSE = f"sleep 9.{os.getpid()}"  # No other process of the machine has it.
async def main():
    async with BubblewrapSandbox(env={"KEY": "a-secret"}) as box, box.astream_execute(f"echo $KEY; {PAUSE}") as run:
        async for chunk in run:
            assert "secret" in chunk.text
            break
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = file.read_bytes()
            except OSError:
                continue
            if PAUSE.encode() in line:
                print(line)
anyio.run(main)
"""


@accounts
async def test_a_crash_leaves_no_file_and_starts_no_program_of_the_host(account: str) -> None:
    """A limit of 1 byte is special to the kernel: see do_coredump in its fs/coredump.c."""
    source = """
import json, os, resource, subprocess
subprocess.run(["sh", "-c", "kill -SEGV $$"])
print(json.dumps([resource.getrlimit(resource.RLIMIT_CORE), os.listdir()]))
"""
    assert await printed(account, source) == [[1, 1], []]


_LEFT = """
def sizes(box):
    return [file.stat().st_size for file in sorted(box.cwd.glob("written-*"))]
async def main():
    async with BubblewrapSandbox() as box:
        for _ in range(10):
            await box.aexecute("for i in $(seq 12); do (while :; do echo >> written-$i; done) & done; sleep 0.1")
            ended = sizes(box)
            await anyio.sleep(0.05)
            print(len(ended), sizes(box) == ended)
anyio.run(main)
"""


@accounts
async def test_no_process_is_left_when_a_command_has_ended(account: str) -> None:
    """What is left, if for a moment, changes files that the caller then works with."""
    assert await anyio.to_thread.run_sync(output_as, account, _LEFT) == "12 True\n" * 10


_AROUND = """
import os
async def main():
    async with BubblewrapSandbox() as box:
        await box.aexecute("chmod 777 /workspace; echo secret > file; chmod 666 file")
        path = box.cwd.parent
        while path != path.parent.parent and os.stat(path).st_mode & 0o001:
            path = path.parent
        print(oct(os.stat(path).st_mode), path.name.startswith("deepfs-"))
anyio.run(main)
"""


@accounts
async def test_a_command_opens_a_workspace_that_deepfs_made_to_nobody_else(account: str) -> None:
    assert await anyio.to_thread.run_sync(output_as, account, _AROUND) == "0o40700 True\n"


@pytest.mark.parametrize("kind", ["directory", "link"])
async def test_a_workspace_that_somebody_else_put_there_is_not_used(tmp_path: Path, kind: str) -> None:
    """Programs that clean up temporary directories remove one that was not used for long, and free its name."""
    async with BubblewrapSandbox() as box:
        around = Path(box._given_root).parent

        def replace() -> None:
            assert not around.exists()
            (tmp_path / "workspace").mkdir()
            around.mkdir(0o755) if kind == "directory" else around.symlink_to(tmp_path)

        await anyio.to_thread.run_sync(replace)
        assert (await box.awrite("/a", "x")).code == "backend_error"
        with pytest.raises(BackendError, match="replaced"):
            await box.aexecute("true")
        await anyio.to_thread.run_sync(around.rmdir if kind == "directory" else around.unlink)


@pytest.mark.skipif(ACCOUNTS[0] != "root", reason="only boxes of root have devices of their own")
async def test_the_devices_of_a_sandbox_are_gone_when_it_is_closed(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path) as box:
        assert (await box.aexecute("echo > /dev/null")).exit_code == 0
        null = anyio.Path((await anyio.to_thread.run_sync(private_devices, box.id))["null"])
        assert await null.exists()
    assert not await null.exists()
