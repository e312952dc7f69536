"""Commands over the files of any backend, without a process: a bash interpreter with a filesystem in memory.

For each command the names of the whole tree are put into the memory of the interpreter, and the contents that it may
read. What it changed goes back by conditional writes, so a file that others changed meanwhile is never overwritten.
Until then a command has no effect, so it may be run again: if it changed files whose content it did not have.
"""

import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from deepfs.backends.protocol import BACKEND_TYPES, Capabilities, SandboxBackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import AlreadyExistsError, ConflictError, DeepFSError, ErrorCode
from deepfs.operations import Execute, Operation
from deepfs.process import Captured, Chunk
from deepfs.storage.gathering import gather_each, in_batches
from deepfs.text import paths
from deepfs.text.arguments import check_installed, check_integer, check_number, seconds_of
from deepfs.text.entries import EntryChange, TreeEntry
from deepfs.text.lines import check_text, decode, version
from deepfs.text.visible import display_path, one_line, stop_note, time_up
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.types import ExecuteResponse, error_from, item_error

if TYPE_CHECKING:
    from bashkit import Bash, FileSystem, ScriptAnalysis

__all__ = ["VirtualShell"]

# --- what a command may read -----------------------------------------------------------------------------------------

_BUILT_IN_FILES: Final = 10_000
_BUILT_IN_BYTES: Final = 100_000_000
_BUILT_IN_FILE_BYTES: Final = 10_000_000
_BUILT_IN_COMMANDS: Final = 100_000
"""Limits that the interpreter has itself."""

_BLIND: Final = frozenset(
    {":", "break", "cd", "continue", "echo", "exit", "export", "false", "let", "local", "mkdir", "printf", "pwd"}
    | {"read", "return", "rmdir", "seq", "set", "shift", "sleep", "true", "unset"}
)
"""Commands that read no file that is named in their arguments, whatever these are."""
_PLAIN: Final = _BLIND | frozenset(
    {"[", "awk", "base64", "basename", "cat", "chmod", "cmp", "comm", "cp", "cut", "diff", "dirname", "egrep", "expand"}
    | {"fgrep", "fold", "grep", "head", "join", "jq", "ls", "mapfile", "mv", "nl", "od", "paste", "readarray", "rev"}
    | {"rm", "sed", "sort", "tac", "tail", "tee", "test", "touch", "tr", "uniq", "wc"}
)
"""Commands that read only files that are named in their arguments, but for what `_ELSEWHERE` has."""
_ELSEWHERE: Final = r"getline|system|ARGV|files0|import|include|PATH|-(?:C|s|nt|ot|ef)\b|-[\"'$\\`]"
"""Names that come from elsewhere; and looks at sizes and times, which a file without its content does not have."""
_WHOLE: Final = {
    "awk": r"-\w*f.*|--file.*|.*\|.*",
    "cp": r"-\w*[rRa]\w*|--[rad].*",
    "egrep": r"-\w*[rR]\w*|-d.*|--[rd].*",
    "jq": r"-\w*f.*|--f.*",
    "ls": r"-(?![1aAdFpR]+$).*",
    "sed": r"-\w*f.*|--f.*",
}
"""Arguments with which these commands may read any file, or show its size."""
_WHOLE_AS: Final = {"fgrep": "egrep", "grep": "egrep"}
_ODD_PATTERN: Final = r".*(?:\{.*(?:,|\.\.).*\}|\.\.|//|/\./|\[\^|\[:|[(~]).*"
"""Patterns of bash that `fnmatch` does not have."""
_DROPS_RETURNS: Final = r"\b(?:column|diff|fmt|nl|split|xargs)\b"
"""Commands that lose the carriage returns of their input."""
_DEVICES: Final = r"/dev/(?:zero|u?random)\b"


