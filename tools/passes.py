"""Prints as JSON which modules of the package two operations use: a search on disk, and an edit in a LangGraph store.

An operation uses a module if it calls a function of it, in any thread; an import alone does not count.
"""

import json
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import anyio
from langgraph.store.memory import InMemoryStore

from deepfs import FilesystemBackend, StoreBackend

ROUNDS = 5
"""How often each operation runs: the modules that it uses may depend on the timing of its threads."""

passed: set[str] = set()


def note(frame: FrameType, event: str, _: Any) -> None:
    module = frame.f_globals.get("__name__", "")
    if event == "call" and frame.f_code.co_name != "<module>" and module.partition(".")[0] == "deepfs":
        passed.add(module)


async def passes(operation: Callable[[], Awaitable[object]]) -> list[str]:
    """The modules that an operation uses, without its first run, which starts threads and loads modules."""
    await operation()
    passed.clear()
    for _ in range(ROUNDS):
        await operation()
    return sorted(passed)


async def main(root: Path) -> dict[str, list[str]]:
    (root / "notes.py").write_text("one\ntwo\n")
    disk = FilesystemBackend(root)
    store = StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",))
    await store.awrite("/notes.py", "one\ntwo\n")

    async def grep() -> None:
        assert (await disk.agrep("two")).matches

    async def edit() -> None:
        assert (await store.aedit("/notes.py", "one", "three")).error is None
        assert (await store.aedit("/notes.py", "three", "one")).error is None

    # The edit runs first: calls in the threads that the search starts would count for it.
    edited = await passes(edit)
    return {"a disk grep": await passes(grep), "a store edit": edited}


if __name__ == "__main__":
    threading.setprofile(note)
    sys.setprofile(note)
    with TemporaryDirectory() as directory:
        counted = anyio.run(main, Path(directory))
    sys.setprofile(None)
    print(json.dumps(counted))
