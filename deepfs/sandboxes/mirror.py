"""Copies of files of other backends in a sandbox, so that commands can use them.

A copy is kept by content: what a sandbox holds is asked once, by a command that prints the SHA-256 of each file, and
from then on only what changed is sent, as an archive in the command that unpacks it, or uploaded if it is too long for
a command. A list in the sandbox names the files that were copied, so that others in the directory stay as they are.

Nothing is written or removed through links that commands made: the command that uses a directory checks it. A process
that swaps the directory at this moment can mislead it, but only to write what this process can write itself.
"""

import gzip
import io
import os
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from functools import partial
from secrets import token_hex
from shlex import quote
from time import time
from typing import Final, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from deepfs._brief import arguments
from deepfs.backends.composite import CompositeBackend, mount_of
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.storage.gathering import in_batches
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.text.visible import one_line
from deepfs.threads.locks import path_locks
from deepfs.types import ExecuteResponse

_LIST: Final = ".deepfs-files"
"""The list of the copied files, in the directory of the copy. Other files of a mirror have longer, random names."""
_MAX_COMMAND: Final = 90_000
_MAX_NAMES: Final = 20_000
"""The most characters of names in one command; each may take four bytes."""
_MAX_STATE: Final = 40_000
_MAX_BYTES: Final = 100 * 1024 * 1024
"""The most content of a copy."""


class MirroredFile(NamedTuple):
    """A file to copy: the SHA-256 of its content, and whether it may be executed."""

    digest: str
    is_executable: bool = False


Read = Callable[[list[str]], Awaitable[Mapping[str, bytes]]]
"""Returns the contents of files, by the relative paths that it is given; files that it leaves out are not copied."""


class _Copies:
    """The files in a directory of a sandbox: the copies that mirrors made there, and all others."""

    def __init__(self) -> None:
        self.sandbox_id: object = None
        self.held: dict[str, MirroredFile] | None = None
        """The copies as they are; None if that is not known."""
        self.owned: set[str] = set()
        """The names of all copies, also of those that commands removed."""
        self.others: Mapping[str, str] = {}
        """Files and links that are not copies: the digest, or an empty text for links and files that cannot be read."""
        self.occupied: Set[str] = frozenset()
        """The directories that contain files or links that are not copies."""
        self.wanted: WeakKeyDictionary[SandboxMirror, Collection[str]] = WeakKeyDictionary()
        """The names that each mirror of the directory wants there."""

    def note(self, answer: str) -> dict[str, MirroredFile]:
        """Take over what the command `_LOOK` printed; return the copies as they are."""
        lines = answer.split("\n")
        digests = {match[2]: match[1] for line in lines if (match := _DIGEST.fullmatch(line))}
        names = {match[2]: match[1] for line in lines if (match := _NAME.fullmatch(line))}
        self.owned = {line[1:] for line in lines if line.startswith("+") and _is_plain(line[1:])}
        self.set_others({name: digests.get(name, "") for name in names.keys() - self.owned})
        return {name: MirroredFile(digests[name], names.get(name) == "x") for name in digests.keys() & self.owned}

    def set_others(self, others: Mapping[str, str]) -> None:
        self.others = others
        self.occupied = {directory for name in others for directory in paths.ancestors(name)}

    def obstacle(self, path: str, digest: str) -> str | None:
        """The path of a file or link that is not a copy and prevents one at `path`; None if none does."""
        is_in_place = path in self.occupied or self.others.get(path, digest) != digest
        return path if is_in_place else self.obstacle_above(path)

    def obstacle_above(self, path: str) -> str | None:
        return next((each for each in paths.ancestors(path) if each in self.others), None)

    def names_of_others(self, mirror: "SandboxMirror") -> set[str]:
        return {name for each, names in self.wanted.items() if each is not mirror for name in names}


_known: WeakValueDictionary[tuple[int, str], _Copies] = WeakValueDictionary()
"""By the `id` of a sandbox and a directory: several agents of a process may mirror the same files, or some of them.

A mirror holds both its entry and its sandbox, so no later sandbox has the `id` of an entry.
"""


