"""Sandboxes whose files lie in a directory of this machine, the workspace, to which their commands are confined."""

import logging
import os
import stat
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from secrets import token_hex
from time import perf_counter
from typing import Any, Final, TypeVar

import anyio
from msgspec.structs import replace

from deepfs import process as commands
from deepfs.backends.filesystem import ON_DISK, FilesystemBackend
from deepfs.backends.protocol import Capabilities, SandboxBackendProtocol
from deepfs.disk import Disk, Upload
from deepfs.disk.os_calls import SEARCH, check_platform
from deepfs.disk.programs import directories_passed, import_late_modules
from deepfs.disk.trees import remove_tree
from deepfs.disk.usage import BoundedDisk, DiskUse
from deepfs.errors import BackendError, InvalidPathError, NotSupportedError
from deepfs.process import Command, Running
from deepfs.sandboxes.limits import Cgroup, Limits, held_bytes
from deepfs.sandboxes.network import AllowedHosts
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_bool, check_env, check_integer, check_number
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.types import ExecuteResponse

T = TypeVar("T")

_log = logging.getLogger(__name__)
SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
)
"""The files of /etc that programs need; they reveal nothing about this host."""
FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
"""The files of /etc that programs need besides these to find other machines."""

_LOOK_S: Final = 0.2
"""Seconds between two checks of the size of the workspace."""
_REST_FACTOR: Final = 10
"""The pause after a check is this many times as long as the check, unless the disk fills up meanwhile."""
_ENTRY_BYTES: Final = 1024
"""The bytes of memory that a file in a temporary directory takes besides its content."""

_MOST_HIDDEN: Final = 3
"""Checks in a row in which a command may hide its open files: while its box is made, it does so for a moment."""


