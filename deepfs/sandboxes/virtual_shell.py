"""Commands over the files of any backend, in a bash interpreter that has a filesystem in memory.

For each command a process is started (`interpreter.py`), which gets the names of the whole tree and the contents that
the command may read. What the command changed goes back by conditional writes, so a file that others changed meanwhile
is never overwritten. Until then a command has no effect, so it may be run again: if it changed files whose content it
did not have.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from secrets import token_hex
from string import ascii_letters
from threading import Timer
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from deepfs.backends.protocol import BACKEND_TYPES, Capabilities, SandboxBackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError, DeepFSError, ErrorCode
from deepfs.operations import Execute, Operation
from deepfs.process import Captured, Chunk
from deepfs.sandboxes import interpreter
from deepfs.storage.gathering import in_batches
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.text.arguments import check_installed, check_integer, check_number, seconds_of
from deepfs.text.entries import EntryChange, TreeEntry
from deepfs.text.lines import check_text, decode, version
from deepfs.text.visible import display_path, one_line, stop_note, time_up
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.types import ContentChange, ExecuteResponse, FileUploadResponse, item_error

__all__ = ["VirtualShell"]

# --- what a command may read -----------------------------------------------------------------------------------------

_BUILT_IN_FILES: Final = 10_000
_BUILT_IN_BYTES: Final = 100_000_000
_BUILT_IN_FILE_BYTES: Final = 10_000_000
_BUILT_IN_COMMANDS: Final = 100_000
"""Limits that the interpreter has itself."""

_READERS: Final = frozenset(
    {"base64", "cat", "cd", "cmp", "comm", "cp", "cut", "diff", "echo", "false", "grep", "head", "ls", "mkdir", "mv"}
    | {"nl", "od", "paste", "printf", "pwd", "rev", "rm", "sed", "sort", "tac", "tail", "tee", "test", "touch", "tr"}
    | {"true", "uniq", "wc"}
)
"""Commands that read no file but those that are named in their arguments, and those beneath named directories."""
_NAMES_ONLY: Final = frozenset({"cd", "ls", "mkdir"})
"""Those that do not read what is beneath directories either."""
_READS_MORE: Final = {"grep": "rRd", "ls": ascii_letters, "sed": "f"}
"""Letters of options with which these commands read other files, or show their sizes."""
_NOT_LITERAL: Final = "$`*?[{(~"
"""What may make names of files that are not in the command."""
_LONGEST_TEXT: Final = 100_000
"""The most characters of a command that are compared with the names of the tree."""
_DROPS_RETURNS: Final = r"\b(?:column|diff|fmt|nl|split|xargs)\b"
"""Commands that lose the carriage returns of their input."""
_DEVICES: Final = r"/dev/(?:zero|u?random)\b"


class _Words(Struct):
    """The words of a command, as far as they are literal."""

    error: str | None = None
    """Why it is no script."""
    commands: list[tuple[str | None, list[str | None]]] = []
    """The name and the arguments of each; None for a word that is not literal."""
    redirects: list[str | None] = []
    is_opaque: bool = False
    """Whether it runs what is not among these words, or has functions."""


def _find_named(words: _Words, command: str, files: Collection[str], directories: Collection[str]) -> Collection[str]:
    """The files whose content a command may read, and perhaps more.

    If each word is literal, none names a directory, and the commands are plain readers: the files whose last name
    occurs anywhere in the command. Else all files.
    """
    if words.is_opaque or len(command) > _LONGEST_TEXT or any(each in command for each in _NOT_LITERAL):
        return files
    named = [command]
    holders = {".", "..", "", *map(paths.name, directories)}
    for name, args in [*words.commands, ("cat", words.redirects)]:
        if name not in _READERS and (name is not None or args):
            return files
        for arg in args:
            if arg is None or (name not in _NAMES_ONLY and arg.rstrip("/").rpartition("/")[2] in holders):
                return files
            if arg.startswith("-") and (arg.startswith("--") or {*arg} & {*_READS_MORE.get(name or "", "")}):
                return files
            named.append(arg)
    text = "\n".join(named)
    return [path for path in files if paths.name(path) in text]


# --- running ---------------------------------------------------------------------------------------------------------

_NOT_RUN: Final = 126
_SYNTAX_ERROR: Final = 2
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_SCRIPT_MODE: Final = 0o755
_MARKER_BYTES: Final = 24
_ANALYSIS_SECONDS: Final = 10
_CLOCK_SECONDS: Final = 0.05
"""What two clocks may differ by in the time of a command."""
_GRACE_SECONDS: Final = 2
"""After its time the interpreter ends a command itself, if it comes to look at the clock."""


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


class _Run(Struct):
    """What a command did in the memory of the interpreter."""

    stdout: str
    stderr: str
    exit_code: int
    error: str | None
    """Why the interpreter gave up. Nothing that the command changed counts then."""
    seconds: float
    is_cut: bool
    left_out: list[str]
    """Entries that the interpreter does not take."""
    files: list[tuple[str, int, bool]]
    """The path and the mode of each file, and whether it has the content that it was given with."""
    directories: set[str]
    links: set[str]
    contents: dict[str, bytes] = {}
    """The content of each file."""


AnswerT = TypeVar("AnswerT", bound=Struct)


class _Interpreter(Deadline):
    """A process with the interpreter. Its methods block; `end` may be called while another one works."""

    def __init__(self) -> None:
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float) -> None:
        """Start the process. Raises BackendError if that is not possible."""
        spec = find_spec("bashkit")
        packages = os.path.dirname(os.path.dirname((spec and spec.origin) or ""))
        program = [sys.executable, "-I", "-S", interpreter.__file__, packages, str(seconds)]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}  # Windows needs it.
        try:
            self._process = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=null, env=env)
        except OSError as error:
            raise BackendError(None, f"the interpreter cannot be started: {error.strerror}") from error
        if self.is_cancelled:  # Nobody waits any more, and `end` found no process.
            self.end()

    def end(self) -> None:
        """Kill the process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def ask(
        self, request: dict[str, Any], contents: Iterable[bytes], answer: type[AnswerT], seconds: float
    ) -> tuple[AnswerT, list[bytes]] | None:
        """Send a request and return its answer; None if the process ended, or was killed after `seconds`."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        killer = Timer(seconds, process.kill)
        killer.daemon = True
        killer.start()
        try:
            with suppress(OSError, EOFError, ValueError, KeyError, TypeError, MsgspecError):
                interpreter.send(process.stdin, request, contents)
                header, answered = interpreter.receive(process.stdout)
                return json.decode(header, type=answer), answered
            return None
        finally:
            killer.cancel()

    def analyze(self, command: str) -> _Words:
        found = self.ask({"analyze": command}, (), _Words, _ANALYSIS_SECONDS)
        if found is None:
            raise _RefusedError("The command was not run: the interpreter ended while it read it")
        if found[0].error is not None:
            raise _RefusedError(f"The command was not run: {one_line(found[0].error)}", _SYNTAX_ERROR)
        return found[0]

    def run(self, command: str, view: _View, limits: dict[str, float]) -> _Run | None:
        """Run a command; None if the process ended, or did not end in time."""
        entries: list[Any] = []
        given: dict[str, bytes] = {}
        for path, entry in sorted(view.entries.items()):
            mode, usual = view.mode(path), _DIRECTORY_MODE if entry.kind == "directory" else _FILE_MODE
            is_usual = mode == usual or entry.kind == "link"
            entries.append([path, entry.kind, None if is_usual else mode, view.links.get(path)])
            if entry.kind == "file":
                content = view.contents.get(path)
                given[path] = view.marker(path) if content is None else content
        request = {"command": command, "limits": limits, "entries": entries}
        found = self.ask(request, given.values(), _Run, limits["timeout_seconds"] + _GRACE_SECONDS)
        if found is None:
            return None
        done, changed = found
        others = iter(changed)
        with suppress(KeyError, StopIteration):
            done.contents = {path: given[path] if is_same else next(others) for path, _, is_same in done.files}
            for path in done.left_out:
                view.leave_out(path, "the interpreter does not take its path")
            return done
        return None


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
    turned = (done.contents.keys() & before) | (done.directories & view.entries.keys() - before)
    if turned:
        raise _RefusedError(
            f"Nothing was changed: {display_path(min(turned))} is a file before or after, and a directory"
        )
    written = {path: content for path, content in sorted(done.contents.items()) if view.contents.get(path) != content}
    written = {path: content for path, content in written.items() if content != view.marker(path)}
    spoiled = [path for path, content in written.items() if _REPLACEMENT in content]
    texts = (each for each in view.contents.values() if _REPLACEMENT in each and decode(each) is not None)
    if spoiled and _REPLACEMENT not in command.encode() and not any(texts):
        what = f"{display_path(spoiled[0])} was made of bytes that are no text (UTF-8), which a command here spoiled"
        raise _RefusedError(f"Nothing was changed: {what}")
    modes = [
        EntryChange(path, "set_mode", mode)
        for path, mode, _ in done.files
        if mode != view.mode(path) and (path not in view.entries or "chmod" in command)
    ]
    made = done.directories - before - {each for path in done.contents for each in paths.ancestors(path)}
    if not any(paths.is_beneath(path, "/tmp") for path in made):
        made -= {"/tmp"}
    deleted = sorted({*view.files} - done.contents.keys())
    return _Changes(sorted(made), written, modes, deleted, sorted(before - done.directories, reverse=True))


# --- the backend -----------------------------------------------------------------------------------------------------

_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256
_MOST_NOTES: Final = 20
_NAME_LENGTH: Final = 50
_NOT_CHANGED: Final = {"remove_directory": "was not removed", "set_mode": "kept its mode"}
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
    the end of the output names both, nothing is deleted, and the exit code is not 0.

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
        if re.search(_DEVICES, command):
            what = "/dev/zero, /dev/random and /dev/urandom would end too early here"
            raise _RefusedError(f"The command was not run: {what}")
        view = await self._list()
        process = _Interpreter()
        try:
            done, seconds = await self._run(command, timeout, view, process)
        finally:
            await run_shielded(partial(pool.run, process.end))
        notes = [
            f"[{display_path(path)} is left out: {reason}]"
            for path, reason in view.left_out.items()
            if paths.parent(path) not in view.left_out
        ]
        is_late = seconds > timeout - _CLOCK_SECONDS
        if done is None or (done.error is not None and is_late):
            reason = time_up(timeout) if is_late else "its interpreter crashed, or needed too much memory"
            notes.append(stop_note(f"{reason}, and nothing was changed").rstrip())
            output, _ = await self._output(done, notes)
            return ExecuteResponse(output, timed_out=timeout if is_late else None)
        exit_code = done.exit_code
        if done.error is not None:
            notes.append("[The command was ended, and nothing was changed]")
        else:
            changes = await pool.run(_compare, command, view, done, abandon_on_cancel=True)
            failures = await self._store(view, changes, notes)
            exit_code = (exit_code or 1) if failures else exit_code
            notes += failures
        output, is_cut = await self._output(done, notes)
        return ExecuteResponse(output, exit_code, is_cut or done.is_cut)

    async def _run(self, command: str, timeout: float, view: _View, process: _Interpreter) -> tuple[_Run | None, float]:
        """Run a command until it had the contents that it read; also return how many seconds that took."""
        in_thread = partial(pool.run, abandon_on_cancel=True, deadline=process, storage=self)
        await in_thread(process.start, timeout)
        words = await in_thread(process.analyze, command)
        wanted: Collection[str] = view.files
        if not view.links:
            directories = [path for path, entry in view.entries.items() if entry.kind == "directory"]
            wanted = await in_thread(_find_named, words, command, wanted, directories)
        limits = {"max_memory": self._max_memory, "max_commands": self._max_commands}
        limits["max_loop_iterations"] = self._max_commands
        began, waited = time.monotonic(), 0.0
        while True:
            asked = time.monotonic()
            await self._fetch(view, wanted)
            await in_thread(_check_line_ends, command, view)
            waited += time.monotonic() - asked
            left = timeout - (time.monotonic() - began - waited)
            done = await in_thread(process.run, command, view, {**limits, "timeout_seconds": max(left, 0.001)})
            seconds = time.monotonic() - began - waited
            if done is None or done.error is not None:
                return done, seconds
            wanted = await in_thread(_find_missed, view, done)
            if not wanted:
                return done, seconds
            if seconds >= timeout:
                return None, seconds

    async def _output(self, done: _Run | None, notes: list[str]) -> tuple[str, bool]:
        captured = Captured(self._max_output_bytes)
        if done is not None:
            await captured.add(Chunk("stdout", done.stdout.encode(errors="replace")))
            await captured.add(Chunk("stderr", done.stderr.encode(errors="replace")))
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

    async def _store(self, view: _View, changes: _Changes, notes: list[str]) -> list[str]:
        """Store what changed, deletions last; return what failed. After a failure, nothing is deleted."""
        failures = await self._make_directories(changes.made, notes)
        failures += await self._write(view, changes.written)
        failures += await self._change(changes.modes, ErrorCode.UNSUPPORTED)
        if failures:
            stays = len(changes.deleted) + len(changes.removed)
            return failures + (["[So nothing was deleted or moved away]"] if stays else [])
        deletions = [ContentChange(path, None, if_match=version(view.contents[path])) for path in changes.deleted]
        for outcome in await self._change_files(deletions):
            if outcome.error != ErrorCode.FILE_NOT_FOUND:
                failures.append(_note(outcome.path, "was not deleted", item_error(outcome, outcome.error or "")))
        removed = [EntryChange(path, "remove_directory") for path in changes.removed]
        return failures + await self._change(removed, ErrorCode.FILE_NOT_FOUND)

    async def _change_files(self, changes: list[ContentChange]) -> list[FileUploadResponse]:
        """Make changes in one call; return the outcomes of those that failed."""
        outcomes = await self.inner.achange_files(changes) if changes else []
        return [outcome for outcome in outcomes if outcome.error is not None]

    async def _write(self, view: _View, written: Mapping[str, bytes]) -> list[str]:
        """Write files; those that others changed are written beside. Returns what failed."""
        changes = [
            ContentChange(path, content, if_match=version(view.contents[path]) if path in view.entries else None)
            for path, content in written.items()
        ]
        failures: list[str] = []
        beside: dict[str, str] = {}
        for outcome in await self._change_files(changes):
            path = outcome.path
            if outcome.error in _TAKEN:
                directory = "/" if outcome.error == ErrorCode.NOT_A_DIRECTORY else paths.parent(path)
                name = f"{paths.name(path)[:_NAME_LENGTH]}.conflict-{token_hex(4)}"
                beside[path] = paths.join(directory, name)
            else:
                failures.append(_note(path, "was not written", item_error(outcome, outcome.error or "")))
        copies = [ContentChange(copy, written[path]) for path, copy in beside.items()]
        lost = {outcome.path: outcome for outcome in await self._change_files(copies)}
        for path, copy in beside.items():
            what = "was changed by others meanwhile"
            if copy in lost:
                what += ", and what this command wrote is lost"
                failures.append(_note(path, what, item_error(lost[copy], lost[copy].error or "")))
            else:
                where = f"what this command wrote is in {display_path(copy)}"
                failures.append(f"[{display_path(path)} {what}: {where}]")
        return failures

    async def _make_directories(self, made: list[str], notes: list[str]) -> list[str]:
        """Make empty directories; return what failed. Those that the storage cannot keep are told in `notes`."""
        changes = [EntryChange(path, "make_directory") for path in made]
        outcomes = await self.inner.achange_entries(changes) if changes else []
        failures: list[str] = []
        for path, outcome in zip(made, outcomes, strict=True):
            if outcome.error == ErrorCode.UNSUPPORTED:
                notes.append(f"[{display_path(path)} is empty, so it is not kept]")
            elif outcome.error not in (None, ErrorCode.ALREADY_EXISTS):
                failures.append(_note(path, "was not made", item_error(outcome, outcome.error or "")))
        return failures

    async def _change(self, changes: list[EntryChange], harmless: ErrorCode) -> list[str]:
        outcomes = await self.inner.achange_entries(changes) if changes else []
        return [
            _note(change.path, _NOT_CHANGED[change.change], item_error(outcome, outcome.error or ""))
            for change, outcome in zip(changes, outcomes, strict=True)
            if outcome.error not in (None, harmless)
        ]


def _check_line_ends(command: str, view: _View) -> None:
    """Raise _RefusedError if a command names a file with carriage returns, and a tool that loses them."""
    if (tool := re.search(_DROPS_RETURNS, command)) is None:
        return
    for path, content in view.contents.items():
        if b"\r" in content and paths.name(path) in command:
            what = f"{display_path(path)} has carriage returns, which {tool[0]} would lose here"
            raise _RefusedError(f"The command was not run: {what}")


def _find_missed(view: _View, done: _Run) -> Collection[str]:
    """The files that a command read or changed without having had their content. With it, it has to run again."""
    lacking = view.files_without_content
    missed = {path for path in lacking if done.contents.get(path) != view.marker(path)}
    others = (content for path, content in done.contents.items() if path not in lacking)
    shown = (done.stdout.encode(errors="replace"), done.stderr.encode(errors="replace"))
    return missed or (lacking if lacking and view.shows_marker(*shown, *others) else ())


def _note(path: str, what: str, error: DeepFSError) -> str:
    return f"[{display_path(path)} {what}: {one_line(str(error).removeprefix('Error: '))}]"
