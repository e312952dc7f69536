"""Sandboxes on this machine without namespaces: Landlock and a filter of system calls confine commands on Linux."""

import ctypes
import marshal
import os
import signal
import stat
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import cache, partial
from importlib.resources import files
from tempfile import mkdtemp
from typing import Final

import anyio

from deepfs.disk.programs import interpreter_parts, is_safe
from deepfs.disk.usage import DiskUse
from deepfs.errors import NotSupportedError
from deepfs.process import Command
from deepfs.sandboxes import seccomp
from deepfs.sandboxes.limits import Cgroup, Limits
from deepfs.sandboxes.network import AllowedHosts
from deepfs.sandboxes.workspace import (
    FOR_NETWORK,
    SETTINGS,
    WorkspaceSandbox,
    leads_through,
    memory_file,
    remove_directory,
)
from deepfs.text.arguments import check_bool, seconds_of
from deepfs.text.lines import check_text
from deepfs.threads import pool

# Windows has no such module.
if sys.platform != "win32":
    import resource

# --- Landlock: see landlock(7) and linux/landlock.h ---

_CREATE_RULESET, _ADD_RULE = 444, 445
"""The numbers of `landlock_create_ruleset` and `landlock_add_rule` on every architecture."""
_ASK_VERSION = 1
_BENEATH_PATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_MAKE_DEVICES, _MAKE_SOCKET = 1 << 6 | 1 << 11, 1 << 9
_MOVE, _TRUNCATE, _CONTROL_DEVICE = 1 << 13, 1 << 14, 1 << 15
"""The first is LANDLOCK_ACCESS_FS_REFER: to move and link files from one directory to another."""
_ALL_OF_FILES = (1 << 16) - 1
_OF_NON_DIRECTORIES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _CONTROL_DEVICE
_TO_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_TO_CHANGE = _ALL_OF_FILES & ~(_MAKE_DEVICES | _MAKE_SOCKET | _CONTROL_DEVICE)
_TO_USE_DEVICE = _READ_FILE | _WRITE_FILE
_ALL_OF_TCP = 3
_SIGNALS, _ALL_OF_SCOPES = 2, 3
_NEEDED_VERSION: Final = 6
"""The first version with scopes; that of Linux 6.12."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 if it has none, or if it is not enabled."""
    with suppress(OSError):
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    return 0


class Ruleset:
    """A set of rules of Landlock: everything that it handles is refused, except beneath the allowed paths.

    It handles rights of files and directories, rights of TCP, and `scopes`: what cannot reach processes outside
    (abstract sockets, signals). Raises OSError if the kernel does not know them.
    """

    def __init__(self, of_files: int, of_tcp: int, scopes: int) -> None:
        handled = struct.pack("=QQQ", of_files, of_tcp, scopes)
        self.descriptor: int = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)

    def allow(self, path: str, rights: int) -> None:
        """Allow rights of a file, or of a directory with all beneath it. Links are followed, a missing path passed by.

        Raises OSError if the path cannot be opened.
        """
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if not stat.S_ISDIR(os.fstat(opened).st_mode):
                rights &= _OF_NON_DIRECTORIES
            _call(_ADD_RULE, self.descriptor, _BENEATH_PATH, struct.pack("=Qi", rights, opened), 0)
        finally:
            os.close(opened)

    def close(self) -> None:
        """Close the descriptor. Processes that it confines stay confined."""
        os.close(self.descriptor)


