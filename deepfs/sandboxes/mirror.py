"""Copies of files of other backends in a sandbox, so that commands can use them.

A copy is kept by content: what a sandbox holds is asked once, by a command that prints the SHA-256 of each file, and
from then on only what changed is sent, as an archive in the command that unpacks it, or uploaded if it is too long for
a command. A list in the sandbox names the files that were copied, so that others in the directory stay as they are.
"""

import gzip
import io
import os
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from shlex import quote
from time import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from deepfs.backends.composite import CompositeBackend, mount_of
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.text.visible import one_line
from deepfs.threads.locks import path_locks
from deepfs.types import ExecuteResponse

if TYPE_CHECKING:
    from tarfile import TarFile

__all__ = ["MirroredFile", "SandboxMirror", "command_path", "executor_of", "reachable_path"]

_LIST: Final = ".deepfs-files"
"""The list of the copied files, in the directory of the copy."""
_ARCHIVE: Final = ".deepfs-files.tar.gz"
_STATE: Final = ".deepfs-files.state"
_MAX_COMMAND: Final = 90_000
_MAX_STATE: Final = 40_000
_MAX_BYTES: Final = 100 * 1024 * 1024
"""The most content of a copy."""


class MirroredFile(NamedTuple):
    """A file to copy: the SHA-256 of its content, and whether it may be executed."""

    digest: str
    is_executable: bool = False


Read = Callable[[list[str]], Awaitable[Mapping[str, bytes]]]
"""Returns the contents of files, by the relative paths that it is given; files that it leaves out are not copied."""


def executor_of(backend: object) -> BackendProtocol | None:
    """The backend in whose storage commands run: that of a composite, or `backend` itself; None if it runs none."""
    if not isinstance(backend, BackendProtocol) or not supports_execute(backend):
        return None
    inner: object = backend
    while isinstance(inner, WrapperBackend):
        inner = inner.inner
    return executor_of(inner.executor) if isinstance(inner, CompositeBackend) else backend


async def command_path(sandbox: BackendProtocol, path: str) -> str:
    """The path for commands of the file `path` of a sandbox."""
    return await in_thread(partial(_command_path, sandbox, path))


def _command_path(sandbox: BackendProtocol, path: str) -> str:
    """Blocks: with a relative root it makes a system call."""
    inner, _ = _innermost(sandbox, "/")
    told = getattr(inner, "sandbox_path", None) or getattr(inner, "host_path", None)
    return str(told(path)) if told is not None else path


async def reachable_path(backend: BackendProtocol, sandbox: BackendProtocol, path: str) -> str | None:
    """The path by which commands reach a directory of `backend` as it is; None if they do not.

    They do if it is one of the sandbox itself, or one on the disk of a machine where commands are not confined.
    """
    place = await backend.astorage_place(path)
    if place.keys & (await sandbox.astorage_place(path)).keys:
        return await command_path(sandbox, path)
    disk, inner = _innermost(backend, path)
    runner, _ = _innermost(sandbox, "/")
    if not isinstance(disk, FilesystemBackend) or not isinstance(runner, LocalShellBackend):
        return None
    if not place.keys & (await disk.astorage_place(inner)).keys:
        return None  # A wrapper has other paths.
    return await in_thread(lambda: os.path.join(disk.cwd, inner[1:])) if disk.virtual_mode else inner


def _innermost(backend: BackendProtocol, path: str) -> tuple[BackendProtocol, str]:
    """The backend with the files at `path`, without wrappers, and the path in it."""
    while True:
        if isinstance(backend, WrapperBackend):
            backend = backend.inner
        elif isinstance(backend, CompositeBackend):
            backend, path = mount_of(backend, path)
        else:
            return backend, path