def _find_named(analysis: "ScriptAnalysis", command: str, files: Collection[str]) -> Collection[str]:
    """The files whose content a command may read, and perhaps more; all if its words do not tell.

    A file counts as named if its last name occurs anywhere in the command, or if a pattern matches its path.
    """
    words: list[str] = []
    known = _PLAIN | {*analysis.functions}
    for each in analysis.commands:
        if each.is_assignment_only:
            continue
        given = [arg for arg in each.args if arg is not None]
        if each.name not in known or (len(given) < len(each.args) and each.name not in _BLIND):
            return files
        reads_any = _WHOLE.get(_WHOLE_AS.get(each.name, each.name))
        if reads_any is not None and any(re.fullmatch(reads_any, arg, re.DOTALL) for arg in given):
            return files
        if each.name == "diff" and not all(arg[:1] == "-" or f"/{arg.lstrip('/')}" in files for arg in given):
            return files  # It compares directories.
        words += given
    redirects = [each.path for each in analysis.redirects]
    words += [path for path in redirects if path is not None]
    text = "\n".join([command, *words])
    patterns = [word for word in words if re.search(r"[*?\[{]", word)]
    if (
        analysis.is_opaque
        or None in redirects
        or re.search(_ELSEWHERE, text)
        or any(re.fullmatch(_ODD_PATTERN, pattern, re.DOTALL) for pattern in patterns)
    ):
        return files
    globs = [f"*{pattern.lstrip('./')}" for pattern in patterns]
    return [path for path in files if paths.name(path) in text or any(fnmatchcase(path, glob) for glob in globs)]


# --- running ---------------------------------------------------------------------------------------------------------

_NOT_RUN: Final = 126
_SYNTAX_ERROR: Final = 2
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_SCRIPT_MODE: Final = 0o755
_MARKER_BYTES: Final = 24


class _RefusedError(Exception):
    """A command is not run, or nothing that it changed is stored; the text says why."""

    def __init__(self, reason: str, exit_code: int = _NOT_RUN) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class _View:
    """The tree as a command sees it: all names, and the contents that were brought in."""

    def __init__(self, entries: Iterable[TreeEntry], links: Mapping[str, str]) -> None:
        self.entries: dict[str, TreeEntry] = {entry.path: entry for entry in entries}
        self.links: Mapping[str, str] = links
        self.contents: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}
        """What is not shown, and the reasons."""
        self._nonce = token_hex(_MARKER_BYTES)

    @property
    def files(self) -> list[str]:
        return [path for path, entry in self.entries.items() if entry.kind == "file"]

    @property
    def files_without_content(self) -> set[str]:
        return {path for path in self.files if path not in self.contents}

    def mode(self, path: str) -> int:
        """The mode that a path has for commands, or would have if it were new."""
        entry = self.entries.get(path)
        if entry is not None and entry.mode is not None:
            return entry.mode
        if entry is not None and entry.kind == "directory":
            return _DIRECTORY_MODE
        # Where the storage has no modes, scripts can be executed.
        return _SCRIPT_MODE if self.contents.get(path, b"").startswith(b"#!") else _FILE_MODE

    def size(self, path: str) -> int:
        content = self.contents.get(path)
        return self.entries[path].size or 0 if content is None else len(content)

    def leave_out(self, path: str, reason: str) -> None:
        """Show a file or directory no more."""
        self.left_out[path] = reason
        del self.entries[path]

    def marker(self, path: str) -> bytes:
        """What stands in a file that was not brought in. No command may read it."""
        return f"{self._nonce} {path}\n".encode()

    def shows_marker(self, *contents: bytes) -> bool:
        nonce = self._nonce.encode()
        return any(nonce in content for content in contents)


