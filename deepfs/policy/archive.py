"""What a history stores: the versions of files, the log of changes, and where they lie for each caller.

The versions of a file are in one directory, with a file for each content that it had. The log says which run changed
which files, and what they were before and after. Callers who have other files than others have other places.
"""

import re
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from logging import getLogger
from secrets import token_hex
from typing import Final, NamedTuple

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, StoragePlace, TenantView, caller_places, parts_of
from deepfs.errors import BackendError, DeepFSError, ErrorCode, NotFoundError, error_about
from deepfs.text import paths
from deepfs.text.access import without_access_check
from deepfs.text.entries import EntryChange, use_file_mode
from deepfs.text.lines import version
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import Encodable, FileDownloadResponse, FileInfo, error_from, item_error

# --- versions --------------------------------------------------------------------------------------------------------

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
_NO_MODE = "none"
_is_mode = re.compile("[0-7]{1,4}").fullmatch
_is_number = re.compile(r"[0-9]{8,18}").fullmatch
_parsed = re.compile(r"(?P<number>\d{8,})-(?P<at>\d{8}T\d{6}\.\d{6}Z)-(?P<digest>[0-9a-f]{32})").fullmatch


class Version(Encodable, Struct, frozen=True):
    """The content of a file until a change."""

    number: int
    """Counts up from 1 for each path."""
    saved_at: str
    """When this content was replaced or deleted: ISO 8601, UTC."""
    size: int | None = None
    """Bytes."""


class SavedContent(NamedTuple):
    """The content of a file, stored in the directory `place` before a change; it is deleted if the change fails."""

    path: str
    place: str
    number: int
    name: str
    content_version: str


class VersionFiles:
    """The files that hold versions.

    The number of a version is that of a file, which holds the mode, and which only one process can create. Of each file
    the latest `keep` versions are kept.
    """

    def __init__(self, storage: BackendProtocol, keep: int) -> None:
        self._storage = storage
        self._keep = keep

    async def list(self, place: str) -> tuple[list[tuple[Version, str]], list[int]]:
        """The versions in the directory `place`, each with its file name, oldest first; and the numbers taken."""
        found, claims = [], []
        for info in await list_kept(self._storage, place):
            name = paths.name(info.path)
            if parsed := _version_in(name, info.size):
                found.append((parsed, name))
            elif _is_number(name):
                claims.append(int(name))
        return sorted(found, key=lambda each: each[0].number), claims

    async def fetch(self, place: str, name: str, shown: str) -> bytes:
        """Read a version; errors name it as `shown`."""
        [stored] = await self._storage.adownload_files([paths.join(place, name)])
        if stored.error == ErrorCode.FILE_NOT_FOUND:
            raise NotFoundError(shown)
        if stored.content is None:
            raise storage_error(None, "{cause}", item_error(stored, "it cannot be read").with_paths(lambda _: shown))
        if not name.endswith(version(stored.content)):
            raise BackendError(shown, "it cannot be read: it was changed")
        return stored.content

    @without_access_check
    async def mode(self, place: str, name: str) -> int | None:
        """The permission bits that the file of a version, or of a number, had; None if its storage has none."""
        read = await self._storage.aread(paths.join(place, name.partition("-")[0]))
        if read.file_data is None:  # Pruned meanwhile: it may have been a private file.
            return PRIVATE_FILE
        text = read.file_data.content
        return int(text, 8) if _is_mode(text) else None

    async def claim(self, path: str, place: str, mode: int | None, digest: str) -> SavedContent:
        """Take the next number for a content of the file at `path`, of which nothing is stored yet."""
        versions, claims = await self.list(place)
        numbers = {*claims, *(found.number for found, _ in versions)}
        if not numbers:
            private = [EntryChange(each, "make_directory", PRIVATE_DIRECTORY) for each in (paths.parent(place), place)]
            await self._storage.achange_entries([each for each in private if each.path != "/"])
        number = max(numbers, default=0) + 1
        text = f"{mode:o}" if mode is not None else _NO_MODE
        with use_file_mode(PRIVATE_FILE):
            while not (claimed := await self._storage.awrite(paths.join(place, f"{number:08d}"), text)).ok:
                if claimed.code is not ErrorCode.ALREADY_EXISTS:
                    raise keeping_error(path, error_from(claimed))
                number += 1
        name = f"{number:08d}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{digest}"
        return SavedContent(path, place, number, name, digest)

    async def prune(self, place: str, keep: int | None = None) -> int:
        """Delete the oldest versions, where there are more than `keep`; return how many.

        The file with the last number stays, so that no number is given twice.
        """
        versions, claims = await self.list(place)
        old = versions[: max(0, len(versions) - (self._keep if keep is None else keep))]
        if old:
            first = versions[min(len(old), len(versions) - 1)][0].number
            for name in [*(name for _, name in old), *(f"{number:08d}" for number in claims if number < first)]:
                await self._storage.adelete(paths.join(place, name))
        return len(old)

    async def forget(self, saved: SavedContent) -> None:
        """Delete a version, and then the file that claims its number."""
        for each in (saved.name, f"{saved.number:08d}"):
            await self._storage.adelete(paths.join(saved.place, each))


