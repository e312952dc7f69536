"""The files of a search index: copies of objects, and notes of what clients are changing.

Each object has a file at the same path with the same content, whose media type tells which version of the object it is
a copy of. An object that is too large to be searched, or is being created, has a file with a mark as its content. The
files of the index itself are in a directory whose name is too long for a path of the contract.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from deepfs.backends.flat import StorageBackend
from deepfs.errors import BackendError, DeepFSError
from deepfs.storage.runners import Apply, Find, Get, List, Plan, Request, Stat
from deepfs.text.flat_tree import Change, FileStat
from deepfs.text.records import size_of, timestamp
from deepfs.types import FileDataV2

MARK: Final = "\x1f too large for the search index \x1f"
"""The content of the files of objects whose content is not in the index."""
_OWN: Final = f"/{'.deepfs-index'.ljust(256, '-')}"
_LISTED: Final = f"{_OWN}/listed"
_PLACE: Final = f"{_OWN}/place-"
_CHANGE: Final = f"{_OWN}/change-"
_RESERVED: Final = "text/plain; reserved"
_SECONDS_OF_A_CHANGE: Final = 3600.0
"""After so long a change has ended, or the process that made it has."""


class ForeignIndexError(BackendError):
    """The namespace of the index holds something else."""


class Notes(NamedTuple):
    """What the index says about itself."""

    listed_at: str | None
    """The time of the last listing."""
    changing: frozenset[str]
    """The paths that clients are changing, or were changing when they died."""
    has_old: bool
    """Whether a change lasts so long that its client is probably dead."""


class Pending(NamedTuple):
    """A change of objects by this client that the index knows of."""

    paths: Sequence[str]
    note: str
    """The name of the note; empty if the files that were made say enough."""
    seen: Mapping[str, FileStat]
    """The files of the index before the change."""
    created: set[str]
    """The paths of those that were made for it."""


class Copies:
    """The files of a search index.

    Args:
        database: Where they are. Nothing else may be stored under its namespace.
        place: Identifies the root of the backend in its object store.
    """

    def __init__(self, database: StorageBackend, place: str) -> None:
        if not isinstance(database, StorageBackend):
            raise TypeError(f"index must be a PostgresBackend or a SqliteBackend, not {type(database).__name__}")
        if not database._finds:
            raise ValueError("index must be a backend that finds files by an index of its own: Postgres or SQLite")
        self._database = database
        self._place = _PLACE + sha256(place.encode("utf-8", "replace")).hexdigest()[:32]
        self._is_claimed = False

    # --- whose index it is ---

    async def claim(self) -> None:
        """Raise ForeignIndexError if the namespace holds other files, or the index of another place."""
        if not self._is_claimed:
            await self._check_place(await self.ask(List(f"{_OWN}/")))

    async def _check_place(self, own: Mapping[str, FileStat]) -> None:
        places = _places(own)
        if not places:
            has_files = bool(await self.ask(List("/", 1)))
            await self._create_place(has_files=has_files)
            places = _places(await self.ask(List(f"{_OWN}/")))
            if places - {self._place}:  # Two places were told to use it at the same time.
                await self._change([Change(self._place, None, None, seen=FileStat())])
        if places != {self._place}:
            raise ForeignIndexError(
                None, "The namespace of the search index is in use for another place: give each place one of its own"
            )
        self._is_claimed = True

    async def _create_place(self, *, has_files: bool) -> None:
        def plan() -> Plan[None]:
            # Looked at again, since another client of this place may have begun to use the index meanwhile.
            if self._place in (yield Stat([self._place])):
                return
            if has_files:
                raise ForeignIndexError(
                    None, "The namespace of the search index holds other files, which it would remove"
                )
            yield Apply([Change(self._place, None, _note(""))])

        await self._database._change(plan, self._place)

    # --- notes ---

    async def notes(self) -> Notes:
        """What the index says about itself. Raises ForeignIndexError if it is that of another place."""
        own: Mapping[str, FileStat] = await self.ask(List(f"{_OWN}/"))
        if _places(own) != {self._place}:
            await self._check_place(own)
        names = [path for path in own if path.startswith(_CHANGE)]
        found: Mapping[str, FileDataV2] = await self.ask(Get(names)) if names else {}
        listed = own[_LISTED].modified_at if _LISTED in own else None
        changing = frozenset(path for name in found for path in _paths_of(found[name]))
        return Notes(listed, changing, any(_is_old(own[name]) for name in names))

    async def note_listing(self, began: str) -> None:
        """Note when a listing began."""
        note = FileDataV2("", "utf-8", began, began)
        await self._change([Change(_LISTED, None, note, seen=FileStat())])

    async def announce(self, paths: Sequence[str]) -> Pending:
        """Note that the objects at `paths` are about to change. Raises ForeignIndexError, too."""
        await self.claim()
        seen, created = await self.reserved(paths)
        name = ""
        if len(created) < len(seen):
            name = f"{_CHANGE}{token_hex(8)}"
            await self._change([Change(name, None, _note(msgspec.json.encode(list(paths)).decode()))])
        return Pending(paths, name, seen, created)

    async def reserved(self, paths: Sequence[str]) -> tuple[dict[str, FileStat], set[str]]:
        """The files of the index at `paths`, and the paths of those that were made for it.

        They are made where there are none, since a file can be seen to have changed, and its absence cannot.
        """

        def plan() -> Plan[tuple[dict[str, FileStat], set[str]]]:
            found: Mapping[str, FileStat] = yield Stat(paths)
            missing = {path for path in paths if path not in found}
            if missing:
                now = timestamp()
                note = FileDataV2(MARK, "utf-8", now, now, _RESERVED)
                yield Apply([Change(path, None, note) for path in sorted(missing)])
                found = yield Stat(paths)
            return dict(found), missing

        return await self._database._change(plan, *paths)

    async def withdraw(self, pending: Pending) -> None:
        """Note that nothing was changed."""
        await self.store(dict.fromkeys(pending.created), pending.seen)
        await self.forget([pending.note])

    async def forget(self, names: Sequence[str]) -> None:
        """Remove notes of changes."""
        await self._change([Change(name, None, None, seen=FileStat()) for name in names if name])

    async def old_notes(self) -> list[str]:
        """The names of the notes of changes whose clients are probably dead."""
        own: Mapping[str, FileStat] = await self.ask(List(_OWN + "/"))
        return [name for name, stat in own.items() if name.startswith(_CHANGE) and _is_old(stat)]

    # --- copies ---

    async def all(self) -> dict[str, FileStat]:
        """All files of the index but its own."""
        found: Mapping[str, FileStat] = await self.ask(List("/"))
        return {path: stat for path, stat in found.items() if not _is_own(path)}

    async def at(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        """The files of the index at `paths`."""
        found: Mapping[str, FileStat] = await self.ask(Stat(paths))
        return found

    async def store(
        self, copies: Mapping[str, FileDataV2 | None], seen: Mapping[str, FileStat], *, then_forget: str = ""
    ) -> set[str]:
        """Replace files of the index, or remove those whose copy is None, unless they changed after they were seen.

        Args:
            copies: The copies by path.
            seen: The files as they were seen.
            then_forget: The name of a note to remove if all could be replaced.

        Returns:
            The paths of the files that had changed, which are as they were.
        """
        changes = [Change(path, None, copy, origin=seen[path].tag) for path, copy in copies.items() if path in seen]
        moved_on = copies.keys() - seen.keys()
        is_first = True

        def plan() -> Plan[set[str]]:
            nonlocal is_first
            kept: Sequence[Change] = changes
            if not is_first:
                now: Mapping[str, FileStat] = yield Stat([change.path for change in changes])
                kept = [each for each in changes if each.path in now and now[each.path].tag == each.origin]
            is_first = False
            if kept:
                yield Apply(kept)
            changed = moved_on | {change.path for change in changes} - {change.path for change in kept}
            if then_forget and not changed:
                yield Apply([Change(then_forget, None, None, seen=FileStat())])
            return changed

        return await self._database._change(plan, *copies) if copies else set()

    # --- the database ---

    async def ask(self, request: Request) -> Any:
        """Ask the database one thing, and return its answer."""
        return await self._database._look(lambda: _single(request), "search" if type(request) is Find else "look")

    async def _change(self, changes: Sequence[Change]) -> None:
        if changes:
            await self._database._change(lambda: _single(Apply(changes)), *(change.path for change in changes))


def _single(request: Request) -> Plan[Any]:
    """The plan that asks for one thing."""
    return (yield request)


# --- what the files say ---


def _is_own(path: str) -> bool:
    return path.startswith(f"{_OWN}/")


def _places(own: Mapping[str, FileStat]) -> set[str]:
    return {path for path in own if path.startswith(_PLACE)}


def _note(content: str) -> FileDataV2:
    now = timestamp()
    return FileDataV2(content, "utf-8", now, now)


def _paths_of(note: FileDataV2) -> Sequence[str]:
    try:
        return msgspec.json.decode(note.content, type=list[str])
    except (msgspec.MsgspecError, DeepFSError):
        return ()


def _is_old(stat: FileStat) -> bool:
    try:
        began = datetime.fromisoformat(stat.modified_at or "")
        return datetime.fromisoformat(timestamp()) - began > timedelta(seconds=_SECONDS_OF_A_CHANGE)
    except (ValueError, TypeError):
        return True


def is_reserved(stat: FileStat) -> bool:
    """Whether a file of the index stands for an object that is being created."""
    return stat.mime_type == _RESERVED


def is_abandoned(stat: FileStat) -> bool:
    """Whether the client that was about to create an object is probably dead."""
    return is_reserved(stat) and _is_old(stat)


def copy_of(data: FileDataV2, tag: str, most_bytes: int) -> FileDataV2:
    """The file of the index for an object with a tag."""
    size = size_of(data)
    if size > most_bytes:
        return placeholder(FileStat(size, data.modified_at, data.created_at, tag))
    return FileDataV2(data.content, data.encoding, data.created_at, data.modified_at, _copied_from(tag, size))


def placeholder(stat: FileStat) -> FileDataV2:
    """The file of the index for an object that is too large to be searched."""
    return FileDataV2(MARK, "utf-8", stat.created_at, stat.modified_at, _copied_from(stat.tag, stat.size or 0))


def _copied_from(tag: str, size: int) -> str:
    return f"text/plain; size={size}; etag={tag}"


def is_copy(copy: FileStat | None, stat: FileStat) -> bool:
    """Whether a file of the index is a copy of the version of an object that `stat` describes."""
    return copy is not None and bool(stat.tag) and copy.mime_type == _copied_from(stat.tag, stat.size or 0)


def object_stat(copy: FileStat) -> FileStat:
    """The stat of the object that a file of the index is a copy of."""
    _, _, size = (copy.mime_type or "").partition("; size=")
    digits = size.partition(";")[0]
    return FileStat(int(digits) if digits.isdecimal() else copy.size, copy.modified_at, copy.created_at)


def is_marked(stat: FileStat) -> bool:
    """Whether a file of the index has the mark as its whole content."""
    return stat.size == len(MARK)


def is_shown(path: str) -> bool:
    """Whether a file that the index found may be one of an object."""
    return not _is_own(path)