class WorkspaceSandbox(FilesystemBackend, SandboxBackendProtocol):
    """Files in a directory of this machine, and commands that are confined to it; a subclass confines them."""

    _kind: str
    """The first word of `id`."""
    capabilities: Capabilities = replace(ON_DISK, executes=True)
    working_directory: str | None = "/"

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
        check_platform()
        self._allow_network(network)
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        check_bool("debugging", debugging)
        self._env = check_env(env)
        name = token_hex(8)
        self._is_ephemeral = root_dir is None
        self._is_closed = False
        if root_dir is None:
            # Commands may let anybody into the workspace, which is why it has a directory around it.
            self._around = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"deepfs-{name}")
            self._removal = weakref.finalize(self, _remove_own, os.getpid(), self._around)
            root_dir = os.path.join(self._around, "workspace")
        super().__init__(root_dir, True, max_file_size_mb)
        self._id = f"{self._kind}-{name}"
        self.command_timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._read_only = tuple(read_only)
        self._allowed = limits or Limits()
        self._has_warned = False
        self._use = DiskUse(self._given_root, self._allowed.workspace)
        self._disk = BoundedDisk(self._given_root, self._use)
        self._debugging = debugging

    @property
    def id(self) -> str:
        return self._id

    @abstractmethod
    def _allow_network(self, network: bool | Sequence[str] | AllowedHosts) -> None:
        """Keep what commands may reach. Raises TypeError or ValueError if it cannot be used."""

    # --- the workspace ---

    async def aclose(self) -> None:
        """Remove a workspace that was made for this sandbox; every operation then fails with `backend_error`.

        A workspace that the caller named stays, and the sandbox stays usable. Running commands are not waited for.
        """
        if self._is_ephemeral:
            self._is_closed = True
            self._removal.detach()
            await run_shielded(partial(pool.run, remove_directory, self._around))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError(None, "The sandbox is closed, and its workspace is gone")

    def _path(self, path: str) -> str:
        self._check_open()
        return super()._path(path)

    def _make_temporary(self) -> None:
        """Make the workspace if it goes with the sandbox; one that the caller named is made by its first change."""
        self._check_open()
        if self._is_ephemeral:
            _make_private(self._around)
            if not os.path.isdir(self._given_root):
                os.makedirs(self._given_root, 0o700, exist_ok=True)

    def _prepare_workspace(self) -> None:
        """Make the workspace for a command. Raises NotSupportedError if a command could replace a `read_only` path."""
        self._make_temporary()
        os.makedirs(self._given_root, 0o700, exist_ok=True)
        import_late_modules()
        for path in self._read_only:
            if leads_through(path, self._given_root):  # A command could make it lead to any file.
                reason = f"read_only has a path in the workspace, where commands change it: {path}"
                raise NotSupportedError(None, reason)

    async def _run_change(self, function: Callable[..., T], *args: Any) -> T:
        return await super()._run_change(self._in_workspace, function, *args)

    def _in_workspace(self, deadline: Deadline, disk: Disk, function: Callable[..., T], *args: Any) -> T:
        self._make_temporary()
        return function(deadline, disk, *args)

    def _begin(self, disk: Disk, path: str, begun: list[Upload]) -> None:
        self._make_temporary()
        super()._begin(disk, path, begun)

    # --- commands ---

    @abstractmethod
    def _command_root(self) -> str:
        """The absolute path of the workspace for commands."""

    def sandbox_path(self, path: str) -> str:
        """The path of a file for commands.

        Args:
            path: The path for file operations.

        Raises:
            InvalidPathError: If `path` is not valid.
        """
        return os.path.normpath(os.path.join(self._command_root(), paths.normalize(path)[1:]))

    def virtual_path(self, path: str) -> str:
        """The path of a file for file operations.

        Args:
            path: The path for commands, absolute or relative to the workspace.

        Raises:
            InvalidPathError: If it is not in the workspace.
        """
        root = self._command_root()
        full = os.path.normpath(os.path.join(root, path))
        if full != root and not paths.is_beneath(full, root):
            raise InvalidPathError(path, "it is outside the workspace")
        return paths.normalize(full[len(root) :])

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a confined shell command; at most 32 of a backend run at once.

        Raises NotSupportedError if this machine, or the account of this process, has not what confining it takes, or if
        a path in `read_only` lies in the workspace.
        """
        async with self._confine(command, timeout) as boxed:
            return await commands.capture(boxed, self._max_output_bytes)

    @asynccontextmanager
    async def astream_execute(self, command: str, *, timeout: float | None = None) -> AsyncIterator[Running]:
        """Run a shell command within an `async with` block, and iterate over its output as it comes.

        Leaving the block ends the command.

        Args:
            command: The shell command.
            timeout: The most seconds it may take, if less than the limit of this backend; None is that limit.

        Returns:
            A context manager of the running command. Its `exit_code` and `stopped` are known when the iteration has
            ended.
        """
        async with self._confine(command, timeout) as boxed, commands.start_command(boxed) as run:
            yield run

    @abstractmethod
    def _confine(self, command: str, timeout: float | None) -> AbstractAsyncContextManager[Command]:
        """A context of the confined command; its files and control groups are removed when the block ends."""

    def _not_enforced(self, groups: Cgroup) -> tuple[str, ...]:
        """The limits that hold in part, since there is no control group for them; the first time, the log says so."""
        if groups.counts_memory:
            return ()
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s: no control group limits memory, only the data of each process is limited", self._id)
        return ("memory",)

    async def _watch_disk(
        self, processes: Callable[[], Iterable[int]], *others: DiskUse, entries: Callable[[], int] | None = None
    ) -> str:
        """Return the reason to stop a command when the files in the workspace, or in `others`, take too much space.

        `processes` are the PIDs of the command: files without a name that it has open count too. `entries` counts the
        files in its temporary directories, if these limit the bytes and not the number of files.
        """
        watched = [_Watched(use, processes) for use in (self._use, *others)]
        pause, rests_until, hidden = _LOOK_S, 0.0, 0
        while hidden < _MOST_HIDDEN:
            await anyio.sleep(pause)
            begun = perf_counter()
            if begun < rests_until and not await pool.run(lambda: any(each.is_urgent() for each in watched)):
                continue
            try:
                for each in watched:
                    if reason := await pool.run_long(each.excess):
                        return reason
                if entries is not None and await pool.run(entries) * _ENTRY_BYTES > self._allowed.temporary:
                    return f"its temporary files take more than {self._allowed.temporary:,} bytes"
                hidden = 0
            except PermissionError:
                hidden += 1
            took = perf_counter() - begun
            pause, rests_until = max(_LOOK_S, took), perf_counter() + _REST_FACTOR * took
        return "it hides which files it has open"


class _Watched:
    """The room that a running command may take in a directory, as known from the last look at it."""

    def __init__(self, use: DiskUse, processes: Callable[[], Iterable[int]]) -> None:
        self._use = use
        self._processes = processes
        self._left = 0
        """The bytes that were left at the last look."""
        self._free = 0
        """The bytes that were free on the disk then."""

    def is_urgent(self) -> bool:
        """Whether the disk has lost as much room since the last look as was left, by whomsoever."""
        return self._free - _free_bytes(self._use.directory) > self._left

    def excess(self, deadline: Deadline) -> str:
        """Why the command must be stopped, or an empty text.

        Raises PermissionError if it hides which files it has open.
        """
        free, used, limit = _free_bytes(self._use.directory), self._use.measure(deadline), self._use.limit
        try:
            device = os.stat(self._use.directory).st_dev
        except OSError:
            return "its workspace is gone"
        if used <= limit:
            used += held_bytes(self._processes(), device)
        self._left, self._free = limit - used, free
        return f"its files take more than {limit:,} bytes" if used > limit else ""


def _free_bytes(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:  # It is gone, which the next look tells.
        return 0
    return status.f_bfree * status.f_frsize


def leads_through(path: str, workspace: str) -> bool:
    """Whether a part of a path, or of a link on its way, lies in the workspace, where commands can replace it.

    The path need not exist. It may be the workspace itself.
    """
    root = os.path.realpath(workspace)
    return any(directory == root or paths.is_beneath(directory, root) for directory in directories_passed(path))


def _make_private(directory: str) -> None:
    """Make a directory if there is none. Raises BackendError if it is one of others, or open to them."""
    if not os.path.lexists(directory):
        os.makedirs(directory, 0o700, exist_ok=True)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise BackendError(None, "The temporary directory of the sandbox was replaced by somebody else")


def _remove_own(owner: int, directory: str) -> None:
    """Remove the workspace of a sandbox, unless this process is a fork of the one that made the sandbox."""
    if os.getpid() == owner:
        remove_directory(directory)


def remove_directory(directory: str) -> None:
    """Remove a directory, if there is one, with all in it, whatever modes commands gave it.

    The log says what could not be removed.
    """
    try:
        parent = os.open(os.path.dirname(directory), SEARCH)
    except FileNotFoundError:
        return
    try:
        stayed = remove_tree(parent, os.path.basename(directory), force=True)
    finally:
        os.close(parent)
    if stayed:
        _log.warning("%d entries of %s could not be removed: %s", len(stayed), directory, stayed[0][1])


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
