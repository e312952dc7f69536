"""Which modules of the package two operations pass: a search on disk, and an edit in a store of LangGraph.

Printed as JSON. A module is passed if a function of it is called, in any thread; importing it is not passing it.
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
"""How often each operation runs: what a pass meets may depend on when its threads run."""

passed: set[str] = set()


def note(frame: FrameType, event: str, _: Any) -> None:
    module = frame.f_globals.get("__name__", "")
    if event == "call" and frame.f_code.co_name != "<module>" and module.partition(".")[0] == "deepfs":
        passed.add(module)


async def passes(operation: Callable[[], Awaitable[object]]) -> list[str]:
    """The modules that an operation passes once it has run for a first time, which starts threads and loads modules."""
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

    # The edit first: the search starts threads, which would be seen later on.
    edited = await passes(edit)
    return {"a disk grep": await passes(grep), "a store edit": edited}


if __name__ == "__main__":
    threading.setprofile(note)
    sys.setprofile(note)
    with TemporaryDirectory() as directory:
        counted = anyio.run(main, Path(directory))
    sys.setprofile(None)
    print(json.dumps(counted))