# --- the sandbox ---

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FOR_PROGRAMS: Final = ("/etc/debian_version", "/etc/localtime", "/etc/ssl/openssl.cnf")
"""Pip and Node do not start if they find the first and the third and may not read them."""
_DEVICES: Final = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_ENV: Final = {"GIT_CONFIG_NOSYSTEM": "1", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
"""Git does not start if there is a file for all users that it may not read."""
_PROGRAM: Final = files(__package__).joinpath("enter.py").read_text("utf-8")


class LandlockSandbox(WorkspaceSandbox):
    """Files in a directory of this machine, and commands that can open nothing else of it, without user namespaces.

    It is for machines and containers that allow no user namespaces; elsewhere, `BubblewrapSandbox` confines more. A
    command can read the programs of the system and the paths in `read_only`. It can read and change its workspace,
    which has the same path for commands as on this machine, and a temporary directory of its own (`TMPDIR`), which goes
    with it. It can open no other file, signal and trace no other process, and make no socket; with `network`, it can
    make those of IP. It cannot open `/tmp`, `/proc` and `/dev/shm`. It has no privileges and cannot get any. At the
    timeout, on cancellation, and when this process ends, it is ended with all that it started.

    A command can see that other files exist, with their sizes, times and link targets, but not the names in a
    directory. It can also change the times of files that belong to the account of this process. Use an account of its
    own.

    File operations are those of `FilesystemBackend`, confined to the workspace: they do not follow links that commands
    make out of it.

    Needs Linux 6.12 or later with Landlock, on x86-64 or arm64, and an account other than root.

    Args:
        root_dir: The workspace. None creates a directory that is removed by `aclose`, by the end of an `async with`
            block, or by the end of the process.
        timeout: Seconds after which a command is ended, unless its call sets less; the output so far is returned.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        env: Environment variables of the commands.
        network: Whether commands have the network of this machine.
        read_only: Paths of this machine that commands can read. None may lie in a directory that commands change.
        limits: What commands may use of the machine; None is `Limits()`. `temporary` is the size of the temporary
            directory.
        max_file_size_mb: As in `FilesystemBackend`.
        debugging: Whether commands may trace processes of theirs, as debuggers and `strace` do.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or a name in `env` that cannot be used.
        NotSupportedError: On Windows.
    """

    _kind = "landlock"

    def _allow_network(self, network: bool | Sequence[str] | AllowedHosts) -> None:
        check_bool("network", network)
        self._network = network is True

    def _command_root(self) -> str:
        return os.path.normpath(self._given_root) if os.path.isabs(self._given_root) else self._disk.host_path

    # --- commands ---

    @asynccontextmanager
    async def _confine(self, command: str, timeout: float | None) -> AsyncIterator[Command]:
        check_text(command, "command")
        seconds, end = seconds_of(timeout, self.command_timeout), ExitStack()
        try:
            yield await pool.run(self._prepare, command, seconds, end)
        finally:
            self._use.forget()
            with anyio.CancelScope(shield=True):
                await pool.run(end.close)

    def _prepare(self, command: str, seconds: float, end: ExitStack) -> Command:
        """The command of the program that runs `command`. What has to be done after it is put on the stack."""
        _check_machine()
        self._prepare_workspace()
        interpreter = _interpreter(self._given_root)
        # Commands may let anybody into the directory, which is why it has another one around it.
        around = mkdtemp(prefix="deepfs-tmp-")
        end.callback(remove_directory, around)
        temporary = os.path.join(around, "tmp")
        os.mkdir(temporary, 0o700)
        groups = Cgroup(self._allowed)
        end.callback(groups.remove)
        groups.make()
        rulesets = self._rulesets(temporary, end)
        description = memory_file(marshal.dumps(self._description(command, temporary, groups, rulesets)))
        end.callback(os.close, description)
        return Command(
            [interpreter, "-I", "-S", "-c", _PROGRAM, str(description)],
            self._given_root,
            {},
            seconds,
            [description, *rulesets],
            partial(self._watch, groups, DiskUse(temporary, self._allowed.temporary)),
            backend=self._storage,
            stop=signal.SIGTERM,
            not_enforced=self._not_enforced(groups),
        )

    async def _watch(self, groups: Cgroup, temporary: DiskUse, pid: int) -> str:
        return await self._watch_disk(partial(groups.processes_of, pid), temporary)

    def _rulesets(self, temporary: str, end: ExitStack) -> tuple[int, int]:
        """The rulesets of the outer and the inner domain."""
        outer = Ruleset(_MOVE, 0, _SIGNALS)
        end.callback(outer.close)
        outer.allow("/", _MOVE)  # A domain that does not handle this right refuses it.
        inner = Ruleset(_ALL_OF_FILES, 0 if self._network else _ALL_OF_TCP, _ALL_OF_SCOPES)
        end.callback(inner.close)
        for_network = FOR_NETWORK if self._network else ()
        for path in (*_SYSTEM, *SETTINGS, *_FOR_PROGRAMS, *for_network, *self._read_only):
            inner.allow(path, _TO_READ)
        for path in _DEVICES:
            inner.allow(path, _TO_USE_DEVICE)
        for path in (self._given_root, temporary):
            inner.allow(path, _TO_CHANGE)
        return outer.descriptor, inner.descriptor

    def _description(
        self, command: str, temporary: str, groups: Cgroup, rulesets: tuple[int, int]
    ) -> dict[str, object]:
        """The arguments of the program in `enter.py`, by name."""
        machine = os.uname().machine
        numbers = seccomp.ARCHITECTURES[machine].numbers
        modes = seccomp.CHANGES_OF_MODES.items()
        return {
            "arguments": ["/bin/sh", "-c", command],
            "changed": [os.path.realpath(path) for path in (self._given_root, temporary)],
            # With PWD set, a shell reports this path as its directory, not another path to it through links.
            "env": {**_ENV, "HOME": temporary, "TMPDIR": temporary, "PWD": self._command_root(), **self._env},
            "filter": seccomp.program(machine, debugging=self._debugging, shared=True, network=self._network),
            "groups": groups.entrances,
            "inner": rulesets[1],
            "keyctl": numbers["keyctl"],
            "limits": _resource_limits(self._allowed, groups),
            "modes": {numbers[name]: arguments for name, arguments in modes if name in numbers},
            "outer": rulesets[0],
            "parent": os.getpid(),
            "seccomp": numbers["seccomp"],
        }


def _check_machine() -> None:
    """Raise NotSupportedError if Landlock and a filter do not hold commands on this machine, or of this account."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in seccomp.ARCHITECTURES:
        raise NotSupportedError(None, f"there is no filter of system calls for a machine of the kind {machine}")
    if os.geteuid() == 0:
        raise NotSupportedError(None, "Landlock does not hold commands of root; use another account")
    if (version := landlock_version()) < _NEEDED_VERSION:
        found = f"has version {version}" if version else "has none"
        raise NotSupportedError(None, f"commands need Landlock of version {_NEEDED_VERSION}, and this kernel {found}")


def _interpreter(workspace: str) -> str:
    """The interpreter that starts commands; NotSupportedError if there is none that commands cannot change."""
    if not (used := interpreter_parts()):
        raise NotSupportedError(None, "commands are started by the Python interpreter, and its path is not known")
    if any(leads_through(path, workspace) or not is_safe(path) for path in used):
        raise NotSupportedError(
            None,
            "the Python interpreter lies in the workspace, or elsewhere where agents or other accounts could change it",
        )
    return used[0]


def _resource_limits(limits: Limits, groups: Cgroup) -> dict[int, int]:
    # The kernel counts all processes of the account.
    others = 0 if groups.counts_processes else _tasks_of(os.getuid())
    memory = {} if groups.counts_memory else {resource.RLIMIT_DATA: limits.memory}
    return memory | {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes + others,
    }


def _tasks_of(user: int) -> int:
    """The number of threads of an account, as far as this process sees them."""
    tasks = 0
    with suppress(OSError):
        for process in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # It has ended.
                if os.stat(f"/proc/{process}").st_uid == user:
                    tasks += len(os.listdir(f"/proc/{process}/task"))
    return tasks
