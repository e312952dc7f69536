"""Windows of text files, read in memory bounded by the window."""

import codecs
import os
from hashlib import blake2b
from typing import NamedTuple

from deepfs.core import text
from deepfs.core.disk.files import Versioning, blocks, open_regular, read_descriptor
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.places import Root, release
from deepfs.errors import InvalidContentError, TooLargeError

__all__ = ["DEFAULT_LIMITS", "MAX_WHOLE", "Limits", "Reading", "read_whole", "read_window"]

MAX_WHOLE = 1024 * 1024
"""Files up to this size are read at once."""

_COUNT_STEP = 4096


class Limits(NamedTuple):
    """Where reading stops, in bytes."""

    binary: int = 10 * 1024 * 1024
    """The largest binary file that is read."""
    window: int = 10 * 1024 * 1024
    """The largest window of text."""
    judged: int = 64 * 1024 * 1024
    """The largest file that is read to its end, so that its lines are counted and all of it is known to be text."""


DEFAULT_LIMITS = Limits()


class Reading(NamedTuple):
    """What was read: a window of text, or the whole of a binary file."""

    status: os.stat_result
    version: str
    shown: text.Window | bytes


class _NotTextError(Exception):
    """Raised within this module where a file proves to be binary."""


def read_window(
    root: Root, path: str, offset: int, limit: int, limits: Limits = DEFAULT_LIMITS, patience: Patience | None = None
) -> Reading:
    """At most `limit` lines from line `offset` of a text file; the whole of one that proves to be binary."""
    descriptor, status = open_regular(root, path)
    try:
        versioning = Versioning(status)
        if status.st_size <= MAX_WHOLE:
            data = read_descriptor(path, descriptor, status.st_size, limits.window)
            return _from_whole(status, versioning.of(descriptor, data), data, offset, limit)
        is_hashed = versioning.known is None and status.st_size <= limits.judged
        scan = _Scan(path, status, offset, limit, limits, text.digest() if is_hashed else None)
        try:
            scan.run(descriptor, patience or Patience())
        except _NotTextError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            data = read_descriptor(path, descriptor, status.st_size, limits.binary)
            return Reading(status, versioning.of(descriptor, data), data)
        return Reading(status, _scanned_version(scan, versioning, descriptor), scan.window())
    finally:
        release(descriptor)


def read_whole(root: Root, path: str, limit: int) -> Reading:
    """All of a file, as bytes; TooLargeError where it is over `limit` bytes."""
    descriptor, status = open_regular(root, path)
    try:
        versioning = Versioning(status)
        data = read_descriptor(path, descriptor, status.st_size, limit)
        return Reading(status, versioning.of(descriptor, data), data)
    finally:
        release(descriptor)


def _from_whole(status: os.stat_result, version: str, data: bytes, offset: int, limit: int) -> Reading:
    content = text.decode(data)
    return Reading(status, version, data if content is None else text.window(content, offset, limit))


def _scanned_version(scan: "_Scan", versioning: Versioning, descriptor: int) -> str:
    if versioning.known is not None:
        return versioning.known
    made = scan.version
    return versioning.of_unread() if made is None else versioning.remember(descriptor, made)


class _Scan:
    """A pass over a large file that keeps the window's bytes, counts lines and judges that all it sees is text."""

    def __init__(
        self,
        path: str,
        status: os.stat_result,
        offset: int,
        limit: int,
        limits: Limits,
        digest: blake2b | None,
    ) -> None:
        self._path = path
        self._size = status.st_size
        self._limits = limits
        self._first = max(offset, 0)
        self._last = self._first + max(limit, 0)
        self._kept = bytearray()
        self._lines = 0
        self._open_line = False
        self._more = False
        self._ended = False
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._digest = digest

    @property
    def version(self) -> str | None:
        """The version of what was read to its end; None where it was not, or not asked for."""
        return self._digest.hexdigest() if self._digest is not None and self._ended else None

    def run(self, descriptor: int, patience: Patience) -> None:
        to_the_end = self._size <= self._limits.judged
        for block in blocks(descriptor):
            patience.check(self._path)
            if self._digest is not None:
                self._digest.update(block)
            self._judge(block)
            self._take(block)
            if self._more and not to_the_end:
                return
        self._judge(b"", final=True)
        self._ended = True

    def _judge(self, block: bytes, *, final: bool = False) -> None:
        if b"\0" in block:
            raise _NotTextError
        try:
            self._decode(block, final)
        except UnicodeDecodeError as error:
            raise _NotTextError from error

    def _take(self, block: bytes) -> None:
        """Keep what of `block` is in the window, and count its lines."""
        newlines = block.count(b"\n")
        start = _after_newlines(block, newlines, self._first - self._lines)
        end = _after_newlines(block, newlines, self._last - self._lines)
        self._kept += block[start:end]
        if len(self._kept) > self._limits.window:
            raise TooLargeError(self._path, self._size, self._limits.window)
        self._lines += newlines
        self._open_line = not block.endswith(b"\n")
        self._more = self._more or end < len(block)

    def window(self) -> text.Window:
        """The window, once the pass is over."""
        total = self._lines + self._open_line if self._ended else None
        if total is not None and self._first >= total:
            raise InvalidContentError(f"Error: Line offset {self._first} exceeds file length ({total} lines)")
        onward = self._last if self._more else None
        if self._first == self._last:
            return text.Window("", None, None, total, self._first)
        shown = self._kept.decode()
        last = self._last if total is None else min(self._last, total)
        if self._first == 0:
            shown = shown.removeprefix(text.BOM)
        return text.Window(shown, self._first + 1, last, total, onward)


def _after_newlines(block: bytes, newlines: int, count: int) -> int:
    """The position after `count` of the `newlines` in `block`: its start for none, its end where there are fewer."""
    if count <= 0:
        return 0
    if count > newlines:
        return len(block)
    start = 0
    # Counting a stretch costs far less than finding its lines one by one.
    while (found := block.count(b"\n", start, start + _COUNT_STEP)) < count:
        count -= found
        start += _COUNT_STEP
    for _ in range(count):
        start = block.index(b"\n", start) + 1
    return start
