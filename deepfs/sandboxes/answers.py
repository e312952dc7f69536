"""The records in an answer of a sandbox, and what operations make of them.

A sandbox is not trusted, so nothing in an answer is taken as it comes: lengths, counts, numbers and names are checked,
and memory is bounded. Whatever is wrong raises one error, the BackendError of `Records.damaged`.
"""

import re
import stat
import zlib
from base64 import b64decode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from math import isnan
from typing import Final

from msgspec import Struct

from deepfs.disk.os_calls import is_temporary
from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    DeadlineError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
    TooLargeError,
)
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
    "LISTING",
    "MAX_ENTRIES",
    "Bound",
    "Content",
    "Found",
    "Records",
    "Unlisted",
    "bound_of",
    "check",
    "contents",
    "failure_of",
    "found_files",
    "infos",
    "outcomes",
    "printable",
    "resolved_paths",
    "tree_listing",
]

_MIB: Final = 1024 * 1024
_GZIPPED: Final = b"\x1f\x8b"
_EITHER_FORM: Final = 47
"""The `wbits` with which zlib decompresses both its own format and gzip."""
_STEP: Final = 64 * 1024
"""The most bytes that are decompressed at once; no more is ever decompressed than the records need."""
_MAX_RECORD_BYTES: Final = 16 * 1024
"""The longest record without its content. Linux has no paths of more than 4,096 bytes."""
MAX_ENTRIES: Final = 100_000
"""The most entries of one listing, and the most files of one grep."""


class Bound(Struct, frozen=True):
    """The most bytes that an answer may hold, and the most characters in which it may be sent."""

    data: int
    text: int


LISTING: Final = Bound(48 * _MIB, 16 * _MIB)
"""The bound of listings, which compress well."""


