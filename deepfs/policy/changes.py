"""The change about to be made: which files it concerns, and their sizes before and after."""

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
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.protocol import BACKEND_TYPES
from deepfs.backends.transfer import downloaded
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import ConflictError, DeepFSError, ErrorCode
from deepfs.sync import shielded
from deepfs.text import edits, paths
from deepfs.text.arguments import bytes_given
from deepfs.text.entries import TreeEntry
from deepfs.text.lines import decode, version
from deepfs.threads.locks import path_locks
from deepfs.types import DeleteResult, EditResult, FileUploadResponse, WriteResult

__all__ = ["ChangePolicy", "PlannedChange"]

T = TypeVar("T")

Look: TypeAlias = Callable[[], Awaitable[Mapping[str, int]]]
"""Tells the sizes of the files there are, by path."""

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
"""What a listing says where nothing can be seen; the change itself says what is wrong."""

_ATTEMPTS: Final = 100
"""Edits of one file that others may make before ours gives up."""


class PlannedChange(Struct, frozen=True):
    """What a change makes of one file. Sizes are in bytes, and None where there is no file."""

    path: str
    before: int | None
    after: int | None

    @property
    def grown_bytes(self) -> int:
        """How many bytes more there are; negative where there are fewer."""
        return (self.after or 0) - (self.before or 0)

    @property
    def grown_files(self) -> int:
        """1 where a file is made, -1 where one is deleted, otherwise 0."""
        return (self.after is not None) - (self.before is not None)


