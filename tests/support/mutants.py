"""Backends with one fault each, of kinds that real backends have had."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from deepfs.backends.memory import MemoryBackend
from deepfs.types import (
    ChangeEvent,
    DeleteResult,
    EditResult,
    ErrorCode,
    FileDownloadResponse,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

__all__ = ["MUTANTS", "Overwrites"]


class Mutant(MemoryBackend):
    """A memory backend with direct access to its texts."""

    is_synchronous = False

    def text(self, path: str) -> str:
        return self._files[path].content

    async def put(self, path: str, text: str) -> None:
        await super().awrite(path, text, overwrite=True)


class LosesEdits(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        text = self.text(path)
        await anyio.lowlevel.checkpoint()
        if old not in text:
            return await super().aedit(path, old, new, replace_all, **options)
        await self.put(path, text.replace(old, new))
        return EditResult(path=path, occurrences=1)


class TakesTheFirstPlace(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        if done.code is not ErrorCode.AMBIGUOUS_MATCH:
            return done
        await self.put(path, self.text(path).replace(old, new, 1))
        return EditResult(path=path, occurrences=1)


class MakesLineEndsEqual(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        if done.ok:
            await self.put(path, self.text(path).replace("\r\n", "\n"))
        return done


class Overwrites(Mutant):
    async def awrite(self, path: str, content: str, *, overwrite: bool = False, **options: Any) -> WriteResult:
        return await super().awrite(path, content, overwrite=True, **options)


class ChecksThenWrites(Mutant):
    async def awrite(self, path: str, content: str, *, overwrite: bool = False, **options: Any) -> WriteResult:
        if path in self._files and not overwrite:
            return await super().awrite(path, content, **options)
        await anyio.lowlevel.checkpoint()
        return await super().awrite(path, content, overwrite=True, **options)


class IgnoresVersions(Mutant):
    async def awrite(self, path: str, content: str, *, overwrite: bool = False, **options: Any) -> WriteResult:
        return await super().awrite(path, content, overwrite=overwrite or bool(options))


class WritesInTwoSteps(Mutant):
    async def awrite(self, path: str, content: str, *, overwrite: bool = False, **options: Any) -> WriteResult:
        if overwrite:
            await super().awrite(path, content[: len(content) // 2], overwrite=True)
            await anyio.lowlevel.checkpoint()
        return await super().awrite(path, content, overwrite=overwrite, **options)


class KeepsTheLock(Mutant):
    def __init__(self) -> None:
        super().__init__()
        self.free = anyio.Semaphore(1)

    async def awrite(self, path: str, content: str, *, overwrite: bool = False, **options: Any) -> WriteResult:
        await self.free.acquire()
        await anyio.lowlevel.checkpoint()
        self.free.release()
        return await super().awrite(path, content, overwrite=overwrite, **options)


class SplitsLinesEverywhere(Mutant):
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        whole = await super().aread(path)
        if not whole.ok or whole.file_data is None or whole.file_data.encoding == "base64":
            return whole
        lines = whole.file_data.content.splitlines(keepends=True)
        text = "".join(lines[offset : offset + limit])
        end = min(offset + limit, len(lines))
        following = end if end < len(lines) else None
        data = replace(whole.file_data, content=text)
        return replace(whole, file_data=data, start_line=offset + 1, end_line=end, next_offset=following)


class RaisesForBadPaths(Mutant):
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        if ".." in path.split("/"):
            raise ValueError(path)
        return await super().aread(path, offset, limit)


class MissesEmptyFiles(Mutant):
    async def als(self, path: str) -> LsResult:
        listing = await super().als(path)
        return replace(listing, entries=listing.entries and [info for info in listing.entries if info.size != 0])


class SearchesHiddenFiles(Mutant):
    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        if glob is None:
            return await super().agrep(pattern, path, "{*,.*,**/.*/**}", **options)
        return await super().agrep(pattern, path, glob, **options)


class DeletesByPrefix(Mutant):
    async def adelete(self, path: str, **options: Any) -> DeleteResult:
        done = await super().adelete(path, **options)
        if done.ok:
            for file in [file for file in self._files if file.startswith(path)]:
                await super().adelete(file)
        return done


class MovesByDeletingFirst(Mutant):
    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        if src not in self._files or dst in self._files:
            return await super().amove(src, dst, overwrite=overwrite)
        content = (await super().adownload_files([src]))[0].content or b""
        await super().adelete(src)
        await anyio.lowlevel.checkpoint()
        await super().aupload_files([(dst, content)])
        return WriteResult(path=dst)


class AnswersInItsOwnOrder(Mutant):
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await super().adownload_files(sorted(paths))


class SyncDoesItsOwn(Mutant):
    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return replace(super().read(path, offset, limit), next_offset=None, total_lines=None)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await super().aread(path, offset, limit)


class TellsNoDeletions(Mutant):
    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(super().awatch(path)) as events:
            async for event in events:
                if event.kind != "deleted":
                    yield event


MUTANTS: dict[type[Mutant], tuple[str, bool]] = {
    TellsNoDeletions: ("test_the_move_of_a_directory_is_told_file_by_file", False),
    LosesEdits: ("test_edits_that_do_not_overlap_all_succeed", True),
    TakesTheFirstPlace: ("test_several_places_are_ambiguous", True),
    MakesLineEndsEqual: ("test_line_ends_of_a_crlf_file_stay_and_are_matched", True),
    Overwrites: ("test_a_write_does_not_replace", True),
    ChecksThenWrites: ("test_concurrent_creations_succeed_once", False),
    IgnoresVersions: ("test_if_match_of_another_version_is_a_conflict", True),
    WritesInTwoSteps: ("test_a_reader_never_sees_a_partial_write", False),
    KeepsTheLock: ("test_a_cancelled_creation_is_done_or_not", False),
    SplitsLinesEverywhere: ("test_reading_line_by_line_shows_each_line", True),
    RaisesForBadPaths: ("test_hostile_paths_are_invalid_path_and_never_raise", False),
    MissesEmptyFiles: ("test_an_empty_file_is_a_file", True),
    SearchesHiddenFiles: ("test_dot_names_are_searched_only_if_the_path_names_them", True),
    DeletesByPrefix: ("test_paths_with_the_same_prefix_are_not_deleted", True),
    MovesByDeletingFirst: ("test_a_file_being_moved_is_always_at_its_source_or_destination", True),
    AnswersInItsOwnOrder: ("test_downloads_succeed_and_fail_one_by_one", True),
    SyncDoesItsOwn: ("test_both_methods_return_the_same_results", False),
}
"""For each mutant, the test of the suite that fails for it, and whether the state machine finds the fault too."""
