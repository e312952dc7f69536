"""Tables of calls for the demo: each call, its result, and how long it took."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepfs.types import (
    EditResult,
    FileData,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    Result,
    WriteResult,
)

__all__ = ["Steps", "counted"]

ResultT = TypeVar("ResultT", bound=Result)

MAX_WIDTH = 120

console = Console(highlight=False)


class Steps:
    """A table that fills with the calls made through it, and is printed at the end of the block."""

    def __init__(self, title: str) -> None:
        width = min(console.width, MAX_WIDTH)
        self.table = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED, width=width)
        self.table.add_column("call and answer", ratio=1)
        self.table.add_column("ms", justify="right", style="green", min_width=7)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        console.print(self.table, "")

    async def call(self, method: Callable[..., Awaitable[ResultT]], *args: Any, **options: Any) -> ResultT:
        """Await a method with these arguments, and add its row."""
        start = time.perf_counter()
        result = await method(*args, **options)
        self._add(spelled(method, args, options), summary(result), start, failed=not result.ok)
        return result

    def call_sync(self, method: Callable[..., Result], *args: Any, **options: Any) -> None:
        """Call a method with these arguments, and add its row."""
        start = time.perf_counter()
        result = method(*args, **options)
        self._add(spelled(method, args, options), summary(result), start, failed=not result.ok)

    @contextmanager
    def timed(self, call: str) -> Iterator[list[str]]:
        """Add a row for the block, which puts the lines of its answer into the list."""
        start = time.perf_counter()
        answer: list[str] = []
        yield answer
        self._add(call, answer, start)

    def _add(self, call: str, answer: list[str], start: float, *, failed: bool = False) -> None:
        elapsed = f"{(time.perf_counter() - start) * 1000:,.1f}"
        lines = [Text(line, style="red" if failed else "", no_wrap=not failed, overflow="ellipsis") for line in answer]
        heading = Text(call, style="cyan", no_wrap=True, overflow="ellipsis")
        self.table.add_row(Group(heading, Padding(Group(*lines), (0, 0, 0, 2))), elapsed)


def spelled(method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """A call as source code."""
    given = [getattr(arg, "__name__", None) or repr(arg) for arg in args]
    given += [f"{name}={value!r}" for name, value in options.items()]
    return f"{method.__name__}({', '.join(given)})"


def summary(result: Result) -> list[str]:
    """The result of an operation, in a few lines."""
    match result:
        case Result(error=str(error)):
            return [error]
        case LsResult(entries=list(entries)):
            return ["  ".join(info.path for info in entries)]
        case GlobResult(matches=list(files)):
            size = f", {sum(info.size or 0 for info in files) / 1e6:,.1f} MB" if len(files) > 1000 else ""
            return [counted(len(files), "file") + size, *(f"first: {info.path}" for info in files[:1])]
        case GrepResult(matches=list(matches)):
            return matches_by_mount(matches) or ["nothing found"]
        case ReadResult(file_data=FileData(content=content)):
            lines = f"lines {result.start_line} to {result.end_line} of {result.total_lines}"
            return [lines, *(f"  {line}" for line in content.splitlines())]
        case EditResult(path=path, occurrences=int(occurrences)):
            return [f"{counted(occurrences, 'place')} replaced in {path}"]
        case WriteResult(path=path):
            return [f"wrote {path}"]
    return ["done"]


def matches_by_mount(matches: list[GrepMatch]) -> list[str]:
    """For each directory of the root, the number of matches below it, and the first one."""
    mounts: dict[str, list[GrepMatch]] = {}
    for match in matches:
        top, _, below = match.path[1:].partition("/")
        mounts.setdefault(f"/{top}/" if below else "/", []).append(match)
    return [line for mount, found in sorted(mounts.items()) for line in matches_of_mount(mount, found)]


def matches_of_mount(mount: str, found: list[GrepMatch]) -> list[str]:
    files = {match.path for match in found}
    first = found[0]
    return [
        f"{counted(len(found), 'line')} in {counted(len(files), 'file')} of {mount}, first:",
        f"  {first.path}:{first.line}  {first.text.strip()}",
    ]


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
