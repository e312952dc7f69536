"""Calls to the scripts in a sandbox: the text of a command, the frames of an answer, and the records in it."""

import re
import stat
import zlib
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from secrets import token_hex
from shlex import quote
from typing import Final, TypeVar

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
from deepfs.types import ExecuteResponse, FileInfo

__all__ = [
    "Calls",
    "Content",
    "Engine",
    "Found",
    "Frame",
    "Records",
    "check",
    "command_text",
    "contents",
    "encoded_size",
    "failure_of",
    "found_files",
    "infos",
    "parse_frame",
    "room",
    "tree_listing",
    "word_cost",
]


Engine = str
"""`py`, `sh`, or empty while it is unknown which of them the sandbox can run."""

_MARK = "@deepfs.payload"
_GZIPPED = b"\x1f\x8b"
_EITHER_FORM = 47
"""The `wbits` with which zlib decompresses both its own format and gzip."""


class Frame(Struct, frozen=True):
    """A part of an answer: the script that sent it, the length and the checksum of the whole answer, and the part."""

    engine: Engine
    length: int
    checksum: str
    part: str


def _script(name: str) -> str:
    return quote(files(__package__).joinpath(name).read_text("utf-8"))


# The scripts are read at import: later, reading them could block an event loop.
# With -I, Python does not import modules from the directory in which the command runs.
_INTERPRETERS: Final = {
    "py": f"python3 -I -S -c {_script('script.py')}",
    "sh": f"sh -c {_script('script.sh')} deepfs",
}


def command_text(engine: Engine, words: Sequence[bytes], payload: bytes) -> str:
    """The command that runs a script with `words`, and `payload` on its standard input; both are in base64, so that a
    shell never interprets them."""
    # The base64 of a word is quoted, since it may be empty.
    arguments = " ".join(quote(b64encode(word).decode()) for word in words)
    stdin = f"<<'{_MARK}'\n{b64encode(payload).decode()}\n{_MARK}\n"
    if engine:
        return f"{_INTERPRETERS[engine]} {arguments} {stdin}"
    # These statuses mean that there is no python3, or none that can run the script, which never ends with one of them.
    unusable = "1 | 126 | 127"
    tried = f"command -v python3 >/dev/null 2>&1 && {_INTERPRETERS['py']} {arguments}"
    return f"{{ {tried}\ncase $? in {unusable}) {_INTERPRETERS['sh']} {arguments} ;; esac; }} {stdin}"


def room(engine: Engine, limit: int) -> int:
    """The number of characters left for words and payload in a command of at most `limit`."""
    return limit - len(command_text(engine, [], b"").encode())


def word_cost(engine: Engine, *words: bytes) -> int:
    """The number of characters that `words` take in a command."""
    # Quotes and a blank; a command for either script holds them twice.
    return sum(encoded_size(len(word)) + 3 for word in words) * (1 if engine else 2)


def encoded_size(size: int) -> int:
    """The number of base64 characters for `size` bytes."""
    return (size + 2) // 3 * 4


def parse_frame(output: str, nonce: str) -> Frame:
    """The framed part in the output of a command. Raises BackendError if the frame is missing or incomplete."""
    found = re.search(rf"@deepfs {nonce} (py|sh) (\d+) (\S+)\s+([A-Za-z0-9+/=\s]*?)\s*@end {nonce}", output)
    if found is None:
        shown = " ".join(output.split())[:300]
        raise BackendError(None, f"The sandbox did not carry the operation out: {shown or 'no output'}")
    return Frame(found[1], int(found[2]), found[3], "".join(found[4].split()))


class Records:
    """The records of an answer, read one after another: each is a line, and content of the length that it states."""

    def __init__(self, text: str, checksum: str) -> None:
        if sha256(text.encode()).hexdigest() != checksum:
            raise BackendError(None, "The answer of the sandbox was damaged on its way")
        data = b64decode(text)
        self._data = zlib.decompress(data, _EITHER_FORM) if data.startswith(_GZIPPED) else data
        self._at = 0

    def until(self, end: bytes) -> bytes:
        """The bytes up to `end`, which is skipped."""
        stop = self._data.index(end, self._at)
        found, self._at = self._data[self._at : stop], stop + len(end)
        return found

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def words(self) -> list[bytes]:
        """The words of the next line."""
        return self.until(b"\n").split(b" ")

    def named(self, words: int) -> list[bytes]:
        """The next record with the given number of words and a path, which may contain anything but `//`."""
        return self.until(b"//\n").split(b" ", words)


ItemT = TypeVar("ItemT")


