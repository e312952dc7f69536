"""Backends with one fault each, of kinds that real backends have had."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from fnmatch import fnmatch
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from deepfs.backends.memory import MemoryBackend
from deepfs.text.flat_tree import Change
from deepfs.types import (
    ChangeEvent,
    DeleteResult,
    EditResult,
    ErrorCode,
    FileDataV2,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
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


class SaysItEdited(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        return EditResult(path=path, occurrences=1) if done.code is ErrorCode.NO_MATCH else done


class TakesTheFirstPlace(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        if done.code is not ErrorCode.AMBIGUOUS_MATCH:
            return done
        await self.put(path, self.text(path).replace(old, new, 1))
        return EditResult(path=path, occurrences=1)


class CountsWithoutOverlaps(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        once = path in self._files and old and self.text(path).count(old) == 1
        return await super().aedit(path, old, new, replace_all or bool(once), **options)


class MakesLineEndsEqual(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        if done.ok:
            await self.put(path, self.text(path).replace("\r\n", "\n"))
        return done


class LosesTheMark(Mutant):
    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> EditResult:
        done = await super().aedit(path, old, new, replace_all, **options)
        if done.ok:
            await self.put(path, self.text(path).removeprefix("\ufeff"))
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


class ForgetsWhenItWasCreated(Mutant):
    def _before_apply(self, changes: Any) -> Any:
        return [Change(change.path, change.before, _as_new(change.after)) for change in changes]


def _as_new(file: FileDataV2 | None) -> FileDataV2 | None:
    return file and replace(file, created_at=file.modified_at)


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


class ShowsTheMark(Mutant):
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        read = await super().aread(path, offset, limit)
        if read.ok and read.file_data and read.file_data.encoding == "utf-8" and self.text(path).startswith("\ufeff"):
            return replace(read, file_data=replace(read.file_data, content=f"\ufeff{read.file_data.content}"))
        return read


class RaisesForBadPaths(Mutant):
    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        if ".." in path.split("/"):
            raise ValueError(path)
        return await super().aread(path, offset, limit)


class ResolvesParents(Mutant):
    async def aread_raw(self, path: str) -> ReadRawResult:
        names: list[str] = []
        for name in path.split("/"):
            if name == "..":
                names = names[:-1]
            else:
                names.append(name)
        return await super().aread_raw("/".join(names))


class ListsWithEmptyPayload(Mutant):
    async def als(self, path: str) -> LsResult:
        listing = await super().als(path)
        return listing if listing.ok else replace(listing, entries=[])


class MissesEmptyFiles(Mutant):
    async def als(self, path: str) -> LsResult:
        listing = await super().als(path)
        return replace(listing, entries=listing.entries and [info for info in listing.entries if info.size != 0])


class SortsByKind(Mutant):
    pass


async def _listed_by_kind(self: Mutant, path: str) -> LsResult:
    listing = await Mutant.als(self, path)
    return listing if not listing.entries else LsResult(entries=sorted(listing.entries, key=_by_kind))


# Set later: what the body of a class outside of deepfs lists is put in order.
SortsByKind.als = _listed_by_kind  # type: ignore[method-assign]


def _by_kind(info: FileInfo) -> tuple[bool, str]:
    return not info.is_dir, info.path


class GlobsHiddenFiles(Mutant):
    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        found = await super().aglob(pattern, path)
        if not found.ok or "/" in pattern:
            return found
        names = {file: file.rsplit("/", 1)[1] for file in sorted(self._files) if file.startswith(path)}
        hits = [file for file, name in names.items() if fnmatch(name, pattern)]
        return GlobResult(matches=[FileInfo(hit, is_dir=False, size=len(self.text(hit))) for hit in hits])


class SearchesHiddenFiles(Mutant):
    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        if glob is None:
            return await super().agrep(pattern, path, "{*,.*,**/.*/**}", **options)
        return await super().agrep(pattern, path, glob, **options)


class CutsInSilence(Mutant):
    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        return replace(await super().agrep(pattern, path, glob, **options), truncated=False)


class CountsNoSkippedFiles(Mutant):
    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        return replace(await super().agrep(pattern, path, glob, **options), skipped=0)


class DeletesByPrefix(Mutant):
    async def adelete(self, path: str, **options: Any) -> DeleteResult:
        done = await super().adelete(path, **options)
        if done.ok:
            for file in [file for file in self._files if file.startswith(path)]:
                await super().adelete(file)
        return done


class DeletesTheRoot(Mutant):
    async def adelete(self, path: str, **options: Any) -> DeleteResult:
        if path == "/":
            for info in (await self.als("/")).entries or ():
                await super().adelete(info.path)
            return DeleteResult(path="/")
        return await super().adelete(path, **options)


class DeletesWhateverTheVersion(Mutant):
    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        return await super().adelete(path)


class MovesByDeletingFirst(Mutant):
    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        if src not in self._files or dst in self._files:
            return await super().amove(src, dst, overwrite=overwrite)
        content = (await super().adownload_files([src]))[0].content or b""
        await super().adelete(src)
        await anyio.lowlevel.checkpoint()
        await super().aupload_files([(dst, content)])
        return WriteResult(path=dst)


class CopiesOverDirectories(Mutant):
    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        if overwrite and dst != src and dst in self._parents:
            await super().adelete(dst)
        return await super().acopy(src, dst, overwrite=overwrite)


class StopsAtTheFirstError(Mutant):
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = [(await super(StopsAtTheFirstError, self).aupload_files([item]))[0] for item in files[:1]]
        for item in files[1:]:
            if responses[-1].error:
                responses.append(FileUploadResponse(item[0], responses[-1].error))
            else:
                responses += await super().aupload_files([item])
        return responses


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


class WatchesEverything(Mutant):
    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(super().awatch("/")) as events:
            async for event in events:
                yield event if event.path != "/" else ChangeEvent(path, event.kind)


class StartsToWatchUntold(Mutant):
    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(super().awatch(path)) as events:
            await anext(events)
            async for event in events:
                yield event


MUTANTS: dict[type[Mutant], tuple[str, bool]] = {
    TellsNoDeletions: ("test_the_move_of_a_directory_is_told_file_by_file", False),
    WatchesEverything: ("test_only_changes_under_the_watched_path_are_told", False),
    StartsToWatchUntold: ("test_watching_is_unsupported_where_it_is_not_declared", False),
    LosesEdits: ("test_edits_that_do_not_overlap_all_succeed", True),
    SaysItEdited: ("test_concurrent_edits_of_one_place_succeed_once", True),
    TakesTheFirstPlace: ("test_several_places_are_ambiguous", True),
    CountsWithoutOverlaps: ("test_places_that_overlap_are_ambiguous", False),
    MakesLineEndsEqual: ("test_line_ends_of_a_crlf_file_stay_and_are_matched", True),
    LosesTheMark: ("test_only_the_replacement_changes", True),
    Overwrites: ("test_a_write_does_not_replace", True),
    ChecksThenWrites: ("test_concurrent_creations_succeed_once", False),
    IgnoresVersions: ("test_if_match_of_another_version_is_a_conflict", True),
    WritesInTwoSteps: ("test_a_reader_never_sees_a_partial_write", False),
    KeepsTheLock: ("test_a_cancelled_creation_is_done_or_not", False),
    ForgetsWhenItWasCreated: ("test_modified_at_moves_on_and_created_at_stays", False),
    SplitsLinesEverywhere: ("test_reading_line_by_line_shows_each_line", True),
    ShowsTheMark: ("test_a_byte_order_mark_is_not_shown", True),
    RaisesForBadPaths: ("test_hostile_paths_are_invalid_path_and_never_raise", False),
    ResolvesParents: ("test_hostile_paths_are_invalid_path_and_never_raise", False),
    ListsWithEmptyPayload: ("test_ls_of_a_missing_path_is_file_not_found", False),
    MissesEmptyFiles: ("test_an_empty_file_is_a_file", True),
    SortsByKind: ("test_ls_is_sorted_by_path", True),
    GlobsHiddenFiles: ("test_every_pattern_of_the_table", True),
    SearchesHiddenFiles: ("test_dot_names_are_searched_only_if_the_path_names_them", True),
    CutsInSilence: ("test_max_count_keeps_the_first_matches_and_sets_truncated", True),
    CountsNoSkippedFiles: ("test_binary_files_that_match_count_as_skipped", True),
    DeletesByPrefix: ("test_paths_with_the_same_prefix_are_not_deleted", True),
    DeletesTheRoot: ("test_the_root_cannot_be_deleted", True),
    DeletesWhateverTheVersion: ("test_a_delete_with_another_version_is_a_conflict", True),
    MovesByDeletingFirst: ("test_a_file_being_moved_is_always_at_its_source_or_destination", True),
    CopiesOverDirectories: ("test_a_directory_is_never_replaced", True),
    StopsAtTheFirstError: ("test_uploads_succeed_and_fail_one_by_one", True),
    AnswersInItsOwnOrder: ("test_downloads_succeed_and_fail_one_by_one", True),
    SyncDoesItsOwn: ("test_both_methods_return_the_same_results", False),
}
"""For each mutant, the test of the suite that fails for it, and whether the state machine finds the fault too."""
