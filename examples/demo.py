"""deepfs in one sitting: a LangGraph graph over three storages in one tree, then the same tree from a plain script.

    /            graph state, gone with the thread
    /src/        a real source tree on disk: the installed packages of this environment
    /memories/   a LangGraph store in a SQLite file: run the demo twice, and it remembers

Run it with `nox -s demo`, or `python examples/demo.py` where deepfs, rich and langgraph-checkpoint-sqlite are installed.
"""

import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import anyio
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.sqlite.aio import AsyncSqliteStore
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepfs import CompositeBackend, FilesystemBackend, FilesystemState, MemoryBackend, StateBackend, StoreBackend, run_sync
from deepfs.types import Result

SOURCE_TREE = Path(sysconfig.get_path("purelib"))
MEMORY_FILE = Path(".demo") / "memories.sqlite"

console = Console()
ResultT = TypeVar("ResultT", bound=Result)

tree = CompositeBackend(
    default=StateBackend(),
    routes={
        "/src/": FilesystemBackend(SOURCE_TREE),
        "/memories/": StoreBackend(namespace=("demo", "memories")),
    },
)


class Steps:
    """A table of what was called, what came of it, and how long it took."""

    def __init__(self, title: str) -> None:
        self.table = Table(title=title, title_justify="left", title_style="bold")
        self.table.add_column("call", style="cyan", no_wrap=True)
        self.table.add_column("answer")
        self.table.add_column("ms", justify="right", style="green")

    async def call(self, shown: str, operation: Awaitable[ResultT]) -> ResultT:
        """Await an operation and add its row."""
        start = time.perf_counter()
        result = await operation
        self.add(shown, result, start)
        return result

    def add(self, shown: str, result: Result, start: float) -> None:
        """Add the row of an operation that began at `start`."""
        self.table.add_row(escape(shown), told(result), f"{(time.perf_counter() - start) * 1000:,.1f}")


def told(result: Result) -> str:
    """One line that says what came of an operation."""
    if not result.ok:
        return f"[red]{escape(str(result.error))}[/red]"
    for field in ("entries", "matches"):
        found = getattr(result, field, None)
        if found is not None:
            cut = " and more" if getattr(result, "truncated", False) else ""
            return f"{len(found):,} {field}{cut}: {sample(item.path for item in found)}"
    if data := getattr(result, "file_data", None):
        first_line = data.content.partition("\n")[0]
        return f"{result.total_lines} lines, the first one: {first_line!r}"
    if occurrences := getattr(result, "occurrences", None):
        return f"{occurrences} replaced in {result.path}"
    return str(getattr(result, "path", "done"))


def sample(paths: Iterable[str]) -> str:
    """The first few paths."""
    shown = list(paths)
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


# --- the graph: async nodes that await the backend ---


async def look_around(state: FilesystemState) -> None:
    """List the mounts and search all of them at once."""
    steps = Steps("1. Look around")
    await steps.call('als("/")', tree.als("/"))
    await steps.call('aglob("/src/*/__init__.py")', tree.aglob("/src/*/__init__.py"))
    await steps.call('agrep("def get_config")', tree.agrep("def get_config"))
    await steps.call(r'agrep(r"^class \w+Saver\b", regex=True)', tree.agrep(r"^class \w+Saver\b", regex=True))
    console.print(steps.table)


async def take_notes(state: FilesystemState) -> None:
    """Write, edit and read a file in graph state."""
    steps = Steps("2. Take notes in graph state")
    await steps.call('awrite("/notes.md", …)', tree.awrite("/notes.md", "# Notes\n\n- todo: look around\n"))
    await steps.call('aedit("/notes.md", "todo", "done")', tree.aedit("/notes.md", "todo", "done"))
    await steps.call('awrite("/notes.md", …) again', tree.awrite("/notes.md", "lost?"))
    await steps.call('aread("/notes.md")', tree.aread("/notes.md"))
    console.print(steps.table)


async def edit_at_once(state: FilesystemState) -> None:
    """Fifty edits of one file at once: none is lost."""
    await tree.awrite("/memories/board.md", "".join(f"task {n}: open\n" for n in range(50)), overwrite=True)
    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(tree.aedit, "/memories/board.md", f"task {n}: open", f"task {n}: done")
    done = await tree.agrep(": done", "/memories/board.md")
    elapsed = (time.perf_counter() - start) * 1000
    console.print(f"[bold]3. Fifty concurrent edits of /memories/board.md[/bold]: {len(done.matches or ())} of 50 kept, {elapsed:,.1f} ms\n")


async def remember(state: FilesystemState) -> None:
    """Tell the memories of earlier runs and leave one."""
    steps = Steps("4. Remember")
    earlier = await steps.call('aglob("run-*.md", "/memories")', tree.aglob("run-*.md", "/memories"))
    now = datetime.now().isoformat(sep=" ", timespec="seconds")
    await steps.call("awrite(…)", tree.awrite(f"/memories/run-{len(earlier.matches or ()) + 1:03}.md", f"The demo ran at {now}.\n"))
    await steps.call('agrep("The demo ran", "/memories")', tree.agrep("The demo ran", "/memories"))
    console.print(steps.table)


def build_graph(store: AsyncSqliteStore) -> "CompiledStateGraph[FilesystemState]":
    """The four nodes, one after another, over a store."""
    graph = StateGraph(FilesystemState)
    nodes = [look_around, take_notes, edit_at_once, remember]
    for node in nodes:
        graph.add_node(node.__name__, node)
    names = [START, *(node.__name__ for node in nodes), END]
    for before, after in zip(names, names[1:], strict=False):
        graph.add_edge(before, after)
    return graph.compile(store=store)


@asynccontextmanager
async def memory_store() -> AsyncIterator[AsyncSqliteStore]:
    """The store in the SQLite file, made on the first run."""
    await anyio.Path(MEMORY_FILE.parent).mkdir(exist_ok=True)
    async with AsyncSqliteStore.from_conn_string(str(MEMORY_FILE)) as store:
        await store.setup()
        yield store


async def run_graph() -> None:
    """Run the graph and show what is in its state at the end."""
    async with memory_store() as store:
        final = await build_graph(store).ainvoke({"files": {}})
        console.print(f"The state of the graph now holds: {sorted(final['files'])}\n")


# --- the script: the same operations, without await ---


def run_script() -> None:
    """The sync names are generated from the async ones; `run_sync` runs anything else."""
    files = CompositeBackend(MemoryBackend(), {"/src/": FilesystemBackend(SOURCE_TREE)})
    steps = Steps("5. The same from a script")
    for shown, call in {
        'write("/draft.txt", …)': lambda: files.write("/draft.txt", "no await here\n"),
        'ls("/")': lambda: files.ls("/"),
        'run_sync(files.agrep, "await", "/draft.txt")': lambda: run_sync(files.agrep, "await", "/draft.txt"),
        'read("/src/missing.py")': lambda: files.read("/src/missing.py"),
    }.items():
        start = time.perf_counter()
        steps.add(shown, call(), start)
    console.print(steps.table)


if __name__ == "__main__":
    anyio.run(run_graph)
    run_script()
    console.print(f"\nRun it again: {MEMORY_FILE} remembers.")
