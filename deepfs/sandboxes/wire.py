"""Calls to the scripts in a sandbox: the text of a command, the frames of an answer, and the records in it.

What comes back is not trusted: a frame that announces too much is refused before the rest is fetched, each further part
must be as long as it has to be, and each command has a time limit. Of records, lengths, counts and numbers are checked,
and memory is bounded. Whatever is wrong raises one error, the BackendError of `Records.damage_error`.
"""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from secrets import token_hex
from shlex import quote
from typing import Final, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Struct

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
from deepfs.storage.gathering import in_batches
from deepfs.sync import run_shielded
from deepfs.text import paths
from deepfs.threads import pool
from deepfs.types import ExecuteResponse

T = TypeVar("T")
ItemT = TypeVar("ItemT")
ArgsT = TypeVarTuple("ArgsT")

_MIB: Final = 1024 * 1024

# --- the records of an answer ----------------------------------------------------------------------------------------

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
            raise self.damage_error() from None
        self._pieces = _unpack(packed, most)
        self._data = b""
        self._at = 0

    def damage_error(self) -> BackendError:
        """The error of an answer that cannot be understood."""
        return BackendError(self.about, "the sandbox gave an answer that means nothing")

    def _next_piece(self) -> bytes:
        """Decompress further bytes; empty if there are none."""
        try:
            return next(self._pieces, b"")
        except (ValueError, zlib.error):
            raise self.damage_error() from None

    def _fill(self) -> bool:
        """Add further bytes to those that are not read; False if there are none."""
        piece = self._next_piece()
        if not piece:
            return False
        self._data, self._at = self._data[self._at :] + piece, 0
        return True

    def until(self, end: bytes) -> bytes:
        """The bytes up to `end`, which is skipped."""
        while (stop := self._data.find(end, self._at, self._at + _MAX_RECORD_BYTES)) < 0:
            if len(self._data) - self._at >= _MAX_RECORD_BYTES or not self._fill():
                raise self.damage_error()
        found, self._at = self._data[self._at : stop], stop + len(end)
        return found

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        taken = [self._data[self._at : self._at + size]]
        self._at += len(taken[0])
        missing = size - len(taken[0])
        while missing:
            piece = self._next_piece()
            if not piece:
                raise self.damage_error()
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

    def words_and_path(self, words: int) -> list[bytes]:
        """The next record with the given number of words and a path, which may contain anything but `//`."""
        found = self.until(b"//\n").split(b" ", words)
        if len(found) <= words:
            raise self.damage_error()
        return found

    def number(self, word: bytes, most: int = 1 << 62) -> int:
        """The number that `word` states in decimal."""
        if not _is_number(word) or int(word) > most:
            raise self.damage_error()
        return int(word)

    def mode(self, word: bytes) -> int:
        """The mode that `word` states in hexadecimal."""
        if not _is_mode(word):
            raise self.damage_error()
        return int(word, 16)

    def end(self) -> None:
        """Raise unless all records are read."""
        if self:
            raise self.damage_error()


_is_number = re.compile(rb"[0-9]{1,19}").fullmatch
_is_mode = re.compile(rb"[0-9a-f]{1,8}").fullmatch


def _unpack(packed: bytes, most: int) -> Iterator[bytes]:
    """The pieces of decompressed data. Raises ValueError if they are more than `most` bytes, or not whole."""
    size = 0
    for piece in _inflate(packed) if packed.startswith(_GZIPPED) else (packed,):
        size += len(piece)
        if size > most:
            raise ValueError("too long")
        if piece:
            yield piece


def _inflate(packed: bytes) -> Iterator[bytes]:
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


# --- the outcomes in records -----------------------------------------------------------------------------------------


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
        raise answer.damage_error()