class Calls:
    """The scripts of one sandbox; `execute` runs a command there.

    A command may have up to `command_bytes` bytes; output of up to `answer_bytes` bytes is returned whole. `rest`
    returns the whole text of a longer answer by its name, or None if further commands have to fetch it.
    """

    def __init__(
        self,
        execute: Callable[[str], Awaitable[ExecuteResponse]],
        command_bytes: int,
        answer_bytes: int,
        rest: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._execute = execute
        self._rest = rest
        self._command_bytes = command_bytes
        self._answer_bytes = answer_bytes
        self._engine: Engine = ""

    async def call(self, operation: str, *arguments: bytes, payload: bytes = b"") -> Records:
        """Carry out an operation. Raises BackendError without a complete answer, DeadlineError at the timeout."""
        nonce = token_hex(8)
        frame = await self._part(nonce, [operation.encode(), *arguments], payload)
        text = frame.part
        if len(text) < frame.length:
            text = await self._rest(nonce) or text
        while len(text) < frame.length:
            text += (await self._part(token_hex(8), [b"more", nonce.encode(), str(len(text)).encode()])).part
        return Records(text, frame.checksum)

    async def _part(self, nonce: str, words: list[bytes], payload: bytes = b"") -> Frame:
        command = command_text(self._engine, [*self._heading(nonce), *words], payload)
        response = await self._execute(command)
        if response.exit_code is None:
            raise DeadlineError(None, "The sandbox took too long")
        frame = parse_frame(response.output, nonce)
        self._engine = frame.engine
        return frame

    def _heading(self, nonce: str) -> list[bytes]:
        return [nonce.encode(), str(self._answer_bytes).encode()]

    def room(self, *arguments: bytes) -> int:
        """The bytes of content that fit into a call with `arguments`; 0 or less if not even the arguments fit."""
        heading = [*self._heading("0" * 16), b"operation", b"0" * 16]
        left = room(self._engine, self._command_bytes) - word_cost(self._engine, *heading, *arguments)
        return left // 4 * 3

    def groups(self, items: Iterable[ItemT], words: Callable[[ItemT], Sequence[bytes]]) -> Iterator[list[ItemT]]:
        """Divide `items`, in order, into groups whose words fit into half a command, so that content fits as well."""
        group: list[ItemT] = []
        spent, most = 0, self.room() // 2
        for item in items:
            cost = word_cost(self._engine, *words(item))
            if group and spent + cost > most:
                yield group
                group, spent = [], 0
            group.append(item)
            spent += cost
        if group:
            yield group

    async def stage(self, content: bytes) -> bytes:
        """Send content to the sandbox, part by part; return its name there, for the call that uses it."""
        name = token_hex(8).encode()
        at = 0
        while at < len(content):
            size = self.room(name, str(at).encode())
            answer = await self.call("stage", name, str(at).encode(), payload=content[at : at + size])
            _check_staged(answer)
            at += size
        return name


def _check_staged(answer: Records) -> None:
    words = answer.words()
    if words[0] != b"ok":
        raise BackendError(None, f"The sandbox could not store a part of the file: {b' '.join(words[1:]).decode()}")


class Content(Struct, frozen=True):
    """A fetched file; `data` is None if it is the version that the caller has."""

    modified_at: str
    data: bytes | None


class Found(Struct, frozen=True):
    """A file that a search in the sandbox found; `data` is None if it could not be read or is too large."""

    path: str
    data: bytes | None


def failure_of(words: list[bytes], path: str, limit: int = 0) -> DeepFSError:
    """The error about `path` from the words of a record."""
    match words[1]:
        case b"not_found":
            return NotFoundError(path)
        case b"is_dir":
            return IsDirectoryError(path)
        case b"not_dir":
            return NotDirectoryError(path)
        case b"not_dir_itself":
            return NotDirectoryError(path)
        case b"exists":
            return AlreadyExistsError(path)
        case b"dir_exists":
            return AlreadyExistsError(path, is_directory=True)
        case b"denied":
            return PermissionDeniedError(path)
        case b"conflict":
            return ConflictError(path)
        case b"too_large":
            return TooLargeError(path, int(words[2]), limit)
        case b"inside":
            return InvalidPathError(path, "it lies inside what it is to be put into")
        case _:
            reason = b" ".join(words[2:]).decode(errors="replace")
            return BackendError(path, f"the sandbox could not carry the operation out: {reason}")


def check(answer: Records, path: str) -> None:
    """Raise the error about `path` if the next record is one."""
    words = answer.words()
    if words[0] == b"E":
        raise failure_of(words, path)


def contents(answer: Records, wanted: list[str], limit: int) -> Iterator[Content | DeepFSError]:
    """Yield the content of each of the `wanted` paths, or the error about it."""
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
    """The entries of a listing, with the paths of file operations."""
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
    """The entries of a tree. Raises BackendError if one lies outside of the tree, or if a record is malformed."""
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
    return BackendError(path, "the sandbox gave an answer about it that means nothing")


def _beneath(name: bytes, top: str, root: str) -> str:
    """The path of file operations for `name`, perhaps not text. Raises ValueError unless it is at or beneath `top`."""
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
    """Yield the files that a grep has to search; None if the sandbox left out further ones."""
    while answer:
        kind, size, name = answer.named(2)
        data = answer.take(int(size)) if kind == b"file" else None
        path = _outward(name, root)
        if kind == b"full":
            yield None
        elif path is not None:
            yield Found(path, data)


def _outward(name: bytes, root: str) -> str | None:
    """The path of file operations for `name`; None if it is not UTF-8, or is the name of a temporary file."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return None
    path = path if root == "/" else path[len(root) :]
    return None if is_temporary(paths.name(path)) else path or "/"


def _time(seconds: bytes) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="microseconds")