class ChangePolicy(WrapperBackend):
    """The base of policies that decide by the change about to be made; a subclass overrides `achanging`.

    `write`, `edit`, `delete`, `copy`, `move`, `upload_files` and `aupload_stream` are reported to it, with the sizes of
    the files before and after. A change that is known to fail, such as a `write` to a path that is taken, is not
    reported: `inner` gives the reason. Commands (`execute`) are not reported.

    Changes of one path through this object follow one another; a stream holds its path until it is complete. So sizes
    are right unless others change files past this object. An edit is right even then: it is made on the version whose
    size was computed, and computed anew if that has changed.

    The cost: a listing of what a change concerns, and for an edit a read of the file. Sizes come from `alist_tree` of
    `inner`, so put such a policy next to the storage, behind policies that hide files.

    Args:
        inner: The backend.
    """

    is_synchronous: bool = True

    def __init__(self, inner: BACKEND_TYPES) -> None:
        super().__init__(inner)
        self._locks = path_locks(("changes", id(self)))

    async def achanging(self, changes: Sequence[PlannedChange]) -> None:
        """Called before a change is made; here it does nothing.

        How long a stream is shows as it comes. It calls this as it begins, with a size that stays as it is, then for
        each chunk by which the file grows, with the size before that chunk as `before`, and once all is there and the
        file would be shorter, with both sizes. In a batch of uploads each item calls it alone.

        Args:
            changes: The files that the change concerns. A move has those that go and those that come.

        Raises:
            DeepFSError: The change is refused, with this as the error of its result; a stream ends, and nothing is
                stored.
        """

    async def achanged(self, planned: Sequence[PlannedChange], made: Sequence[PlannedChange]) -> None:
        """Called once a change that `achanging` let pass has ended, however it ended; here it does nothing.

        Args:
            planned: What was told before; of a stream, one change to the size that was reached.
            made: What became of these files, as far as can be told: `after` is `before` where nothing changed.
        """

    # --- one file ---

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        path = paths.normalize(path)
        call = partial(super().awrite, path, content, overwrite=overwrite, if_match=if_match)
        async with self._holding(path):
            before = await self._size(path)
            fails = before is not None and not (overwrite or if_match is not None)
            planned = [] if fails else [PlannedChange(path, before, _bytes_of(content))]
            return await self._changing(planned, call, partial(self._size_of_one, path))

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        path = paths.normalize(path)
        edit, look = partial(super().aedit, path, old, new, replace_all), partial(self._size_of_one, path)
        async with self._holding(path):
            for _ in range(_ATTEMPTS):
                planned, seen = await self._planned_edit(path, old, new, replace_all)
                result = await self._changing(planned, partial(edit, if_match=if_match or seen), look)
                if result.code is ErrorCode.UNSUPPORTED and if_match is None and seen is not None:
                    # This storage cannot compare: a change by others meanwhile is not in the size.
                    return await self._changing(planned, edit, look)
                if result.code is not ErrorCode.CONFLICT or if_match is not None:
                    return result
        raise ConflictError(path)

    async def _planned_edit(
        self, path: str, old: str, new: str, replace_all: bool
    ) -> tuple[list[PlannedChange], str | None]:
        """What the edit would make of the file, nothing where it cannot be made, and the version that it is made on."""
        try:
            before = await downloaded(self.inner, path)
        except DeepFSError:
            return [], None
        text = decode(before)
        try:
            after = None if text is None else edits.replace(path, text, old, new, replace_all).content
        except DeepFSError:
            after = None
        return [] if after is None else [PlannedChange(path, len(before), _bytes_of(after))], version(before)

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        path = paths.normalize(path)
        async with self._holding(path):
            counted = _Counted(path, await self._size(path))
            await self.achanging([counted.planned])
            done = False
            try:
                async with aclosing(counted.passed(chunks, self.achanging)) as passed:
                    outcome = await super().aupload_stream(path, passed)
                done = outcome.error is None
            finally:
                look = partial(self._size_of_one, path)
                await shielded(lambda: self._look_after([counted.planned], None if done else look))
        return outcome

    # --- trees ---

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        path = paths.normalize(path)
        async with self._holding(path):
            planned = [PlannedChange(each, size, None) for each, size in (await self._sizes(path)).items()]
            call = partial(super().adelete, path, if_match=if_match)
            return await self._changing(planned, call, partial(self._sizes, path))

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)
        async with self._holding(src, dst):
            planned = await self._arriving(src, dst, await self._sizes(src, follow=True), overwrite=overwrite)
            call = partial(super().acopy, src, dst, overwrite=overwrite)
            # Links may have become files, or stayed links.
            return await self._changing(planned, call, partial(self._sizes, dst), looks_always=True)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = paths.normalize(src), paths.normalize(dst)
        async with self._holding(src, dst):
            sources = await self._sizes(src)
            leaving = [PlannedChange(path, size, None) for path, size in sources.items()]
            planned = await self._arriving(src, dst, sources, overwrite=overwrite)
            call = partial(super().amove, src, dst, overwrite=overwrite)
            return await self._changing([*leaving, *planned] if planned else [], call, partial(self._both, src, dst))

    async def _both(self, src: str, dst: str) -> Mapping[str, int]:
        return await self._sizes(src) | await self._sizes(dst)

    async def _arriving(
        self, src: str, dst: str, sources: Mapping[str, int], *, overwrite: bool
    ) -> list[PlannedChange]:
        """What comes to `dst`; nothing where it cannot."""
        there = await self._sizes(dst)
        if src == dst or paths.is_beneath(dst, src) or (there and not (overwrite and dst in there)):
            return []
        targets = {paths.join(dst, paths.relative(path, src)): size for path, size in sources.items()}
        return [PlannedChange(path, there.get(path), size) for path, size in targets.items()]

    # --- batches ---

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        targets = {path: _normal(path) for path, _ in files}
        normal = list(dict.fromkeys(path for path in targets.values() if path is not None))
        async with self._holding(*normal):
            before = {path: await self._size(path) for path in normal}
            items = [_Item(path, content, targets[path], before) for path, content in files]
            try:
                for item in items:
                    await item.ask(self.achanging)
                await self._store([item for item in items if item.code is None])
            finally:
                await shielded(partial(self._tell, items, before))
            return [FileUploadResponse(item.given, item.code) for item in items]

    async def _store(self, items: Sequence["_Item"]) -> None:
        stored = await super().aupload_files([(item.given, item.content) for item in items]) if items else []
        for item, outcome in zip(items, stored, strict=True):
            item.code = outcome.error
            item.is_stored = outcome.error is None

    async def _tell(self, items: Iterable["_Item"], sizes: dict[str, int | None]) -> None:
        """Tell what became of each item, in their order: a path may be there twice."""
        for item in items:
            if item.planned is not None:
                look = None if item.is_stored else partial(self._size_of_one, item.planned.path)
                actual = replace(item.planned, before=sizes[item.planned.path])
                [made] = await _made([actual], look)
                sizes[made.path] = made.after
                await self.achanged([item.planned], [made])

    # --- looking ---

    async def _prepare(self) -> None:
        """Called before a change holds its paths; here it does nothing."""

    @asynccontextmanager
    async def _holding(self, *held: str) -> AsyncIterator[None]:
        """Hold these paths, and where they lead."""
        await self._prepare()
        real = await self.inner.aresolve_paths([*held]) if held else []
        async with self._locks.hold(*dict.fromkeys([*held, *(path for path in real if path is not None)])):
            yield

    async def _changing(
        self,
        planned: Sequence[PlannedChange],
        call: Callable[[], Awaitable[T]],
        look: Look,
        *,
        looks_always: bool = False,
    ) -> T:
        """Make a change that was planned; `look` tells the sizes afterwards where it failed, or `looks_always`."""
        if not planned:
            return await call()
        await self.achanging(planned)
        done = False
        try:
            result = await call()
            done = getattr(result, "ok", False)
            return result
        finally:
            await shielded(lambda: self._look_after(planned, None if done and not looks_always else look))

    async def _look_after(self, planned: Sequence[PlannedChange], look: Look | None) -> None:
        await self.achanged(planned, await _made(planned, look))

    async def _size_of_one(self, path: str) -> Mapping[str, int]:
        size = await self._size(path)
        return {} if size is None else {path: size}

    async def _size(self, path: str) -> int | None:
        """The size of the file that `path` leads to; None where there is none, or it may not be seen."""
        [real] = await self.inner.aresolve_paths([path])
        return None if real is None else (await self._sizes(real)).get(real)

    async def _sizes(self, path: str, *, follow: bool = False) -> dict[str, int]:
        """The sizes of the files at and under `path` that can be seen; with `follow` also of those links lead to."""
        try:
            return await self._listed_sizes(path, follow=follow)
        except DeepFSError as error:
            if error.code in _UNSEEN:
                return {}
            raise

    async def _listed_sizes(self, path: str, *, follow: bool = False) -> dict[str, int]:
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


