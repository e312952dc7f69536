"""Large objects in parts: windows of text, downloads and uploads in bounded memory."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import Final

import anyio

from deepfs.backends.object_store.client import BLOCK_BYTES, Aborted, ObjectClient
from deepfs.backends.object_store.versions import Found
from deepfs.disk.reading import MAX_WHOLE, Limits, NotTextError, WindowScan
from deepfs.errors import ConflictError, TooLargeError
from deepfs.text import media, records
from deepfs.text.arguments import bytes_given
from deepfs.types import FileDataV2, ReadResult

_ATTEMPTS: Final = 5
"""How often a file is read from its start if it changes meanwhile."""


# --- windows of text -------------------------------------------------------------------------------------------------


async def read_window(
    client: ObjectClient, path: str, offset: int, limit: int, *, max_binary: int
) -> ReadResult | None:
    """Read a window of a text, of which no more is fetched than needed, or a whole binary file; None for no file.

    Raises TooLargeError, and ConflictError if the file changes all the time.
    """
    for _ in range(_ATTEMPTS):
        first = await client.fetch_range(path, 0, MAX_WHOLE)
        if first is None:
            return None
        if (first.stat.size or 0) <= MAX_WHOLE:
            return records.read_data(path, first.file(), offset, limit, max_binary=max_binary)
        try:
            return await _read_large(client, path, first, offset, limit, max_binary)
        except _ChangedMeanwhileError:
            continue
    raise ConflictError(path, "it changed each time while it was read")


class _ChangedMeanwhileError(Exception):
    pass


async def _read_large(
    client: ObjectClient, path: str, first: Found, offset: int, limit: int, max_binary: int
) -> ReadResult:
    if media.is_binary_name(path):
        return await _read_binary(client, path, first, max_binary)
    size = first.stat.size or 0
    scan = WindowScan(path, size, offset, limit, Limits(), None)
    try:
        position, block = 0, first.content or b""
        while block:
            position += len(block)
            if scan.add(block):
                break
            block = (await _part(client, path, first, position)) if position < size else b""
        else:
            scan.end()
    except NotTextError:
        return await _read_binary(client, path, first, max_binary)
    stat = first.stat
    shown = scan.window()
    data = FileDataV2(shown.text, "utf-8", stat.created_at, stat.modified_at, media.mime_type(path))
    return records.read_window(data, shown, first.content_version or first.version_of_unread())


async def _part(client: ObjectClient, path: str, first: Found, start: int) -> bytes:
    part = await client.fetch_range(path, start, start + BLOCK_BYTES, first.tag)
    if part is None or not part.content:
        raise _ChangedMeanwhileError
    return part.content


async def _read_binary(client: ObjectClient, path: str, first: Found, max_binary: int) -> ReadResult:
    if (first.stat.size or 0) > max_binary:
        raise TooLargeError(path, first.stat.size or 0, max_binary)
    whole = await client.fetch(path, limit=max_binary)
    if whole is None or whole.content is None:
        raise _ChangedMeanwhileError
    return records.read_data(path, whole.file(), 0, 0, max_binary=max_binary)


# --- streams ---------------------------------------------------------------------------------------------------------


async def rechunked(blocks: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in chunks of `size` bytes, but for the last."""
    held = bytearray()
    async for block in blocks:
        held += block
        start = 0
        while len(held) - start >= size:
            yield bytes(held[start : start + size])
            start += size
        del held[:start]
    if held:
        yield bytes(held)


async def beginning(chunks: AsyncIterable[bytes]) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The first bytes of a stream and what follows them; None follows if they are all, at most a block."""
    start = bytearray()
    iterator = aiter(chunks)
    async for chunk in iterator:
        start += bytes_given("each chunk", chunk)
        if len(start) > BLOCK_BYTES:
            return bytes(start), iterator
    return bytes(start), None


class Parts:
    """Hands chunks from a task on any loop to the driver, which runs on asyncio, one at a time."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[bytes | None](0)

    async def add(self, chunk: bytes) -> bool:
        """Hand over a chunk; False if the driver has given up."""
        try:
            await self._send.send(chunk)
        except anyio.BrokenResourceError:
            return False
        return True

    async def end(self) -> None:
        """Say that there are no more chunks."""
        await self._send.aclose()

    async def abort(self) -> None:
        """Have the driver give up."""
        with suppress(anyio.BrokenResourceError):  # It has given up already.
            await self._send.send(None)
        await self._send.aclose()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The chunks, for the driver."""
        async with self._receive:
            async for chunk in self._receive:
                if chunk is None:
                    raise Aborted
                yield chunk
