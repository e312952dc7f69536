"""Copies of trees between two backends: made in batches and streams, checked by reading back, shown and interrupted.

A file is skipped only if both ends have been read and are equal, unless the user asks for less. So a copy needs no
record of earlier ones: after an interruption, or if the source has changed since, the same copy is made again, and
stores what is missing or different.
"""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskStatus

from deepfs.backends.protocol import BackendProtocol
from deepfs.cli.copy_plans import STREAMED_BYTES, PlannedFile, Totals, TreePlan, Verify, error_text, listed
from deepfs.cli.screen import counted
from deepfs.cli.session import Session
from deepfs.errors import DeepFSError, ErrorCode, quoted
from deepfs.storage.gathering import batched, gather_each
from deepfs.text.entries import EntryChange, directories_of, empty_directories, making_files
from deepfs.text.lines import digest, version

if TYPE_CHECKING:
    from deepfs.types import FileUploadResponse

__all__ = ["FullError", "TreeCopy", "interruptible", "shown_progress", "totals_text"]

_BATCH_FILES: Final = 1_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most files and bytes of a batch."""
_BATCHES_AT_ONCE: Final = 3
"""One is fetched while another one is stored and a third one is read back."""
_STREAMS_AT_ONCE: Final = 2
_CHANGES_AT_ONCE: Final = 32
"""How many files are deleted at once."""
_OWN_BITS: Final = 0o700
"""What a new directory permits its owner while the copy goes on, and a file that will be replaced."""
_ENDS_ALL: Final = frozenset({ErrorCode.QUOTA_EXCEEDED, ErrorCode.BACKEND_ERROR, ErrorCode.TIMEOUT})
"""The errors after which nothing more is stored: a full storage, and those for which no file of a batch was."""


_REFRESH_SECONDS: Final = 0.1
_SIGNALS: Final = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class FullError(Exception):
    """The target stores nothing more; the text says why."""


class TreeCopy:
    """The copy of a tree.

    Args:
        plan: What to do.
    """

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._versions: dict[str, str] = {}
        """The version of each file that is at the target, by its path in the source. Moves need it."""
        self._sizes: dict[str, int] = {}
        """The size of each file that was stored, by its path in the source."""
        self._ended_by: str | None = None
        """The code of the error after which nothing more is stored."""
        self._storing = anyio.Lock()
        self._streaming = anyio.CapacityLimiter(_STREAMS_AT_ONCE)

    # --- copying -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make the directories, copy the files, and set the modes.

        Raises:
            FullError: The target stores nothing more.
            DeepFSError: The target does not work.
        """
        modes = await self._make_directories()
        errors: list[Exception] = []
        batches = _batches(self._plan.files)

        async def work() -> None:
            try:
                for batch in batches:
                    await self._copy(batch)
                    if self._ended_by is not None:
                        raise FullError(error_text(self._ended_by))
            except Exception as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(_BATCHES_AT_ONCE + _STREAMS_AT_ONCE - 1):
                tasks.start_soon(work)
        if errors:
            raise errors[0]
        if self._plan.terms.verify is Verify.SIZE:
            await self._check_sizes()
        await self._change(modes)

    async def _copy(self, batch: list[PlannedFile]) -> None:
        if batch[0].cost >= STREAMED_BYTES:
            async with self._streaming:
                await self._copy_stream(batch[0])
            return
        contents = await self._fetched(batch)
        equal = await self._equal({file: content for file, content in contents.items() if file.may_be_equal})
        stored = await self._stored({file: content for file, content in contents.items() if file not in equal})
        if self._plan.terms.verify is Verify.READ and stored:
            same = await self._equal(stored)
            for file in stored.keys() - same:
                self._plan.fail(file.path, f"what was stored at {self._plan.shown_target(file)} differs from it", file)
            stored = {file: stored[file] for file in stored if file in same}
        await self._set_modes([*equal, *stored])
        for file, content in contents.items():
            if file in equal or file in stored:
                self._done(file, content, is_new=file in stored)

    def _done(self, file: PlannedFile, content: bytes, *, is_new: bool) -> None:
        if self._plan.terms.moves:
            self._versions[file.path] = version(content)
        self._count(file, len(content), is_new=is_new)
        self._plan.totals.passed_bytes += file.size or 0

    def _count(self, file: PlannedFile, size: int, *, is_new: bool) -> None:
        if is_new:
            self._sizes[file.path] = size
            self._plan.totals.files += 1
            self._plan.totals.bytes += size
        else:
            self._plan.totals.skipped += 1

    async def _fetched(self, batch: list[PlannedFile]) -> dict[PlannedFile, bytes]:
        downloads = await self._plan.source.backend.adownload_files([file.path for file in batch])
        contents: dict[PlannedFile, bytes] = {}
        for file, download in zip(batch, downloads, strict=True):
            if download.error is None:
                contents[file] = download.content or b""
            else:
                self._plan.fail(file.path, error_text(download.error), file)
        return contents

    async def _equal(self, contents: dict[PlannedFile, bytes]) -> set[PlannedFile]:
        """The files whose content is what is at the target."""
        if not contents:
            return set()
        downloads = await self._plan.target.backend.adownload_files([file.target for file in contents])
        return {
            file
            for (file, content), download in zip(contents.items(), downloads, strict=True)
            if download.error is None and (download.content or b"") == content
        }

    async def _stored(self, contents: dict[PlannedFile, bytes]) -> dict[PlannedFile, bytes]:
        """Store files; return those that were stored."""
        if not contents:
            return {}
        await self._close_to_others(contents)
        outcomes: list[FileUploadResponse] = []
        files = sorted(contents, key=lambda file: -1 if file.mode is None else file.mode)
        async with self._storing:
            for mode, group in groupby(files, key=attrgetter("mode")):
                with making_files(mode):
                    uploads = [(file.target, contents[file]) for file in group]
                    outcomes += await self._plan.target.backend.aupload_files(uploads)
        stored: dict[PlannedFile, bytes] = {}
        for file, outcome in zip(files, outcomes, strict=True):
            if outcome.error is None:
                stored[file] = contents[file]
            else:
                self._plan.fail(file.path, f"{self._plan.shown_target(file)}: {error_text(outcome.error)}", file)
        code = outcomes[-1].error
        if code == ErrorCode.QUOTA_EXCEEDED or (code in _ENDS_ALL and not stored):
            self._ended_by = code
        return stored

    # --- large files -------------------------------------------------------------------------------------------------

    async def _copy_stream(self, file: PlannedFile) -> None:
        if file.may_be_equal and file.existing_size is not None and await self._are_equal(file):
            await self._set_modes([file])
            self._count(file, file.size or 0, is_new=False)
            return
        hashed, sizes, failed = digest(), [0], list[DeepFSError]()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async with aclosing(self._plan.source.backend.adownload_stream(file.path)) as stream:
                    async for chunk in stream:
                        hashed.update(chunk)
                        sizes[0] += len(chunk)
                        self._plan.totals.passed_bytes += len(chunk)
                        yield chunk
            except DeepFSError as error:
                failed.append(error)
                raise

        await self._close_to_others([file])
        with making_files(file.mode):
            outcome = await self._plan.target.backend.aupload_stream(file.target, chunks())
        if failed:
            self._plan.fail(file.path, error_text(failed[0].code), file)
        elif outcome.error is not None:
            self._plan.fail(file.path, f"{self._plan.shown_target(file)}: {error_text(outcome.error)}", file)
        elif self._plan.terms.verify is Verify.READ and await self._digest_at_target(file) != hashed.hexdigest():
            self._plan.fail(file.path, f"what was stored at {self._plan.shown_target(file)} differs from it", file)
        else:
            await self._set_modes([file])
            self._versions[file.path] = hashed.hexdigest()
            self._count(file, sizes[0], is_new=True)
        if outcome.error in _ENDS_ALL and not failed:
            self._ended_by = outcome.error

    async def _are_equal(self, file: PlannedFile) -> bool:
        """Whether a large file is at the target already."""
        here = await _digest_of(self._plan.source.backend, file.path)
        if here is None or here != await self._digest_at_target(file):
            return False
        self._versions[file.path] = here
        self._plan.totals.passed_bytes += file.size or 0
        return True

    async def _digest_at_target(self, file: PlannedFile) -> str | None:
        return await _digest_of(self._plan.target.backend, file.target)

    # --- directories and modes ---------------------------------------------------------------------------------------

    async def _make_directories(self) -> list[EntryChange]:
        """Make the directories, so that what is in a private one is private from the start.

        Returns:
            The changes that give directories their modes once they are full.
        """
        if self._plan.entries[:1] and self._plan.entries[0].kind != "directory":
            return []
        new = [
            entry
            for entry in directories_of(self._plan.entries)
            if self._plan.at_target(entry.path) not in self._plan.existing
        ]
        needed = {self._plan.at_target(entry.path) for entry in empty_directories(self._plan.entries)}
        changes = [
            EntryChange(
                self._plan.at_target(entry.path),
                "make_directory",
                (entry.mode or 0) | _OWN_BITS if entry.mode else None,
            )
            for entry in new
        ]
        lost = 0
        for change, outcome in zip(changes, await self._plan.target.backend.achange_entries(changes), strict=True):
            if outcome.error == ErrorCode.UNSUPPORTED:
                lost += change.path in needed
            elif outcome.error not in (None, ErrorCode.ALREADY_EXISTS):
                shown = quoted(self._plan.target.shown(change.path))
                self._plan.tell(f"cannot create directory {shown}: {error_text(outcome.error)}")
        if lost:
            self._plan.session.screen.note(
                f"deepfs {self._plan.session.name}: empty directories the target cannot keep: {lost:,}"
            )
        return [
            EntryChange(self._plan.at_target(entry.path), "set_mode", entry.mode)
            for entry in reversed(new)
            if entry.mode is not None and entry.mode & _OWN_BITS != _OWN_BITS
        ]

    async def _set_modes(self, files: Iterable[PlannedFile]) -> None:
        """Set the permission bits of files that are at the target."""
        modes = [(file.target, file.new_mode) for file in files]
        await self._change([EntryChange(path, "set_mode", mode) for path, mode in modes if mode is not None])

    async def _close_to_others(self, files: Iterable[PlannedFile]) -> None:
        """Take from the files that will be replaced what the new ones permit nobody but their owner."""
        changes: list[EntryChange] = []
        for file in files:
            existing = None if file.existing is None else file.existing.mode
            if (
                existing is not None
                and file.mode is not None
                and (narrow := existing & (file.mode | _OWN_BITS)) != existing
            ):
                changes.append(EntryChange(file.target, "set_mode", narrow))
        await self._change(changes)

    async def _change(self, changes: Sequence[EntryChange]) -> None:
        if not changes:
            return
        for change, outcome in zip(changes, await self._plan.target.backend.achange_entries(changes), strict=True):
            if outcome.error is not None:
                shown = quoted(self._plan.target.shown(change.path))
                self._plan.tell(f"the mode of {shown} could not be set: {error_text(outcome.error)}")

    async def _check_sizes(self) -> None:
        found = {
            entry.path: entry for entry in (await listed(self._plan.target.backend, self._plan.target.path)).entries
        }
        for file in self._plan.files:
            size = self._sizes.get(file.path)
            if size is not None and (file.target not in found or found[file.target].size != size):
                self._plan.fail(file.path, f"what was stored at {self._plan.shown_target(file)} has another size")
                self._plan.totals.files -= 1
                self._versions.pop(file.path, None)

    # --- deleting what was moved -------------------------------------------------------------------------------------

    async def delete_source(self) -> None:
        """Delete the files that are at the target and have not changed since, and the directories that are empty."""
        await gather_each(self._delete, list(self._versions), most=_CHANGES_AT_ONCE)
        directories = [entry.path for entry in directories_of(self._plan.entries) if entry.path != "/"]
        changes = [EntryChange(path, "remove_directory") for path in sorted(directories, reverse=True)]
        if changes:
            await self._plan.source.backend.achange_entries(changes)

    async def _delete(self, path: str) -> None:
        backend, copied = self._plan.source.backend, self._versions[path]
        result = await backend.adelete(path, if_match=copied)
        if not result.ok and result.code is not ErrorCode.FILE_NOT_FOUND:
            self._plan.fail(path, f"it was copied but not deleted: {error_text(result.code)}")


