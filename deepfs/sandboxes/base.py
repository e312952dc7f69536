"""The base class of sandboxes: it implements all file operations by running commands."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from typing import Any, TypeAlias

from msgspec.structs import replace as replace_fields

from deepfs.backends._trees import change_file
from deepfs.backends.protocol import Capabilities, ExecuteOffloadResult, SandboxBackendProtocol, StoragePlace
from deepfs.errors import (
    BinaryFileError,
    ConflictError,
    DeepFSError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)
from deepfs.operations import Operation
from deepfs.sandboxes.answers import (
    CachedContent,
    SandboxContents,
    glob_files,
    grep_files,
    list_directory,
    parse_resolved_paths,
    tree_listing,
)
from deepfs.sandboxes.wire import MAX_ENTRIES, ScriptCalls, bound_of, check, off_loop, outcomes
from deepfs.search.request import SEARCH_SECONDS, FileFilter, GlobRequest, GrepRequest, GrepScan
from deepfs.storage.gathering import in_batches
from deepfs.sync import shim
from deepfs.text import paths, records
from deepfs.text.arguments import bytes_from_mb
from deepfs.text.edits import replace
from deepfs.text.entries import EntryChange, TreeListing, flat_place
from deepfs.text.lines import check_text, decode, version
from deepfs.text.media import is_binary_name
from deepfs.threads import pool
from deepfs.threads.locks import path_locks
from deepfs.types import (
    ContentChange,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
    failed_item,
)

_Files: TypeAlias = list[tuple[str, bytes]]
_MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""The most content that one grep transfers; beyond it the result is truncated."""
_ATTEMPTS = 100
"""Attempts of an edit before it gives up because others keep changing the file."""


