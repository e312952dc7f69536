"""What a command writes, held within bounds: the head and the tail of each stream."""

from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = ["Captured", "Chunk", "Kept", "Stream"]

Stream: TypeAlias = Literal["stdout", "stderr"]

STDERR_MARK = "[stderr] "
_LONGEST_CHARACTER = 4


class Chunk(Struct, frozen=True):
    """Some bytes that a command wrote, as they came."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text; what is no UTF-8, as a character cut in two at the border of a chunk, is replaced."""
        return self.data.decode(errors="replace")


class Kept:
    """The first and the last bytes of a stream, `limit` in all; what comes between is counted and dropped."""

    def __init__(self, limit: int) -> None:
        self.size: int = 0
        self._room = limit // 2
        self._most = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take in what comes next."""
        self.size += len(data)
        fits = self._room - len(self._head)
        self._head += data[:fits]
        self._tail += data[max(fits, 0) :]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    def text(self, share: int) -> str:
        """What was kept, cut to `share` bytes, which are at most the limit; what is left out is told."""
        whole = self._head + self._tail
        if self.size <= share:
            return whole.decode(errors="replace")
        head, tail = _without_half(whole[: share // 2]), whole[len(whole) - (share - share // 2) :]
        left_out = self.size - len(head) - len(tail)
        return (
            f"{head.decode(errors='replace')}\n[… {left_out:,} bytes left out …]\n"
            f"{_from_start(tail).decode(errors='replace')}"
        )


class Captured:
    """The output of one command, within `limit` bytes for both streams together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit)}

    async def add(self, chunk: Chunk) -> None:
        """Take in what comes next."""
        self._streams[chunk.stream].add(chunk.data)

    @property
    def truncated(self) -> bool:
        """Whether something is left out."""
        return sum(kept.size for kept in self._streams.values()) > self._limit

    def text(self) -> str:
        """Stdout, then stderr with each line marked. Each has half of the limit, or what the other leaves of it."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        half = self._limit // 2
        for_errors = min(err.size, max(half, self._limit - out.size))
        shown = out.text(self._limit - for_errors)
        errors = _marked(err.text(for_errors))
        return f"{shown}\n{errors}" if errors and shown and not shown.endswith("\n") else shown + errors


def _marked(text: str) -> str:
    return "".join(f"{STDERR_MARK}{line}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


def _without_half(data: bytearray) -> bytearray:
    """`data` without a character that its end cuts in two."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        if data[-back] >= 0xC0:
            return data[:-back]
        if data[-back] < 0x80:
            break
    return data


def _from_start(data: bytearray) -> bytearray:
    """`data` without the rest of a character that begins before it."""
    start = 0
    while start < min(_LONGEST_CHARACTER - 1, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