def _batches(files: Sequence[PlannedFile]) -> Iterator[list[PlannedFile]]:
    """The files in batches; each large file alone, and these first."""
    yield from ([file] for file in files if file.cost >= STREAMED_BYTES)
    small = (file for file in files if file.cost < STREAMED_BYTES)
    yield from batched(small, attrgetter("cost"), most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES)


async def _digest_of(backend: BackendProtocol, path: str) -> str | None:
    """The version of a file, read in parts; None if it cannot be read."""
    hashed = digest()
    try:
        async with aclosing(backend.adownload_stream(path)) as stream:
            async for chunk in stream:
                hashed.update(chunk)
    except DeepFSError:
        return None
    return hashed.hexdigest()


# --- interruption -----------------------------------------------------------------------------------------------------


async def interruptible(work: Callable[[], Awaitable[None]]) -> int | None:
    """Run something that SIGINT, SIGTERM and SIGHUP cancel. What is being stored is stored as a whole, or not at all.

    Args:
        work: What to run.

    Returns:
        The number of the signal that ended it; None if none did.
    """
    received: list[int] = []
    errors: list[Exception] = []

    async def watch(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                received.append(number)
                break
        # From here on, another SIGINT ends the process at once.
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            await work()
        except Exception as error:
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return received[0] if received else None


# --- totals ----------------------------------------------------------------------------------------------------------


def size_text(size: float) -> str:
    """A size in decimal units.

    Args:
        size: Bytes.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def totals_text(totals: Totals) -> str:
    """The totals as a line.

    Args:
        totals: The totals.
    """
    files = counted(totals.files, "file")
    failed = f", {totals.failed:,} failed" if totals.failed else ""
    return f"{files}, {size_text(totals.bytes)} in {totals.seconds:.1f} s ({totals.skipped:,} skipped{failed})"


# --- the bar ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def shown_progress(session: Session, totals: Totals) -> AsyncIterator[None]:
    """Show a bar while a copy runs, if standard error is a terminal.

    Args:
        session: The session.
        totals: What the copy counts.
    """
    if session.as_json or not sys.stderr.isatty():
        yield
        return
    with _bar() as bar:
        task = bar.add_task("", files=0, planned=0, total=None)

        def refresh() -> None:
            done = totals.files + totals.skipped
            planned = totals.planned_bytes or None
            bar.update(
                task,
                completed=totals.passed_bytes,
                total=planned,
                files=done,
                planned=totals.planned_files,
                refresh=True,
            )

        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_repeat, refresh)
            try:
                yield
            except Exception as error:  # The group would wrap it.
                errors.append(error)
            finally:
                tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]


async def _repeat(refresh: Callable[[], None]) -> None:
    while True:
        await anyio.sleep(_REFRESH_SECONDS)
        refresh()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    files = TextColumn("{task.fields[files]:,}/{task.fields[planned]:,} files")
    columns = (BarColumn(), files, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