def outcomes(answer: Records, changed: Sequence[str]) -> list[DeepFSError | None]:
    """Read the records about the `changed` paths, and no further one: for each the error, or None if it was changed."""
    found = [answer.words() for _ in changed]
    answer.end()
    if not all(words == [b"ok"] or (words[0] == b"E" and len(words) > 1) for words in found):
        raise answer.damage_error()
    # Of a change, "not_dir" is about what is above.
    return [
        None
        if words[0] == b"ok"
        else NotDirectoryError(paths.parent(path))
        if words[1] == b"not_dir"
        else failure_of(words, path)
        for words, path in zip(found, changed, strict=True)
    ]


# --- calls -----------------------------------------------------------------------------------------------------------

Engine = str
"""`py`, `sh`, or empty while it is unknown which of them the sandbox can run."""

_MARK = "@deepfs.payload"
_LOCK_ATTEMPTS: Final = 30
"""Attempts of a change; in each, the script waits two seconds for the lock. A cancelled change makes no further one."""
_TINY: Final = 1024
"""The length from which on answers are parsed in a thread; at best it decompresses to a megabyte."""
_NOISE: Final = 256 * 1024
"""The most characters that a sandbox may print besides a part of an answer."""


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
    """The command that runs a script with `words`, and `payload` on its standard input.

    Both are in base64, so that a shell never interprets them.
    """
    # The base64 of a word is quoted, since it may be empty.
    arguments = " ".join(quote(b64encode(word).decode()) for word in words)
    stdin = f"<<'{_MARK}'\n{b64encode(payload).decode()}\n{_MARK}\n"
    if engine:
        return f"{_INTERPRETERS[engine]} {arguments} {stdin}"
    # These statuses mean that there is no python3, or none that can run the script, which never ends with one of them.
    unusable = "1 | 126 | 127"
    tried = f"command -v python3 >/dev/null 2>&1 && {_INTERPRETERS['py']} {arguments}"
    return f"{{ {tried}\ncase $? in {unusable}) {_INTERPRETERS['sh']} {arguments} ;; esac; }} {stdin}"


