"""Ways to read a file, of both packages and of others, and the answers of both packages in one form."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import aiofiles
import anyio
from deepagents.backends import FilesystemBackend as PeerBackend
from deepagents.backends.utils import EMPTY_CONTENT_WARNING

from benchmarks.bench import Contender
from deepfs.backends import FilesystemBackend

CLIPPED: Final = 5_000
"""deepfs shows this many characters of a matching line; all answers are compared up to this length."""
LINES: Final = 100_000
"""More lines than any file has: by default, both backends return only the first 2,000."""

Read: TypeAlias = Callable[[str], Awaitable[Any]]


def our_text(result: Any) -> str:
    assert result.ok, result.error
    return str(result.file_data.content)


def their_text(result: Any) -> str:
    """The text that a read of deepagents shows; for an empty file, deepagents returns a reminder to the model."""
    assert result.error is None, result.error
    content = str(result.file_data["content"])
    return "" if content == EMPTY_CONTENT_WARNING else content


def listed_paths(result: Any) -> list[str]:
    found = result.entries if hasattr(result, "entries") else result.matches
    return [info["path"] for info in found or ()]


def grep_rows(result: Any) -> list[tuple[str, int, str]]:
    return [(match["path"], match["line"], match["text"][:CLIPPED]) for match in result.matches or ()]


class Reader(NamedTuple):
    """One way to read a file, and a function that gets the text from its result."""

    name: str
    call: str
    read: Read
    text: Callable[[Any], str] = str
    sync: Callable[[str], Any] | None = None


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

    call = "await fs.aread(path, 0, 100_000)"
    return [
        Reader("deepfs", call, lambda p: ours.aread(p, 0, LINES), our_text, lambda p: ours.read(p, 0, LINES)),
        Reader("deepagents", call, lambda p: theirs.aread(p, 0, LINES), their_text, lambda p: theirs.read(p, 0, LINES)),
        Reader("aiofiles", "async with aiofiles.open(path) as f: await f.read()", by_aiofiles),
        Reader("anyio.Path", "await anyio.Path(path).read_text()", by_anyio),
        Reader("asyncio.to_thread", "await asyncio.to_thread(lambda: open(path).read())", by_to_thread),
    ]


def read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def contenders(ways: Sequence[Reader], root: str, paths: list[str], work: str) -> list[Contender]:
    """All ways to read, each with all files at once in "concurrent reads", or one by one; and a blocking loop."""
    at_once = work == "concurrent reads"

    async def read_all(read: Read) -> list[Any]:
        if at_once:
            return await asyncio.gather(*(read(path) for path in paths))
        return [await read(path) for path in paths]

    def rows(text: Callable[[Any], str], found: list[Any]) -> list[Any]:
        return list(zip(paths, map(text, found), strict=True))

    def shown(call: str) -> str:
        call = f"{call} for path in paths"
        return f"asyncio.gather(*({call.removeprefix('await ')}))" if at_once else f"[{call}]"

    found = [Contender(w.name, shown(w.call), partial(read_all, w.read), partial(rows, w.text)) for w in ways]
    call = '[open(path, encoding="utf-8").read() for path in paths]'
    loop = Contender("blocking", call, lambda: [read_text(root + path) for path in paths], partial(rows, str))
    return [*found, loop]
