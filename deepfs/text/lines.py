"""What counts as text, its lines, windows of lines, and the version of content.

A line ends at LF; a CR before it belongs to the terminator, and nothing else ends a line.
"""

import sys
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from deepfs.errors import InvalidContentError
from deepfs.text.arguments import check_integer, check_string

BOM = "\ufeff"

_BOM_BYTES = BOM.encode()
_BLOCK = 4096
_WORTH_REMEMBERING: Final = 256 if sys.hash_info.width >= 64 else sys.maxsize
"""The shortest text, in characters, whose facts are cached: none where Python's hashes are too short to identify it."""
_MAX_REMEMBERED: Final = 16_384


class Facts(Struct, frozen=True):
    """The number of lines of a text, and the version of its content."""

    lines: int
    version: str


class Window(Struct, frozen=True):
    """Some lines of a text with their terminators as stored.

    `start_line` and `end_line` count from 1 and are None if no line is shown; `next_offset` is the offset at which the
    next window starts, None at the end. `total_lines` is None if the text was not read to its end.
    """

    text: str
    start_line: int | None
    end_line: int | None
    total_lines: int | None
    next_offset: int | None


def decode(data: bytes | bytearray) -> str | None:
    """`data` as text with its BOM; None if it contains NUL or is not UTF-8."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def has_plain_lines(data: bytes) -> bool:
    """Whether `data` is text in which everyone finds the same lines: without carriage returns and BOM."""
    if b"\r" in data or b"\0" in data or data.startswith(_BOM_BYTES):
        return False
    return data.isascii() or decode(data) is not None


def is_text(content: str) -> bool:
    """Whether `content` has neither NUL nor lone surrogates."""
    return "\0" not in content and (content.isascii() or _surrogate(content) is None)


def check_text(content: str, what: str = "content") -> None:
    """Raise InvalidContentError unless `content` is text, TypeError unless it is a string; errors call it `what`."""
    if type(content) is not str:
        check_string(f"the {what}", content)
    nul = content.find("\0")
    if nul >= 0:
        raise InvalidContentError(None, f"The {what} holds a NUL character {_place(content, nul)}; text must not.")
    surrogate = _surrogate(content)
    if surrogate is not None:
        code = f"U+{ord(content[surrogate]):04X}"
        raise InvalidContentError(
            None, f"The {what} holds half a surrogate pair ({code}) {_place(content, surrogate)}; text must not."
        )


def utf8_size(text: str) -> int:
    """The number of bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def line_count(text: str) -> int:
    """The number of lines of `text`. A BOM alone is no line."""
    if text in ("", BOM):
        return 0
    return text.count("\n") + (not text.endswith("\n"))


def facts(text: str) -> Facts:
    """The number of lines and the version of `text`.

    They are cached by Python's hash of a text, which takes a fifth of the time. It has 64 bits and a secret key, unless
    PYTHONHASHSEED tells the key; so two texts do not get the same one by chance or on purpose. Changes compare versions
    that are computed anew.
    """
    if len(text) < _WORTH_REMEMBERING:
        return Facts(line_count(text), version(text))
    key = hash(text)
    if (found := _facts.get(key)) is None:
        if len(_facts) >= _MAX_REMEMBERED:
            _facts.clear()
        found = _facts[key] = Facts(line_count(text), version(text))
    return found


_facts: Final[dict[int, Facts]] = {}


def check_window(offset: int, limit: int) -> None:
    """Raise TypeError unless both are integers."""
    if type(offset) is not int or type(limit) is not int:  # Fast: every read calls this.
        check_integer("offset", offset)
        check_integer("limit", limit)


def window(text: str, offset: int, limit: int, total: int | None = None) -> Window:
    """At most `limit` lines from line `offset`, which counts from 0; a negative number counts as 0.

    The windows that one reads by following `next_offset` join to the text without its BOM. With a `limit` of 0 no line
    is shown and `next_offset` is `offset`. An empty text gives an empty window at any offset. For any other text, an
    offset beyond its end raises InvalidContentError, which says how many lines there are. `total` is the `line_count`
    of the text, if it is known.
    """
    check_window(offset, limit)
    total = line_count(text) if total is None else total
    if total == 0:
        return Window("", None, None, 0, None)
    offset, limit = max(offset, 0), max(limit, 0)
    if offset == 0 and limit >= total:
        return Window(text.removeprefix(BOM), 1, total, total, None)
    if offset >= total:
        raise InvalidContentError(None, f"Line offset {offset} exceeds file length ({total} lines)")
    if limit == 0:
        return Window("", None, None, total, offset)
    last = min(offset + limit, total)
    start = _skip_lines(text, 0, offset)
    end = len(text) if last == total else _skip_lines(text, start, last - offset)
    if offset == 0:
        start = len(BOM) if text.startswith(BOM) else 0
    return Window(text[start:end], offset + 1, last, total, None if last == total else last)


def version(data: bytes | bytearray | str) -> str:
    """The version of content: equal for equal bytes. A str counts as its UTF-8."""
    content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return digest(content).hexdigest()


def digest(start: bytes | bytearray = b"") -> blake2b:
    """Return a hash object: its hexdigest is the version of `start` plus the bytes it is updated with."""
    return blake2b(start, digest_size=16)


def _surrogate(content: str) -> int | None:
    """The position of the first lone surrogate."""
    if content.isascii():
        return None
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def _place(content: str, index: int) -> str:
    line = content.count("\n", 0, index) + 1
    column = index - content.rfind("\n", 0, index)
    return f"at line {line}, column {column}"


def _skip_lines(text: str, start: int, count: int) -> int:
    """The position `count` lines after `start`. There must be that many lines."""
    if count == 0:
        return start
    # Counting the line ends of a block is far cheaper than finding them one by one.
    while (in_block := text.count("\n", start, start + _BLOCK)) < count:
        count -= in_block
        start += _BLOCK
    for _ in range(count):
        start = text.index("\n", start) + 1
    return start
