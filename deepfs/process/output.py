"""The output of commands: chunks as they come, and what is kept of them within a limit."""

from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = ["Captured", "Chunk", "Kept", "Stream", "stop_note", "time_up"]

Stream: TypeAlias = Literal["stdout", "stderr"]

STDERR_MARK = "[stderr] "
_NOTE_BYTES = 80
"""The room for a note of how many bytes are left out, with marks."""
_LONGEST_CHARACTER = 4


class Chunk(Struct, frozen=True):
    """Some bytes that a command wrote."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text. Invalid UTF-8, such as a character cut in two at the end of a chunk, is replaced."""
        return self.data.decode(errors="replace")


class Kept:
    """Keeps the first and the last bytes of a stream, `limit` in all; bytes between them are counted and dropped.

    As text, each line starts with `mark`.
    """

    def __init__(self, limit: int, mark: str = "") -> None:
        self.size: int = 0
        self._limit = limit
        self._mark = mark
        self._room = limit // 2
        self._most = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.size += len(data)
        fits = self._room - len(self._head)
        self._head += data[:fits]
        self._tail += data[max(fits, 0) :]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    @property
    def text_size(self) -> int:
        """The bytes of the whole stream as text, which are more than it has: marks, and signs for invalid UTF-8.

        A number over the limit if the stream is over the limit.
        """
        return self.size if self.size > self._limit else len(self.text(self.size).encode())

    def fitting(self, room: int) -> str:
        """The stream as text, cut to `room` bytes of text; a note of how many bytes are left out comes on top."""
        if self.text_size <= room:
            return self.text(self.size)
        least, most = 0, min(room, self.size - 1)
        while least < most:
            share = most if most == room else (least + most + 1) // 2
            if len(self.text(share).encode()) <= room + _NOTE_BYTES:
                least = share
            else:
                most = share - 1
        return self.text(least)

    def text(self, share: int) -> str:
        """The kept bytes as text, cut to `share` bytes (at most the limit), with a note of how many are left out."""
        whole = self._head + self._tail
        if self.size <= share:
            return self._marked(whole.decode(errors="replace"))
        head, tail = _without_cut_end(whole[: share // 2]), whole[len(whole) - (share - share // 2) :]
        left_out = self.size - len(head) - len(tail)
        return self._marked(
            f"{head.decode(errors='replace')}\n[… {left_out:,} bytes left out …]\n"
            f"{_without_cut_start(tail).decode(errors='replace')}"
        )

    def _marked(self, text: str) -> str:
        if not text or not self._mark:
            return text
        return "".join(f"{self._mark}{line}\n" for line in text.removesuffix("\n").split("\n"))


class Captured:
    """The output of one command, within `limit` bytes of text for both streams together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit, STDERR_MARK)}

    async def add(self, chunk: Chunk) -> None:
        """Add the next chunk of output."""
        self._streams[chunk.stream].add(chunk.data)

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves out some of the output."""
        return sum(kept.text_size for kept in self._streams.values()) > self._limit

    def text(self) -> str:
        """Stdout, then stderr with each line marked. Each gets half of the limit, and what the other does not use."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        half = self._limit // 2
        for_errors = min(err.text_size, max(half, self._limit - out.text_size))
        shown, errors = out.fitting(self._limit - for_errors), err.fitting(for_errors)
        return f"{shown}\n{errors}" if errors and shown and not shown.endswith("\n") else shown + errors


def _without_cut_end(data: bytearray) -> bytearray:
    """`data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        if data[-back] >= 0xC0:
            return data[:-back]
        if data[-back] < 0x80:
            break
    return data


def _without_cut_start(data: bytearray) -> bytearray:
    """`data` without the rest of an incomplete UTF-8 character at its start."""
    start = 0
    while start < min(_LONGEST_CHARACTER - 1, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def time_up(seconds: float) -> str:
    """Why a command was stopped whose time was up."""
    return f"its time of {seconds:g} s was up"


def stop_note(reason: str) -> str:
    """The last line of the output of a command that was stopped."""
    return f"[The command was stopped: {reason}]\n"