def _cost(engine: Engine, words: Iterable[bytes]) -> int:
    """The number of characters that `words` take in a command."""
    # In base64, with quotes and a blank; a command for either script holds them twice.
    return sum((len(word) + 2) // 3 * 4 + 3 for word in words) * (1 if engine else 2)


def parse_frame(output: str, nonce: str, about: str | None = None) -> Frame:
    """The framed part in the output of a command. Raises BackendError if the frame is missing or incomplete."""
    found = re.search(rf"@deepfs {nonce} (py|sh) ([0-9]{{1,12}}) ([0-9a-f]{{64}}|-|0)\s", output)
    end = -1 if found is None else output.find(f"@end {nonce}", found.end())
    if found is None or end < 0:
        shown = printable(output) or "no output"
        raise BackendError(about, f"the sandbox did not carry the operation out: {shown}")
    return Frame(found[1], int(found[2]), found[3], "".join(output[found.end() : end].split()))


async def off_loop(size: int, function: Callable[[*ArgsT], T], *args: *ArgsT) -> T:
    """Call a function that parses an answer of `size` characters: in a thread unless the answer is tiny."""
    return function(*args) if size < _TINY else await pool.run_long(lambda _: function(*args))


class ScriptCalls:
    """The scripts of one sandbox; `execute` runs a command there.

    A command may have up to `command_bytes` bytes; output of up to `answer_bytes` bytes is returned whole. `rest`
    returns the whole text of a longer answer by its name and length, or None if further commands have to fetch it. A
    command that takes longer than `seconds` is given up.
    """

    def __init__(
        self,
        execute: Callable[[str], Awaitable[ExecuteResponse]],
        command_bytes: int,
        answer_bytes: int,
        rest: Callable[[str, int], Awaitable[str | None]],
        seconds: float = 300,
    ) -> None:
        self._execute = execute
        self._rest = rest
        self._command_bytes = command_bytes
        self._answer_bytes = answer_bytes
        self._seconds = seconds
        self._engine: Engine = ""

    async def call(
        self,
        operation: str,
        *arguments: bytes,
        payload: bytes = b"",
        about: str | None = None,
        bound: Bound = LISTING,
    ) -> Records:
        """Carry out an operation on the path `about`; its answer must be within `bound`.

        Raises BackendError without a complete answer, DeadlineError at the timeout.
        """
        nonce = token_hex(8)
        frame = await self._part(nonce, [operation.encode(), *arguments], payload, about)
        if frame.length > bound.text:
            raise BackendError(about, f"the sandbox announced an answer of {frame.length:,} characters: too many")
        text = await self._text(nonce, frame, about)
        return await off_loop(len(text), Records, text, frame.checksum, bound.data, about)

    async def change(
        self, operation: str, *arguments: bytes, payload: bytes = b"", about: str | None = None, records: int = 1
    ) -> Records:
        """Carry out a change, shielded from cancellation, once no other change holds the lock in the sandbox."""
        call = partial(self.call, operation, *arguments, payload=payload, about=about, bound=bound_of(records))
        for _ in range(_LOCK_ATTEMPTS):
            await checkpoint_if_cancelled()
            answer = await run_shielded(call)
            if not answer.starts_with(b"E timeout\n"):
                return answer
        raise DeadlineError(about, "other changes held the lock in the sandbox all the time")

    async def _text(self, nonce: str, first: Frame, about: str | None) -> str:
        """The whole text of the answer that begins with `first`."""
        if len(first.part) < first.length and (whole := await self._rest(nonce, first.length)) is not None:
            return whole
        parts, size = [first.part], len(first.part)
        while size < first.length:
            words = [b"more", nonce.encode(), str(size).encode()]
            frame = await self._part(token_hex(8), words, b"", about, size)
            if frame.length != first.length:
                raise BackendError(about, "the parts of the answer of the sandbox do not belong together")
            parts.append(frame.part)
            size += len(frame.part)
        return "".join(parts)

    async def _part(self, nonce: str, words: list[bytes], payload: bytes, about: str | None, start: int = 0) -> Frame:
        """Run a command and return its frame, which must hold the part from `start` on as far as an output may go."""
        output = await self._output(command_text(self._engine, [*self._head_words(nonce), *words], payload), about)
        frame = parse_frame(output, nonce, about)
        if len(frame.part) != min(self._answer_bytes, frame.length - start):
            raise BackendError(about, "the sandbox sent another part of its answer than it announced")
        self._engine = frame.engine
        return frame

    async def _output(self, command: str, about: str | None) -> str:
        await checkpoint_if_cancelled()
        with anyio.move_on_after(self._seconds):
            response = await self._execute(command)
            if response.exit_code is not None:
                if len(response.output) > 2 * self._answer_bytes + _NOISE:
                    raise BackendError(about, "the output of the sandbox is longer than any answer")
                return response.output
        raise DeadlineError(about, "the sandbox took too long")

    def _head_words(self, nonce: str) -> list[bytes]:
        return [nonce.encode(), str(self._answer_bytes).encode()]

    def room(self, *arguments: bytes) -> int:
        """The bytes of content that fit into a call with `arguments`; 0 or less if not even the arguments fit."""
        words = [*self._head_words("0" * 16), b"operation", b"0" * 16, *arguments]
        left = self._command_bytes - len(command_text(self._engine, [], b"").encode()) - _cost(self._engine, words)
        return left // 4 * 3

    def groups(self, items: Iterable[ItemT], words: Callable[[ItemT], Sequence[bytes]]) -> Iterator[list[ItemT]]:
        """Divide `items`, in order, into groups whose words fit into half a command, so that content fits as well."""
        return in_batches(items, lambda item: _cost(self._engine, words(item)), most_bytes=self.room() // 2)

    async def stage(self, content: bytes) -> bytes:
        """Send content to the sandbox, part by part; return its name there, for the call that uses it."""
        name = token_hex(8).encode()
        at = 0
        while at < len(content):
            words = [name, str(at).encode()]
            part = content[at : at + max(self.room(*words), 1)]
            answer = await self.call("stage", *words, payload=part, bound=bound_of(1))
            check(answer, "/")
            answer.end()
            at += len(part)
        return name