class SandboxMirror:
    """Keeps a copy of files in a directory of a sandbox.

    Scripts get the mode 755 and other files 644. Files that are gone are removed, unless another mirror of the process
    has them. What exists in the directory and was not copied by a mirror is never replaced or removed.

    Args:
        sandbox: A backend that runs commands with a POSIX shell, `tar`, `gzip`, `base64`, `find` and `sha256sum`.
        directory: The directory, as a path for file operations of the sandbox.
    """

    def __init__(self, sandbox: BackendProtocol, directory: str) -> None:
        self._sandbox = cast("SandboxBackendProtocol", sandbox)
        self._directory = directory
        self._within = self._enter = ""
        self._copies = _known.setdefault((id(sandbox), directory), _Copies())

    def __repr__(self) -> str:
        return f"SandboxMirror({arguments(self._sandbox, self._directory)})"

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
        copies = self._copies
        async with path_locks(("sandbox mirror", self._sandbox_id())).hold(self._directory):
            held, copies.held = copies.held, None  # Not known if this fails or is cancelled.
            self._within = self._within or await command_path(self._sandbox, self._directory)
            self._enter = self._enter or _enter_commands(self._within, await command_path(self._sandbox, "/"))
            if held is not None and copies.sandbox_id == self._sandbox_id():
                # It fails if commands changed the directory, or the sandbox is another one by now.
                with suppress(BackendError):
                    return await self._send(files, read, held)
            held = await in_thread(partial(copies.note, await self._look()))
            copies.sandbox_id = self._sandbox_id()
            return await self._send(files, read, held)

    async def _send(self, files: Mapping[str, MirroredFile], read: Read, held: dict[str, MirroredFile]) -> list[str]:
        """Send and remove what differs from `held`; return warnings."""
        copies = self._copies
        objections = {path: self._objection(path, file.digest) for path, file in files.items()}
        wanted = {path: file for path, file in files.items() if objections[path] is None}
        copies.wanted[self] = frozenset(wanted)
        changed = [path for path, file in wanted.items() if held.get(path) != file]
        # Copies that another mirror wants stay. Nothing is removed through a link that commands made of a directory.
        staying = (copies.owned & copies.names_of_others(self)) - wanted.keys()
        gone = {path for path in copies.owned - wanted.keys() - staying if copies.obstacle_above(path) is None}
        if changed or gone:
            contents = await read(changed) if changed else {}
            wanted = {path: file for path, file in wanted.items() if path not in changed or path in contents}
            sent = {path: contents[path] for path in changed if path in contents}
            await self._apply(sent, gone, wanted, {*wanted, *staying})
            held = {**{path: held[path] for path in staying & held.keys()}, **wanted}
            copies.owned = {*wanted, *staying}
            copies.set_others({path: digest for path, digest in copies.others.items() if path not in wanted})
        copies.held = held
        return sorted({each for each in objections.values() if each is not None})

    def _sandbox_id(self) -> object:
        return getattr(self._sandbox, "id", id(self._sandbox))

    def _objection(self, path: str, digest: str) -> str | None:
        """Why a file is not copied."""
        if not _is_plain(path):
            return f"{one_line(path)} is not copied: its name has parts or characters that are not allowed"
        found = self._copies.obstacle(path, digest)
        if found is None:
            return None
        return f"{one_line(self._within)}/{found} exists in the sandbox already and stays as it is there"

    # --- looking ---

    async def _look(self, most: int = _MAX_STATE) -> str:
        """Ask which files the sandbox holds and which of them are copies; more than `most` bytes are downloaded."""
        nonce = token_hex(8)
        name = f"{_LIST}-{nonce}"
        enter = self._enter.replace(_MISSING, f"{{ echo '@begin {nonce}'; echo '@end {nonce}'; exit 0; }}")
        done = await self._run(f"{enter}{_LOOK.format(nonce=nonce, list=_LIST, state=name, most=most)}", nonce)
        if f"@large {nonce}" in done.output:
            path = paths.join(self._directory, name)
            [file] = await self._sandbox.adownload_files([path])
            await self._sandbox.adelete(path)
            if file.content is None:
                raise BackendError(None, f"what the sandbox holds in {self._within} cannot be read: {file.error}")
            return file.content.decode("utf-8", "replace")
        if done.truncated:
            return await self._look(most=0)
        return done.output.replace("\r\n", "\n").partition(f"@begin {nonce}\n")[2].partition(f"@end {nonce}")[0]

    # --- changing ---

    async def _apply(
        self,
        contents: Mapping[str, bytes],
        gone: Collection[str],
        files: Mapping[str, MirroredFile],
        listed: Collection[str],
    ) -> None:
        """Unpack `contents`, the changed ones of `files`, remove the files `gone`, and list the copies `listed`."""
        if sum(map(len, contents.values())) > _MAX_BYTES:
            raise BackendError(None, f"the files for the sandbox are more than {_MAX_BYTES:,} bytes")
        archive = await in_thread(partial(_archive, contents, files, {*self._copies.owned, *listed}, listed))
        nonce = token_hex(8)
        enter = self._enter.replace(_MISSING, 'mkdir -- "./$part" || exit 1')
        if self._copies.owned:
            enter += f"[ -f {_LIST} ] || {{ echo 'the copies are gone'; exit 1; }}\n"
        *before, last = _prepare_commands([*contents, *gone], gone, nonce)
        for each in before:
            await self._run(f"{enter}{each}echo @end {nonce}\n", nonce)
        inline = b64encode(archive).decode()
        if len(inline) + len(last.encode()) <= _MAX_COMMAND:
            unpack = f"base64 -d <<'{nonce}' | gzip -dc | tar -xof - || exit 1\n{inline}\n{nonce}\n"
            await self._run(f"{enter}{last}{unpack}echo @end {nonce}\n", nonce)
        else:
            name = f"{_LIST}-{nonce}"
            path = paths.join(self._directory, name)
            try:
                [uploaded] = await self._sandbox.aupload_files([(path, archive)])
                if uploaded.error is not None:
                    raise BackendError(None, f"the sandbox did not take the files: {uploaded.error}")
                unpack = f"gzip -dc <{name} | tar -xof - || exit 1\nrm -f {name}\n"
                await self._run(f"{enter}{last}{unpack}echo @end {nonce}\n", nonce)
            except BackendError:
                await self._sandbox.adelete(path)
                raise

    async def _run(self, command: str, nonce: str) -> ExecuteResponse:
        """Run a command that prints `@end` and the nonce when all is done."""
        done = await self._sandbox.aexecute(command)
        if done.exit_code != 0 or f"@end {nonce}" not in done.output:
            code = "it was stopped" if done.exit_code is None else f"exit code {done.exit_code}"
            output = one_line(done.output.strip() or "no output", 200)
            raise BackendError(None, f"a command that copies files to {self._within} failed: {code}, {output}")
        return done


