"""Calls to the scripts in a sandbox: the text of a command, and the frames of an answer.

What comes back is not trusted: a frame that announces too much is refused before the rest is fetched, each further part
must be as long as it has to be, and each command has a time limit.
"""

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from secrets import token_hex
from shlex import quote
from typing import Final, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Struct

from deepfs.errors import BackendError, DeadlineError
from deepfs.sandboxes.answers import (
    LISTING,
    Bound,
    Content,
    Found,
    Records,
    bound_of,
    check,
    contents,
    failure_of,
    found_files,
    infos,
    printable,
    tree_listing,
)
from deepfs.sync import shielded
from deepfs.threads import pool
from deepfs.types import ExecuteResponse

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
    "off_loop",
    "parse_frame",
    "room",
    "tree_listing",
    "word_cost",
]


T = TypeVar("T")
ItemT = TypeVar("ItemT")
ArgsT = TypeVarTuple("ArgsT")

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


class Calls:
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
            answer = await shielded(call)
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
        output = await self._output(command_text(self._engine, [*self._heading(nonce), *words], payload), about)
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

    async def stage(self, content: bytes, about: str | None = None) -> bytes:
        """Send content to the sandbox, part by part; return its name there, for the call that uses it."""
        name = token_hex(8).encode()
        at = 0
        while at < len(content):
            words = [name, str(at).encode()]
            part = content[at : at + max(self.room(*words), 1)]
            answer = await self.call("stage", *words, payload=part, about=about, bound=bound_of(1))
            check(answer, about or "/")
            answer.end()
            at += len(part)
        return name