async def _made(planned: Sequence[PlannedChange], look: Look | None) -> list[PlannedChange]:
    """What became of files: as planned, or what `look` tells; where that fails, whatever takes more room."""
    if look is None:
        return list(planned)
    try:
        sizes = await look()
    except DeepFSError:
        return [change if change.grown_bytes > 0 else replace(change, after=change.before) for change in planned]
    return [replace(change, after=sizes.get(change.path)) for change in planned]


class _Counted:
    """An upload that comes in chunks."""

    def __init__(self, path: str, before: int | None) -> None:
        self.planned = PlannedChange(path, before, before or 0)
        """What was told so far, as one change."""

    async def passed(
        self, chunks: AsyncIterable[bytes], ask: Callable[[Sequence[PlannedChange]], Awaitable[None]]
    ) -> AsyncGenerator[bytes, None]:
        """The same chunks, each once `ask` let it pass."""
        size = 0
        async for chunk in chunks:
            size += len(bytes_given("each chunk", chunk))
            if size > (reached := self.planned.after or 0):
                await ask([PlannedChange(self.planned.path, reached, size)])
                self.planned = replace(self.planned, after=size)
            yield chunk
        shorter = replace(self.planned, after=size)
        if size < (self.planned.before or 0):
            await ask([shorter])
        self.planned = shorter


class _Item:
    """One upload of a batch."""

    def __init__(self, given: str, content: bytes, path: str | None, sizes: Mapping[str, int | None]) -> None:
        self.given = given
        self.content = content
        self.planned: PlannedChange | None = None
        self.code: str | None = None
        self.is_stored = False
        self._wanted = None if path is None else PlannedChange(path, sizes[path], len(content))

    async def ask(self, ask: Callable[[Sequence[PlannedChange]], Awaitable[None]]) -> None:
        if self._wanted is None:
            return
        try:
            await ask([self._wanted])
            self.planned = self._wanted
        except DeepFSError as error:
            self.code = error.code.value


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _normal(path: str) -> str | None:
    try:
        return paths.normalize(path)
    except DeepFSError:
        return None
