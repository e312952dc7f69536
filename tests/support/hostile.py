"""A sandbox that lies: it answers operations with mutations of answers that the real scripts gave."""

import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

from deepfs.errors import DeepFSError
from deepfs.sandboxes import wire
from deepfs.sandboxes.base import BaseSandbox
from deepfs.text.entries import EntryChange
from deepfs.types import ExecuteResponse
from support.sandboxes import LocalSandbox

__all__ = [
    "ROOT",
    "Answers",
    "LyingSandbox",
    "MutatingSandbox",
    "attempted",
    "framed",
    "fuzzed",
    "operations",
    "recorded",
]

ROOT: Final = b"/work"
"""The root of the sandboxes that lie; in recorded answers it stands in place of the real one."""

Answers = dict[bytes, list[bytes]]
"""The records that the scripts gave, by operation, and by operation with all arguments."""


def words_of(command: str) -> list[bytes]:
    """The words of a command: the nonce, the length of a part, the operation and its arguments."""
    for prefix in wire._INTERPRETERS.values():
        if command.startswith(prefix):
            given = command[len(prefix) : command.index(" <<'")]
            return [b64decode(word.strip("'")) for word in given.split(" ")[1:]]
    raise AssertionError("the command runs no known script")


def framed(nonce: bytes, part: str, length: int, checksum: str, engine: str = "py") -> str:
    return f"@deepfs {nonce.decode()} {engine} {length} {checksum}\n{part}\n@end {nonce.decode()}\n"


