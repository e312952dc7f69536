"""This side of the wire: the text of a command, and what an answer says."""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from shlex import quote
from typing import Final

from msgspec import Struct

from deepfs.errors import BackendError

__all__ = ["Engine", "Frame", "Records", "command_text", "encoded_size", "parse_frame", "room", "word_cost"]

Engine = str
"""`py`, `sh`, or nothing where it is not known yet which of them the sandbox can run."""

_MARK = "@deepfs.payload"
_GZIPPED = b"\x1f\x8b"
_EITHER_FORM = 47
"""The `wbits` with which zlib reads the form of gzip, too."""


class Frame(Struct, frozen=True):
    """A part of an answer: which script gave it, the length and the checksum of the whole, and the part."""

    engine: Engine
    length: int
    checksum: str
    part: str


def _script(name: str) -> str:
    return quote(files(__package__).joinpath(name).read_text("utf-8"))


# Read when this is imported: later there may be an event loop to be kept waiting.
# Python is kept from the modules of whatever directory the command runs in.
_INTERPRETERS: Final = {
    "py": f"python3 -I -S -c {_script('script.py')}",
    "sh": f"sh -c {_script('script.sh')} deepfs",
}


def command_text(engine: Engine, words: Sequence[bytes], payload: bytes) -> str:
    """The command that runs a script with `words` and feeds it `payload`; both travel as base64, so nothing of them is
    ever read by a shell."""
    # Never an empty word: some shells of old drop it.
    arguments = " ".join(quote(b64encode(word).decode()) for word in words)
    stdin = f"<<'{_MARK}'\n{b64encode(payload).decode()}\n{_MARK}\n"
    if engine:
        return f"{_INTERPRETERS[engine]} {arguments} {stdin}"
    # These tell that there is no python3, or none that can run the script; it ends with no such status once it runs.
    unusable = "1 | 126 | 127"
    tried = f"command -v python3 >/dev/null 2>&1 && {_INTERPRETERS['py']} {arguments}"
    return f"{{ {tried}\ncase $? in {unusable}) {_INTERPRETERS['sh']} {arguments} ;; esac; }} {stdin}"


def room(engine: Engine, limit: int) -> int:
    """How many characters a command of `limit` has for words and payload."""
    return limit - len(command_text(engine, [], b"").encode())


def word_cost(engine: Engine, *words: bytes) -> int:
    """How many characters `words` take in a command."""
    # Quotes and a blank; a command for either script holds them twice.
    return sum(encoded_size(len(word)) + 3 for word in words) * (1 if engine else 2)


def encoded_size(size: int) -> int:
    """How many characters so many bytes become."""
    return (size + 2) // 3 * 4


def parse_frame(output: str, nonce: str) -> Frame:
    """The framed part in what a command printed. Raises BackendError where there is none, or not all of it."""
    found = re.search(rf"@deepfs {nonce} (py|sh) (\d+) (\S+)\s+([A-Za-z0-9+/=\s]*?)\s*@end {nonce}", output)
    if found is None:
        shown = " ".join(output.split())[:300]
        raise BackendError(f"Error: The sandbox did not carry the operation out: {shown or 'no output'}")
    return Frame(found[1], int(found[2]), found[3], "".join(found[4].split()))


class Records:
    """The records of an answer, read one after another: a line each, and content of the length that it tells."""

    def __init__(self, text: str, checksum: str) -> None:
        if sha256(text.encode()).hexdigest() != checksum:
            raise BackendError("Error: The answer of the sandbox was damaged on its way")
        data = b64decode(text)
        self._data = zlib.decompress(data, _EITHER_FORM) if data.startswith(_GZIPPED) else data
        self._at = 0

    def until(self, end: bytes) -> bytes:
        """What comes up to `end`, which is passed."""
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
        """The words of a line."""
        return self.until(b"\n").split(b" ")

    def named(self, words: int) -> list[bytes]:
        """So many words and a path, which may hold anything but `//`."""
        return self.until(b"//\n").split(b" ", words)
