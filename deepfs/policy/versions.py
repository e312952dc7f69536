"""The versions of a history: one directory for each file, with a file for each content that it had."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, DeepFSError, ErrorCode, NotFoundError, error_about
from deepfs.text import paths
from deepfs.text.access import without_access_check
from deepfs.text.entries import EntryChange, use_file_mode
from deepfs.text.lines import version
from deepfs.types import Encodable, FileInfo, error_from, item_error

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

    The number of a version is that of a file, which holds the mode, and which only one process can create.

    Args:
        storage: The backend that stores them.
        keep: How many versions of each file are kept.
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