class BaseSandbox(SandboxBackendProtocol):
    """Files of an environment that can run commands: a container, a virtual machine, another host.

    A subclass defines `aexecute` and `id`, and `aupload_files` and `adownload_files` if the platform has better ones.
    The sandbox needs a POSIX shell and the usual tools, those of busybox suffice; with python3 it is faster. The class
    attribute `command_bytes` is the longest command that the platform takes, `answer_bytes` the most output that it
    returns whole, `content_bytes` the most content of files that one answer may hold (a larger file is `too_large`),
    and `script_seconds` the time limit of each command of a file operation.

    The sandbox is not trusted: an answer that is too long, malformed, or about other paths than those that were asked
    for is a `backend_error`, and none of it is used.

    File operations see the directory `root` of the sandbox as `/`. Only the sandbox itself confines them and the
    commands. Each operation is one command; long content takes several, and an edit first reads a file whose content is
    not cached. A change is made in one step, under a lock in the sandbox, by a command that is not cancelled: two edits
    by users of deepfs in the same sandbox never overlap. Content is cached, and not transferred again while it is
    unchanged.

    Args:
        root: The absolute path of the directory in the sandbox.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        ValueError: For a relative `root`, and a size that is not positive.
    """

    capabilities: Capabilities = Capabilities(
        keeps_empty_directories=True, keeps_created_at=False, durable=True, executes=True
    )
    _shown = ("id",)
    command_bytes: int = 120_000
    answer_bytes: int = 64_000
    content_bytes: int = 256 * 1024 * 1024
    script_seconds: float = 300
    grep_exclude_dirs: tuple[str, ...] = ()
    """Names of directories that `grep` does not enter, unless it starts in one."""
    enable_capture_offload: bool = False
    """For deepagents, whose sandboxes may leave long output in the sandbox; here it changes nothing."""

    def __init__(self, root: str = "/", *, max_file_size_mb: int = 10) -> None:
        if not root.startswith("/"):
            raise ValueError(f"root must be an absolute path in the sandbox, not {root!r}")
        self._root = paths.normalize(root)
        self._max_bytes = bytes_from_mb(max_file_size_mb)

    # An `__init__` written for deepagents, whose class has none, does not call the one above.
    _root: str = "/"
    _max_bytes: int = bytes_from_mb(10)

    @cached_property
    def _calls(self) -> ScriptCalls:
        return ScriptCalls(self._run_script, self.command_bytes, self.answer_bytes, self._take, self.script_seconds)

    @cached_property
    def _contents(self) -> SandboxContents:
        return SandboxContents(self._calls, self._inner, self.content_bytes)

    @abstractmethod
    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a command with `sh` and an empty standard input; `exit_code` is None if it reached its timeout."""

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: float | None = None,
    ) -> ExecuteOffloadResult:
        """Run a command as `aexecute` does: its output is returned whole, and none of it is left in the sandbox.

        Args:
            command: The command.
            capture_path: The file for the output in deepagents.
            max_inline_bytes: What is returned whole in deepagents.
            max_capture_bytes: What the file gets in deepagents.
            timeout: Seconds, as in `aexecute`.
        """
        return ExecuteOffloadResult(False, await self.aexecute(command, timeout=timeout))

    execute_with_offload: Callable[..., ExecuteOffloadResult] = shim(aexecute_with_offload, "execute_with_offload")

    async def _run_script(self, command: str) -> ExecuteResponse:
        """Run a command of a file operation."""
        return await self.aexecute(command)

    async def _bring(self, content: bytes) -> bytes:
        """Send content that is too long for a command to the sandbox; return its name there, or its absolute path."""
        return await self._calls.stage(content)

    async def _take(self, name: str, size: int) -> str | None:
        """Return the text of an answer that is too long for an output; None if commands have to fetch it.

        It should have `size` characters, and no more may be read into memory.
        """
        return None

    # --- paths ---

    def sandbox_path(self, path: str) -> str:
        """The path of a file for commands.

        Args:
            path: The path for file operations.

        Raises:
            InvalidPathError: If `path` is not valid.
        """
        return self._inner(paths.normalize(path)).decode()

    def virtual_path(self, path: str) -> str:
        """The path of a file for file operations.

        Args:
            path: The path for commands, absolute or relative to `root`.

        Raises:
            InvalidPathError: If it is not under `root`.
        """
        full = paths.normalize(path if path.startswith("/") else paths.join(self._root, path))
        if full != self._root and not paths.is_beneath(full, self._root):
            raise InvalidPathError(path, "it is outside the root of this backend")
        return full if self._root == "/" else full[len(self._root) :] or "/"

    def _inner(self, path: str) -> bytes:
        return (path if self._root == "/" else self._root + path.rstrip("/")).encode()

    async def astorage_place(self, path: str) -> StoragePlace:
        # Symlinks are not followed here, and other sandboxes may share the directory.
        return flat_place(("sandbox", self.id), paths.normalize(self._inner(paths.normalize(path)).decode()))

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        wanted = [_valid(path) for path in paths]
        real = await self._resolve(dict.fromkeys(_paths(wanted)))
        return [real[path] if isinstance(path, str) else None for path in wanted]

    async def _resolve(self, wanted: Iterable[str]) -> dict[str, str | None]:
        """The path to which each path leads in the sandbox; None if it is outside of the root or not resolved."""
        found: dict[str, str | None] = {}
        for group in self._calls.groups(wanted, lambda path: [self._inner(path)]):
            names = [self._inner(path) for path in ("/", *group)]
            bound = bound_of(20 * len(group))
            answer = await self._calls.call("resolve", *names, about=group[0], bound=bound)
            found.update(zip(group, parse_resolved_paths(answer, len(group)), strict=True))
        return found

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        # The scripts have a lock of their own; with this one, tasks of this process wait without running a command.
        return path_locks(("sandbox", self.id)).hold(*held)

    # --- reading ---

    async def als(self, path: str) -> LsResult:
        path = paths.normalize(path)
        answer = await self._calls.call("ls", self._inner(path), about=path)
        check(answer, path)
        return await off_loop(answer.size, list_directory, answer, path, self._root)

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        path = paths.normalize(path)
        answer = await self._calls.call("entries", self._inner(path), about=path)
        check(answer, path)
        return await off_loop(answer.size, tree_listing, answer, path, self._root)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path = paths.normalize(path)
        known, modified_at = await self._contents.file(path)
        return await pool.run(self._read, path, known, modified_at, offset, limit, abandon_on_cancel=True)

    def _read(self, path: str, known: CachedContent, modified_at: str, offset: int, limit: int) -> ReadResult:
        data = _data(known.data, modified_at)
        read = records.read_data(path, data, offset, limit, max_binary=self._max_bytes)
        return replace_fields(read, version=known.version)

    async def aread_raw(self, path: str) -> ReadRawResult:
        known, modified_at = await self._contents.file(paths.normalize(path))
        return ReadRawResult(data=await pool.run(_data, known.data, modified_at, abandon_on_cancel=True))

    async def run(self, operation: Operation) -> Any:
        match operation:
            case GlobRequest():
                return await self._glob(operation)
            case GrepRequest():
                return await self._grep(operation)
        return await super().run(operation)

    async def _glob(self, request: GlobRequest) -> GlobResult:
        files = FileFilter(request)
        top = files.root
        answer = await self._calls.call("tree", self._inner(top), *_hints(request.pattern), about=top)
        check(answer, top)
        return await pool.run_long(glob_files, answer, self._root, files, timeout=SEARCH_SECONDS, storage=self.id)

    async def _grep(self, request: GrepRequest) -> GrepResult:
        request = _without_directories(request, self.grep_exclude_dirs)
        grep = GrepScan(request, FileFilter(request), self._max_bytes)
        top, most = grep.files.root, min(_MAX_SEARCHED_BYTES, self.content_bytes)
        limits = [str(limit).encode() for limit in (self._max_bytes, most)]
        words = [*_hints(request.glob), grep.required, *limits]
        bound = bound_of(MAX_ENTRIES // 10, most)
        answer = await self._calls.call("grep", self._inner(top), *words, about=top, bound=bound)
        check(answer, top)
        return await pool.run_long(grep_files, answer, self._root, grep, timeout=SEARCH_SECONDS, storage=self.id)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        wanted = [_valid(path) for path in paths]
        fetched = iter(await self._contents.fetch(found) if (found := _paths(wanted)) else [])
        outcomes = [next(fetched) if isinstance(path, str) else path for path in wanted]
        return [
            failed_item(FileDownloadResponse, given, outcome)
            if isinstance(outcome, DeepFSError)
            else FileDownloadResponse(given, outcome[0].data)
            for given, outcome in zip(paths, outcomes, strict=True)
        ]

    # --- changing ---

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        check_text(content)
        return await self._store(path, content.encode(), overwrite, if_match)

    async def _store(self, path: str, data: bytes, overwrite: bool, if_match: str | None) -> WriteResult:
        path = paths.normalize(path)
        mode = "match" if if_match is not None else "replace" if overwrite else "create"
        async with self._hold(path):
            try:
                known = "" if if_match is None else await self._script_version(path, if_match)
            except NotFoundError:
                raise ConflictError(path) from None
            await self._write(path, mode, known, data)
        self._contents.learn(path, data)
        return WriteResult(path=path)

    async def _script_version(self, path: str, if_match: str) -> str:
        """The checksum by which the scripts identify the version `if_match`, which may be that of other backends."""
        if _is_checksum(if_match):
            return if_match
        known, _ = await self._contents.file(path)
        if version(known.data) != if_match:
            raise ConflictError(path)
        return known.version

    async def _write(self, path: str, mode: str, known: str, data: bytes, before: int = 0, after: int = 0) -> None:
        """Write `data` between the first `before` and the last `after` bytes of the file."""
        words = [self._inner(path), mode.encode(), known.encode(), str(before).encode(), str(after).encode()]
        staged, payload = await self._send_content(data, words)
        await self._change("write", *words, staged, payload=payload, about=path)

    async def _send_content(self, data: bytes, words: list[bytes]) -> tuple[bytes, bytes]:
        """The name of content that was sent to the sandbox, and what goes with the command: one of them is empty."""
        return (await self._bring(data), b"") if len(data) > self._calls.room(*words) else (b"", data)

    async def _change(self, operation: str, *words: bytes, payload: bytes = b"", about: str) -> None:
        """Make a change of one file or directory. Raises the error about it."""
        [error] = outcomes(await self._calls.change(operation, *words, payload=payload, about=about), [about])
        if error is not None:
            raise error

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        path = paths.normalize(path)
        async with self._hold(path):
            for _ in range(_ATTEMPTS):
                with suppress(_FileChanged):
                    return await self._try_edit(path, old, new, replace_all, if_match)
        raise ConflictError(path)

    async def _try_edit(self, path: str, old: str, new: str, replace_all: bool, if_match: str | None) -> EditResult:
        known = self._contents.get(path)
        if known is not None:
            # The cached content may be outdated: if the edit fails in it, it may still be possible in the file.
            with suppress(DeepFSError):
                return await self._edit(path, known, old, new, replace_all, if_match)
        known, _ = await self._contents.file(path)
        return await self._edit(path, known, old, new, replace_all, if_match)

    async def _edit(
        self, path: str, known: CachedContent, old: str, new: str, replace_all: bool, if_match: str | None
    ) -> EditResult:
        if if_match is not None and if_match not in (known.version, version(known.data)):
            raise ConflictError(path)
        occurrences, data, before, after = await pool.run(_replace, path, known.data, old, new, replace_all)
        try:
            await self._write(path, "match", known.version, data[before : len(data) - after], before, after)
        except ConflictError:
            self._contents.forget(path)
            raise _FileChanged from None
        self._contents.learn(path, data)
        return EditResult(path=path, occurrences=occurrences)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        path = paths.normalize(path)
        if path == "/":
            raise PermissionDeniedError(path, "the root cannot be deleted")
        async with self._hold(path):
            known = b"" if if_match is None else (await self._script_version(path, if_match)).encode()
            await self._change("delete", self._inner(path), known, about=path)
        return DeleteResult(path=path)

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        done: list[FileUploadResponse] = []
        async with self._hold(*(change.path for change in changes)):
            for group in self._calls.groups(changes, self._change_words):
                words = [word for change in group for word in self._change_words(change)]
                answer = await self._calls.change("change", *words, about=group[0].path, records=len(group))
                changed = [change.path for change in group]
                done += map(_response_of, changed, outcomes(answer, changed))
        return done

    def _change_words(self, change: EntryChange) -> list[bytes]:
        mode = b"" if change.mode is None else b"%o" % change.mode
        return [self._inner(paths.normalize(change.path)), change.change.encode(), mode]

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self._relocate("move", src, dst, overwrite)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        return await self._relocate("copy", src, dst, overwrite)

    async def _relocate(self, operation: str, src: str, dst: str, overwrite: bool) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)
        arguments = [self._inner(src), self._inner(dst), b"1" if overwrite else b""]
        async with self._hold(src, dst):
            answer = await self._calls.change(operation, *arguments, about=src)
        [error] = outcomes(answer, [dst])
        if error is not None:
            # Only "not_found" is about the source; every other error is about the destination.
            raise NotFoundError(src) if isinstance(error, NotFoundError) else error
        return WriteResult(path=dst)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        targets = [_valid(path) for path, _ in files]
        valid = [(path, files[at][1]) for at, path in enumerate(targets) if isinstance(path, str)]
        async with self._hold(*(path for path, _ in valid)):
            most = self._calls.room() // 3
            uploaded = [
                outcome
                for group in self._calls.groups(valid, self._put_words)
                for batch in in_batches(group, lambda file: len(file[1]), most_bytes=most)
                for outcome in await self._put(batch)
            ]
        errors = iter(uploaded)
        return [
            _response_of(given, target if isinstance(target, DeepFSError) else next(errors))
            for (given, _), target in zip(files, targets, strict=True)
        ]

    async def achange_files(
        self, files: Sequence[ContentChange], *, all_or_none: bool = False
    ) -> list[FileUploadResponse]:
        if all_or_none and len(files) > 1:
            raise NotSupportedError(None, "a sandbox has no transactions: leave out all_or_none")
        return [await self._change_file(change) for change in files]

    async def _change_file(self, change: ContentChange) -> FileUploadResponse:
        if change.content is None:
            return await change_file(self, change)
        try:
            await self._store(change.path, change.content, change.overwrite, change.if_match)
        except DeepFSError as error:
            return failed_item(FileUploadResponse, change.path, error)
        return FileUploadResponse(change.path)

    def _put_words(self, file: tuple[str, bytes]) -> list[bytes]:
        return [self._inner(file[0]), str(len(file[1])).encode()]

    async def _put(self, files: list[tuple[str, bytes]]) -> list[DeepFSError | None]:
        content = b"".join(content for _, content in files)
        words = [word for file in files for word in self._put_words(file)]
        staged, payload = await self._send_content(content, words)
        answer = await self._calls.change("put", staged, *words, payload=payload, about=files[0][0], records=len(files))
        return outcomes(answer, [path for path, _ in files])


_is_checksum = re.compile(r"[0-9a-f]{64}").fullmatch


class _FileChanged(Exception):  # noqa: N818
    """The file changed since it was read; the edit is retried."""


def _without_directories(request: GrepRequest, names: tuple[str, ...]) -> GrepRequest:
    """The request without the directories `names`, at any depth under where it starts."""
    root = request.root
    left_out = {*names}.difference(root.split("/"))
    start, known = len(root), request.hidden

    def is_hidden(path: str, *, is_dir: bool) -> bool:
        *directories, name = path[start:].split("/")
        found = not left_out.isdisjoint([*directories, name] if is_dir else directories)
        return found or (known is not None and known(path, is_dir=is_dir))

    return replace_fields(request, hidden=is_hidden) if left_out else request


def _replace(path: str, content: bytes, old: str, new: str, replace_all: bool) -> tuple[int, bytes, int, int]:
    """Edit a file: how often, its new content, and how long the beginning and the end are that both contents share."""
    text = None if is_binary_name(path) else decode(content)
    if text is None:
        raise BinaryFileError(path)
    done = replace(path, text, old, new, replace_all)
    data = done.content.encode()
    most = min(len(content), len(data))
    before = _common_length(content, data, most)
    return done.occurrences, data, before, _common_length(content[::-1], data[::-1], most - before)


def _common_length(one: bytes, other: bytes, most: int) -> int:
    """The length of the common beginning, up to `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _hints(glob: str | None) -> list[bytes]:
    """The words that let the sandbox leave out files: whether to leave out dot-names, and a pattern for names.

    The pattern is `*`, which matches every name, unless `glob` is a simple pattern for names.
    """
    plain = glob is not None and "/" not in glob and not set(glob) - _PLAIN
    hidden = glob is not None and ("/." in f"/{glob}" or ("." in glob and not _UNCLEAR.isdisjoint(glob)))
    return [b"" if hidden else b"1", glob.encode() if glob is not None and plain else b"*"]


_UNCLEAR = frozenset("{[\\")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.*")


def _data(content: bytes, modified_at: str) -> FileDataV2:
    stored = records.new_file(content, now=modified_at)
    return replace_fields(stored, created_at=None, modified_at=modified_at or None)


def _response_of(path: str, error: DeepFSError | None) -> FileUploadResponse:
    return failed_item(FileUploadResponse, path, error) if error else FileUploadResponse(path)


def _valid(path: str) -> str | DeepFSError:
    try:
        return paths.normalize(path)
    except DeepFSError as error:
        return error


def _paths(targets: Iterable[str | DeepFSError]) -> list[str]:
    return [target for target in targets if isinstance(target, str)]
