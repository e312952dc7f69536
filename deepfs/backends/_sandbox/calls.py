"""Calls of the scripts in a sandbox: one command each, more where the content or the answer is large."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from secrets import token_hex
from typing import TypeVar

from deepfs.backends._sandbox.wire import Engine, Frame, Records, command_text, parse_frame, room, word_cost
from deepfs.errors import BackendError, DeadlineError
from deepfs.types import ExecuteResponse

__all__ = ["Calls"]

ItemT = TypeVar("ItemT")


class Calls:
    """The scripts of one sandbox; `execute` runs a command there.

    Of a command, `command_bytes` are taken as they are; of its output, `answer_bytes` come back whole. `rest` gives the
    text of a longer answer by its name, or None where that takes commands, too.
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
        """Carry an operation out. Raises BackendError where no answer comes, DeadlineError where it comes too late."""
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
            raise DeadlineError("Error: The sandbox took too long")
        frame = parse_frame(response.output, nonce)
        self._engine = frame.engine
        return frame

    def _heading(self, nonce: str) -> list[bytes]:
        return [nonce.encode(), str(self._answer_bytes).encode()]

    def room(self, *arguments: bytes) -> int:
        """How many bytes of content go with a call of these arguments; none or less where not even they fit."""
        heading = [*self._heading("0" * 16), b"operation", b"0" * 16]
        left = room(self._engine, self._command_bytes) - word_cost(self._engine, *heading, *arguments)
        return left // 4 * 3

    def groups(self, items: Iterable[ItemT], words: Callable[[ItemT], Sequence[bytes]]) -> Iterator[list[ItemT]]:
        """The items, in order, in groups whose words fit into a command each, with some content beside."""
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
        """Bring content into the sandbox, part by part; returns its name there, for the call that takes it."""
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
        raise BackendError(f"Error: The sandbox could not store a part of the file: {b' '.join(words[1:]).decode()}")