def bound_of(records: int, content: int = 0) -> Bound:
    """The bound of an answer of so many records with up to `content` bytes of content, which may not compress."""
    data = content + _MAX_RECORD_BYTES + 512 * records
    return Bound(data, (data + data // 256 + 1024) // 3 * 4)


class Records:
    """The records of an answer, read one after another: each is a line, and content of the length that it states.

    `about` is the path that errors name, `size` the length of the text.
    """

    def __init__(self, text: str, checksum: str, most: int = LISTING.data, about: str | None = None) -> None:
        self.about: str | None = about
        self.size: int = len(text)
        if not text.isascii() or sha256(text.encode()).hexdigest() != checksum:
            raise BackendError(about, "the answer of the sandbox was damaged on its way")
        try:
            packed = b64decode(text, validate=True)
        except ValueError:
            raise self.damaged() from None
        self._pieces = _unpacked(packed, most)
        self._data = b""
        self._at = 0

    def damaged(self) -> BackendError:
        """The error of an answer that cannot be understood."""
        return BackendError(self.about, "the sandbox gave an answer that means nothing")

    def _next_piece(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except (ValueError, zlib.error):
            raise self.damaged() from None

    def _fill(self) -> bool:
        """Decompress further bytes; False if there are none."""
        piece = self._next_piece()
        if piece is None:
            return False
        self._data, self._at = self._data[self._at :] + piece, 0
        return True

    def until(self, end: bytes) -> bytes:
        """The bytes up to `end`, which is skipped."""
        while (stop := self._data.find(end, self._at, self._at + _MAX_RECORD_BYTES)) < 0:
            if len(self._data) - self._at >= _MAX_RECORD_BYTES or not self._fill():
                raise self.damaged()
        found, self._at = self._data[self._at : stop], stop + len(end)
        return found

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        taken = [self._data[self._at : self._at + size]]
        self._at += len(taken[0])
        missing = size - len(taken[0])
        while missing:
            piece = self._next_piece()
            if piece is None:
                raise self.damaged()
            taken.append(piece[:missing])
            self._data, self._at = piece, len(taken[-1])
            missing -= self._at
        return b"".join(taken)

    def __bool__(self) -> bool:
        return self._at < len(self._data) or self._fill()

    def starts_with(self, start: bytes) -> bool:
        """Whether the rest begins with `start`."""
        while len(self._data) - self._at < len(start) and self._fill():
            pass
        return self._data.startswith(start, self._at)

    def words(self) -> list[bytes]:
        """The words of the next line."""
        return self.until(b"\n").split(b" ")

    def named(self, words: int) -> list[bytes]:
        """The next record with the given number of words and a path, which may contain anything but `//`."""
        found = self.until(b"//\n").split(b" ", words)
        if len(found) <= words:
            raise self.damaged()
        return found

    def number(self, word: bytes, most: int = 1 << 62) -> int:
        """The number that `word` states in decimal."""
        if not _is_number(word) or int(word) > most:
            raise self.damaged()
        return int(word)

    def mode(self, word: bytes) -> int:
        """The mode that `word` states in hexadecimal."""
        if not _is_mode(word):
            raise self.damaged()
        return int(word, 16)

    def end(self) -> None:
        """Raise unless all records are read."""
        if self:
            raise self.damaged()


_is_number = re.compile(rb"[0-9]{1,19}").fullmatch
_is_mode = re.compile(rb"[0-9a-f]{1,8}").fullmatch


def _unpacked(packed: bytes, most: int) -> Iterator[bytes]:
    """The pieces of decompressed data. Raises ValueError if they are more than `most` bytes, or not whole."""
    if not packed.startswith(_GZIPPED):
        yield from _bounded(iter([packed] if packed else []), most)
        return
    yield from _bounded(_inflated(packed), most)


def _bounded(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise ValueError("too long")
        if piece:
            yield piece


def _inflated(packed: bytes) -> Iterator[bytes]:
    inflate = zlib.decompressobj(_EITHER_FORM)
    for at in range(0, len(packed), _STEP):
        pending = packed[at : at + _STEP]
        while pending:
            yield inflate.decompress(pending, _STEP)
            pending = inflate.unconsumed_tail
        if inflate.unused_data:
            raise ValueError("data after the end")
    while not inflate.eof:
        piece = inflate.decompress(b"", _STEP)
        if not piece:
            raise ValueError("cut off")
        yield piece


# --- outcomes ---


def printable(text: str) -> str:
    """`text` of a sandbox as it may stand in an error: short, on one line, without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[:2000])
    return " ".join(shown.split())[:300]


_FAILURES: Final[dict[bytes, type[DeepFSError]]] = {
    b"not_found": NotFoundError,
    b"is_dir": IsDirectoryError,
    b"not_dir": NotDirectoryError,
    b"not_dir_itself": NotDirectoryError,
    b"exists": AlreadyExistsError,
    b"denied": PermissionDeniedError,
    b"conflict": ConflictError,
}


def failure_of(words: Sequence[bytes], path: str, limit: int = 0) -> DeepFSError:
    """The error about `path` from the words of a record, of which the first is `E`."""
    match words[1:]:
        case [kind] if kind in _FAILURES:
            return _FAILURES[kind].because(path, "")
        case [b"dir_exists"]:
            return AlreadyExistsError(path, is_directory=True)
        case [b"too_large", size] if limit and _is_number(size):
            return TooLargeError(path, int(size), limit)
        case [b"inside"]:
            return InvalidPathError(path, "it lies inside what it is to be put into")
        case [b"timeout"]:
            return DeadlineError(path, "another change holds the lock of the sandbox")
        case _:
            reason = printable(b" ".join(words[2:]).decode(errors="replace"))
            return BackendError(path, f"the sandbox could not carry the operation out: {reason}")


def check(answer: Records, path: str) -> None:
    """Read the first record. Raise the error about `path` if it is one."""
    words = answer.words()
    if words[0] == b"E":
        answer.end()
        raise failure_of(words, path)
    if words != [b"ok"]:
        raise answer.damaged()


def outcomes(answer: Records, count: int) -> list[list[bytes]]:
    """The words of `count` records, each `ok` or an error, and no further one."""
    found = [answer.words() for _ in range(count)]
    answer.end()
    if not all(words == [b"ok"] or (words[0] == b"E" and len(words) > 1) for words in found):
        raise answer.damaged()
    return found


def resolved_paths(answer: Records, count: int) -> list[str | None]:
    """For each of `count` paths the one that it resolves to; None if that is outside of the root, or unknown."""
    found = [_resolved(answer) for _ in range(count)]
    answer.end()
    return found


def _resolved(answer: Records) -> str | None:
    kind, name = answer.named(1)
    if kind not in (b"ok", b"no"):
        raise answer.damaged()
    path = name.decode(errors="surrogateescape") or "/"
    return path if kind == b"ok" and is_valid(path) else None


# --- contents ---


class Content(Struct, frozen=True):
    """A fetched file; `data` is None if it is the version that the caller has."""

    modified_at: str
    data: bytes | None


def contents(answer: Records, wanted: Sequence[str], limit: int) -> Iterator[Content | DeepFSError | None]:
    """Yield the content of each of the `wanted` paths, or the error about it; None where a further call fetches it."""
    for path in wanted:
        answer.about = path
        match answer.words():
            case [b"ok", modified, size]:
                yield Content(_time(answer, modified), answer.take(answer.number(size, limit)))
            case [b"same", modified]:
                yield Content(_time(answer, modified), None)
            case [b"E", b"later"] if path != wanted[0]:
                yield None
            case [b"E", _, *_] as words:
                yield failure_of(words, path, limit)
            case _:
                raise answer.damaged()
    answer.end()


# --- listings ---


class Unlisted(Struct, frozen=True):
    """An entry whose name cannot be told: it is not UTF-8, or, where content is shown, in no valid path."""


def infos(answer: Records, top: str, root: str, *, deep: bool = False) -> Iterator[FileInfo | Unlisted]:
    """The entries of the listing of `top`, with the paths of file operations; with `deep`, at any depth.

    Raises BackendError if one lies elsewhere.
    """
    while answer:
        mode, size, modified, name = answer.named(3)
        path = _beneath(answer, name, top, root)
        if path == top or not (deep or paths.parent(path) == top):
            raise answer.damaged()
        if not is_temporary(paths.name(path)):
            yield _info(answer, path, answer.mode(mode), size, modified) if _is_text(path) else Unlisted()


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _info(answer: Records, path: str, mode: int, size: bytes, modified: bytes) -> FileInfo:
    when = _time(answer, modified) or None
    if stat.S_ISDIR(mode):
        return FileInfo(f"{path}/", is_dir=True, modified_at=when)
    return FileInfo(path, is_dir=False, size=answer.number(size), modified_at=when)


def tree_listing(answer: Records, top: str, root: str) -> TreeListing:
    """The entries of a tree. Raises BackendError if one lies outside of the tree, or if a record is malformed."""
    found: dict[str, TreeEntry] = {}
    omission: Omission | None = None
    while answer:
        mode, size, target, name = answer.named(3)
        path = "" if mode == b"bad" else _beneath(answer, name, top, root)
        if not path:
            omission = joined(omission, unreadable_omission())
        elif not is_valid(path):
            omission = joined(omission, omission_of_name(paths.name(path)))
        elif path == top or not is_temporary(paths.name(path)):
            found.setdefault(path, _tree_entry(path, answer.mode(mode), answer.number(size), answer.mode(target)))
        if len(found) > MAX_ENTRIES:
            raise BackendError(top, f"more than {MAX_ENTRIES:,} entries lie in it")
    if top not in found:
        raise answer.damaged()
    return TreeListing(sorted(found.values(), key=lambda entry: entry.path), omission)


def _beneath(answer: Records, name: bytes, top: str, root: str) -> str:
    """The path of file operations for `name`, perhaps not text. Raises BackendError unless it is `top` or beneath."""
    path = name.decode(errors="surrogateescape")
    if not path.startswith("/") or "\0" in path:
        raise answer.damaged()
    if root != "/":
        if path != root and not paths.is_beneath(path, root):
            raise answer.damaged()
        path = path[len(root) :] or "/"
    if path != top and not paths.is_beneath(path, top):
        raise answer.damaged()
    if path != "/" and not _NO_NAMES.isdisjoint(path.split("/")[1:]):
        raise answer.damaged()
    return path


_NO_NAMES: Final = frozenset({"", ".", ".."})


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


# --- searches ---


class Found(Struct, frozen=True):
    """A file that a search in the sandbox found; `data` is None if it could not be read or is too large."""

    path: str
    data: bytes | None


def found_files(answer: Records, top: str, root: str, limit: int) -> Iterator[Found | Unlisted | None]:
    """Yield the files that a grep has to search, of up to `limit` bytes; None if the sandbox left out further ones."""
    while answer:
        kind, size, name = answer.named(2)
        if kind == b"full":
            answer.end()
            yield None
            return
        path = _beneath(answer, name, top, root)
        data = _searched(answer, kind, answer.number(size, limit))
        if not is_temporary(paths.name(path)):
            yield Found(path, data) if is_valid(path) else Unlisted()


def _searched(answer: Records, kind: bytes, size: int) -> bytes | None:
    if kind not in (b"file", b"skip"):
        raise answer.damaged()
    return answer.take(size) if kind == b"file" else None


# --- times ---

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LATEST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def _time(answer: Records, word: bytes) -> str:
    """The time that `word` states in seconds, moved into the years 1 to 9999; empty if it is no number."""
    try:
        return _shown_time(word)
    except ValueError:
        raise answer.damaged() from None


@lru_cache(256)
def _shown_time(word: bytes) -> str:
    # Many files of a listing have one time, and share its text.
    seconds = float(word)
    if isnan(seconds):
        return ""
    return datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC).isoformat(timespec="microseconds")