class SandboxMirror:
    """Keeps a copy of files in a directory of a sandbox.

    Scripts get the mode 755 and other files 644. Files that are gone are removed. A file that exists in the directory
    and was not copied by a mirror is never replaced or removed.

    Args:
        sandbox: A backend that runs commands with a POSIX shell, `tar`, `gzip`, `base64`, `find` and `sha256sum`.
        directory: The directory, as a path for file operations of the sandbox.
    """

    def __init__(self, sandbox: BackendProtocol, directory: str) -> None:
        self._sandbox = cast("SandboxBackendProtocol", sandbox)
        self._directory = directory
        self._within = ""
        self._held: dict[str, MirroredFile] | None = None
        self._owned: set[str] = set()
        self._others: dict[str, str] = {}
        self._id: object = None

    async def update(self, files: Mapping[str, MirroredFile], read: Read) -> list[str]:
        """Make the copy equal to `files`. No command is run if it was equal after the last call.

        Args:
            files: The files by their paths relative to the directory.
            read: Returns the contents of the files that are to be sent.

        Returns:
            Warnings: files that could not be copied, and why. They are the same as long as nothing changes.

        Raises:
            DeepFSError: The sandbox failed; the next call looks at what it holds.
        """
        async with path_locks(("sandbox mirror", self._sandbox_id())).hold(self._directory):
            try:
                self._within = self._within or await command_path(self._sandbox, self._directory)
                return await self._updated(files, read)
            except BaseException:
                self._held = None  # Not known, also if the call was cancelled.
                raise

    async def _updated(self, files: Mapping[str, MirroredFile], read: Read) -> list[str]:
        if self._held is None or self._id != self._sandbox_id():
            await self._look(files)
        held = self._held or {}
        foreign = {path for path, file in files.items() if self._others.get(path, file.digest) != file.digest}
        wanted = {path: file for path, file in files.items() if path not in foreign}
        changed = [path for path, file in wanted.items() if held.get(path) != file]
        gone = sorted(self._owned - files.keys())
        if changed or gone:
            contents = await read(changed)
            missing = {path for path in changed if path not in contents}
            wanted = {path: file for path, file in wanted.items() if path not in missing}
            await self._apply({path: contents[path] for path in changed if path in contents}, gone, wanted)
        return [self._kept(path) for path in sorted(foreign)]

    def _sandbox_id(self) -> object:
        return getattr(self._sandbox, "id", id(self._sandbox))

    def _kept(self, path: str) -> str:
        return f"{one_line(self._within)}/{path} exists in the sandbox already and stays as it is there"

    # --- looking ---

    async def _look(self, files: Mapping[str, MirroredFile]) -> None:
        """Ask which files the sandbox holds and which of them are copies."""
        digests, self._owned = _held_files(await self._run_look())
        self._others = {path: digest for path, digest in digests.items() if path not in self._owned}
        # Whether a file may be executed follows from its content.
        same = {path for path, file in files.items() if digests.get(path) == file.digest}
        self._held = {path: files[path] for path in same & self._owned}
        self._id = self._sandbox_id()

    async def _run_look(self) -> str:
        nonce = token_hex(8)
        command = _LOOK.format(nonce=nonce, directory=quote(self._within), list=_LIST, state=_STATE, most=_MAX_STATE)
        answer = await self._run(command, f"@end {nonce}")
        if f"@large {nonce}" not in answer:
            return answer.partition(f"@begin {nonce}\n")[2].partition(f"@end {nonce}")[0]
        [state] = await self._sandbox.adownload_files([paths.join(self._directory, _STATE)])
        if state.content is None:
            raise BackendError(None, f"what the sandbox holds in {self._within} cannot be read: {state.error}")
        return state.content.decode("utf-8", "replace")

    # --- changing ---

    async def _apply(
        self, contents: Mapping[str, bytes], gone: Sequence[str], wanted: Mapping[str, MirroredFile]
    ) -> None:
        if sum(map(len, contents.values())) > _MAX_BYTES:
            raise BackendError(None, f"the files for the sandbox are more than {_MAX_BYTES:,} bytes")
        archive = await in_thread(partial(_archive, contents, self._owned, wanted))
        nonce = token_hex(8)
        removal = _removal(gone, nonce)
        inline = b64encode(archive).decode()
        if len(inline) + len(removal) > _MAX_COMMAND:
            inline = ""
            await self._upload(archive)
        unpack = f"base64 -d <<'{nonce}' | gzip -dc | tar -xof - || exit 1\n{inline}\n{nonce}\n"
        unpack = unpack if inline else f"gzip -dc <{_ARCHIVE} | tar -xof - || exit 1\nrm -f {_ARCHIVE}\n"
        there = quote(self._within)
        head = f"umask 022\nmkdir -p {there} && cd {there} || exit 1\nrm -f {_STATE}\n"
        await self._run(f"{head}{removal}{unpack}echo @end {nonce}\n", f"@end {nonce}")
        self._owned = {*wanted}
        self._others = {path: digest for path, digest in self._others.items() if path not in wanted}
        self._held = {**wanted}

    async def _upload(self, archive: bytes) -> None:
        [sent] = await self._sandbox.aupload_files([(paths.join(self._directory, _ARCHIVE), archive)])
        if sent.error is not None:
            raise BackendError(None, f"the sandbox did not take the files: {sent.error}")

    async def _run(self, command: str, end: str) -> str:
        done = await self._sandbox.aexecute(command)
        if done.exit_code != 0 or end not in done.output:
            raise BackendError(None, f"a command that copies files to {self._within} failed: {_told(done)}")
        return done.output