# --- commands --------------------------------------------------------------------------------------------------------

_MISSING: Final = "@missing"
"""The place in `_enter_commands` for what to do if a directory is missing."""
_ENTER: Final = """
LC_ALL=C
export LC_ALL
umask 022
mkdir -p -- {root} && cd -P -- {root} || exit 1
for part in {parts}; do
    [ ! -L "./$part" ] || {{ echo "$part is a link"; exit 1; }}
    [ -e "./$part" ] || {missing}
    cd -P -- "./$part" || exit 1
done
"""
_LOOK: Final = """
command -v sha256sum >/dev/null && command -v tar >/dev/null || {{ echo 'it has no sha256sum or no tar'; exit 1; }}
find . -maxdepth 1 -type f -name '{list}-*' -mmin +60 -exec rm -f {{}} + 2>/dev/null
{{
    [ ! -f {list} ] || [ -L {list} ] || sed 's/^/+/' {list}
    find . -type f ! -name '{list}*' -exec sha256sum {{}} + 2>/dev/null
    find . ! -type d ! -name '{list}*' | sed 's/^/n/'
    find . ! -type d ! -name '{list}*' -perm -100 2>/dev/null | sed 's/^/x/'
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
_DIGEST: Final = re.compile(r"([0-9a-f]{64}) [ *]\./(.+)")
_NAME: Final = re.compile(r"([xn])\./(.+)")


def _enter_commands(within: str, root: str) -> str:
    """Commands that enter the directory `within`, without following links beneath `root`."""
    root = root.rstrip("/") or "/"
    is_beneath = paths.is_beneath(within, root)
    parts = map(quote, paths.relative(within, root).split("/") if is_beneath else ())
    return _ENTER.format(root=quote(root if is_beneath else within), parts=" ".join(parts), missing=_MISSING)


def _is_plain(path: str) -> bool:
    """Whether a name can be copied: a relative path of characters that print, and no file of a mirror."""
    parts = path.split("/")
    return path.isprintable() and not {"", ".", ".."} & {*parts} and not parts[-1].startswith(_LIST)


def _prepare_commands(names: Iterable[str], gone: Collection[str], nonce: str) -> list[str]:
    """Commands that fail if a directory of `names` is a link, and remove the files `gone` and then empty directories.

    They are as many as keep each of them short.
    """
    directories = {directory for name in names for directory in paths.ancestors(name)} - {*gone}
    lines = [*(f"d{each}\n" for each in sorted(directories)), *(f"r{each}\n" for each in sorted(gone))]
    parts = ["".join(some) for some in in_batches(lines, len, most_bytes=_MAX_NAMES)]
    return [_PREPARE.format(lines=part, nonce=nonce) for part in parts] or [""]


_PREPARE: Final = """
while IFS= read -r line; do
    name="./${{line#?}}"
    case "$line" in
        d*) [ ! -L "$name" ] || {{ echo "$name is a link"; exit 1; }} ;;
        *) rm -f -- "$name"; rmdir -p -- "${{name%/*}}" 2>/dev/null ;;
    esac
done <<'{nonce}'
{lines}{nonce}
"""


def _archive(
    contents: Mapping[str, bytes], files: Mapping[str, MirroredFile], before: Iterable[str], after: Iterable[str]
) -> bytes:
    """The files as a compressed archive, with the list of copied files at both ends.

    The first list, `before`, names all files that were or will be copies, so that whatever is unpacked when the command
    is killed counts as a copy.
    """
    import tarfile

    lists = ["".join(f"{name}\n" for name in sorted(names)).encode() for names in (before, after)]
    entries = [(f"./{path}", each, 0o755 if files[path].is_executable else 0o644) for path, each in contents.items()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content, mode in [(_LIST, lists[0], 0o644), *sorted(entries), (_LIST, lists[1], 0o644)]:
            entry = tarfile.TarInfo(name)
            # A time of its own: compiled modules of Python are current while their source has its size and time.
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time())
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), 6)


# --- which files commands reach, and by which paths -------------------------------------------------------------------


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
