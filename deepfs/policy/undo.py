"""The log of a history: which run changed which files, and what they were before and after."""

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from logging import getLogger
from secrets import token_hex
from typing import Final, NamedTuple

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, DeepFSError, ErrorCode
from deepfs.policy.versions import PRIVATE_DIRECTORY, PRIVATE_FILE, list_kept, storage_error
from deepfs.text import paths
from deepfs.text.entries import EntryChange, use_file_mode
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import Encodable, FileDownloadResponse, item_error

_log = getLogger("deepfs")

UNKNOWN: Final = "?" * 32
"""Stands for the version of a content that is not known; as long as one, so that a record never grows."""
_MOST_CHANGES: Final = 1_000
"""How many changes are kept, the latest ones; of a run that has one of these, all are kept."""
_BATCH: Final = 50
_record = re.compile(r"(?P<at>\d{8}T\d{6}\.\d{6}Z)-(?P<run>[0-9a-f]{8})-[0-9a-f]{8}").fullmatch


class Undo(NamedTuple):
    """An undo that is carried out."""

    run: str
    """Its id, which its changes have as their run."""
    source: str | None
    """The place of what is at the same time moved back to the file that is being restored."""


current_undo: ContextVar[Undo | None] = ContextVar("deepfs_current_undo", default=None)
"""What this task carries out."""


class Change(Encodable, Struct, frozen=True):
    """A change that a history knows."""

    id: str
    operation: str
    """The sync name of the operation; `undo` for what an undo changed."""
    paths: list[str]
    """The files that it changed."""
    changed_at: str
    """ISO 8601, UTC."""
    thread: str | None = None
    """The thread of the graph that made it; None outside of a graph."""
    run: str | None = None
    """The run of the graph, or the undo; None where none is known."""


class UndoResult(Encodable, Struct, frozen=True):
    """What an undo did."""

    run: str
    """The id of the undo: it is a run itself, and can be undone."""
    paths: list[str]
    """The files that are now as they were before the run."""
    conflicts: dict[str, ErrorCode]
    """The files that were left as they are: `conflict` where somebody else changed them since, `file_not_found` where
    what they were is no longer kept, or the code with which it could not be restored."""


class FileChange(Struct, frozen=True, omit_defaults=True):
    """What a change did to one file."""

    path: str
    place: str
    """The directory of the versions of the file."""
    after: str | None
    """The content version after; None if there is no file any more."""
    caller: str | None = None
    """Tells apart callers for whom other files are at `path`."""
    version: str | None = None
    """The name of the version that holds the content before; None if there was no file, or it is not kept."""
    before: str | None = None
    """The content version before; None if there was no file."""
    source: str | None = None
    """The `place` of the file that was moved here."""


class LoggedChange(Struct, frozen=True, omit_defaults=True):
    """A change as it is stored."""

    operation: str
    files: list[FileChange]
    thread: str | None = None
    run: str | None = None