async def list_kept(storage: BackendProtocol, directory: str) -> Sequence[FileInfo]:
    """What is kept in a directory, which may not exist yet. Raises DeepFSError if that is not known."""
    listing = await storage.als(directory)
    if listing.entries is None and listing.code is not ErrorCode.FILE_NOT_FOUND:
        raise storage_error(None, "The history cannot be read: {cause}", error_from(listing))
    return listing.entries or ()


def _version_in(name: str, size: int | None) -> Version | None:
    """The version that a file with this name holds; None for the names that are not made here."""
    if parsed := _parsed(name):
        with suppress(ValueError):  # There is no such day.
            # `strptime` has a lock, which a forked child may find taken for ever.
            at = datetime.fromisoformat(parsed["at"]).isoformat(timespec="microseconds")
            return Version(int(parsed["number"]), at, size)
    return None


def keeping_error(path: str, cause: DeepFSError) -> DeepFSError:
    """Why something was not kept: where a quota is used up, that is the condition of the change as well."""
    if cause.code is ErrorCode.QUOTA_EXCEEDED:
        return error_about(cause.code, path, "there is no room for what it was")
    about_it = cause.with_paths(lambda _: path)  # It may name a path of the versions.
    return storage_error(path, "it could not be kept in the history: {cause}", about_it)


def storage_error(path: str | None, reason: str, cause: DeepFSError) -> DeepFSError:
    """What `cause` means for the caller: a storage failed. What it forbids or lacks is nothing of the caller's."""
    return error_about(
        cause.code if cause.code is ErrorCode.TIMEOUT else ErrorCode.BACKEND_ERROR, path, reason, cause=cause
    )


# --- the log ---------------------------------------------------------------------------------------------------------

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
    """The changes of a history, each a file whose name has the time and the hash of the run."""

    def __init__(self, versions: BackendProtocol) -> None:
        self._versions = versions

    async def store(self, record: str, change: LoggedChange) -> DeepFSError | None:
        """Store a change in the file `record`; return the error if that fails."""
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


# --- places ----------------------------------------------------------------------------------------------------------

_NOBODY = "?"
"""The caller where a state is not known: its versions would lie in one place with those of others."""


class FilePlace(NamedTuple):
    """Where the versions of a file are."""

    directory: str
    """The same for all links to the file."""
    caller: str | None
    """Tells apart callers for whom other files are at the path; None if it is the same for all."""


