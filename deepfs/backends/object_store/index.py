"""A search index beside an object store: copies of its objects in a database that finds candidates by trigrams.

The database is any backend that declares `_finds`, with a namespace of its own. Each object has a file there at the
same path with the same content, whose media type tells which version of the object it is a copy of. An object that is
too large to be searched, or is being created, has a file with a mark as its content. The files of the index itself are
in a directory whose name is too long for a path of the contract. What the index finds is only a candidate: the search
fetches the object itself. An index that lacks a change of others can therefore miss matches, but shows none that are
not there.

A client of the index notes there what it is about to change, so that searches look at these objects themselves until
the copy is there, even if the client dies. A copy is stored only if its file in the index is the one that was seen
before the object was looked at or changed. So of two clients the slower one cannot store the older copy: it finds that
the file has changed, and looks at the object again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.flat import StorageBackend
from deepfs.errors import BackendError, DeepFSError
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.storage.plans import batches
from deepfs.storage.runners import Apply, Find, Get, List, Page, Plan, Request, Stat
from deepfs.text.flat_tree import Change, FileStat, file_paths
from deepfs.text.records import size_of, timestamp
from deepfs.threads.locks import path_locks
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


_TOGETHER: Final = 256
"""The most files of the index that one transaction changes."""
_ATTEMPTS: Final = 20
"""How often an object is looked at again while other clients change its file in the index."""


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
    """The files of a search index in a database, under whose namespace nothing else may be stored.

    `place` identifies the root of the backend in its object store.
    """

    def __init__(self, database: StorageBackend, place: str) -> None:
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
        seen, created = await self.reserve(paths)
        name = ""
        if len(created) < len(seen):
            name = f"{_CHANGE}{token_hex(8)}"
            await self._change([Change(name, None, _note(msgspec.json.encode(list(paths)).decode()))])
        return Pending(paths, name, seen, created)

    async def reserve(self, paths: Sequence[str]) -> tuple[dict[str, FileStat], set[str]]:
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

        Returns the paths of those that had changed, which are as they were. If there are none, the note `then_forget`
        is removed.
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


def check_index(given: object, *, is_shared: bool) -> None:
    """Raise TypeError or ValueError unless an index can be kept there; several of them, if `is_shared`."""
    if not isinstance(given, StorageBackend):
        raise TypeError(f"index must be a PostgresBackend or a SqliteBackend, not {type(given).__name__}")
    if not given._finds:
        raise ValueError("index must be a backend that finds files by an index of its own: Postgres or SQLite")
    if is_shared and given._choice is not None:
        raise ValueError("index needs a fixed namespace: each prefix of the factory gets its own beneath it")


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
    return FileDataV2(data.content, data.encoding, data.created_at, data.modified_at, _media_type(tag, size))


def placeholder(stat: FileStat) -> FileDataV2:
    """The file of the index for an object that is too large to be searched."""
    return FileDataV2(MARK, "utf-8", stat.created_at, stat.modified_at, _media_type(stat.tag, stat.size or 0))


def _media_type(tag: str, size: int) -> str:
    return f"text/plain; size={size}; etag={tag}"


def is_copy(copy: FileStat | None, stat: FileStat) -> bool:
    """Whether a file of the index is a copy of the version of an object that `stat` describes."""
    return copy is not None and bool(stat.tag) and copy.mime_type == _media_type(stat.tag, stat.size or 0)


def object_stat(copy: FileStat) -> FileStat:
    """The stat of the object that a file of the index is a copy of."""
    _, _, size = (copy.mime_type or "").partition("; size=")
    digits = size.partition(";")[0]
    return FileStat(int(digits) if digits.isdecimal() else copy.size, copy.modified_at, copy.created_at)


def is_marked(stat: FileStat) -> bool:
    """Whether a file of the index has the mark as its whole content."""
    return stat.size == len(MARK)


# --- keeping them up to date ------------------------------------------------------------------------------------------


class Objects(Struct, frozen=True):
    """How the index looks at the object store. Each stat has a size, a time and a tag that is a string."""

    list_pages: Callable[[], AsyncIterator[Mapping[str, FileStat]]]
    """Lists all objects, a page at a time."""
    stat: Callable[[Sequence[str]], Awaitable[Mapping[str, FileStat]]]
    """Looks at objects at once."""
    fetch: Callable[[Sequence[str]], Awaitable[Mapping[str, tuple[FileDataV2, str] | None]]]
    """Fetches objects at once, each with its tag; None for those that cannot be read."""
    max_bytes: int
    """The largest object that is searched."""


class SearchIndex:
    """The index of the objects under one root, which `place` identifies in the object store."""

    def __init__(self, database: StorageBackend, objects: Objects, place: str) -> None:
        self._copies = Copies(database, place)
        self._objects = objects
        self._is_suspect = False
        self._left: set[str] = set()
        """The notes of changes of this process whose outcome is not known."""

    def search(self) -> "IndexSearch":
        """A search of the index, for one operation."""
        return IndexSearch(self)

    # --- changes of this process ---

    async def announce(self, paths: Sequence[str]) -> Pending | None:
        """Note that objects are about to change. None if the database failed, since changes do not depend on it.

        Raises BackendError if the index is that of another place.
        """
        try:
            return await self._copies.announce(paths)
        except ForeignIndexError:
            raise
        except DeepFSError:
            return None

    async def follow_changes(self, pending: Pending | None, changes: Sequence[Change], tags: Mapping[str, str]) -> None:
        """Follow changes that were made, with the tag of each object that was stored.

        If the index cannot, the next search lists the objects first.
        """
        if pending is None:
            self.suspect(pending)
            return
        most = self._objects.max_bytes
        copies = {each.path: each.after and copy_of(each.after, tags[each.path], most) for each in changes}
        try:
            changed = await self._copies.store(copies, pending.seen, then_forget=pending.note)
            if changed:
                await self._settle(pending, sorted(changed))
        except DeepFSError:
            self.suspect(pending)

    async def withdraw(self, pending: Pending | None) -> None:
        """Note that a change was refused, so that nothing was changed."""
        if pending is None:
            return
        try:
            await self._copies.withdraw(pending)
        except DeepFSError:
            self.suspect(pending)

    async def settle(self, pending: Pending | None) -> None:
        """Look at the objects that a change was about, and copy what is there now."""
        if pending is None:
            self.suspect(pending)
            return
        try:
            await self._settle(pending, pending.paths)
        except DeepFSError:
            self.suspect(pending)

    async def _settle(self, pending: Pending, paths: Sequence[str]) -> None:
        for _ in range(_ATTEMPTS):
            seen = await self._copies.at(paths)
            paths = sorted(await self._align(await self._objects.stat(paths), seen, {*paths}))
            if not paths:
                await self._copies.forget([pending.note])
                return
        raise BackendError(None, "Other clients change the same files of the search index all the time")

    def suspect(self, pending: Pending | None) -> None:
        """Let the next search list the objects first, since the outcome of a change is not known."""
        self._is_suspect = True
        if pending is not None:
            self._left.add(pending.note)

    # --- changes of others ---

    async def refresh(self) -> str:
        """List all objects, and copy those that the index lacks. Returns the time when the listing began."""
        async with path_locks(self).hold("/"):
            began, self._is_suspect, left = timestamp(), False, [*self._left]
            try:
                await self._catch_up(left)
                await self._copies.note_listing(began)
            except BaseException:
                self._is_suspect = True
                raise
            self._left.difference_update(left)
            return began

    async def _catch_up(self, left: Sequence[str]) -> None:
        await self._copies.claim()
        ended = {*left, *await self._copies.old_notes()}
        known = await self._copies.all()
        async for page in self._objects.list_pages():
            await self._align({path: page[path] for path in file_paths(page)}, known, set())
            for path in page:
                known.pop(path, None)
        # What is being created may not be listed yet.
        removed = [path for path, stat in known.items() if not is_reserved(stat) or is_abandoned(stat)]
        for start in range(0, len(removed), _TOGETHER):
            await self._copies.store(dict.fromkeys(removed[start : start + _TOGETHER]), known)
        await self._copies.forget(sorted(ended))

    async def _align(self, listed: Mapping[str, FileStat], seen: Mapping[str, FileStat], gone: set[str]) -> set[str]:
        """Make the files of the index copies of objects that were looked at after the files were `seen`.

        Returns the paths of the files that others changed meanwhile. `gone` are paths to remove if they are not listed.
        """
        stale = {path: stat for path, stat in listed.items() if not is_copy(seen.get(path), stat)}
        removed = [path for path in gone if path not in listed and path in seen]
        changed = await self._copies.store(dict.fromkeys(removed), seen)
        new = [path for path in stale if path not in seen]
        for start in range(0, len(new), _TOGETHER):
            part = new[start : start + _TOGETHER]
            rows, _ = await self._copies.reserve(part)
            changed |= await self._copy({path: stale[path] for path in part}, rows)
        return changed | await self._copy({path: stat for path, stat in stale.items() if path in seen}, seen)

    async def _copy(self, stale: Mapping[str, FileStat], seen: Mapping[str, FileStat]) -> set[str]:
        most = self._objects.max_bytes
        large = [path for path, stat in stale.items() if (stat.size or 0) > most]
        looked = await self._objects.stat(large) if large else {}
        marks = {
            path: placeholder(looked[path]) if path in looked else None
            for path in large
            if path not in looked or (looked[path].size or 0) > most  # It may have shrunk since it was listed.
        }
        changed = await self._copies.store(marks, seen)
        current = {**stale, **looked}
        for batch in batches((path, current[path].size or 0) for path in stale if path not in marks):
            fetched = await self._objects.fetch(batch)
            copies: dict[str, FileDataV2 | None] = dict.fromkeys(batch)
            for path, found in fetched.items():
                # What cannot be read gets a file without a tag, so that it is tried again.
                copies[path] = placeholder(replace(current[path], tag="")) if found is None else copy_of(*found, most)
            changed |= await self._copies.store(copies, seen)
        return changed

    async def notes(self, *, fresh: bool) -> Notes:
        """What the index says about itself, after a listing if that is needed."""
        notes = await self._copies.notes()
        if not (fresh or self._is_suspect or notes.has_old or notes.listed_at is None):
            return notes
        began = await self.refresh()
        notes = await self._copies.notes()
        return Notes(notes.listed_at or began, notes.changing, has_old=False)


class IndexSearch:
    """One search of an index."""

    def __init__(self, index: SearchIndex) -> None:
        self._index = index
        self._copies = index._copies
        self._objects = index._objects
        self._notes: Notes | None = None
        self._changing: set[str] = set()
        """The selected objects that the search looks at, whatever the index says."""

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        """Name the next objects that the search may find, as `Storage.find` does; with `fresh`, list them first."""
        is_first = self._notes is None
        if self._notes is None:
            # Before the index is asked: what is announced later leaves the copy in its place until there is a new one.
            self._notes = await self._index.notes(fresh=request.fresh)
            self._changing = {path for path in self._notes.changing if path in files}
        page: Page = await self._copies.ask(Find(request, files, after))
        found = {path: stat for path, stat in page.files.items() if not _is_own(path)}
        skipped = page.skipped
        if is_first and isinstance(request, GrepRequest):
            skipped += await self._count_without_content(files, found)
        return Page(await self._check_page(found, after, page.last), page.last, skipped, page.truncated, self._notes[0])

    async def _count_without_content(self, files: FileFilter, found: Mapping[str, FileStat]) -> int:
        """The number of selected objects that are too large to be searched, besides those that were found anyway.

        Those that are being created are taken into the search.
        """
        request, count, after = GrepRequest(MARK, files.root), 0, ""
        while True:
            page: Page = await self._copies.ask(Find(request, files, after or None))
            for path, stat in page.files.items():
                if _is_own(path) or not is_marked(stat) or path not in files:
                    continue
                if is_reserved(stat):
                    self._changing.add(path)
                elif path not in found and path not in self._changing:
                    count += 1
            if page.last is None:
                return count
            after = page.last

    async def _check_page(
        self, found: Mapping[str, FileStat], after: str | None, last: str | None
    ) -> Mapping[str, FileStat]:
        """The objects of a page; those that are being changed, or may be, as they are in the object store."""
        here = {path for path in self._changing if (after is None or path > after) and (last is None or path <= last)}
        doubtful = here | {path for path, stat in found.items() if is_reserved(stat) or path in self._changing}
        if not doubtful:
            return {path: object_stat(stat) for path, stat in found.items()}
        looked = await self._objects.stat(sorted(doubtful))
        known = {path: object_stat(stat) for path, stat in found.items() if path not in doubtful}
        known |= {path: FileStat(stat.size, stat.modified_at, stat.created_at) for path, stat in looked.items()}
        return dict(sorted(known.items()))
