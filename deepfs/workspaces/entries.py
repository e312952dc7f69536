"""What a workspace has in place of the files below it: an entry for each path that was changed, and where they lie."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, ConflictError, ErrorCode, NotFoundError
from deepfs.storage.gathering import in_batches
from deepfs.text import paths
from deepfs.text.flat_tree import ChangedError
from deepfs.text.lines import version
from deepfs.types import ContentChange, FileDataV2

NO_FILE: Final = frozenset({ErrorCode.FILE_NOT_FOUND, ErrorCode.IS_DIRECTORY, ErrorCode.NOT_A_DIRECTORY})
"""The errors of a read that say that no file is there."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """A path that was changed: a file with `data`, a file that was moved here from `source`, else a deleted file."""

    path: str
    data: FileDataV2 | None = None
    source: str | None = None
    """The path below of the file that was moved here. Its content is read there, and was not copied."""
    base: FileDataV2 | None = None
    """The file that was below when the path was changed first; None for no file, and for one that was not read."""
    base_version: str | None = None
    """The version of that file; None for no file."""

    @property
    def is_file(self) -> bool:
        """Whether a file is here."""
        return self.data is not None or self.source is not None


class Entries(Protocol):
    """Where the entries of a workspace lie."""

    async def get(self, wanted: Sequence[str]) -> Mapping[str, Entry]:
        """The entries at the `wanted` paths."""

    async def beneath(self, directory: str) -> Mapping[str, Entry]:
        """The entries at and under `directory`."""

    async def put(self, changes: Mapping[str, Entry | None], seen: Mapping[str, Entry]) -> None:
        """Store entries, and remove those of None, all or none where the storage can do that.

        Raises ChangedError if one is not the entry that was `seen` at its path any more, and ConflictError if it is
        that as far as can be seen: a parallel task of a graph changes it, whose writes are seen in the next step only.
        """


class HeldEntries:
    """Entries in the memory of this process."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    async def get(self, wanted: Sequence[str]) -> Mapping[str, Entry]:
        entries = self._entries
        return {path: entries[path] for path in wanted if path in entries}

    async def beneath(self, directory: str) -> Mapping[str, Entry]:
        entries = self._entries.copy()
        if directory == "/":
            return entries
        inside = f"{directory}/"
        return {path: entry for path, entry in entries.items() if path == directory or path.startswith(inside)}

    async def put(self, changes: Mapping[str, Entry | None], seen: Mapping[str, Entry]) -> None:
        entries = self._entries
        if any(entries.get(path) is not seen.get(path) for path in changes):
            raise ChangedError(next(iter(changes)))
        for path, entry in changes.items():
            if entry is None:
                entries.pop(path, None)
            else:
                entries[path] = entry


_FILE: Final = "="
_DIRECTORY: Final = "+"
"""The last characters of names: a path may be that of an entry, and lie above others."""
_LONGEST: Final = 200
"""The longest name, in bytes, that is kept; a longer one is named by its hash."""
_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256
_CHANGED: Final = frozenset({ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS, ErrorCode.FILE_NOT_FOUND})
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Entry).decode


class StoredEntries:
    """Entries in another backend, which processes may share: a JSON file for each.

    Args:
        storage: The backend.
        directory: The directory in it that holds the entries.
    """

    def __init__(self, storage: BackendProtocol, directory: str) -> None:
        self._storage = storage
        self._directory = paths.normalize(directory)

    async def get(self, wanted: Sequence[str]) -> Mapping[str, Entry]:
        return await self._load([self._place(path, _FILE) for path in wanted])

    async def beneath(self, directory: str) -> Mapping[str, Entry]:
        places = [] if directory == "/" else [self._place(directory, _FILE)]
        try:
            listing = await self._storage.alist_tree(self._place(directory, _DIRECTORY))
        except NotFoundError:
            return await self._load(places)
        entries: dict[str, Entry] = {}
        sized = [(each.path, each.size or 0) for each in listing.entries if each.path.endswith(_FILE)]
        for batch in in_batches(sized, lambda each: each[1], most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
            entries |= await self._load([place for place, _ in batch])
        return entries | await self._load(places)

    async def _load(self, places: Sequence[str]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        if not places:
            return found
        for place, download in zip(places, await self._storage.adownload_files([*places]), strict=True):
            if download.error == ErrorCode.FILE_NOT_FOUND:
                continue
            try:
                entry = _decode(download.unwrap())
            except msgspec.DecodeError as error:
                raise BackendError(place, "it is no entry of a workspace") from error
            if not paths.is_normal(entry.path) or self._place(entry.path, _FILE) != place:
                raise BackendError(place, "it is the entry of another path")
            found[entry.path] = entry
        return found

    async def put(self, changes: Mapping[str, Entry | None], seen: Mapping[str, Entry]) -> None:
        stored: list[ContentChange] = []
        changed: list[str] = []
        for path, entry in changes.items():
            before = seen.get(path)
            if entry is not None or before is not None:
                content = None if entry is None else _encode(entry)
                if_match = None if before is None else version(_encode(before))
                stored.append(ContentChange(self._place(path, _FILE), content, if_match=if_match))
                changed.append(path)
        outcomes = await self._storage.achange_files(stored, all_or_none=True)
        if stored and all(outcome.error == ErrorCode.UNSUPPORTED for outcome in outcomes):
            outcomes = await self._storage.achange_files(stored)
        refused = [path for path, outcome in zip(changed, outcomes, strict=True) if outcome.error in _CHANGED]
        if refused:
            now = await self.get(refused)
            different = [path for path in refused if now.get(path) != seen.get(path)]
            raise ChangedError(different[0]) if different else ConflictError(refused[0])
        for outcome in outcomes:
            outcome.unwrap()

    def _place(self, path: str, last: str) -> str:
        """The path of the entry of a `path`, or of the directory of the entries beneath it."""
        if path == "/":
            return self._directory
        *above, name = path[1:].split("/")
        names = [*(_name(each) + _DIRECTORY for each in above), _name(name) + last]
        return paths.join(self._directory, "/".join(names))


def _name(name: str) -> str:
    encoded = name.encode()
    if len(encoded) <= _LONGEST:
        return name
    # It is longer than the names that are kept, so it is none of them.
    return blake2b(encoded, digest_size=32).hexdigest().rjust(_LONGEST + 1, "-")
