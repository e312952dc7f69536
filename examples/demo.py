"""deepfs in one sitting: a LangGraph graph whose nodes work on three storages in one tree, then a plain script.

    /            the state of the graph, which lives as long as its thread
    /src/        a real source tree: the packages installed beside deepfs, some thousand files
    /memories/   a SQLite database in one file: run the demo twice, and it remembers

`nox -s demo` runs it; so does `python examples/demo.py`, with deepfs and rich installed.
"""

import sysconfig
from datetime import datetime
from pathlib import Path

import anyio
from langgraph.graph import START, StateGraph
from steps import Steps, counted

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemState,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    run_sync,
)
from deepfs.types import EditResult, GrepResult

SOURCES = Path(sysconfig.get_path("purelib"))
MEMORIES = Path(".demo") / "memories.db"
EDITS = 50

tree = CompositeBackend(
    default=StateBackend(),
    routes={"/src/": FilesystemBackend(SOURCES), "/memories/": SqliteBackend(MEMORIES)},
)


# --- the graph: async nodes that await the tree ----------------------------------------------------------------------


async def look_around(state: FilesystemState) -> None:
    with Steps("1. Look around: three storages, one tree") as steps:
        await steps.call(tree.als, "/")
        await steps.call(tree.aglob, "**/*.py", "/src")
        found = await steps.call(tree.agrep, r"^class \w+Graph\b", "/src/langgraph", "*.py", regex=True)
        for match in (found.matches or [])[:1]:
            await steps.call(tree.aread, match.path, offset=match.line - 1, limit=4)


async def take_notes(state: FilesystemState) -> None:
    with Steps("2. Take notes in the state of the graph") as steps:
        await steps.call(tree.awrite, "/notes.md", "# Notes\n- [ ] where is get_config defined?\n")
        await steps.call(tree.awrite, "/notes.md", "another text")
        await steps.call(tree.aedit, "/notes.md", "- [ ] Where", "- [x] Where")
        await steps.call(tree.aedit, "/notes.md", "[ ]", "[x]")
        await steps.call(tree.aread, "/notes.md")


async def edit_at_once(state: FilesystemState) -> None:
    board, names = "/memories/board.md", [f"task {number:02}" for number in range(EDITS)]
    edited: list[EditResult] = []

    async def finish(name: str) -> None:
        edited.append(await tree.aedit(board, f"{name}: open", f"{name}: done"))

    with Steps(f"3. Edit one file of the database {EDITS} times at once") as steps:
        await steps.call(tree.awrite, board, "".join(f"{name}: open\n" for name in names), overwrite=True)
        with steps.timed(f"{EDITS} × aedit({board!r}, 'task …: open', 'task …: done')") as answer:
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(finish, name)
            answer.append(f"{sum(result.ok for result in edited)} succeeded")
        await steps.call(tree.agrep, ": done", board)


async def remember(state: FilesystemState) -> None:
    with Steps("4. Remember in the database, and search everything at once") as steps:
        earlier = await steps.call(tree.aglob, "run-*.md", "/memories")
        note = f"{datetime.now():%Y-%m-%d %H:%M:%S}: looked for get_config\n"
        await steps.call(tree.awrite, f"/memories/run-{len(earlier.matches or ()) + 1:03}.md", note)
        await steps.call(tree.agrep, "get_config")


async def run_graph() -> None:
    """Run the nodes one after another, and print which files are in the state at the end."""
    graph = StateGraph(FilesystemState)
    graph.add_sequence([look_around, take_notes, edit_at_once, remember])
    graph.add_edge(START, "look_around")
    await anyio.Path(MEMORIES.parent).mkdir(exist_ok=True)
    async with tree:
        final = await graph.compile().ainvoke({"files": {}})
    print(f"The graph has ended. Its state holds {', '.join(sorted(final['files']))}.\n")


# --- the script: the same operations without await -------------------------------------------------------------------


def run_script() -> None:
    """Each operation has a sync method; `run_sync` runs any other async function."""
    files = CompositeBackend(MemoryBackend(), {"/src/": FilesystemBackend(SOURCES)})
    with Steps("5. The same from a script, without await") as steps:
        steps.call_sync(files.copy, "/src/langgraph/graph/state.py", "/draft/state.py")
        steps.call_sync(files.edit, "/draft/state.py", "class StateGraph(", "class DraftGraph(")
        steps.call_sync(files.grep, "class DraftGraph(")
        steps.call_sync(files.read, "/src/no/such/file.py")
        steps.call_sync(run_sync, recall)


async def recall() -> GrepResult:
    """Search the notes that this run and earlier ones have left in the database."""
    async with SqliteBackend(MEMORIES) as memories:
        return await memories.agrep("", glob="run-*.md")


def main() -> None:
    anyio.run(run_graph)
    run_script()
    remembered = counted(len(run_sync(recall).matches or ()), "run")
    print(f"{remembered} remembered in {MEMORIES}. Run it again: it finds them.")
    print(f"To forget them, delete the directory {MEMORIES.parent}.")


if __name__ == "__main__":
    main()