class ChangeLog:
    """The changes of a history, each a file whose name has the time and the hash of the run.

    Args:
        versions: The backend that stores them.
    """

    def __init__(self, versions: BackendProtocol) -> None:
        self._versions = versions

    async def store(self, record: str, change: LoggedChange) -> DeepFSError | None:
        """Store a change; return the error if that fails.

        Args:
            record: The path of its file.
            change: The change.
        """
        if self._versions.capabilities.keeps_empty_directories:
            directory = paths.parent(record)
            private = [paths.parent(directory), directory]
            await self._versions.achange_entries(
                [EntryChange(each, "make_directory", PRIVATE_DIRECTORY) for each in private if each != "/"]
            )
        with use_file_mode(PRIVATE_FILE):
            return await self.replace(record, change)

    async def replace(self, record: str, change: LoggedChange) -> DeepFSError | None:
        """Replace a change; return the error if that fails."""
        content = json.encode(change, enc_hook=str.__str__)  # A path may be of a subclass of str.
        [stored] = await self._versions.aupload_files([(record, content)])
        return None if stored.error is None else item_error(stored, "it cannot be stored")

    async def forget(self, record: str) -> None:
        """Delete a change."""
        await self._versions.adelete(record)

    async def read(self, directory: str, run: str | None = None) -> AsyncGenerator[tuple[str, LoggedChange], None]:
        """The changes in `directory`, or those of one run, each with the name of its file, the latest first.

        Those that cannot be read are left out, and logged; of one run, they may be what an undo needs.

        Raises:
            DeepFSError: The directory, or a change that may be of the run, cannot be read.
        """
        names = await self._names(directory)
        tag = run and _tag(run)
        wanted = [name for name in reversed(names) if tag is None or _tag_in(name) == tag]
        for start in range(0, len(wanted), _BATCH):
            batch = wanted[start : start + _BATCH]
            found = await self._versions.adownload_files([paths.join(directory, name) for name in batch])
            for name, record in zip(batch, found, strict=True):
                if record.error == ErrorCode.FILE_NOT_FOUND:  # It was deleted meanwhile.
                    continue
                try:
                    change = _decode(record)
                except DeepFSError as error:
                    if run is not None:
                        raise
                    _log.warning("%s", error)
                    continue
                if run is None or change.run == run:
                    yield name, change

    async def read_one(self, directory: str, name: str) -> LoggedChange | None:
        """The change whose file has the name `name`, which may be anything; None if there is none."""
        if not _is_record(name):
            return None
        [record] = await self._versions.adownload_files([paths.join(directory, name)])
        return None if record.error == ErrorCode.FILE_NOT_FOUND else _decode(record)

    async def prune(self, directory: str) -> None:
        """Delete the changes that are too many, but none of a run that has later ones."""
        names = await self._names(directory)
        kept = {_tag_in(name) for name in names[-_MOST_CHANGES:]} - {_tag(None)}
        for name in names[:-_MOST_CHANGES]:
            if _tag_in(name) not in kept:
                await self.forget(paths.join(directory, name))

    async def _names(self, directory: str) -> list[str]:
        return sorted(
            name for info in await list_kept(self._versions, directory) if _is_record(name := paths.name(info.path))
        )


def new_record(directory: str, run: str | None) -> str:
    """The path of the file of a new change."""
    return paths.join(directory, f"{_clock.next():%Y%m%dT%H%M%S.%fZ}-{_tag(run)}-{token_hex(4)}")


class _Clock:
    """Times that go on even if the clock is set back, since the order of changes decides what an undo restores."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._latest = datetime.min.replace(tzinfo=UTC)

    def next(self) -> datetime:
        with self._lock:
            self._latest = max(datetime.now(UTC), self._latest + timedelta(microseconds=1))
            return self._latest


_clock = _Clock()


def time_of(name: str) -> str:
    """When the change whose file has this name was made."""
    return datetime.fromisoformat(name.partition("-")[0]).isoformat(timespec="microseconds")


def _is_record(name: str) -> bool:
    with suppress(ValueError):  # There is no such day.
        return _record(name) is not None and bool(time_of(name))
    return False


def combine(changes: Iterable[LoggedChange]) -> tuple[list[FileChange], set[str]]:
    """What changes, oldest first, did to each file together, whatever names it was changed by.

    Returns:
        The files, the one that was changed last first; and the places of those that somebody else changed in between.
    """
    combined: dict[str, FileChange] = {}
    interrupted = set[str]()
    for each in (file for change in changes for file in change.files):
        known = combined.pop(each.place, None)  # Added again, at the end.
        if known is not None and known.after != each.before:
            interrupted.add(each.place)
        source = each.source
        if source is None and known is not None and known.after is not None:
            source = known.source
        elif source is not None and (way := combined.get(source)) is not None and way.before is None:
            source = way.source or source  # It was moved there, too.
        combined[each.place] = replace(known or each, after=each.after, source=source)
    return [*reversed(combined.values())], interrupted


def _decode(record: FileDownloadResponse) -> LoggedChange:
    if record.content is None:
        raise storage_error(None, "A change in the history cannot be read: {cause}", item_error(record, ""))
    try:
        return json.decode(record.content, type=LoggedChange)
    except MsgspecError:
        raise BackendError.because(None, "A change in the history cannot be read: it was changed") from None


def _tag(run: str | None) -> str:
    return "0" * 8 if run is None else blake2b(run.encode(), digest_size=4).hexdigest()


def _tag_in(name: str) -> str:
    return name.split("-")[1]