_LOOK: Final = """
LC_ALL=C
export LC_ALL
cd {directory} 2>/dev/null || {{ echo '@begin {nonce}'; echo '@end {nonce}'; exit 0; }}
command -v sha256sum >/dev/null && command -v tar >/dev/null || {{ echo 'it has no sha256sum or no tar'; exit 1; }}
umask 022
{{
    sed 's/^/+/' {list} 2>/dev/null
    find . -type f ! -name '{list}*' -exec sha256sum {{}} + 2>/dev/null
}} >{state} || exit 1
echo '@begin {nonce}'
if [ "$(wc -c <{state})" -gt {most} ]; then
    echo '@large {nonce}'
else
    cat {state}
    rm -f {state}
fi
echo '@end {nonce}'
"""

_HELD_FILE: Final = re.compile(r"([0-9a-f]{64}) [ *]\./(.+)")


def _held_files(state: str) -> tuple[dict[str, str], set[str]]:
    """The SHA-256 of each file of the sandbox, and the names of those that were copied."""
    lines = state.split("\n")
    found = (match.groups() for line in lines if (match := _HELD_FILE.fullmatch(line)))
    return {path: digest for digest, path in found}, {line[1:] for line in lines if line.startswith("+") and line[1:]}


def _removal(gone: Iterable[str], nonce: str) -> str:
    """Commands that remove files, and directories that are empty then."""
    names = "".join(f"./{path}\n" for path in gone)
    if not names:
        return ""
    one = 'rm -f -- "$file"; rmdir -p -- "${file%/*}" 2>/dev/null'
    return f"while IFS= read -r file; do {one}; done <<'{nonce}'\n{names}{nonce}\n"


def _archive(contents: Mapping[str, bytes], owned: Iterable[str], wanted: Mapping[str, MirroredFile]) -> bytes:
    """The files as a compressed archive, with the list of copied files at both ends.

    The first list names all files that were or will be copies, so that whatever is unpacked when the command is killed
    counts as a copy.
    """
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, _LIST, _lines({*owned, *wanted}))
        for path, content in sorted(contents.items()):
            _add(archive, f"./{path}", content, 0o755 if wanted[path].is_executable else 0o644)
        _add(archive, _LIST, _lines(wanted))
    return gzip.compress(buffer.getvalue(), 6)


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in sorted(names)).encode()


def _add(archive: "TarFile", name: str, content: bytes, mode: int = 0o644) -> None:
    from tarfile import TarInfo

    entry = TarInfo(name)
    # A time of its own: compiled modules of Python count as current while size and time of their source are the same.
    entry.size, entry.mode, entry.mtime = len(content), mode, int(time())
    archive.addfile(entry, io.BytesIO(content))


def _told(done: ExecuteResponse) -> str:
    code = "it was stopped" if done.exit_code is None else f"exit code {done.exit_code}"
    return f"{code}, {one_line(done.output.strip() or 'no output', 200)}"
