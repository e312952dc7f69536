"""Real files and commands of this machine, without isolation."""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from secrets import token_hex
from typing import Final

from msgspec.structs import replace

from deepfs import process as commands
from deepfs.backends.filesystem import ON_DISK, FilesystemBackend
from deepfs.backends.protocol import Capabilities, SandboxBackendProtocol
from deepfs.errors import InvalidPathError
from deepfs.process import Command, Running
from deepfs.search.gitignore import IgnoreOption
from deepfs.text import paths
from deepfs.text.arguments import check_bool, check_directory, check_env, check_integer, check_number, seconds_of
from deepfs.text.lines import check_text
from deepfs.types import ExecuteResponse

__all__ = ["DEFAULT_EXECUTE_TIMEOUT", "LocalShellBackend"]

DEFAULT_EXECUTE_TIMEOUT: Final = 120
"""Seconds that a command may take, unless the `timeout` of the backend says otherwise."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalShellBackend(FilesystemBackend, SandboxBackendProtocol):
    """A `FilesystemBackend` that also runs commands, as the user of this process, without confinement.

    `virtual_mode` confines file operations only: a command reaches everything that this user may reach. Use a sandbox
    if that is too much.

    Commands are run by `/bin/sh` in `root_dir`, so relative paths are the same for commands and for file operations.
    The path of the file `/a.txt` for commands is `host_path("/a.txt")`; `virtual_path` is the reverse. Standard input
    is empty. Lines of stderr are marked `[stderr]`. At the timeout and on cancellation, a command is ended with all
    that it started in its process group. Background processes of a command that ends normally continue to run.

    Args:
        root_dir: The directory; None is the working directory of the process.
        virtual_mode: Whether to confine file operations to `root_dir`.
        timeout: Seconds after which a command is ended, unless its call sets less; the output so far is returned.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        env: Environment variables of the commands.
        inherit_env: Whether commands also get the environment variables of this process. Without a PATH from either,
            they get a usual one.
        max_file_size_mb: As in `FilesystemBackend`.
        durable: As in `FilesystemBackend`.
        search_timeout: As in `FilesystemBackend`.
        ignore: As in `FilesystemBackend`.
        ripgrep: As in `FilesystemBackend`.

    Raises:
        TypeError: For an argument of another type.
        ValueError: For a number, a name in `env` or an `ignore` that cannot be used.
        NotSupportedError: On Windows.
    """

    capabilities: Capabilities = replace(ON_DISK, executes=True)
    commands_on_host: bool = True

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        virtual_mode: bool = True,
        timeout: float = DEFAULT_EXECUTE_TIMEOUT,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        *,
        max_file_size_mb: int = 10,
        durable: bool = False,
        search_timeout: float = 60,
        ignore: IgnoreOption = None,
        ripgrep: bool = True,
    ) -> None:
        if root_dir is not None:
            check_directory("root_dir", root_dir)  # Commands of one tenant would reach the files of all.
        super().__init__(
            root_dir,
            virtual_mode,
            max_file_size_mb,
            durable=durable,
            search_timeout=search_timeout,
            ignore=ignore,
            ripgrep=ripgrep,
        )
        check_number("timeout", timeout)
        check_integer("max_output_bytes", max_output_bytes)
        check_bool("inherit_env", inherit_env)
        self._id = f"local-{token_hex(4)}"
        self.command_timeout = timeout
        self._max_output_bytes = max_output_bytes
        # With PWD set, a shell reports this path as its directory, not another path to it through links.
        place = {"PWD": os.path.normpath(self._given_root)} if os.path.isabs(self._given_root) else {}
        self._env = {"PATH": _PATH, **(os.environ if inherit_env else {}), **place, **check_env(env)}

    @property
    def working_directory(self) -> str:  # type: ignore[override]
        return "/" if self._virtual else self._host_root()

    @property
    def id(self) -> str:
        return self._id

    def host_path(self, path: str) -> str:
        """The path of a file for commands.

        Args:
            path: The path for file operations.

        Raises:
            InvalidPathError: `path` is no path of the contract.
        """
        if not self._virtual:
            return self._path(path)
        return os.path.join(self._host_root(), paths.normalize(path).lstrip("/"))

    def virtual_path(self, path: str) -> str:
        """The path of a file for file operations.

        Args:
            path: The path for commands, absolute or relative to `root_dir`.

        Raises:
            InvalidPathError: `path` is not under `root_dir`, and `virtual_mode` is set.
        """
        if not self._virtual:
            return self._path(path)
        root = self._host_root()
        full = os.path.normpath(os.path.join(root, path))
        if full != root and not paths.is_beneath(full, root):
            raise InvalidPathError(path, "it is outside the directory of this backend")
        return paths.normalize(full[len(root) :])

    def _host_root(self) -> str:
        return os.path.normpath(self._given_root) if os.path.isabs(self._given_root) else self._disk.host_path

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command. At most 32 of a backend run at once; the timeout of each counts from its start."""
        return await commands.capture(self._command(command, timeout), self._max_output_bytes)

    def astream_execute(self, command: str, *, timeout: float | None = None) -> AbstractAsyncContextManager[Running]:
        """Run a shell command within an `async with` block, and iterate over its output as it comes.

        Leaving the block ends the command.

        Args:
            command: The shell command.
            timeout: The most seconds it may take, if less than the limit of this backend; None is that limit.

        Returns:
            A context manager of the running command. Its `exit_code` and `stopped` are known when the iteration has
            ended.
        """
        return commands.start_command(self._command(command, timeout))

    def _command(self, command: str, timeout: float | None) -> Command:
        check_text(command, "command")
        seconds = seconds_of(timeout, self.command_timeout)
        return Command(["/bin/sh", "-c", command], self._given_root, self._env, seconds, backend=self._storage)