def _checksum(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


# --- recording ---


class _Recorder(LocalSandbox):
    """Keeps the records of each answer of the real scripts."""

    content_bytes: int = 16 * 1024 * 1024

    def __init__(self, root: Path, engine: str) -> None:
        super().__init__(root, max_output_bytes=4_000_000)
        self.answers: Answers = {}
        self.engine = engine

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        nonce, _, *words = words_of(command)
        response = await super().aexecute(command, timeout=timeout)
        packed = b64decode(wire.parse_frame(response.output, nonce.decode()).part)
        records = zlib.decompress(packed, 47) if packed.startswith(b"\x1f\x8b") else packed
        records = records.replace(bytes(self.root), ROOT)
        for key in (words[0], b"\0".join(words).replace(bytes(self.root), ROOT)):
            self.answers.setdefault(key, []).append(records)
        return response


async def recorded(root: Path, engine: str) -> Answers:
    """What the scripts of `engine` answer to every operation in `root`, which becomes a small tree."""
    sandbox = _Recorder(root, engine)
    sandbox._calls._engine = engine
    await sandbox.aupload_files([("/d/a.txt", b"one\ntwo\n"), ("/d/e/b.bin", bytes(range(256))), ("/d/é", b"")])
    await sandbox.amove("/d/é", "/d/it's")
    await sandbox.acopy("/d/a.txt", "/d/c.txt")
    for _, call in operations(sandbox):
        await call()
    return sandbox.answers


def operations(sandbox: BaseSandbox) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of all file operations, each with the directory in which what it names must lie."""
    checksum = sha256(b"one\ntwo\n").hexdigest()
    yield "/d", lambda: sandbox.als("/d")
    yield "/d/e", lambda: sandbox.als("/d/e")
    yield "/d", lambda: sandbox.alist_tree("/d")
    yield "/d", lambda: sandbox.aglob("*.txt", "/d")
    yield "/d", lambda: sandbox.aglob("**", "/d")
    yield "/d", lambda: sandbox.agrep("o", "/d")
    yield "/d", lambda: sandbox.agrep("o.e", "/d", regex=True)
    yield "/d/a.txt", lambda: sandbox.agrep("one", "/d/a.txt")
    yield "", lambda: sandbox.aread("/d/a.txt")
    yield "", lambda: sandbox.aread_raw("/d/e/b.bin")
    yield "", lambda: sandbox.adownload_files(["/d/a.txt", "/d/none", "/d/e/b.bin"])
    yield "", lambda: sandbox.aresolve_paths(["/d/a.txt", "/d", "/none"])
    yield "", lambda: sandbox.awrite("/d/new", "x")
    yield "", lambda: sandbox.awrite("/d/a.txt", "x", if_match=checksum)
    yield "", lambda: sandbox.aedit("/d/c.txt", "one", "two")
    yield "", lambda: sandbox.achange_entries([EntryChange("/d/m", "make_directory"), EntryChange("/d/q", "set_mode")])
    yield "", lambda: sandbox.aupload_files([("/d/u", b"1"), ("/d/v", b"2")])
    yield "", lambda: sandbox.amove("/d/u", "/d/w")
    yield "", lambda: sandbox.acopy("/d/w", "/d/x")
    yield "", lambda: sandbox.adelete("/d/x")
    yield "", lambda: sandbox.aedit("/d/none", "one", "two")


# --- lying ---


class LyingSandbox(BaseSandbox):
    """A sandbox that answers each command with what `answer` makes of its words; counts its commands."""

    def __init__(
        self, answer: Callable[[list[bytes]], str | bytes | ExecuteResponse], root: str = ROOT.decode()
    ) -> None:
        super().__init__(root)
        self.answer = answer
        self.commands = 0
        self._calls._engine = "py"

    @property
    def id(self) -> str:
        return f"lying:{id(self)}"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        self.commands += 1
        words = words_of(command)
        told = self.answer(words)
        if isinstance(told, ExecuteResponse):
            return told
        if isinstance(told, bytes):
            text = b64encode(gzip.compress(told, 1)).decode()
            told = framed(words[0], text[: self.answer_bytes], len(text), _checksum(text))
        return ExecuteResponse(told, 0)


class MutatingSandbox(LyingSandbox):
    """A sandbox that answers with mutations of `answers`; a seed makes them the same each time."""

    answer_bytes: int = 4_000
    content_bytes: int = 16 * 1024 * 1024

    def __init__(self, answers: Answers, engine: str, seed: int) -> None:
        super().__init__(self._told)
        self.mutations = 0
        self._answers = answers
        self._random = Random(seed)
        self._texts: dict[bytes, str] = {}
        self._calls._engine = engine

    def _told(self, words: list[bytes]) -> ExecuteResponse:
        self.mutations += 1
        nonce, _, operation, *arguments = words
        chance = self._random.random()
        text, start = "", 0
        if operation == b"more":
            text, start = self._texts.get(arguments[0], ""), int(arguments[1])
        if not text:
            same = self._answers.get(b"\0".join([operation, *arguments]), [])
            records = self._random.choice(same or self._answers.get(operation, [b"ok\n"]))
            text = self._packed(records, 0 <= chance < 0.7, 0.7 <= chance < 0.8)
            self._texts = {nonce: text}
        frame = framed(nonce, text[start : start + self.answer_bytes], len(text), _checksum(text))
        # Most long answers arrive whole, so that what they decompress to is noticed.
        is_framed_well = chance < (0.998 if operation == b"more" else 0.8)
        return ExecuteResponse(frame, 0) if is_framed_well else self._response(frame, nonce)

    def _packed(self, records: bytes, mutate_records: bool, mutate_packed: bool) -> str:
        if mutate_records:
            for _ in range(self._random.choice((1, 1, 1, 2, 5))):
                records = self._mutated(records)
        if self._random.random() < 0.004:
            return self._random.choice(_BOMBS)
        packed = gzip.compress(records, 1) if self._random.random() < 0.9 else records
        if mutate_packed:
            packed = self._mutated(packed)
        return b64encode(packed).decode()

    def _mutated(self, data: bytes) -> bytes:
        at = self._random.randint(0, len(data))
        end = min(len(data), at + self._random.choice((1, 1, 2, 8, 64, 4096)))
        token = self._random.choice(_TOKENS)
        return self._random.choice(
            (
                lambda: data[:at] + token + data[at:],
                lambda: data[:at] + token + data[end:],
                lambda: data[:at] + data[end:],
                lambda: data[:end] + data[at:],
                lambda: data[:at],
                lambda: data[:at] + self._random.randbytes(end - at) + data[end:],
                lambda: self._word_replaced(data, token),
                lambda: data + data,
                lambda: b"",
            )
        )()

    def _word_replaced(self, data: bytes, token: bytes) -> bytes:
        words = data.split(b" ")
        words[self._random.randrange(len(words))] = token
        return b" ".join(words)

    def _response(self, frame: str, nonce: bytes) -> ExecuteResponse:
        shown = nonce.decode()
        head, _, rest = frame.partition("\n")
        length = head.split(" ")[3]
        told = self._random.choice(
            (
                lambda: "",
                lambda: frame.replace(shown, "0" * 16, 1),
                lambda: frame.replace("@end", "", 1),
                lambda: frame.replace("@end", " " * 50_000, 1),
                lambda: frame.replace(f" {length} ", f" {self._random.choice(_LENGTHS)} ", 1),
                lambda: frame.replace(" py ", " sh ", 1),
                lambda: f"{head}\n{' ' * 100_000}",
                lambda: f"{head}\n{rest[: len(rest) // 2]}",
                lambda: f"{head}\n\n@end {shown}\n",
                lambda: f"{head}\né\udc80\x00{rest}",
                lambda: frame * 2,
                lambda: "x" * 1_000_000,
                lambda: f"noise\r\n{frame}".replace("\n", "\r\n"),
            )
        )()
        return ExecuteResponse(told, self._random.choice((0, 0, 0, 1, 137, None)))


_LENGTHS: Final = ("0", "1", "-1", "20000", "9" * 12, "9" * 5000, "1e3", "٣")
_TOKENS: Final = (
    *(b"\n", b" ", b"//\n", b"ok", b"ok\n", b"E", b"E \n", b"E later\n", b"E timeout\n", b"same 0\n", b"bad 0 0 //\n"),
    *(
        b"E too_large x\n",
        b"E too_large 99\n",
        b"E other \x1b[31m{other}\n",
        b"full 0 //\n",
        b"skip 0 /d//\n",
        b"no //\n",
    ),
    *(
        b"-1",
        b"0",
        b"1_0",
        b"9" * 19,
        b"9" * 5000,
        b"1e999",
        b"-1e999",
        b"nan",
        b"inf",
        b"0x1f",
        b"41ed",
        b"ffffffffff",
    ),
    *(b"/etc/passwd", b"..", b"/../", b"/./", b"//", b"C:", b"..\\x", b"\xff\xfe", b"\0", b"\r", b"\xe2\x80\xa8", b"~"),
    *(b"/" + b"n" * 300, b"x" * 20_000, b"/d" * 3000),
)
_BOMB: Final = 64 * 1024 * 1024


def _bombs() -> Iterator[str]:
    """Texts of a few kilobytes that decompress to many megabytes: without sense, a huge file, and many records."""
    many = b"".join(b"81a4 0 0 /work/d/%d//\n" % number for number in range(300_000))
    for start in (b"", b"ok\n", b"ok 0 %d\n" % _BOMB, b"ok 0 %d\n" % (1 << 21), b"ok\n" + many):
        packed = zlib.compressobj(9, zlib.DEFLATED, 31)
        data = packed.compress(start)
        for _ in range(64 if start[:3] != b"ok\n" or not start[3:] else 0):
            data += packed.compress(bytes(_BOMB // 64))
        yield b64encode(data + packed.flush()).decode()


_BOMBS: Final = tuple(_bombs())


async def attempted(call: Callable[[], Any]) -> Any:
    """The result of a call; an error of deepfs is one."""
    try:
        return await call()
    except DeepFSError as error:
        return error


# --- fuzzing ---


async def fuzzed(sandbox: MutatingSandbox, mutations: int) -> dict[str, int]:
    """Try all operations until so many mutations were answered. Count the outcomes by code.

    Fails on any exception that is no error of deepfs, a path elsewhere than asked, and an operation that runs more than
    `MOST_COMMANDS` commands.
    """
    outcomes: dict[str, int] = {}
    calls = [*operations(sandbox)]
    while sandbox.mutations < mutations:
        for top, call in calls:
            before = sandbox.commands
            result = await attempted(call)
            assert sandbox.commands - before <= MOST_COMMANDS
            assert not [path for path in _told_paths(result) if top and path != top and not path.startswith(f"{top}/")]
            code = str(getattr(result, "code", None))
            outcomes[code] = outcomes.get(code, 0) + 1
            del result  # Not held while the next answer is read, for the measure of memory.
    return outcomes


MOST_COMMANDS: Final = 1_000
"""More than the parts of the longest answer, and the hundred attempts of an edit."""


def _told_paths(result: Any) -> list[str]:
    records = getattr(result, "entries", None) or getattr(result, "matches", None) or []
    return [record.path for record in records]
