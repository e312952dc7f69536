"""The base of policies that see each change before it is made: its files, and their sizes before and after."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from functools import partial
from logging import getLogger
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.protocol import BACKEND_TYPES
from deepfs.backends.transfer import download_file
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import ConflictError, DeepFSError, ErrorCode
from deepfs.operations import Copy, Delete, Edit, FileBatch, Move, Operation, UploadStream, Write
from deepfs.sync import run_shielded
from deepfs.text import edits, paths
from deepfs.text.access import without_access_check
from deepfs.text.arguments import check_bytes
from deepfs.text.entries import TreeEntry
from deepfs.text.lines import decode, utf8_size, version
from deepfs.threads.locks import path_locks
from deepfs.types import ContentChange, FileUploadResponse

_log = getLogger("deepfs")

Look: TypeAlias = Callable[[], Awaitable[Mapping[str, int]]]
"""Returns the sizes of the existing files by path."""

_UNSEEN: Final = frozenset(
    {
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.INVALID_PATH,
        ErrorCode.IS_DIRECTORY,
        ErrorCode.NOT_A_DIRECTORY,
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.UNSUPPORTED,
    }
)
"""Errors of a listing that mean that no files are visible; the change itself then fails with the reason."""

_UNREAD: Final = _UNSEEN | {ErrorCode.TOO_LARGE}
"""Errors of a read that mean that the file cannot be edited; the edit itself then fails with the reason."""

_ATTEMPTS: Final = 100
"""How often an edit is tried while other edits of the file come first."""


class PlannedChange(Struct, frozen=True):
    """The effect of a change on one file. Sizes are in bytes; None means that there is no file."""

    path: str
    before: int | None
    after: int | None

    @property
    def grown_bytes(self) -> int:
        """The number of bytes added; negative if the file shrinks."""
        return (self.after or 0) - (self.before or 0)

    @property
    def grown_files(self) -> int:
        """1 if the file is created, -1 if it is deleted, otherwise 0."""
        return (self.after is not None) - (self.before is not None)


class ChangePolicy(WrapperBackend):
    """The base of policies that decide by the change about to be made; a subclass overrides `achanging`.

    `write`, `edit`, `delete`, `copy`, `move`, `upload_files`, `achange_files` and `aupload_stream` are reported to it,
    with the sizes of the files before and after. A change that is known to fail, such as a `write` to a path that is
    taken, is not reported: `inner` gives the reason. Commands (`execute`) are not reported.

    Changes of one path through this object run one after another; a stream locks its path until it is complete. So
    sizes are right unless files are also changed without this object. An edit is right even then: it is made on the
    version whose size was computed, and computed again if that version has changed.

    The cost: a listing of the files that a change concerns, and for an edit a read of the file. Sizes come from
    `alist_tree` of `inner`, so put such a policy next to the storage, behind policies that hide files.

    Args:
        inner: The backend.
    """

    is_synchronous: bool = True

    def __init__(self, inner: BACKEND_TYPES) -> None:
        super().__init__(inner)
        self._locks = path_locks(("changes", id(self)))

    async def achanging(self, changes: Sequence[PlannedChange]) -> None:
        """Called before a change is made; here it does nothing.

        The size of a stream is known only when all of it has arrived. So a stream calls this when it begins, with an
        unchanged size (0 for a new file); then for each chunk that makes the file larger than it was, with the size
        reached before that chunk as `before`; and when it is complete, with both sizes, if the file becomes shorter. In
        a batch, each item calls this separately; the changes of an `achange_files` with `all_or_none` do together.

        Args:
            changes: The files that the change concerns. A move lists the files at the source and at the destination.

        Raises:
            DeepFSError: The change is refused, with this as the error of its result; a stream ends, and nothing is
                stored.
        """

    async def achanged(self, planned: Sequence[PlannedChange], made: Sequence[PlannedChange]) -> None:
        """Called once a change that `achanging` let pass has ended, however it ended; here it does nothing.

        Args:
            planned: The changes given to `achanging`; for a stream, one change to the size that was reached.
            made: The same files with their actual sizes, as far as these are known; `after` is `before` if nothing
                changed.
        """

    async def run(self, operation: Operation) -> Any:
        match operation:
            case FileBatch():
                return await self._change_files(operation)
            case Write() | Edit() | UploadStream() | Delete() | Copy():
                operation = operation.at(paths.normalize)
            case _:
                return await super().run(operation)
        async with self._hold_paths(*operation.paths):
            match operation:
                case Write():
                    return await self._write(operation)
                case Edit():
                    return await self._edit(operation)
                case UploadStream():
                    return await self._upload_stream(operation)
                case Delete(path):
                    planned = [PlannedChange(each, size, None) for each, size in (await self._sizes(path)).items()]
                    return await self._run_change(planned, operation, partial(self._sizes, path))
                case Move():
                    return await self._move(operation)
                case Copy(src, dst):
                    dst = await self._resolve(dst)
                    planned = await self._plan_arrival(src, dst, operation, await self._sizes(src, follow=True))
                    # Look up the sizes even after success: links may have been copied as files or as links.
                    return await self._run_change(planned, operation, partial(self._sizes, dst), looks_always=True)

    # --- one file ---

    async def _write(self, operation: Write) -> Any:
        path = operation.path
        before = await self._size(path)
        fails = before is not None and not (operation.overwrite or operation.if_match is not None)
        planned = [] if fails else [PlannedChange(path, before, utf8_size(operation.content))]
        return await self._run_change(planned, operation, partial(self._size_of_one, path))

    async def _edit(self, operation: Edit) -> Any:
        path, look = operation.path, partial(self._size_of_one, operation.path)
        for _ in range(_ATTEMPTS):
            planned, seen = await self._plan_edit(operation)
            pinned = replace(operation, if_match=operation.if_match or seen)
            result = await self._run_change(planned, pinned, look)
            if operation.if_match is not None:
                return result
            if result.code is ErrorCode.UNSUPPORTED and seen is not None:
                # This storage cannot compare versions, so the size misses changes made meanwhile.
                return await self._run_change(planned, operation, look)
            if result.code is not ErrorCode.CONFLICT:
                return result
        raise ConflictError(path)

    @without_access_check
    async def _plan_edit(self, operation: Edit) -> tuple[list[PlannedChange], str | None]:
        """Return the planned change, in a list that is empty if the edit must fail, and the version to edit."""
        path = operation.path
        try:
            before = await download_file(self.inner, path)
        except DeepFSError as error:
            if error.code in _UNREAD:
                return [], None
            raise
        text = decode(before)
        try:
            done = None if text is None else edits.replace(path, text, *operation.args[1:])
        except DeepFSError:
            done = None
        planned = [] if done is None else [PlannedChange(path, len(before), utf8_size(done.content))]
        return planned, version(before)

    async def _upload_stream(self, operation: UploadStream) -> FileUploadResponse:
        path = operation.path
        counted = _Counted(path, await self._size(path))
        await self.achanging([counted.planned])
        done = False
        try:
            async with aclosing(counted.pass_on(operation.chunks, self.achanging)) as passed:
                outcome: FileUploadResponse = await self.inner.arun(replace(operation, chunks=passed))
            done = outcome.error is None
        finally:
            look = partial(self._size_of_one, path)
            await run_shielded(lambda: self._look_after([counted.planned], None if done else look))
        return outcome

    # --- trees ---

    async def _move(self, operation: Move) -> Any:
        src, dst = operation.src, await self._resolve(operation.dst)
        sources = await self._sizes(src)
        leaving = [PlannedChange(path, size, None) for path, size in sources.items()]
        planned = await self._plan_arrival(src, dst, operation, sources)
        return await self._run_change([*leaving, *planned] if planned else [], operation, partial(self._both, src, dst))

    async def _both(self, src: str, dst: str) -> Mapping[str, int]:
        return await self._sizes(src) | await self._sizes(dst)

    async def _plan_arrival(
        self, src: str, dst: str, operation: Copy, sources: Mapping[str, int]
    ) -> list[PlannedChange]:
        """The changes at the destination of a copy or move, whose links are resolved; none if it must fail."""
        there = await self._sizes(dst)
        is_same = await self._resolve(src) == dst
        if is_same or paths.is_beneath(dst, src) or (there and not (operation.overwrite and dst in there)):
            return []
        targets = {paths.join(dst, paths.relative(path, src)): size for path, size in sources.items()}
        # A link takes the place of a file, and has no size itself.
        return [PlannedChange(path, there.get(path), targets.get(path)) for path in {**there, **targets}]

    async def _resolve(self, path: str) -> str:
        """The path with its links resolved; the path itself if that is not possible."""
        [real] = await self.inner.aresolve_paths([path])
        return path if real is None else real

    # --- batches ---

    async def _change_files(self, operation: FileBatch) -> list[FileUploadResponse]:
        targets = {path: _normal(path) for path in operation.paths}
        normal = list(dict.fromkeys(path for path in targets.values() if path is not None))
        async with self._hold_paths(*normal):
            real = dict(zip(normal, await self.inner.aresolve_paths(normal), strict=True))
            removed = {change.path for change in operation.content_changes if change.content is None}
            targets = {
                path: name if name is None or path in removed else real[name] or name  # Of a link, the link is removed.
                for path, name in targets.items()
            }
            before = {path: (await self._sizes(path)).get(path) for path in targets.values() if path is not None}
            sizes = dict(before)  # A file may be there twice: what the first asks for is there for the second.
            asked: list[_Part] = []
            stored: list[FileUploadResponse] = []

            async def ask(one: FileBatch) -> None:
                planned = [
                    planned
                    for change in one.content_changes
                    if (target := targets[change.path]) is not None
                    if (planned := _plan_content(change, target, sizes)) is not None
                ]
                if planned:
                    await self.achanging(planned)
                    sizes.update({change.path: change.after for change in planned})
                asked.append(_Part(len(one.items), planned))

            async def carry_out(passed: FileBatch) -> list[FileUploadResponse]:
                stored.extend(await self.inner.arun(passed))
                return stored

            try:
                if operation.is_whole:  # What one change frees is there for the others.
                    await ask(operation)
                    return await carry_out(operation)
                return await operation.where(ask, carry_out)
            finally:
                await run_shielded(partial(self._report, asked, stored, before))

    async def _report(
        self, parts: Iterable["_Part"], stored: Sequence[FileUploadResponse], sizes: dict[str, int | None]
    ) -> None:
        """Report what became of each part to `achanged`, in order, since a batch may have a path twice."""
        place = 0
        for part in parts:
            outcomes, place = stored[place : place + part.count], place + part.count
            if part.planned:
                is_stored = bool(outcomes) and all(outcome.error is None for outcome in outcomes)
                actual = [replace(change, before=sizes[change.path]) for change in part.planned]
                look = None if is_stored else partial(self._sizes_of, [change.path for change in actual])
                made = await _look_what_happened(actual, look)
                sizes.update({change.path: change.after for change in made})
                await self.achanged(part.planned, made)

    # --- looking ---

    async def _prepare(self) -> None:
        """Called before a change locks its paths; here it does nothing."""

    @asynccontextmanager
    async def _hold_paths(self, *held: str) -> AsyncIterator[None]:
        """Lock these paths, and the paths that they resolve to."""
        await self._prepare()
        real = await self.inner.aresolve_paths([*held]) if held else []
        async with self._locks.hold(*dict.fromkeys([*held, *(path for path in real if path is not None)])):
            yield

    async def _run_change(
        self, planned: Sequence[PlannedChange], operation: Operation, look: Look, *, looks_always: bool = False
    ) -> Any:
        """Make a planned change; if it fails, or with `looks_always`, `look` returns the sizes afterwards."""
        if not planned:
            return await self.inner.arun(operation)
        await self.achanging(planned)
        done = False
        try:
            result = await self.inner.arun(operation)
            done = result.ok
            return result
        finally:
            await run_shielded(lambda: self._look_after(planned, None if done and not looks_always else look))

    async def _look_after(self, planned: Sequence[PlannedChange], look: Look | None) -> None:
        await self.achanged(planned, await _look_what_happened(planned, look))

    async def _size_of_one(self, path: str) -> Mapping[str, int]:
        return await self._sizes_of([path])

    async def _sizes_of(self, files: Sequence[str]) -> Mapping[str, int]:
        return {path: size for path in files if (size := await self._size(path)) is not None}

    async def _size(self, path: str) -> int | None:
        """The size of the file that `path` resolves to; None if there is none, or it is not visible."""
        [real] = await self.inner.aresolve_paths([path])
        return None if real is None else (await self._sizes(real)).get(real)

    async def _sizes(self, path: str, *, follow: bool = False) -> dict[str, int]:
        """As `_list_sizes`; none if what is at `path` is not visible."""
        try:
            return await self._list_sizes(path, follow=follow)
        except DeepFSError as error:
            if error.code in _UNSEEN:
                return {}
            raise

    @without_access_check
    async def _list_sizes(self, path: str, *, follow: bool = False) -> dict[str, int]:
        """The sizes of the files at and under `path`, whatever rules hide; with `follow`, also of links to files."""
        listing = await self.inner.alist_tree(path)
        return {
            entry.path: await self._entry_size(entry)
            for entry in listing.entries
            if entry.kind == "file" or (follow and entry.leads_to == "file")
        }

    async def _entry_size(self, entry: TreeEntry) -> int:
        if entry.kind == "file" and entry.size is not None:
            return entry.size
        size = 0
        async with aclosing(self.inner.adownload_stream(entry.path)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
        return size


async def _look_what_happened(planned: Sequence[PlannedChange], look: Look | None) -> list[PlannedChange]:
    """The changes with actual sizes: as planned without `look`, otherwise those that `look` returns.

    If `look` fails, changes that add bytes or files count as made, the others as not made.
    """
    if look is None:
        return list(planned)
    try:
        sizes = await look()
    except Exception as error:
        if not isinstance(error, DeepFSError):
            # The change itself is over, and `achanged` must be called in any case.
            _log.exception("it could not be looked up what became of a change")
        return [
            change if change.grown_bytes > 0 or change.grown_files > 0 else replace(change, after=change.before)
            for change in planned
        ]
    return [replace(change, after=sizes.get(change.path)) for change in planned]


class _Counted:
    """An upload that arrives in chunks."""

    def __init__(self, path: str, before: int | None) -> None:
        self.planned = PlannedChange(path, before, before or 0)
        """The changes reported so far, as one change."""

    async def pass_on(
        self, chunks: AsyncIterable[bytes], ask: Callable[[Sequence[PlannedChange]], Awaitable[None]]
    ) -> AsyncGenerator[bytes, None]:
        """Pass on the chunks; call `ask` before each one that makes the file larger."""
        size = 0
        async for chunk in chunks:
            size += len(check_bytes("each chunk", chunk))
            if size > (reached := self.planned.after or 0):
                await ask([PlannedChange(self.planned.path, reached, size)])
                self.planned = replace(self.planned, after=size)
            yield chunk
        shorter = replace(self.planned, after=size)
        if size < (self.planned.before or 0):
            await ask([shorter])
        self.planned = shorter


class _Part(Struct, frozen=True):
    """Items of a batch that `achanging` let pass together."""

    count: int
    planned: Sequence[PlannedChange]


def _plan_content(change: ContentChange, path: str, sizes: Mapping[str, int | None]) -> PlannedChange | None:
    """The effect of a change of the file at `path`; None if it must fail."""
    before = sizes[path]
    if change.content is None:
        return None if before is None else PlannedChange(path, before, None)
    if before is not None and not (change.overwrite or change.if_match is not None):
        return None
    return PlannedChange(path, before, len(change.content))


def _normal(path: str) -> str | None:
    try:
        return paths.normalize(path)
    except DeepFSError:
        return None
