"""What the records of an answer mean."""

import stat
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256

from msgspec import Struct

from deepfs.disk.os_calls import is_temporary
from deepfs.errors import (
    AccessError,
    BackendError,
    ConflictError,
    DeepFSError,
    DirectoryError,
    ExistsError,
    FileMissingError,
    InvalidPathError,
    NotDirectoryError,
    TooLargeError,
    quoted,
)
from deepfs.sandboxes.wire import Records
from deepfs.text import paths
from deepfs.text.entries import (
    Kind,
    Omission,
    TreeEntry,
    TreeListing,
    is_valid,
    joined,
    omission_of_name,
    unreadable_omission,
)
from deepfs.types import FileInfo

__all__ = [
    "CachedContent",
    "Content",
    "ContentCache",
    "Found",
    "check",
    "contents",
    "failure_of",
    "found_files",
    "infos",
    "tree_listing",
    "version",
]


class Content(Struct, frozen=True):
    """A file that was fetched; no `data` where it is the version that is known."""

    modified_at: str
    data: bytes | None


class Found(Struct, frozen=True):
    """A file that a search in the sandbox found; no `data` where it could not be searched."""

    path: str
    data: bytes | None


def failure_of(words: list[bytes], path: str, limit: int = 0) -> DeepFSError:
    """The error about `path` that a record tells."""
    match words[1]:
        case b"not_found":
            return FileMissingError(path)
        case b"is_dir":
            return DirectoryError(path)
        case b"not_dir":
            return NotDirectoryError(path)
        case b"not_dir_itself":
            return NotDirectoryError(path)
        case b"exists":
            return ExistsError(path)
        case b"dir_exists":
            return ExistsError(path, is_directory=True)
        case b"denied":
            return AccessError(path)
        case b"conflict":
            return ConflictError(path)
        case b"too_large":
            return TooLargeError(path, int(words[2]), limit)
        case b"inside":
            return InvalidPathError(path, "it lies inside what it is to be put into")
        case _:
            reason = b" ".join(words[2:]).decode(errors="replace")
            return BackendError.about(path, "Error: The sandbox could not carry the operation out on ", f": {reason}")


def check(answer: Records, path: str) -> None:
    """Raise what the next record tells of `path`, where it is an error."""
    words = answer.words()
    if words[0] == b"E":
        raise failure_of(words, path)


def contents(answer: Records, wanted: list[str], limit: int) -> Iterator[Content | DeepFSError]:
    """What was fetched of each of the `wanted` paths."""
    for path in wanted:
        words = answer.words()
        match words[0]:
            case b"ok":
                yield Content(_time(words[1]), answer.take(int(words[2])))
            case b"same":
                yield Content(_time(words[1]), None)
            case _:
                yield failure_of(words, path, limit)


def infos(answer: Records, root: str) -> Iterator[FileInfo]:
    """The entries of a listing, with the paths of callers."""
    while answer:
        mode, size, modified, name = answer.named(3)
        path = _outward(name, root)
        if path is None:
            continue
        if stat.S_ISDIR(int(mode, 16)):
            yield FileInfo(f"{path}/", is_dir=True, modified_at=_time(modified))
        else:
            yield FileInfo(path, is_dir=False, size=int(size), modified_at=_time(modified))


def tree_listing(answer: Records, top: str, root: str) -> TreeListing:
    """The entries of a tree; BackendError where one lies elsewhere, or is told as nothing is."""
    found: list[TreeEntry] = []
    omission: Omission | None = None
    try:
        while answer:
            mode, size, target, name = answer.named(3)
            path = "" if mode == b"bad" else _beneath(name, top, root)
            if not path:
                omission = joined(omission, unreadable_omission())
            elif not is_valid(path):
                omission = joined(omission, omission_of_name(paths.name(path)))
            elif path == top or not is_temporary(paths.name(path)):
                found.append(_tree_entry(path, int(mode, 16), int(size), int(target, 16)))
    except ValueError:
        raise _damaged(top) from None
    found.sort(key=lambda entry: entry.path)
    if not found or found[0].path != top:
        raise _damaged(top)
    return TreeListing(found, omission)


def _damaged(path: str) -> BackendError:
    return BackendError(f"Error: The sandbox gave an answer about {quoted(path)} that means nothing")


def _beneath(name: bytes, top: str, root: str) -> str:
    """The path of callers, which is `top` or beneath it, perhaps with a name that is not text."""
    path = name.decode(errors="surrogateescape")
    if root != "/":
        if path != root and not paths.is_beneath(path, root):
            raise ValueError(path)
        path = path[len(root) :] or "/"
    if path != top and not paths.is_beneath(path, top):
        raise ValueError(path)
    return path


def _tree_entry(path: str, mode: int, size: int, target: int) -> TreeEntry:
    kind = _kind(mode)
    if kind == "link":
        return TreeEntry(path, kind, leads_to=_kind(target) if target else None)
    return TreeEntry(path, kind, size if kind == "file" else None, stat.S_IMODE(mode) & 0o777)


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "special"


def found_files(answer: Records, root: str) -> Iterator[Found | None]:
    """What a grep is to look at; None where there would be more."""
    while answer:
        kind, size, name = answer.named(2)
        data = answer.take(int(size)) if kind == b"file" else None
        path = _outward(name, root)
        if kind == b"full":
            yield None
        elif path is not None:
            yield Found(path, data)


def _outward(name: bytes, root: str) -> str | None:
    """The path of callers; None where there can be none, or what is there is unfinished."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return None
    path = path if root == "/" else path[len(root) :]
    return None if is_temporary(paths.name(path)) else path or "/"


def _time(seconds: bytes) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="microseconds")


def version(data: bytes) -> str:
    """What identifies content: scripts work it out as well."""
    return sha256(data).hexdigest()


class CachedContent(Struct, frozen=True):
    """The content of a file when it was last seen."""

    data: bytes
    version: str


class ContentCache:
    """The files that were used last, up to `limit` bytes."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._size = 0
        self._files: OrderedDict[str, CachedContent] = OrderedDict()

    def get(self, path: str) -> CachedContent | None:
        """What is known of `path`."""
        if path in self._files:
            self._files.move_to_end(path)
        return self._files.get(path)

    def put(self, path: str, data: bytes) -> CachedContent:
        """Remember the content of `path`, and forget what was used longest ago."""
        self.forget(path)
        known = CachedContent(data, version(data))
        self._files[path] = known
        self._size += len(data)
        while self._size > self._limit:
            self.forget(next(iter(self._files)))
        return known

    def forget(self, path: str) -> None:
        """Forget `path`."""
        known = self._files.pop(path, None)
        self._size -= len(known.data) if known else 0
