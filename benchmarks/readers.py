"""Ways to read a file, and contenders that read many of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import aiofiles
import anyio
from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import peers
from benchmarks.harness import Contender
from deepfs.backends import FilesystemBackend

__all__ = ["LINES", "Read", "Reader", "at_once", "concurrent", "read_text", "readers", "sequential"]

LINES: Final = 100_000
"""More lines than any file has: by default, both backends return only the first 2,000."""

Read = Callable[[str], Awaitable[Any]]


class Reader:
    """One way to read a file, and a function that gets the text from its result."""

    def __init__(self, name: str, call: str, read: Read, text: Callable[[Any], str] = str) -> None:
        self.name = name
        self.call = call
        self.read = read
        self.text = text


def readers(root: str) -> list[Reader]:
    """The ways to read files below `root`: deepfs first, then deepagents, then others."""
    ours, theirs = FilesystemBackend(root), PeerBackend(root)

    async def by_aiofiles(path: str) -> str:
        async with aiofiles.open(root + path, encoding="utf-8") as file:
            return await file.read()

    async def by_anyio(path: str) -> str:
        return await anyio.Path(root + path).read_text(encoding="utf-8")

    async def by_to_thread(path: str) -> str:
        return await asyncio.to_thread(read_text, root + path)

    return [
        Reader("deepfs", "await fs.aread(path, 0, 100_000)", lambda path: ours.aread(path, 0, LINES), peers.our_text),
        Reader(
            "deepagents",
            "await fs.aread(path, 0, 100_000)",
            lambda path: theirs.aread(path, 0, LINES),
            peers.their_text,
        ),
        Reader("aiofiles", "async with aiofiles.open(path) as f: await f.read()", by_aiofiles),
        Reader("anyio.Path", "await anyio.Path(path).read_text()", by_anyio),
        Reader("asyncio.to_thread", "await asyncio.to_thread(lambda: open(path).read())", by_to_thread),
    ]


def read_text(path: str) -> str:
    """The text of a file, by blocking calls."""
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- contenders ------------------------------------------------------------------------------------------------------


def concurrent(ways: Sequence[Reader], root: str, paths: list[str]) -> list[Contender]:
    """All ways to read, each with all files at once, and a blocking loop."""
    shown = "asyncio.gather(*({} for path in paths))"
    found = [_contender(way, paths, at_once, shown.format(way.call.removeprefix("await "))) for way in ways]
    return [*found, _blocking(root, paths)]


def sequential(ways: Sequence[Reader], root: str, paths: list[str]) -> list[Contender]:
    """All ways to read, each with one file after another, and a blocking loop."""
    found = [_contender(way, paths, _one_by_one, f"[{way.call} for path in paths]") for way in ways]
    return [*found, _blocking(root, paths)]


async def at_once(read: Read, paths: list[str]) -> list[Any]:
    """The results of all reads, which run concurrently."""
    return await asyncio.gather(*(read(path) for path in paths))


async def _one_by_one(read: Read, paths: list[str]) -> list[Any]:
    return [await read(path) for path in paths]


def _contender(
    way: Reader, paths: list[str], gather: Callable[[Read, list[str]], Awaitable[list[Any]]], call: str
) -> Contender:
    return Contender(
        name=way.name,
        call=call,
        run=partial(gather, way.read, paths),
        rows=lambda found: list(zip(paths, map(way.text, found), strict=True)),
        own=way.name == "deepfs",
    )


def _blocking(root: str, paths: list[str]) -> Contender:
    return Contender(
        name="blocking",
        call='[open(path, encoding="utf-8").read() for path in paths]',
        run=lambda: [read_text(root + path) for path in paths],
        rows=lambda found: list(zip(paths, found, strict=True)),
    )