class _Run(NamedTuple):
    """What a command did in the memory of the interpreter."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    error: str | None
    """Why the interpreter gave up. Nothing that the command changed counts then."""
    seconds: float
    is_cut: bool
    files: dict[str, tuple[bytes, int]]
    """The content and the mode of each file."""
    directories: set[str]
    links: set[str]


class _Limits(NamedTuple):
    seconds: float
    memory: int
    commands: int


class _Interruption(Deadline):
    """Cancels the interpreter when its caller is cancelled."""

    bash: "Bash | None" = None

    def cancel(self) -> None:
        super().cancel()
        if self.bash is not None:
            self.bash.cancel()


def _run(stop: _Interruption, command: str, view: _View, limits: _Limits) -> _Run:
    """Run a command on a new filesystem in memory; for a worker thread."""
    from bashkit import Bash, FileSystem

    files = FileSystem()
    for each in files.read_dir("/"):
        files.remove(f"/{each['name']}", True)
    for path, entry in sorted(view.entries.items()):
        try:
            if entry.kind == "link":
                files.symlink(view.links[path], path)
                continue
            usual = _FILE_MODE
            if entry.kind == "directory":
                files.mkdir(path, True)
                usual = _DIRECTORY_MODE
            else:
                content = view.contents.get(path)
                files.write_file(path, view.marker(path) if content is None else content)
            if (mode := view.mode(path)) != usual:
                files.chmod(path, mode)
        except RuntimeError:  # Control characters, or too deep.
            view.leave_out(path, "the interpreter does not take its path")
    if "/tmp" in command and not files.exists("/tmp"):
        files.mkdir("/tmp")
    bash = stop.bash = Bash(
        cwd="/",
        env={"HOME": "/"},
        max_commands=limits.commands,
        max_loop_iterations=limits.commands,
        max_memory=limits.memory,
        timeout_seconds=limits.seconds,
    )
    bash.mount("/", files)
    if stop.is_cancelled:
        bash.cancel()
    began = time.monotonic()
    result = bash.execute_sync(command)
    seconds = time.monotonic() - began
    out, err = (text.encode(errors="surrogatepass") for text in (result.stdout, result.stderr))
    is_cut = result.stdout_truncated or result.stderr_truncated
    done = _Run(out, err, result.exit_code, result.error, seconds, is_cut, {}, set(), set())
    if result.error is None:
        _look(files, "/", done)
    return done


def _look(files: "FileSystem", directory: str, done: _Run) -> None:
    """Add what is in a directory to `done`."""
    for each in files.read_dir(directory):
        path, kind = paths.join(directory, each["name"]), each["metadata"]["file_type"]
        if kind == "directory":
            done.directories.add(path)
            _look(files, path, done)
        elif kind == "file":
            done.files[path] = files.read_file(path), each["metadata"]["mode"]
        else:
            done.links.add(path)


# --- what changed ----------------------------------------------------------------------------------------------------

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


class _Changes(NamedTuple):
    """What is to be stored."""

    made: list[str]
    """Directories without files."""
    written: dict[str, bytes]
    """New files, and those with another content."""
    modes: list[EntryChange]
    deleted: list[str]
    removed: list[str]
    """Directories."""


def _compare(command: str, view: _View, done: _Run) -> _Changes:
    """What a command changed. Raises _RefusedError if that cannot be stored as it is."""
    before = {path for path, entry in view.entries.items() if entry.kind == "directory"}
    links = {path for path, entry in view.entries.items() if entry.kind == "link"}
    if done.links != links:
        path = min(done.links ^ links)
        raise _RefusedError(f"Nothing was changed: {display_path(path)} is a link or a pipe, which is not kept here")
    turned = (done.files.keys() & before) | (done.directories & view.entries.keys() - before)
    if turned:
        raise _RefusedError(
            f"Nothing was changed: {display_path(min(turned))} is a file before or after, and a directory"
        )
    written = {path: content for path, (content, _) in done.files.items() if view.contents.get(path) != content}
    written = {path: content for path, content in written.items() if content != view.marker(path)}
    known = [command.encode(), *(each for each in view.contents.values() if decode(each) is not None)]
    if not any(_REPLACEMENT in each for each in known):
        for path, content in written.items():
            if _REPLACEMENT in content:
                what = f"{display_path(path)} was made of bytes that are no text (UTF-8), which a command here spoiled"
                raise _RefusedError(f"Nothing was changed: {what}")
    modes = [
        EntryChange(path, "set_mode", mode)
        for path, (_, mode) in done.files.items()
        if mode != view.mode(path) and (path not in view.entries or "chmod" in command)
    ]
    made = done.directories - before - {each for path in done.files for each in paths.ancestors(path)} - {"/tmp"}
    deleted = sorted({*view.files} - done.files.keys())
    return _Changes(sorted(made), written, modes, deleted, sorted(before - done.directories, reverse=True))


# --- the backend -----------------------------------------------------------------------------------------------------

_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256
_WRITTEN_AT_ONCE: Final = 16
_MOST_NOTES: Final = 20
_NAME_LENGTH: Final = 50
_NOWHERE: Final = "/dev/deepfs-nowhere"
"""What a link that leads outside, or to nothing, leads to."""
_TAKEN: Final = (ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS, ErrorCode.IS_DIRECTORY, ErrorCode.NOT_A_DIRECTORY)
"""The errors of a write at whose path others put something."""


class VirtualShell(WrapperBackend, SandboxBackendProtocol):
    """Adds `execute` to any backend: bash commands on its files, without a process and without a network.

    The commands are run by `bashkit` (extra `shell`), an interpreter with its own versions of the usual tools. They see
    the whole tree under the paths that file operations have, and start in `/`. Each begins anew: variables and the
    working directory do not stay. Standard input is empty. Lines of stderr are marked `[stderr]`. What a command
    changed is stored when it has ended, by operations of the backend, so rules, histories and quotas of layers beneath
    hold. A command that is stopped, or reaches a limit, changes nothing.

    A file that others changed meanwhile stays as they left it. What the command wrote is then in a new file beside it,
    the end of the output names both, nothing is deleted, and the exit code is not 0. A binary file is compared just
    before it is replaced, not in one step with it.

    Owners and times of files are not kept, modes where the backend has them. A command that makes links is refused.

    Args:
        inner: The backend. One of an older protocol, or a factory, is adapted.
        max_files: The most files and directories of the tree, up to 10,000. A command on a larger tree is refused.
        max_bytes: The most bytes of the files that a command may read, up to 100,000,000; each has 10,000,000 at most.
            A command that may read more is refused.
        timeout: Seconds after which a command is ended, unless its call sets less.
        max_output_bytes: The most bytes of output that are kept, of the head and of the tail.
        max_memory: The most bytes of variables.
        max_commands: The most commands that a script runs, and the most turns of a loop, up to 100,000.

    Raises:
        TypeError: `inner` is no backend, or for an argument of another type.
        ValueError: For a number that is not positive, or over its limit.
        ModuleNotFoundError: `bashkit` is not installed.
    """

    is_synchronous: bool = False
    working_directory: str | None = "/"

    def __init__(
        self,
        inner: BACKEND_TYPES,
        *,
        max_files: int = 5_000,
        max_bytes: int = 50_000_000,
        timeout: float = 60,
        max_output_bytes: int = 100_000,
        max_memory: int = 10_000_000,
        max_commands: int = 10_000,
    ) -> None:
        check_installed("bashkit", "shell", "VirtualShell")
        super().__init__(inner)
        for name, given, most in (
            ("max_files", max_files, _BUILT_IN_FILES),
            ("max_bytes", max_bytes, _BUILT_IN_BYTES),
            ("max_commands", max_commands, _BUILT_IN_COMMANDS),
            ("max_memory", max_memory, sys.maxsize),
            ("max_output_bytes", max_output_bytes, sys.maxsize),
        ):
            check_integer(name, given)
            check_number(name, given)
            if given > most:
                raise ValueError(f"{name} must be at most {most:,}, not {given:,}")
        check_number("timeout", timeout)
        self.capabilities: Capabilities = replace(self.inner.capabilities, executes=True)
        self.command_timeout: float = timeout
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._max_output_bytes = max_output_bytes
        self._max_memory = max_memory
        self._max_commands = max_commands

    async def run(self, operation: Operation) -> Any:
        if not isinstance(operation, Execute):
            return await self.inner.arun(operation)
        check_text(operation.command, "command")
        try:
            return await self._execute(operation.command, seconds_of(operation.timeout, self.command_timeout))
        except _RefusedError as refusal:
            return ExecuteResponse(f"Error: {refusal}\n", refusal.exit_code)

    async def _execute(self, command: str, timeout: float) -> ExecuteResponse:
        view = await self._list()
        wanted = await pool.run(_choose, command, view, abandon_on_cancel=True)
        left = timeout
        while True:
            await self._fetch(view, wanted)
            _check_line_ends(command, view)
            stop = _Interruption()
            limits = _Limits(left, self._max_memory, self._max_commands)
            done = await pool.run(
                _run, stop, command, view, limits, abandon_on_cancel=True, deadline=stop, storage=self
            )
            left -= done.seconds
            if left <= 0 or done.error is not None:
                break
            wanted = await pool.run(_find_missed, view, done, abandon_on_cancel=True)
            if not wanted:
                break
        notes = [
            f"[{display_path(path)} is left out: {reason}]"
            for path, reason in view.left_out.items()
            if paths.parent(path) not in view.left_out
        ]
        exit_code: int | None = done.exit_code
        timed_out = None
        if left <= 0:
            exit_code, timed_out = None, timeout
            notes.append(stop_note(f"{time_up(timeout)}, and nothing was changed").rstrip())
        elif done.error is not None:
            notes.append("[The command was ended, and nothing was changed]")
        else:
            changes = await pool.run(_compare, command, view, done, abandon_on_cancel=True)
            notes += await self._make_directories(changes.made)
            failures = await self._store(view, changes)
            exit_code = (exit_code or 1) if failures else exit_code
            notes += failures
        output, is_cut = await self._output(done, notes)
        return ExecuteResponse(output, exit_code, is_cut or done.is_cut, timed_out=timed_out)

    async def _output(self, done: _Run, notes: list[str]) -> tuple[str, bool]:
        captured = Captured(self._max_output_bytes)
        await captured.add(Chunk("stdout", done.stdout))
        await captured.add(Chunk("stderr", done.stderr))
        output = captured.text()
        if len(notes) > _MOST_NOTES:
            notes = [*notes[:_MOST_NOTES], f"[… and {len(notes) - _MOST_NOTES:,} more of these]"]
        gap = "\n" if notes and output and not output.endswith("\n") else ""
        return output + gap + "".join(f"{note}\n" for note in notes), captured.truncated

    # --- what is brought in ---

    async def _list(self) -> _View:
        listing = await self.inner.alist_tree("/")
        if len(listing.entries) > self._max_files:
            what = f"there are {len(listing.entries):,} files and directories, and max_files is {self._max_files:,}"
            raise _RefusedError(f"The command was not run: {what}")
        entries = [entry for entry in listing.entries if entry.path != "/" and entry.kind != "special"]
        links = [entry.path for entry in entries if entry.kind == "link"]
        real = await self.inner.aresolve_paths(links) if links else []
        return _View(entries, {link: target or _NOWHERE for link, target in zip(links, real, strict=True)})

    async def _fetch(self, view: _View, wanted: Iterable[str]) -> None:
        """Bring in the contents of files. Those that cannot be read are not shown any more."""
        needed = [path for path in wanted if path not in view.contents]
        self._check_room(view, needed)
        for batch in in_batches(needed, view.size, most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
            for path, answer in zip(batch, await self.inner.adownload_files(batch), strict=True):
                if answer.error is None:
                    view.contents[path] = answer.content or b""
                else:
                    view.leave_out(path, answer.error)
            self._check_room(view, [])

    def _check_room(self, view: _View, needed: Iterable[str]) -> None:
        sizes = {path: view.size(path) for path in (*view.contents, *needed)}
        largest = max(sizes, key=sizes.__getitem__, default="")
        reason = None
        if sizes and sizes[largest] > _BUILT_IN_FILE_BYTES:
            reason = f"{display_path(largest)}, which it may read, is over {_BUILT_IN_FILE_BYTES:,} bytes"
        elif (total := sum(sizes.values())) > self._max_bytes:
            reason = f"the files that it may read have {total:,} bytes, and max_bytes is {self._max_bytes:,}"
        if reason is not None:
            raise _RefusedError(
                f"The command was not run: {reason}. Name single files, without patterns and variables."
            )

    # --- what is stored ---

    async def _store(self, view: _View, changes: _Changes) -> list[str]:
        """Store what changed, deletions last; return a note for each failure. After one, nothing is deleted."""

        async def write(path: str) -> str | None:
            return await self._write(view, path, changes.written[path])

        async def delete(path: str) -> str | None:
            result = await self.inner.adelete(path, if_match=version(view.contents[path]))
            if result.ok or result.code is ErrorCode.FILE_NOT_FOUND:
                return None
            return _note(path, "was not deleted", error_from(result))

        written = await gather_each(write, changes.written, most=_WRITTEN_AT_ONCE)
        failures = [note for note in written if note is not None]
        failures += await self._change(changes.modes, ErrorCode.UNSUPPORTED)
        if failures:
            stays = len(changes.deleted) + len(changes.removed)
            return failures + (["[So nothing was deleted or moved away]"] if stays else [])
        deleted = await gather_each(delete, changes.deleted, most=_WRITTEN_AT_ONCE)
        failures += [note for note in deleted if note is not None]
        removed = [EntryChange(path, "remove_directory") for path in changes.removed]
        return failures + await self._change(removed, ErrorCode.FILE_NOT_FOUND)

    async def _make_directories(self, made: list[str]) -> list[str]:
        """Make directories that are empty; return a note for each one that the storage cannot keep."""
        changes = [EntryChange(path, "make_directory") for path in made]
        outcomes = await self.inner.achange_entries(changes) if changes else []
        notes: list[str] = []
        for path, outcome in zip(made, outcomes, strict=True):
            if outcome.error == ErrorCode.UNSUPPORTED:
                notes.append(f"[{display_path(path)} is empty, so it is not kept]")
            elif outcome.error not in (None, ErrorCode.ALREADY_EXISTS):
                notes.append(_note(path, "was not made", item_error(outcome, outcome.error)))
        return notes

    async def _change(self, changes: list[EntryChange], harmless: ErrorCode) -> list[str]:
        outcomes = await self.inner.achange_entries(changes) if changes else []
        return [
            _note(change.path, f"{change.change} failed", item_error(outcome, outcome.error))
            for change, outcome in zip(changes, outcomes, strict=True)
            if outcome.error not in (None, harmless)
        ]

    async def _write(self, view: _View, path: str, content: bytes) -> str | None:
        """Write a file, unless others changed it; then write it beside. Returns a note of what failed."""
        base = version(view.contents[path]) if path in view.entries else None
        error = await self._write_if(path, content, base)
        if error is None:
            return None
        if error.code not in _TAKEN:
            return _note(path, "was not written", error)
        directory = "/" if error.code is ErrorCode.NOT_A_DIRECTORY else paths.parent(path)
        beside = paths.join(directory, f"{paths.name(path)[:_NAME_LENGTH]}.conflict-{token_hex(4)}")
        again = await self._write_if(beside, content, None)
        if again is not None:
            return _note(path, "was changed by others meanwhile, and what this command wrote is lost", again)
        where = f"what this command wrote is in {display_path(beside)}"
        return f"[{display_path(path)} was changed by others meanwhile: {where}]"

    async def _write_if(self, path: str, content: bytes, base: str | None) -> DeepFSError | None:
        """Write a file that still is the version `base`, or that is not there, for None."""
        text = decode(content)
        if text is not None:
            result = await self.inner.awrite(path, text, if_match=base)
            return None if result.ok else error_from(result)
        [present] = await self.inner.adownload_files([path])
        if present.error == ErrorCode.FILE_NOT_FOUND:
            is_base = base is None
        else:
            is_base = present.error is None and base == version(present.content or b"")
        if not is_base:
            return ConflictError(path) if base else AlreadyExistsError(path)
        [stored] = await self.inner.aupload_files([(path, content)])
        return None if stored.error is None else item_error(stored, "it cannot be stored")


def _choose(command: str, view: _View) -> Collection[str]:
    """The files whose contents a command needs at first. Raises _RefusedError for one that is not run."""
    from bashkit import Bash, BashError

    if re.search(_DEVICES, command):
        raise _RefusedError("The command was not run: /dev/zero, /dev/random and /dev/urandom would end too early here")
    try:
        analysis = Bash().analyze(command)
    except BashError as error:
        raise _RefusedError(f"The command was not run: {one_line(str(error))}", _SYNTAX_ERROR) from None
    return view.files if view.links else _find_named(analysis, command, view.files)


def _check_line_ends(command: str, view: _View) -> None:
    """Raise _RefusedError if a command names a file with carriage returns, and a tool that loses them."""
    if (tool := re.search(_DROPS_RETURNS, command)) is None:
        return
    for path, content in view.contents.items():
        if paths.name(path) in command and b"\r" in content:
            what = f"{display_path(path)} has carriage returns, which {tool[0]} would lose here"
            raise _RefusedError(f"The command was not run: {what}")


def _find_missed(view: _View, done: _Run) -> Collection[str]:
    """The files that a command read or changed without having had their content. With it, it has to run again."""
    lacking = view.files_without_content
    missed = {path for path in lacking if done.files.get(path, (b"", 0))[0] != view.marker(path)}
    others = (content for path, (content, _) in done.files.items() if path not in lacking)
    return missed or (lacking if view.shows_marker(done.stdout, done.stderr, *others) else ())


def _note(path: str, what: str, error: DeepFSError) -> str:
    return f"[{display_path(path)} {what}: {one_line(str(error).removeprefix('Error: '))}]"