class HistoryPlaces:
    """The directories of a history of `files`, all of them in one `directory` of `versions`.

    Raises ValueError if a factory makes `files` or a part of it.
    """

    def __init__(self, files: BackendProtocol, versions: BackendProtocol, directory: str) -> None:
        self._files = files
        self._versions = versions
        self._directory = directory
        self._parts = list(_parts(files))
        if any((choice := part.backend._choice) is not None and not choice.is_place for part in self._parts):
            raise ValueError(
                "a factory makes backends, so versions of several callers could lie in one place: "
                "let the factory make the history, or give each backend a factory for its namespace"
            )

    async def of(self, given: Sequence[str]) -> list[FilePlace]:
        """Where the versions of the files at normalised paths are."""
        real = await self._files.aresolve_paths([*given])
        found = []
        for path, leads_to, caller in zip(given, real, await self.callers(given), strict=True):
            if caller == _NOBODY:
                raise BackendError(
                    path, "its history needs a graph with a thread_id or run_id, or versions in the state"
                )
            named = leads_to or path if caller is None else f"{caller}\0{leads_to or path}"  # No path holds NUL.
            found.append(FilePlace(paths.join(self._directory, _hash(named)), caller))
        return found

    async def of_log(self) -> str:
        """The directory of the log, another one for each caller of a factory: tenants see no changes of another one."""
        roots = await self._roots()
        kept = await self._versions.astorage_place(self._directory) if roots else None
        chosen = [(part, root) for part, root in roots if part.backend._choice is not None]
        caller = _name_caller([part for part, root in chosen if not (kept and _holds(root, kept))])
        return paths.join(self._directory, "changes" if caller is None else f"changes-{caller}")

    async def callers(self, given: Sequence[str]) -> list[str | None]:
        """For each path what tells apart callers who have other files there, but versions in one place."""
        roots = await self._roots()
        if not roots:
            return [None] * len(given)
        kept = await self._versions.astorage_place(self._directory)
        found: list[str | None] = []
        for path in given:
            place = await self._files.astorage_place(path)
            # A layer may not say where the path lies: then it may be in any part.
            holding = [each for each in roots if _holds(each[1], place)] or roots
            found.append(_name_caller([part for part, root in holding if not _holds(root, kept)]))
        return found

    async def _roots(self) -> list[tuple["_Part", StoragePlace]]:
        """The parts that this caller has files in, with their roots; none if all callers have the same."""
        if not any(part.has_callers() for part in self._parts):
            return []
        return [(part, root) for part in self._parts if (root := await part.root()) is not None]


class _Part(NamedTuple):
    """A backend that stores files, and the views of tenants that lead to it."""

    backend: BackendProtocol
    views: tuple[TenantView, ...]

    def has_callers(self) -> bool:
        return self.backend._is_by_thread or self.backend._choice is not None

    def acting(self) -> ExitStack:
        stack = ExitStack()
        for view in self.views:
            stack.enter_context(view._acting())
        return stack

    async def root(self) -> StoragePlace | None:
        try:
            with self.acting():
                return await self.backend.astorage_place("/")
        except DeepFSError:  # Its factory has no place for this caller, so no file of the caller is in it.
            return None


def _parts(backend: object, views: tuple[TenantView, ...] = ()) -> Iterator[_Part]:
    for part in parts_of(backend):
        if isinstance(part, TenantView):
            yield from _parts(part.inner, (*views, part))
        elif isinstance(part, BackendProtocol):
            yield _Part(part, views)


def running_ids() -> tuple[str | None, str | None]:
    """The thread and the run of the graph whose task runs here."""
    if "langgraph.config" not in sys.modules:  # Importing LangGraph takes a second, and without it no graph runs.
        return None, None
    from deepfs._langgraph.private import current_ids

    return current_ids()


def _name_caller(parts: Sequence[_Part]) -> str | None:
    """The hash of what this caller has of parts where others have something else."""
    callers: list[object] = []
    for part in parts:
        with part.acting():
            callers += caller_places([part.backend])
    if any(part.backend._is_by_thread for part in parts):
        thread, run = running_ids()
        if thread is None and run is None:
            return _NOBODY
        callers.append(thread if thread is not None else ("run", run))  # Without a thread, a state lives for one run.
    return _hash(repr(callers)) if callers else None


def _hash(named: str) -> str:
    return blake2b(named.encode(), digest_size=16).hexdigest()


def _holds(root: StoragePlace, place: StoragePlace) -> bool:
    return not root.keys.isdisjoint(place.keys | place.above)
